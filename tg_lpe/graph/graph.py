"""Hold graphs, checked and sorted once, with the views that encoders and attention layers read."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from tg_lpe.arguments import HOMOGENEOUS, WITHOUT_EDGE_INDEX, as_plain, check_choice, check_devices, rows_hint
from tg_lpe.graph.incidence import Incidence
from tg_lpe.graph.incidence import inverse_sqrt as inverse_sqrt
from tg_lpe.ops import cpu, edges
from tg_lpe.ops.checks import ValueChecks
from tg_lpe.ops.layers import ScaledLaplacian
from tg_lpe.ops.lazy import lazy
from tg_lpe.ops.operator import is_exporting
from tg_lpe.ops.segment import scatter_sum

_INT_DTYPES = (torch.int64, torch.int32)

DIRECTED_KEPT = 2**20
"""Up to this number of directed edges, a graph on the CPU computes ``undirected_index`` at once (8 bytes an edge)."""

MAX_COUNT = math.isqrt(2**63 - 1)
"""Largest number of nodes or graphs: pairs of nodes are numbered in int64."""

REDUCTIONS = ("error", "add", "mean")
"""Ways to merge the weights of an edge that is listed several times."""


class Graph(Incidence):
    r"""Hold a graph or a batch of graphs: checked once, when it is made, and never changed.

    Views are computed on first use and cached.

    - Encoders read the undirected edges as the weighted incidence matrix ``B``, ``[num_nodes, num_edges]``. An edge
      ``e = {u, v}`` of conductance ``w_e`` (one over its resistance) is one column, with ``-sqrt(w_e)`` at the smaller
      node index and ``+sqrt(w_e)`` at the larger. ``B B^T`` is the graph Laplacian ``L``. `Graph Transformers Dream of
      Electric Flow <https://arxiv.org/abs/2410.16699>`_, eq. (1). Products with ``B`` and ``L`` are methods.
    - Attention layers read the directed edges, sorted by target: :attr:`source`, :attr:`target`, :meth:`sort_edges`.
      They pad the nodes of each graph with :meth:`pad`.

    The undirected graph of a list of edges:

    - An undirected edge is an unordered pair. Listed in one direction, in both, or several times, it is the same edge.
      All weights listed for one edge must agree, unless ``reduce`` merges them.
    - A column is oriented from the smaller index to the larger, so direction and order of the list change nothing.
    - Self-loops are dropped: no current flows through them, their column of ``B`` is zero.
    - Nodes without edges and graphs without edges or nodes are allowed. An edge of weight zero counts as absent.
    - A batch of graphs is one graph with several components; ``batch`` gives the graph of each node.

    Under ``torch.compile`` the undirected edges are found outside the compiled graph, since their number depends on the
    data; all other views are traced.

    Args:
        edge_index: integer ``[2, num_directed_edges]``.
        num_nodes: number of nodes; inferred from ``batch`` or ``edge_index`` if absent.
        edge_weight: conductances (1/resistance), floating point ``[num_directed_edges]``; all one if absent.
        batch: graph of each node, int64 ``[num_nodes]``, sorted ascending; absent for a single graph.
        num_graphs: number of graphs; the last entry of ``batch`` plus one if absent.
        reduce: how to merge the weights of an edge that is listed several times.

            - ``"error"``: they must agree.
            - ``"add"``: sum the edges listed in one direction (parallel conductors). If both directions are listed,
              their sums must agree. Without ``edge_weight`` each listed edge counts one.
            - ``"mean"``: take the mean over all listed edges, in either direction.
        checks: called with the graph once its counts are known; adds conditions on features. They are read from the
            device together with the conditions on edges.
        undirected: whether to find the undirected edges now. If not, they are found on first use and have no weights.

    Attributes:
        tail, head: the two ends of each undirected edge, int64 ``[num_edges]``, ``tail < head``, sorted by
            ``(tail, head)``.
        num_nodes, num_graphs: counts.

    Raises:
        TypeError: if an argument is no tensor, or a count no integer.
        ValueError: on wrong shapes or dtypes, counts or indices out of range, an unsorted ``batch``, an edge between
            two graphs, an unknown ``reduce``, or a failed condition of ``checks``; on weights that are negative, NaN,
            infinite, or different for the same undirected edge.
    """

    def __init__(
        self,
        edge_index: Tensor,
        num_nodes: int | None = None,
        *,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
        num_graphs: int | None = None,
        reduce: str = "error",
        checks: Callable[[Graph, ValueChecks], None] | None = None,
        undirected: bool = True,
    ) -> None:
        edge_index, batch = as_plain(edge_index), as_plain(batch)
        self._edge_index, self._batch = edge_index, batch
        self._conductance: Tensor | None = None
        self._checks = ValueChecks()
        self._laplacians: dict[tuple[torch.dtype, bool], ScaledLaplacian] = {}
        if torch.compiler.is_compiling() and not undirected:  # no values are read in a trace
            if num_nodes is None:
                num_nodes = int(edge_index.max()) + 1 if batch is None else batch.size(0)
            self.num_nodes = num_nodes
            last: Any = batch[-1].item() if batch is not None and num_graphs is None else 0  # int() cannot be exported
            self.num_graphs = last + 1 if batch is None or num_graphs is None else num_graphs
            if is_exporting():  # the exporter cannot infer it
                torch._check(self.num_graphs > 0)
            return
        check_choice("reduce", reduce, REDUCTIONS)
        check_edge_index(edge_index)
        if batch is not None and not isinstance(batch, Tensor):
            raise TypeError(f"batch must be an int64 tensor of shape [num_nodes], got {type(batch).__name__}")
        check_devices(edge_index=edge_index, batch=batch, edge_weight=edge_weight)
        num_graphs = None if num_graphs is None else checked_count("num_graphs", num_graphs)
        if num_nodes is None and batch is not None:
            num_nodes = batch.numel()
        elif num_nodes is None:  # negative numbers are refused later
            num_nodes = max(int(edge_index.max()) + 1, 0) if edge_index.numel() else 0
        self.num_nodes = checked_count("num_nodes", num_nodes)
        _check_form("edge_weight", edge_weight, edge_index.size(1))
        if checks is not None:
            checks(self, self._checks)
        if not undirected:
            checked = edges.checked_edges(edge_index, self.num_nodes, batch, num_graphs, self._checks)
            self.num_graphs, self.max_nodes = checked.num_graphs, checked.max_nodes
            if checked.ptr is not None:
                self.ptr = checked.ptr
            return
        is_cheap = cpu.is_available() and edge_index.size(1) <= DIRECTED_KEPT and edge_index.device.type == "cpu"
        find = self._find_untraced if torch.compiler.is_compiling() else self._find_undirected
        find(num_graphs, edge_weight is not None or is_cheap, self._checks)
        if edge_weight is None and reduce == "add":
            edge_weight = torch.ones(edge_index.size(1), device=edge_index.device)
        merged = edge_weight
        if edge_weight is not None and reduce == "add":  # sums of the edges that are listed in one direction
            group = torch.add(edge_index[0] > edge_index[1], self._merged_index, alpha=2)
            sums = scatter_sum(edge_weight, group, 2 * (self.num_edges + min(self._num_loops, 1)))
            merged = sums.index_select(0, group)
        if merged is not None:  # in float64: a float32 mean of a thousand equal weights is not near them
            self._conductance = self.merge_directed(merged.double()).to(merged.dtype)
        if edge_weight is not None:
            self._check_values(edge_weight, None if reduce == "mean" else merged)

    @classmethod
    def from_data(cls, data: Data, *, edge_weight: str | None = "edge_weight", reduce: str = "error") -> Graph:
        """Make a graph from PyTorch Geometric's ``Data`` or ``Batch``.

        Args:
            data: the graph or batch.
            edge_weight: name of the attribute that holds conductances, if present; ``None`` to ignore weights.
            reduce: as for the constructor.

        Raises:
            ValueError: if ``data`` has no ``edge_index``, or as the constructor.
        """
        if not isinstance(data, Data) or data.edge_index is None:
            raise ValueError(
                f"data must have edge_index, got {type(data).__name__} with {data.keys()}; {HOMOGENEOUS}; "
                f"{WITHOUT_EDGE_INDEX}"
            )
        num_nodes, num_graphs = counts_of(data)
        return cls(
            data.edge_index,
            num_nodes,
            edge_weight=None if edge_weight is None else data.get(edge_weight),
            batch=data.get("batch"),
            num_graphs=num_graphs,
            reduce=reduce,
        )

    def _find_undirected(self, num_graphs: int | None, with_index: bool, checks: ValueChecks) -> None:
        """Check the directed edges and sort the undirected ones."""
        found = edges.undirected_edges(self._edge_index, self.num_nodes, self._batch, num_graphs, with_index, checks)
        self.num_graphs, self.max_nodes, self._num_loops = found.num_graphs, found.max_nodes, found.num_loops
        self.tail, self.head = found.tail, found.head
        # Views that were not computed on the way are computed on first use.
        if self._batch is not None and found.ptr is not None:
            self.ptr = found.ptr
        if found.undirected_index is not None:
            self.undirected_index = found.undirected_index
        if found.neighbour_counts is not None:
            self._neighbour_counts = found.neighbour_counts

    _find_untraced = torch.compiler.disable(_find_undirected)  # the number of undirected edges depends on the data

    def _with_undirected(self) -> Graph:
        """Sort the undirected edges of a graph that was made without them."""
        self._find_untraced(self.num_graphs if self._batch is not None else None, False, ValueChecks())
        return self

    @lazy
    def tail(self) -> Tensor:
        return self._with_undirected().tail

    @lazy
    def head(self) -> Tensor:
        return self._with_undirected().head

    @lazy
    def _num_loops(self) -> int:
        return self._with_undirected()._num_loops

    def feature_checks(self) -> ValueChecks:
        """Collect conditions on features, except those that held when the graph was made."""
        if torch.compiler.is_compiling():  # nothing is checked, and the trace needs no guards on past checks
            return ValueChecks()
        return ValueChecks(self._checks.passed)

    def _check_values(self, weight: Tensor, merged: Tensor | None) -> None:
        """Refuse invalid ``weight``, and ``merged`` weights that differ for one edge, by one read from the device."""
        with torch.no_grad():
            conductance = cast(Tensor, self.conductance)
            wrong = {"edge_weight": ~(torch.isfinite(weight) & (weight >= 0)), "overflow": ~torch.isfinite(conductance)}
            if merged is not None:
                mean = self.spread_to_directed(conductance)
                rounding = 16 * torch.finfo(merged.dtype).eps * mean
                if merged is not weight:  # sums
                    rounding = rounding * self.spread_to_directed(self._directed_counts)
                wrong["disagreement"] = (merged - mean).abs() > rounding
                if self._num_loops:
                    wrong["disagreement"] &= self.undirected_index >= 0
            failed = dict(zip(wrong, torch.stack([bad.any() for bad in wrong.values()]).tolist(), strict=True))
        if not any(failed.values()):
            return
        name = next(name for name, is_wrong in failed.items() if is_wrong)
        at = int(wrong[name].nonzero()[0, 0])
        if name == "edge_weight":
            listed_edge, count = tuple(self._edge_index[:, at].tolist()), int(wrong[name].sum())
            got = f"{weight[at].item()} for edge {listed_edge} and {count} such values in all"
            raise ValueError(f"edge_weight must be finite and not negative, got {got}")
        if name == "overflow":
            ends = f"({int(self.tail[at])}, {int(self.head[at])})"
            raise ValueError(f"edge_weight of edge {ends} adds up to more than {weight.dtype} holds")
        assert merged is not None
        edge = int(self.undirected_index[at])
        listed = merged[self.undirected_index == edge].tolist()
        more = f" and {len(listed) - 8} more" if len(listed) > 8 else ""
        got = f"{listed[:8]}{more} for edge ({int(self.tail[edge])}, {int(self.head[edge])})"
        if merged is not weight:
            raise ValueError(
                "reduce='add' adds up the edge_weight of each direction, and both directions must agree, got sums "
                f"{got}; list one direction alone, or use reduce='mean'"
            )
        raise ValueError(
            f"edge_weight must agree between all directed edges of one undirected edge, got {got}; "
            "reduce='add' adds up parallel edges, reduce='mean' averages, edge_weight=None ignores weights; models "
            "and training have no reduce: merge the edges in the data with torch_geometric.utils.coalesce"
        )

    def with_conductances(self, conductance: Tensor | None) -> Graph:
        """Return the same graph with other conductances; it shares all views of the structure.

        Args:
            conductance: one per undirected edge, floating point ``[num_edges]``, not negative (not checked); all one if
                ``None``. :meth:`merge_directed` makes them from values of directed edges. Do not change the tensor in
                place afterwards: operators made from it are cached.

        Raises:
            ValueError: on a wrong shape or dtype.
        """
        _check_form("conductance", conductance, self.num_edges)
        graph = copy.copy(self)
        graph._conductance, graph._laplacians = conductance, {}
        return graph

    def weights(self) -> Tensor:
        """Return the conductances, float64 ``[num_edges]``; ones without weights."""
        w = self.conductance
        return torch.ones(self.num_edges, dtype=torch.float64, device=self.device) if w is None else w.double()

    def __repr__(self) -> str:
        weights = "unit" if self.conductance is None else str(self.conductance.dtype).removeprefix("torch.")
        return (
            f"Graph(num_nodes={self.num_nodes}, num_edges={self.num_edges}, "
            f"num_graphs={self.num_graphs}, conductance={weights})"
        )


@torch.compiler.disable
def make_graph(*arguments: Any, **options: Any) -> Graph:
    """Make a graph with its undirected edges; ``torch.compile`` breaks its graph once here instead of several times."""
    return Graph(*arguments, **options)


def check_edge_index(edge_index: Tensor) -> None:
    """Refuse an edge list of the wrong form."""
    if not isinstance(edge_index, Tensor):
        raise TypeError(
            f"edge_index must be an int64 or int32 tensor [2, num_directed_edges], got {type(edge_index).__name__}"
            + f"; {WITHOUT_EDGE_INDEX}" * (edge_index is None)
        )
    is_dense = edge_index.layout == torch.strided
    if not is_dense or edge_index.dim() != 2 or edge_index.size(0) != 2 or edge_index.dtype not in _INT_DTYPES:
        layout = "" if is_dense else f" of layout {edge_index.layout}; for adj_t pass to_edge_index(adj_t.t())[0]"
        raise ValueError(
            "edge_index must be dense int64 or int32 of shape [2, num_directed_edges], "
            f"got {edge_index.dtype} {list(edge_index.shape)}{layout}"
        )


def checked_count(name: str, count: int) -> int:
    """Return a number of nodes or graphs as an int, or refuse it."""
    try:
        count = operator.index(count)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {count!r}") from None
    if not 0 <= count <= MAX_COUNT:
        wrong = "negative" if count < 0 else f"more than {MAX_COUNT:,}"
        raise ValueError(f"{name} must not be {wrong}, got {count}")
    return count


def counts_of(data: Data) -> tuple[int | None, int | None]:
    """Return the numbers of nodes and graphs of PyG's ``Data`` with edges; ``None`` for those that it does not know."""
    # A batch of batches has no ptr, and its num_graphs counts its parts.
    return data.num_nodes, data.num_graphs if isinstance(data, Batch) and "ptr" in data else None


def _check_form(name: str, values: Tensor | None, size: int) -> None:
    """Refuse conductances of the wrong shape or dtype."""
    if values is not None and not isinstance(values, Tensor):
        raise TypeError(f"{name} must be a floating point tensor of shape [{size}], got {type(values).__name__}")
    if values is not None and (values.shape != (size,) or not values.is_floating_point()):
        hint = rows_hint(name, values.numel(), size, "edge" if name == "edge_weight" else "")
        got = f"{values.dtype} {list(values.shape)}{hint or '; write .flatten().float()'}"
        raise ValueError(f"{name} must be floating point of shape [{size}], got {got}")
