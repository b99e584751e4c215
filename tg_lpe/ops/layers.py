"""Layers of the linear transformer with a fixed incidence matrix, on all graphs of a batch at once.

`Graph Transformers Dream of Electric Flow <https://arxiv.org/abs/2410.16699>`_, eq. (16).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tg_lpe.ops import cpu, triton
from tg_lpe.ops.cpu import layers as cpu_layers
from tg_lpe.ops.operator import Operator, needs_gradient, reference_gradients
from tg_lpe.ops.structures import AdjacencyRows, FixedLayers, LayerStack, ScaledLaplacian
from tg_lpe.ops.triton import layers as triton_layers

MAX_COLUMNS = cpu_layers.MAX_COLUMNS
"""Columns of ``Phi`` that the C++ takes."""


def supports(phi: Tensor, max_nodes: int, gradient: bool = False) -> bool:
    """Whether a backend computes :func:`layers` of such values.

    Args:
        phi: ``Phi_0``, ``[num_nodes, k]``.
        max_nodes: nodes of the largest graph.
        gradient: whether a gradient is needed, which backends have for normalised layers with diagonal weights.
    """
    return _backend(phi, max_nodes, gradient) is not None


def _backend(phi: Tensor, max_nodes: int, gradient: bool) -> Any:
    for package, backend in ((triton, triton_layers), (cpu, cpu_layers)):
        if not package.supports(phi):
            continue
        fits = package is cpu or max_nodes <= backend.TRAINED_NODES
        if not gradient and phi.size(-1) <= backend.MAX_COLUMNS and fits:
            return backend
        if gradient and phi.size(-1) <= backend.TRAINED_COLUMNS and max_nodes <= backend.TRAINED_NODES:
            return backend
    return None


def layers(
    phi: Tensor,
    laplacian: ScaledLaplacian,
    weights: LayerStack,
    readout: Tensor | None,
    later: Tensor,
    norm_floor: float | None,
) -> Tensor:
    """All layers of a linear transformer with a fixed incidence matrix, and its read-out.

    Gradients flow to ``phi``, ``weights`` and ``readout``; not to ``laplacian`` and ``later``.

    Args:
        phi: ``Phi_0``, ``[num_nodes, k]``.
        laplacian: ``S`` of each graph.
        weights: of the layers.
        readout: ``M``, ``[out_channels, k]``; the identity if ``None``.
        later: factor of each graph on ``S`` from the second layer on, float64 ``[num_graphs]``.
        norm_floor: columns longer than this are brought to length one after each layer; ``None``: none is.

    Returns:
        ``Phi_L M^T``, ``[num_nodes, out_channels]``.

    Raises:
        ValueError: on wrong shapes, dtypes or devices.
    """
    # Fields are named and not sliced: the compiler of PyTorch 2.6 has an internal error where a named tuple is.
    if not needs_gradient(phi, weights.residual, weights.similarity, weights.left, weights.right, readout):
        return _layers(phi, *_flat(laplacian), *weights, readout, later, norm_floor)
    if norm_floor is None or not weights.diagonal:
        out = _reference(phi, FixedLayers(laplacian, weights, later, norm_floor), None)
    else:
        stacks = weights.residual, weights.similarity, weights.left
        out, *_ = _layers_forward(phi, *_flat(laplacian), *stacks, later, norm_floor)
    return out if readout is None else nn.functional.linear(out, readout)


def _flat(laplacian: ScaledLaplacian) -> tuple[Any, ...]:
    """The fields one by one, as an operator takes them."""
    *fields, rows = laplacian
    return *fields, *(rows or (None, None, None))


def _laplacian(fields: tuple[Any, ...]) -> ScaledLaplacian:
    """The reverse of :func:`_flat`."""
    rows = None if fields[7] is None else AdjacencyRows(*fields[7:])
    tail, head, ptr, scale, conductance, diagonal, max_nodes = fields[:7]
    return ScaledLaplacian(tail, head, ptr, scale, conductance, diagonal, max_nodes, rows)


def _run(phi: Tensor, *arguments: Any) -> Tensor:
    readout, later, norm_floor = arguments[15:]
    fixed = FixedLayers(_laplacian(arguments[:10]), LayerStack(*arguments[10:15]), later, norm_floor)
    backend = _backend(phi, fixed.laplacian.max_nodes, False)
    return (_reference if backend is None else backend.layers)(phi, fixed, readout)


def _reference(phi: Tensor, fixed: FixedLayers, readout: Tensor | None) -> Tensor:
    """:func:`layers` in torch: ``z`` is ``Phi`` padded to ``[num_graphs, max_nodes, k]``."""
    laplacian, weights, later, norm_floor = fixed
    tail, head, ptr, scale, conductance, diagonal, max_nodes, _ = laplacian
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
    for layer in range(weights.residual.size(0)):
        residual, similarity, left, right = (stack[layer] for stack in weights[:4])
        gram = z.mT @ z
        s = similar(z)
        if layer:
            s = s * later.to(z.dtype).view(-1, 1, 1)
        if weights.diagonal:
            mix, s = residual + left * gram, s * similarity.diagonal()
        else:
            mix, s = residual + left @ gram @ right, s @ similarity.mT
        z = z @ mix.mT + s
        if norm_floor is not None:
            squared = z.square().sum(1, keepdim=True)
            long = squared > norm_floor**2
            z = torch.where(long, z * torch.where(long, squared, 1.0).rsqrt(), z)
    out = z.flatten(0, 1).index_select(0, place)
    return out if readout is None else out @ readout.mT


_OPERATOR = (
    "Tensor tail, Tensor head, Tensor ptr, Tensor node_scale, Tensor? conductance, Tensor diagonal, SymInt max_nodes, "
    "Tensor? crow, Tensor? col, Tensor? value"
)


def _fake_layers(phi: Tensor, *arguments: Any) -> Tensor:
    readout = arguments[15]
    return phi.new_empty(phi.shape[0], phi.shape[1] if readout is None else readout.shape[0])


_layers = Operator(
    f"layers(Tensor phi, {_OPERATOR}, Tensor residual, Tensor similarity, Tensor left, Tensor right, "
    "bool diagonal_weights, Tensor? readout, Tensor later, float? norm_floor) -> Tensor",
    _run,
    _fake_layers,
)


def _run_forward(phi: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    """The result, and what the gradient reads of it."""
    fixed = _training(arguments)
    backend = _backend(phi, fixed.laplacian.max_nodes, True)
    if backend is None:
        return _reference(phi, fixed, None), *(phi.new_empty(0) for _ in range(3))
    out, kept = backend.layers_forward(phi, fixed)
    return out, *kept


def _training(arguments: tuple[Any, ...]) -> FixedLayers:
    """The layers that have a gradient, from the arguments of their operator after ``phi``."""
    residual, similarity, left, later, norm_floor = arguments[10:]
    return FixedLayers(
        _laplacian(arguments[:10]), LayerStack(residual, similarity, left, left, True), later, norm_floor
    )


def _fake_forward(phi: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    num_layers, num_graphs = arguments[10].shape[0], arguments[2].shape[0] - 1
    shapes: list[tuple[int, ...]] = [(0,)] * 3
    if _backend(phi, arguments[6], True) is cpu_layers:
        width = cpu_layers.TRAINED_COLUMNS
        shapes = [(num_layers, phi.shape[0], width), (num_graphs, num_layers, width, width)]
        shapes.append((num_graphs, num_layers, width))
    return torch.empty_like(phi, memory_format=torch.contiguous_format), *(phi.new_empty(shape) for shape in shapes)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors = [x if isinstance(x, Tensor) else None for x in inputs]
    ctx.save_for_backward(*tensors, *output[1:])
    ctx.numbers = [None if isinstance(x, Tensor) else x for x in inputs]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx: Any, grad_out: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    count = len(ctx.numbers)
    saved = ctx.saved_tensors
    inputs = [number if x is None else x for x, number in zip(saved[:count], ctx.numbers, strict=True)]
    if grad_out is None:
        return (None,) * count
    if torch.is_grad_enabled() or _backend(inputs[0], inputs[7], True) is None:
        return tuple(reference_gradients(_reference_training, inputs, [grad_out]))
    phi, residual, similarity, left = _layers_gradient(grad_out, *inputs, *saved[count:])
    return phi, *[None] * 10, residual, similarity, left, None, None


def _reference_training(phi: Tensor, *arguments: Any) -> Tensor:
    return _reference(phi, _training(arguments), None)


def _run_gradient(grad_out: Tensor, phi: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    fixed, kept = _training(arguments[:-3]), arguments[-3:]
    return _backend(phi, fixed.laplacian.max_nodes, True).layers_backward(phi, fixed, kept, grad_out)


_TRAINING = f"Tensor phi, {_OPERATOR}, Tensor residual, Tensor similarity, Tensor left, Tensor later, float norm_floor"
_layers_gradient = Operator(
    f"layers_backward(Tensor grad_out, {_TRAINING}, Tensor chain, Tensor gram, Tensor norm) "
    "-> (Tensor phi, Tensor residual, Tensor similarity, Tensor left)",
    _run_gradient,
    lambda grad_out, phi, *rest: tuple(
        torch.empty_like(x, memory_format=torch.contiguous_format) for x in (phi, *rest[10:13])
    ),
)
_layers_forward = Operator(
    f"layers_forward({_TRAINING}) -> (Tensor out, Tensor chain, Tensor gram, Tensor norm)",
    _run_forward,
    _fake_forward,
    _keep,
    _backward,
)


def two_block_layers(phi: Tensor, laplacian: ScaledLaplacian, residual: Tensor, value: Tensor) -> Tensor:
    """Layers of eq. (7) on ``Phi = [Phi_0, Phi_1]`` whose weights are multiples of the identity; no gradient.

    ``Phi_a <- sum_b residual[a, b] Phi_b + value[a, b] S Phi_b``, at each layer.

    Args:
        phi: ``[num_nodes, 2 k]``.
        laplacian: ``S`` of the graph.
        residual, value: ``[num_layers, 2, 2]``.

    Returns:
        ``[num_nodes, 2 k]``.

    Raises:
        ValueError: on wrong shapes, dtypes or devices.
    """
    return _two_block_layers(phi, *_flat(laplacian), residual, value)


def _run_two_blocks(phi: Tensor, *arguments: Any) -> Tensor:
    laplacian, (residual, value) = _laplacian(arguments[:10]), arguments[10:]
    if cpu.supports(laplacian.diagonal):
        return cpu_layers.two_block_layers(phi, laplacian, residual, value)
    tail, head, _, scale, conductance, diagonal, _, _ = laplacian
    entry = (scale[tail] * scale[head] * (1.0 if conductance is None else conductance)).view(-1, 1, 1)
    z, d = phi.unflatten(1, (2, -1)).clone(), diagonal.view(-1, 1, 1)
    for own, weight in zip(residual, value, strict=True):
        similar = (d * z).index_add(0, tail, -entry * z[head]).index_add(0, head, -entry * z[tail])
        z = own @ z + weight @ similar
    return z.flatten(1)


_two_block_layers = Operator(
    f"two_block_layers(Tensor phi, {_OPERATOR}, Tensor residual, Tensor values) -> Tensor",
    _run_two_blocks,
    lambda phi, *_: torch.empty_like(phi, memory_format=torch.contiguous_format),
)
