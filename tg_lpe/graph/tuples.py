"""List tuples of nodes with few components, the tokens of (k,s)-transformers, without listing all n^k tuples."""

from __future__ import annotations

import torch
from torch import Tensor

from tg_lpe.graph.graph import Graph
from tg_lpe.ops.segment import group_pointers, repeat_ranges

MAX_TUPLES = 2**26
"""Largest number of tuples to list: one int64 for each takes 512 MiB."""

TABLE = 4
"""Tuples are looked up in a table if it has at most this many entries for each tuple that is listed or wanted."""

NO_EDGE = -1
"""Mark in an atomic type: two different nodes without an edge."""

SAME_NODE = -2
"""Mark in an atomic type: the same node twice."""


def component_tuples(graph: Graph, k: int, s: int) -> Tensor:
    """List the ``k``-tuples of nodes of each graph that induce at most ``s`` connected components.

    Two positions of a tuple are linked if they hold the same node or the ends of an edge. With ``s = 1`` the tuples are
    connected: ``(2,1)`` has ``n + 2 m`` of them, ``(3,1)`` has ``n + 6 m + 6 (sum_v C(d_v, 2) - 2 triangles)``.
    `Aligning Transformers with Weisfeiler-Leman <https://arxiv.org/abs/2406.03148>`_, section 4; the tuples are those
    of SpeqNets.

    The tuples grow from all ``s``-tuples by inserting one linked node at a time, at any position except the first.
    This reaches every tuple: one of ``s < k`` components has a component with two positions, and at least two of its
    positions can be removed without cutting the component.

    Args:
        graph: the graph or batch; edges of weight zero count as edges.
        k: length of the tuples.
        s: largest number of components, 1 to ``k``; ``s = k`` lists all tuples.

    Returns:
        Nodes, int64 ``[k, num_tuples]``, sorted by graph, then in lexicographic order.

    Raises:
        ValueError: if ``k`` and ``s`` are out of range, or there are too many tuples to list.
    """
    if not 1 <= s <= k:
        raise ValueError(f"tuples need 1 <= s <= k, got k={k}, s={s}")
    name = f"({k},{s})-tuples"
    if graph.num_graphs * max(graph.max_nodes, 1) ** k >= 2**63:
        raise ValueError(
            f"{name} of {graph.num_graphs} graphs of up to {graph.max_nodes} nodes cannot be numbered in 63 bits"
        )
    starts, neighbours = _neighbours(graph, torch.arange(graph.num_nodes, device=graph.device))
    sizes = graph.ptr.diff()
    if s == 1:
        tuples = torch.arange(graph.num_nodes, device=graph.device).unsqueeze(0)
    else:
        check_number(sum(size**s for size in sizes.tolist()), name)
        owner, number = repeat_ranges(torch.zeros_like(sizes), sizes**s)
        digits = [number // sizes[owner] ** (s - 1 - place) % sizes[owner] for place in range(s)]
        tuples = torch.stack(digits) + graph.ptr[owner]
    size = max(graph.max_nodes, 1)
    for places in range(s, k):  # insert one more node that is linked to another into each tuple
        counts = starts.diff()[tuples]
        check_number(places * int(counts.sum()), f"{name}, with repetitions")
        keys = []
        for near in range(places):
            owner, entry = repeat_ranges(starts[tuples[near]], counts[near])
            old, new = tuples[:, owner], neighbours[entry]
            keys += [_keys(graph, [*old[:place], new, *old[place:]]) for place in range(1, places + 1)]
        key = torch.unique(torch.cat(keys)) if len(keys) > 1 else keys[0].sort()[0]
        digits = [key // size ** (places - place) % size for place in range(places + 1)]
        tuples = torch.stack(digits) + graph.ptr[key // size ** (places + 1)]
    return tuples


def edge_between(graph: Graph, first: Tensor, second: Tensor) -> Tensor:
    """Find the undirected edge between each two nodes.

    Returns:
        The edge, :data:`NO_EDGE` or :data:`SAME_NODE`, int64, shaped as ``first`` and ``second``.
    """
    size = max(graph.num_nodes, 1)
    known = graph.tail * size + graph.head
    key = torch.minimum(first, second) * size + torch.maximum(first, second)
    if not graph.num_edges:
        found = torch.full_like(key, NO_EDGE)
    else:
        at = torch.searchsorted(known, key).clamp_(max=graph.num_edges - 1)
        found = torch.where(known[at] == key, at, NO_EDGE)
    return found.masked_fill_(first == second, SAME_NODE)


def find_tuples(graph: Graph, tuples: Tensor, wanted: Tensor) -> Tensor:
    """Find the positions of some tuples in the list of :func:`component_tuples`.

    Args:
        graph: the graph or batch.
        tuples: the list, int64 ``[k, num_tuples]``.
        wanted: the tuples to find, int64 ``[k, num_wanted]``; the nodes of a tuple are in one graph.

    Returns:
        int64 ``[num_wanted]``; -1 for a tuple that is not in the list.
    """
    return _find(_keys(graph, tuples), _keys(graph, wanted))


def neighbouring_tuples(graph: Graph, tuples: Tensor, place: int, *, everywhere: bool = False) -> Tensor:
    """List the ``j``-neighbours: pairs of tuples that differ in no other place than ``j``.

    Args:
        graph: the graph or batch.
        tuples: the list of :func:`component_tuples`, int64 ``[k, num_tuples]``.
        place: ``j``, the place where the tuples of a pair differ.
        everywhere: if false, the nodes in this place are the ends of an edge (local neighbours). If true, they are any
            two nodes (global neighbours), so each tuple is also its own neighbour.

    Returns:
        Tuples, ascending, and their neighbours, int64 ``[2, num_pairs]``.

    Raises:
        ValueError: if there are too many pairs to list.
    """
    key, local = _keys(graph, tuples), graph.local_index
    weight = max(graph.max_nodes, 1) ** (len(tuples) - 1 - place)
    rest = key - local[tuples[place]] * weight
    if everywhere:
        order = torch.argsort(rest, stable=True)
        _, group, size = torch.unique_consecutive(rest[order], return_inverse=True, return_counts=True)
        group = torch.empty_like(group).index_copy(0, order, group)
        check_number(int(size.square().sum()), f"neighbours of {len(key):,} tuples")
        owner, entry = repeat_ranges((size.cumsum(0) - size)[group], size[group])
        return torch.stack([owner, order[entry]])
    starts, neighbours = _neighbours(graph, graph.tail[:0])
    counts = starts.diff()[tuples[place]]
    check_number(int(counts.sum()), f"neighbours of {len(key):,} tuples")
    owner, entry = repeat_ranges(starts[tuples[place]], counts)
    found = _find(key, rest[owner].add_((local[neighbours] * weight)[entry]))
    kept = (found >= 0).nonzero().squeeze(1)
    return torch.stack([owner[kept], found[kept]])


def _keys(graph: Graph, tuples: Tensor | list[Tensor]) -> Tensor:
    """Number tuples by graph, then lexicographically."""
    key, local = graph.batch[tuples[0]], graph.local_index
    for nodes in tuples:
        key = key * max(graph.max_nodes, 1) + local[nodes]
    return key


def _find(keys: Tensor, wanted: Tensor) -> Tensor:
    """Find positions in an ascending list, -1 for a missing key."""
    if not len(keys):
        return torch.full_like(wanted, -1)
    first = int(keys[0])
    span = int(keys[-1]) + 1 - first
    if span <= TABLE * (len(keys) + len(wanted)):  # a table is several times faster than a search
        table = torch.full((span + 2,), -1, device=keys.device)
        table[keys - first + 1] = torch.arange(len(keys), device=keys.device)
        return table[(wanted - (first - 1)).clamp_(0, span + 1)]
    at = torch.searchsorted(keys, wanted).clamp_(max=len(keys) - 1)
    return torch.where(keys[at] == wanted, at, -1)


def _neighbours(graph: Graph, loops: Tensor) -> tuple[Tensor, Tensor]:
    """List the neighbours of each node, ascending, as pointers and nodes; nodes in ``loops`` neighbour themselves."""
    source, target = torch.cat([graph.tail, graph.head, loops]), torch.cat([graph.head, graph.tail, loops])
    source, order = source.mul(max(graph.num_nodes, 1)).add_(target).sort()
    rows = torch.div(source, max(graph.num_nodes, 1), rounding_mode="floor")
    return group_pointers(rows, graph.num_nodes), target[order]


def check_number(number: int, name: str) -> None:
    """Raise ``ValueError`` for more than :data:`MAX_TUPLES` tuples."""
    if number > MAX_TUPLES:
        raise ValueError(f"{name}: {number:,} tuples do not fit in memory, at most {MAX_TUPLES:,} do")
