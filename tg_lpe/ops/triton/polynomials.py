"""Matrix polynomials in Triton: see :mod:`tg_lpe.ops.polynomials` for the contract of each function."""

from __future__ import annotations

import torch
from torch import Tensor

from tg_lpe.ops.triton import checked, checked_structure, launch, padded_rows, pieces

MAX_NODES = 64
"""Nodes of a graph up to which its ``Phi``, as large as its matrix, fits on chip."""


def matrix_polynomials(
    adjacency: Tensor,
    tail: Tensor,
    head: Tensor,
    ptr: Tensor,
    num_nodes: int,
    max_nodes: int,
    alpha: float,
    gamma: float,
    num_layers: int,
) -> tuple[Tensor, Tensor]:
    """One program holds the matrix of one graph and filter.

    Raises:
        ValueError: on wrong shapes, dtypes or devices, or a graph of more than :data:`MAX_NODES` nodes.
    """
    graph, adjacency = _arguments(adjacency, tail, head, ptr, max_nodes, num_layers)
    (num_filters, num_edges), width = adjacency.shape, adjacency.size(0) * num_layers
    nodes, edges = adjacency.new_empty(num_nodes, width), adjacency.new_empty(num_edges, width)
    options = alpha, gamma, num_filters, num_edges, num_layers
    tiles = num_filters * 3 * padded_rows(max_nodes) ** 2
    for start, count in pieces(ptr.numel() - 1, tiles):
        tensors = adjacency, *graph, nodes, edges, adjacency.new_empty(count * tiles)
        launch("matrix_polynomials", count * num_filters, max_nodes, tensors, (*options, start))
    return nodes, edges


def matrix_polynomials_backward(
    adjacency: Tensor,
    tail: Tensor,
    head: Tensor,
    ptr: Tensor,
    num_nodes: int,
    max_nodes: int,
    alpha: float,
    gamma: float,
    num_layers: int,
    grad_nodes: Tensor,
    grad_edges: Tensor,
) -> Tensor:
    """Computes the layers anew.

    Raises:
        ValueError: as :func:`matrix_polynomials`.
    """
    graph, adjacency = _arguments(adjacency, tail, head, ptr, max_nodes, num_layers)
    (num_filters, num_edges), width = adjacency.shape, adjacency.size(0) * num_layers
    grad_nodes = checked("grad_nodes", grad_nodes, adjacency, (num_nodes, width))
    grad_edges = checked("grad_edges", grad_edges, adjacency, (num_edges, width))
    grad = torch.zeros_like(adjacency)
    options = alpha, gamma, num_filters, num_edges, num_layers
    tiles = num_filters * (num_layers + 3) * padded_rows(max_nodes) ** 2
    for start, count in pieces(ptr.numel() - 1, tiles):
        tensors = adjacency, *graph, grad_nodes, grad_edges, grad, adjacency.new_empty(count * tiles)
        launch("matrix_polynomials_backward", count * num_filters, max_nodes, tensors, (*options, start))
    return grad


def _arguments(
    adjacency: Tensor, tail: Tensor, head: Tensor, ptr: Tensor, max_nodes: int, num_layers: int
) -> tuple[tuple[Tensor, ...], Tensor]:
    if adjacency.dim() != 2 or adjacency.dtype != torch.float32 or num_layers < 1:
        got = f"{adjacency.dtype} {list(adjacency.shape)} and {num_layers}"
        raise ValueError(f"adjacency must be float32 [num_filters, num_edges] and num_layers at least 1, got {got}")
    graph = checked_structure(tail, head, ptr, max_nodes, adjacency, MAX_NODES)
    return tuple(graph.values()), checked("adjacency", adjacency, adjacency, (adjacency.size(0), tail.numel()))
