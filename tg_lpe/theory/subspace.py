"""Compute eigenvectors by subspace iteration: Lemma 6 for the largest eigenvalues, Corollary 7 for the smallest.

`Graph Transformers Dream of Electric Flow <https://arxiv.org/abs/2410.16699>`_, sections 4 and 11. All constructions
use eq. (6): each column of ``Phi`` is scaled to length one at the end of a layer.
"""

from __future__ import annotations

import torch

from tg_lpe.theory.efficient import EfficientTransformer


def orthogonalize(k: int, index: int) -> EfficientTransformer:
    """Build the layer of Lemma 8, which makes column ``index`` orthogonal to all later columns.

    It computes ``phi_i <- phi_i - sum_(j > i) <phi_i, phi_j> phi_j``, scaled to length one, as weights of eq. (7) with
    ``alpha^Q alpha^K = 0``: only ``Phi`` may enter the similarity. (Lemma 9 prints 1.)

    Input: ``Phi``, ``[n, k]``, whose columns after ``index`` are orthonormal. Output: ``Phi`` with column ``index``
    orthogonal to them, and the other columns unchanged. It is exact.

    Args:
        k: number of columns.
        index: ``i``, from 0.

    Raises:
        ValueError: if there is no such column.
    """
    if not 0 <= index < k:
        raise ValueError(f"index must lie in 0..{k - 1}, got {index}")
    model = EfficientTransformer(k, k, 1, normalize_phi="columns")
    with torch.no_grad():
        _orthogonalize(model, 0, index)
    return model


def top_eigenvectors(k: int, num_iterations: int, shift: float = 0.0) -> EfficientTransformer:
    """Build the transformer of Lemma 6: ``k + 1`` layers are one step of subspace iteration, ``Phi <- QR(L Phi)``.

    The first layer multiplies by ``L``, eq. (14). Then ``k`` layers of Lemma 8, for ``i = k, k - 1, ..., 1``,
    orthogonalise, from the last column to the first: column ``k`` converges to the eigenvector of the largest
    eigenvalue, column ``k - 1`` to the next. All iterations share their weights.

    Input: ``Phi_0``, ``[n, k]``, of full column rank. Output: orthonormal columns, ``[n, k]``. Layers:
    ``num_iterations (k + 1)``. Error: :func:`~tg_lpe.theory.subspace_iteration_bound`.

    Corrections: ``W^R`` of eq. (14) must be zero on the incidence block (the printed ``I`` doubles ``B`` at each
    layer). Lemma 8's layers must be applied from the last column to the first, since each reads later columns only.

    Args:
        k: number of eigenvectors.
        num_iterations: number of steps of subspace iteration.
        shift: iterate ``L + shift I``, which has the same eigenvectors. It must be positive if ``k`` includes
            eigenvectors of eigenvalue zero.
    """
    return _subspace_iteration(k, num_iterations, value=1.0, residual=shift - 1)


def bottom_eigenvectors(k: int, num_iterations: int, mu: float) -> EfficientTransformer:
    """Build the transformer of Corollary 7: subspace iteration on ``mu I - L``, for the bottom eigenvectors of ``L``.

    Otherwise as :func:`top_eigenvectors`: column ``k`` converges to the eigenvector of the smallest eigenvalue, which
    is constant on each component.

    Correction: with ``W^R = (mu - 1) I``, ``W^V`` must be ``-I`` on the ``Phi`` block (printed: ``I``), so that
    ``Phi - L Phi + (mu - 1) Phi = (mu I - L) Phi``.

    Args:
        k: number of eigenvectors.
        num_iterations: number of steps of subspace iteration.
        mu: at least ``lambda_max`` of every graph it runs on; larger if ``k`` includes the eigenvectors of
            ``lambda_max``, which ``lambda_max I - L`` maps to zero.
    """
    return _subspace_iteration(k, num_iterations, value=-1.0, residual=mu - 1)


def _subspace_iteration(k: int, num_iterations: int, value: float, residual: float) -> EfficientTransformer:
    """Use weight 0 for ``(1 + residual) Phi + value L Phi``, and weight ``i + 1`` to orthogonalise column ``i``."""
    schedule = [0, *range(k, 0, -1)] * num_iterations
    model = EfficientTransformer(k, k, k + 1, schedule, normalize_phi="columns")
    column = range(k)
    with torch.no_grad():
        model.alpha_q[0] = model.alpha_k[0] = 1.0
        model.w_v[0, column, column] = value
        model.w_r[0, column, column] = residual
        for index in column:
            _orthogonalize(model, index + 1, index)
    return model


def _orthogonalize(model: EfficientTransformer, weight: int, index: int) -> None:
    """Set Lemma 8's ``W^V = -A`` and ``W^Q = W^K = H``, with ``H^T H = H``."""
    model.w_v[weight, index, index] = -1.0
    after = range(index + 1, model.k)
    model.w_q[weight, after, after] = 1.0
    model.w_k[weight, after, after] = 1.0
