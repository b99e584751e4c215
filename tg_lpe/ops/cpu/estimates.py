"""Call estimated matrix polynomials in C++; :mod:`tg_lpe.ops.estimates` documents them."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from tg_lpe.ops.cpu import Double, Function, Int, Pointer, checked
from tg_lpe.ops.cpu.polynomials import check_adjacency
from tg_lpe.ops.structures import EstimatedRecurrence

_estimated_polynomials = Function(
    "estimated_polynomials",
    (Int, "num_rows max_nodes num_edges num_filters num_layers num_probes"),
    (Pointer, "tail head adjacency"),
    (ctypes.c_uint64, "seed"),
    (Double, "alpha gamma"),
    (Pointer, "nodes edges"),
    (Int, "num_threads"),
)


def estimated_polynomials(adjacency: Tensor, recurrence: EstimatedRecurrence) -> tuple[Tensor, Tensor]:
    """Propagate 16 probes at a time in float32, 8 in float64, through all layers. Sorted edges are faster.

    Memory, in addition to the result: the edges as CSR, a bit for each sign, the result of one filter at the rows, and
    64 bytes a row for each of two products, and of ``(T + 1) // 2`` more if edges are read.

    Raises:
        ValueError: on wrong shapes, dtypes or devices, sizes out of range, or edges that do not join two
            different rows.
    """
    tail, head, num_rows, max_nodes, alpha, gamma, num_layers, num_probes, seed, read_edges = recurrence
    check_adjacency(adjacency, num_layers)
    num_filters, num_edges = adjacency.shape
    if not (0 <= num_rows < 2**31 and num_edges < 2**31 and max_nodes >= min(num_rows, 1) and num_probes >= 1):
        got = f"{num_rows=}, {num_edges=}, {max_nodes=}, {num_probes=}"
        raise ValueError(f"sizes must be positive, and rows and edges below 2**31, got {got}")
    dtype, width = adjacency.dtype, num_filters * num_layers
    read = checked(
        {
            "tail": (tail, torch.int64, (num_edges,)),
            "head": (head, torch.int64, (num_edges,)),
            "adjacency": (adjacency, dtype, (num_filters, num_edges)),
        }
    )
    nodes = adjacency.new_empty(num_rows, width)
    edges = adjacency.new_empty(num_edges, width) if read_edges else None
    _estimated_polynomials(
        dtype,
        f"each edge must join two different rows of {num_rows}",
        {**read, "nodes": nodes, "edges": edges},
        num_rows=num_rows,
        max_nodes=max_nodes,
        num_edges=num_edges,
        num_filters=num_filters,
        num_layers=num_layers,
        num_probes=num_probes,
        seed=seed % 2**64,
        alpha=alpha,
        gamma=gamma,
    )
    return nodes, adjacency.new_zeros(1, 1).expand(num_edges, width) if edges is None else edges
