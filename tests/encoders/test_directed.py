"""Encoders of directed graphs against dense algebra."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch

from tg_lpe import Encoder, Incidence
from tg_lpe.encoders import DirectedWalk
from tg_lpe.testing.directed_test_case import DirectedEncoderTestCase


def transitions(adjacency: np.ndarray) -> np.ndarray:
    """``D^-1 A``, with a row of zeros for a node that no edge leaves."""
    degree = adjacency.sum(1)
    return adjacency / np.where(degree > 0, degree, 1.0)[:, None]


class TestDirectedWalk(DirectedEncoderTestCase):
    def make(self) -> Encoder:
        return DirectedWalk(4)

    def directed_oracle(self, adjacency: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        along, against = transitions(adjacency), transitions(adjacency.T)
        found = [np.linalg.matrix_power(walk, step) for walk in (along, against) for step in range(1, 5)]
        turns = along, along @ against, along @ against @ along, along @ against @ along @ against
        values = np.stack([*found, *turns], -1)
        return np.einsum("iit->it", values), values

    def test_a_large_graph(self) -> None:
        """Its matrices are sparse."""
        graph = nx.gnp_random_graph(300, 0.02, seed=0, directed=True)
        index = torch.tensor(list(graph.edges)).T
        self.check_directed(300, index, torch.ones(index.size(1), dtype=torch.float64))

    def test_turned_round(self) -> None:
        index = torch.tensor(list(nx.gnp_random_graph(20, 0.2, seed=0, directed=True).edges)).T
        one, other = (self.double().encode(Incidence(i, 20)).node for i in (index, index.flip(0)))
        self.close(one[:, :8], other[:, [4, 5, 6, 7, 0, 1, 2, 3]])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DirectedWalk(0), "steps"),
        (lambda: DirectedWalk(2, edge_out_channels=2), "edge_out_channels"),
        (lambda: DirectedWalk(2)(None, torch.zeros(2, 0, dtype=torch.int64), num_nodes=9000), "8,192 nodes"),
    ],
)
def test_out_of_range(make, message) -> None:
    with pytest.raises(ValueError, match=message):
        make()
