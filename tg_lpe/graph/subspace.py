"""Leading eigenvectors by a looped filter, for graphs of any size.

A loop of the filter is a stack of linear-transformer layers without softmax: each multiplies node vectors by the
normalized adjacency, adds a multiple of them, and shares one scalar, the cut. A layer is a pass over the edges; how
many are needed grows with the diameter of the graph. The loop ends with similarity layers, which orthogonalise. `Graph
Transformers Dream of Electric Flow <https://arxiv.org/abs/2410.16699>`_, Lemmas 6 to 8.
"""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import numpy as np
import torch
from scipy.linalg import eigh
from torch import Tensor
from tqdm import tqdm

from tg_lpe.arguments import check_count, check_seed
from tg_lpe.graph.components import Array, ComponentGroup, Components
from tg_lpe.graph.eigenvectors import canonical_signs
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.solvers import stacked_eigh
from tg_lpe.ops import edges
from tg_lpe.ops.random import counter_normal
from tg_lpe.ops.structures import AdjacencyRows

FIRST_LAYERS = 8
"""Layers of the first loop; each further loop has at most twice as many as the one before."""

AMPLIFICATION = 1e3
"""Factor between the largest and the smallest column of a loop, at most: float32 tells them apart."""

CHUNK = 2**16
"""Rows whose products with each other are summed in float64 at a time."""

SECONDS = 10.0
"""Time after which a progress bar appears."""


class Subspace(NamedTuple):
    """The leading eigenvectors of each component of a batch."""

    vectors: Tensor
    """``[num_nodes, k]``, orthonormal within a component, largest eigenvalue of the normalized adjacency first; zero
    where a component has fewer. Signs as those of :func:`~tg_lpe.graph.eigenvectors.laplacian_eigenvectors`."""
    values: Tensor
    """Eigenvalues of ``I - D^-1/2 A D^-1/2``, float64 ``[num_components, k]``; NaN where there are fewer."""
    share: Tensor
    """Estimate of how much of the ``k`` eigenvectors the columns hold, float64 ``[num_components]``; one is all."""
    component: Tensor
    """Component of each node, int64 ``[num_nodes]``."""
    layers: Tensor
    """Layers that were run, int64 ``[num_components]``; zero where a component was solved densely."""


@torch.compiler.disable  # sizes and components are read on the host
@torch.no_grad()
def leading_subspace(
    graph: Graph,
    k: int,
    *,
    num_columns: int | None = None,
    tolerance: float = 2e-3,
    max_layers: int = 4096,
    exact_nodes: int = 256,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Subspace:
    """Find the ``k`` leading non-trivial eigenvectors of the normalized adjacency of each component.

    Random columns go through loops of a Chebyshev filter, which damps all eigenvalues of the normalized adjacency below
    a cut. A Rayleigh-Ritz step after each loop orders the columns and gives the next cut, the smallest Ritz value. A
    loop is twice as long as the one before, unless it would drive the columns too close together. The loops end when
    the estimated share of the ``k`` eigenvectors that the columns miss is below ``tolerance``: the mean of
    ``(residual / gap)^2`` over the columns, with the gap to the smallest Ritz value (Davis and Kahan's theorem).

    Each component is treated as if it were alone.

    Args:
        graph: the batch; without ground conductances.
        k: number of eigenvectors.
        num_columns: columns that are filtered, more than ``k``; ``2 k``, at least ``k + 8``, if absent.
        tolerance: share of the eigenvectors that may be missing.
        max_layers: products with the adjacency, at most; then a warning gives the share that was reached.
        exact_nodes: nodes of a component up to which it is solved densely in float64, which is faster there.
        seed: of the random columns.
        dtype: of the filtered columns, float32 or float64.

    Returns:
        The eigenvectors, their eigenvalues and the share that they hold.

    Raises:
        ValueError: on an argument out of range, or ground conductances.
    """
    check_count("k", k)
    check_seed(seed)
    check_count("max_layers", max_layers)
    check_count("exact_nodes", exact_nodes, 0)
    num_columns = max(2 * k, k + 8) if num_columns is None else num_columns
    if num_columns <= k:
        raise ValueError(f"num_columns must be more than k={k}, got {num_columns}; 2 k is the default")
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must be between 0 and 1, got {tolerance}; 2e-3 is the default")
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
    if graph.ground is not None:
        raise ValueError("graph must have no ground conductances: positions are those of the graph alone")
    parts = Components(graph)
    vectors, values = np.zeros((graph.num_nodes, k)), np.full((parts.count, k), np.nan)
    share, layers = np.ones(parts.count), np.zeros(parts.count, np.int64)
    for group in parts.groups:
        if group.size == 1:
            continue
        if group.size <= max(exact_nodes, 2 * num_columns):
            found, basis = _exact(parts, group, k)
            values[group.components[:, None], np.arange(found.shape[1])] = found
            vectors[group.nodes[:, :, None], np.arange(found.shape[1])] = basis
            continue
        for part in group.each():
            looped = _Filter(parts, part, dtype, graph.device).run(k, num_columns, tolerance, max_layers, seed)
            number = part.components[0]
            vectors[part.nodes[0]], values[number] = looped.columns, looped.values
            share[number], layers[number] = looped.share, looped.layers
    if (low := share < 1 - 2 * tolerance).any():
        warnings.warn(
            f"{int(low.sum())} of {parts.count} components have no {k} settled positions after {max_layers:,} layers: "
            f"an estimated share of {share.min():.2f} was found; raise max_layers, or take fewer columns: their "
            "eigenvalues lie too close together to be told apart",
            stacklevel=2,
        )
    if parts.count:
        vectors *= canonical_signs(parts, vectors)
    label = parts.label.astype(np.int64)
    out = (torch.from_numpy(part).to(graph.device) for part in (vectors, values, share, label, layers))
    return Subspace(*out)


def _exact(parts: Components, group: ComponentGroup, k: int) -> tuple[Array, Array]:
    """Eigenvalues ``[num_components, m]`` and vectors ``[num_components, n, m]``, ``m`` at most ``k``, of a group."""
    root = np.sqrt(parts.diagonal[group.nodes])
    matrix = group.matrices(parts.diagonal, 1 / np.sqrt(np.where(parts.diagonal > 0, parts.diagonal, 1.0)))
    null = 2 * root / np.sqrt((root * root).sum(1, keepdims=True))  # lifts the null vector to eigenvalue 4, above all
    return stacked_eigh(matrix + null[:, :, None] * null[:, None, :], min(k, group.size - 1))


class _Looped(NamedTuple):
    columns: Array
    values: Array
    share: float
    layers: int


class _Filter:
    """The loops of one component; ``P`` is its normalized adjacency, ``[n, n]``."""

    def __init__(self, parts: Components, group: ComponentGroup, dtype: torch.dtype, device: torch.device) -> None:
        diagonal = parts.diagonal[group.nodes[0]]
        tail, head = (torch.from_numpy(np.ascontiguousarray(ends)).to(device) for ends in (group.tail, group.head))
        weights = torch.from_numpy(np.ascontiguousarray(group.weights)).to(device, dtype)
        scale = torch.from_numpy(1 / np.sqrt(diagonal)).to(device, dtype)
        self.rows = edges.adjacency_rows(tail, head, scale, weights)
        self.null = torch.from_numpy(np.sqrt(diagonal / diagonal.sum())).to(device, dtype)

    def run(self, k: int, num_columns: int, tolerance: float, max_layers: int, seed: int) -> _Looped:
        """Loop the filter until the first ``k`` columns have settled."""
        x = counter_normal(seed, self.null.numel(), num_columns, self.null)
        x /= torch.linalg.vector_norm(x, dim=0)
        cut, length, layers = 0.0, FIRST_LAYERS, 0
        with tqdm(total=max_layers, desc="positions", unit="layer", delay=SECONDS, leave=False, disable=None) as bar:
            while True:
                x, values, missing = self.ritz(self.filtered(x, cut, length), k)
                layers += length
                bar.update(length)
                if missing < tolerance or layers >= max_layers:
                    break
                cut = values[-1]
                largest = (2 * values[0] + 1 - cut) / (1 + cut)  # where the first Ritz value is mapped to
                most = math.acosh(AMPLIFICATION) / math.acosh(max(largest, 1 + 1e-12))
                length = max(2, min(2 * length, int(most), max_layers - layers))
        return _Looped(x[:, :k].double().cpu().numpy(), 1 - values[:k], 1 - missing, layers)

    def filtered(self, x: Tensor, cut: float, length: int) -> Tensor:
        """``T_length(P') x``, Chebyshev's polynomial of ``P`` mapped so that ``[-1, cut]`` becomes ``[-1, 1]``."""
        centre, radius = (cut - 1) / 2, (cut + 1) / 2
        rows = AdjacencyRows(self.rows.crow, self.rows.col, self.rows.value * (-2 / radius))
        diagonal = torch.full_like(self.null, -2 * centre / radius)
        # The null vector of I - P grows faster than all columns: what rounding leaves of it is removed in time.
        largest = (1 - centre) / radius
        period = max(1, int(math.acosh(0.01 / torch.finfo(x.dtype).eps) / math.acosh(max(largest, 1 + 1e-12))))
        before, now = x, edges.laplacian(rows, diagonal, x) / 2
        for layer in range(1, length):
            if layer % period == 0:
                before, now = self.without_null(before), self.without_null(now)
            before, now = now, edges.laplacian_step_(rows, diagonal, now, before)
        return now

    def without_null(self, x: Tensor) -> Tensor:
        """Make the columns orthogonal to the null vector, in place."""
        return x.addr_(self.null, self.null @ x, alpha=-1)

    def ritz(self, x: Tensor, k: int) -> tuple[Tensor, Array, float]:
        """Replace the columns by Ritz vectors of ``P`` in their span, orthogonal to the null vector.

        Returns:
            The vectors, their Ritz values in descending order, float64, and the estimated share of the first ``k``
            eigenvectors that the columns miss.
        """
        x = self.without_null(x)
        x /= torch.linalg.vector_norm(x, dim=0)
        zero = torch.zeros_like(self.null)
        product = edges.laplacian(self.rows, zero, x).neg_()
        gram, projected = _inner(x, x), _inner(x, product)
        values, mix = eigh((projected + projected.T) / 2, gram)
        values, mix = values[::-1], torch.from_numpy(mix[:, ::-1].copy()).to(x)
        x = x @ mix
        residual = product @ mix[:, :k] - x[:, :k] * torch.from_numpy(values[:k].copy()).to(x)
        norms = torch.linalg.vector_norm(residual, dim=0).double().cpu().numpy()
        gaps = np.maximum(values[:k] - values[-1], 1e-300)
        return x, values, float(np.minimum((norms / gaps) ** 2, 1.0).mean())


def _inner(x: Tensor, y: Tensor) -> Array:
    """``x^T y`` summed in float64."""
    pieces = zip(x.split(CHUNK), y.split(CHUNK), strict=True)
    return sum(a.double().T @ b.double() for a, b in pieces).cpu().numpy()  # type: ignore[union-attr]
