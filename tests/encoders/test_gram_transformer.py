"""The Gram read-outs against polynomials of dense matrices in numpy; invariances; invalid arguments."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
import torch
from helpers import (
    Batched,
    Graph,
    batch_of,
    corner_cases,
    few,
    from_networkx,
    graphs,
    listings,
    normal,
    randomize_,
    relative_error,
)
from hypothesis import given
from hypothesis import strategies as st
from numpy.polynomial.chebyshev import chebval
from torch import Tensor, nn
from torch_geometric.data import Data

import tg_lpe.encoders.gram_transformer
from tg_lpe import AddPositionalEncoding, Encoding, GramTransformer, Incidence, zoo
from tg_lpe.encoders.base import frozen_copy
from tg_lpe.encoders.gram_transformer import BALL_VISITS, EXACT_NODES, MAX_PADDING
from tg_lpe.graph.padding import PaddedBatch
from tg_lpe.nn.probes import draw_seed
from tg_lpe.ops.polynomials import BASES
from tg_lpe.ops.random import counter_signs

NONE = torch.zeros(2, 0, dtype=torch.int64)
RING = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
TYPES = {"num_edge_types": 3, "num_node_types": 4}
bases = pytest.mark.parametrize("basis", sorted(BASES))
depths = st.integers(1, 7)
kinds = st.sampled_from(["learned", "ground"])
EXACT = {"probes": "identity"}


def gram(seed: int = 0, **options: Any) -> GramTransformer:
    """Small, in double precision, every parameter with a value of its own."""
    return randomize_(GramTransformer(**{"num_filters": 2, "num_layers": 4, **options}), seed).double()


def types_of(graph: Graph, num_listed: int) -> dict[str, Tensor]:
    return {"x": torch.arange(graph.num_nodes) * 7 % 4, "edge_attr": torch.arange(num_listed) * 5 % 3}


def numpy_filters(
    model: GramTransformer,
    graph: Graph,
    index: Tensor,
    weight: Tensor | None,
    x: Tensor | None,
    edge_attr: Tensor | None,
) -> list[np.ndarray]:
    """``P`` of each filter: ``I - S``, zero at nodes without edge and ground."""
    state = {name: value.numpy() for name, value in model.conductances.state_dict().items()}

    def raw(name: str, feature: Tensor | None, num_rows: int) -> np.ndarray:
        if f"{name}.weight" in state:
            return state[f"{name}.table"] + feature.numpy() @ state[f"{name}.weight"]
        rows = np.zeros(num_rows, dtype=int) if feature is None else feature.numpy()
        return state[f"{name}.table"][rows]

    n, num_listed, num_filters = graph.num_nodes, index.size(1), model.num_filters
    conductance = np.ones((num_listed, num_filters))
    if "edge.table" in state:
        conductance = np.logaddexp(0, raw("edge", edge_attr, num_listed))
    if weight is not None:
        conductance = conductance * weight.numpy()[:, None]
    ground = np.logaddexp(0, raw("ground", x, n)) if "ground.table" in state else np.zeros((n, num_filters))
    matrices = []
    for number in range(num_filters):
        mean: dict[tuple[int, int], list[float]] = {edge: [] for edge in graph.edges}
        for (u, v), w in zip(index.T.tolist(), conductance[:, number], strict=True):
            if u != v:
                mean[min(u, v), max(u, v)].append(w)
        L = Graph(n, graph.edges, [float(np.mean(mean[e])) for e in graph.edges]).laplacian()
        L = L + np.diag(ground[:, number])
        D = np.diag(L)
        scale = np.where(D > 0, 1 / np.sqrt(np.where(D > 0, D, 1.0)), 0.0)
        matrices.append(np.diag((D > 0).astype(float)) - scale[:, None] * L * scale)
    return matrices


def layers_of(P: np.ndarray, basis: str, num_layers: int) -> list[np.ndarray]:
    values, vectors = np.linalg.eigh(P)
    powers = range(1, num_layers + 1)
    found = [values**t if basis == "power" else chebval(values, np.eye(num_layers + 1)[t]) for t in powers]
    return [(vectors * value) @ vectors.T for value in found]


def numpy_encoding(
    model: GramTransformer,
    graph: Graph,
    index: Tensor,
    weight: Tensor | None = None,
    x: Tensor | None = None,
    edge_attr: Tensor | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    node, edge = [], []
    tail, head = index.numpy()
    matrices = numpy_filters(model, graph, index, weight, x, edge_attr)
    for P in matrices if graph.num_nodes else []:
        for layer in layers_of(P, model.basis, model.num_layers):
            node.append(np.diag(layer))
            edge.append(np.where(tail == head, 0.0, layer[tail, head]))
    width = model.num_filters * model.num_layers
    node, edge = (np.array(part).reshape(width, -1).T for part in (node, edge))
    if model.readout is not None:
        node = node @ model.readout.weight.detach().numpy().T + model.readout.bias.detach().numpy()
    if model.edge_readout is not None:
        edge = edge @ model.edge_readout.weight.detach().numpy().T
    return node, edge


def check(got: Encoding, expected: tuple[np.ndarray, np.ndarray], tolerance: float = 1e-11) -> None:
    for part, want in zip(got, expected, strict=True):
        assert part.dtype == torch.float64 and part.shape == want.shape
        # The entries are those of polynomials bounded by one: their error is absolute.
        assert np.abs(part.detach().numpy() - want).max(initial=0.0) < tolerance * max(
            np.abs(want).max(initial=0.0), 1.0
        )


@bases
@few
@given(st.data(), depths, kinds, st.booleans(), st.sampled_from([(-1.0, 1.0), (-5.0, 5.0)]))
def test_against_numpy(basis: str, data: st.DataObject, depth, conductances: str, weighted: bool, exponents) -> None:
    graph = data.draw(graphs(exponents=exponents))
    index, weight = data.draw(listings(graph))
    given_weight = weight if weighted else None
    options = {"num_layers": depth, "basis": basis, **EXACT}
    model = gram(**options, **TYPES, conductances=conductances)
    features = types_of(graph, index.size(1))
    check(
        model(edge_index=index, num_nodes=graph.num_nodes, edge_weight=given_weight, **features),
        numpy_encoding(model, graph, index, given_weight, **features),
    )
    bare = gram(**options, conductances="fixed")
    check(
        bare(None, index, num_nodes=graph.num_nodes, edge_weight=given_weight),
        numpy_encoding(bare, graph, index, given_weight),
    )


@bases
@few
@given(st.data(), kinds)
def test_real_features_and_readouts_against_numpy(basis: str, data: st.DataObject, conductances: str) -> None:
    graph = data.draw(graphs())
    index, _ = data.draw(listings(graph))
    sizes = {"in_channels": 2, "edge_dim": 3}
    model = gram(5, out_channels=3, edge_out_channels=2, basis=basis, conductances=conductances, **sizes)
    features = {"x": normal(graph.num_nodes, 2), "edge_attr": normal(index.size(1), 3, seed=1)}
    got = model(edge_index=index, num_nodes=graph.num_nodes, **features)
    assert got.node.shape == (graph.num_nodes, 3) and got.edge.shape == (index.size(1), 2)
    check(got, numpy_encoding(model, graph, index, **features))


@pytest.mark.parametrize("conductances", ["learned", "ground"])
@bases
def test_corner_cases_against_numpy(basis: str, conductances: str) -> None:
    model = gram(basis=basis, conductances=conductances, **EXACT, **TYPES)
    for graph in corner_cases():
        index, weight = graph.both_ways()
        features = types_of(graph, index.size(1))
        features["edge_attr"] = features["edge_attr"][: len(graph.edges)].repeat(2)
        got = model(edge_index=index, num_nodes=graph.num_nodes, edge_weight=weight, **features)
        check(got, numpy_encoding(model, graph, index, weight, **features), 1e-9)


def test_the_first_filter_starts_as_a_random_walk() -> None:
    """Before training, without ground: the return probabilities of spectral.py's random walk, and of networkx."""
    graph = from_networkx(nx.lollipop_graph(4, 3))
    walk = np.diag(1 / np.diag(graph.laplacian())) @ nx.to_numpy_array(graph.networkx())
    model = GramTransformer(num_filters=1, num_layers=5, conductances="fixed", **EXACT).double()
    node, _ = model(None, graph.edge_index(), num_nodes=7)
    expected = np.stack([np.diag(np.linalg.matrix_power(walk, t)) for t in range(1, 6)], 1)
    assert relative_error(node, expected) < 1e-12


def test_filters_differ_and_lie_side_by_side() -> None:
    graph = from_networkx(nx.petersen_graph())
    index, weight = graph.both_ways()
    features = types_of(graph, 30)
    model = gram(num_filters=3, num_layers=2, **TYPES)
    node, edge = model(edge_index=index, edge_weight=weight, **features)
    for number in range(3):
        alone = gram(num_filters=1, num_layers=2, **TYPES)
        with torch.no_grad():
            for mine, theirs in zip(alone.conductances.parameters(), model.conductances.parameters(), strict=True):
                mine.copy_(theirs[:, number : number + 1])
        part = slice(2 * number, 2 * number + 2)
        expected = alone(edge_index=index, edge_weight=weight, **features)
        assert relative_error(node[:, part], expected.node) < 1e-13
        assert relative_error(edge[:, part], expected.edge) < 1e-13
    assert relative_error(node[:, :2], node[:, 2:4]) > 1e-2


# Directed edges.


def test_directed_edges_of_an_undirected_edge_count_with_their_mean() -> None:
    index = torch.tensor([[0, 1, 1, 2, 2, 2], [1, 0, 2, 2, 3, 3]])
    model = gram(num_edge_types=3)
    w = nn.functional.softplus(model.conductances.edge.table.detach())  # [types, filters]
    got = model(None, index, torch.tensor([0, 1, 2, 1, 0, 2]), num_nodes=4)
    means = torch.stack([w[[0, 1]].mean(0), w[2], w[[0, 2]].mean(0)])
    for number in range(2):
        one = gram(num_filters=1)
        with torch.no_grad():
            one.conductances.ground.table.copy_(model.conductances.ground.table[:, number : number + 1])
        expected = one(None, torch.tensor([[0, 1, 2], [1, 2, 3]]), num_nodes=4, edge_weight=means[:, number])
        part = slice(4 * number, 4 * number + 4)
        torch.testing.assert_close(got.node[:, part], expected.node, rtol=1e-13, atol=1e-14)
        both = expected.edge[[0, 0, 1, 0, 2, 2]] * torch.tensor([[1.0], [1], [1], [0], [1], [1]])
        torch.testing.assert_close(got.edge[:, part], both, rtol=1e-13, atol=1e-14)
    assert not got.edge[3].any() and got.edge[[0, 1, 2, 4, 5]].any(1).all(), "zero at the loop alone"
    assert torch.equal(got.edge[0], got.edge[1]), "the same in both directions"


@pytest.mark.parametrize("ground", [False, True])
@bases
def test_a_node_without_edges(basis: str, ground: bool) -> None:
    """Its row of ``P`` is zero: it has the powers of zero, or their Chebyshev polynomials; others do not change."""
    with_it = Graph(5, [(0, 1), (1, 2), (2, 4)], [1.0] * 3)
    without = Graph(4, [(0, 1), (1, 2), (2, 3)], [1.0] * 3)
    sizes = {"num_node_types": 2} if ground else {"conductances": "fixed"}
    model = gram(num_layers=5, basis=basis, **sizes)
    x = torch.tensor([0, 1, 1, 0, 1])
    got = model(x, with_it.edge_index(), num_nodes=5)
    lonely = [0.0] * 5 if basis == "power" else [0.0, -1.0, 0.0, 1.0, 0.0]
    assert got.node[3].tolist() == lonely * 2
    expected = model(x[[0, 1, 2, 4]], without.edge_index(), num_nodes=4)
    assert relative_error(got.node[[0, 1, 2, 4]], expected.node) < 1e-13
    assert relative_error(got.edge, expected.edge) < 1e-13
    alone = model(x[:3], NONE, num_nodes=3)
    assert alone.node.tolist() == [lonely * 2] * 3 and alone.edge.shape == (0, 10)


def test_weights_of_zero_and_over_ten_orders() -> None:
    graph = from_networkx(nx.circular_ladder_graph(6), lambda i: 10.0 ** (i % 11 - 5))
    index, weight = graph.both_ways()
    model = gram(conductances="fixed", num_layers=12)
    expected = model(None, index, edge_weight=weight)
    check(expected, numpy_encoding(model, graph, index, weight), 1e-10)
    scaled = model(None, index, edge_weight=1e6 * weight)
    assert all(relative_error(a, b) < 1e-12 for a, b in zip(scaled, expected, strict=True)), "only ratios matter"
    absent = model(
        None, torch.cat([index, torch.tensor([[0], [3]])], 1), edge_weight=torch.cat([weight, weight.new_zeros(1)])
    )
    assert (
        relative_error(absent.node, expected.node) < 1e-12 and relative_error(absent.edge[:-1], expected.edge) < 1e-12
    )
    weight = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    nothing = model(None, torch.tensor([[0, 1], [1, 2]]), num_nodes=4, edge_weight=weight)
    assert not nothing.node.any() and not nothing.edge.any()
    (nothing.node.sum() + nothing.edge.sum()).backward()
    assert weight.grad.isfinite().all()


# Equivariance.


@few
@given(st.data(), st.integers(0, 100))
def test_edges_follow_their_labels_order_and_direction(data: st.DataObject, seed: int) -> None:
    graph = data.draw(graphs(min_nodes=2))
    index, _ = data.draw(listings(graph))
    n, m = graph.num_nodes, index.size(1)
    model = gram(edge_out_channels=3, **EXACT, **TYPES)
    features = types_of(graph, m)
    expected = model(edge_index=index, num_nodes=n, **features).edge
    generator = torch.Generator().manual_seed(seed)
    label, order = torch.randperm(n, generator=generator), torch.randperm(m, generator=generator)
    flip = torch.rand(m, generator=generator) < 0.5
    moved = torch.where(flip, index.flip(0), index)[:, order]
    x = torch.empty_like(features["x"]).index_copy(0, label, features["x"])
    got = model(x, label[moved] if n else moved, features["edge_attr"][order], num_nodes=n).edge
    assert relative_error(got, expected[order]) < 1e-11


# A graph and its batch.


def check_batch(model: GramTransformer, batched: Batched, **features: Tensor) -> None:
    """Each graph alone, with its own part of the features."""
    together = model(**{"x": None, **features}, **batched.arguments())
    num_listed = [2 * len(graph.edges) for graph in batched.graphs]
    nodes, edges = batched.split(together.node), together.edge.split(num_listed)
    xs = batched.split(features["x"]) if "x" in features else [None] * len(nodes)
    attrs = features["edge_attr"].split(num_listed) if "edge_attr" in features else [None] * len(nodes)
    for graph, node, edge, x, edge_attr in zip(batched.graphs, nodes, edges, xs, attrs, strict=True):
        index, weight = graph.both_ways()
        alone = model(x, index, edge_attr, num_nodes=graph.num_nodes, edge_weight=weight)
        assert relative_error(node, alone.node) < 1e-10 and relative_error(edge, alone.edge) < 1e-10


def test_graphs_of_very_different_sizes() -> None:
    sizes = [3, 250, 4, 61, 0, 60, 3, 1, 125, 5, 40]
    parts = [from_networkx(nx.path_graph(n), lambda i: 1.0 + i % 3) if n else Graph(0, [], []) for n in sizes]
    batched = batch_of(parts)
    layout = PaddedBatch(Incidence(**batched.arguments()), dense_nodes=EXACT_NODES, max_padding=MAX_PADDING)
    assert len(layout.buckets) > 5 and any(bucket.num_graphs > 1 for bucket in layout.buckets), "several, some shared"
    check_batch(gram(num_layers=3, **EXACT), batched)
    check_batch(gram(num_layers=3, probes="rademacher", num_probes=9), batched)


def test_nan_does_not_spread_to_other_graphs_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN features are refused; where nobody looked, as in compiled code, those of one graph leave the others alone."""
    parts = [from_networkx(nx.cycle_graph(n)) for n in (6, 5, 6, 30)]
    batched = batch_of(parts)
    model = gram(in_channels=1)
    x = normal(batched.num_nodes, 1)
    expected = model(x, **batched.arguments())
    batched.split(x)[0].fill_(torch.nan)  # a view of x
    with pytest.raises(ValueError, match="node features must"):
        model(x, **batched.arguments())
    monkeypatch.setattr(model.conductances, "_check", lambda *_: None)
    got = model(x, **batched.arguments())
    assert got.node[:6].isnan().any() and got.edge[:12].isnan().any()
    assert torch.equal(got.node[6:], expected.node[6:]) and torch.equal(got.edge[12:], expected.edge[12:])


# Random probes.


def test_exactly_where_exact_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to six nodes, or where it takes no more multiplications than a cycle of seven; above, in two orders."""
    auto, identity, estimated = (gram(probes=kind, num_probes=3) for kind in ("auto", "identity", "rademacher"))
    work = auto.num_layers * auto.num_filters * 7 * (7 + 2 * 7)
    limit_exact(monkeypatch, nodes=6, work=work, visits=0)
    for size in (6, 7, 8):
        graph = incidence_of(from_networkx(nx.cycle_graph(size)))
        found, exact, guess = (model.gram(graph) for model in (auto, identity, estimated))
        for got, truth, random in zip(found, exact, guess, strict=True):
            if size < 8:
                assert torch.equal(got, truth)
                continue
            got, truth, random = (x.view(size, -1, auto.num_layers) for x in (got, truth, random))
            torch.testing.assert_close(got[..., :2], truth[..., :2])
            assert torch.equal(got[..., 2:], random[..., 2:])
            assert relative_error(got, truth) > 1e-3


def limit_exact(monkeypatch: pytest.MonkeyPatch, nodes: int, work: float, visits: int) -> None:
    """Let ``probes="auto"`` be exact for these sizes only."""
    for name, value in {"EXACT_NODES": nodes, "EXACT_WORK": work, "BALL_VISITS": visits}.items():
        monkeypatch.setattr(tg_lpe.encoders.gram_transformer, name, value)


def test_what_encodes_once_is_exact_on_larger_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is the copy of a transform alone; what is estimated is told."""
    limit_exact(monkeypatch, nodes=6, work=0, visits=0)
    graph = incidence_of(from_networkx(nx.random_regular_graph(3, 40, seed=0)))
    encoder, exact = (gram(probes=kind, num_probes=3, num_layers=5) for kind in ("auto", "identity"))
    truth = exact.encode(graph).node
    with pytest.warns(
        UserWarning, match=rf"40 nodes .* GramTransformer has out_channels={encoder.out_channels}"
    ) as said:
        encoder.encode(graph)
    assert not any(name in str(one.message) for one in said for name in zoo.names()), "it speaks of this encoder"
    for model in (encoder, copy.deepcopy(encoder).freeze()):
        with pytest.warns(UserWarning, match="estimates a part of the encoding"):
            assert relative_error(model.encode(graph).node, truth) > 1e-3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(frozen_copy(encoder).encode(graph).node, truth)
        data = Data(edge_index=graph.edge_index, num_nodes=40)
        assert torch.equal(AddPositionalEncoding(encoder)(data).pe, truth)
    monkeypatch.setattr(tg_lpe.encoders.gram_transformer, "EXACT_WORK_ONCE", 0)
    with pytest.warns(UserWarning, match="estimates a part of the encoding"):
        frozen_copy(encoder).encode(graph)


def incidence_of(graph: Graph) -> Incidence:
    return Incidence(graph.edge_index(), graph.num_nodes)


def large_graph(kind: str, num_nodes: int = 900) -> Graph:
    made = {
        "regular": lambda: nx.random_regular_graph(6, num_nodes, seed=1),
        "preferential": lambda: nx.barabasi_albert_graph(num_nodes, 3, seed=1),
        "small world": lambda: nx.connected_watts_strogatz_graph(num_nodes, 4, 0.1, seed=1),
        "grid": lambda: nx.convert_node_labels_to_integers(nx.grid_2d_graph(30, num_nodes // 30)),
        "tree of rings": lambda: nx.convert_node_labels_to_integers(
            nx.rooted_product(nx.random_labeled_tree(num_nodes // 6, seed=1), nx.cycle_graph(6), 0)
        ),
    }
    return from_networkx(made[kind]())


@pytest.mark.parametrize("read_edges", [True, False])
@pytest.mark.parametrize("kind", ["regular", "preferential", "small world", "grid", "tree of rings"])
def test_the_error_above_the_exact_sizes(kind: str, read_edges: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_exact(monkeypatch, nodes=6, work=0, visits=BALL_VISITS)
    graph = incidence_of(large_graph(kind))
    options: dict[str, Any] = {"num_filters": 4, "num_layers": 16, "edge_out_channels": None if read_edges else 0}
    with torch.no_grad():
        torch.manual_seed(0)
        exact = GramTransformer(probes="identity", **options).gram(graph)
        torch.manual_seed(0)
        got = GramTransformer(probes="auto", **options).gram(graph)
    bound = {"grid": 1e-5, "tree of rings": 0.01}.get(kind, 0.05)
    for guess, truth in list(zip(got, exact, strict=True))[: 1 + read_edges]:
        assert (guess - truth).norm() < bound * truth.norm()


@bases
@pytest.mark.parametrize("num_layers", [1, 2, 5])
def test_the_second_order_is_exact_around_hubs(basis: str, num_layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No ball is: the hub's neighbours see all of its edges."""
    limit_exact(monkeypatch, nodes=6, work=0, visits=42)
    whole = nx.compose(nx.wheel_graph(120), nx.relabel_nodes(nx.cycle_graph(80), lambda i: i + 118))
    graph = incidence_of(from_networkx(whole))
    options: dict[str, Any] = {"basis": basis, "num_layers": num_layers}
    found, exact = (gram(probes=kind, num_probes=3, **options).gram(graph) for kind in ("auto", "identity"))
    for got, truth in zip(found, exact, strict=True):
        torch.testing.assert_close(got.view(-1, num_layers)[:, :2], truth.view(-1, num_layers)[:, :2])
    assert num_layers < 5 or relative_error(found[1], exact[1]) > 1e-3


def test_common_neighbours_in_a_dense_graph_are_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for them would take longer than all estimates."""
    limit_exact(monkeypatch, nodes=6, work=0, visits=0)
    graph = incidence_of(from_networkx(nx.complete_graph(12)))
    exact = gram(probes="identity", num_layers=4).gram(graph)[1].view(66, -1, 4)[..., 1]
    for most in (11, 10):
        monkeypatch.setattr(tg_lpe.encoders.gram_transformer, "NEIGHBOURS", most)
        got = gram(probes="auto", num_probes=3, num_layers=4).gram(graph)[1].view(66, -1, 4)[..., 1]
        assert (relative_error(got, exact) < 1e-12) == (most == 11)


def test_large_graphs_in_a_batch_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, first, last, twice: the same; also where the batch has nodes without edges and graphs without nodes."""
    limit_exact(monkeypatch, nodes=6, work=1e4, visits=12)
    model = gram(probes="auto", num_probes=3, basis="chebyshev")
    large = large_graph("regular", 60), large_graph("preferential", 80)
    small = (
        Graph(3, [(0, 2)], [1.0]),
        Graph(0, [], []),
        from_networkx(nx.cycle_graph(6)),
        from_networkx(nx.path_graph(9)),
    )
    for parts in ([*small, *large], [*large, *small], [large[0], *small, large[1]], [large[1], large[1], *large]):
        batched = batch_of(parts)
        nodes, edges = model.gram(Incidence(**batched.arguments(weighted=False)))
        edges = edges.split([len(part.edges) for part in parts])
        for part, node, edge in zip(parts, batched.split(nodes), edges, strict=True):
            alone = model.gram(incidence_of(part))
            torch.testing.assert_close(node, alone[0])
            torch.testing.assert_close(edge, alone[1])


def test_what_relabelling_a_large_graph_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact orders by rounding only; the others as much as another seed would."""
    limit_exact(monkeypatch, nodes=6, work=0, visits=42)
    part = large_graph("regular", 300)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(1))
    moved = Incidence(order[part.edge_index()], 300)
    model, other = (gram(probes="auto", num_layers=8).requires_grad_(False) for _ in range(2))
    other.seed = 1
    first = model.gram(incidence_of(part))[0].view(300, -1, 8)
    relabelled = model.gram(moved)[0].view(300, -1, 8)[order]
    reseeded = other.gram(incidence_of(part))[0].view(300, -1, 8)
    torch.testing.assert_close(relabelled[..., :4], first[..., :4])
    changes = [(x - first)[..., 4:].square().mean().sqrt() for x in (relabelled, reseeded)]
    assert changes[0] > 0 and 0.8 < changes[0] / changes[1] < 1.25


def test_gradients_of_a_large_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_exact(monkeypatch, nodes=6, work=3e3, visits=6)
    parts = batch_of([from_networkx(nx.path_graph(3)), large_graph("regular", 12), from_networkx(nx.cycle_graph(7))])
    model = gram(probes="auto", num_probes=2, num_filters=1, num_layers=3)
    graph = Incidence(**parts.arguments(weighted=False))
    weight = torch.full((graph.num_edges,), 1.5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda w: model.gram(graph.with_conductances(w)), weight)


def standard_errors(A: np.ndarray, B: np.ndarray, pairs: list[tuple[int, int]]) -> np.ndarray:
    """Standard errors of one probe's estimates ``((A v)_i (B v)_j + (B v)_i (A v)_j) / 2``, from the moments of
    independent signs.

    They are quadratic forms ``v^T W v`` with symmetric ``W``, whose variance is ``2 sum_{k != l} W_kl^2``.
    """
    found = []
    for i, j in pairs:
        W = np.outer(A[i], B[j]) + np.outer(B[i], A[j])
        W = (W + W.T) / 4
        found.append(np.sqrt(2 * (W**2).sum() - 2 * (np.diag(W) ** 2).sum()))
    return np.array(found)


@bases
def test_estimates_are_unbiased_with_the_variance_of_signs(basis: str) -> None:
    graph = from_networkx(nx.lollipop_graph(5, 4), lambda i: 1.0 + i % 3)
    index, weight = graph.edge_index(), graph.edge_weight()
    num_probes, num_layers = 4000, 5
    options = {"num_filters": 1, "num_layers": num_layers, "basis": basis}
    exact = gram(**options, **EXACT)(None, index, edge_weight=weight)
    (P,) = numpy_filters(gram(**options), graph, index, weight, None, None)
    half = layers_of(P, basis, num_layers)
    pairs = [[(i, i) for i in range(graph.num_nodes)], graph.edges]
    scores = []
    for seed in range(4):
        model = gram(**options, probes="rademacher", num_probes=num_probes)
        model.seed = seed
        got = model(None, index, edge_weight=weight)
        assert all(relative_error(a[:, 0] + 1, b[:, 0] + 1) < 1e-13 for a, b in zip(got, exact, strict=True)), (
            "P itself"
        )
        for depth in range(2, num_layers + 1):
            a, b = half[depth // 2 - 1], half[depth - depth // 2 - 1]
            for estimate, truth, which in zip(got, exact, pairs, strict=True):
                error = (2 if basis == "chebyshev" else 1) * standard_errors(a, b, which)
                deviation = (estimate[:, depth - 1] - truth[:, depth - 1]).detach().numpy()
                certain = error < 1e-9
                assert np.abs(deviation[certain]).max(initial=0.0) < 1e-9
                scores.append(deviation[~certain] * num_probes**0.5 / error[~certain])
    scores = np.concatenate(scores)
    assert scores.size > 200
    assert np.abs(scores).max() < 5, "no deviation beyond five standard errors"
    # The variance is that of random signs; the scores of one seed are correlated, hence the wide bounds.
    assert 0.5 < (scores**2).mean() < 2


def test_the_draw_of_a_large_graph_against_sparse_algebra() -> None:
    """One probe at a time through scipy's sparse products, on a graph too large for a dense matrix."""
    graph = from_networkx(nx.random_regular_graph(3, 2000, seed=2), lambda i: 1.0 + i % 5)
    index, weight = graph.both_ways()
    model = gram(num_filters=1, num_layers=3, num_probes=10, seed=5, probes="rademacher")
    with torch.no_grad():
        model.seed = 12
        got = model(None, index, edge_weight=weight)
    q = np.logaddexp(0, model.conductances.ground.table.item())
    A = scipy.sparse.coo_matrix((weight.numpy(), index.numpy()), (2000, 2000)).tocsr()
    scale = scipy.sparse.diags(1 / np.sqrt(np.asarray(A.sum(1)).ravel() + q))
    P, v = (scale @ A @ scale).tocsr(), counter_signs(12, 2000, torch.arange(10), model.unit).numpy()
    images = [v, P @ v, P @ (P @ v)]
    assert (
        not got.node[:, 0].any() and relative_error(got.edge[:, 0], np.asarray(P[tuple(index.numpy())]).ravel()) < 1e-13
    )
    for layer, (a, b) in ((2, (images[1], images[1])), (3, (images[1], images[2]))):
        assert relative_error(got.node[:, layer - 1], (a * b).mean(1)) < 1e-11
        across = a[index[0]] * b[index[1]] + b[index[0]] * a[index[1]]
        assert relative_error(got.edge[:, layer - 1], across.mean(1) / 2) < 1e-11


def test_a_generator_draws_anew_and_repeats_from_the_same_state() -> None:
    model = gram(probes="rademacher", num_probes=3)
    generator, state = torch.Generator().manual_seed(1), torch.get_rng_state()
    first, second = (model(None, RING, generator=generator).node for _ in range(2))
    assert relative_error(first, second) > 0.01
    assert torch.equal(model(None, RING, generator=torch.Generator().manual_seed(1)).node, first)
    again = model(None, RING).node
    assert torch.equal(model(None, RING).node, again) and relative_error(again, first) > 0.01
    model.seed = draw_seed(torch.Generator().manual_seed(1))
    assert torch.equal(model(None, RING).node, first)
    assert torch.equal(torch.get_rng_state(), state), "the global one is left alone"


def test_identity_probes_draw_nothing() -> None:
    model = gram(**EXACT)
    expected = model(None, RING)
    assert all(torch.equal(a, b) for a, b in zip(model(None, RING, generator=torch.Generator()), expected, strict=True))
    model.seed = 9
    assert torch.equal(model(None, RING).node, expected.node)


# Gradients.


@bases
@pytest.mark.parametrize(
    "options",
    [
        {**EXACT, **TYPES},
        {**EXACT, "in_channels": 2, "edge_dim": 3},
        {**EXACT, "conductances": "ground", "num_node_types": 4},
        {"probes": "rademacher", "num_probes": 3, **TYPES},
        {"probes": "rademacher", "num_probes": 2, "in_channels": 2, "edge_dim": 3},
    ],
    ids=["types", "features", "ground", "random", "random features"],
)
def test_gradients_of_every_parameter(basis: str, options: dict[str, Any]) -> None:
    # (0, 1) both ways with types that differ, a loop, one-way edges, a node without edges, two graphs in two buckets
    index = torch.tensor([[0, 1, 1, 1, 2, 5, 6, 4], [1, 0, 1, 2, 0, 6, 7, 8]])
    batch = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 1, 1])
    model = gram(3, out_channels=2, edge_out_channels=1, num_layers=3, basis=basis, **options)
    x = normal(10, 2) if "in_channels" in options else torch.arange(10) % 4
    edge_attr = normal(8, 3, seed=1) if "edge_dim" in options else torch.arange(8) % 3
    names = [name for name, _ in model.named_parameters()]
    has_linear = "in_channels" in options
    assert len(names) == 3 + (1 + ("conductances" not in options)) * (1 + has_linear)

    def of(both: Tensor, *values: Tensor) -> Encoding:
        arguments = (x, index, edge_attr, batch, both[[0, 0, 1, 2, 3, 4, 5, 6]])
        return torch.func.functional_call(model, dict(zip(names, values, strict=True)), arguments)

    given = normal(7, seed=2).abs() + 0.5
    inputs = [t.detach().clone().requires_grad_() for t in (given, *model.parameters())]
    assert torch.autograd.gradcheck(of, inputs, fast_mode=True)
    out = of(*inputs)
    loss = (out.node * normal(*out.node.shape)).sum() + (out.edge * normal(*out.edge.shape)).sum()
    for name, gradient in zip(("weight", *names), torch.autograd.grad(loss, inputs), strict=True):
        used = gradient if name != "weight" else gradient[[0, 2, 3, 4, 5, 6]]  # but for the loop's
        assert used.isfinite().all() and (used != 0).any(), name


@bases
@few
@given(st.data(), depths)
def test_gradients_are_those_of_dense_autograd(basis: str, data: st.DataObject, depth) -> None:
    """The whole encoder by dense matrices and autograd."""
    graph = data.draw(graphs(min_nodes=1, max_nodes=8))
    index, _ = data.draw(listings(graph))
    n, edges = graph.num_nodes, graph.edge_index()
    model = gram(1, num_layers=depth, basis=basis, **EXACT, **TYPES)
    features = types_of(graph, index.size(1))

    def dense() -> Encoding:
        w = nn.functional.softplus(model.conductances.edge.table)[features["edge_attr"]]
        node, edge = [], []
        for number in range(2):
            pairs = index[0] * n + index[1]
            total, count = torch.zeros(2, n * n, dtype=torch.float64).unbind()
            total = total.index_add(0, pairs, w[:, number]).view(n, n)
            count = count.index_add(0, pairs, torch.ones(index.size(1), dtype=torch.float64)).view(n, n)
            off = 1 - torch.eye(n, dtype=torch.float64)
            A = off * (total + total.T) / (count + count.T).clamp(min=1)
            D = A.sum(1)
            D = D + nn.functional.softplus(model.conductances.ground.table)[features["x"], number]
            scale = torch.where(D > 0, D, 1.0).rsqrt()
            P = scale.unsqueeze(1) * A * scale
            before, phi, layers = torch.eye(n, dtype=torch.float64), P, [P]
            for _ in range(depth - 1):
                before, phi = phi, P @ phi if basis == "power" else 2 * P @ phi - before
                layers.append(phi)
            node += [layer.diagonal() for layer in layers]
            edge += [layer[edges[0], edges[1]] for layer in layers]
        return Encoding(torch.stack(node, 1), torch.stack(edge, 1))

    def gradients(out: tuple[Tensor, Tensor]) -> list[Tensor]:
        loss = sum((part * normal(*part.shape, seed=3)).sum() for part in out)
        return torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)

    ours = model.gram(Incidence(index, n), **features)
    theirs = dense()
    assert all(relative_error(a, b) < 1e-11 for a, b in zip(ours, theirs, strict=True))
    got, expected = gradients(ours), gradients(theirs)
    scale = max(float(g.abs().max()) for g in expected)
    for a, b in zip(got, expected, strict=True):
        assert float((a - b).abs().max()) <= 1e-11 * max(scale, 1.0)


def test_checkpointing_recomputes_the_same_values() -> None:
    """Random probes are drawn once, not again in the backward pass; nothing is recorded without gradients."""
    model = gram(probes="rademacher", num_probes=20, num_edge_types=3)
    given = {"edge_attr": torch.arange(6) % 3}
    outs = [model(None, RING, generator=torch.Generator().manual_seed(2), **given).node for _ in range(2)]
    weight = normal(*outs[0].shape)
    first = torch.autograd.grad((outs[0] * weight).sum(), model.conductances.edge.table)[0]
    second = torch.autograd.grad((outs[1] * weight).sum(), model.conductances.edge.table)[0]
    assert torch.equal(first, second) and first.any()
    with torch.no_grad():
        frozen = model(None, RING, generator=torch.Generator().manual_seed(2), **given)
    assert relative_error(frozen.node, outs[0]) < 1e-13  # without gradients, by the compiled part where it is there
    assert not frozen.node.requires_grad and not frozen.edge.requires_grad


# Shapes, precision, memory layout.


@pytest.mark.parametrize("probes", ["identity", "rademacher"])
def test_autocast_changes_no_bit(probes: str) -> None:
    model = randomize_(GramTransformer(3, 2, probes=probes, num_probes=3, in_channels=2, edge_dim=3))
    features = {"x": normal(6, 2, dtype=torch.float32), "edge_attr": normal(6, 3, dtype=torch.float32)}
    expected = model(edge_index=RING, **features)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = model(edge_index=RING, **features)
        assert (features["x"] @ features["x"].T).dtype == torch.bfloat16, "it was on"
    assert all(a.dtype == torch.float32 and torch.equal(a, b) for a, b in zip(inside, expected, strict=True))


def test_a_module_without_parameters_can_be_cast() -> None:
    model = GramTransformer(num_layers=2, conductances="fixed")
    assert list(model.parameters()) == [] and model.state_dict() == {}
    assert model(None, RING).node.dtype == torch.float32
    assert model.double()(None, RING).node.dtype == torch.float64
    assert model.to("meta").unit.device.type == "meta", "it moves with the module"
    weight = torch.ones(6, dtype=torch.float64)
    assert (
        GramTransformer(num_layers=2, conductances="fixed")(None, RING, edge_weight=weight).node.dtype == torch.float32
    )


def test_number_of_nodes_comes_from_batch_or_features() -> None:
    model = gram(num_node_types=4)
    x = torch.zeros(9, dtype=torch.int64)
    assert model(x, RING).node.shape == (9, 8)
    assert model(x, RING, batch=torch.zeros(9, dtype=torch.int64)).node.shape == (9, 8)
    assert gram()(None, RING).node.shape == (6, 8)
    graph = Incidence(RING, 9)
    assert torch.equal(model.encode(graph, x).node, model(x, RING).node)


# Invalid arguments.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_filters": 0}, "num_filters must"),
        ({"num_layers": 2.0}, "num_layers must"),
        ({"num_probes": -1}, "num_probes must"),
        ({"out_channels": 0}, "out_channels must"),
        ({"edge_out_channels": -2}, "edge_out_channels must"),
        ({"conductances": "none"}, "conductances must be one of"),
        ({"conductances": "fixed", "num_node_types": 3}, "conductances"),
        ({"basis": "legendre"}, "basis must"),
        ({"probes": "random"}, "probes must"),
        ({"num_edge_types": 2, "edge_dim": 3}, "edges have"),
        ({"num_node_types": 2, "in_channels": 3}, "nodes have"),
    ],
)
def test_constructor_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GramTransformer(**options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": None}, "node types must"),
        ({"edge_attr": torch.tensor([0, 1, 2, 3, 0, 1])}, "edge types must"),
        ({"edge_attr": torch.zeros(5, dtype=torch.int64)}, "edge types must"),
        ({"edge_weight": torch.full((6,), -1.0)}, "finite and not negative, got -1.0"),
        ({"edge_index": RING + 1}, "edge_index must"),
    ],
)
def test_forward_refuses(change: dict[str, Any], message: str) -> None:
    given = {"edge_index": RING, "num_nodes": 6, **types_of(Graph(6, [], []), 6)}
    with pytest.raises(ValueError, match=message):
        GramTransformer(**TYPES)(**{**given, **change})


def test_a_graph_too_large_for_identity_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tg_lpe.encoders.gram_transformer, "IDENTITY_LIMIT", 5)
    model = gram(**EXACT)
    batch = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1])
    assert model(None, NONE, batch=batch).node.shape == (8, 8), "what counts is the largest graph"
    with pytest.raises(ValueError, match="probes="):
        model(None, RING)
    assert gram(probes="rademacher")(None, RING).node.isfinite().all()


# Checkpoints.


@pytest.mark.parametrize(
    "change", [{"basis": "chebyshev"}, {"num_layers": 5}, {"num_filters": 3}, {"probes": "rademacher"}, {"seed": 3}]
)
def test_options_that_are_told_have_an_effect(change: dict[str, Any]) -> None:
    start = {"probes": "rademacher" if "seed" in change else "identity", "num_probes": 2}
    a, b = gram(**start)(None, RING).node, gram(**{**start, **change})(None, RING).node
    assert a.shape != b.shape or relative_error(a, b) > 1e-3


def test_ground_of_the_graph_is_added() -> None:
    """It adds to the learned ground; without learned ground, the dense grounded Laplacian is the oracle."""
    model = GramTransformer(num_filters=1, num_layers=3, probes="identity", conductances="fixed").double()
    q = torch.tensor([5.0, 0.0, 0.5], dtype=torch.float64)
    got = model.encode(Incidence(torch.tensor([[0, 1], [1, 2]]), 3, ground=q)).node
    adjacency = torch.tensor([[0.0, 1, 0], [1, 0, 1], [0, 1, 0]], dtype=torch.float64)
    scale = (adjacency.sum(1) + q).rsqrt()
    p = scale[:, None] * adjacency * scale
    expected = torch.stack([torch.linalg.matrix_power(p, t).diagonal() for t in (1, 2, 3)], dim=1)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("exponent", [-40.0, -200.0, 39.0, 300.0])
def test_weights_beyond_the_range_of_float32(exponent: float) -> None:
    """Without ground only the ratios of the weights of a graph matter, whatever it is batched with."""
    torch.manual_seed(0)
    graph = from_networkx(nx.cycle_graph(5), lambda i: 1.0 + i)
    index, weight = graph.both_ways()
    model = GramTransformer(4, 3, conductances="fixed").eval()
    batch = torch.arange(10) // 5
    both = torch.cat([index, index + 5], dim=1)
    expected = model(None, index, edge_weight=weight)
    found = model(None, both, batch=batch, edge_weight=torch.cat([weight * 10.0**exponent, weight]))
    for got, wanted in zip(found, expected, strict=True):
        assert relative_error(got, torch.cat([wanted, wanted])) < 1e-5
    weights = torch.cat([weight * 10.0**exponent] * 2)
    grounded = GramTransformer(4, 3).eval()(None, both, batch=batch, edge_weight=weights)
    assert all(bool(part.isfinite().all()) for part in grounded)


def test_ground_and_weights_of_one_scale() -> None:
    """A common factor of weights and ground changes nothing without learned ground, in float32 as in float64."""
    graph = from_networkx(nx.path_graph(6), lambda i: 2.0 + i)
    index, weight = graph.both_ways()
    ground = torch.linspace(0, 3, 6, dtype=torch.float64)
    model = GramTransformer(4, 3, conductances="fixed").eval()
    expected = model.encode(Incidence(index, 6, edge_weight=weight, ground=ground))
    for factor in (1e-44, 1e42):
        found = model.encode(Incidence(index, 6, edge_weight=factor * weight, ground=factor * ground))
        assert relative_error(found.node, expected.node) < 1e-5 and relative_error(found.edge, expected.edge) < 1e-5
