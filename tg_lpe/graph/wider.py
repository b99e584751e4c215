"""Extend a graph so that entries of its matrix polynomials at arbitrary pairs of nodes can be read at edges."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tg_lpe.graph.graph import Graph


class WithPairs:
    """Add pairs of nodes to a graph as edges; pairs that were no edges have zero matrix entries.

    Args:
        graph: the graph or batch.
        pairs: the pairs to read, ``[2, num_pairs]``; a pair may be an edge, or a node with itself.

    Attributes:
        graph: the graph with the pairs as edges.
    """

    def __init__(self, graph: Graph, pairs: Tensor) -> None:
        listed = torch.cat([torch.stack([graph.tail, graph.head]), pairs], 1)
        self.graph = Graph(listed, graph.num_nodes, batch=graph.batch, num_graphs=graph.num_graphs)
        self._edges, self._asked = self.graph.undirected_index.split([graph.num_edges, pairs.size(1)])
        self._nodes = pairs[0]

    def matrix(self, entries: Tensor) -> Tensor:
        """Copy entries at the original edges, ``[num_filters, num_edges]``, to the edges of :attr:`graph`."""
        zero = entries.new_zeros(entries.size(0), self.graph.num_edges)
        return zero.index_copy(1, self._edges, entries)

    def read(self, nodes: Tensor, edges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Read values at the original nodes, undirected edges and pairs from values of :attr:`graph`."""
        return nodes, edges.index_select(0, self._edges), _at(nodes, edges, self._asked, self._nodes)


class MagneticCover:
    r"""Double the nodes of a directed graph, so that real symmetric matrices represent its Hermitian ones.

    A Hermitian matrix ``H = R + i J`` is represented by

    .. math:: \begin{pmatrix} R & -J \\ J & R \end{pmatrix} .

    Polynomials of this matrix represent the same polynomials of ``H``. Node ``2 u`` of the cover stands for the real
    part of node ``u``, ``2 u + 1`` for the imaginary part.

    Args:
        graph: the graph or batch.
        pairs: pairs of nodes to read in addition to the undirected edges, ``[2, num_pairs]``.
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
        """Return entries of the cover's matrix from absolute values at the edges, ``[num_filters, num_edges]``."""
        entries = (moduli.unsqueeze(1) * self._parts.to(moduli)).flatten(1)
        zero = entries.new_zeros(entries.size(0), self.graph.num_edges)
        return zero.index_copy(1, self._edges.flatten(), entries)

    def read(self, nodes: Tensor, edges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Read values at the original nodes, undirected edges and pairs from values of :attr:`graph`.

        Returns:
            Real values at the nodes, ``[num_nodes, ...]``; real parts followed by imaginary parts at the edges, from
            the smaller node to the larger, ``[num_edges, 2 * ...]``, and at the pairs.
        """
        at_edges = edges.index_select(0, self._edges[::2].mT.flatten())
        at_pairs = _at(nodes, edges, self._asked.mT.flatten(), self._nodes.repeat_interleave(2))
        width = 2 * nodes.size(1)
        return nodes[::2], at_edges.reshape(-1, width), at_pairs.reshape(-1, width)


def directions(graph: Graph) -> Tensor:
    """Return the direction in which each undirected edge is listed.

    Returns:
        Directions, int64 ``[num_edges]``. 1 is from the smaller node to the larger, -1 from the larger to the smaller,
        0 both ways.
    """
    row, col = graph.edge_index
    listed = graph.tail.new_zeros(2, graph.num_edges + 1)  # self-loops, numbered -1, go to the last column
    listed[(row > col).long(), graph.undirected_index] = 1
    return (listed[0] - listed[1])[:-1]


def _at(nodes: Tensor, edges: Tensor, asked: Tensor, first: Tensor) -> Tensor:
    """Read values of pairs at the edges ``asked``, or at the nodes ``first`` where ``asked`` is -1."""
    return torch.cat([edges, nodes]).index_select(0, torch.where(asked < 0, first + len(edges), asked))
