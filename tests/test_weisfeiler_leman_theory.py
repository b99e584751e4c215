"""Statements on transformers and colourings that hold, and those that do not: counterexample and mended form.

`Aligning Transformers with Weisfeiler-Leman <https://arxiv.org/abs/2406.03148>`_.
"""

from __future__ import annotations

from itertools import product

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import Graph, few, fewer, from_networkx, graphs, randomize_
from hypothesis import assume, given
from hypothesis import strategies as st
from torch_geometric.data import Data

from tg_lpe import GramTransformer, Incidence, wl
from tg_lpe.graph.tuples import component_tuples
from tg_lpe.models.tuple_transformer import TupleTransformer


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
@given(graphs(max_nodes=10, min_nodes=2), st.permutations(range(10)))
def test_orders_of_eigenvectors_and_degrees(graph: Graph, order: list[int]) -> None:
    """Lemmas 17 and 18: columns in any order; of the normalised Laplacian with rows times ``sqrt(d)`` (Theorem 20 of
    the paper leaves the factor out, and then only neighbours of the smallest degree are found).
    """
    adjacency, degree, normalized = matrices(graph)
    assume((degree > 0).all())
    columns = [i for i in order if i < len(adjacency)]
    for laplacian, rows in ((graph.laplacian(), 1.0), (normalized, np.sqrt(degree)[:, None])):
        values, vectors = np.linalg.eigh(laplacian)
        p = rows * (vectors * np.sqrt(values.clip(0)))[:, columns]
        for sign, expected in ((-1.0, adjacency > 0), (1.0, np.eye(len(p)) > 0)):
            scores = p @ (sign * p).T
            assert ((scores >= scores.max(1, keepdims=True) - 1e-9) == expected).all()


def test_without_degrees_the_normalised_laplacian_finds_neighbours_of_small_degree() -> None:
    adjacency, _, normalized = matrices(from_networkx(nx.lollipop_graph(4, 2)))
    found = -normalized >= (-normalized).max(1, keepdims=True) - 1e-9
    assert ((adjacency > 0) & ~found).any() and not (found & ~(adjacency > 0)).any()


@few
@given(st.integers(0, 1000), st.integers(2, 8), st.integers(1, 8))
def test_scores_move_no_more_than_encodings(seed: int, n: int, width: int) -> None:
    """Lemma 9 with its function: linear in the error."""
    rng = np.random.default_rng(seed)
    p, query, key = rng.normal(size=(n, width)), rng.normal(size=(width, width)), rng.normal(size=(width, width))
    norm = np.linalg.norm
    for size in (1e-6, 1e-2, 1.0):
        q = p + size * rng.normal(size=p.shape)
        moved = norm((p @ query) @ (p @ key).T - (q @ query) @ (q @ key).T)
        assert moved <= norm(query) * norm(key) * (norm(p) + norm(q)) * norm(p - q) * (1 + 1e-12)


@few
@given(graphs(max_nodes=10, min_nodes=2), st.floats(0, 0.05))
def test_softmax_of_a_perturbed_laplacian(graph: Graph, delta: float) -> None:
    """Scores within ``delta`` of ``-L``: a row is wrong by at most ``e^(2 b delta) - 1 + 2 n e^(2 b delta - b)``."""
    adjacency, degree, _ = matrices(graph)
    assume((degree > 0).all())
    n = len(adjacency)
    noise = delta * np.random.default_rng(0).uniform(-1, 1, (n, n))
    for b in (5.0, 20.0):
        error = np.abs(softmax(b * (noise - graph.laplacian())) - adjacency / degree[:, None]).sum(1)
        assert (error <= np.exp(2 * b * delta) - 1 + 2 * n * np.exp(2 * b * delta - b) + 1e-12).all()


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


@few
@given(graphs(max_nodes=10, min_nodes=2))
def test_other_nodes_are_found_by_a_factor_of_the_adjacency_matrix(graph: Graph) -> None:
    """Lemma 13 with gamma = -1, mended: ``P = D^1/2 U [sqrt(1 - lambda)_+, sqrt(1 - lambda)_-]`` and ``W_Q = diag(I,
    -I)`` give ``A`` and ``-A``; the softmax of ``-A`` finds all nodes without an edge, the node itself among them.
    """
    adjacency, degree, normalized = matrices(graph)
    assume((degree > 0).all() and (adjacency.sum(1) < len(adjacency)).all())
    values, vectors = np.linalg.eigh(normalized)
    rest = 1 - values
    p = np.sqrt(degree)[:, None] * np.hstack([vectors * np.sqrt(part.clip(0)) for part in (rest, -rest)])
    signs = np.repeat([1.0, -1.0], len(degree))
    assert np.abs((p * signs) @ p.T - adjacency).max() < 1e-12
    others = (1 - adjacency) / (len(degree) - degree)[:, None]
    assert np.abs(softmax(-60 * (p * signs) @ p.T) - others).max() < 1e-12
    assert np.abs(softmax(60 * (p * signs) @ p.T) - adjacency / degree[:, None]).max() < 1e-12


@fewer
@given(graphs(max_nodes=5, min_nodes=2), st.sampled_from([2, 3]))
def test_heads_find_neighbours_of_tuples(graph: Graph, k: int) -> None:
    """Lemma 13 with gamma = 1: with columns of their own for each position, ``d_k = k n``, the head ``j`` finds the
    tuples that have a neighbour of ``v_j`` in its place. With columns that the positions share it does not.
    """
    adjacency, degree, _ = matrices(graph)
    assume((degree > 0).all())
    n = len(adjacency)
    tuples = list(product(range(n), repeat=k))
    same, near, b = np.eye(n), -graph.laplacian(), 60.0
    for j in range(k):
        expected = np.zeros((len(tuples), len(tuples)))
        scores, shared = np.zeros_like(expected), np.zeros_like(expected)
        for (a, v), (c, u) in product(enumerate(tuples), repeat=2):
            rest = [i for i in range(k) if i != j]
            if all(v[i] == u[i] for i in rest):
                expected[a, c] = adjacency[v[j], u[j]] / degree[v[j]]
            scores[a, c] = b * (near[v[j], u[j]] + sum(same[v[i], u[i]] for i in rest))
            shared[a, c] = b * sum(near[v[i], u[i2]] for i in range(k) for i2 in range(k))
        assert np.abs(softmax(scores) - expected).max() < 1e-12
        assert np.abs(softmax(shared) - expected).max() > 0.1


@few
@given(graphs(max_nodes=10, min_nodes=2))
def test_a_transformer_refines_colours_as_1_wl(graph: Graph) -> None:
    """Theorem 2: attention by ``softmax(-b L)`` and degrees, on one-hot colours. Colours ``m^-i`` would underflow."""
    adjacency, degree, _ = matrices(graph)
    assume((degree > 0).all())
    n, data = len(adjacency), Data(edge_index=graph.both_ways()[0], num_nodes=len(adjacency))
    attention = degree[:, None] * softmax(-30 * graph.laplacian())
    color = np.zeros(n, dtype=int)
    for rounds in range(1, 4):
        rows = np.hstack([np.eye(n)[color], np.round(attention @ np.eye(n)[color], 6)])
        color = np.unique(rows, axis=0, return_inverse=True)[1].ravel()
        expected = wl.colors(data, "1-WL", rounds=rounds).color
        assert ((color[:, None] == color) == (expected[:, None] == expected)).all()
    assert 20.0**-250 == 20.0**-260 == 0.0


def test_few_eigenvectors_do_not_identify_nodes() -> None:
    """Theorem 7 needs ``l = n``: with 8 of 24 eigenvectors some node is more like another than like itself, and other
    nodes than neighbours are found.
    """
    for seed in range(10):
        graph = from_networkx(nx.gnp_random_graph(24, 0.2, seed=seed))
        values, vectors = np.linalg.eigh(graph.laplacian())
        kept = vectors[:, :8]
        found = kept @ kept.T
        assert (found.argmax(1) != np.arange(24)).any()
        near = -(kept * values[:8]) @ kept.T
        assert ((near >= near.max(1, keepdims=True) - 1e-9) != (graph.laplacian() < 0)).any()


@pytest.mark.parametrize(
    ("graph", "is_possible"),
    [
        (nx.path_graph(3), True),
        (nx.star_graph(4), True),
        (nx.path_graph(4), False),
        (nx.cycle_graph(6), False),
        (nx.complete_graph(4), False),
    ],
)
def test_when_equivariant_encodings_identify_neighbours(graph: nx.Graph, is_possible: bool) -> None:
    """Theorem 8, mended: scores depend on the classes of equal rows, so neighbours are found if and only if an edge
    depends on the classes of its ends alone.
    """
    data = from_networkx(graph)
    encoding = GramTransformer(None, 0, 1, 8).double()(None, data.both_ways()[0], num_nodes=data.num_nodes).node
    row = np.unique(encoding.detach().numpy().round(9), axis=0, return_inverse=True)[1].ravel()
    adjacency = nx.to_numpy_array(graph, nodelist=range(data.num_nodes))
    by_classes = {
        (a, b): {adjacency[u, v] for u in np.flatnonzero(row == a) for v in np.flatnonzero(row == b)}
        for a, b in product(set(row), repeat=2)
    }
    assert all(len(found) == 1 for found in by_classes.values()) == is_possible


def rook_and_shrikhande() -> list[Data]:
    torus = list(product(range(4), repeat=2))
    steps = ((0, 1), (1, 0), (1, 1))
    shrikhande = nx.Graph(((a, b), ((a + x) % 4, (b + y) % 4)) for a, b in torus for x, y in steps)
    pair = nx.line_graph(nx.complete_bipartite_graph(4, 4)), shrikhande
    return [Data(edge_index=from_networkx(graph).both_ways()[0], num_nodes=16) for graph in pair]


def test_a_pure_transformer_is_a_function_of_the_set_of_its_tokens() -> None:
    """Theorem 6 fails with equivariant encodings: all nodes and edges of these graphs have the same, so their tokens
    of three nodes are the same sets. The (3,1)-LWL tells them apart, which 3-WL does not, and so do masked heads.
    """
    one, other = rook_and_shrikhande()
    assert not wl.distinguishes(one, other, "2-FWL") and wl.distinguishes(one, other, "(3,1)-LWL")
    for attention, is_apart in (("full", False), ("local", True)):
        encoder = GramTransformer(4, 4, 2, 8, pair_out_channels=4)
        model = TupleTransformer(encoder=encoder, k=3, hidden_channels=6, heads=3, num_layers=2, attention=attention)
        model = randomize_(model).double().eval()
        with torch.no_grad():
            first, second = (float(model(None, data.edge_index, num_nodes=16)) for data in (one, other))
        assert abs(first - second) > 1e-3 if is_apart else abs(first - second) < 1e-12


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
