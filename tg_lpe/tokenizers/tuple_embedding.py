"""The first features of tokens that are tuples of nodes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tg_lpe.nn.reset import reset_all
from tg_lpe.ops.segment import gather_sum
from tg_lpe.tokenizers.tuple_tokens import TupleTokens


class TupleEmbedding(nn.Module):
    r"""Tokens from what is known of their nodes, by position, and of the pairs of these.

    .. math:: X(v) = \sum_i W_i x(v_i) + \sum_{i<j} \left(A_{ij} E(v_i, v_j) + B_{ij} p(v_i, v_j)\right)
        + C \log(1 + c(v)) + b ,

    linear maps of the concatenated rows of a tuple, eq. (4) and section A.3 of `Aligning Transformers with
    Weisfeiler-Leman <https://arxiv.org/abs/2406.03148>`_. ``E`` is the embedding of an edge, zero without an edge and a
    learned row if ``v_i = v_j``, so that it tells the atomic type. All terms are rows of one table, which is summed
    tuple by tuple.

    Args:
        k: nodes of a tuple.
        node_channels: width of node features ``x``.
        hidden_channels: width of edge features and of the tokens.
        pair_channels: width of encodings ``p`` of pairs; 0 for none.
        num_counts: numbers ``c`` that are known of each tuple; 0 for none.
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

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        for part in self.children():
            reset_all(part)
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
            pairs: encodings of different pairs ``[num_pairs, pair_channels]``, and which of them each tuple has, int64
                ``[num_tokens, k (k-1) / 2]``, in the order of ``tokens.types``; only with ``pair_channels``.
            counts: ``[num_tokens, num_counts]``; only with ``num_counts``.

        Returns:
            ``[num_tokens, hidden_channels]``.

        Raises:
            ValueError: if ``pairs`` or ``counts`` are missing, or given to an embedding without.
        """
        for name, given, part in (("pairs", pairs, self.pairs), ("counts", counts, self.counts)):
            if (given is None) != (part is None):
                raise ValueError(
                    f"{name} are missing: the embedding has a map of them"
                    if given is None
                    else f"{name} are given, and the embedding has no map of them"
                )
        parts = [(nodes, self.nodes, tokens.nodes)]
        if self.types is not None and self.same is not None:
            # SAME_NODE and NO_EDGE are the last but one row and the last.
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
    """The different pairs of nodes at two positions of a tuple, each once.

    Returns:
        Pairs, int64 ``[2, num_pairs]``, and which of them each tuple has at its positions ``(i, j)``, ``i < j``, in the
        order of ``tokens.types``, int64 ``[num_tokens, k (k-1) / 2]``.
    """
    nodes, k = tokens.nodes, tokens.nodes.size(1)
    first, second = (nodes.index_select(1, place) for place in torch.triu_indices(k, k, 1, device=nodes.device))
    size = max(num_nodes, 1)
    key, which = torch.unique(first * size + second, return_inverse=True)
    return torch.stack([torch.div(key, size, rounding_mode="floor"), key % size]), which
