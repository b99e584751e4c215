"""The looped filter against dense eigenvectors, on every family of graphs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import Graph, from_networkx, graph_of

from tg_lpe.data.synthetic import random_regular_edges
from tg_lpe.encoders import Positions, load_encoder
from tg_lpe.graph.subspace import LearnedCut, Subspace, leading_subspace, looped_subspace

K = 8

FAMILIES: dict[str, Callable[[], nx.Graph]] = {
    "five blocks": lambda: nx.random_partition_graph([200] * 5, 0.06, 0.008, seed=0),
    "many blocks": lambda: nx.random_partition_graph([40] * 25, 0.4, 0.002, seed=0),
    "grid": lambda: nx.grid_2d_graph(30, 40),
    "road": lambda: nx.Graph(e for i, e in enumerate(nx.grid_2d_graph(30, 40).edges) if i * 7919 % 1000 < 750),
    "geometric": lambda: nx.random_geometric_graph(1000, 0.08, seed=0),
    "small world": lambda: nx.connected_watts_strogatz_graph(1000, 6, 0.05, seed=0),
    "preferential attachment": lambda: nx.barabasi_albert_graph(1000, 3, seed=0),
    "regular": lambda: nx.Graph(random_regular_edges(1000, 6, torch.Generator().manual_seed(0)).T.tolist()),
    "tree": lambda: nx.random_labeled_tree(1000, seed=0),
}


@cache
def of_family(name: str) -> Graph:
    """Return the largest component of a graph, with whole numbers as nodes."""
    graph = FAMILIES[name]()
    return from_networkx(graph.subgraph(max(nx.connected_components(graph), key=len)))


def eigenvectors(graph: Graph, k: int) -> tuple[np.ndarray, np.ndarray]:
    values, vectors = np.linalg.eigh(graph.normalized_laplacian())
    return values[1 : k + 1], vectors[:, 1 : k + 1]


@cache
def exact(family: str, k: int = K) -> tuple[np.ndarray, np.ndarray]:
    return eigenvectors(of_family(family), k)


def find(graph: Graph, k: int = K, **options) -> Subspace:
    return leading_subspace(graph_of(graph), k, **options)


def captured(found: Subspace, vectors: np.ndarray) -> float:
    """Share of the energy of orthonormal vectors that lies in the columns found."""
    return float(np.square(found.vectors.double().numpy().T @ vectors).sum() / vectors.shape[1])


@pytest.mark.parametrize("seed", [0, "learned cut", "wrong start"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_leading_eigenvectors_are_captured(family: str, seed: int | str) -> None:
    graph, (values, vectors) = of_family(family), exact(family)
    wrong = torch.from_numpy(exact(family, 2 * K)[1][:, K:])
    options = {0: {}, "learned cut": {"cut": load_encoder("positions-k16").cut}, "wrong start": {"start": wrong}}[seed]
    found = find(graph, **options)
    assert found.layers.item() > 0 and captured(found, vectors) > 0.99
    assert abs(found.share.item() - captured(found, vectors)) < 0.01
    # A Ritz value of P is never above the eigenvalue, so that of the Laplacian is never below.
    difference = found.values[0].numpy() - values
    assert (difference > -1e-5).all() and difference.max() < 0.02
    gram = found.vectors.double().T @ found.vectors.double()
    torch.testing.assert_close(gram, torch.eye(K, dtype=torch.float64), atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_number_of_loops_on_a_batch_finds_the_same_spaces(family: str) -> None:
    parts = [of_family(family), Graph(1, [], []), from_networkx(nx.karate_club_graph())]
    batch, cut = graph_of(*parts), LearnedCut().requires_grad_(False)
    found = looped_subspace(batch, K, 6, like=torch.ones((), dtype=torch.float64), cut=cut)
    start = 0
    for number, part in enumerate(parts):
        own, start = found.vectors[start : start + part.num_nodes], start + part.num_nodes
        values, vectors = exact(family) if number == 0 else eigenvectors(part, K)
        assert own.shape[0] == 1 or captured(found._replace(vectors=own), vectors) > 0.99
        np.testing.assert_allclose(found.values[number, : len(values)].numpy(), values, atol=0.02)
    assert found.layers[0] > 8 and found.share[0] > 0.98


@pytest.mark.parametrize("family", FAMILIES)
def test_columns_of_a_grown_graph_start_from_the_old_ones(family: str) -> None:
    graph, encoder = of_family(family), Positions(K, 0)
    n, old = graph.num_nodes, encoder(None, graph_of(graph)).node
    assert (encoder.update(graph_of(graph), old) - old).norm() < 0.03 * old.norm()
    edges = sorted([*graph.edges, *((node, n + node // 100) for node in range(0, n, 100))])
    changed = Graph(n + -(-n // 100), edges, [1.0] * len(edges))
    basis = np.linalg.qr(encoder.update(graph_of(changed), old).double().numpy())[0]
    assert np.square(basis.T @ eigenvectors(changed, K)[1]).sum() / K > 0.99


def test_float64_reaches_any_tolerance() -> None:
    graph, (values, vectors) = of_family("many blocks"), exact("many blocks")
    found = find(graph, tolerance=1e-14, dtype=torch.float64)
    np.testing.assert_allclose(found.values[0].numpy(), values, atol=1e-12)
    assert 1 - captured(found, vectors) < 1e-10


def test_weights_over_four_orders() -> None:
    graph = of_family("grid")
    weights = 10 ** np.random.default_rng(0).uniform(-2, 2, len(graph.edges))
    graph = Graph(graph.num_nodes, graph.edges, weights.tolist())
    found = find(graph, dtype=torch.float64)
    assert captured(found, eigenvectors(graph, K)[1]) > 0.99


def test_small_components_are_exact() -> None:
    graph = from_networkx(nx.karate_club_graph())
    found = find(graph)
    values, vectors = eigenvectors(graph, K)
    np.testing.assert_allclose(found.values[0].numpy(), values, atol=1e-12)
    assert found.layers.item() == 0 and captured(found, vectors) > 1 - 1e-12
    assert found.values.isnan().sum() == 0 and find(Graph(3, [(0, 1)], [1.0])).values.isnan().sum() == 2 * K - 1


def test_too_few_layers_are_told() -> None:
    with pytest.warns(UserWarning, match="max_layers"):
        found = find(of_family("tree"), max_layers=16)
    assert found.layers.item() == 16 and found.share.item() < 0.9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("graph", "k", "layers"),
    [
        (nx.complete_graph(300), K, 200),
        (nx.complete_bipartite_graph(150, 200), K, 200),
        (nx.star_graph(400), K, 200),
        (nx.cycle_graph(1000), 5, 1000),  # an eigenvalue repeats across the last column
        (nx.hypercube_graph(9), 4, 1000),
    ],
)
@pytest.mark.filterwarnings("error")
def test_equal_eigenvalues_end_the_loops(graph: nx.Graph, k: int, layers: int, dtype: torch.dtype) -> None:
    """Any vectors of one eigenvalue are as good, so none is missing."""
    found = find(from_networkx(nx.convert_node_labels_to_integers(graph)), k, dtype=dtype)
    assert found.layers.item() < layers and found.vectors.isfinite().all() and found.share.item() > 0.99
