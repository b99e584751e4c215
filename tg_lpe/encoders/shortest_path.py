"""Shortest paths as an encoder."""

from __future__ import annotations

import torch
from torch import Tensor

from tg_lpe.arguments import check_count
from tg_lpe.encoders.computed import NodeEdgeEncoder
from tg_lpe.encoders.registry import register
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.pairs import check_pair_nodes, hop_pairs


@register
class ShortestPath(NodeEdgeEncoder):
    r"""The number of edges on a shortest path between two nodes, a class of its own for each.

    At the pair of nodes ``(u, v)`` a one in the column of its distance ``\phi(u, v)``: ``0, 1, .. max_distance``, then
    one column for nodes that are farther and one for nodes that no path joins. `Do Transformers Really Perform Bad for
    Graph Representation? <https://arxiv.org/abs/2106.05234>`_, section 3.1.2: a linear map of it, as
    ``GraphTransformer(attention="bias", encoder=ShortestPath(8))`` has, is the learned scalar ``b_{\phi(u, v)}`` of
    eq. (6). At a node the number of nodes of its graph in each class, so the second column is its degree. Edges, all
    of distance one, are not encoded.

    Weights of edges are not read. Equivariant; no signs or bases to choose. It takes ``O(n m)`` a hop and graphs of up
    to 2,048 nodes.

    Args:
        max_distance: largest distance with a class of its own.

    Raises:
        ValueError: if it is less than one.

    Example:
        >>> import torch
        >>> from tg_lpe.encoders import ShortestPath
        >>> from tg_lpe.graph.graph import Graph
        >>> path = Graph(torch.tensor([[0, 1, 2], [1, 2, 3]]), num_nodes=5)
        >>> ShortestPath(max_distance=2).encode_pairs(path, torch.tensor([[0, 0, 0], [1, 3, 4]]))
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
        """The number of nodes in each class at nodes, float64; nothing at edges.

        Raises:
            ValueError: if a graph has more than 2,048 nodes.
        """
        check_pair_nodes(graph, type(self).__name__)
        found = graph.pairs[0] * self.out_channels + hop_pairs(graph, self.max_distance)
        counts = torch.bincount(found, minlength=graph.num_nodes * self.out_channels)
        return counts.view(graph.num_nodes, self.out_channels).double(), counts.new_zeros(graph.num_edges, 0).double()

    def compute_pairs(self, graph: Graph) -> Tensor:
        """The classes of pairs of nodes, zeros and ones."""
        classes = torch.arange(self.pair_out_channels, device=graph.device).unsqueeze(1)
        return (hop_pairs(graph, self.max_distance) == classes).mT
