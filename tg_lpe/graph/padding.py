"""Batches of graphs padded to equal size, so that what concerns one graph is one matrix product.

Gram matrices, column norms and small dense operators belong to single graphs. In PyG's layout, where the nodes of a
batch are stacked, each of them would need a pass of scattered sums. Here graphs of similar size form a bucket,
``[num_graphs, k, max_nodes]``, the paper's own orientation ``Phi^T``, in which products of such small matrices run two
to three times faster than in the other. Padding is zero and stays zero: it stands for nodes without edges that start
at zero, so nothing leaks between graphs or out of the padding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from tg_lpe.graph.buckets import DENSE_NODES, MAX_ROWS, matrices
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.solvers import DENSE_LIMIT, is_dense
from tg_lpe.ops.polynomials import EdgePositions


class Operator(ABC):
    """A linear map of a bucket's ``Phi^T``, ``[num_graphs, k, max_nodes]``, to itself."""

    @abstractmethod
    def __call__(self, z: Tensor) -> Tensor:
        """Apply the map."""

    @abstractmethod
    def scaled(self, factor: Tensor) -> Operator:
        """The map times a factor per graph, ``[num_graphs, 1, 1]``."""


class MatrixOperator(Operator):
    """Products with small symmetric matrices ``[num_graphs, max_nodes, max_nodes]``."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    def __call__(self, z: Tensor) -> Tensor:
        return torch.bmm(z, self.matrix)

    def scaled(self, factor: Tensor) -> Operator:
        return MatrixOperator(self.matrix * factor)


class EdgeOperator(Operator):
    """``diag(s) L diag(s)`` by sums over the edges: ``O(num_edges k)``, for graphs of any size.

    Args:
        graph: the graphs of a bucket as one, ``num_graphs * max_nodes`` nodes.
        node_scale: ``s``, one for each of them.
        factor: a factor per graph, ``[num_graphs, 1, 1]``.
    """

    def __init__(self, graph: Graph, node_scale: Tensor, factor: Tensor | None = None) -> None:
        self.graph, self.node_scale, self.factor = graph, node_scale.unsqueeze(-1), factor

    def __call__(self, z: Tensor) -> Tensor:
        num_graphs, k, max_nodes = z.shape
        rows = self.node_scale * self.graph.laplacian(self.node_scale * z.mT.reshape(num_graphs * max_nodes, k))
        out = rows.view(num_graphs, max_nodes, k).mT
        return out if self.factor is None else out * self.factor

    def scaled(self, factor: Tensor) -> Operator:
        factor = factor if self.factor is None else self.factor * factor
        return EdgeOperator(self.graph, self.node_scale.squeeze(-1), factor)


class PaddedBatch:
    """A batch whose graphs are padded, bucket by bucket. See the module's docstring.

    Args:
        graph: the batch.
        max_rows, dense_nodes, max_padding: as :class:`~tg_lpe.graph.buckets.PaddedRows` takes them.

    Attributes:
        rows: where the nodes are.
        buckets: the buckets, each graph with at least one node in exactly one of them.
    """

    def __init__(
        self,
        graph: Graph,
        max_rows: int = MAX_ROWS,
        dense_nodes: int = DENSE_NODES,
        max_padding: float | None = None,
    ) -> None:
        self.graph = graph
        self.rows = graph.padded(
            max_rows=max_rows,
            dense_nodes=dense_nodes,
            max_padding=max_padding,
            edge_counts=graph.edge_counts if graph.num_graphs > 1 else None,
        )
        self.buckets = self.rows.buckets

    def pad(self, x: Tensor) -> list[Tensor]:
        """Node values ``[num_nodes, k]`` as ``[num_graphs, k, max_nodes]`` for each bucket, the padding zero."""
        return [part.mT.contiguous() for part in self.rows.pad(x)]

    def unpad(self, parts: list[Tensor], width: int) -> Tensor:
        """The reverse of :meth:`pad`: ``[num_nodes, width]`` in the order of the batch."""
        if not parts:
            return torch.zeros(self.graph.num_nodes, width, device=self.graph.device)
        return self.rows.unpad([part.mT for part in parts])

    def unpad_rows(self, parts: list[Tensor]) -> Tensor:
        """The rows ``[num_rows, width]`` of the buckets as nodes in the order of the batch, ``[num_nodes, width]``."""
        return self.rows.unpad_rows(parts)

    def laplacian_operators(self, node_scale: Tensor) -> list[Operator]:
        """``diag(s) L diag(s)`` per bucket, each a linear map of ``[num_graphs, k, max_nodes]`` to itself.

        Args:
            node_scale: ``s``, ``[num_nodes]``: ``D^-1/2`` for the normalised Laplacian, ones for ``L`` itself. Its
                dtype is the operators' own.
        """
        matrices = iter(self.dense_laplacians(node_scale))
        if all(bucket.dense for bucket in self.buckets):
            return [MatrixOperator(matrix) for matrix in matrices]
        if self.rows.is_single:
            return [EdgeOperator(self.graph, node_scale)]
        scales = [part.flatten() for part in self.rows.pad(node_scale)]
        parts = self._graphs_of_buckets()
        return [
            MatrixOperator(next(matrices)) if bucket.dense else EdgeOperator(part, scale)
            for bucket, part, scale in zip(self.buckets, parts, scales, strict=True)
        ]

    def dense_laplacians(self, node_scale: Tensor) -> list[Tensor]:
        """``diag(s) L diag(s)`` written out, ``[num_graphs, max_nodes, max_nodes]``, for each dense bucket."""
        buckets = [bucket for bucket in self.buckets if bucket.dense]
        if not buckets:
            return []
        graph, tail, head = self.graph, self.graph.tail, self.graph.head
        diagonal = graph.laplacian_diagonal(node_scale) * node_scale.square()
        entry_of_edge = node_scale.index_select(0, tail) * node_scale.index_select(0, head)
        if graph.conductance is not None:
            entry_of_edge = entry_of_edge * graph.conductance.to(entry_of_edge.dtype)
        if self.rows.is_single:  # fewer operations than below
            upper = diagonal.new_zeros(graph.num_nodes, graph.num_nodes).index_put((tail, head), -entry_of_edge)
            matrix = upper + upper.mT
            matrix.diagonal().copy_(diagonal)
            return [matrix.unsqueeze(0)]
        matrix_row, local = self.rows.matrix_rows(dense_only=True), graph.local_index
        entry = torch.cat([matrix_row[tail] + local[head], matrix_row[head] + local[tail], matrix_row + local])
        values = torch.cat([-entry_of_edge, -entry_of_edge, diagonal])
        num_entries = sum(bucket.num_pairs for bucket in buckets)
        # What belongs to other buckets goes to a last entry that is cut off: a mask would wait for its number.
        entry = torch.where(entry < 0, num_entries, entry)
        return matrices(buckets, values.new_zeros(num_entries + 1).index_put((entry,), values)[:num_entries])

    def edge_positions(self) -> list[EdgePositions]:
        """The edges of each bucket, in the bucket's own rows."""
        graph = self.graph
        tail, head = graph.tail, graph.head
        if not self.rows.is_single:
            tail, head = self.rows.row[tail], self.rows.row[head]
        if len(self.buckets) == 1:
            bucket, every = self.buckets[0], torch.arange(graph.num_edges, device=graph.device)
            return [EdgePositions(bucket.num_graphs, bucket.max_nodes, every, tail, head)]
        numbers = [torch.full_like(bucket.graphs, number) for number, bucket in enumerate(self.buckets)]
        order = torch.argsort(self.rows.of_nodes(numbers).index_select(0, graph.tail), stable=True)
        parts = order.split([bucket.num_edges for bucket in self.buckets])
        return [
            EdgePositions(b.num_graphs, b.max_nodes, part, tail[part] - b.first_row, head[part] - b.first_row)
            for b, part in zip(self.buckets, parts, strict=True)
        ]

    def _graphs_of_buckets(self) -> Iterator[Graph]:
        """Each bucket as one graph, whose nodes are its rows."""
        w, ground = self.graph.conductance, self.graph.ground
        grounds = [None] * len(self.buckets) if ground is None else [part.flatten() for part in self.rows.pad(ground)]
        for where, of_rows in zip(self.edge_positions(), grounds, strict=True):
            # Graphs lie in the order of their sizes here, so edges that are sorted by node are not sorted by row.
            order = torch.argsort(where.tail, stable=True)
            conductance = None if w is None else w[where.edges[order]]
            num_rows = where.num_graphs * where.max_nodes
            part = Graph.from_undirected_edges(where.tail[order], where.head[order], conductance, num_rows)
            yield part if of_rows is None else part.with_conductances(conductance, of_rows)


def padded_batch(graph: Graph) -> PaddedBatch:
    """Pad the batch such that each graph's matrices are written out.

    Raises:
        ValueError: if a graph is too large for that.
    """
    is_dense(graph.max_nodes, "dense", DENSE_LIMIT)
    return PaddedBatch(graph, dense_nodes=DENSE_LIMIT)
