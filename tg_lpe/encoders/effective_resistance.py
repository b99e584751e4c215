"""Effective resistances as an encoder."""

from __future__ import annotations

import torch
from torch import Tensor

from tg_lpe.encoders.computed import NodeEdgeEncoder
from tg_lpe.encoders.registry import register
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.resistance import effective_resistances, resistance_pairs


@register
class EffectiveResistance(NodeEdgeEncoder):
    """Encode nodes by their mean effective resistance, and edges by the resistance between their ends.

    The mean over the nodes of its component, ``L^+_ii + tr(L^+) / n``, tells how far a node is from the others. The
    encoding is equivariant and independent of signs and bases. It is zero at an isolated node, and at an edge of weight
    zero between two components, whose true resistance is infinite.

    Args:
        edge_out_channels: 1 for the edge encoding, 0 for none.
        pair_out_channels: 0 for no encoding of pairs, or ``None`` for 2 channels: the resistance between both nodes,
            and whether a path joins them; both are zero if no path does.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> import torch
        >>> from tg_lpe.encoders import EffectiveResistance
        >>> EffectiveResistance()(None, torch.tensor([[0, 1, 2], [1, 2, 0]])).edge[:, 0]
        tensor([0.6667, 0.6667, 0.6667])
    """

    name = "effective_resistance"

    def __init__(self, edge_out_channels: int | None = None, pair_out_channels: int | None = 0) -> None:
        super().__init__(1, 1, edge_out_channels, 2, pair_out_channels)

    def compute(self, graph: Graph) -> tuple[Tensor, Tensor]:
        """Compute the resistances, float64."""
        node, edge = effective_resistances(graph, with_edges=self.edge_out_channels > 0)
        return node.unsqueeze(-1), edge.masked_fill(edge.isinf(), 0.0).unsqueeze(-1)

    def compute_pairs(self, graph: Graph) -> Tensor:
        """Compute the resistances of all pairs of nodes, float64."""
        _, values = resistance_pairs(graph)
        return torch.stack([values.masked_fill(values.isinf(), 0.0), (~values.isinf()).to(values)], 1)
