"""Compute leading eigenvectors by a looped filter, for graphs of any size.

A loop of the filter is a stack of linear-transformer layers without softmax. Each layer multiplies node vectors by the
normalized adjacency, in one pass over the edges, and adds a multiple of them. The layers of a loop share one scalar,
the cut. The number of layers grows with the diameter of the graph. A loop ends with similarity layers, which
orthogonalise the columns. `Graph Transformers Dream of Electric Flow <https://arxiv.org/abs/2410.16699>`_, Lemmas 6
to 8.
"""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import numpy as np
import torch
from scipy.linalg import eigh
from torch import Tensor, nn

from tg_lpe.graph.components import Array, ComponentGroup, Components
from tg_lpe.graph.eigenvectors import canonical_signs, root_degrees
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.incidence import inverse_sqrt
from tg_lpe.graph.progress import Progress
from tg_lpe.graph.solvers import stacked_eigh
from tg_lpe.ops import edges
from tg_lpe.ops.operator import host_array
from tg_lpe.ops.random import counter_normal
from tg_lpe.ops.segment import scatter_sum

EXACT_NODES = 256
"""Components of up to this many nodes are solved densely in float64, which is faster."""

FIRST_LAYERS = 8
"""Number of layers of the first loop; each further loop has at most twice as many as the last."""

AMPLIFICATION = 1e2
"""Largest amplification in a loop: a longer loop with a cut that is too low costs more than it gains, and the columns
must stay distinct in float32."""

GAP = 1e-9
"""Ritz values closer than this count as equal: the gradient does not turn their columns."""

REPEATED = 1e-4
"""Eigenvalues count as equal if their difference is below this share of their gap to the rest."""

CHUNK = 2**16
"""Rows whose inner products are summed in float64 at a time."""

LOWEST_CUT = -0.9
"""The smallest cut: at minus one the filter would damp nothing."""

BELOW_ONE = 1 - 1e-12
"""The largest cut: at one the filter would amplify nothing."""


class LearnedCut(nn.Module):
    """Choose the cut of each loop of the filter: it damps eigenvalues of the normalized adjacency below the cut.

    ``cut = last + tanh(f) (kth - last)``, where ``last`` is the smallest Ritz value, ``kth`` is the ``k``-th largest,
    and ``f`` is a net with one hidden layer. The net reads the distance of the smallest Ritz value from one, the
    distances of the ``k``-th and of the largest Ritz value from the smallest, and the estimated missing share. At
    construction ``f = 0``: the cut is the smallest Ritz value. The cut of the first loop is the parameter ``start``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(()))
        self.hidden, self.out = nn.Linear(4, 16), nn.Linear(16, 1)
        for parameter in (self.start, self.out.weight, self.out.bias):
            nn.init.zeros_(parameter)

    def forward(self, values: Tensor, missing: Tensor, k: int) -> Tensor:
        """Return the cut of the next loop, ``[num_components]``; Ritz values are ``[num_components, num_columns]``."""
        last, kth, first = values[:, -1], values[:, k - 1], values[:, 0]
        below = (1 - last).clamp(min=1e-8)
        terms = [below.log10() / 3, (kth - last) / below, (first - last) / below, missing.clamp(min=1e-8).log10() / 4]
        inputs = torch.stack(terms, dim=1).to(self.start.dtype)
        return last + self.out(self.hidden(inputs).tanh()).squeeze(1).tanh().to(last) * (kth - last)


class Subspace(NamedTuple):
    """Hold the leading eigenvectors of each component of a batch."""

    vectors: Tensor
    """``[num_nodes, k]``, orthonormal within a component, largest eigenvalue of the normalized adjacency first; missing
    columns are zero. Signs as in :func:`~tg_lpe.graph.eigenvectors.laplacian_eigenvectors`."""
    values: Tensor
    """Eigenvalues of ``I - D^-1/2 A D^-1/2``, float64 ``[num_components, k]``; NaN for missing columns."""
    share: Tensor
    """Estimated share of the ``k`` eigenvectors that the columns contain, float64 ``[num_components]``."""
    component: Tensor
    """Component of each node, int64 ``[num_nodes]``."""
    layers: Tensor
    """Number of layers that were run, int64 ``[num_components]``; zero for a component solved densely."""


@torch.compiler.disable  # sizes and components are read on the host
@torch.no_grad()
def leading_subspace(
    graph: Graph,
    k: int,
    *,
    tolerance: float = 2e-3,
    max_layers: int = 4096,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    cut: LearnedCut | None = None,
    start: Tensor | None = None,
) -> Subspace:
    """Find the ``k`` leading non-trivial eigenvectors of the normalized adjacency of each component.

    Random columns, ``2 k`` and at least ``k + 8``, go through loops of a Chebyshev filter, which damps all eigenvalues
    of the normalized adjacency below a cut. A Rayleigh-Ritz step after each loop sorts the columns and gives the next
    cut. Each loop is twice as long as the last, unless it would drive the columns too close together.

    The loops end when the estimated share of the ``k`` eigenvectors that the first ``k`` columns miss is below
    ``tolerance``. It is the mean of ``(residual / gap)^2`` over the columns, with the gap to the smallest Ritz value
    (Davis and Kahan's theorem), plus the share that the other columns contain.

    Each component is solved as if it were alone.

    Args:
        graph: the batch.
        k: number of eigenvectors.
        tolerance: share of the eigenvectors that may be missing.
        max_layers: largest number of products with the adjacency; a warning gives the share that was reached.
        seed: seed of the random columns.
        dtype: dtype of the filtered columns, float32 or float64.
        cut: rule for the cut; by default zero, and then the smallest Ritz value, which is never too high.
        start: columns near the eigenvectors, ``[num_nodes, k]``; more than 24 layers are run, to find others.

    Returns:
        The eigenvectors, their eigenvalues and the estimated share.
    """
    parts, num_columns = Components(graph), _num_columns(k)
    vectors, values = np.zeros((graph.num_nodes, k)), np.full((parts.count, k), np.nan)
    share, layers = np.ones(parts.count), np.zeros(parts.count, np.int64)
    for group in parts.groups:
        if group.size == 1:
            continue
        if group.size <= max(EXACT_NODES, 2 * num_columns):
            root, width = np.sqrt(parts.diagonal[group.nodes]), min(k, group.size - 1)
            null = 2 * root / np.sqrt((root * root).sum(1, keepdims=True))  # lifts the null vector to 4, above all
            # In repeated eigenvalues, the basis follows from the rounding here, and recorded encodings hold it.
            matrix = group.matrices(parts.diagonal, root_degrees(parts, "sym")) + null[:, :, None] * null[:, None, :]
            values[group.components, :width], vectors[group.nodes, :width] = stacked_eigh(matrix, width)
            continue
        for part in group.each():
            number, component = part.components[0], _Filter(parts, part, dtype, graph.device)
            x = counter_normal(seed, group.size, num_columns, component.null)
            if start is not None:  # a small random part keeps columns apart that are equal or zero
                x[:, :k] *= 1e-3 / math.sqrt(group.size)
                x[:, :k] += nn.functional.normalize(start[part.nodes[0]].to(x), dim=0)
            looped = component.run(x, k, tolerance, max_layers, cut, 0 if start is None else 3 * FIRST_LAYERS)
            vectors[part.nodes[0]], values[number], share[number], layers[number] = looped
    if (low := share < 1 - 2 * tolerance).any():
        warnings.warn(
            f"{int(low.sum())} of {parts.count} components have not converged after {max_layers:,} layers: an "
            f"estimated share of {share.min():.2f} of the {k} eigenvectors was found, as their eigenvalues are too "
            "close together; raise max_layers, take fewer columns, or use LaplacianEigenvectors",
            stacklevel=2,
        )
    if parts.count:
        vectors *= canonical_signs(parts, vectors)
    label = parts.label.astype(np.int64)
    out = (torch.from_numpy(part).to(graph.device) for part in (vectors, values, share, label, layers))
    return Subspace(*out)


def _num_columns(k: int) -> int:
    """Return the number of filtered columns."""
    return max(2 * k, k + 8)


class _Filter:
    """Run the loops of one component; ``P`` is its normalized adjacency, ``[n, n]``."""

    def __init__(self, parts: Components, group: ComponentGroup, dtype: torch.dtype, device: torch.device) -> None:
        diagonal = parts.diagonal[group.nodes[0]]
        tail, head = (torch.from_numpy(np.ascontiguousarray(ends)).to(device) for ends in (group.tail, group.head))
        weights = torch.from_numpy(np.ascontiguousarray(group.weights)).to(device, dtype)
        scale = torch.from_numpy(1 / np.sqrt(diagonal)).to(device, dtype)
        self.rows = edges.adjacency_rows(tail, head, scale, weights)
        self.null = torch.from_numpy(np.sqrt(diagonal / diagonal.sum())).to(device, dtype)

    def run(
        self, x: Tensor, k: int, tolerance: float, max_layers: int, rule: LearnedCut | None, least_layers: int
    ) -> tuple[Array, Array, float, int]:
        """Loop the filter until the first ``k`` columns converge; return the fields of :class:`Subspace`."""
        cut, length, layers = 0.0 if rule is None else float(rule.start), FIRST_LAYERS, 0
        with Progress(unit=" layers") as progress:
            while True:
                x, values, missing, mixed = self.ritz(self.filtered(x, cut, length), k)
                layers += length
                progress.update(length)
                if (missing + mixed < tolerance and layers > least_layers) or layers >= max_layers:
                    break
                state = torch.from_numpy(values.copy()).unsqueeze(0), torch.tensor([missing], dtype=torch.float64)
                cut = min(max(float(values[-1] if rule is None else rule(*state, k)), LOWEST_CUT), BELOW_ONE)
                largest = (2 * values[0] + 1 - cut) / (1 + cut)  # where the first Ritz value is mapped to
                most = math.acosh(AMPLIFICATION) / math.acosh(max(largest, 1 + 1e-12))
                length = max(2, min(2 * length, int(most), max_layers - layers))
        return x[:, :k].double().cpu().numpy(), 1 - values[:k], max(0.0, 1 - missing - mixed), layers

    def filtered(self, x: Tensor, cut: float, length: int) -> Tensor:
        """Compute the Chebyshev polynomial ``T_length(P') x``, where ``P'`` maps ``[-1, cut]`` to ``[-1, 1]``.

        Overwrites ``x``.
        """
        centre, radius = (cut - 1) / 2, (cut + 1) / 2
        rows = edges.AdjacencyRows(self.rows.crow, self.rows.col, self.rows.value * (-2 / radius))
        diagonal = torch.full_like(self.null, -2 * centre / radius)
        # The null vector of I - P grows faster than all columns, so its rounding errors are removed every few layers.
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

    def ritz(self, x: Tensor, k: int) -> tuple[Tensor, Array, float, float]:
        """Replace the columns by Ritz vectors of ``P`` in their span, orthogonal to the null vector.

        Returns:
            The vectors; their Ritz values in descending order, float64; the estimated share of the first ``k``
            eigenvectors that all columns miss; and the share that the columns after the first ``k`` contain.
        """
        x = self.without_null(x)
        x /= torch.linalg.vector_norm(x, dim=0)
        product = edges.laplacian(self.rows, torch.zeros_like(self.null), x).neg_()
        gram, projected = _inner(x, x), _inner(x, product)
        values, mix = eigh((projected + projected.T) / 2, gram)
        values, mix = values[::-1], torch.from_numpy(mix[:, ::-1].copy()).to(x)
        x = x @ mix
        residual = product @ mix - x * torch.from_numpy(values.copy()).to(x)
        norms = torch.linalg.vector_norm(residual, dim=0).double().cpu().numpy()
        gaps = np.maximum(values[:k] - values[-1], 1e-70)
        missing = np.minimum((norms[:k] / gaps) ** 2, 1.0).mean()
        # To second order, the residuals of two columns mix them; columns with equal eigenvalues may be mixed.
        differences = np.maximum(values[:k, None] - values[None, k:], 1e-70)
        turned = np.outer(norms[:k], norms[k:]) / differences / gaps[:, None]
        mixed = np.minimum(turned**2, 1.0)[differences > REPEATED * gaps[:, None]].sum() / k
        eps = torch.finfo(x.dtype).eps
        if norms[:k].max() <= 10 * eps and values[k - 1] - values[-1] <= 64 * eps:
            return x, values, 0.0, 0.0  # any vectors of the last eigenspace are as good
        return x, values, float(missing), float(mixed)


def _inner(x: Tensor, y: Tensor) -> Array:
    """Compute ``x^T y``, summed in float64."""
    pieces = zip(x.split(CHUNK), y.split(CHUNK), strict=True)
    return host_array(sum(a.double().T @ b.double() for a, b in pieces))  # type: ignore[arg-type]


def looped_subspace(graph: Graph, k: int, loops: int, *, seed: int = 0, like: Tensor, cut: LearnedCut) -> Subspace:
    """Run a given number of loops of the filter on each component of a batch, with gradients.

    The loops are those of :func:`leading_subspace`, run on all components at once, small ones included. They have 8
    layers, then 16, and so on: fewer if a component's columns would be driven too close together, none if the columns
    span the whole space. Gradients reach the edge weights and the parameters of the cut. If two Ritz values are equal,
    their columns are not unique, and the gradient does not turn them into each other. The share is the share that all
    columns contain.

    Args:
        graph: the batch.
        k: number of columns that are returned.
        loops: number of loops.
        seed: seed of the random columns; a row depends only on a node's index within its component.
        like: tensor whose dtype and device the columns take.
        cut: rule for the cut.

    Returns:
        As :func:`leading_subspace`, with values and share in the dtype of ``like``. Missing columns are zero, their
        values NaN.
    """
    if graph.conductance is not None:  # the normalized adjacency does not depend on their scale
        scale = power_of_two(graph)[graph.batch[graph.tail]]
        graph = graph.with_conductances(graph.conductance * scale)
    parts, num_columns = Components(graph), _num_columns(k)
    batch = _Batch(graph, parts, like, num_columns)
    x = counter_normal(seed, int(parts.size.max(initial=1)), num_columns, like)[batch.local]
    limit = like.new_full((parts.count,), float("inf"))
    edge = cut.start.to(like).expand(parts.count)
    layers = torch.zeros_like(batch.dimensions)
    for loop in range(loops):
        longest = FIRST_LAYERS << loop
        lengths = limit.clamp(2, longest).long().masked_fill(batch.dimensions < num_columns, 0)
        x, layers = batch.filtered(x, edge, lengths, longest), layers + lengths
        x, values, missing = batch.ritz(x, k)
        if loop + 1 < loops:
            edge = cut(values, missing, k).clamp(LOWEST_CUT, BELOW_ONE)
            largest = (2 * values[:, 0] + 1 - edge) / (1 + edge)
            limit = math.acosh(AMPLIFICATION) / largest.detach().clamp(min=1 + 1e-6).acosh()
    absent = torch.arange(k, device=like.device) >= batch.dimensions.unsqueeze(1)
    vectors = x[:, :k].masked_fill(absent[batch.label], 0.0)
    skewed = batch.sum(vectors.detach().double() ** 3) < 0
    vectors = torch.where(skewed[batch.label], -vectors, vectors)
    shown = (1 - values[:, :k]).masked_fill(absent, float("nan"))
    return Subspace(vectors, shown, 1 - missing, batch.label, layers)


@torch.no_grad()
def power_of_two(graph: Graph, at_most_half: bool = False) -> Tensor:
    """Return a power of two for each graph that scales its largest conductance into [1/2, 1), ``[num_graphs]``.

    With ``at_most_half``, it is at most 1/2: it also scales learned ground conductances of about one.
    """
    w = graph.conductance
    assert w is not None
    largest = w.new_zeros(graph.num_graphs).scatter_reduce(0, graph.batch[graph.tail], w, "amax")
    if at_most_half:
        largest = largest.clamp(min=1.0)
    exponent = torch.frexp(torch.where(largest > 0, largest, 1.0)).exponent
    most = math.frexp(torch.finfo(largest.dtype).max)[1] - 1
    return torch.ldexp(torch.ones_like(largest), (-exponent).clamp(-most, most))


class _Batch:
    """Filter the components of a batch together; ``P`` is the normalized adjacency."""

    def __init__(self, graph: Graph, parts: Components, like: Tensor, num_columns: int) -> None:
        self.graph, self.count = graph, parts.count
        self.label = torch.from_numpy(parts.label).to(graph.device, torch.int64)
        self.local = torch.from_numpy(parts.local).to(graph.device)
        self.dimensions = torch.from_numpy(np.minimum(parts.size - 1, num_columns)).to(graph.device)
        degree = graph.laplacian_diagonal(like)
        self.scale = inverse_sqrt(degree).unsqueeze(1)
        self.null = (degree.unsqueeze(1) * self.scale) * inverse_sqrt(self.sum(degree))[self.label].unsqueeze(1)

    def sum(self, rows: Tensor) -> Tensor:
        """Sum rows over each component."""
        return scatter_sum(rows, self.label, self.count)

    def product(self, x: Tensor) -> Tensor:
        """Compute ``P x``."""
        return x - self.scale * self.graph.laplacian(self.scale * x)

    def without_null(self, x: Tensor) -> Tensor:
        """Make the columns of each component orthogonal to its null vector."""
        return x - self.null * self.sum(self.null * x)[self.label]

    def filtered(self, x: Tensor, cut: Tensor, lengths: Tensor, longest: int) -> Tensor:
        """Apply :meth:`_Filter.filtered` to each component, with degrees ``lengths``, ``[num_components]``."""
        centre, radius, last = ((part[self.label].unsqueeze(1)) for part in ((cut - 1) / 2, (cut + 1) / 2, lengths))
        before, now = x, torch.where(last > 0, (self.product(x) - centre * x) / radius, x)
        for layer in range(1, longest):
            new = (self.product(now) - centre * now) * (2 / radius) - before
            if layer % 4 == 0:
                new, now = self.without_null(new), self.without_null(now)
            goes_on = layer < last
            before, now = torch.where(goes_on, now, before), torch.where(goes_on, new, now)
        return now

    def inner(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute ``x^T y`` of each component, ``[num_components, num_columns, num_columns]``, float64."""
        return self.sum(x.double().unsqueeze(2) * y.double().unsqueeze(1))

    def ritz(self, x: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Replace the columns by Ritz vectors, as :meth:`_Filter.ritz`."""
        x = self.without_null(x)
        x = x * inverse_sqrt(self.sum(x * x))[self.label]
        columns = torch.arange(x.size(1), device=x.device)
        eye = torch.eye(x.size(1), dtype=torch.float64, device=x.device)
        factor = torch.linalg.cholesky(self.inner(x, x) + 1e-13 * eye)
        absent = (columns >= self.dimensions.unsqueeze(1)).double()  # columns that a small component does not have
        inverse = torch.linalg.solve_triangular(factor, eye.expand_as(factor), upper=False).transpose(1, 2)
        x = torch.einsum("nc,ncd->nd", x.double(), inverse[self.label])
        product = self.product(x)
        projected = self.inner(x, product)
        projected = (projected + projected.transpose(1, 2)) / 2 - 3 * torch.diag_embed(absent)
        mix = torch.linalg.eigh(projected.detach()).eigenvectors.flip(2)
        rotated = mix.transpose(1, 2) @ projected @ mix  # diagonal in value; its gradient turns the columns
        values = rotated.diagonal(dim1=1, dim2=2)
        gap = (values.unsqueeze(1) - values.unsqueeze(2)).detach()
        turn = rotated * torch.where(gap.abs() > GAP, 1 / gap, 0.0)
        mix = mix @ (eye + turn - torch.diag_embed(turn.diagonal(dim1=1, dim2=2)))
        x, product = (torch.einsum("nc,ncd->nd", part, mix[self.label]) for part in (x, product))
        residual = self.sum((product[:, :k] - x[:, :k] * values[self.label, :k]).square())
        used = columns[:k] < self.dimensions.unsqueeze(1)
        gaps = (values[:, :k] - values[:, -1:]).clamp(min=1e-150)
        share = torch.where(used, (residual / gaps.square()).clamp(max=1.0), 0.0).sum(1)
        missing = share / used.sum(1).clamp(min=1)
        return x.to(self.scale.dtype), values.to(self.scale.dtype), missing.to(self.scale.dtype)
