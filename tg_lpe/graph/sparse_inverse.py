"""Factor the Laplacian of one large connected graph, and compute entries of its inverse."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import numpy as np
from scipy.linalg.lapack import dtrtri
from scipy.sparse import csc_matrix
from scipy.sparse.linalg import spilu, splu

from tg_lpe.graph.components import Array, ComponentGroup
from tg_lpe.graph.progress import LINEAR, Progress
from tg_lpe.graph.solvers import is_narrow
from tg_lpe.ops.blas import one_thread

LARGEST_FRONT = 16384
"""Largest number of rows of a front: a matrix takes 2 GiB, and up to six are in memory."""

MERGED = 0.75
"""A column joins the front above if its border is at least this share of the rows there."""

RELAXED = 32
"""A column and all that are eliminated into it form one front if they are at most this many."""

ACCURACY = 1e-5
"""Largest relative error of resistances."""

ROUNDING = 32 * 2.0**-52
"""Error by rounding, relative to the products of :func:`check_accuracy`."""


def refusal(group: ComponentGroup, number: int, consequence: str) -> ValueError:
    """Return the error for the weights of component ``number`` of a group, which differ too much."""
    return ValueError(
        f"edge_weight of a component of {group.size} nodes differs by a factor of {group.ratios[number]:.0e}, so "
        f"{consequence}: raise its smallest values"
    )


def check_accuracy(group: ComponentGroup, diagonal: Array, resistances: Array) -> None:
    """Refuse components whose resistances would be inaccurate.

    Rounding the diagonal of ``L`` acts like small conductors to the node of potential zero. On trees, grids and random
    graphs whose weights differ by up to 20 orders of magnitude, errors were at most 22 times the product below.

    Args:
        group: the components.
        diagonal: the diagonal of ``L``, ``[num_nodes]``.
        resistances: between each node and the one of potential zero, ``[num_components, n]``.
    """
    error = ROUNDING * np.abs(diagonal[group.nodes] * resistances).max(1)
    if not error.max() <= ACCURACY:  # it may be NaN
        wrong = f"effective resistances would not have a relative error of less than {ACCURACY:.0e}"
        raise refusal(group, int(error.argmax()), wrong)


class GroundedLaplacian:
    """Factor the Laplacian of a connected graph without the node of largest diagonal, whose potential is zero.

    Nodes are ordered by minimum degree. Columns of the factor with nearly the same rows form a front, whose border are
    the rows below its columns.

    Args:
        part: a single component. Edges of weight zero are pairs whose entries :meth:`entries` also computes.
        diagonal: the diagonal of ``L``, ``[num_nodes]`` of the batch.

    Raises:
        ValueError: if a front has more than 16,384 rows, or the factor is singular to rounding.
    """

    factor: Any

    def __init__(self, part: ComponentGroup, diagonal: Array) -> None:
        n, options = part.size, {"diag_pivot_thresh": 0.0, "options": {"SymmetricMode": True}}
        others = np.delete(np.arange(n), diagonal[part.nodes[0]].argmax())
        laplacian = part.sparse_matrix(diagonal)
        matrix = laplacian[others][:, others].tocsc()
        self.part, self.factor = part, None
        # No thread runs while SuperLU orders the nodes, so estimate that from those that branch, within cycles.
        branching = 0 if is_narrow(laplacian) else min(int((np.diff(matrix.indptr) > 3).sum()), len(part.tail) - n)
        # SciPy only exposes SuperLU's order with a factorisation: an incomplete one drops all but the diagonal.
        with suppress(RuntimeError), one_thread(), Progress(seconds=2e-8 * branching**2):  # a pivot rounds to zero
            order = spilu(matrix, drop_tol=1.0, fill_factor=1, permc_spec="MMD_AT_PLUS_A", **options).perm_c
            self.nodes = others[np.argsort(order)]
            matrix = laplacian[self.nodes][:, self.nodes].tocsc()
            self.fronts = _fronts(matrix)
            self.factor = splu(matrix, permc_spec="NATURAL", **options)
        if self.factor is None or (self.factor.perm_r != np.arange(n - 1)).any():
            raise refusal(part, 0, "the factor of its Laplacian is singular to rounding")

    def solve(self, b: Array) -> Array:
        """Solve ``L x = b`` with potential zero at the dropped node, ``[n, k]``."""
        x = np.zeros_like(b)
        x[self.nodes] = self.factor.solve(np.ascontiguousarray(b[self.nodes]))
        return x

    def entries(self) -> tuple[Array, Array]:
        """Compute the diagonal of the inverse, ``[n]``, and its entries at the edges, ``[num_edges]``.

        Each front needs the inverse at its border only, which lies within the next front: `On computing certain
        elements of the inverse of a sparse matrix <https://doi.org/10.1145/360680.360704>`_.
        """
        part, fronts, n = self.part, self.fronts, self.part.size
        place = np.full(n, n - 1)  # the dropped node, whose entries are zero, comes last
        place[self.nodes] = np.arange(n - 1)
        ends = np.sort(np.stack([place[part.tail], place[part.head]]), axis=0)
        front_of = np.full(n, len(fronts))
        for number, (columns, _) in enumerate(fronts):
            front_of[columns] = number
        above = [int(front_of[border[0]]) if len(border) else -1 for _, border in fronts]
        edges_of = _split(front_of[np.where(ends[1] < n - 1, ends[0], n - 1)], len(fronts))
        lower, pivots = self.factor.L.tocoo(), self.factor.U.diagonal()
        diagonal, edges = np.zeros(n), np.zeros(len(part.tail))
        blocks, waiting = {-1: (np.zeros(0, np.int64), np.zeros((0, 0)))}, Counter(above)
        work = [len(columns) * (len(columns) + len(border)) ** 2 for columns, border in fronts]
        with one_thread(), Progress(sum(work), " products") as progress:
            for number, entries in reversed([*enumerate(_split(front_of[lower.col], len(fronts)))]):
                columns, border = fronts[number]
                rows, own = np.concatenate([columns, border]), len(columns)
                factor = np.zeros((len(rows), own))
                factor[rows.searchsorted(lower.row[entries]), columns.searchsorted(lower.col[entries])] = lower.data[
                    entries
                ]
                inverse = dtrtri(factor[:own], lower=1, unitdiag=1)[0] if own > 1 else factor[:1]
                coupling, inverses = factor[own:] @ inverse, np.empty((len(rows), len(rows)))
                outer_rows, outer = blocks[above[number]]
                at = outer_rows.searchsorted(border)
                inverses[own:, own:] = outer[at[:, None], at]
                inverses[own:, :own] = -inverses[own:, own:] @ coupling
                inverses[:own, own:] = inverses[own:, :own].T
                inverses[:own, :own] = (inverse.T / pivots[columns]) @ inverse - coupling.T @ inverses[own:, :own]
                diagonal[self.nodes[columns]] = inverses.diagonal()[:own]
                first, second = rows.searchsorted(ends[:, edges_of[number]])
                edges[edges_of[number]] = inverses[first, second]
                progress.update(work[number])
                if waiting[number]:
                    blocks[number] = rows, inverses
                waiting[above[number]] -= 1
                if not waiting[above[number]]:
                    del blocks[above[number]]
        return diagonal, edges


def _split(front_of: Array, count: int) -> list[Array]:
    """List the entries of each front."""
    order = np.argsort(front_of, kind="stable")
    return np.split(order, front_of[order].searchsorted(np.arange(1, count + 1)))[:count]


def _fronts(matrix: csc_matrix) -> list[tuple[Array, Array]]:
    """Find the fronts of the Cholesky factor, each before the one with its border: columns, and further rows."""
    n = matrix.shape[0]
    below: list[list[Array]] = [[] for _ in range(n)]
    borders, sizes = [], [1] * n  # the number of columns that are eliminated into a column
    for column in range(n):
        rows = matrix.indices[matrix.indptr[column] : matrix.indptr[column + 1]]
        border = np.unique(np.concatenate([rows[rows > column], *below[column]]))
        below[column] = []
        borders.append(border)
        if len(border) >= LARGEST_FRONT:
            raise ValueError(
                f"the sparse factor of a component of {n + 1} nodes needs matrices of more than {LARGEST_FRONT} rows; "
                f"faster: {LINEAR}"
            )
        if len(border) == n - column - 1:  # all remaining columns are joined to each other
            break
        if len(border):
            below[border[0]].append(border[1:])
            sizes[border[0]] += sizes[column]
    last = len(borders) - 1
    borders[last] = borders[last][:0]
    front_of, extended = np.minimum(np.arange(n), last), set()
    for column in reversed(range(last)):
        if len(borders[column]):
            parent = min(int(borders[column][0]), last)
            rows_above = len(borders[parent]) + (n - last if parent == last else 1)
            if sizes[parent] <= RELAXED or (parent not in extended and len(borders[column]) - 1 >= MERGED * rows_above):
                front_of[column] = front_of[parent]
                extended.add(parent)
    roots, front_of = np.unique(front_of, return_inverse=True)
    return [(columns, borders[root]) for root, columns in zip(roots, _split(front_of, len(roots)), strict=True)]
