"""Compute values of pairs of nodes of each graph: random walks, distances, personalised PageRank."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from tg_lpe.graph.buckets import matrices
from tg_lpe.graph.components import component_labels
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.incidence import inverse_sqrt
from tg_lpe.graph.progress import FASTER_WALKS, LINEAR, Progress
from tg_lpe.graph.solvers import ROUNDING, polynomial_entries, symmetric_matrix
from tg_lpe.ops.operator import host_array, large_empty
from tg_lpe.ops.segment import scatter_sum

COLUMN_ENTRIES = 2**20
"""Entries of a block of columns, small enough for the cache."""

FEWEST_COLUMNS = 32
"""Fewest columns of a block."""

FASTER_PAGERANK, FASTER_HOPS = f"larger alphas, or {LINEAR}", f"a smaller max_distance, or {LINEAR}"
"""The faster choices that warnings name."""

PAIR_NODES = 2048
"""Largest graph whose pairs are computed: 16 values of each take 256 MiB in float32."""

ROWS_AT_ONCE = 1024
"""Number of nodes of small graphs that form a block: their matrices stay in a core's cache."""

RUN_NODES = 64
"""Consecutive graphs of up to so many nodes together are computed as one graph, where graphs are taken one by one."""

MAX_PADDING = 1.25
"""Largest ratio of graph sizes in a stack of matrices that are inverted."""


def check_pair_nodes(graph: Graph, name: str, limit: int = PAIR_NODES, instead: str = LINEAR) -> None:
    """Raise ``ValueError`` if a graph has more than ``limit`` nodes: its pairs would take too much memory."""
    if graph.max_nodes > limit:
        raise ValueError(
            f"{name} computes all pairs of nodes and takes graphs of up to {limit:,} nodes, got {graph.max_nodes:,}; "
            f"for larger ones: {instead}"
        )


def runs_of_graphs(graph: Graph) -> list[int]:
    """Cut a batch into single graphs and runs of small ones; return the first node of each, and the number of nodes."""
    cuts, ptr = [0], graph.ptr.tolist()
    for start, last in pairwise(ptr):
        if last - cuts[-1] > RUN_NODES and start > cuts[-1]:
            cuts.append(start)
    return [*cuts, ptr[-1]]


@torch.compiler.disable  # the blocks depend on the data
def walk_pairs(graph: Graph, steps: int, dtype: torch.dtype = torch.float64) -> Tensor:
    r"""Compute the probabilities of random walks between all pairs of nodes after 0, 1, .. ``steps - 1`` steps.

    .. math:: [I, M, M^2, \dots]_{uv}, \qquad M = D^{-1} A .

    A node without edges has a row of zeros in ``M``. All terms are positive, so each entry is accurate to rounding.

    Returns:
        ``[num_pairs, steps]``, in the order of ``graph.pairs``; a transposed view, contiguous by step.
    """
    out = large_empty((steps, graph.num_pairs), dtype, graph.device)
    source, target, walk = _transitions(graph)
    with Progress(steps * graph.num_pairs, " pairs", FASTER_WALKS) as progress:
        for block in _blocks(graph, source, target, walk.to(dtype)):
            columns = block.identity
            for step in range(steps):
                columns = block.multiply(columns) if step else columns
                torch.index_select(columns.flatten(), 0, block.places, out=out[step, block.pairs])
                progress.update(len(block.places))
    return out.mT


@torch.compiler.disable  # the blocks depend on the data
def hop_pairs(graph: Graph, max_distance: int) -> Tensor:
    """Count the edges of the shortest path between each pair of nodes; weights are ignored.

    Returns:
        int64 ``[num_pairs]``, in the order of ``graph.pairs``: 0 to ``max_distance``, ``max_distance + 1`` for larger
        distances, ``max_distance + 2`` for nodes that no path joins.
    """
    out = torch.empty(graph.num_pairs, device=graph.device)
    source, target = _both_ways(graph)
    with Progress(max_distance * graph.num_pairs, " pairs", FASTER_HOPS) as progress:
        for block in _blocks(graph, source, target, torch.ones(len(source), device=graph.device)):
            frontier = reached = block.identity
            distance = (max_distance + 1) * (1 - reached)
            for hops in range(1, max_distance + 1):
                frontier = ((block.multiply(frontier) > 0) & (reached == 0)).to(reached)
                distance = distance.masked_fill(frontier > 0, hops)
                reached = reached + frontier
                progress.update(len(block.places))
            out[block.pairs] = distance.flatten().index_select(0, block.places)
    label, (first, second) = component_labels(graph.with_conductances(None)), graph.pairs
    return out.long() + (label[first] != label[second])


@torch.compiler.disable  # the blocks depend on the data
def hop_counts(graph: Graph, max_distance: int) -> Tensor:
    """Count the nodes of each class of :func:`hop_pairs` around each node, for some nodes at a time.

    Returns:
        int64 ``[num_nodes, max_distance + 3]``.
    """
    source, target = _both_ways(graph)
    label = component_labels(graph.with_conductances(None))
    out = label.new_zeros(graph.num_nodes, max_distance + 3)
    with Progress(graph.num_nodes, " nodes", FASTER_HOPS) as progress:
        for start, last in pairwise(runs_of_graphs(graph)):
            size, inside = last - start, (source >= start) & (source < last)
            ends = torch.stack([source[inside], target[inside]]) - start
            values = torch.ones(ends.size(1), device=graph.device)
            adjacency = torch.sparse_coo_tensor(ends, values, (size, size), check_invariants=False).coalesce()
            width = max(FEWEST_COLUMNS, COLUMN_ENTRIES // max(1, size))
            for begin in range(start, last, width):
                nodes = torch.arange(begin, min(begin + width, last), device=graph.device)
                frontier = values.new_zeros(size, len(nodes))
                frontier[nodes - start, nodes - begin] = 1.0
                reached = frontier > 0
                out[nodes, 0] = 1
                for hops in range(1, max_distance + 1):
                    is_new = (torch.sparse.mm(adjacency, frontier) > 0) & ~reached
                    reached |= is_new
                    frontier = is_new.to(values)
                    out[nodes, hops] = is_new.sum(0)
                progress.update(len(nodes))
    in_component = label.bincount()[label]
    out[:, -2] = in_component - out.sum(1)
    out[:, -1] = graph.ptr.diff()[graph.batch] - in_component
    return out


@torch.compiler.disable  # the stacks depend on the data
def pagerank_pairs(graph: Graph, alphas: Sequence[float]) -> Tensor:
    r"""Compute personalised PageRank: where a walk ends that stops before each step with probability ``alpha``.

    .. math:: \alpha \, (I - (1 - \alpha) M)^{-1}_{uv}, \qquad M = D^{-1} A .

    A walk from a node without edges ends there.

    Returns:
        ``[num_pairs, num_alphas]``, in the order of ``graph.pairs``, float64.
    """
    rows = graph.padded(max_padding=MAX_PADDING)
    source, target, walk = _transitions(graph)
    stays = torch.arange(graph.num_nodes, device=graph.device)
    stays = stays[scatter_sum(walk, source, graph.num_nodes) == 0]
    entry = torch.cat([rows.entry(source, target), rows.entry(stays, stays)])
    walk = torch.cat([walk, walk.new_ones(stays.numel())])
    flat = walk.new_zeros(rows.num_pairs).index_copy(0, entry, walk)
    values = []
    for alpha in alphas:
        parts = [
            alpha * torch.linalg.inv(torch.eye(m.size(1), dtype=m.dtype, device=m.device) - (1 - alpha) * m)
            for m in matrices(rows.buckets, flat)
        ]
        values.append(torch.cat([flat[:0], *(part.flatten() for part in parts)]))
    entries = torch.stack(values).index_select(1, rows.entry(*graph.pairs))
    return entries.clamp_(min=0.0).mT  # rounding makes some of the smallest entries negative


@torch.compiler.disable  # the terms are computed on the host
def pagerank_entries(graph: Graph, alphas: Sequence[float]) -> tuple[Tensor, Tensor]:
    r"""Compute entries of :func:`pagerank_pairs` at nodes, and the geometric means of both directions at edges.

    With ``b = 1 - alpha``, they are the entries of a function of ``P = D^-1/2 A D^-1/2``, here as a Chebyshev series:

    .. math:: \frac{\alpha}{1 - b P} = \frac{\alpha}{\sqrt{1 - b^2}} \Bigl(1 + 2 \sum_{j > 0} \rho^j T_j(P)\Bigr) ,
        \qquad \rho = \frac{1 - \sqrt{1 - b^2}}{b} .

    Returns:
        ``[num_nodes, num_alphas]`` and ``[num_edges, num_alphas]``, float64.
    """
    like = torch.ones((), dtype=torch.float64, device=graph.device)
    degree, w = graph.laplacian_diagonal(like).detach(), graph.root_conductance(like).detach().square()
    scale = inverse_sqrt(degree)
    adjacency = host_array(w * scale[graph.tail] * scale[graph.head])
    alpha = np.array(alphas)[:, None]
    root = np.sqrt(alpha * (2 - alpha))
    ratio = (1 - alpha) / (1 + root)  # equal to that above, without cancellation
    j = np.arange(1 + math.ceil(math.log(ROUNDING) / math.log(ratio.max())))
    series = np.where(j == 0, 1.0, 2.0) * alpha / root * ratio**j
    tail, head, n = host_array(graph.tail), host_array(graph.head), graph.num_nodes
    matrix = symmetric_matrix(tail, head, adjacency, n)
    nodes, edges = np.zeros((n, len(series))), np.zeros((len(tail), len(series)))
    with Progress(n, " nodes", FASTER_PAGERANK) as progress:
        for start, last in pairwise(runs_of_graphs(graph)):
            own = slice(*np.searchsorted(tail, (start, last)))  # edges are sorted by tail
            nodes[start:last], edges[own] = polynomial_entries(
                matrix[start:last, start:last], series, tail[own] - start, head[own] - start, progress
            )
    at_nodes = torch.from_numpy(nodes).to(graph.device)
    at_nodes[degree == 0] = 1.0  # a walk from there stays
    return at_nodes, torch.from_numpy(edges).to(graph.device).clamp_(min=0.0)


@dataclass(frozen=True)
class _Block:
    """Hold consecutive graphs of a batch, and the sparse matrix of each."""

    weights: Tensor
    columns: Tensor
    pointers: Tensor
    identity: Tensor
    """``[num_nodes, max_nodes]``: the identity matrices of the graphs, one below the other."""
    pairs: slice
    """Their pairs among those of the batch."""
    places: Tensor
    """Indices of these pairs in a flattened matrix with the layout of :attr:`identity`."""

    def multiply(self, matrix: Tensor) -> Tensor:
        """Multiply the sparse matrices by dense matrices with the layout of :attr:`identity`."""
        return functional.embedding_bag(
            self.columns, matrix, self.pointers, mode="sum", per_sample_weights=self.weights, include_last_offset=True
        )


def _blocks(graph: Graph, source: Tensor, target: Tensor, weights: Tensor) -> Iterator[_Block]:
    """Cut a batch into blocks; the entries of its sparse matrix lie at ``(source, target)``."""
    order = torch.argsort(source, stable=True)
    target, weights = target[order], weights[order]
    counts = scatter_sum(torch.ones_like(source), source, graph.num_nodes)
    pointers = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    sizes = graph.ptr.diff()
    ptr, entry_ptr, pair_ptr = torch.stack(
        [graph.ptr, pointers[graph.ptr], torch.cat([sizes.new_zeros(1), sizes.square().cumsum(0)])]
    ).tolist()
    row_sizes, local, begin = sizes.index_select(0, graph.batch), graph.local_index, 0
    while begin < graph.num_graphs:
        end = begin + 1
        while end < graph.num_graphs and ptr[end + 1] - ptr[begin] <= ROWS_AT_ONCE:
            end += 1
        nodes, pairs = slice(ptr[begin], ptr[end]), slice(pair_ptr[begin], pair_ptr[end])
        entries = slice(entry_ptr[begin], entry_ptr[end])
        width = max(1, *(ptr[number + 1] - ptr[number] for number in range(begin, end)))
        begin = end
        row = torch.arange(nodes.stop - nodes.start, device=graph.device)
        # Rows of the matrix are padded to the width; pairs are not.
        padding = (row * width).sub_(graph.first_pair[nodes] - pairs.start)
        shift = padding.repeat_interleave(row_sizes[nodes], output_size=pairs.stop - pairs.start)
        yield _Block(
            weights[entries],
            target[entries] - nodes.start,
            pointers[nodes.start : nodes.stop + 1] - entries.start,
            weights.new_zeros(len(row), width).index_put_((row, local[nodes]), weights.new_ones(())),
            pairs,
            torch.arange(len(shift), device=graph.device).add_(shift),
        )


def _both_ways(graph: Graph) -> tuple[Tensor, Tensor]:
    """Return sources and targets of the undirected edges in both directions, ``[2 * num_edges]`` each."""
    return torch.cat([graph.tail, graph.head]), torch.cat([graph.head, graph.tail])


def _transitions(graph: Graph) -> tuple[Tensor, Tensor, Tensor]:
    """Return sources, targets and entries of ``D^-1 A``, ``[2 * num_edges]`` each, float64."""
    source, target = _both_ways(graph)
    degree = graph.laplacian_diagonal(torch.ones((), dtype=torch.float64, device=graph.device)).detach()
    weight = degree.new_ones(graph.num_edges) if graph.conductance is None else graph.conductance.detach().double()
    return source, target, weight.repeat(2) / degree.masked_fill(degree == 0, 1.0)[source]
