"""Compute Weisfeiler-Leman colourings: exactly which graphs an encoding or a model can distinguish.

A colouring of the ``k``-tuples of nodes starts from their atomic types. Each round refines the colour of a tuple by the
colours of the tuples that differ from it in one place. A colouring distinguishes two graphs if some colour is more
frequent in one of them. If it does not, no network that computes from the same neighbourhoods distinguishes them.

Let ``phi_j(v, w)`` be the tuple ``v`` with ``w`` in place ``j``. A round replaces the colour ``C(v)`` by a hash of
``C(v)`` and of one multiset for each place ``j``:

- ``"1-WL"``: ``C(w)`` of the neighbours ``w``;
- ``"k-WL"``: ``C(phi_j(v, w))`` of all nodes ``w``;
- ``"delta-k-WL"``: ``C(phi_j(v, w))`` of all nodes ``w``, with a mark on the neighbours of ``v_j``;
- ``"delta-k-LWL"``: ``C(phi_j(v, w))`` of the neighbours ``w`` of ``v_j``;
- ``"(k,s)-LWL"``: as ``"delta-k-LWL"``, restricted to the tuples of at most ``s`` components;
- ``"k-FWL"``: a single multiset, of ``(C(phi_1(v, w)), ..., C(phi_k(v, w)))`` over all nodes ``w``. It is as strong as
  ``(k+1)-WL``.

Labels of edges and of pairs of nodes belong to the atomic types. A tuple of one node has no pair, so with ``k = 1`` and
neighbours, ``C(w)`` is combined with the labels of the edge to ``w``.

``k`` and ``s`` are any numbers: ``"2-FWL"``, ``"(3,1)-LWL"``. `Aligning Transformers with Weisfeiler-Leman
<https://arxiv.org/abs/2406.03148>`_, sections 3 and E.1.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor
from torch_geometric.data import Batch, Data

from tg_lpe.arguments import WITHOUT_EDGE_INDEX, check_count
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.tuples import check_number, component_tuples, edge_between
from tg_lpe.ops.segment import repeat_ranges

__all__ = ["Coloring", "colors", "distinguishes", "exact_walks", "joint_colors"]

Array = NDArray[Any]
Colors = NDArray[np.uint64]

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5}
"""Floating-point values count as equal up to this difference, relative to the largest value of their column; columns of
integers are exact."""

DENSE_VALUES = 10
"""A warning is given if values that count as equal differ by more than this many tolerances."""

PRIME = 2**31 - 1

N = r"([1-9]\d*)"
"""Pattern of a number in the name of a colouring."""

FORMS = ("1-WL", "k-WL", "delta-k-WL", "delta-k-LWL", "(k,s)-LWL", "k-FWL")


class Coloring(NamedTuple):
    """Hold the colours of a graph's tuples."""

    color: Colors
    """64-bit hashes, uint64 ``[num_tuples]``."""
    tuples: Array
    """Nodes of the tuples, in lexicographic order, int64 ``[num_tuples, k]``."""
    rounds: int
    """Number of rounds of refinement."""


def colors(
    data: Data,
    name: str,
    *,
    node: Sequence[str] = (),
    edge: Sequence[str] = (),
    pair: Sequence[str] = (),
    rounds: int | None = None,
) -> Coloring:
    """Colour the tuples of nodes of a graph.

    Colours are hashes. The colours of different graphs are comparable after the same number of rounds: set ``rounds``,
    or colour the graphs together with :func:`joint_colors`.

    Floating-point attributes count as equal if they differ by at most 1e-10 (float64) or 1e-5 (float32) of the largest
    value of their column in all graphs, or if a chain of such values links them. Columns of integers are exact.
    Rounding errors beyond the tolerance change colours, so compute encodings in float64, and round values that should
    be zero. Colours of floating-point attributes are hashes of ranks, and only comparable within one call.

    Args:
        data: the graph; edges as for :class:`~tg_lpe.Graph`, without weights.
        name: name of the colouring, see :mod:`tg_lpe.theory.wl`.
        node: attributes of ``data`` that are initial colours of the nodes, ``[num_nodes, ...]``: labels or encodings.
            All values of a node together are its colour.
        edge: attributes that are initial colours of the directed edges, ``[num_directed_edges, ...]``.
        pair: attributes that are initial colours of all pairs of nodes, ``[num_nodes, num_nodes, ...]``.
        rounds: number of rounds; if absent, until no colour splits. With 0, the colours are the initial colours.

    Raises:
        ValueError: on an unknown colouring, too many tuples, a batch, or an attribute that has another shape, is NaN,
            or differs between the two directions of an edge.
        TypeError: if ``data`` is no graph, names are not a list, or the data has no such tensor.

    Warns:
        UserWarning: if a chain links values of an attribute that differ by more than ten times the tolerance.
    """
    return joint_colors([data], name, node=node, edge=edge, pair=pair, rounds=rounds)[0]


def joint_colors(
    graphs: Batch | Iterable[Data],
    name: str,
    *,
    node: Sequence[str] = (),
    edge: Sequence[str] = (),
    pair: Sequence[str] = (),
    rounds: int | None = None,
) -> list[Coloring]:
    """Colour the tuples of nodes of each of several graphs, for the same number of rounds.

    Args:
        graphs: the graphs, or a batch.
        name, node, edge, pair, rounds: as for :func:`colors`; without ``rounds``, until no colour of any graph splits.
    """
    if isinstance(graphs, Data) and not isinstance(graphs, Batch):
        raise TypeError("joint_colors takes several graphs, got one: use colors, or pass a list")
    graphs = graphs.to_data_list() if isinstance(graphs, Batch) else list(graphs)
    colorings = _colorings(graphs, name, rounds, node, edge, pair)
    *_, (done, current) = enumerate(_rounds(colorings, rounds))
    return [Coloring(color.ravel(), c.tuples(), done) for c, color in zip(colorings, current, strict=True)]


def distinguishes(
    a: Data,
    b: Data,
    name: str,
    *,
    node: Sequence[str] = (),
    edge: Sequence[str] = (),
    pair: Sequence[str] = (),
    rounds: int | None = None,
) -> bool:
    """Return whether a colouring distinguishes two graphs: some colour is more frequent in one of them.

    Args:
        a, b: the graphs.
        name: name of the colouring, see :mod:`tg_lpe.theory.wl`.
        node, edge, pair: attributes that are initial colours, as for :func:`colors`.
        rounds: largest number of rounds; if absent, until the graphs differ or no colour splits.
    """
    colorings = _colorings([a, b], name, rounds, node, edge, pair)
    return any(
        not np.array_equal(np.sort(one.ravel()), np.sort(other.ravel())) for one, other in _rounds(colorings, rounds)
    )


def exact_walks(data: Data, steps: int = 16) -> Tensor:
    """Compute powers of the random walk matrix ``D^-1 A`` exactly, as residues modulo the prime ``2^31 - 1``.

    They need no tolerance as an attribute for ``pair`` of :func:`colors`, or ``exact_walks(data).diagonal().T`` for
    ``node``.

    Args:
        data: a graph; weights are ignored.
        steps: number of powers.

    Returns:
        Entry ``(u, v)`` of each power, int64 ``[num_nodes, num_nodes, steps]``; zero in rows of nodes without edges.
    """
    check_count("steps", steps, least=0)
    graph = _incidence(data)
    n = graph.num_nodes
    check_number(n * n * steps, f"{steps} steps of {n:,} nodes")
    adjacency = _adjacency(graph, np.int64)
    inverse = np.array([pow(d, -1, PRIME) if d else 0 for d in np.diff(adjacency.indptr).tolist()], dtype=np.int64)
    power, powers = np.eye(n, dtype=np.int64), np.empty((n, n, steps), np.int64)
    for step in range(steps):
        power = (adjacency @ power) % PRIME * inverse.reshape(-1, 1) % PRIME
        powers[:, :, step] = power
    return torch.from_numpy(powers)


class _Rule(NamedTuple):
    """Hold the rule of a colouring: over which nodes ``w`` its multisets run; ``everywhere`` and ``local`` add up."""

    k: int
    s: int | None = None  # largest number of components of a tuple; None for all tuples, in an array [n] * k
    everywhere: bool = False
    local: bool = False
    folklore: bool = False


class _Refinement(NamedTuple):
    """Hold the initial colours of one graph's tuples, and a function that computes a round."""

    initial: Colors  # of all tuples, [n] * k, or of the listed ones
    refine: Callable[[Colors], Colors]
    nodes: Array | None = None  # of the listed tuples, [k, num_tuples]

    def tuples(self) -> Array:
        """Nodes of the tuples, ``[num_tuples, k]``."""
        return np.argwhere(np.ones(self.initial.shape)) if self.nodes is None else self.nodes.T


def _rule(name: str) -> _Rule:
    patterns: tuple[tuple[str, Callable[..., _Rule]], ...] = (
        (r"1-WL", lambda: _Rule(1, s=1, local=True)),
        (rf"{N}-WL", lambda k: _Rule(k, everywhere=True)),
        (rf"delta-{N}-WL", lambda k: _Rule(k, everywhere=True, local=True)),
        (rf"delta-{N}-LWL", lambda k: _Rule(k, local=True)),
        (rf"\({N}, ?{N}\)-LWL", lambda k, s: _Rule(k, s=s, local=True)),
        (rf"{N}-FWL", lambda k: _Rule(k, folklore=True)),
    )
    for pattern, make in patterns:
        match = re.fullmatch(pattern, str(name))
        if match is not None:
            rule = make(*map(int, match.groups()))
            if rule.k >= 1 + rule.folklore and (rule.s is None or 1 <= rule.s <= rule.k):
                return rule
    raise ValueError(f"a colouring must be one of {FORMS} with 1 <= s <= k, and k >= 2 for k-FWL, got {name!r}")


def _colorings(
    graphs: Sequence[Data], name: str, rounds: int | None, node: Sequence[str], edge: Sequence[str], pair: Sequence[str]
) -> list[_Refinement]:
    check_count("rounds", 0 if rounds is None else rounds, least=0)
    rule = _rule(name)
    incidences = [_incidence(data) for data in graphs]
    for graph in incidences:
        if rule.s is None:
            check_number(graph.num_nodes**rule.k, f"{name} of {graph.num_nodes} nodes")
    node_hashes = _hashes(graphs, node, "node", [(graph.num_nodes,) for graph in incidences])
    edge_hashes = _hashes(graphs, edge, "edge", [(graph.num_directed_edges,) for graph in incidences])
    pair_hashes = _hashes(graphs, pair, "pair", [(graph.num_nodes,) * 2 for graph in incidences])
    parts = zip(incidences, node_hashes, edge_hashes, pair_hashes, strict=True)
    return [_refinement(rule, _Labels(graph, *hashes)) for graph, *hashes in parts]


class _Labels:
    """Hold a graph, and hashes of the labels of its nodes and pairs of nodes."""

    def __init__(self, graph: Graph, node: Colors, edge: Colors, pair: Colors) -> None:
        self.graph, self.pair = graph, pair if pair.size else None
        self.node = node if node.size else np.zeros(graph.num_nodes, np.uint64)
        hashes = np.zeros(graph.num_edges, np.uint64)
        if edge.size:
            index = graph.undirected_index.numpy()
            index, edge = index[index >= 0], edge[index >= 0]
            hashes[index] = edge
            if (wrong := hashes[index] != edge).any():
                at = int(index[wrong][0])
                raise ValueError(
                    f"edge attributes must agree between all directed edges of one undirected edge, those of "
                    f"({int(graph.tail[at])}, {int(graph.head[at])}) do not"
                )
        hashes = _combine(np.full_like(hashes, 3), hashes)
        #: Hashes of the edges, of a node with itself, and of two nodes without an edge: at -2 and -1.
        self._relation = np.concatenate([hashes, np.array([1, 2], np.uint64)])

    def between(self, first: Array, second: Array) -> Colors:
        """Hash the labels of pairs of nodes."""
        first, second = np.broadcast_arrays(first, second)
        edge = edge_between(self.graph, torch.from_numpy(first.copy()), torch.from_numpy(second.copy())).numpy()
        hashes = self._relation[edge]
        if self.pair is not None:
            hashes = _combine(_combine(hashes, self.pair[first, second]), self.pair[second, first])
        return hashes

    def atomic_types(self, places: Sequence[Array]) -> Colors:
        """Hash the atomic types of tuples, whose nodes at each place are arrays that broadcast."""
        hashes = np.ones((1,) * places[0].ndim, np.uint64)
        for node in places:
            hashes = _combine(hashes, self.node[node])
        if len(places) == 1 and self.pair is not None:
            hashes = _combine(hashes, np.diagonal(self.pair)[places[0]])
        for first, second in combinations(places, 2):
            hashes = _combine(hashes, self.between(first, second))
        return hashes


def _refinement(rule: _Rule, labels: _Labels) -> _Refinement:
    n, k = labels.graph.num_nodes, rule.k
    if rule.s is not None:
        return _of_listed_tuples(labels, component_tuples(labels.graph, k, rule.s).numpy())
    if k == 1 and rule.local:  # the labels of the edges mark the steps between nodes
        listed = _of_listed_tuples(labels, np.arange(n)[None])
        if not rule.everywhere:
            return listed

        def with_all(color: Colors) -> Colors:
            return _combine(listed.refine(color), _mixed(color).sum(0, keepdims=True))

        return _Refinement(listed.initial, with_all, nodes=listed.nodes)
    initial = labels.atomic_types(np.ogrid[(slice(n),) * k] if k > 1 else [np.arange(n)])
    if rule.folklore:
        return _Refinement(initial, _folklore)
    adjacency = _adjacency(labels.graph, np.uint64)

    def refine(color: Colors) -> Colors:
        refined, mixed = color, _mixed(color)
        for place in range(k):
            if rule.everywhere:
                refined = _combine(refined, mixed.sum(place, keepdims=True))
            if rule.local:
                moved = np.moveaxis(mixed, place, 0)
                near = (adjacency @ moved.reshape(n, n ** (k - 1))).reshape(moved.shape)
                refined = _combine(refined, np.moveaxis(near, 0, place))
        return refined

    return _Refinement(initial, refine)


def _of_listed_tuples(labels: _Labels, nodes: Array) -> _Refinement:
    """Colour tuples ``[k, num_tuples]`` by neighbours, with the same colours as in an array of all tuples."""
    k, n = nodes.shape[0], labels.graph.num_nodes
    adjacency = _adjacency(labels.graph, np.uint64)
    weight = n ** np.arange(k - 1, -1, -1)
    key, moves = weight @ nodes, []
    for place in range(k):  # the tuples that differ by a step along an edge in this place
        starts, counts = adjacency.indptr[nodes[place]], np.diff(adjacency.indptr)[nodes[place]]
        check_number(int(counts.sum()), f"neighbours of {nodes.shape[1]:,} tuples")
        owner, entry = (part.numpy() for part in repeat_ranges(torch.from_numpy(starts), torch.from_numpy(counts)))
        old, new = nodes[place][owner], adjacency.indices[entry].astype(np.int64)
        wanted = key[owner] + (new - old) * weight[place]
        source = np.minimum(np.searchsorted(key, wanted), max(len(key) - 1, 0))
        is_listed = key[source] == wanted
        pointers = np.concatenate([[0], np.cumsum(np.bincount(owner[is_listed], minlength=nodes.shape[1]))])
        # Only tuples of one node need marks of edges, since their atomic types do not contain the edge.
        relation = labels.between(old[is_listed], new[is_listed]) if k == 1 else None
        moves.append((pointers, source[is_listed], relation))

    def refine(color: Colors) -> Colors:
        refined, mixed = color, _mixed(color)
        for pointers, source, relation in moves:
            message = mixed[source] if relation is None else _combine(color[source], relation)
            total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(message, dtype=np.uint64)])
            refined = _combine(refined, total[pointers[1:]] - total[pointers[:-1]])
        return refined

    return _Refinement(labels.atomic_types(list(nodes)), refine, nodes=nodes)


def _folklore(color: Colors) -> Colors:
    total = np.zeros_like(color)
    for w in range(len(color)):
        hashes = np.ones((1,) * color.ndim, np.uint64)
        for place in range(color.ndim):
            hashes = _combine(hashes, np.expand_dims(color.take(w, place), place))
        total += hashes
    return _combine(color, total)


def _incidence(data: Data) -> Graph:
    if isinstance(data, Batch):
        raise ValueError(f"data must be a single graph, got a batch of {data.num_graphs}; joint_colors takes several")
    if not isinstance(data, Data):
        raise TypeError(f"a graph must be a torch_geometric.data.Data, got {type(data).__name__}")
    if not isinstance(data.edge_index, Tensor):
        raise ValueError(f"a graph needs edge_index, [2, num_directed_edges], got {data}; {WITHOUT_EDGE_INDEX}")
    return Graph(data.edge_index.cpu(), data.num_nodes)


def _adjacency(graph: Graph, dtype: type) -> Any:
    tail, head = graph.tail.numpy(), graph.head.numpy()
    ends = np.concatenate([tail, head]), np.concatenate([head, tail])
    return csr_matrix((np.ones(2 * len(tail), dtype), ends), (graph.num_nodes,) * 2)


def _rounds(colorings: Sequence[_Refinement], rounds: int | None) -> Iterator[list[Colors]]:
    """Iterate over the initial colours and those after each round; without ``rounds``, until no colour splits."""
    current, before, done = [coloring.initial for coloring in colorings], -1, 0
    yield current
    while done != rounds:
        count = len(np.unique(np.concatenate([color.ravel() for color in current]))) if current else 0
        if rounds is None and count == before:
            return
        current = [coloring.refine(color) for coloring, color in zip(colorings, current, strict=True)]
        before, done = count, done + 1
        yield current


def _mix(x: Colors) -> Colors:
    """Apply the finaliser of splitmix64 in place."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def _combine(first: Colors, second: Colors) -> Colors:
    """Hash ordered pairs of hashes."""
    if first.ndim < 3:
        return _mix((first * np.uint64(0xD1342543DE82EF95) + np.uint64(0x9E3779B97F4A7C15)) + second)
    first, second = np.broadcast_arrays(first, second)
    hashes = np.empty(first.shape, np.uint64)
    for at in range(len(hashes)):  # intermediate results of a slice stay in the cache
        hashes[at] = _combine(first[at], second[at])
    return hashes


def _mixed(color: Colors) -> Colors:
    """Hash colours so that sums of hashes represent multisets."""
    return _combine(color, np.zeros((1,) * color.ndim, np.uint64))


def _hashes(
    graphs: Sequence[Data], names: Sequence[str], level: str, shapes: Sequence[tuple[int, ...]]
) -> list[Colors]:
    """Hash each row of the named attributes, in the given shapes; of size 0 if no attribute is named."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"{level} must be a list of names of attributes, got {names!r}")
    hashes = [np.zeros(shape if names else 0, np.uint64) for shape in shapes]
    for name in names:
        values = [_attribute(data, name) for data in graphs]
        if len(dtypes := {value.dtype for value in values}) > 1:
            raise ValueError(f"attribute {name} must have the same dtype in all graphs, got {sorted(map(str, dtypes))}")
        for value, shape in zip(values, shapes, strict=True):
            if value.shape[: len(shape)] != shape or value.shape[len(shape) :] != values[0].shape[len(shape) :]:
                raise ValueError(
                    f"attribute {name} must be {[*shape, '...']}, alike in all graphs, got {list(value.shape)}"
                )
        width = math.prod(values[0].shape[len(shapes[0]) :]) if values else 0
        rows = [value.reshape(math.prod(shape), width) for value, shape in zip(values, shapes, strict=True)]
        columns = _ranks(rows, name) if values and values[0].is_floating_point() else rows
        for of_graph, part in zip(hashes, columns, strict=True):
            for column in part.to(torch.int64).numpy().T:
                of_graph[...] = _combine(of_graph, column.astype(np.uint64).reshape(of_graph.shape))
    return hashes


def _attribute(data: Data, name: str) -> Tensor:
    value = data.get(name)
    if not isinstance(value, Tensor):
        raise TypeError(f"attribute {name} must be a tensor, got {type(value).__name__}")
    if value.is_complex() or (value.is_floating_point() and value.dtype not in TOLERANCES):
        raise ValueError(f"attribute {name} must be of integers, booleans, float32 or float64, got {value.dtype}")
    return value.detach().cpu()


def _ranks(rows: Sequence[Tensor], name: str) -> list[Tensor]:
    """Rank the values in each column of all matrices, close values as equal."""
    every = torch.cat(list(rows))
    if not bool(every.isfinite().all()):
        raise ValueError(f"attribute {name} must be finite")
    ordered, order = every.sort(dim=0)
    rank = torch.zeros_like(order)
    if len(every):
        largest = every.abs().amax(0)
        is_exact = (every == every.round()).all(0) & (largest <= 1 / torch.finfo(every.dtype).eps)
        tolerance = (TOLERANCES[every.dtype] * largest).masked_fill(is_exact, 0.0)
        gap = ordered.diff(dim=0) > tolerance
        rank[1:] = gap.cumsum(0)
        begins = torch.cat([torch.ones_like(ordered[:1], dtype=torch.bool), gap])
        start = ordered.where(begins, -math.inf).cummax(0).values
        if bool((ordered - start > DENSE_VALUES * tolerance).any()):
            warnings.warn(
                f"values of {name} are so dense that some count as equal although they differ by more than "
                f"{DENSE_VALUES} times the tolerance, since others lie between them; colours may distinguish too few "
                "graphs",
                stacklevel=2,
            )
    return list(torch.zeros_like(rank).scatter_(0, order, rank).split([len(part) for part in rows]))
