"""Eigenvectors of many small symmetric matrices."""

from __future__ import annotations

import scipy.linalg
import torch
from torch import Tensor

from tg_lpe.ops import cpu
from tg_lpe.ops.cpu import eigenvectors as cpu_eigenvectors
from tg_lpe.ops.operator import Operator

SUBSET_NODES = 64
"""From this size on, LAPACK is asked for the wanted eigenvectors alone, if these are at most half."""


def symmetric_eigenvectors(matrices: Tensor, count: int, largest: bool = False) -> tuple[Tensor, Tensor]:
    """Some eigenvectors of each matrix; what comes of one depends on no other. There is no gradient.

    Args:
        matrices: float64 ``[num_matrices, n, n]``.
        count: how many are wanted, at most ``n``.
        largest: whether those of the largest eigenvalues are wanted, largest first, instead of smallest first.

    Returns:
        Eigenvalues ``[num_matrices, count]`` and orthonormal eigenvectors ``[num_matrices, n, count]``.

    Raises:
        ValueError: on another shape or dtype, ``count`` out of range, or an entry that is not finite.
    """
    if matrices.dtype != torch.float64 or matrices.dim() != 3 or matrices.size(1) != matrices.size(2):
        raise ValueError(f"matrices must be float64 [num_matrices, n, n], got {matrices.dtype} {list(matrices.shape)}")
    if not 0 <= count <= matrices.size(1):
        raise ValueError(f"count must lie in 0..{matrices.size(1)}, got {count}")
    return _symmetric_eigenvectors(matrices, count, largest)


def _run(matrices: Tensor, count: int, largest: bool) -> tuple[Tensor, Tensor]:
    if cpu.supports(matrices) and 0 < matrices.size(1) <= cpu_eigenvectors.MAX_NODES:
        return cpu_eigenvectors.symmetric_eigenvectors(matrices, count, largest)
    if not bool(torch.isfinite(matrices).all()):
        raise ValueError(NOT_FINITE)
    return _reference(matrices, count, largest)


NOT_FINITE = "matrices must be finite to have eigenvectors"


def _reference(matrices: Tensor, count: int, largest: bool) -> tuple[Tensor, Tensor]:
    """:func:`symmetric_eigenvectors` by LAPACK."""
    n = matrices.size(1)
    if n >= SUBSET_NODES and 2 * count <= n and count and matrices.size(0) and matrices.device.type == "cpu":
        wanted = (n - count, n - 1) if largest else (0, count - 1)
        found = [scipy.linalg.eigh(matrix.numpy(), subset_by_index=wanted, check_finite=False) for matrix in matrices]
        values, vectors = (torch.stack([torch.from_numpy(pair[i]) for pair in found]) for i in (0, 1))
    else:
        values, vectors = torch.linalg.eigh(matrices)
        first = n - count if largest else 0
        values, vectors = values[:, first : first + count], vectors[:, :, first : first + count]
    if largest:
        values, vectors = values.flip(1), vectors.flip(2)
    return values.contiguous(), vectors.contiguous()


def _fake(matrices: Tensor, count: int, largest: bool) -> tuple[Tensor, Tensor]:
    num_matrices, n, _ = matrices.shape
    return matrices.new_empty(num_matrices, count), matrices.new_empty(num_matrices, n, count)


_symmetric_eigenvectors = Operator(
    "symmetric_eigenvectors(Tensor matrices, SymInt count, bool largest) -> (Tensor values, Tensor vectors)",
    _run,
    _fake,
)
