"""Attention of spectral attention networks: over edges and, with other weights, over pairs without an edge."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from tg_lpe.arguments import check_choice, check_flags, check_heads, check_no_effect, check_positive, check_shares
from tg_lpe.graph.buckets import SMALL_NODES, PaddedRows, matrices
from tg_lpe.graph.graph import Graph
from tg_lpe.nn._util import Resettable, feed_forward
from tg_lpe.nn.attention.registry import AttentionLayer, SharedState, register_attention
from tg_lpe.nn.norms import NORMS
from tg_lpe.ops.attention import SCORE_BOUND

SOFTMAXES = ("joint", "separate")

GAMMA = 1e-5
"""Default weight of pairs without an edge, as published for ZINC."""

FLOOR = 1e-6
"""Added to the sum of weights, as in the published code, so that nodes without edges get zero."""

MAX_PADDING = 1.25
"""Largest ratio of sizes in a bucket, if graphs have more than ``SMALL_NODES`` nodes."""


class MissingPairs(NamedTuple):
    """Ordered pairs of different nodes of a graph without an edge, in buckets of padded graphs."""

    feature: Tensor
    """The edge feature of all these pairs, ``[hidden_channels]``."""
    rows: PaddedRows
    """Positions of the nodes in the buckets."""
    missing: list[Tensor]
    """For each bucket, whether a pair has no edge, bool ``[num_graphs, max_nodes, max_nodes]``; rows are targets."""
    edges: list[Tensor]
    """For each bucket, the number of edges of a pair, ``[num_graphs, max_nodes, max_nodes]``; rows are targets."""


class MissingEdges(SharedState):
    """Learned feature of pairs without an edge, which all layers share.

    Args:
        hidden_channels: width of the feature.
        full: whether the layers read these pairs; otherwise there is no feature.
    """

    def __init__(self, hidden_channels: int, full: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1, hidden_channels) if full else None

    def forward(self, graph: Graph) -> MissingPairs | None:
        """Return the missing pairs of a batch; ``None`` if the layers do not read them."""
        if self.embedding is None:
            return None
        return missing_pairs(graph, self.embedding.weight[0])


def missing_pairs(graph: Graph, feature: Tensor) -> MissingPairs:
    """List the pairs of different nodes of a graph without an edge.

    All graphs form one bucket, unless a graph has more than ``SMALL_NODES`` nodes. In that case graphs of similar size
    form buckets, which takes one synchronisation with the device.

    Args:
        graph: the graph or batch.
        feature: the edge feature of the pairs, ``[hidden_channels]``.
    """
    rows = graph.padded(max_padding=MAX_PADDING if graph.max_nodes > SMALL_NODES else None)
    masks = [feature.new_zeros(0, dtype=torch.bool)]
    for are_nodes in rows.are_nodes():
        pairs = are_nodes.unsqueeze(2) & are_nodes.unsqueeze(1)
        pairs.diagonal(dim1=1, dim2=2).fill_(False)
        masks.append(pairs.flatten())
    source, target = graph.edges_by_target
    joined = rows.entry(target, source)
    missing = torch.cat(masks).index_fill(0, joined, False)
    edges = feature.new_zeros(missing.shape).index_add(0, joined, feature.new_ones(joined.shape))
    return MissingPairs(feature, rows, *(matrices(rows.buckets, values) for values in (missing, edges)))


class SpectralAttention(Resettable):
    r"""Attention over edges and, with ``full``, also over pairs without an edge, with separate weights.

    See `Rethinking Graph Transformers with Spectral Attention <https://arxiv.org/abs/2106.03893>`_. For the edge from
    ``j`` to ``i`` and each head of width ``d``, ``a_ij = exp(clamp(1^T (Q h_i * K h_j * E e_ij) / sqrt(d)))``. For a
    pair of different nodes without an edge, ``b_ij`` has the same form with other maps and one learned edge feature of
    all these pairs. Values ``V`` are the same. With ``softmax="joint"``, as in the published code, the node update is

    .. math:: \frac{\sum_j a_{ij} V h_j + \gamma \sum_j b_{ij} V h_j}
        {\sum_j a_{ij} + \gamma \sum_j b_{ij} + 10^{-6} (1 + \gamma)} ,

    one softmax over all nodes, in which ``log(gamma)`` is added to the logits of missing edges. With
    ``softmax="separate"``, eq. (5) of the paper, it is a softmax over edges times ``1 / (1 + gamma)`` plus a softmax
    over missing edges times ``gamma / (1 + gamma)``.

    Missing edges are computed by masked products of padded graphs, ``O(heads num_nodes^2)`` a graph. So are edges whose
    features ``e`` are an expanded single row; other edges are gathered. In half precision, sums are divided in float32;
    with float16, they are computed in float32 too.

    Args:
        hidden_channels: width of node and edge features.
        heads: number of heads; divides ``hidden_channels``.
        full: whether pairs without an edge take part; otherwise the arguments below must keep their defaults.
        gamma: weight of pairs without an edge, positive.
        softmax: ``"joint"`` or ``"separate"``.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        hidden_channels: int,
        heads: int,
        full: bool = False,
        gamma: float = GAMMA,
        softmax: str = "joint",
    ) -> None:
        super().__init__()
        check_heads(hidden_channels, heads)
        check_flags(full=full)
        check_positive("gamma", gamma)
        check_choice("softmax", softmax, SOFTMAXES)
        if not full:
            check_no_effect("full=False", gamma=(gamma, GAMMA), softmax=(softmax, "joint"))
        self.heads, self.full, self.gamma, self.softmax = heads, full, gamma, softmax
        self.query, self.key, self.value, self.edge = (_linear(hidden_channels) for _ in range(4))
        if full:
            self.missing_query, self.missing_key, self.missing_edge = (_linear(hidden_channels) for _ in range(3))

    def forward(self, h: Tensor, e: Tensor, graph: Graph, pairs: MissingPairs | None) -> Tensor:
        """Return the node update ``[num_nodes, hidden_channels]``; ``pairs`` are the missing edges with ``full``."""
        value = self.value(h)
        dtype, value = value.dtype, value.to(_sum_dtype(value.dtype))
        if pairs is None:
            sums, total = self._over_edges(h, e, value, graph)
            return (sums / (total + FLOOR)).to(dtype).flatten(1)
        if len(e) and e.stride(0) == 0:
            # Read the single row as a mean: its gradient is spread evenly instead of a table of zeros.
            sums, total, missing_sums, missing_total = self._over_pairs(h, _mean(e), value, pairs)
        else:
            sums, total = self._over_edges(h, e, value, graph)
            missing_sums, missing_total = self._over_missing(h, value, pairs)
            if self.softmax == "joint":
                sums, total = sums + self.gamma * missing_sums, total + self.gamma * missing_total
        if self.softmax == "joint":
            return (sums / (total + FLOOR * (1 + self.gamma))).to(dtype).flatten(1)
        total, missing_total = (torch.where(part > 0, part, 1.0) for part in (total, missing_total))
        return ((sums / total + self.gamma * missing_sums / missing_total) / (1 + self.gamma)).to(dtype).flatten(1)

    def _over_edges(self, h: Tensor, e: Tensor, value: Tensor, graph: Graph) -> tuple[Tensor, Tensor]:
        """Sum weighted values ``[num_nodes, heads, d]`` and weights ``[num_nodes, heads, 1]`` over in-edges.

        Both sums are in float32 at least.
        """
        source, target = graph.source, graph.target
        query = target.gather(self.query(h) * self._scale(h))
        logits = (query * source.gather(self.key(h)) * self.edge(e)).unflatten(1, (self.heads, -1)).sum(2)
        weight = _weights(logits)
        values = source.gather(value).unflatten(1, (self.heads, -1))
        sums = target.sum((values * weight.to(values.dtype).unsqueeze(2)).flatten(1)).unflatten(1, (self.heads, -1))
        return _precise(sums), target.sum(weight).unsqueeze(2)

    def _over_missing(self, h: Tensor, value: Tensor, pairs: MissingPairs) -> tuple[Tensor, Tensor]:
        """Compute the sums of :meth:`_over_edges` over the pairs without an edge."""
        # All pairs have the same feature, so it can scale the channels of the queries.
        query = self.missing_query(h) * self.missing_edge(pairs.feature) * self._scale(h)
        # An additional column of ones sums the weights in the same product as the values.
        ones = functional.pad(value.unflatten(1, (self.heads, -1)), (0, 1), value=1.0)
        rows = query.unflatten(1, (self.heads, -1)), self.missing_key(h).unflatten(1, (self.heads, -1)), ones
        outputs = []
        for mask, *padded in zip(pairs.missing, *map(pairs.rows.pad, rows), strict=True):
            q, k, v = (part.transpose(1, 2) for part in padded)
            weight: Tensor = _MaskedWeights.apply(q @ k.mT, mask.unsqueeze(1))  # type: ignore[no-untyped-call]
            outputs.append(_product(weight, v).transpose(1, 2))
        sums = _precise(pairs.rows.unpad(outputs) if outputs else _empty_sums(rows))
        return sums[..., :-1], sums[..., -1:]

    def _over_pairs(
        self, h: Tensor, feature: Tensor, value: Tensor, pairs: MissingPairs
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Compute the sums over edges that all have one feature, and over missing edges; the first include the second
        with ``softmax="joint"``."""
        ones = functional.pad(value.unflatten(1, (self.heads, -1)), (0, 1), value=1.0)
        maps = (
            self.query(h) * self.edge(feature) * self._scale(h),
            self.key(h),
            self.missing_query(h) * self.missing_edge(pairs.feature) * self._scale(h),
            self.missing_key(h),
        )
        rows = *(part.unflatten(1, (self.heads, -1)) for part in maps), ones
        outputs: list[list[Tensor]] = [[], []]
        for missing, edges, *padded in zip(pairs.missing, pairs.edges, *map(pairs.rows.pad, rows), strict=True):
            q, k, missing_q, missing_k, v = (part.transpose(1, 2) for part in padded)
            mask, count = missing.to(value.dtype).unsqueeze(1), edges.to(value.dtype).unsqueeze(1)
            logits, missing_logits = q @ k.mT, missing_q @ missing_k.mT
            weight: Tensor = _PairWeights.apply(logits, missing_logits, mask)  # type: ignore[no-untyped-call]
            factors = [count + self.gamma * mask] if self.softmax == "joint" else [count, mask]
            for part, factor in zip(outputs, factors, strict=False):
                part.append(_product(weight * factor, v).transpose(1, 2))
        sums, missing_sums = (_precise(pairs.rows.unpad(part) if part else _empty_sums(rows)) for part in outputs)
        return sums[..., :-1], sums[..., -1:], missing_sums[..., :-1], missing_sums[..., -1:]

    def _scale(self, h: Tensor) -> float:
        return 1.0 / math.sqrt(h.size(1) // self.heads)


def _empty_sums(rows: tuple[Tensor, ...]) -> Tensor:
    """Return the sums of a batch without nodes; every map gets a zero gradient, as parallel training requires."""
    return rows[-1] + sum(part[..., :1] for part in rows[:-1])


def _mean(rows: Tensor) -> Tensor:
    """Compute the mean of rows in float32, because their sum may overflow in half precision."""
    return (rows.sum(0, dtype=torch.promote_types(rows.dtype, torch.float32)) / len(rows)).to(rows.dtype)


def _sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of sums of weights; those with a small gamma or on large graphs do not fit into float16."""
    return torch.float32 if dtype == torch.float16 else dtype


def _precise(x: Tensor) -> Tensor:
    """Convert to float32, unless the dtype is more precise."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _product(weight: Tensor, values: Tensor) -> Tensor:
    """Sum weighted values in their dtype, also under autocast."""
    if not torch.is_autocast_enabled(values.device.type):
        return weight @ values
    with torch.autocast(values.device.type, enabled=False):
        return weight @ values


def _linear(channels: int) -> nn.Linear:
    return nn.Linear(channels, channels, bias=False)


class _MaskedWeights(torch.autograd.Function):
    """Compute :func:`_weights`, zero where the mask is false; saves only them for the gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, mask: Tensor) -> Tensor:
        weight = _weights(logits).masked_fill_(~mask, 0.0).to(_sum_dtype(logits.dtype))
        ctx.save_for_backward(weight)
        ctx.dtype = logits.dtype
        return weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (weight,) = ctx.saved_tensors
        return _by_logits(grad, weight).to(ctx.dtype), None


class _PairWeights(torch.autograd.Function):
    """Compute :func:`_weights` of edges, or of missing edges where the mask is one; saves only them and the mask."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, missing_logits: Tensor, mask: Tensor) -> Tensor:
        # lerp with weights 0 and 1, because torch.where takes ten times as long with a broadcast mask.
        # Clamp before, because zero times an infinite logit is not a number.
        mixed = _clamped(logits).lerp_(_clamped(missing_logits), mask.to(logits.dtype))
        weight = _precise(mixed).exp_().to(mask.dtype)
        ctx.save_for_backward(weight, mask)
        ctx.dtype = logits.dtype
        return weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        weight, mask = ctx.saved_tensors
        grad = _by_logits(grad, weight)
        missing_grad = grad * mask
        return (grad - missing_grad).to(ctx.dtype), missing_grad.to(ctx.dtype), None


def _by_logits(grad: Tensor, weight: Tensor) -> Tensor:
    """Compute the gradient with respect to the logits from that with respect to :func:`_weights`."""
    # The bounds exclude the weights of clamped and masked logits, however they were rounded.
    bound = SCORE_BOUND - 4 * torch.finfo(weight.dtype).eps
    by_logits: Tensor = torch.ops.aten.hardtanh_backward(grad * weight, weight, math.exp(-bound), math.exp(bound))
    return by_logits


def _weights(logits: Tensor) -> Tensor:
    """Return the exponentials of clamped logits, in float32 at least."""
    return _clamped(_precise(logits)).exp()


def _clamped(logits: Tensor) -> Tensor:
    return logits.clamp(-SCORE_BOUND, SCORE_BOUND)


@register_attention("spectral")
class SpectralAttentionLayer(AttentionLayer):
    """:class:`SpectralAttention` and a feed-forward net, each with residual and norm.

    `Rethinking Graph Transformers with Spectral Attention <https://arxiv.org/abs/2106.03893>`_, section 4.3. Layers
    read edge features but do not change them.

    Args:
        hidden_channels: width of node and edge features; the feed-forward net is twice as wide.
        heads: number of attention heads; divides ``hidden_channels``.
        full, gamma, softmax: see :class:`SpectralAttention`.
        dropout: share of the attention's output and of the hidden units that is dropped in training.
        norm: name of a normalisation in :data:`~tg_lpe.nn.norms.NORMS`.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(
        self,
        hidden_channels: int,
        heads: int,
        full: bool = False,
        gamma: float = GAMMA,
        softmax: str = "joint",
        dropout: float = 0.0,
        norm: str = "bounded",
    ) -> None:
        super().__init__()
        check_shares(dropout=dropout)
        self.attention = SpectralAttention(hidden_channels, heads, full, gamma, softmax)
        self.out = nn.Linear(hidden_channels, hidden_channels)
        self.norm_attention = NORMS[norm](hidden_channels)
        self.feed_forward = feed_forward(hidden_channels, dropout)
        self.norm_feed_forward = NORMS[norm](hidden_channels)
        self.dropout = nn.Dropout(dropout)

    def shared(self) -> MissingEdges:
        """Return the module that all layers of a model share."""
        return MissingEdges(self.out.in_features, self.attention.full)

    def forward(
        self, h: Tensor, e: Tensor, graph: Graph, state: MissingPairs | None
    ) -> tuple[Tensor, Tensor, MissingPairs | None]:
        """Apply the layer, see :func:`~tg_lpe.nn.attention.register_attention`; the state is passed on unchanged."""
        graphs = graph.graphs
        update = self.out(self.dropout(self.attention(h, e, graph, state)))
        h = self.norm_attention(h + update, graphs)
        update = self.feed_forward(h)
        return self.norm_feed_forward(h + update, graphs), e, state
