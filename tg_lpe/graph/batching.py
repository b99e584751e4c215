"""Lay out the nodes, edges and pairs of nodes of a batch of graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tg_lpe.graph.buckets import PaddedRows
from tg_lpe.ops.lazy import lazy
from tg_lpe.ops.segment import RowGroups, group_pointers, sorted_with_order


class Batching:
    """Hold the views of a :class:`~tg_lpe.Graph` that tell where its graphs, edges and pairs lie."""

    num_nodes: int
    num_graphs: int
    _edge_index: Tensor
    _batch: Tensor | None

    @property
    def edge_index(self) -> Tensor:
        """The directed edges as they were listed, ``[2, num_directed_edges]``."""
        return self._edge_index

    @property
    def num_directed_edges(self) -> int:
        """Number of directed edges: both directions, repetitions and self-loops count."""
        return self._edge_index.size(1)

    @property
    def device(self) -> torch.device:
        """Device of the indices."""
        return self._edge_index.device

    @lazy
    def batch(self) -> Tensor:
        """Graph of each node, int64 ``[num_nodes]``."""
        if self._batch is not None:
            return self._batch
        return torch.zeros(self.num_nodes, dtype=torch.int64, device=self.device)

    @lazy
    def ptr(self) -> Tensor:
        """First node of each graph, int64 ``[num_graphs + 1]``."""
        if self._batch is None:
            return torch.tensor([0, self.num_nodes], device=self.device)
        return group_pointers(self._batch, self.num_graphs)

    @lazy
    def max_nodes(self) -> int:
        """Number of nodes of the largest graph; the first use may wait for the device."""
        if self._batch is None:
            return self.num_nodes
        return int(self.graphs.ptr.diff().max()) if self.num_graphs else 0

    @lazy
    def graphs(self) -> RowGroups:
        """The graph of each node, for sums over graphs and gathers from graphs."""
        return RowGroups(self.batch, self.num_graphs, is_sorted=True)

    @lazy
    def _target_order(self) -> Tensor:
        return sorted_with_order(self._edge_index[1])[1]

    @lazy
    def edges_by_target(self) -> Tensor:
        """The directed edges sorted by target, int64 ``[2, num_directed_edges]``; messages run from row 0 to row 1.

        Attention layers take and return edge features in this order.
        """
        return self._edge_index.long().index_select(1, self._target_order)

    @lazy
    def source(self) -> RowGroups:
        """The source of each edge of :attr:`edges_by_target`, for gathers from nodes to edges and sums to nodes."""
        return RowGroups(self.edges_by_target[0], self.num_nodes, is_sorted=False)

    @lazy
    def target(self) -> RowGroups:
        """The target of each edge of :attr:`edges_by_target`, for gathers and sums as with :attr:`source`."""
        return RowGroups(self.edges_by_target[1], self.num_nodes, is_sorted=True)

    @lazy
    def edge_graphs(self) -> RowGroups:
        """The graph of each edge of :attr:`edges_by_target`, for sums over graphs and gathers from graphs."""
        graph = self.batch.index_select(0, self.edges_by_target[1])
        return RowGroups(graph, self.num_graphs, is_sorted=True)

    def sort_edges(self, rows: Tensor) -> Tensor:
        """Reorder rows ``[num_directed_edges, ...]`` from the order of ``edge_index`` to :attr:`edges_by_target`."""
        return rows.index_select(0, self._target_order)  # the backward pass of indexing would be a serial sum

    def padded(self, **options: Any) -> PaddedRows:
        """Group the graphs into buckets of similar size; the options are those of ``PaddedRows``."""
        return PaddedRows(self.ptr, self.batch, self.local_index, self.max_nodes, **options)

    @property
    def padding(self) -> Tensor:
        """Mask of the rows of :meth:`pad` that are padding, bool ``[num_graphs, max_nodes]``."""
        sizes = self.graphs.ptr.diff()
        return torch.arange(self.max_nodes, device=sizes.device) >= sizes.unsqueeze(1)

    def pad(self, rows: Tensor) -> Tensor:
        """Pad node values ``[num_nodes, ...]`` with zeros to ``[num_graphs, max_nodes, ...]``."""
        if self.num_graphs == 1:
            return rows.unsqueeze(0)
        padded = rows.new_zeros(self.num_graphs * self.max_nodes, *rows.shape[1:])
        return padded.index_copy(0, self._padded_row, rows).unflatten(0, (self.num_graphs, self.max_nodes))

    def unpad(self, padded: Tensor) -> Tensor:
        """Undo :meth:`pad`: ``[num_graphs, max_nodes, ...]`` to ``[num_nodes, ...]``."""
        if self.num_graphs == 1:
            return padded.squeeze(0)
        return padded.flatten(0, 1).index_select(0, self._padded_row)

    @lazy
    def _padded_row(self) -> Tensor:
        """Row of each node in a padded batch, int64 ``[num_nodes]``."""
        return self.batch * self.max_nodes + self.local_index

    @lazy
    def local_index(self) -> Tensor:
        """Index of each node within its graph, int64 ``[num_nodes]``."""
        index = torch.arange(self.num_nodes, device=self.device)
        return index if self._batch is None else index - self.ptr[self._batch]

    @lazy
    def num_pairs(self) -> int:
        """Number of :attr:`pairs`; the first use may wait for the device."""
        if self._batch is None:
            return self.num_nodes**2
        return int(self.graphs.ptr.diff().square().sum())

    @lazy
    def first_pair(self) -> Tensor:
        """Index among :attr:`pairs` of the first pair that begins with each node, int64 ``[num_nodes]``."""
        sizes = self.graphs.gather(self.graphs.ptr.diff())
        return sizes.cumsum(0) - sizes

    @lazy
    def pairs(self) -> Tensor:
        """All ordered pairs of nodes of each graph, a node with itself included, int64 ``[2, num_pairs]``.

        Sorted by the first node, then the second: the pairs of a graph are the entries of a matrix, row by row.
        """
        begin = self.first_pair - self.graphs.gather(self.graphs.ptr[:-1])
        sizes = self.graphs.gather(self.graphs.ptr.diff())
        first = torch.repeat_interleave(sizes, output_size=self.num_pairs)
        pairs = torch.empty(2, self.num_pairs, dtype=torch.int64, device=self.device)
        pairs[0] = first
        pairs[1] = torch.arange(self.num_pairs, device=self.device)
        pairs[1] -= begin.index_select(0, first)
        return pairs

    def pair_number(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the index among :attr:`pairs` of pairs of nodes of one graph, int64, shaped as the arguments."""
        return self.first_pair[first] + self.local_index[second]

    @lazy
    def edge_pairs(self) -> Tensor:
        """Index among :attr:`pairs` of (target, source) of each edge of :attr:`edges_by_target`, int64."""
        source, target = self.edges_by_target
        return self.pair_number(target, source)

    @lazy
    def pair_graphs(self) -> RowGroups:
        """The graph of each pair, for sums over graphs and gathers from graphs."""
        return RowGroups(self.batch.index_select(0, self.pairs[0]), self.num_graphs, is_sorted=True)

    @lazy
    def pair_rows(self) -> RowGroups:
        """The first node of each pair, for gathers from nodes and sums to nodes."""
        return RowGroups(self.pairs[0], self.num_nodes, is_sorted=True)

    @lazy
    def pair_columns(self) -> RowGroups:
        """The second node of each pair, for gathers from nodes and sums to nodes."""
        return RowGroups(self.pairs[1], self.num_nodes, is_sorted=False)

    def pad_pairs(self, rows: Tensor) -> Tensor:
        """Pad values of pairs ``[num_pairs, ...]`` with zeros to ``[num_graphs, max_nodes, max_nodes, ...]``."""
        shape = self.num_graphs, self.max_nodes, self.max_nodes
        if self.num_graphs == 1:
            return rows.unflatten(0, shape)
        padded = rows.new_zeros(shape[0] * shape[1] * shape[2], *rows.shape[1:])
        return padded.index_copy(0, self._padded_pair, rows).unflatten(0, shape)

    def unpad_pairs(self, padded: Tensor) -> Tensor:
        """Undo :meth:`pad_pairs`: ``[num_graphs, max_nodes, max_nodes, ...]`` to ``[num_pairs, ...]``."""
        rows = padded.flatten(0, 2)
        return rows if self.num_graphs == 1 else rows.index_select(0, self._padded_pair)

    @lazy
    def _padded_pair(self) -> Tensor:
        """Position of each pair in a padded batch, int64 ``[num_pairs]``."""
        first, second = self.pairs
        return self._padded_row.index_select(0, first) * self.max_nodes + self.local_index.index_select(0, second)
