"""Token sets against the list of all tuples, and their numbers against the formulas."""

from __future__ import annotations

import itertools
import math
from functools import partial

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import Graph, corner_cases, few, from_networkx, graph_of, graphs, refusals
from hypothesis import given, settings
from hypothesis import strategies as st

from tg_lpe.graph.tuples import NO_EDGE, SAME_NODE, component_tuples
from tg_lpe.nn.tuples import tuple_tokens


def listed(graph: Graph, k: int, s: int) -> list[tuple[int, ...]]:
    """List the tuples, of all ``n ** k``, whose positions have at most ``s`` components."""
    edges = {frozenset(edge) for edge in graph.edges}
    found = []
    for nodes in itertools.product(range(graph.num_nodes), repeat=k):
        links = nx.Graph()
        links.add_nodes_from(range(k))
        links.add_edges_from(
            (i, j)
            for i, j in itertools.combinations(range(k), 2)
            if nodes[i] == nodes[j] or frozenset((nodes[i], nodes[j])) in edges
        )
        if nx.number_connected_components(links) <= s:
            found.append(nodes)
    return found


def random_graph(seed: int) -> Graph:
    rng = np.random.default_rng(seed)
    return from_networkx(nx.gnp_random_graph(int(rng.integers(0, 8)), float(rng.uniform(0, 0.8)), seed=seed))


@pytest.mark.parametrize("k, s", [(1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3), (4, 1), (4, 2), (4, 3)])
def test_tuples_are_those_of_the_list_of_all(k: int, s: int) -> None:
    for seed in range(200 if k < 4 else 20):
        graph = random_graph(seed)
        got = component_tuples(graph_of(graph), k, s).T.tolist()
        assert got == [list(nodes) for nodes in listed(graph, k, s)], seed


@few
@given(graphs(max_nodes=30))
def test_numbers_are_those_of_the_formulas(graph: Graph) -> None:
    n, m = graph.num_nodes, len(graph.edges)
    degrees = dict(graph.networkx().degree)
    triangles = sum(nx.triangles(graph.networkx()).values()) // 3
    wedges = sum(math.comb(d, 2) for d in degrees.values())
    assert component_tuples(graph_of(graph), 2, 1).size(1) == n + 2 * m
    assert component_tuples(graph_of(graph), 3, 1).size(1) == n + 6 * m + 6 * (wedges - 2 * triangles)


@pytest.mark.parametrize("k, s", [(1, None), (2, 1), (2, None), (3, 1), (3, 2)])
def test_a_batch_has_the_tokens_of_its_graphs(k: int, s: int | None) -> None:
    parts = [part for part in corner_cases() if part.num_nodes <= 12]
    whole = graph_of(*parts)
    tokens = tuple_tokens(whole, k, s)
    node_offset = edge_offset = 0
    nodes, types, batch = [], [], []
    for number, part in enumerate(parts):
        own = tuple_tokens(graph_of(part), k, s)
        nodes.append(own.nodes + node_offset)
        types.append(torch.where(own.types >= 0, own.types + edge_offset, own.types))
        batch.append(torch.full((len(own.nodes),), number))
        node_offset, edge_offset = node_offset + part.num_nodes, edge_offset + len(part.edges)
    assert torch.equal(tokens.nodes, torch.cat(nodes))
    assert torch.equal(tokens.types, torch.cat(types))
    assert torch.equal(tokens.batch, torch.cat(batch))


@settings(parent=few)
@given(graphs(max_nodes=7), st.sampled_from([(2, 1), (3, 1), (3, 2), (3, 3)]))
def test_atomic_types(graph: Graph, order: tuple[int, int]) -> None:
    whole = graph_of(graph)
    number = {edge: i for i, edge in enumerate(graph.edges)}
    tokens = tuple_tokens(whole, *order)
    for nodes, types in zip(tokens.nodes.tolist(), tokens.types.tolist(), strict=True):
        for (u, v), kind in zip(itertools.combinations(nodes, 2), types, strict=True):
            assert kind == (SAME_NODE if u == v else number.get((min(u, v), max(u, v)), NO_EDGE))


test_what_cannot_be_listed_is_refused = refusals(
    partial(tuple_tokens, graph_of(from_networkx(nx.star_graph(500)))),
    *(((k, s), f"1 <= s <= k, got k={k}, s={s}") for k, s in ((2, 3), (2, 0), (0, 0))),
    ((3,), r"\(3,3\)-tuples: 125,751,501 tuples do not fit in memory, at most"),
    ((8, 1), "cannot be numbered in 63 bits"),
)
