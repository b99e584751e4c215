"""Tests for encoders that read the directions of edges."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from tg_lpe.encoders import Encoding
from tg_lpe.graph.graph import make_graph
from tg_lpe.testing.encoder_test_case import EncoderTestCase
from tg_lpe.testing.graphs import Graph, directed_graphs


def dense_adjacency(graph: Graph) -> np.ndarray:
    """Return ``A``, whose entry ``(u, v)`` is the weight of the edge from ``u`` to ``v``."""
    out, (index, weight) = np.zeros((graph.num_nodes, graph.num_nodes)), graph.listing()
    out[tuple(index.numpy())] = weight.numpy()
    return out


class DirectedEncoderTestCase(EncoderTestCase):
    """:class:`EncoderTestCase` for ``directed`` encoders, on graphs with edges in one direction and in both.

    A subclass computes the encoding of a directed graph by dense algebra in :meth:`directed_oracle`. If the encoding
    has arbitrary choices, such as signs, :meth:`directed_invariant` returns a function of it without them.
    """

    def directed_oracle(self, adjacency: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compute :meth:`directed_invariant` of the nodes, and the encodings of pairs.

        Returns:
            Nodes ``[num_nodes, ...]`` and pairs ``[num_nodes, num_nodes, pair_out_channels]``; pairs with an edge have
            the edge's encoding.
        """
        raise NotImplementedError

    def directed_invariant(self, adjacency: np.ndarray, node: Tensor) -> Tensor:
        """Return a function of a node encoding without arbitrary choices; by default, the encoding."""
        return node

    # The rest is the same for all encoders.

    def strategy(self, **options: Any) -> st.SearchStrategy[Graph]:
        return directed_graphs(exponents=self.exponents, **options)

    def invariant(self, graph: Graph, encoding: Encoding) -> Encoding:
        return encoding._replace(node=self.directed_invariant(dense_adjacency(graph), encoding.node))

    def pair_oracle(self, graph: Graph) -> np.ndarray:
        return self.directed_oracle(dense_adjacency(graph))[1]

    def check_values(self, graph: Graph) -> None:
        """Compare nodes, edges and pairs with the oracle."""
        encoder, adjacency, (index, weight) = self.double(), dense_adjacency(graph), graph.listing()
        node, pairs = (torch.from_numpy(values) for values in self.directed_oracle(adjacency))
        made = make_graph(index, graph.num_nodes, edge_weight=weight)
        got = encoder(None, made, pairs=made.pairs)
        self.close(self.directed_invariant(adjacency, got.node), node)
        assert got.pair is not None
        self.close(got.pair, pairs.reshape(got.pair.shape), 1e-10)
        assert got.edge is not None
        expected = pairs[tuple(index)]
        self.close(got.edge, expected.reshape(got.edge.shape), 1e-10)

    def test_directions_are_told(self) -> None:
        """Encode a node of a directed cycle with its next and its previous node: the pairs must differ."""
        encoder, index = self.double(), torch.tensor(list(nx.cycle_graph(5, create_using=nx.DiGraph).edges)).T
        encoding = encoder(None, make_graph(index, 5), pairs=torch.tensor([[0, 0], [1, 4]]))
        following, previous = encoding.pair
        assert float((following - previous).abs().max()) > 0.1
