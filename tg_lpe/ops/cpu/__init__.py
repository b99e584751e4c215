"""Load and call the operations in C++.

``csrc`` is compiled when the package is installed, if there is a C++ compiler. Without it, results are the same up to
rounding; with it, the operations are several times faster on CPU. The environment variable ``TG_LPE_NO_CPU_KERNELS=1``
disables it. ``TG_LPE_INSTRUCTIONS=avx2`` disables AVX-512, ``TG_LPE_INSTRUCTIONS=any`` AVX2 too.

The library has a C interface: each function reads one structure of 64-bit fields, declared in the module of its
operation, and returns a status. The functions ``compiled_NAME`` of these modules call it. They raise ``ValueError`` on
wrong shapes, dtypes or devices, and if the library finds invalid indices.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from tg_lpe.ops.operator import NO_TRANSFORM

INTERFACE = 15
"""Version of the structures; a library of another version is not used."""

DTYPES = {torch.float32: "float32", torch.float64: "float64"}

OK, MALFORMED = 0, 1
"""Status codes of the C++ functions; any other means lack of memory."""

INSTRUCTIONS = ("any", "avx2", "avx512")
"""Supported instruction sets of x86-64 processors, and values of ``TG_LPE_INSTRUCTIONS``."""


def _load() -> ctypes.CDLL | None:
    """Load the library next to this file; ``None`` if it is missing or does not work."""
    if os.environ.get("TG_LPE_NO_CPU_KERNELS", "") not in ("", "0"):
        return None
    if (instructions_asked := os.environ.get("TG_LPE_INSTRUCTIONS", "")) not in ("", *INSTRUCTIONS):
        raise ValueError(f"TG_LPE_INSTRUCTIONS must be one of {INSTRUCTIONS}, got {instructions_asked!r}")
    try:
        loaded = ctypes.CDLL(str(Path(__file__).with_name("_library.so")))
        version = loaded.tg_lpe_interface()
    except (OSError, AttributeError):  # missing, or built for another machine
        return None
    return loaded if version == INTERFACE else None


library = _load()


def is_available() -> bool:
    """Return whether the library is loaded."""
    return library is not None


@contextmanager
def switched_off() -> Iterator[None]:
    """Disable the library within a context, for comparisons; not thread-safe."""
    global library
    before, library = library, None
    try:
        yield
    finally:
        library = before


def instructions() -> str | None:
    """Return the newest of :data:`INSTRUCTIONS` that the library uses on this processor; ``None`` without library."""
    return None if library is None else INSTRUCTIONS[library.tg_lpe_processor()]


def supports(values: Tensor) -> bool:
    """Return whether the library can compute with these values: float32 or float64 in the CPU's memory."""
    return library is not None and values.dtype in DTYPES and values.device.type == "cpu"


Int, Double, Pointer = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p

Required = tuple[Tensor, torch.dtype, tuple[int, ...]]
"""A tensor that a function reads, and its required dtype and shape."""


class Function:
    """Wrap a function of the library, which has a version for each dtype.

    Args:
        name: name without prefix and dtype.
        fields: fields of its structure: types, each with a string of names separated by spaces.
        dtypes: dtypes of the versions, and their suffixes.
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
        self,
        dtype: torch.dtype,
        malformed: str,
        read: Mapping[str, Required],
        written: Mapping[str, Tensor | None],
        **numbers: float,
    ) -> Any:
        """Check all tensors that the version for a dtype reads, and call it with as many threads as torch has.

        Args:
            dtype: dtype of the version.
            malformed: message for invalid arguments, which says what they must be.
            read: the tensors that it reads, by field, with their required dtypes and shapes.
            written: new contiguous tensors for the results, by field; ``None`` for those that are not wanted.
            numbers: all other fields, except ``num_threads``.

        Returns:
            The structure, with the fields that the function wrote.

        Raises:
            RuntimeError: if the library is not loaded.
            ValueError: with the text ``malformed``, if the function rejects its arguments; if a tensor has another
                dtype, shape or device; or if an integer does not fit 64 bits.
            MemoryError: if the function cannot allocate memory.
        """
        if library is None:
            raise RuntimeError("the C++ part of tg_lpe is absent or switched off")
        if dtype not in self.versions:
            raise ValueError(f"{self.name} must get one of {list(self.versions)}, got {dtype}")
        for number in numbers.values():
            if isinstance(number, int) and not -(2**63) <= number < 2**63:
                raise ValueError(f"integers must fit 64 bits, got {numbers}")
        if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
            raise NotImplementedError(NO_TRANSFORM)
        tensors = dict(written)  # alive during the call
        for name, (values, required, shape) in read.items():
            if values.shape != shape or values.dtype != required or not values.is_cpu or values.layout != torch.strided:
                got = f"{values.dtype} {list(values.shape)} ({values.layout}) on {values.device}"
                raise ValueError(f"{name} must be {required} {list(shape)} on the CPU, got {got}")
            if required.is_floating_point and unpack_dual(values).tangent is not None:
                raise NotImplementedError(NO_TRANSFORM)
            tensors[name] = values.contiguous()
        arguments = self.structure(num_threads=torch.get_num_threads(), **numbers)
        for name, tensor in tensors.items():
            if tensor is not None:
                if not tensor.data_ptr() and tensor.numel():
                    raise ValueError(f"{name} must lie in the CPU's memory, got a {type(tensor).__name__}")
                setattr(arguments, name, tensor.data_ptr())
        status = self.versions[dtype](ctypes.byref(arguments))
        if status == MALFORMED:
            raise ValueError(malformed)
        if status != OK:
            raise MemoryError(f"no memory for {self.name.replace('_', ' ')} of these graphs")
        return arguments


def required_ends(tail: Tensor, head: Tensor, num_nodes: int) -> dict[str, Required]:
    """Return the ends of edges as tensors to read; nodes and edges are numbered in 32 bits."""
    num_edges = tail.numel()
    if not (0 <= num_nodes < 2**31 and num_edges < 2**31):
        raise ValueError(f"there must be fewer than 2**31 nodes and edges, got {num_nodes} and {num_edges}")
    return {"tail": (tail, torch.int64, (num_edges,)), "head": (head, torch.int64, (num_edges,))}
