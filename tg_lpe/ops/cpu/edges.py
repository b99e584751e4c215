"""Call operations on edges in C++; :mod:`tg_lpe.ops.edges` documents the functions."""

from __future__ import annotations

import torch
from torch import Tensor

from tg_lpe.ops import cpu
from tg_lpe.ops.cpu import Function, Int, Pointer, checked, empty_in_huge_pages
from tg_lpe.ops.operator import is_transforming
from tg_lpe.ops.structures import AdjacencyRows, UndirectedEdges

MAX_NODES = 2**32
"""Numbers of nodes and of directed edges must be below this."""


_undirected_edges = Function(
    "undirected_edges",
    (Int, "num_nodes num_directed num_graphs"),
    (Pointer, "row col batch tail head index neighbour_counts ptr"),
    (Int, "num_threads num_edges num_loops max_nodes"),
    dtypes={torch.int64: "int64"},
)
_adjacency_rows = Function(
    "adjacency_rows",
    (Int, "num_nodes num_edges"),
    (Pointer, "tail head conductance node_scale crow col value"),
    (Int, "num_threads"),
)
_laplacian = Function(
    "laplacian",
    (Int, "num_nodes num_entries k"),
    (Pointer, "crow col value diagonal x out"),
    (Int, "subtract num_threads"),
)


def supports(edge_index: Tensor, num_nodes: int) -> bool:
    """Return whether the library can sort this list."""
    return (
        cpu.library is not None
        and not is_transforming()
        and type(edge_index) is Tensor  # subclasses may have no memory
        and edge_index.dtype == torch.int64
        and edge_index.device.type == "cpu"
        and max(num_nodes, edge_index.size(1)) < MAX_NODES
    )


def undirected_edges(
    edge_index: Tensor, num_nodes: int, batch: Tensor | None, num_graphs: int, with_index: bool
) -> UndirectedEdges:
    """Sort by counting, in linear time.

    Raises:
        ValueError: if an end is out of range, ``batch`` is not sorted, or an edge joins two graphs.
    """
    rows = edge_index.contiguous()
    tail, head = torch.empty_like(rows).unbind()
    index = torch.empty_like(rows[0]) if with_index else None
    counts = rows.new_empty(num_nodes)
    batch = None if batch is None else batch.contiguous()
    ptr = None if batch is None else rows.new_empty(num_graphs + 1)
    named = {"row": rows, "col": rows[1], "batch": batch, "tail": tail, "head": head, "index": index}
    sizes = {"num_nodes": num_nodes, "num_directed": edge_index.size(1), "num_graphs": num_graphs}
    tensors = {**named, "neighbour_counts": counts, "ptr": ptr}
    written = _undirected_edges(torch.int64, "malformed list of edges", tensors, **sizes)
    m, facts = written.num_edges, (num_graphs, written.num_loops, written.max_nodes)
    return UndirectedEdges(tail[:m], head[:m], index, counts, ptr, *facts)


def adjacency_rows(tail: Tensor, head: Tensor, node_scale: Tensor, conductance: Tensor | None) -> AdjacencyRows:
    """Sort by counting, in linear time.

    Raises:
        ValueError: on wrong shapes, dtypes or devices, or edges that are out of range or out of order.
    """
    num_nodes, num_edges, dtype = node_scale.numel(), tail.numel(), node_scale.dtype
    if num_nodes >= 2**31 or dtype not in cpu.DTYPES:
        raise ValueError(f"node_scale must be float32 or float64 of fewer than 2**31 nodes, got {dtype} [{num_nodes}]")
    tensors: dict[str, tuple[Tensor, torch.dtype, tuple[int, ...]]] = {
        "tail": (tail, torch.int64, (num_edges,)),
        "head": (head, torch.int64, (num_edges,)),
        "node_scale": (node_scale, dtype, (num_nodes,)),
    }
    if conductance is not None:
        tensors["conductance"] = (conductance, dtype, (num_edges,))
    read = checked(tensors)
    crow = node_scale.new_empty(num_nodes + 1, dtype=torch.int64)
    col = empty_in_huge_pages(crow.new_empty(0, dtype=torch.int32), 2 * num_edges)
    value = empty_in_huge_pages(node_scale, 2 * num_edges)
    malformed = f"each edge must have 0 <= tail < head < {num_nodes}, and tails must ascend"
    rows = AdjacencyRows(crow, col, value)
    _adjacency_rows(dtype, malformed, {**read, **rows._asdict()}, num_nodes=num_nodes, num_edges=num_edges)
    return rows


def laplacian(
    crow: Tensor, col: Tensor, value: Tensor, diagonal: Tensor, x: Tensor, before: Tensor | None = None
) -> Tensor:
    """Multiply in one pass over the rows; subtract ``before`` and overwrite it, unless it is ``None``.

    Raises:
        ValueError: on wrong shapes, dtypes or devices.
    """
    num_nodes, dtype = diagonal.numel(), value.dtype
    read = checked(
        {
            "crow": (crow, torch.int64, (num_nodes + 1,)),
            "col": (col, torch.int32, tuple(value.shape)),
            "value": (value, dtype, tuple(value.shape)),
            "diagonal": (diagonal, dtype, (num_nodes,)),
            "x": (x, dtype, (num_nodes, x.size(-1))),
        }
    )
    if before is not None and (before.shape != x.shape or before.dtype != dtype or not before.is_contiguous()):
        got = f"{before.dtype} {list(before.shape)}"
        raise ValueError(f"before must be a contiguous {dtype} {list(x.shape)}, got {got}")
    out = torch.empty_like(read["x"]) if before is None else before
    sizes = {"num_nodes": num_nodes, "num_entries": read["col"].numel(), "k": x.size(-1)}
    _laplacian(dtype, malformed_rows(num_nodes), {**read, "out": out}, subtract=before is not None, **sizes)
    return out


def malformed_rows(num_nodes: int) -> str:
    """Return the error message for an invalid CSR structure."""
    return f"crow must ascend from 0 to the number of entries, and col be in 0..{num_nodes - 1}"
