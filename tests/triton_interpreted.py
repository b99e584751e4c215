"""The Triton kernels, run by Triton's interpreter, against dense algebra; ``test_triton.py`` runs this file.

Triton reads ``TRITON_INTERPRET=1`` when it is imported, so these tests run in a separate process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import Graph, batch_of, corner_cases, from_networkx, graphs, normal, randomize_, relative_error
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ops_support import (
    check,
    entries_at_edges,
    eq_16,
    expected_polynomials,
    incidence,
    padded_polynomials,
    polynomials_of,
)
from torch import Tensor

from tg_lpe import GramTransformer, GraphTransformer, Incidence, LinearTransformer
from tg_lpe.ops import layers as layer_ops
from tg_lpe.ops import polynomials as polynomial_ops
from tg_lpe.ops import triton as room
from tg_lpe.ops.polynomials import BASES
from tg_lpe.ops.structures import FixedLayers, Recurrence
from tg_lpe.ops.triton import layers, polynomials
from tg_lpe.testing import assert_permutation_equivariant

assert room.interpreted, "run with TRITON_INTERPRET=1"

few = settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
SWITCHES = ("diagonal", "normalize", "degree_scaling")
COMBINATIONS = [dict(zip(SWITCHES, map(bool, (i & 4, i & 2, i & 1)), strict=True)) for i in range(8)]
every_combination = pytest.mark.parametrize("options", COMBINATIONS, ids=str)
bases = pytest.mark.parametrize("basis", sorted(BASES))
SMALL = [
    Graph(6, [(0, 1), (0, 2), (1, 2), (3, 4)], [1.0, 0.5, 2.0, 1.5]),
    Graph(0, [], []),
    Graph(1, [], []),
    Graph(3, [], []),
    from_networkx(nx.gnp_random_graph(20, 0.3, seed=1), lambda i: 0.5 + i % 3),
    from_networkx(nx.path_graph(5)),
]


@dataclass
class Grounded(Graph):
    """A graph whose incidence matrix has a column with a single entry for each node."""

    ground: Tensor

    def incidence(self) -> np.ndarray:
        return np.concatenate([super().incidence(), np.diag(self.ground.double().sqrt().numpy())], axis=1)


def model_of(options: dict[str, Any], seed: int = 1) -> LinearTransformer:
    """Weights of both signs, small for unnormalised layers, which are cubic in ``Phi``."""
    model = LinearTransformer(**{"k": 5, "out_channels": 3, "num_blocks": 2, "num_loops": 2, **options})
    randomize_(model, seed, 0.5 if model.normalize else 0.1)
    return model


def single(parts: list[Graph], weighted: bool = True, **arguments: Any) -> Incidence:
    return Incidence(**batch_of(parts, torch.float32).arguments(weighted), **arguments)


def check_layers(model: LinearTransformer, parts: list[Graph], options: dict[str, Any], **arguments: Any) -> None:
    batched, graph = batch_of(parts), single(parts, **arguments)
    phi = normal(batched.num_nodes, model.k, seed=3, dtype=torch.float32) / 3
    with torch.no_grad():
        assert layer_ops._backend(phi, graph.max_nodes, False) is layers and model._has_backend(graph, phi)
        got = model.encode(graph, probes=phi).node
    for part, mine, start in zip(parts, batched.split(got), batched.split(phi), strict=True):
        expected = eq_16(part, start.double().numpy(), model, {"num_loops": 2, **options}, 2)
        assert relative_error(mine, expected) < 2e-5, f"{part.num_nodes} nodes, {len(part.edges)} edges"


@every_combination
def test_eq_16(options: dict[str, Any]) -> None:
    check_layers(model_of(options), SMALL, options)


@pytest.mark.parametrize("diagonal", [True, False])
def test_corner_cases(diagonal: bool) -> None:
    """Graphs of up to 110 nodes, and weights over ten orders of magnitude."""
    options = {**COMBINATIONS[-1], "diagonal": diagonal, "k": 8}
    check_layers(model_of(options), corner_cases(), options)


@few
@given(
    st.lists(graphs(exponents=(-1, 1)), min_size=1, max_size=3),
    st.sampled_from(COMBINATIONS),
    st.integers(1, 16),
    st.sampled_from([1, 16, 33]),
)
def test_random_graphs(parts: list[Graph], options: dict[str, Any], k: int, channels: int) -> None:
    if sum(part.num_nodes for part in parts):
        options = {**options, "k": k, "out_channels": channels}
        check_layers(model_of(options), parts, options)


@pytest.mark.parametrize("scaled", [True, False])
def test_ground_conductances(scaled: bool) -> None:
    options, ground = {**COMBINATIONS[-1], "degree_scaling": scaled}, normal(35, dtype=torch.float32).clamp(min=0)
    rows = ground.split([part.num_nodes for part in SMALL])
    parts = [Grounded(p.num_nodes, p.edges, p.weights, q) for p, q in zip(SMALL, rows, strict=True)]
    assert all((q > 0).any() and (q == 0).any() for q in rows if q.numel() > 3)
    check_layers(model_of(options), parts, options, ground=ground)  # type: ignore[arg-type]


def test_short_columns_are_left_short() -> None:
    model, graph = model_of({"out_channels": 5}), single(SMALL)
    phi = normal(graph.num_nodes, 5, dtype=torch.float32)
    phi[:, 1], phi[:, 3] = 0.0, 1e-14 * phi[:, 3]
    torch.nn.init.eye_(model.readout.weight)
    with torch.no_grad():
        got, expected = model.encode(graph, probes=phi).node, model._run_fixed(graph, phi)
    assert torch.equal(got[:, 1], phi[:, 1]) and float(got[:, 3].abs().max()) < 1e-10
    assert relative_error(got[:, 3], expected[:, 3]) < 1e-4
    phi.requires_grad_()
    found = torch.autograd.grad(model.encode(graph, probes=phi).node.square().sum(), [phi, *model.parameters()])
    assert all(grad.isfinite().all() for grad in found)


def test_relabelling_and_batching_change_nothing() -> None:
    model, (graph, *_) = model_of({"k": 4, "probes": "features", "in_channels": 4}), SMALL
    index, weight = graph.both_ways(torch.float32)
    with torch.no_grad():
        assert_permutation_equivariant(
            model, index, 6, x=normal(6, 4, dtype=torch.float32), edge_weight=weight, trials=1, flip_edges=False
        )
        batched, phi = batch_of(SMALL), normal(35, 4, dtype=torch.float32)
        together = model.encode(single(SMALL), probes=phi).node
        for part, rows, start in zip(SMALL, batched.split(together), batched.split(phi), strict=True):
            alone = model.encode(single([part]), probes=start).node
            assert relative_error(alone, rows) < 1e-6


def weights_of(out: Tensor) -> Tensor:
    """Gradients of a loss without symmetry."""
    return normal(*out.shape, seed=5, dtype=out.dtype)


def gradients(model: LinearTransformer, out: Tensor, phi: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad((out * weights_of(out)).sum(), [phi, *model.parameters()]))


def check_gradients(model: LinearTransformer, graph: Incidence) -> None:
    """Gradients against autograd through torch's layers in double precision."""
    phi = normal(graph.num_nodes, model.k, dtype=torch.float32).requires_grad_()
    assert layer_ops._backend(phi, graph.max_nodes, True) is layers and model._has_backend(graph, phi)
    mine = gradients(model, model.encode(graph, probes=phi).node, phi)
    model.double()
    twin, ground = phi.detach().double().requires_grad_(), None if graph.ground is None else graph.ground.double()
    w = None if graph.conductance is None else graph.conductance.double()
    exact = gradients(model, model._run_fixed(graph.with_conductances(w, ground), twin), twin)
    scale = max(float(grad.abs().max()) for grad in exact)
    for ours, theirs in zip(mine, exact, strict=True):
        assert ours.dtype == torch.float32
        assert float((ours - theirs).abs().max()) < 2e-5 * max(scale, 1.0)


@pytest.mark.parametrize("k, scaled", [(1, True), (5, False), (16, True)])
def test_gradients(k: int, scaled: bool) -> None:
    ground = normal(35, dtype=torch.float32).clamp(min=0)
    for arguments in ({}, {"ground": ground}, {"weighted": False}):
        check_gradients(model_of({"k": k, "degree_scaling": scaled}), single(SMALL, **arguments))


@few
@given(parts=st.lists(graphs(max_nodes=9, min_nodes=1, exponents=(-1, 1)), min_size=1, max_size=3))
def test_gradients_of_random_batches(parts: list[Graph]) -> None:
    check_gradients(model_of({}), single(parts))


def test_gradients_against_finite_differences_of_eq_16() -> None:
    graph, model, step = SMALL[4], model_of({}), 1e-5
    phi = normal(graph.num_nodes, 5, dtype=torch.float32).requires_grad_()
    inputs = [phi, *model.parameters()]
    mine = gradients(model, model.encode(single([graph]), probes=phi).node, phi)
    along = [normal(x.numel(), seed=i).view_as(x) for i, x in enumerate(inputs)]
    options = {**COMBINATIONS[-1], "num_loops": 2}
    model.double()
    start, values = phi.detach().double(), [p.detach().clone() for p in model.parameters()]

    def loss(t: float) -> float:
        with torch.no_grad():
            for parameter, value, v in zip(model.parameters(), values, along[1:], strict=True):
                parameter.copy_(value + t * v)
        out = torch.from_numpy(eq_16(graph, (start + t * along[0]).numpy(), model, options, 2))
        return float((out * weights_of(out)).sum())

    expected = (loss(step) - loss(-step)) / (2 * step)
    got = sum(float((grad.double() * v).sum()) for grad, v in zip(mine, along, strict=True))
    assert abs(got - expected) < 1e-4 * abs(expected)


def test_pieces_and_conductances_changed_before_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    model, w = model_of({}), torch.rand(single(SMALL).num_edges)
    found = []
    for pieces in (False, True):
        graph = single(SMALL).with_conductances(w.clone(), torch.ones(35))
        phi = normal(35, 5, dtype=torch.float32).requires_grad_()
        out = model.encode(graph, probes=phi).node
        if pieces:
            monkeypatch.setattr(room, "SCRATCH_BYTES", 1)
            graph.conductance.zero_()
            graph.ground.zero_()
        found.append(gradients(model, out, phi))
    assert all(relative_error(a, b) < 1e-6 for a, b in zip(*found, strict=True))


def test_what_is_supported() -> None:
    for size, k, gradient, expected in (
        (layers.MAX_NODES, 5, False, True),
        (layers.MAX_NODES, 16, True, True),
        (layers.MAX_NODES + 1, 5, False, False),
        (5, 17, False, False),
    ):
        phi = torch.zeros(size, k)
        assert (layer_ops._backend(phi, size, gradient) is layers) == expected
        assert layer_ops._backend(phi.double(), size, gradient) is not layers
    assert polynomial_ops.supports(torch.zeros(1, 1), polynomials.MAX_NODES)
    assert not polynomial_ops.supports(torch.zeros(1, 1), polynomials.MAX_NODES + 1)


def test_malformed_arguments_are_refused() -> None:
    graph, model = single(SMALL), model_of({"k": 4})
    own, stack, later = graph.scaled_laplacian(torch.zeros(1)), model._stack(), torch.ones(6)
    phi = torch.zeros(35, 4)
    assert layers.layers(phi, FixedLayers(own, stack, later, 1e-12), None).shape == (35, 4)
    for match, x, laplacian, readout, factors in (
        (r"phi must be float32 \[35, k <= 16\]", phi[1:], own, None, later),
        (r"float32 \[35, k <= 16\]|on cpu", phi.double(), own, None, later),
        ("one of 129", phi, own._replace(max_nodes=129), None, later),
        (r"later must be torch.float32 \[5\]", phi, own._replace(ptr=own.ptr[1:]), None, later),
        (r"residual must be torch.float32 \[4, 3, 3\]", phi[:, :3], own, None, later),
        ("later must be", phi, own, None, later[1:]),
        ("readout must be .* on cpu, got .* on meta", phi, own, phi.to("meta"), later),
    ):
        with pytest.raises(ValueError, match=match):
            layers.layers(x, FixedLayers(laplacian, stack, factors, 1e-12), readout)
    full = FixedLayers(own, stack._replace(diagonal=False), later, 1e-12)
    with pytest.raises(ValueError, match="diagonal weights"):
        layers.layers_backward(phi, full, [], phi)
    adjacency, structure = torch.zeros(2, graph.num_edges), (graph.tail, graph.head, graph.ptr, 35, graph.max_nodes)
    for match, wrong, count in (("adjacency must be", adjacency[:, 1:], 1), ("at least 1", adjacency, 0)):
        with pytest.raises(ValueError, match=match):
            polynomials.matrix_polynomials(wrong, Recurrence(*structure, 1.0, 0.0, count))


def check_polynomials(graph: Incidence, basis: str, num_layers: int, num_filters: int) -> None:
    adjacency = entries_at_edges(graph, num_filters, torch.float32).requires_grad_()
    got = polynomials_of(adjacency, graph, basis, num_layers)
    check(got, expected_polynomials(adjacency, graph, basis, num_layers), 2e-5)
    if not adjacency.numel():
        return
    (mine,) = torch.autograd.grad(got, adjacency, [weights_of(part) for part in got])
    double = adjacency.detach().double().requires_grad_()
    outs = padded_polynomials(double, graph, basis, num_layers)
    (theirs,) = torch.autograd.grad(outs, double, [weights_of(part) for part in outs])
    assert mine.dtype == torch.float32 and relative_error(mine, theirs) < 2e-5


@bases
@pytest.mark.parametrize("num_layers", [1, 2, 5])
def test_polynomials(basis: str, num_layers: int) -> None:
    check_polynomials(incidence(SMALL), basis, num_layers, 2)
    check_polynomials(
        incidence([from_networkx(nx.gnp_random_graph(64, 0.3, seed=0))]), basis, num_layers, 1
    )  # many edges


@bases
@few
@given(st.lists(graphs(max_nodes=20), max_size=3), st.integers(1, 4), st.integers(0, 3))
def test_polynomials_of_random_batches(basis: str, parts: list[Graph], num_layers: int, num_filters: int) -> None:
    check_polynomials(incidence(parts), basis, num_layers, num_filters)


def test_polynomials_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "SCRATCH_BYTES", 1)
    check_polynomials(incidence(SMALL), "chebyshev", 4, 3)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_nonfinite_values_stay_within_their_graph(value: float) -> None:
    graph = incidence([from_networkx(nx.cycle_graph(n)) for n in (5, 20, 5)])
    adjacency = entries_at_edges(graph, 1, torch.float32)
    clean = polynomials_of(adjacency, graph, "power", 4)
    adjacency[0, 5 + 7] = value
    for part, before in zip(polynomials_of(adjacency, graph, "power", 4), clean, strict=True):
        assert not part[5:25].isfinite().all()
        assert torch.equal(torch.cat([part[:5], part[25:]]), torch.cat([before[:5], before[25:]]))


def test_an_encoder_with_and_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = GramTransformer(3, 2, num_filters=2, num_layers=4, probes="identity")
    arguments = batch_of(SMALL, torch.float32).arguments()

    def everything() -> list[Tensor]:
        model.zero_grad()
        out = model(None, **arguments)
        (out.node.square().sum() + out.edge.square().sum()).backward()
        return [*out, *(p.grad for p in model.parameters() if p.grad is not None)]

    ours = everything()
    monkeypatch.setattr(room, "interpreted", False)
    assert not room.supports(torch.zeros(1))
    for a, b in zip(ours, everything(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_compiled_with_one_graph_break() -> None:
    """At the incidence, whose size depends on the data; asking whether Triton is there breaks nothing."""
    model = GraphTransformer(encoder=GramTransformer(3, 2, 1, 2), hidden_channels=4, heads=1, num_layers=1)
    graph = batch_of(SMALL[:1], torch.float32).arguments(weighted=False)
    arguments = {key: value for key, value in graph.items() if key != "edge_weight"}
    torch._dynamo.reset()
    assert torch._dynamo.explain(model)(None, **arguments).graph_break_count <= 1
