"""Compute random-walk probabilities of a whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix, eye, issparse
from scipy.sparse.csgraph import breadth_first_order
from torch import Tensor

from tg_lpe.graph.components import Array, Components
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.incidence import inverse_sqrt
from tg_lpe.graph.padding import exact_polynomials
from tg_lpe.graph.pairs import COLUMN_ENTRIES, FEWEST_COLUMNS
from tg_lpe.graph.progress import FASTER_WALKS, Progress
from tg_lpe.graph.solvers import check_method, is_dense, symmetric_matrix
from tg_lpe.ops import cpu
from tg_lpe.ops.operator import host_array
from tg_lpe.ops.walks import BLOCK, add_walks_

WALK_NODES = 2048
"""Up to this number of nodes, ``method="auto"`` computes dense powers of the adjacency matrix."""

SAMPLED_BLOCKS = 2**20, 2**10, 2**6, 2**3, 2
"""The blocks after these parts of all, sorted by degree, tell how long all take."""

SECONDS_OF_A_PART, MOST_PARTS = 2.0, 100
"""Blocks are computed in parts, between which progress is shown."""

DENSE_SHARE = 0.1
"""If a larger share of the entries of sparse rows is not zero, the rows become dense."""


def random_walk_probabilities(
    graph: Graph, steps: int, *, method: str = "auto", with_edges: bool = True
) -> tuple[Tensor, Tensor]:
    """Compute the probabilities that a random walk is back at its start, or across an edge, after 1 to ``steps`` steps.

    The walk leaves along each edge in proportion to its conductance. It never returns to a node without edges. `Graph
    Neural Networks with Learnable Structural and Positional Representations <https://arxiv.org/abs/2110.07875>`_,
    eq. (7).

    Args:
        graph: the batch.
        steps: number of steps.
        method: how powers of the matrix are computed.

            - ``"dense"``: dense powers.
            - ``"iterative"``: sparse powers.
            - ``"auto"``: dense for batches of graphs of up to 2,048 nodes. For larger graphs, the compiled part counts
              the walks through each node among those that come later, and nodes with many neighbours come first.
              Without the compiled part, sparse powers.
        with_edges: whether to compute the values at the edges; zero otherwise.

    Returns:
        Return probabilities ``[num_nodes, steps]``, and the entries of ``(D^-1/2 A D^-1/2)^t`` at the undirected edges,
        ``[num_edges, steps]``: geometric means of the probabilities to go from one end to the other, and back. Both
        float64, without gradient.

    Raises:
        ValueError: on an unknown method, or a graph too large for ``method="dense"``.
    """
    check_method(method)
    like = torch.empty(0, dtype=torch.float64, device=graph.device)
    scale = inverse_sqrt(graph.laplacian_diagonal(like))
    adjacency = (graph.root_conductance(like).square() * scale[graph.tail] * scale[graph.head]).detach()
    if not is_dense(graph.max_nodes, method, WALK_NODES):
        if method == "auto" and cpu.supports(adjacency):
            return _walks_of_large_graphs(graph, adjacency, steps, with_edges)
        node, tail, head = np.arange(graph.num_nodes), host_array(graph.tail), host_array(graph.head)
        matrix, count = symmetric_matrix(tail, head, host_array(adjacency), graph.num_nodes), len(tail) * with_edges
        first, second = np.append(node, tail[:count]), np.append(node, head[:count])
        with Progress(graph.num_nodes, " nodes", FASTER_WALKS) as progress:
            values = torch.from_numpy(sparse_walks([matrix], first, second, steps, progress)).to(adjacency)
        return values[: len(node)], values[len(node) :] if with_edges else adjacency.new_zeros(len(tail), steps)
    # D^-1/2 A D^-1/2 is similar to the walk's D^-1 A: their powers share the diagonal.
    nodes, edges = exact_polynomials(graph, adjacency.unsqueeze(0), "power", steps)
    return nodes, edges if with_edges else edges.zero_()


def _walks_of_large_graphs(graph: Graph, adjacency: Tensor, steps: int, with_edges: bool) -> tuple[Tensor, Tensor]:
    """Compute :func:`random_walk_probabilities` in the compiled part, through one node after the other."""
    size, label = graph.num_nodes, Components(graph).label
    # A search from one more node, beside the first of each component, numbers neighbours one after the other.
    first = np.unique(label, return_index=True)[1]
    ends = np.append(host_array(graph.tail), first), np.append(host_array(graph.head), np.full(len(first), size))
    matrix = symmetric_matrix(*ends, np.ones(len(ends[0]), np.int8), size + 1)
    near, degree = breadth_first_order(matrix, size, return_predecessors=False)[1:], np.diff(matrix.indptr)
    order = near[np.lexsort((-np.frexp(degree[near])[1], label[near]))].astype(np.int64)  # hubs come first
    # Each graph begins a block, so that its sums are the same in any batch.
    counts = graph.ptr.diff()
    of_graph = (counts + BLOCK - 1) // BLOCK
    begin, num_blocks = BLOCK * (of_graph.cumsum(0) - of_graph), int(of_graph.sum())
    rank = torch.empty(size, dtype=torch.int64)
    rank[torch.from_numpy(order)] = torch.arange(size) + (begin - graph.ptr[:-1]).repeat_interleave(counts)
    tail, head = torch.stack([rank[graph.tail], rank[graph.head]]).sort(0).values
    by_tail = torch.argsort(tail * (BLOCK * num_blocks) + head)
    nodes, edges = (adjacency.new_zeros(count, steps) for count in (BLOCK * num_blocks, graph.num_edges))
    arguments = nodes, edges if with_edges else None, adjacency[by_tail], tail[by_tail], head[by_tail]
    degrees = np.zeros((num_blocks, BLOCK), np.int64)
    degrees.flat[rank.numpy()] = degree[:-1]
    by_degree, place = np.argsort(-degrees.max(1), kind="stable"), np.arange(num_blocks)
    samples = np.unique(place[-1] // np.array(SAMPLED_BLOCKS))
    taken = add_walks_(*arguments, torch.from_numpy(by_degree[samples])).numpy()
    seconds = np.empty(num_blocks)
    seconds[by_degree] = np.exp(np.interp(np.log1p(place), np.log1p(samples), np.log(taken + 1e-9)))
    seconds /= torch.get_num_threads()
    total = float(seconds.sum())
    part = seconds.cumsum() // max(SECONDS_OF_A_PART, total / MOST_PARTS)
    nodes.zero_(), edges.zero_()  # the samples are computed again, in their turn
    with Progress(total, " s", FASTER_WALKS, total) as progress:
        for blocks in np.split(place, np.flatnonzero(np.diff(part)) + 1):
            add_walks_(*arguments, torch.from_numpy(blocks))
            progress.update(float(seconds[blocks].sum()))
    return nodes[rank], torch.empty_like(edges).index_copy_(0, by_tail, edges)


def sparse_walks(turns: Sequence[csr_matrix], first: Array, second: Array, steps: int, progress: Progress) -> Array:
    """Compute entries of ``P``, ``P Q``, ``P Q P``, .. of sparse matrices that take turns, for some rows at a time.

    Rows become dense when they have many entries.

    Args:
        turns: the matrices, one or several, ``[n, n]``.
        first, second: rows and columns of the entries, int64 ``[num_entries]``.
        steps: number of factors.
        progress: counts the rows that are computed, ``n``.

    Returns:
        ``[num_entries, steps]``.
    """
    size = turns[0].shape[0]
    transposed, order = [matrix.T.tocsr() for matrix in turns], np.argsort(first, kind="stable")
    starts, ends, out = first[order], second[order], np.zeros((len(order), steps))
    width = max(FEWEST_COLUMNS, COLUMN_ENTRIES // max(1, size))
    for begin in range(0, size, width):
        low, high = np.searchsorted(starts, (begin, begin + width))
        row, column = starts[low:high] - begin, ends[low:high]
        rows: Any = eye(min(width, size - begin), size, begin, format="csr")
        for step in range(steps) if low < high else ():
            at = step % len(turns)
            rows = rows @ turns[at] if issparse(rows) else transposed[at] @ rows  # dense rows are columns
            if issparse(rows) and rows.nnz > DENSE_SHARE * rows.shape[0] * size:
                rows = np.ascontiguousarray(rows.toarray().T)
            out[order[low:high], step] = rows[row, column] if issparse(rows) else rows[column, row]
        progress.update(min(width, size - begin))
    return out
