"""PyTorch Geometric's GPS layer: local message passing plus global attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch_geometric.nn import GPSConv

from tg_lpe.arguments import check_heads, check_shares
from tg_lpe.graph.graph import Graph
from tg_lpe.nn._util import reset_all
from tg_lpe.nn.attention.global_attention import softmax_attention
from tg_lpe.nn.attention.local import Local, convolve, make_convolution
from tg_lpe.nn.attention.registry import AttentionLayer, register_attention
from tg_lpe.nn.norms import NORMS


@register_attention("gps")
class GPSLayer(AttentionLayer):
    """:class:`torch_geometric.nn.GPSConv` with a convolution, by default ``GINEConv`` as in its authors' models.

    `Recipe for a General, Powerful, Scalable Graph Transformer <https://arxiv.org/abs/2205.12454>`_, eqs. (1)-(4). The
    modules and the result are PyG's. The forward pass is different: PyG's computes the padded batch in every layer,
    with two synchronisations with the device. Layers read edge features but do not change them.

    Args:
        hidden_channels: width of node and edge features.
        heads: number of attention heads; divides ``hidden_channels``.
        dropout: share of the outputs of message passing, attention and feed-forward net that is dropped in training.
        norm: name of a normalisation in :data:`~tg_lpe.nn.norms.NORMS`.
        local: the convolution, see :func:`~tg_lpe.nn.attention.local.make_convolution`.
        local_options: further arguments of its constructor.

    Raises:
        ValueError: if ``heads`` does not divide ``hidden_channels``, or another argument is out of range.
    """

    def __init__(
        self,
        hidden_channels: int,
        heads: int,
        dropout: float = 0.0,
        norm: str = "bounded",
        local: Local = "GINEConv",
        local_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        check_heads(hidden_channels, heads)
        check_shares(dropout=dropout)
        convolution = make_convolution(hidden_channels, local, local_options)
        self.layer = GPSConv(hidden_channels, convolution, heads, dropout, norm=None)
        for name in ("norm1", "norm2", "norm3"):  # PyG's own batch norm fails on a batch of one node
            setattr(self.layer, name, NORMS[norm](hidden_channels))

    def reset_parameters(self) -> None:
        """Draw the weights again and reset running statistics."""
        gps = self.layer
        for part in (gps.conv, gps.attn, gps.mlp, gps.norm1, gps.norm2, gps.norm3):
            reset_all(part)  # PyG's own reset omits a part of the attention

    def forward(self, h: Tensor, e: Tensor, graph: Graph) -> tuple[Tensor, Tensor]:
        """Apply the layer, see :func:`~tg_lpe.nn.attention.register_attention`."""
        gps, graphs = self.layer, graph.graphs
        local = self._drop(convolve(gps.conv, h, e, graph))
        local = gps.norm1(local + h, graphs)
        attended = gps.norm2(self._drop(self._attend(h, graph)) + h, graphs)
        out = local + attended
        return gps.norm3(out + gps.mlp(out), graphs), e

    def _attend(self, h: Tensor, graph: Graph) -> Tensor:
        """Attend from each node to all nodes of its graph, ``[num_nodes, hidden_channels]``."""
        attention = self.layer.attn
        rows = nn.functional.linear(h, attention.in_proj_weight, attention.in_proj_bias)
        rows = rows.unflatten(1, (3, attention.num_heads, -1))
        return attention.out_proj(softmax_attention(rows, graph))  # type: ignore[no-any-return]

    def _drop(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, self.layer.dropout, self.training)
