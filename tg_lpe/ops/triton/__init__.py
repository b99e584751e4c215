"""The operations in Triton, for batches of small graphs on a GPU: one launch, each graph's matrices on chip.

Layers on graphs of a few dozen nodes are hundreds of launches that each do next to nothing. Where Triton is installed,
the kernels in :mod:`tg_lpe.ops.triton.kernels` run one program per graph; otherwise everything works the same through
torch. They are tested through Triton's interpreter and compiled for two GPUs, but were not yet run on any, so they must
be asked for, by the environment variable ``TG_LPE_TRITON=1``. With ``TRITON_INTERPRET=1``, the interpreter runs them on
CPU tensors: slowly, for tests.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tg_lpe.ops.operator import is_transforming

MIN_ROWS = 16
"""Rows, and columns, of the smallest matrices that Triton multiplies."""

SCRATCH_BYTES = 2**28
"""Memory beside arguments and result that a launch may take; more graphs are run piece by piece."""

# As Triton reads it, once and for all when it is imported.
interpreted = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y")

enabled = interpreted or os.environ.get("TG_LPE_TRITON", "") not in ("", "0")


@cache
def load_kernels() -> ModuleType | None:
    """:mod:`tg_lpe.ops.triton.kernels`, or ``None`` where there is no Triton, or none that loads."""
    try:
        return importlib.import_module("tg_lpe.ops.triton.kernels") if enabled else None
    except ImportError:
        return None


@contextmanager
def switched(on: bool) -> Iterator[None]:
    """Inside, the kernels are on or off whatever the environment says; for comparisons."""
    global enabled
    before, enabled = enabled, on
    load_kernels.cache_clear()
    try:
        yield
    finally:
        enabled = before
        load_kernels.cache_clear()


@cache
def _runs_on(device: torch.device) -> bool:
    """Whether the kernels run there: on NVIDIA GPUs from the first that Triton compiles for."""
    if interpreted:
        return device.type == "cpu"
    is_nvidia = device.type == "cuda" and torch.version.hip is None
    return is_nvidia and torch.cuda.get_device_capability(device) >= (8, 0)


def supports(values: Tensor) -> bool:
    """Whether Triton is there and its kernels compute with such values: float32, on an NVIDIA GPU."""
    is_theirs = values.dtype == torch.float32 and (values.is_cuda or interpreted)
    return enabled and is_theirs and not is_transforming() and _is_ready(values.device)


@torch.compiler.assume_constant_result
def _is_ready(device: torch.device) -> bool:
    """Whether the kernels are there and run on a device; ``torch.compile``, which cannot trace an import, asks once."""
    return _runs_on(device) and load_kernels() is not None


def padded_rows(max_nodes: int) -> int:
    """Rows of a graph's matrices: a power of two, as all shapes on chip are."""
    return max(MIN_ROWS, 1 << (max_nodes - 1).bit_length()) if max_nodes else MIN_ROWS


def launch_options(rows: int) -> dict[str, Any]:
    """How the kernels are compiled for matrices of so many rows.

    Eight rows per warp keep the registers from spilling. Nothing is fetched ahead (``num_stages``): the loops read what
    the same program has written.
    """
    return {"num_warps": min(8, rows // 8), "num_stages": 1, "enable_fp_fusion": True}


def pieces(num_graphs: int, entries: int) -> Iterator[tuple[int, int]]:
    """First graph and number of graphs of each launch, when one graph takes so many entries of scratch memory."""
    at_once = max(1, SCRATCH_BYTES // max(4 * entries, 1))
    for start in range(0, num_graphs, at_once):
        yield start, min(at_once, num_graphs - start)


def launch(
    name: str,
    num_programs: int,
    max_nodes: int,
    tensors: tuple[Tensor | None, ...],
    numbers: tuple[float, ...],
    **constants: Any,
) -> None:
    """Launch a kernel.

    Raises:
        RuntimeError: if Triton is not there.
    """
    module = load_kernels()
    if module is None:
        raise RuntimeError("Triton is absent or switched off")
    if num_programs == 0:
        return
    rows = padded_rows(max_nodes)
    options = {} if interpreted else launch_options(rows)
    with torch.cuda.device_of(tensors[0]):
        getattr(module, name)[(num_programs,)](*tensors, *numbers, **constants, NODES=rows, **options)


def checked(
    name: str, tensor: Tensor, like: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> Tensor:
    """The tensor as a kernel reads it, contiguous.

    Raises:
        ValueError: if it has another dtype, shape or device than it must have.
    """
    if tensor.shape != shape or tensor.dtype != dtype or tensor.device != like.device:
        got = f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}"
        raise ValueError(f"{name} must be {dtype} {list(shape)} on {like.device}, got {got}")
    return tensor.detach().contiguous()


def checked_structure(
    tail: Tensor, head: Tensor, ptr: Tensor, max_nodes: int, like: Tensor, limit: int
) -> dict[str, Tensor]:
    """Edges and pointers of a batch as the kernels read them, and the first edge of each graph.

    Raises:
        ValueError: if a graph has more nodes than ``limit``, or a tensor is not what it must be.
    """
    if max_nodes > limit:
        raise ValueError(f"graphs must have at most {limit} nodes, got one of {max_nodes}")
    given = {"tail": (tail, tail.shape), "head": (head, tail.shape), "ptr": (ptr, ptr.shape)}
    read = {name: checked(name, x, like, tuple(shape), torch.int64) for name, (x, shape) in given.items()}
    return {**read, "edge_ptr": torch.searchsorted(read["tail"], read["ptr"])}  # edges are sorted by tail
