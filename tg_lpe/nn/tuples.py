"""Tuples of nodes as tokens, their embedding, and the layers of transformers over them."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from tg_lpe.graph.buckets import PaddedRows
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.progress import warn_of_pairs
from tg_lpe.graph.tuples import component_tuples, edge_between
from tg_lpe.nn._util import Resettable
from tg_lpe.nn.attention.edge import DropPath
from tg_lpe.nn.dot_product import dot_product_attention
from tg_lpe.ops.segment import RowGroups, gather_sum


class TupleTokens(NamedTuple):
    """Tuples of nodes, sorted by graph and then lexicographically."""

    nodes: Tensor
    """The nodes of each tuple, int64 ``[num_tokens, k]``."""
    types: Tensor
    """The atomic type of each tuple, int64 ``[num_tokens, k (k-1) / 2]``. For each pair of positions, in the order of
    ``itertools.combinations``, it is the number of the undirected edge between their nodes in
    :class:`~tg_lpe.Graph`, :data:`~tg_lpe.graph.tuples.NO_EDGE` or :data:`~tg_lpe.graph.tuples.SAME_NODE`."""
    batch: Tensor
    """The graph of each tuple, int64 ``[num_tokens]``."""


def tuple_tokens(graph: Graph, k: int, s: int | None = None) -> TupleTokens:
    """List the ``k``-tuples with at most ``s`` components (``None`` for all tuples) and their atomic types.

    See :func:`~tg_lpe.graph.tuples.component_tuples`, and `Aligning Transformers with Weisfeiler-Leman
    <https://arxiv.org/abs/2406.03148>`_, sections 3 and 4.
    """
    nodes = component_tuples(graph, k, k if s is None else s)
    pairs = [edge_between(graph, nodes[i], nodes[j]) for i, j in combinations(range(k), 2)]
    types = torch.stack(pairs, 1) if pairs else nodes.new_empty(nodes.size(1), 0)
    return TupleTokens(nodes.T.contiguous(), types, graph.batch[nodes[0]])


class TupleEmbedding(Resettable):
    r"""Embed tuples from features of their nodes and of pairs of their nodes.

    .. math:: X(v) = \sum_i W_i x(v_i) + \sum_{i<j} \left(A_{ij} E(v_i, v_j) + B_{ij} p(v_i, v_j)\right)
        + C \log(1 + c(v)) + b ,

    as in eq. (4) and section A.3 of `Aligning Transformers with Weisfeiler-Leman <https://arxiv.org/abs/2406.03148>`_.
    ``E`` encodes the atomic type: it is the embedding of an edge, zero without an edge, and a learned row if
    ``v_i = v_j``.

    Args:
        k: number of nodes of a tuple.
        node_channels: width of node features ``x``.
        hidden_channels: width of edge features and of the tokens.
        pair_channels: width of encodings ``p`` of pairs; 0 for none.
        num_counts: number of counts ``c`` of each tuple; 0 for none.
    """

    def __init__(
        self, k: int, node_channels: int, hidden_channels: int, pair_channels: int = 0, num_counts: int = 0
    ) -> None:
        super().__init__()
        width = k * (k - 1) // 2 * hidden_channels
        self.nodes = nn.Linear(node_channels, k * hidden_channels, bias=False)
        self.same = nn.Embedding(1, hidden_channels) if width else None
        self.types = nn.Linear(hidden_channels, width, bias=False) if width else None
        self.pairs = nn.Linear(pair_channels, width, bias=False) if width and pair_channels else None
        self.counts = nn.Linear(num_counts, hidden_channels, bias=False) if num_counts else None
        self.bias = nn.Parameter(torch.zeros(hidden_channels))

    def _reset_parameters(self) -> None:
        nn.init.zeros_(self.bias)

    def forward(
        self,
        tokens: TupleTokens,
        nodes: Tensor,
        edges: Tensor,
        pairs: tuple[Tensor, Tensor] | None = None,
        counts: Tensor | None = None,
    ) -> Tensor:
        """Embed tuples.

        Args:
            tokens: the tuples.
            nodes: node features ``[num_nodes, node_channels]``.
            edges: features of the undirected edges ``[num_edges, hidden_channels]``.
            pairs: encodings of distinct pairs ``[num_pairs, pair_channels]``, and the numbers of each tuple's pairs,
                int64 ``[num_tokens, k (k-1) / 2]``, in the order of ``tokens.types``; only with ``pair_channels``.
            counts: ``[num_tokens, num_counts]``; only with ``num_counts``.

        Returns:
            ``[num_tokens, hidden_channels]``.
        """
        parts = [(nodes, self.nodes, tokens.nodes)]
        if self.types is not None and self.same is not None:
            # SAME_NODE and NO_EDGE are negative: they index the last but one row and the last.
            table = torch.cat([edges, self.same.weight.to(edges.dtype), torch.zeros_like(self.same.weight).to(edges)])
            parts.append((table, self.types, tokens.types.remainder(len(table))))
        if self.pairs is not None and pairs is not None:
            parts.append((pairs[0], self.pairs, pairs[1]))
        tables, indices, first = [], [], 0
        for rows, linear, index in parts:
            columns = index.size(1)
            tables.append(linear(rows).unflatten(1, (columns, -1)).flatten(0, 1))
            indices.append(index * columns + torch.arange(first, first + columns, device=index.device))
            first += len(tables[-1])
        rows = torch.cat(indices, 1)
        ptr = torch.arange(0, rows.numel() + 1, rows.size(1), device=rows.device)
        h = gather_sum(torch.cat(tables), rows.flatten(), ptr) + self.bias
        return h if self.counts is None or counts is None else h + self.counts(counts.to(h.dtype).log1p())


def node_pairs(tokens: TupleTokens, num_nodes: int) -> tuple[Tensor, Tensor]:
    """List the distinct pairs of nodes in all tuples.

    Returns:
        Pairs, int64 ``[2, num_pairs]``, and the number of the pair at each tuple's positions ``(i, j)``, ``i < j``, in
        the order of ``tokens.types``, int64 ``[num_tokens, k (k-1) / 2]``.
    """
    nodes, k = tokens.nodes, tokens.nodes.size(1)
    first, second = (nodes.index_select(1, place) for place in torch.triu_indices(k, k, 1, device=nodes.device))
    size = max(num_nodes, 1)
    key, which = torch.unique(first * size + second, return_inverse=True)
    return torch.stack([torch.div(key, size, rounding_mode="floor"), key % size]), which


MAX_PADDING = 1.1
"""Largest ratio of the numbers of tokens of graphs in a bucket."""

MAX_SCORES = 2**24
"""Most scores that are computed at once, for each head: 64 MiB in float32."""

MAX_PAIRS = {"cpu": 2**14, "cuda": 2**21}
"""Pairs of neighbours that are computed at once, by device: they fit into a core's cache, or into memory. The pairs of
a token are never divided."""


class Attention(ABC):
    """Attention between tokens; a subclass chooses which tokens attend to which."""

    @abstractmethod
    def __call__(self, query_key_value: Tensor, dropout: float = 0.0) -> Tensor:
        """Return weighted means of values.

        Args:
            query_key_value: ``[num_tokens, 3, heads, head_channels]``.
            dropout: share of the attention weights that is dropped.

        Returns:
            ``[num_tokens, heads, head_channels]``.
        """


def padded_tokens(graphs: RowGroups, rows_at_once: Callable[[int], int]) -> tuple[PaddedRows, list[Tensor]]:
    """Return buckets of graphs with similar numbers of tokens, and masks that distinguish tokens from padding.

    Args:
        graphs: the graph of each token.
        rows_at_once: most rows of a bucket as a function of the largest graph's number of tokens, unless that graph has
            more.
    """
    sizes = graphs.ptr.diff()
    largest = int(sizes.max()) if graphs.num_groups else 0
    number = torch.arange(len(graphs.index), device=sizes.device)
    number = number - graphs.ptr[graphs.sorted_index]
    if graphs.order is not None:
        number = torch.empty_like(number).index_copy(0, graphs.order, number)
    max_rows = max(largest, rows_at_once(max(largest, 1)))
    rows = PaddedRows(graphs.ptr, graphs.index, number, largest, max_rows=max_rows, max_padding=MAX_PADDING)
    return rows, rows.are_nodes()


class FullAttention(Attention):
    """Attend from each token to all tokens of its graph, by torch's softmax attention on padded buckets.

    Graphs with similar numbers of tokens form a bucket, in which padding is masked. The time grows with the square of
    the number of tokens.

    Args:
        graphs: the graph of each token.
    """

    def __init__(self, graphs: RowGroups) -> None:
        self.rows, masks = padded_tokens(graphs, lambda largest: MAX_SCORES // largest)
        self.masks = [mask[:, None, None] for mask in masks]

    def __call__(self, query_key_value: Tensor, dropout: float = 0.0) -> Tensor:
        """Attend, see :class:`Attention`."""
        outputs = []
        for mask, padded in zip(self.masks, self.rows.pad(query_key_value), strict=True):
            warn_of_pairs(padded.size(1), "tokens", padded.device, "attention='local' or 'performer'")
            query, key, value = padded.permute(2, 0, 3, 1, 4)
            at_once = max(1, MAX_SCORES // padded.shape[:2].numel())
            parts = [dot_product_attention(rows, key, value, mask, dropout) for rows in query.split(at_once, 2)]
            attended = torch.cat(parts, 2) if len(parts) > 1 else parts[0]
            outputs.append(attended.transpose(1, 2))
        return self.rows.unpad(outputs) if outputs else query_key_value[:, 0]


class MaskedAttention(Attention):
    """Attend from each token to one kind of neighbours in each head; a token without neighbours gets zero.

    Head ``i`` has kind ``i`` modulo the number of kinds. Only the scores of neighbours are computed, in chunks that fit
    into the cache.

    Args:
        kinds: for each kind, the tokens, ascending, and their neighbours, int64 ``[2, num_pairs]``.
        num_tokens: number of tokens.
    """

    def __init__(self, kinds: Sequence[Tensor], num_tokens: int) -> None:
        self.kinds = [_chunks(target, source, num_tokens) for target, source in kinds]

    def __call__(self, query_key_value: Tensor, dropout: float = 0.0) -> Tensor:
        """Attend, see :class:`Attention`."""
        query, key, value = query_key_value.unbind(1)
        query = query * (1.0 / math.sqrt(query.size(2)))
        heads = torch.arange(query.size(1), device=query.device)
        order, outputs = [], []
        for number, chunks in enumerate(self.kinds):
            kind_heads = slice(number, None, len(self.kinds))
            queries, keys, values = (rows[:, kind_heads].contiguous() for rows in (query, key, value))
            parts = [queries[:0]]
            for first, target, source in chunks:
                query_rows = target.gather(queries[first : first + target.num_groups])
                logits = (query_rows * keys.index_select(0, source)).sum(2)
                with torch.no_grad():
                    peak = torch.segment_reduce(logits.detach(), "max", offsets=target.ptr, unsafe=True)
                weight = (logits - peak.index_select(0, target.index)).exp()
                weight = weight / target.gather(target.sum(weight))
                weight = functional.dropout(weight, dropout) if dropout else weight
                total = target.sum((weight.unsqueeze(2) * values.index_select(0, source)).flatten(1))
                parts.append(total.unflatten(1, values.shape[1:]))
            outputs.append(torch.cat(parts))
            order.append(heads[kind_heads])
        return torch.cat(outputs, 1).index_select(1, torch.argsort(torch.cat(order)))


def _chunks(target: Tensor, source: Tensor, num_tokens: int) -> list[tuple[int, RowGroups, Tensor]]:
    """Divide pairs into chunks of consecutive targets: the first target, the targets relative to it, the sources."""
    size = MAX_PAIRS.get(target.device.type, MAX_PAIRS["cuda"])
    ptr = torch.searchsorted(target, torch.arange(num_tokens + 1, device=target.device))
    # Start a new chunk each time the running number of pairs passes a multiple of the size.
    counts = torch.unique_consecutive(torch.div(ptr[:-1], size, rounding_mode="floor"), return_counts=True)[1]
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    chunks = []
    for (first, begin), (last, end) in itertools.pairwise(torch.stack([starts, ptr[starts]], 1).tolist()):
        groups = RowGroups(target[begin:end] - first, last - first, is_sorted=True)
        chunks.append((first, groups, source[begin:end].contiguous()))
    return chunks


class TokenLayer(Resettable):
    """Transformer layer: attention and a feed-forward net as wide as the tokens, each with layer norm before it.

    With :class:`FullAttention` it equals torch's ``TransformerEncoderLayer`` with ``norm_first``, ``"gelu"`` and
    ``dim_feedforward=hidden_channels``.

    Args:
        hidden_channels: width of the tokens.
        heads: number of attention heads; divides ``hidden_channels``.
        dropout: dropout of the attention's output; the feed-forward net has none.
        attention_dropout: dropout of the attention weights.
        drop_path: probability that a graph skips the attention, or the feed-forward net, in training.
    """

    def __init__(
        self,
        hidden_channels: int,
        heads: int,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads, self.attention_dropout = heads, attention_dropout
        self.norm_attention = nn.LayerNorm(hidden_channels)
        self.query_key_value = nn.Linear(hidden_channels, 3 * hidden_channels)
        self.out = nn.Linear(hidden_channels, hidden_channels)
        self.norm_feed_forward = nn.LayerNorm(hidden_channels)
        self.feed_forward = nn.Sequential(
            nn.Linear(hidden_channels, hidden_channels), nn.GELU(), nn.Linear(hidden_channels, hidden_channels)
        )
        self.dropout, self.drop_path = nn.Dropout(dropout), DropPath(drop_path)

    def extra_repr(self) -> str:
        """Show the arguments that no submodule shows."""
        return f"heads={self.heads}, attention_dropout={self.attention_dropout}"

    def forward(self, h: Tensor, attention: Attention, graphs: RowGroups) -> Tensor:
        """Return the updated tokens, ``[num_tokens, hidden_channels]``.

        Args:
            h: tokens ``[num_tokens, hidden_channels]``.
            attention: the attention between tokens.
            graphs: the graph of each token.
        """
        rows = self.query_key_value(self.norm_attention(h)).unflatten(1, (3, self.heads, -1))
        attended = attention(rows, self.attention_dropout if self.training else 0.0).flatten(1)
        h = h + self.drop_path(self.dropout(self.out(attended)), graphs)
        update: Tensor = self.drop_path(self.feed_forward(self.norm_feed_forward(h)), graphs)
        return h + update
