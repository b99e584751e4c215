"""Tests for encoders that read the directions of edges."""

from __future__ import annotations

import networkx as nx
import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tg_lpe.encoders import Encoder, Encoding
from tg_lpe.graph.graph import make_graph
from tg_lpe.testing.encoder_test_case import EncoderTestCase
from tg_lpe.testing.graphs import Graph, few, graphs


@st.composite
def arcs(draw: st.DrawFn, graph: Graph) -> tuple[Tensor, Tensor]:
    """Draw a list of each edge in one direction or in both, some repeated, and its weights."""
    rows = []
    for (u, v), weight in zip(graph.edges, graph.weights, strict=True):
        ways = draw(st.sampled_from([[(u, v)], [(v, u)], [(u, v), (v, u)], [(v, u), (v, u)]]))
        rows += [(*ends, weight) for ends in ways]
    rows = draw(st.permutations(rows))
    index = torch.tensor([row[:2] for row in rows], dtype=torch.int64).reshape(-1, 2).T.contiguous()
    return index, torch.tensor([row[2] for row in rows], dtype=torch.float64)


def dense_adjacency(num_nodes: int, index: Tensor, weight: Tensor) -> np.ndarray:
    """Return ``A``, whose entry ``(u, v)`` is the weight of the edge from ``u`` to ``v``."""
    out = np.zeros((num_nodes, num_nodes))
    for (u, v), w in zip(index.T.tolist(), weight.tolist(), strict=True):
        out[u, v] = 0.0 if u == v else w
    return out


class DirectedEncoderTestCase(EncoderTestCase):
    """:class:`EncoderTestCase` for ``directed`` encoders, with additional tests of edges listed in one direction.

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

    def invariant(self, graph: Graph, encoding: Encoding) -> Encoding:
        both = dense_adjacency(graph.num_nodes, *graph.both_ways())
        return encoding._replace(node=self.directed_invariant(both, encoding.node))

    def pair_oracle(self, graph: Graph) -> np.ndarray:
        return self.directed_oracle(dense_adjacency(graph.num_nodes, *graph.both_ways()))[1]

    def check_values(self, graph: Graph) -> None:
        self.check_directed(graph.num_nodes, *graph.both_ways())

    def check_directed(self, num_nodes: int, index: Tensor, weight: Tensor) -> None:
        """Compare nodes, edges and pairs with the oracle."""
        encoder, adjacency = self.double(), dense_adjacency(num_nodes, index, weight)
        node, pairs = (torch.from_numpy(values) for values in self.directed_oracle(adjacency))
        graph = make_graph(index, num_nodes, edge_weight=weight)
        got, values = encoder.encode_with_pairs(graph, graph.pairs)
        self.close(self.directed_invariant(adjacency, got.node), node)
        self.close(values, pairs.reshape(values.shape), 1e-10)
        assert got.edge is not None
        expected = pairs[tuple(index)]
        self.close(got.edge, expected.reshape(got.edge.shape), 1e-10)

    @few
    @given(data=st.data())
    def test_values_of_directed_graphs(self, data: st.DataObject) -> None:
        graph = data.draw(graphs(exponents=self.exponents))
        self.check_directed(graph.num_nodes, *data.draw(arcs(graph)))

    @few
    @given(data=st.data())
    def test_relabelling_of_directed_graphs(self, data: st.DataObject) -> None:
        graph, encoder = data.draw(graphs(min_nodes=2, exponents=self.exponents)), self.double()
        index, weight = data.draw(arcs(graph))
        label = torch.tensor(data.draw(st.permutations(range(graph.num_nodes))))
        got, expected = self.of(encoder, graph, label[index], weight), self.of(encoder, graph, index, weight)
        adjacency = dense_adjacency(graph.num_nodes, index, weight)
        first, second = (self.directed_invariant(adjacency, node) for node in (got.node[label], expected.node))
        self.close(first, second)
        assert got.edge is not None and expected.edge is not None
        self.close(got.edge, expected.edge)

    @few
    @given(data=st.data())
    def test_a_batch_of_directed_graphs(self, data: st.DataObject) -> None:
        parts, encoder = data.draw(st.lists(graphs(exponents=self.exponents), min_size=1, max_size=4)), self.double()
        listed = [data.draw(arcs(part)) for part in parts]
        sizes = [part.num_nodes for part in parts]
        first = np.cumsum([0, *sizes])
        index = torch.cat([edges + int(begin) for (edges, _), begin in zip(listed, first[:-1], strict=True)], 1)
        batch = torch.arange(len(parts)).repeat_interleave(torch.tensor(sizes))
        weight = torch.cat([weights for _, weights in listed])
        whole = encoder.encode(make_graph(index, sum(sizes), edge_weight=weight, batch=batch, num_graphs=len(parts)))
        singles = [self.of(encoder, part, *edges) for part, edges in zip(parts, listed, strict=True)]
        for part, edges, got, single in zip(parts, listed, whole.node.split(sizes), singles, strict=True):
            adjacency = dense_adjacency(part.num_nodes, *edges)
            self.close(self.directed_invariant(adjacency, got), self.directed_invariant(adjacency, single.node))
        assert whole.edge is not None
        self.close(whole.edge, torch.cat([single.edge for single in singles if single.edge is not None]))

    def of(self, encoder: Encoder, graph: Graph, index: Tensor, weight: Tensor) -> Encoding:
        return encoder.encode(make_graph(index, graph.num_nodes, edge_weight=weight))

    def test_directions_are_told(self) -> None:
        """Encode a node of a directed cycle with its next and its previous node: the pairs must differ."""
        encoder, index = self.double(), torch.tensor(list(nx.cycle_graph(5, create_using=nx.DiGraph).edges)).T
        following, previous = encoder.encode_pairs(make_graph(index, 5), torch.tensor([[0, 0], [1, 4]]))
        assert float((following - previous).abs().max()) > 0.1
