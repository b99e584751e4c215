"""Eigenvectors and eigenspaces at the nodes and edges of a batch: what the tokens of spectral attention are made of."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tg_lpe.graph.incidence import Incidence
from tg_lpe.graph.spectral import DEGENERATE, laplacian_eigenvectors

SPARE = 6
"""Eigenvectors beyond the wanted ones that are computed at first, to see where the last eigenspace ends."""


class Spectrum(NamedTuple):
    """The bottom of the spectra of a batch, null vectors included, float64; a column is an eigenvector or eigenspace.

    With ``P`` the projector onto a column's eigenspace, ``phi phi^T`` for a single eigenvector, no entry of ``node``,
    ``distance`` and ``product`` depends on signs or bases.
    """

    values: Tensor
    """Eigenvalues in ascending order ``[num_graphs, k]``; NaN where a graph has fewer columns, and all else zero."""
    node: Tensor
    """``sqrt(P_ii)``, ``[num_nodes, k]``."""
    distance: Tensor
    """``sqrt(P_ii + P_jj - 2 P_ij)`` at the undirected edges, ``[num_edges, k]``."""
    product: Tensor
    """``P_ij`` at the undirected edges, ``[num_edges, k]``."""


def bottom_eigenvectors(
    graph: Incidence, k: int, *, normalization: str | None = "sym", row_norm: bool = False
) -> tuple[Tensor, Tensor]:
    """The eigenvectors of the ``k`` smallest eigenvalues of each graph, null vectors included.

    Args:
        graph: the batch.
        k: number of eigenvectors.
        normalization: of the Laplacian, ``None`` or ``"sym"``.
        row_norm: whether the ``k`` entries of each node are scaled to norm one, as the code of
            `Rethinking Graph Transformers with Spectral Attention <https://arxiv.org/abs/2106.03893>`_ does. It changes
            nothing for a graph of at most ``k`` nodes.

    Returns:
        Eigenvectors ``[num_nodes, k]`` and eigenvalues ``[num_graphs, k]`` as
        :func:`tg_lpe.graph.spectral.laplacian_eigenvectors` gives them with ``keep_null=True``.
    """
    vectors, values = laplacian_eigenvectors(graph, k, normalization=normalization, keep_null=True)
    values = values.clamp(min=0.0)  # zero up to rounding
    return (_unit_rows(vectors) if row_norm else vectors), values


def whole_eigenspaces(graph: Incidence, k: int, *, normalization: str | None = "sym") -> tuple[Tensor, Tensor]:
    """The eigenvectors of at most ``k`` smallest eigenvalues of each graph, cut off between two eigenspaces.

    Where the ``k``-th eigenvalue and the next count as one, as :func:`eigenspaces` says, its eigenspace is left out.
    Sums over the columns of an eigenspace then depend on no basis.

    Args:
        graph: the batch.
        k: number of eigenvectors.
        normalization: of the Laplacian, ``None`` or ``"sym"``.

    Returns:
        As :func:`bottom_eigenvectors`; of what is left out, zero and NaN.
    """
    vectors, values = bottom_eigenvectors(graph, k + 1, normalization=normalization)
    gap = DEGENERATE * _largest_entry(graph, normalization).unsqueeze(1)
    space = (values.diff(dim=1, prepend=values[:, :1]) > gap).cumsum(1).masked_fill(values.isnan(), k + 1)
    cut = (space == space[:, k:])[:, :k] & values[:, k:].isfinite()
    values = values[:, :k].masked_fill(cut, torch.nan)
    return vectors[:, :k].masked_fill(cut[graph.batch], 0.0), values


def eigenspaces(
    graph: Incidence, k: int, *, normalization: str | None = "sym", row_norm: bool = False, edges: bool = True
) -> Spectrum:
    """The eigenspaces that the ``k`` smallest eigenvalues of each graph belong to, every one whole.

    Neighbouring eigenvalues that differ by no more than 1e-6, times the largest entry of the Laplacian, count as one,
    their mean. A graph has ``k`` eigenspaces if these eigenvalues are simple, else fewer. An eigenspace that the first
    ``k`` eigenvectors cut through is completed.

    Args:
        graph: the batch.
        k: number of eigenvalues, counted with multiplicity.
        normalization: of the Laplacian, ``None`` or ``"sym"``.
        row_norm: as :func:`bottom_eigenvectors`; of all entries of the completed eigenspaces.
        edges: whether the values at the edges are wanted; they have no rows otherwise.

    Returns:
        The spectrum.
    """
    gap = DEGENERATE * _largest_entry(graph, normalization).unsqueeze(1)
    width = k + SPARE
    while True:
        vectors, values = bottom_eigenvectors(graph, width, normalization=normalization)
        # Past the last eigenvalue of a graph there is NaN, which ends its last eigenspace too.
        if width >= graph.max_nodes or not bool((values.diff(dim=1)[:, k - 1 :] <= gap).all(1).any()):
            break
        width = min(2 * width, graph.max_nodes)
    space = (values.diff(dim=1, prepend=values[:, :1]) > gap).cumsum(1).masked_fill(values.isnan(), k)
    space = torch.where(space <= space[:, k - 1 : k].clamp(max=k - 1), space, k)  # column k is cut off below
    if row_norm:
        vectors = _unit_rows(vectors * (space < k)[graph.batch])
    space_of_node = space[graph.batch]
    tail, head = (graph.tail, graph.head) if edges else (graph.tail[:0], graph.head[:0])
    first, second, space_of_edge = vectors[tail], vectors[head], space_of_node[tail]
    return Spectrum(
        _mean_of_each(values, space, k),
        _sums(vectors.square(), space_of_node, k).sqrt(),
        _sums((first - second).square(), space_of_edge, k).sqrt(),
        _sums(first * second, space_of_edge, k),
    )


def _largest_entry(graph: Incidence, normalization: str | None) -> Tensor:
    """Of the Laplacian of each graph, ``[num_graphs]``."""
    one = torch.ones(graph.num_graphs, dtype=torch.float64, device=graph.device)
    if normalization is not None:
        return one
    return torch.zeros_like(one).scatter_reduce_(0, graph.batch, graph.laplacian_diagonal(one), "amax")


def _unit_rows(vectors: Tensor) -> Tensor:
    norm = vectors.norm(dim=1, keepdim=True)
    return vectors / torch.where(norm > 0, norm, 1.0)


def _sums(values: Tensor, space: Tensor, k: int) -> Tensor:
    """Sums of the columns of each space, ``[num_rows, k]``."""
    return values.new_zeros(len(values), k + 1).scatter_add_(1, space, values)[:, :k]


def _mean_of_each(values: Tensor, space: Tensor, k: int) -> Tensor:
    """The eigenvalue of each space, ``[num_graphs, k]``, NaN where there is none."""
    found = torch.full((len(values), k + 1), torch.nan, dtype=values.dtype, device=values.device)
    return found.scatter_reduce_(1, space, values, "mean", include_self=False)[:, :k]
