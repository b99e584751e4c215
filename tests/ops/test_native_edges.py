"""The compiled sort of a list of edges against numpy's, and against the same class without it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers import few
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tg_lpe import Incidence
from tg_lpe.ops import native

pytestmark = pytest.mark.skipif(not native.has_native(), reason="the compiled part is absent or switched off")

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


def check(edge_index: Tensor, num_nodes: int, with_listings: bool) -> None:
    found = native.native_columns(edge_index, num_nodes, None, 1, with_listings)
    assert found is not None
    keys = distinct(edge_index, num_nodes)
    np.testing.assert_array_equal(found.tail.numpy() * num_nodes + found.head.numpy(), keys)
    assert bool((found.tail < found.head).all())
    ends = np.concatenate([keys // max(num_nodes, 1), keys % max(num_nodes, 1)])
    np.testing.assert_array_equal(found.neighbour_counts.numpy(), np.bincount(ends, minlength=num_nodes))
    if not with_listings:
        assert found.column is None
        return
    assert found.column is not None
    loops = (edge_index[0] == edge_index[1]).numpy()
    assert bool((found.column.numpy()[loops] == -1).all())
    column = found.column[torch.from_numpy(~loops)]
    pairs = edge_index[:, torch.from_numpy(~loops)]
    assert torch.equal(found.tail[column], pairs.min(0).values)
    assert torch.equal(found.head[column], pairs.max(0).values)


@few
@given(MESSY, st.booleans())
def test_edges_are_distinct_sorted_and_counted(messy: Any, with_listings: bool) -> None:
    num_nodes, pairs, _ = messy
    check(listed(pairs).contiguous(), num_nodes, with_listings)
    check(listed(pairs), num_nodes, with_listings)  # not contiguous


@pytest.mark.parametrize("with_listings", [True, False])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_list_that_threads_share(with_listings: bool, threads: int) -> None:
    generator = torch.Generator().manual_seed(0)
    num_nodes, before = 200_003, torch.get_num_threads()
    edges = torch.randint(num_nodes, (2, 2**20 + 7), generator=generator)
    hub = torch.stack([torch.zeros(5_000, dtype=torch.int64), torch.randperm(5_000, generator=generator)])
    torch.set_num_threads(threads)
    try:
        check(torch.cat([edges, edges[:, :100_000].flip(0), hub], dim=1), num_nodes, with_listings)
    finally:
        torch.set_num_threads(before)


@few
@given(MESSY, st.randoms(use_true_random=False))
def test_the_same_graph_without_the_compiled_part(messy: Any, random: Any) -> None:
    num_nodes, pairs, num_graphs = messy
    batch = torch.tensor(sorted(random.randrange(num_graphs) for _ in range(num_nodes)))
    inside = [(u, v) for u, v in pairs if batch[u] == batch[v]]
    weights = {frozenset(pair): 10.0 ** random.uniform(-5, 5) for pair in inside}
    edge_weight = torch.tensor([weights[frozenset(pair)] for pair in inside], dtype=torch.float64)
    for weight in (None, edge_weight):
        given: dict[str, Any] = {"edge_weight": weight, "batch": batch, "num_graphs": num_graphs}
        ours = Incidence(listed(inside), num_nodes, **given)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "library", None)
            plain = Incidence(listed(inside), num_nodes, **given)
            expected = plain.tail, plain.head, plain.column_of_listing, plain.ptr, plain.edge_counts
            counts, norm = plain._neighbour_counts, plain.frobenius_norm(torch.empty(0))
        found = ours.tail, ours.head, ours.column_of_listing, ours.ptr, ours.edge_counts
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert torch.equal(ours._neighbour_counts, counts)
        torch.testing.assert_close(ours.frobenius_norm(torch.empty(0)), norm)
        if weight is not None:
            torch.testing.assert_close(ours.conductance, plain.conductance)


def test_what_does_not_fit_is_left_to_the_checks_that_name_it() -> None:
    edges = torch.tensor([[0, 1], [1, 2]])
    batch = torch.tensor([0, 0, 1])
    assert native.native_columns(edges, 2, None, 1, True) is None  # node 2 of 2
    assert native.native_columns(edges - 1, 3, None, 1, True) is None
    assert native.native_columns(edges, 3, batch, 2, True) is None  # edge (1, 2) joins two graphs
    assert native.native_columns(edges[:, :1], 3, batch.flip(0), 2, True) is None
    assert native.native_columns(edges[:, :1], 3, batch, 1, True) is None  # graph 1 of 1
    assert native.native_columns(edges[:, :1], 3, batch - 1, 2, True) is None
    with pytest.raises(ValueError, match=r"edge \(1, 2\) joins graph 0 and graph 1"):
        Incidence(edges, 3, batch=batch)
    with pytest.raises(ValueError, match=r"got -1\.\.1"):
        Incidence(edges - 1)
    with pytest.raises(ValueError, match="joins graph"):
        Incidence(edges, batch=batch, edge_weight=torch.ones(2))


def test_the_list_of_the_caller_is_not_touched_nor_kept() -> None:
    edges = torch.tensor([[2, 0, 1, 1], [0, 2, 1, 0]])
    before = edges.clone()
    graph = Incidence(edges)
    assert torch.equal(edges, before)
    edges.zero_()
    assert graph.tail.tolist() == [0, 0]
    assert graph.head.tolist() == [1, 2]


def test_ends_out_of_order_are_refused() -> None:
    ones = torch.ones(3)
    for tail, head in (([1, 0], [2, 1]), ([0, 1], [1, 3]), ([0, 1], [1, 1]), ([-1, 1], [1, 2])):
        with pytest.raises(ValueError, match="tails must ascend"):
            native.native_adjacency((torch.tensor(tail), torch.tensor(head)), ones, None, ones)


@pytest.mark.parametrize("threads", [1, 3])
def test_adjacency_that_threads_share(threads: int) -> None:
    generator = torch.Generator().manual_seed(1)
    num_nodes, before = 300_000, torch.get_num_threads()
    graph = Incidence(torch.randint(num_nodes, (2, 1_200_000), generator=generator), num_nodes)
    assert graph.num_edges > 2**20
    scale, weight = torch.rand(2, num_nodes, generator=generator)[0], torch.rand(graph.num_edges, generator=generator)
    torch.set_num_threads(threads)
    try:
        found = native.native_adjacency((graph.tail, graph.head), scale, weight, scale)
    finally:
        torch.set_num_threads(before)
    row = torch.repeat_interleave(torch.arange(num_nodes), found.crow.diff())
    order = torch.argsort(torch.cat([graph.tail, graph.head]) * num_nodes + torch.cat([graph.head, graph.tail]))
    assert torch.equal(row, torch.cat([graph.tail, graph.head])[order])
    assert torch.equal(found.col.long(), torch.cat([graph.head, graph.tail])[order])
    expected = torch.cat([weight, weight])[order] * scale[row] * scale[found.col.long()]
    torch.testing.assert_close(found.value, expected)
