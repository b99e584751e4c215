"""Count simple cycles through each node and each edge by enumeration."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tg_lpe.graph.graph import Graph
from tg_lpe.ops.segment import repeat_ranges

ROOTS = 2**12
"""Number of nodes from which paths start at once."""

CHUNK = 2**19
"""Largest number of extended paths in memory, unless one path alone has more extensions."""


def cycle_counts(graph: Graph, lengths: Sequence[int], max_paths: int) -> tuple[Tensor, Tensor]:
    """Count the simple cycles of given lengths through each node and each edge.

    Each cycle is found from its node of largest degree. Paths from there go through nodes of smaller degree only and
    are extended edge by edge, as long as they can still close within the largest length.

    Args:
        graph: the graph or batch; weights are ignored.
        lengths: numbers of edges, each at least 3.
        max_paths: largest number of paths to extend in each graph.

    Returns:
        float64 ``[num_nodes, num_lengths]`` and ``[num_edges, num_lengths]`` of the undirected edges.

    Raises:
        ValueError: if a graph has more paths.
    """
    counter = _Counter(graph, max(lengths), max_paths)
    for first in range(0, graph.num_nodes, ROOTS):
        counter.count_from(first, first + ROOTS)
    nodes, edges = (torch.stack([c[:, length - 3] for length in lengths], 1) for c in (counter.nodes, counter.edges))
    return nodes[counter.rank], edges


class _Counter:
    """Count cycles; nodes are numbered by descending degree, so that paths through a hub start at the hub."""

    def __init__(self, graph: Graph, longest: int, max_paths: int) -> None:
        n, device = graph.num_nodes, graph.device
        ends = torch.stack([torch.cat([graph.tail, graph.head]), torch.cat([graph.head, graph.tail])])
        order = ends[0].bincount(minlength=n).argsort(descending=True, stable=True)
        self.rank = torch.empty_like(order).scatter_(0, order, torch.arange(n, device=device))
        source, target = self.rank[ends]
        self.entries, by_source = (source * n + target).sort()
        self.target, self.edge = target[by_source], torch.arange(graph.num_edges, device=device).repeat(2)[by_source]
        self.degree = source.bincount(minlength=n)
        self.start = self.degree.cumsum(0) - self.degree
        self.longest, self.max_paths, self.num_nodes = longest, max_paths, n
        self.near = (longest - 1) // 2  # below this number of steps, paths that are too far from their root end
        self.graph_of, self.num_graphs = graph.batch[order], graph.num_graphs
        self.paths = self.degree.new_zeros(graph.num_graphs)
        self.nodes = torch.zeros(n, longest - 2, dtype=torch.float64, device=device)
        self.edges = torch.zeros(graph.num_edges, longest - 2, dtype=torch.float64, device=device)

    def count_from(self, first: int, last: int) -> None:
        """Count the cycles that start at a node of ``range(first, last)``."""
        roots = torch.arange(first, min(last, self.num_nodes), device=self.rank.device)
        self.extend(roots.unsqueeze(0), roots.new_zeros(0, roots.numel()))

    def _neighbours(self, node: Tensor) -> tuple[Tensor, Tensor]:
        """Return the row of ``node`` and the entry of each neighbour."""
        return repeat_ranges(self.start[node], self.degree[node])

    def _find_distances(self, roots: Tensor) -> None:
        """Store the distances of nodes near enough to a root to close a cycle, sorted by ``root * n + node``."""
        keys, distances = [roots * self.num_nodes + roots], [torch.zeros_like(roots)]
        for distance in range(1, self.near + 1):
            root, node = keys[-1] // self.num_nodes, keys[-1] % self.num_nodes
            row, entry = self._neighbours(node)
            is_smaller = self.target[entry] > root[row]
            new = (root[row] * self.num_nodes + self.target[entry])[is_smaller].unique()
            new = new[~torch.isin(new, torch.cat(keys[-2:]), assume_unique=True)]
            keys.append(new)
            distances.append(torch.full_like(new, distance))
        self.keys, order = torch.cat(keys).sort()
        self.distances = torch.cat(distances)[order]

    def extend(self, path: Tensor, edges: Tensor) -> None:
        """Extend paths ``[path_nodes, num_paths]`` and their edges until they close or are too long."""
        self.paths += self.graph_of[path[0]].bincount(minlength=self.num_graphs)
        self._check_number(self.paths)
        if path.size(0) == self.longest:  # the last node is a neighbour of the root
            closing = self.edge[torch.searchsorted(self.entries, path[-1] * self.num_nodes + path[0])]
            self._add_cycles(path, torch.cat([edges, closing[None]]))
            return
        extensions = self.degree[path[-1]].sum()
        chunks = int(extensions) // CHUNK + 1 if path.size(1) else 0
        if chunks > 1 and self.longest - path.size(0) > self.near:
            self._check_number(self.paths.index_add(0, self.graph_of[path[0]], self.fewest_extensions(path)))
        for rows in torch.arange(path.size(1), device=path.device).tensor_split(chunks) if chunks else ():
            some, some_edges = path[:, rows], edges[:, rows]
            row, entry = self._neighbours(some[-1])
            node, root, left = self.target[entry], some[0][row], self.longest - some.size(0)
            if some.size(0) >= 3:
                back = node == root
                closing = torch.cat([some_edges[:, row[back]], self.edge[entry[back]][None]])
                self._add_cycles(some[:, row[back]], closing)
            if left == self.near:  # for these roots alone: they have about as many paths as near nodes
                self._find_distances(some[0].unique())
            open_ = node > root
            if left <= self.near:
                open_ &= self.leads_back(root, node, left)
            for before in some[1:]:
                open_ &= before[row] != node
            row, entry = row[open_], entry[open_]
            longer = torch.cat([some[:, row], node[open_][None]])
            self.extend(longer, torch.cat([some_edges[:, row], self.edge[entry][None]]))

    def fewest_extensions(self, path: Tensor) -> Tensor:
        """Bound the extensions of each path from below: the larger neighbours of its end, less its own nodes."""
        root, end = path[0], path[-1]
        up_to_root = torch.searchsorted(self.entries, end * self.num_nodes + root, right=True) - self.start[end]
        return (self.degree[end] - up_to_root - max(path.size(0) - 2, 0)).clamp(min=0)

    def leads_back(self, root: Tensor, node: Tensor, left: int) -> Tensor:
        """Return whether at most ``left`` edges lead from each node back to its root."""
        key = root * self.num_nodes + node
        at = torch.searchsorted(self.keys, key).clamp(max=self.keys.numel() - 1)
        return (self.keys[at] == key) & (self.distances[at] <= left)

    def _check_number(self, paths: Tensor) -> None:
        """Refuse a graph with too many paths."""
        if bool((paths > self.max_paths).any()):
            number = int((paths > self.max_paths).nonzero()[0])
            raise ValueError(
                f"max_paths={self.max_paths} is too few for graph {number} and these lengths: raise it, or shorten them"
            )

    def _add_cycles(self, path: Tensor, edges: Tensor) -> None:
        """Add closed paths to the counts of their nodes and edges."""
        once = path[1] < path[-1]  # a cycle is found in both directions
        column = path.size(0) - 3
        for counts, part in ((self.nodes, path[:, once].flatten()), (self.edges, edges[:, once].flatten())):
            counts[:, column].index_add_(0, part, counts.new_ones(part.numel()))
