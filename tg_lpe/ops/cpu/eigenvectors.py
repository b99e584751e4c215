"""Eigenvectors in C++: see :mod:`tg_lpe.ops.eigenvectors` for the contract."""

from __future__ import annotations

import torch
from torch import Tensor

from tg_lpe.ops.cpu import Function, Int, Pointer, checked

MAX_NODES = 64
"""Size of a matrix up to which this is faster than LAPACK."""


_symmetric_eigenvectors = Function(
    "symmetric_eigenvectors",
    (Int, "num_matrices n count largest"),
    (Pointer, "matrices values vectors"),
    (Int, "num_threads"),
    dtypes={torch.float64: "float64"},
)


def symmetric_eigenvectors(matrices: Tensor, count: int, largest: bool) -> tuple[Tensor, Tensor]:
    """Householder's reduction and QL, matrix by matrix, by all threads."""
    num_matrices, n, _ = matrices.shape
    read = checked({"matrices": (matrices, torch.float64, (num_matrices, n, n))})
    results = {"values": matrices.new_empty(num_matrices, count), "vectors": matrices.new_empty(num_matrices, n, count)}
    sizes = {"num_matrices": num_matrices, "n": n, "count": count, "largest": largest}
    _symmetric_eigenvectors(torch.float64, "matrices must be finite to have eigenvectors", read | results, **sizes)
    return results["values"], results["vectors"]
