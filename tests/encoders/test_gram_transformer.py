"""The Gram read-outs against polynomials of dense matrices in numpy; invariances; invalid arguments."""

from __future__ import annotations

import warnings
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
import torch
from helpers import (
    Graph,
    batch_of,
    corner_cases,
    few,
    from_networkx,
    graphs,
    listings,
    normal,
    randomize_,
    refusals,
    relative_error,
)
from hypothesis import given
from hypothesis import strategies as st
from numpy.polynomial.chebyshev import chebval
from torch import Tensor
from torch_geometric.data import Data

import tg_lpe
from tg_lpe import AddPositionalEncoding, Encoding, GramTransformer
from tg_lpe.nn.probes import draw_seed
from tg_lpe.ops.polynomials import BASES
from tg_lpe.ops.random import counter_signs

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
    for part, want in zip(got[:2], expected, strict=True):
        assert part.dtype == torch.float64 and part.shape == want.shape
        # The entries are those of polynomials bounded by one: their error is absolute.
        assert np.abs(part.detach().numpy() - want).max(initial=0.0) < tolerance * max(
            np.abs(want).max(initial=0.0), 1.0
        )


SIZES: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "types": ({"num_node_types": 4}, {"num_edge_types": 3}),
    "features": ({"in_channels": 2}, {"edge_dim": 3}),
    "nothing": ({}, {}),
}
"""Arguments for the features of nodes and edges."""


@bases
@few
@given(st.data(), depths, kinds, st.booleans(), st.sampled_from([*SIZES]), st.sampled_from([*SIZES]))
def test_against_numpy(
    basis: str, data: st.DataObject, depth: int, conductances: str, weighted: bool, nodes: str, edges: str
) -> None:
    """Whatever features it reads, with read-outs; and without any of these."""
    graph = data.draw(graphs(exponents=data.draw(st.sampled_from([(-1.0, 1.0), (-5.0, 5.0)]))))
    index, weight = data.draw(listings(graph))
    options, sizes = {"num_layers": depth, "basis": basis}, {**SIZES[nodes][0], **SIZES[edges][1]}
    model = gram(out_channels=3, edge_out_channels=2, conductances=conductances, **sizes, **options)
    types, real = types_of(graph, index.size(1)), (normal(graph.num_nodes, 2), normal(index.size(1), 3, seed=1))
    x = {"types": types["x"], "features": real[0], "nothing": None}[nodes]
    edge_attr = {"types": types["edge_attr"], "features": real[1], "nothing": None}[edges]
    bare = gram(**options, **EXACT, conductances="fixed")
    for encoder, given_x, attr in ((model, x, edge_attr), (bare, None, None)):
        given_weight = weight if weighted else None
        got = encoder(given_x, index, attr, num_nodes=graph.num_nodes, edge_weight=given_weight)
        check(got, numpy_encoding(encoder, graph, index, given_weight, given_x, attr))


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


@pytest.mark.parametrize(
    ("whole", "exact_layers"),
    [(nx.random_regular_graph(3, 2000, seed=0), (14, 13)), (nx.wheel_graph(2000), (2, 1))],
    ids=["regular", "wheel"],
)
def test_a_graph_too_large_to_be_exact(whole: nx.Graph, exact_layers: tuple[int, int]) -> None:
    """Orders that depend on few edges are exact and others estimated, also in a batch; the error is reported."""
    part, others = from_networkx(whole), [from_networkx(nx.path_graph(9)), Graph(3, [(0, 2)], [1.0])]
    graph = tg_lpe.Graph(part.edge_index(), part.num_nodes)
    options: dict[str, Any] = {"conductances": "fixed", "num_layers": 80}
    model = GramTransformer(num_filters=8, num_probes=64, **options).double()
    truth = GramTransformer(num_filters=1, probes="identity", **options).double()(None, graph)
    with pytest.warns(UserWarning, match=r"2,000 nodes .* estimates a part of the encoding"):
        found = model(None, graph)
    batched = batch_of([others[0], part, others[1]])
    together = model(None, tg_lpe.Graph(**batched.arguments(weighted=False)))
    edges = together.edge[16 : 16 + len(part.edges)]
    parts = zip(found[:2], (together.node[9:-3], edges), truth[:2], exact_layers, strict=True)
    for got, beside, exact, layers in parts:
        torch.testing.assert_close(beside, got)
        for columns in got.view(-1, 8, 80).unbind(1):
            torch.testing.assert_close(columns[:, :layers], exact[:, :layers])
            assert 1e-3 < relative_error(columns[:, layers:], exact[:, layers:]) < 1


def test_what_encodes_once_is_exact_on_larger_graphs() -> None:
    """That is the copy of a transform alone."""
    graph = tg_lpe.Graph(from_networkx(nx.random_regular_graph(3, 2000, seed=0)).edge_index(), 2000)
    encoder = gram(num_filters=8, num_layers=80, conductances="fixed")
    data = Data(edge_index=graph.edge_index, num_nodes=2000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = AddPositionalEncoding(encoder)(data).pe
    exact = gram(num_filters=1, num_layers=80, conductances="fixed", **EXACT)(None, graph).node
    assert relative_error(found[:, :80], exact) < 1e-12


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


test_constructor_refuses = refusals(
    GramTransformer,
    ({"conductances": "fixed", "num_node_types": 3}, "conductances"),
    ({"num_edge_types": 2, "edge_dim": 3}, "edges have"),
    ({"num_node_types": 2, "in_channels": 3}, "nodes have"),
)


def test_features_without_columns() -> None:
    model = gram(in_channels=0, edge_dim=0, conductances="learned")
    assert model(torch.zeros(6, 0), RING, torch.zeros(6, 0)).node.isfinite().all()


def test_a_graph_too_large_for_identity_probes() -> None:
    with pytest.raises(ValueError, match="probes="):
        gram(**EXACT)(None, RING, num_nodes=4097)


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
    for got, wanted in zip(found[:2], expected[:2], strict=True):
        assert relative_error(got, torch.cat([wanted, wanted])) < 1e-5
    weights = torch.cat([weight * 10.0**exponent] * 2)
    grounded = GramTransformer(4, 3).eval()(None, both, batch=batch, edge_weight=weights)
    assert all(bool(part.isfinite().all()) for part in grounded[:2])
