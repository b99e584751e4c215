"""PyTorch Geometric's GPS layer behind the interface of our own: local message passing beside global attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.nn import GINEConv, GPSConv

from tg_lpe.nn.attention.edge import RowBatchNorm
from tg_lpe.ops.segment import RowGroups


class GPSLayer(nn.Module):
    """:class:`torch_geometric.nn.GPSConv` around a ``GINEConv``, as its authors use it on molecules.

    `Recipe for a General, Powerful, Scalable Graph Transformer <https://arxiv.org/abs/2205.12454>`_. The edge stream is
    read by each layer and changed by none.

    Args:
        channels: width of the node and edge streams.
        heads: number of attention heads; divides ``channels``.

    Raises:
        ValueError: if ``heads`` does not divide ``channels``.
    """

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        if heads < 1 or channels % heads:
            raise ValueError(f"heads must divide channels, got heads={heads} and channels={channels}")
        net = nn.Sequential(nn.Linear(channels, channels), nn.ReLU(), nn.Linear(channels, channels))
        self.layer = GPSConv(channels, GINEConv(net), heads, norm=None)
        # PyG's own batch norm fails on a batch of one node.
        self.layer.norm1, self.layer.norm2, self.layer.norm3 = (RowBatchNorm(channels) for _ in range(3))

    def forward(
        self,
        h: Tensor,
        e: Tensor,
        source: RowGroups,
        target: RowGroups,
        graphs: RowGroups,
        edge_types: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """As :meth:`~tg_lpe.nn.attention.edge.EdgeAttentionLayer.forward`."""
        if h.size(0) == 0:
            return h, e
        if edge_types is not None:
            e = nn.functional.one_hot(edge_types, e.size(0)).to(e.dtype) @ e
        return self.layer(h, torch.stack([source.index, target.index]), graphs.index, edge_attr=e.to(h.dtype)), e
