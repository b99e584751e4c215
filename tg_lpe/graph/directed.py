"""Compute matrices of directed graphs: walks along, against and both ways; the magnetic Laplacian.

The directed edges are the listed edges, each counted once, with the weight of their undirected edge. Self-loops and
edges of weight zero are absent.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from scipy.sparse import csr_matrix, eye
from torch import Tensor

from tg_lpe.graph.buckets import matrices
from tg_lpe.graph.components import Array, ComponentGroup, Components
from tg_lpe.graph.eigenvectors import EIGENVECTOR_NODES, by_eigenvalue
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.pairs import check_pair_nodes, runs_of_graphs
from tg_lpe.graph.progress import FASTER_WALKS, Progress
from tg_lpe.graph.random_walks import sparse_walks
from tg_lpe.graph.solvers import RESIDUAL, sparse_eigenvectors, symmetric_matrix
from tg_lpe.ops.blas import threads_for
from tg_lpe.ops.lazy import lazy
from tg_lpe.ops.operator import host_array

WALK_NODES = 256
"""Above this number of nodes, walks are computed for some start nodes at a time, from sparse matrices."""

SHIFT = 1e-6
"""Added to the eigenvalues of a magnetic Laplacian, which may be zero, so that its sparse factors exist."""

STACKED_NODES = 64
"""Up to this number of nodes, components of large graphs are solved side by side; larger ones would take memory."""

SAME_SIZE = 1e-6
"""Relative difference below which entries of an eigenvector count as equal in size, and their mean as zero."""


class DirectedMatrices:
    """Stack the adjacency matrices of a batch by size, and read entries of matrices that are stacked in this way.

    Args:
        graph: the graph or batch.

    Attributes:
        adjacency: ``A``, float64 ``[num_graphs, n, n]`` for each size; ``A_uv`` is the weight of the edge from ``u`` to
            ``v``, zero without one. Zero on the diagonal.
        rows: the rows of the nodes in the stacks.
    """

    def __init__(self, graph: Graph) -> None:
        self.rows = graph.padded(max_padding=1.0)
        at, weight = self.rows.entry(*graph.edge_index.long()), graph.weights().detach()
        entries = weight.new_zeros(self.rows.num_pairs).index_put((at,), graph.spread_to_directed(weight))
        self.adjacency = matrices(self.rows.buckets, entries)

    def entries(self, parts: list[Tensor], first: Tensor, second: Tensor) -> Tensor:
        """Read the entries ``(first, second)`` of matrices stacked as :attr:`adjacency`, ``[num_entries]``."""
        if not parts:
            return first.new_zeros(len(first), dtype=torch.float64)
        flat = [part.reshape(-1) for part in parts]
        return (torch.cat(flat) if len(flat) > 1 else flat[0]).index_select(0, self.rows.entry(first, second))


def directed_walks(graph: Graph, steps: int, first: Tensor, second: Tensor) -> Tensor:
    r"""Compute the probabilities of random walks along, against, and alternately along and against the edges.

    .. math:: F^t, \; B^t, \; F B F \cdots, \qquad F = D_\text{out}^{-1} A , \quad B = D_\text{in}^{-1} A^T .

    A walk ends at a node that it cannot leave.

    Args:
        graph: the graph or batch.
        steps: number of steps.
        first, second: start and end nodes, int64 ``[num_entries]``.

    Returns:
        Probabilities after 1 to ``steps`` steps, float64 ``[num_entries, 3 * steps]``, of walks along the edges, then
        against them, then alternating.
    """
    if graph.max_nodes > WALK_NODES:
        return _walks_of_large_graphs(graph, steps, first, second)
    stacks = DirectedMatrices(graph)
    along = [_step(a) for a in stacks.adjacency]
    against = [_step(a.mT) for a in stacks.adjacency]
    probabilities = []
    for turns in ([along], [against], [along, against]):
        states = [torch.eye(a.size(1)).to(a).expand_as(a) for a in stacks.adjacency]
        for step in range(steps):
            turn = turns[step % len(turns)]
            states = [state @ matrix for state, matrix in zip(states, turn, strict=True)]
            probabilities.append(stacks.entries(states, first, second))
    return torch.stack(probabilities, 1)


def _step(adjacency: Tensor) -> Tensor:
    """Return ``D^-1 A``."""
    degree = adjacency.sum(2, keepdim=True)
    return adjacency / degree.masked_fill(degree == 0, 1.0)


def _listed(graph: Graph) -> Tensor:
    """Return whether each undirected edge is listed from tail to head, and from head to tail, bool ``[2, num_edges]``.

    Edges of weight zero count as not listed.
    """
    source, target = graph.edge_index.long()
    at = graph.undirected_index.where(graph.undirected_index >= 0, graph.num_edges)  # self-loops go to a last column
    listed = torch.zeros(2, graph.num_edges + 1, dtype=torch.bool, device=graph.device)
    listed[(source > target).long(), at] = True
    return listed[:, :-1] & (graph.weights() > 0)


def _walks_of_large_graphs(graph: Graph, steps: int, first: Tensor, second: Tensor) -> Tensor:
    """Compute :func:`directed_walks` on the host, graph by graph and for some start nodes at a time."""
    listed = host_array(_listed(graph))
    tail, head, weight = (host_array(values) for values in (graph.tail, graph.head, graph.weights()))
    source = np.concatenate([tail[listed[0]], head[listed[1]]])
    target = np.concatenate([head[listed[0]], tail[listed[1]]])
    weight = np.concatenate([weight[listed[0]], weight[listed[1]]])
    starts, ends = host_array(first), host_array(second)
    out = np.zeros((len(starts), 3, steps))
    with Progress(3 * graph.num_nodes, " nodes", FASTER_WALKS) as progress:
        for start, last in pairwise(runs_of_graphs(graph)):
            size, inside = last - start, (source >= start) & (source < last)
            ends_of, w = (source[inside] - start, target[inside] - start), weight[inside]
            along, against = (  # D^-1 A
                csr_matrix((w / np.bincount(u, w, size)[u], (u, v)), (size, size)) for u, v in (ends_of, ends_of[::-1])
            )
            mine = np.flatnonzero((starts >= start) & (starts < last))
            for walk, turns in enumerate(([along], [against], [along, against])):
                out[mine, walk] = sparse_walks(turns, starts[mine] - start, ends[mine] - start, steps, progress)
    return torch.from_numpy(out.reshape(len(out), -1)).to(first.device)


class MagneticSpectrum:
    r"""Compute eigenvectors and heat kernels of the magnetic Laplacian of each graph, on the host.

    .. math:: I - D_s^{-1/2} \left( A_s \odot e^{i 2 \pi q \, \Delta} \right) D_s^{-1/2} , \qquad
        A_s = (A + A^T) / 2 , \qquad \Delta_{uv} = [u \to v] - [v \to u] .

    `MagNet: A Neural Network for Directed Graphs <https://arxiv.org/abs/2102.11391>`_, section 2.2, with ``D_s`` the
    row sums of ``A_s``. Weights enter ``A_s`` only; directions enter ``Delta`` only.

    Each component is solved as if it were alone: by dense algebra, all eigenvectors at once, or, for some eigenvectors
    above 512 nodes, iteratively.

    Args:
        graph: the graph or batch.
        potential: ``q``.

    Raises:
        RuntimeError: if LAPACK returns vectors that are no eigenvectors.
    """

    def __init__(self, graph: Graph, potential: float) -> None:
        self.graph, self.potential, self.parts = graph, potential, Components(graph)
        self.is_large = graph.max_nodes > EIGENVECTOR_NODES
        self._solved: dict[int, tuple[Array, Array]] = {}

    def first(self, count: int) -> Tensor:
        """Return the eigenvectors of the ``count`` smallest eigenvalues, complex128 ``[num_nodes, count]``.

        Each belongs to one component and has length one. Its phase makes the mean of its entries, weighted by their
        squared absolute values, positive. If that mean is zero, the first of the largest entries is positive, which
        depends on the order of the nodes. Missing columns are zero.

        Raises:
            RuntimeError: if an iteration does not converge.
        """
        parts = self.parts
        vectors, values = np.zeros((len(parts.label), count), complex), np.full((parts.count, count), np.nan)
        for group in parts.groups:
            for part in group.each() if self.is_large and group.size > STACKED_NODES else [group]:
                eigenvalues, basis = self._iterated(part, count) or self._dense(part)
                width = min(count, group.size)
                values[part.components, :width] = eigenvalues[:, :width]
                vectors[part.nodes, :width] = _with_phases(basis[..., :width])
        if not parts.are_graphs:
            vectors, _ = by_eigenvalue(parts, vectors, values, "bottom")
        return torch.from_numpy(vectors).to(self.graph.device)

    def heat(self, times: Sequence[float], first: Tensor, second: Tensor) -> Tensor:
        """Return entries of ``exp(-t L)``, complex128 ``[num_entries, num_times]``; they do not depend on phases.

        Raises:
            ValueError: if a graph has more than 2,048 nodes.
        """
        instead = "edge_out_channels=0, which only computes eigenvectors, or DirectedWalk"
        check_pair_nodes(self.graph, "magnetic heat", instead=instead)
        parts, (rows, columns) = self.parts, (host_array(first), host_array(second))
        begin, end = np.zeros(parts.count, np.int64), 0  # the kernel of each component among all entries
        for group in parts.groups:
            begin[group.components] = end + group.size**2 * np.arange(len(group.components))
            end += group.nodes.size * group.size
        label, out = parts.label[rows], np.zeros((len(rows), len(times)), complex)
        joined = label == parts.label[columns]
        at = np.where(joined, begin[label] + parts.local[rows] * parts.size[label] + parts.local[columns], 0)
        with Progress():
            solved = [self._dense(group) for group in parts.groups] if len(rows) else []
        for number, time in enumerate(times) if len(rows) else ():
            kernels = [_heat(*pairs, time).ravel() for pairs in solved]
            out[:, number] = np.where(joined, np.concatenate(kernels)[at], 0.0)
        return torch.from_numpy(out).to(first.device)

    @lazy
    def _entries(self) -> Array:
        """Entries ``(tail, head)`` of the magnetic Laplacian at the undirected edges, complex ``[num_edges]``."""
        graph, n = self.graph, self.graph.num_nodes
        forward, backward = host_array(_listed(graph)).astype(float)
        tail, head, weight = (host_array(values) for values in (graph.tail, graph.head, graph.weights()))
        weight = weight * (forward + backward) / 2
        degree = np.bincount(tail, weight, n) + np.bincount(head, weight, n)
        scale = 1 / np.sqrt(np.where(degree > 0, degree, 1.0))
        turns = np.exp(2j * np.pi * self.potential * (forward - backward))
        entries: Array = -scale[tail] * weight * turns * scale[head]
        return entries

    @lazy
    def _matrix(self) -> csr_matrix:
        """The magnetic Laplacian of the batch, sparse ``[num_nodes, num_nodes]``."""
        n, tail, head = self.graph.num_nodes, host_array(self.graph.tail), host_array(self.graph.head)
        return eye(n, format="csr") + symmetric_matrix(tail, head, self._entries, n)

    def _dense(self, group: ComponentGroup) -> tuple[Array, Array]:
        """Compute all eigenpairs of components, as :func:`_eigenvectors`; those of small graphs are kept."""
        if group.size not in self._solved or self.is_large:
            laplacians = np.zeros((len(group.nodes), group.size, group.size), complex)
            laplacians[:, range(group.size), range(group.size)] = 1.0
            entries = self._entries[group.edges]
            laplacians[group.position, group.tail, group.head] = entries
            laplacians[group.position, group.head, group.tail] = entries.conj()
            self._solved[group.size] = _eigenvectors(laplacians)
        return self._solved[group.size]

    def _iterated(self, part: ComponentGroup, count: int) -> tuple[Array, Array] | None:
        """Compute some eigenpairs of a component by Lanczos' method; ``None`` if dense algebra is better."""
        if part.size <= max(EIGENVECTOR_NODES, count + 2):
            return None
        nodes = part.nodes[0]
        shifted = self._matrix[nodes][:, nodes] + SHIFT * eye(part.size, format="csr")
        with threads_for(part.size):
            values, vectors = sparse_eigenvectors(shifted, np.ones(part.size), count, False, 0, definite=True)
        return values[None], vectors[None]


def _heat(values: Array, vectors: Array, time: float) -> Array:
    """Return ``exp(-time L)`` of stacked matrices, ``[num_graphs, n, n]``, from their eigenvectors."""
    kernels: Array = (vectors * np.exp(-time * values)[:, None]) @ vectors.conj().swapaxes(1, 2)
    return kernels


def _eigenvectors(laplacian: Array) -> tuple[Array, Array]:
    """Compute and verify eigenvalues ``[num_graphs, n]``, ascending, and eigenvectors ``[num_graphs, n, n]``."""
    n = laplacian.shape[1]
    with threads_for(n):
        values, vectors = np.linalg.eigh(laplacian)
        residual = np.abs(laplacian @ vectors - vectors * values[:, None]).max(initial=0.0)
        defect = np.abs(vectors.conj().swapaxes(1, 2) @ vectors - np.eye(n)).max(initial=0.0)
    if not max(residual, defect) <= RESIDUAL:
        raise RuntimeError(
            f"numpy's eigenvectors are wrong: their residual is {residual:.1g}, their products are off by {defect:.1g}"
        )
    return values, vectors


def _with_phases(vectors: Array) -> Array:
    """Multiply eigenvectors ``[num_graphs, n, count]`` by the phases of :meth:`MagneticSpectrum.first`."""
    size = np.abs(vectors)
    mean = (size**2 * vectors).sum(1, keepdims=True)
    largest = (size > (1 - SAME_SIZE) * size.max(1, keepdims=True)).argmax(1)[:, None]
    anchor = np.take_along_axis(vectors, largest, 1)
    anchor = np.where(np.abs(mean) > SAME_SIZE * (size**3).sum(1, keepdims=True), mean, anchor)
    turned: Array = vectors * (anchor.conj() / np.abs(anchor))
    return turned
