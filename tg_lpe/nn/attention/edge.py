"""Attention over the edges of a graph, with edge features that are updated too (Dwivedi & Bresson, 2020)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tg_lpe.nn.attention.neighbourhoods import Neighbourhoods
from tg_lpe.nn.attention.registry import register_attention
from tg_lpe.nn.norms import make_norm
from tg_lpe.ops.segment import RowGroups

SCORE_BOUND = 5.0
"""Scores are clamped to this before the exponential, as Dwivedi & Bresson do: no softmax shift is needed then."""


class EdgeAttention(nn.Module):
    r"""Multi-head attention of each node over its in-neighbours, modulated by edge features.

    For the edge from ``j`` to ``i`` and each head of width ``d``,

    .. math::
        s_{ij} = \frac{(Q h_i) \odot (K h_j)}{\sqrt d} \odot E e_{ij}, \qquad
        a_{ij} = \frac{\exp(\mathrm{clamp}(1^\top s_{ij}))}{\sum_{j'} \exp(\mathrm{clamp}(1^\top s_{ij'}))}, \qquad
        h'_i = \sum_j a_{ij} V h_j ,

    and the edge update is ``s_ij`` itself. `A Generalization of Transformer Networks to Graphs
    <https://arxiv.org/abs/2012.09699>`_, eqs. (8)-(11).

    Args:
        hidden_channels: width of node and edge features.
        heads: number of heads; divides ``hidden_channels``.

    Raises:
        ValueError: if ``heads`` does not divide ``hidden_channels``.
    """

    membership: Tensor

    def __init__(self, hidden_channels: int, heads: int) -> None:
        super().__init__()
        if heads < 1 or hidden_channels % heads:
            raise ValueError(
                f"heads must divide hidden_channels, got heads={heads} and hidden_channels={hidden_channels}"
            )
        self.hidden_channels = hidden_channels
        self.heads = heads
        self.query = nn.Linear(hidden_channels, hidden_channels)
        self.key_value = nn.Linear(hidden_channels, 2 * hidden_channels)
        self.edge = nn.Linear(hidden_channels, hidden_channels)
        # Which head a channel belongs to, for sums within heads in half precision, see _by_products.
        membership = torch.eye(heads).repeat_interleave(hidden_channels // heads, dim=1)
        self.register_buffer("membership", membership, persistent=False)

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        for linear in (self.query, self.key_value, self.edge):
            linear.reset_parameters()

    def forward(self, h: Tensor, e: Tensor, neighbourhoods: Neighbourhoods) -> tuple[Tensor, Tensor]:
        """One round of attention.

        Args:
            h: node features ``[num_nodes, hidden_channels]``.
            e: edge features ``[num_edges, hidden_channels]``.
            neighbourhoods: the graph.

        Returns:
            Node update ``[num_nodes, hidden_channels]`` and edge scores ``[num_edges, hidden_channels]``.
        """
        source, target = neighbourhoods.source, neighbourhoods.target
        # Split before they are gathered: the backward pass then joins gradients of nodes, not of edges.
        key, value = (source.gather(part) for part in self.key_value(h).split(self.hidden_channels, dim=-1))
        query = target.gather(self.query(h) * (1.0 / math.sqrt(self.hidden_channels // self.heads)))
        score = query * key * self.edge(e)
        logits = self._sum_within_heads(score)
        precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
        weight = precise.clamp(-SCORE_BOUND, SCORE_BOUND).exp().to(value.dtype)
        # The sum of weights is at least exp(-5) wherever there is an edge; the floor only serves nodes without one.
        total = target.sum(weight).clamp(min=1e-6)
        return self._scale_heads(target.sum(self._scale_heads(value, weight)), total.reciprocal()), score

    def _sum_within_heads(self, x: Tensor) -> Tensor:
        """Sums over the channels of each head: ``[num_rows, hidden_channels]`` to ``[num_rows, heads]``."""
        if _by_products(x):
            return x @ self.membership.mT.to(x.dtype)
        return x.unflatten(1, (self.heads, -1)).sum(2)

    def _scale_heads(self, x: Tensor, factor: Tensor) -> Tensor:
        """``x``, ``[num_rows, hidden_channels]``, times a factor per head, ``[num_rows, heads]``."""
        if _by_products(x):
            return x * (factor @ self.membership.to(factor.dtype))
        return (x.unflatten(1, (self.heads, -1)) * factor.unsqueeze(2)).flatten(1)


def _by_products(x: Tensor) -> bool:
    """Whether sums within heads are matrix products: what broadcasts is ten times slower in half precision on CPU."""
    return x.dtype in (torch.bfloat16, torch.float16)


@register_attention("edge")
class EdgeAttentionLayer(nn.Module):
    """Attention over edges, then a feed-forward net, each with residual and norm, for nodes and edges.

    Args:
        hidden_channels: width of node and edge features.
        heads: number of attention heads; divides ``hidden_channels``.
        update_edges: whether edge features are updated; ``False`` for the last layer, whose edge features are not used.
        dropout: share of the attention's output and of the hidden units that is dropped in training.
        norm: name of a normalisation in :data:`~tg_lpe.nn.norms.NORMS`.
        residual: whether input is added to output around attention and feed-forward net.

    Raises:
        ValueError: if ``heads`` does not divide ``hidden_channels``, or another argument is out of range.
    """

    def __init__(
        self,
        hidden_channels: int,
        heads: int,
        update_edges: bool = True,
        dropout: float = 0.0,
        norm: str = "batch",
        residual: bool = True,
    ) -> None:
        super().__init__()
        self.attention = EdgeAttention(hidden_channels, heads)
        self.node_update = _FeatureUpdate(hidden_channels, dropout, norm, residual)
        self.edge_update = _FeatureUpdate(hidden_channels, dropout, norm, residual) if update_edges else None

    def reset_parameters(self) -> None:
        """Draw the weights anew and forget running statistics."""
        self.attention.reset_parameters()
        self.node_update.reset_parameters()
        if self.edge_update is not None:
            self.edge_update.reset_parameters()

    def forward(self, h: Tensor, e: Tensor, neighbourhoods: Neighbourhoods) -> tuple[Tensor, Tensor]:
        """As :func:`~tg_lpe.nn.attention.register_attention` says."""
        out, score = self.attention(h, e, neighbourhoods)
        h = self.node_update(h, out, neighbourhoods.graphs)
        if self.edge_update is not None:
            e = self.edge_update(e, score, neighbourhoods.edge_graphs)
        return h, e


class _FeatureUpdate(nn.Module):
    """Output projection and feed-forward net, each followed by residual and norm: eqs. (8)-(11)'s second half."""

    def __init__(self, channels: int, dropout: float, norm: str, residual: bool) -> None:
        super().__init__()
        self.residual = residual
        self.out = nn.Linear(channels, channels)
        self.norm_attention = make_norm(norm, channels)
        self.feed_forward = nn.Sequential(
            nn.Linear(channels, channels), nn.ReLU(inplace=True), nn.Linear(channels, channels)
        )
        self.norm_feed_forward = make_norm(norm, channels)
        self.dropout = nn.Dropout(dropout)

    def reset_parameters(self) -> None:
        """Draw the weights anew and forget running statistics."""
        self.out.reset_parameters()
        self.norm_attention.reset_parameters()  # type: ignore[operator]
        for linear in (self.feed_forward[0], self.feed_forward[2]):
            linear.reset_parameters()  # type: ignore[operator]
        self.norm_feed_forward.reset_parameters()  # type: ignore[operator]

    def forward(self, x: Tensor, update: Tensor, graphs: RowGroups) -> Tensor:
        """New features ``[num_rows, channels]`` from the old and what attention found."""
        x = self.norm_attention(self._add(x, self.out(self.dropout(update))), graphs)
        first, activation, second = self.feed_forward
        return self.norm_feed_forward(self._add(x, second(self.dropout(activation(first(x))))), graphs)

    def _add(self, x: Tensor, update: Tensor) -> Tensor:
        """Residual sum, written over ``update``: no backward pass reads it, and new memory costs more than the sum."""
        if not self.residual:
            return update
        return update.add_(x) if update.dtype == x.dtype else x + update
