"""Softmax attention over all nodes of a graph with a bias for each pair of nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from tg_lpe.arguments import check_count, check_heads, check_shares
from tg_lpe.graph.graph import Graph
from tg_lpe.nn.attention.edge import FeatureUpdate, make_local
from tg_lpe.nn.attention.global_attention import key_mask
from tg_lpe.nn.attention.local import Local
from tg_lpe.nn.attention.registry import AttentionLayer, SharedState, register_attention
from tg_lpe.nn.dot_product import dot_product_attention

MAX_NODES = 1024
"""Default of the largest graph: its scores of eight heads take 32 MiB in float32 in each layer."""


class PairState(NamedTuple):
    """State that layers which read pairs pass to the next layer."""

    values: Tensor | None
    """Encoding or features of the pairs, ``[num_pairs, channels]``."""
    keys: Tensor | None
    """Whether a row is a node rather than padding, bool ``[num_graphs, 1, 1, max_nodes]``; ``None`` without padding."""


class GivenPairs(SharedState):
    """Pass the encoding of pairs to the layers; it has no parameters.

    Args:
        max_nodes: largest number of nodes of a graph.
    """

    def __init__(self, max_nodes: int) -> None:
        super().__init__()
        self.max_nodes = max_nodes

    def forward(self, graph: Graph, pairs: Tensor | None, e: Tensor) -> PairState:
        """Return the state of all layers; ``e`` is not read."""
        return PairState(pairs, key_mask(graph))


class BiasAttention(nn.Module):
    r"""Multi-head attention of each node over all nodes of its graph, with a learned bias for each pair.

    For the nodes ``i`` and ``j`` of a graph and each head of width ``d``,

    .. math::
        a_{ij} = \mathrm{softmax}_j \Bigl( \frac{(Q h_i)^\top K h_j}{\sqrt d} + b^\top p_{ij} + c^\top e_{ij} \Bigr),
        \qquad h'_i = \sum_j a_{ij} V h_j ,

    where :math:`p_{ij}` is the encoding of the pair and :math:`e_{ij}` the features of the edge from ``j`` to ``i``,
    summed if several are listed. It is eq. (6) of `Do Transformers Really Perform Bad for Graph Representation?
    <https://arxiv.org/abs/2106.05234>`_: with :class:`~tg_lpe.encoders.ShortestPath`, the bias of a pair is
    :math:`b_{\phi(i, j)}`. Edges replace the means over paths in eq. (7).

    Args:
        hidden_channels: width of node and edge features.
        heads: number of heads; divides ``hidden_channels``.
        pair_channels: width of the encoding of pairs, 0 for none.
        dropout: share of the attention weights that is dropped in training.

    Raises:
        ValueError: if ``heads`` does not divide ``hidden_channels``.
    """

    def __init__(self, hidden_channels: int, heads: int, pair_channels: int, dropout: float = 0.0) -> None:
        super().__init__()
        check_heads(hidden_channels, heads)
        self.heads = heads
        self.query_key_value = nn.Linear(hidden_channels, 3 * hidden_channels)
        self.pair = nn.Linear(pair_channels, heads, bias=False) if pair_channels else None
        self.edge = nn.Linear(hidden_channels, heads, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, h: Tensor, e: Tensor, graph: Graph, state: PairState) -> Tensor:
        """Attend to all nodes, ``[num_nodes, hidden_channels]``; the arguments are those of the layer."""
        rows = self.query_key_value(h).unflatten(1, (3, self.heads, -1))
        query, key, value = graph.pad(rows).permute(2, 0, 3, 1, 4)
        edge_bias = self.edge(e)
        if self.pair is None or state.values is None:
            bias = edge_bias.new_zeros(graph.num_pairs, self.heads)
        else:
            bias = self.pair(state.values.to(self.pair.weight.dtype))
        bias = graph.pad_pairs(bias.index_add(0, graph.edge_pairs, edge_bias)).permute(0, 3, 1, 2)
        if state.keys is not None:
            bias = bias.masked_fill(~state.keys, float("-inf"))
        attended = dot_product_attention(query, key, value, bias, self.dropout.p if self.training else 0.0)
        return graph.unpad(attended.transpose(1, 2)).flatten(1)


@register_attention("bias")
class BiasAttentionLayer(AttentionLayer):
    """:class:`BiasAttention` and a feed-forward net, each with residual and norm.

    A graph of ``n`` nodes takes ``O(n^2)``. Layers read edge features but do not change them.

    Args:
        hidden_channels: width of node and edge features.
        heads: number of attention heads; divides ``hidden_channels``.
        pair_channels: width of the encoding of pairs, 0 for none; the model sets it to its encoder's.
        dropout: share of the attention's output and of the hidden units that is dropped in training.
        norm: name of a normalisation in :data:`~tg_lpe.nn.norms.NORMS`.
        local: message passing whose output is added to that of the attention: ``"none"``, ``"gine"`` or a convolution,
            see :class:`~tg_lpe.nn.attention.EdgeAttentionLayer`.
        local_options: further arguments of its constructor.
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
        dropout: float = 0.0,
        norm: str = "bounded",
        local: Local = "none",
        local_options: Mapping[str, Any] | None = None,
        attention_dropout: float = 0.0,
        max_nodes: int = MAX_NODES,
    ) -> None:
        super().__init__()
        check_count("max_nodes", max_nodes)
        check_shares(dropout=dropout, attention_dropout=attention_dropout)
        self.max_nodes = max_nodes
        self.attention = BiasAttention(hidden_channels, heads, pair_channels, attention_dropout)
        self.update = FeatureUpdate(hidden_channels, dropout, norm)
        self.local = make_local(hidden_channels, local, local_options)

    def shared(self) -> GivenPairs:
        """Return the module that all layers of a model share."""
        return GivenPairs(self.max_nodes)

    def forward(self, h: Tensor, e: Tensor, graph: Graph, state: PairState) -> tuple[Tensor, Tensor, PairState]:
        """Apply the layer, see :func:`~tg_lpe.nn.attention.register_attention`; the state is passed on unchanged."""
        out = self.attention(h, e, graph, state)
        local = None if self.local is None else self.local(h, e, graph)
        return self.update(h, out, graph.graphs, local), e, state
