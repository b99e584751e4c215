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
from tg_lpe.graph.solvers import GroundedSolver, check_method, inverse_root, is_dense, sparse_eigenvectors, stacked_eigh

RESISTANCE_NODES = 2048
"""Nodes of a component up to which an inverse is written out, by ``method="auto"``."""

EMBEDDING_NODES = 1024
"""Nodes of a component up to which all its eigenvectors are computed, by ``method="auto"``."""

SIMILAR = 1e3
"""Ratio of the largest weight to the smallest up to which Cholesky's factor is accurate to ten digits."""

ELIMINATED_NODES = 512
"""Nodes of a component up to which nodes are eliminated one by one if its weights differ by more than that."""

SMALL = 8
"""Nodes below which no method of :func:`resistive_embedding` iterates."""

COLUMNS = 256
"""Columns of an inverse that are computed at once."""

ROOT_TOLERANCE = 1e-10
"""Relative error of the rational approximation of ``L^(-1/2)``."""


def effective_resistances(graph: Incidence, *, method: str = "auto", with_edges: bool = True) -> tuple[Tensor, Tensor]:
    """Effective resistances of the edges, and the mean resistance of each node to the nodes of its component.

    With the conductance of one node's edges left out, ``L`` of a connected graph is invertible and diagonally dominant.
    Its factors give resistances without telling an eigenvalue apart from zero, whatever the sizes of the weights.

    Args:
        graph: the batch.
        method: ``"dense"``, ``"iterative"`` (a sparse factorisation, some columns of the inverse at a time), or
            ``"auto"``: dense for components of up to 2,048 nodes.
        with_edges: whether the resistances of the edges are wanted; zero otherwise.

    Returns:
        Mean resistances ``[num_nodes]``, zero for a single node, and resistances of the undirected edges
        ``[num_edges]``, infinite at an edge of weight zero between two components. Float64.

    Raises:
        ValueError: on ground conductances, an unknown method, or a component too large for ``method="dense"``.
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
        _absent_edges(graph, parts, edges)
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
        ValueError: as :func:`effective_resistances`.
        RuntimeError: if the largest or the smallest eigenvalue of a large component is not found.
    """
    parts = _checked(graph, method)
    given = directions.detach().double().cpu().numpy()
    out = np.zeros_like(given)
    for group in parts.groups:
        if group.size == 1:
            continue
        psi = given[group.nodes]
        psi = psi - psi.mean(1, keepdims=True)
        if is_dense(group.size, method, EMBEDDING_NODES) or group.size < SMALL:
            matrix = group.matrices(parts.diagonal)
            # The null vector is moved above all others, so that all that are left have positive eigenvalues.
            matrix += (4 * matrix.diagonal(axis1=1, axis2=2).max(1) / group.size)[:, None, None]
            values, vectors = stacked_eigh(matrix, group.size - 1)
            tiny = np.finfo(float).eps * values[:, -1:]
            root = 1 / np.sqrt(np.maximum(values, tiny))
            found = vectors @ (root[:, :, None] * (vectors.transpose(0, 2, 1) @ psi))
        else:
            found = np.stack([_root(parts, part, own) for part, own in zip(group.each(), psi, strict=True)])
        out[group.nodes] = found - found.mean(1, keepdims=True)
    return torch.from_numpy(out).to(graph.device)


def _checked(graph: Incidence, method: str) -> Components:
    check_method(method)
    if graph.ground is not None:
        raise ValueError("effective resistances are those of a graph without ground conductances")
    return Components(graph)


def _absent_edges(graph: Incidence, parts: Components, edges: Array) -> None:
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
            solver = GroundedSolver(part.sparse_matrix(parts.diagonal))
            edges[absent[mine]] = _resistances_of(solver, first, second, part.size)


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
    w = group.weights
    if group.size <= ELIMINATED_NODES and len(w) and w.max() > SIMILAR * w.min():
        return _star_mesh_embedding(group)
    matrix = group.matrices(parts.diagonal)
    count, n, _ = matrix.shape
    out = np.zeros((count, n, n - 1))
    if n > 1:
        factor = np.linalg.cholesky(matrix[:, 1:, 1:])
        identity = np.eye(n - 1)
        for number in range(count):
            inverse, _ = scipy.linalg.lapack.dtrtrs(factor[number], identity, lower=1)
            out[number, 1:] = inverse.T
    return out


def _star_mesh_embedding(group: ComponentGroup) -> Array:
    """As :func:`_embedding`, to rounding for weights of any size: only positive numbers are added.

    Node after node is taken away, and the conductors that met there become conductors between its neighbours. Then a
    node lies at the mean of those before it, plus a direction of its own as long as the root of its resistance to them.
    """
    count, n = group.nodes.shape
    w = np.zeros((count, n, n))
    w[group.position, group.tail, group.head] = w[group.position, group.head, group.tail] = group.weights
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


def _distances(embedding: Array) -> Array:
    """Squared distances between rows, ``[num_components, n, n]``."""
    out = np.empty((*embedding.shape[:2], embedding.shape[1]))
    for row in range(embedding.shape[1]):  # not by a Gram matrix, which would cancel
        out[:, row] = np.square(embedding - embedding[:, row : row + 1]).sum(-1)
    return out


def _inverse_columns(parts: Components, part: ComponentGroup) -> Iterator[tuple[Array, Array, Array]]:
    """Columns ``[n, num_columns]`` of an inverse on vectors of sum zero, which they are, and its whole diagonal."""
    solver, n = GroundedSolver(part.sparse_matrix(parts.diagonal)), part.size
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
    solver, n = GroundedSolver(part.sparse_matrix(parts.diagonal)), part.size
    diagonal, sums = np.zeros(n), np.zeros(n)
    for first in range(0, n, COLUMNS):
        columns = np.arange(first, min(first + COLUMNS, n))
        unit = np.zeros((n, len(columns)))
        unit[columns, columns - first] = 1.0
        found = solver(unit)
        diagonal[columns], sums[columns] = found[columns, columns - first], found.sum(0)
    edges = _resistances_of(solver, part.tail, part.head, n) if with_edges else np.zeros(len(part.tail))
    return diagonal + diagonal.mean() - 2 * sums / n, edges


def _root(parts: Components, part: ComponentGroup, psi: Array) -> Array:
    """``L^(-1/2) psi`` of one component."""
    laplacian = part.sparse_matrix(parts.diagonal)
    lowest, _ = sparse_eigenvectors(laplacian, np.ones(part.size), 1, False, False, seed=0)
    upper = 2 * float(parts.diagonal[part.nodes[0]].max())
    return inverse_root(laplacian, psi, 0.99 * float(lowest[0]), upper, ROOT_TOLERANCE)
