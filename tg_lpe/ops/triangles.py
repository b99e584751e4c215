r"""Sum over the triangles of each edge: products of sparse symmetric matrices, read at the edges.

Each common neighbour ``k`` of the ends of an edge ``ij`` makes a triangle, and ``(P^2)_ij`` is the sum of
``P_ik P_kj`` over them. Unlike :mod:`~tg_lpe.ops.balls`, this computes ``P^2`` at the edges of hubs as well.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tg_lpe.ops import cpu
from tg_lpe.ops.cpu import Function, Int, Pointer, checked, checked_ends
from tg_lpe.ops.operator import differentiable, keep_inputs, kept_inputs
from tg_lpe.ops.segment import group_pointers, repeat_ranges

PATHS_AT_ONCE = 2**20
"""Number of paths of two edges that the reference visits at once, to bound memory."""

_kernel = Function(
    "triangle_products",
    (Int, "num_nodes num_edges num_filters"),
    (Pointer, "tail head a b out"),
    (Int, "num_threads"),
)


def triangle_products(a: Tensor, b: Tensor, tail: Tensor, head: Tensor, num_nodes: int) -> Tensor:
    r"""Compute the entries of ``A B + B A`` at the edges, for symmetric matrices that are zero elsewhere.

    .. math:: \mathrm{out}_{ij} = \sum_k A_{ik} B_{kj} + B_{ik} A_{kj} .

    With ``A = B = P`` this is twice ``P^2``. Time grows with the degree of the end of lower degree of each edge, so
    hubs cost little.

    Args:
        a, b: entries of the matrices at the edges, ``[num_filters, num_edges]``.
        tail, head: ends of each edge, int64 ``[num_edges]``, two different nodes, without repeated edges.
        num_nodes: number of nodes of the graph or batch.

    Returns:
        ``[num_filters, num_edges]``.
    """
    products: Tensor = _triangle_products(a, b, tail, head, num_nodes)
    return products


def _run(a: Tensor, b: Tensor, tail: Tensor, head: Tensor, num_nodes: int) -> Tensor:
    run = compiled_triangle_products if cpu.supports(a) and cpu.supports(b) else _reference
    return run(a, b, tail, head, num_nodes)


def compiled_triangle_products(a: Tensor, b: Tensor, tail: Tensor, head: Tensor, num_nodes: int) -> Tensor:
    """Compute :func:`triangle_products` of four filters at a time, one node after the other."""
    shape = a.size(0), tail.numel()
    read = checked_ends(tail, head, num_nodes) | checked({"a": (a, a.dtype, shape), "b": (b, a.dtype, shape)})
    out = torch.empty_like(a, memory_format=torch.contiguous_format)
    sizes = {"num_nodes": num_nodes, "num_edges": shape[1], "num_filters": shape[0]}
    _kernel(a.dtype, f"each edge must join two different nodes of {num_nodes}", {**read, "out": out}, **sizes)
    return out


def _reference(a: Tensor, b: Tensor, tail: Tensor, head: Tensor, num_nodes: int) -> Tensor:
    """Compute :func:`triangle_products` in torch, some edges at a time."""
    # The two entries of each edge in the matrices, sorted by row and column.
    entry, order = torch.sort(torch.cat([tail * num_nodes + head, head * num_nodes + tail]))
    edge, column = order % max(tail.numel(), 1), entry % max(num_nodes, 1)
    crow = group_pointers(entry // max(num_nodes, 1), num_nodes)
    degree = crow.diff()
    is_lower = degree[tail] < degree[head]
    lower, higher = torch.where(is_lower, tail, head), torch.where(is_lower, head, tail)
    paths = degree[lower]
    out = torch.zeros_like(a)
    for edges in _parts(paths):
        row, step = repeat_ranges(crow[lower[edges]], paths[edges])
        of = edges[row]
        wanted = higher[of] * num_nodes + column[step]
        place = torch.searchsorted(entry, wanted).clamp_(max=entry.numel() - 1)
        closed = entry[place] == wanted
        one, other = edge[step[closed]], edge[place[closed]]
        out = out.index_add(1, of[closed], a[:, one] * b[:, other] + b[:, one] * a[:, other])
    return out


def _parts(paths: Tensor) -> list[Tensor]:
    """Split the edges into parts of about ``PATHS_AT_ONCE`` paths, at least one edge each."""
    part = (paths.cumsum(0) - paths) // PATHS_AT_ONCE
    sizes = part.unique_consecutive(return_counts=True)[1].tolist()
    return list(torch.arange(paths.numel(), device=paths.device).split(sizes)) if sizes else []


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Compute the gradients by the same products: a triangle's term is symmetric in its three edges."""
    a, b, *edges = kept_inputs(ctx)
    needs_a, needs_b = ctx.needs_input_grad[:2]
    grad_a = triangle_products(grad, b, *edges) if needs_a else None
    grad_b = triangle_products(grad, a, *edges) if needs_b else None
    return grad_a, grad_b, None, None, None


_triangle_products = differentiable(_run, keep_inputs, _backward)
