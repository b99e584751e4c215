"""Call matrix polynomials around each node in C++; :mod:`tg_lpe.ops.balls` documents the functions."""

from __future__ import annotations

import torch
from torch import Tensor

from tg_lpe.ops.cpu import Double, Function, Int, Pointer, checked
from tg_lpe.ops.cpu.polynomials import check_adjacency
from tg_lpe.ops.structures import BallRecurrence

_ball_orders = Function(
    "ball_orders",
    (Int, "num_nodes num_edges max_order max_visits"),
    (Pointer, "tail head orders"),
    (Int, "num_threads"),
    dtypes={torch.int64: "int64"},
)
_ball_polynomials = Function(
    "ball_polynomials",
    (Pointer, "adjacency tail head orders"),
    (Int, "num_nodes num_edges num_filters num_layers"),
    (Double, "alpha gamma"),
    (Pointer, "nodes edges grad_nodes grad_edges grad_adjacency"),
    (Int, "num_threads"),
)


def ball_orders(tail: Tensor, head: Tensor, num_nodes: int, max_order: int, max_visits: int) -> Tensor:
    """Search from each node.

    Raises:
        ValueError: on wrong shapes, dtypes or devices, or edges that do not join two different nodes.
    """
    read = checked_ends(tail, head, num_nodes)
    orders = tail.new_empty(num_nodes)
    sizes = {"num_nodes": num_nodes, "num_edges": tail.numel(), "max_order": max_order, "max_visits": max_visits}
    malformed = f"each edge must join two different nodes of {num_nodes}"
    _ball_orders(torch.int64, malformed, {**read, "orders": orders}, **sizes)
    return orders


def ball_polynomials(adjacency: Tensor, recurrence: BallRecurrence) -> tuple[Tensor, Tensor]:
    """Compute four filters at a time, one node after the other.

    Raises:
        ValueError: on wrong shapes, dtypes or devices, orders out of range, or edges that do not join two different
            nodes.
    """
    width, num_edges = adjacency.size(0) * recurrence.num_layers, recurrence.tail.numel()
    nodes = adjacency.new_empty(recurrence.orders.numel(), width)
    edges = adjacency.new_empty(num_edges, width) if recurrence.read_edges else None
    _call(adjacency, recurrence, {"nodes": nodes, "edges": edges}, {})
    return nodes, adjacency.new_zeros(1, 1).expand(num_edges, width) if edges is None else edges


def ball_polynomials_backward(
    adjacency: Tensor, recurrence: BallRecurrence, grad_nodes: Tensor, grad_edges: Tensor
) -> Tensor:
    """Recompute the layers, and their gradient."""
    grad = torch.empty_like(adjacency, memory_format=torch.contiguous_format)
    grads = {"grad_nodes": grad_nodes, **({"grad_edges": grad_edges} if recurrence.read_edges else {})}
    if grad.numel():  # an empty gradient has no address, by which the function recognises the backward pass
        _call(adjacency, recurrence, {"grad_adjacency": grad}, grads)
    return grad


def checked_ends(tail: Tensor, head: Tensor, num_nodes: int) -> dict[str, Tensor]:
    """Check the ends of edges with :func:`~tg_lpe.ops.cpu.checked`; nodes and edges are numbered in 32 bits."""
    num_edges = tail.numel()
    if not (0 <= num_nodes < 2**31 and num_edges < 2**31):
        raise ValueError(f"there must be fewer than 2**31 nodes and edges, got {num_nodes} and {num_edges}")
    return checked({"tail": (tail, torch.int64, (num_edges,)), "head": (head, torch.int64, (num_edges,))})


def _call(
    adjacency: Tensor, recurrence: BallRecurrence, results: dict[str, Tensor | None], grads: dict[str, Tensor]
) -> None:
    tail, head, orders, alpha, gamma, num_layers, _ = recurrence
    check_adjacency(adjacency, num_layers)
    num_filters, num_edges = adjacency.size(0), tail.numel()
    num_nodes, dtype = orders.numel(), adjacency.dtype
    rows = {"grad_nodes": num_nodes, "grad_edges": num_edges}
    read = checked_ends(tail, head, num_nodes) | checked(
        {
            "adjacency": (adjacency, dtype, (num_filters, num_edges)),
            "orders": (orders, torch.int64, (num_nodes,)),
            **{name: (grad, dtype, (rows[name], num_filters * num_layers)) for name, grad in grads.items()},
        }
    )
    _ball_polynomials(
        dtype,
        f"each edge must join two different nodes of {num_nodes}, and orders lie in 1..{num_layers + 1}",
        {**read, **results},
        num_nodes=num_nodes,
        num_edges=num_edges,
        num_filters=num_filters,
        num_layers=num_layers,
        alpha=alpha,
        gamma=gamma,
    )
