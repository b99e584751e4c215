"""Compute the layers of a linear transformer with a fixed incidence matrix, on all graphs of a batch at once.

`Graph Transformers Dream of Electric Flow <https://arxiv.org/abs/2410.16699>`_, eq. (16).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tg_lpe.ops import cpu
from tg_lpe.ops.cpu import layers as cpu_layers
from tg_lpe.ops.operator import Operator, keep_inputs, kept_inputs, needs_gradient, reference_gradients, signature
from tg_lpe.ops.structures import OF_GRAPH, LayerArguments, LayerStack, ScaledLaplacian

MAX_COLUMNS = cpu_layers.MAX_COLUMNS
"""Largest number of columns of ``Phi`` that the C++ code supports."""


def supports(phi: Tensor, max_nodes: int, gradient: bool = False) -> bool:
    """Return whether the C++ code computes :func:`layers` for these values.

    Args:
        phi: ``Phi_0``, ``[num_nodes, k]``.
        max_nodes: number of nodes of the largest graph.
        gradient: whether a gradient is needed; the C++ code has one for normalised layers with diagonal weights.
    """
    if not cpu.supports(phi):
        return False
    if not gradient:
        return phi.size(-1) <= cpu_layers.MAX_COLUMNS
    return phi.size(-1) <= cpu_layers.TRAINED_COLUMNS and max_nodes <= cpu_layers.TRAINED_NODES


def layers(
    phi: Tensor,
    laplacian: ScaledLaplacian,
    weights: LayerStack,
    readout: Tensor | None,
    later: Tensor,
    norm_floor: float | None,
) -> Tensor:
    """Compute all layers of a linear transformer with a fixed incidence matrix, and its read-out.

    Gradients flow to ``phi``, ``weights`` and ``readout``; not to ``laplacian`` and ``later``.

    Args:
        phi: ``Phi_0``, ``[num_nodes, k]``.
        laplacian: ``S`` of each graph.
        weights: weights of the layers.
        readout: ``M``, ``[out_channels, k]``; the identity if ``None``.
        later: factor of each graph on ``S`` from the second layer on, float64 ``[num_graphs]``.
        norm_floor: columns longer than this are scaled to length one after each layer; ``None`` scales none.

    Returns:
        ``Phi_L M^T``, ``[num_nodes, out_channels]``.

    Raises:
        ValueError: on wrong shapes, dtypes or devices.
    """
    # Fields are named: the compiler of PyTorch 2.6 has an internal error on slices of a named tuple.
    if not needs_gradient(phi, weights.residual, weights.similarity, weights.left, weights.right, readout):
        return _layers(phi, *laplacian, *weights, readout, later, norm_floor)
    if norm_floor is None or not weights.diagonal:
        out = _reference(phi, *laplacian, *weights, None, later, norm_floor)
    else:
        # Layers with diagonal weights do not read the right weights.
        stacks = weights.residual, weights.similarity, weights.left, weights.left.detach()
        out, *_ = _layers_forward(phi, *laplacian, *stacks, True, None, later, norm_floor)
    return out if readout is None else nn.functional.linear(out, readout)


def _run(*arguments: Any) -> Tensor:
    inputs = LayerArguments(*arguments)
    return cpu_layers.layers(inputs) if supports(inputs.phi, inputs.max_nodes) else _reference(*arguments)


def _reference(*arguments: Any) -> Tensor:
    """Compute :func:`layers` in torch; ``z`` is ``Phi`` padded to ``[num_graphs, max_nodes, k]``."""
    inputs = LayerArguments(*arguments)
    phi, (tail, head, ptr, scale, conductance, diagonal, max_nodes, *_) = inputs.phi, inputs.laplacian
    stacks, norm_floor = (inputs.residual, inputs.similarity, inputs.left, inputs.right), inputs.norm_floor
    num_nodes = phi.size(0)
    num_graphs, node = ptr.numel() - 1, torch.arange(num_nodes, device=phi.device)
    graph = torch.searchsorted(ptr, node, right=True) - 1
    place = graph * max_nodes + node - ptr[graph]
    entry = (scale[tail] * scale[head] * (1.0 if conductance is None else conductance)).unsqueeze(1)

    def pad(rows: Tensor) -> Tensor:
        padded = rows.new_zeros(num_graphs * max_nodes, rows.size(1)).index_copy(0, place, rows)
        return padded.view(num_graphs, max_nodes, rows.size(1))

    def similar(z: Tensor) -> Tensor:
        rows = z.flatten(0, 1).index_select(0, place)
        out = diagonal.unsqueeze(1) * rows
        out = out.index_add(0, tail, -entry * rows[head]).index_add(0, head, -entry * rows[tail])
        return pad(out)

    z = pad(phi)
    for layer, (residual, similarity, left, right) in enumerate(zip(*stacks, strict=True)):
        gram = z.mT @ z
        s = similar(z)
        if layer:
            s = s * inputs.later.to(z.dtype).view(-1, 1, 1)
        if inputs.diagonal_weights:
            mix, s = residual + left * gram, s * similarity.diagonal()
        else:
            mix, s = residual + left @ gram @ right, s @ similarity.mT
        z = z @ mix.mT + s
        if norm_floor is not None:
            squared = z.square().sum(1, keepdim=True)
            long = squared > norm_floor**2
            z = torch.where(long, z * torch.where(long, squared, 1.0).rsqrt(), z)
    out = z.flatten(0, 1).index_select(0, place)
    return out if inputs.readout is None else out @ inputs.readout.mT


def _fake(*arguments: Any) -> Tensor:
    phi, readout = LayerArguments(*arguments).phi, LayerArguments(*arguments).readout
    return phi.new_empty(phi.shape[0], phi.shape[1] if readout is None else readout.shape[0])


_layers = Operator(f"layers({signature(LayerArguments)}) -> Tensor", _run, _fake)


def _run_forward(*arguments: Any) -> tuple[Tensor, ...]:
    """Return the result, and the tensors that the gradient needs."""
    inputs = LayerArguments(*arguments)
    if not supports(inputs.phi, inputs.max_nodes, gradient=True):
        return _reference(*arguments), *(inputs.phi.new_empty(0) for _ in range(3))
    out, saved = cpu_layers.layers_forward(inputs)
    return out, *saved


def _fake_forward(*arguments: Any) -> tuple[Tensor, ...]:
    inputs = LayerArguments(*arguments)
    phi, num_layers, num_graphs = inputs.phi, inputs.residual.shape[0], inputs.ptr.shape[0] - 1
    shapes: list[tuple[int, ...]] = [(0,)] * 3
    if supports(phi, inputs.max_nodes, gradient=True):
        width = cpu_layers.TRAINED_COLUMNS
        shapes = [(num_layers, phi.shape[0], width), (num_graphs, num_layers, width, width)]
        shapes.append((num_graphs, num_layers, width))
    return torch.empty_like(phi, memory_format=torch.contiguous_format), *(phi.new_empty(shape) for shape in shapes)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    keep_inputs(ctx, (*inputs, *output[1:]), output)
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx: Any, grad_out: Tensor | None, *_: Any) -> tuple[Any, ...]:
    *arguments, chain, gram, norm = kept_inputs(ctx)
    inputs, none = LayerArguments(*arguments), LayerArguments(*[None] * len(arguments))  # type: ignore[arg-type]
    if grad_out is None:
        return none
    if torch.is_grad_enabled() or not supports(inputs.phi, inputs.max_nodes, gradient=True):
        return tuple(reference_gradients(_reference, inputs, [grad_out]))
    phi, residual, similarity, left = _layers_gradient(grad_out, *inputs, chain, gram, norm)
    return none._replace(phi=phi, residual=residual, similarity=similarity, left=left)


def _run_gradient(grad_out: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    *forward, chain, gram, norm = arguments
    return cpu_layers.layers_backward(LayerArguments(*forward), (chain, gram, norm), grad_out)


def _fake_gradient(grad_out: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    inputs = LayerArguments(*arguments[:-3])
    likes = inputs.phi, inputs.residual, inputs.similarity, inputs.left
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in likes)


_layers_gradient = Operator(
    f"layers_backward(Tensor grad_out, {signature(LayerArguments)}, Tensor chain, Tensor gram, Tensor norm) "
    "-> (Tensor d_phi, Tensor d_residual, Tensor d_similarity, Tensor d_left)",
    _run_gradient,
    _fake_gradient,
)
_layers_forward = Operator(
    f"layers_forward({signature(LayerArguments)}) -> (Tensor out, Tensor chain, Tensor gram, Tensor norm)",
    _run_forward,
    _fake_forward,
    _keep,
    _backward,
)


def two_block_layers(phi: Tensor, laplacian: ScaledLaplacian, residual: Tensor, value: Tensor) -> Tensor:
    """Compute layers of eq. (7) on ``Phi = [Phi_0, Phi_1]`` with multiples of the identity as weights; no gradient.

    Each layer computes ``Phi_a <- sum_b residual[a, b] Phi_b + value[a, b] S Phi_b``.

    Args:
        phi: ``[num_nodes, 2 k]``.
        laplacian: ``S`` of the graph.
        residual, value: ``[num_layers, 2, 2]``.

    Returns:
        ``[num_nodes, 2 k]``.

    Raises:
        ValueError: on wrong shapes, dtypes or devices.
    """
    return _two_block_layers(phi, *laplacian, residual, value)


def _run_two_blocks(phi: Tensor, *arguments: Any) -> Tensor:
    *fields, residual, value = arguments
    laplacian = ScaledLaplacian(*fields)
    if cpu.supports(laplacian.diagonal):
        return cpu_layers.two_block_layers(phi, laplacian, residual, value)
    tail, head, _, scale, conductance, diagonal, *_ = laplacian
    entry = (scale[tail] * scale[head] * (1.0 if conductance is None else conductance)).view(-1, 1, 1)
    z, d = phi.unflatten(1, (2, -1)).clone(), diagonal.view(-1, 1, 1)
    for residual_weight, weight in zip(residual, value, strict=True):
        similar = (d * z).index_add(0, tail, -entry * z[head]).index_add(0, head, -entry * z[tail])
        z = residual_weight @ z + weight @ similar
    return z.flatten(1)


_two_block_layers = Operator(
    f"two_block_layers({signature(LayerArguments, OF_GRAPH)}, Tensor residual, Tensor values) -> Tensor",
    _run_two_blocks,
    lambda phi, *_: torch.empty_like(phi, memory_format=torch.contiguous_format),
)
