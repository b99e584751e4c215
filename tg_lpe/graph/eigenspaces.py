"""Compute eigenvectors and eigenspaces at the nodes and edges of a batch, the tokens of spectral attention."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tg_lpe.graph.eigenvectors import DEGENERATE, EIGENVECTOR_NODES, laplacian_eigenvectors, null_vectors
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.progress import warn_if_long
from tg_lpe.graph.solvers import DENSE_LIMIT
from tg_lpe.ops.blas import torch_threads_for

SPARE = 6
"""Number of additional eigenvectors that are computed at first, to find the end of the last eigenspace."""

EIGENVECTOR_SECONDS = 6e-9
"""Seconds, times ``n k^2``, for ``k`` eigenvectors of a large graph; twice as many may be needed for whole spaces."""

FASTER = "LPE or SignNet, which compute a given number of eigenvectors instead of whole eigenspaces"
"""The faster choice that a warning names."""


class Spectrum(NamedTuple):
    """Hold the smallest eigenspaces of a batch, null vectors included, float64; a column is an eigenspace.

    ``P`` is the projector onto the eigenspace, ``phi phi^T`` for a simple eigenvalue. No entry of ``node``,
    ``distance`` or ``product`` depends on signs or bases.
    """

    values: Tensor
    """Eigenvalues, ascending, ``[num_graphs, k]``. Columns that a graph does not have are NaN here and zero below."""
    node: Tensor
    """``sqrt(P_ii)``, ``[num_nodes, k]``."""
    distance: Tensor
    """``sqrt(P_ii + P_jj - 2 P_ij)`` at the undirected edges, ``[num_edges, k]``."""
    product: Tensor
    """``P_ij`` at the undirected edges, ``[num_edges, k]``."""


def bottom_eigenvectors(
    graph: Graph, k: int, *, normalization: str | None = "sym", row_norm: bool = False
) -> tuple[Tensor, Tensor]:
    """Compute the eigenvectors of the ``k`` smallest eigenvalues of each graph, null vectors included.

    Args:
        graph: the batch.
        k: number of eigenvectors.
        normalization: of the Laplacian, ``None`` or ``"sym"``.
        row_norm: whether to scale the ``k`` entries of each node to norm one, as the code of
            `Rethinking Graph Transformers with Spectral Attention <https://arxiv.org/abs/2106.03893>`_ does. It changes
            nothing for a graph of at most ``k`` nodes.

    Returns:
        Eigenvectors ``[num_nodes, k]`` and eigenvalues ``[num_graphs, k]`` of
        :func:`tg_lpe.graph.eigenvectors.laplacian_eigenvectors` with ``keep_null=True``.
    """
    vectors, values = laplacian_eigenvectors(graph, k, normalization=normalization, keep_null=True)
    values = values.clamp(min=0.0)  # zero up to rounding
    return (_unit_rows(vectors) if row_norm else vectors), values


def outer_eigenvectors(
    graph: Graph, k: int, num_largest: int = 0, *, normalization: str | None = "sym"
) -> tuple[Tensor, Tensor]:
    """Compute eigenvectors from both ends of the spectrum of each graph, without repetition.

    Args:
        graph, k, normalization: as for :func:`bottom_eigenvectors`.
        num_largest: number of eigenvectors that belong to the largest eigenvalues, less than ``k``.

    Returns:
        Eigenvectors ``[num_nodes, k]``, orthonormal within a graph, and eigenvalues ``[num_graphs, k]``. The first
        ``k - num_largest`` columns are those of :func:`bottom_eigenvectors`; then follow ``num_largest`` columns, the
        largest eigenvalue first. Columns that a graph does not have are zero, their eigenvalues NaN.
    """
    bottom, smallest = bottom_eigenvectors(graph, k - num_largest, normalization=normalization)
    if not num_largest:
        return bottom, smallest
    options: dict[str, Any] = {"normalization": normalization, "which": "top", "keep_null": True}
    top, largest = laplacian_eigenvectors(graph, num_largest, **options)
    left = graph.ptr.diff() - smallest.isfinite().sum(1)
    twice = torch.arange(num_largest, device=graph.device) >= left.unsqueeze(1)
    top, largest = top.masked_fill(twice[graph.batch], 0.0), largest.masked_fill(twice, torch.nan).clamp(min=0.0)
    gap = DEGENERATE * _largest_entry(graph, normalization)
    meet = largest.nan_to_num(torch.inf).amin(1) - smallest.nan_to_num(-torch.inf).amax(1) <= gap
    if meet.any():
        more, values = laplacian_eigenvectors(graph, k, **options)
        for number in meet.nonzero().flatten().tolist():
            own = slice(*graph.ptr[number : number + 2].tolist())
            value = largest[number].nan_to_num(torch.inf).min()
            taken, wanted, space = (
                (found[number] - value).abs() <= gap[number] for found in (smallest, largest, values)
            )
            # Both ends of the spectrum hit this eigenspace: keep only directions orthogonal to those already taken.
            basis = more[own][:, space]
            with torch_threads_for(len(basis) * k * k):
                _, _, directions = torch.linalg.svd(bottom[own][:, taken].mT @ basis)
                top[own, wanted] = basis @ directions[-int(wanted.sum()) :].mT
    return torch.cat([bottom, top], dim=1), torch.cat([smallest, largest], dim=1)


def whole_eigenspaces(graph: Graph, k: int, *, normalization: str | None = "sym") -> tuple[Tensor, Tensor]:
    """Compute the eigenvectors of at most ``k`` smallest eigenvalues of each graph, in whole eigenspaces.

    If the ``k``-th eigenvalue and the next count as equal, as in :func:`eigenspaces`, their eigenspace is left out.
    Sums over the columns of an eigenspace then do not depend on its basis.

    Arguments and result are those of :func:`bottom_eigenvectors`; columns that are left out have zero vectors and NaN
    eigenvalues.
    """
    vectors, values = bottom_eigenvectors(graph, k + 1, normalization=normalization)
    gap = DEGENERATE * _largest_entry(graph, normalization).unsqueeze(1)
    space = (values.diff(dim=1, prepend=values[:, :1]) > gap).cumsum(1).masked_fill(values.isnan(), k + 1)
    cut = (space == space[:, k:])[:, :k] & values[:, k:].isfinite()
    values = values[:, :k].masked_fill(cut, torch.nan)
    return vectors[:, :k].masked_fill(cut[graph.batch], 0.0), values


def eigenspaces(
    graph: Graph, k: int, *, normalization: str | None = "sym", row_norm: bool = False, edges: bool = True
) -> Spectrum:
    """Compute the whole eigenspaces of the ``k`` smallest eigenvalues of each graph.

    Neighbouring eigenvalues that differ by at most 1e-6 times the largest entry of the Laplacian count as equal and are
    replaced by their mean. A graph has ``k`` eigenspaces if these eigenvalues are simple, else fewer. If the ``k``-th
    eigenvalue repeats, its eigenspace is completed.

    Args:
        graph, normalization: as for :func:`bottom_eigenvectors`.
        k: number of eigenvalues, counted with multiplicity.
        row_norm: as for :func:`bottom_eigenvectors`, over all entries of the completed eigenspaces.
        edges: whether to compute the values at the edges; they have no rows otherwise.
    """
    gap = DEGENERATE * _largest_entry(graph, normalization).unsqueeze(1)
    null = null_vectors(graph, normalization)  # two columns, each standing for any number of vectors
    null_values = torch.tensor([0.0, 1.0], dtype=torch.float64, device=graph.device)
    null_values = null_values.where(null.counts > 0, torch.nan)
    width = k + SPARE
    while True:
        warn_if_long(EIGENVECTOR_SECONDS * graph.max_nodes * (2 * width) ** 2, FASTER)
        vectors, values = laplacian_eigenvectors(graph, width, normalization=normalization)
        values = torch.cat([null_values, values.clamp(min=0.0)], dim=1)  # zero up to rounding
        counts = torch.cat([null.counts, torch.ones_like(values[:, 2:], dtype=torch.int64)], dim=1)
        space, is_whole = _spaces(values, counts, gap, k)
        if width >= graph.max_nodes or bool((is_whole | values[:, 2:].isnan().any(1)).all()):
            break
        # A large graph is solved densely from here on, and then all eigenvectors take little longer than some. Not in
        # a batch: the memory of all graphs would grow.
        is_last = graph.num_graphs == 1 and EIGENVECTOR_NODES < graph.max_nodes <= min(16 * width, DENSE_LIMIT)
        width = graph.max_nodes if is_last else min(2 * width, graph.max_nodes)
    own = torch.stack([null.node * ~null.is_lone, null.node * null.is_lone], dim=1)
    vectors = torch.cat([own, vectors], dim=1)
    if row_norm:
        vectors = _unit_rows(vectors * (space < k)[graph.batch])
    space_of_node = space[graph.batch]
    tail, head = (graph.tail, graph.head) if edges else (graph.tail[:0], graph.head[:0])
    first, second, space_of_edge = vectors[tail], vectors[head], space_of_node[tail]
    square, product = (first - second).square(), first * second
    # An edge of weight zero may join two components, whose null vectors share a column but belong to different vectors.
    apart = (null.component[tail] != null.component[head]).unsqueeze(1)
    square[:, :2] = torch.where(apart, first[:, :2].square() + second[:, :2].square(), square[:, :2])
    product[:, :2] = product[:, :2].masked_fill(apart, 0.0)
    weight = counts.masked_fill(values.isnan(), 0).to(values.dtype)
    return Spectrum(
        _sums(values.nan_to_num() * weight, space, k) / _sums(weight, space, k),  # 0 / 0 is NaN
        _sums(vectors.square(), space_of_node, k).sqrt(),
        _sums(square, space_of_edge, k).sqrt(),
        _sums(product, space_of_edge, k),
    )


def _spaces(values: Tensor, counts: Tensor, gap: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Number the eigenspaces of the columns in ascending order; ``k`` for one that is not wanted.

    Args:
        values: eigenvalues ``[num_graphs, num_columns]``, NaN for a missing column.
        counts: number of eigenvectors that a column stands for.
        gap: smallest difference of distinct eigenvalues, ``[num_graphs, 1]``.
        k: number of wanted eigenvalues, with multiplicity.

    Returns:
        The numbers, int64 ``[num_graphs, num_columns]``, and for each graph whether the last wanted eigenspace is
        whole, since another follows.
    """
    ordered, order = values.sort(dim=1)  # NaN last
    absent = ordered.isnan()
    counts = counts.gather(1, order).masked_fill(absent, 0)
    space = (ordered.diff(dim=1, prepend=ordered[:, :1]) > gap).cumsum(1).masked_fill(absent, k)
    begun = counts.cumsum(1) - counts < k  # columns that begin before the k-th eigenvalue
    last = torch.where(begun & ~absent, space, -1).amax(1, keepdim=True)
    is_whole = ((space > last) & ~absent).any(1)
    space = torch.where(space <= last, space, k)
    return torch.empty_like(space).scatter_(1, order, space), is_whole


def _largest_entry(graph: Graph, normalization: str | None) -> Tensor:
    """Return the largest entry of the Laplacian of each graph, ``[num_graphs]``."""
    one = torch.ones(graph.num_graphs, dtype=torch.float64, device=graph.device)
    if normalization is not None:
        return one
    return torch.zeros_like(one).scatter_reduce_(0, graph.batch, graph.laplacian_diagonal(one), "amax")


def _unit_rows(vectors: Tensor) -> Tensor:
    norm = vectors.norm(dim=1, keepdim=True)
    return vectors / torch.where(norm > 0, norm, 1.0)


def _sums(values: Tensor, space: Tensor, k: int) -> Tensor:
    """Sum the columns of each eigenspace, ``[num_rows, k]``."""
    return values.new_zeros(len(values), k + 1).scatter_add_(1, space, values)[:, :k]
