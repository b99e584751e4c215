"""Statements on this package's colourings and encodings that hold, and those that do not: counterexample, mended form.

`Aligning Transformers with Weisfeiler-Leman <https://arxiv.org/abs/2406.03148>`_.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import product
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import Graph, batch_of, data_of, few, fewer, from_networkx, graphs, randomize_, rook_and_shrikhande
from hypothesis import given
from scipy.special import softmax
from torch_geometric.data import Data

import tg_lpe
from tg_lpe import Encoder, GramTransformer
from tg_lpe.encoders import SPE
from tg_lpe.graph.tuples import component_tuples
from tg_lpe.models.tuple_transformer import TupleTransformer
from tg_lpe.theory import wl


def matrices(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Adjacency and degrees."""
    laplacian = graph.laplacian()
    degree = np.diag(laplacian)
    return np.diag(degree) - laplacian, degree


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
@given(without_lone_nodes)
def test_a_transformer_refines_colours_as_1_wl(graph: Graph) -> None:
    """Theorem 2: attention by ``softmax(-b L)`` and degrees, on one-hot colours. Colours ``m^-i`` would underflow."""
    adjacency, degree = matrices(graph)
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
    adjacency, degree = matrices(graph)
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
    adjacency, degree = matrices(graph)
    laplacian, nodes = graph.laplacian(), np.array(list(product(range(7), repeat=2)))
    near = [degree[nodes[:, [j]]] * tuple_head(j, -laplacian, laplacian, 2) for j in range(2)]
    others = [(7 - degree)[nodes[:, [j]]] * tuple_head(j, laplacian, laplacian, 2) for j in range(2)]
    color = atomic_types(adjacency, 2)
    for _ in range(2):
        color = refine(color, near + others)
    data = Data(edge_index=graph.both_ways()[0], num_nodes=7)
    assert is_same_partition(color, wl.colors(data, "delta-2-LWL", rounds=2).color)
    assert not is_same_partition(color, wl.colors(data, "delta-2-WL", rounds=2).color)


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
