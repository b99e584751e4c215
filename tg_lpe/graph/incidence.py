"""The graph as an operator: its incidence matrix, never written out unless asked for."""

from __future__ import annotations

import copy
import math
from functools import cached_property

import torch
from torch import Tensor

from tg_lpe.ops import native
from tg_lpe.ops.segment import RowGroups, group_pointers, scatter_sum

_INT_DTYPES = (torch.int64, torch.int32)

LARGE = 2**16
"""Edges from which on it pays to look whether they are sorted already."""

LISTINGS_KEPT = 2**20
"""Listings up to which it is noted on the way which edge each of them is, 8 bytes each."""

MAX_GRAPHS = 2**28
"""A last entry of ``batch`` beyond this is taken for a mistake by the compiled part: one counter a graph is kept."""

MARKED_NODES = 128
"""Up to this many nodes in all, edges are sorted by marking them in a square table: fewer calls than a sort."""


class Incidence:
    r"""The weighted incidence matrix ``B`` of an undirected graph, ``[num_nodes, num_edges]``, as an operator.

    Each undirected edge ``e = {u, v}`` of conductance ``w_e`` (one over its resistance) is one column of ``B``, with
    ``-sqrt(w_e)`` at the smaller and ``+sqrt(w_e)`` at the larger node index; ``B B^T`` is the graph Laplacian ``L``.
    `Graph Transformers Dream of Electric Flow <https://arxiv.org/abs/2410.16699>`_, eq. (1).

    What a list of edges means here:

    - An edge is an unordered pair. Listed in one direction, in both, or several times, it is the same single edge;
      conductors that run in parallel must be added up by the caller. All weights given for one edge must agree.
    - The orientation of a column is ours (small index to large), so orientation and order of the list change nothing.
    - Self-loops are dropped: no current flows through them, their column of ``B`` is zero.
    - Nodes without edges, graphs without edges or nodes, and edges of weight zero (as if absent) are all fine.
    - A batch of graphs is one graph with several components, plus the knowledge of who belongs where.
    - A ground conductance joins a node to a common reference node at potential zero. Its column of ``B`` has a single
      entry, ``sqrt(q)``; it adds ``q`` to the diagonal of ``L`` and makes a component that has one invertible.

    Args:
        edge_index: integer ``[2, num_listed_edges]``.
        num_nodes: number of nodes; found from ``batch`` or ``edge_index`` if absent.
        edge_weight: conductances (1/resistance), floating point ``[num_listed_edges]``; all one if absent.
        batch: graph of each node, int64 ``[num_nodes]``, sorted ascending; absent for a single graph.
        num_graphs: number of graphs; the last entry of ``batch`` plus one if absent.
        ground: ground conductances, floating point ``[num_nodes]``; none if absent.

    Attributes:
        tail, head: the two ends of each edge, int64 ``[num_edges]``, ``tail < head``, sorted by ``(tail, head)``.
        conductance: ``w``, ``[num_edges]``, or ``None`` for all ones. Gradients flow to ``edge_weight``.
        ground: ``q``, ``[num_nodes]``, or ``None``. Gradients flow to it.
        batch: int64 ``[num_nodes]``.
        num_nodes, num_edges, num_graphs: counts.

    Raises:
        ValueError: on wrong shapes or dtypes, indices out of range, unsorted ``batch``, edges between two graphs, and
            weights that are negative, NaN, infinite, or different for two listings of one edge.
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
    ) -> None:
        self.num_nodes = _count_nodes(edge_index, num_nodes, batch)
        columns = _compiled_columns(edge_index, self.num_nodes, batch, num_graphs, edge_weight is not None)
        if columns is None:
            _check_range(edge_index, self.num_nodes)
        if edge_weight is not None:
            _check_weights(edge_weight, edge_index)
        if ground is not None:
            _check_ground(ground, self.num_nodes)
        self.ground = ground
        self._listed = edge_index
        self._adjacencies: dict[tuple[torch.dtype, bool], tuple[tuple[int | None, ...], native.Adjacency]] = {}
        self._batch = batch
        if columns is None:
            self.num_graphs = _check_batch(batch, self.num_nodes, num_graphs, edge_index)
            self.tail, self.head, self.conductance = _one_column_per_edge(
                edge_index.long(), edge_weight, self.num_nodes
            )
            return
        self.num_graphs = 1 if columns.ptr is None else columns.ptr.numel() - 1
        self.tail, self.head, self._neighbour_counts = columns.tail, columns.head, columns.neighbour_counts
        if columns.ptr is not None:
            self.ptr = columns.ptr
        if columns.column is not None:
            self.column_of_listing = columns.column
        self.conductance = None if edge_weight is None else self._merge_weights(edge_weight)

    def _merge_weights(self, weight: Tensor) -> Tensor:
        """Conductances of the columns from those of the listings."""
        column = self.column_of_listing
        if self._loops is not None:
            weight, column = weight[~self._loops], column[~self._loops]
        return _merge_weights(weight, column, self.tail, self.head)

    @classmethod
    def from_columns(cls, tail: Tensor, head: Tensor, conductance: Tensor | None, num_nodes: int) -> Incidence:
        """A single graph from edges known to be distinct and valid; nothing is checked, merged or sorted."""
        graph = cls.__new__(cls)
        graph.num_nodes, graph.num_graphs, graph._batch = num_nodes, 1, None
        graph.tail, graph.head, graph.conductance = tail, head, conductance
        graph.ground, graph._listed, graph._adjacencies = None, torch.stack([tail, head]), {}
        return graph

    def with_conductances(self, conductance: Tensor | None, ground: Tensor | None = None) -> Incidence:
        """The same graph with other conductances; what is known about its structure is shared, not computed again.

        Args:
            conductance: one per column, floating point ``[num_edges]``, not per listed edge (:meth:`merge_listings`
                goes from one to the other); all one if ``None``. Not negative: not checked.
            ground: ground conductances ``[num_nodes]``; none if ``None``.

        Raises:
            ValueError: on a wrong shape.
        """
        for name, value, size in (("conductance", conductance, self.num_edges), ("ground", ground, self.num_nodes)):
            if value is not None and value.shape != (size,):
                raise ValueError(f"{name} must be [{size}], got {list(value.shape)}")
        graph = copy.copy(self)
        graph.conductance, graph.ground, graph._adjacencies = conductance, ground, {}
        return graph

    @property
    def edge_index(self) -> Tensor:
        """The edges as they were listed, ``[2, num_listed_edges]``."""
        return self._listed

    @property
    def num_listed_edges(self) -> int:
        """Number of edges as they were listed: both directions, repetitions and self-loops count."""
        return self._listed.size(1)

    @cached_property
    def column_of_listing(self) -> Tensor:
        """Column of ``B`` of each listed edge, int64 ``[num_listed_edges]``; -1 for self-loops, which have none."""
        row, col = self._listed.long().unbind()
        key = torch.add(torch.maximum(row, col), torch.minimum(row, col), alpha=self.num_nodes)
        column = torch.searchsorted(torch.add(self.head, self.tail, alpha=self.num_nodes), key)
        return column.masked_fill(row == col, -1)

    @cached_property
    def _loops(self) -> Tensor | None:
        """Which listings are self-loops, bool ``[num_listed_edges]``; ``None`` if there are none."""
        loops = self.column_of_listing < 0
        return loops if bool(loops.any()) else None

    @cached_property
    def _listings_per_column(self) -> Tensor:
        column = self.column_of_listing
        if self._loops is not None:
            column = column[~self._loops]
        return torch.bincount(column, minlength=self.num_edges)

    def merge_listings(self, values: Tensor) -> Tensor:
        """One value per undirected edge: the mean over its listings, so that neither order nor direction matters.

        Args:
            values: of the listed edges, ``[num_listed_edges, ...]``.

        Returns:
            ``[num_edges, ...]``.
        """
        column = self.column_of_listing
        if self._loops is not None:
            values, column = values[~self._loops], column[~self._loops]
        total = scatter_sum(values, column, self.num_edges)
        return total / self._listings_per_column.to(total.dtype).view(-1, *[1] * (values.dim() - 1))

    def end_sums(self, x: Tensor) -> Tensor:
        """The sum of the values of both ends of each listed edge, ``[num_listed_edges, k]``.

        Args:
            x: node values ``[num_nodes, k]``.
        """
        return x.index_select(0, self._listed[0]) + x.index_select(0, self._listed[1])

    def spread_to_listings(self, values: Tensor) -> Tensor:
        """Values of the undirected edges ``[num_edges, ...]`` at each listed edge; zero at self-loops.

        Returns:
            ``[num_listed_edges, ...]``.
        """
        column = self.column_of_listing
        if self.num_edges == 0:
            return values.new_zeros(column.numel(), *values.shape[1:])
        loops = self._loops
        if loops is None:
            return values.index_select(0, column)
        spread = values.index_select(0, column.clamp(min=0))
        return spread.masked_fill(loops.view(-1, *[1] * (values.dim() - 1)), 0.0)

    @property
    def num_edges(self) -> int:
        """Number of undirected edges, the columns of ``B``."""
        return self.tail.numel()

    @property
    def device(self) -> torch.device:
        """Where the indices live."""
        return self.tail.device

    @cached_property
    def batch(self) -> Tensor:
        """Graph of each node, int64 ``[num_nodes]``."""
        return self._batch if self._batch is not None else self.tail.new_zeros(self.num_nodes)

    @cached_property
    def ptr(self) -> Tensor:
        """First node of each graph, int64 ``[num_graphs + 1]``."""
        if self._batch is None:
            return torch.tensor([0, self.num_nodes], device=self.device)
        return group_pointers(self._batch, self.num_graphs)

    @cached_property
    def local_index(self) -> Tensor:
        """Index of each node within its own graph, int64 ``[num_nodes]``."""
        index = torch.arange(self.num_nodes, device=self.device)
        return index if self._batch is None else index - self.ptr[self._batch]

    @cached_property
    def max_nodes(self) -> int:
        """Nodes of the largest graph."""
        return self.num_nodes if self._batch is None else int(self.ptr.diff().max()) if self.num_graphs else 0

    @cached_property
    def edge_counts(self) -> Tensor:
        """Number of edges of each graph, int64 ``[num_graphs]``."""
        if self._batch is None:
            return torch.tensor([self.num_edges], device=self.device)
        return self.edge_ptr.diff()

    @cached_property
    def edge_ptr(self) -> Tensor:
        """First edge of each graph, int64 ``[num_graphs + 1]``."""
        if self._batch is None:
            return torch.tensor([0, self.num_edges], device=self.device)
        return torch.searchsorted(self.tail, self.ptr)  # edges are sorted by tail

    @cached_property
    def _neighbour_counts(self) -> Tensor:
        return torch.bincount(torch.cat([self.tail, self.head]), minlength=self.num_nodes)

    @cached_property
    def _tails(self) -> RowGroups:
        return RowGroups(self.tail, self.num_nodes)

    @cached_property
    def _heads(self) -> RowGroups:
        return RowGroups(self.head, self.num_nodes)

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
            x: node values ``[num_nodes, k]``.

        Returns:
            ``[num_edges, k]``.
        """
        y = self._heads.gather(x) - self._tails.gather(x)
        return y if self.conductance is None else y * self.root_conductance(x).unsqueeze(-1)

    def sums(self, y: Tensor) -> Tensor:
        """``B y``: the weighted sum of edge values into each node, minus at the tail and plus at the head.

        Args:
            y: edge values ``[num_edges, k]``.

        Returns:
            ``[num_nodes, k]``.
        """
        if self.conductance is not None:
            y = y * self.root_conductance(y).unsqueeze(-1)
        return self._heads.sum(y) - self._tails.sum(y)

    def laplacian(self, x: Tensor) -> Tensor:
        """``L x = B (B^T x)``, ``[num_nodes, k]``, at ``O(num_edges * k)`` cost; ground conductances are in ``L``."""
        if self.num_edges > LARGE and native.takes(x) and not self.needs_gradient(x):
            return native.native_laplacian(self.adjacency(x), x)
        out = self.sums(self.differences(x))
        return out if self.ground is None else torch.addcmul(out, self.ground.to(x.dtype).unsqueeze(-1), x)

    def needs_gradient(self, *inputs: Tensor) -> bool:
        """Whether a gradient is recorded for values computed from these, the conductances and the ground."""
        if not torch.is_grad_enabled():
            return False
        return any(x is not None and x.requires_grad for x in (*inputs, self.conductance, self.ground))

    def adjacency(self, like: Tensor, degree_scaling: bool = False) -> native.Adjacency:
        """``A``, or ``D^-1/2 A D^-1/2``, by rows; without gradient, where the compiled part of the package is there.

        It is computed once for each dtype and kept.

        Args:
            like: has the dtype that is asked for.
            degree_scaling: whether it is scaled by ``D^-1/2``, see :meth:`degree`.
        """
        key = (like.dtype, degree_scaling)
        # Conductances that are a parameter of somebody's may have been changed in place since.
        given = tuple(None if x is None or x.is_inference() else x._version for x in (self.conductance, self.ground))
        if self._adjacencies.get(key, (None, None))[0] != given:
            with torch.inference_mode(False), torch.no_grad():  # what is kept may meet a gradient later
                scale = inverse_sqrt(self.degree(like)) if degree_scaling else like.new_ones(self.num_nodes)
                w = None if self.conductance is None else self.conductance.detach().to(like.dtype)
                diagonal = self.laplacian_diagonal(like).detach()
                matrix = native.native_adjacency((self.tail, self.head), scale, w, diagonal)
            self._adjacencies[key] = given, matrix
        return self._adjacencies[key][1]

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
            f"Incidence(num_nodes={self.num_nodes}, num_edges={self.num_edges}, "
            f"num_graphs={self.num_graphs}, conductance={weights}{'' if self.ground is None else ', grounded'})"
        )


def _root(w: Tensor) -> Tensor:
    """``sqrt(w)``, with derivative zero where ``w`` is zero."""
    absent = w == 0
    return torch.where(absent, 0.0, torch.where(absent, 1.0, w).sqrt())


def inverse_sqrt(x: Tensor) -> Tensor:
    """``1/sqrt(x)``, and one with a zero derivative where ``x`` is zero.

    That is at a node without edges, whose row of ``L`` is zero.
    """
    return x.masked_fill(x == 0, 1.0).rsqrt()


def _count_nodes(edge_index: Tensor, num_nodes: int | None, batch: Tensor | None) -> int:
    """Refuse an edge list of the wrong form; return the number of nodes."""
    if edge_index.dim() != 2 or edge_index.size(0) != 2 or edge_index.dtype not in _INT_DTYPES:
        raise ValueError(
            "edge_index must be an int64 tensor of shape [2, num_edges], "
            f"got {edge_index.dtype} {list(edge_index.shape)}"
        )
    if num_nodes is None:
        num_nodes = batch.numel() if batch is not None else int(edge_index.max()) + 1 if edge_index.numel() else 0
        return max(num_nodes, 0)  # a list of negative numbers is refused for these
    if num_nodes < 0:
        raise ValueError(f"num_nodes must not be negative, got {num_nodes}")
    return num_nodes


def _check_range(edge_index: Tensor, num_nodes: int) -> None:
    """Refuse ends that are no nodes."""
    low, high = (0, -1) if edge_index.numel() == 0 else (int(i) for i in torch.aminmax(edge_index))
    if low < 0 or high >= num_nodes:
        raise ValueError(f"edge_index must lie in 0..{num_nodes - 1} (num_nodes={num_nodes}), got {low}..{high}")


def _compiled_columns(
    edge_index: Tensor, num_nodes: int, batch: Tensor | None, num_graphs: int | None, weighted: bool
) -> native.Columns | None:
    """All that a list of edges says, in one call; ``None`` where that is not possible or something is wrong with it."""
    if not native.takes_edges(edge_index):
        return None
    if batch is None:
        num_graphs = 1 if num_graphs is None else num_graphs
        if num_graphs != 1:
            return None
    elif batch.dtype != torch.int64 or batch.shape != (num_nodes,) or batch.device != edge_index.device:
        return None
    elif num_graphs is None:
        num_graphs = int(batch[-1]) + 1 if num_nodes else 0
    if not 0 <= num_graphs <= MAX_GRAPHS:
        return None
    with_listings = weighted or edge_index.size(1) <= LISTINGS_KEPT
    return native.native_columns(edge_index, num_nodes, batch, num_graphs, with_listings)


def _check_weights(weight: Tensor, edge_index: Tensor) -> None:
    """Refuse conductances of the wrong form or with a value no resistor has."""
    if weight.shape != edge_index.shape[1:] or not weight.is_floating_point():
        raise ValueError(
            f"edge_weight must be floating point of shape [{edge_index.size(1)}], "
            f"got {weight.dtype} {list(weight.shape)}"
        )
    bad = ~(torch.isfinite(weight) & (weight >= 0))
    if bad.any():
        at = int(bad.nonzero()[0, 0])
        raise ValueError(
            f"edge_weight must be finite and not negative, got {weight[at].item()} for edge "
            f"({int(edge_index[0, at])}, {int(edge_index[1, at])}) and {int(bad.sum())} such values in all"
        )


def _check_ground(ground: Tensor, num_nodes: int) -> None:
    """Refuse ground conductances of the wrong form or with a value no resistor has."""
    if ground.shape != (num_nodes,) or not ground.is_floating_point():
        raise ValueError(
            f"ground must be floating point of shape [{num_nodes}], got {ground.dtype} {list(ground.shape)}"
        )
    bad = ~(torch.isfinite(ground) & (ground >= 0))
    if bad.any():
        at = int(bad.nonzero()[0, 0])
        raise ValueError(f"ground must be finite and not negative, got {ground[at].item()} at node {at}")


def _check_batch(batch: Tensor | None, num_nodes: int, num_graphs: int | None, edge_index: Tensor) -> int:
    """Refuse an assignment of nodes to graphs that PyG would not make; return the number of graphs."""
    if batch is None:
        if num_graphs not in (None, 1):
            raise ValueError(f"num_graphs={num_graphs} needs batch, which assigns the nodes to graphs")
        return 1
    if batch.dtype != torch.int64 or batch.shape != (num_nodes,):
        raise ValueError(f"batch must be int64 of shape [{num_nodes}], got {batch.dtype} {list(batch.shape)}")
    if num_nodes == 0:
        return num_graphs or 0
    if bool((batch[1:] < batch[:-1]).any()) or int(batch[0]) < 0:
        at = int((batch[1:] < batch[:-1]).nonzero()[0, 0]) + 1 if int(batch[0]) >= 0 else 0
        raise ValueError(
            "batch must be sorted ascending from 0 or more, as PyG's Batch makes it, "
            f"got {int(batch[at])} at node {at}" + (f" after {int(batch[at - 1])}" if at else "")
        )
    last = int(batch[-1])
    if num_graphs is not None and last >= num_graphs:
        raise ValueError(f"batch must lie in 0..{num_graphs - 1} (num_graphs={num_graphs}), got {last}")
    ends = batch[edge_index]
    if bool((ends[0] != ends[1]).any()):
        at = int((ends[0] != ends[1]).nonzero()[0, 0])
        u, v = edge_index[:, at].tolist()
        raise ValueError(f"edge ({u}, {v}) joins graph {int(ends[0, at])} and graph {int(ends[1, at])} of the batch")
    return num_graphs if num_graphs is not None else last + 1


def _one_column_per_edge(
    edge_index: Tensor, weight: Tensor | None, num_nodes: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Merge listings of one edge, drop self-loops, sort: ``(tail, head, conductance)``."""
    row, col = edge_index.unbind()
    small, large = torch.minimum(row, col), torch.maximum(row, col)
    if weight is None and num_nodes <= MARKED_NODES:
        mark = edge_index.new_zeros(num_nodes, num_nodes, dtype=torch.bool)
        mark.view(-1).index_fill_(0, torch.add(large, small, alpha=num_nodes), True)
        mark.diagonal().fill_(False)
        tail, head = mark.nonzero().unbind(1)
        return tail, head, None
    key = torch.add(large, small, alpha=num_nodes)
    keep = row != col
    key = key[keep]
    if weight is None:
        columns = _unique_sorted(key)
    else:
        columns, listing = torch.unique(key, return_inverse=True)
    tail = torch.div(columns, max(num_nodes, 1), rounding_mode="floor")
    head = columns - tail * num_nodes
    return tail, head, None if weight is None else _merge_weights(weight[keep], listing, tail, head)


def _unique_sorted(key: Tensor) -> Tensor:
    """Distinct values in ascending order; a plain sort is faster than ``torch.unique`` by a third."""
    if key.numel() < 2:
        return key
    if key.numel() > LARGE and bool((key[1:] > key[:-1]).all()):
        return key
    key = torch.sort(key).values
    first = torch.ones_like(key, dtype=torch.bool)
    torch.ne(key[1:], key[:-1], out=first[1:])
    return key[first]


def _merge_weights(weight: Tensor, listing: Tensor, tail: Tensor, head: Tensor) -> Tensor:
    """The mean of the weights given for each edge, all of which must agree to rounding."""
    count = torch.bincount(listing, minlength=tail.numel())
    mean = scatter_sum(weight, listing, tail.numel()) / count.to(weight.dtype)
    with torch.no_grad():
        apart = (weight - mean[listing]).abs() > 16 * torch.finfo(weight.dtype).eps * mean[listing]
        if apart.any():
            at = int(apart.nonzero()[0, 0])
            edge = int(listing[at])
            given = weight[listing == edge].tolist()
            raise ValueError(
                f"edge_weight must agree between all listings of an edge, got {given} for edge "
                f"({int(tail[edge])}, {int(head[edge])})"
            )
    return mean
