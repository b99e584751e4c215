"""Effective resistances of one large connected graph: its nodes are taken away one after another."""

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
"""Nodes of a front at most: 2 GiB a matrix, of which up to six are held at a time."""

LEAF_ROUNDS = 16
"""How often leaves are taken away before all other nodes."""

BLOCK = 48
"""Nodes of a front that reach the nodes after them in one product of matrices."""

STRIPE = 512
"""Rows of a symmetric product that are computed at once; fronts of fewer nodes are left to numpy."""

MERGED = 0.75
"""Share of a front that the border of one below it is, from which on they become one."""

PRODUCTS_A_SECOND = 1e10
"""Multiplications of large matrices that one thread makes, for estimates."""


_NONE = np.zeros(0, dtype=np.int64)


@dataclass(eq=False)
class Front:
    """Nodes that are taken away together, and the nodes that were joined to them by then, both in this order."""

    nodes: Array
    """The nodes that are taken away, ``[a]``."""
    border: Array
    """The nodes that stay, ``[b]``."""
    children: list[Front] = field(default_factory=list, repr=False)
    """Fronts whose borders lie within this front, the one with the most nodes below it first."""
    edges: Array = field(default_factory=lambda: _NONE)
    """The edges of which this front takes an end away first."""
    every: Array = field(init=False)
    """All its nodes, ``[a + b]``."""
    place: Array = field(default_factory=lambda: _NONE)
    """Where the border lies among the nodes of the front above, ``[b]``."""
    shares: Array = field(default_factory=lambda: np.zeros((0, 0)))
    """Of each node the shares of its conductors to the nodes after it, ``[a, a + b]``, strictly upper triangular."""
    total: Array = field(default_factory=lambda: np.zeros(0))
    """Conductance of each node to all nodes after it, ``[a]``; zero for the last node of all."""

    def __post_init__(self) -> None:
        self.every = np.concatenate([self.nodes, self.border])

    @property
    def inner(self) -> range:
        """The nodes that are taken away, all but the last node of all."""
        return range(min(len(self.nodes), len(self.every) - 1))


class Elimination:
    """The nodes of a connected graph, taken away one after another, and what is left of the conductors each time.

    A node's neighbours stay behind with conductors between them, so that no resistance between nodes that are left
    changes (star-mesh transform). All numbers that are added are positive: conductances, and resistances between nodes,
    are accurate to rounding whatever the sizes of the weights, mean resistances to at most ``2n`` times that. Nodes are
    ordered by minimum degree; those whose neighbours are nested make a front, which is dense (`The multifrontal
    solution of indefinite sparse symmetric linear equations <https://doi.org/10.1145/356044.356047>`_).

    Args:
        num_nodes: ``n``.
        tail, head: ends of the undirected edges, ``[num_edges]``, each once; those of positive weight join all nodes.
        weights: conductances, ``[num_edges]``. Edges of weight zero are pairs whose resistances are wanted as well, and
            kept track of like others: many of them between nodes far apart take time and memory.

    Raises:
        ValueError: if more than 16,384 nodes would be joined to each other.
    """

    def __init__(self, num_nodes: int, tail: Array, head: Array, weights: Array) -> None:
        self.num_nodes, self.tail, self.head, self.weights = num_nodes, tail, head, weights
        # Powers of two change no digit, and keep products and sums of very small and very large weights finite.
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
        warn_if_long(2 * self._seconds, "ResistiveEmbedding, whose distances are resistances up to a few percent")
        with self._watched() as bar:
            self._eliminate(bar)

    @contextmanager
    def _watched(self) -> Iterator[tqdm]:
        """One pass over the fronts: numpy on one thread, since large products are left to torch and its threads."""
        with one_thread(), without_transforms(), shown(self._work, self._seconds) as bar:
            yield bar

    def _eliminate(self, bar: tqdm) -> None:
        """Fronts from the first to the last, which pass on what they leave behind."""
        left: dict[Front, Array] = {}
        weights = self.weights / self._unit
        for front in self.fronts:
            count, every = len(front.nodes), front.every
            self._place[every] = np.arange(len(every))
            w = np.zeros((len(every), len(every)))
            first, second = self._place[self.tail[front.edges]], self._place[self.head[front.edges]]
            w[first, second] = w[second, first] = weights[front.edges]
            for child in front.children:
                child.place = self._place[child.border]
                w[child.place[:, None], child.place] += left.pop(child)
            through = self._through[every]
            front.total = _take_away(w, count, through, bar)
            self._through[every] = through
            front.shares = np.triu(w[:count], 1)
            if len(front.border):
                left[front] = _symmetric(w[count:, count:])
            del w

    def resistances(self) -> tuple[Array, Array]:
        """Mean resistance of each node to all nodes, ``[n]``, and resistances of the edges, ``[num_edges]``.

        From the last front to the first: with the nodes after it at given potentials, a node is at their mean by its
        shares, plus a direction of its own that is as long as the root of its resistance to them all together.
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
                own = sums[every]
                for node in reversed(front.inner):
                    own[node] = self._through[every[node]] / front.total[node] + front.shares[node] @ own
                sums[front.nodes] = own[:count]
                self._place[every] = np.arange(len(every))
                edges[front.edges] = inverse_entries[
                    self._place[self.tail[front.edges]], self._place[self.head[front.edges]]
                ]
                waiting += [(child, inverse_entries) for child in front.children]
        # What cancels is at most 2n times what is left, since resistances to the last node are part of each mean.
        means = to_last + (to_last / self.num_nodes).sum() - 2 * sums
        return means / self._unit, edges / self._unit

    def all_resistances(self) -> Array:
        """Resistances of all pairs of nodes, ``[n, n]``."""
        out = np.zeros((self.num_nodes, self.num_nodes))
        done = np.zeros(0, dtype=np.int64)
        with self._watched() as bar:
            for front in reversed(self.fronts):
                count, columns = len(front.nodes), np.concatenate([front.every, done])
                found = np.zeros((len(front.every), len(columns)))
                found[count:, count:] = out[front.border[:, None], columns[count:]]
                _put_back(front, found, bar)
                out[front.nodes[:, None], columns] = found[:count]
                out[columns[:, None], front.nodes] = found[:count].T
                done = np.concatenate([done, front.nodes])
        return out / self._unit


def _take_away(w: Array, count: int, through: Array, bar: tqdm) -> Array:
    """Takes the first nodes of a front away.

    Args:
        w: conductances ``[s, s]``, whose diagonal says nothing. Changed: the first ``count`` rows into shares, above
            the diagonal, and the rest to the conductances that are left.
        count: how many.
        through: currents into the nodes, ``[s]``, which are changed to those when the first nodes pass theirs on.
        bar: shows progress.

    Returns:
        Conductance of each node to all after it, ``[count]``.
    """
    total = np.zeros(count)
    for first in range(0, count, BLOCK):
        last = min(first + BLOCK, count)
        given = w[first:last, last:].copy()
        for node in range(first, min(last, len(w) - 1)):
            row = w[node, node + 1 :]
            total[node] = row.sum()
            share = row / total[node]
            through[node + 1 :] += share * through[node]
            w[node + 1 : last, node + 1 :] += row[: last - node - 1, None] * share
            given[node - first] = row[last - node - 1 :]
            row[:] = share
        _add_symmetric(w[last:, last:], given, w[first:last, last:])
        bar.update((last - first) * len(w) ** 2)
    return total


def _symmetric(w: Array) -> Array:
    """A copy that repeats what is above the diagonal below it."""
    out = w.copy()
    for begin in range(0, len(w), STRIPE):
        end = begin + STRIPE
        out[begin:end, begin:end] = np.triu(w[begin:end, begin:end], 1)
        out[begin:end, begin:end] += out[begin:end, begin:end].T
        out[end:, begin:end] = w[begin:end, end:].T
    return out


def _add_symmetric(to: Array, left: Array, right: Array) -> None:
    """Adds ``left^T @ right``, which is symmetric, in place: on and above the diagonal, and some of it below."""
    if len(to) <= STRIPE:
        to += left.T @ right
        return
    out, first, second = torch.from_numpy(to), torch.from_numpy(left), torch.from_numpy(right)
    for begin in range(0, len(to), STRIPE):
        out[begin : begin + STRIPE, begin:].addmm_(first[:, begin : begin + STRIPE].mT, second[:, begin:])


def _put_back(front: Front, found: Array, bar: tqdm) -> None:
    """Resistances between the nodes of a front, and from them to further nodes.

    Args:
        front: the front.
        found: ``[a + b, a + b + c]``, known but for the first ``a`` rows and columns, which are filled in; the last
            ``c`` columns are any nodes that are taken away later, those of the border too.
        bar: shows progress.
    """
    count, size = front.shares.shape
    for last in range(count, 0, -BLOCK):
        first = max(last - BLOCK, 0)
        width = last - first
        # Rows of these nodes: the means over the nodes after the block, then step by step the resistances themselves.
        rows = np.zeros((width, found.shape[1] - first))
        rows[:, width:] = _product(front.shares[first:last, last:], found[last:, last:])
        for node in reversed(front.inner[first:last]):
            own, at = front.shares[node, node + 1 :], node - first
            inside, outside = own[: width - at - 1], own[width - at - 1 :]
            row, later = rows[at, at + 1 :], rows[at + 1 :]
            row[: width - at - 1] = later[:, width : size - first] @ outside
            row += inside @ later[:, at + 1 :]
            row += 1 / front.total[node] - own @ row[: len(own)] / 2
            rows[at + 1 :, at] = row[: width - at - 1]
        found[first:last, first:] = rows
        found[last:size, first:last] = rows[:, width : size - first].T
        bar.update(width * found.size)


def _product(left: Array, right: Array) -> Array:
    """``left @ right`` on torch's threads where it is worth them."""
    if len(right) <= STRIPE:
        return left @ right
    return (torch.from_numpy(left) @ torch.from_numpy(right)).numpy()


def _check_front(num_nodes: int, size: int) -> None:
    if size > LARGEST_FRONT:
        raise ValueError(
            f"taking away the nodes of a component of {num_nodes} nodes leaves {size} of them all joined to each "
            f"other, or more, which takes up to {6 * 8 * size**2 / 2**30:.0f} GiB; at most {LARGEST_FRONT} are allowed"
        )


def _fronts(num_nodes: int, tail: Array, head: Array, weights: Array) -> list[Front]:
    """The fronts of an elimination in the order of minimum degree, each right after those below it."""
    position = _minimum_degree(num_nodes, tail, head)
    node_at = np.argsort(position)
    lower = np.minimum(position[tail], position[head])
    upper = np.maximum(position[tail], position[head])
    by_lower = np.lexsort((upper, lower))
    pointers = np.searchsorted(lower[by_lower], np.arange(num_nodes + 1))
    neighbours = upper[by_lower]
    borders: list[Array] = [_NONE] * num_nodes
    below: list[list[int]] = [[] for _ in range(num_nodes)]
    front_of = np.zeros(num_nodes, dtype=np.int64)
    columns: list[list[int]] = []
    seen = np.zeros(num_nodes, dtype=bool)
    for column in tqdm(range(num_nodes), desc="ordering", unit=" nodes", delay=SHOWN_AFTER, disable=None):
        parts = [borders[child][1:] for child in below[column]]
        parts.append(neighbours[pointers[column] : pointers[column + 1]])
        borders[column] = border = _union(parts, seen)
        _check_front(num_nodes, len(border) + 1)  # at once: what follows takes minutes
        # A node joins the front of one before it whose border is this node and this node's border.
        nested = [child for child in below[column] if len(borders[child]) == len(border) + 1]
        front_of[column] = front_of[nested[0]] if nested else len(columns)
        if nested:
            columns[front_of[column]].append(column)
        else:
            columns.append([column])
        if len(border) == num_nodes - column - 1:  # all that are left are joined to each other
            front_of[column:] = front_of[column]
            columns[front_of[column]] += range(column + 1, num_nodes)
            borders[-1] = _NONE
            break
        below[border[0]].append(column)
    columns, front_of = _merged(columns, borders, front_of)
    fronts = [Front(node_at[own], node_at[borders[own[-1]]]) for own in columns]
    for own, front in zip(columns, fronts, strict=True):
        if len(front.border):
            fronts[front_of[borders[own[-1]][0]]].children.append(front)
    front_of_edge = front_of[lower]
    by_front = np.argsort(front_of_edge, kind="stable")
    ends = np.searchsorted(front_of_edge[by_front], np.arange(len(fronts) + 1))
    for number, front in enumerate(fronts):
        front.edges = by_front[ends[number] : ends[number + 1]]
    # In the last front any order does: one of large conductance stays, and fewer digits of mean resistances cancel.
    root = fronts[front_of[-1]]
    conductance = np.bincount(tail, weights, num_nodes) + np.bincount(head, weights, num_nodes)
    root.nodes = root.every = root.nodes[np.argsort(conductance[root.nodes], kind="stable")]
    return _postorder(root)


def _merged(columns: list[list[int]], borders: list[Array], front_of: Array) -> tuple[list[list[int]], Array]:
    """Fronts whose border is most of the front above become part of it: copies of many that are alike take longer.

    Args:
        columns: of each front, in the order in which they are taken away.
        borders: of each column.
        front_of: front of each column.

    Returns:
        The fronts that are left, and the front of each column.
    """
    for front in sorted(range(len(columns)), key=lambda front: columns[front][-1]):  # each before the one above
        own, border = columns[front], borders[columns[front][-1]]
        if len(border):
            above = columns[front_of[border[0]]]
            if len(border) >= MERGED * (len(above) + len(borders[above[-1]])):
                above[:0], columns[front] = own, []
    columns = [own for own in columns if own]
    front_of = np.empty_like(front_of)
    for number, own in enumerate(columns):
        front_of[own] = number
    return columns, front_of


def _postorder(root: Front) -> list[Front]:
    """Each front after those below it, the largest part first: so few matrices wait at a time, in both directions."""
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
    """The numbers that occur, sorted, in each of which they are sorted; ``seen`` is false everywhere."""
    largest = max(parts, key=len)
    seen[largest] = True
    new = np.concatenate([part[~seen[part]] for part in parts])
    seen[largest] = False
    return np.union1d(largest, new) if len(new) else largest


def _minimum_degree(num_nodes: int, tail: Array, head: Array) -> Array:
    """Position of each node in an order that leaves few conductors behind, ``[n]``.

    First leaves, and what becomes one without them, then the order of SuperLU, whose time grows with the square of a
    node's degree. SciPy gives it away with a factorisation alone; this incomplete one drops all but the diagonal.
    """
    position, taken, is_left = np.zeros(num_nodes, dtype=np.int64), 0, np.ones(num_nodes, dtype=bool)
    for _ in range(LEAF_ROUNDS):
        degree = np.bincount(tail, minlength=num_nodes) + np.bincount(head, minlength=num_nodes)
        leaf = degree == 1
        leaf[tail[leaf[tail] & leaf[head]]] = False  # of two that are left one stays
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
