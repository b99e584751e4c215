"""What attention layers read of a batch of graphs."""

from __future__ import annotations

import torch
from torch import Tensor

from tg_lpe.graph.incidence import check_edge_index, checked_count
from tg_lpe.nn.checks import ValueChecks
from tg_lpe.ops.segment import RowGroups


class Neighbourhoods:
    """The edges of a batch of graphs, sorted and grouped once for all layers.

    Edges are directed, from ``source`` to ``target``, and sorted by target: the incoming edges of a node are
    consecutive rows. The rows of ``e`` that layers exchange are in this order; :meth:`sort_edges` brings them there.
    What only some layers need (the padded batch, the graph of each edge) is computed on first use.

    Args:
        edge_index: int64 ``[2, num_edges]``, in any order; messages run from row 0 to row 1.
        batch: graph of each node, int64 ``[num_nodes]``, sorted.
        num_graphs: number of graphs.
        max_nodes: nodes of the largest graph, where the caller knows.

    Attributes:
        edge_index: the sorted edges, int64 ``[2, num_edges]``.
        source, target: the two rows of ``edge_index``, for gathers from nodes to edges and sums from edges to nodes.
        graphs: the graph of each node, for sums over graphs and gathers from graphs.
        num_nodes, num_edges, num_graphs: counts.
        needs_penalty: whether anybody reads the penalty of the layers' state; a layer need not compute it otherwise.

    Raises:
        TypeError, ValueError: on a wrong type, dtype or shape; on the CPU, unless ``max_nodes`` says that the caller
            has looked at the values, also on indices out of range, an unsorted ``batch`` and edges
            between two graphs.
    """

    def __init__(self, edge_index: Tensor, batch: Tensor, num_graphs: int, max_nodes: int | None = None) -> None:
        _check(edge_index, batch, num_graphs, values=max_nodes is None)
        self.num_nodes, self.num_edges, self.num_graphs = batch.size(0), edge_index.size(1), num_graphs
        self._order = torch.argsort(edge_index[1], stable=True)
        self.edge_index = edge_index.index_select(1, self._order)
        self.source = RowGroups(self.edge_index[0], self.num_nodes, is_sorted=False)
        self.target = RowGroups(self.edge_index[1], self.num_nodes, is_sorted=True)
        self.graphs = RowGroups(batch, num_graphs, is_sorted=True)
        self.needs_penalty = True
        self._pe: Tensor | None = None
        # Not functools.cached_property: up to Python 3.11 it takes a lock, which torch.compile cannot follow.
        self._edge_graphs: RowGroups | None = None
        self._pe_distances: Tensor | None = None
        self._max_nodes = max_nodes
        self._padded_row: Tensor | None = None

    def sort_edges(self, rows: Tensor) -> Tensor:
        """Rows in the order of the caller's ``edge_index``, ``[num_edges, ...]``, in the order of the layers."""
        return rows.index_select(0, self._order)  # the backward pass of brackets would be a serial sum

    @property
    def batch(self) -> Tensor:
        """Graph of each node, int64 ``[num_nodes]``."""
        return self.graphs.index

    @property
    def local_index(self) -> Tensor:
        """Number of each node within its graph, int64 ``[num_nodes]``."""
        return torch.arange(self.num_nodes, device=self.batch.device) - self.graphs.ptr.index_select(0, self.batch)

    @property
    def edge_graphs(self) -> RowGroups:
        """The graph of each edge, as :attr:`graphs`; which is that of both its ends."""
        if self._edge_graphs is None:
            graph = self.batch.index_select(0, self.edge_index[1])
            self._edge_graphs = RowGroups(graph, self.num_graphs, is_sorted=True)
        return self._edge_graphs

    @property
    def pe(self) -> Tensor | None:
        """Positional encoding of the nodes as the model embeds it, ``[num_nodes, channels]``; ``None`` without one."""
        return self._pe

    @pe.setter
    def pe(self, pe: Tensor | None) -> None:
        self._pe, self._pe_distances = pe, None

    @property
    def pe_distances(self) -> Tensor:
        """Squared distance of the encodings of the ends of each edge, ``[num_edges, 1]``.

        Raises:
            ValueError: if there is no positional encoding of the nodes.
        """
        if self._pe_distances is None:
            if self.pe is None:
                raise ValueError(
                    "a layer reads distances of positional encodings, and the model has no encoding of nodes"
                )
            difference = self.source.gather(self.pe) - self.target.gather(self.pe)
            self._pe_distances = difference.square().sum(1, keepdim=True)
        return self._pe_distances

    @property
    def max_nodes(self) -> int:
        """Nodes of the largest graph; the first use waits for the device if the caller did not know."""
        if self._max_nodes is None:
            self._max_nodes = int(self.graphs.ptr.diff().max()) if self.num_graphs else 0
        return self._max_nodes

    @property
    def padding(self) -> Tensor:
        """Which rows of a padded batch are no nodes, bool ``[num_graphs, max_nodes]``."""
        sizes = self.graphs.ptr.diff()
        return torch.arange(self.max_nodes, device=sizes.device) >= sizes.unsqueeze(1)

    def pad(self, rows: Tensor) -> Tensor:
        """Rows of nodes ``[num_nodes, ...]`` graph by graph, ``[num_graphs, max_nodes, ...]``, zero at the padding."""
        if self.num_graphs == 1:
            return rows.unsqueeze(0)
        padded = rows.new_zeros(self.num_graphs * self.max_nodes, *rows.shape[1:])
        return padded.index_copy(0, self._padded_rows(), rows).unflatten(0, (self.num_graphs, self.max_nodes))

    def unpad(self, padded: Tensor) -> Tensor:
        """The reverse of :meth:`pad`: ``[num_graphs, max_nodes, ...]`` as ``[num_nodes, ...]``."""
        if self.num_graphs == 1:
            return padded.squeeze(0)
        return padded.flatten(0, 1).index_select(0, self._padded_rows())

    def _padded_rows(self) -> Tensor:
        """Row of each node in a padded batch, int64 ``[num_nodes]``."""
        if self._padded_row is None:
            self._padded_row = self.batch * self.max_nodes + self.local_index
        return self._padded_row


def _check(edge_index: Tensor, batch: Tensor, num_graphs: int, values: bool) -> None:
    """Refuse what is no batch of graphs; values are read where they lie on the CPU."""
    if torch.compiler.is_compiling():
        return
    check_edge_index(edge_index)
    if not isinstance(batch, Tensor) or batch.dim() != 1 or batch.dtype != torch.int64:
        got = f"{batch.dtype} {list(batch.shape)}" if isinstance(batch, Tensor) else type(batch).__name__
        raise ValueError(f"batch must be int64 of shape [num_nodes], got {got}")
    if edge_index.dtype != torch.int64:
        raise ValueError(f"edge_index must be int64, got {edge_index.dtype}")
    checked_count("num_graphs", num_graphs)
    if values and batch.device.type == edge_index.device.type == "cpu":
        checks = ValueChecks()
        checks.ascending("batch", batch)
        checks.in_range("batch", batch, num_graphs)
        checks.in_range("edge_index", edge_index, batch.numel())
        checks.within_graphs(edge_index, batch)
        checks.run()
