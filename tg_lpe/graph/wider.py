"""Graphs with more edges or nodes, whose polynomials have entries that are asked for of another graph."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tg_lpe.graph.graph import Graph


class WithPairs:
    """A graph in which pairs of nodes are edges too, whose entries in a matrix are zero where they were none.

    Args:
        graph: the graph or batch.
        pairs: pairs of nodes whose entries are asked for, ``[2, num_pairs]``; some may be edges, or a node with itself.

    Attributes:
        graph: the graph with more edges.
    """

    def __init__(self, graph: Graph, pairs: Tensor) -> None:
        listed = torch.cat([torch.stack([graph.tail, graph.head]), pairs], 1)
        self.graph = Graph(listed, graph.num_nodes, batch=graph.batch, num_graphs=graph.num_graphs)
        self._edges, self._asked = self.graph.undirected_index.split([graph.num_edges, pairs.size(1)])
        self._nodes = pairs[0]

    def matrix(self, entries: Tensor) -> Tensor:
        """Entries at the edges of the graph, ``[num_filters, num_edges]``, at those of :attr:`graph`."""
        zero = entries.new_zeros(entries.size(0), self.graph.num_edges)
        return zero.index_copy(1, self._edges, entries)

    def read(self, nodes: Tensor, edges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values at the graph's nodes and undirected edges and at the pairs, from those of :attr:`graph`."""
        return nodes, edges.index_select(0, self._edges), _at(nodes, edges, self._asked, self._nodes)


class MagneticCover:
    r"""The graph of two nodes for each, whose symmetric matrices stand for Hermitian ones of a directed graph.

    ``H = R + i J`` and the real symmetric

    .. math:: \begin{pmatrix} R & -J \\ J & R \end{pmatrix}

    have the same polynomials: what computes those of symmetric matrices computes those of Hermitian ones. Node ``2 u``
    of the cover stands for the real part of node ``u``, ``2 u + 1`` for the imaginary one.

    Args:
        graph: the graph or batch.
        pairs: pairs of nodes whose entries are asked for, ``[2, num_pairs]``, besides the undirected edges.
        potential: ``q``: entries are multiplied by ``exp(i 2 pi q)`` along an edge that is listed in one direction.

    Attributes:
        graph: the cover.
    """

    def __init__(self, graph: Graph, pairs: Tensor, potential: float) -> None:
        num_edges, num_pairs = graph.num_edges, pairs.size(1)
        ends = torch.stack([graph.tail, graph.head])
        places = [(ends, 0, 0), (ends, 1, 1), (ends, 1, 0), (ends, 0, 1), (pairs, 0, 0), (pairs, 1, 0)]
        listed = [torch.stack([2 * at[0] + row, 2 * at[1] + column]) for at, row, column in places]
        batch = graph.batch.unsqueeze(1).expand(-1, 2).flatten()
        self.graph = Graph(torch.cat(listed, 1), 2 * graph.num_nodes, batch=batch, num_graphs=graph.num_graphs)
        edges, asked = self.graph.undirected_index.split([4 * num_edges, 2 * num_pairs])
        self._edges, self._asked, self._nodes = edges.view(4, num_edges), asked.view(2, num_pairs), 2 * pairs[0]
        angle = 2 * math.pi * potential * directions(graph).double()
        self._parts = torch.stack([angle.cos(), angle.cos(), angle.sin(), -angle.sin()])

    def matrix(self, moduli: Tensor) -> Tensor:
        """Entries of the cover's matrix, from their absolute values at the edges, ``[num_filters, num_edges]``."""
        entries = (moduli.unsqueeze(1) * self._parts.to(moduli)).flatten(1)
        zero = entries.new_zeros(entries.size(0), self.graph.num_edges)
        return zero.index_copy(1, self._edges.flatten(), entries)

    def read(self, nodes: Tensor, edges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values at the graph's nodes and undirected edges and at the pairs, from those of :attr:`graph`.

        Returns:
            The real ones of the nodes, ``[num_nodes, ...]``; at the edges, read from the smaller node to the larger,
            ``[num_edges, 2 * ...]``, and at the pairs, real parts and then imaginary ones.
        """
        at_edges = edges.index_select(0, self._edges[::2].mT.flatten())
        at_pairs = _at(nodes, edges, self._asked.mT.flatten(), self._nodes.repeat_interleave(2))
        width = 2 * nodes.size(1)
        return nodes[::2], at_edges.reshape(-1, width), at_pairs.reshape(-1, width)


def directions(graph: Graph) -> Tensor:
    """For each undirected edge, whether it is listed along the order of its nodes, minus whether it is against it.

    Returns:
        int64 ``[num_edges]``, of -1, 0 and 1.
    """
    row, col = graph.edge_index
    listed = graph.tail.new_zeros(2, graph.num_edges + 1)  # the last column is that of self-loops, numbered -1
    listed[(row > col).long(), graph.undirected_index] = 1
    return (listed[0] - listed[1])[:-1]


def _at(nodes: Tensor, edges: Tensor, asked: Tensor, first: Tensor) -> Tensor:
    """Values at pairs: at the edges ``asked``, or where that is -1 at the nodes ``first``."""
    return torch.cat([edges, nodes]).index_select(0, torch.where(asked < 0, first + len(edges), asked))
