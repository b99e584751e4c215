"""Attention over the edges of a graph, with an edge stream (Dwivedi & Bresson, 2020)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

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

    and the edge stream receives ``s_ij`` itself. `A Generalization of Transformer Networks to Graphs
    <https://arxiv.org/abs/2012.09699>`_, eqs. (8)-(11).

    Args:
        channels: width of the node and edge streams.
        heads: number of heads; divides ``channels``.

    Raises:
        ValueError: if ``heads`` does not divide ``channels``.
    """

    membership: Tensor

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        if heads < 1 or channels % heads:
            raise ValueError(f"heads must divide channels, got heads={heads} and channels={channels}")
        self.channels = channels
        self.heads = heads
        self.query = nn.Linear(channels, channels)
        self.key_value = nn.Linear(channels, 2 * channels)
        self.edge = nn.Linear(channels, channels)
        # Which head a channel belongs to. Sums within heads and spreading over heads are products with it: operations
        # that broadcast over the last dimension are ten times slower than plain ones in bfloat16 on CPU.
        membership = torch.eye(heads).repeat_interleave(channels // heads, dim=1)
        self.register_buffer("membership", membership, persistent=False)

    def forward(
        self, h: Tensor, projected_edges: Tensor, source: RowGroups, target: RowGroups
    ) -> tuple[Tensor, Tensor]:
        """One round of attention.

        Args:
            h: node features ``[num_nodes, channels]``.
            projected_edges: ``E e``, ``[num_edges, channels]``, edges in the order of ``target``.
            source: node each edge comes from.
            target: node each edge points at.

        Returns:
            Node update ``[num_nodes, channels]`` and edge scores ``[num_edges, channels]``.
        """
        # Split before they are gathered: the backward pass then joins gradients of nodes, not of edges.
        key, value = (source.gather(part) for part in self.key_value(h).split(self.channels, dim=-1))
        query = target.gather(self.query(h) * (1.0 / math.sqrt(self.channels // self.heads)))
        score = query * key * projected_edges
        logits = score @ self.membership.mT.to(score.dtype)
        precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
        weight = precise.clamp(-SCORE_BOUND, SCORE_BOUND).exp().to(value.dtype)
        weighted = value * self._spread(weight)
        # The sum of weights is at least exp(-5) wherever there is an edge; the floor only serves nodes without one.
        total = target.sum(weight).clamp(min=1e-6)
        return target.sum(weighted) * self._spread(total.reciprocal()), score

    def _spread(self, per_head: Tensor) -> Tensor:
        """Values per head ``[num_rows, heads]`` at each channel, ``[num_rows, channels]``."""
        return per_head @ self.membership.to(per_head.dtype)


class EdgeAttentionLayer(nn.Module):
    """Attention, then a feed-forward net, each with residual and batch norm, on nodes and (but for the last) edges.

    Args:
        channels: width of the node and edge streams.
        heads: number of attention heads.
        update_edges: whether the edge stream is carried on; ``False`` for a last layer, whose edges nobody reads.
    """

    def __init__(self, channels: int, heads: int, update_edges: bool = True) -> None:
        super().__init__()
        self.update_edges = update_edges
        self.attention = EdgeAttention(channels, heads)
        self.node_update = _StreamUpdate(channels)
        self.edge_update = _StreamUpdate(channels) if update_edges else None

    def forward(
        self,
        h: Tensor,
        e: Tensor,
        source: RowGroups,
        target: RowGroups,
        graphs: RowGroups,
        edge_types: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Args and returns as :meth:`EdgeAttention.forward`, with the streams themselves; ``graphs`` is not read.

        With ``edge_types``, ``e`` holds one row per edge type, ``[num_edge_types, channels]``: the projection is then
        taken before the rows are spread over the edges, which is the same and far cheaper.
        """
        projected = self.attention.edge(e)
        if edge_types is not None:
            # A product with a narrow one-hot matrix: its backward pass is a product too, not a scattered sum.
            one_hot = nn.functional.one_hot(edge_types, e.size(0)).to(projected.dtype)
            projected, e = one_hot @ projected, one_hot @ e
        out, score = self.attention(h, projected, source, target)
        h = self.node_update(h, out)
        if self.edge_update is not None:
            e = self.edge_update(e, score)
        return h, e


class RowBatchNorm(nn.BatchNorm1d):
    """Batch norm that takes its running statistics where a batch of fewer than two rows has none of its own."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.size(0) < 2:
            return nn.functional.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        return super().forward(x)


class _StreamUpdate(nn.Module):
    """Output projection and feed-forward net of one stream, each followed by residual and batch norm."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.out = nn.Linear(channels, channels)
        self.norm_attention = RowBatchNorm(channels)
        self.feed_forward = nn.Sequential(nn.Linear(channels, channels), nn.ReLU(), nn.Linear(channels, channels))
        self.norm_feed_forward = RowBatchNorm(channels)

    def forward(self, x: Tensor, update: Tensor) -> Tensor:
        x = self.norm_attention(x + self.out(update))
        return self.norm_feed_forward(x + self.feed_forward(x))
