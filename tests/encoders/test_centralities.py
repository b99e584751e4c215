"""Centralities, against networkx on each component."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import Graph, pseudo_inverse, refusals
from scipy.linalg import expm
from torch import Tensor

from tg_lpe import Encoder
from tg_lpe.encoders import Centralities
from tg_lpe.testing.encoder_test_case import GRAPH, EncoderTestCase


class TestCentralities(EncoderTestCase):
    tolerance = 1e-5  # of the oracle's resistances

    def make(self) -> Encoder:
        return Centralities(pair_out_channels=None)

    def close(self, got: Tensor, expected: Tensor, tolerance: float | None = None) -> None:
        """Column by column: commute times are much larger than others."""
        for got_column, column in zip(got.T, expected.T, strict=True):
            super().close(got_column, column, tolerance)

    def oracles(self, graph: Graph) -> tuple[np.ndarray, np.ndarray]:
        """Values of nodes and pairs."""
        whole, inverse, size = graph.networkx(), pseudo_inverse(graph), graph.num_nodes
        nodes, pairs = np.zeros((size, 6)), np.zeros((size, size, 6))
        for part in map(sorted, nx.connected_components(whole)):
            if len(part) == 1:
                nodes[part, :2] = pairs[part, part, :2] = 1.0
                continue
            own, one, n = np.ix_(part, part), whole.subgraph(part), len(part)
            green, adjacency = inverse[own], nx.to_numpy_array(one, part)
            resistance = np.diag(green)[:, None] + np.diag(green) - 2 * green
            scale, alpha = adjacency.sum(0) ** -0.5, 0.85 / np.linalg.eigvalsh(adjacency)[-1]
            through, between = dict.fromkeys(part, 0.0), {tuple(part): 1.0}
            if n > 2:  # networkx divides by zero for two nodes
                through = nx.current_flow_betweenness_centrality(one, weight="weight")
                between = nx.edge_current_flow_betweenness_centrality(one, weight="weight")
            for (u, v), value in between.items():
                pairs[u, v, 5] = pairs[v, u, 5] = value
            walks = expm(scale[:, None] * adjacency * scale), np.linalg.inv(np.eye(n) - alpha * adjacency)
            information, commute = 1 / (resistance + np.diag(np.full(n, np.inf))), adjacency.sum() * resistance
            pairs[own] = np.stack([*walks, green, commute, information, pairs[own][..., 5]], -1)
            close = nx.current_flow_closeness_centrality(one, weight="weight")
            katz = nx.katz_centrality_numpy(one, alpha, normalized=False, weight="weight")
            for v, mean in zip(part, commute.mean(1), strict=True):
                nodes[v] = pairs[v, v, 0], katz[v], pairs[v, v, 2], mean, close[v], through[v]
        return nodes, pairs

    def pair_oracle(self, graph: Graph) -> np.ndarray:
        return self.oracles(graph)[1]

    def oracle(self, graph: Graph) -> tuple[np.ndarray, np.ndarray | None]:
        nodes, pairs = self.oracles(graph)
        return nodes, np.array([pairs[edge] for edge in graph.edges]).reshape(-1, 6)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_values_without_a_unit_do_not_depend_on_that_of_weights(scale: float) -> None:
    index, weight = GRAPH.both_ways()
    encoder = Centralities(["communicability", "katz", "commute_time", "betweenness"]).double()
    expected, got = (encoder(None, index, edge_weight=w) for w in (weight, scale * weight))
    torch.testing.assert_close(got, expected)


def test_resistances_of_weights_over_many_orders() -> None:
    """They are accurate although entries of ``L^+`` are large."""
    index, weight = torch.tensor([[0, 1, 2], [1, 2, 3]]), torch.tensor([1e9, 1.0, 1e-9]).double()
    edge = Centralities(["closeness"]).double()(None, index, edge_weight=weight).edge
    torch.testing.assert_close(edge[:, 0], weight, rtol=1e-6, atol=0)


test_refusals = refusals(Centralities, *(((names,), "measures must be") for names in ((), ("degree",), "katz")))
