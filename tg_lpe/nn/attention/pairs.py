"""Attention over all nodes that reads and updates features of pairs of nodes (Ma et al., 2023)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tg_lpe.arguments import check_count, check_flags, check_heads, check_shares
from tg_lpe.graph.graph import Graph
from tg_lpe.nn._util import Resettable, feed_forward
from tg_lpe.nn.attention.bias import PairState
from tg_lpe.nn.attention.global_attention import key_mask
from tg_lpe.nn.attention.registry import AttentionLayer, SharedState, register_attention
from tg_lpe.nn.norms import NORMS
from tg_lpe.ops.operator import reference_gradients

MAX_NODES = 512
"""Default of the largest graph: features of its pairs take 64 MiB in float32 at 64 channels, about ten times a layer.
"""


class PairEmbedding(SharedState):
    """Embed the encoding of pairs, and add edge features at the pairs (target, source).

    Args:
        channels: width of the features.
        pair_channels: width of the encoding, 0 for none.
        max_nodes: largest number of nodes of a graph.
    """

    def __init__(self, channels: int, pair_channels: int, max_nodes: int) -> None:
        super().__init__()
        self.max_nodes = max_nodes
        self.linear = nn.Linear(pair_channels, channels) if pair_channels else None

    def forward(self, graph: Graph, pairs: Tensor | None, e: Tensor) -> PairState:
        """Return the initial state of the layers."""
        if self.linear is None or pairs is None:
            values = e.new_zeros(graph.num_pairs, e.size(1))
        else:
            values = self.linear(pairs.to(self.linear.weight.dtype))
        return PairState(values.index_add(0, graph.edge_pairs, e.to(values.dtype)), key_mask(graph))


class PairAttention(Resettable):
    r"""Multi-head attention of each node over all nodes of its graph, through features of pairs.

    For the nodes ``i`` and ``j`` of a graph, the features :math:`e_{ij}` of their pair, and each head,

    .. math::
        \hat e_{ij} = \mathrm{relu} \bigl( \rho ((W_Q x_i + W_K x_j) \odot W_{Ew} e_{ij}) + W_{Eb} e_{ij} \bigr), \quad
        \alpha_{ij} = \mathrm{softmax}_j ( W_A \hat e_{ij} ), \quad
        \hat x_i = \sum_j \alpha_{ij} ( W_V x_j + W_{Ev} \hat e_{ij} ) ,

    with :math:`\rho(x) = \sqrt{\mathrm{relu}(x)} - \sqrt{\mathrm{relu}(-x)}`, whose derivative at zero is set to zero.
    See `Graph Inductive Biases in Transformers without Message Passing <https://arxiv.org/abs/2305.17589>`_, section
    3.2.

    Args:
        hidden_channels: width of node and pair features.
        heads: number of heads; divides ``hidden_channels``.
        dropout: share of the attention weights that is dropped in training.

    Raises:
        ValueError: if ``heads`` does not divide ``hidden_channels``.
    """

    def __init__(self, hidden_channels: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        check_heads(hidden_channels, heads)
        self.heads, self.width = heads, hidden_channels // heads
        self.query = nn.Linear(hidden_channels, hidden_channels)
        self.key_value = nn.Linear(hidden_channels, 2 * hidden_channels, bias=False)
        self.pair_scale = nn.Linear(hidden_channels, hidden_channels)
        self.pair_shift = nn.Linear(hidden_channels, hidden_channels)
        self.score = nn.Parameter(torch.empty(heads, self.width))
        self.pair_value = nn.Parameter(torch.empty(heads, self.width, self.width))
        self.dropout = nn.Dropout(dropout)
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        bound = self.score.size(1) ** -0.5
        for weight in (self.score, self.pair_value):
            nn.init.uniform_(weight, -bound, bound)

    def forward(self, h: Tensor, graph: Graph, state: PairState) -> tuple[Tensor, Tensor]:
        """Attend to all nodes.

        Args:
            h: node features ``[num_nodes, hidden_channels]``.
            graph: the graph.
            state: the features of its pairs.

        Returns:
            Node update ``[num_nodes, hidden_channels]`` and pair update ``[num_pairs, hidden_channels]``.
        """
        key, value = self.key_value(h).chunk(2, 1)
        both = graph.pair_rows.gather(self.query(h)) + graph.pair_columns.gather(key)
        pairs = _related(both, self.pair_scale(state.values), self.pair_shift(state.values))
        # Products with a matrix of a block for each head: broadcasting over heads takes several times as long.
        blocks = torch.eye(self.heads, dtype=self.score.dtype, device=h.device).repeat_interleave(self.width, 0)
        scores = pairs @ (blocks * self.score.view(-1, 1))
        weight = self._weights(scores, graph, state.keys).to(pairs.dtype)
        values = graph.pad(value.unflatten(1, (self.heads, -1))).transpose(1, 2)
        from_nodes = graph.unpad((weight @ values).transpose(1, 2))
        flat = graph.unpad_pairs(weight.permute(0, 2, 3, 1))
        weighted = graph.pair_rows.sum(pairs * (flat @ blocks.t())).unflatten(1, (self.heads, -1))
        from_pairs = torch.einsum("nhd,hde->nhe", weighted, self.pair_value)
        return (from_nodes + from_pairs).flatten(1), pairs

    def _weights(self, scores: Tensor, graph: Graph, keys: Tensor | None) -> Tensor:
        """Compute the softmax of scores ``[num_pairs, heads]`` over the second node, ``[num_graphs, heads, n, n]``."""
        padded = graph.pad_pairs(scores.to(torch.promote_types(scores.dtype, torch.float32))).permute(0, 3, 1, 2)
        padded = padded if keys is None else padded.masked_fill(~keys, float("-inf"))
        weight: Tensor = self.dropout(padded.softmax(3))
        return weight


def _related(both: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Compute ``relu(rho(both * scale) + shift)``, the updated features of pairs."""
    if torch.compiler.is_compiling():
        return _reference(both, scale, shift)
    out: Tensor = _Related.apply(both, scale, shift)  # type: ignore[no-untyped-call]
    return out


def _reference(both: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Compute :func:`_related` by operations with derivatives of any order."""
    product = both * scale
    is_zero = product == 0
    root = torch.where(is_zero, 0.0, torch.where(is_zero, 1.0, product).abs().sqrt())
    return torch.relu(root * product.sign() + shift)


class _Related(torch.autograd.Function):
    """:func:`_related` with a third of the passes over memory, which dominate the layer's time."""

    @staticmethod
    def forward(ctx: Any, both: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        product = both * scale
        root = product.abs().sqrt_()
        out = torch.copysign(root, product).add_(shift).relu_()
        ctx.save_for_backward(both, scale, shift, root, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        both, scale, shift, root, out = ctx.saved_tensors
        if torch.is_grad_enabled():
            return tuple(reference_gradients(_reference, (both, scale, shift), [grad]))
        by_shift = torch.ops.aten.threshold_backward(grad, out, 0)
        slope = torch.ops.aten.threshold_backward(root.reciprocal(), root, 0)  # 1 / root where root is not zero
        by_product = slope.mul_(0.5).mul_(by_shift)
        return by_product * scale, by_product * both, by_shift


@register_attention("pairs")
class PairAttentionLayer(AttentionLayer):
    r""":class:`PairAttention` with degree scaling and a feed-forward net, the layer of GRIT.

    `Graph Inductive Biases in Transformers without Message Passing <https://arxiv.org/abs/2305.17589>`_, sections 3.2
    and 3.3. The node update of the attention, a mean, does not depend on the degree ``d_i``, the number of listed edges
    that end in ``i``. It is therefore scaled:

    .. math:: x_i \odot \theta_1 + \log(1 + d_i) \, x_i \odot \theta_2 ,

    where :math:`\theta_1` starts at one and :math:`\theta_2` at zero. Attention, feed-forward net and the update of
    pairs each have a residual and a norm. Edge features are added to the features of pairs before the first layer. A
    graph of ``n`` nodes takes ``O(n^2 hidden_channels^2)`` time and ``O(n^2 hidden_channels)`` memory.

    Args:
        hidden_channels: width of node, edge and pair features; the feed-forward net is twice as wide.
        heads: number of attention heads; divides ``hidden_channels``.
        pair_channels: width of the encoding of pairs, 0 for none; the model sets it to its encoder's.
        update_edges: whether features of pairs are updated; ``False`` for the last layer, whose pairs are not read.
        dropout: share of the attention's output and of the hidden units that is dropped in training.
        norm: name of a normalisation in :data:`~tg_lpe.nn.norms.NORMS`; the published models have ``"batch"``.
        attention_dropout: share of the attention weights that is dropped in training.
        max_nodes: largest number of nodes of a graph.

    Raises:
        ValueError: if ``heads`` does not divide ``hidden_channels``, or another argument is out of range.
    """

    reads_pairs = True

    def __init__(
        self,
        hidden_channels: int,
        heads: int,
        pair_channels: int = 0,
        update_edges: bool = True,
        dropout: float = 0.0,
        norm: str = "bounded",
        attention_dropout: float = 0.0,
        max_nodes: int = MAX_NODES,
    ) -> None:
        super().__init__()
        check_flags(update_edges=update_edges)
        check_count("max_nodes", max_nodes)
        check_shares(dropout=dropout, attention_dropout=attention_dropout)
        channels = hidden_channels
        self.channels, self.pair_channels, self.max_nodes = channels, pair_channels, max_nodes
        self.attention = PairAttention(channels, heads, attention_dropout)
        self.scale, self.degree_scale = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.out = nn.Linear(channels, channels)
        self.norm_attention = NORMS[norm](channels)
        self.pair_out = nn.Linear(channels, channels) if update_edges else None
        self.pair_norm = NORMS[norm](channels) if update_edges else None
        self.feed_forward = feed_forward(channels, dropout)
        self.norm_feed_forward = NORMS[norm](channels)
        self.dropout = nn.Dropout(dropout)

    def _reset_parameters(self) -> None:
        nn.init.ones_(self.scale)
        nn.init.zeros_(self.degree_scale)

    def shared(self) -> PairEmbedding:
        """Return the module that all layers of a model share."""
        return PairEmbedding(self.channels, self.pair_channels, self.max_nodes)

    def forward(self, h: Tensor, e: Tensor, graph: Graph, state: PairState) -> tuple[Tensor, Tensor, PairState]:
        """Apply the layer, see :func:`~tg_lpe.nn.attention.register_attention`; the state holds features of pairs."""
        update, pairs = self.attention(h, graph, state)
        update = self.out(self.dropout(update))
        degree = graph.target.ptr.diff().to(update.dtype).log1p().unsqueeze(1)
        update = update * (self.scale + degree * self.degree_scale)
        h = self.norm_attention(h + update, graph.graphs)
        update = self.feed_forward(h)
        h = self.norm_feed_forward(h + update, graph.graphs)
        if self.pair_out is None or self.pair_norm is None:
            return h, e, state
        pairs = self.pair_out(self.dropout(pairs))
        pairs = self.pair_norm(state.values + pairs, graph.pair_graphs)
        return h, e, PairState(pairs, state.keys)
