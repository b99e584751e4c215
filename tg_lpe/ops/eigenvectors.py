"""Compute eigenvectors of many small symmetric matrices."""

from __future__ import annotations

import contextlib

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from tg_lpe.ops import cpu
from tg_lpe.ops.blas import torch_threads_for
from tg_lpe.ops.cpu import Function, Int, Pointer
from tg_lpe.ops.operator import host_array

COMPILED_NODES = 64
"""Up to this size of a matrix, the library is faster than LAPACK."""

SUBSET_NODES = 64
"""From this size on, LAPACK computes only the wanted eigenvectors, if they are at most half."""

_kernel = Function(
    "symmetric_eigenvectors",
    (Int, "num_matrices n count largest"),
    (Pointer, "matrices values vectors"),
    (Int, "num_threads"),
    dtypes={torch.float64: "float64"},
)


def symmetric_eigenvectors(matrices: Tensor, count: int, largest: bool = False) -> tuple[Tensor, Tensor]:
    """Compute some eigenvectors of each matrix, independently of the others; without gradient.

    Args:
        matrices: float64 ``[num_matrices, n, n]``.
        count: number of eigenvectors, at most ``n``.
        largest: whether to return those of the largest eigenvalues, largest first, instead of the smallest.

    Returns:
        Eigenvalues ``[num_matrices, count]`` and orthonormal eigenvectors ``[num_matrices, n, count]``.

    Raises:
        ValueError: on another shape or dtype, ``count`` out of range, or an entry that is not finite.
    """
    if matrices.dtype != torch.float64 or matrices.dim() != 3 or matrices.size(1) != matrices.size(2):
        raise ValueError(f"matrices must be float64 [num_matrices, n, n], got {matrices.dtype} {list(matrices.shape)}")
    if not 0 <= count <= matrices.size(1):
        raise ValueError(f"count must lie in 0..{matrices.size(1)}, got {count}")
    if cpu.supports(matrices) and 0 < matrices.size(1) <= COMPILED_NODES:
        return compiled_symmetric_eigenvectors(matrices, count, largest)
    if not bool(torch.isfinite(matrices).all()):
        raise ValueError("matrices must be finite")
    return _reference(matrices, count, largest)


def compiled_symmetric_eigenvectors(matrices: Tensor, count: int, largest: bool) -> tuple[Tensor, Tensor]:
    """Compute :func:`symmetric_eigenvectors` by Householder's reduction and QL; threads share the matrices."""
    num_matrices, n, _ = matrices.shape
    read = {"matrices": (matrices, torch.float64, (num_matrices, n, n))}
    results = {"values": matrices.new_empty(num_matrices, count), "vectors": matrices.new_empty(num_matrices, n, count)}
    sizes = {"num_matrices": num_matrices, "n": n, "count": count, "largest": largest}
    _kernel(torch.float64, "matrices must be finite", read, results, **sizes)
    return results["values"], results["vectors"]


def _reference(matrices: Tensor, count: int, largest: bool) -> tuple[Tensor, Tensor]:
    """Compute :func:`symmetric_eigenvectors` by LAPACK."""
    n = matrices.size(1)
    if n >= SUBSET_NODES and 2 * count <= n and count and matrices.size(0) and matrices.device.type == "cpu":
        pairs = [_of_one(host_array(matrix), (n - count, n) if largest else (0, count)) for matrix in matrices]
        values, vectors = (torch.stack([torch.from_numpy(pair[i]) for pair in pairs]) for i in (0, 1))
    else:
        with torch_threads_for(matrices.numel() * n):
            values, vectors = torch.linalg.eigh(matrices)
        first = n - count if largest else 0
        values, vectors = values[:, first : first + count], vectors[:, :, first : first + count]
    if largest:
        values, vectors = values.flip(1), vectors.flip(2)
    return values.contiguous(), vectors.contiguous()


def _of_one(matrix: np.ndarray, wanted: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Compute the eigenvectors ``wanted[0]..wanted[1] - 1`` of a matrix."""
    first, stop = wanted
    with contextlib.suppress(np.linalg.LinAlgError):
        values, vectors = scipy.linalg.eigh(matrix, subset_by_index=(first, stop - 1), check_finite=False)
        if len(values) == stop - first:
            return values, vectors
    # If an eigenvalue repeats many times, LAPACK may fail on a subset, or find too few.
    values, vectors = np.linalg.eigh(matrix)
    return values[first:stop], vectors[:, first:stop]
