"""Matrix polynomials around each node, in each backend, against dense algebra in numpy; powers through each node."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import Graph, corner_cases, few, from_networkx, graphs
from hypothesis import given
from hypothesis import strategies as st
from ops_support import (
    bases,
    check,
    dtypes,
    entries_at_edges,
    expected_polynomials,
    incidence,
    needs_cpu,
    same_with_any_threads,
)
from torch import Tensor

import tg_lpe
from tg_lpe.ops import cpu
from tg_lpe.ops.balls import ball_orders, ball_polynomials
from tg_lpe.ops.walks import BLOCK, add_walks_

pytestmark = pytest.mark.usefixtures("backend")
batches = st.lists(st.one_of(graphs(max_nodes=14), st.sampled_from(corner_cases())), max_size=4)


def orders_of(graph: tg_lpe.Graph, max_order: int, max_visits: int) -> Tensor:
    return ball_orders(graph.tail, graph.head, graph.num_nodes, max_order, max_visits)


def expected_orders(graph: tg_lpe.Graph, max_order: int, max_visits: int) -> list[int]:
    """By definition, from the distances that networkx finds."""
    whole = nx.empty_graph(graph.num_nodes)
    whole.add_edges_from(zip(graph.tail.tolist(), graph.head.tolist(), strict=True))
    orders = []
    for center in whole:
        distance = nx.single_source_shortest_path_length(whole, center)
        order = 2
        for radius in range(max_order):
            visits = sum(whole.degree(i) for i, d in distance.items() if d <= radius)
            if radius and visits > max_visits:
                break
            order = max_order if radius >= max(distance.values()) else 2 * radius + 2
        orders.append(min(order, max_order))
    return orders


@few
@given(batches, st.integers(1, 9), st.integers(0, 60))
def test_the_orders_that_a_bounded_ball_serves(parts: list[Graph], max_order: int, max_visits: int) -> None:
    graph = incidence(parts)
    assert orders_of(graph, max_order, max_visits).tolist() == expected_orders(graph, max_order, max_visits)


def known(expected: tuple[np.ndarray, np.ndarray], graph: tg_lpe.Graph, orders: Tensor, num_filters: int) -> Any:
    """The entries of the orders that are asked for; zero in place of the others."""
    found = []
    for entries, order in zip(
        expected, (orders, torch.maximum(orders[graph.tail], orders[graph.head]) - 1), strict=True
    ):
        layer = np.tile(np.arange(1, entries.shape[1] // num_filters + 1), num_filters)
        found.append(entries * (layer <= order.numpy()[:, None]))
    return tuple(found)


@bases
@dtypes
@few
@given(batches, st.integers(1, 9), st.integers(0, 60), st.integers(1, 6))
def test_random_batches(
    basis: str, dtype: torch.dtype, parts: list[Graph], num_layers: int, max_visits: int, num_filters: int
) -> None:
    graph = incidence(parts)
    adjacency = entries_at_edges(graph, num_filters, dtype)
    orders = orders_of(graph, num_layers + 1, max_visits)
    got = ball_polynomials(adjacency, graph.tail, graph.head, orders, basis, num_layers)
    assert got[0].dtype == got[1].dtype == dtype
    expected = expected_polynomials(adjacency, graph, basis, num_layers)
    check(got, known(expected, graph, orders, num_filters), 1e-12 if dtype == torch.float64 else 2e-5)
    alone, none = ball_polynomials(adjacency, graph.tail, graph.head, orders, basis, num_layers, read_edges=False)
    assert torch.equal(alone, got[0]) and not none.any() and none.shape == got[1].shape


@bases
def test_balls_whose_radii_differ(basis: str) -> None:
    """A hub, a tail and a dense part: orders from two to all."""
    whole = nx.disjoint_union(nx.star_graph(60), nx.gnp_random_graph(60, 0.08, seed=1))
    whole.add_edges_from([(3, 70), *((100 + i, 200 + i) for i in range(3)), (200, 201), (201, 202), (202, 203)])
    graph = incidence([from_networkx(nx.convert_node_labels_to_integers(whole))])
    adjacency = entries_at_edges(graph, 3)
    expected = expected_polynomials(adjacency, graph, basis, 12)
    for max_visits in (0, 30, 100, 10**6):
        orders = orders_of(graph, 13, max_visits)
        assert len(orders.unique()) > 1 or max_visits in (0, 10**6)
        got = ball_polynomials(adjacency, graph.tail, graph.head, orders, basis, 12)
        check(got, known(expected, graph, orders, 3), 1e-12)


@bases
@pytest.mark.parametrize(
    ("num_layers", "max_visits", "read_edges"), [(1, 0, True), (4, 0, False), (5, 9, True), (4, 100, False)]
)
def test_first_and_second_derivatives(basis: str, num_layers: int, max_visits: int, read_edges: bool) -> None:
    graph = incidence([from_networkx(nx.lollipop_graph(3, 3)), Graph(1, [], []), from_networkx(nx.cycle_graph(4))])
    orders = orders_of(graph, num_layers + read_edges, max_visits)

    def of(adjacency: Tensor) -> Any:
        found = ball_polynomials(adjacency, graph.tail, graph.head, orders, basis, num_layers, read_edges)
        return found if read_edges else found[0]

    adjacency = entries_at_edges(graph, 1).requires_grad_()
    assert torch.autograd.gradcheck(of, adjacency)
    assert torch.autograd.gradgradcheck(of, adjacency, fast_mode=True)


@needs_cpu
def test_the_number_of_threads_changes_no_bit(threads: None, backend: str) -> None:
    if backend == "reference":
        pytest.skip("torch makes no such promise")
    graph = incidence([from_networkx(nx.random_regular_graph(3, 3000, seed=0)), from_networkx(nx.star_graph(700))])

    def run() -> list[Tensor]:
        orders = orders_of(graph, 6, 200)
        adjacency = entries_at_edges(graph, 2, torch.float32).requires_grad_()
        nodes, edges = ball_polynomials(adjacency, graph.tail, graph.head, orders, "chebyshev", 5)
        return [orders, nodes, edges, *torch.autograd.grad(nodes.square().sum() + edges.sum(), adjacency)]

    same_with_any_threads(run)


@needs_cpu
def test_the_reference_takes_more_nodes_than_fit_at_once() -> None:
    graph = incidence([from_networkx(nx.circulant_graph(1100, [1, 3]))])
    adjacency = entries_at_edges(graph)
    expected = orders_of(graph, 6, 40)
    values = ball_polynomials(adjacency, graph.tail, graph.head, expected, "power", 5)
    with cpu.switched_off():
        assert torch.equal(orders_of(graph, 6, 40), expected)
        torch.testing.assert_close(ball_polynomials(adjacency, graph.tail, graph.head, expected, "power", 5), values)


@needs_cpu
def test_what_is_refused(backend: str) -> None:
    if backend == "reference":
        pytest.skip("it is called with what was checked")
    tail, head, orders = torch.tensor([0, 0, 1]), torch.tensor([1, 2, 2]), torch.tensor([2, 3, 4])
    adjacency = torch.ones(2, 3)

    def call(**changed: Any) -> None:
        given = {"adjacency": adjacency, "tail": tail, "head": head, "orders": orders} | changed
        ball_polynomials(**given, basis="power", num_layers=3)

    call()
    for wrong in (
        {"adjacency": adjacency[0]},
        {"adjacency": adjacency[:, :2]},
        {"tail": tail.int()},
        {"head": head[:2]},
        {"head": head + 1},
        {"head": tail},
        {"orders": orders - 2},
        {"orders": orders + 1},
        {"orders": orders.int()},
        {"orders": orders[:2]},
    ):
        with pytest.raises(ValueError):
            call(**wrong)
    with pytest.raises(ValueError, match="each edge must"):
        ball_orders(tail, head, 2, 3, 4)


@pytest.mark.parametrize("backend", ["cpu"], indirect=True)
@few
@given(batches, st.integers(1, 12), st.data())
def test_walks_through_each_node(parts: list[Graph], steps: int, data: st.DataObject) -> None:
    """They sum to all powers, block by block; entries have both signs."""
    graph = incidence(parts)
    adjacency, num_blocks = entries_at_edges(graph, 1), -(-graph.num_nodes // BLOCK)
    blocks = torch.tensor(data.draw(st.permutations(range(num_blocks))), dtype=torch.int64)

    def run(with_edges: bool = True) -> tuple[Tensor, Tensor]:
        nodes, edges = (adjacency.new_zeros(count, steps) for count in (BLOCK * num_blocks, graph.num_edges))
        taken = add_walks_(nodes, edges if with_edges else None, adjacency[0], graph.tail, graph.head, blocks)
        assert taken.shape == blocks.shape and (taken > 0).all()
        return nodes[: graph.num_nodes], edges

    got = same_with_any_threads(run)
    check((got[0], got[1]), expected_polynomials(adjacency, graph, "power", steps), 1e-13)
    torch.testing.assert_close(run(with_edges=False)[0], got[0], rtol=1e-12, atol=1e-14)
