"""Compute effective resistances, and embeddings whose squared distances are resistances, of a whole batch."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from tg_lpe.graph.components import Array, ComponentGroup, Components
from tg_lpe.graph.elimination import Elimination
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.solvers import (
    DENSE_LIMIT,
    check_method,
    inverse_root,
    is_dense,
    sparse_eigenvectors,
    stacked_eigh,
)
from tg_lpe.ops.blas import threads_for
from tg_lpe.ops.operator import host_array, without_transforms

RESISTANCE_NODES = 1024
"""Up to this number of nodes, ``method="auto"`` computes resistances of a component from dense matrices."""

EMBEDDING_NODES = 1024
"""Up to this number of nodes, ``method="auto"`` computes all eigenvectors of a component for an embedding."""

SIMILAR = 30.0
"""Up to this ratio of largest to smallest weight, Cholesky's factor is accurate to ten digits or more."""

EIGEN_RATIO = 1e3
"""Up to this ratio of weights, eigenvalues and ``L^(-1/2)`` are accurate to ten digits."""

EMBEDDING_RATIO = 1e16
"""Up to this ratio of weights, squared distances between rows are resistances to 14 digits; at 1e20, to 10."""

LARGEST_RATIO = 1e10
"""Largest ratio of weights for ``L^(-1/2)`` of sparse matrices; its relative error is about 1e-16 times the ratio."""

NUMPY_NODES = 256
"""Up to this number of nodes, numpy factors on one thread: torch would wait for its threads even for ten rows."""

STACKED_NODES = 64
"""Up to this number of nodes, components are eliminated side by side."""

ELIMINATED_AT_ONCE = 64
"""Number of nodes of a larger component that are eliminated with one matrix product."""

PAIR_VALUES = 2**22
"""Largest number of differences between rows in memory."""

SMALL = 8
"""Components of fewer nodes are always dense in :func:`resistive_embedding`."""

ROOT_TOLERANCE = 1e-10
"""Relative error of the rational approximation of ``L^(-1/2)``."""


def effective_resistances(graph: Graph, *, method: str = "auto", with_edges: bool = True) -> tuple[Tensor, Tensor]:
    """Compute the resistance of each edge, and the mean resistance of each node to the nodes of its component.

    Resistances are accurate to some 13 digits for weights of any size. A dense component with similar weights uses a
    Cholesky factor, which takes a third of the time and gives ten digits or more.

    Args:
        graph: the batch.
        method: ``"dense"``, ``"iterative"`` (elimination of nodes, for sparse graphs), or ``"auto"``: dense for
            components of up to 1,024 nodes. Components whose weights differ by more than a factor of 1e16 are always
            solved by elimination.
        with_edges: whether to compute the resistances of the edges; zero otherwise.

    Returns:
        Mean resistances ``[num_nodes]``, zero for a single node, and resistances of the undirected edges
        ``[num_edges]``, infinite at an edge of weight zero between two components. Float64.

    Raises:
        ValueError: on ground conductances, an unknown method, a component too large for ``method="dense"``, or one
            whose elimination would join more than 16,384 nodes to each other.
    """
    parts = _checked(graph, method, with_absent=with_edges)
    nodes, edges = np.zeros(graph.num_nodes), np.full(graph.num_edges, math.inf if with_edges else 0.0)
    for group in parts.groups:
        embedded, others = _embedded(group, method)
        if embedded is not None:
            embedding = _embedding(parts, embedded)
            if with_edges:
                edges[embedded.edges] = _distances_between(embedding, embedded)
            centred = embedding - embedding.mean(1, keepdims=True)
            square = np.square(centred).sum(-1)
            nodes[embedded.nodes] = square + square.mean(1, keepdims=True)
        for part in others:
            elimination = Elimination(part.size, part.tail, part.head, part.weights)
            nodes[part.nodes[0]], at_edges = elimination.resistances()
            if with_edges:
                edges[part.edges] = at_edges
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
        embedded, others = _embedded(group, method)
        if embedded is not None:
            values[parts.pair_numbers(embedded)] = _distances(_embedding(parts, embedded))
        for part in others:
            elimination = Elimination(part.size, part.tail, part.head, part.weights)
            values[parts.pair_numbers(part)[0]] = elimination.all_resistances()
    return graph.pairs, torch.from_numpy(values).to(graph.device)


def resistive_embedding(graph: Graph, directions: Tensor, *, method: str = "auto") -> Tensor:
    """Compute ``sqrt(L^+) psi``; squared distances between the rows of ``sqrt(L^+)`` are effective resistances.

    Args:
        graph: the batch.
        directions: ``psi``, ``[num_nodes, k]``.
        method: ``"dense"`` (eigenvectors), ``"iterative"`` (a rational approximation with about twenty sparse systems),
            or ``"auto"``: dense for components of up to 1,024 nodes.

    Returns:
        ``[num_nodes, k]``, float64, of mean zero on each component.

    Raises:
        ValueError: as :func:`effective_resistances`; if weights differ by more than a factor of 1e10 in a component
            that is not dense; or if ``directions`` have another shape or are not finite.
        RuntimeError: if the iteration for the smallest eigenvalue of a large component does not converge.
    """
    parts = _checked(graph, method)
    if directions.dim() != 2 or directions.size(0) != graph.num_nodes or not directions.is_floating_point():
        got = f"{directions.dtype} {list(directions.shape)}"
        raise ValueError(f"directions must be floating point of shape [{graph.num_nodes}, k], got {got}")
    columns = host_array(directions.double())
    if not np.isfinite(columns).all():
        raise ValueError("directions must be finite")
    out = np.zeros_like(columns)
    for group in parts.groups:
        if group.size == 1:
            continue
        psi = columns[group.nodes]
        psi = psi - psi.mean(1, keepdims=True)
        if is_dense(group.size, method, EMBEDDING_NODES) or group.size < SMALL:
            with threads_for(group.size):
                embedding = _scaled_root(parts, group, psi)
        else:
            embedding = np.stack([_root(parts, part, own) for part, own in zip(group.each(), psi, strict=True)])
        out[group.nodes] = embedding - embedding.mean(1, keepdims=True)
    return torch.from_numpy(out).to(graph.device)


def _checked(graph: Graph, method: str, with_absent: bool = False) -> Components:
    check_method(method)
    if graph.ground is not None:
        raise ValueError("effective resistances need a graph without ground conductances")
    return Components(graph, with_absent)


def _embedded(group: ComponentGroup, method: str) -> tuple[ComponentGroup | None, Iterable[ComponentGroup]]:
    """Split the components into those solved by a dense embedding and those solved by elimination, one by one."""
    if not is_dense(group.size, method, RESISTANCE_NODES):
        return None, group.each()
    near = group.ratios <= EMBEDDING_RATIO
    if near.all():
        return group, ()
    return group.chosen(near) if near.any() else None, group.chosen(~near).each()


def _embedding(parts: Components, group: ComponentGroup) -> Array:
    """Compute rows whose squared distances are resistances, ``[num_components, n, n - 1]``; the first row is zero.

    ``L`` without the first node is ``C C^T``, and the rows are those of ``C^-T``. Nothing cancels except in the
    differences between two rows.
    """
    if group.ratios.max() > SIMILAR:
        with threads_for(group.size):
            return _star_mesh_embedding(group)
    matrix = group.matrices(parts.diagonal)
    count, n, _ = matrix.shape
    out = np.zeros((count, n, n - 1))
    if n <= NUMPY_NODES:
        with threads_for(n):
            out[:, 1:] = np.linalg.inv(np.linalg.cholesky(matrix[:, 1:, 1:])).transpose(0, 2, 1)
        return out
    with without_transforms():  # torch, since scipy's solver starts its threads for a system of any size
        factor = torch.linalg.cholesky(torch.from_numpy(matrix[:, 1:, 1:]))
        identity = torch.eye(n - 1, dtype=factor.dtype)
        out[:, 1:] = torch.linalg.solve_triangular(factor.mT, identity, upper=True).numpy()
    return out


def _star_mesh_embedding(group: ComponentGroup) -> Array:
    """Compute :func:`_embedding` to rounding for weights of any size: only positive numbers are added.

    Nodes are eliminated one after another; the conductors of a node become conductors between its neighbours. In
    reverse order, a node lies at the weighted mean of the nodes before it, plus a new direction whose length is the
    square root of its resistance to them.
    """
    count, n = group.nodes.shape
    w = np.zeros((count, n, n))
    w[group.position, group.tail, group.head] = w[group.position, group.head, group.tail] = group.weights
    if n > STACKED_NODES:
        return np.stack([_large_star_mesh_embedding(one) for one in w])
    total, out = np.zeros((count, n)), np.zeros((count, n, n - 1))
    for node in range(n - 1, 0, -1):
        row = w[:, node, :node].copy()
        total[:, node] = row.sum(1)
        share = row / total[:, node, None]
        w[:, :node, :node] += row[:, :, None] * share[:, None, :]
        w[:, node, :node] = share
        # The diagonal is never read: a conductor from a node to itself carries no current.
    for node in range(1, n):
        out[:, node] = (w[:, node, None, :node] @ out[:, :node])[:, 0]
        out[:, node, node - 1] = total[:, node] ** -0.5
    return out


def _large_star_mesh_embedding(w: Array) -> Array:
    """Compute :func:`_star_mesh_embedding` of one component by matrix products; overwrites the weights ``[n, n]``."""
    n = len(w)
    total = np.ones(n)
    for last in range(n, 1, -ELIMINATED_AT_ONCE):
        first = max(last - ELIMINATED_AT_ONCE, 1)
        rows = np.zeros((last - first, first))
        for node in range(last - 1, first - 1, -1):
            row = w[node, :node].copy()
            total[node] = row.sum()
            share = row / total[node]
            w[first:node, :node] += row[first:, None] * share
            rows[node - first], w[node, :node] = row[:first], share
        w[:first, :first] += rows.T @ w[first:last, :first]
    # Forward substitution adds only positive numbers, since all entries off the diagonal are negative.
    directions = np.diag(total[1:] ** -0.5)
    rows, _ = scipy.linalg.lapack.dtrtrs(-w[1:, 1:], directions, lower=1, unitdiag=1)
    return np.concatenate([np.zeros((1, n - 1)), rows])


def _distances_between(embedding: Array, group: ComponentGroup) -> Array:
    """Compute the squared distance between the ends of each edge, ``[num_edges]``."""
    out, step = np.empty(len(group.tail)), max(1, PAIR_VALUES // max(1, embedding.shape[2]))
    for begin in range(0, len(out), step):
        chunk = slice(begin, begin + step)
        at = group.position[chunk]
        out[chunk] = np.square(embedding[at, group.tail[chunk]] - embedding[at, group.head[chunk]]).sum(-1)
    return out


def _distances(embedding: Array) -> Array:
    """Compute squared distances between all rows, ``[num_components, n, n]``."""
    out = np.empty((*embedding.shape[:2], embedding.shape[1]))
    for row in range(embedding.shape[1]):  # a Gram matrix would lose digits by cancellation
        out[:, row] = np.square(embedding - embedding[:, row : row + 1]).sum(-1)
    return out


def _scaled_root(parts: Components, group: ComponentGroup, psi: Array) -> Array:
    """Compute ``L^(-1/2) psi`` of components by dense algebra, ``[num_components, n, k]``."""
    if group.ratios.max() > EIGEN_RATIO:
        # L^+ = E E^T with the centred embedding E: small eigenvalues of L are large, accurate singular values of E.
        embedding = _star_mesh_embedding(group)
        vectors, values, _ = np.linalg.svd(embedding - embedding.mean(1, keepdims=True), full_matrices=False)
        return vectors @ (values[:, :, None] * (vectors.transpose(0, 2, 1) @ psi))
    matrix = group.matrices(parts.diagonal)
    # Lift the null vector above all others, so that the remaining eigenvalues are positive.
    matrix += (4 * matrix.diagonal(axis1=1, axis2=2).max(1) / group.size)[:, None, None]
    values, vectors = stacked_eigh(matrix, group.size - 1)
    tiny = np.finfo(float).eps * values[:, -1:]
    root = 1 / np.sqrt(np.maximum(values, tiny))
    return vectors @ (root[:, :, None] * (vectors.transpose(0, 2, 1) @ psi))


def _root(parts: Components, part: ComponentGroup, psi: Array) -> Array:
    """Compute ``L^(-1/2) psi`` of one component by sparse systems; refuse weights that differ too much."""
    w = part.weights
    if len(w) and not w.max() <= LARGEST_RATIO * w.min():
        raise ValueError(
            f"edge_weight of a component of {part.size} nodes goes from {w.min():.3g} to {w.max():.3g}; sparse "
            f"factorisations are accurate up to a ratio of {LARGEST_RATIO:.0e}. method='dense' takes any weights, for "
            f"up to {DENSE_LIMIT} nodes"
        )
    laplacian = part.sparse_matrix(parts.diagonal)
    with threads_for(part.size):
        lowest, _ = sparse_eigenvectors(laplacian, np.ones(part.size), 1, False, False, seed=0)
    upper = 2 * float(parts.diagonal[part.nodes[0]].max())
    return inverse_root(laplacian, psi, 0.99 * float(lowest[0]), upper, ROOT_TOLERANCE)
