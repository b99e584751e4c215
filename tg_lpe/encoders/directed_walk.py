"""Random walks on directed graphs as an encoder."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tg_lpe.arguments import check_count
from tg_lpe.encoders.computed import NodeEdgeEncoder
from tg_lpe.encoders.registry import register
from tg_lpe.graph.directed import directed_walks
from tg_lpe.graph.graph import Graph


@register
class DirectedWalk(NodeEdgeEncoder):
    r"""Encode nodes, edges and pairs of a directed graph by random-walk probabilities after 1 to ``steps`` steps.

    There are three walks: along the edges, against them, and alternating. Their probabilities of being at ``v`` after
    ``t`` steps from ``u`` are the entries of

    .. math:: F^t, \; B^t, \; F B F \cdots \text{ (} t \text{ factors)}, \qquad
        F = D_\text{out}^{-1} A , \quad B = D_\text{in}^{-1} A^T .

    The first two follow `Transformers Meet Directed Graphs <https://arxiv.org/abs/2302.00049>`_, section 4. In the
    authors' code a walk stays at a node that it cannot leave. Here it ends there, so probabilities need not add up to
    one. The encoding has the entries ``(u, u)`` at a node and ``(u, v)`` at a directed edge or pair. In a graph without
    directed cycles, a walk along the edges never returns to its start; an alternating walk does.

    An edge that is listed in both directions can be walked both ways. If all edges are, each of the three walks is
    :class:`~tg_lpe.encoders.RandomWalk`. Reversing all edges exchanges the first two walks. The encoding is equivariant
    and independent of signs and bases. It takes at most ``O(n m)`` a step, and less on graphs of more than 256 nodes
    whose walks reach few of the nodes. Graphs may have up to 2,048 nodes if pairs are encoded.

    Args:
        steps: number of steps; ``out_channels`` is ``3 steps``: along, against, alternating.
        edge_out_channels: ``3 steps`` for the edge encoding, 0 for none.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> import torch
        >>> from tg_lpe.encoders import DirectedWalk
        >>> path = torch.tensor([[0, 1], [1, 2]])  # 0 -> 1 -> 2: only node 2 has no outgoing edge
        >>> DirectedWalk(steps=2)(None, path).node[:, -1]
        tensor([1., 1., 0.])
    """

    name = "directed_walk"
    directed = True

    def __init__(self, steps: int = 8, edge_out_channels: int | None = None) -> None:
        check_count("steps", steps)
        super().__init__(3 * steps, 3 * steps, edge_out_channels, 3 * steps)
        self.steps = steps

    def compute(self, graph: Graph) -> tuple[Tensor, Tensor]:
        """Compute the probabilities at nodes and directed edges, float64."""
        nodes = torch.arange(graph.num_nodes, device=graph.device)
        edges = graph.edge_index.long() if self.edge_out_channels else nodes.new_zeros(2, 0)
        ends = torch.cat([nodes.expand(2, -1), edges], 1)
        node, edge = directed_walks(graph, self.steps, *ends).split([graph.num_nodes, edges.size(1)])
        return node, edge.masked_fill((edges[0] == edges[1]).unsqueeze(1), 0.0)

    def values_of_pairs(self, graph: Graph, pairs: Tensor, precomputed: Mapping[str, Tensor]) -> Tensor:
        """Compute the probabilities at pairs of nodes, float64."""
        with torch.no_grad():
            return directed_walks(graph, self.steps, *pairs.long())
