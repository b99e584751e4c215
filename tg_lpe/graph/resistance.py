"""Compute effective resistances of a whole batch.

They follow from ``G``, the inverse of ``L`` without one node of each component, whose row and column are zero:
``R_uv = G_uu + G_vv - 2 G_uv``.
"""

from __future__ import annotations

import math
from contextlib import nullcontext

import numpy as np
import torch
from scipy.linalg.lapack import dpotrf, dpotri
from torch import Tensor

from tg_lpe.graph.components import Array, ComponentGroup, Components
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.solvers import is_dense
from tg_lpe.graph.sparse_inverse import GroundedLaplacian, check_accuracy
from tg_lpe.ops.blas import one_thread

DENSE_NODES = 1024
"""Up to this number of nodes, ``method="auto"`` inverts the dense matrix of a component."""


def effective_resistances(graph: Graph, *, method: str = "auto", with_edges: bool = True) -> tuple[Tensor, Tensor]:
    """Compute the resistance of each edge, and the mean resistance of each node to the nodes of its component.

    Their relative error is below 1e-5; components whose weights differ too much for it are refused. It is about 1e-16
    times the largest product of a node's sum of weights and its resistance to the node with the largest sum: 1e-12 on a
    path of 3,000 nodes, 1e-9 if its weights differ by a factor of 1e4.

    Args:
        graph: the batch.
        method: ``"dense"``, ``"iterative"`` (a sparse factor), or ``"auto"``: dense for components of up to 1,024
            nodes.
        with_edges: whether to compute the resistances of the edges; zero otherwise.

    Returns:
        Mean resistances ``[num_nodes]``, zero for a single node, and resistances of the undirected edges
        ``[num_edges]``, infinite at an edge of weight zero between two components. Float64.

    Raises:
        ValueError: on an unknown method, weights of a component that differ too much for this accuracy, a component
            too large for ``method="dense"``, or one whose factor takes too much memory.
    """
    parts = Components(graph, with_absent=with_edges)
    nodes, edges = np.zeros(graph.num_nodes), np.full(graph.num_edges, math.inf if with_edges else 0.0)
    for group in parts.groups:
        if _is_dense(group, method):
            inverse = grounded_inverses(parts, group)
            results = [
                (group, inverse.diagonal(0, 1, 2), inverse.mean(2), inverse[group.position, group.tail, group.head])
            ]
        else:
            results = []
            for part in group.each():
                laplacian = GroundedLaplacian(part, parts.diagonal)
                (diagonal, between), means = laplacian.entries(), laplacian.solve(np.ones((part.size, 1))).T / part.size
                results.append((part, diagonal[None], means, between))
        for part, diagonal, means, between in results:
            check_accuracy(part, parts.diagonal, diagonal)
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
    parts = Components(graph)
    values = np.full(graph.num_pairs, np.inf)
    for group in parts.groups:
        for part in [group] if _is_dense(group, method) else group.each():
            if part is group:
                inverse = grounded_inverses(parts, group)
            else:
                inverse = GroundedLaplacian(part, parts.diagonal).solve(np.eye(part.size))[None]
            diagonal = inverse.diagonal(0, 1, 2)
            check_accuracy(part, parts.diagonal, diagonal)
            mirrored = inverse + inverse.transpose(0, 2, 1)
            values[parts.pair_numbers(part)] = diagonal[:, :, None] + diagonal[:, None, :] - mirrored
    return graph.pairs, torch.from_numpy(values).to(graph.device)


def _is_dense(group: ComponentGroup, method: str) -> bool:
    return is_dense(group.size, method, DENSE_NODES) or group.size == 1


def grounded_inverses(parts: Components, group: ComponentGroup) -> Array:
    """Compute ``G`` without the node of each component with the largest sum of weights, ``[num_components, n, n]``."""
    lower, n = group.matrices(parts.diagonal), group.size  # OpenBLAS starts threads for 10 rows
    with one_thread() if n <= DENSE_NODES and (n > 32 or len(lower) > 4) else nullcontext():
        for matrix, ground in zip(lower, parts.diagonal[group.nodes].argmax(1), strict=True):
            matrix[ground] = matrix[:, ground] = 0.0
            matrix[ground, ground] = 1.0
            factor, failed = dpotrf(matrix.T, overwrite_a=True)  # in place, with zeros in the other triangle
            if failed:
                matrix[:] = math.nan
            else:
                dpotri(factor, overwrite_c=True)
            matrix[ground, ground] = 0.0
    inverse = lower + lower.transpose(0, 2, 1)
    inverse.reshape(-1, n * n)[:, :: n + 1] /= 2
    return inverse
