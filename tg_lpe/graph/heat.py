"""Compute heat kernels of a whole batch, at nodes, edges and pairs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.sparse import eye
from torch import Tensor

from tg_lpe.graph.components import Array, ComponentGroup, Components
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.progress import Progress
from tg_lpe.graph.solvers import (
    DENSE_LIMIT,
    heat_series,
    heat_terms,
    is_dense,
    polynomial_entries,
    stacked_eigh,
)
from tg_lpe.ops.blas import threads_for

HEAT_NODES = 1024
"""Up to this number of nodes, ``method="auto"`` computes all eigenvectors of a component."""

EDGE_VALUES = 2**22
"""Largest number of products of edges, nodes and times in memory for the entries at edges (32 MiB)."""


def heat_kernel_entries(
    graph: Graph, times: Sequence[float], *, method: str = "auto", with_edges: bool = True
) -> tuple[Tensor, Tensor]:
    """Compute heat kernels ``exp(-s L)`` at nodes and edges, with ``L = D - A``.

    Args:
        graph: the batch.
        times: diffusion times ``s``, the temperatures of the paper, not negative.
        method: how components are solved.

            - ``"dense"``: eigenvectors.
            - ``"iterative"``: a Chebyshev series of sparse matrices, a block of columns at a time.
            - ``"auto"``: dense for components of up to 1,024 nodes, and of up to 4,096 if dense is faster, as with
              hubs or weights over many orders of magnitude.
        with_edges: whether to compute the entries at the edges; zero otherwise.

    Returns:
        Diagonals ``[num_nodes, num_times]`` and entries at the undirected edges ``[num_edges, num_times]``, float64.

    Raises:
        ValueError: on an unknown method, or a component too large for ``method="dense"``.
    """
    parts, times = Components(graph, with_absent=with_edges), tuple(map(float, times))
    nodes, edges = np.zeros((graph.num_nodes, len(times))), np.zeros((graph.num_edges, len(times)))
    for group in parts.groups:
        dense = is_dense(group.size, method, HEAT_NODES)
        for part in [group] if dense else group.each():
            entries = part.size + 2 * len(part.tail)
            # Dense is faster if n^3 is less than the cost of the series: terms times columns times entries of L.
            if dense or (
                (method == "auto" and part.size <= DENSE_LIMIT)
                and part.size**2 < heat_terms(times, _bound(parts, part)) * (entries + 2 * part.size)
            ):
                nodes[part.nodes], at_edges = _dense(parts, part, times, with_edges)
            else:
                nodes[part.nodes[0]], at_edges = _iterated(parts, part, times, with_edges)
            if with_edges:
                edges[part.edges] = at_edges
    return torch.from_numpy(nodes).to(graph.device), torch.from_numpy(edges).to(graph.device)


def heat_kernel_pairs(graph: Graph, times: Sequence[float]) -> Tensor:
    """Compute heat kernels ``exp(-s L)`` at all pairs of nodes by eigenvectors; zero between components.

    Returns:
        ``[num_pairs, num_times]``, in the order of ``graph.pairs``, float64.
    """
    parts = Components(graph)
    out = np.zeros((graph.num_pairs, len(times)))
    for group in parts.groups:
        vectors, decay = _spectrum(parts, group, times)
        kernels = [(vectors * decay[:, None, :, time]) @ vectors.transpose(0, 2, 1) for time in range(len(times))]
        out[parts.pair_numbers(group)] = np.stack(kernels, -1)
    return torch.from_numpy(out).to(graph.device)


def _bound(parts: Components, part: ComponentGroup) -> float:
    """Bound the eigenvalues of a component by the largest sum of degrees of two neighbours (Anderson and Morley)."""
    diagonal = parts.diagonal[part.nodes[0]]
    return float((diagonal[part.tail] + diagonal[part.head]).max() if len(part.tail) else diagonal.max())


def _dense(
    parts: Components, group: ComponentGroup, times: tuple[float, ...], with_edges: bool
) -> tuple[Array, Array | None]:
    """Compute entries ``[num_components, size, num_times]`` at nodes, and optionally at edges, by eigenvectors."""
    vectors, decay = _spectrum(parts, group, times)
    with threads_for(group.size):
        return np.square(vectors) @ decay, _at_edges(group, vectors, decay) if with_edges else None


def _spectrum(parts: Components, group: ComponentGroup, times: Sequence[float]) -> tuple[Array, Array]:
    """Compute eigenvectors ``[num_components, size, size]`` and ``exp(-s lambda)``, ``[.., size, num_times]``."""
    values, vectors = stacked_eigh(group.matrices(parts.diagonal), group.size)
    values[:, 0] = 0.0  # rounding must not let heat grow, or vanish
    return vectors, np.exp(-np.maximum(values, 0.0)[:, :, None] * np.array(times))


def _at_edges(group: ComponentGroup, vectors: Array, decay: Array) -> Array:
    """Compute ``sum_m v_im v_jm exp(-s lambda_m)`` at the edges, ``[num_edges, num_times]``."""
    out = np.zeros((len(group.tail), decay.shape[2]))
    step = max(1, EDGE_VALUES // max(1, decay.shape[1] * decay.shape[2]))
    for first in range(0, len(out), step):
        chunk = slice(first, first + step)
        position = group.position[chunk]
        products = vectors[position, group.tail[chunk]] * vectors[position, group.head[chunk]]
        if len(group.nodes) == 1:
            out[chunk] = products @ decay[0]
        else:
            out[chunk] = np.einsum("en,ent->et", products, decay[position])
    return out


def _iterated(
    parts: Components, part: ComponentGroup, times: tuple[float, ...], with_edges: bool
) -> tuple[Array, Array]:
    """Compute entries ``[size, num_times]`` at nodes of a component, and optionally at edges, by a Chebyshev series."""
    bound = max(_bound(parts, part), 1e-300)
    matrix = (part.sparse_matrix(parts.diagonal) / (bound / 2) - eye(part.size)).tocsr()
    tail, head = (part.tail, part.head) if with_edges else (part.tail[:0], part.head[:0])
    faster = "smaller times, since the work grows with the square root of the largest; or RandomWalk with few steps"
    with Progress(part.size, " nodes", faster) as progress:
        return polynomial_entries(matrix, heat_series(times, bound), tail, head, progress)
