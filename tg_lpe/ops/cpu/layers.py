"""Call the layers of the linear transformer in C++; :mod:`tg_lpe.ops.layers` documents the functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tg_lpe.ops import cpu
from tg_lpe.ops.cpu import Double, Function, Int, Pointer, checked, empty_in_huge_pages
from tg_lpe.ops.cpu.edges import adjacency_rows, malformed_rows
from tg_lpe.ops.structures import LayerArguments, ScaledLaplacian

WIDTHS = (8, 16)
"""Numbers of columns that the layers are compiled for; fewer columns are padded with zeros."""

MAX_COLUMNS = WIDTHS[-1]
TRAINED_COLUMNS, TRAINED_NODES = WIDTHS[0], 4096
"""Largest numbers of columns, and of nodes of a graph, with a gradient, which takes one thread for each graph."""

BLOCK_WIDTHS = (4, 8)
"""Columns of each of the two blocks that :func:`two_block_layers` computes at once; fewer are padded with zeros."""

_OPERATOR = "ptr crow col value diagonal"

_layers = Function(
    "layers",
    (Int, "width num_nodes num_entries num_layers num_graphs"),
    (Pointer, f"{_OPERATOR} residual similarity left right later readout"),
    (Int, "out_channels diagonal_weights normalize"),
    (Double, "norm_floor"),
    (Pointer, "phi one two out"),
    (Int, "num_threads"),
)
_TRAINING = (
    (Int, "num_nodes num_entries num_layers num_graphs"),
    (Pointer, f"{_OPERATOR} residual similarity left later"),
    (Double, "norm_floor"),
    (Pointer, "phi chain gram norm grad_out grad_phi grad_residual grad_similarity grad_left"),
    (Int, "num_threads"),
)
_layers_forward = Function("layers_forward", *_TRAINING)
_layers_backward = Function("layers_backward", *_TRAINING)
_two_block_layers = Function(
    "two_block_layers",
    (Int, "width num_nodes num_entries num_layers"),
    (Pointer, "crow col value diagonal residual weight phi one two"),
    (Int, "num_threads"),
)


STACKS = ("residual", "similarity", "left", "right")


def layers(inputs: LayerArguments) -> Tensor:
    """Compute each layer in one pass over the adjacency and ``Phi``, with memory for two copies of ``Phi``.

    Raises:
        ValueError: on wrong shapes, dtypes or devices.
    """
    phi, num_graphs = inputs.phi, inputs.ptr.numel() - 1
    (num_nodes, k), dtype, num_layers = phi.shape, phi.dtype, inputs.residual.size(0)
    if k > MAX_COLUMNS or dtype not in cpu.DTYPES:
        raise ValueError(f"phi must be float32 or float64 [num_nodes, k <= 16], got {dtype} {list(phi.shape)}")
    width = next(size for size in WIDTHS if k <= size)
    readout = torch.eye(k, dtype=dtype, device="cpu") if inputs.readout is None else inputs.readout
    stacks = {name: _padded(getattr(inputs, name), width, 2) for name in STACKS}
    phi, readout = _padded(phi, width), _padded(readout, width)
    read = _checked_operator(inputs.laplacian, num_nodes, dtype) | checked(
        {
            "phi": (phi, dtype, (num_nodes, width)),
            "readout": (readout, dtype, (readout.size(0), width)),
            "later": (inputs.later, torch.float64, (num_graphs,)),
            **{name: (stack, dtype, (num_layers, width, width)) for name, stack in stacks.items()},
        }
    )
    one, two = empty_in_huge_pages(phi, num_nodes, width), empty_in_huge_pages(phi, num_nodes, width)
    last = one if num_layers % 2 else two  # layers write to both in turn; a read-out of equal width is in place
    out = last if readout.size(0) == width else one.new_empty(num_nodes, readout.size(0))
    _layers(
        dtype,
        _malformed(num_nodes),
        {**read, "one": one, "two": two, "out": out},
        width=width,
        num_nodes=num_nodes,
        num_entries=read["col"].numel(),
        num_layers=num_layers,
        num_graphs=num_graphs,
        out_channels=readout.size(0),
        diagonal_weights=inputs.diagonal_weights,
        normalize=inputs.norm_floor is not None,
        norm_floor=inputs.norm_floor or 0.0,
    )
    return out


def layers_forward(inputs: LayerArguments) -> tuple[Tensor, list[Tensor]]:
    """Compute the layers, and the tensors that the gradient needs.

    Returns:
        ``Phi_L``, and a list of ``Phi_1 .. Phi_L`` ``[num_layers, num_nodes, 8]``, the Gram matrices of
        ``Phi_0 .. Phi_(L-1)`` ``[num_graphs, num_layers, 8, 8]``, and the lengths of columns before normalisation,
        zero for columns that were not normalised, ``[num_graphs, num_layers, 8]``.

    Raises:
        ValueError: on wrong shapes, dtypes or devices.
    """
    phi, (read, sizes) = inputs.phi, _training_arguments(inputs)
    num_layers, num_graphs, width = sizes["num_layers"], sizes["num_graphs"], TRAINED_COLUMNS
    saved = {
        "chain": phi.new_empty(num_layers, phi.size(0), width),
        "gram": phi.new_empty(num_graphs, num_layers, width, width),
        "norm": phi.new_empty(num_graphs, num_layers, width),
    }
    _layers_forward(phi.dtype, _malformed(phi.size(0)), read | saved, **sizes)
    return saved["chain"][-1, :, : phi.size(1)].clone(), list(saved.values())


def layers_backward(
    inputs: LayerArguments, saved: Sequence[Tensor], grad_out: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the gradients of ``phi`` and the weights from the tensors of :func:`layers_forward`.

    Raises:
        ValueError: on wrong shapes, dtypes or devices.
    """
    phi, k, width = inputs.phi, inputs.phi.size(1), TRAINED_COLUMNS
    read, sizes = _training_arguments(inputs)
    grad_out = _padded(grad_out, width)
    read |= checked({"grad_out": (grad_out, phi.dtype, (phi.size(0), width))})
    grads = {
        "grad_phi": torch.empty_like(read["phi"]),
        "grad_residual": torch.empty_like(read["residual"]),
        "grad_similarity": phi.new_empty(sizes["num_layers"], width),
        "grad_left": torch.empty_like(read["left"]),
    }
    named = dict(zip(("chain", "gram", "norm"), saved, strict=True))
    _layers_backward(phi.dtype, _malformed(phi.size(0)), read | named | grads, **sizes)
    similarity = torch.diag_embed(grads["grad_similarity"])
    by_phi = grads["grad_phi"]
    if k == width:
        return by_phi, grads["grad_residual"], similarity, grads["grad_left"]
    by_residual, by_similarity, by_left = (
        grad[:, :k, :k].contiguous() for grad in (grads["grad_residual"], similarity, grads["grad_left"])
    )
    return by_phi[:, :k].contiguous(), by_residual, by_similarity, by_left


def two_block_layers(phi: Tensor, laplacian: ScaledLaplacian, residual: Tensor, value: Tensor) -> Tensor:
    """Compute each layer in one pass over the adjacency and ``Phi`` for each eight columns of a block.

    Raises:
        ValueError: on wrong shapes, dtypes or devices.
    """
    num_nodes, num_layers, dtype = laplacian.diagonal.numel(), residual.size(0), laplacian.diagonal.dtype
    if phi.dim() != 2 or phi.size(0) != num_nodes or phi.size(1) % 2:
        raise ValueError(f"phi must be [{num_nodes}, 2 k], got {list(phi.shape)}")
    shape = (num_layers, 2, 2)
    weights = checked({"residual": (residual, dtype, shape), "value": (value, dtype, shape)})
    operator = _checked_operator(laplacian, num_nodes, dtype)
    del operator["ptr"]
    operator |= {"residual": weights["residual"], "weight": weights["value"]}
    if num_layers == 0:
        return phi.clone()
    k, parts = phi.size(1) // 2, []
    for columns in phi.unflatten(1, (2, k)).split(BLOCK_WIDTHS[-1], dim=2):  # columns do not depend on each other
        size = columns.size(2)
        width = next(block for block in BLOCK_WIDTHS if size <= block)
        start = _padded(columns, width).reshape(num_nodes, 2 * width)
        start = checked({"phi": (start, dtype, (num_nodes, 2 * width))})["phi"]
        one, two = (empty_in_huge_pages(start, num_nodes, 2 * width) for _ in range(2))
        tensors = {**operator, "phi": start, "one": one, "two": two}
        sizes = {"num_nodes": num_nodes, "num_entries": operator["col"].numel(), "num_layers": num_layers}
        _two_block_layers(dtype, malformed_rows(num_nodes), tensors, width=width, **sizes)
        parts.append((one if num_layers % 2 else two).view(num_nodes, 2, width)[:, :, :size])
    return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)).reshape(num_nodes, 2 * k)


def _malformed(num_nodes: int) -> str:
    return f"ptr must ascend from 0 to {num_nodes}, and {malformed_rows(num_nodes)}"


def _padded(x: Tensor, width: int, dims: int = 1) -> Tensor:
    """Pad the last dimensions with zeros."""
    missing = width - x.size(-1)
    return nn.functional.pad(x, (0, missing) * dims) if missing > 0 else x


def _checked_operator(laplacian: ScaledLaplacian, num_nodes: int, dtype: torch.dtype) -> dict[str, Tensor]:
    rows = laplacian.rows or adjacency_rows(laplacian.tail, laplacian.head, laplacian.node_scale, laplacian.conductance)
    entries = tuple(rows.value.shape)
    return checked(
        {
            "ptr": (laplacian.ptr, torch.int64, tuple(laplacian.ptr.shape)),
            "crow": (rows.crow, torch.int64, (num_nodes + 1,)),
            "col": (rows.col, torch.int32, entries),
            "value": (rows.value, dtype, entries),
            "diagonal": (laplacian.diagonal, dtype, (num_nodes,)),
        }
    )


def _training_arguments(inputs: LayerArguments) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Collect the tensors and numbers that the forward and backward passes share."""
    phi, num_graphs = inputs.phi, inputs.ptr.numel() - 1
    (num_nodes, k), dtype, num_layers, width = phi.shape, phi.dtype, inputs.residual.size(0), TRAINED_COLUMNS
    if k > width or not inputs.diagonal_weights:
        raise ValueError(f"gradients need diagonal weights and phi [num_nodes, k <= {width}], got {list(phi.shape)}")
    stacks = {name: _padded(getattr(inputs, name), width, 2) for name in STACKS[:3]}
    read = _checked_operator(inputs.laplacian, num_nodes, dtype) | checked(
        {
            "phi": (_padded(phi, width), dtype, (num_nodes, width)),
            "later": (inputs.later, torch.float64, (num_graphs,)),
            **{name: (stack, dtype, (num_layers, width, width)) for name, stack in stacks.items()},
        }
    )
    return read, {
        "num_nodes": num_nodes,
        "num_entries": read["col"].numel(),
        "num_layers": num_layers,
        "num_graphs": num_graphs,
        "norm_floor": inputs.norm_floor,
    }
