"""The graph: checked and sorted once, with the views that encoders and attention layers read."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex, Index
from torch_geometric.data import Batch, Data

from tg_lpe.arguments import check_choice
from tg_lpe.graph.buckets import PaddedRows
from tg_lpe.ops import cpu, edges
from tg_lpe.ops.checks import ValueChecks
from tg_lpe.ops.lazy import lazy
from tg_lpe.ops.operator import is_exporting, large_empty
from tg_lpe.ops.segment import RowGroups, along_rows, group_pointers, scatter_sum, sorted_with_order
from tg_lpe.ops.structures import ScaledLaplacian

_INT_DTYPES = (torch.int64, torch.int32)

LARGE = 2**16
"""Edges from which on the Laplacian's rows are written out for products with it."""

DIRECTED_KEPT = 2**20
"""Directed edges up to which the undirected edge of each is kept from the start on the CPU, 8 bytes each."""


MAX_COUNT = math.isqrt(2**63 - 1)
"""Nodes or graphs, at most: pairs of nodes are numbered in int64."""

REDUCTIONS = ("error", "add", "mean")
"""Ways to merge the weights of an edge that is listed several times."""


class Graph:
    r"""A graph or a batch of graphs, checked once, when it is made, and never changed.

    All that others read of it is a view, computed on first use and kept. Encoders read the undirected edges, as the
    weighted incidence matrix ``B``, ``[num_nodes, num_edges]``, whose products are methods: each undirected edge
    ``e = {u, v}`` of conductance ``w_e`` (one over its resistance) is one column, with ``-sqrt(w_e)`` at the smaller
    and ``+sqrt(w_e)`` at the larger node index; ``B B^T`` is the graph Laplacian ``L``. `Graph Transformers Dream of
    Electric Flow <https://arxiv.org/abs/2410.16699>`_, eq. (1). Attention layers read the directed edges, sorted by
    target: :attr:`source`, :attr:`target`, :meth:`sort_edges`; and nodes padded graph by graph: :meth:`pad`.

    What a list of edges means for the undirected graph:

    - An undirected edge is an unordered pair. Listed in one direction, in both, or several times, it is the same edge.
      All weights given for one edge must agree, unless ``reduce`` says what becomes of those that do not.
    - A column is oriented from the smaller index to the larger, so direction and order of the list change nothing.
    - Self-loops are dropped: no current flows through them, their column of ``B`` is zero.
    - Nodes without edges, graphs without edges or nodes, and edges of weight zero (as if absent) are all fine.
    - A batch of graphs is one graph with several components, and ``batch`` says which graph each node belongs to.
    - A ground conductance joins a node to a common reference node at potential zero. Its column of ``B`` has a single
      entry, ``sqrt(q)``; it adds ``q`` to the diagonal of ``L`` and makes a component that has one invertible.

    Under ``torch.compile`` the undirected edges are found outside the compiled graph, since their number depends on the
    data; all other views are traced.

    Args:
        edge_index: integer ``[2, num_directed_edges]``.
        num_nodes: number of nodes; found from ``batch`` or ``edge_index`` if absent.
        edge_weight: conductances (1/resistance), floating point ``[num_directed_edges]``; all one if absent.
        batch: graph of each node, int64 ``[num_nodes]``, sorted ascending; absent for a single graph.
        num_graphs: number of graphs; the last entry of ``batch`` plus one if absent.
        ground: ground conductances, floating point ``[num_nodes]``; none if absent.
        reduce: how the weights of an edge that is listed several times are merged. ``"error"``: they must agree.
            ``"add"``: parallel conductors, the sum over the edges listed in one direction; where both directions are
            listed, their sums must agree; without ``edge_weight`` each listed edge counts one. ``"mean"``: the mean
            over all that are listed, in either direction.
        checks: called with the graph, once its counts are known, adds conditions on features to those on the edges; all
            are read from the device together.
        undirected: whether undirected edges are wanted. If not, they are found on first use; there are no weights then.

    Attributes:
        edge_index: the directed edges as they were listed, ``[2, num_directed_edges]``.
        tail, head: the two ends of each undirected edge, int64 ``[num_edges]``, ``tail < head``, sorted by
            ``(tail, head)``.
        conductance: ``w``, ``[num_edges]``, or ``None`` for all ones. Gradients flow to ``edge_weight``.
        ground: ``q``, ``[num_nodes]``, or ``None``. Gradients flow to it.
        num_nodes, num_edges, num_graphs: counts; ``num_edges`` is that of the undirected edges.

    Raises:
        TypeError: if an argument is no tensor, or a count no integer.
        ValueError: on wrong shapes or dtypes, counts and indices out of range, unsorted ``batch``, edges between two
            graphs, and weights that are negative, NaN, infinite, or different for the same undirected edge; on an
            unknown ``reduce``; or where one of ``checks`` fails.
    """

    def __init__(
        self,
        edge_index: Tensor,
        num_nodes: int | None = None,
        *,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
        num_graphs: int | None = None,
        ground: Tensor | None = None,
        reduce: str = "error",
        checks: Callable[[Graph, ValueChecks], None] | None = None,
        undirected: bool = True,
    ) -> None:
        edge_index, batch = as_plain(edge_index), as_plain(batch)
        self._edge_index, self._batch, self._ground = edge_index, batch, ground
        self._conductance: Tensor | None = None
        self._checks = ValueChecks()
        self._laplacians: dict[tuple[torch.dtype, bool], ScaledLaplacian] = {}
        if torch.compiler.is_compiling() and not undirected:  # no values are read in a trace
            if num_nodes is None:
                num_nodes = int(edge_index.max()) + 1 if batch is None else batch.size(0)
            self.num_nodes = num_nodes
            last: Any = batch[-1].item() if batch is not None and num_graphs is None else 0  # int() cannot be exported
            self.num_graphs = last + 1 if batch is None or num_graphs is None else num_graphs
            if is_exporting():  # of which the exporter could know nothing
                torch._check(self.num_graphs > 0)
            return
        check_choice("reduce", reduce, REDUCTIONS)
        check_edge_index(edge_index)
        if batch is not None and not isinstance(batch, Tensor):
            raise TypeError(f"batch must be an int64 tensor of shape [num_nodes], got {type(batch).__name__}")
        num_graphs = None if num_graphs is None else checked_count("num_graphs", num_graphs)
        self.num_nodes = _count_nodes(edge_index, num_nodes, batch)
        _check_form("edge_weight", edge_weight, edge_index.size(1))
        _check_form("ground", ground, self.num_nodes)
        if checks is not None:
            checks(self, self._checks)
        if not undirected:
            found = edges.checked_edges(edge_index, self.num_nodes, batch, num_graphs, self._checks)
            self.num_graphs, self.max_nodes = found.num_graphs, found.max_nodes
            if found.ptr is not None:
                self.ptr = found.ptr
            return
        is_cheap = cpu.is_available() and edge_index.size(1) <= DIRECTED_KEPT and edge_index.device.type == "cpu"
        find = self._find_untraced if torch.compiler.is_compiling() else self._find_undirected
        find(num_graphs, edge_weight is not None or is_cheap, self._checks)
        if edge_weight is None and reduce == "add":
            edge_weight = torch.ones(edge_index.size(1), device=edge_index.device)
        merged = self._add_parallel(edge_weight) if edge_weight is not None and reduce == "add" else edge_weight
        self._conductance = None if merged is None else self.merge_directed(merged)
        if edge_weight is not None or ground is not None:
            self._check_values(edge_weight, None if reduce == "mean" else merged)

    @classmethod
    def from_data(cls, data: Data, *, edge_weight: str | None = "edge_weight", reduce: str = "error") -> Graph:
        """Make the graph of PyTorch Geometric's ``Data`` or ``Batch``.

        Args:
            data: the graph or batch.
            edge_weight: name of the attribute that holds conductances, where there is one; ``None`` to ignore weights.
            reduce: as for the constructor.

        Raises:
            ValueError: if it has no ``edge_index``, or as the constructor.
        """
        if data.edge_index is None:
            raise ValueError(f"data must have edge_index, got {data.keys()}")
        return cls(
            data.edge_index,
            data.num_nodes,
            edge_weight=None if edge_weight is None else data.get(edge_weight),
            batch=data.get("batch"),
            num_graphs=data.num_graphs if isinstance(data, Batch) else None,
            reduce=reduce,
        )

    def _find_undirected(self, num_graphs: int | None, with_index: bool, checks: ValueChecks) -> None:
        """Check the directed edges and sort the undirected ones."""
        found = edges.undirected_edges(self._edge_index, self.num_nodes, self._batch, num_graphs, with_index, checks)
        self.num_graphs, self.max_nodes, self._num_loops = found.num_graphs, found.max_nodes, found.num_loops
        self.tail, self.head = found.tail, found.head
        # What was not found on the way is computed where it is asked for.
        if self._batch is not None and found.ptr is not None:
            self.ptr = found.ptr
        if found.undirected_index is not None:
            self.undirected_index = found.undirected_index
        if found.neighbour_counts is not None:
            self._neighbour_counts = found.neighbour_counts

    _find_untraced = torch.compiler.disable(_find_undirected)  # the number of undirected edges depends on the data

    def _find_later(self) -> Graph:
        """Sort the undirected edges of a graph that was made without them."""
        self._find_untraced(self.num_graphs if self._batch is not None else None, False, ValueChecks())
        return self

    @lazy
    def tail(self) -> Tensor:
        return self._find_later().tail

    @lazy
    def head(self) -> Tensor:
        return self._find_later().head

    @lazy
    def _num_loops(self) -> int:
        return self._find_later()._num_loops

    def feature_checks(self) -> ValueChecks:
        """Collect conditions on features; those that held when the graph was made are not asked again."""
        if torch.compiler.is_compiling():  # nothing is checked, and the trace need not guard what was
            return ValueChecks()
        return ValueChecks(self._checks.passed)

    def _add_parallel(self, weight: Tensor) -> Tensor:
        """The sum over all directed edges that are listed from the same node to the same node, for each of them."""
        row, col = self._edge_index
        group = torch.add(row > col, self._merged_index, alpha=2)
        return scatter_sum(weight, group, 2 * (self.num_edges + min(self._num_loops, 1))).index_select(0, group)

    def _check_values(self, weight: Tensor | None, merged: Tensor | None) -> None:
        """Refuse negative, infinite or NaN conductances, and different ones for an edge; one read from the device.

        Args:
            weight: as they were given.
            merged: those that must agree.
        """
        wrong = {}
        with torch.no_grad():
            for name, value in (("edge_weight", weight), ("ground", self.ground)):
                if value is not None:
                    wrong[name] = ~(torch.isfinite(value) & (value >= 0))
            if self.conductance is not None:
                wrong["overflow"] = ~torch.isfinite(self.conductance)
            if merged is not None and self.conductance is not None:
                mean = self.spread_to_directed(self.conductance)
                rounding = 16 * torch.finfo(merged.dtype).eps * mean
                if merged is not weight:  # sums
                    rounding = rounding * self.spread_to_directed(self._directed_counts)
                wrong["disagreement"] = (merged - mean).abs() > rounding
                if self._num_loops:
                    wrong["disagreement"] &= self.undirected_index >= 0
            found = dict(zip(wrong, torch.stack([bad.any() for bad in wrong.values()]).tolist(), strict=True))
        if not any(found.values()):
            return
        name = next(name for name, is_wrong in found.items() if is_wrong)
        at = int(wrong[name].nonzero()[0, 0])
        if name == "ground" and self.ground is not None:
            raise ValueError(f"ground must be finite and not negative, got {self.ground[at].item()} at node {at}")
        assert weight is not None
        if name == "edge_weight":
            raise ValueError(
                f"edge_weight must be finite and not negative, got {weight[at].item()} for edge "
                f"({int(self._edge_index[0, at])}, {int(self._edge_index[1, at])}) and "
                f"{int(wrong[name].sum())} such values in all"
            )
        if name == "overflow":
            ends = f"({int(self.tail[at])}, {int(self.head[at])})"
            raise ValueError(f"edge_weight of edge {ends} adds up to more than {weight.dtype} holds")
        assert merged is not None
        edge = int(self.undirected_index[at])
        listed = merged[self.undirected_index == edge].tolist()
        got = f"{listed} for edge ({int(self.tail[edge])}, {int(self.head[edge])})"
        if merged is not weight:
            raise ValueError(
                "reduce='add' adds up the edge_weight of each direction, and both directions must agree, got sums "
                f"{got}; list one direction alone, or use reduce='mean'"
            )
        raise ValueError(
            f"edge_weight must agree between all directed edges that mean the same undirected one, got {got}; "
            "reduce='add' adds up parallel edges, reduce='mean' averages, edge_weight=None ignores weights; for a "
            "model or a training, which have no reduce, merge the edges in the data, as "
            "torch_geometric.utils.coalesce does"
        )

    @classmethod
    def from_undirected_edges(cls, tail: Tensor, head: Tensor, conductance: Tensor | None, num_nodes: int) -> Graph:
        """A single graph from edges known to be distinct and valid; nothing is checked, merged or sorted.

        Args:
            tail, head: ends of each edge, int64 ``[num_edges]``, ``tail < head``, sorted by them.
            conductance: ``[num_edges]``, or ``None`` for all ones.
            num_nodes: number of nodes.
        """
        graph = cls.__new__(cls)
        graph.num_nodes = graph.max_nodes = num_nodes
        graph.num_graphs, graph._batch, graph._num_loops = 1, None, 0
        graph.tail, graph.head, graph._conductance = tail, head, conductance
        graph._ground, graph._edge_index, graph._laplacians = None, torch.stack([tail, head]), {}
        graph._checks = ValueChecks()
        return graph

    def with_conductances(self, conductance: Tensor | None, ground: Tensor | None = None) -> Graph:
        """The same graph with other conductances; what is known about its structure is shared, not computed again.

        Args:
            conductance: one per undirected edge, floating point ``[num_edges]``, not per directed edge
                (:meth:`merge_directed` goes from one to the other); all one if ``None``. Not negative: not checked. Do
                not change it in place afterwards: operators that are made of it are kept.
            ground: ground conductances ``[num_nodes]``; none if ``None``.

        Raises:
            ValueError: on a wrong shape or dtype.
        """
        for name, value, size in (("conductance", conductance, self.num_edges), ("ground", ground, self.num_nodes)):
            if isinstance(value, Tensor) and value.shape != (size,):
                raise ValueError(f"{name} must be [{size}], got {list(value.shape)}")
            _check_form(name, value, size)
        graph = copy.copy(self)
        graph._conductance, graph._ground, graph._laplacians = conductance, ground, {}
        return graph

    @property
    def conductance(self) -> Tensor | None:
        """``w``, ``[num_edges]``, or ``None`` for all ones; :meth:`with_conductances` gives others."""
        return self._conductance

    @property
    def ground(self) -> Tensor | None:
        """``q``, ``[num_nodes]``, or ``None``."""
        return self._ground

    @property
    def edge_index(self) -> Tensor:
        """The directed edges as they were listed, ``[2, num_directed_edges]``."""
        return self._edge_index

    @property
    def num_directed_edges(self) -> int:
        """Number of directed edges: both directions, repetitions and self-loops count."""
        return self._edge_index.size(1)

    @lazy
    def undirected_index(self) -> Tensor:
        """Undirected edge of each directed one, int64 ``[num_directed_edges]``; -1 for self-loops, which have none."""
        return edges.undirected_index(self._edge_index, self.tail, self.head, self.num_nodes)

    @lazy
    def _merged_index(self) -> Tensor:
        """Return :attr:`undirected_index` with self-loops in a group of their own after all edges."""
        index = self.undirected_index
        return index.masked_fill(index < 0, self.num_edges) if self._num_loops else index

    @lazy
    def _directed_counts(self) -> Tensor:
        """Number of directed edges that mean each undirected one, int64 ``[num_edges]``."""
        index = self._merged_index
        return scatter_sum(torch.ones_like(index), index, self.num_edges + min(self._num_loops, 1))[: self.num_edges]

    def merge_directed(self, values: Tensor) -> Tensor:
        """One value per undirected edge: the mean over the directed edges that mean it, in any order and direction.

        Args:
            values: of the directed edges, ``[num_directed_edges, ...]``.

        Returns:
            ``[num_edges, ...]``.
        """
        # Sums in half precision overflow where the mean does not.
        wide = values.to(torch.promote_types(values.dtype, torch.float32)) if values.is_floating_point() else values
        total = scatter_sum(wide, self._merged_index, self.num_edges + min(self._num_loops, 1))[: self.num_edges]
        mean = total / along_rows(self._directed_counts.to(total.dtype), total)
        return mean.to(values.dtype) if values.is_floating_point() else mean

    def spread_to_directed(self, values: Tensor) -> Tensor:
        """Values of the undirected edges ``[num_edges, ...]`` at each directed edge; zero at self-loops.

        Returns:
            ``[num_directed_edges, ...]``.
        """
        if not self._num_loops:
            return values.index_select(0, self.undirected_index)
        zero = values.new_zeros(1, *values.shape[1:])
        return torch.cat([values, zero]).index_select(0, self._merged_index)

    @property
    def num_edges(self) -> int:
        """Number of undirected edges, the columns of ``B``."""
        return self.tail.numel()

    @property
    def device(self) -> torch.device:
        """Where the indices live."""
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
        """Nodes of the largest graph; where it is not known yet, the first use waits for the device."""
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

        The incoming edges of a node are consecutive. Rows of edges that attention layers exchange are in this order.
        """
        return self._edge_index.long().index_select(1, self._target_order)

    @lazy
    def source(self) -> RowGroups:
        """The source of each edge of :attr:`edges_by_target`, for gathers from nodes to edges and sums to nodes."""
        return RowGroups(self.edges_by_target[0], self.num_nodes, is_sorted=False)

    @lazy
    def target(self) -> RowGroups:
        """The target of each edge of :attr:`edges_by_target`, likewise."""
        return RowGroups(self.edges_by_target[1], self.num_nodes, is_sorted=True)

    @lazy
    def edge_graphs(self) -> RowGroups:
        """The graph of each edge of :attr:`edges_by_target`, as :attr:`graphs`."""
        graph = self.batch.index_select(0, self.edges_by_target[1])
        return RowGroups(graph, self.num_graphs, is_sorted=True)

    def sort_edges(self, rows: Tensor) -> Tensor:
        """Rows in the order of ``edge_index``, ``[num_directed_edges, ...]``, in that of :attr:`edges_by_target`."""
        return rows.index_select(0, self._target_order)  # the backward pass of brackets would be a serial sum

    def squared_distances(self, x: Tensor) -> Tensor:
        """Squared distances of the rows of the ends of :attr:`edges_by_target`, ``[num_directed_edges, 1]``.

        Args:
            x: node values ``[num_nodes, k]``.
        """
        return (self.source.gather(x) - self.target.gather(x)).square().sum(1, keepdim=True)

    def padded(self, **options: Any) -> PaddedRows:
        """Lay the nodes out in buckets of graphs of similar size; the options are those of ``PaddedRows``."""
        return PaddedRows(self.ptr, self.batch, self.local_index, self.max_nodes, **options)

    @property
    def padding(self) -> Tensor:
        """Which rows of :meth:`pad` are no nodes, bool ``[num_graphs, max_nodes]``."""
        sizes = self.graphs.ptr.diff()
        return torch.arange(self.max_nodes, device=sizes.device) >= sizes.unsqueeze(1)

    def pad(self, rows: Tensor) -> Tensor:
        """Rows of nodes ``[num_nodes, ...]`` graph by graph, ``[num_graphs, max_nodes, ...]``, zero at the padding."""
        if self.num_graphs == 1:
            return rows.unsqueeze(0)
        padded = rows.new_zeros(self.num_graphs * self.max_nodes, *rows.shape[1:])
        return padded.index_copy(0, self._padded_row, rows).unflatten(0, (self.num_graphs, self.max_nodes))

    def unpad(self, padded: Tensor) -> Tensor:
        """The reverse of :meth:`pad`: ``[num_graphs, max_nodes, ...]`` as ``[num_nodes, ...]``."""
        if self.num_graphs == 1:
            return padded.squeeze(0)
        return padded.flatten(0, 1).index_select(0, self._padded_row)

    @lazy
    def _padded_row(self) -> Tensor:
        """Row of each node in a padded batch, int64 ``[num_nodes]``."""
        return self.batch * self.max_nodes + self.local_index

    @lazy
    def local_index(self) -> Tensor:
        """Index of each node within its own graph, int64 ``[num_nodes]``."""
        index = torch.arange(self.num_nodes, device=self.device)
        return index if self._batch is None else index - self.ptr[self._batch]

    @lazy
    def num_pairs(self) -> int:
        """Number of :attr:`pairs`; where it is not known yet, the first use waits for the device."""
        if self._batch is None:
            return self.num_nodes**2
        return int(self.graphs.ptr.diff().square().sum())

    @lazy
    def first_pair(self) -> Tensor:
        """Number of the first of each node's own :attr:`pairs`, int64 ``[num_nodes]``."""
        sizes = self.graphs.gather(self.graphs.ptr.diff())
        return sizes.cumsum(0) - sizes

    @lazy
    def pairs(self) -> Tensor:
        """All ordered pairs of nodes of each graph, a node with itself included, int64 ``[2, num_pairs]``.

        Sorted by the first node, then the second, so the pairs of a graph are its matrices row by row.
        """
        begin = self.first_pair - self.graphs.gather(self.graphs.ptr[:-1])
        sizes = self.graphs.gather(self.graphs.ptr.diff())
        first = torch.repeat_interleave(sizes, output_size=self.num_pairs)
        pairs = large_empty((2, self.num_pairs), torch.int64, self.device)
        pairs[0] = first
        pairs[1] = torch.arange(self.num_pairs, device=self.device)
        pairs[1] -= begin.index_select(0, first)
        return pairs

    def pair_number(self, first: Tensor, second: Tensor) -> Tensor:
        """Where pairs of nodes of the same graph are among :attr:`pairs`, int64, in the shape of both arguments."""
        return self.first_pair[first] + self.local_index[second]

    @lazy
    def edge_pairs(self) -> Tensor:
        """Number of the pair (target, source) of each edge of :attr:`edges_by_target`, int64."""
        source, target = self.edges_by_target
        return self.pair_number(target, source)

    @lazy
    def pair_graphs(self) -> RowGroups:
        """The graph of each pair, as :attr:`graphs`."""
        return RowGroups(self.batch.index_select(0, self.pairs[0]), self.num_graphs, is_sorted=True)

    @lazy
    def pair_rows(self) -> RowGroups:
        """The first node of each pair, for gathers from nodes and sums to nodes."""
        return RowGroups(self.pairs[0], self.num_nodes, is_sorted=True)

    @lazy
    def pair_columns(self) -> RowGroups:
        """The second node of each pair, likewise."""
        return RowGroups(self.pairs[1], self.num_nodes, is_sorted=False)

    def pad_pairs(self, rows: Tensor) -> Tensor:
        """Rows of pairs ``[num_pairs, ...]`` as ``[num_graphs, max_nodes, max_nodes, ...]``, zero at the padding."""
        shape = self.num_graphs, self.max_nodes, self.max_nodes
        if self.num_graphs == 1:
            return rows.unflatten(0, shape)
        padded = rows.new_zeros(shape[0] * shape[1] * shape[2], *rows.shape[1:])
        return padded.index_copy(0, self._padded_pair, rows).unflatten(0, shape)

    def unpad_pairs(self, padded: Tensor) -> Tensor:
        """The reverse of :meth:`pad_pairs`: ``[num_graphs, max_nodes, max_nodes, ...]`` as ``[num_pairs, ...]``."""
        rows = padded.flatten(0, 2)
        return rows if self.num_graphs == 1 else rows.index_select(0, self._padded_pair)

    @lazy
    def _padded_pair(self) -> Tensor:
        """Place of each pair in a padded batch, int64 ``[num_pairs]``."""
        first, second = self.pairs
        return self._padded_row.index_select(0, first) * self.max_nodes + self.local_index.index_select(0, second)

    @lazy
    def edge_counts(self) -> Tensor:
        """Number of edges of each graph, int64 ``[num_graphs]``."""
        if self._batch is None:
            return torch.tensor([self.num_edges], device=self.device)
        return self.edge_ptr.diff()

    @lazy
    def edge_ptr(self) -> Tensor:
        """First edge of each graph, int64 ``[num_graphs + 1]``."""
        if self._batch is None:
            return torch.tensor([0, self.num_edges], device=self.device)
        return torch.searchsorted(self.tail, self.ptr)  # edges are sorted by tail

    @lazy
    def _neighbour_counts(self) -> Tensor:
        ends = torch.cat([self.tail, self.head])
        return scatter_sum(torch.ones_like(ends), ends, self.num_nodes)

    @lazy
    def _tails(self) -> RowGroups:
        return RowGroups(self.tail, self.num_nodes, is_sorted=True)

    @lazy
    def _heads(self) -> RowGroups:
        return RowGroups(self.head, self.num_nodes, is_sorted=False)

    def root_conductance(self, like: Tensor) -> Tensor:
        """``sqrt(w)``, the absolute values in ``B``, ``[num_edges]``, in the dtype of ``like``.

        The derivative at ``w = 0``, where it does not exist, is taken as zero: such an edge is absent.
        """
        if self.conductance is None:
            return like.new_ones(self.num_edges)
        return _root(self.conductance.to(like.dtype))

    def differences(self, x: Tensor) -> Tensor:
        """``B^T x``: the weighted difference of node values along each edge.

        Args:
            x: node values ``[num_nodes, ...]``.

        Returns:
            ``[num_edges, ...]``.
        """
        y = self._heads.gather(x) - self._tails.gather(x)
        return y if self.conductance is None else y * along_rows(self.root_conductance(x), y)

    def sums(self, y: Tensor) -> Tensor:
        """``B y``: the weighted sum of edge values into each node, minus at the tail and plus at the head.

        Args:
            y: edge values ``[num_edges, ...]``.

        Returns:
            ``[num_nodes, ...]``.
        """
        if self.conductance is not None:
            y = y * along_rows(self.root_conductance(y), y)
        return self._heads.sum(y) - self._tails.sum(y)

    def laplacian(self, x: Tensor) -> Tensor:
        """``L x = B (B^T x)``, ``[num_nodes, ...]``, at ``O(num_edges * k)`` cost; ground conductances are in ``L``."""
        if cpu.supports(x) and x.dim() == 2 and self.num_edges > LARGE and not self.needs_gradient():
            scaled = self.scaled_laplacian(x)
            if scaled.rows is not None:
                return edges.laplacian(scaled.rows, scaled.diagonal, x)
        out = self.sums(self.differences(x))
        return out if self.ground is None else torch.addcmul(out, along_rows(self.ground.to(x.dtype), x), x)

    def needs_gradient(self, *inputs: Tensor) -> bool:
        """Whether a gradient is recorded for values computed from these, the conductances and the ground."""
        if not torch.is_grad_enabled():
            return False
        return any(x is not None and x.requires_grad for x in (*inputs, self.conductance, self.ground))

    def scaled_laplacian(self, like: Tensor, degree_scaling: bool = False) -> ScaledLaplacian:
        """``L``, or ``D^-1/2 L D^-1/2``, as the operations on layers read it; without gradient.

        It is computed once for each dtype and kept.

        Args:
            like: has the dtype and device that are asked for.
            degree_scaling: whether it is scaled by ``D^-1/2``, see :meth:`degree`.
        """
        if torch.compiler.is_compiling():
            return self._scaled_laplacian(like, degree_scaling)
        key = (like.dtype, degree_scaling)
        if key not in self._laplacians:
            with torch.inference_mode(False):  # what is kept may meet a gradient later
                self._laplacians[key] = self._scaled_laplacian(like, degree_scaling)
        return self._laplacians[key]

    @torch.no_grad()
    def _scaled_laplacian(self, like: Tensor, degree_scaling: bool) -> ScaledLaplacian:
        scale = inverse_sqrt(self.degree(like)) if degree_scaling else like.new_ones(self.num_nodes)
        # A copy: conductances that are changed in place before a backward pass must not reach it.
        w = None if self.conductance is None else self.conductance.detach().to(like.dtype, copy=True)
        diagonal = self.laplacian_diagonal(like).detach() * scale.square()
        rows = edges.adjacency_rows(self.tail, self.head, scale, w) if cpu.supports(like) else None
        return ScaledLaplacian(self.tail, self.head, self.ptr, scale, w, diagonal, self.max_nodes, rows)

    def degree(self, like: Tensor) -> Tensor:
        """``D``, the row sums of ``|B|``, ``[num_nodes]``, in the dtype of ``like``: eq. (16) of the paper.

        For unit conductances this is the usual degree and the diagonal of ``L``; for others it is the sum of their
        square roots, as the paper defines it.
        """
        if self.conductance is None:
            rows = self._neighbour_counts.to(like.dtype)
        else:
            root = self.root_conductance(like)
            rows = scatter_sum(torch.cat([root, root]), torch.cat([self.tail, self.head]), self.num_nodes)
        return rows if self.ground is None else rows + _root(self.ground.to(like.dtype))

    def laplacian_diagonal(self, like: Tensor) -> Tensor:
        """The diagonal of ``L``, the sum of each node's conductances, ``[num_nodes]``, in the dtype of ``like``."""
        if self.conductance is None:
            diagonal = self._neighbour_counts.to(like.dtype)
        else:
            w = self.conductance.to(like.dtype)
            diagonal = scatter_sum(torch.cat([w, w]), torch.cat([self.tail, self.head]), self.num_nodes)
        return diagonal if self.ground is None else diagonal + self.ground.to(like.dtype)

    def frobenius_norm(self, like: Tensor) -> Tensor:
        """The Frobenius norm of each graph's own ``B``, ``[num_graphs]``, in the dtype of ``like``.

        One where ``B`` is zero, so that dividing by it leaves zero.
        """
        if self.conductance is None and self.ground is None:
            if self._batch is None:
                return like.new_full((1,), math.sqrt(max(2 * self.num_edges, 1)))
            return (2 * self.edge_counts).clamp_min(1).to(like.dtype).sqrt()
        w = like.new_ones(self.num_edges) if self.conductance is None else self.conductance.to(like.dtype)
        squared = scatter_sum(2 * w, self.batch[self.tail], self.num_graphs)
        if self.ground is not None:
            squared = squared + scatter_sum(self.ground.to(like.dtype), self.batch, self.num_graphs)
        return squared.masked_fill(squared == 0, 1.0).sqrt()

    def dense(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """``B`` written out, for tests and small graphs.

        Returns:
            ``[num_nodes, num_edges]``, and where there are ground conductances ``[num_nodes, num_edges + num_nodes]``.
        """
        root = self.root_conductance(torch.empty(0, dtype=dtype, device=self.device))
        matrix = root.new_zeros(self.num_nodes, self.num_edges)
        column = torch.arange(self.num_edges, device=self.device)
        matrix = matrix.index_put((self.tail, column), -root).index_put((self.head, column), root)
        return matrix if self.ground is None else torch.cat([matrix, torch.diag(_root(self.ground.to(dtype)))], dim=1)

    def __repr__(self) -> str:
        weights = "unit" if self.conductance is None else str(self.conductance.dtype).removeprefix("torch.")
        return (
            f"Graph(num_nodes={self.num_nodes}, num_edges={self.num_edges}, "
            f"num_graphs={self.num_graphs}, conductance={weights}{'' if self.ground is None else ', grounded'})"
        )


@torch.compiler.disable
def make_graph(*arguments: Any, **options: Any) -> Graph:
    """Make a graph with its undirected edges: under ``torch.compile`` one break of the compiled graph, not several."""
    return Graph(*arguments, **options)


def _root(w: Tensor) -> Tensor:
    """``sqrt(w)``, with derivative zero where ``w`` is zero."""
    absent = w == 0
    return torch.where(absent, 0.0, torch.where(absent, 1.0, w).sqrt())


def inverse_sqrt(x: Tensor) -> Tensor:
    """``1/sqrt(x)``, and one with a zero derivative where ``x`` is zero.

    That is at a node without edges, whose row of ``L`` is zero.
    """
    return x.masked_fill(x == 0, 1.0).rsqrt()


def as_plain(tensor: Any) -> Any:
    """The tensor in PyTorch Geometric's ``EdgeIndex`` or ``Index``, which hold no memory; others as they are."""
    return tensor.as_tensor() if isinstance(tensor, (EdgeIndex, Index)) else tensor


def check_edge_index(edge_index: Tensor) -> None:
    """Refuse an edge list of the wrong form."""
    if not isinstance(edge_index, Tensor):
        raise TypeError(
            f"edge_index must be an int64 or int32 tensor of shape [2, num_directed_edges], got "
            f"{type(edge_index).__name__}"
        )
    if edge_index.layout != torch.strided:
        raise ValueError(f"edge_index must be dense, [2, num_directed_edges], got the layout {edge_index.layout}")
    if edge_index.dim() != 2 or edge_index.size(0) != 2 or edge_index.dtype not in _INT_DTYPES:
        raise ValueError(
            "edge_index must be int64 or int32 of shape [2, num_directed_edges], "
            f"got {edge_index.dtype} {list(edge_index.shape)}"
        )


def checked_count(name: str, count: int) -> int:
    """A number of nodes or graphs, if it is one."""
    try:
        count = operator.index(count)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {count!r}") from None
    if not 0 <= count <= MAX_COUNT:
        wrong = "negative" if count < 0 else f"more than {MAX_COUNT:,}"
        raise ValueError(f"{name} must not be {wrong}, got {count}")
    return count


def _count_nodes(edge_index: Tensor, num_nodes: int | None, batch: Tensor | None) -> int:
    """The number of nodes, found if it is not given."""
    if num_nodes is None:
        largest = int(edge_index.max()) + 1 if batch is None and edge_index.numel() else 0
        if largest > MAX_COUNT:
            raise ValueError(f"edge_index must lie in 0..{MAX_COUNT - 1}, got {largest - 1}")
        return batch.numel() if batch is not None else max(largest, 0)  # negative numbers are refused later
    return checked_count("num_nodes", num_nodes)


def _check_form(name: str, values: Tensor | None, size: int) -> None:
    """Refuse conductances of the wrong shape or dtype."""
    if values is not None and not isinstance(values, Tensor):
        raise TypeError(f"{name} must be a floating point tensor of shape [{size}], got {type(values).__name__}")
    if values is not None and (values.shape != (size,) or not values.is_floating_point()):
        raise ValueError(f"{name} must be floating point of shape [{size}], got {values.dtype} {list(values.shape)}")
