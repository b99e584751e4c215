"""Iterations that are hard, work that nobody asked for, and memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import Graph, from_networkx
from torch import Tensor

import tg_lpe
from tg_lpe.encoders import RandomWalk
from tg_lpe.graph.eigenvectors import laplacian_eigenvectors
from tg_lpe.graph.heat import heat_kernel_entries
from tg_lpe.graph.random_walks import random_walk_probabilities
from tg_lpe.graph.resistance import effective_resistances


def weighted(graph: nx.Graph) -> tg_lpe.Graph:
    """With weights over six orders."""
    exponents = np.random.default_rng(0).uniform(-3, 3, graph.number_of_edges())
    own = from_networkx(graph, lambda i: float(10.0 ** exponents[i]))
    return tg_lpe.Graph(own.edge_index(), own.num_nodes, edge_weight=own.edge_weight())


def plain(graph: nx.Graph) -> tg_lpe.Graph:
    graph = nx.convert_node_labels_to_integers(graph)
    return tg_lpe.Graph(torch.tensor([*graph.edges]).T, len(graph))


HALVES = nx.disjoint_union(*[nx.random_regular_graph(6, 300, seed=0)] * 2)
HALVES.add_edges_from((node, node + 300) for node in range(300))


@pytest.mark.parametrize(
    ("graph", "k", "options"),
    [
        # The largest eigenvalues lie close together.
        *((weighted(nx.path_graph(600)), 4, {"normalization": kind, "which": "top"}) for kind in ("sym", "rw")),
        # Lanczos' method by itself passes over repeated eigenvalues: of this tree over some with two in four seeds.
        *((plain(nx.balanced_tree(2, 9)), 8, {"seed": seed, "which": "bottom"}) for seed in range(4)),
        *((plain(nx.balanced_tree(2, 9)), 8, {"seed": seed, "which": "top"}) for seed in range(4)),
        # Rings and tori are narrow and factored at once; expanders and blocks are multiplied.
        (plain(nx.cycle_graph(700)), 7, {}),
        (plain(nx.cartesian_product(nx.cycle_graph(24), nx.cycle_graph(24))), 10, {}),
        (plain(nx.random_partition_graph([150] * 5, 0.2, 0.02, seed=0)), 4, {}),
        (plain(HALVES), 7, {}),
    ],
)
def test_iterations_find_all_eigenvalues(graph: tg_lpe.Graph, k: int, options: dict[str, Any]) -> None:
    _, expected = laplacian_eigenvectors(graph, k, method="dense", **options)
    vectors, values = laplacian_eigenvectors(graph, k, method="iterative", **options)
    torch.testing.assert_close(values, expected, rtol=1e-12 if "normalization" in options else 1e-9, atol=0)
    if options.get("normalization") != "rw":
        torch.testing.assert_close(vectors.mT @ vectors, torch.eye(k, dtype=torch.float64), rtol=0, atol=1e-9)


def test_the_iteration_breaks_down_where_few_eigenvalues_are_distinct() -> None:
    edges = torch.tensor([*nx.complete_bipartite_graph(4, 5).edges]).T
    for weight in 10.0 ** torch.arange(-8, 9, dtype=torch.float64):
        graph = tg_lpe.Graph(edges, 9, edge_weight=weight.expand(20).clone())
        _, values = laplacian_eigenvectors(graph, 4, method="iterative", normalization=None)
        torch.testing.assert_close(values, weight * torch.tensor([[4.0, 4.0, 4.0, 4.0]], dtype=torch.float64))


def test_iterations_repeat_bit_by_bit() -> None:
    """And leave NumPy's generator and torch's alone."""
    graph = weighted(nx.random_regular_graph(3, 60, seed=0))
    np.random.seed(0)  # noqa: NPY002
    numpy_state, state = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    first, second = (laplacian_eigenvectors(graph, 3, method="iterative") for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("method", ["dense", "iterative"])
@pytest.mark.parametrize(
    "function",
    [
        effective_resistances,
        lambda graph, **more: random_walk_probabilities(graph, 3, **more),
        lambda graph, **more: heat_kernel_entries(graph, (1.0, 2.0), **more),
    ],
)
def test_values_at_edges_may_be_left_out(function: Callable[..., tuple[Tensor, Tensor]], method: str) -> None:
    graph = weighted(nx.barbell_graph(5, 2))
    nodes, edges = function(graph, method=method)
    got, none = function(graph, method=method, with_edges=False)
    torch.testing.assert_close(got, nodes, rtol=1e-12, atol=1e-14)
    assert bool(edges.any())
    assert none.shape == edges.shape and not none.any()


def test_random_walks_carry_no_gradient() -> None:
    """Whatever the method, which depends on the size of the graph."""
    index, weight = Graph(3, [(0, 1), (1, 2)], [1.0, 2.0]).both_ways()
    graph = tg_lpe.Graph(index, 3, edge_weight=weight.requires_grad_())
    for method in ("dense", "iterative"):
        found = [*random_walk_probabilities(graph, 2, method=method), *RandomWalk(2, method=method)(None, graph)]
        assert not any(part.requires_grad for part in found if part is not None)
