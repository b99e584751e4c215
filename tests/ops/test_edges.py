"""Distinct undirected edges of a list, adjacency rows and products, in each backend, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers import Graph, few, graphs, normal, relative_error
from hypothesis import given
from hypothesis import strategies as st
from ops_support import needs_cpu
from torch import Tensor

import tg_lpe
from tg_lpe.graph.incidence import inverse_sqrt
from tg_lpe.ops import cpu
from tg_lpe.ops.edges import (
    AdjacencyRows,
    adjacency_rows,
    compiled_adjacency_rows,
    compiled_laplacian,
    laplacian,
    undirected_edges,
)

MESSY = st.integers(1, 12).flatmap(
    lambda n: st.tuples(
        st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=60), st.integers(1, n)
    )
)
"""Nodes, edges with loops, repetitions and both directions, and a number of graphs."""


def listed(pairs: list[tuple[int, int]]) -> Tensor:
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T


def distinct(edge_index: Tensor, num_nodes: int) -> np.ndarray:
    """Keys of the undirected edges, ascending."""
    low, high = edge_index.min(0).values.numpy(), edge_index.max(0).values.numpy()
    return np.unique((low * num_nodes + high)[low != high])


def check(edge_index: Tensor, num_nodes: int, with_index: bool) -> None:
    found = undirected_edges(edge_index, num_nodes, with_index=with_index)
    keys = distinct(edge_index, num_nodes)
    np.testing.assert_array_equal(found.tail.numpy() * num_nodes + found.head.numpy(), keys)
    assert bool((found.tail < found.head).all())
    ends = np.concatenate([keys // max(num_nodes, 1), keys % max(num_nodes, 1)])
    if found.neighbour_counts is not None:
        np.testing.assert_array_equal(found.neighbour_counts.numpy(), np.bincount(ends, minlength=num_nodes))
    assert (found.num_graphs, found.max_nodes) == (1, num_nodes)
    assert found.num_loops == int((edge_index[0] == edge_index[1]).sum())
    if not with_index:
        assert found.undirected_index is None
        return
    assert found.undirected_index is not None
    loops = (edge_index[0] == edge_index[1]).numpy()
    assert bool((found.undirected_index.numpy()[loops] == -1).all())
    index = found.undirected_index[torch.from_numpy(~loops)]
    pairs = edge_index[:, torch.from_numpy(~loops)]
    assert torch.equal(found.tail[index], pairs.min(0).values)
    assert torch.equal(found.head[index], pairs.max(0).values)


@pytest.mark.usefixtures("backend")
@few
@given(MESSY, st.booleans())
def test_edges_are_distinct_sorted_and_counted(messy: Any, with_index: bool) -> None:
    num_nodes, pairs, _ = messy
    check(listed(pairs).contiguous(), num_nodes, with_index)
    check(listed(pairs), num_nodes, with_index)  # not contiguous


@needs_cpu
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("count", "with_index"), [(1, True), (3, True), (3, False)])
def test_a_list_that_threads_share(count: int, with_index: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    num_nodes = 200_003
    edges = torch.randint(num_nodes, (2, 2**20 + 7), generator=generator)
    hub = torch.stack([torch.zeros(5_000, dtype=torch.int64), torch.randperm(5_000, generator=generator)])
    torch.set_num_threads(count)
    check(torch.cat([edges, edges[:, :100_000].flip(0), hub], dim=1), num_nodes, with_index)


@needs_cpu
@few
@given(MESSY, st.randoms(use_true_random=False))
def test_the_same_graph_by_the_reference(messy: Any, random: Any) -> None:
    num_nodes, pairs, num_graphs = messy
    batch = torch.tensor(sorted(random.randrange(num_graphs) for _ in range(num_nodes)))
    inside = [(u, v) for u, v in pairs if batch[u] == batch[v]]
    weights = {frozenset(pair): 10.0 ** random.uniform(-5, 5) for pair in inside}
    edge_weight = torch.tensor([weights[frozenset(pair)] for pair in inside], dtype=torch.float64)
    for weight in (None, edge_weight):
        given: dict[str, Any] = {"edge_weight": weight, "batch": batch, "num_graphs": num_graphs}
        ours = tg_lpe.Graph(listed(inside), num_nodes, **given)
        with cpu.switched_off():
            plain = tg_lpe.Graph(listed(inside), num_nodes, **given)
            expected = plain.tail, plain.head, plain.undirected_index, plain.ptr, plain.edge_counts
            counts, norm = plain._neighbour_counts, plain.frobenius_norm(torch.empty(0))
        found = ours.tail, ours.head, ours.undirected_index, ours.ptr, ours.edge_counts
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert torch.equal(ours._neighbour_counts, counts)
        torch.testing.assert_close(ours.frobenius_norm(torch.empty(0)), norm)
        if weight is not None:
            torch.testing.assert_close(ours.conductance, plain.conductance)


@pytest.mark.usefixtures("backend")
def test_what_is_refused() -> None:
    edges, batch = torch.tensor([[0, 1], [1, 2]]), torch.tensor([0, 0, 1])
    for match, *arguments in (
        (r"got 0\.\.2", edges, 2),
        (r"got -1\.\.1", edges - 1, 3),
        (r"edge \(1, 2\) joins graph 0 and graph 1", edges, 3, batch),
        ("sorted ascending", edges[:, :1], 3, batch.flip(0)),
        ("sorted ascending", edges[:, :1], 3, batch - 1, 2),
        (r"num_graphs=1\), got 1", edges[:, :1], 3, batch, 1),
        ("needs batch", edges, 3, None, 2),
        (r"int64 of shape \[3\]", edges, 3, batch[1:]),
    ):
        with pytest.raises(ValueError, match=match):
            undirected_edges(*arguments)
    with pytest.raises(ValueError, match="joins graph"):
        tg_lpe.Graph(edges, batch=batch, edge_weight=torch.ones(2))


@pytest.mark.usefixtures("backend")
def test_a_far_away_graph_takes_no_memory() -> None:
    found = undirected_edges(torch.tensor([[0], [1]]), 3, torch.tensor([0, 0, 2**40]))
    assert found.num_graphs == 2**40 + 1 and found.max_nodes == 2


@needs_cpu
def test_ends_out_of_order_are_refused() -> None:
    ones = torch.ones(3)
    for tail, head in (([1, 0], [2, 1]), ([0, 1], [1, 3]), ([0, 1], [1, 1]), ([-1, 1], [1, 2])):
        with pytest.raises(ValueError, match="tails must ascend"):
            compiled_adjacency_rows(torch.tensor(tail), torch.tensor(head), ones, None)


def check_rows(graph: tg_lpe.Graph, scale: Tensor, weight: Tensor | None) -> None:
    found = adjacency_rows(graph.tail, graph.head, scale, weight)
    row = torch.repeat_interleave(torch.arange(graph.num_nodes), found.crow.diff())
    order = torch.argsort(torch.cat([graph.tail, graph.head]) * graph.num_nodes + torch.cat([graph.head, graph.tail]))
    assert torch.equal(row, torch.cat([graph.tail, graph.head])[order])
    assert torch.equal(found.col.long(), torch.cat([graph.head, graph.tail])[order]) and found.col.dtype == torch.int32
    w = torch.ones_like(order, dtype=scale.dtype) if weight is None else torch.cat([weight, weight])[order]
    torch.testing.assert_close(found.value, w * scale[row] * scale[found.col.long()])


@pytest.mark.usefixtures("backend")
@few
@given(graphs(max_nodes=12, exponents=(-3, 3)), st.booleans())
def test_adjacency_rows(graph: Graph, weighted: bool) -> None:
    own = tg_lpe.Graph(graph.edge_index(), graph.num_nodes)
    check_rows(own, normal(graph.num_nodes), graph.edge_weight() if weighted else None)


@needs_cpu
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("count", [1, 3])
def test_adjacency_that_threads_share(count: int) -> None:
    generator = torch.Generator().manual_seed(1)
    num_nodes = 300_000
    graph = tg_lpe.Graph(torch.randint(num_nodes, (2, 1_200_000), generator=generator), num_nodes)
    assert graph.num_edges > 2**20
    torch.set_num_threads(count)
    check_rows(graph, torch.rand(num_nodes, generator=generator), torch.rand(graph.num_edges, generator=generator))


@pytest.mark.usefixtures("backend")
@few
@given(graph=graphs(max_nodes=12, min_nodes=1, exponents=(-5, 5)), k=st.integers(1, 20), scaled=st.booleans())
def test_products_with_the_laplacian(graph: Graph, k: int, scaled: bool) -> None:
    incidence = tg_lpe.Graph(graph.edge_index(), graph.num_nodes, edge_weight=graph.edge_weight())
    x = normal(graph.num_nodes, k)
    scale = inverse_sqrt(incidence.degree(x)) if scaled else torch.ones(graph.num_nodes).double()
    rows = adjacency_rows(incidence.tail, incidence.head, scale, incidence.conductance)
    expected = scale.unsqueeze(1) * (torch.from_numpy(graph.laplacian()) @ (scale.unsqueeze(1) * x))
    got = laplacian(rows, incidence.laplacian_diagonal(x) * scale.square(), x)
    assert relative_error(got, expected) < 1e-12


@pytest.mark.usefixtures("backend")
def test_gradients_of_products() -> None:
    graph = tg_lpe.Graph(torch.tensor([[0, 1, 0], [1, 2, 2]]), 4)
    rows = adjacency_rows(graph.tail, graph.head, normal(4), None)

    def of(x: Tensor, value: Tensor, diagonal: Tensor) -> Tensor:
        return laplacian(rows._replace(value=value), diagonal, x)

    inputs = [x.requires_grad_() for x in (normal(4, 2), rows.value.clone(), normal(4, seed=1))]
    # One entry of a symmetric matrix cannot change alone, so finite differences move both.
    pairs = torch.tensor(
        [[int(c) for c in sorted((r, c))] for r, c in zip(rows_of(rows), rows.col.tolist(), strict=True)]
    )
    _, twin = torch.unique(pairs, dim=0, return_inverse=True)

    def symmetric(x: Tensor, value: Tensor, diagonal: Tensor) -> Tensor:
        return of(x, value[twin], diagonal)

    inputs[1] = normal(3, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(symmetric, inputs)
    assert torch.autograd.gradgradcheck(symmetric, inputs)


def rows_of(rows: AdjacencyRows) -> list[int]:
    return torch.repeat_interleave(rows.crow.diff()).tolist()


@needs_cpu
def test_malformed_products_are_refused() -> None:
    ones = torch.ones(3).double()
    rows = compiled_adjacency_rows(torch.tensor([0, 1]), torch.tensor([1, 2]), ones, None)
    with pytest.raises(ValueError, match=r"x must be torch.float64 \[3, 2\] on the CPU, got torch.float32"):
        compiled_laplacian(*rows, ones, torch.ones(3, 2))
    with pytest.raises(ValueError, match=r"crow must be torch.int64 \[3\]"):
        compiled_laplacian(*rows, ones[:2], torch.ones(2, 2).double())
