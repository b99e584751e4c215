"""Batches of small graphs on a GPU: all layers in one launch, each graph's matrices on chip.

Layers on graphs of a few dozen nodes are hundreds of launches that each do next to nothing. Where Triton is there, its
kernels in :mod:`tg_lpe.ops.kernels` run one program per graph otherwise everything works the same through torch.
They are tested through Triton's interpreter and compiled for two GPUs, but were not yet run on any: so they wait to be
asked for, by the environment variable ``TG_LPE_TRITON=1``. With ``TRITON_INTERPRET=1``, the interpreter runs them on
CPU tensors: slowly, for tests.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tg_lpe.graph.incidence import Incidence
from tg_lpe.ops.native import LayerStack

MAX_NODES = 128
"""Nodes of a graph up to which its operator fits on chip."""

WALK_NODES = 64
"""Nodes of a graph up to which its walks do: their ``Phi`` is as large as the operator."""

MAX_COLUMNS = 16
"""Columns of ``Phi`` that the kernels are made for; fewer are filled up with zeros."""

SCRATCH_BYTES = 2**28
"""Memory beside arguments and result that a launch may take; more graphs are run piece by piece."""

# As Triton reads it, once and for all when it is imported.
interpreted = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y")

enabled = interpreted or os.environ.get("TG_LPE_TRITON", "") not in ("", "0")


@cache
def kernels() -> ModuleType | None:
    """:mod:`tg_lpe.ops.kernels`, or ``None`` where there is no Triton, or none that loads."""
    try:
        return importlib.import_module("tg_lpe.ops.kernels") if enabled else None
    except ImportError:
        return None


@cache
def _runs_on(device: torch.device) -> bool:
    """Whether the kernels run there: on NVIDIA GPUs from the first that Triton compiles for."""
    if interpreted:
        return device.type == "cpu"
    is_nvidia = device.type == "cuda" and torch.version.hip is None
    return is_nvidia and torch.cuda.get_device_capability(device) >= (8, 0)


def takes(values: Tensor) -> bool:
    """Whether Triton is there and its kernels compute with such values: float32, on an NVIDIA GPU."""
    return (
        values.dtype == torch.float32
        and (values.is_cuda or interpreted)
        and not torch.compiler.is_compiling()  # torch.compile sees through the other path, not through this one
        and _runs_on(values.device)
        and kernels() is not None
    )


class Columns(NamedTuple):
    """The columns of ``B`` of a batch, graph by graph, as the kernels read them."""

    tail: Tensor
    """int64 ``[num_edges]``."""
    head: Tensor
    """int64 ``[num_edges]``."""
    edge_ptr: Tensor
    """First edge of each graph, int64 ``[num_graphs + 1]``."""
    num_nodes: int
    max_nodes: int
    root: Tensor | None = None
    """``sqrt(w)``, ``[num_edges]``; all one if ``None``."""
    ground: Tensor | None = None
    """Ground conductances, ``[num_nodes]``; none if ``None``."""
    degree_scaling: bool = False
    """Whether ``D^-1/2`` stands on both sides of ``B B^T``."""


def columns(graph: Incidence, like: Tensor | None = None, degree_scaling: bool = False) -> Columns:
    """Those of a graph or batch; no gradient goes through them.

    Args:
        graph: the batch.
        like: has the dtype of the conductances; if ``None``, only the structure is read.
        degree_scaling: whether ``S`` is scaled by ``D^-1/2``, see :meth:`~tg_lpe.Incidence.degree`.
    """
    structure = graph.tail, graph.head, graph.edge_ptr, graph.num_nodes, graph.max_nodes
    if like is None:
        return Columns(*structure)
    w, q = graph.conductance, graph.ground
    # Copies: conductances that are changed in place before the backward pass must not reach it.
    root = None if w is None else w.detach().to(like.dtype).sqrt()
    return Columns(*structure, root, None if q is None else q.detach().to(like.dtype, copy=True), degree_scaling)


def fused_layers(
    phi: Tensor,
    columns: Columns,
    ptr: Tensor,
    weights: LayerStack,
    readout: Tensor | None,
    later: Tensor,
    norm_floor: float | None,
) -> Tensor:
    """All layers of a linear transformer whose incidence is held fixed, and its read-out; no gradient.

    Args:
        phi: ``Phi_0``, float32 ``[num_nodes, k]``, ``k`` at most 16.
        columns: of the batch, graphs of at most :data:`MAX_NODES` nodes.
        ptr: first node of each graph, int64 ``[num_graphs + 1]``.
        weights: of the layers.
        readout: ``M``, ``[out_channels, k]``; the identity if ``None``.
        later: factor of each graph on ``S`` from the second layer on, ``[num_graphs]``.
        norm_floor: columns longer than this are brought to length one after each layer; ``None``: none is.

    Returns:
        ``Phi_L M^T``, ``[num_nodes, out_channels]``.

    Raises:
        ValueError: on wrong shapes, dtypes or devices.
    """
    k, num_layers = phi.size(-1), weights.residual.size(0)
    graph = _graph_arguments(columns, ptr, phi, MAX_NODES)
    stacks = _layer_arguments(phi, columns, weights)
    if readout is not None:
        readout = _checked("readout", readout, phi, (readout.size(0), k))
    later = _checked("later", later.float(), phi, (ptr.numel() - 1,))
    out_channels = k if readout is None else readout.size(0)
    out = phi.new_empty(phi.size(0), out_channels)
    _launch(
        "layers",
        ptr.numel() - 1,
        columns.max_nodes,
        (phi.detach().contiguous(), *graph.values(), *stacks, later, readout, out),
        (k, num_layers, out_channels, norm_floor or 0.0),
        SCALED=columns.degree_scaling,
        DIAGONAL=weights.diagonal,
        NORMALIZED=norm_floor is not None,
    )
    return out


def fused_layers_backward(
    phi: Tensor,
    columns: Columns,
    ptr: Tensor,
    weights: LayerStack,
    later: Tensor,
    norm_floor: float,
    grad_out: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of :func:`fused_layers` with diagonal weights, normalised, without read-out.

    The same in every run: each graph's share of a weight's gradient is written down, then they are summed.

    Args:
        phi, columns, ptr, weights, later, norm_floor: as there.
        grad_out: by ``Phi_L``, ``[num_nodes, k]``.

    Returns:
        By ``phi``, ``[num_nodes, k]``, and by ``residual``, ``similarity`` (its diagonal alone) and ``left``,
        ``[num_layers, k, k]``.

    Raises:
        ValueError: on wrong shapes, dtypes or devices, or weights that are not diagonal.
    """
    if not weights.diagonal:
        raise ValueError("there are gradients for diagonal weights, got full ones")
    k, num_layers, num_graphs = phi.size(-1), weights.residual.size(0), ptr.numel() - 1
    graph = _graph_arguments(columns, ptr, phi, MAX_NODES)
    residual, similarity, left, _ = _layer_arguments(phi, columns, weights)
    later = _checked("later", later.float(), phi, (num_graphs,))
    grad_out = _checked("grad_out", grad_out, phi, tuple(phi.shape))
    phi, grad_phi = phi.detach().contiguous(), torch.empty_like(phi, memory_format=torch.contiguous_format)
    # For each graph, one after the other: by residual, similarity and left, all Phi, and the norms of their columns.
    shapes: tuple[tuple[int, ...], ...] = (
        (num_layers, k, k),
        (num_layers, k),
        (num_layers, k, k),
        (num_layers + 1, _height(columns.max_nodes), MAX_COLUMNS),
        (num_layers, MAX_COLUMNS),
    )
    totals = [phi.new_zeros(shape, dtype=torch.float64) for shape in shapes[:3]]
    for start, count in _pieces(num_graphs, sum(torch.Size(shape).numel() for shape in shapes)):
        buffers = [phi.new_empty(count, *shape) for shape in shapes]
        _launch(
            "layers_backward",
            count,
            columns.max_nodes,
            (phi, *graph.values(), residual, similarity, left, later, grad_out, grad_phi, *buffers),
            (k, num_layers, norm_floor, start),
            SCALED=columns.degree_scaling,
        )
        for total, part in zip(totals, buffers[:3], strict=True):
            total += part.sum(0, dtype=torch.float64)
    by_residual, by_similarity, by_left = (total.to(phi.dtype) for total in totals)
    return grad_phi, by_residual, torch.diag_embed(by_similarity), by_left


def fused_walks(
    coupling: Tensor, columns: Columns, ptr: Tensor, alpha: float, gamma: float, num_layers: int
) -> tuple[Tensor, Tensor]:
    """``Phi_1 .. Phi_T`` of each graph of a batch, read on the diagonal and at the edges; no gradient.

    Args:
        coupling: entries of ``P`` at the edges, float32 ``[num_filters, num_edges]``.
        columns: of the batch, graphs of at most :data:`WALK_NODES` nodes; conductances are not read.
        ptr: first node of each graph, int64 ``[num_graphs + 1]``.
        alpha, gamma: of the recurrence, see :data:`~tg_lpe.ops.walks.BASES`.
        num_layers: ``T``.

    Returns:
        ``[num_nodes, num_filters * T]`` and ``[num_edges, num_filters * T]``, filter by filter.

    Raises:
        ValueError: on wrong shapes, dtypes or devices.
    """
    graph, coupling = _walk_arguments(coupling, columns, ptr, num_layers)
    (num_filters, num_edges), width = coupling.shape, coupling.size(0) * num_layers
    nodes, edges = coupling.new_empty(columns.num_nodes, width), coupling.new_empty(num_edges, width)
    options = alpha, gamma, num_filters, num_edges, num_layers
    tiles = num_filters * 3 * _height(columns.max_nodes) ** 2
    for start, count in _pieces(ptr.numel() - 1, tiles):
        tensors = coupling, *graph, nodes, edges, coupling.new_empty(count * tiles)
        _launch("walks", count * num_filters, columns.max_nodes, tensors, (*options, start))
    return nodes, edges


def fused_walks_backward(
    coupling: Tensor,
    columns: Columns,
    ptr: Tensor,
    alpha: float,
    gamma: float,
    num_layers: int,
    grad_nodes: Tensor,
    grad_edges: Tensor,
) -> Tensor:
    """The gradient by ``coupling``, ``[num_filters, num_edges]``, given those by what :func:`fused_walks` returns."""
    graph, coupling = _walk_arguments(coupling, columns, ptr, num_layers)
    (num_filters, num_edges), width = coupling.shape, coupling.size(0) * num_layers
    grad_nodes = _checked("grad_nodes", grad_nodes, coupling, (columns.num_nodes, width))
    grad_edges = _checked("grad_edges", grad_edges, coupling, (num_edges, width))
    grad = torch.zeros_like(coupling)
    options = alpha, gamma, num_filters, num_edges, num_layers
    tiles = num_filters * (num_layers + 3) * _height(columns.max_nodes) ** 2
    for start, count in _pieces(ptr.numel() - 1, tiles):
        tensors = coupling, *graph, grad_nodes, grad_edges, grad, coupling.new_empty(count * tiles)
        _launch("walks_backward", count * num_filters, columns.max_nodes, tensors, (*options, start))
    return grad


def _height(max_nodes: int) -> int:
    """Rows of a graph's matrices: a power of two, as all shapes on chip are."""
    return max(MAX_COLUMNS, 1 << (max_nodes - 1).bit_length()) if max_nodes else MAX_COLUMNS


def launch_options(height: int) -> dict[str, Any]:
    """How the kernels are compiled for matrices of so many rows.

    Eight rows per warp keep the registers from spilling. Nothing is fetched ahead (``num_stages``): the loops read what
    the same program has written.
    """
    return {"num_warps": min(8, height // 8), "num_stages": 1, "enable_fp_fusion": True}


def _pieces(num_graphs: int, entries: int) -> Iterator[tuple[int, int]]:
    """First graph and number of graphs of each launch, when one graph takes so many entries of scratch memory."""
    at_once = max(1, SCRATCH_BYTES // max(4 * entries, 1))
    for start in range(0, num_graphs, at_once):
        yield start, min(at_once, num_graphs - start)


def _launch(
    name: str,
    num_programs: int,
    max_nodes: int,
    tensors: tuple[Tensor | None, ...],
    numbers: tuple[float, ...],
    **constants: Any,
) -> None:
    module = kernels()
    if module is None:
        raise RuntimeError("Triton is absent or switched off")
    if num_programs == 0:
        return
    height = _height(max_nodes)
    options = {} if interpreted else launch_options(height)
    with torch.cuda.device_of(tensors[0]):
        getattr(module, name)[(num_programs,)](*tensors, *numbers, **constants, NODES=height, **options)


def _checked(
    name: str, tensor: Tensor, like: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> Tensor:
    """The tensor as a kernel reads it, if it has the dtype, the shape and the device that it must have."""
    if tensor.shape != shape or tensor.dtype != dtype or tensor.device != like.device:
        got = f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}"
        raise ValueError(f"{name} must be {dtype} {list(shape)} on {like.device}, got {got}")
    return tensor.detach().contiguous()


def _graph_arguments(columns: Columns, ptr: Tensor, like: Tensor, max_nodes: int) -> dict[str, Tensor | None]:
    """What the kernels read of a batch, by name and in their order."""
    if columns.max_nodes > max_nodes:
        raise ValueError(f"graphs must have at most {max_nodes} nodes, got one of {columns.max_nodes}")
    root, ground, indices = columns.root, columns.ground, torch.int64
    return {
        "tail": _checked("tail", columns.tail, like, tuple(columns.tail.shape), indices),
        "head": _checked("head", columns.head, like, tuple(columns.tail.shape), indices),
        "root": None if root is None else _checked("root", root, like, tuple(columns.tail.shape)),
        "ground": None if ground is None else _checked("ground", ground, like, (columns.num_nodes,)),
        "ptr": _checked("ptr", ptr, like, tuple(ptr.shape), indices),
        "edge_ptr": _checked("edge_ptr", columns.edge_ptr, like, tuple(ptr.shape), indices),
    }


def _layer_arguments(phi: Tensor, columns: Columns, weights: LayerStack) -> list[Tensor]:
    if phi.shape != (columns.num_nodes, phi.size(-1)) or phi.size(1) > MAX_COLUMNS or phi.dtype != torch.float32:
        allowed = f"float32 [{columns.num_nodes}, k <= {MAX_COLUMNS}]"
        raise ValueError(f"phi must be {allowed}, got {phi.dtype} {list(phi.shape)}")
    shape = (weights.residual.size(0), phi.size(1), phi.size(1))
    named = zip(LayerStack._fields[:4], weights[:4], strict=True)
    return [_checked(name, stack, phi, shape) for name, stack in named]


def _walk_arguments(
    coupling: Tensor, columns: Columns, ptr: Tensor, num_layers: int
) -> tuple[tuple[Tensor | None, ...], Tensor]:
    if coupling.dim() != 2 or coupling.dtype != torch.float32 or num_layers < 1:
        got = f"{coupling.dtype} {list(coupling.shape)} and {num_layers}"
        raise ValueError(f"coupling must be float32 [num_filters, num_edges] and num_layers at least 1, got {got}")
    named = _graph_arguments(columns, ptr, coupling, WALK_NODES)
    coupling = _checked("coupling", coupling, coupling, (coupling.size(0), columns.tail.numel()))
    return tuple(named[name] for name in ("tail", "head", "ptr", "edge_ptr")), coupling
