"""Statements on transformers and colourings that hold, and those that do not: counterexample and mended form.

`Aligning Transformers with Weisfeiler-Leman <https://arxiv.org/abs/2406.03148>`_.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import product
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import Graph, batch_of, data_of, few, fewer, from_networkx, graphs, randomize_, rook_and_shrikhande
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import block_diag
from scipy.special import softmax
from torch_geometric.data import Data

import tg_lpe
from tg_lpe import Encoder, GramTransformer
from tg_lpe.encoders import SPE
from tg_lpe.graph.tuples import component_tuples
from tg_lpe.models.tuple_transformer import TupleTransformer
from tg_lpe.theory import wl


def matrices(graph: Graph) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Adjacency, degrees and normalised Laplacian."""
    laplacian = graph.laplacian()
    degree = np.diag(laplacian)
    return np.diag(degree) - laplacian, degree, graph.normalized_laplacian()


def has_no_lone_node(graph: Graph) -> bool:
    return bool((np.diag(graph.laplacian()) > 0).all())


without_lone_nodes = graphs(max_nodes=10, min_nodes=2).filter(has_no_lone_node)


def largest(scores: np.ndarray) -> np.ndarray:
    """Where each row has its maximum: the sets of Definitions 1 and 3."""
    return scores >= scores.max(1, keepdims=True) - 1e-12


def advantage(scores: np.ndarray, expected: np.ndarray) -> float:
    """By how much expected entries exceed all others of their row, at least; below zero if they do not."""
    others = np.where(expected, -np.inf, scores).max(1)
    return float((np.where(expected, scores, np.inf).min(1) - others).min())


def connected_graphs() -> list[nx.Graph]:
    """All connected graphs of 2 to 7 nodes."""
    return [graph for graph in nx.graph_atlas_g() if len(graph) > 1 and nx.is_connected(graph)]


@few
@given(without_lone_nodes, st.permutations(range(10)))
def test_eigenvectors_identify_neighbours_and_nodes(graph: Graph, order: list[int]) -> None:
    """Lemmas 14, 15, 17 and 18: ``P = V sqrt(lambda)``, ``W_Q = sqrt(d_k) I``, ``W_K = -I`` or ``I``; with columns in
    any order, and for the normalised Laplacian with rows times ``sqrt(d)``.
    """
    adjacency, degree, normalized = matrices(graph)
    columns = [i for i in order if i < len(adjacency)]
    for laplacian, rows in ((graph.laplacian(), 1.0), (normalized, np.sqrt(degree)[:, None])):
        values, vectors = np.linalg.eigh(laplacian)
        p = rows * (vectors * np.sqrt(values.clip(0)))[:, columns]
        for sign, expected in ((-1.0, adjacency > 0), (1.0, np.eye(len(p)) > 0)):
            scores = np.sqrt(len(p)) * p @ (sign * p).T / np.sqrt(len(p))
            assert (largest(scores) == expected).all()


def test_without_degrees_the_normalised_laplacian_finds_neighbours_of_small_degree() -> None:
    adjacency, _, normalized = matrices(from_networkx(nx.lollipop_graph(4, 2)))
    found = largest(-normalized)
    assert advantage(-normalized, adjacency > 0) > 0.1  # neighbours are ahead, but not level with each other
    assert ((adjacency > 0) & ~found).any() and not (found & ~(adjacency > 0)).any()


@few
@given(st.integers(0, 1000), st.integers(2, 8), st.integers(1, 8))
def test_scores_move_in_proportion_to_encodings(seed: int, n: int, width: int) -> None:
    """Lemma 9 with its function: linear in the error."""
    rng = np.random.default_rng(seed)
    p, query, key = rng.normal(size=(n, width)), rng.normal(size=(width, width)), rng.normal(size=(width, width))
    norm = np.linalg.norm
    for size in (1e-6, 1e-2, 1.0):
        q = p + size * rng.normal(size=p.shape)
        moved = norm((p @ query) @ (p @ key).T - (q @ query) @ (q @ key).T)
        assert moved <= norm(query) * norm(key) * (norm(p) + norm(q)) * norm(p - q) * (1 + 1e-12)


@few
@given(without_lone_nodes, st.sampled_from([0.0, 0.01, 0.05]))
def test_softmax_approaches_the_random_walk_matrix(graph: Graph, delta: float) -> None:
    """Lemma 12, row by row, for scores within ``delta`` of ``-L``: a row is wrong by at most
    ``e^(2 b delta) - 1 + 2 n e^(2 b delta - b)``.
    """
    adjacency, degree, _ = matrices(graph)
    n = len(adjacency)
    noise = delta * np.random.default_rng(0).uniform(-1, 1, (n, n))
    for b in (1.0, 5.0, 30.0):
        error = np.abs(softmax(b * (noise - graph.laplacian()), 1) - adjacency / degree[:, None]).sum(1)
        assert (error <= np.exp(2 * b * delta) - 1 + 2 * n * np.exp(2 * b * delta - b) + 1e-12).all()


def test_other_nodes_are_not_found_by_the_laplacian() -> None:
    """Lemma 13 with gamma = -1 fails: the softmax finds the node itself, which is right only for nodes that are linked
    to all others. The nodes without an edge to it are all nodes without the neighbours, each of which a head finds.
    """
    wrong, all_graphs = [], connected_graphs()
    for graph in all_graphs:
        adjacency = nx.to_numpy_array(graph, nodelist=range(len(graph)))
        n, degree = len(graph), adjacency.sum(1)
        laplacian = np.diag(degree) - adjacency
        others = (1 - adjacency) / (n - degree)[:, None]
        found = softmax(60 * laplacian, 1)
        assert np.abs(found - np.eye(n)).max() < 1e-12
        wrong.append(np.linalg.norm(found - others, axis=1) > 0.5)
        assert (wrong[-1] == (degree < n - 1)).all() and np.abs(found - others)[~wrong[-1]].max(initial=0.0) < 1e-12
        everywhere, adjacent = softmax(np.zeros((n, n)), 1), softmax(-60 * laplacian, 1)
        mended = (n * everywhere - degree[:, None] * adjacent) / (n - degree)[:, None]
        assert np.abs(mended - others).max() < 1e-12
    assert (len(all_graphs), sum(rows.any() for rows in wrong)) == (995, 989)
    assert (sum(rows.size for rows in wrong), sum(rows.sum() for rows in wrong)) == (6780, 6485)


def factor(adjacency: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``P = D^1/2 U [sqrt(1 - lambda)_+, sqrt(1 - lambda)_-]``, and the signs with which ``P diag(signs) P^T = A``."""
    degree = adjacency.sum(1)
    values, vectors = np.linalg.eigh(np.eye(len(degree)) - adjacency / np.sqrt(np.outer(degree, degree)))
    rest = 1 - values
    p = np.sqrt(degree)[:, None] * np.hstack([vectors * np.sqrt(part.clip(0)) for part in (rest, -rest)])
    return p, np.repeat([1.0, -1.0], len(degree))


def test_other_nodes_are_found_by_a_factor_of_the_adjacency_matrix() -> None:
    """Lemma 13 with gamma = -1, mended: ``W_Q = diag(I, -I)`` gives ``A`` and ``-A``; the softmax of ``-A`` finds all
    nodes without an edge, the node itself among them.
    """
    for graph in connected_graphs():
        adjacency = nx.to_numpy_array(graph, nodelist=range(len(graph)))
        degree = adjacency.sum(1)
        p, signs = factor(adjacency)
        assert np.abs((p * signs) @ p.T - adjacency).max() < 1e-12
        others = (1 - adjacency) / (len(degree) - degree)[:, None]
        assert np.abs(softmax(-60 * (p * signs) @ p.T, 1) - others).max() < 1e-12
        assert np.abs(softmax(60 * (p * signs) @ p.T, 1) - adjacency / degree[:, None]).max() < 1e-12


def small_graphs() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Adjacency and tuples of two and of three nodes of all graphs of 2 to 5 nodes without isolated nodes."""
    for graph in nx.graph_atlas_g():
        n = len(graph)
        if 2 <= n <= 5 and min(dict(graph.degree).values()) > 0:
            for k in (2, 3):
                yield nx.to_numpy_array(graph, nodelist=range(n)), np.array(list(product(range(n), repeat=k)))


def generalized_adjacency(adjacency: np.ndarray, nodes: np.ndarray, place: int, gamma: int) -> np.ndarray:
    """Eq. (11), rows of sum one: tuples with a neighbour, or with another node, in one place and the same elsewhere."""
    is_same = np.delete(nodes[:, None] == nodes, place, axis=2).all(2)
    there = nodes[:, place]
    expected = is_same & (adjacency[there][:, there] == (1 if gamma == 1 else 0))
    return expected / expected.sum(1, keepdims=True)


Maps = tuple[np.ndarray, np.ndarray]
"""From the embedding of a node to columns of queries and to as many of keys."""


def projected(p: np.ndarray, nodes: np.ndarray, maps: Sequence[Maps], has_own_columns: bool = True) -> np.ndarray:
    """A head over tuples: ``X`` is the embeddings of their nodes beside each other, ``W_Q`` and ``W_K`` have the maps
    of each position as blocks, in columns of their own or in the same ones.
    """
    x = p[nodes].reshape(len(nodes), -1)
    join = block_diag if has_own_columns else lambda *blocks: np.vstack(blocks)
    query, key = (join(*blocks) for blocks in zip(*maps, strict=True))
    # d_k is a square, the last columns zero: then its root, and scores of whole numbers, have no rounding.
    root = math.isqrt(query.shape[1] - 1) + 1
    query, key = (np.pad(weights, ((0, 0), (0, root**2 - weights.shape[1]))) for weights in (query, key))
    assert query.shape == key.shape == (nodes.shape[1] * p.shape[1], root**2)
    return softmax((x @ (60 * root * query)) @ (x @ key).T / root, 1)


@pytest.mark.parametrize("embedding", ["incidence", "eigenvectors"])
def test_heads_find_neighbours_of_tuples(embedding: str) -> None:
    """Lemma 13 with gamma = 1, for ``P P^T = L``: with columns of their own for each position, ``d_k >= k n`` for ``n``
    eigenvectors, the head ``j`` finds the tuples that have a neighbour of ``v_j`` in its place. With columns that the
    positions share it does not.
    """
    # tg_lpe.Graph matrices have whole numbers; the rounding of eigenvectors is multiplied by b = 60.
    tolerance = 1e-13 if embedding == "incidence" else 1e-12
    for adjacency, nodes in small_graphs():
        n, k = len(adjacency), nodes.shape[1]
        laplacian = np.diag(adjacency.sum(1)) - adjacency
        values, vectors = np.linalg.eigh(laplacian)
        p = vectors * np.sqrt(values.clip(0))
        if embedding == "incidence":
            ends = np.argwhere(np.triu(adjacency))
            p = np.eye(n)[:, ends[:, 0]] - np.eye(n)[:, ends[:, 1]]
        identity = np.eye(p.shape[1])
        for j in range(k):
            maps = [(identity, -identity if i == j else identity) for i in range(k)]
            expected = generalized_adjacency(adjacency, nodes, j, 1)
            assert np.linalg.norm(projected(p, nodes, maps) - expected, axis=1).max() <= tolerance
            shared = projected(p, nodes, maps, has_own_columns=False)
            assert np.abs(shared - expected).sum(1).max() > 0.99


def test_heads_find_other_tuples_if_mended() -> None:
    """Lemma 13 with gamma = -1: ``L`` finds the tuple itself, right only where ``v_j`` is linked to all others; the
    factor of the adjacency matrix finds all tuples that have no neighbour of ``v_j`` in its place.
    """
    for adjacency, nodes in small_graphs():
        n, k, degree = len(adjacency), nodes.shape[1], adjacency.sum(1)
        values, vectors = np.linalg.eigh(np.diag(degree) - adjacency)
        of_adjacency, signs = factor(adjacency)
        p = np.hstack([vectors * np.sqrt(values.clip(0)), of_adjacency])
        first, rest = np.eye(3 * n)[:, :n], np.eye(3 * n)[:, n:]
        same = (first, first)
        for j in range(k):
            expected = generalized_adjacency(adjacency, nodes, j, -1)
            found = projected(p, nodes, [same] * k)
            wrong = np.linalg.norm(found - expected, axis=1) > 0.4
            assert np.abs(found - np.eye(len(nodes))).max() < 1e-12
            assert (wrong == (degree[nodes[:, j]] < n - 1)).all()
            mended = projected(p, nodes, [(rest, -rest * signs) if i == j else same for i in range(k)])
            assert np.linalg.norm(mended - expected, axis=1).max() < 1e-11


@few
@given(without_lone_nodes)
def test_a_transformer_refines_colours_as_1_wl(graph: Graph) -> None:
    """Theorem 2: attention by ``softmax(-b L)`` and degrees, on one-hot colours. Colours ``m^-i`` would underflow."""
    adjacency, degree, _ = matrices(graph)
    n, data = len(adjacency), Data(edge_index=graph.both_ways()[0], num_nodes=len(adjacency))
    attention = degree[:, None] * softmax(-30 * graph.laplacian(), 1)
    color = np.zeros(n, dtype=int)
    for rounds in range(1, 4):
        color = refine(color, [attention])
        assert is_same_partition(color, wl.colors(data, "1-WL", rounds=rounds).color)
    assert 20.0**-250 == 20.0**-260 == 0.0


def tuple_head(place: int, near: np.ndarray, same: np.ndarray, k: int) -> np.ndarray:
    """Attention between all ``k``-tuples, in lexicographic order, by scores that are sums over positions: Lemma 13."""
    ones = np.ones_like(near)
    factors = [[(near if i == place else same) if i == j else ones for j in range(k)] for i in range(k)]
    return softmax(60 * sum(reduce(np.kron, row) for row in factors), 1)


def refine(color: np.ndarray, messages: list[np.ndarray]) -> np.ndarray:
    """A colour for each different row of the one-hot colour and of the messages, which are sums of those of others."""
    one_hot = np.eye(color.max() + 1)[color]
    rows = np.hstack([one_hot, *(np.round(message @ one_hot, 6) for message in messages)])
    return np.unique(rows, axis=0, return_inverse=True)[1].ravel()


def atomic_types(adjacency: np.ndarray, k: int) -> np.ndarray:
    tuples = list(product(range(len(adjacency)), repeat=k))
    rows = [[adjacency[u, v] - 2 * (u == v) for u, v in product(nodes, repeat=2)] for nodes in tuples]
    return np.unique(rows, axis=0, return_inverse=True)[1].ravel()


def is_same_partition(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(((one[:, None] == one) == (other[:, None] == other)).all())


@pytest.mark.parametrize("k", [2, 3])
@fewer
@given(graphs(max_nodes=5, min_nodes=2).filter(has_no_lone_node))
def test_a_transformer_refines_colours_of_tuples(k: int, graph: Graph) -> None:
    """Theorem 4: heads that find neighbours, and others that find all nodes, in each place of a tuple give the k-WL,
    the delta-k-WL and the delta-k-LWL. The nodes without an edge are those of the mended heads.
    """
    adjacency, degree, _ = matrices(graph)
    n, laplacian = len(degree), graph.laplacian()
    data = Data(edge_index=graph.both_ways()[0], num_nodes=n)
    nodes = np.array(list(product(range(n), repeat=k)))
    near = [degree[nodes[:, [j]]] * tuple_head(j, -laplacian, laplacian, k) for j in range(k)]
    everywhere = [n * tuple_head(j, 0 * laplacian, laplacian, k) for j in range(k)]
    others = [whole - part for whole, part in zip(everywhere, near, strict=True)]
    for name, messages in ((f"{k}-WL", everywhere), (f"delta-{k}-WL", near + others), (f"delta-{k}-LWL", near)):
        color = atomic_types(adjacency, k)
        for rounds in range(4):
            assert is_same_partition(color, wl.colors(data, name, rounds=rounds).color), (name, rounds)
            color = refine(color, messages)


def test_heads_of_the_laplacian_do_not_refine_as_delta_k_wl() -> None:
    """Theorem 4 with the heads of Lemma 13 as they are printed: where the other nodes should be is the tuple itself."""
    graph = from_networkx(nx.path_graph(7))
    adjacency, degree, _ = matrices(graph)
    laplacian, nodes = graph.laplacian(), np.array(list(product(range(7), repeat=2)))
    near = [degree[nodes[:, [j]]] * tuple_head(j, -laplacian, laplacian, 2) for j in range(2)]
    others = [(7 - degree)[nodes[:, [j]]] * tuple_head(j, laplacian, laplacian, 2) for j in range(2)]
    color = atomic_types(adjacency, 2)
    for _ in range(2):
        color = refine(color, near + others)
    data = Data(edge_index=graph.both_ways()[0], num_nodes=7)
    assert is_same_partition(color, wl.colors(data, "delta-2-LWL", rounds=2).color)
    assert not is_same_partition(color, wl.colors(data, "delta-2-WL", rounds=2).color)


@few
@given(without_lone_nodes)
def test_all_eigenpairs_identify_nodes_and_neighbours(graph: Graph) -> None:
    """Theorem 7: a sum over ``l = n`` eigenpairs of a function of an entry and its eigenvalue, with an epsilon that
    tells repeated eigenvalues apart, holds ``V sqrt(lambda)`` in the basis of ``V``.
    """
    adjacency = matrices(graph)[0]
    p = deep_set(graph, 1e-4)
    for sign, expected in ((-1.0, adjacency > 0), (1.0, np.eye(len(p)) > 0)):
        assert (largest(p @ (sign * p).T) == expected).all()


def deep_set(graph: Graph, epsilon: float) -> np.ndarray:
    """``sum_j phi(V_vj, lambda_j + j epsilon)``, where ``phi`` has a channel for each value of its second argument.

    A channel belongs to one eigenvalue, so its factor is the root of that eigenvalue without epsilon.
    """
    values, vectors = np.linalg.eigh(graph.laplacian())
    second = (values.clip(0) + epsilon * np.arange(len(values))).round(9)
    channel = np.unique(second, return_inverse=True)[1]
    p = np.zeros_like(vectors)
    np.add.at(p.T, channel, (vectors * np.sqrt(values.clip(0))).T)
    return p


def test_without_epsilon_eigenvectors_of_an_eigenvalue_are_added() -> None:
    graph = from_networkx(nx.cycle_graph(6))
    p = deep_set(graph, 0.0)
    assert advantage(-p @ p.T, graph.laplacian() < 0) < -0.1


def test_few_eigenvectors_do_not_identify_nodes() -> None:
    """Theorem 7 needs ``l = n``: with 8 of 24 eigenvectors some node is more like another than like itself, and other
    nodes than neighbours are found.
    """
    for seed in range(10):
        graph = from_networkx(nx.gnp_random_graph(24, 0.2, seed=seed))
        values, vectors = np.linalg.eigh(graph.laplacian())
        kept = vectors[:, :8]
        assert advantage(kept @ kept.T, np.eye(24) > 0) < -1e-3
        assert advantage(-(kept * values[:8]) @ kept.T, graph.laplacian() < 0) < -1e-3


def equal_rows(rows: np.ndarray) -> np.ndarray:
    """Which nodes have the same row: different ones differ by far more than rounding."""
    gap = np.abs(rows[:, None] - rows).max(2) / np.abs(rows).max()
    assert not ((gap > 1e-12) & (gap < 1e-8)).any()
    return gap <= 1e-12


def encoded(encoder: Encoder, parts: list[Graph]) -> list[np.ndarray]:
    """Encodings of the nodes of each graph, at random weights."""
    batched = batch_of(parts)
    with torch.no_grad():
        rows = randomize_(encoder).double().eval()(None, **batched.arguments(weighted=False)).node
    return [part.numpy() for part in batched.split(rows)]


@pytest.mark.parametrize(
    "make", [lambda: SPE(8, 6, num_filters=8), lambda: GramTransformer(None, 0, 1, 8)], ids=["SPE", "GramTransformer"]
)
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
def test_when_equivariant_encodings_identify_neighbours(
    graph: nx.Graph, is_possible: bool, make: Callable[[], Encoder]
) -> None:
    """Theorem 8, mended: scores depend on the classes of equal rows, so neighbours are found if and only if an edge
    depends on the classes of its ends alone. Then queries and keys that read the class give the adjacency matrix.
    """
    (rows,) = encoded(make(), [from_networkx(graph)])
    adjacency = nx.to_numpy_array(graph, nodelist=range(len(graph)))
    row = np.unique(equal_rows(rows).argmax(1), return_inverse=True)[1].ravel()
    size = row.max() + 1
    by_classes = {
        (a, b): {adjacency[u, v] for u in np.flatnonzero(row == a) for v in np.flatnonzero(row == b)}
        for a, b in product(range(size), repeat=2)
    }
    assert all(len(found) == 1 for found in by_classes.values()) == is_possible

    # The largest scores of a row are those of some classes, which its own class decides: try all such choices.
    some = [choice for choice in product([False, True], repeat=size) if any(choice)]
    found = [np.array(choices)[row][:, row] for choices in product(some, repeat=size)]
    assert any((one == (adjacency > 0)).all() for one in found) == is_possible
    if not is_possible:
        return

    p = np.hstack([rows / np.abs(rows).max(), np.ones((len(rows), 1))])
    one_hot = np.eye(size)[row]
    to_class = np.linalg.pinv(p) @ one_hot
    assert np.abs(p @ to_class - one_hot).max() < 1e-12
    joined = np.array([[float(1.0 in by_classes[a, b]) for b in range(size)] for a in range(size)])
    query, key = np.sqrt(size) * to_class @ joined, to_class
    scores = (p @ query) @ (p @ key).T / np.sqrt(size)
    assert (largest(scores) == (adjacency > 0)).all() and advantage(scores, adjacency > 0) > 0.9


@pytest.mark.parametrize(
    "make",
    [lambda: SPE(4, 16, num_filters=4), lambda: GramTransformer(4, 4, 2, 8, pair_out_channels=4)],
    ids=["SPE", "GramTransformer"],
)
def test_a_pure_transformer_is_a_function_of_the_set_of_its_tokens(make: Callable[[], Encoder]) -> None:
    """Theorem 6 fails with equivariant encodings: all nodes and edges of these graphs have the same, so their tokens
    of three nodes are the same sets. The (3,1)-LWL tells them apart, which 3-WL does not, and so do masked heads.
    """
    one, other = (data_of(from_networkx(graph)) for graph in rook_and_shrikhande())
    assert not wl.distinguishes(one, other, "2-FWL") and wl.distinguishes(one, other, "(3,1)-LWL")
    for attention, is_apart in (("full", False), ("local", True)):
        model = TupleTransformer(encoder=make(), k=3, hidden_channels=6, heads=3, num_layers=2, attention=attention)
        model = randomize_(model).double().eval()
        with torch.no_grad():
            first, second = (float(model(None, data.edge_index, num_nodes=16)) for data in (one, other))
        assert abs(first - second) > 1e-3 if is_apart else abs(first - second) < 1e-12


def spe_rows(graph: nx.Graph) -> np.ndarray:
    """SPE of all eigenpairs, at random weights."""
    return encoded(SPE(8, len(graph), num_filters=8), [from_networkx(graph)])[0]


def automorphisms(graph: nx.Graph) -> list[np.ndarray]:
    """All, as permutation matrices."""
    found = []
    for labels in nx.algorithms.isomorphism.GraphMatcher(graph, graph).isomorphisms_iter():
        found.append(np.zeros((len(graph), len(graph))))
        found[-1][list(labels.values()), list(labels)] = 1.0
    return found


def test_spe_identifies_nodes_with_different_rows() -> None:
    """Theorem 8 fails: SPE is the same for all nodes of an orbit. Mended: with ``[p, 1]`` and ``[p, -|p|^2 / 2]`` as
    query and key a node finds those with its own row, the nodes of its orbit.
    """
    asymmetric = 0
    for seed in range(12):
        graph = nx.gnp_random_graph(8, 0.4, seed=seed)
        p, one = spe_rows(graph), np.ones((8, 1))
        p = p / np.abs(p).max()
        scores = np.hstack([p, one]) @ np.hstack([p, -0.5 * (p**2).sum(1, keepdims=True)]).T
        orbits = np.any(automorphisms(graph), axis=0)
        assert (largest(scores) == orbits).all()
        asymmetric += orbits.sum() == 8
    assert 0 < asymmetric < 12


def test_how_many_graphs_have_equal_rows_of_spe() -> None:
    """Those with a symmetry, among all connected graphs of 2 to 7 nodes."""
    all_graphs, have_equal = connected_graphs(), 0
    rows = encoded(SPE(8, 7, num_filters=8), [from_networkx(graph) for graph in all_graphs])
    for graph, own in zip(all_graphs, rows, strict=True):
        symmetries = nx.algorithms.isomorphism.GraphMatcher(graph, graph).isomorphisms_iter()
        next(symmetries)  # each graph has one, the identity
        has_equal = equal_rows(own).sum() > len(graph)
        assert has_equal == (next(symmetries, None) is not None)
        have_equal += has_equal
    assert (len(all_graphs), have_equal) == (995, 843)


def test_how_many_molecules_have_equal_rows_of_spe(shared_data: Path) -> None:
    """ZINC-12k's test molecules: any two atoms, and two of the same type."""
    with np.load(shared_data / "zinc12k" / "test.npz") as file:
        ends = np.split(file["bonds"].astype(int), file["num_bonds"].cumsum(dtype=int)[:-1], axis=1)
        types = np.split(file["atom_type"], file["num_nodes"].cumsum(dtype=int)[:-1])
    molecules = [
        Graph(len(own), bonds.T.tolist(), [1.0] * bonds.shape[1]) for own, bonds in zip(types, ends, strict=True)
    ]
    have_equal, have_equal_of_type = 0, 0
    rows = encoded(SPE(8, max(map(len, types)), num_filters=8), molecules)
    for own, atoms in zip(rows, types, strict=True):
        same = np.triu(equal_rows(own), 1)
        have_equal += same.any()
        have_equal_of_type += same[atoms[:, None] == atoms].any()
    assert (len(molecules), have_equal, have_equal_of_type) == (1000, 857, 799)


@pytest.mark.parametrize("graph", [nx.cycle_graph(6), nx.complete_graph(4), nx.petersen_graph()])
def test_no_equivariant_function_picks_an_eigenvector_of_a_repeated_eigenvalue(graph: nx.Graph) -> None:
    """The ``h_l`` of Theorem 8's proof do not exist here. What an equivariant function returns is its own mean over the
    automorphisms. That of each vector of such an eigenspace is zero, and that of the projection on a vector is a
    multiple of the projection on the eigenspace, as it is of each matrix of the eigenspace.
    """
    _, _, normalized = matrices(from_networkx(graph))
    values, vectors = np.linalg.eigh(normalized)
    moves = np.stack(automorphisms(graph))
    assert np.abs(moves @ normalized - normalized @ moves).max() < 1e-12
    sizes = []
    for value in np.unique(values.round(9)):
        space = vectors[:, np.abs(values - value) < 1e-8]
        size = space.shape[1]
        assert np.abs(moves.mean(0) @ space).max() < 1e-12 or value == 0  # constant vectors stay
        for a, b in product(range(size), repeat=2):
            mean = (moves @ np.outer(space[:, a], space[:, b]) @ moves.transpose(0, 2, 1)).mean(0)
            assert np.abs(mean - (a == b) / size * space @ space.T).max() < 1e-12
        sizes.append(size)
    assert max(sizes) > 1 and sum(sizes) == len(graph)


@pytest.mark.parametrize(
    ("graph", "zeros"),
    [(nx.path_graph(4), 2), (nx.cycle_graph(6), 5), (nx.complete_graph(4), 3), (nx.petersen_graph(), 9)],
)
def test_eigenvectors_of_symmetric_graphs_add_up_to_zero(graph: nx.Graph, zeros: int) -> None:
    """The proof of Theorem 8 divides by the sum of each. On a path, those of odd eigenvectors are zero."""
    _, _, normalized = matrices(from_networkx(graph))
    sums = np.linalg.eigh(normalized)[1].sum(0)
    assert (np.abs(sums) < 1e-12).sum() == zeros


def test_neighbourhoods_among_connected_tuples_are_smaller_than_degrees() -> None:
    """The normaliser of Theorem 6 fails: ``d(v_j)`` does not count the neighbours that are tuples, some have none."""
    graph = nx.gnp_random_graph(8, 0.35, seed=1)
    data = from_networkx(graph)
    tuples = component_tuples(tg_lpe.Graph(data.edge_index(), 8), 3, 1).T.tolist()
    known = {tuple(nodes) for nodes in tuples}
    sizes, degrees = [], []
    for nodes in known:
        for j in range(3):
            inside = [w for w in graph[nodes[j]] if (*nodes[:j], w, *nodes[j + 1 :]) in known]
            sizes.append(len(inside))
            degrees.append(graph.degree[nodes[j]])
    size, degree = torch.tensor(sizes), torch.tensor(degrees)
    assert bool((size <= degree).all())
    assert (len(size), int((size < degree).sum()), int((size == 0).sum())) == (528, 300, 90)
