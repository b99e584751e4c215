"""Relative random-walk probabilities as an encoder."""

from __future__ import annotations

import torch
from torch import Tensor

from tg_lpe.arguments import check_count
from tg_lpe.encoders.computed import NodeEdgeEncoder
from tg_lpe.encoders.registry import register
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.pairs import walk_pairs
from tg_lpe.graph.random_walks import random_walk_probabilities


@register
class RRWP(NodeEdgeEncoder):
    r"""Encode pairs of nodes by relative random-walk probabilities after 0, 1, ..., ``steps - 1`` steps.

    The encoding of a pair ``(u, v)`` has the probabilities that a walk that starts at ``u`` is at ``v``,

    .. math:: [I, M, M^2, \dots, M^{K-1}]_{uv}, \qquad M = D^{-1} A ,

    with ``K = steps``, as in `Graph Inductive Biases in Transformers without Message Passing
    <https://arxiv.org/abs/2305.17589>`_, section 3.1. The encoding of a node ``u`` is that of the pair ``(u, u)``. The
    encoding of an edge is the geometric mean of both directions, as in :class:`~tg_lpe.encoders.RandomWalk`.

    Attention can read the pairs: ``GraphTransformer(attention="pairs", encoder=RRWP(16))`` or ``attention="bias"``. The
    encoding is equivariant and independent of signs and bases. Pairs take ``O(n m)`` a step and need graphs of up to
    2,048 nodes; nodes and edges cost as much as with :class:`~tg_lpe.encoders.RandomWalk`.

    Args:
        steps: number of powers ``K``, including the zeroth; at least 2.
        edge_out_channels: ``steps`` for the edge encoding, 0 for none.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> import torch
        >>> from tg_lpe.encoders import RRWP
        >>> from tg_lpe.graph.graph import Graph
        >>> path = Graph(torch.tensor([[0, 1], [1, 2]]))
        >>> RRWP(steps=3)(None, path, pairs=torch.tensor([[0, 0], [1, 2]])).pair
        tensor([[0.0000, 1.0000, 0.0000],
                [0.0000, 0.0000, 0.5000]])
    """

    name = "rrwp"

    def __init__(self, steps: int = 16, edge_out_channels: int | None = None) -> None:
        check_count("steps", steps, least=2)
        super().__init__(steps, steps, edge_out_channels, steps)
        self.steps = steps

    def compute(self, graph: Graph) -> tuple[Tensor, Tensor]:
        """Compute the probabilities at nodes and edges, float64."""
        node, edge = random_walk_probabilities(graph, self.steps - 1, with_edges=self.edge_out_channels > 0)
        return torch.cat([torch.ones_like(node[:, :1]), node], 1), torch.cat([torch.zeros_like(edge[:, :1]), edge], 1)

    def compute_pairs(self, graph: Graph) -> Tensor:
        """Compute the probabilities at all pairs of nodes, in the module's dtype."""
        return walk_pairs(graph, self.steps, torch.promote_types(self.unit.dtype, torch.float32))
