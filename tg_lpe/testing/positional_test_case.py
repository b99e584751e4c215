"""Tests for encoders whose columns are leading eigenvectors of each component."""

from __future__ import annotations

from typing import ClassVar

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from tg_lpe.encoders import Encoder, Encoding
from tg_lpe.graph.graph import make_graph
from tg_lpe.testing.encoder_test_case import GRAPH, EncoderTestCase
from tg_lpe.testing.graphs import Graph, corner_cases, from_networkx, normal


class PositionalEncoderTestCase(EncoderTestCase):
    """:class:`EncoderTestCase` for encoders whose columns are the leading eigenvectors of each component.

    These are the eigenvectors of ``I - D^-1/2 A D^-1/2`` in ascending order without the trivial one, with entries of
    mean square one, up to sign and up to a rotation if eigenvalues repeat. On small graphs, projectors on whole
    eigenspaces are compared with numpy's. On larger graphs, the spanned space must not depend on labels and seeds. Edge
    encodings are not compared, because the last column may split an eigenspace that they read.

    A subclass implements :meth:`make` and returns an encoder of at least two columns.
    """

    tolerance: ClassVar[float] = 1e-6
    captured: ClassVar[float] = 0.99
    """Least share of the spanned space that must be equal on large graphs."""

    def make(self, seed: int = 0) -> Encoder:
        """Return a new encoder; ``seed`` is the seed of its random columns, if it has any."""
        raise NotImplementedError

    @property
    def k(self) -> int:
        return self.make().out_channels

    def spaces(self, graph: Graph) -> list[tuple[list[int], list[list[int]]]]:
        """Return the nodes of each component, and its columns that span whole eigenspaces, by numpy's eigenvalues."""
        components, k = [], self.k
        for part in nx.connected_components(graph.networkx()):
            nodes = sorted(part)
            spaces: list[list[int]] = []
            values = np.linalg.eigvalsh(graph.normalized_laplacian()[np.ix_(nodes, nodes)])[1:]
            for column, value in enumerate(values):
                if spaces and value - values[spaces[-1][-1]] < 1e-4:
                    spaces[-1].append(column)
                else:
                    spaces.append([column])
            components.append((nodes, [space for space in spaces if space[-1] < k]))
        return components

    def invariant(self, graph: Graph, encoding: Encoding) -> Encoding:
        out = encoding.node.new_zeros(graph.num_nodes, graph.num_nodes, self.k)
        for nodes, spaces in self.spaces(graph):
            for number, space in enumerate(spaces):
                v = encoding.node[nodes][:, space]
                out[np.ix_(nodes, nodes, [number])] = (v @ v.mT / len(nodes)).unsqueeze(-1)
        return Encoding(out.flatten(1), None)

    def oracle(self, graph: Graph) -> tuple[np.ndarray, np.ndarray | None]:
        out = np.zeros((graph.num_nodes, graph.num_nodes, self.k))
        for nodes, spaces in self.spaces(graph):
            _, vectors = np.linalg.eigh(graph.normalized_laplacian()[np.ix_(nodes, nodes)])
            for number, space in enumerate(spaces):
                v = vectors[:, 1:][:, space]
                out[np.ix_(nodes, nodes, [number])] = (v @ v.T)[..., None]
        return out.reshape(graph.num_nodes, self.k * graph.num_nodes), None

    def test_values_of_corner_cases(self) -> None:
        """Use unit weights, because eigenvalues of widely spread weights are too close to compare projectors."""
        for graph in [GRAPH, *corner_cases()]:
            self.check_values(Graph(graph.num_nodes, graph.edges, [1.0] * len(graph.edges)))

    def large(self) -> Graph:
        """Return a graph of ``k + 1`` communities, whose first ``k`` eigenvalues are separate from the others."""
        return from_networkx(nx.random_partition_graph([60] * (self.k + 1), 0.25, 0.01, seed=0))

    def share(self, first: Tensor, other: Tensor) -> float:
        """Return the share of the space of some columns that other columns span."""
        bases = (torch.linalg.qr(columns).Q for columns in (first, other))
        return float((next(bases).mT @ next(bases)).square().sum() / self.k)

    def test_relabelling_a_large_graph_keeps_the_space(self) -> None:
        graph, encoder = self.large(), self.double()
        label = np.random.default_rng(0).permutation(graph.num_nodes)
        index, weight = graph.both_ways()
        moved = self.run(encoder, graph, torch.from_numpy(label)[index], weight)
        assert self.share(moved.node[label], self.alone(encoder, graph).node) > self.captured

    def test_another_seed_keeps_the_space(self) -> None:
        graph = self.large()
        first, other = (self.alone(self.make(seed).double().eval(), graph).node for seed in (0, 1))
        assert self.share(first, other) > self.captured

    def test_components_do_not_mix(self) -> None:
        parts, encoder = [self.large(), GRAPH, Graph(1, [], [])], self.double()
        joined = nx.disjoint_union_all([part.networkx() for part in parts])
        weights = [float(joined.edges[edge]["weight"]) for edge in joined.edges]
        whole = self.alone(encoder, Graph(joined.number_of_nodes(), list(joined.edges), weights))
        alone = torch.cat([self.alone(encoder, part).node for part in parts])
        torch.testing.assert_close(whole.node, alone, rtol=self.tolerance, atol=self.tolerance)

    def test_gradients(self) -> None:
        """Test gradients of the projector on all columns, which is unique even if single columns are not."""
        encoder, graph = self.double(), from_networkx(nx.connected_watts_strogatz_graph(40, 4, 0.2, seed=1))
        if not self.learned:
            assert not any(parameter.requires_grad for parameter in encoder.parameters())
            return
        index, weight = graph.edge_index(), normal(len(graph.edges), seed=0).exp()
        values = [weight.requires_grad_(), *encoder.parameters()]
        towards = normal(graph.num_nodes, graph.num_nodes, seed=1)

        def loss() -> Tensor:
            node = encoder(None, make_graph(index, graph.num_nodes, edge_weight=weight)).node
            return (towards * (node @ node.mT)).sum()

        slopes = torch.autograd.grad(loss(), values)
        for number, (value, slope) in enumerate(zip(values, slopes, strict=True)):
            step = 1e-4 * normal(*value.shape, seed=number)
            with torch.no_grad():
                ends = [loss() for sign in (1, -2) if value.add_(sign * step) is not None]
                value.add_(step)
            torch.testing.assert_close(ends[0] - ends[1], 2 * (slope * step).sum(), rtol=1e-4, atol=1e-8)
