"""Find the connected components of a batch, and stack those of equal size for dense algebra."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from tg_lpe.graph.graph import Graph
from tg_lpe.ops.operator import host_array
from tg_lpe.ops.segment import scatter_sum

Array = NDArray[Any]

FEW_EDGES = 512
"""Up to this number of edges, union-find in Python is faster than SciPy's sparse matrices."""


def component_labels(graph: Graph) -> Tensor:
    """Find the connected component of each node, int64 ``[num_nodes]``; edges of weight zero are absent.

    Components are numbered from 0 in the order of their first nodes.
    """
    return torch.from_numpy(Components(graph).label).to(graph.device)


def _labels(num_nodes: int, tail: Array, head: Array) -> Array:
    if len(tail) > FEW_EDGES:
        pointers = np.searchsorted(tail, np.arange(num_nodes + 1))  # edges are sorted by tail
        adjacency = csr_matrix((np.ones(len(tail), dtype=np.int8), head, pointers), (num_nodes, num_nodes))
        return connected_components(adjacency, directed=False)[1].astype(np.int64)
    parent = list(range(num_nodes))
    for u, v in zip(tail.tolist(), head.tolist(), strict=True):
        while parent[u] != u:
            parent[u] = u = parent[parent[u]]
        while parent[v] != v:
            parent[v] = v = parent[parent[v]]
        if u < v:
            parent[v] = u
        elif v < u:
            parent[u] = v
    count = 0
    for node, above in enumerate(parent):  # a parent has the smaller index, and its label already
        if above == node:
            parent[node] = count
            count += 1
        else:
            parent[node] = parent[above]
    return np.array(parent, dtype=np.int64)


def without_means(parts: Components, x: Tensor) -> Tensor:
    """Subtract from each value of ``x``, ``[num_nodes, k]``, its mean over the component."""
    label, size = torch.from_numpy(parts.label).to(x.device), torch.from_numpy(parts.size).to(x)
    return x - (scatter_sum(x, label, parts.count) / size.unsqueeze(1))[label]


@dataclass(frozen=True)
class ComponentGroup:
    """Hold the components of one size ``n``, as arrays on the CPU."""

    components: Array
    """Indices of the components, int64 ``[num_components]``."""
    nodes: Array
    """Their nodes, int64 ``[num_components, n]``."""
    edges: Array
    """Their undirected edges, int64 ``[num_edges]``, in the order of the next four."""
    position: Array
    """Row of ``components`` of each edge."""
    tail: Array
    """Column of ``nodes`` of each edge's tail."""
    head: Array
    """Column of ``nodes`` of each edge's head."""
    weights: Array
    """Conductance of each edge, float64."""

    @property
    def size(self) -> int:
        """``n``."""
        return self.nodes.shape[1]

    @cached_property
    def ratios(self) -> Array:
        """Ratio of largest to smallest positive weight of each component, ``[num_components]``; one without edges."""
        w = self.weights
        if not len(w) or w.max() == w.min():
            return np.ones(len(self.nodes))
        least, most = np.full(len(self.nodes), np.inf), np.zeros(len(self.nodes))
        np.minimum.at(least, self.position[w > 0], w[w > 0])
        np.maximum.at(most, self.position, w)
        with np.errstate(over="ignore"):
            return np.where(most > 0, most / least, 1.0)

    def matrices(self, diagonal: Array, scale: Array | None = None) -> Array:
        """Return ``diag(s) L diag(s)`` of each component, float64 ``[num_components, n, n]``.

        Args:
            diagonal: the diagonal of ``L``, ``[num_nodes]``.
            scale: ``s``, ``[num_nodes]``; ones if absent.
        """
        n, w, diagonal = self.size, -self.weights, diagonal[self.nodes]
        if scale is not None:
            s = scale[self.nodes]
            w = w * s[self.position, self.tail] * s[self.position, self.head]
            diagonal = diagonal * (s * s)
        matrix = np.zeros((len(self.nodes), n, n))
        matrix[self.position, self.tail, self.head] = w
        matrix[self.position, self.head, self.tail] = w
        matrix.reshape(len(self.nodes), n * n)[:, :: n + 1] = diagonal
        return matrix

    def each(self) -> Iterator[ComponentGroup]:
        """Iterate over the components one by one."""
        by_row = np.argsort(self.position, kind="stable")
        ends = np.searchsorted(self.position[by_row], np.arange(len(self.nodes) + 1))
        for row in range(len(self.nodes)):
            mine = by_row[ends[row] : ends[row + 1]]
            edges = self.edges[mine], np.zeros_like(mine), self.tail[mine], self.head[mine], self.weights[mine]
            yield ComponentGroup(self.components[row : row + 1], self.nodes[row : row + 1], *edges)

    def sparse_matrix(self, diagonal: Array) -> csr_matrix:
        """Return ``L`` of a single component, ``[n, n]``."""
        every = np.arange(self.size)
        ends = np.concatenate([self.tail, self.head, every]), np.concatenate([self.head, self.tail, every])
        values = np.concatenate([-self.weights, -self.weights, diagonal[self.nodes[0]]])
        return csr_matrix((values, ends), (self.size, self.size))


class Components:
    """Find the connected components of a batch; NumPy arrays, float64.

    Eigenvectors, heat kernels and resistances are computed for each component by itself. A component has exactly one
    null vector, which is known, so no threshold decides which eigenvalues are zero.

    Args:
        graph: the batch.
        with_absent: whether to include edges of weight zero that lie within a component.

    Attributes:
        label: component of each node, int64 ``[num_nodes]``, as in :func:`component_labels`.
        count: number of components.
        diagonal: the diagonal of ``L``, ``[num_nodes]``.
    """

    def __init__(self, graph: Graph, with_absent: bool = False) -> None:
        self.graph, n = graph, graph.num_nodes
        self.tail, self.head = host_array(graph.tail), host_array(graph.head)
        w = graph.conductance
        self.weights = np.ones(len(self.tail)) if w is None else host_array(w.double())
        self.edges, joins = np.arange(len(self.tail)), self.weights != 0
        self.label = _labels(n, self.tail[joins], self.head[joins])
        if not joins.all():
            self.edges = np.flatnonzero(self.label[self.tail] == self.label[self.head] if with_absent else joins)
            self.tail, self.head = self.tail[self.edges], self.head[self.edges]
            self.weights = self.weights[self.edges]
        self.diagonal = np.bincount(self.tail, self.weights, n) + np.bincount(self.head, self.weights, n)
        self.count = int(self.label.max()) + 1 if n else 0

    @cached_property
    def size(self) -> Array:
        """Number of nodes of each component, int64 ``[count]``."""
        return np.bincount(self.label)

    @cached_property
    def order(self) -> Array:
        """The nodes component by component, int64 ``[num_nodes]``."""
        return np.argsort(self.label, kind="stable")

    @cached_property
    def first(self) -> Array:
        """Position of each component's first node in :attr:`order`, int64 ``[count]``."""
        return np.cumsum(self.size) - self.size

    @cached_property
    def local(self) -> Array:
        """Index of each node within its component, int64 ``[num_nodes]``."""
        local = np.empty_like(self.order)
        local[self.order] = np.arange(len(self.order)) - self.first[self.label[self.order]]
        return local

    @cached_property
    def graph_of(self) -> Array:
        """Graph of each component, int64 ``[count]``."""
        out = np.zeros(self.count, dtype=np.int64)
        out[self.label] = host_array(self.graph.batch)
        return out

    @property
    def are_graphs(self) -> bool:
        """Whether each graph of the batch is one component, in this order."""
        return self.count == self.graph.num_graphs and bool((self.graph_of == np.arange(self.count)).all())

    def pair_numbers(self, group: ComponentGroup) -> Array:
        """Return the indices in ``graph.pairs`` of the pairs of each component, int64 ``[num_components, n, n]``."""
        first, local = host_array(self.graph.first_pair), host_array(self.graph.local_index)
        return first[group.nodes][:, :, None] + local[group.nodes][:, None, :]

    @cached_property
    def groups(self) -> list[ComponentGroup]:
        """Components grouped by size, smallest first."""
        if self.count == 1:
            nodes, zeros = np.arange(len(self.label))[None], np.zeros_like(self.edges)
            return [ComponentGroup(np.zeros(1, np.int64), nodes, self.edges, zeros, self.tail, self.head, self.weights)]
        if self.count == 0:
            return []
        by_size = np.argsort(self.size, kind="stable")
        sizes, start, group = np.unique(self.size[by_size], return_index=True, return_inverse=True)
        # The group of each component, and its row in the group.
        group_of, row_of = np.empty_like(by_size), np.empty_like(by_size)
        group_of[by_size], row_of[by_size] = group, np.arange(self.count) - start[group]
        component = self.label[self.tail]
        chosen = np.argsort(group_of[component], kind="stable")
        ends = np.searchsorted(group_of[component[chosen]], np.arange(len(sizes) + 1))
        parts = []
        for number, own in enumerate(np.split(by_size, start[1:])):
            mine = chosen[ends[number] : ends[number + 1]]
            nodes = self.order[self.first[own][:, None] + np.arange(sizes[number])]
            tail, head = self.local[self.tail[mine]], self.local[self.head[mine]]
            edges = self.edges[mine], row_of[component[mine]], tail, head, self.weights[mine]
            parts.append(ComponentGroup(own, nodes, *edges))
        return parts
