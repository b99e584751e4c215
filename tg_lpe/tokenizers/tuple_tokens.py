"""The token sets of k-GT and (k,s)-GT: tuples of nodes and their atomic types."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from tg_lpe.graph.graph import Graph
from tg_lpe.graph.tuples import component_tuples, edge_between


class TupleTokens(NamedTuple):
    """One token for each tuple, by graph, then in lexicographic order of its nodes."""

    nodes: Tensor
    """The nodes of each tuple, int64 ``[num_tokens, k]``."""
    types: Tensor
    """The atomic type: for the positions ``(i, j)``, ``i < j``, the undirected edge between their nodes as the
    :class:`~tg_lpe.Graph` numbers them, :data:`~tg_lpe.graph.tuples.NO_EDGE` or
    :data:`~tg_lpe.graph.tuples.SAME_NODE`, int64 ``[num_tokens, k (k-1) / 2]``.
    Pairs of positions are in the order of ``itertools.combinations``."""
    batch: Tensor
    """The graph of each tuple, int64 ``[num_tokens]``."""


def tuple_tokens(graph: Graph, k: int, s: int | None = None) -> TupleTokens:
    """The ``k``-tuples of nodes with at most ``s`` components, and their atomic types.

    `Aligning Transformers with Weisfeiler-Leman <https://arxiv.org/abs/2406.03148>`_, sections 3 and 4.

    Args:
        graph: the graph or batch.
        k: nodes of each tuple.
        s: components at most; all ``k``-tuples if absent.

    Raises:
        ValueError: if ``k`` and ``s`` are out of range, or there are too many tuples to list.
    """
    nodes = component_tuples(graph, k, k if s is None else s)
    pairs = [edge_between(graph, nodes[i], nodes[j]) for i, j in combinations(range(k), 2)]
    types = torch.stack(pairs, 1) if pairs else nodes.new_empty(nodes.size(1), 0)
    return TupleTokens(nodes.T.contiguous(), types, graph.batch[nodes[0]])
