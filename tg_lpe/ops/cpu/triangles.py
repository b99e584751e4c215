"""Call sums over triangles in C++; :mod:`tg_lpe.ops.triangles` documents them."""

from __future__ import annotations

import torch
from torch import Tensor

from tg_lpe.ops.cpu import Function, Int, Pointer, checked
from tg_lpe.ops.cpu.balls import checked_ends

_triangle_products = Function(
    "triangle_products",
    (Int, "num_nodes num_edges num_filters"),
    (Pointer, "tail head a b out"),
    (Int, "num_threads"),
)


def triangle_products(a: Tensor, b: Tensor, tail: Tensor, head: Tensor, num_nodes: int) -> Tensor:
    """Compute four filters at a time, one node after the other.

    Raises:
        ValueError: on wrong shapes, dtypes or devices, or edges that do not join two different nodes.
    """
    shape = a.size(0), tail.numel()
    read = checked_ends(tail, head, num_nodes) | checked({"a": (a, a.dtype, shape), "b": (b, a.dtype, shape)})
    out = torch.empty_like(a, memory_format=torch.contiguous_format)
    sizes = {"num_nodes": num_nodes, "num_edges": shape[1], "num_filters": shape[0]}
    malformed = f"each edge must join two different nodes of {num_nodes}"
    _triangle_products(a.dtype, malformed, {**read, "out": out}, **sizes)
    return out
