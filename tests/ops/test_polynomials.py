"""Matrix polynomials of whole batches, in each backend, against dense powers in numpy; invalid arguments; dispatch."""

from __future__ import annotations

from typing import Any

import networkx as nx
import pytest
import torch
from helpers import Graph, corner_cases, from_networkx, normal, relative_error
from ops_support import (
    bases,
    check,
    dtypes,
    entries_at_edges,
    expected_polynomials,
    incidence,
    needs_cpu,
    polynomials_of,
    same_with_any_threads,
)
from torch import Tensor

import tg_lpe
from tg_lpe.ops import cpu
from tg_lpe.ops.polynomials import (
    BASES,
    SMALL_NODES,
    Recurrence,
    compiled_gradient,
    compiled_matrix_polynomials,
    is_faster,
)

# Around the widths of the registers, 2 to 16 columns in one, and of two or four of them at a time.
WIDTHS = (1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 48, 65)


@needs_cpu
@bases
@dtypes
@pytest.mark.parametrize("density", [0.15, 1.0])
def test_every_width(basis: str, dtype: torch.dtype, density: float) -> None:
    """Values and gradients, alone and side by side: sixteen layers in single precision are as good as torch's."""
    parts = [from_networkx(nx.gnp_random_graph(n, density, seed=n)) for n in WIDTHS]
    tolerance = 1e-12 if dtype == torch.float64 else 2e-5
    for graph in (*(incidence([part]) for part in parts), incidence(parts)):
        adjacency = (entries_at_edges(graph) / graph.max_nodes**0.25).to(dtype).requires_grad_()
        got = polynomials_of(adjacency, graph, basis, 16)
        assert all(part.dtype == dtype for part in got)
        check(got, expected_polynomials(adjacency, graph, basis, 16), tolerance)
        weights = [normal(*part.shape, seed=seed, dtype=dtype) for seed, part in enumerate(got)]
        (mine,) = torch.autograd.grad(got, adjacency, weights)
        double = adjacency.detach().double().requires_grad_()
        with cpu.switched_off():
            outs = polynomials_of(double, graph, basis, 16)
            (theirs,) = torch.autograd.grad(outs, double, [w.double() for w in weights])
        assert relative_error(mine, theirs) < tolerance


@bases
@pytest.mark.parametrize("num_layers", [1, 2, 4])
@pytest.mark.usefixtures("backend")
def test_first_and_second_derivatives(basis: str, num_layers: int) -> None:
    graph = incidence([from_networkx(nx.cycle_graph(4)), Graph(1, [], []), from_networkx(nx.path_graph(3))])

    def of(adjacency: Tensor) -> tuple[Tensor, Tensor]:
        return polynomials_of(adjacency, graph, basis, num_layers)

    assert torch.autograd.gradcheck(of, entries_at_edges(graph, 2).requires_grad_())
    assert torch.autograd.gradgradcheck(of, entries_at_edges(graph, 2).requires_grad_())


@needs_cpu
@dtypes
def test_corner_cases(dtype: torch.dtype) -> None:
    for parts in ([], [Graph(0, [], [])], [Graph(1, [], [])], [Graph(0, [], []), Graph(4, [], [])], corner_cases()):
        graph = incidence(parts)
        adjacency = entries_at_edges(graph, dtype=dtype).requires_grad_()
        got = polynomials_of(adjacency, graph, "chebyshev", 4)
        check(got, expected_polynomials(adjacency, graph, "chebyshev", 4), 1e-4 if dtype == torch.float32 else 1e-12)
        (got[0].sum() + got[1].sum()).backward()
        assert adjacency.grad.shape == adjacency.shape and adjacency.grad.isfinite().all()
    no_filters = polynomials_of(entries_at_edges(graph, 0), graph, "power", 2)
    assert no_filters[0].shape == (graph.num_nodes, 0) and no_filters[1].shape == (graph.num_edges, 0)


@needs_cpu
@bases
def test_in_any_layout_and_mode(basis: str) -> None:
    graph = incidence([from_networkx(nx.cycle_graph(5)), from_networkx(nx.lollipop_graph(4, 3))])
    adjacency = entries_at_edges(graph)
    expected = polynomials_of(adjacency, graph, basis, 4)
    strided = adjacency.mT.contiguous().mT.requires_grad_()
    outs = polynomials_of(strided, graph, basis, 4)
    with torch.inference_mode():
        inferred = polynomials_of(adjacency, graph, basis, 4)
    with torch.no_grad():
        unrecorded = polynomials_of(strided, graph, basis, 4)
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


@needs_cpu
@bases
@dtypes
def test_the_number_of_threads_changes_nothing(basis: str, dtype: torch.dtype, threads: None) -> None:
    """Enough work for several threads: on one thread, on several, and on more than there are large graphs."""
    sizes = [*range(0, 60), 200]
    graph = incidence([from_networkx(nx.gnp_random_graph(n, 0.3, seed=n)) for n in sizes] * 2)
    adjacency = entries_at_edges(graph, 4, dtype)
    structure = graph.tail, graph.head, graph.ptr, graph.num_nodes, graph.max_nodes
    recurrence = Recurrence(*structure, *BASES[basis], 8)

    def run() -> list[Tensor]:
        outs = compiled_matrix_polynomials(adjacency, recurrence)
        return [*outs, compiled_gradient(adjacency, recurrence, *(torch.ones_like(out) for out in outs))]

    same_with_any_threads(run, (1, 2, 3, 16))


@needs_cpu
@dtypes
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_nonfinite_values_stay_within_their_graph(dtype: torch.dtype, value: float) -> None:
    graph = incidence([from_networkx(nx.cycle_graph(n)) for n in (5, 20, 5)])
    adjacency = entries_at_edges(graph, 1, dtype)
    clean = polynomials_of(adjacency, graph, "power", 4)
    adjacency[0, 5 + 7] = value
    adjacency.requires_grad_()
    nodes, edges = polynomials_of(adjacency, graph, "power", 4)
    assert not nodes[5:25].isfinite().all() and not edges[5:25].isfinite().all()
    assert edges[12, 0].isnan() if value != value else edges[12, 0] == value
    (gradient,) = torch.autograd.grad(nodes.sum() + edges.sum(), adjacency)
    assert not gradient[0, 5:25].isfinite().all()
    for part, before in ((nodes, clean[0]), (edges, clean[1])):
        kept = torch.cat([part[:5], part[25:]])
        assert torch.equal(kept, torch.cat([before[:5], before[25:]]))
    assert gradient[0, :5].isfinite().all() and gradient[0, 25:].isfinite().all()


# Invalid arguments must be found before pointers are used.


@needs_cpu
def test_malformed_arguments_are_refused() -> None:
    graph = incidence([from_networkx(nx.path_graph(3)), from_networkx(nx.path_graph(4))])
    adjacency, tail, head, ptr = entries_at_edges(graph), graph.tail, graph.head, graph.ptr
    options = 7, 4, 1.0, 0.0, 2

    def refused(match: str, adjacency: Tensor, *arguments: Any) -> None:
        with pytest.raises(ValueError, match=match):
            compiled_matrix_polynomials(adjacency, Recurrence(*arguments))

    refused("graph by graph", adjacency, tail.flip(0), head.flip(0), ptr, *options)
    refused("graph by graph", adjacency, tail, head + 1, ptr, *options)
    refused("graph by graph", adjacency, tail - 1, head, ptr, *options)
    refused("graph by graph", adjacency, tail, torch.where(tail == 1, 3, head), ptr, *options)
    refused("graph by graph", adjacency, tail, tail, ptr, *options)
    refused("graph by graph", adjacency, tail, head, torch.tensor([0, 9, 7]), *options)
    refused("graph by graph", adjacency, tail, head, torch.tensor([0, -3, 7]), *options)
    refused("graph by graph", adjacency, tail, head, torch.tensor([1, 3, 7]), *options)
    refused("tail must be torch.int64", adjacency, tail.int(), head, ptr, *options)
    refused(r"head must be torch.int64 \[5\]", adjacency, tail, head[:-1], ptr, *options)
    refused("ptr must be torch.int64", adjacency, tail, head, ptr.double(), *options)
    refused("adjacency must be float32 or float64", adjacency.half(), tail, head, ptr, *options)
    refused("adjacency must be float32 or float64", adjacency[0], tail, head, ptr, *options)
    refused("num_layers at least 1", adjacency, tail, head, ptr, 7, 4, 1.0, 0.0, 0)
    refused("on the CPU", adjacency.to("meta"), tail, head, ptr, *options)
    recurrence = Recurrence(tail, head, ptr, *options)
    nodes, edges = compiled_matrix_polynomials(adjacency, recurrence)
    for wrong in ((nodes[1:], edges), (nodes, edges[:, 1:]), (nodes.float(), edges)):
        with pytest.raises(ValueError, match=r"must be|graph by graph"):
            compiled_gradient(adjacency, recurrence, *wrong)


# Dispatch.


def test_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TG_LPE_NO_CPU_KERNELS", raising=False)
    is_built = cpu._load() is not None
    for value, expected in (("1", False), ("0", is_built), ("", is_built)):
        monkeypatch.setenv("TG_LPE_NO_CPU_KERNELS", value)
        assert (cpu._load() is not None) == expected


@needs_cpu
def test_where_it_is_faster() -> None:
    molecules, n = incidence([from_networkx(nx.cycle_graph(6))] * 3), SMALL_NODES
    complete, larger = (incidence([from_networkx(nx.complete_graph(size))]) for size in (n, n + 1))
    sparse = incidence([from_networkx(nx.cycle_graph(n + 1))])

    def chosen(graph: tg_lpe.Graph, like: Tensor) -> bool:
        return is_faster(like.expand(1, graph.num_edges), graph.num_nodes, graph.max_nodes)

    like = torch.zeros(1, 1)
    assert [chosen(graph, like) for graph in (molecules, complete, larger, sparse)] == [1, 1, 0, 1]
    assert not any(chosen(molecules, other) for other in (like.half(), like.to("meta")))
    with cpu.switched_off():
        assert not cpu.is_available() and not chosen(molecules, like)
        with pytest.raises(RuntimeError, match="absent"):
            structure = molecules.tail, molecules.head, molecules.ptr, 18, 6
            compiled_matrix_polynomials(entries_at_edges(molecules), Recurrence(*structure, 1.0, 0.0, 2))
