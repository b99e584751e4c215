"""Matrix polynomials in Triton: see :mod:`tg_lpe.ops.polynomials` for the contract of each function."""

from __future__ import annotations

import torch
from torch import Tensor

from tg_lpe.ops.structures import Recurrence
from tg_lpe.ops.triton import checked, checked_structure, launch, padded_rows, pieces

MAX_NODES = 64
"""Nodes of a graph up to which its ``Phi``, as large as its matrix, fits on chip."""


def matrix_polynomials(adjacency: Tensor, recurrence: Recurrence) -> tuple[Tensor, Tensor]:
    """One program holds the matrix of one graph and filter.

    Raises:
        ValueError: on wrong shapes, dtypes or devices, or a graph of more than :data:`MAX_NODES` nodes.
    """
    graph, adjacency = _arguments(adjacency, recurrence)
    num_nodes, num_edges, width = recurrence.num_nodes, adjacency.size(1), adjacency.size(0) * recurrence.num_layers
    nodes, edges = adjacency.new_empty(num_nodes, width), adjacency.new_empty(num_edges, width)
    _launch("matrix_polynomials", recurrence, (adjacency, *graph, nodes, edges), 3)
    return nodes, edges


def matrix_polynomials_backward(
    adjacency: Tensor, recurrence: Recurrence, grad_nodes: Tensor, grad_edges: Tensor
) -> Tensor:
    """Computes the layers anew.

    Raises:
        ValueError: as :func:`matrix_polynomials`.
    """
    graph, adjacency = _arguments(adjacency, recurrence)
    num_nodes, num_edges, width = recurrence.num_nodes, adjacency.size(1), adjacency.size(0) * recurrence.num_layers
    grad_nodes = checked("grad_nodes", grad_nodes, adjacency, (num_nodes, width))
    grad_edges = checked("grad_edges", grad_edges, adjacency, (num_edges, width))
    grad = torch.zeros_like(adjacency)
    tensors = adjacency, *graph, grad_nodes, grad_edges, grad
    _launch("matrix_polynomials_backward", recurrence, tensors, recurrence.num_layers + 3)
    return grad


def _arguments(adjacency: Tensor, recurrence: Recurrence) -> tuple[tuple[Tensor, ...], Tensor]:
    tail, head, ptr, _, max_nodes, *_, num_layers = recurrence
    if adjacency.dim() != 2 or adjacency.dtype != torch.float32 or num_layers < 1:
        got = f"{adjacency.dtype} {list(adjacency.shape)} and {num_layers}"
        raise ValueError(f"adjacency must be float32 [num_filters, num_edges] and num_layers at least 1, got {got}")
    graph = checked_structure(tail, head, ptr, max_nodes, adjacency, MAX_NODES)
    return tuple(graph.values()), checked("adjacency", adjacency, adjacency, (adjacency.size(0), tail.numel()))


def _launch(name: str, recurrence: Recurrence, tensors: tuple[Tensor, ...], num_matrices: int) -> None:
    """Launch a kernel on some graphs at a time, with memory for so many matrices of each filter and graph."""
    _, _, ptr, _, max_nodes, alpha, gamma, num_layers = recurrence
    adjacency = tensors[0]
    num_filters, num_edges = adjacency.shape
    tiles = num_filters * num_matrices * padded_rows(max_nodes) ** 2
    for start, count in pieces(ptr.numel() - 1, tiles):
        numbers = alpha, gamma, num_filters, num_edges, num_layers, start
        launch(name, count * num_filters, max_nodes, (*tensors, adjacency.new_empty(count * tiles)), numbers)
