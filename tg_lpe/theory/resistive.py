"""Compute a resistive embedding ``sqrt(L^+) psi`` by a power series, Lemma 2.

`Graph Transformers Dream of Electric Flow <https://arxiv.org/abs/2410.16699>`_, sections 3.3.1 and 10.2.
"""

from __future__ import annotations

import torch

from tg_lpe.theory.efficient import EfficientTransformer


def resistive_embedding_layers(k: int, num_layers: int, lambda_max: float) -> EfficientTransformer:
    """Build the transformer of Lemma 2: each layer adds a term of the power series of the square root of ``L^+``.

    With ``delta = 1 / lambda_max`` and ``alpha_l = sqrt(delta) C(2l, l) / 4^l``, layer ``l`` computes
    ``Lambda <- (I - delta L) Lambda`` and ``Phi <- Phi + alpha_l Lambda``, eq. (12), as weights of eq. (7). Layers do
    not share weights.

    Input: demands ``Psi``, ``[n, k]``, whose sum over each connected component is zero. Output: ``sqrt(L^+) Psi``,
    ``[n, k]``. Squared distances between the rows of ``sqrt(L^+)`` are effective resistances (Fact 1). Error:
    :func:`~tg_lpe.theory.resistive_embedding_bound`.

    Correction: the weights printed for this lemma in Lemma 9 have ``1 / lambda_max`` in place of ``alpha_l``.

    Args:
        k: number of demands.
        num_layers: ``L``.
        lambda_max: an upper bound of the Laplacian eigenvalues of every graph it runs on.

    Raises:
        ValueError: on a ``lambda_max`` that is not positive.
    """
    if not lambda_max > 0:
        raise ValueError(f"lambda_max must be positive, got {lambda_max}")
    delta = 1 / lambda_max
    model = EfficientTransformer(k, 2 * k, num_layers, blockwise=True)
    psi, phi = range(2)
    # C(2l, l) / 4^l is the product of (2i - 1) / 2i for i = 1..l.
    step = torch.arange(1, max(num_layers, 1), dtype=torch.float64)
    alpha = delta**0.5 * torch.cat([step.new_ones(1), (1 - 0.5 / step).cumprod(0)])[:num_layers]
    with torch.no_grad():
        model.alpha_q.fill_(1.0)
        model.alpha_k.fill_(1.0)
        model.w_v[:, psi, psi] = -delta
        model.w_r[:, phi, psi] = alpha
    return model
