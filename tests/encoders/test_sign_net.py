"""SignNet agrees with a dense implementation, and does not depend on signs."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import torch
from helpers import Graph, from_networkx, graph_of, randomize_

from tg_lpe import Encoder, Encoding
from tg_lpe.encoders import SignNet
from tg_lpe.testing import EncoderTestCase

M = 4


class TestSignNet(EncoderTestCase):
    learned = True
    tolerance = 1e-6
    exponents = (-1.0, 1.0)

    def make(self) -> Encoder:
        return SignNet(3, M, hidden_channels=4)

    def spectrum(self, graph: Graph) -> tuple[np.ndarray, np.ndarray]:
        if not graph.num_nodes:
            return np.zeros(0), np.zeros((0, 0))
        return np.linalg.eigh(graph.published_laplacian("sym"))

    def invariant(self, graph: Graph, encoding: Encoding) -> Encoding:
        """Where an eigenvalue repeats or nearly does, the basis decides; weights over many orders drown the rest."""
        is_simple = np.diff(self.spectrum(graph)[0][: M + 1]).min(initial=1.0) > 1e-3
        even = max(graph.weights, default=1.0) <= 1e2 * min(graph.weights, default=1.0)
        return encoding if is_simple and even else Encoding(encoding.node[:, :0])

    def oracle(self, graph: Graph) -> tuple[np.ndarray, None]:
        encoder: Any = self.double()
        values, vectors = (torch.from_numpy(part) for part in self.spectrum(graph))
        laplacian = torch.from_numpy(graph.laplacian())
        adjacency = laplacian.diag().diag() - laplacian
        total = torch.zeros(graph.num_nodes, 4, dtype=torch.float64)
        with torch.no_grad():
            for value, vector in zip(values.clamp(min=0.0)[:M], vectors.T[:M], strict=False):
                for signed in (vector, -vector):
                    h = torch.stack([signed, value.expand(graph.num_nodes)], 1)
                    for number, layer in enumerate(encoder.layers):
                        h = h.relu() if number else h
                        h = layer.net(h + layer.epsilon * h + adjacency @ h)
                    total += h
            return self.invariant(graph, Encoding(encoder.rho(total))).node.numpy(), None


def test_signs_change_rounding_only() -> None:
    parts = [from_networkx(nx.gnm_random_graph(9, 14, seed=seed)) for seed in range(3)]
    graph = graph_of(*parts)
    encoder = randomize_(SignNet(3, 6)).eval()
    found = encoder.precompute(graph)
    flipped = {name: -rows if name.startswith("node") else rows for name, rows in found.items()}
    torch.testing.assert_close(*(encoder(None, graph, precomputed=each).node for each in (found, flipped)))
    generator = torch.Generator().manual_seed(0)  # it draws nothing
    assert torch.equal(encoder(None, graph, generator=generator).node, encoder(None, graph).node)
