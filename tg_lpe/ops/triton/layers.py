"""Layers of the linear transformer in Triton: see :mod:`tg_lpe.ops.layers` for the contract of each function."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tg_lpe.ops.structures import FixedLayers, LayerStack, ScaledLaplacian
from tg_lpe.ops.triton import MIN_ROWS, checked, checked_structure, launch, padded_rows, pieces

MAX_NODES = TRAINED_NODES = 128
"""Nodes of a graph up to which its operator fits on chip."""

MAX_COLUMNS = TRAINED_COLUMNS = MIN_ROWS
"""Columns of ``Phi`` that the kernels are made for; fewer are padded with zeros."""


def layers(phi: Tensor, fixed: FixedLayers, readout: Tensor | None) -> Tensor:
    """One program runs all layers of one graph; ``laplacian.rows`` is not read.

    Raises:
        ValueError: on wrong shapes, dtypes or devices, or a graph of more than :data:`MAX_NODES` nodes.
    """
    laplacian, weights, later, norm_floor = fixed
    k, num_layers, num_graphs = phi.size(-1), weights.residual.size(0), laplacian.ptr.numel() - 1
    operator, stacks = _operator(phi, laplacian), _stacks(phi, laplacian, weights)
    if readout is not None:
        readout = checked("readout", readout, phi, (readout.size(0), k))
    later = checked("later", later.float(), phi, (num_graphs,))
    out_channels = k if readout is None else readout.size(0)
    out = phi.new_empty(phi.size(0), out_channels)
    launch(
        "layers",
        num_graphs,
        laplacian.max_nodes,
        (phi.detach().contiguous(), *operator, *stacks, later, readout, out),
        (k, num_layers, out_channels, norm_floor or 0.0),
        DIAGONAL=weights.diagonal,
        NORMALIZED=norm_floor is not None,
    )
    return out


def layers_forward(phi: Tensor, fixed: FixedLayers) -> tuple[Tensor, list[Tensor]]:
    """Keeps nothing: the gradient computes the layers anew."""
    return layers(phi, fixed, None), [phi.new_empty(0) for _ in range(3)]


def layers_backward(
    phi: Tensor, fixed: FixedLayers, kept: Sequence[Tensor], grad_out: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same in every run: each graph's share of a weight's gradient is written down, then they are summed.

    Raises:
        ValueError: on wrong shapes, dtypes or devices, or weights that are not diagonal.
    """
    laplacian, weights, later, norm_floor = fixed
    if not weights.diagonal:
        raise ValueError("there are gradients for diagonal weights, got full ones")
    k, num_layers, num_graphs = phi.size(-1), weights.residual.size(0), laplacian.ptr.numel() - 1
    operator = _operator(phi, laplacian)
    residual, similarity, left, _ = _stacks(phi, laplacian, weights)
    later = checked("later", later.float(), phi, (num_graphs,))
    grad_out = checked("grad_out", grad_out, phi, tuple(phi.shape))
    phi, grad_phi = phi.detach().contiguous(), torch.empty_like(phi, memory_format=torch.contiguous_format)
    # For each graph, one after the other: by residual, similarity and left, all Phi, and the norms of their columns.
    shapes: tuple[tuple[int, ...], ...] = (
        (num_layers, k, k),
        (num_layers, k),
        (num_layers, k, k),
        (num_layers + 1, padded_rows(laplacian.max_nodes), MAX_COLUMNS),
        (num_layers, MAX_COLUMNS),
    )
    totals = [phi.new_zeros(shape, dtype=torch.float64) for shape in shapes[:3]]
    for start, count in pieces(num_graphs, sum(torch.Size(shape).numel() for shape in shapes)):
        buffers = [phi.new_empty(count, *shape) for shape in shapes]
        launch(
            "layers_backward",
            count,
            laplacian.max_nodes,
            (phi, *operator, residual, similarity, left, later, grad_out, grad_phi, *buffers),
            (k, num_layers, norm_floor or 0.0, start),
        )
        for total, part in zip(totals, buffers[:3], strict=True):
            total += part.sum(0, dtype=torch.float64)
    by_residual, by_similarity, by_left = (total.to(phi.dtype) for total in totals)
    return grad_phi, by_residual, torch.diag_embed(by_similarity), by_left


def _operator(phi: Tensor, laplacian: ScaledLaplacian) -> tuple[Tensor | None, ...]:
    """What the kernels read of a batch, in their order."""
    num_nodes, num_edges = laplacian.node_scale.numel(), laplacian.tail.numel()
    graph = checked_structure(laplacian.tail, laplacian.head, laplacian.ptr, laplacian.max_nodes, phi, MAX_NODES)
    w = laplacian.conductance
    return (
        graph["tail"],
        graph["head"],
        checked("node_scale", laplacian.node_scale, phi, (num_nodes,)),
        None if w is None else checked("conductance", w, phi, (num_edges,)),
        checked("diagonal", laplacian.diagonal, phi, (num_nodes,)),
        graph["ptr"],
        graph["edge_ptr"],
    )


def _stacks(phi: Tensor, laplacian: ScaledLaplacian, weights: LayerStack) -> list[Tensor]:
    num_nodes = laplacian.node_scale.numel()
    if phi.shape != (num_nodes, phi.size(-1)) or phi.size(1) > MAX_COLUMNS or phi.dtype != torch.float32:
        allowed = f"float32 [{num_nodes}, k <= {MAX_COLUMNS}]"
        raise ValueError(f"phi must be {allowed}, got {phi.dtype} {list(phi.shape)}")
    shape = (weights.residual.size(0), phi.size(1), phi.size(1))
    named = zip(LayerStack._fields[:4], weights[:4], strict=True)
    return [checked(name, stack, phi, shape) for name, stack in named]
