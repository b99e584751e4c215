"""The linear transformer against eq. (16), written out here with n x n matrices, one graph at a time."""

from __future__ import annotations

import itertools
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import (
    Graph,
    batch_of,
    corner_cases,
    few,
    from_networkx,
    graph_of,
    graphs,
    normal,
    randomize_,
    refusals,
    relative_error,
)
from hypothesis import given
from hypothesis import strategies as st
from ops_support import eq_16, parameters_of_layers
from scipy import sparse
from torch import Tensor

import tg_lpe
from tg_lpe import LinearTransformer
from tg_lpe.encoders import Inputs, load_encoder
from tg_lpe.encoders.base import frozen_copy
from tg_lpe.graph.eigenvectors import laplacian_eigenvectors

SWITCHES = ("degree_scaling", "independent_scaling", "diagonal", "normalize")
COMBINATIONS = [
    {**dict(zip(SWITCHES, values, strict=True)), "num_loops": loops, "update_incidence": update}
    for *values, loops, update in itertools.product(*[(True, False)] * 4, (1, 2), (False, True))
]
every_combination = pytest.mark.parametrize(
    "options", COMBINATIONS, ids=lambda o: "".join(k[0] for k in o if o[k] is True) + str(o["num_loops"])
)


def check_batch(model: LinearTransformer, options: dict[str, Any], parts: list[Graph], blocks: int) -> None:
    batched = batch_of(parts)
    phi = normal(batched.num_nodes, model.k, seed=3) / 3
    got = model.encode(tg_lpe.Graph(**batched.arguments()), Inputs(), probes=phi).node
    for graph, mine, start in zip(parts, batched.split(got), batched.split(phi), strict=True):
        expected = eq_16(graph, start.numpy(), model, options, blocks)
        assert relative_error(mine, expected) < 1e-9, f"{graph.num_nodes} nodes, {len(graph.edges)} edges"


@every_combination
def test_eq_16_on_a_mixed_batch(options: dict[str, Any]) -> None:
    model = randomize_(LinearTransformer(k=3, out_channels=2, num_blocks=2, **options), seed=1).double()
    parts = [
        Graph(6, [(0, 1), (0, 2), (1, 2), (3, 4)], [1.0, 0.5, 2.0, 1.5]),
        Graph(0, [], []),
        Graph(1, [], []),
        Graph(3, [], []),
        from_networkx(nx.random_regular_graph(3, 70, seed=1), lambda i: 0.5 + i % 3),
        from_networkx(nx.path_graph(5)),
    ]
    check_batch(model, options, parts, blocks=2)
    for graph in parts:
        check_batch(model, options, [graph], blocks=2)


@few
@given(st.lists(graphs(exponents=(-1.0, 1.0)), max_size=4), st.sampled_from(COMBINATIONS), st.integers(1, 9))
def test_eq_16_on_random_graphs(parts: list[Graph], options: dict[str, Any], k: int) -> None:
    model = randomize_(LinearTransformer(k=k, num_blocks=2, **options), seed=k, scale=0.3).double()
    check_batch(model, options, parts, blocks=2)


@pytest.mark.parametrize(("update", "depth"), [(False, 3), (True, 2)])
def test_eq_16_on_corner_cases(update: bool, depth: int) -> None:
    options = {**dict.fromkeys(SWITCHES, True), "num_loops": depth, "update_incidence": update}
    model = randomize_(LinearTransformer(k=4, num_blocks=depth, **options), seed=2, scale=0.4).double()
    check_batch(model, options, corner_cases(), blocks=depth)


@pytest.mark.parametrize("weighted", [False, True])
def test_weights_of_lemma_6_give_leading_eigenvectors(weighted: bool) -> None:
    """Section 14.2: the lemma survives all five modifications. A block of three loops is ``L^3`` or one step of QR."""
    model = LinearTransformer(k=3, num_blocks=160, num_loops=3).double()
    values, column_of = {"alpha_q": 1, "alpha_k": 1, "beta_3": 1, "beta_4": 1, "w_r": 0}, torch.arange(3)
    with torch.no_grad():
        for name, value in values.items():
            getattr(model, name).fill_(value)
        for block, column in zip(range(160), itertools.cycle([None, 2, 1, 0])):
            if column is None:
                model.w_v[block], model.w_r[block], model.beta_4[block] = 1.0, -1.0, 0.0
            else:
                model.w_v[block], model.alpha_q[block] = -1.0 * (column_of == column), 0.0
                model.w_q[block] = model.w_k[block] = (column_of > column).double()
        model.readout.weight.copy_(torch.eye(3))
    graph = from_networkx(nx.gnp_random_graph(8, 0.4, seed=264), lambda i: 0.5 + i % 3 if weighted else 1.0)
    b = graph.incidence() / np.sqrt(np.abs(graph.incidence()).sum(1, keepdims=True))
    expected = np.linalg.eigh(b @ b.T)[1][:, -3:]
    got = model.encode(graph_of(graph), Inputs(), probes=normal(8, 3)).node.detach().abs()
    assert np.abs(got.numpy() - np.abs(expected)).max() < 2e-7


def from_identity(model: LinearTransformer, graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Eq. (16) with one n x n matrix for each column, which starts from the identity; the values at nodes and edges."""
    n, ground = graph.num_nodes, np.logaddexp(0, model.polynomials.conductances.ground.table.detach().numpy()[0])
    node, edge = np.zeros((n, model.k)), np.zeros((len(graph.edges), model.k))
    for column in range(model.k):
        L = graph.laplacian() / np.mean([w for w in graph.weights if w] or 1) + ground[column % len(ground)] * np.eye(n)
        S, phi = L / np.sqrt(np.outer(np.diag(L), np.diag(L))), np.eye(n)
        for p in parameters_of_layers(model, len(model.w_v), model.num_loops):
            residual = 1 + p["w_r"]
            similarity = p["alpha_q"] * p["alpha_k"] * p["beta_3"] * p["w_v"][column]
            phi = residual * phi + similarity * (phi @ S)
            phi /= max(abs(residual), abs(residual + 2 * similarity)) if model.normalize else 1.0
        node[:, column], edge[:, column] = np.diag(phi), [phi[pair] for pair in graph.edges]
    weight, bias = (parameter.detach().numpy() for parameter in model.readout.parameters())
    return node @ weight.T + bias, edge @ model.edge_readout.weight.detach().numpy().T


def check_from_identity(model: LinearTransformer, parts: list[Graph]) -> None:
    batched = batch_of(parts)
    got = model(None, tg_lpe.Graph(**batched.arguments()))
    edges = got.edge.split([2 * len(graph.edges) for graph in parts])
    for graph, node, edge in zip(parts, batched.split(got.node), edges, strict=True):
        for mine, expected in zip((node, edge[: len(graph.edges)]), from_identity(model, graph), strict=True):
            assert relative_error(mine, expected) < 1e-9


several = st.lists(graphs(exponents=(-1.0, 1.0)), min_size=1, max_size=3)


@few
@given(several, st.integers(1, 7), st.booleans())
def test_from_the_identity_on_random_graphs(parts: list[Graph], k: int, flag: bool) -> None:
    options = {"num_filters": 3, "edge_out_channels": 2, "normalize": flag, "independent_scaling": flag}
    torch.manual_seed(k)
    check_from_identity(randomize_(LinearTransformer(k, 4, 2, 3, "identity", **options), k, 0.3).double(), parts)


@pytest.mark.parametrize("frozen", [False, True])
@few
@given(several)
def test_the_shipped_encoder_on_random_graphs(frozen: bool, parts: list[Graph]) -> None:
    model = load_encoder("universal-k32").encoders[0].double()
    parts.append(from_networkx(nx.complete_graph(4), float))  # the first edge has weight zero
    check_from_identity(frozen_copy(model) if frozen else model, parts)


def test_a_graph_of_thousands_of_nodes_against_scipy() -> None:
    model = randomize_(LinearTransformer(k=8, num_blocks=2, num_loops=2), seed=5).double()
    graph = from_networkx(nx.random_regular_graph(3, 4000, seed=0), lambda i: 10.0 ** (i % 7 - 3))
    phi = normal(4000, 8)
    index, weight = graph.both_ways()
    got = model.encode(tg_lpe.Graph(index, 4000, edge_weight=weight), Inputs(), probes=phi).node
    tail, head = np.array(graph.edges).T
    root, column = np.sqrt(np.array(graph.weights)), np.arange(len(graph.edges))
    B = sparse.csr_array(
        (np.concatenate([-root, root]), (np.concatenate([tail, head]), np.concatenate([column, column])))
    )
    z = phi.numpy()
    for p in parameters_of_layers(model, 2, 2):
        scaling = sparse.diags_array(1 / np.sqrt(abs(B).sum(axis=1)))
        similar = scaling @ (B @ (B.T @ (scaling @ z)))
        gram = z.T @ z
        z = (
            z * (1 + p["w_r"])
            + p["beta_3"] * p["alpha_q"] * p["alpha_k"] * similar * p["w_v"]
            + p["beta_4"] * z @ (np.diag(p["w_q"] * p["w_k"]) @ gram @ np.diag(p["w_v"]))
        )
        z, B = z / np.linalg.norm(z, axis=0), B / sparse.linalg.norm(B)
    assert relative_error(got, z @ model.readout.weight.detach().numpy().T) < 1e-9


@pytest.mark.parametrize(("out", "max_nodes", "limit"), [(6, 37, 488), (3, 9, 240)], ids=["ZINC", "QM9"])
def test_no_more_parameters_than_the_paper(out: int, max_nodes: int, limit: int) -> None:
    model = LinearTransformer(k=8, out_channels=out, probes="learned", max_nodes=max_nodes, update_incidence=True)
    count = sum(p.numel() for p in model.parameters())
    assert 8 * out + 8 * max_nodes + 3 * (3 * 8 + 1 + 4 + 4) == count <= limit


test_constructor_refuses = refusals(
    LinearTransformer,
    ({"probes": "features"}, "num_node_types"),
    ({"probes": "features", "num_node_types": 2, "in_channels": 3}, "num_node_types"),
    ({"probes": "learned"}, "max_nodes"),
    ({"probes": "features", "max_nodes": 3, "in_channels": 3}, "max_nodes"),
    ({"in_channels": 4}, "probes="),
    ({"edge_out_channels": 4, "num_filters": 2}, "reads .'edge_out_channels': 4, 'num_filters': 2"),
    ({"probes": "identity", "diagonal": False}, "probes='identity' needs .* got .False, True, False, None"),
)

test_probes_of_a_wrong_shape_are_refused = refusals(
    lambda probes: LinearTransformer(k=4).encode(graph_of(Graph(3, [(0, 1)], [1.0])), Inputs(), probes=probes),
    ((torch.zeros(3, 5),), "probes must"),
    ((torch.zeros(3, 4, dtype=torch.float64),), "probes must"),
)


def test_writing_out_a_large_incidence_is_refused_with_its_cost() -> None:
    chain = torch.arange(20_000)
    with pytest.raises(ValueError, match="update_incidence"):
        LinearTransformer(update_incidence=True)(None, torch.stack([chain[:-1], chain[1:]]))


@pytest.mark.parametrize("weighted", [True, False])
def test_nan_does_not_spread_to_other_graphs_of_a_batch(weighted: bool) -> None:
    model = LinearTransformer(k=4).double()
    quiet = [from_networkx(nx.path_graph(6)), from_networkx(nx.cycle_graph(90), lambda i: 1.0 + i % 2)]
    loud = from_networkx(nx.random_regular_graph(3, 3000, seed=0), lambda i: 1e5)
    tiny = from_networkx(nx.star_graph(7), lambda i: 1e-5)
    batched = batch_of([tiny, quiet[0], loud, quiet[1], tiny])
    probes = normal(batched.num_nodes, 4)
    starts = batched.split(probes)
    expected = [
        model.encode(
            tg_lpe.Graph(g.edge_index(), g.num_nodes, edge_weight=g.edge_weight() if weighted else None),
            Inputs(),
            probes=p,
        ).node
        for g, p in zip(quiet, (starts[1], starts[3]), strict=True)
    ]
    for bad in (1e100, float("inf"), float("nan")):
        for start in (starts[0], starts[2], starts[4]):
            start.fill_(bad)  # views of probes
        got = batched.split(model.encode(tg_lpe.Graph(**batched.arguments(weighted)), Inputs(), probes=probes).node)
        assert relative_error(got[1], expected[0]) < 1e-10 and relative_error(got[3], expected[1]) < 1e-10


@pytest.mark.parametrize("update", [False, True], ids=["fixed", "updated"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_frozen_it_computes_the_same(update: bool, dtype: torch.dtype) -> None:
    """By the same steps, not in place."""
    model = randomize_(LinearTransformer(k=4, update_incidence=update)).to(dtype)
    batched = batch_of([case for case in corner_cases() if case.num_nodes < 80], dtype)
    with_gradient = model(None, **batched.arguments()).node
    frozen = model.requires_grad_(False).eval()(None, **batched.arguments()).node
    assert with_gradient.requires_grad and not frozen.requires_grad
    assert relative_error(frozen, with_gradient) < 100 * torch.finfo(dtype).eps


TRIANGLE = torch.tensor([[0, 1, 2], [1, 2, 0]])
RING = torch.stack([torch.arange(23), (torch.arange(23) + 1) % 23])


def test_gradients_past_zero_columns_are_finite() -> None:
    """A graph with fewer nodes than columns: its own eigenvectors as probes have columns of zeros."""
    graph = tg_lpe.Graph(TRIANGLE, 3)
    probes = laplacian_eigenvectors(graph, 8)[0].float()
    assert (probes.norm(dim=0) == 0).any()
    model = LinearTransformer(k=8)
    model.encode(graph, Inputs(), probes=probes).node.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    assert any(p.grad.abs().sum() > 0 for p in model.parameters() if p.grad is not None)

    model = LinearTransformer(k=4, probes="features", in_channels=4)
    x = torch.randn(3, 4)
    x[:, 1] = 0
    torch.nn.init.zeros_(model.probes.linear.bias)
    with torch.no_grad():
        model.probes.linear.weight.copy_(torch.eye(4))
    model(x, TRIANGLE).node.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("update", [False, True], ids=["fixed", "updated"])
def test_gradients_of_parameters_and_edge_weights(update: bool) -> None:
    """Also of gradients."""
    model = randomize_(LinearTransformer(2, 2, num_blocks=1, num_loops=2, update_incidence=update)).double()
    names, values = zip(*model.named_parameters(), strict=True)

    def of(weight: Tensor, *values: Tensor) -> Tensor:
        given = {"edge_index": TRIANGLE, "edge_weight": weight, "num_nodes": 3}
        return torch.func.functional_call(model, dict(zip(names, values, strict=True)), (None,), given).node

    inputs = [value.detach().clone().requires_grad_() for value in (normal(3).exp(), *values)]
    assert torch.autograd.gradcheck(of, inputs) and torch.autograd.gradgradcheck(of, inputs)


def test_training_after_inference_mode() -> None:
    model = LinearTransformer(k=1)
    with torch.inference_mode():
        model(None, RING)
    model(None, RING).node.sum().backward()
    assert model.readout.weight.grad is not None and model.readout.weight.grad.isfinite().all()
