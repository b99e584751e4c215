"""Random graphs of the synthetic experiments: counts, degrees, resistances, and reproducibility from a seed."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import refusals, relative_error
from torch import Tensor

from tg_lpe.data import random_incidences
from tg_lpe.data.synthetic import csl_edges, random_regular_edges

EDGES = {"complete": 45, "csl": 20}
kinds = pytest.mark.parametrize("kind", sorted(EDGES))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def networkx_of(edge_index: Tensor, weight: Tensor, num_nodes: int) -> nx.Graph:
    graph = nx.Graph()
    graph.add_nodes_from(range(num_nodes))
    graph.add_weighted_edges_from((u, v, w) for (u, v), w in zip(edge_index.T.tolist(), weight.tolist(), strict=True))
    return graph


@kinds
def test_a_seed_decides_the_graph(kind: str) -> None:
    state = torch.get_rng_state()
    one, two = (random_incidences(kind, 4, generator(3)) for _ in range(2))
    assert torch.equal(one, two) and not torch.equal(one, random_incidences(kind, 4, generator(4)))
    assert torch.equal(torch.get_rng_state(), state), "the global generator was used"


@kinds
def test_incidence_matrices(kind: str) -> None:
    b = random_incidences(kind, 20, generator())
    assert b.shape == (20, 10, EDGES[kind]) and b.dtype == torch.float64
    assert ((b != 0).sum(1) == 2).all() and b.sum(1).abs().max() == 0
    for own in b:
        tail, head = own.argmin(0), own.argmax(0)
        graph = networkx_of(torch.stack([tail, head]), own.amax(0).square(), 10)
        assert graph.number_of_edges() == EDGES[kind]
        assert set(dict(graph.degree).values()) == {9 if kind == "complete" else 4}
        expected = nx.laplacian_matrix(graph, nodelist=range(10)).toarray()
        assert relative_error(own @ own.mT, expected) < 1e-14
    logs = b.amax(1).square().log()
    assert logs.abs().max() <= 2 and logs.unique().numel() == logs.numel()


@pytest.mark.parametrize(("n", "skip"), [(10, 2), (10, 8), (41, 9), (7, 3)])
def test_csl_edges(n: int, skip: int) -> None:
    edges = csl_edges(n, skip)
    graph = nx.Graph(edges.T.tolist())
    assert edges.shape == (2, 2 * n) and nx.utils.graphs_equal(graph, nx.circulant_graph(n, [1, skip]))


def test_random_regular_graphs_are_expanders() -> None:
    n, degree = 400, 6
    edges = random_regular_edges(n, degree, generator())
    assert edges.shape == (2, n * degree // 2) and torch.equal(edges, random_regular_edges(n, degree, generator()))
    assert torch.bincount(edges.flatten()).unique().tolist() == [degree]
    graph = nx.Graph(edges.T.tolist())
    assert n * degree // 2 - graph.number_of_edges() < 20 and nx.is_connected(graph)
    second = np.linalg.eigvalsh(nx.laplacian_matrix(graph).toarray())[1]
    assert second > 0.8 * (degree - 2 * math.sqrt(degree - 1)), "near the best there is, Alon and Boppana"


SKIPS = ((10, 1), (10, 9), (10, 5), (10, 10), (10, 0), (10, 15), (4, 2), (10, 11), (0, 2))
test_refusals = refusals(
    lambda make, *arguments: make(*arguments, generator()),
    *(
        (
            (lambda *pair: csl_edges(*pair[:2]), n, skip),
            f"skip={skip} on a circle of {n} nodes are not {2 * n} different",
        )
        for n, skip in SKIPS
    ),
    *(
        ((random_regular_edges, n, degree), f"at least 3, got {degree} and {n}")
        for n, degree in ((10, 3), (10, 0), (2, 2), (10, -2))
    ),
    ((random_incidences, "cycle", 2), "kind must"),
    ((lambda _: random_incidences("csl", 2, generator(), skips=()),), "skips"),
    ((lambda _: random_incidences("csl", 2, generator(), num_nodes=-3),), "num_nodes"),
    ((lambda _: random_incidences("complete", 2, 0),), TypeError, "generator must"),
)
