"""Compute effective resistances, and embeddings whose squared distances are resistances, of a whole batch.

All follow from ``G``, the inverse of ``L`` without one node of each component, whose row and column are zero:
``R_uv = G_uu + G_vv - 2 G_uv``.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from tg_lpe.graph.components import Array, ComponentGroup, Components
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.solvers import check_method, is_dense
from tg_lpe.graph.sparse_inverse import GroundedLaplacian
from tg_lpe.ops.blas import torch_threads_for
from tg_lpe.ops.operator import host_array, without_transforms

DENSE_NODES = 1024
"""Up to this number of nodes, ``method="auto"`` inverts the dense matrix of a component."""

SMALL = 64
"""Up to this number of nodes, numpy inverts faster than torch."""

LARGEST_RATIO = 1e10
"""Largest ratio of the weights of a component."""


def effective_resistances(graph: Graph, *, method: str = "auto", with_edges: bool = True) -> tuple[Tensor, Tensor]:
    """Compute the resistance of each edge, and the mean resistance of each node to the nodes of its component.

    The relative error is about 1e-16 times the ratio of the largest weight of a component to the smallest. On long
    chains it is up to the number of nodes times as large.

    Args:
        graph: the batch.
        method: ``"dense"``, ``"iterative"`` (a sparse factor), or ``"auto"``: dense for components of up to 1,024
            nodes.
        with_edges: whether to compute the resistances of the edges; zero otherwise.

    Returns:
        Mean resistances ``[num_nodes]``, zero for a single node, and resistances of the undirected edges
        ``[num_edges]``, infinite at an edge of weight zero between two components. Float64.

    Raises:
        ValueError: on ground conductances, an unknown method, weights of a component over more than ten orders of
            magnitude, a component too large for ``method="dense"``, or one whose factor takes too much memory.
    """
    parts = _checked(graph, method, with_absent=with_edges)
    nodes, edges = np.zeros(graph.num_nodes), np.full(graph.num_edges, math.inf if with_edges else 0.0)
    for group in parts.groups:
        if _is_dense(group, method):
            inverse = _inverses(parts, group)
            results = [
                (group, inverse.diagonal(0, 1, 2), inverse.mean(2), inverse[group.position, group.tail, group.head])
            ]
        else:
            results = [(part, *_sparse_entries(parts, part)) for part in group.each()]
        for part, diagonal, means, between in results:
            nodes[part.nodes] = np.maximum(diagonal - 2 * means + diagonal.mean(1, keepdims=True), 0.0)
            if with_edges:
                ends = diagonal[part.position, part.tail], diagonal[part.position, part.head]
                edges[part.edges] = ends[0] + ends[1] - 2 * between
    return torch.from_numpy(nodes).to(graph.device), torch.from_numpy(edges).to(graph.device)


def resistance_pairs(graph: Graph, *, method: str = "auto") -> tuple[Tensor, Tensor]:
    """Compute the effective resistances of all pairs of nodes of each graph.

    Args:
        graph: the batch.
        method: as for :func:`effective_resistances`.

    Returns:
        ``graph.pairs``, int64 ``[2, num_pairs]``, and their resistances ``[num_pairs]``, float64; infinite between
        components.

    Raises:
        ValueError: as :func:`effective_resistances`.
    """
    parts = _checked(graph, method)
    values = np.full(graph.num_pairs, np.inf)
    for group in parts.groups:
        for part in [group] if _is_dense(group, method) else group.each():
            if part is group:
                inverse = _inverses(parts, group)
            else:
                inverse = GroundedLaplacian(part, parts.diagonal).solve(np.eye(part.size))[None]
            diagonal = inverse.diagonal(0, 1, 2)
            mirrored = inverse + inverse.transpose(0, 2, 1)
            values[parts.pair_numbers(part)] = diagonal[:, :, None] + diagonal[:, None, :] - mirrored
    return graph.pairs, torch.from_numpy(values).to(graph.device)


def resistive_embedding(graph: Graph, directions: Tensor, *, method: str = "auto") -> Tensor:
    """Compute ``L^+ B psi``; squared distances between the rows of ``L^+ B`` are effective resistances.

    `Graph Sparsification by Effective Resistances <https://arxiv.org/abs/0803.0929>`_, section 4.

    Args:
        graph: the batch.
        directions: ``psi``, ``[num_edges, k]``.
        method: as for :func:`effective_resistances`.

    Returns:
        ``[num_nodes, k]``, float64, of mean zero on each component.

    Raises:
        ValueError: as :func:`effective_resistances`; or if ``directions`` have another shape or are not finite.
    """
    parts = _checked(graph, method)
    if directions.dim() != 2 or directions.size(0) != graph.num_edges or not directions.is_floating_point():
        got = f"{directions.dtype} {list(directions.shape)}"
        raise ValueError(f"directions must be floating point of shape [{graph.num_edges}, k], got {got}")
    currents = host_array(graph.sums(directions.double()).detach())
    if not np.isfinite(currents).all():
        raise ValueError("directions must be finite")
    out = np.zeros_like(currents)
    for group in parts.groups:
        if _is_dense(group, method):
            potentials = _inverses(parts, group) @ currents[group.nodes]
        else:
            solved = (GroundedLaplacian(p, parts.diagonal).solve(currents[p.nodes[0]]) for p in group.each())
            potentials = np.stack([*solved])
        out[group.nodes] = potentials - potentials.mean(1, keepdims=True)
    return torch.from_numpy(out).to(graph.device)


def _checked(graph: Graph, method: str, with_absent: bool = False) -> Components:
    check_method(method)
    if graph.ground is not None:
        raise ValueError("effective resistances need a graph without ground conductances")
    parts = Components(graph, with_absent)
    for group in parts.groups:
        if (group.ratios > LARGEST_RATIO).any():
            ratio = group.ratios.max()
            raise ValueError(
                f"edge_weight differs by a factor of {ratio:.1g} in a component of {group.size} nodes; effective "
                f"resistances take factors up to {LARGEST_RATIO:.0e}"
            )
    return parts


def _is_dense(group: ComponentGroup, method: str) -> bool:
    return is_dense(group.size, method, DENSE_NODES) or group.size == 1


def _inverses(parts: Components, group: ComponentGroup) -> Array:
    """Compute ``G`` without the first node of each component, ``[num_components, n, n]``."""
    matrix = group.matrices(parts.diagonal)
    inverse = np.zeros_like(matrix)
    if group.size <= SMALL:  # torch takes as long for its calls alone
        inverse[:, 1:, 1:] = np.linalg.inv(matrix[:, 1:, 1:])
        return inverse
    with without_transforms(), torch_threads_for(matrix.size * group.size):
        factor = torch.linalg.cholesky(torch.from_numpy(matrix[:, 1:, 1:]))
        inverse[:, 1:, 1:] = torch.cholesky_inverse(factor).numpy()
    return inverse


def _sparse_entries(parts: Components, part: ComponentGroup) -> tuple[Array, Array, Array]:
    """Compute the diagonal and row means of ``G``, ``[1, n]`` each, and its entries at the edges."""
    laplacian = GroundedLaplacian(part, parts.diagonal)
    diagonal, between = laplacian.entries()
    return diagonal[None], laplacian.solve(np.ones((part.size, 1))).T / part.size, between
