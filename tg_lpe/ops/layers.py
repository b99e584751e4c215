"""Compute the layers of a linear transformer with a fixed incidence matrix, on all graphs of a batch at once.

`Graph Transformers Dream of Electric Flow <https://arxiv.org/abs/2410.16699>`_, eq. (16).
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tg_lpe.ops import cpu
from tg_lpe.ops.cpu import Double, Function, Int, Pointer, Required
from tg_lpe.ops.edges import AdjacencyRows, compiled_adjacency_rows, malformed_rows
from tg_lpe.ops.operator import Operator, keep_inputs, kept_inputs, needs_gradient, reference_gradients, signature

WIDTHS = (8, 16)
"""Numbers of columns that the layers are compiled for; fewer columns are padded with zeros."""

MAX_COLUMNS = WIDTHS[-1]
TRAINED_COLUMNS, TRAINED_NODES = WIDTHS[0], 4096
"""Largest numbers of columns, and of nodes of a graph, with a gradient, which takes one thread for each graph."""

DENSE_NODES = 64
"""Up to this number of nodes of the largest graph, layers in torch multiply by dense ``S``."""

_OPERATOR = "ptr crow col value diagonal"

_kernel = Function(
    "layers",
    (Int, "width num_nodes num_entries num_layers num_graphs"),
    (Pointer, f"{_OPERATOR} residual similarity left right later"),
    (Int, "diagonal_weights normalize"),
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
_forward_kernel = Function("layers_forward", *_TRAINING)
_backward_kernel = Function("layers_backward", *_TRAINING)


class ScaledLaplacian(NamedTuple):
    """Hold ``S = diag(s) L diag(s)`` of a batch of graphs, as a list of edges and, for the CPU, as CSR."""

    tail: Tensor
    """int64 ``[num_edges]``, sorted graph by graph."""
    head: Tensor
    """int64 ``[num_edges]``, ``tail < head``."""
    ptr: Tensor
    """First node of each graph, int64 ``[num_graphs + 1]``."""
    node_scale: Tensor
    """``s``, ``[num_nodes]``."""
    conductance: Tensor | None
    """Conductances of the edges, ``[num_edges]``; all one if ``None``."""
    diagonal: Tensor
    """Diagonal of ``S``, ``[num_nodes]``."""
    max_nodes: int
    """Number of nodes of the largest graph."""
    crow: Tensor | None = None
    col: Tensor | None = None
    value: Tensor | None = None
    """``diag(s) A diag(s)`` as :class:`AdjacencyRows`, with ``L = diag(d) - A``; computed on demand if ``None``."""

    @property
    def rows(self) -> AdjacencyRows | None:
        """``diag(s) A diag(s)``, if it was computed."""
        if self.crow is None or self.col is None or self.value is None:
            return None
        return AdjacencyRows(self.crow, self.col, self.value)


class LayerStack(NamedTuple):
    """Hold the weights of consecutive layers of eq. (16), each ``[num_layers, k, k]``.

    ``Phi^T <- M Phi^T + W (S Phi)^T`` with ``W = similarity`` and ``M = residual + left Gram right``. For diagonal
    weights, ``M = residual + left * Gram``, entry by entry, and only the diagonal of ``W`` is read.
    """

    residual: Tensor
    similarity: Tensor
    left: Tensor
    right: Tensor
    diagonal: bool


class LayerArguments(NamedTuple):
    """Hold the arguments of :func:`tg_lpe.ops.layers.layers` one by one, as a registered operation takes them."""

    phi: Tensor
    """``Phi_0``; then follow the fields of :class:`ScaledLaplacian`."""
    tail: Tensor
    head: Tensor
    ptr: Tensor
    node_scale: Tensor
    conductance: Tensor | None
    diagonal: Tensor
    max_nodes: int
    crow: Tensor | None
    col: Tensor | None
    value: Tensor | None
    residual: Tensor
    """The first field of :class:`LayerStack`."""
    similarity: Tensor
    left: Tensor
    right: Tensor
    diagonal_weights: bool
    later: Tensor
    norm_floor: float | None

    @property
    def laplacian(self) -> ScaledLaplacian:
        """``S`` of each graph."""
        return ScaledLaplacian(*self[1 : 1 + len(ScaledLaplacian._fields)])  # type: ignore[arg-type]


STACKS = ("residual", "similarity", "left", "right")


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
        return phi.size(-1) <= MAX_COLUMNS
    return phi.size(-1) <= TRAINED_COLUMNS and max_nodes <= TRAINED_NODES


def layers(
    phi: Tensor,
    laplacian: ScaledLaplacian,
    weights: LayerStack,
    later: Tensor,
    norm_floor: float | None,
) -> Tensor:
    """Compute all layers of a linear transformer with a fixed incidence matrix.

    Gradients flow to all tensors except the rows of ``laplacian``.

    Args:
        phi: ``Phi_0``, ``[num_nodes, k]``.
        laplacian: ``S`` of each graph.
        weights: weights of the layers.
        later: factor of each graph on ``S`` from the second layer on, float64 ``[num_graphs]``.
        norm_floor: columns longer than this are scaled to length one after each layer; ``None`` scales none.

    Returns:
        ``Phi_L``, ``[num_nodes, k]``.

    Raises:
        ValueError: on wrong shapes, dtypes or devices.
    """
    # Fields are named: the compiler of PyTorch 2.6 has an internal error on slices of a named tuple.
    of_graph = laplacian.node_scale, laplacian.conductance, laplacian.diagonal, later
    if not needs_gradient(phi, weights.residual, weights.similarity, weights.left, weights.right, *of_graph):
        return _layers(phi, *laplacian, *weights, later, norm_floor)
    is_compiled = norm_floor is not None and weights.diagonal and supports(phi, laplacian.max_nodes, gradient=True)
    if not is_compiled or needs_gradient(*of_graph):
        return _reference(phi, *laplacian, *weights, later, norm_floor)
    # Layers with diagonal weights do not read the right weights.
    stacks = weights.residual, weights.similarity, weights.left, weights.left.detach()
    return _layers_forward(phi, *laplacian, *stacks, True, later, norm_floor)[0]


def _run(*arguments: Any) -> Tensor:
    inputs = LayerArguments(*arguments)
    return compiled_layers(inputs) if supports(inputs.phi, inputs.max_nodes) else _reference(*arguments)


def compiled_layers(inputs: LayerArguments) -> Tensor:
    """Compute each layer in one pass over the adjacency and ``Phi``, with memory for two copies of ``Phi``."""
    phi, num_graphs = inputs.phi, inputs.ptr.numel() - 1
    (num_nodes, k), dtype, num_layers = phi.shape, phi.dtype, inputs.residual.size(0)
    if k > MAX_COLUMNS:
        raise ValueError(f"phi must be [num_nodes, k <= {MAX_COLUMNS}], got {list(phi.shape)}")
    width = next(size for size in WIDTHS if k <= size)
    stacks = {name: _padded(value, width, 2) for name, value in inputs._asdict().items() if name in STACKS}
    phi = _padded(phi, width)
    read = {
        **_required_operator(inputs.laplacian, num_nodes, dtype),
        "phi": (phi, dtype, (num_nodes, width)),
        "later": (inputs.later, torch.float64, (num_graphs,)),
        **{name: (stack, dtype, (num_layers, width, width)) for name, stack in stacks.items()},
    }
    one, two = phi.new_empty(num_nodes, width), phi.new_empty(num_nodes, width)
    out = one if num_layers % 2 else two  # layers write to both in turn
    _kernel(
        dtype,
        _malformed(num_nodes),
        read,
        {"one": one, "two": two, "out": out},
        width=width,
        num_nodes=num_nodes,
        num_entries=read["col"][0].numel(),
        num_layers=num_layers,
        num_graphs=num_graphs,
        diagonal_weights=inputs.diagonal_weights,
        normalize=inputs.norm_floor is not None,
        norm_floor=inputs.norm_floor or 0.0,
    )
    return out if k == width else out[:, :k].contiguous()


def compiled_forward(inputs: LayerArguments) -> tuple[Tensor, ...]:
    """Compute the layers, and the tensors that the gradient needs.

    Returns:
        ``Phi_L``; ``Phi_1 .. Phi_L`` ``[num_layers, num_nodes, 8]``; the Gram matrices of ``Phi_0 .. Phi_(L-1)``
        ``[num_graphs, num_layers, 8, 8]``; the lengths of columns before normalisation, zero for columns that were not
        normalised, ``[num_graphs, num_layers, 8]``.
    """
    phi, (read, sizes) = inputs.phi, _training_arguments(inputs)
    num_layers, num_graphs = sizes["num_layers"], sizes["num_graphs"]
    saved = {name: phi.new_empty(shape) for name, shape in _saved_shapes(phi.size(0), num_layers, num_graphs).items()}
    _forward_kernel(phi.dtype, _malformed(phi.size(0)), read, saved, **sizes)
    return saved["chain"][-1, :, : phi.size(1)].clone(), *saved.values()


def _saved_shapes(num_nodes: int, num_layers: int, num_graphs: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors that the gradient needs."""
    width = TRAINED_COLUMNS
    of_graph = num_graphs, num_layers, width
    return {"chain": (num_layers, num_nodes, width), "gram": (*of_graph, width), "norm": of_graph}


def _malformed(num_nodes: int) -> str:
    return f"ptr must ascend from 0 to {num_nodes}, and {malformed_rows(num_nodes)}"


def _padded(x: Tensor, width: int, dims: int = 1) -> Tensor:
    """Pad the last dimensions with zeros."""
    missing = width - x.size(-1)
    return nn.functional.pad(x, (0, missing) * dims) if missing > 0 else x


def _required_operator(laplacian: ScaledLaplacian, num_nodes: int, dtype: torch.dtype) -> dict[str, Required]:
    rows = laplacian.rows
    if rows is None:
        tail, head, _, node_scale, conductance, *_ = laplacian
        rows = compiled_adjacency_rows(tail, head, node_scale, conductance)
    entries = (rows.col.numel(),)
    return {
        "ptr": (laplacian.ptr, torch.int64, (laplacian.ptr.numel(),)),
        "crow": (rows.crow, torch.int64, (num_nodes + 1,)),
        "col": (rows.col, torch.int32, entries),
        "value": (rows.value, dtype, entries),
        "diagonal": (laplacian.diagonal, dtype, (num_nodes,)),
    }


def _training_arguments(inputs: LayerArguments) -> tuple[dict[str, Required], dict[str, Any]]:
    """Collect the tensors and numbers that the forward and backward passes share."""
    phi, num_graphs = inputs.phi, inputs.ptr.numel() - 1
    (num_nodes, k), dtype, num_layers, width = phi.shape, phi.dtype, inputs.residual.size(0), TRAINED_COLUMNS
    if k > width or not inputs.diagonal_weights:
        raise ValueError(f"gradients need diagonal weights and phi [num_nodes, k <= {width}], got {list(phi.shape)}")
    stacks = {name: _padded(value, width, 2) for name, value in inputs._asdict().items() if name in STACKS[:3]}
    read = {
        **_required_operator(inputs.laplacian, num_nodes, dtype),
        "phi": (_padded(phi, width), dtype, (num_nodes, width)),
        "later": (inputs.later, torch.float64, (num_graphs,)),
        **{name: (stack, dtype, (num_layers, width, width)) for name, stack in stacks.items()},
    }
    return read, {
        "num_nodes": num_nodes,
        "num_entries": read["col"][0].numel(),
        "num_layers": num_layers,
        "num_graphs": num_graphs,
        "norm_floor": inputs.norm_floor,
    }


def _reference(*arguments: Any) -> Tensor:
    """Compute :func:`layers` in torch; ``z`` is ``Phi^T`` padded to ``[num_graphs, k, max_nodes]``."""
    inputs = LayerArguments(*arguments)
    phi, (tail, head, ptr, scale, conductance, diagonal, max_nodes, *_) = inputs.phi, inputs.laplacian
    stacks, norm_floor = (inputs.residual, inputs.similarity, inputs.left, inputs.right), inputs.norm_floor
    num_graphs, node = ptr.numel() - 1, torch.arange(phi.size(0), device=phi.device)
    graph = torch.searchsorted(ptr, node, right=True) - 1
    place = graph * max_nodes + node - ptr[graph]
    entry = scale[tail] * scale[head] * (-1.0 if conductance is None else -conductance)

    def pad(rows: Tensor) -> Tensor:
        padded = rows.new_zeros(num_graphs * max_nodes, rows.size(1)).index_copy(0, place, rows)
        return padded.view(num_graphs, max_nodes, rows.size(1)).mT.contiguous()

    def by_edges(z: Tensor) -> Tensor:
        rows, w = z.mT.flatten(0, 1).index_select(0, place), entry.unsqueeze(1)
        return pad((diagonal.unsqueeze(1) * rows).index_add(0, tail, w * rows[head]).index_add(0, head, w * rows[tail]))

    similar = by_edges
    if max_nodes <= DENSE_NODES:
        row, column = torch.cat([place, place[tail], place[head]]), torch.cat([node, head, tail])
        flat = row * max_nodes + column - ptr[graph[column]]
        matrix = phi.new_zeros(num_graphs * max_nodes**2).index_put((flat,), torch.cat([diagonal, entry, entry]))
        similar = partial(torch.bmm, mat2=matrix.view(num_graphs, max_nodes, max_nodes))

    z = pad(phi)
    for layer, (residual, similarity, left, right) in enumerate(zip(*stacks, strict=True)):
        gram, s = z @ z.mT, similar(z)
        if layer:
            s = s * inputs.later.to(z.dtype).view(-1, 1, 1)
        if inputs.diagonal_weights:
            mix, s = residual + left * gram, s * similarity.diagonal().unsqueeze(1)
        else:
            mix, s = residual + left @ gram @ right, similarity @ s
        z = torch.baddbmm(s, mix, z)
        if norm_floor is not None:
            squared = z.square().sum(2, keepdim=True)
            z = z * torch.where(squared > norm_floor * norm_floor, squared, 1.0).rsqrt()
    return z.mT.flatten(0, 1).index_select(0, place)


_layers = Operator(f"layers({signature(LayerArguments)}) -> Tensor", _run, lambda phi, *_: phi.new_empty(phi.shape))


def _run_forward(*arguments: Any) -> tuple[Tensor, ...]:
    """Return the result, and the tensors that the gradient needs."""
    inputs = LayerArguments(*arguments)
    if not supports(inputs.phi, inputs.max_nodes, gradient=True):
        return _reference(*arguments), *(inputs.phi.new_empty(0) for _ in range(3))
    return compiled_forward(inputs)


def _fake_forward(*arguments: Any) -> tuple[Tensor, ...]:
    inputs = LayerArguments(*arguments)
    phi, num_layers, num_graphs = inputs.phi, inputs.residual.shape[0], inputs.ptr.shape[0] - 1
    shapes: list[tuple[int, ...]] = [(0,)] * 3
    if supports(phi, inputs.max_nodes, gradient=True):
        shapes = list(_saved_shapes(phi.shape[0], num_layers, num_graphs).values())
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
    """Compute the gradients of ``phi`` and the weights from the tensors of :func:`compiled_forward`."""
    inputs, (chain, gram, norm), width = LayerArguments(*arguments[:-3]), arguments[-3:], TRAINED_COLUMNS
    phi, (read, sizes), k = inputs.phi, _training_arguments(inputs), inputs.phi.size(1)
    (num_nodes, num_layers), dtype = (phi.size(0), sizes["num_layers"]), phi.dtype
    shapes = _saved_shapes(num_nodes, num_layers, sizes["num_graphs"])
    for name, saved in {"chain": chain, "gram": gram, "norm": norm}.items():
        read[name] = (saved, dtype, shapes[name])
    read["grad_out"] = (_padded(grad_out, width), dtype, (num_nodes, width))
    grads = {
        "grad_phi": phi.new_empty(num_nodes, width),
        "grad_residual": phi.new_empty(num_layers, width, width),
        "grad_similarity": phi.new_empty(num_layers, width),
        "grad_left": phi.new_empty(num_layers, width, width),
    }
    _backward_kernel(dtype, _malformed(num_nodes), read, grads, **sizes)
    by_phi, by_residual, by_similarity, by_left = grads.values()
    by_weights = by_residual, torch.diag_embed(by_similarity), by_left
    if k == width:
        return by_phi, *by_weights
    return by_phi[:, :k].contiguous(), *(grad[:, :k, :k].contiguous() for grad in by_weights)


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
