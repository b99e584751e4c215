"""The compiled part of the package. The one place that knows whether it is there.

``csrc`` is compiled when the package is installed, where there is a C++ compiler. Everything works without it, with the
same results up to rounding; with it, sorting edges (``edges.cpp``), the exact read-out of batches of small graphs
(``walks.cpp``), that of large ones through random probes (``estimates.cpp``) and all layers of a linear transformer
(``layers.cpp``) are several times faster on CPU. Setting the environment variable ``TG_LPE_NO_NATIVE=1`` acts as if it
were absent.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Mapping, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

VERSION = 5
"""Of the functions' arguments; a library left over from another version is not used."""

HUGE = 2**21
"""Bytes of a huge page."""

DTYPES = {torch.float32: "float32", torch.float64: "float64"}


def _load() -> ctypes.CDLL | None:
    """The library beside this file, or ``None`` where there is none that works."""
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_native{suffix}")
        if not path.is_file():
            continue
        try:
            found = ctypes.CDLL(str(path))
            version = found.tg_lpe_walks_version()
        except (OSError, AttributeError):  # built for another machine
            continue
        if version == VERSION:
            return found
    return None


library = _load() if os.environ.get("TG_LPE_NO_NATIVE", "") in ("", "0") else None


def has_native() -> bool:
    """Whether the compiled part is there."""
    return library is not None


def takes(values: Tensor) -> bool:
    """Whether the compiled part is there and computes with such values."""
    return (
        library is not None
        and values.device.type == "cpu"
        and values.dtype in DTYPES
        and not torch.compiler.is_compiling()  # torch.compile sees through the other path, not through this one
    )


def takes_edges(edge_index: Tensor) -> bool:
    """Whether the compiled part is there and reads such a list of edges."""
    return (
        library is not None
        and edge_index.device.type == "cpu"
        and edge_index.dtype == torch.int64
        and not torch.compiler.is_compiling()
    )


def native_walks(
    coupling: Tensor, ends: tuple[Tensor, Tensor], ptr: Tensor, alpha: float, gamma: float, num_layers: int
) -> tuple[Tensor, Tensor]:
    """``Phi_1 .. Phi_T`` of each graph of a batch, read on the diagonal and at the edges.

    Args:
        coupling: entries of ``P`` at the edges, float32 or float64 ``[num_filters, num_edges]``, on CPU.
        ends: tail and head of each edge, int64 ``[num_edges]``, graph by graph.
        ptr: first node of each graph, int64 ``[num_graphs + 1]``.
        alpha, gamma: of the recurrence, see :data:`~tg_lpe.ops.walks.BASES`.
        num_layers: ``T``.

    Returns:
        ``[num_nodes, num_filters * T]`` and ``[num_edges, num_filters * T]``, filter by filter.

    Raises:
        ValueError: on wrong shapes, dtypes or devices, edges between two graphs, or edges that are not graph by graph.
    """
    _check_coupling(coupling, num_layers)
    width = coupling.size(0) * num_layers
    nodes, edges = coupling.new_empty(int(ptr[-1]), width), coupling.new_empty(coupling.size(1), width)
    _call("tg_lpe_walks", coupling, ends, ptr, alpha, gamma, num_layers, nodes, edges)
    return nodes, edges


def native_walks_backward(
    coupling: Tensor,
    ends: tuple[Tensor, Tensor],
    ptr: Tensor,
    alpha: float,
    gamma: float,
    num_layers: int,
    grad_nodes: Tensor,
    grad_edges: Tensor,
) -> Tensor:
    """The gradient by ``coupling``, ``[num_filters, num_edges]``, given those by what :func:`native_walks` returns."""
    _check_coupling(coupling, num_layers)
    grad = torch.zeros_like(coupling, memory_format=torch.contiguous_format)
    _call("tg_lpe_walks_backward", coupling, ends, ptr, alpha, gamma, num_layers, grad_nodes, grad_edges, grad)
    return grad


def native_estimated_walks(
    coupling: Tensor,
    ends: tuple[Tensor, Tensor],
    height: int,
    num_rows: int,
    alpha: float,
    gamma: float,
    num_layers: int,
    num_probes: int,
    seed: int,
    read_edges: bool = True,
) -> tuple[Tensor, Tensor]:
    """Estimates of ``Phi_1 .. Phi_T`` through random signs, the mean over probes; no gradient.

    As :func:`~tg_lpe.ops.walks.estimated_walks` of all filters, from the signs of
    :func:`~tg_lpe.nn.probes.counter_signs` in each graph of a block. Probes go through all layers 16 at a time in
    float32, 8 in float64: memory beside the result is 64 bytes a row for each of two products, for ``(T + 1) // 2``
    more if edges are read, and what one filter returns at the rows, besides the edges by rows and a bit for each sign.

    Args:
        coupling: entries of ``P`` at the edges, float32 or float64 ``[num_filters, num_edges]``, on CPU.
        ends: rows of the tail and the head of each edge, int64 ``[num_edges]``, in any order; sorted is faster.
        height: rows of each graph of the block; row ``i`` draws the signs of row ``i % height``.
        num_rows: of the block.
        alpha, gamma: of the recurrence, see :data:`~tg_lpe.ops.walks.BASES`.
        num_layers: ``T``.
        num_probes, seed: of the signs.
        read_edges: whether edge entries are wanted; zero otherwise, without memory of their own.

    Returns:
        ``[num_rows, num_filters * T]`` and ``[num_edges, num_filters * T]``, filter by filter.

    Raises:
        ValueError: on wrong shapes, dtypes or devices, sizes out of range, or ends that are no two different rows.
    """
    _check_coupling(coupling, num_layers)
    num_filters, num_edges = coupling.shape
    if not (0 <= num_rows < 2**31 and num_edges < 2**31 and height >= min(num_rows, 1) and num_probes >= 1):
        raise ValueError(
            "there must be fewer than 2**31 rows and edges, and at least one row in a graph and one probe, "
            f"got {num_rows}, {num_edges}, {height} and {num_probes}"
        )
    indices = {name: (end, torch.int64, (num_edges,)) for name, end in zip(("tail", "head"), ends, strict=True)}
    read = _checked({**indices, "coupling": (coupling, coupling.dtype, (num_filters, num_edges))})
    width, values = num_filters * num_layers, read["coupling"]
    nodes = values.new_empty(num_rows, width)
    edges = values.new_empty(num_edges, width) if read_edges else None
    status = _function("estimates", coupling.dtype)(
        *_sizes(num_rows, height, num_edges, num_filters, num_layers, num_probes),
        *_pointers(read["tail"], read["head"], values),
        ctypes.c_uint64(seed % 2**64),
        *(ctypes.c_double(factor) for factor in (alpha, gamma)),
        *_pointers(nodes, edges),
        *_sizes(torch.get_num_threads()),
    )
    if status == 1:
        raise ValueError(f"each edge must join two different rows of {num_rows}")
    _finish(status, num_rows)
    return nodes, values.new_zeros(1, 1).expand(num_edges, width) if edges is None else edges


LAYER_WIDTHS = (8, 16)
"""Columns that the compiled layers are made for; fewer are filled up with zeros."""


class LayerStack(NamedTuple):
    """Weights of consecutive layers of eq. (16), each ``[num_layers, k, k]``.

    ``Phi^T <- M Phi^T + W (S Phi)^T`` with ``M = residual + left * Gram``, entry by entry, where the weights are
    diagonal, and ``M = residual + left Gram right`` where they are not.
    """

    residual: Tensor
    similarity: Tensor
    left: Tensor
    right: Tensor
    diagonal: bool


class Adjacency(NamedTuple):
    """``diag(s) A diag(s)`` of a batch by rows, and the diagonal of ``diag(s) L diag(s)``.

    Row ``i`` has the entries ``crow[i]`` to ``crow[i + 1] - 1`` of ``col``, int32 ``[2 num_edges]``, and ``value``.
    """

    crow: Tensor
    col: Tensor
    value: Tensor
    diagonal: Tensor


class Columns(NamedTuple):
    """The distinct undirected edges of a list, sorted by ``(tail, head)``, ``tail < head``; no self-loops."""

    tail: Tensor
    """int64 ``[num_edges]``."""
    head: Tensor
    """Likewise."""
    column: Tensor | None
    """Edge of each listing, int64 ``[num_listed_edges]``, -1 at self-loops; where it was asked for."""
    neighbour_counts: Tensor
    """int64 ``[num_nodes]``."""
    ptr: Tensor | None
    """First node of each graph of a batch, int64 ``[num_graphs + 1]``."""


def native_columns(
    edge_index: Tensor, num_nodes: int, batch: Tensor | None, num_graphs: int, with_listings: bool
) -> Columns | None:
    """Merge the listings of each edge, and sort; a counting sort, linear in the list.

    Args:
        edge_index: int64 ``[2, num_listed_edges]``, on CPU.
        num_nodes: number of nodes.
        batch: graph of each node, int64 ``[num_nodes]``, or ``None`` for a single graph.
        num_graphs: number of graphs.
        with_listings: whether :attr:`Columns.column` is wanted.

    Returns:
        ``None`` if there is something wrong: an end out of range, a batch that is not sorted, an edge between graphs,
        or more than ``2**32`` nodes or listings.
    """
    if library is None:
        raise RuntimeError("the compiled part of tg_lpe is absent or switched off")
    num_listed = edge_index.size(1)
    if max(num_nodes, num_listed) >= 2**32:
        return None
    rows = edge_index.contiguous()
    tail, head = torch.empty_like(rows).unbind()
    column = torch.empty_like(rows[0]) if with_listings else None
    counts = rows.new_empty(num_nodes)
    batch = None if batch is None else batch.contiguous()
    ptr = None if batch is None else rows.new_empty(num_graphs + 1)
    num_edges = _columns_function()(
        *_sizes(num_nodes, num_listed),
        *_pointers(rows, rows[1]),
        *_sizes(num_graphs),
        *_pointers(batch, ptr, tail, head, column, counts),
        *_sizes(torch.get_num_threads()),
    )
    if num_edges == -2:
        raise MemoryError(f"no memory for a graph of {num_nodes} nodes and {num_listed} edges")
    return None if num_edges < 0 else Columns(tail[:num_edges], head[:num_edges], column, counts, ptr)


def native_adjacency(
    ends: tuple[Tensor, Tensor], node_scale: Tensor, conductance: Tensor | None, laplacian_diagonal: Tensor
) -> Adjacency:
    """The matrix of a list of edges.

    Args:
        ends: tail and head of each edge, int64 ``[num_edges]``, ``tail < head``, sorted by them.
        node_scale: ``s``, float32 or float64 ``[num_nodes]``, on CPU.
        conductance: ``[num_edges]``, or ``None`` for all ones.
        laplacian_diagonal: of ``L``, ``[num_nodes]``.

    Raises:
        ValueError: on wrong shapes, dtypes or devices, or ends that are out of range or out of order.
    """
    num_nodes, num_edges, dtype = node_scale.numel(), ends[0].numel(), node_scale.dtype
    if num_nodes >= 2**31 or dtype not in DTYPES:
        raise ValueError(f"node_scale must be float32 or float64 of fewer than 2**31 nodes, got {dtype} [{num_nodes}]")
    given: dict[str, tuple[Tensor, torch.dtype, tuple[int, ...]]] = {
        "tail": (ends[0], torch.int64, (num_edges,)),
        "head": (ends[1], torch.int64, (num_edges,)),
        "node_scale": (node_scale, dtype, (num_nodes,)),
        "laplacian_diagonal": (laplacian_diagonal, dtype, (num_nodes,)),
    }
    if conductance is not None:
        given["conductance"] = (conductance, dtype, (num_edges,))
    read = _checked(given)
    crow = torch.empty(num_nodes + 1, dtype=torch.int64)
    col, value = _untouched(crow.new_empty(0, dtype=torch.int32), 2 * num_edges), _untouched(node_scale, 2 * num_edges)
    arrays = read["tail"], read["head"], read.get("conductance"), read["node_scale"], crow, col, value
    status = _function("adjacency", dtype)(
        *_sizes(num_nodes, num_edges), *_pointers(*arrays), *_sizes(torch.get_num_threads())
    )
    _finish(status, num_nodes)
    return Adjacency(crow, col, value, read["laplacian_diagonal"] * read["node_scale"].square())


def native_laplacian(adjacency: Adjacency, x: Tensor) -> Tensor:
    """``diag(s) L diag(s) x``, ``[num_nodes, k]``; no gradient.

    Raises:
        ValueError: on wrong shapes, dtypes or devices.
    """
    num_nodes, dtype = adjacency.diagonal.numel(), adjacency.value.dtype
    read = _checked({"x": (x, dtype, (num_nodes, x.size(-1)))})["x"]
    out = torch.empty_like(read)
    arrays = (*adjacency, read, out)
    status = _function("laplacian", dtype)(
        *_sizes(num_nodes, x.size(-1)), *_pointers(*arrays), *_sizes(torch.get_num_threads())
    )
    _finish(status, num_nodes)
    return out


def native_layers(
    phi: Tensor,
    adjacency: Adjacency,
    ptr: Tensor,
    weights: LayerStack,
    readout: Tensor | None,
    later: Tensor,
    norm_floor: float | None,
) -> Tensor:
    """All layers of a linear transformer whose incidence is held fixed, and its read-out; no gradient.

    A layer passes over the adjacency and ``Phi`` once. Memory beside the arguments is ``Phi`` twice, and the result
    if it is of another width.

    Args:
        phi: ``Phi_0``, float32 or float64 ``[num_nodes, k]``, ``k`` at most 16, on CPU.
        adjacency: of the batch, graph by graph.
        ptr: first node of each graph, int64 ``[num_graphs + 1]``.
        weights: of the layers.
        readout: ``M``, ``[out_channels, k]``; the identity if ``None``.
        later: factor of each graph on ``S`` from the second layer on, float64 ``[num_graphs]``.
        norm_floor: columns longer than this are brought to length one after each layer; ``None``: none is.

    Returns:
        ``Phi_L M^T``, ``[num_nodes, out_channels]``.

    Raises:
        ValueError: on wrong shapes, dtypes or devices.
    """
    (num_nodes, k), dtype = phi.shape, phi.dtype
    num_graphs, num_layers = ptr.numel() - 1, weights.residual.size(0)
    if k > LAYER_WIDTHS[-1] or dtype not in DTYPES:
        raise ValueError(f"phi must be float32 or float64 [num_nodes, k <= 16], got {dtype} {list(phi.shape)}")
    width = next(size for size in LAYER_WIDTHS if k <= size)
    stacks = [stack if width == k else nn.functional.pad(stack, (0, width - k) * 2) for stack in weights[:4]]
    readout = torch.eye(k, dtype=dtype) if readout is None else readout
    phi, readout = (x if width == k else nn.functional.pad(x, (0, width - k)) for x in (phi, readout))
    read = _checked(
        {
            "phi": (phi, dtype, (num_nodes, width)),
            "readout": (readout, dtype, (readout.size(0), width)),
            "ptr": (ptr, torch.int64, (num_graphs + 1,)),
            "later": (later, torch.float64, (num_graphs,)),
            "adjacency": (adjacency.diagonal, dtype, (num_nodes,)),
            **{
                name: (stack, dtype, (num_layers, width, width))
                for name, stack in zip(LayerStack._fields[:4], stacks, strict=True)
            },
        }
    )
    rows = read["ptr"]
    if rows[0] != 0 or rows[-1] != num_nodes or bool((rows[1:] < rows[:-1]).any()):
        raise ValueError(f"ptr must ascend from 0 to {num_nodes}, got {rows.tolist()[:10]}")
    one, two = _untouched(phi, num_nodes, width), _untouched(phi, num_nodes, width)
    last = one if num_layers % 2 else two  # layers write to both in turn; a read-out of their width is made in place
    out = last if readout.size(0) == width else one.new_empty(num_nodes, readout.size(0))
    status = _function("layers", dtype)(
        *_sizes(width, num_layers, num_graphs),
        *_pointers(rows, *adjacency, *(read[field] for field in LayerStack._fields[:4])),
        *_pointers(read["readout"], read["later"]),
        *_sizes(readout.size(0), int(weights.diagonal), int(norm_floor is not None)),
        ctypes.c_double(norm_floor or 0.0),
        *_pointers(read["phi"], one, two, out),
        *_sizes(torch.get_num_threads()),
    )
    _finish(status, num_nodes)
    return out


BLOCK_WIDTHS = (4, 8)
"""Columns of each of the two blocks that :func:`native_blocks` takes together; fewer are filled up with zeros."""


def native_blocks(phi: Tensor, adjacency: Adjacency, residual: Tensor, value: Tensor) -> Tensor:
    """Layers of eq. (7) on ``Phi = [Phi_0, Phi_1]`` whose weights are multiples of the identity; no gradient.

    ``Phi_a <- sum_b residual[a, b] Phi_b + value[a, b] S Phi_b``, at each layer.

    Args:
        phi: float32 or float64 ``[num_nodes, 2 k]``, on CPU.
        adjacency: of the graph; ``S`` is its Laplacian.
        residual, value: ``[num_layers, 2, 2]``.

    Returns:
        ``[num_nodes, 2 k]``.

    Raises:
        ValueError: on wrong shapes, dtypes or devices.
    """
    num_nodes, num_layers, dtype = adjacency.diagonal.numel(), residual.size(0), adjacency.value.dtype
    if phi.dim() != 2 or phi.size(0) != num_nodes or phi.size(1) % 2:
        raise ValueError(f"phi must be [{num_nodes}, 2 k], got {list(phi.shape)}")
    shapes = {"residual": residual, "value": value}
    read = _checked({name: (weights, dtype, (num_layers, 2, 2)) for name, weights in shapes.items()})
    if num_layers == 0:
        return phi.clone()
    k, parts = phi.size(1) // 2, []
    for own in phi.unflatten(1, (2, k)).split(BLOCK_WIDTHS[-1], dim=2):  # the columns do not know each other
        size = own.size(2)
        width = next(block for block in BLOCK_WIDTHS if size <= block)
        rows = nn.functional.pad(own, (0, width - size)).reshape(num_nodes, 2 * width)
        rows = _checked({"phi": (rows, dtype, (num_nodes, 2 * width))})["phi"]
        one, two = _untouched(rows, num_nodes, 2 * width), _untouched(rows, num_nodes, 2 * width)
        status = _function("blocks", dtype)(
            *_sizes(width, num_nodes, num_layers),
            *_pointers(*adjacency, read["residual"], read["value"], rows, one, two),
            *_sizes(torch.get_num_threads()),
        )
        _finish(status, num_nodes)
        parts.append((one if num_layers % 2 else two).view(num_nodes, 2, width)[:, :, :size])
    return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)).reshape(num_nodes, 2 * k)


class KeptLayers(NamedTuple):
    """What :func:`native_layers_forward` keeps for the gradient; columns beyond ``k`` are zero."""

    chain: Tensor
    """``Phi_1 .. Phi_L``, ``[num_layers, num_nodes, 8]``."""
    gram: Tensor
    """Gram matrices of ``Phi_0 .. Phi_(L-1)``, ``[num_graphs, num_layers, 8, 8]``."""
    norm: Tensor
    """Columns' lengths before they were brought to one; zero where they were not; ``[num_graphs, num_layers, 8]``."""


def native_layers_forward(
    phi: Tensor, adjacency: Adjacency, ptr: Tensor, weights: LayerStack, later: Tensor, norm_floor: float
) -> KeptLayers:
    """As :func:`native_layers` with diagonal weights, normalised, ``k`` at most 8, without read-out; all is kept.

    Args:
        phi, adjacency, ptr, weights, later, norm_floor: as there.

    Raises:
        ValueError: on wrong shapes, dtypes or devices.
    """
    num_layers, num_graphs, width = weights.residual.size(0), ptr.numel() - 1, LAYER_WIDTHS[0]
    read, arguments = _training_arguments(phi, adjacency, ptr, weights, later, norm_floor)
    kept = KeptLayers(
        chain=phi.new_empty(num_layers, phi.size(0), width),
        gram=phi.new_empty(num_graphs, num_layers, width, width),
        norm=phi.new_empty(num_graphs, num_layers, width),
    )
    status = _function("layers_forward", phi.dtype)(
        *arguments, *_pointers(read["phi"], *kept), *_sizes(torch.get_num_threads())
    )
    _finish(status, phi.size(0))
    return kept


def native_layers_backward(
    phi: Tensor,
    adjacency: Adjacency,
    ptr: Tensor,
    weights: LayerStack,
    later: Tensor,
    norm_floor: float,
    kept: Sequence[Tensor],
    grad_out: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of :func:`native_layers_forward`.

    Args:
        phi, adjacency, ptr, weights, later, norm_floor: as there.
        kept: what it returned, a :class:`KeptLayers`.
        grad_out: by ``Phi_L``, ``[num_nodes, k]``.

    Returns:
        By ``phi``, ``[num_nodes, k]``, and by ``residual``, ``similarity`` (its diagonal alone) and ``left``,
        ``[num_layers, k, k]``.
    """
    k, num_layers, width = phi.size(1), weights.residual.size(0), LAYER_WIDTHS[0]
    read, arguments = _training_arguments(phi, adjacency, ptr, weights, later, norm_floor)
    grad_out = nn.functional.pad(grad_out, (0, width - k)) if k < width else grad_out
    grads = _checked({"grad_out": (grad_out, phi.dtype, (phi.size(0), width))})["grad_out"]
    grad_phi = torch.empty_like(read["phi"])
    by_residual, by_left = torch.empty_like(read["residual"]), torch.empty_like(read["left"])
    by_similarity = by_residual.new_empty(num_layers, width)
    status = _function("layers_backward", phi.dtype)(
        *arguments,
        *_pointers(read["phi"], *kept, grads, grad_phi, by_residual, by_similarity, by_left),
        *_sizes(torch.get_num_threads()),
    )
    _finish(status, phi.size(0))
    by_similarity = torch.diag_embed(by_similarity)
    return grad_phi[:, :k], by_residual[:, :k, :k], by_similarity[:, :k, :k], by_left[:, :k, :k]


def _training_arguments(
    phi: Tensor, adjacency: Adjacency, ptr: Tensor, weights: LayerStack, later: Tensor, norm_floor: float
) -> tuple[dict[str, Tensor], list[Any]]:
    """What both passes are given: the tensors, to be kept until the call is over, and the arguments."""
    (num_nodes, k), dtype = phi.shape, phi.dtype
    num_graphs, num_layers, width = ptr.numel() - 1, weights.residual.size(0), LAYER_WIDTHS[0]
    if k > width or not weights.diagonal:
        raise ValueError(f"there are gradients for diagonal weights and k <= {width}, got {list(phi.shape)}")
    stacks = dict(zip(LayerStack._fields[:3], weights[:3], strict=True))
    if k < width:
        phi = nn.functional.pad(phi, (0, width - k))
        stacks = {name: nn.functional.pad(stack, (0, width - k) * 2) for name, stack in stacks.items()}
    read = _checked(
        {
            "phi": (phi, dtype, (num_nodes, width)),
            "ptr": (ptr, torch.int64, (num_graphs + 1,)),
            "later": (later, torch.float64, (num_graphs,)),
            "adjacency": (adjacency.diagonal, dtype, (num_nodes,)),
            **{name: (stack, dtype, (num_layers, width, width)) for name, stack in stacks.items()},
        }
    )
    arguments = [
        *_sizes(num_layers, num_graphs),
        *_pointers(read["ptr"], *adjacency, read["residual"], read["similarity"], read["left"], read["later"]),
        ctypes.c_double(norm_floor),
    ]
    return read, arguments


def _columns_function() -> Any:
    function = library.tg_lpe_columns  # type: ignore[union-attr]
    function.restype = ctypes.c_int64
    return function


def _untouched(like: Tensor, *shape: int) -> Tensor:
    """As ``like.new_empty(shape)``, in memory that nobody has used before if it is large.

    Only such memory can be had in huge pages. What the allocator hands out a second time is in pages of 4 KiB, and rows
    that are read in any order then miss the TLB as often as the cache.
    """
    size = math.prod(shape) * like.element_size()
    if size < HUGE:
        return like.new_empty(shape)
    memory = mmap.mmap(-1, size + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % HUGE
    return torch.frombuffer(memory, dtype=like.dtype, count=math.prod(shape), offset=start).view(shape)


def _function(name: str, dtype: torch.dtype) -> Any:
    if library is None:
        raise RuntimeError("the compiled part of tg_lpe is absent or switched off")
    return getattr(library, f"tg_lpe_{name}_{DTYPES[dtype]}")


def _checked(given: Mapping[str, tuple[Tensor, torch.dtype, tuple[int, ...]]]) -> dict[str, Tensor]:
    """The tensors as the library reads them, if each has the dtype and the shape that it must have."""
    for name, (tensor, wanted, shape) in given.items():
        if tensor.shape != shape or tensor.dtype != wanted or tensor.device.type != "cpu":
            got = f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}"
            raise ValueError(f"{name} must be {wanted} {list(shape)} on the CPU, got {got}")
    return {name: tensor.detach().contiguous() for name, (tensor, _, _) in given.items()}


def _finish(status: int, num_nodes: int) -> None:
    """Raise what a status stands for."""
    if status == 1:
        raise ValueError(f"each edge must have 0 <= tail < head < {num_nodes}, and tails must ascend")
    if status:
        raise MemoryError(f"no memory for a graph of {num_nodes} nodes")


def _sizes(*values: int) -> list[ctypes.c_int64]:
    return [ctypes.c_int64(value) for value in values]


def _pointers(*tensors: Tensor | None) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(None if tensor is None else tensor.data_ptr()) for tensor in tensors]


def _check_coupling(coupling: Tensor, num_layers: int) -> None:
    if coupling.dtype not in DTYPES or coupling.dim() != 2 or num_layers < 1:
        raise ValueError(
            "coupling must be float32 or float64 [num_filters, num_edges] and num_layers at least 1, "
            f"got {coupling.dtype} {list(coupling.shape)} and {num_layers}"
        )


def _call(
    function: str,
    coupling: Tensor,
    ends: tuple[Tensor, Tensor],
    ptr: Tensor,
    alpha: float,
    gamma: float,
    num_layers: int,
    nodes: Tensor,
    edges: Tensor,
    *grad: Tensor,
) -> None:
    """Check what the library will read and write, and call it."""
    if library is None:
        raise RuntimeError("the compiled part of tg_lpe is absent or switched off")
    num_filters, num_edges = coupling.shape
    num_graphs, num_nodes = ptr.numel() - 1, nodes.size(0)
    indices = {"tail": (ends[0], (num_edges,)), "head": (ends[1], (num_edges,)), "ptr": (ptr, (num_graphs + 1,))}
    width = num_filters * num_layers
    values = {"coupling": (coupling, (num_filters, num_edges))}
    values |= {"nodes": (nodes, (num_nodes, width)), "edges": (edges, (num_edges, width))}
    read, dtypes = [], [torch.int64] * len(indices) + [coupling.dtype] * len(values)
    for (name, (tensor, shape)), dtype in zip((indices | values).items(), dtypes, strict=True):
        if tensor.shape != shape or tensor.dtype != dtype or tensor.device.type != "cpu":
            got = f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}"
            raise ValueError(f"{name} must be {dtype} {list(shape)} on the CPU, got {got}")
        read.append(tensor.contiguous())  # kept until the call is over
    coupling, nodes, edges = read[3:]
    status = getattr(library, f"{function}_{DTYPES[coupling.dtype]}")(
        *(ctypes.c_void_p(tensor.data_ptr()) for tensor in (coupling, *read[:3])),
        *(ctypes.c_int64(size) for size in (num_nodes, num_edges, num_graphs, num_filters, num_layers)),
        ctypes.c_double(alpha),
        ctypes.c_double(gamma),
        ctypes.c_int64(torch.get_num_threads()),
        *(ctypes.c_void_p(tensor.data_ptr()) for tensor in (nodes, edges, *grad)),
    )
    if status == 1:
        raise ValueError(
            "ptr must ascend from 0 to the number of nodes, and each edge join two nodes of one graph, graph by graph"
        )
    if status:
        raise MemoryError("no memory for the walks on these graphs")
