"""R-PEARL agrees with a dense implementation, up to its random draws."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import torch
from helpers import Graph, batch_of, from_networkx, randomize_

import tg_lpe
from tg_lpe import Encoder
from tg_lpe.encoders import RPEARL
from tg_lpe.ops.random import counter_normal
from tg_lpe.testing import EncoderTestCase


class TestRPEARL(EncoderTestCase):
    learned = True
    equivariant = False  # up to the draw
    exponents = (-1.0, 1.0)

    def make(self) -> Encoder:
        return RPEARL(3, samples=5, powers=4, hidden_channels=4, seed=7)

    def oracle(self, graph: Graph) -> tuple[np.ndarray, None]:
        encoder: Any = self.double()
        degree = np.diag(graph.laplacian())
        scaled = torch.from_numpy(np.diag(degree > 0) - graph.normalized_laplacian())
        adjacency = torch.from_numpy(np.diag(degree) - graph.laplacian())
        total = torch.zeros(graph.num_nodes, 3, dtype=torch.float64)
        with torch.no_grad():
            for q in counter_normal(7, graph.num_nodes, 5, total).T:
                h = encoder.filters(torch.stack([torch.linalg.matrix_power(scaled, t) @ q for t in range(4)], 1))
                for number, layer in enumerate(encoder.layers):
                    h = h.relu() if number else h
                    h = layer.net(h + layer.epsilon * h + adjacency @ h)
                total += h / 5
        return total.numpy(), None


def test_renumbered_nodes_differ_by_the_draw_alone() -> None:
    """The difference falls with the root of the number of samples; a generator draws new ones, a seed the same."""
    graph = from_networkx(nx.gnm_random_graph(12, 20, seed=0))
    index, label = graph.edge_index(), torch.randperm(12, generator=torch.Generator().manual_seed(1))
    errors = []
    for samples in (16, 2048):
        encoder = randomize_(RPEARL(4, samples=samples)).double().eval()
        first, moved = (encoder(None, tg_lpe.Graph(ends, 12)).node.detach() for ends in (index, label[index]))
        errors.append(float((first - moved[label]).square().mean().sqrt()))
    assert 5 < errors[0] / errors[1] < 50
    draw = [encoder(None, tg_lpe.Graph(index, 12), generator=torch.Generator().manual_seed(s)).node for s in (0, 0, 1)]
    assert torch.equal(draw[0], draw[1]) and not torch.equal(draw[0], draw[2])


def test_gradients_reach_edge_weights() -> None:
    graph = batch_of([from_networkx(nx.gnm_random_graph(5, 6, seed=2))])
    encoder = randomize_(RPEARL(2, samples=3, powers=3, hidden_channels=4)).double()

    def of(weight: torch.Tensor) -> torch.Tensor:
        both = torch.cat([weight, weight])
        return encoder(None, tg_lpe.Graph(graph.edge_index, 5, edge_weight=both)).node

    assert torch.autograd.gradcheck(of, torch.linspace(0.5, 2.0, 6, dtype=torch.float64, requires_grad=True))
