"""Attention over the edges of a graph that also updates edge features (Dwivedi & Bresson, 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tg_lpe.arguments import check_flags, check_heads, check_shares
from tg_lpe.graph.graph import Graph
from tg_lpe.nn._util import Resettable
from tg_lpe.nn.attention.local import Convolution, Local
from tg_lpe.nn.attention.registry import AttentionLayer, register_attention
from tg_lpe.nn.norms import NORMS
from tg_lpe.ops.attention import edge_attention
from tg_lpe.ops.segment import RowGroups


class EdgeAttention(Resettable):
    r"""Multi-head attention of each node over its in-neighbours, modulated by edge features.

    For the edge from ``j`` to ``i`` and each head of width ``d``,

    .. math::
        s_{ij} = \frac{(Q h_i) \odot (K h_j)}{\sqrt d} \odot E e_{ij}, \qquad
        a_{ij} = \frac{\exp(\mathrm{clamp}(1^\top s_{ij}))}{\sum_{j'} \exp(\mathrm{clamp}(1^\top s_{ij'}))}, \qquad
        h'_i = \sum_j a_{ij} V h_j ,

    and the edge update is ``s_ij``. See `A Generalization of Transformer Networks to Graphs
    <https://arxiv.org/abs/2012.09699>`_, eqs. (8)-(11).

    Args:
        hidden_channels: width of node and edge features.
        heads: number of heads; divides ``hidden_channels``.
        dropout: share of the attention weights that is dropped in training.

    Raises:
        ValueError: if ``heads`` does not divide ``hidden_channels``, or ``dropout`` is out of range.
    """

    def __init__(self, hidden_channels: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        check_heads(hidden_channels, heads)
        self.hidden_channels = hidden_channels
        self.heads = heads
        self.query = nn.Linear(hidden_channels, hidden_channels)
        self.key_value = nn.Linear(hidden_channels, 2 * hidden_channels)
        self.edge = nn.Linear(hidden_channels, hidden_channels)
        self.dropout = nn.Dropout(dropout)

    def forward(self, h: Tensor, e: Tensor, graph: Graph) -> tuple[Tensor, Tensor]:
        """Attend to the in-neighbours.

        Args:
            h: node features ``[num_nodes, hidden_channels]``.
            e: edge features ``[num_edges, hidden_channels]``.
            graph: the graph.

        Returns:
            Node update ``[num_nodes, hidden_channels]`` and edge scores ``[num_edges, hidden_channels]``.
        """
        dropout = self.dropout.p if self.training else 0.0
        rows = self.query(h), self.key_value(h), self.edge(e)
        return edge_attention(*rows, graph.source, graph.target, self.heads, dropout)


@register_attention("edge")
class EdgeAttentionLayer(AttentionLayer):
    """:class:`EdgeAttention` and a feed-forward net, each with residual and norm, for nodes and edges.

    Args:
        hidden_channels: width of node and edge features.
        heads: number of attention heads; divides ``hidden_channels``.
        update_edges: whether edge features are updated; ``False`` for the last layer, whose edge features are not read.
        dropout: share of the attention's output and of the hidden units that is dropped in training.
        norm: name of a normalisation in :data:`~tg_lpe.nn.norms.NORMS`.
        local: message passing whose output is added to that of the attention.

            - ``"none"``: no message passing
            - ``"gine"``: a net of ``h_i + sum_j relu(h_j + e_ij)``, see :class:`LocalPart`; with ``norm="batch"``,
              graphs unlike the training set may overflow
            - otherwise a convolution, see :func:`~tg_lpe.nn.attention.local.make_convolution`
        local_options: further arguments of the convolution's constructor.
        attention_dropout: share of the attention weights that is dropped in training.
        drop_path: probability that a graph skips the attention, or the feed-forward net, in training.

    Raises:
        ValueError: if ``heads`` does not divide ``hidden_channels``, or another argument is out of range.
    """

    def __init__(
        self,
        hidden_channels: int,
        heads: int,
        update_edges: bool = True,
        dropout: float = 0.0,
        norm: str = "bounded",
        local: Local = "none",
        local_options: Mapping[str, Any] | None = None,
        attention_dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        check_flags(update_edges=update_edges)
        check_shares(dropout=dropout, attention_dropout=attention_dropout, drop_path=drop_path)
        self.attention = EdgeAttention(hidden_channels, heads, attention_dropout)
        self.node_update = FeatureUpdate(hidden_channels, dropout, norm, drop_path)
        self.edge_update = FeatureUpdate(hidden_channels, dropout, norm, drop_path) if update_edges else None
        self.local = make_local(hidden_channels, local, local_options)

    def forward(self, h: Tensor, e: Tensor, graph: Graph) -> tuple[Tensor, Tensor]:
        """Apply the layer, see :func:`~tg_lpe.nn.attention.register_attention`."""
        out, score = self.attention(h, e, graph)
        local = None if self.local is None else self.local(h, e, graph)
        h = self.node_update(h, out, graph.graphs, local)
        if self.edge_update is not None:
            e = self.edge_update(e, score, graph.edge_graphs)
        return h, e


def make_local(hidden_channels: int, local: Local, options: Mapping[str, Any] | None) -> nn.Module | None:
    """Create the local part of an attention layer, called with ``h``, ``e`` and the graph; ``None`` for none."""
    if local != "none" and local != "gine":
        return Convolution(hidden_channels, local, options)
    if options:
        raise ValueError(f"local={local!r} takes no local_options, got {dict(options)}")
    return LocalPart(hidden_channels) if local == "gine" else None


class LocalPart(nn.Module):
    r"""Message passing of GINE, as PyTorch Geometric's ``GINEConv``, to add to attention.

    .. math:: \mathrm{MLP}\Bigl(h_i + \sum_j \mathrm{relu}(h_j + e_{ij})\Bigr)

    Unlike softmax attention, which averages over neighbours, the sum depends on their number. See `Strategies for
    Pre-training Graph Neural Networks <https://arxiv.org/abs/1905.12265>`_, with the epsilon of GIN zero.

    Args:
        hidden_channels: width of node and edge features.
    """

    def __init__(self, hidden_channels: int) -> None:
        super().__init__()
        self.net = _FeedForward(hidden_channels)

    def forward(self, h: Tensor, e: Tensor, graph: Graph) -> Tensor:
        """Sum messages at the nodes, ``[num_nodes, hidden_channels]``; see :meth:`EdgeAttention.forward`."""
        messages = (graph.source.gather(h) + e).relu_()
        return self.net(h + graph.target.sum(messages))


class FeatureUpdate(nn.Module):
    """Output projection and feed-forward net, each followed by residual and norm."""

    def __init__(self, channels: int, dropout: float, norm: str, drop_path: float = 0.0) -> None:
        super().__init__()
        self.out = nn.Linear(channels, channels)
        self.norm_attention = NORMS[norm](channels)
        self.feed_forward = _FeedForward(channels)
        self.norm_feed_forward = NORMS[norm](channels)
        self.dropout = nn.Dropout(dropout)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, update: Tensor, graphs: RowGroups, local: Tensor | None = None) -> Tensor:
        """Return updated features ``[num_rows, channels]``; ``update`` and ``local`` are the outputs of both parts."""
        update = self.out(self.dropout(update))
        if local is not None:
            update = local + update
        x = self.norm_attention(x + self.drop_path(update, graphs), graphs)
        update = self.feed_forward(x, self.dropout)
        return self.norm_feed_forward(x + self.drop_path(update, graphs), graphs)


class _FeedForward(nn.Sequential):
    """Two linear maps with a ReLU between them."""

    def __init__(self, channels: int) -> None:
        super().__init__(nn.Linear(channels, channels), nn.ReLU(), nn.Linear(channels, channels))

    def forward(self, x: Tensor, dropout: nn.Module | None = None) -> Tensor:
        """Apply the maps, with a dropout before the second."""
        first, activation, second = self
        hidden = activation(first(x))
        out: Tensor = second(hidden if dropout is None else dropout(hidden))
        return out


class DropPath(nn.Module):
    """Stochastic depth: in training, set the rows of random graphs to zero and divide the others by ``1 - p``.

    `Deep Networks with Stochastic Depth <https://arxiv.org/abs/1603.09382>`_.

    Args:
        p: probability that a graph's rows become zero, at least 0 and below 1.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor, graphs: RowGroups) -> Tensor:
        """Drop rows of ``x``, ``[num_rows, channels]``; ``graphs`` has the graph of each row."""
        if not self.training or self.p == 0:
            return x
        is_kept = torch.rand(graphs.num_groups, 1, device=x.device) >= self.p
        return x * graphs.gather(is_kept.to(x.dtype) / (1 - self.p))

    def extra_repr(self) -> str:
        """Show the probability."""
        return f"p={self.p}"
