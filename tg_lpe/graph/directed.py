"""Compute matrices of directed graphs: walks along, against and both ways; the magnetic Laplacian.

The directed edges are the listed edges, each counted once, with the weight of their undirected edge. Self-loops and
edges of weight zero are absent.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tg_lpe.graph.buckets import PaddedRows, matrices
from tg_lpe.graph.components import Array
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.pairs import check_pair_nodes
from tg_lpe.graph.progress import warn_if_long
from tg_lpe.graph.solvers import DENSE_LIMIT, RESIDUAL
from tg_lpe.ops.blas import threads_for
from tg_lpe.ops.operator import host_array

SPARSE_NODES = 256
"""Above this number of nodes, the matrix of a walk is sparse; its powers are dense."""

SECONDS = 1.5e-9
"""Seconds, times ``n^3``, for all eigenvectors of a complex ``n x n`` matrix on one thread."""

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
        self.rows: PaddedRows = graph.padded(dense_nodes=0, max_padding=1.0)
        one = torch.ones((), dtype=torch.float64, device=graph.device)
        weight = one.expand(graph.num_edges) if graph.conductance is None else graph.conductance.detach().to(one)
        at = self.rows.entry(*graph.edge_index.long())
        entries = one.new_zeros(self.rows.num_pairs).index_put((at,), graph.spread_to_directed(weight))
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
    stacks = DirectedMatrices(graph)
    # Transposed, so that a step multiplies from the left, by a sparse matrix if graphs are large.
    along = [_step(a) for a in stacks.adjacency]
    against = [_step(a.mT) for a in stacks.adjacency]
    probabilities = []
    for turns in ([along], [against], [along, against]):
        states = [torch.eye(a.size(1)).to(a).expand_as(a) for a in stacks.adjacency]
        for step in range(steps):
            turn = turns[step % len(turns)]
            states = [_product(matrix, state) for matrix, state in zip(turn, states, strict=True)]
            probabilities.append(stacks.entries(states, second, first))
    return torch.stack(probabilities, 1)


def _step(adjacency: Tensor) -> Tensor:
    """Return ``(D^-1 A)^T``, sparse ``[n, n]`` for one large graph."""
    degree = adjacency.sum(2, keepdim=True)
    matrix = (adjacency / degree.masked_fill(degree == 0, 1.0)).mT
    return matrix[0].to_sparse() if len(matrix) == 1 and matrix.size(1) > SPARSE_NODES else matrix


def _product(matrix: Tensor, state: Tensor) -> Tensor:
    return torch.sparse.mm(matrix, state[0]).unsqueeze(0) if matrix.is_sparse else torch.bmm(matrix, state)


class MagneticSpectrum:
    r"""Compute all eigenvectors of the magnetic Laplacian of each graph, by dense algebra on the host.

    .. math:: I - D_s^{-1/2} \left( A_s \odot e^{i 2 \pi q \, \Delta} \right) D_s^{-1/2} , \qquad
        A_s = (A + A^T) / 2 , \qquad \Delta_{uv} = [u \to v] - [v \to u] .

    `MagNet: A Neural Network for Directed Graphs <https://arxiv.org/abs/2102.11391>`_, section 2.2, with ``D_s`` the
    row sums of ``A_s``. Weights enter ``A_s`` only; directions enter ``Delta`` only.

    Args:
        graph: the graph or batch.
        potential: ``q``.

    Raises:
        ValueError: if a graph is too large for dense algebra.
        RuntimeError: if LAPACK returns vectors that are no eigenvectors.
    """

    def __init__(self, graph: Graph, potential: float) -> None:
        check_pair_nodes(graph, "MagneticLaplacian", DENSE_LIMIT)
        seconds = SECONDS * float((graph.ptr.diff().double() ** 3).sum())
        warn_if_long(seconds, "DirectedWalk, which encodes directions in O(n m) a step")
        self.graph, self.stacks = graph, DirectedMatrices(graph)
        self._spectra = [_eigenvectors(host_array(a), potential) for a in self.stacks.adjacency]

    def first(self, count: int) -> Tensor:
        """Return the eigenvectors of the ``count`` smallest eigenvalues, complex128 ``[num_nodes, count]``.

        Each has length one. Its phase makes the mean of its entries, weighted by their squared absolute values,
        positive. If that mean is zero, the first of the largest entries is positive, which depends on the order of the
        nodes. Missing columns are zero.
        """
        parts = [np.zeros((len(v), v.shape[1], count), complex) for _, v in self._spectra]
        for part, (_, vectors) in zip(parts, self._spectra, strict=True):
            chosen = vectors[..., :count]
            part[..., : chosen.shape[2]] = _with_phases(chosen)
        if not parts:
            return torch.zeros(self.graph.num_nodes, count, dtype=torch.complex128, device=self.graph.device)
        return self.stacks.rows.unpad([torch.from_numpy(part).to(self.graph.device) for part in parts])

    def heat(self, time: float, first: Tensor, second: Tensor) -> Tensor:
        """Return entries of ``exp(-time L)``, complex128 ``[num_entries]``; they do not depend on phases."""
        parts = [(v * np.exp(-time * values)[:, None]) @ v.conj().swapaxes(1, 2) for values, v in self._spectra]
        entries = self.stacks.entries([torch.from_numpy(part).to(first.device) for part in parts], first, second)
        return entries.to(torch.complex128)  # an empty batch has real entries


def _eigenvectors(adjacency: Array, potential: float) -> tuple[Array, Array]:
    """Compute and verify eigenvalues ``[num_graphs, n]``, ascending, and eigenvectors ``[num_graphs, n, n]``."""
    back = adjacency.swapaxes(1, 2)
    weight = (adjacency + back) / 2
    degree = weight.sum(2)
    scale = 1 / np.sqrt(np.where(degree > 0, degree, 1.0))
    turns = np.exp(2j * np.pi * potential * ((adjacency > 0).astype(float) - (back > 0)))
    laplacian = np.eye(adjacency.shape[1]) - scale[:, :, None] * weight * turns * scale[:, None]
    with threads_for(adjacency.shape[1]):
        values, vectors = np.linalg.eigh(laplacian)
        residual = np.abs(laplacian @ vectors - vectors * values[:, None]).max(initial=0.0)
        defect = np.abs(vectors.conj().swapaxes(1, 2) @ vectors - np.eye(adjacency.shape[1])).max(initial=0.0)
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
