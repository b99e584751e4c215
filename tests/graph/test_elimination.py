"""Resistances by elimination against exact fractions, dense algebra, and closed forms."""

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
from tg_lpe.graph import resistance
from tg_lpe.graph.elimination import Elimination
from tg_lpe.graph.resistance import effective_resistances, resistance_pairs


def of(graph: nx.Graph, weights: np.ndarray | None = None) -> Elimination:
    tail, head = np.array(graph.edges, dtype=np.int64).reshape(-1, 2).T
    return Elimination(graph.number_of_nodes(), tail, head, np.ones(len(tail)) if weights is None else weights)


def spread(graph: nx.Graph, orders: float, seed: int = 0) -> np.ndarray:
    """Weights over some powers of ten."""
    return 10.0 ** np.random.default_rng(seed).uniform(-orders / 2, orders / 2, graph.number_of_edges())


def exact(found: Elimination) -> list[list[Fraction]]:
    """Resistances of all pairs, in fractions: Gauss-Jordan elimination inverts ``L`` without the last node."""
    n = found.num_nodes - 1
    rows = [[Fraction(int(i == j - n)) for j in range(2 * n)] for i in range(n)]
    for u, v, w in zip(found.tail.tolist(), found.head.tolist(), found.weights.tolist(), strict=True):
        for i, j, sign in ((u, u, 1), (v, v, 1), (u, v, -1), (v, u, -1)):
            if i < n and j < n:
                rows[i][j] += sign * Fraction(w)
    for i in range(n):
        rows[i] = [value / rows[i][i] for value in rows[i]]
        for k in range(n):
            if k != i and rows[k][i]:
                rows[k] = [a - rows[k][i] * b for a, b in zip(rows[k], rows[i], strict=True)]
    inverse = [[*row[n:], Fraction(0)] for row in rows] + [[Fraction(0)] * (n + 1)]
    return [[inverse[i][i] + inverse[j][j] - 2 * inverse[i][j] for j in range(n + 1)] for i in range(n + 1)]


def by_dense_algebra(graph: nx.Graph, weights: np.ndarray) -> np.ndarray:
    laplacian = np.zeros((len(graph), len(graph)))
    for (u, v), w in zip(graph.edges, weights, strict=True):
        laplacian[[u, v], [u, v]] += w
        laplacian[[u, v], [v, u]] -= w
    inverse = np.linalg.pinv(laplacian, hermitian=True)
    return inverse.diagonal()[:, None] + inverse.diagonal() - 2 * inverse


def check(found: Elimination, expected: np.ndarray, rtol: float) -> None:
    means, edges = found.resistances()
    np.testing.assert_allclose(edges, expected[found.tail, found.head], rtol=rtol)
    np.testing.assert_allclose(means, expected.mean(1), rtol=rtol, atol=1e-300)
    pairs = found.all_resistances()
    np.testing.assert_allclose(pairs, expected, rtol=rtol, atol=1e-300)
    assert not pairs.diagonal().any() and np.array_equal(pairs, pairs.T)


@pytest.mark.parametrize("orders", [0, 10, 60])
@pytest.mark.parametrize(
    "graph",
    [
        nx.path_graph(9),
        nx.star_graph(8),
        nx.cycle_graph(8),
        nx.wheel_graph(9),
        nx.complete_graph(7),
        nx.connected_caveman_graph(3, 4),
        nx.convert_node_labels_to_integers(nx.grid_2d_graph(3, 4)),
        nx.random_regular_graph(3, 12, seed=0),
    ],
    ids=lambda graph: f"{len(graph)}-{graph.number_of_edges()}",
)
def test_to_rounding_whatever_the_weights(graph: nx.Graph, orders: float) -> None:
    for seed in range(3):
        found = of(graph, spread(graph, orders, seed))
        check(found, np.array([[float(value) for value in row] for row in exact(found)]), rtol=1e-14)


@few
@given(st.integers(1, 40), st.floats(0, 1), st.integers(0, 2**16), st.sampled_from([0.0, 4.0]))
def test_random_connected_graphs(n: int, density: float, seed: int, orders: float) -> None:
    graph = nx.gnp_random_graph(n, density, seed=seed)
    graph.add_edges_from(nx.random_labeled_tree(n, seed=seed).edges)
    graph = nx.relabel_nodes(graph, dict(enumerate(np.random.default_rng(seed).permutation(n).tolist())))
    weights = spread(graph, orders, seed)
    check(of(graph, weights), by_dense_algebra(graph, weights), rtol=1e-8)


@pytest.mark.parametrize("n", [1, 2, 60])
def test_complete_graphs(n: int) -> None:
    found = of(nx.complete_graph(n))
    assert len(found.fronts) == 1
    check(found, 2 / n * (1 - np.eye(n)), rtol=1e-13)


def test_a_front_of_several_blocks_with_a_border() -> None:
    """Two cliques that share three nodes, which are not joined to each other."""
    size = 60
    first, second = range(size), range(size - 3, 2 * size - 3)
    shared = set(first) & set(second)
    graph = nx.Graph(pair for part in (first, second) for pair in combinations(part, 2) if not shared.issuperset(pair))
    graph = nx.convert_node_labels_to_integers(graph, ordering="sorted")
    found = of(graph, spread(graph, 2))
    check(found, by_dense_algebra(graph, found.weights), rtol=1e-11)


@pytest.mark.parametrize("weight", [1e-303, 1e-150, 1e150, 1e303])
def test_weights_near_the_ends_of_the_range(weight: float) -> None:
    n = 1200
    means, edges = of(nx.cycle_graph(n), np.full(n, weight)).resistances()
    np.testing.assert_allclose(edges * weight, (n - 1) / n, rtol=1e-13)
    np.testing.assert_allclose(means * weight, (n * n - 1) / (6 * n), rtol=1e-12)


def test_large_graphs() -> None:
    """Foster: the resistances of the edges times their weights add up to n - 1; a path's means are known."""
    graphs = [
        nx.barabasi_albert_graph(3000, 2, seed=0),
        nx.convert_node_labels_to_integers(nx.grid_2d_graph(50, 50)),
        nx.wheel_graph(2000),
    ]
    for graph in graphs:
        weights = spread(graph, 12)
        found = of(graph, weights)
        assert found.resistances()[1] @ weights == pytest.approx(len(graph) - 1, rel=1e-13)
    n = 3000
    i = np.arange(n)
    means, edges = of(nx.path_graph(n)).resistances()
    np.testing.assert_allclose(edges, 1, rtol=1e-13)
    np.testing.assert_allclose(means, (i * (i + 1) + (n - 1 - i) * (n - i)) / (2 * n), rtol=1e-12)


def test_pairs_that_no_edge_joins() -> None:
    graph = nx.convert_node_labels_to_integers(nx.grid_2d_graph(3, 4))
    expected = by_dense_algebra(graph, np.ones(graph.number_of_edges()))
    pairs = np.array(list(combinations(range(12), 2))).T
    weights = np.array([float(graph.has_edge(*pair)) for pair in pairs.T.tolist()])
    np.testing.assert_allclose(Elimination(12, *pairs, weights).resistances()[1], expected[tuple(pairs)], rtol=1e-13)


def test_weights_that_differ_a_lot_are_eliminated_whatever_the_method() -> None:
    graph = nx.connected_caveman_graph(5, 4)
    weights = spread(graph, 40, seed=2)
    incidence = tg_lpe.Graph(torch.tensor(list(graph.edges)).T, 20, edge_weight=torch.from_numpy(weights))
    expected = exact(of(graph, weights))
    edges = torch.tensor(
        [expected[u][v] for u, v in zip(incidence.tail.tolist(), incidence.head.tolist(), strict=True)],
        dtype=torch.float64,
    )
    pairs = torch.tensor(expected, dtype=torch.float64).flatten()
    for method in ("auto", "dense", "iterative"):
        torch.testing.assert_close(effective_resistances(incidence, method=method)[1], edges, rtol=1e-13, atol=0)
        torch.testing.assert_close(resistance_pairs(incidence, method=method)[1], pairs, rtol=1e-13, atol=0)


def test_components_of_different_scales() -> None:
    ring = nx.cycle_graph(6)
    graph = nx.disjoint_union_all([ring] * 5)
    tail, head = torch.tensor(list(graph.edges)).T
    weights = torch.ones(30, dtype=torch.float64)
    weights[tail // 6 == 1] = 1e-12
    weights[tail // 6 == 3] = 1e12
    expected = torch.full((30,), 5 / 6, dtype=torch.float64) / weights
    batch = torch.arange(30) // 6

    def check_edges() -> None:
        incidence = tg_lpe.Graph(torch.stack([tail, head]), 30, edge_weight=weights, batch=batch)
        order = torch.argsort(tail * 30 + head)
        torch.testing.assert_close(effective_resistances(incidence)[1], expected[order], rtol=1e-13, atol=0)
        pairs, values = resistance_pairs(incidence)
        table = torch.zeros(30, 30, dtype=torch.float64)
        table[pairs[0], pairs[1]] = values
        torch.testing.assert_close(table[tail, head], expected, rtol=1e-13, atol=0)

    check_edges()
    mine = (tail // 6 == 2).nonzero().flatten()
    weights[mine[0]] = 1e-17
    expected[mine] = 1.0
    expected[mine[0]] = 5.0
    check_edges()


def test_cholesky_serves_weights_that_are_alike() -> None:
    """To ten digits, as said; a path's resistances are known."""
    n = resistance.RESISTANCE_NODES
    weights = np.where(np.arange(n - 1) % 7 == 0, resistance.SIMILAR, 1.0)
    graph = tg_lpe.Graph(
        torch.stack([torch.arange(n - 1), torch.arange(1, n)]), n, edge_weight=torch.from_numpy(weights)
    )
    nodes, edges = effective_resistances(graph, method="dense")
    place = np.concatenate([[0], np.cumsum(1 / weights)])
    np.testing.assert_allclose(edges, 1 / weights, rtol=1e-10)
    np.testing.assert_allclose(nodes, np.abs(place[:, None] - place).mean(1), rtol=1e-10)
