"""Numbers of cycles against networkx."""

from __future__ import annotations

import time

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import Graph, from_networkx, refusals

import tg_lpe
from tg_lpe import Encoder
from tg_lpe.encoders import CycleCounts
from tg_lpe.testing import EncoderTestCase


def counted(graph: Graph, longest: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Cycles of each length from 3 through nodes and edges, one by one."""
    node, edge = np.zeros((graph.num_nodes, longest - 2)), np.zeros((len(graph.edges), longest - 2))
    row_of = {pair: row for row, pair in enumerate(graph.edges)}
    for cycle in nx.simple_cycles(graph.networkx(), length_bound=longest):
        column = len(cycle) - 3
        node[cycle, column] += 1
        for u, v in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            edge[row_of[min(u, v), max(u, v)], column] += 1
    return node, edge


class TestCycleCounts(EncoderTestCase):
    def make(self) -> Encoder:
        return CycleCounts((4, 3))

    def oracle(self, graph: Graph) -> tuple[np.ndarray, np.ndarray]:
        node, edge = counted(graph, 4)
        return node[:, ::-1].copy(), edge[:, ::-1].copy()

    test_values_of_corner_cases = None  # one by one, half a million cycles of their cliques; see below


def test_200_graphs() -> None:
    """All at once, so that a batch is its graphs one by one as well."""
    rng = np.random.default_rng(0)
    parts = [nx.gnm_random_graph(n, int(rng.integers(0, 2 * n)), seed=int(rng.integers(2**31))) for n in range(4, 14)]
    for _ in range(190):
        n = int(rng.integers(3, 25))
        parts.append(nx.gnm_random_graph(n, int(rng.integers(n, 1.8 * n + 1)), seed=int(rng.integers(2**31))))
    graphs = [from_networkx(part) for part in parts]
    edges = torch.cat([graph.edge_index() + 30 * number for number, graph in enumerate(graphs)], 1)
    batch = torch.arange(200).repeat_interleave(30)
    node, edge, _ = CycleCounts().double()(None, tg_lpe.Graph(edges, 6000, batch=batch))
    expected = [counted(graph) for graph in graphs]
    for found, (wanted, _) in zip(node.view(200, 30, 6), expected, strict=True):
        assert np.array_equal(found[: len(wanted)], wanted) and not found[len(wanted) :].any()
    assert np.array_equal(edge, np.concatenate([part for _, part in expected]))
    assert float(edge.sum()) > 10_000


def test_too_many_paths_are_refused() -> None:
    clique = from_networkx(nx.complete_graph(12)).edge_index()
    two = torch.cat([torch.tensor([[0], [1]]), clique + 2], 1)
    graph = tg_lpe.Graph(two, 14, batch=torch.tensor([0] * 2 + [1] * 12))
    with pytest.raises(ValueError, match=r"max_paths=1000 .* graph 1 .* lengths"):
        CycleCounts(max_paths=1000)(None, graph)
    CycleCounts((3, 4), max_paths=5000)(None, graph)


def test_dense_graphs_are_refused_before_the_work() -> None:
    """In less time than ten million paths take; all paths of the largest clique that is counted are counted."""
    started = time.process_time()
    with pytest.raises(ValueError, match="max_paths"):
        CycleCounts()(None, tg_lpe.Graph(from_networkx(nx.complete_graph(300)).edge_index(), 300))
    assert time.process_time() - started < 10
    graph = tg_lpe.Graph(from_networkx(nx.complete_graph(80)).edge_index(), 80)
    paths = 80 + 80 * 79 // 2 + 80 * 79 * 78 // 3  # each of one to three nodes, from its smallest
    assert CycleCounts((3,), max_paths=paths)(None, graph).node.unique().tolist() == [79 * 78 / 2]
    with pytest.raises(ValueError, match="max_paths"):
        CycleCounts((3,), max_paths=paths - 1)(None, graph)


test_refusals = refusals(CycleCounts, *(((lengths,), "from 3 to 8") for lengths in ((), (2,), (9,), (3, 3), (3.0,))))
