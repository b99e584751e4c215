"""PPGN agrees with dense matrix products, and tells apart the graphs that it should."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import Graph, from_networkx, graph_of, randomize_, rook_and_shrikhande
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import Data

import tg_lpe
from tg_lpe import Encoder
from tg_lpe.encoders import PPGN
from tg_lpe.testing import EncoderTestCase
from tg_lpe.theory import wl


def dense_features(encoder: Any, graph: Graph) -> Tensor:
    """Features of all pairs, ``[n, n, hidden_channels]``, sum by sum."""
    n, matrix = graph.num_nodes, torch.from_numpy(graph.laplacian())
    adjacency = torch.diag(torch.diagonal(matrix)) - matrix
    degree = torch.diagonal(matrix)
    scale = torch.where(degree > 0, degree, 1.0) ** -0.5
    given = [torch.eye(n, dtype=torch.float64), (adjacency > 0).double(), torch.outer(scale, scale) * adjacency]
    h = encoder.embedding(torch.stack(given, 2))

    def bent(z: Tensor) -> Tensor:
        return functional.gelu(z) if encoder.frequency is None else torch.sin(encoder.frequency * z)

    for layer in encoder.layers:
        normal = layer.norm(h)
        a, b = bent(layer.factors(normal)).split(h.size(2), 2)
        product = sum(a[:, w, None] * b[None, w] for w in range(n)) / n
        h = h + layer.second(bent(layer.first(torch.cat([normal, product], 2))))
    return encoder.norm(h)


class TestPPGN(EncoderTestCase):
    learned = True
    num_layers = 2
    frequency: float | None = None

    def make(self) -> Encoder:
        return PPGN(3, 2, 4, hidden_channels=4, num_layers=self.num_layers, frequency=self.frequency)

    def oracle(self, graph: Graph) -> tuple[np.ndarray, np.ndarray]:
        encoder: Any = self.double()
        if not graph.num_nodes:
            return np.zeros((0, 3)), np.zeros((0, 2))
        with torch.no_grad():
            h = dense_features(encoder, graph)
            node = encoder.node(torch.cat([h.diagonal(dim1=0, dim2=1).T, h.mean(1), h.mean(0)], 1))
            both = [h[u, v] + h[v, u] for u, v in graph.edges]
            edge = encoder.edge(torch.stack(both)) if both else torch.zeros(0, 2)
        return node.numpy(), edge.numpy()

    def pair_oracle(self, graph: Graph) -> np.ndarray | None:
        encoder: Any = self.double()
        with torch.no_grad():
            return encoder.pair(dense_features(encoder, graph)).numpy() if graph.num_nodes else None


class TestDeepPPGN(TestPPGN):
    num_layers = 5
    test_gradients = None


class TestPPGNWithSines(TestPPGN):
    frequency = 2.0


def test_it_tells_apart_what_2_fwl_does() -> None:
    encoder = randomize_(PPGN(4, 0, hidden_channels=8)).double()
    for one, other, apart in (
        (nx.cycle_graph(6), nx.disjoint_union(nx.cycle_graph(3), nx.cycle_graph(3)), True),
        (nx.circular_ladder_graph(5), nx.circulant_graph(10, [1, 5]), True),
        (*rook_and_shrikhande(), False),
    ):
        parts = [from_networkx(graph) for graph in (one, other)]
        data = [Data(edge_index=part.edge_index(), num_nodes=part.num_nodes) for part in parts]
        assert wl.distinguishes(*data, "2-FWL") == apart and not wl.distinguishes(*data, "1-WL")
        with torch.no_grad():
            sums = [encoder(None, graph_of(part)).node.sum(0) for part in parts]
        gap = float((sums[0] - sums[1]).abs().max() / sums[0].abs().max())
        assert (gap > 1e-6) if apart else (gap < 1e-12)


def test_refuses() -> None:
    with pytest.raises(ValueError, match="frequency must"):
        PPGN(frequency=0.0)
    two = graph_of(Graph(2, [(0, 1)], [1.0]), Graph(2, [(0, 1)], [1.0]))
    with pytest.raises(ValueError, match="it encodes no pairs"):
        PPGN()(None, two, pairs=torch.tensor([[0], [1]]))
    with pytest.raises(ValueError, match="takes graphs of up to 1,024 nodes, got 1,025"):
        PPGN()(None, graph_of(Graph(1025, [], [])))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-300, 1e-39, 1.0, 3e38, 1e300])
def test_the_scale_of_the_weights_is_nothing(scale: float, dtype: torch.dtype) -> None:
    index, weight = torch.tensor([[0, 1, 2], [1, 2, 0]]), torch.tensor([1.0, 0.5, 0.25], dtype=torch.float64)
    encoder = PPGN(3, 2).to(dtype)
    with torch.no_grad():
        expected = encoder(None, tg_lpe.Graph(index, 3, edge_weight=weight))
        found = encoder(None, tg_lpe.Graph(index, 3, edge_weight=weight * scale))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-12)


def test_an_edge_of_weight_zero_is_none() -> None:
    index = torch.tensor([[0, 1, 0], [1, 2, 2]])
    with torch.no_grad():
        encoder = PPGN(3)
        zero = encoder(None, tg_lpe.Graph(index, 3, edge_weight=torch.tensor([1.0, 2.0, 0.0]))).node
        without = encoder(None, tg_lpe.Graph(index[:, :2], 3, edge_weight=torch.tensor([1.0, 2.0]))).node
    assert torch.equal(zero, without)
