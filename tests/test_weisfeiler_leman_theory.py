"""Statements on transformers and colourings that hold, and those that do not: counterexample and mended form.

`Aligning Transformers with Weisfeiler-Leman <https://arxiv.org/abs/2406.03148>`_.
"""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import Graph, few, from_networkx, graphs
from hypothesis import assume, given

from tg_lpe import Incidence
from tg_lpe.graph.tuples import component_tuples


def matrices(graph: Graph) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Adjacency, degrees and normalised Laplacian."""
    laplacian = graph.laplacian()
    degree = np.diag(laplacian)
    return np.diag(degree) - laplacian, degree, graph.normalized_laplacian()


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


@few
@given(graphs(max_nodes=10, min_nodes=2))
def test_eigenvectors_identify_neighbours_and_nodes(graph: Graph) -> None:
    """Lemmas 14 and 15: with ``P = V sqrt(lambda)`` and ``W_Q = sqrt(d_k) I``, ``W_K = -I`` or ``I``."""
    adjacency, degree, _ = matrices(graph)
    assume((degree > 0).all())
    values, vectors = np.linalg.eigh(graph.laplacian())
    p = vectors * np.sqrt(values.clip(0))
    for sign, expected in ((-1.0, adjacency > 0), (1.0, np.eye(len(p)) > 0)):
        scores = np.sqrt(len(p)) * p @ (sign * p).T / np.sqrt(len(p))
        assert ((scores >= scores.max(1, keepdims=True) - 1e-9) == expected).all()


@few
@given(graphs(max_nodes=10, min_nodes=2))
def test_softmax_approaches_the_random_walk_matrix(graph: Graph) -> None:
    """Lemma 12, with its bound."""
    adjacency, degree, _ = matrices(graph)
    assume((degree > 0).all())
    n = len(adjacency)
    for b in (1.0, 5.0, 30.0):
        error = np.linalg.norm(softmax(-b * graph.laplacian()) - adjacency / degree[:, None])
        assert error <= 2 * n**1.5 * np.exp(-b) + 1e-12


def test_other_nodes_are_not_found_by_the_laplacian() -> None:
    """Lemma 13 with gamma = -1 fails: the softmax finds the node itself. The nodes without an edge to it are all nodes
    without the neighbours, each of which a head finds.
    """
    graph = from_networkx(nx.petersen_graph())
    adjacency, degree, _ = matrices(graph)
    others = (1 - adjacency) / (10 - degree)[:, None]
    found = softmax(60 * graph.laplacian())
    assert np.abs(found - np.eye(10)).max() < 1e-12 and np.abs(found - others).max() > 0.5
    everywhere, adjacent = softmax(np.zeros((10, 10))), softmax(-60 * graph.laplacian())
    mended = (10 * everywhere - degree[:, None] * adjacent) / (10 - degree)[:, None]
    assert np.abs(mended - others).max() < 1e-12


@pytest.mark.parametrize("graph", [nx.path_graph(4), nx.cycle_graph(6), nx.complete_graph(4), nx.petersen_graph()])
def test_equivariant_encodings_do_not_identify_nodes(graph: nx.Graph) -> None:
    """Theorem 8 fails: what a filter ``f(L)`` and sums over anchors give is the same for all nodes of an orbit."""
    _, _, laplacian = matrices(from_networkx(graph))
    values, vectors = np.linalg.eigh(laplacian)
    adjacency = nx.to_numpy_array(graph)
    q = np.stack([(vectors * f) @ vectors.T for f in (np.exp(-values), values**2, np.sin(3 * values))], -1)
    encoding = np.tanh(q + np.einsum("vw,uwc->uvc", adjacency, q)).sum(0)
    mapping = nx.algorithms.isomorphism.GraphMatcher(graph, graph).isomorphisms_iter()
    moved = [(u, v) for labels in mapping for u, v in labels.items() if u != v]
    assert moved and max(np.abs(encoding[u] - encoding[v]).max() for u, v in moved) < 1e-12


def test_neighbourhoods_among_connected_tuples_are_smaller_than_degrees() -> None:
    """The normaliser of Theorem 6 fails: ``d(v_j)`` does not count the neighbours that are tuples, some have none."""
    graph = nx.gnp_random_graph(8, 0.35, seed=1)
    data = from_networkx(graph)
    tuples = component_tuples(Incidence(data.edge_index(), 8), 3, 1).T.tolist()
    known = {tuple(nodes) for nodes in tuples}
    sizes, degrees = [], []
    for nodes in known:
        for j in range(3):
            inside = [w for w in graph[nodes[j]] if (*nodes[:j], w, *nodes[j + 1 :]) in known]
            sizes.append(len(inside))
            degrees.append(graph.degree[nodes[j]])
    size, degree = torch.tensor(sizes), torch.tensor(degrees)
    assert bool((size <= degree).all()) and bool((size < degree).any()) and bool((size == 0).any())
