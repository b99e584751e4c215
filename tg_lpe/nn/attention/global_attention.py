"""Registry of global attentions, of each node over all nodes of its graph, for hybrid layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch_geometric.nn.attention import PerformerAttention, SGFormerAttention

from tg_lpe.arguments import check_count, check_heads
from tg_lpe.checkpoints.registry import Registry
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.progress import warn_of_pairs
from tg_lpe.nn.attention.registry import AttentionLayer
from tg_lpe.nn.dot_product import dot_product_attention

L = TypeVar("L", bound=type[AttentionLayer])

GLOBAL_ATTENTIONS = Registry("global_attention")
"""All registered global attentions by name, as in :class:`~tg_lpe.nn.attention.HybridLayer`."""


def register_global_attention(name: str) -> Callable[[L], L]:
    """Register a class of global attentions, an :class:`AttentionLayer`, by name. Use it as a decorator.

    The constructor takes ``hidden_channels``, ``heads`` and options. ``forward(h, graph, state)`` returns an update of
    the node features, ``[num_nodes, hidden_channels]``, and the state for the next layer. A method ``shared`` works as
    in :func:`~tg_lpe.nn.attention.register_attention`; if it returns ``None``, so does the state.

    Raises:
        ValueError: if another class has the same name.
    """
    decorator: Callable[[L], L] = GLOBAL_ATTENTIONS.register(name=name)
    return decorator


@register_global_attention("softmax")
class SoftmaxAttention(AttentionLayer):
    r"""Multi-head attention, ``softmax(Q K^T / sqrt(d)) V`` over the nodes of each graph, on padded graphs.

    The time grows with the square of the largest graph of a batch.

    Args:
        hidden_channels: width of node features.
        heads: number of heads; divides ``hidden_channels``.

    Raises:
        ValueError: if ``heads`` does not divide ``hidden_channels``.
    """

    def __init__(self, hidden_channels: int, heads: int) -> None:
        super().__init__()
        check_heads(hidden_channels, heads)
        self.heads = heads
        self.query_key_value = nn.Linear(hidden_channels, 3 * hidden_channels)
        self.out = nn.Linear(hidden_channels, hidden_channels)

    def forward(self, h: Tensor, graph: Graph, state: None) -> tuple[Tensor, None]:
        """Attend to all nodes of a graph, see :func:`register_global_attention`."""
        rows = self.query_key_value(h).unflatten(1, (3, self.heads, -1))
        return self.out(softmax_attention(rows, graph)), None


def softmax_attention(rows: Tensor, graph: Graph) -> Tensor:
    """Attend from each node to all nodes of its graph, ``[num_nodes, heads * width]``.

    Args:
        rows: queries, keys and values, ``[num_nodes, 3, heads, width]``.
        graph: the graph.

    Warns:
        UserWarning: before the many pairs of a large graph are computed on a processor.
    """
    faster = "attention='edge', or attention='hybrid' with its default global_attention='primal'"
    warn_of_pairs(graph.max_nodes, "nodes", rows.device, faster)
    query, key, value = graph.pad(rows).permute(2, 0, 3, 1, 4)
    attended = dot_product_attention(query, key, value, key_mask(graph))
    return graph.unpad(attended.transpose(1, 2)).flatten(1)


def key_mask(graph: Graph) -> Tensor | None:
    """Return whether a row is a node, bool ``[num_graphs, 1, 1, max_nodes]``; ``None`` if there is no padding."""
    if graph.num_graphs == 1:
        return None
    padding = graph.padding
    # A graph without nodes gets keys too, because an empty softmax divides zero by zero; its rows are not read.
    return (~padding | padding.all(dim=1, keepdim=True))[:, None, None]


@register_global_attention("performer")
class Performer(AttentionLayer):
    """PyTorch Geometric's ``PerformerAttention``, at linear cost.

    `Rethinking Attention with Performers <https://arxiv.org/abs/2009.14794>`_. The modules are PyG's, and so is the
    result for a single graph. The forward pass is different: in PyG's, the padding of a batch counts as keys.

    Args:
        hidden_channels: width of node features.
        heads: number of heads; divides ``hidden_channels``.
        head_channels: width of each head.

    Raises:
        ValueError: if ``heads`` does not divide ``hidden_channels``, or a head has fewer than two channels.
    """

    def __init__(self, hidden_channels: int, heads: int, head_channels: int = 64) -> None:
        super().__init__()
        check_heads(hidden_channels, heads)
        check_count("head_channels", head_channels, least=2)
        self.attention = PerformerAttention(hidden_channels, heads, head_channels)

    def reset_parameters(self) -> None:
        """Draw the weights and the random features again."""
        self.attention._reset_parameters()

    def forward(self, h: Tensor, graph: Graph, state: None) -> tuple[Tensor, None]:
        """Attend to all nodes of a graph, see :func:`register_global_attention`."""
        attention = self.attention
        projection = attention.fast_attn.projection_matrix.mT
        query, key, value = (
            linear(h).unflatten(1, (attention.heads, -1)) for linear in (attention.q, attention.k, attention.v)
        )
        query, key = (attention.kernel(rows @ projection.to(rows.dtype)) + 1e-3 for rows in (query, key))
        query, key, value = (graph.pad(rows.to(value.dtype)).transpose(1, 2) for rows in (query, key, value))
        total = query @ key.sum(2).unsqueeze(3)
        attended = query @ (key.mT @ value) / torch.where(graph.padding[:, None, :, None], 1.0, total)
        return attention.attn_out(graph.unpad(attended.transpose(1, 2)).flatten(1)), None


@register_global_attention("sgformer")
class SGFormer(AttentionLayer):
    """PyTorch Geometric's ``SGFormerAttention``, with one head as published, at linear cost.

    `SGFormer <https://arxiv.org/abs/2306.10759>`_. The modules are PyG's, and so is the result for a single graph. The
    forward pass is different: in PyG's, the padding of a batch counts as nodes.

    Args:
        hidden_channels: width of node features.
        heads: not read; there is always one head.
    """

    def __init__(self, hidden_channels: int, heads: int = 1) -> None:
        super().__init__()
        self.attention = SGFormerAttention(hidden_channels, 1, hidden_channels)

    def forward(self, h: Tensor, graph: Graph, state: None) -> tuple[Tensor, None]:
        """Attend to all nodes of a graph, see :func:`register_global_attention`."""
        attention, graphs = self.attention, graph.graphs
        value = attention.v(h)
        query, key = (_unit_rows(linear(h)) for linear in (attention.q, attention.k))
        sizes = graphs.gather(graphs.ptr.diff()).unsqueeze(1).to(value.dtype)
        padded, key_sum = graph.pad(query), graphs.sum(key)
        attended = padded @ (graph.pad(key).mT @ graph.pad(value))
        total = (query * graphs.gather(key_sum)).sum(1, keepdim=True) + sizes
        return (graph.unpad(attended) + sizes * value) / total, None


def _unit_rows(rows: Tensor) -> Tensor:
    """Scale rows to length one; as in PyG, zeros become small numbers first."""
    rows = rows + 1e-6 * (rows == 0).to(rows.dtype)
    return rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True)
