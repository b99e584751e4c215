"""Compute effective resistances of one large connected graph by eliminating its nodes one after another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.sparse import csc_matrix
from scipy.sparse.linalg import spilu
from tqdm import tqdm

from tg_lpe.graph.components import Array
from tg_lpe.graph.progress import SHOWN_AFTER, shown, warn_if_long
from tg_lpe.ops.blas import one_thread
from tg_lpe.ops.operator import without_transforms

LARGEST_FRONT = 16384
"""Largest number of nodes of a front: a matrix takes 2 GiB, and up to six are in memory."""

LEAF_ROUNDS = 16
"""Number of rounds in which leaves are eliminated before all other nodes."""

BLOCK = 48
"""Number of nodes of a front that are eliminated with one matrix product."""

STRIPE = 512
"""Rows of a symmetric product that are computed at once; smaller fronts use numpy."""

MERGED = 0.75
"""A front joins the front above if its border is at least this share of the nodes there."""

PRODUCTS_A_SECOND = 1e10
"""Multiplications a second of one thread in products of large matrices, for estimates."""


_EMPTY = np.zeros(0, dtype=np.int64)


@dataclass(eq=False)
class Front:
    """Hold nodes that are eliminated together, and the later nodes joined to them, in the order of elimination."""

    nodes: Array
    """The nodes that are eliminated, ``[a]``."""
    border: Array
    """The nodes that stay, ``[b]``."""
    children: list[Front] = field(default_factory=list, repr=False)
    """Fronts whose borders lie within this front, the one with the most nodes below it first."""
    edges: Array = field(default_factory=lambda: _EMPTY)
    """The edges whose first eliminated end is in this front."""
    every: Array = field(init=False)
    """All nodes of the front, ``[a + b]``."""
    place: Array = field(default_factory=lambda: _EMPTY)
    """Positions of the border among the nodes of the front above, ``[b]``."""
    shares: Array = field(default_factory=lambda: np.zeros((0, 0)))
    """Conductance to each later node as a share of ``total``, ``[a, a + b]``, strictly upper triangular."""
    total: Array = field(default_factory=lambda: np.zeros(0))
    """Conductance of each node to all later nodes, ``[a]``; zero for the last node of all."""

    def __post_init__(self) -> None:
        self.every = np.concatenate([self.nodes, self.border])

    @property
    def inner(self) -> range:
        """Positions of the eliminated nodes, without the last node of all."""
        return range(min(len(self.nodes), len(self.every) - 1))


class Elimination:
    """Eliminate the nodes of a connected graph one after another by star-mesh transforms.

    Eliminating a node adds conductors between its neighbours, so that no resistance between the remaining nodes
    changes. Only positive numbers are added. So conductances, and resistances between nodes, are accurate to rounding
    for weights of any size; mean resistances to at most ``2n`` times rounding. Nodes are ordered by minimum degree, and
    nodes with nested neighbours form a dense front (`The multifrontal solution of indefinite sparse symmetric linear
    equations <https://doi.org/10.1145/356044.356047>`_).

    Args:
        num_nodes: ``n``.
        tail, head: ends of the undirected edges, ``[num_edges]``, each once. The edges of positive weight connect all
            nodes.
        weights: conductances, ``[num_edges]``. An edge of weight zero is a pair of nodes whose resistance is wanted;
            many of them between distant nodes take time and memory.

    Raises:
        ValueError: if more than 16,384 nodes would be joined to each other.
    """

    def __init__(self, num_nodes: int, tail: Array, head: Array, weights: Array) -> None:
        self.num_nodes, self.tail, self.head, self.weights = num_nodes, tail, head, weights
        # A power of two changes no digit, and keeps products and sums of very small and very large weights finite.
        present = np.log2(weights[weights > 0])
        self._unit = 2.0 ** round((present.min() + present.max()) / 2) if len(present) else 1.0
        self.fronts = _fronts(num_nodes, tail, head, weights)
        self._place = np.zeros(num_nodes, dtype=np.int64)
        self._through = np.full(num_nodes, 1 / num_nodes)
        self.largest = max(len(front.every) for front in self.fronts)
        _check_front(num_nodes, self.largest)
        self._work = float(sum(len(front.nodes) * len(front.every) ** 2 for front in self.fronts))
        # Resistances take about as long again.
        self._seconds = self._work / (PRODUCTS_A_SECOND * torch.get_num_threads())
        warn_if_long(2 * self._seconds, "ResistiveEmbedding, whose distances approximate resistances to a few percent")
        with self._watched() as bar:
            self._eliminate(bar)

    @contextmanager
    def _watched(self) -> Iterator[tqdm]:
        """Run one pass over the fronts with numpy on one thread: torch computes the large products on its threads."""
        with one_thread(), without_transforms(), shown(self._work, self._seconds) as bar:
            yield bar

    def _eliminate(self, bar: tqdm) -> None:
        """Eliminate the fronts from first to last; each passes the conductances of its border to the front above."""
        border_weights: dict[Front, Array] = {}
        weights = self.weights / self._unit
        for front in self.fronts:
            count, every = len(front.nodes), front.every
            self._place[every] = np.arange(len(every))
            w = np.zeros((len(every), len(every)))
            first, second = self._place[self.tail[front.edges]], self._place[self.head[front.edges]]
            w[first, second] = w[second, first] = weights[front.edges]
            for child in front.children:
                child.place = self._place[child.border]
                w[child.place[:, None], child.place] += border_weights.pop(child)
            through = self._through[every]
            front.total = _take_away(w, count, through, bar)
            self._through[every] = through
            front.shares = np.triu(w[:count], 1)
            if len(front.border):
                border_weights[front] = _symmetric(w[count:, count:])
            del w

    def resistances(self) -> tuple[Array, Array]:
        """Return the mean resistance of each node to all nodes, ``[n]``, and resistances of edges, ``[num_edges]``.

        Back-substitution from the last front to the first: a node lies at the mean of the later nodes, weighted by its
        shares, plus a new direction whose length is the square root of its resistance to all of them together.
        """
        edges, to_last, sums = np.zeros(len(self.tail)), np.zeros(self.num_nodes), np.zeros(self.num_nodes)
        # A front waits with the resistances of the front above it, which are dropped after its last child.
        waiting: list[tuple[Front, Array]] = [(self.fronts[-1], np.zeros((0, 1)))]
        with self._watched() as bar:
            while waiting:
                front, above = waiting.pop()
                count, every = len(front.nodes), front.every
                # The last column is the last node of all, whether it is in this front or not.
                inverse_entries = np.zeros((len(every), len(every) + 1))
                inverse_entries[count:, count:] = above[front.place[:, None], np.append(front.place, -1)]
                _put_back(front, inverse_entries, bar)
                to_last[front.nodes] = inverse_entries[:count, -1]
                front_sums = sums[every]
                for node in reversed(front.inner):
                    front_sums[node] = self._through[every[node]] / front.total[node] + front.shares[node] @ front_sums
                sums[front.nodes] = front_sums[:count]
                self._place[every] = np.arange(len(every))
                edges[front.edges] = inverse_entries[
                    self._place[self.tail[front.edges]], self._place[self.head[front.edges]]
                ]
                waiting += [(child, inverse_entries) for child in front.children]
        # The terms are at most 2n times the result, since each mean includes the resistance to the last node.
        means = to_last + (to_last / self.num_nodes).sum() - 2 * sums
        return means / self._unit, edges / self._unit

    def all_resistances(self) -> Array:
        """Return the resistances of all pairs of nodes, ``[n, n]``."""
        out = np.zeros((self.num_nodes, self.num_nodes))
        done = np.zeros(0, dtype=np.int64)
        with self._watched() as bar:
            for front in reversed(self.fronts):
                count, columns = len(front.nodes), np.concatenate([front.every, done])
                values = np.zeros((len(front.every), len(columns)))
                values[count:, count:] = out[front.border[:, None], columns[count:]]
                _put_back(front, values, bar)
                out[front.nodes[:, None], columns] = values[:count]
                out[columns[:, None], front.nodes] = values[:count].T
                done = np.concatenate([done, front.nodes])
        return out / self._unit


def _take_away(w: Array, count: int, through: Array, bar: tqdm) -> Array:
    """Eliminate the first nodes of a front in place.

    Args:
        w: conductances ``[s, s]``; the diagonal is ignored. The first ``count`` rows become shares above the diagonal,
            the rest the conductances between the remaining nodes.
        count: number of nodes to eliminate.
        through: currents into the nodes, ``[s]``; the eliminated nodes pass theirs on.
        bar: shows progress.

    Returns:
        Conductance of each eliminated node to all later nodes, ``[count]``.
    """
    total = np.zeros(count)
    for first in range(0, count, BLOCK):
        last = min(first + BLOCK, count)
        conductors = w[first:last, last:].copy()
        for node in range(first, min(last, len(w) - 1)):
            row = w[node, node + 1 :]
            total[node] = row.sum()
            share = row / total[node]
            through[node + 1 :] += share * through[node]
            w[node + 1 : last, node + 1 :] += row[: last - node - 1, None] * share
            conductors[node - first] = row[last - node - 1 :]
            row[:] = share
        _add_symmetric(w[last:, last:], conductors, w[first:last, last:])
        bar.update((last - first) * len(w) ** 2)
    return total


def _symmetric(w: Array) -> Array:
    """Copy a matrix and mirror its part above the diagonal."""
    out = w.copy()
    for begin in range(0, len(w), STRIPE):
        end = begin + STRIPE
        out[begin:end, begin:end] = np.triu(w[begin:end, begin:end], 1)
        out[begin:end, begin:end] += out[begin:end, begin:end].T
        out[end:, begin:end] = w[begin:end, end:].T
    return out


def _add_symmetric(to: Array, left: Array, right: Array) -> None:
    """Add the symmetric ``left^T @ right`` in place, on and above the diagonal; below it the sum may be incomplete."""
    if len(to) <= STRIPE:
        to += left.T @ right
        return
    out, first, second = torch.from_numpy(to), torch.from_numpy(left), torch.from_numpy(right)
    for begin in range(0, len(to), STRIPE):
        out[begin : begin + STRIPE, begin:].addmm_(first[:, begin : begin + STRIPE].mT, second[:, begin:])


def _put_back(front: Front, values: Array, bar: tqdm) -> None:
    """Fill in the resistances between the nodes of a front, and from them to further nodes.

    Args:
        front: the front.
        values: resistances ``[a + b, a + b + c]``, complete except for the first ``a`` rows and columns. The last ``c``
            columns are nodes that are eliminated later, and may repeat the border.
        bar: shows progress.
    """
    count, size = front.shares.shape
    for last in range(count, 0, -BLOCK):
        first = max(last - BLOCK, 0)
        width = last - first
        # First the means over the nodes after the block, then the resistances of one node at a time.
        rows = np.zeros((width, values.shape[1] - first))
        rows[:, width:] = _product(front.shares[first:last, last:], values[last:, last:])
        for node in reversed(front.inner[first:last]):
            shares, at = front.shares[node, node + 1 :], node - first
            inside, outside = shares[: width - at - 1], shares[width - at - 1 :]
            row, rows_below = rows[at, at + 1 :], rows[at + 1 :]
            row[: width - at - 1] = rows_below[:, width : size - first] @ outside
            row += inside @ rows_below[:, at + 1 :]
            row += 1 / front.total[node] - shares @ row[: len(shares)] / 2
            rows[at + 1 :, at] = row[: width - at - 1]
        values[first:last, first:] = rows
        values[last:size, first:last] = rows[:, width : size - first].T
        bar.update(width * values.size)


def _product(left: Array, right: Array) -> Array:
    """Compute ``left @ right``, on torch's threads if it is large."""
    if len(right) <= STRIPE:
        return left @ right
    return (torch.from_numpy(left) @ torch.from_numpy(right)).numpy()


def _check_front(num_nodes: int, size: int) -> None:
    if size > LARGEST_FRONT:
        raise ValueError(
            f"eliminating the nodes of a component of {num_nodes} nodes joins at least {size} of them to each other, "
            f"which takes up to {6 * 8 * size**2 / 2**30:.0f} GiB; at most {LARGEST_FRONT} are allowed"
        )


def _fronts(num_nodes: int, tail: Array, head: Array, weights: Array) -> list[Front]:
    """Find the fronts of an elimination by minimum degree, each after the fronts below it."""
    position = _minimum_degree(num_nodes, tail, head)
    node_at = np.argsort(position)
    lower = np.minimum(position[tail], position[head])
    upper = np.maximum(position[tail], position[head])
    by_lower = np.lexsort((upper, lower))
    pointers = np.searchsorted(lower[by_lower], np.arange(num_nodes + 1))
    neighbours = upper[by_lower]
    borders: list[Array] = [_EMPTY] * num_nodes
    below: list[list[int]] = [[] for _ in range(num_nodes)]
    front_of = np.zeros(num_nodes, dtype=np.int64)
    columns: list[list[int]] = []
    seen = np.zeros(num_nodes, dtype=bool)
    for column in tqdm(range(num_nodes), desc="ordering", unit=" nodes", delay=SHOWN_AFTER, disable=None):
        parts = [borders[child][1:] for child in below[column]]
        parts.append(neighbours[pointers[column] : pointers[column + 1]])
        borders[column] = border = _union(parts, seen)
        _check_front(num_nodes, len(border) + 1)  # at once: the rest takes minutes
        # A node joins the front of an earlier node whose border is this node and this node's border.
        nested = [child for child in below[column] if len(borders[child]) == len(border) + 1]
        front_of[column] = front_of[nested[0]] if nested else len(columns)
        if nested:
            columns[front_of[column]].append(column)
        else:
            columns.append([column])
        if len(border) == num_nodes - column - 1:  # all remaining nodes are joined to each other
            front_of[column:] = front_of[column]
            columns[front_of[column]] += range(column + 1, num_nodes)
            borders[-1] = _EMPTY
            break
        below[border[0]].append(column)
    columns, front_of = _merged(columns, borders, front_of)
    fronts = [Front(node_at[members], node_at[borders[members[-1]]]) for members in columns]
    for members, front in zip(columns, fronts, strict=True):
        if len(front.border):
            fronts[front_of[borders[members[-1]][0]]].children.append(front)
    front_of_edge = front_of[lower]
    by_front = np.argsort(front_of_edge, kind="stable")
    ends = np.searchsorted(front_of_edge[by_front], np.arange(len(fronts) + 1))
    for number, front in enumerate(fronts):
        front.edges = by_front[ends[number] : ends[number + 1]]
    # The last front may have any order. With a node of large conductance last, mean resistances lose fewer digits.
    root = fronts[front_of[-1]]
    conductance = np.bincount(tail, weights, num_nodes) + np.bincount(head, weights, num_nodes)
    root.nodes = root.every = root.nodes[np.argsort(conductance[root.nodes], kind="stable")]
    return _postorder(root)


def _merged(columns: list[list[int]], borders: list[Array], front_of: Array) -> tuple[list[list[int]], Array]:
    """Merge fronts, given by their columns, into the front above if that is mostly their border, to save copies."""
    for front in sorted(range(len(columns)), key=lambda front: columns[front][-1]):  # each before the one above
        members, border = columns[front], borders[columns[front][-1]]
        if len(border):
            above = columns[front_of[border[0]]]
            if len(border) >= MERGED * (len(above) + len(borders[above[-1]])):
                above[:0], columns[front] = members, []
    columns = [members for members in columns if members]
    front_of = np.empty_like(front_of)
    for number, members in enumerate(columns):
        front_of[members] = number
    return columns, front_of


def _postorder(root: Front) -> list[Front]:
    """Order fronts after those below them, the largest subtree first, so that few matrices wait in either direction."""
    order, waiting = [], [root]
    while waiting:
        order.append(waiting.pop())
        waiting += order[-1].children
    below: dict[Front, int] = {}
    for front in reversed(order):
        front.children.sort(key=below.__getitem__, reverse=True)
        below[front] = len(front.nodes) + sum(below[child] for child in front.children)
    order, waiting = [], [root]
    while waiting:
        order.append(waiting.pop())
        waiting += order[-1].children
    return order[::-1]


def _union(parts: list[Array], seen: Array) -> Array:
    """Unite sorted arrays of numbers into a sorted array; ``seen`` is a scratch mask, false everywhere."""
    largest = max(parts, key=len)
    seen[largest] = True
    new = np.concatenate([part[~seen[part]] for part in parts])
    seen[largest] = False
    return np.union1d(largest, new) if len(new) else largest


def _minimum_degree(num_nodes: int, tail: Array, head: Array) -> Array:
    """Return the position of each node in a minimum-degree order, ``[n]``.

    Leaves come first, and nodes that become leaves without them, since SuperLU's time grows with the square of a node's
    degree. SciPy only exposes SuperLU's order with a factorisation, so an incomplete one drops all but the diagonal.
    """
    position, taken, is_left = np.zeros(num_nodes, dtype=np.int64), 0, np.ones(num_nodes, dtype=bool)
    for _ in range(LEAF_ROUNDS):
        degree = np.bincount(tail, minlength=num_nodes) + np.bincount(head, minlength=num_nodes)
        leaf = degree == 1
        leaf[tail[leaf[tail] & leaf[head]]] = False  # one of two joined leaves stays
        leaves = np.flatnonzero(leaf)
        if not len(leaves):
            break
        position[leaves] = taken + np.arange(len(leaves))
        taken, is_left[leaves] = taken + len(leaves), False
        stays = ~(leaf[tail] | leaf[head])
        tail, head = tail[stays], head[stays]
    rest = np.flatnonzero(is_left)
    number = np.cumsum(is_left) - 1
    rows, columns = np.concatenate([tail, head, rest]), np.concatenate([head, tail, rest])
    values = np.concatenate([np.full(2 * len(tail), -1.0), np.full(len(rest), float(num_nodes))])
    matrix = csc_matrix((values, (number[rows], number[columns])), (len(rest), len(rest)))
    options = {"SymmetricMode": True}
    dropped = spilu(
        matrix, drop_tol=1.0, fill_factor=1, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options
    )
    position[rest] = taken + dropped.perm_c
    return position
