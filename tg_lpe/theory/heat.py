"""Compute the heat kernel: ``exp(-s L) psi`` by its power series, Lemma 3, and ``exp(-s L)`` by cubing, Lemma 5.

`Graph Transformers Dream of Electric Flow <https://arxiv.org/abs/2410.16699>`_, sections 3.3.2, 3.4, 10.3 and 10.4.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tg_lpe.theory.efficient import EfficientTransformer
from tg_lpe.theory.full import FullTransformer


def heat_kernel_layers(k: int, num_layers: int, s: float, num_steps: int = 1) -> EfficientTransformer:
    """Build the transformer of Lemma 3: each layer adds a term of the power series of ``exp(-s L)``.

    Layer ``l`` computes ``Phi <- Phi + (-s)^l / l! Lambda`` and ``Lambda <- L Lambda``, as weights of eq. (7). Here
    ``Lambda`` is stored as ``(-s L)^l / l! Psi``, so that it does not overflow: the factor ``-s / (l + 1)`` moves from
    ``W^R`` into ``W^V``, and the terms are the same.

    The terms grow to ``exp(s lambda_max)`` before they shrink, and rounding errors grow with them. For a large
    temperature, use several steps: the series runs once for each part of ``s``, and a layer between two runs copies
    ``Phi`` to ``Lambda``.

    Input: ``Psi``, ``[n, k]``. (The lemma assumes that its columns sum to zero, which is not needed here.) Output:
    ``exp(-s L) Psi``, ``[n, k]``. Error: :func:`~tg_lpe.theory.heat_kernel_bound`.

    Args:
        k: number of columns.
        num_layers: ``L``, number of layers of each step.
        s: temperature, not negative.
        num_steps: number of parts of ``s``; there are ``num_steps (L + 1) - 1`` layers in all.

    Raises:
        ValueError: if ``s`` is negative, or ``num_steps`` below one.
    """
    if not s >= 0 or num_steps < 1:
        raise ValueError(f"s must not be negative, and num_steps at least 1, got {s} and {num_steps}")
    once = range(num_layers)
    schedule = [*once, *[num_layers, *once] * (num_steps - 1)]
    model = EfficientTransformer(k, 2 * k, num_layers + 1, schedule, blockwise=True)
    psi, phi = range(2)
    factor = -s / num_steps / torch.arange(1, num_layers + 1, dtype=torch.float64)
    with torch.no_grad():
        model.alpha_q[:-1] = 1.0
        model.alpha_k[:-1] = 1.0
        model.w_v[:-1, psi, psi] = factor
        model.w_r[:, psi, psi] = -1.0
        model.w_r[:-1, phi, psi] = 1.0
        model.w_r[-1, psi, phi] = 1.0
        model.w_r[-1, phi, phi] = -1.0
    return model


def fast_heat_kernel(num_layers: int) -> FullTransformer:
    """Build the transformer of Lemma 5: each layer cubes ``Z``, so that ``Z_L = (I - 3^-L s L)^(3^L)``.

    Input: :func:`fast_heat_kernel_input`. Output: ``exp(-s L)``, ``[n, n]``. Error:
    :func:`~tg_lpe.theory.fast_heat_kernel_bound`, sharper than the printed bound.

    The weights are multiples of the identity, so one transformer works for graphs of all sizes.

    Args:
        num_layers: ``L``.
    """
    model = FullTransformer(1, 1, [0] * num_layers, blockwise=True)
    with torch.no_grad():
        for weight, value in ((model.w_v, 1.0), (model.w_q, 1.0), (model.w_k, 1.0), (model.w_r, -1.0)):
            weight.fill_(value)
    return model


def fast_heat_kernel_input(laplacian: Tensor, num_layers: int, s: Tensor | float) -> Tensor:
    """Return the input ``Z_0 = I - 3^-L s L`` of :func:`fast_heat_kernel`, ``[..., n, n]``.

    Args:
        laplacian: the Laplacian, ``[..., n, n]``.
        num_layers: number of layers ``L``, with ``s lambda_max <= 3^L``.
        s: temperature; ``[..., 1, 1]`` if graphs have different temperatures.
    """
    identity = torch.eye(laplacian.size(-1), dtype=laplacian.dtype, device=laplacian.device)
    return identity - s * 3.0**-num_layers * laplacian
