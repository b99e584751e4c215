"""Sums over triangles, in each backend, against dense algebra in numpy; derivatives, threads, invalid arguments."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import Graph, corner_cases, few, fewer, from_networkx, graphs
from hypothesis import given
from hypothesis import strategies as st
from ops_support import dtypes, entries_at_edges, incidence, needs_cpu, same_with_any_threads
from torch import Tensor

import tg_lpe
from tg_lpe.ops import cpu
from tg_lpe.ops.triangles import triangle_products

pytestmark = pytest.mark.usefixtures("backend")


def products(a: Tensor, b: Tensor, graph: tg_lpe.Graph) -> Tensor:
    return triangle_products(a, b, graph.tail, graph.head, graph.num_nodes)


def expected_products(a: Tensor, b: Tensor, graph: tg_lpe.Graph) -> Tensor:
    """``A B + B A`` by definition, in double precision."""
    tail, head = graph.tail.numpy(), graph.head.numpy()
    rows = []
    for entries in zip(a.double().numpy(), b.double().numpy(), strict=True):
        A, B = np.zeros((2, graph.num_nodes, graph.num_nodes))
        for matrix, row in zip((A, B), entries, strict=True):
            matrix[tail, head] = matrix[head, tail] = row
        rows.append((A @ B + B @ A)[tail, head])
    return torch.from_numpy(np.array(rows)).reshape(a.shape)


@dtypes
@few
@given(
    st.lists(st.one_of(graphs(max_nodes=14), st.sampled_from(corner_cases())), max_size=4),
    st.integers(1, 6),
    st.booleans(),
)
def test_random_batches(dtype: torch.dtype, parts: list[Graph], num_filters: int, is_square: bool) -> None:
    graph = incidence(parts)
    a = entries_at_edges(graph, num_filters, dtype)
    b = a if is_square else entries_at_edges(graph, num_filters, dtype, seed=1)
    got = products(a, b, graph)
    assert got.dtype == dtype
    torch.testing.assert_close(got, expected_products(a, b, graph).to(dtype))


@pytest.mark.parametrize(
    "whole",
    [nx.complete_graph(17), nx.wheel_graph(80), nx.barabasi_albert_graph(300, 4, seed=0), nx.star_graph(40)],
    ids=["complete", "wheel", "preferential", "star"],
)
def test_hubs(whole: nx.Graph) -> None:
    graph = incidence([from_networkx(whole)])
    ones = torch.ones(1, graph.num_edges, dtype=torch.float64)
    ends = torch.stack([graph.tail, graph.head], 1).tolist()
    common = [len(list(nx.common_neighbors(whole, *pair))) for pair in ends]
    assert (products(ones, ones, graph)[0] / 2).tolist() == common
    a, b = (entries_at_edges(graph, 5, seed=seed) for seed in (0, 1))
    torch.testing.assert_close(products(a, b, graph), expected_products(a, b, graph))


def test_derivatives_of_any_order() -> None:
    graph = incidence([from_networkx(nx.wheel_graph(5)), Graph(1, [], []), from_networkx(nx.complete_graph(4))])
    a, b = (entries_at_edges(graph, 2, seed=seed).requires_grad_() for seed in (0, 1))
    assert torch.autograd.gradcheck(lambda a, b: products(a, b, graph), (a, b))
    assert torch.autograd.gradgradcheck(lambda a, b: products(a, b, graph), (a, b))
    assert torch.autograd.gradcheck(lambda a: products(a, a, graph), a)
    direction = torch.ones_like(a)
    _, forwards = torch.func.jvp(lambda a: products(a, a, graph), (a.detach(),), (direction,))
    torch.testing.assert_close(forwards, 2 * products(a, direction, graph).detach())


@needs_cpu
@fewer
@given(st.lists(graphs(min_nodes=1, max_nodes=14), min_size=1, max_size=3))
def test_gradients_of_the_backends_agree(parts: list[Graph]) -> None:
    graph, found = incidence(parts), []
    for context in (nullcontext, cpu.switched_off):
        with context():
            a = entries_at_edges(graph, 5).requires_grad_()
            found.append(torch.autograd.grad(products(a, a, graph).pow(3).sum(), a)[0])
    torch.testing.assert_close(found[0], found[1])


@needs_cpu
def test_the_number_of_threads_changes_no_bit(threads: None) -> None:
    graph = incidence([from_networkx(nx.barabasi_albert_graph(3000, 4, seed=0))])
    a = entries_at_edges(graph, 3, torch.float32)
    same_with_any_threads(lambda: [products(a, a, graph)])


@needs_cpu
def test_the_reference_takes_more_paths_than_fit_at_once() -> None:
    graph = incidence([from_networkx(nx.complete_graph(150))])  # 1.7 million paths
    a = entries_at_edges(graph)
    expected = products(a, a, graph)
    with cpu.switched_off():
        torch.testing.assert_close(products(a, a, graph), expected)


@needs_cpu
def test_what_is_refused(backend: str) -> None:
    if backend == "reference":
        pytest.skip("it is called with what was checked")
    tail, head, values = torch.tensor([0, 0, 1]), torch.tensor([1, 2, 2]), torch.ones(2, 3)

    def call(**changed: Any) -> None:
        triangle_products(**{"a": values, "b": values, "tail": tail, "head": head, "num_nodes": 3} | changed)

    call()
    for wrong in (
        {"b": values[:, :2]},
        {"b": values.double()},
        {"a": values[:1]},
        {"tail": tail.int()},
        {"head": head[:2]},
        {"head": head + 1},
        {"head": tail},
        {"num_nodes": 2},
    ):
        with pytest.raises(ValueError):
            call(**wrong)
