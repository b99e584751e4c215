"""Random-walk probabilities as an encoder."""

from __future__ import annotations

from torch import Tensor

from tg_lpe.arguments import check_count
from tg_lpe.encoders.computed import NodeEdgeEncoder
from tg_lpe.encoders.registry import register
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.random_walks import random_walk_probabilities


@register
class RandomWalk(NodeEdgeEncoder):
    """Encode nodes by the probabilities that a random walk is back at its start after 1, 2, ..., ``steps`` steps.

    See `Graph Neural Networks with Learnable Structural and Positional Representations
    <https://arxiv.org/abs/2110.07875>`_, eq. (7). At an edge ``(u, v)`` the encoding is the geometric mean of two
    probabilities: of being at ``v`` after starting from ``u``, and of being at ``u`` after starting from ``v``. See
    :func:`tg_lpe.graph.random_walks.random_walk_probabilities`.

    Args:
        steps: number of steps, ``out_channels``.
        edge_out_channels: ``steps`` for the edge encoding, 0 for none.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> import torch
        >>> from tg_lpe.encoders import RandomWalk
        >>> RandomWalk(steps=4)(None, torch.tensor([[0, 1, 2], [1, 2, 3]])).node[0]
        tensor([0.0000, 0.5000, 0.0000, 0.3750])
    """

    name = "random_walk"

    def __init__(self, steps: int = 16, edge_out_channels: int | None = None) -> None:
        check_count("steps", steps)
        super().__init__(steps, steps, edge_out_channels)
        self.steps = steps

    def compute(self, graph: Graph) -> tuple[Tensor, Tensor]:
        """Compute the probabilities, float64."""
        return random_walk_probabilities(graph, self.steps, with_edges=self.edge_out_channels > 0)
