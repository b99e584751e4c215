"""The compiled walks against dense powers in numpy and those of torch; what they refuse; how they are found."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import Graph, batch_of, corner_cases, few, fewer, from_networkx, graphs, normal, relative_error
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import tg_lpe.ops.native
from tg_lpe import GramTransformer, Incidence
from tg_lpe.graph.padding import GraphBlocks
from tg_lpe.graph.spectral import random_walk_probabilities
from tg_lpe.ops.native import has_native, native_walks, native_walks_backward
from tg_lpe.ops.walks import BASES, COMPILED_NODES, compiled_walks_pay, graph_walks, walks

needs_native = pytest.mark.skipif(
    not has_native(), reason="the compiled part was not built (it needs a C++ compiler) or is switched off"
)
bases = pytest.mark.parametrize("basis", sorted(BASES))
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
batches = st.lists(graphs(max_nodes=20), max_size=5)

# Around the widths of the registers, 2 to 16 columns in one, and of two or four of them at a time.
WIDTHS = (1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 48, 65)


def incidence(parts: list[Graph]) -> Incidence:
    return Incidence(**batch_of(parts).arguments(weighted=False))


def couplings(graph: Incidence, num_filters: int = 3, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Of both signs, one filter unlike the next, with eigenvalues of about one at most."""
    degree = torch.bincount(torch.cat([graph.tail, graph.head]), minlength=max(graph.num_nodes, 1)).clamp(min=1)
    scale = (degree[graph.tail] * degree[graph.head]).double().rsqrt()
    return (normal(num_filters, graph.num_edges, seed=seed).clamp(-1.5, 1.5) * scale).to(dtype)


def expected_walks(coupling: Tensor, graph: Incidence, basis: str, num_layers: int) -> tuple[np.ndarray, np.ndarray]:
    """The recurrence on one dense matrix of the whole batch, in double precision."""
    tail, head, n = graph.tail.numpy(), graph.head.numpy(), graph.num_nodes
    nodes, edges = [], []
    for row in coupling.detach().double().numpy():
        P = np.zeros((n, n))
        P[tail, head] = P[head, tail] = row
        before, phi = np.eye(n), P
        for _ in range(num_layers):
            nodes.append(np.diag(phi))
            edges.append(phi[tail, head])
            before, phi = phi, P @ phi if basis == "power" else 2 * P @ phi - before
    width = coupling.size(0) * num_layers
    return np.array(nodes).reshape(width, n).T, np.array(edges).reshape(width, tail.size).T


def torch_walks(coupling: Tensor, graph: Incidence, basis: str, num_layers: int) -> tuple[Tensor, Tensor]:
    """The same through the dense matrices of blocks."""
    layout = GraphBlocks(graph, dense_height=4096)
    width = coupling.size(0) * num_layers
    nodes, edges, columns = [], [coupling.new_zeros(0, width)], [graph.tail.new_zeros(0)]
    for where in layout.edge_positions():
        diagonal, entries = walks(coupling[:, where.columns], where, basis, num_layers)
        nodes.append(diagonal.flatten(0, 1).mT)
        edges.append(entries.flatten(0, 1).mT)
        columns.append(where.columns)
    rows = layout.collect_rows(nodes) if nodes else coupling.new_zeros(graph.num_nodes, width)
    return rows, torch.cat(edges)[torch.cat(columns).argsort()]


def check(got: tuple[Tensor, Tensor], expected: tuple[Any, Any], tolerance: float) -> None:
    scale = max(1.0, *(float(np.abs(np.asarray(part)).max(initial=0.0)) for part in expected))
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.shape == theirs.shape
        assert np.abs(mine.detach().numpy() - np.asarray(theirs)).max(initial=0.0) < tolerance * scale


@needs_native
@bases
@few
@given(batches, st.integers(1, 6), st.integers(1, 3))
def test_against_numpy_and_torch(basis: str, parts: list[Graph], num_layers: int, num_filters: int) -> None:
    graph = incidence(parts)
    coupling = couplings(graph, num_filters)
    got = graph_walks(coupling, graph, basis, num_layers)
    check(got, expected_walks(coupling, graph, basis, num_layers), 1e-13)
    check(got, torch_walks(coupling, graph, basis, num_layers), 1e-13)


@needs_native
@bases
@dtypes
@pytest.mark.parametrize("density", [0.15, 1.0])
def test_every_width(basis: str, dtype: torch.dtype, density: float) -> None:
    """Values and gradients, alone and side by side: sixteen layers in single precision are as good as torch's."""
    parts = [from_networkx(nx.gnp_random_graph(n, density, seed=n)) for n in WIDTHS]
    tolerance = 1e-12 if dtype == torch.float64 else 2e-5
    for graph in (*(incidence([part]) for part in parts), incidence(parts)):
        coupling = (couplings(graph) / graph.max_nodes**0.25).to(dtype).requires_grad_()
        got = graph_walks(coupling, graph, basis, 16)
        assert all(part.dtype == dtype for part in got)
        check(got, expected_walks(coupling, graph, basis, 16), tolerance)
        weights = [normal(*part.shape, seed=seed, dtype=dtype) for seed, part in enumerate(got)]
        (mine,) = torch.autograd.grad(got, coupling, weights)
        double = coupling.detach().double().requires_grad_()
        outs = torch_walks(double, graph, basis, 16)
        (theirs,) = torch.autograd.grad(outs, double, [w.double() for w in weights])
        assert relative_error(mine, theirs) < tolerance


@needs_native
@bases
@pytest.mark.parametrize("num_layers", [1, 2, 5])
def test_gradients(basis: str, num_layers: int) -> None:
    graph = incidence([from_networkx(nx.cycle_graph(5)), Graph(2, [], []), from_networkx(nx.path_graph(18))])

    def of(coupling: Tensor) -> tuple[Tensor, Tensor]:
        return graph_walks(coupling, graph, basis, num_layers)

    assert torch.autograd.gradcheck(of, couplings(graph, 2).requires_grad_())


@needs_native
def test_a_second_derivative_is_refused() -> None:
    graph = incidence([from_networkx(nx.cycle_graph(5))])
    coupling = couplings(graph).requires_grad_()
    loss = graph_walks(coupling, graph, "power", 3)[0].square().sum()
    (first,) = torch.autograd.grad(loss, coupling, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        first.sum().backward()


@needs_native
@dtypes
def test_corner_cases(dtype: torch.dtype) -> None:
    for parts in ([], [Graph(0, [], [])], [Graph(1, [], [])], [Graph(0, [], []), Graph(4, [], [])], corner_cases()):
        graph = incidence(parts)
        coupling = couplings(graph, dtype=dtype).requires_grad_()
        got = graph_walks(coupling, graph, "chebyshev", 4)
        check(got, expected_walks(coupling, graph, "chebyshev", 4), 1e-4 if dtype == torch.float32 else 1e-12)
        (got[0].sum() + got[1].sum()).backward()
        assert coupling.grad.shape == coupling.shape and coupling.grad.isfinite().all()
    no_filters = graph_walks(couplings(graph, 0), graph, "power", 2)
    assert no_filters[0].shape == (graph.num_nodes, 0) and no_filters[1].shape == (graph.num_edges, 0)


@needs_native
@bases
def test_in_any_layout_and_mode(basis: str) -> None:
    graph = incidence([from_networkx(nx.cycle_graph(5)), from_networkx(nx.lollipop_graph(4, 3))])
    coupling = couplings(graph)
    expected = graph_walks(coupling, graph, basis, 4)
    strided = coupling.mT.contiguous().mT.requires_grad_()
    outs = graph_walks(strided, graph, basis, 4)
    with torch.inference_mode():
        inferred = graph_walks(coupling, graph, basis, 4)
    with torch.no_grad():
        unrecorded = graph_walks(strided, graph, basis, 4)
    assert not strided.is_contiguous() and not unrecorded[0].requires_grad
    for other in (outs, inferred, unrecorded):
        assert all(torch.equal(a, b) for a, b in zip(other, expected, strict=True))
    weights = [normal(*out.shape, seed=i) for i, out in enumerate(outs)]
    (gradient,) = torch.autograd.grad(outs, strided, weights, retain_graph=True)
    turned = [w.mT.contiguous().mT for w in weights]
    assert torch.equal(torch.autograd.grad(outs, strided, turned, retain_graph=True)[0], gradient)
    (alone,) = torch.autograd.grad(outs[0], strided, weights[0], retain_graph=True)  # the other's is absent
    (other,) = torch.autograd.grad(outs[1], strided, weights[1])
    torch.testing.assert_close(alone + other, gradient, rtol=1e-12, atol=1e-13)


@needs_native
@bases
@dtypes
def test_the_number_of_threads_changes_nothing(basis: str, dtype: torch.dtype) -> None:
    """Enough work for all of them: on one thread, on several, and on more than there are graphs that weigh."""
    sizes = [*range(0, 60), 200]
    graph = incidence([from_networkx(nx.gnp_random_graph(n, 0.3, seed=n)) for n in sizes] * 2)
    coupling = couplings(graph, 4, dtype)
    before, found = torch.get_num_threads(), []
    try:
        for number in (1, 2, 3, 16):
            torch.set_num_threads(number)
            outs = native_walks(coupling, (graph.tail, graph.head), graph.ptr, *BASES[basis], 8)
            ones = [torch.ones_like(out) for out in outs]
            ends = graph.tail, graph.head
            found.append((*outs, native_walks_backward(coupling, ends, graph.ptr, *BASES[basis], 8, *ones)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(other, found[0], strict=True))


@needs_native
@dtypes
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_no_number_stays_so_and_stays_at_home(dtype: torch.dtype, value: float) -> None:
    graph = incidence([from_networkx(nx.cycle_graph(n)) for n in (5, 20, 5)])
    coupling = couplings(graph, 1, dtype)
    clean = graph_walks(coupling, graph, "power", 4)
    coupling[0, 5 + 7] = value
    coupling.requires_grad_()
    nodes, edges = graph_walks(coupling, graph, "power", 4)
    assert not nodes[5:25].isfinite().all() and not edges[5:25].isfinite().all()
    assert edges[12, 0].isnan() if value != value else edges[12, 0] == value
    (gradient,) = torch.autograd.grad(nodes.sum() + edges.sum(), coupling)
    assert not gradient[0, 5:25].isfinite().all()
    for part, before in ((nodes, clean[0]), (edges, clean[1])):
        kept = torch.cat([part[:5], part[25:]])
        assert torch.equal(kept, torch.cat([before[:5], before[25:]]))
    assert gradient[0, :5].isfinite().all() and gradient[0, 25:].isfinite().all()


# What may be wrong with its arguments must not reach its pointers.


@needs_native
def test_malformed_arguments_are_refused() -> None:
    graph = incidence([from_networkx(nx.path_graph(3)), from_networkx(nx.path_graph(4))])
    coupling = couplings(graph)
    tail, head, ptr = graph.tail, graph.head, graph.ptr
    options = (1.0, 0.0, 2)

    def refused(match: str, *arguments: Any) -> None:
        with pytest.raises(ValueError, match=match):
            native_walks(*arguments)

    refused("graph by graph", coupling, (tail.flip(0), head.flip(0)), ptr, *options)
    refused("graph by graph", coupling, (tail, head + 1), ptr, *options)
    refused("graph by graph", coupling, (tail - 1, head), ptr, *options)
    refused("graph by graph", coupling, (tail, torch.where(tail == 1, 3, head)), ptr, *options)
    refused("graph by graph", coupling, (tail, tail), ptr, *options)
    refused("graph by graph", coupling, (tail, head), torch.tensor([0, 9, 7]), *options)
    refused("graph by graph", coupling, (tail, head), torch.tensor([0, -3, 7]), *options)
    refused("graph by graph", coupling, (tail, head), torch.tensor([1, 3, 7]), *options)
    refused("tail must be torch.int64", coupling, (tail.int(), head), ptr, *options)
    refused(r"head must be torch.int64 \[5\]", coupling, (tail, head[:-1]), ptr, *options)
    refused("ptr must be torch.int64", coupling, (tail, head), ptr.double(), *options)
    refused("coupling must be float32 or float64", coupling.half(), (tail, head), ptr, *options)
    refused("coupling must be float32 or float64", coupling[0], (tail, head), ptr, *options)
    refused("num_layers at least 1", coupling, (tail, head), ptr, 1.0, 0.0, 0)
    refused("on the CPU", coupling.to("meta"), (tail, head), ptr, *options)
    nodes, edges = native_walks(coupling, (tail, head), ptr, *options)
    for wrong in ((nodes[1:], edges), (nodes, edges[:, 1:]), (nodes.float(), edges)):
        with pytest.raises(ValueError, match=r"must be|graph by graph"):
            native_walks_backward(coupling, (tail, head), ptr, *options, *wrong)


# Who takes it.


@needs_native
def test_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    molecules, n = incidence([from_networkx(nx.cycle_graph(6))] * 3), COMPILED_NODES
    complete, larger = (incidence([from_networkx(nx.complete_graph(size))]) for size in (n, n + 1))
    sparse = incidence([from_networkx(nx.cycle_graph(n + 1))])
    like = torch.zeros(1, 1)
    assert [compiled_walks_pay(like, graph) for graph in (molecules, complete, larger, sparse)] == [1, 1, 0, 1]
    assert not any(compiled_walks_pay(other, molecules) for other in (like.half(), like.to("meta")))
    monkeypatch.setattr(tg_lpe.ops.native, "library", None)
    assert not has_native() and not compiled_walks_pay(like, molecules)
    with pytest.raises(RuntimeError, match="absent"):
        graph_walks(couplings(molecules), molecules, "power", 2)


@needs_native
@bases
@fewer
@given(st.lists(st.one_of(graphs(), st.sampled_from(corner_cases())), max_size=4))
def test_encodings_with_and_without_it(basis: str, parts: list[Graph]) -> None:
    batched = batch_of(parts)
    model = GramTransformer(3, 2, num_filters=2, num_layers=5, basis=basis, probes="identity").double()
    graph = Incidence(**batched.arguments())

    def everything() -> list[Tensor]:
        model.zero_grad()
        out = model(None, **batched.arguments())
        (out.node.square().sum() + out.edge.square().sum()).backward()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]  # None: no nodes
        return [*out, *random_walk_probabilities(graph, 4), *gradients]

    compiled = everything()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tg_lpe.ops.native, "library", None)
        plain = everything()
    for a, b in zip(compiled, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)


def test_can_be_switched_off() -> None:
    script = "from tg_lpe.ops.native import has_native; print(has_native())"
    for value, expected in (("1", False), ("0", has_native())):
        if value == "0" and os.environ.get("TG_LPE_NO_NATIVE", "") not in ("", "0"):
            continue
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "TG_LPE_NO_NATIVE": value},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == str(expected)


@needs_native
def test_a_library_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tg_lpe.ops.native._load() is not None
    monkeypatch.setattr(tg_lpe.ops.native, "VERSION", -1)
    assert tg_lpe.ops.native._load() is None
