"""Estimated polynomials, in each backend, against dense algebra in numpy; invalid arguments."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import Graph, few, from_networkx, graphs, normal, relative_error
from hypothesis import given
from hypothesis import strategies as st
from ops_support import bases, dtypes, needs_cpu, same_with_any_threads
from torch import Tensor

from tg_lpe.ops import estimates
from tg_lpe.ops.estimates import EstimatedRecurrence, compiled_estimated_polynomials
from tg_lpe.ops.polynomials import BASES
from tg_lpe.ops.random import counter_signs

F64 = torch.float64


class Stack:
    """Graphs padded to the size of the largest; entries of both signs."""

    def __init__(self, parts: list[Graph], num_filters: int = 2, dtype: torch.dtype = F64) -> None:
        self.num_graphs, self.max_nodes = len(parts), max((part.num_nodes for part in parts), default=0)
        self.num_rows = self.num_graphs * self.max_nodes
        ends = [(u + g * self.max_nodes, v + g * self.max_nodes) for g, part in enumerate(parts) for u, v in part.edges]
        self.tail, self.head = torch.tensor(ends, dtype=torch.int64).reshape(-1, 2).T.contiguous()
        degree = torch.bincount(torch.cat([self.tail, self.head]), minlength=max(self.num_rows, 1)).clamp(min=1)
        scale = (degree[self.tail] * degree[self.head]).double().rsqrt()
        self.adjacency = (normal(num_filters, len(ends)).clamp(-1.5, 1.5) * scale).to(dtype)

    def arguments(self, basis: str, num_layers: int, num_probes: int, seed: int, read_edges: bool) -> Any:
        rows = self.num_rows, self.max_nodes
        options = *BASES[basis], num_layers, num_probes, seed, read_edges
        return self.adjacency, EstimatedRecurrence(self.tail, self.head, *rows, *options)

    def compiled(self, basis: str, num_layers: int, num_probes: int, seed: int = 0, read_edges: bool = True) -> Any:
        return compiled_estimated_polynomials(*self.arguments(basis, num_layers, num_probes, seed, read_edges))

    def torchs(self, basis: str, num_layers: int, num_probes: int, seed: int = 0, read_edges: bool = True) -> Any:
        return estimates._reference(*self.arguments(basis, num_layers, num_probes, seed, read_edges))

    def dense(self, basis: str, num_layers: int, num_probes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """By definition: symmetrised products of polynomials of the dense matrix with the signs, summed in numpy."""
        signs = counter_signs(seed, self.max_nodes, torch.arange(num_probes), torch.empty(0, dtype=F64))
        V = np.tile(signs.numpy(), (self.num_graphs, 1))
        tail, head = self.tail.numpy(), self.head.numpy()
        nodes, edges = [], []
        for row in self.adjacency.double().numpy():
            P = np.zeros((self.num_rows, self.num_rows))
            P[tail, head] = P[head, tail] = row
            polynomials = [np.eye(self.num_rows), P]
            for _ in range(num_layers):
                before, last = polynomials[-2:]
                polynomials.append(P @ last if basis == "power" else 2 * P @ last - before)
            for layer in range(1, num_layers + 1):
                a, b = (polynomials[depth] @ V for depth in (layer // 2, layer - layer // 2))
                gram = (a @ b.T + b @ a.T) / (2 * num_probes)
                if basis == "chebyshev":
                    gram = 2 * gram - polynomials[layer % 2]
                gram = P if layer == 1 else gram
                nodes.append(np.diag(gram))
                edges.append(gram[tail, head])
        width = self.adjacency.size(0) * num_layers
        return np.array(nodes).reshape(width, -1).T, np.array(edges).reshape(width, -1).T


def near(got: Tensor, expected: Any, tolerance: float) -> None:
    expected = np.asarray(expected)
    assert got.shape == expected.shape
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    assert np.abs(got.double().numpy() - expected).max(initial=0.0) < tolerance * scale


buckets = st.lists(graphs(min_nodes=1, max_nodes=12), min_size=1, max_size=4)


@needs_cpu
@bases
@dtypes
@few
@given(buckets, st.integers(1, 17), st.integers(1, 40), st.integers(1, 3), st.integers(-(2**63), 2**64 - 1))
def test_random_buckets(
    basis: str, dtype: torch.dtype, parts: list[Graph], num_layers: int, num_probes: int, num_filters: int, seed: int
) -> None:
    stack = Stack(parts, num_filters, dtype)
    arguments = basis, num_layers, num_probes, seed
    nodes, edges = stack.compiled(*arguments)
    assert nodes.dtype == edges.dtype == dtype and nodes.is_contiguous() and edges.is_contiguous()
    tolerance = 1e-12 if dtype == F64 else 2e-5
    for got, expected in zip((nodes, edges), stack.dense(*arguments), strict=True):
        near(got, expected, tolerance)
    for got, expected in zip((nodes, edges), stack.torchs(*arguments), strict=True):
        near(got, expected.double(), tolerance)
    alone, none = stack.compiled(*arguments, read_edges=False)
    assert torch.equal(alone, nodes) and not none.any() and none.shape == edges.shape


def wide(num_nodes: int = 40, seed: int = 0) -> Graph:
    return from_networkx(nx.gnp_random_graph(num_nodes, 0.2, seed=seed))


@needs_cpu
@bases
@dtypes
@pytest.mark.parametrize("num_layers", [1, 2, 3, 4, 16, 17])
def test_every_depth_and_number_of_probes(basis: str, dtype: torch.dtype, num_layers: int) -> None:
    stack = Stack([wide(), Graph(3, [], []), wide(30, 1)], 3, dtype)
    for num_probes in (1, 7, 8, 9, 15, 16, 17, 32, 40):
        for got, expected in zip(
            stack.compiled(basis, num_layers, num_probes, 3), stack.dense(basis, num_layers, num_probes, 3), strict=True
        ):
            near(got, expected, 1e-12 if dtype == F64 else 2e-5)


@needs_cpu
@dtypes
@pytest.mark.parametrize("seed", [0, 1, -1, 2**63, 2**64 - 1, 12345])
def test_the_signs_are_those_of_counter_signs_bit_for_bit(dtype: torch.dtype, seed: int) -> None:
    """On disjoint edges with entries of one, the second layer is the product of the ends' signs."""
    max_nodes, num_probes = 2000, 40
    pairs = torch.randperm(max_nodes, generator=torch.Generator().manual_seed(1)).view(2, -1)
    adjacency, ends = torch.ones(1, max_nodes // 2, dtype=dtype), (pairs[0], pairs[1])
    signs = counter_signs(seed, max_nodes, torch.arange(num_probes), adjacency)
    for count in range(1, num_probes + 1):
        recurrence = EstimatedRecurrence(*ends, max_nodes, max_nodes, 1.0, 0.0, 2, count, seed, True)
        _, edges = compiled_estimated_polynomials(adjacency, recurrence)
        sums = (edges[:, 1] * count).round()
        assert (edges[:, 1] * count - sums).abs().max() < 1e-4
        assert torch.equal(sums, (signs[pairs[0], :count] * signs[pairs[1], :count]).sum(1))


@needs_cpu
@pytest.mark.parametrize("read_edges", [True, False])
def test_the_number_of_threads_changes_no_bit(threads: None, read_edges: bool) -> None:
    star = from_networkx(nx.star_graph(40_000))  # a row that no two threads can share
    regular = from_networkx(nx.random_regular_graph(4, 30_000, seed=0))
    stack = Stack([star, regular], 1, torch.float32)
    found = same_with_any_threads(lambda: stack.compiled("chebyshev", 7, 20, read_edges=read_edges))
    for got, expected in zip(found, stack.torchs("chebyshev", 7, 20, read_edges=read_edges), strict=True):
        assert relative_error(got, expected) < 1e-4


@pytest.mark.usefixtures("backend")
def test_graphs_of_several_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="num_rows must"):
        estimates.estimated_polynomials(torch.ones(1, 1), torch.tensor([0]), torch.tensor([1]), 4, 3, "power", 3, 5, 0)


@needs_cpu
def test_what_is_refused() -> None:
    adjacency, tail, head = torch.ones(2, 3), torch.tensor([0, 0, 1]), torch.tensor([1, 2, 2])

    def call(adjacency: Tensor = adjacency, tail: Tensor = tail, head: Tensor = head, **changed: int) -> Any:
        sizes = {"num_rows": 3, "max_nodes": 3, "num_layers": 4, "num_probes": 5} | changed
        rows, layers = (sizes["num_rows"], sizes["max_nodes"]), (sizes["num_layers"], sizes["num_probes"])
        recurrence = EstimatedRecurrence(tail, head, *rows, 1.0, 0.0, *layers, 0, True)
        return compiled_estimated_polynomials(adjacency, recurrence)

    call()
    for wrong in (
        {"adjacency": adjacency.half()},
        {"adjacency": adjacency[0]},
        {"adjacency": adjacency[:, :2]},
        {"adjacency": adjacency.to("meta")},
        {"tail": tail.int()},
        {"head": head[:2]},
        {"num_layers": 0},
        {"num_probes": 0},
        {"max_nodes": 0},
        {"num_rows": -1},
        {"num_rows": 2},
        {"num_rows": 2**31},
        {"tail": tail - 1},
        {"head": head + 1},
        {"head": torch.tensor([1, 0, 2])},
    ):
        with pytest.raises(ValueError):
            call(**wrong)  # type: ignore[arg-type]


@needs_cpu
def test_without_rows_edges_or_filters() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    for num_filters, num_rows in ((2, 0), (2, 4), (0, 4)):
        adjacency = torch.zeros(num_filters, 0)
        recurrence = EstimatedRecurrence(none, none, num_rows, 4, 2.0, 1.0, 5, 3, 0, True)
        nodes, edges = compiled_estimated_polynomials(adjacency, recurrence)
        assert nodes.shape == (num_rows, 5 * num_filters) and edges.shape == (0, 5 * num_filters)
        expected = [0.0, -1.0, 0.0, 1.0, 0.0] * num_filters  # T_t(0), estimated without error
        assert torch.equal(nodes, torch.tensor(expected).expand(num_rows, -1))


@pytest.mark.usefixtures("backend")
@bases
def test_first_and_second_derivatives(basis: str) -> None:
    stack = Stack([Graph(3, [(0, 1), (0, 2), (1, 2)], [1.0] * 3), Graph(2, [(0, 1)], [1.0])], 1)

    def of(adjacency: Tensor) -> tuple[Tensor, Tensor]:
        rows = stack.num_rows, stack.max_nodes
        return estimates.estimated_polynomials(adjacency, stack.tail, stack.head, *rows, basis, 4, 3, 0)

    assert torch.autograd.gradcheck(of, stack.adjacency.requires_grad_())
    assert torch.autograd.gradgradcheck(of, stack.adjacency)
