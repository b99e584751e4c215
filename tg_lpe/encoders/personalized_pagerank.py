"""Personalised PageRank as an encoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tg_lpe.arguments import checked_numbers
from tg_lpe.encoders.computed import NodeEdgeEncoder
from tg_lpe.encoders.registry import register
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.pairs import check_pair_nodes, pagerank_pairs

ALPHAS = (0.05, 0.15, 0.5)


@register
class PersonalizedPageRank(NodeEdgeEncoder):
    r"""Where a random walk from one node ends that stops before each step with probability ``alpha``.

    At the pair of nodes ``(u, v)`` the probability of ending at ``v`` after starting from ``u``,

    .. math:: \alpha \, (I - (1 - \alpha) M)^{-1}_{uv} = \alpha \sum_t (1 - \alpha)^t \, M^t_{uv}, \qquad M = D^{-1} A ,

    `Predict then Propagate <https://arxiv.org/abs/1810.05997>`_, section 2, of walks as in `The PageRank Citation
    Ranking <http://ilpubs.stanford.edu:8090/422/>`_: walks of all lengths in one channel, where
    :class:`~tg_lpe.encoders.RRWP` has a channel for each. At a node the pair of itself, at an edge the geometric mean
    of both directions. A walk from a node without edges ends there.

    Equivariant; no signs or bases to choose. It takes ``O(n^3)`` and graphs of up to 2,048 nodes.

    Args:
        alphas: probabilities of stopping, one channel each; networkx's ``alpha`` is one minus that.
        edge_out_channels: as many as ``alphas`` for the edge encoding, 0 for none.

    Raises:
        TypeError: if ``alphas`` is no sequence of numbers.
        ValueError: without ``alphas``, with one that is not between 0 and 1, or on another ``edge_out_channels``.

    Example:
        >>> import torch
        >>> from tg_lpe.encoders import PersonalizedPageRank
        >>> from tg_lpe.graph.graph import Graph
        >>> edge = Graph(torch.tensor([[0], [1]]))
        >>> PersonalizedPageRank(alphas=(0.5,)).encode_pairs(edge, torch.tensor([[0, 0], [0, 1]]))
        tensor([[0.6667],
                [0.3333]])
    """

    def __init__(self, alphas: Sequence[float] = ALPHAS, edge_out_channels: int | None = None) -> None:
        alphas = checked_numbers("alphas", alphas)
        if not alphas or not all(0 < alpha < 1 for alpha in alphas):
            raise ValueError(f"alphas must be between 0 and 1, at least one, got {alphas}")
        super().__init__(len(alphas), len(alphas), edge_out_channels, len(alphas))
        self.alphas = alphas
        self.name = "_".join(["personalized_pagerank", *map(str, alphas)])

    def compute(self, graph: Graph) -> tuple[Tensor, Tensor]:
        """The probabilities at nodes and edges, float64.

        Raises:
            ValueError: if a graph has more than 2,048 nodes.
        """
        check_pair_nodes(graph, type(self).__name__)
        values, node = pagerank_pairs(graph, self.alphas), torch.arange(graph.num_nodes, device=graph.device)
        there, back = (
            values.index_select(0, graph.pair_number(*ends))
            for ends in ((graph.tail, graph.head), (graph.head, graph.tail))
        )
        return values.index_select(0, graph.pair_number(node, node)).contiguous(), (there * back).sqrt()

    def compute_pairs(self, graph: Graph) -> Tensor:
        """The probabilities at pairs of nodes, float64."""
        return pagerank_pairs(graph, self.alphas)
