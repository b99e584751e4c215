"""Effective resistances, dense and sparse, against exact fractions, dense algebra, and closed forms."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import few
from hypothesis import given
from hypothesis import strategies as st

import tg_lpe
from tg_lpe.graph.flow import resistive_embedding
from tg_lpe.graph.resistance import effective_resistances, resistance_pairs

METHODS = ("dense", "iterative")


def of(graph: nx.Graph, weights: np.ndarray | None = None) -> tg_lpe.Graph:
    graph = nx.convert_node_labels_to_integers(graph)
    index = torch.tensor(list(graph.edges), dtype=torch.int64).reshape(-1, 2).T
    weight = None if weights is None else torch.from_numpy(weights)
    return tg_lpe.Graph(index, len(graph), edge_weight=weight)


def spread(graph: nx.Graph, orders: float, seed: int = 0) -> np.ndarray:
    """Weights over some powers of ten."""
    return 10.0 ** np.random.default_rng(seed).uniform(-orders / 2, orders / 2, graph.number_of_edges())


def weights_of(graph: tg_lpe.Graph) -> np.ndarray:
    return graph.root_conductance(torch.empty(0, dtype=torch.float64)).square().numpy()


def exact(graph: tg_lpe.Graph) -> np.ndarray:
    """Resistances of all pairs, in fractions: Gauss-Jordan elimination inverts ``L`` without the last node."""
    n = graph.num_nodes - 1
    rows = [[Fraction(int(i == j - n)) for j in range(2 * n)] for i in range(n)]
    for u, v, w in zip(graph.tail.tolist(), graph.head.tolist(), weights_of(graph).tolist(), strict=True):
        for i, j, sign in ((u, u, 1), (v, v, 1), (u, v, -1), (v, u, -1)):
            if i < n and j < n:
                rows[i][j] += sign * Fraction(w)
    for i in range(n):
        rows[i] = [value / rows[i][i] for value in rows[i]]
        for k in range(n):
            if k != i and rows[k][i]:
                rows[k] = [a - rows[k][i] * b for a, b in zip(rows[k], rows[i], strict=True)]
    inverse = [[*row[n:], Fraction(0)] for row in rows] + [[Fraction(0)] * (n + 1)]
    size = range(n + 1)
    return np.array([[float(inverse[i][i] + inverse[j][j] - 2 * inverse[i][j]) for j in size] for i in size])


def by_dense_algebra(graph: tg_lpe.Graph) -> np.ndarray:
    laplacian = (incidence := graph.dense(torch.float64).numpy()) @ incidence.T
    inverse = np.linalg.inv(laplacian + (laplacian.max() or 1.0))  # of a connected graph: the constant drops out
    return inverse.diagonal()[:, None] + inverse.diagonal() - 2 * inverse


def check(graph: tg_lpe.Graph, expected: np.ndarray, rtol: float, methods: tuple[str, ...] = METHODS) -> None:
    for method in methods:
        means, edges = effective_resistances(graph, method=method)
        np.testing.assert_allclose(edges, expected[graph.tail, graph.head], rtol=rtol)
        np.testing.assert_allclose(means, expected.mean(1), rtol=rtol, atol=1e-300)
        pairs = resistance_pairs(graph, method=method)[1].view(graph.num_nodes, -1)
        np.testing.assert_allclose(pairs, expected, rtol=rtol, atol=1e-300)
        assert not pairs.diagonal().any() and torch.equal(pairs, pairs.T)


def try_check(graph: tg_lpe.Graph, expected: np.ndarray) -> bool:
    """Whether resistances are given; then they are as accurate as documented."""
    try:
        check(graph, expected, rtol=1e-5)
    except ValueError as error:
        assert "edge_weight" in str(error)
        return False
    return True


@pytest.mark.parametrize("orders", [0, 4, 8, 20, 40])
@pytest.mark.parametrize(
    "graph",
    [
        nx.path_graph(9),
        nx.star_graph(8),
        nx.wheel_graph(9),
        nx.complete_graph(7),
        nx.connected_caveman_graph(3, 4),
        nx.grid_2d_graph(3, 4),
        nx.random_regular_graph(3, 12, seed=0),
    ],
    ids=lambda graph: f"{len(graph)}-{graph.number_of_edges()}",
)
def test_the_accuracy_that_is_documented(graph: nx.Graph, orders: float) -> None:
    for seed in range(3):
        weighted = of(graph, spread(graph, orders, seed))
        assert try_check(weighted, exact(weighted)) or orders > 8


@few
@given(st.integers(1, 40), st.floats(0, 1), st.integers(0, 2**16), st.sampled_from([0.0, 4.0]))
def test_random_connected_graphs(n: int, density: float, seed: int, orders: float) -> None:
    graph = nx.gnp_random_graph(n, density, seed=seed)
    graph.add_edges_from(nx.random_labeled_tree(n, seed=seed).edges)
    graph = nx.relabel_nodes(graph, dict(enumerate(np.random.default_rng(seed).permutation(n).tolist())))
    weighted = of(graph, spread(graph, orders, seed))
    check(weighted, by_dense_algebra(weighted), rtol=1e-8)


@pytest.mark.parametrize(
    "graph",
    [nx.grid_2d_graph(24, 24), nx.barabasi_albert_graph(600, 2, seed=0), nx.gnm_random_graph(500, 3000, seed=0)],
    ids=["grid", "hubs", "random"],
)
def test_fronts_of_several_columns(graph: nx.Graph) -> None:
    weighted = of(graph, spread(graph, 2))
    check(weighted, by_dense_algebra(weighted), rtol=1e-9)


def test_entries_of_the_factor_that_are_too_small_for_a_float() -> None:
    """Foster: the resistances of the edges times their weights add up to n - 1."""
    graph = of(nx.wheel_graph(6000))
    assert effective_resistances(graph, method="iterative")[1].sum() == pytest.approx(5999, rel=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_closed_forms(method: str) -> None:
    n = 1500
    i = np.arange(n)
    means, edges = effective_resistances(of(nx.path_graph(n)), method=method)
    np.testing.assert_allclose(edges, 1, rtol=1e-11)
    np.testing.assert_allclose(means, (i * (i + 1) + (n - 1 - i) * (n - i)) / (2 * n), rtol=1e-11)
    for weight in (1e-250, 1e250):
        means, edges = effective_resistances(of(nx.cycle_graph(n), np.full(n, weight)), method=method)
        np.testing.assert_allclose(edges * weight, (n - 1) / n, rtol=1e-11)
        np.testing.assert_allclose(means * weight, (n * n - 1) / (6 * n), rtol=1e-11)


@pytest.mark.parametrize("method", METHODS)
def test_pairs_that_no_edge_joins(method: str) -> None:
    """Edges of weight zero within a component have its resistances, those between two infinite ones."""
    grid = nx.convert_node_labels_to_integers(nx.grid_2d_graph(3, 4))
    expected = by_dense_algebra(of(grid))
    pairs = torch.tensor([*combinations(range(12), 2), (0, 12)]).T
    weight = torch.tensor([float(grid.has_edge(*pair)) for pair in pairs.T.tolist()])
    graph = tg_lpe.Graph(pairs, 13, edge_weight=weight)
    edges = effective_resistances(graph, method=method)[1]
    inside = graph.head < 12
    np.testing.assert_allclose(edges[inside], expected[graph.tail[inside], graph.head[inside]], rtol=1e-13)
    assert edges[~inside].isinf().all()


@pytest.mark.parametrize(
    ("n", "orders", "accurate"), [(300, 6, True), (60, 10, False), (3000, 10, False), (90, 40, False)]
)
def test_a_path_is_right_or_refused(n: int, orders: float, accurate: bool) -> None:
    graph = nx.path_graph(n)
    weights = spread(graph, orders)
    place = np.concatenate([[0], np.cumsum(1 / weights)])
    assert try_check(of(graph, weights), np.abs(place[:, None] - place)) == accurate


def test_weights_that_differ_too_much_are_refused() -> None:
    """Within a component; components may differ."""
    weight = torch.tensor([1.0, 1.0, 1e-10, 1e11], dtype=torch.float64)
    apart = tg_lpe.Graph(torch.tensor([[0, 1, 3, 5], [1, 2, 4, 6]]), 7, edge_weight=weight)
    joined = tg_lpe.Graph(torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]]), 5, edge_weight=weight)
    for function in (effective_resistances, resistance_pairs, lambda g: resistive_embedding(g, torch.ones(4, 1))):
        function(apart)
        with pytest.raises(ValueError, match="edge_weight"):
            function(joined)


def test_distances_of_the_embedding_are_resistances() -> None:
    graph = of(nx.disjoint_union(nx.connected_caveman_graph(5, 4), nx.path_graph(3)))
    rows = resistive_embedding(graph, torch.eye(graph.num_edges))
    means, edges = effective_resistances(graph)
    torch.testing.assert_close((rows[graph.tail] - rows[graph.head]).square().sum(1), edges)
    assert rows[:20].mean(0).abs().max() < 1e-14
    square = rows.square().sum(1)
    torch.testing.assert_close(square[:20] + square[:20].mean(), means[:20])
