"""Polynomials of padded matrices against dense powers in numpy."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import Graph, few, graphs, normal
from hypothesis import given
from hypothesis import strategies as st
from ops_support import bases, expected_polynomials
from torch import Tensor

from tg_lpe.ops.polynomials import EdgePositions, dense_polynomials

layers = st.integers(1, 7)
blocks = st.lists(graphs(min_nodes=1, max_nodes=7), min_size=1, max_size=3)
CYCLE = Graph(5, [(0, 1), (0, 4), (1, 2), (2, 3), (3, 4)], [1.0] * 5)
TRIANGLE = Graph(3, [(0, 1), (0, 2), (1, 2)], [1.0] * 3)


def positions(parts: list[Graph], padding: int = 0) -> EdgePositions:
    """The graphs padded to one size, each with ``padding`` rows or more that no edge reaches."""
    max_nodes = max(graph.num_nodes for graph in parts) + padding
    ends = [(i * max_nodes + u, i * max_nodes + v) for i, graph in enumerate(parts) for u, v in graph.edges]
    tail, head = torch.tensor(ends, dtype=torch.int64).reshape(-1, 2).T.contiguous()
    return EdgePositions(len(parts), max_nodes, torch.arange(len(ends)), tail, head)


def entries_at_edges(where: EdgePositions, num_filters: int = 2, seed: int = 0) -> Tensor:
    """Adjacency entries of both signs, with eigenvalues of about one: with 7 nodes no row sum exceeds 6."""
    return 0.4 * normal(num_filters, where.tail.numel(), seed=seed)


@bases
@few
@given(blocks, st.integers(0, 2), layers)
def test_against_dense_powers(basis: str, parts: list[Graph], padding: int, depth: int) -> None:
    where = positions(parts, padding)
    adjacency = entries_at_edges(where)
    diagonal, entries = dense_polynomials(adjacency, where, basis, depth)
    rows = SimpleNamespace(tail=where.tail, head=where.head, num_nodes=where.num_graphs * where.max_nodes)
    found = expected_polynomials(adjacency, rows, basis, depth)
    expected = [part.T.reshape(2, depth, -1) for part in found]
    assert (diagonal.shape, entries.shape) == tuple(part.shape for part in expected)
    for layer in range(depth):  # each by itself: the last may be much larger than the first
        scale = max(np.abs(expected[0][:, layer]).max(initial=1e-3), np.abs(expected[1][:, layer]).max(initial=1e-3))
        for got, want in zip((diagonal, entries), expected, strict=True):
            assert np.abs(got[:, layer].numpy() - want[:, layer]).max(initial=0.0) < 1e-12 * scale


CASES = [[CYCLE], [TRIANGLE, Graph(1, [], []), CYCLE], [Graph(2, [(0, 1)], [1.0]), Graph(4, [(1, 3)], [1.0])]]


@bases
@pytest.mark.parametrize("parts", CASES, ids=["one", "three", "padding"])
@pytest.mark.parametrize("num_layers", [1, 2, 4, 7])
def test_gradients(basis: str, parts: list[Graph], num_layers: int) -> None:
    where = positions(parts)

    def of(adjacency: Tensor) -> tuple[Tensor, Tensor]:
        return dense_polynomials(adjacency, where, basis, num_layers)

    assert torch.autograd.gradcheck(of, entries_at_edges(where).requires_grad_())
    if num_layers < 4:
        assert torch.autograd.gradgradcheck(of, entries_at_edges(where).requires_grad_())
