"""Extend a graph so that entries of its matrix polynomials at any pairs of nodes can be read at edges."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tg_lpe.graph.graph import Graph


class Cover:
    r"""Add pairs of nodes to a graph as edges of zero matrix entries; with ``potential``, also double its nodes.

    Then real symmetric matrices represent Hermitian ones: ``H = R + i J`` is represented by

    .. math:: \begin{pmatrix} R & -J \\ J & R \end{pmatrix} .

    Polynomials of this matrix represent the same polynomials of ``H``. Node ``2 u`` of the cover stands for the real
    part of node ``u``, ``2 u + 1`` for the imaginary part.

    Args:
        graph: the graph or batch.
        pairs: the pairs to read, ``[2, num_pairs]``; a pair may be an edge, or a node with itself.
        potential: ``q``: entries are multiplied by ``exp(i 2 pi q)`` along an edge that is listed in one direction. If
            absent, matrices are real and nodes are not doubled.

    Attributes:
        graph: the cover.
    """

    def __init__(self, graph: Graph, pairs: Tensor, potential: float | None = None) -> None:
        size = self._size = 1 if potential is None else 2
        angle = torch.zeros(1)
        if potential is not None:
            row, col = graph.edge_index
            listed = graph.tail.new_zeros(2, graph.num_edges + 1)  # self-loops, numbered -1, go to the last column
            listed[(row > col).long(), graph.undirected_index] = 1
            angle = 2 * math.pi * potential * (listed[0] - listed[1])[:-1].double()  # 0 for edges listed both ways
        self._parts = torch.stack([angle.cos(), angle.sin(), angle.cos(), -angle.sin()][: size**2])
        part = torch.tensor([[0, 1, 1, 0], [0, 0, 1, 1]], device=graph.device)[:, : size**2, None]
        ends = size * torch.stack([graph.tail, graph.head]).unsqueeze(1) + part
        asked = size * pairs.unsqueeze(1) + part[:, :size]
        listed, batch = torch.cat([ends.flatten(1), asked.flatten(1)], 1), graph.batch.repeat_interleave(size)
        self.graph = Graph(listed, size * graph.num_nodes, batch=batch, num_graphs=graph.num_graphs)
        edges, at_pairs = self.graph.undirected_index.split([ends[0].numel(), asked[0].numel()])
        self._edges, self._asked, self._nodes = edges.view(size**2, -1), at_pairs.view(size, -1), asked[0, 0]

    def matrix(self, moduli: Tensor) -> Tensor:
        """Return entries of the cover's matrix from absolute values at the edges, ``[num_filters, num_edges]``."""
        entries = (moduli.unsqueeze(1) * self._parts.to(moduli)).flatten(1)
        zero = entries.new_zeros(entries.size(0), self.graph.num_edges)
        return zero.index_copy(1, self._edges.flatten(), entries)

    def read(self, nodes: Tensor, edges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Read values at the original nodes, undirected edges and pairs from values of :attr:`graph`.

        Returns:
            Values at the nodes, ``[num_nodes, ...]``; at the edges, from the smaller node to the larger, ``[num_edges,
            ...]``, and at the pairs. With ``potential``, these are real parts followed by imaginary parts.
        """
        size, width = self._size, self._size * nodes.size(1)
        asked, first = self._asked.mT.flatten(), self._nodes.repeat_interleave(size)
        asked = torch.where(asked < 0, first + len(edges), asked)  # a pair of a node with itself is read at the node
        at_edges = edges.index_select(0, self._edges[:size].mT.flatten())
        at_pairs = torch.cat([edges, nodes]).index_select(0, asked)
        return nodes[::size], at_edges.reshape(-1, width), at_pairs.reshape(-1, width)
