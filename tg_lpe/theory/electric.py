"""Compute electric flow: potentials ``L^+ psi`` by gradient descent, Lemma 1, and ``L^+`` by a product, Lemma 4.

`Graph Transformers Dream of Electric Flow <https://arxiv.org/abs/2410.16699>`_, sections 3.2, 3.4, 10.1 and 10.4.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tg_lpe.theory.efficient import EfficientTransformer
from tg_lpe.theory.full import FullTransformer


def electric_flow(k: int, num_layers: int, step_size: float) -> EfficientTransformer:
    """Build the transformer of Lemma 1: each layer is a step of gradient descent on the energy of an electric flow.

    ``Phi_(l+1) = Phi_l - delta (L Phi_l - Psi)`` by eqs. (10) and (11), as weights of eq. (7), Lemma 9. All layers
    share their weights.

    Input: demands ``Psi``, ``[n, k]``, whose sum over each connected component is zero
    (:func:`~tg_lpe.theory.remove_component_means`). Output: potentials ``L^+ Psi``, ``[n, k]``. Error:
    :func:`~tg_lpe.theory.electric_flow_bound`, which corrects the printed bound.

    Args:
        k: number of demands.
        num_layers: ``L``.
        step_size: ``delta``, at most ``1 / lambda_max`` of every graph it runs on.

    Raises:
        ValueError: on a step size that is not positive.
    """
    if not step_size > 0:
        raise ValueError(f"step_size must be positive, got {step_size}")
    model = EfficientTransformer(k, 2 * k, 1, [0] * num_layers, blockwise=True)
    psi, phi = range(2)
    with torch.no_grad():
        model.alpha_q.fill_(1.0)
        model.alpha_k.fill_(1.0)
        model.w_v[0, phi, phi] = -step_size
        model.w_r[0, phi, psi] = step_size
    return model


def fast_electric_flow(num_layers: int) -> FullTransformer:
    """Build the transformer of Lemma 4: ``L`` layers replace ``2^L`` layers of Lemma 1, for all demands at once.

    ``Z^T = [Gamma, I, Phi]``: each layer squares ``Gamma`` and multiplies ``Phi`` by ``I + Gamma``, so that
    ``Phi_L = delta (I + M) (I + M^2) (I + M^4) ... = delta (I + M + ... + M^(2^L - 1))`` with ``M = I^ - delta L``,
    ``I^`` the projection off the constant vector of each component. (Eq. (13) ends its sum at ``2^t``; the product over
    ``l = 0..t`` gives ``2^(t+1) - 1``.)

    Input: :func:`fast_electric_flow_input`. Output: ``L^+``, the last ``n`` rows of ``Z_L``
    (:func:`fast_electric_flow_output`). Error: :func:`~tg_lpe.theory.fast_electric_flow_bound`.

    Corrections: the third block row of the printed ``W^V`` is ``[I, 0, 0]``, which adds ``Gamma^2`` to ``Phi`` instead
    of ``Gamma Phi``; it must be ``[0, 0, I]``. The printed ``Phi_0 = delta I`` leaves a residual ``delta`` along the
    constant vector at every layer; it must be ``delta I^``.

    The blocks of the weights are multiples of the identity, so one transformer works for graphs of all sizes.

    Args:
        num_layers: ``L``.
    """
    model = FullTransformer(3, 1, [0] * num_layers, blockwise=True)
    gamma, ones, phi = range(3)
    with torch.no_grad():
        model.w_v[0, gamma, gamma] = 1.0
        model.w_v[0, phi, phi] = 1.0
        model.w_q[0] = torch.eye(3)
        model.w_k[0, ones, gamma] = 1.0
        model.w_r[0, gamma, gamma] = -1.0
    return model


def fast_electric_flow_input(laplacian: Tensor, projection: Tensor, step_size: Tensor | float) -> Tensor:
    """Return the input ``Z_0`` of :func:`fast_electric_flow`.

    Args:
        laplacian: ``L``, ``[..., n, n]``.
        projection: ``I^``, ``[..., n, n]``: the identity minus ``1 1^T / n`` for each component of ``n`` nodes.
        step_size: ``delta``, at most ``1 / lambda_max``; ``[..., 1, 1]`` if graphs have different steps.

    Returns:
        ``[..., 3 n, n]``.
    """
    n = laplacian.size(-1)
    identity = torch.eye(n, dtype=laplacian.dtype, device=laplacian.device).expand_as(laplacian)
    return torch.cat([projection - step_size * laplacian, identity, step_size * projection], dim=-2)


def fast_electric_flow_output(z: Tensor) -> Tensor:
    """Return the output ``Phi_L``, ``[..., n, n]``, in ``Z_L``, ``[..., 3 n, n]``."""
    return z[..., -z.size(-1) :, :]
