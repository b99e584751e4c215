"""Lay out the rows of a batch whose graphs are padded to equal size, bucket by bucket."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import torch
from torch import Tensor

from tg_lpe.ops.lazy import lazy

MAX_ROWS = 16384
"""Largest bucket of small graphs: its ``[rows, 8]`` float32 features and their operator stay in a core's cache."""

SMALL_NODES, MAX_PADDING = 64, 2
"""Largest ratio of graph sizes in a bucket, for graphs of more than ``SMALL_NODES`` nodes."""


@dataclass(frozen=True)
class Bucket:
    """Hold graphs of similar size, which take consecutive rows of the padded nodes from ``first_row`` on."""

    graphs: Tensor
    """Indices of these graphs in the batch, int64 ``[num_graphs]``."""
    first_row: int
    max_nodes: int
    num_edges: int | None = None
    """Number of undirected edges, if requested and if there are several buckets."""

    @property
    def num_graphs(self) -> int:
        """Number of graphs in this bucket."""
        return self.graphs.numel()

    @property
    def num_rows(self) -> int:
        """Number of rows, padding included."""
        return self.num_graphs * self.max_nodes

    @property
    def num_pairs(self) -> int:
        """Number of ordered pairs of rows of the same graph, padding included."""
        return self.num_rows * self.max_nodes


class PaddedRows:
    """Group the graphs of a batch into buckets of similar size, and give each node a row.

    A single graph, however large, is one bucket whose rows are its nodes: nothing is copied.

    Args:
        ptr: first node of each graph, int64 ``[num_graphs + 1]``.
        batch: graph of each node, int64 ``[num_nodes]``.
        local_index: index of each node within its graph, int64 ``[num_nodes]``.
        max_nodes: number of nodes of the largest graph.
        max_rows: largest number of rows of a bucket (a larger graph is a bucket by itself).
        max_padding: largest ratio of graph sizes in a bucket. If absent, a batch of small graphs may be one bucket,
            which takes the fewest calls. If the work grows with the square or cube of ``max_nodes``, less padding is
            faster.
        edge_counts: undirected edges of each graph, int64 ``[num_graphs]``, to count those of each bucket; they are
            read from the device together with the sizes.

    Attributes:
        buckets: the buckets; each graph with at least one node is in exactly one of them.
        num_rows: number of rows of all buckets together.
        row: row of each node, int64 ``[num_nodes]``.
        width: padded size of the graph of each node, int64 ``[num_nodes]``.
    """

    def __init__(
        self,
        ptr: Tensor,
        batch: Tensor,
        local_index: Tensor,
        max_nodes: int,
        *,
        max_rows: int = MAX_ROWS,
        max_padding: float | None = None,
        edge_counts: Tensor | None = None,
    ) -> None:
        self._sizes, self._batch, self._local_index = ptr.diff(), batch, local_index
        self.is_single = self._sizes.numel() == 1 and max_nodes > 0
        if self.is_single:
            self.buckets = [Bucket(ptr.new_zeros(1), 0, max_nodes)]
            self.num_rows, self.row, self.width = max_nodes, local_index, torch.full_like(local_index, max_nodes)
            return
        num_graphs = self._sizes.numel()
        if max_padding is None and 0 < max_nodes <= SMALL_NODES and max_nodes * num_graphs <= max_rows:
            every = torch.arange(num_graphs, device=ptr.device)
            self.buckets = [Bucket(every, 0, max_nodes)]
        else:
            self.buckets = _cut_by_size(self._sizes, edge_counts, max_rows, max_padding)
        self.num_rows = sum(bucket.num_rows for bucket in self.buckets)
        self.row = self.of_nodes([_counted(b) * b.max_nodes + b.first_row for b in self.buckets]) + local_index
        self.width = self.of_nodes([torch.full_like(b.graphs, b.max_nodes) for b in self.buckets])

    def of_nodes(self, parts: list[Tensor]) -> Tensor:
        """Copy values of graphs ``[num_graphs]``, one tensor a bucket, to their nodes, ``[num_nodes]``."""
        values = torch.zeros_like(self._sizes)
        if parts:
            graphs = torch.cat([bucket.graphs for bucket in self.buckets])
            values = values.index_copy(0, graphs, torch.cat(parts))
        return values[self._batch]

    def pad(self, rows: Tensor) -> list[Tensor]:
        """Pad node values ``[num_nodes, ...]`` with zeros to ``[num_graphs, max_nodes, ...]`` for each bucket."""
        if not self.is_single:
            rows = rows.new_zeros(self.num_rows, *rows.shape[1:]).index_copy(0, self.row, rows)
        parts = rows.split([bucket.num_rows for bucket in self.buckets]) if len(self.buckets) != 1 else [rows]
        return [p.unflatten(0, (b.num_graphs, b.max_nodes)) for p, b in zip(parts, self.buckets, strict=True)]

    def unpad(self, parts: list[Tensor]) -> Tensor:
        """Undo :meth:`pad` for a batch with at least one node: ``[num_nodes, ...]`` in the order of the batch."""
        return self.unpad_rows([part.flatten(0, 1) for part in parts])

    def unpad_rows(self, parts: list[Tensor]) -> Tensor:
        """Undo :meth:`pad` for rows of each bucket without the dimension of graphs, ``[num_rows, ...]``."""
        rows = torch.cat(parts) if len(parts) > 1 else parts[0]
        return rows.contiguous() if self.is_single else rows.index_select(0, self.row)

    def are_nodes(self) -> list[Tensor]:
        """Return masks of the rows that are nodes, bool ``[num_graphs, max_nodes]`` for each bucket."""
        return [
            torch.arange(b.max_nodes, device=b.graphs.device) < self._sizes[b.graphs].unsqueeze(1) for b in self.buckets
        ]

    @property
    def num_pairs(self) -> int:
        """Number of entries of the matrices of all buckets."""
        return sum(bucket.num_pairs for bucket in self.buckets)

    def entry(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the positions of pairs of nodes when all matrices are flattened, int64 ``[num_pairs]``.

        The matrices of a bucket are ``[num_graphs, max_nodes, max_nodes]``; :func:`matrices` makes them from entries.
        """
        return self._matrix_rows.index_select(0, first) + self._local_index.index_select(0, second)

    @lazy
    def _matrix_rows(self) -> Tensor:
        """First entry of each node's matrix row when all matrices are flattened, int64 ``[num_nodes]``."""
        if len(self.buckets) == 1:
            return self.row * self.width
        first, offset = [], 0
        for bucket in self.buckets:
            first.append(_counted(bucket) * bucket.max_nodes**2 + offset)
            offset += bucket.num_pairs
        return self.of_nodes(first) + self._local_index * self.width


def matrices(buckets: list[Bucket], entries: Tensor) -> list[Tensor]:
    """Split entries ``[num_pairs, ...]`` into matrices ``[num_graphs, max_nodes, max_nodes, ...]`` of each bucket."""
    parts = entries.split([bucket.num_pairs for bucket in buckets]) if len(buckets) != 1 else [entries]
    return [p.unflatten(0, (b.num_graphs, b.max_nodes, b.max_nodes)) for p, b in zip(parts, buckets, strict=True)]


def _counted(bucket: Bucket) -> Tensor:
    """Number the graphs of a bucket from zero, on their device: a copy from the host would wait for it."""
    return torch.arange(bucket.num_graphs, device=bucket.graphs.device)


@torch.compiler.disable  # the number of buckets depends on the data
def _cut_by_size(sizes: Tensor, edge_counts: Tensor | None, max_rows: int, max_padding: float | None) -> list[Bucket]:
    """Cut a batch into buckets of graphs sorted by size, largest first."""
    sorted_sizes, order = torch.sort(sizes, descending=True, stable=True)
    numbers = [-sorted_sizes] if edge_counts is None else [-sorted_sizes, edge_counts[order]]
    ascending, *counted = torch.stack(numbers).tolist()  # one read from the device
    num_filled = bisect_left(ascending, 0)  # graphs without nodes have no rows
    buckets, start, row = [], 0, 0
    while start < num_filled:
        max_nodes = -ascending[start]
        if max_padding is not None:
            smallest = max(math.ceil(max_nodes / max_padding), 1)
        else:
            smallest = -(-max_nodes // MAX_PADDING) if max_nodes > SMALL_NODES else 1
        stop = min(num_filled, bisect_right(ascending, -smallest), start + max(1, max_rows // max_nodes))
        num_edges = sum(counted[0][start:stop]) if counted else None
        buckets.append(Bucket(order[start:stop], row, max_nodes, num_edges))
        row += buckets[-1].num_rows
        start = stop
    return buckets
