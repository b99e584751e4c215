"""Neighbours among tuples against the list of all tuples."""

from __future__ import annotations

import pytest
import torch
from helpers import Graph, corner_cases, few, graph_of, graphs
from hypothesis import given
from hypothesis import strategies as st

import tg_lpe
from tg_lpe.graph.tuples import component_tuples, find_tuples, neighbouring_tuples

orders = st.sampled_from([(1, 1), (2, 1), (2, 2), (3, 1), (3, 2)])


@few
@given(st.lists(graphs(max_nodes=6), min_size=1, max_size=3), orders, st.booleans())
def test_neighbours_are_those_of_the_list_of_all(parts: list[Graph], order: tuple[int, int], everywhere: bool) -> None:
    whole = graph_of(*parts)
    joined = {(u, v) for u, v in zip(whole.tail.tolist(), whole.head.tolist(), strict=True)}
    joined |= {(v, u) for u, v in joined}
    tuples = component_tuples(whole, *order)
    number = {tuple(nodes): row for row, nodes in enumerate(tuples.T.tolist())}
    batch = whole.batch.tolist()
    for place in range(order[0]):
        expected = []
        for nodes, row in number.items():
            for w in range(whole.num_nodes):
                near = batch[w] == batch[nodes[0]] if everywhere else (nodes[place], w) in joined
                moved = (*nodes[:place], w, *nodes[place + 1 :])
                if near and moved in number:
                    expected.append([row, number[moved]])
        got = neighbouring_tuples(whole, tuples, place, everywhere=everywhere)
        assert got.dtype == torch.int64 and sorted(got.T.tolist()) == sorted(expected)
        assert bool((got[0].diff() >= 0).all())


def test_tuples_are_found() -> None:
    whole = graph_of(*(part for part in corner_cases() if part.num_nodes <= 12))
    tuples = component_tuples(whole, 3, 1)
    order = torch.randperm(tuples.size(1), generator=torch.Generator().manual_seed(0))
    assert torch.equal(find_tuples(whole, tuples, tuples[:, order]), order)
    kept = tuples[:, ::2]
    found = find_tuples(whole, kept, tuples)
    assert torch.equal(found[::2], torch.arange(kept.size(1))) and bool((found[1::2] == -1).all())
    assert torch.equal(find_tuples(whole, tuples[:, :0], tuples[:, :4]), torch.full((4,), -1))


def test_what_cannot_be_listed_is_refused() -> None:
    whole = tg_lpe.Graph(torch.zeros(2, 0, dtype=torch.int64), 8193)
    with pytest.raises(ValueError, match="do not fit in memory"):
        neighbouring_tuples(whole, component_tuples(whole, 1, 1), 0, everywhere=True)
