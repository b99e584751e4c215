"""Eigenvectors by subspace iteration: Lemma 6 for the largest, Corollary 7 for the smallest, with Lemma 8's layers.

`Graph Transformers Dream of Electric Flow <https://arxiv.org/abs/2410.16699>`_, sections 4 and 11. All run under eq.
(6): each column of ``Phi`` is brought to length one at the end of a layer.
"""

from __future__ import annotations

import torch

from tg_lpe.theory.efficient import EfficientTransformer


def orthogonalize(k: int, index: int) -> EfficientTransformer:
    """Lemma 8: one layer that makes column ``index`` orthogonal to all later ones, and leaves the others as they are.

    ``phi_i <- phi_i - sum_(j > i) <phi_i, phi_j> phi_j``, then to length one, as weights of eq. (7) (with
    ``alpha^Q alpha^K = 0``: only ``Phi`` may enter the similarity; Lemma 9 prints 1).

    Input: ``Phi``, ``[n, k]``, whose columns after ``index`` are orthonormal. Output: the same with column ``index``
    orthogonal to them. It is exact.

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
    """Lemma 6: ``k + 1`` layers are one step of subspace iteration, ``Phi <- QR(L Phi)``.

    The first multiplies by ``L``, eq. (14); ``k`` layers of Lemma 8, for ``i = k, k - 1, ..., 1``, orthogonalise. The
    last column comes first in that order: column ``k`` goes to the eigenvector of the largest eigenvalue, column
    ``k - 1`` to that of the next. Weights are shared by all iterations.

    Input: ``Phi_0``, ``[n, k]``, of full column rank. Output: orthonormal columns, ``[n, k]``. Layers:
    ``num_iterations (k + 1)``. Error: :func:`~tg_lpe.theory.subspace_iteration_bound`.

    Corrections: ``W^R`` of eq. (14) must be zero on the incidence block (printed: ``I``, by which ``B`` doubles at each
    layer); Lemma 8's layers must be applied from the last column to the first, since each looks at later ones only.

    Args:
        k: number of eigenvectors.
        num_iterations: steps of subspace iteration.
        shift: iterate ``L + shift I``, which has the same eigenvectors. A positive shift is needed where ``k`` is so
            large that eigenvectors of eigenvalue zero are wanted too.
    """
    return _subspace_iteration(k, num_iterations, value=1.0, residual=shift - 1)


def bottom_eigenvectors(k: int, num_iterations: int, mu: float) -> EfficientTransformer:
    """Corollary 7: subspace iteration on ``mu I - L``, whose top eigenvectors are the bottom ones of ``L``.

    As :func:`top_eigenvectors`: column ``k`` goes to the eigenvector of the smallest eigenvalue, which is constant on
    each component.

    Correction: with ``W^R = (mu - 1) I``, ``W^V`` must be ``-I`` on the ``Phi`` block (printed: ``I``), so that
    ``Phi - L Phi + (mu - 1) Phi = (mu I - L) Phi``.

    Args:
        k: number of eigenvectors.
        num_iterations: steps of subspace iteration.
        mu: at least ``lambda_max`` of every graph it is run on; larger where ``k`` is so large that the eigenvectors of
            ``lambda_max`` are wanted, which ``lambda_max I - L`` maps to zero.
    """
    return _subspace_iteration(k, num_iterations, value=-1.0, residual=mu - 1)


def _subspace_iteration(k: int, num_iterations: int, value: float, residual: float) -> EfficientTransformer:
    """Weight 0 does ``(1 + residual) Phi + value L Phi``, weight ``i + 1`` orthogonalises column ``i``."""
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
    """Lemma 8's ``W^V = -A`` and ``W^Q = W^K = H``, of which ``H^T H = H``."""
    model.w_v[weight, index, index] = -1.0
    later = range(index + 1, model.k)
    model.w_q[weight, later, later] = 1.0
    model.w_k[weight, later, later] = 1.0
