"""Call the computation of eigenvectors in C++; :mod:`tg_lpe.ops.eigenvectors` documents it."""

from __future__ import annotations

import torch
from torch import Tensor

from tg_lpe.ops.cpu import Function, Int, Pointer, checked

MAX_NODES = 64
"""Up to this size of a matrix, the library is faster than LAPACK."""


_symmetric_eigenvectors = Function(
    "symmetric_eigenvectors",
    (Int, "num_matrices n count largest"),
    (Pointer, "matrices values vectors"),
    (Int, "num_threads"),
    dtypes={torch.float64: "float64"},
)


def symmetric_eigenvectors(matrices: Tensor, count: int, largest: bool) -> tuple[Tensor, Tensor]:
    """Compute eigenvectors by Householder's reduction and QL; threads share the matrices."""
    num_matrices, n, _ = matrices.shape
    read = checked({"matrices": (matrices, torch.float64, (num_matrices, n, n))})
    results = {"values": matrices.new_empty(num_matrices, count), "vectors": matrices.new_empty(num_matrices, n, count)}
    sizes = {"num_matrices": num_matrices, "n": n, "count": count, "largest": largest}
    _symmetric_eigenvectors(torch.float64, "matrices must be finite", read | results, **sizes)
    return results["values"], results["vectors"]
