"""Batches of graphs padded to equal size, so that what concerns one graph is one matrix product.

Gram matrices, column norms and small dense operators belong to single graphs. In PyG's layout, where the nodes of a
batch are stacked, each of them would need a pass of scattered sums. Here graphs of similar size form a bucket,
``[num_graphs, k, max_nodes]``, the paper's own orientation ``Phi^T``, in which products of such small matrices run two
to three times faster than in the other. Padding is zero and stays zero: it stands for nodes without edges that start
at zero, so nothing leaks between graphs or out of the padding.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import torch
from torch import Tensor

from tg_lpe.graph.incidence import Incidence
from tg_lpe.ops.polynomials import EdgePositions

MAX_ROWS = 16384
"""Rows of a bucket of small graphs: its ``[rows, 8]`` float32 features and their operator stay in a core's cache."""

DENSE_NODES = 64
"""Up to this many nodes a graph's operator is a small dense matrix; above, sums over edges. See benchmarks."""

MAX_PADDING = 2
"""In a bucket of graphs larger than ``DENSE_NODES``, none is smaller than the largest by more than this factor."""


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

    def __init__(self, graph: Incidence, node_scale: Tensor, factor: Tensor | None = None) -> None:
        self.graph, self.node_scale, self.factor = graph, node_scale.unsqueeze(-1), factor

    def __call__(self, z: Tensor) -> Tensor:
        num_graphs, k, max_nodes = z.shape
        rows = self.node_scale * self.graph.laplacian(self.node_scale * z.mT.reshape(num_graphs * max_nodes, k))
        out = rows.view(num_graphs, max_nodes, k).mT
        return out if self.factor is None else out * self.factor

    def scaled(self, factor: Tensor) -> Operator:
        factor = factor if self.factor is None else self.factor * factor
        return EdgeOperator(self.graph, self.node_scale.squeeze(-1), factor)


@dataclass(frozen=True)
class Bucket:
    """Graphs of similar size: consecutive rows of the padded nodes, from ``first_row`` on."""

    graphs: Tensor
    """int64 ``[num_graphs]``, which graphs of the batch these are."""
    first_row: int
    max_nodes: int
    dense: bool
    """Whether operators on this bucket are dense matrices."""

    @property
    def num_graphs(self) -> int:
        """Number of graphs in this bucket."""
        return self.graphs.numel()

    @property
    def num_rows(self) -> int:
        """Number of rows, padding included."""
        return self.num_graphs * self.max_nodes


class PaddedBatch:
    """A batch whose graphs are padded, bucket by bucket. See the module's docstring.

    Args:
        graph: the batch.
        max_rows: rows of a bucket at most (a larger single graph is a bucket of its own).
        dense_nodes: number of nodes up to which a graph's operators are dense matrices.
        max_padding: in a bucket, no graph is smaller than the largest by more than this factor. If absent, a batch of
            small graphs may be one bucket: the fewest calls. Where the work grows with the cube of ``max_nodes``, less
            padding is faster.

    Attributes:
        buckets: the buckets, each graph with at least one node in exactly one of them.
        num_rows: rows of all buckets together.
    """

    def __init__(
        self,
        graph: Incidence,
        max_rows: int = MAX_ROWS,
        dense_nodes: int = DENSE_NODES,
        max_padding: float | None = None,
    ) -> None:
        self.graph = graph
        if graph.num_graphs == 1 and graph.num_nodes:
            # The layout is the identity: a single graph, however large, is not copied.
            self.buckets = [Bucket(graph.tail.new_zeros(1), 0, graph.num_nodes, graph.num_nodes <= dense_nodes)]
            self.num_rows = graph.num_nodes
            self._row: Tensor | None = None
            return
        self.buckets = cut_into_buckets(graph.ptr.diff(), graph.max_nodes, max_rows, dense_nodes, max_padding)
        self.num_rows = sum(bucket.num_rows for bucket in self.buckets)
        first_row = self._per_graph([_counted(b) * b.max_nodes + b.first_row for b in self.buckets])
        max_nodes = self._per_graph([torch.full_like(b.graphs, b.max_nodes) for b in self.buckets])
        self._row = first_row[graph.batch] + graph.local_index
        self._max_nodes = max_nodes[graph.batch]

    def _per_graph(self, parts: list[Tensor]) -> Tensor:
        """Values listed bucket by bucket, put into the order of the batch's graphs, int64 ``[num_graphs]``."""
        values = self.graph.ptr.new_zeros(self.graph.num_graphs)
        if not parts:
            return values
        graphs = torch.cat([bucket.graphs for bucket in self.buckets])
        return values.index_copy(0, graphs, torch.cat(parts))

    def pad(self, x: Tensor) -> list[Tensor]:
        """Node values ``[num_nodes, k]`` as ``[num_graphs, k, max_nodes]`` for each bucket, the padding zero."""
        if self._row is not None:
            x = x.new_zeros(self.num_rows, x.size(1)).index_copy(0, self._row, x)
        parts = torch.split(x, [bucket.num_rows for bucket in self.buckets]) if len(self.buckets) != 1 else [x]
        return [p.view(b.num_graphs, b.max_nodes, -1).mT.contiguous() for p, b in zip(parts, self.buckets, strict=True)]

    def unpad(self, parts: list[Tensor], width: int) -> Tensor:
        """The reverse of :meth:`pad`: ``[num_nodes, width]`` in the order of the batch."""
        if not parts:
            return torch.zeros(self.graph.num_nodes, width, device=self.graph.device)
        return self.unpad_rows([part.mT.reshape(-1, width) for part in parts])

    def unpad_rows(self, parts: list[Tensor]) -> Tensor:
        """The rows ``[num_rows, width]`` of the buckets as nodes in the order of the batch, ``[num_nodes, width]``."""
        rows = torch.cat(parts) if len(parts) > 1 else parts[0]
        return rows.contiguous() if self._row is None else rows.index_select(0, self._row)

    def laplacian_operators(self, node_scale: Tensor) -> list[Operator]:
        """``diag(s) L diag(s)`` per bucket, each a linear map of ``[num_graphs, k, max_nodes]`` to itself.

        Args:
            node_scale: ``s``, ``[num_nodes]``: ``D^-1/2`` for the normalised Laplacian, ones for ``L`` itself. Its
                dtype is the operators' own.
        """
        dense = iter(self.dense_laplacians(node_scale))
        return [MatrixOperator(next(dense)) if b.dense else self._edge_operator(b, node_scale) for b in self.buckets]

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
        if self._row is None:  # one small graph
            upper = diagonal.new_zeros(graph.num_nodes, graph.num_nodes).index_put((tail, head), -entry_of_edge)
            matrix = upper + upper.mT
            matrix.diagonal().copy_(diagonal)
            return [matrix.unsqueeze(0)]
        matrix_row, local = self._matrix_rows(), graph.local_index
        entry = torch.cat([matrix_row[tail] + local[head], matrix_row[head] + local[tail], matrix_row + local])
        values = torch.cat([-entry_of_edge, -entry_of_edge, diagonal])
        if len(buckets) < len(self.buckets):
            in_dense = torch.cat([matrix_row[tail], matrix_row[head], matrix_row]) >= 0
            entry, values = entry[in_dense], values[in_dense]
        sizes = [bucket.num_graphs * bucket.max_nodes**2 for bucket in buckets]
        flat = values.new_zeros(sum(sizes)).index_put((entry,), values)
        parts = torch.split(flat, sizes) if len(buckets) > 1 else [flat]
        return [p.view(b.num_graphs, b.max_nodes, b.max_nodes) for p, b in zip(parts, buckets, strict=True)]

    def edge_positions(self) -> list[EdgePositions]:
        """The edges of each bucket, in the bucket's own rows."""
        graph = self.graph
        tail, head = graph.tail, graph.head
        every = torch.arange(graph.num_edges, device=graph.device)
        if self._row is not None:
            tail, head = self._row[tail], self._row[head]
        if len(self.buckets) == 1:
            return [EdgePositions(self.buckets[0].num_graphs, self.buckets[0].max_nodes, every, tail, head)]
        positions = []
        for bucket in self.buckets:
            inside = ((tail >= bucket.first_row) & (tail < bucket.first_row + bucket.num_rows)).nonzero().squeeze(1)
            ends = tail[inside] - bucket.first_row, head[inside] - bucket.first_row
            positions.append(EdgePositions(bucket.num_graphs, bucket.max_nodes, inside, *ends))
        return positions

    def _matrix_rows(self) -> Tensor:
        """Where each node's row of its graph's dense matrix starts, int64 ``[num_nodes]``; negative if it has none."""
        if len(self.buckets) == 1 and self._row is not None:
            return self._row * self._max_nodes
        first, offset = [], 0
        for bucket in self.buckets:
            if bucket.dense:
                first.append(_counted(bucket) * bucket.max_nodes**2 + offset)
                offset += bucket.num_graphs * bucket.max_nodes**2
            else:
                first.append(torch.full_like(bucket.graphs, -(2**62)))
        return self._per_graph(first)[self.graph.batch] + self.graph.local_index * self._max_nodes

    def _edge_operator(self, bucket: Bucket, node_scale: Tensor) -> Operator:
        if self._row is None:
            return EdgeOperator(self.graph, node_scale)
        graph, w = self.graph, self.graph.conductance
        row = self._row - bucket.first_row
        inside = (row >= 0) & (row < bucket.num_rows)
        kept = inside[graph.tail].nonzero().squeeze(1)
        # Graphs lie in the order of their sizes here, so edges that are sorted by node are not sorted by row.
        kept = kept[torch.argsort(row[graph.tail[kept]], stable=True)]
        part = Incidence.from_undirected_edges(
            row[graph.tail[kept]], row[graph.head[kept]], None if w is None else w[kept], bucket.num_rows
        )

        def padded(values: Tensor) -> Tensor:
            return values.new_zeros(bucket.num_rows).index_copy(0, row[inside], values[inside])

        if graph.ground is not None:
            part = part.with_conductances(part.conductance, padded(graph.ground))
        return EdgeOperator(part, padded(node_scale))


def _counted(bucket: Bucket) -> Tensor:
    """The graphs of a bucket counted from zero, on their device: numbers from the host would wait for it."""
    return torch.arange(bucket.num_graphs, device=bucket.graphs.device)


def cut_into_buckets(
    sizes: Tensor, largest: int, max_rows: int, dense_nodes: int, max_padding: float | None
) -> list[Bucket]:
    """Cut the graphs of a batch into buckets: one if all is small, else graphs sorted by size, largest first."""
    num_graphs = sizes.numel()
    if num_graphs == 0:
        return []
    if max_padding is None and 0 < largest <= DENSE_NODES and largest * num_graphs <= max_rows:
        return [Bucket(torch.arange(num_graphs, device=sizes.device), 0, largest, largest <= dense_nodes)]
    return _cut_by_size(sizes, max_rows, dense_nodes, max_padding)


@torch.compiler.disable  # how many buckets there are depends on the data
def _cut_by_size(sizes: Tensor, max_rows: int, dense_nodes: int, max_padding: float | None) -> list[Bucket]:
    sorted_sizes, order = torch.sort(sizes, descending=True, stable=True)
    ascending = (-sorted_sizes).tolist()  # one read from the device
    num_filled = bisect_left(ascending, 0)  # graphs without nodes have no rows
    buckets, start, row = [], 0, 0
    while start < num_filled:
        max_nodes = -ascending[start]
        if max_padding is not None:
            # A small graph beside a large one stays dense: what is computed with it may not depend on its batch-mates.
            smallest = max(math.ceil(max_nodes / max_padding), dense_nodes + 1 if max_nodes > dense_nodes else 1)
        else:
            smallest = -(-max_nodes // MAX_PADDING) if max_nodes > DENSE_NODES else 1
        stop = min(num_filled, bisect_right(ascending, -smallest), start + max(1, max_rows // max_nodes))
        buckets.append(Bucket(order[start:stop], row, max_nodes, max_nodes <= dense_nodes))
        row += buckets[-1].num_rows
        start = stop
    return buckets
