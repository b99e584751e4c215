"""Sums over triangles in C++: see :mod:`tg_lpe.ops.triangles` for the contract."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from tg_lpe.ops import cpu
from tg_lpe.ops.cpu import Arguments, Function, Int, Pointer, checked, fields, pointers


class _Arguments(Arguments):
    _fields_: ClassVar = [
        *fields(Int, "num_nodes num_edges num_filters"),
        *fields(Pointer, "tail head a b out"),
        *fields(Int, "num_threads"),
    ]


_triangle_products = Function("triangle_products", _Arguments)


def triangle_products(a: Tensor, b: Tensor, tail: Tensor, head: Tensor, num_nodes: int) -> Tensor:
    """Four filters at a time, one node after the other.

    Raises:
        ValueError: on wrong shapes, dtypes or devices, or edges that do not join two different nodes.
    """
    num_edges = tail.numel()
    if not (0 <= num_nodes < 2**31 and num_edges < 2**31):
        raise ValueError(f"there must be fewer than 2**31 nodes and edges, got {num_nodes} and {num_edges}")
    shape = a.size(0), num_edges
    read = checked(
        {
            "tail": (tail, torch.int64, (num_edges,)),
            "head": (head, torch.int64, (num_edges,)),
            "a": (a, a.dtype, shape),
            "b": (b, a.dtype, shape),
        }
    )
    out = torch.empty_like(a, memory_format=torch.contiguous_format)
    arguments = _Arguments(
        num_nodes=num_nodes,
        num_edges=num_edges,
        num_filters=shape[0],
        num_threads=cpu.num_threads(),
        **pointers({**read, "out": out}),
    )
    _triangle_products(a.dtype, arguments, f"each edge must join two different nodes of {num_nodes}")
    return out
