"""The operations in C++. The one place that knows whether they were compiled.

``csrc`` is compiled when the package is installed, where there is a C++ compiler. Everything works without it, with the
same results up to rounding; with it, the operations are several times faster on CPU. Setting the environment variable
``TG_LPE_NO_CPU_KERNELS=1`` acts as if it were absent. ``TG_LPE_INSTRUCTIONS=avx2`` leaves AVX-512 unused,
``TG_LPE_INSTRUCTIONS=any`` AVX2 too.

The library is plain C: each function reads one structure of 64-bit fields, declared in the module of its operation, and
returns a status.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tg_lpe.ops.operator import is_transforming

INTERFACE = 13
"""Version of the structures; a library left over from another version is not used."""

DTYPES = {torch.float32: "float32", torch.float64: "float64"}

HUGE_PAGE = 2**21
"""Bytes."""

OK, MALFORMED = 0, 1
"""Status codes of the C++ functions; every other is lack of memory."""

INSTRUCTIONS = ("any", "avx2", "avx512")
"""Sets of instructions of x86-64 processors that there are versions for, and values of ``TG_LPE_INSTRUCTIONS``."""


def _load() -> ctypes.CDLL | None:
    """The library beside this file, or ``None`` where there is none that works."""
    if os.environ.get("TG_LPE_NO_CPU_KERNELS", "") not in ("", "0"):
        return None
    if (instructions_asked := os.environ.get("TG_LPE_INSTRUCTIONS", "")) not in ("", *INSTRUCTIONS):
        raise ValueError(f"TG_LPE_INSTRUCTIONS must be one of {INSTRUCTIONS}, got {instructions_asked!r}")
    try:
        loaded = ctypes.CDLL(str(Path(__file__).with_name("_library.so")))
        version = loaded.tg_lpe_interface()
    except (OSError, AttributeError):  # there is none, or it was built for another machine
        return None
    return loaded if version == INTERFACE else None


library = _load()


def is_available() -> bool:
    """Whether the library is there."""
    return library is not None


@contextmanager
def switched_off() -> Iterator[None]:
    """Compute without the library inside, as where it was not compiled; for comparisons, not for threads."""
    global library
    before, library = library, None
    try:
        yield
    finally:
        library = before


def instructions() -> str | None:
    """The newest of :data:`INSTRUCTIONS` that the library uses on this processor; ``None`` where it is absent."""
    return None if library is None else INSTRUCTIONS[library.tg_lpe_processor()]


def supports(values: Tensor) -> bool:
    """Whether the library is there and computes with such values: float32 or float64 in the CPU's memory."""
    return library is not None and values.dtype in DTYPES and values.device.type == "cpu" and not is_transforming()


Int, Double, Pointer = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p


class Function:
    """A function of the library for each dtype.

    Args:
        name: without prefix and dtype.
        fields: of the structure that it reads and writes: types, each with names that have spaces between.
        dtypes: of the versions there are.
    """

    def __init__(self, name: str, *fields: tuple[Any, str], dtypes: Mapping[torch.dtype, str] = DTYPES) -> None:
        self.name = name
        members = [(field, kind) for kind, names in fields for field in names.split()]
        self.structure: Any = type(name, (ctypes.Structure,), {"_fields_": members})
        self.versions: dict[torch.dtype, Any] = {}
        for dtype, suffix in dtypes.items() if library is not None else ():
            version = getattr(library, f"tg_lpe_{name}_{suffix}")
            version.argtypes, version.restype = [ctypes.POINTER(self.structure)], ctypes.c_int
            self.versions[dtype] = version

    def __call__(
        self, dtype: torch.dtype, malformed: str, tensors: Mapping[str, Tensor | None], **numbers: float
    ) -> Any:
        """Call the version for a dtype with as many threads as torch has.

        Args:
            dtype: of the version.
            malformed: says what the arguments must be.
            tensors: those that it reads and writes, contiguous, by the names of the fields.
            numbers: all other fields but ``num_threads``.

        Returns:
            The structure, with what the function wrote into it.

        Raises:
            RuntimeError: if the library is not there.
            ValueError: with the text ``malformed``, if the function finds its arguments so; or if a tensor does not lie
                in the CPU's memory.
            MemoryError: if there is no memory for it.
        """
        if library is None:
            raise RuntimeError("the C++ part of tg_lpe is absent or switched off")
        addresses = {name: None if tensor is None else _address(name, tensor) for name, tensor in tensors.items()}
        arguments = self.structure(num_threads=torch.get_num_threads(), **numbers, **addresses)
        status = self.versions[dtype](ctypes.byref(arguments))
        if status == MALFORMED:
            raise ValueError(malformed)
        if status != OK:
            raise MemoryError(f"no memory for {self.name.replace('_', ' ')} of these graphs")
        return arguments


def checked(given: Mapping[str, tuple[Tensor, torch.dtype, tuple[int, ...]]]) -> dict[str, Tensor]:
    """The tensors as the library reads them, contiguous; they must be kept until the call is over.

    Args:
        given: for each name the tensor, and the dtype and the shape that it must have.

    Raises:
        ValueError: if one has another dtype or shape, or is not on the CPU.
    """
    for name, (tensor, dtype, shape) in given.items():
        if tensor.shape != shape or tensor.dtype != dtype or tensor.device.type != "cpu":
            got = f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}"
            raise ValueError(f"{name} must be {dtype} {list(shape)} on the CPU, got {got}")
    return {name: tensor.detach().contiguous() for name, (tensor, _, _) in given.items()}


def _address(name: str, tensor: Tensor) -> int:
    address = tensor.data_ptr()
    if tensor.device.type != "cpu" or (not address and tensor.numel()):
        raise ValueError(f"{name} must lie in the CPU's memory, got a {type(tensor).__name__} on {tensor.device}")
    return address


def empty_in_huge_pages(like: Tensor, *shape: int) -> Tensor:
    """Return ``like.new_empty(shape)`` in memory that was never used before if it is large.

    Only such memory can be had in huge pages. What the allocator hands out a second time is in pages of 4 KiB, and rows
    that are read in any order then miss the TLB as often as the cache.
    """
    size = math.prod(shape) * like.element_size()
    if size < HUGE_PAGE:
        return like.new_empty(shape)
    memory = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % HUGE_PAGE
    return torch.frombuffer(memory, dtype=like.dtype, count=math.prod(shape), offset=start).view(shape)
