"""Effective resistances and embeddings whose distances they are, of a whole batch."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from tg_lpe.graph.components import Array, ComponentGroup, Components
from tg_lpe.graph.incidence import Incidence
from tg_lpe.graph.solvers import (
    DENSE_LIMIT,
    GroundedSolver,
    check_method,
    inverse_root,
    is_dense,
    sparse_eigenvectors,
    stacked_eigh,
)
from tg_lpe.ops.blas import threads_for

RESISTANCE_NODES = 2048
"""Nodes of a component up to which an inverse is written out, by ``method="auto"``."""

EMBEDDING_NODES = 1024
"""Nodes of a component up to which all its eigenvectors are computed, by ``method="auto"``."""

SIMILAR = 1e3
"""Ratio of the largest weight to the smallest up to which Cholesky's factor is accurate to ten digits."""

LARGEST_RATIO = 1e10
"""Ratio of weights up to which sparse factorisations are tried: their relative error is about 1e-16 times the ratio."""

STACKED_NODES = 64
"""Nodes up to which components are eliminated side by side."""

ELIMINATED_AT_ONCE = 64
"""Nodes of a larger component whose elimination reaches the nodes below them in one product."""

SMALL = 8
"""Nodes below which no method of :func:`resistive_embedding` iterates."""

COLUMNS = 256
"""Columns of an inverse that are computed at once."""

ROOT_TOLERANCE = 1e-10
"""Relative error of the rational approximation of ``L^(-1/2)``."""


def effective_resistances(graph: Incidence, *, method: str = "auto", with_edges: bool = True) -> tuple[Tensor, Tensor]:
    """Effective resistances of the edges, and the mean resistance of each node to the nodes of its component.

    With the conductance of one node's edges left out, ``L`` of a connected graph is invertible and diagonally dominant.
    Its factors give resistances without telling an eigenvalue apart from zero. Dense factors are accurate to rounding
    whatever the sizes of the weights, sparse ones to about 1e-16 times the ratio of the largest to the smallest.

    Args:
        graph: the batch.
        method: ``"dense"``, ``"iterative"`` (a sparse factorisation, some columns of the inverse at a time), or
            ``"auto"``: dense for components of up to 2,048 nodes.
        with_edges: whether the resistances of the edges are wanted; zero otherwise.

    Returns:
        Mean resistances ``[num_nodes]``, zero for a single node, and resistances of the undirected edges
        ``[num_edges]``, infinite at an edge of weight zero between two components. Float64.

    Raises:
        ValueError: on ground conductances, an unknown method, a component too large for ``method="dense"``, or weights
            that differ by more than a factor of 1e10 in one that is not dense.
    """
    parts = _checked(graph, method)
    nodes, edges = np.zeros(graph.num_nodes), np.full(graph.num_edges, np.nan if with_edges else 0.0)
    for group in parts.groups:
        if is_dense(group.size, method, RESISTANCE_NODES):
            embedding = _embedding(parts, group)
            if with_edges:
                difference = embedding[group.position, group.tail] - embedding[group.position, group.head]
                edges[group.edges] = np.square(difference).sum(-1)
            centred = embedding - embedding.mean(1, keepdims=True)
            square = np.square(centred).sum(-1)
            nodes[group.nodes] = square + square.mean(1, keepdims=True)
            continue
        for part in group.each():
            nodes[part.nodes[0]], edges[part.edges] = _sparse_resistances(parts, part, with_edges)
    if np.isnan(edges).any():  # edges of weight zero
        _absent_edges(graph, parts, edges, method)
    return torch.from_numpy(nodes).to(graph.device), torch.from_numpy(edges).to(graph.device)


def resistance_pairs(graph: Incidence, *, method: str = "auto") -> tuple[Tensor, Tensor]:
    """Effective resistances of all pairs of nodes of each graph of a batch, as a list.

    Args:
        graph: the batch.
        method: as :func:`effective_resistances`.

    Returns:
        The pairs, int64 ``[2, num_pairs]``, graph by graph and row by row, and their resistances ``[num_pairs]``,
        float64; infinite between components.

    Raises:
        ValueError: as :func:`effective_resistances`.
    """
    parts = _checked(graph, method)
    size = graph.ptr.diff().cpu().numpy()
    first_pair = np.cumsum(size * size) - size * size
    first_node = np.cumsum(size) - size
    values = np.full(int((size * size).sum()), np.inf)
    for group in parts.groups:
        own = parts.graph_of[group.components]
        local = group.nodes - first_node[own][:, None]
        where = first_pair[own][:, None, None] + local[:, :, None] * size[own][:, None, None] + local[:, None, :]
        if is_dense(group.size, method, RESISTANCE_NODES):
            values[where] = _distances(_embedding(parts, group))
            continue
        for part, target in zip(group.each(), where, strict=True):
            for columns, inverse, diagonal in _inverse_columns(parts, part):
                values[target[:, columns]] = np.maximum(diagonal[:, None] + diagonal[columns] - 2 * inverse, 0.0)
    index = np.arange(len(values)) - np.repeat(first_pair, size * size)
    width, first = np.repeat(np.maximum(size, 1), size * size), np.repeat(first_node, size * size)
    pairs = np.stack([first + index // width, first + index % width])
    values[pairs[0] == pairs[1]] = 0.0
    return torch.from_numpy(pairs).to(graph.device), torch.from_numpy(values).to(graph.device)


def resistive_embedding(graph: Incidence, directions: Tensor, *, method: str = "auto") -> Tensor:
    """``sqrt(L^+) psi``: squared distances between the rows of ``sqrt(L^+)`` are effective resistances.

    Args:
        graph: the batch.
        directions: ``psi``, ``[num_nodes, k]``.
        method: ``"dense"`` (eigenvectors), ``"iterative"`` (a rational approximation: about twenty sparse systems), or
            ``"auto"``: dense for components of up to 1,024 nodes.

    Returns:
        ``[num_nodes, k]``, float64, of mean zero on each component.

    Raises:
        ValueError: as :func:`effective_resistances`, or if ``directions`` have another shape or are not finite.
        RuntimeError: if the largest or the smallest eigenvalue of a large component is not found.
    """
    parts = _checked(graph, method)
    if directions.dim() != 2 or directions.size(0) != graph.num_nodes or not directions.is_floating_point():
        raise ValueError(
            f"directions must be floating point of shape [{graph.num_nodes}, k], got {directions.dtype} "
            f"{list(directions.shape)}"
        )
    given = directions.detach().double().cpu().numpy()
    if not np.isfinite(given).all():
        raise ValueError("directions must be finite")
    out = np.zeros_like(given)
    for group in parts.groups:
        if group.size == 1:
            continue
        psi = given[group.nodes]
        psi = psi - psi.mean(1, keepdims=True)
        if is_dense(group.size, method, EMBEDDING_NODES) or group.size < SMALL:
            with threads_for(group.size):
                found = _scaled_root(parts, group, psi)
        else:
            found = np.stack([_root(parts, part, own) for part, own in zip(group.each(), psi, strict=True)])
        out[group.nodes] = found - found.mean(1, keepdims=True)
    return torch.from_numpy(out).to(graph.device)


def _checked(graph: Incidence, method: str) -> Components:
    check_method(method)
    if graph.ground is not None:
        raise ValueError("effective resistances are those of a graph without ground conductances")
    return Components(graph)


def _absent_edges(graph: Incidence, parts: Components, edges: Array, method: str) -> None:
    """Resistances at edges of weight zero, which may join two components or lie within one."""
    absent = np.flatnonzero(np.isnan(edges))
    edges[absent] = math.inf
    tail, head = graph.tail.cpu().numpy()[absent], graph.head.cpu().numpy()[absent]
    within = np.where(parts.label[tail] == parts.label[head], parts.label[tail], -1)
    wanted = set(within.tolist()) - {-1}
    for group in parts.groups:
        if wanted.isdisjoint(group.components.tolist()):
            continue
        for component, part in zip(group.components.tolist(), group.each(), strict=True):
            if component not in wanted:
                continue
            mine = np.flatnonzero(within == component)
            place = {node: row for row, node in enumerate(part.nodes[0].tolist())}
            first, second = (np.array([place[node] for node in end[mine].tolist()]) for end in (tail, head))
            if _differ(part) and is_dense(part.size, method, RESISTANCE_NODES):
                embedding = _embedding(parts, part)[0]
                edges[absent[mine]] = np.square(embedding[first] - embedding[second]).sum(-1)
            else:
                edges[absent[mine]] = _resistances_of(_solver(parts, part), first, second, part.size)


def _resistances_of(solver: GroundedSolver, tail: Array, head: Array, num_nodes: int) -> Array:
    """Resistances between pairs of nodes of one component."""
    out = np.zeros(len(tail))
    for first in range(0, len(tail), COLUMNS):
        mine = slice(first, min(first + COLUMNS, len(tail)))
        column = np.arange(mine.stop - first)
        demand = np.zeros((num_nodes, len(column)))
        demand[tail[mine], column], demand[head[mine], column] = 1.0, -1.0
        found = solver(demand)
        out[mine] = found[tail[mine], column] - found[head[mine], column]
    return out


def _embedding(parts: Components, group: ComponentGroup) -> Array:
    """Rows whose squared distances are resistances, ``[num_components, n, n - 1]``; the first row is zero.

    ``L`` without the first node is ``C C^T``, and the rows are those of ``C^-T``: no difference of large numbers is
    taken but between two rows.
    """
    if _differ(group):
        with threads_for(group.size):
            return _star_mesh_embedding(group)
    matrix = torch.from_numpy(group.matrices(parts.diagonal))
    count, n, _ = matrix.shape
    out = np.zeros((count, n, n - 1))
    # By torch: scipy's solver wakes its threads for a system of any size.
    factor = torch.linalg.cholesky(matrix[:, 1:, 1:])
    identity = torch.eye(n - 1, dtype=matrix.dtype, device=matrix.device)
    out[:, 1:] = torch.linalg.solve_triangular(factor.mT, identity, upper=True).numpy()
    return out


def _differ(group: ComponentGroup) -> bool:
    """Whether weights differ so much that Cholesky's factor would lose digits."""
    w = group.weights
    return bool(len(w) and w.max() > SIMILAR * w.min())


def _star_mesh_embedding(group: ComponentGroup) -> Array:
    """As :func:`_embedding`, to rounding for weights of any size: only positive numbers are added.

    Node after node is taken away, and the conductors that met there become conductors between its neighbours. Then a
    node lies at the mean of those before it, plus a direction of its own as long as the root of its resistance to them.
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
    """The same for one component of weights ``[n, n]``, which are overwritten, in products of matrices."""
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
    # Forward substitution adds what is positive alone, since all entries off the diagonal are negative.
    directions = np.diag(total[1:] ** -0.5)
    found, _ = scipy.linalg.lapack.dtrtrs(-w[1:, 1:], directions, lower=1, unitdiag=1)
    return np.concatenate([np.zeros((1, n - 1)), found])


def _distances(embedding: Array) -> Array:
    """Squared distances between rows, ``[num_components, n, n]``."""
    out = np.empty((*embedding.shape[:2], embedding.shape[1]))
    for row in range(embedding.shape[1]):  # not by a Gram matrix, which would cancel
        out[:, row] = np.square(embedding - embedding[:, row : row + 1]).sum(-1)
    return out


def _inverse_columns(parts: Components, part: ComponentGroup) -> Iterator[tuple[Array, Array, Array]]:
    """Columns ``[n, num_columns]`` of an inverse on vectors of sum zero, which they are, and its whole diagonal."""
    solver, n = _solver(parts, part), part.size
    chunks = [np.arange(first, min(first + COLUMNS, n)) for first in range(0, n, COLUMNS)]

    def solve(columns: Array) -> Array:
        unit = np.zeros((n, len(columns)))
        unit[columns, np.arange(len(columns))] = 1.0
        return solver(unit)

    diagonal = np.concatenate([solve(columns)[columns, np.arange(len(columns))] for columns in chunks])
    for columns in chunks:
        yield columns, solve(columns), diagonal


def _sparse_resistances(parts: Components, part: ComponentGroup, with_edges: bool) -> tuple[Array, Array]:
    """Mean resistances ``[n]`` and, if wanted, those of the edges of one component."""
    solver, n = _solver(parts, part), part.size
    diagonal, sums = np.zeros(n), np.zeros(n)
    for first in range(0, n, COLUMNS):
        columns = np.arange(first, min(first + COLUMNS, n))
        unit = np.zeros((n, len(columns)))
        unit[columns, columns - first] = 1.0
        found = solver(unit)
        diagonal[columns], sums[columns] = found[columns, columns - first], found.sum(0)
    edges = _resistances_of(solver, part.tail, part.head, n) if with_edges else np.zeros(len(part.tail))
    return diagonal + diagonal.mean() - 2 * sums / n, edges


def _scaled_root(parts: Components, group: ComponentGroup, psi: Array) -> Array:
    """``L^(-1/2) psi`` of components that are treated by dense algebra, ``[num_components, n, k]``."""
    if _differ(group):
        # L^+ is the square of the centred embedding, whose large singular values are those of small eigenvalues.
        embedding = _star_mesh_embedding(group)
        vectors, values, _ = np.linalg.svd(embedding - embedding.mean(1, keepdims=True), full_matrices=False)
        return vectors @ (values[:, :, None] * (vectors.transpose(0, 2, 1) @ psi))
    matrix = group.matrices(parts.diagonal)
    # The null vector is moved above all others, so that all that are left have positive eigenvalues.
    matrix += (4 * matrix.diagonal(axis1=1, axis2=2).max(1) / group.size)[:, None, None]
    values, vectors = stacked_eigh(matrix, group.size - 1)
    tiny = np.finfo(float).eps * values[:, -1:]
    root = 1 / np.sqrt(np.maximum(values, tiny))
    return vectors @ (root[:, :, None] * (vectors.transpose(0, 2, 1) @ psi))


def _solver(parts: Components, part: ComponentGroup) -> GroundedSolver:
    """The solver of one component.

    Raises:
        ValueError: if its weights differ too much for a sparse factorisation.
    """
    _check_weights(part)
    return GroundedSolver(part.sparse_matrix(parts.diagonal))


def _check_weights(part: ComponentGroup) -> None:
    w = part.weights
    if len(w) and not w.max() <= LARGEST_RATIO * w.min():
        raise ValueError(
            f"edge_weight of a component of {part.size} nodes goes from {w.min():.3g} to {w.max():.3g}; sparse "
            f"factorisations are accurate up to a ratio of {LARGEST_RATIO:.0e}. method='dense' takes any, up to "
            f"{DENSE_LIMIT} nodes"
        )


def _root(parts: Components, part: ComponentGroup, psi: Array) -> Array:
    """``L^(-1/2) psi`` of one component."""
    _check_weights(part)
    laplacian = part.sparse_matrix(parts.diagonal)
    lowest, _ = sparse_eigenvectors(laplacian, np.ones(part.size), 1, False, False, seed=0)
    upper = 2 * float(parts.diagonal[part.nodes[0]].max())
    return inverse_root(laplacian, psi, 0.99 * float(lowest[0]), upper, ROOT_TOLERANCE)
