"""Compute Laplacian eigenvectors of a whole batch, for graphs of any size, with any number of components or edges."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tg_lpe.arguments import check_choice, check_count
from tg_lpe.graph.components import Array, ComponentGroup, Components
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.solvers import DENSE_LIMIT, is_dense, sparse_eigenvectors, stacked_eigh
from tg_lpe.ops.blas import threads_for

NORMALIZATIONS = (None, "sym", "rw")
"""PyG's names: ``L = D - A``, ``D^-1/2 L D^-1/2`` and ``D^-1 L``."""

WHICH = ("bottom", "top")

EIGENVECTOR_NODES = 512
"""Up to this number of nodes, ``method="auto"`` computes the eigenvectors of a component densely."""

DEGENERATE = 1e-6
"""Eigenvalues closer than this count as equal: their eigenspace has no preferred basis."""

SYMMETRIC = 1e-6
"""An odd moment of an eigenvector, relative to its largest possible value, decides on the sign if it exceeds this."""


@torch.compiler.disable  # sizes and components are read on the host
def laplacian_eigenvectors(
    graph: Graph,
    k: int,
    *,
    normalization: str | None = "sym",
    which: str = "bottom",
    method: str = "auto",
    seed: int = 0,
    keep_null: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute the first ``k`` non-trivial Laplacian eigenvectors of each graph of a batch.

    Each connected component is solved as if it were alone, so a batch gives the same numbers as its graphs one by one.
    The eigenvectors of a graph are those of its components, sorted by eigenvalue. The null vector of a component is
    known: it is left out, and all eigenvectors are orthogonal to it.

    Signs are canonical. The sum of the cubes of a column is positive, or the sum of its fifth powers if the first is
    zero. Neither depends on the order of the nodes. Both are zero if a symmetry of the graph maps the column to its
    negative; then the first entry with at least half the largest absolute value is positive, which depends on the order
    of the nodes. If an eigenvalue repeats, the basis of its eigenspace is arbitrary and depends on the order of the
    nodes.

    Args:
        graph: the batch.
        k: number of eigenvectors.
        normalization: ``None`` for ``L = D - A``, ``"sym"`` for ``D^-1/2 L D^-1/2``, ``"rw"`` for ``D^-1 L``, with
            ``D`` the diagonal of ``L``. The eigenvectors of ``"rw"`` have norm one and are not orthogonal.
        which: ``"bottom"``, smallest eigenvalue first, or ``"top"``, largest first.
        method: ``"dense"``, ``"iterative"`` (Lanczos' method, with a sparse factorisation if needed), or ``"auto"``:
            dense for components of up to 512 nodes, or of up to ``8 k`` and 4,096 nodes.
        seed: seed of the first vectors of the iteration.
        keep_null: whether to include the null vector of each component. The eigenvalue of a node without edges is then
            1 with ``normalization="sym"``, as for ``I - D^-1/2 A D^-1/2`` in published code, and 0 otherwise.

    Returns:
        Eigenvectors ``[num_nodes, k]``, orthonormal within a graph, and eigenvalues ``[num_graphs, k]``, float64.
        Columns that a graph does not have, since it has too few nodes, are zero, their eigenvalues NaN.

    Raises:
        ValueError: on an argument out of range, or a component too large for ``method="dense"``.
        RuntimeError: if an iteration does not converge.
    """
    check_eigenvectors(k, normalization, which)
    parts = Components(graph)
    scale = root_degrees(parts, normalization)
    vectors, values = np.zeros((graph.num_nodes, k)), np.full((parts.count, k), np.nan)
    for group in parts.groups:
        if group.size == 1:
            continue
        many = method == "auto" and group.size <= min(8 * k, DENSE_LIMIT)  # so many take longer than all at once
        if many or is_dense(group.size, method, EIGENVECTOR_NODES) or group.size < k + 3:
            stacks = [group] if group.size <= EIGENVECTOR_NODES else group.each()  # memory of one large matrix
            solved = [dense_eigenvectors(parts, stack, k, scale, which) for stack in stacks]
            eigenvalues, basis = (np.concatenate(part) for part in zip(*solved, strict=True))
        else:
            solved = []
            for part in group.each():
                own = np.ones(group.size) if scale is None else scale[part.nodes[0]]
                with threads_for(group.size):
                    solved.append(sparse_eigenvectors(part.sparse_matrix(parts.diagonal), own, k, which == "top", seed))
            eigenvalues, basis = (np.stack(each) for each in zip(*solved, strict=True))
        if normalization == "rw" and scale is not None:
            basis = basis * scale[group.nodes][..., None]
            norm = np.linalg.norm(basis, axis=1, keepdims=True)
            basis = basis / np.where(norm > 0, norm, 1.0)
        vectors[group.nodes], values[group.components] = basis, eigenvalues
    if keep_null:
        vectors, values = _with_null_vectors(parts, vectors, values, scale, normalization, which)
    if parts.count:
        vectors *= canonical_signs(parts, vectors)
    if not parts.are_graphs:
        vectors, values = by_eigenvalue(parts, vectors, values, which)
    return torch.from_numpy(vectors).to(graph.device), torch.from_numpy(values).to(graph.device)


def root_degrees(parts: Components, normalization: str | None) -> Array | None:
    """Return ``D^-1/2``, one for zero degrees, ``[num_nodes]``; ``None`` for the combinatorial Laplacian."""
    return None if normalization is None else 1 / np.sqrt(np.where(parts.diagonal > 0, parts.diagonal, 1.0))


class NullVectors(NamedTuple):
    """Hold the null vectors of all components of a batch."""

    node: Tensor
    """Entry of the null vector of each node's component, float64 ``[num_nodes]``."""
    component: Tensor
    """Component of each node, int64 ``[num_nodes]``."""
    is_lone: Tensor
    """Nodes without edges whose null vector counts as an eigenvector of eigenvalue 1, bool ``[num_nodes]``."""
    counts: Tensor
    """Number of null vectors with eigenvalue 0 and with eigenvalue 1, int64 ``[num_graphs, 2]``."""


def null_vectors(graph: Graph, normalization: str | None) -> NullVectors:
    """Return the null vectors that :func:`laplacian_eigenvectors` includes only with ``keep_null=True``.

    Args:
        graph: the batch.
        normalization: of the Laplacian, ``None`` or ``"sym"``.
    """
    parts = Components(graph)
    scale = root_degrees(parts, normalization)
    node, first = _null_vectors(parts, scale, normalization)
    counts = np.zeros((graph.num_graphs, 2), np.int64)
    np.add.at(counts, (parts.graph_of, first.astype(np.int64)), 1)
    fields = node, parts.label.astype(np.int64), first.astype(bool)[parts.label], counts
    return NullVectors(*(torch.from_numpy(field).to(graph.device) for field in fields))


def _null_vectors(parts: Components, scale: Array | None, normalization: str | None) -> tuple[Array, Array]:
    """Return each node's entry of its component's null vector, and each component's eigenvalue."""
    null = np.ones(len(parts.label)) if scale is None or normalization == "rw" else 1 / scale
    null = null / np.sqrt(np.bincount(parts.label, null**2, minlength=parts.count))[parts.label]
    return null, np.where((parts.size == 1) & (normalization == "sym"), 1.0, 0.0)


def _with_null_vectors(
    parts: Components, vectors: Array, values: Array, scale: Array | None, normalization: str | None, which: str
) -> tuple[Array, Array]:
    """Insert the null vector of each component into its first ``k`` eigenvectors."""
    null, first = _null_vectors(parts, scale, normalization)
    if which == "top":  # the null vector comes last, if there is a column left
        last = np.isfinite(values).sum(1)
        has_room = last < values.shape[1]
        rows = np.flatnonzero(has_room[parts.label])
        vectors[rows, last[parts.label[rows]]] = null[rows]
        values[has_room, last[has_room]] = first[has_room]
        return vectors, values
    vectors = np.concatenate([null[:, None], vectors[:, :-1]], axis=1)
    return vectors, np.concatenate([first[:, None], values[:, :-1]], axis=1)


def check_eigenvectors(k: int, normalization: str | None, which: str) -> None:
    """Refuse invalid arguments of :func:`laplacian_eigenvectors`."""
    check_count("k", k)
    check_choice("normalization", normalization, NORMALIZATIONS)
    check_choice("which", which, WHICH)


def dense_eigenvectors(
    parts: Components, group: ComponentGroup, k: int, scale: Array | None, which: str = "bottom"
) -> tuple[Array, Array]:
    """Compute eigenvectors of ``diag(s) L diag(s)`` without null vectors densely; missing columns are zero.

    Args:
        parts: the components of the batch.
        group: the components to solve.
        k: number of eigenvectors.
        scale: ``s``, ``[num_nodes]``; ones if ``None``.
        which: ``"bottom"`` or ``"top"``.

    Returns:
        Eigenvalues ``[num_components, k]``, NaN for missing columns, and eigenvectors ``[num_components, n, k]``.
    """
    n = group.size
    matrix = group.matrices(parts.diagonal, scale)
    if which == "bottom":
        # Lift the null vector above all others, so that they are orthogonal to it even with eigenvalues close to zero.
        lift = 4 * matrix.diagonal(axis1=1, axis2=2).max(1)
        if scale is None:
            matrix += (lift / n)[:, None, None]
        else:
            null = 1 / scale[group.nodes]
            null *= np.sqrt(lift / (null * null).sum(1))[:, None]
            matrix += null[:, :, None] * null[:, None, :]
    count = min(k, n - 1)
    found, basis = stacked_eigh(matrix, count, which == "top")
    if count < k:
        found = np.pad(found, ((0, 0), (0, k - count)), constant_values=np.nan)
        basis = np.pad(basis, ((0, 0), (0, 0), (0, k - count)))
    return found, basis


def by_eigenvalue(parts: Components, vectors: Array, values: Array, which: str) -> tuple[Array, Array]:
    """Sort eigenvectors of components by eigenvalue within each graph, ``[num_nodes, k]`` and ``[num_graphs, k]``."""
    k, num_graphs = values.shape[1], parts.graph.num_graphs
    graph_of = np.repeat(parts.graph_of, k)
    order = np.lexsort(((-values if which == "top" else values).ravel(), graph_of))  # NaN comes last
    first = np.searchsorted(graph_of[order], np.arange(num_graphs))
    column = np.empty_like(order)
    column[order] = np.minimum(np.arange(order.size) - first[graph_of[order]], k)
    column = np.where(np.isnan(values), k, column.reshape(-1, k))
    # Eigenvectors beyond the first k of a graph go to an extra column that is cut off.
    out, sorted_values = np.zeros((len(vectors), k + 1), vectors.dtype), np.full((num_graphs, k + 1), np.nan)
    np.put_along_axis(out, column[parts.label], vectors, axis=1)
    sorted_values[graph_of.reshape(-1, k), column] = values
    return np.ascontiguousarray(out[:, :k]), np.ascontiguousarray(sorted_values[:, :k])


def canonical_signs(parts: Components, vectors: Array) -> Array:
    """Return the signs described in :func:`laplacian_eigenvectors`, 1 or -1, for each node, ``[num_nodes, k]``."""
    first = parts.first
    rows = vectors if parts.count == 1 else vectors[parts.order]
    cube = rows * rows * rows
    moment = np.add.reduceat(cube, first)
    unclear = np.abs(moment) <= SYMMETRIC * np.add.reduceat(np.abs(cube), first)
    if unclear.any():
        magnitude, fifth = np.abs(rows), cube * rows * rows
        other, size = np.add.reduceat(fifth, first), np.add.reduceat(np.abs(fifth), first)
        half = 0.5 * np.maximum.reduceat(magnitude, first)
        half = half if parts.count == 1 else np.repeat(half, parts.size, axis=0)
        at = np.where(magnitude >= half, np.arange(len(rows))[:, None], len(rows) - 1)
        entry = np.take_along_axis(rows, np.minimum.reduceat(at, first), axis=0)
        moment = np.where(unclear, np.where(np.abs(other) > SYMMETRIC * size, other, entry), moment)
    sign = np.where(moment < 0, -1.0, 1.0)
    return sign if parts.count == 1 else sign[parts.label]
