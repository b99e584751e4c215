"""A layer of the Graph Isomorphism Network over the undirected graph, as encoders use it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tg_lpe.graph.graph import Graph
from tg_lpe.nn._util import reset_all


def neighbour_sums(graph: Graph, h: Tensor) -> Tensor:
    """``A h``: the sum over the neighbours of each node, by edge weight.

    Args:
        graph: the graph or batch.
        h: ``[num_nodes, ...]``.

    Returns:
        As ``h``.
    """
    rows = h.flatten(1)
    return (graph.laplacian_diagonal(rows).unsqueeze(1) * rows - graph.laplacian(rows)).view_as(h)


class GINLayer(nn.Module):
    r""":math:`\mathrm{MLP}((1 + \epsilon) h_u + \sum_{w \sim u} h_w)`, with layer norm in the perceptron.

    `How Powerful are Graph Neural Networks? <https://arxiv.org/abs/1810.00826>`_, eq. (4.1). Neighbours count by their
    edge weight.

    Args:
        in_channels, hidden_channels, out_channels: widths of the perceptron.
    """

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        super().__init__()
        self.epsilon = nn.Parameter(torch.zeros(()))
        self.net = normed_perceptron(in_channels, hidden_channels, out_channels)

    def reset_parameters(self) -> None:
        """Draw all weights anew."""
        nn.init.zeros_(self.epsilon)
        reset_all(self.net)

    def forward(self, graph: Graph, h: Tensor) -> Tensor:
        """Rows ``[num_nodes, ..., out_channels]`` of ``h``, ``[num_nodes, ..., in_channels]``."""
        out: Tensor = self.net((1 + self.epsilon) * h + neighbour_sums(graph, h))
        return out


def normed_perceptron(in_channels: int, hidden_channels: int, out_channels: int) -> nn.Sequential:
    """Two linear maps, with layer norm and ReLU between them."""
    return nn.Sequential(
        *(nn.Linear(in_channels, hidden_channels), nn.LayerNorm(hidden_channels), nn.ReLU()),
        nn.Linear(hidden_channels, out_channels),
    )
