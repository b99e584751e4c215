"""Polynomials of padded matrices against their eigenvalues in numpy, their backward pass against autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers import Graph, few, graphs, normal, relative_error
from hypothesis import given
from hypothesis import strategies as st
from numpy.polynomial.chebyshev import chebval
from ops_support import bases
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


def dense(adjacency: Tensor, where: EdgePositions) -> np.ndarray:
    """``[num_filters, num_graphs, max_nodes, max_nodes]``, entry by entry."""
    matrix = np.zeros((adjacency.size(0), where.num_graphs, where.max_nodes, where.max_nodes))
    for column, (tail, head) in enumerate(zip(where.tail.tolist(), where.head.tolist(), strict=True)):
        graph, u, v = tail // where.max_nodes, tail % where.max_nodes, head % where.max_nodes
        matrix[:, graph, u, v] = matrix[:, graph, v, u] = adjacency[:, column].detach().numpy()
    return matrix


def polynomials(matrix: np.ndarray, basis: str, num_layers: int) -> list[np.ndarray]:
    """Each layer through the eigenvalues."""
    values, vectors = np.linalg.eigh(matrix)

    def of(eigenvalues: np.ndarray) -> np.ndarray:
        return (vectors * eigenvalues[..., None, :]) @ np.swapaxes(vectors, -1, -2)

    powers = range(1, num_layers + 1)
    last = [values**t if basis == "power" else chebval(values, np.eye(num_layers + 1)[t]) for t in powers]
    return [of(v) for v in last]


def read(layer: np.ndarray, where: EdgePositions) -> tuple[np.ndarray, np.ndarray]:
    tail, head = where.tail.numpy(), where.head.numpy()
    entries = layer[:, tail // where.max_nodes, tail % where.max_nodes, head % where.max_nodes]
    return np.diagonal(layer, axis1=2, axis2=3).reshape(len(layer), -1), entries


def expected_polynomials(adjacency: Tensor, where: EdgePositions, *options: Any) -> tuple[np.ndarray, np.ndarray]:
    parts = [read(layer, where) for layer in polynomials(dense(adjacency, where), *options)]
    return np.stack([d for d, _ in parts], 1), np.stack([e for _, e in parts], 1)


@bases
@few
@given(blocks, st.integers(0, 2), layers)
def test_against_eigenvalues(basis: str, parts: list[Graph], padding: int, depth: int) -> None:
    where = positions(parts, padding)
    adjacency = entries_at_edges(where)
    diagonal, entries = dense_polynomials(adjacency, where, basis, depth)
    expected = expected_polynomials(adjacency, where, basis, depth)
    num_layers = depth
    assert diagonal.shape == (2, num_layers, where.num_graphs * where.max_nodes)
    assert entries.shape == (2, num_layers, where.tail.numel())
    for layer in range(num_layers):  # each by itself: the last may be much larger than the first
        scale = max(np.abs(expected[0][:, layer]).max(initial=1e-3), np.abs(expected[1][:, layer]).max(initial=1e-3))
        for got, want in zip((diagonal, entries), expected, strict=True):
            assert np.abs(got[:, layer].numpy() - want[:, layer]).max(initial=0.0) < 1e-12 * scale


CASES = [[CYCLE], [TRIANGLE, Graph(1, [], []), CYCLE], [Graph(2, [(0, 1)], [1.0]), Graph(4, [(1, 3)], [1.0])]]


@bases
@pytest.mark.parametrize("parts", CASES, ids=["one", "three", "padding"])
@pytest.mark.parametrize("num_layers", [1, 2, 4])
def test_gradients(basis: str, parts: list[Graph], num_layers: int) -> None:
    where = positions(parts)

    def of(adjacency: Tensor) -> tuple[Tensor, Tensor]:
        return dense_polynomials(adjacency, where, basis, num_layers)

    assert torch.autograd.gradcheck(of, entries_at_edges(where).requires_grad_())
    if num_layers < 4:
        assert torch.autograd.gradgradcheck(of, entries_at_edges(where).requires_grad_())


def dense_reference(adjacency: Tensor, where: EdgePositions, basis: str, num_layers: int) -> tuple[Tensor, Tensor]:
    """The recurrence on dense matrices, left to autograd."""
    graph, u, v = where.tail // where.max_nodes, where.tail % where.max_nodes, where.head % where.max_nodes
    p = adjacency.new_zeros(adjacency.size(0), where.num_graphs, where.max_nodes, where.max_nodes)
    p[:, graph, u, v] = adjacency
    p[:, graph, v, u] = adjacency
    before, phi = torch.eye(where.max_nodes, dtype=p.dtype).expand_as(p), p
    layers = [phi]
    for _ in range(num_layers - 1):
        before, phi = phi, p @ phi if basis == "power" else 2 * p @ phi - before
        layers.append(phi)
    diagonals = [layer.diagonal(dim1=2, dim2=3).flatten(1) for layer in layers]
    return torch.stack(diagonals, 1), torch.stack([layer[:, graph, u, v] for layer in layers], 1)


@bases
@few
@given(blocks, layers, st.sampled_from(["both", "diagonal", "entries"]))
def test_backward_is_that_of_autograd(basis: str, parts: list[Graph], depth: int, what: str) -> None:
    where = positions(parts)
    results = []
    for function in (dense_polynomials, dense_reference):
        adjacency = entries_at_edges(where, 3).requires_grad_()
        diagonal, entries = function(adjacency, where, basis, depth)
        loss = 0.0
        if what != "entries":
            loss = loss + (diagonal * normal(*diagonal.shape, seed=1)).sum()
        if what != "diagonal":
            loss = loss + (entries * normal(*entries.shape, seed=2)).sum()
        loss.backward()
        results.append(adjacency.grad)
    assert relative_error(*results) < 1e-11
