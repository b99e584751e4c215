"""Personalised PageRank as an encoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tg_lpe.arguments import checked_numbers
from tg_lpe.encoders.computed import NodeEdgeEncoder
from tg_lpe.encoders.registry import register
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.pairs import PAIR_NODES, pagerank_entries, pagerank_pairs

ALPHAS = (0.05, 0.15, 0.5)


@register
class PersonalizedPageRank(NodeEdgeEncoder):
    r"""Encode pairs of nodes by where a random walk ends that stops before each step with probability ``alpha``.

    The encoding of a pair ``(u, v)`` is the probability that a walk that starts at ``u`` ends at ``v``,

    .. math:: \alpha \, (I - (1 - \alpha) M)^{-1}_{uv} = \alpha \sum_t (1 - \alpha)^t \, M^t_{uv}, \qquad M = D^{-1} A ,

    as in `The PageRank Citation Ranking <http://ilpubs.stanford.edu:8090/422/>`_. `Predict then Propagate
    <https://arxiv.org/abs/1810.05997>`_ has ``D^{-1/2} A D^{-1/2}`` with a self-loop at each node in place of ``M``,
    whose values are no probabilities. One channel has the walks of all lengths;
    :class:`~tg_lpe.encoders.RRWP` has a channel for each length. The encoding of a node ``u`` is that of the pair
    ``(u, u)``; the encoding of an edge is the geometric mean of both directions. A walk from a node without edges ends
    there.

    The encoding is equivariant and independent of signs and bases. Graphs of up to 2,048 nodes take ``O(n^3)``. Larger
    ones take ``O(n m)`` for each term of a series, 115 terms with the default ``alphas``, and their pairs cannot be
    encoded.

    Args:
        alphas: probabilities of stopping, one channel each. The argument ``alpha`` of networkx is one minus this value.
        edge_out_channels: as many as ``alphas`` for the edge encoding, 0 for none.

    Raises:
        TypeError: if ``alphas`` is not a sequence of numbers.
        ValueError: if ``alphas`` is empty or has a value not between 0 and 1, or ``edge_out_channels`` is invalid.

    Example:
        >>> import torch
        >>> from tg_lpe.encoders import PersonalizedPageRank
        >>> from tg_lpe.graph.graph import Graph
        >>> edge = Graph(torch.tensor([[0], [1]]))
        >>> PersonalizedPageRank(alphas=(0.5,))(None, edge, pairs=torch.tensor([[0, 0], [0, 1]])).pair
        tensor([[0.6667],
                [0.3333]])
    """

    def __init__(self, alphas: Sequence[float] = ALPHAS, edge_out_channels: int | None = None) -> None:
        alphas = checked_numbers("alphas", alphas)
        if not alphas or not all(0 < alpha < 1 for alpha in alphas):
            raise ValueError(f"alphas must be one or more numbers between 0 and 1, got {alphas}")
        super().__init__(len(alphas), len(alphas), edge_out_channels, len(alphas))
        self.alphas = alphas
        self.name = "_".join(["personalized_pagerank", *map(str, alphas)])

    def compute(self, graph: Graph) -> tuple[Tensor, Tensor]:
        """Compute the probabilities at nodes and edges, float64."""
        if graph.max_nodes > PAIR_NODES:
            return pagerank_entries(graph, self.alphas)
        values, node = pagerank_pairs(graph, self.alphas), torch.arange(graph.num_nodes, device=graph.device)
        forward, backward = (
            values.index_select(0, graph.pair_number(*ends))
            for ends in ((graph.tail, graph.head), (graph.head, graph.tail))
        )
        return values.index_select(0, graph.pair_number(node, node)).contiguous(), (forward * backward).sqrt()

    def compute_pairs(self, graph: Graph) -> Tensor:
        """Compute the probabilities at all pairs of nodes, float64."""
        return pagerank_pairs(graph, self.alphas)
