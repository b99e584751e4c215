"""Compute eigenvectors of large graphs by subspace iteration with a Chebyshev filter in layers of eq. (7).

The paper's subspace iteration (Lemma 6, Corollary 7) needs about the square of the number of layers that the filter
needs. The method is `Chebyshev-filtered subspace iteration <https://doi.org/10.1016/j.jcp.2006.03.017>`_ (Zhou, Saad,
Tiago, Chelikowsky). Its recurrence runs on two blocks of columns in the layers of eq. (7) of `Graph Transformers Dream
of Electric Flow <https://arxiv.org/abs/2410.16699>`_.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from tg_lpe.graph.graph import Graph
from tg_lpe.theory.efficient import EfficientTransformer

AMPLIFICATION = 1e6
"""Amplification of the far end of the spectrum over the damped interval; with more, rounding hides the nearer part."""

MAX_DEGREE = 5000
"""Largest number of layers of one filter."""


def chebyshev_filter(k: int, degree: int, low: float, high: float) -> EfficientTransformer:
    """Build the transformer of the Chebyshev polynomial ``T_degree(((high + low) I - 2 L) / (high - low)) Psi``.

    For eigenvalues inside ``[low, high]``, ``T`` stays between -1 and 1; outside it grows like
    ``cosh(degree arccosh(x))``. ``Phi`` holds the previous and the current polynomial of the recurrence
    ``T_(t+1) = 2 x T_t - T_(t-1)``. The first layer of eq. (7) computes ``T_1``; all others share their weights.

    Input: ``Psi``, ``[n, k]``. Output: ``[n, k]``. Layers: ``degree``. It is exact.

    Args:
        k: number of columns.
        degree: degree of the polynomial, at least 1.
        low, high: ends of the damped interval.
    """
    if degree < 1:
        raise ValueError(f"degree must be at least 1, got {degree}")
    if not low < high:
        raise ValueError(f"low must be below high, got {low} and {high}")
    at_zero, slope = (high + low) / (high - low), 2.0 / (high - low)
    model = EfficientTransformer(k, 2 * k, 2, [0, *[1] * (degree - 1)], blockwise=True)
    identity = torch.eye(2, dtype=torch.float64)
    with torch.no_grad():
        model.alpha_q.fill_(1.0)
        model.alpha_k.fill_(1.0)
        model.w_v[0, 1, 0], model.w_v[1, 1, 1] = -slope, -2 * slope
        model.w_r[0] = torch.tensor([[1.0, 0.0], [at_zero, 0.0]], dtype=torch.float64) - identity
        model.w_r[1] = torch.tensor([[0.0, 1.0], [-1.0, 2 * at_zero]], dtype=torch.float64) - identity
    return model


def filtered_eigenspace(
    graph: Graph, k: int, which: str, tolerance: float, start: Tensor, max_layers: int
) -> tuple[Tensor, Tensor]:
    """Compute eigenvectors of ``L`` of one graph, ``[n, k]``, and their eigenvalues ``[k]``.

    Args:
        graph: a single graph.
        k: number of eigenvectors.
        which: ``"bottom"`` or ``"top"``.
        tolerance: residual of the span, divided by the largest gap after its ``k`` or more vectors. This is about the
            sine of the angle to the wanted span.
        start: ``[n, width]``, ``k < width < n``. More columns widen the gap between damped and wanted eigenvalues.
        max_layers: largest number of layers of all filters together.

    Raises:
        ValueError: if more layers are needed than allowed.
    """
    degree = graph.laplacian_diagonal(start)
    ends = degree[graph.tail] + degree[graph.head]
    top = float(ends.max()) if graph.num_edges else 0.0  # at least lambda_max (Anderson, Morley)
    layers, q = 0, start
    best, stuck = math.inf, 0
    while True:
        q, _ = torch.linalg.qr(q)
        image = graph.laplacian(q)
        ritz, turn = torch.linalg.eigh(q.mT @ image)
        if which == "top":
            ritz, turn = ritz.flip(0), turn.flip(1)
        q, image = q @ turn, image @ turn
        # If there is no gap after the first k vectors, there usually is one after a few more.
        gaps = (ritz[k:] - ritz[k - 1 : -1]).abs()
        gap, place = float(gaps.max()), k + int(gaps.argmax())
        residual = float(torch.linalg.matrix_norm(image[:, :place] - q[:, :place] * ritz[:place]))
        floor = 100 * torch.finfo(q.dtype).eps * top * math.sqrt(place)
        # Each filter adds rounding errors: stop when another one no longer lowers a residual that is small already.
        stuck, best = (stuck + 1 if residual > 0.9 * best else 0), min(best, residual)
        if residual <= max(tolerance * gap, floor) or (stuck >= 3 and residual <= 1e-8 * top):
            break
        if layers >= max_layers:
            raise ValueError(
                f"{k} {which} eigenvectors of a graph of {graph.num_nodes} nodes need more layers for tolerance="
                f"{tolerance:g} than max_layers={max_layers:,}: the residual is {residual:.1e} after {layers:,}"
            )
        # Ritz values of a random start lie in the middle of the spectrum; each filter moves them to the wanted end.
        last = min(max(float(ritz[-1]), 1e-12 * top), (1 - 1e-3) * top)
        low, high = (last, top) if which == "bottom" else (0.0, last)
        farthest = (high + low) / (high - low) if which == "bottom" else (2 * top - high) / high
        num_layers = math.ceil(math.acosh(AMPLIFICATION) / math.acosh(farthest))
        model = chebyshev_filter(q.size(1), max(1, min(num_layers, MAX_DEGREE, max_layers - layers)), low, high)
        model, layers = model.to(q.device), layers + model.num_layers
        with torch.no_grad():
            q = model(graph, q)
    if residual > tolerance * gap:
        warn_of_gap(graph, k, which, residual / gap if gap else math.inf, tolerance)
    return q[:, :k], ritz[:k]


def warn_of_gap(graph: Graph, k: int, which: str, sine: float, tolerance: float) -> None:
    """Warn that rounding keeps the sine of the angle to the wanted span above the tolerance."""
    warnings.warn(
        f"the span of {k} {which} eigenvectors of a graph of {graph.num_nodes} nodes is accurate to {sine:.1g}, "
        f"not to tolerance={tolerance:g}: its gap is too small for float64",
        stacklevel=4,
    )
