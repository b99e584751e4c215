"""Shortest paths as an encoder."""

from __future__ import annotations

import torch
from torch import Tensor

from tg_lpe.arguments import check_count
from tg_lpe.encoders.computed import NodeEdgeEncoder
from tg_lpe.encoders.registry import register
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.pairs import PAIR_NODES, hop_counts, hop_pairs


@register
class ShortestPath(NodeEdgeEncoder):
    r"""Encode pairs of nodes by their shortest-path distance, one-hot.

    The columns are the distances ``0, 1, ..., max_distance``, then one for larger distances and one for pairs that no
    path joins. A linear map of this encoding, as in ``GraphTransformer(attention="bias", encoder=ShortestPath(8))``, is
    the learned scalar ``b_{\phi(u, v)}`` in eq. (6) of `Do Transformers Really Perform Bad for Graph Representation?
    <https://arxiv.org/abs/2106.05234>`_.

    The encoding of a node counts the nodes of its graph in each column, so the second column is its degree. Edges are
    not encoded, because both ends always have distance one.

    Edge weights are not read. The encoding is equivariant and independent of signs and bases. It takes ``O(n m)`` a
    hop. Graphs may have up to 2,048 nodes if pairs are encoded.

    Args:
        max_distance: largest distance with its own column.

    Raises:
        ValueError: if ``max_distance`` is less than one.

    Example:
        >>> import torch
        >>> from tg_lpe.encoders import ShortestPath
        >>> from tg_lpe.graph.graph import Graph
        >>> path = Graph(torch.tensor([[0, 1, 2], [1, 2, 3]]), num_nodes=5)
        >>> ShortestPath(max_distance=2)(None, path, pairs=torch.tensor([[0, 0, 0], [1, 3, 4]])).pair
        tensor([[0., 1., 0., 0., 0.],
                [0., 0., 0., 1., 0.],
                [0., 0., 0., 0., 1.]])
    """

    name = "shortest_path"
    reads = frozenset()

    def __init__(self, max_distance: int = 8) -> None:
        check_count("max_distance", max_distance)
        super().__init__(max_distance + 3, 0, None, max_distance + 3)
        self.max_distance = max_distance

    def compute(self, graph: Graph) -> tuple[Tensor, Tensor]:
        """Count the nodes at each distance from each node, float64; edges have no columns."""
        if graph.max_nodes > PAIR_NODES:
            return hop_counts(graph, self.max_distance).double(), graph.tail.new_zeros(graph.num_edges, 0).double()
        entries = graph.pairs[0] * self.out_channels + hop_pairs(graph, self.max_distance)
        counts = torch.bincount(entries, minlength=graph.num_nodes * self.out_channels)
        return counts.view(graph.num_nodes, self.out_channels).double(), counts.new_zeros(graph.num_edges, 0).double()

    def compute_pairs(self, graph: Graph) -> Tensor:
        """Compute the distances of all pairs of nodes, one-hot."""
        classes = torch.arange(self.pair_out_channels, device=graph.device).unsqueeze(1)
        return (hop_pairs(graph, self.max_distance) == classes).mT
