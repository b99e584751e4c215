"""Bound the error of each construction after a number of layers, and find the layers that a tolerance needs.

The bounds are those of `Graph Transformers Dream of Electric Flow <https://arxiv.org/abs/2410.16699>`_, with misprints
corrected. ``lambda_min`` is the smallest non-zero eigenvalue of the combinatorial Laplacian, or a lower bound on it;
``lambda_max`` is the largest eigenvalue, or an upper bound on it; see :func:`spectral_interval` and
:func:`spectral_bounds`. The bounds hold in exact arithmetic; rounding errors add to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from scipy.sparse import coo_matrix, csr_matrix
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor

from tg_lpe.graph.components import Components, component_labels
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.padding import padded_batch

EXACT_NODES = 1024
"""Up to this many nodes, :func:`spectral_interval` computes all eigenvalues."""

RITZ_TOLERANCE = 1e-2
"""Relative accuracy of Lanczos' method on larger graphs."""


def electric_flow_bound(num_layers: int, lambda_min: float, lambda_max: float, step_size: float | None = None) -> float:
    """Return the bound of Lemma 1: ``|Phi_L - L^+ psi| <= exp(-delta L lambda_min) / lambda_min |psi|``.

    It needs ``delta <= 1 / lambda_max``: the error starts at ``|L^+ psi| <= |psi| / lambda_min``, and each step shrinks
    it by ``1 - delta lambda_min``. (Printed: ``exp(-delta L lambda_min / 2) / sqrt(lambda_min)``.)

    Args:
        num_layers: ``L``.
        lambda_min, lambda_max: eigenvalue bounds of the graph, positive and finite.
        step_size: ``delta``; ``1 / lambda_max`` if absent.
    """
    _check_interval(lambda_min, lambda_max)
    delta = 1 / lambda_max if step_size is None else step_size
    if not 0 < delta <= (1 + 1e-12) / lambda_max:
        raise ValueError(f"step_size must lie in (0, 1 / lambda_max = {1 / lambda_max:g}], got {delta:g}")
    return math.exp(-delta * num_layers * lambda_min) / lambda_min


def fast_electric_flow_bound(
    num_layers: int, lambda_min: float, lambda_max: float, step_size: float | None = None
) -> float:
    """Return the bound of Lemma 4: ``|Phi_L - L^+|_2 <= exp(-delta 2^L lambda_min) / lambda_min``.

    ``L`` layers replace ``2^L`` layers of Lemma 1. Arguments and conditions as for :func:`electric_flow_bound`.
    """
    return electric_flow_bound(2 ** min(num_layers, 1000), lambda_min, lambda_max, step_size)


def resistive_embedding_bound(num_layers: int, lambda_min: float, lambda_max: float) -> float:
    """Return the bound of Lemma 2 on ``|Phi_L - sqrt(L^+) psi|``, for ``|psi| = 1``.

    It is ``exp(-delta L lambda_min) / (lambda_min sqrt(delta L))`` with ``delta = 1 / lambda_max``.

    Args:
        num_layers: ``L``; for few layers, the norm of ``sqrt(L^+)`` is a smaller bound and is returned.
        lambda_min, lambda_max: eigenvalue bounds of the graph; ``lambda_max`` as in the construction's weights.
    """
    _check_interval(lambda_min, lambda_max)
    whole = lambda_min**-0.5
    if num_layers == 0:
        return whole
    rest = math.exp(-num_layers * lambda_min / lambda_max) / (lambda_min * math.sqrt(num_layers / lambda_max))
    return min(whole, rest)


def heat_kernel_bound(num_layers: int, lambda_max: float, s: float) -> float:
    """Return the bound of Lemma 3: ``|Phi_L - exp(-s L) psi| <= (s lambda_max)^L / L! |psi|``.

    It needs ``L >= s lambda_max - 1``. It is the first omitted term of the series, whose terms alternate in sign and
    shrink from there on. The paper's bound, ``2^(-L + 8 s lambda_max + 1)``, holds too, but needs three to four times
    the layers. In float64, one run cannot reach an error below ``1e-16 exp(s lambda_max)``, as its terms are so large.

    Args:
        num_layers: ``L``; below ``s lambda_max - 1`` the bound is infinite.
        lambda_max: largest eigenvalue of the graph, or an upper bound.
        s: temperature, not negative.
    """
    check_temperature(s)
    x = s * lambda_max
    if num_layers < x - 1:
        return math.inf
    if x == 0:
        return float(num_layers == 0)
    exponent = num_layers * math.log(x) - math.lgamma(num_layers + 1)
    return math.exp(exponent) if exponent < 700 else math.inf


def fast_heat_kernel_bound(num_layers: int, lambda_max: float, s: float) -> float:
    """Return the bound of Lemma 5: ``|Z_L - exp(-s L)|_2 <= 3^-L min(3 s^2 lambda_max^2, 4 / e^2)``.

    It needs ``s lambda_max <= 3^L``. The first term is the paper's. The second follows from the first inequality of the
    paper's proof, ``0 <= exp(-x) - (1 - x/C)^C <= x^2 exp(-x) / C`` on ``[0, C]``, and ``x^2 exp(-x) <= 4 / e^2``. It
    is the same for all graphs and needs fewer layers. Each layer multiplies rounding errors by three: float64 cannot
    reach an error below ``1e-8``.

    Args:
        num_layers: ``L``; with ``3^L < s lambda_max`` the bound is infinite.
        lambda_max: largest eigenvalue of the graph, or an upper bound.
        s: temperature, not negative.
    """
    check_temperature(s)
    x, c = s * lambda_max, 3.0 ** min(num_layers, 600)
    return min(3 * x * x, 4 / math.e**2) / c if x <= c else math.inf


def subspace_iteration_bound(num_iterations: int, ratio: float, tangent: float) -> float:
    """Return the bound of Lemmas 6 and 7: the tangent of the largest angle to the wanted span, ``tangent * ratio^t``.

    The paper reduces the transformer to subspace iteration; this is the bound of subspace iteration (Golub & Van Loan,
    Matrix Computations, section 8.2), for ``L = t (k + 1)`` layers.

    Args:
        num_iterations: ``t``.
        ratio: ``|mu_(k+1) / mu_k|``, below one: the first unwanted over the last wanted eigenvalue of the iterated
            matrix, which is ``L`` for the top, ``mu I - L`` for the bottom eigenvectors.
        tangent: tangent of the largest angle between the span of ``Phi_0`` and the wanted span.
    """
    if not 0 <= ratio < 1:
        raise ValueError(f"ratio must lie in [0, 1), got {ratio}: without a gap there is no convergence")
    return float(tangent * ratio**num_iterations)


def chebyshev_filter_bound(degree: int, low: float, high: float, value: float) -> float:
    """Return the ratio of :func:`subspace_iteration_bound` for a Chebyshev filter: ``1 / T_degree(x)``.

    The filter maps ``[low, high]``, which contains all unwanted eigenvalues, into ``[-1, 1]``, and the last wanted
    eigenvalue to ``T_degree(x)``, ``x = (high + low - 2 value) / (high - low)``. It bounds a loop of
    :func:`tg_lpe.graph.subspace.leading_subspace` with ``low = 1 - cut`` and ``high = 2``, the largest eigenvalue of a
    normalised Laplacian.

    Args:
        degree: number of layers of the filter.
        low, high: ends of the damped interval.
        value: last wanted eigenvalue of the Laplacian, below ``low``.
    """
    if not value < low < high:
        raise ValueError(f"value < low < high must hold, got {value}, {low} and {high}")
    return 1 / math.cosh(degree * math.acosh((high + low - 2 * value) / (high - low)))


def layers_needed(bound: Callable[[int], float], tolerance: float, max_layers: int = 10**15) -> int:
    """Return the smallest number of layers at which a bound is at most a tolerance.

    ``layers_needed(lambda layers: electric_flow_bound(layers, 0.039, 9.7), 1e-6)`` is 4,244.

    Args:
        bound: a function of the number of layers that does not increase.
        tolerance: positive.
        max_layers: largest number of layers; ValueError if the tolerance needs more.
    """
    if not tolerance > 0:
        raise ValueError(f"tolerance must be positive, got {tolerance}")
    low, high = -1, 0
    while bound(high) > tolerance:
        if high >= max_layers:
            raise ValueError(f"tolerance={tolerance:g} needs more than {max_layers:,} layers")
        low, high = high, min(2 * high + 1, max_layers)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if bound(middle) <= tolerance else (middle, high)
    return high


def spectral_bounds(graph: Graph) -> tuple[Tensor, Tensor]:
    """Bound the non-zero eigenvalues of ``L`` without computing any, in ``O(num_edges log num_edges)``.

    - ``lambda_max`` is at most the largest sum of the weighted degrees of two neighbours (Anderson & Morley 1985).
    - ``lambda_min`` is at least ``4 / (n r)`` for a component of ``n`` nodes with a spanning tree of total resistance
      ``r``: ``1 / lambda_min`` is at most the trace of ``L^+``, the sum of all effective resistances over ``n``, and
      these are at most those within the tree. This bound is coarse (a factor of 4 on paths, far more on expanders), so
      a construction that doubles its reach at each layer runs a few more layers.

    Returns:
        ``lambda_min`` and ``lambda_max`` of each graph, ``[num_graphs]``, float64; both one for a graph without edges.
    """
    like = torch.empty(0, dtype=torch.float64, device=graph.device)
    w = graph.root_conductance(like).square()
    is_present = w > 0
    tail, head, w = graph.tail[is_present], graph.head[is_present], w[is_present]
    degree = graph.laplacian_diagonal(like)
    ones = like.new_ones(graph.num_graphs)
    neighbours = degree[tail] + degree[head]
    upper = ones.clone().scatter_reduce(0, graph.batch[tail], neighbours, "amax", include_self=False)
    matrix = coo_matrix(((1 / w).cpu(), (tail.cpu(), head.cpu())), (graph.num_nodes,) * 2)
    tree = minimum_spanning_tree(csr_matrix(matrix)).tocoo()
    label = component_labels(graph)
    size = torch.bincount(label).double()
    node = torch.from_numpy(tree.row.astype(np.int64)).to(graph.device)
    resistance = torch.zeros_like(size).index_add(0, label[node], torch.from_numpy(tree.data).to(size))
    lower = 4 / (size * resistance)
    first = graph.batch.new_zeros(size.numel()).index_copy(0, label, graph.batch)  # a component lies in one graph
    linked = resistance > 0
    lower = ones.scatter_reduce(0, first[linked], lower[linked], "amin", include_self=False)
    return torch.minimum(lower, upper), upper  # both are exact for two nodes, and rounding may swap them


def spectral_interval(graph: Graph) -> tuple[Tensor, Tensor]:
    """Compute the smallest non-zero and the largest eigenvalue of ``L`` of each graph, over all its components.

    They are exact for graphs of up to :data:`EXACT_NODES` nodes. For larger graphs, ``lambda_max`` is the bound of
    :func:`spectral_bounds`, and ``lambda_min`` is an estimate by Lanczos' method, accurate to about one percent, minus
    the residual of its eigenvector. An iteration takes ``O(num_edges)`` time.

    Returns:
        ``lambda_min`` and ``lambda_max``, ``[num_graphs]``, float64; both one for a graph without edges.

    Raises:
        ValueError: if a graph has more than :data:`EXACT_NODES` nodes and is not connected, or is part of a batch.
    """
    lower, upper = spectral_bounds(graph)
    if graph.max_nodes > EXACT_NODES:
        if graph.num_graphs > 1 or Components(graph).count > 1:
            raise ValueError(
                f"graphs above {EXACT_NODES} nodes must be connected and not in a batch, got {graph.max_nodes}"
            )
        n, top = graph.num_nodes, float(upper[0])

        def apply(x: np.ndarray) -> np.ndarray:
            out = graph.laplacian(torch.from_numpy(x).to(graph.device).view(n, 1))
            # Lift the eigenvalue of the constant vector from zero to the top of the spectrum.
            return out.cpu().numpy().reshape(x.shape) + (top / n) * x.sum()

        operator = LinearOperator((n, n), matvec=apply, dtype=np.float64)
        start = np.random.default_rng(0).standard_normal(n)
        ritz, vectors = eigsh(operator, k=1, which="SA", tol=RITZ_TOLERANCE, v0=start, ncv=64, maxiter=10**4)
        residual = float(np.linalg.norm(apply(vectors[:, 0]) - ritz[0] * vectors[:, 0]))
        return torch.maximum(lower, lower.new_tensor([float(ritz[0]) - residual])), upper
    counts = np.bincount(Components(graph).graph_of, minlength=graph.num_graphs)
    null, padded = torch.from_numpy(counts).to(graph.device), padded_batch(graph)
    for bucket, matrix in zip(
        padded.buckets, padded.dense_laplacians(torch.ones_like(graph.batch).double()), strict=True
    ):
        values = torch.linalg.eigvalsh(matrix)
        padding = bucket.max_nodes - (graph.ptr[bucket.graphs + 1] - graph.ptr[bucket.graphs])
        first = (null[bucket.graphs] + padding).unsqueeze(1)
        smallest = values.gather(1, first.clamp(max=bucket.max_nodes - 1)).squeeze(1)
        edged = first.squeeze(1) < bucket.max_nodes
        graphs = bucket.graphs[edged]
        # With weights over many orders of magnitude, rounding can make the smallest eigenvalue zero or negative.
        lower[graphs] = torch.maximum(lower[graphs], smallest[edged])
        upper[graphs] = torch.minimum(upper[graphs], values[edged, -1] * (1 + 1e-12))
    return torch.minimum(lower, upper), upper


def _check_interval(lambda_min: float, lambda_max: float) -> None:
    if not 0 < lambda_min <= lambda_max < math.inf:
        raise ValueError(f"0 < lambda_min <= lambda_max < inf must hold, got {lambda_min} and {lambda_max}")


def check_temperature(s: float) -> None:
    """Refuse a temperature that is negative or not finite."""
    if not 0 <= s < math.inf:
        raise ValueError(f"the temperature s must be finite and not negative, got {s}")
