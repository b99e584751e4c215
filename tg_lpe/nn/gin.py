"""Layer of the Graph Isomorphism Network on undirected graphs, for encoders."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tg_lpe.graph.graph import Graph


def neighbour_sums(graph: Graph, h: Tensor) -> Tensor:
    """Compute ``A h``, the sum over neighbours weighted by edge weights, ``[num_nodes, ...]`` like ``h``."""
    rows = h.flatten(1)
    return (graph.laplacian_diagonal(rows).unsqueeze(1) * rows - graph.laplacian(rows)).view_as(h)


class GINLayer(nn.Module):
    r"""Compute :math:`\mathrm{MLP}((1 + \epsilon) h_u + \sum_{w \sim u} h_w)`, with layer norm in the perceptron.

    `How Powerful are Graph Neural Networks? <https://arxiv.org/abs/1810.00826>`_, eq. (4.1). The sum is weighted by
    edge weights.

    Args:
        in_channels, hidden_channels, out_channels: widths of the perceptron.
    """

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        super().__init__()
        self.epsilon = nn.Parameter(torch.zeros(()))
        self.net = normed_perceptron(in_channels, hidden_channels, out_channels)

    def forward(self, graph: Graph, h: Tensor) -> Tensor:
        """Map ``h``, ``[num_nodes, ..., in_channels]``, to ``[num_nodes, ..., out_channels]``."""
        out: Tensor = self.net((1 + self.epsilon) * h + neighbour_sums(graph, h))
        return out


def normed_perceptron(in_channels: int, hidden_channels: int, out_channels: int) -> nn.Sequential:
    """Return two linear maps with layer norm and ReLU between them."""
    return nn.Sequential(
        *(nn.Linear(in_channels, hidden_channels), nn.LayerNorm(hidden_channels), nn.ReLU()),
        nn.Linear(hidden_channels, out_channels),
    )
