"""Find the undirected edges of a list of directed edges, write them as CSR, and multiply by a Laplacian."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tg_lpe.arguments import outside_nodes, rows_hint
from tg_lpe.ops import cpu
from tg_lpe.ops.checks import ValueChecks
from tg_lpe.ops.cpu import Function, Int, Pointer, Required, required_ends
from tg_lpe.ops.operator import Operator, detached, keep_inputs, kept_inputs
from tg_lpe.ops.segment import group_of_rows, group_pointers

MAX_NODES = 2**32
"""Numbers of nodes and of directed edges must be below this for the C++ backend."""

MAX_GRAPHS = 2**28
"""Largest number of graphs of a batch."""

_undirected_kernel = Function(
    "undirected_edges",
    (Int, "num_nodes num_directed num_graphs"),
    (Pointer, "row col batch tail head index neighbour_counts ptr"),
    (Int, "num_threads num_edges num_loops max_nodes"),
    dtypes={torch.int64: "int64"},
)
_rows_kernel = Function(
    "adjacency_rows",
    (Int, "num_nodes num_edges"),
    (Pointer, "tail head conductance node_scale crow col value"),
    (Int, "num_threads"),
)
_laplacian_kernel = Function(
    "laplacian",
    (Int, "num_nodes num_entries k"),
    (Pointer, "crow col value diagonal x out"),
    (Int, "subtract num_threads"),
)


class UndirectedEdges(NamedTuple):
    """Hold the distinct undirected edges of a list, sorted by ``(tail, head)``, ``tail < head``; no self-loops."""

    tail: Tensor
    head: Tensor
    """int64 ``[num_edges]``."""
    undirected_index: Tensor | None
    """Undirected edge of each directed edge, int64 ``[num_directed_edges]``, -1 for self-loops; or ``None``."""
    neighbour_counts: Tensor | None
    """Number of neighbours of each node, int64 ``[num_nodes]``; ``None`` if not computed."""
    ptr: Tensor | None
    """First node of each graph of a batch, int64 ``[num_graphs + 1]``; ``None`` if not computed."""
    num_graphs: int
    num_loops: int
    """Number of self-loops in the list."""
    max_nodes: int
    """Number of nodes of the largest graph."""


class AdjacencyRows(NamedTuple):
    """Hold a sparse matrix without diagonal as CSR: row ``i`` has entries ``crow[i]`` to ``crow[i + 1] - 1``."""

    crow: Tensor
    """int64 ``[num_nodes + 1]``."""
    col: Tensor
    """int32 ``[2 num_edges]``."""
    value: Tensor
    """``[2 num_edges]``."""


def undirected_edges(
    edge_index: Tensor,
    num_nodes: int,
    batch: Tensor | None = None,
    num_graphs: int | None = None,
    with_index: bool = True,
    checks: ValueChecks | None = None,
) -> UndirectedEdges:
    """Merge the directed edges of each undirected edge, drop self-loops, and sort.

    All checks and counts are read from the device at once.

    Args:
        edge_index: int64 or int32 ``[2, num_directed_edges]``.
        num_nodes: number of nodes.
        batch: graph of each node, int64 ``[num_nodes]``, sorted ascending; ``None`` for a single graph.
        num_graphs: number of graphs; the last entry of ``batch`` plus one if absent.
        with_index: whether to compute :attr:`UndirectedEdges.undirected_index`.
        checks: further conditions, read from the device together with those on the edges.

    Raises:
        ValueError: if an end is out of range, ``batch`` is malformed or not sorted, an edge joins two graphs, or a
            condition of ``checks`` fails.
    """
    checks = ValueChecks() if checks is None else checks
    _check_batch(num_nodes, batch, num_graphs)
    same_device = batch is None or batch.device == edge_index.device
    if same_device and _supports(edge_index, num_nodes):
        graphs = 1 if batch is None else num_graphs
        if graphs is None:
            graphs = int(batch[-1]) + 1 if batch is not None and num_nodes else 0
        if 0 <= graphs <= MAX_GRAPHS:
            try:
                undirected = _compiled_undirected_edges(edge_index, num_nodes, batch, graphs, with_index)
            except ValueError:  # the reference raises a more precise error
                pass
            else:
                checks.run()
                return undirected
    return _reference(edge_index, num_nodes, batch, num_graphs, with_index, checks)


def _supports(edge_index: Tensor, num_nodes: int) -> bool:
    """Return whether the library can sort this list."""
    return (
        cpu.library is not None
        and type(edge_index) is Tensor  # subclasses may have no memory
        and edge_index.dtype == torch.int64
        and edge_index.device.type == "cpu"
        and max(num_nodes, edge_index.size(1)) < MAX_NODES
    )


def _compiled_undirected_edges(
    edge_index: Tensor, num_nodes: int, batch: Tensor | None, num_graphs: int, with_index: bool
) -> UndirectedEdges:
    """Sort by counting, in linear time; raise ``ValueError`` if the list or ``batch`` is malformed."""
    rows = edge_index.contiguous()
    tail, head = torch.empty_like(rows).unbind()
    index = torch.empty_like(rows[0]) if with_index else None
    counts = rows.new_empty(num_nodes)
    ptr = None if batch is None else rows.new_empty(num_graphs + 1)
    sizes = {"num_nodes": num_nodes, "num_directed": edge_index.size(1), "num_graphs": num_graphs}
    shape = (edge_index.size(1),)
    read: dict[str, Required] = {"row": (rows[0], torch.int64, shape), "col": (rows[1], torch.int64, shape)}
    if batch is not None:
        read["batch"] = (batch, torch.int64, (num_nodes,))
    results = {"tail": tail, "head": head, "index": index, "neighbour_counts": counts, "ptr": ptr}
    written = _undirected_kernel(torch.int64, "malformed list of edges", read, results, **sizes)
    m, facts = written.num_edges, (num_graphs, written.num_loops, written.max_nodes)
    return UndirectedEdges(tail[:m], head[:m], index, counts, ptr, *facts)


def _check_batch(num_nodes: int, batch: Tensor | None, num_graphs: int | None) -> None:
    """Refuse a ``batch`` of the wrong dtype or shape."""
    if batch is None:
        if num_graphs not in (None, 1):
            raise ValueError(f"num_graphs={num_graphs} needs batch, which assigns the nodes to graphs")
    elif num_graphs is not None and not 0 <= num_graphs <= MAX_GRAPHS:
        raise ValueError(f"num_graphs must lie in 0..{MAX_GRAPHS}, got {num_graphs}")
    elif batch.dtype != torch.int64 or batch.shape != (num_nodes,):
        hint = rows_hint("batch", batch.numel(), num_nodes, "node") or "; pass batch.long()" * (batch.dim() == 1)
        raise ValueError(f"batch must be int64 of shape [{num_nodes}], got {batch.dtype} {list(batch.shape)}{hint}")


class CheckedEdges(NamedTuple):
    """Hold the counts of a checked list of directed edges."""

    ptr: Tensor | None
    """First node of each graph, int64 ``[num_graphs + 1]``; ``None`` without ``batch``."""
    num_graphs: int
    num_loops: int
    max_nodes: int


def checked_edges(
    edge_index: Tensor, num_nodes: int, batch: Tensor | None, num_graphs: int | None, checks: ValueChecks
) -> CheckedEdges:
    """Check a list of directed edges without sorting it; the arguments are those of :func:`undirected_edges`."""
    _check_batch(num_nodes, batch, num_graphs)
    return _validate(edge_index, num_nodes, batch, num_graphs, checks)[0]


def _reference(
    edge_index: Tensor,
    num_nodes: int,
    batch: Tensor | None,
    num_graphs: int | None,
    with_index: bool,
    checks: ValueChecks,
) -> UndirectedEdges:
    """Compute :func:`undirected_edges` in torch."""
    row, col = edge_index.long().unbind()
    key = torch.add(torch.maximum(row, col), torch.minimum(row, col), alpha=num_nodes)
    key = torch.sort(key.masked_fill_(row == col, num_nodes**2)).values  # self-loops last
    place = torch.zeros_like(key)
    torch.ne(key[1:], key[:-1], out=place[1:])
    place.cumsum_(0)
    (ptr, *facts), (last,) = _validate(edge_index, num_nodes, batch, num_graphs, checks, place[-1:].sum())
    num_edges = last + 1 - (facts[1] > 0) if key.numel() else 0
    # Equal keys go to one place; a mask would wait for the device.
    key = key.new_empty(last + 1).scatter_(0, place, key)[:num_edges]
    tail = torch.div(key, num_nodes, rounding_mode="floor")
    head = key - tail * num_nodes
    index = undirected_index(edge_index, tail, head, num_nodes) if with_index else None
    return UndirectedEdges(tail, head, index, None, ptr, *facts)


def undirected_index(edge_index: Tensor, tail: Tensor, head: Tensor, num_nodes: int) -> Tensor:
    """Find the undirected edge of each directed edge, int64 ``[num_directed_edges]``; -1 for self-loops.

    Args:
        edge_index: integer ``[2, num_directed_edges]``.
        tail, head: the undirected edges, as in :class:`UndirectedEdges`.
        num_nodes: number of nodes.
    """
    row, col = edge_index.long().unbind()
    key = torch.add(torch.maximum(row, col), torch.minimum(row, col), alpha=num_nodes)
    index = torch.searchsorted(torch.add(head, tail, alpha=num_nodes), key)
    return index.masked_fill(row == col, -1)


def _validate(
    edge_index: Tensor,
    num_nodes: int,
    batch: Tensor | None,
    num_graphs: int | None,
    checks: ValueChecks,
    *counts: Tensor,
) -> tuple[CheckedEdges, list[int]]:
    """Refuse a malformed list; read all numbers, and ``counts`` of shape ``[]``, together with those of ``checks``."""
    none = edge_index.new_zeros((), dtype=torch.int64)
    facts = {"low": none, "high": none - 1, "loops": none}
    if edge_index.numel():
        low, high = torch.aminmax(edge_index)
        facts = {"low": low, "high": high, "loops": (edge_index[0] == edge_index[1]).sum()}
    ptr = None
    if batch is not None and num_nodes:
        inside = edge_index.clamp(0, num_nodes - 1).long()
        ends = batch[inside]
        facts |= {
            "first": batch[0],
            "last": batch[-1],
            "unsorted": (batch[1:] < batch[:-1]).sum(),
            "crossing": (ends[0] != ends[1]).sum(),
        }
        if num_graphs is None:
            node = torch.arange(num_nodes, device=batch.device)
            begin = torch.zeros_like(node)
            begin[1:] = torch.where(batch[1:] != batch[:-1], node[1:], 0)
            facts["largest"] = (node - begin.cummax(0).values).max() + 1
        else:
            ptr = group_pointers(batch, max(num_graphs, 1))
            facts["largest"] = ptr.diff().max()
    first = checks.also_read(*(value.to(none) for value in facts.values()), *counts)
    numbers = checks.read()
    counted = numbers[first + len(facts) :]
    read = dict(zip(facts, numbers[first:], strict=False))
    if read["low"] < 0 or read["high"] >= num_nodes:
        raise ValueError(outside_nodes(num_nodes, read["low"], read["high"]))
    if batch is None:
        checks.judge(numbers)
        return CheckedEdges(None, 1, read["loops"], num_nodes), counted
    if num_nodes == 0:
        checks.judge(numbers)
        ptr = batch.new_zeros(max(num_graphs or 0, 0) + 1)
        return CheckedEdges(ptr, num_graphs or 0, read["loops"], 0), counted
    if read["unsorted"] or read["first"] < 0:
        at = int((batch[1:] < batch[:-1]).nonzero()[0, 0]) + 1 if read["first"] >= 0 else 0
        raise ValueError(
            "batch must be sorted ascending from 0 or more, as PyG's Batch makes it, "
            f"got {int(batch[at])} at node {at}" + (f" after {int(batch[at - 1])}" if at else "")
        )
    if num_graphs is not None and read["last"] >= num_graphs:
        raise ValueError(f"batch must lie in 0..{num_graphs - 1} (num_graphs={num_graphs}), got {read['last']}")
    if read["crossing"]:
        at = int((ends[0] != ends[1]).nonzero()[0, 0])
        u, v = edge_index[:, at].tolist()
        raise ValueError(f"edge ({u}, {v}) joins graph {int(ends[0, at])} and graph {int(ends[1, at])} of the batch")
    checks.judge(numbers)
    num_graphs = read["last"] + 1 if num_graphs is None else num_graphs
    return CheckedEdges(ptr, num_graphs, read["loops"], read["largest"]), counted


def adjacency_rows(tail: Tensor, head: Tensor, node_scale: Tensor, conductance: Tensor | None) -> AdjacencyRows:
    """Return ``diag(s) A diag(s)`` as CSR; without gradient.

    Args:
        tail, head: ends of each edge, int64 ``[num_edges]``, ``tail < head``, sorted by them.
        node_scale: ``s``, ``[num_nodes]``.
        conductance: entries of ``A``, ``[num_edges]``, or ``None`` for all ones.
    """
    return AdjacencyRows(*_adjacency_rows(node_scale, tail, head, conductance))


def compiled_adjacency_rows(
    tail: Tensor, head: Tensor, node_scale: Tensor, conductance: Tensor | None
) -> AdjacencyRows:
    """Compute :func:`adjacency_rows` by counting, in linear time."""
    num_nodes, num_edges, dtype = node_scale.numel(), tail.numel(), node_scale.dtype
    read = {**required_ends(tail, head, num_nodes), "node_scale": (node_scale, dtype, (num_nodes,))}
    if conductance is not None:
        read["conductance"] = (conductance, dtype, (num_edges,))
    crow = node_scale.new_empty(num_nodes + 1, dtype=torch.int64)
    col, value = crow.new_empty(2 * num_edges, dtype=torch.int32), node_scale.new_empty(2 * num_edges)
    malformed = f"each edge must have 0 <= tail < head < {num_nodes}, and tails must ascend"
    rows = AdjacencyRows(crow, col, value)
    _rows_kernel(dtype, malformed, read, rows._asdict(), num_nodes=num_nodes, num_edges=num_edges)
    return rows


def _reference_adjacency_rows(
    tail: Tensor, head: Tensor, node_scale: Tensor, conductance: Tensor | None
) -> AdjacencyRows:
    """Compute :func:`adjacency_rows` in torch."""
    row, col = torch.stack([tail, head], dim=1).flatten(), torch.stack([head, tail], dim=1).flatten()
    value = node_scale[row] * node_scale[col]
    if conductance is not None:
        value = value * conductance.repeat_interleave(2)
    sorted_row, order = torch.sort(row, stable=True)
    return AdjacencyRows(group_pointers(sorted_row, node_scale.numel()), col[order].int(), value[order])


def _fake_adjacency_rows(
    node_scale: Tensor, tail: Tensor, head: Tensor, conductance: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    num_nodes, num_entries = node_scale.shape[0], 2 * tail.shape[0]
    return (
        node_scale.new_empty(num_nodes + 1, dtype=torch.int64),
        node_scale.new_empty(num_entries, dtype=torch.int32),
        node_scale.new_empty(num_entries),
    )


_adjacency_rows = Operator(
    "adjacency_rows(Tensor node_scale, Tensor tail, Tensor head, Tensor? conductance) "
    "-> (Tensor crow, Tensor col, Tensor value)",
    lambda scale, tail, head, conductance: tuple(
        (compiled_adjacency_rows if cpu.supports(scale) else _reference_adjacency_rows)(tail, head, scale, conductance)
    ),
    _fake_adjacency_rows,
)


def laplacian(rows: AdjacencyRows, diagonal: Tensor, x: Tensor) -> Tensor:
    """Compute ``(diag(diagonal) - A) x``, ``[num_nodes, k]``, for a symmetric ``A``.

    Args:
        rows: ``A`` as CSR.
        diagonal: ``[num_nodes]``.
        x: ``[num_nodes, k]``.
    """
    return _laplacian(x, *rows, diagonal)


def laplacian_step_(rows: AdjacencyRows, diagonal: Tensor, x: Tensor, before: Tensor) -> Tensor:
    """Replace ``before`` by ``(diag(diagonal) - A) x - before``, a step of a Chebyshev recurrence; without gradient.

    Args:
        rows: ``A`` as CSR.
        diagonal: ``[num_nodes]``.
        x: ``[num_nodes, k]``.
        before: ``[num_nodes, k]``, contiguous; changed in place.

    Returns:
        ``before``.
    """
    if cpu.supports(before):
        return compiled_laplacian(*rows, diagonal, x, before)
    return before.neg_().add_(_reference_laplacian(*rows, diagonal, x))


def compiled_laplacian(
    crow: Tensor, col: Tensor, value: Tensor, diagonal: Tensor, x: Tensor, before: Tensor | None = None
) -> Tensor:
    """Multiply in one pass over the rows; subtract ``before`` and overwrite it, unless it is ``None``."""
    num_nodes, dtype = diagonal.numel(), value.dtype
    read = {
        "crow": (crow, torch.int64, (num_nodes + 1,)),
        "col": (col, torch.int32, (col.numel(),)),
        "value": (value, dtype, (col.numel(),)),
        "diagonal": (diagonal, dtype, (num_nodes,)),
        "x": (x, dtype, (num_nodes, x.size(-1))),
    }
    if before is not None and (before.shape != x.shape or before.dtype != dtype or not before.is_contiguous()):
        got = f"{before.dtype} {list(before.shape)}"
        raise ValueError(f"before must be a contiguous {dtype} {list(x.shape)}, got {got}")
    out = x.new_empty(x.shape) if before is None else detached(before)
    sizes = {"num_nodes": num_nodes, "num_entries": col.numel(), "k": x.size(-1)}
    _laplacian_kernel(dtype, malformed_rows(num_nodes), read, {"out": out}, subtract=before is not None, **sizes)
    return out


def malformed_rows(num_nodes: int) -> str:
    """Return the error message for an invalid CSR structure."""
    return f"crow must ascend from 0 to the number of entries, and col be in 0..{num_nodes - 1}"


def _reference_laplacian(crow: Tensor, col: Tensor, value: Tensor, diagonal: Tensor, x: Tensor) -> Tensor:
    """Compute :func:`laplacian` in torch."""
    row = group_of_rows(crow, col.numel())
    entries = value.unsqueeze(1) * x.index_select(0, col.long())
    return (diagonal.unsqueeze(1) * x).index_add(0, row, entries, alpha=-1)


def _laplacian_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Compute the gradients; the gradient by ``x`` is a product with the symmetric matrix."""
    x, crow, col, value, diagonal = kept_inputs(ctx)
    by_x, _, _, by_value, by_diagonal = ctx.needs_input_grad
    entries = None
    if by_value:
        rows = grad.index_select(0, group_of_rows(crow, col.shape[0]))
        entries = -(rows * x.index_select(0, col.long())).sum(1)
    return (
        _laplacian(grad.contiguous(), crow, col, value, diagonal) if by_x else None,
        None,
        None,
        entries,
        (grad * x).sum(1) if by_diagonal else None,
    )


_laplacian = Operator(
    "laplacian(Tensor x, Tensor crow, Tensor col, Tensor value, Tensor diagonal) -> Tensor",
    lambda x, crow, col, value, diagonal: (compiled_laplacian if cpu.supports(value) else _reference_laplacian)(
        crow, col, value, diagonal, x
    ),
    lambda x, crow, col, value, diagonal: torch.empty_like(x, memory_format=torch.contiguous_format),
    keep_inputs,
    _laplacian_backward,
)
