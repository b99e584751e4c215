"""Compute random-walk probabilities of a whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix, eye, issparse
from torch import Tensor

from tg_lpe.graph.components import Array
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.incidence import inverse_sqrt
from tg_lpe.graph.padding import exact_polynomials
from tg_lpe.graph.pairs import COLUMN_ENTRIES, FEWEST_COLUMNS
from tg_lpe.graph.progress import FASTER_WALKS, SHOWN_AFTER, entries_in_reach, shown, ticking, warn_if_long, watched
from tg_lpe.graph.solvers import (
    PRODUCTS_A_SECOND,
    SPARSE_PRODUCTS_A_SECOND,
    check_method,
    is_dense,
    polynomial_entries,
    symmetric_matrix,
)
from tg_lpe.ops import cpu
from tg_lpe.ops.balls import ball_orders, ball_polynomials
from tg_lpe.ops.operator import host_array
from tg_lpe.ops.polynomials import matrix_polynomials

WALK_NODES = 2048
"""Up to this number of nodes, ``method="auto"`` computes dense powers of the adjacency matrix."""

WALK_VISITS = 2**12
"""Smallest limit on the edges visited around a node of a larger graph; nodes with more use columns of the matrix."""

MANY_COLUMNS = 0.25
"""If a larger share of the nodes of a graph needs its columns, all columns are computed."""

VISIT_PRODUCTS = 128
"""Products of the matrix with a column that take as long as visiting one edge of a neighbourhood."""

WALKS_AT_ONCE, MOST_CALLS = 2**14, 8
"""Fewest nodes whose neighbourhoods are walked in one call, and most calls: progress is shown between calls, and each
reads the whole graph."""

DENSE_SHARE = 0.1
"""If a larger share of the entries of sparse rows is not zero, the rows become dense."""

BALL_PRODUCTS_A_SECOND, COLUMN_PRODUCTS_A_SECOND = 5e8, 4e9
"""Multiplications a second of one thread around each node, and in the powers of a whole graph, for estimates."""


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
            - ``"auto"``: dense for batches of graphs of up to 2,048 nodes. For larger graphs, the compiled part visits
              the edges around a node if they are few, and otherwise multiplies the matrix by columns of the identity.
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
        values = torch.from_numpy(sparse_walks([matrix], first, second, steps)).to(adjacency)
        return values[: len(node)], values[len(node) :] if with_edges else adjacency.new_zeros(len(tail), steps)
    # D^-1/2 A D^-1/2 is similar to the walk's D^-1 A: their powers share the diagonal.
    nodes, edges = exact_polynomials(graph, adjacency.unsqueeze(0), "power", steps)
    return nodes, edges if with_edges else edges.zero_()


def _walks_of_large_graphs(graph: Graph, adjacency: Tensor, steps: int, with_edges: bool) -> tuple[Tensor, Tensor]:
    """Compute :func:`random_walk_probabilities` in the compiled part: around each node, or by columns if cheaper."""
    entries, ends, wanted = adjacency.unsqueeze(0), (graph.tail, graph.head), steps + with_edges
    column = steps * (1 + 2 * graph.num_edges // max(1, graph.num_nodes)) * graph.max_nodes
    limit, threads = max(WALK_VISITS, column // VISIT_PRODUCTS), torch.get_num_threads()
    by_ball, by_column = steps * limit / BALL_PRODUCTS_A_SECOND, column / COLUMN_PRODUCTS_A_SECOND
    seconds = graph.num_nodes * max(by_ball, by_column) / threads
    if seconds > SHOWN_AFTER:  # most balls have fewer edges than the limit
        matrix = symmetric_matrix(
            host_array(graph.tail), host_array(graph.head), host_array(adjacency), graph.num_nodes
        )
        share = entries_in_reach(matrix, (wanted + 1) // 2)[-1] / limit
        seconds = graph.num_nodes * np.where(share > 1, by_column + by_ball / steps, by_ball * share).mean() / threads
    warn_if_long(seconds, FASTER_WALKS)
    orders = ball_orders(*ends, graph.num_nodes, wanted, limit)
    unknown = orders < wanted
    orders = orders.masked_fill_(unknown, 1)
    nodes, edges = (adjacency.new_zeros(count, steps) for count in (graph.num_nodes, graph.num_edges))
    owner = torch.where(orders[graph.tail] >= orders[graph.head], graph.tail, graph.head)
    count = min(-(-graph.num_nodes // WALKS_AT_ONCE), MOST_CALLS)
    with shown(count, seconds, " parts") as bar:
        for part in range(count):
            in_part = torch.arange(graph.num_nodes) % count == part
            at_nodes, at_edges = ball_polynomials(entries, *ends, orders.where(in_part, 1), "power", steps, with_edges)
            nodes[in_part] = at_nodes[in_part]
            if with_edges:
                edges[in_part[owner]] = at_edges[in_part[owner]]
            bar.update()
    for number in torch.unique(graph.batch[unknown]).tolist():
        rows_of_graph = slice(*graph.ptr[number : number + 2].tolist())
        edges_of_graph = slice(*graph.edge_ptr[number : number + 2].tolist())
        size, first = rows_of_graph.stop - rows_of_graph.start, graph.ptr[number]
        tail, head = graph.tail[edges_of_graph] - first, graph.head[edges_of_graph] - first
        columns = unknown[rows_of_graph].nonzero().flatten()
        if columns.numel() > MANY_COLUMNS * size:  # all columns in the compiled part are faster than some in scipy
            structure = tail, head, graph.ptr[number : number + 2] - first, size, size
            with ticking(steps * size * (size + 2.0 * len(tail)) / (COLUMN_PRODUCTS_A_SECOND * threads)):
                nodes[rows_of_graph], at_edges = matrix_polynomials(
                    entries[:, edges_of_graph].contiguous(), *structure, "power", steps
                )
            if with_edges:
                edges[edges_of_graph] = at_edges
            continue
        rows, others, w = host_array(tail), host_array(head), host_array(adjacency[edges_of_graph])
        matrix = symmetric_matrix(rows, others, w, size)
        if not with_edges:
            rows, others = rows[:0], others[:0]
        powers = np.eye(steps, steps + 1, k=1)
        powers_at = polynomial_entries(matrix, powers, False, rows, others, FASTER_WALKS, host_array(columns).copy())
        nodes[rows_of_graph][columns] = torch.from_numpy(powers_at[0]).to(nodes)[columns]
        if with_edges:
            is_read = unknown[rows_of_graph][tail]
            edges[edges_of_graph][is_read] = torch.from_numpy(powers_at[1]).to(edges)[is_read]
    return nodes, edges


def sparse_walks(turns: Sequence[csr_matrix], first: Array, second: Array, steps: int) -> Array:
    """Compute entries of ``P``, ``P Q``, ``P Q P``, .. of sparse matrices that take turns, for some rows at a time.

    Rows become dense when they have many entries.

    Args:
        turns: the matrices, one or several, ``[n, n]``.
        first, second: rows and columns of the entries, int64 ``[num_entries]``.
        steps: number of factors.

    Returns:
        ``[num_entries, steps]``.
    """
    size, pattern = turns[0].shape[0], sum(turns[1:], turns[0])
    seconds = float(steps) * size * pattern.nnz / SPARSE_PRODUCTS_A_SECOND
    if seconds > SHOWN_AFTER:  # few entries are in reach of the first steps
        entries = entries_in_reach(pattern, steps) / SPARSE_PRODUCTS_A_SECOND
        seconds = size * np.minimum(entries, pattern.nnz / PRODUCTS_A_SECOND).mean(1).sum()
    transposed, order = [matrix.T.tocsr() for matrix in turns], np.argsort(first, kind="stable")
    starts, ends, out = first[order], second[order], np.zeros((len(order), steps))
    width = max(FEWEST_COLUMNS, COLUMN_ENTRIES // max(1, size))
    for begin in watched(range(0, size, width), seconds, FASTER_WALKS):
        low, high = np.searchsorted(starts, (begin, begin + width))
        if low == high:
            continue
        row, column = starts[low:high] - begin, ends[low:high]
        rows: Any = eye(min(width, size - begin), size, begin, format="csr")
        for step in range(steps):
            at = step % len(turns)
            rows = rows @ turns[at] if issparse(rows) else transposed[at] @ rows  # dense rows are columns
            if issparse(rows) and rows.nnz > DENSE_SHARE * rows.shape[0] * size:
                rows = np.ascontiguousarray(rows.toarray().T)
            out[order[low:high], step] = rows[row, column] if issparse(rows) else rows[column, row]
    return out
