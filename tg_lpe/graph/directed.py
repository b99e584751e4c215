"""Matrices of directed graphs: walks along, against and both ways; the magnetic Laplacian.

A directed edge is one that is listed. Its weight is that of its undirected edge, whose listed weights agree; listed
several times, it is the same edge; self-loops and edges of weight zero are absent.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tg_lpe.graph.buckets import PaddedRows, matrices
from tg_lpe.graph.graph import Graph

SPARSE_NODES = 256
"""Nodes of a graph from which on a walk's matrix is sparse; its powers are not."""


class DirectedMatrices:
    """The adjacency matrices of the graphs of a batch, stacked by size, and entries of others that lie as they do.

    Args:
        graph: the graph or batch.

    Attributes:
        adjacency: ``A``, float64 ``[num_graphs, n, n]`` for each size; ``A_uv`` is the weight of the edge from ``u`` to
            ``v``, zero without one. Zero on the diagonal.
        rows: where the nodes of the graphs are.
    """

    def __init__(self, graph: Graph) -> None:
        self.rows: PaddedRows = graph.padded(dense_nodes=0, max_padding=1.0)
        self._first_entry, self._local = self.rows.matrix_rows(), graph.local_index
        one = torch.ones((), dtype=torch.float64, device=graph.device)
        weight = one.expand(graph.num_edges) if graph.conductance is None else graph.conductance.detach().to(one)
        size = sum(bucket.num_pairs for bucket in self.rows.buckets)
        at = self._entry(*graph.edge_index.long())
        entries = one.new_zeros(size).index_put((at,), graph.spread_to_directed(weight))
        self.adjacency = matrices(self.rows.buckets, entries)

    def entries(self, parts: list[Tensor], first: Tensor, second: Tensor) -> Tensor:
        """Entries ``(first, second)`` of matrices that are stacked as :attr:`adjacency`, ``[num_entries]``."""
        if not parts:
            return self._first_entry.new_zeros(0, dtype=torch.float64)
        flat = [part.reshape(-1) for part in parts]
        return (torch.cat(flat) if len(flat) > 1 else flat[0]).index_select(0, self._entry(first, second))

    def _entry(self, first: Tensor, second: Tensor) -> Tensor:
        return self._first_entry.index_select(0, first) + self._local.index_select(0, second)


def directed_walks(graph: Graph, steps: int, first: Tensor, second: Tensor) -> Tensor:
    r"""Compute where random walks along, against and both ways are after 1, 2, ... ``steps`` steps.

    .. math:: F^t, \; B^t, \; F B F \cdots, \qquad F = D_\text{out}^{-1} A , \quad B = D_\text{in}^{-1} A^T .

    A walk ends at a node that it cannot leave.

    Args:
        graph: the graph or batch.
        steps: number of steps.
        first, second: nodes that the walks start from, and nodes at which they may be then, int64 ``[num_entries]``.

    Returns:
        Probabilities ``[num_entries, 3 * steps]``, float64: of walks along the edges, against them, and along and
        against them in turn.
    """
    stacks = DirectedMatrices(graph)
    # Transposed, such that a further step is a product from the left, with a sparse matrix where graphs are large.
    along = [_step(a) for a in stacks.adjacency]
    against = [_step(a.mT) for a in stacks.adjacency]
    found = []
    for turns in ([along], [against], [along, against]):
        states = [torch.eye(a.size(1)).to(a).expand_as(a) for a in stacks.adjacency]
        for step in range(steps):
            turn = turns[step % len(turns)]
            states = [_product(matrix, state) for matrix, state in zip(turn, states, strict=True)]
            found.append(stacks.entries(states, second, first))
    return torch.stack(found, 1)


def _step(adjacency: Tensor) -> Tensor:
    """``(D^-1 A)^T``, sparse ``[n, n]`` for one large graph."""
    degree = adjacency.sum(2, keepdim=True)
    matrix = (adjacency / degree.masked_fill(degree == 0, 1.0)).mT
    return matrix[0].to_sparse() if len(matrix) == 1 and matrix.size(1) > SPARSE_NODES else matrix


def _product(matrix: Tensor, state: Tensor) -> Tensor:
    return torch.sparse.mm(matrix, state[0]).unsqueeze(0) if matrix.is_sparse else torch.bmm(matrix, state)
