"""Call matrix polynomials in C++; :mod:`tg_lpe.ops.polynomials` documents the functions."""

from __future__ import annotations

import torch
from torch import Tensor

from tg_lpe.ops import cpu
from tg_lpe.ops.cpu import Double, Function, Int, Pointer, checked
from tg_lpe.ops.structures import Recurrence

FIELDS = (
    (Pointer, "adjacency tail head ptr"),
    (Int, "num_nodes num_edges num_graphs num_filters num_layers"),
    (Double, "alpha gamma"),
    (Pointer, "nodes edges grad_nodes grad_edges grad_adjacency"),
    (Int, "num_threads"),
)
_matrix_polynomials = Function("matrix_polynomials", *FIELDS)
_matrix_polynomials_backward = Function("matrix_polynomials_backward", *FIELDS)


def matrix_polynomials(adjacency: Tensor, recurrence: Recurrence) -> tuple[Tensor, Tensor]:
    """Pass over the edges of one graph after the other; ``max_nodes`` is ignored."""
    check_adjacency(adjacency, recurrence.num_layers)
    num_edges, width = adjacency.size(1), adjacency.size(0) * recurrence.num_layers
    nodes, edges = adjacency.new_empty(recurrence.num_nodes, width), adjacency.new_empty(num_edges, width)
    _call(_matrix_polynomials, adjacency, recurrence, {"nodes": nodes, "edges": edges}, {})
    return nodes, edges


def matrix_polynomials_backward(
    adjacency: Tensor, recurrence: Recurrence, grad_nodes: Tensor, grad_edges: Tensor
) -> Tensor:
    """Recompute the layers, which is faster than storing them, and their gradient."""
    check_adjacency(adjacency, recurrence.num_layers)
    grad = torch.zeros_like(adjacency, memory_format=torch.contiguous_format)
    gradients = {"grad_nodes": grad_nodes, "grad_edges": grad_edges}
    _call(_matrix_polynomials_backward, adjacency, recurrence, {"grad_adjacency": grad}, gradients)
    return grad


def check_adjacency(adjacency: Tensor, num_layers: int) -> None:
    """Refuse entries of another dtype or shape, and a number of layers below one."""
    if adjacency.dtype not in cpu.DTYPES or adjacency.dim() != 2 or num_layers < 1:
        raise ValueError(
            "adjacency must be float32 or float64 [num_filters, num_edges] and num_layers at least 1, "
            f"got {adjacency.dtype} {list(adjacency.shape)} and {num_layers}"
        )


def _call(
    function: Function,
    adjacency: Tensor,
    recurrence: Recurrence,
    results: dict[str, Tensor],
    grads: dict[str, Tensor],
) -> None:
    tail, head, ptr, num_nodes, _, alpha, gamma, num_layers = recurrence
    num_filters, num_edges = adjacency.shape
    dtype, rows = adjacency.dtype, {"grad_nodes": num_nodes, "grad_edges": num_edges}
    read = checked(
        {
            "adjacency": (adjacency, dtype, (num_filters, num_edges)),
            "tail": (tail, torch.int64, (num_edges,)),
            "head": (head, torch.int64, (num_edges,)),
            "ptr": (ptr, torch.int64, (ptr.numel(),)),
            **{name: (grad, dtype, (rows[name], num_filters * num_layers)) for name, grad in grads.items()},
        }
    )
    function(
        dtype,
        "ptr must ascend from 0 to the number of nodes, and each edge join two nodes of one graph, graph by graph",
        read | results,
        num_nodes=num_nodes,
        num_edges=num_edges,
        num_graphs=ptr.numel() - 1,
        num_filters=num_filters,
        num_layers=num_layers,
        alpha=alpha,
        gamma=gamma,
    )
