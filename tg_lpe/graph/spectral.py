"""Laplacian eigenvectors and random-walk probabilities of a whole batch.

Defined on every graph: few nodes, several components, no edges, any size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from tg_lpe.arguments import check_choice, check_count
from tg_lpe.graph.components import Array, ComponentGroup, Components, component_labels, null_dimension
from tg_lpe.graph.incidence import Incidence, inverse_sqrt
from tg_lpe.graph.padding import PaddedBatch
from tg_lpe.graph.solvers import (
    DENSE_LIMIT,
    check_method,
    is_dense,
    polynomial_entries,
    sparse_eigenvectors,
    stacked_eigh,
)
from tg_lpe.ops import cpu
from tg_lpe.ops.balls import ball_orders, ball_polynomials
from tg_lpe.ops.operator import host_array
from tg_lpe.ops.polynomials import dense_polynomials, is_faster, matrix_polynomials

__all__ = [
    "DENSE_LIMIT",
    "component_labels",
    "kernel_channels",
    "kernel_entries",
    "laplacian_eigenvectors",
    "null_dimension",
    "padded_batch",
    "random_walk_probabilities",
]

NORMALIZATIONS = (None, "sym", "rw")
"""PyG's names: ``L = D - A``, ``D^-1/2 L D^-1/2`` and ``D^-1 L``."""

WHICH = ("bottom", "top")

EIGENVECTOR_NODES = 512
"""Nodes of a component up to which its eigenvectors are computed densely, by ``method="auto"``."""

WALK_NODES = 2048
"""Nodes of a graph up to which powers of its adjacency matrix are written out, by ``method="auto"``."""

WALK_VISITS = 2**12
"""Edges around a node that are looked at in a larger graph, at least."""

VISIT_PRODUCTS = 64
"""Products of the matrix with a column that take as long as one edge around a node."""

WALK_ROWS = 128
"""Rows of sparse powers that are computed at once."""

FASTER_WALKS = "fewer steps, since the edges around a node within half of them are looked at"
"""What a warning recommends for large graphs."""

SYMMETRIC = 1e-6
"""An odd moment of an eigenvector that is smaller, over the largest it could be, does not decide on its sign."""


@torch.compiler.disable  # sizes and components are read on the host
def laplacian_eigenvectors(
    graph: Incidence,
    k: int,
    *,
    normalization: str | None = "sym",
    which: str = "bottom",
    method: str = "auto",
    seed: int = 0,
    keep_null: bool = False,
) -> tuple[Tensor, Tensor]:
    """The first ``k`` non-trivial Laplacian eigenvectors of each graph of a batch, of any size.

    Each connected component is treated by itself, and the eigenvectors of a graph are those of its components by
    eigenvalue. The one null vector of a component without ground is known; it is left out, and all others are
    orthogonal to it. So no basis of the null space leaks in. Components of equal size are stacked, and each is solved
    as if it were alone: a batch gives the same numbers as its graphs one by one.

    The sign is a canonical one: the sum of the cubes of a column is positive, or that of its fifth powers where the
    former is zero. Both do not depend on the order of the nodes. Where both are zero, as for a column that a symmetry
    of the graph maps to its negative, no rule can do without the order; there the first entry that has at least half
    the largest absolute value is positive. Where an eigenvalue repeats, the basis of its eigenspace is arbitrary and
    depends on the order of the nodes.

    Args:
        graph: the batch.
        k: number of eigenvectors.
        normalization: ``None`` for ``L = D - A``, ``"sym"`` for ``D^-1/2 L D^-1/2``, ``"rw"`` for ``D^-1 L``, with
            ``D`` the diagonal of ``L``. The eigenvectors of ``"rw"`` have norm one and are not orthogonal.
        which: ``"bottom"``, smallest eigenvalue first, or ``"top"``, largest first.
        method: ``"dense"``, ``"iterative"`` (Lanczos' method, with a sparse factorisation where it needs one), or
            ``"auto"``: dense for components of up to 512 nodes, or up to ``8 k`` and 4,096.
        seed: of the first vectors of the iteration.
        keep_null: whether to count the null vectors of the components too, each supported on its component. The
            eigenvalue of a node without edges is then that of ``I - D^-1/2 A D^-1/2``, 1, with
            ``normalization="sym"``, as in published code, and 0 otherwise.

    Returns:
        Eigenvectors ``[num_nodes, k]``, orthonormal within a graph, and eigenvalues ``[num_graphs, k]``, float64.
        Columns that a graph does not have (it has as few nodes) are zero, their eigenvalues NaN.

    Raises:
        ValueError: on an argument out of range, or a component too large for ``method="dense"``.
        RuntimeError: if an iteration does not converge.
    """
    check_eigenvectors(k, normalization, which)
    check_method(method)
    parts = Components(graph)
    scale = _root_degrees(parts, normalization)
    vectors, values = np.zeros((graph.num_nodes, k)), np.full((parts.count, k), np.nan)
    for group in parts.groups:
        grounded = None if graph.ground is None else parts.grounded[group.components]
        if group.size == 1 and grounded is None:
            continue
        most = method == "auto" and group.size <= min(8 * k, DENSE_LIMIT)  # all at once are faster than so many
        if most or is_dense(group.size, method, EIGENVECTOR_NODES) or group.size < k + 3:
            stacks = [group] if group.size <= EIGENVECTOR_NODES else group.each()  # memory of one large matrix
            solved = [_dense_eigenvectors(parts, stack, k, scale, which, graph.ground is not None) for stack in stacks]
            found, basis = (np.concatenate(part) for part in zip(*solved, strict=True))
        else:
            found, basis = _iterated_eigenvectors(parts, group, k, scale, which, grounded, seed)
        if normalization == "rw" and scale is not None:
            basis = basis * scale[group.nodes][..., None]
            norm = np.linalg.norm(basis, axis=1, keepdims=True)
            basis = basis / np.where(norm > 0, norm, 1.0)
        vectors[group.nodes], values[group.components] = basis, found
    if keep_null:
        vectors, values = _with_null_vectors(parts, vectors, values, scale, normalization, which)
    if parts.count:
        vectors *= _canonical_signs(parts, vectors)
    if parts.count != graph.num_graphs or (parts.count > 1 and not (np.diff(parts.graph_of) > 0).all()):
        vectors, values = _by_eigenvalue(parts, vectors, values, which)
    return torch.from_numpy(vectors).to(graph.device), torch.from_numpy(values).to(graph.device)


def _root_degrees(parts: Components, normalization: str | None) -> Array | None:
    """``D^-1/2`` with one in place of zero degrees, ``[num_nodes]``; ``None`` for the combinatorial Laplacian."""
    return None if normalization is None else 1 / np.sqrt(np.where(parts.diagonal > 0, parts.diagonal, 1.0))


class NullVectors(NamedTuple):
    """The null vectors of all components of a batch, those without ground, however many there are."""

    node: Tensor
    """Entry of the null vector of each node's component, float64 ``[num_nodes]``; zero where it has none."""
    component: Tensor
    """The component of each node, int64 ``[num_nodes]``."""
    is_lone: Tensor
    """Nodes without edges whose null vector counts as one of the eigenvalue 1, bool ``[num_nodes]``."""
    counts: Tensor
    """How many null vectors of the eigenvalues 0 and 1 a graph has, int64 ``[num_graphs, 2]``."""


def null_vectors(graph: Incidence, normalization: str | None) -> NullVectors:
    """The null vectors that :func:`laplacian_eigenvectors` leaves out, or counts with ``keep_null=True``.

    Args:
        graph: the batch.
        normalization: of the Laplacian, ``None`` or ``"sym"``.
    """
    parts = Components(graph)
    scale = _root_degrees(parts, normalization)
    node, first = _null_vectors(parts, scale, normalization)
    has_one = np.ones(parts.count, bool) if graph.ground is None else ~parts.grounded
    counts = np.zeros((graph.num_graphs, 2), np.int64)
    np.add.at(counts, (parts.graph_of[has_one], first[has_one].astype(np.int64)), 1)
    is_lone = (first * has_one).astype(bool)[parts.label]
    found = node * has_one[parts.label], parts.label.astype(np.int64), is_lone, counts
    return NullVectors(*(torch.from_numpy(part).to(graph.device) for part in found))


def _null_vectors(parts: Components, scale: Array | None, normalization: str | None) -> tuple[Array, Array]:
    """The null vector of each component as an entry of each node, and its eigenvalue, as if there were no ground."""
    null = np.ones(len(parts.label)) if scale is None or normalization == "rw" else 1 / scale
    null = null / np.sqrt(np.bincount(parts.label, null**2, minlength=parts.count))[parts.label]
    return null, np.where((parts.size == 1) & (normalization == "sym"), 1.0, 0.0)


def _with_null_vectors(
    parts: Components, vectors: Array, values: Array, scale: Array | None, normalization: str | None, which: str
) -> tuple[Array, Array]:
    """The first ``k`` eigenvectors of each component, the null vector of one without ground included."""
    null, first = _null_vectors(parts, scale, normalization)
    if which == "top":  # the null vector comes last, where there is a column left
        last = np.isfinite(values).sum(1)
        has_room = last < values.shape[1]
        if parts.graph.ground is not None:
            has_room &= ~parts.grounded
        rows = np.flatnonzero(has_room[parts.label])
        vectors[rows, last[parts.label[rows]]] = null[rows]
        values[has_room, last[has_room]] = first[has_room]
        return vectors, values
    vectors = np.concatenate([null[:, None], vectors], axis=1)
    values = np.concatenate([first[:, None], values], axis=1)
    if parts.graph.ground is not None:  # a component with ground has no null vector: its columns move back by one
        moved = parts.grounded
        values[moved] = np.roll(values[moved], -1, axis=1)
        rows = moved[parts.label]
        vectors[rows] = np.roll(vectors[rows], -1, axis=1)
    return vectors[:, :-1], values[:, :-1]


def check_eigenvectors(k: int, normalization: str | None, which: str) -> None:
    """Refuse what :func:`laplacian_eigenvectors` does not know."""
    check_count("k", k)
    check_choice("normalization", normalization, NORMALIZATIONS)
    check_choice("which", which, WHICH)


def _dense_eigenvectors(
    parts: Components, group: ComponentGroup, k: int, scale: Array | None, which: str, has_ground: bool
) -> tuple[Array, Array]:
    """Eigenvalues ``[num_components, k]`` and eigenvectors ``[num_components, n, k]``."""
    n, grounded = group.size, parts.grounded[group.components] if has_ground else None
    matrix = group.matrices(parts.diagonal, scale)
    if which == "bottom":
        # The null vector is moved above all others, which makes them orthogonal to it whatever their eigenvalues.
        lift = 4 * matrix.diagonal(axis1=1, axis2=2).max(1)
        if grounded is not None:
            lift[grounded] = 0.0
        if scale is None:
            matrix += (lift / n)[:, None, None]
        else:
            null = 1 / scale[group.nodes]
            null *= np.sqrt(lift / (null * null).sum(1))[:, None]
            matrix += null[:, :, None] * null[:, None, :]
    count = min(k, n if grounded is not None and grounded.any() else n - 1)
    found, basis = stacked_eigh(matrix, count, which == "top")
    if grounded is not None and count == n:  # only a component with ground has as many as it has nodes
        found[~grounded, -1], basis[~grounded, :, -1] = np.nan, 0.0
    if count < k:
        found = np.pad(found, ((0, 0), (0, k - count)), constant_values=np.nan)
        basis = np.pad(basis, ((0, 0), (0, 0), (0, k - count)))
    return found, basis


def _iterated_eigenvectors(
    parts: Components, group: ComponentGroup, k: int, scale: Array | None, which: str, grounded: Array | None, seed: int
) -> tuple[Array, Array]:
    """As :func:`_dense_eigenvectors`, component by component."""
    found = []
    for number, part in enumerate(group.each()):
        own = np.ones(group.size) if scale is None else scale[part.nodes[0]]
        is_grounded = grounded is not None and bool(grounded[number])
        laplacian = part.sparse_matrix(parts.diagonal)
        found.append(sparse_eigenvectors(laplacian, own, k, which == "top", is_grounded, seed))
    return np.stack([values for values, _ in found]), np.stack([vectors for _, vectors in found])


def _by_eigenvalue(parts: Components, vectors: Array, values: Array, which: str) -> tuple[Array, Array]:
    """The eigenvectors of graphs from those of their components, ``[num_nodes, k]`` and ``[num_graphs, k]``."""
    k, num_graphs = values.shape[1], parts.graph.num_graphs
    graph_of = np.repeat(parts.graph_of, k)
    order = np.lexsort(((-values if which == "top" else values).ravel(), graph_of))  # NaN comes last
    first = np.searchsorted(graph_of[order], np.arange(num_graphs))
    column = np.empty_like(order)
    column[order] = np.minimum(np.arange(order.size) - first[graph_of[order]], k)
    column = np.where(np.isnan(values), k, column.reshape(-1, k))
    # What a graph has no column for goes to one more, which is cut off.
    out, sorted_values = np.zeros((len(vectors), k + 1)), np.full((num_graphs, k + 1), np.nan)
    np.put_along_axis(out, column[parts.label], vectors, axis=1)
    sorted_values[graph_of.reshape(-1, k), column] = values
    return np.ascontiguousarray(out[:, :k]), np.ascontiguousarray(sorted_values[:, :k])


def _canonical_signs(parts: Components, vectors: Array) -> Array:
    """1 or -1 for each node's component and column, as :func:`laplacian_eigenvectors` describes, ``[num_nodes, k]``."""
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


def random_walk_probabilities(
    graph: Incidence, steps: int, *, method: str = "auto", with_edges: bool = True
) -> tuple[Tensor, Tensor]:
    """Where a random walk is after 1, 2, ... ``steps`` steps: back at its start, or across an edge.

    The walk leaves along each edge in proportion to its conductance and stays nowhere; it never returns to a node
    without edges. `Graph Neural Networks with Learnable Structural and Positional Representations
    <https://arxiv.org/abs/2110.07875>`_, eq. (7).

    Args:
        graph: the batch.
        steps: number of steps.
        method: ``"dense"`` powers, ``"iterative"`` for sparse ones, or ``"auto"``: dense for batches of graphs of up
            to 2,048 nodes. Above, the compiled part takes the edges around a node where they are few, as in a grid or
            for few steps, and else products of the matrix with columns of the identity; without it, sparse powers.
        with_edges: whether the values at the edges are wanted; zero otherwise.

    Returns:
        Return probabilities ``[num_nodes, steps]``, and for each undirected edge the geometric mean of the
        probabilities of being at one end after starting from the other, ``[num_edges, steps]``, which is the entry of
        ``(D^-1/2 A D^-1/2)^t``. Both float64, without gradient.

    Raises:
        ValueError: on an unknown method, fewer than one step, or a graph too large for ``method="dense"``.
    """
    check_method(method)
    check_count("steps", steps)
    like = torch.empty(0, dtype=torch.float64, device=graph.device)
    scale = inverse_sqrt(graph.laplacian_diagonal(like))
    adjacency = (graph.root_conductance(like).square() * scale[graph.tail] * scale[graph.head]).detach()
    if not is_dense(graph.max_nodes, method, WALK_NODES):
        if method == "auto" and cpu.supports(adjacency):
            return _walks_of_large_graphs(graph, adjacency, steps, with_edges)
        nodes, edges = (adjacency.new_zeros(count, steps) for count in (graph.num_nodes, graph.num_edges))
        _sparse_walks(graph, adjacency, nodes, edges if with_edges else None)
        return nodes, edges
    nodes, edges = _dense_walks(graph, adjacency, steps)
    return nodes, edges if with_edges else edges.zero_()


def _walks_of_large_graphs(graph: Incidence, adjacency: Tensor, steps: int, with_edges: bool) -> tuple[Tensor, Tensor]:
    """As :func:`random_walk_probabilities`, in the compiled part.

    Around each node, where that is less than a column of all powers. Other nodes have their columns computed.
    """
    entries, ends, wanted = adjacency.unsqueeze(0), (graph.tail, graph.head), steps + with_edges
    column = steps * (1 + 2 * graph.num_edges // max(1, graph.num_nodes)) * graph.max_nodes
    orders = ball_orders(*ends, graph.num_nodes, wanted, max(WALK_VISITS, column // VISIT_PRODUCTS))
    unknown = orders < wanted
    nodes, edges = ball_polynomials(entries, *ends, orders.masked_fill(unknown, 1), "power", steps, with_edges)
    edges = edges if with_edges else nodes.new_zeros(graph.num_edges, steps)
    for number in torch.unique(graph.batch[unknown]).tolist():
        own, mine = (
            slice(*graph.ptr[number : number + 2].tolist()),
            slice(*graph.edge_ptr[number : number + 2].tolist()),
        )
        size, first = own.stop - own.start, graph.ptr[number]
        tail, head = graph.tail[mine] - first, graph.head[mine] - first
        columns = unknown[own].nonzero().flatten()
        rows, others, w = host_array(tail), host_array(head), host_array(adjacency[mine])
        matrix = csr_matrix((np.tile(w, 2), (np.append(rows, others), np.append(others, rows))), (size, size))
        if not with_edges:
            rows, others = rows[:0], others[:0]
        powers = np.eye(steps, steps + 1, k=1)
        found = polynomial_entries(matrix, powers, False, rows, others, FASTER_WALKS, host_array(columns).copy())
        nodes[own][columns] = torch.from_numpy(found[0]).to(nodes)[columns]
        if with_edges:
            is_read = unknown[own][tail]
            edges[mine][is_read] = torch.from_numpy(found[1]).to(edges)[is_read]
    return nodes, edges


def _dense_walks(graph: Incidence, adjacency: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """As :func:`random_walk_probabilities`; the powers that give the nodes give the edges as well."""
    # D^-1/2 A D^-1/2 is similar to the walk's D^-1 A: their powers share the diagonal.
    if is_faster(adjacency, graph.num_nodes, graph.max_nodes):
        sizes = graph.num_nodes, graph.max_nodes
        return matrix_polynomials(adjacency.unsqueeze(0), graph.tail, graph.head, graph.ptr, *sizes, "power", steps)
    padded = padded_batch(graph)
    nodes, edges, order = [], [], []
    for where in padded.edge_positions():
        diagonal, entries = dense_polynomials(adjacency[where.edges].unsqueeze(0), where, "power", steps)
        nodes.append(diagonal[0].mT)
        edges.append(entries[0].mT)
        order.append(where.edges)
    if not nodes:
        return adjacency.new_zeros(graph.num_nodes, steps), adjacency.new_zeros(0, steps)
    return padded.unpad_rows(nodes), torch.cat(edges)[torch.argsort(torch.cat(order))]


def _sparse_walks(graph: Incidence, adjacency: Tensor, nodes: Tensor, edges: Tensor | None) -> None:
    """Sparse powers, some rows at a time.

    Args:
        graph: the batch.
        adjacency: entries of the matrix at the edges, ``[num_edges]``.
        nodes: the diagonal entries are written here, ``[num_nodes, num_steps]``.
        edges: the entries at the edges are written here, ``[num_edges, num_steps]``.
    """
    n, tail, head = graph.num_nodes, host_array(graph.tail), host_array(graph.head)
    w = host_array(adjacency)
    ends = np.concatenate([tail, head]), np.concatenate([head, tail])
    matrix = csr_matrix((np.concatenate([w, w]), ends), (n, n))
    first_edge = np.searchsorted(tail, np.arange(n + 1))
    for own in np.split(np.arange(n), range(WALK_ROWS, n, WALK_ROWS)) if n else ():
        counts = first_edge[own + 1] - first_edge[own]
        row = np.repeat(np.arange(len(own)), counts)
        mine = np.repeat(first_edge[own] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        at_nodes, at_edges = np.zeros((len(own), nodes.size(1))), np.zeros((len(mine), nodes.size(1)))
        rows = matrix[own]
        for step in range(nodes.size(1)):
            rows = rows if step == 0 else rows @ matrix
            at_nodes[:, step] = rows[np.arange(len(own)), own]
            if edges is not None and len(mine):
                at_edges[:, step] = rows[row, head[mine]]
        nodes[torch.from_numpy(own)] = torch.from_numpy(at_nodes).to(nodes)
        if edges is not None:
            edges[torch.from_numpy(mine)] = torch.from_numpy(at_edges).to(edges)


def _heat(values: Tensor) -> Tensor:
    return torch.exp(-values.unsqueeze(-2) * values.new_tensor(HEAT_TIMES).unsqueeze(-1))


def _resistance(values: Tensor) -> Tensor:
    return torch.where(values > NULL, 1 / values.clamp(min=NULL), 0.0).unsqueeze(-2)


def _eigenspaces(values: Tensor) -> Tensor:
    new = values.diff(dim=-1, prepend=values[..., :1]) > DEGENERATE
    # The null space is number 0, whether a graph has one (it has none where all is grounded) or not.
    space = (new.cumsum(-1) + (values[..., :1] > NULL)).unsqueeze(-2)
    wanted = torch.arange(1, NUM_EIGENSPACES + 1, device=values.device).unsqueeze(-1)
    return (space == wanted).to(values.dtype)


def _walks(values: Tensor) -> Tensor:
    return (1 - values).unsqueeze(-2) ** values.new_tensor(WALK_STEPS).unsqueeze(-1)


HEAT_TIMES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
WALK_STEPS = tuple(range(2, 21))
"""No node returns after one step, and odd steps tell odd cycles, on which heat kernels hardly depend."""
NUM_EIGENSPACES = 3
NULL = 1e-8
DEGENERATE = 1e-6
"""Eigenvalues nearer than this are one, whose eigenspace has no preferred basis."""

KERNELS = {"heat": _heat, "resistance": _resistance, "eigenspaces": _eigenspaces, "walks": _walks}
"""Functions of the eigenvalues ``[..., n]`` of the normalised Laplacian, ``[..., channels, n]``: heat kernels
``exp(-t S)`` at :data:`HEAT_TIMES`, the pseudo-inverse of ``S`` (effective resistances are differences of its entries),
projectors on the first three eigenspaces above the null space, and random walks ``(I - S)^t`` of :data:`WALK_STEPS`,
whose diagonal holds return probabilities."""


def kernel_channels(kernels: Sequence[str]) -> int:
    """Number of channels of some of :data:`KERNELS`."""
    return sum(KERNELS[name](torch.zeros(1)).size(-2) for name in kernels)


def kernel_entries(graph: Incidence, kernels: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Kernels of the normalised Laplacian at nodes and edges, by eigenvectors, whatever their signs and bases.

    Args:
        graph: the batch.
        kernels: some of :data:`KERNELS`.

    Returns:
        Diagonals ``[num_nodes, channels]`` and entries at the edges ``[num_edges, channels]``, float64.

    Raises:
        ValueError: if a kernel is unknown, or a graph too large for dense algebra.
    """
    if unknown := sorted(set(kernels) - set(KERNELS)):
        raise ValueError(f"kernels must be some of {tuple(KERNELS)}, got {unknown}")
    like = torch.empty(0, dtype=torch.float64, device=graph.device)
    scale = inverse_sqrt(graph.laplacian_diagonal(like))
    padded = padded_batch(graph)
    nodes, edges, order = [like.new_zeros(0, kernel_channels(kernels))], [], [graph.tail.new_zeros(0)]
    edges.append(nodes[0])
    for matrix, where in zip(padded.dense_laplacians(scale), padded.edge_positions(), strict=True):
        values, vectors = torch.linalg.eigh(matrix)
        # The padding of a bucket adds eigenvalues of zero, with eigenvectors that are zero at every node.
        weights = torch.cat([KERNELS[name](values) for name in kernels], dim=1)
        kernel = torch.einsum("gia,gca,gja->cgij", vectors, weights, vectors).flatten(1, 2).contiguous()
        kernel = kernel.view(-1, where.max_nodes, where.max_nodes)
        nodes.append(where.diagonal(kernel).view(weights.size(1), -1).mT)
        edges.append(where.at_edges(kernel).view(weights.size(1), -1).mT)
        order.append(where.edges)
    rows = padded.unpad_rows(nodes[1:]) if padded.buckets else nodes[0]
    return rows, torch.cat(edges)[torch.argsort(torch.cat(order))]


def padded_batch(graph: Incidence) -> PaddedBatch:
    """The batch padded such that each graph's matrices are written out.

    Raises:
        ValueError: if a graph is too large for that.
    """
    is_dense(graph.max_nodes, "dense", DENSE_LIMIT)
    return PaddedBatch(graph, dense_nodes=DENSE_LIMIT)
