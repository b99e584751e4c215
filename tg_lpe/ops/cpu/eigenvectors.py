"""Eigenvectors in C++: see :mod:`tg_lpe.ops.eigenvectors` for the contract."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from tg_lpe.ops import cpu
from tg_lpe.ops.cpu import Arguments, Function, Int, Pointer, checked, fields, pointers

MAX_NODES = 64
"""Size of a matrix up to which this is faster than LAPACK."""


class _Eigenvectors(Arguments):
    _fields_: ClassVar = [
        *fields(Int, "num_matrices n count largest"),
        *fields(Pointer, "matrices values vectors"),
        *fields(Int, "num_threads"),
    ]


_function = Function("symmetric_eigenvectors", _Eigenvectors, {torch.float64: "float64"})


def symmetric_eigenvectors(matrices: Tensor, count: int, largest: bool) -> tuple[Tensor, Tensor]:
    """Householder's reduction and QL, matrix by matrix, by all threads."""
    num_matrices, n, _ = matrices.shape
    read = checked({"matrices": (matrices, torch.float64, (num_matrices, n, n))})
    values, vectors = matrices.new_empty(num_matrices, count), matrices.new_empty(num_matrices, n, count)
    arguments = _Eigenvectors(
        num_matrices=num_matrices,
        n=n,
        count=count,
        largest=largest,
        num_threads=cpu.num_threads(),
        **pointers({**read, "values": values, "vectors": vectors}),
    )
    _function(torch.float64, arguments, "matrices must be finite to have eigenvectors")
    return values, vectors
