"""Attention of each node over all nodes of its graph, by name: the part of a hybrid layer that one argument changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch_geometric.nn.attention import PerformerAttention, SGFormerAttention

from tg_lpe.arguments import check_count, check_heads
from tg_lpe.checkpoints.registry import Registry
from tg_lpe.graph.graph import Graph
from tg_lpe.nn._util import reset_parts
from tg_lpe.nn.dot_product import dot_product_attention
from tg_lpe.nn.linear import Linear

L = TypeVar("L", bound=type[nn.Module])

GLOBAL_ATTENTIONS = Registry("global_attention")
"""Every attention over all nodes by the name that :class:`~tg_lpe.nn.attention.HybridLayer` knows it by."""


def register_global_attention(name: str) -> Callable[[L], L]:
    """Make a class known by a name, as a decorator.

    It is constructed with ``hidden_channels``, ``heads`` and options of its own. ``forward(h, graph, state)``
    returns what is added to the node features, ``[num_nodes, hidden_channels]``, and the state for the next layer. A
    method ``shared`` is that of :func:`~tg_lpe.nn.attention.register_attention`; without it the state is ``None``.

    Raises:
        ValueError: if another class has that name.
    """
    decorator: Callable[[L], L] = GLOBAL_ATTENTIONS.register(name=name)
    return decorator


@register_global_attention("softmax")
class SoftmaxAttention(nn.Module):
    r"""Multi-head attention, ``softmax(Q K^T / sqrt(d)) V`` over the nodes of each graph, on padded graphs.

    The time grows with the square of the largest graph of a batch.

    Args:
        hidden_channels: width of node features.
        heads: number of heads; divides ``hidden_channels``.

    Raises:
        ValueError: if it does not.
    """

    def __init__(self, hidden_channels: int, heads: int) -> None:
        super().__init__()
        check_heads(hidden_channels, heads)
        self.heads = heads
        self.query_key_value = Linear(hidden_channels, 3 * hidden_channels)
        self.out = Linear(hidden_channels, hidden_channels)

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        reset_parts(self)

    def forward(self, h: Tensor, graph: Graph, state: None) -> tuple[Tensor, None]:
        """Attend to all nodes of a graph, see :func:`register_global_attention`."""
        rows = self.query_key_value(h).unflatten(1, (3, self.heads, -1))
        return self.out(softmax_attention(rows, graph)), None


def softmax_attention(rows: Tensor, graph: Graph) -> Tensor:
    """Attend from each node to all nodes of its graph, ``[num_nodes, heads * width]``.

    Args:
        rows: queries, keys and values, ``[num_nodes, 3, heads, width]``.
        graph: the graph.
    """
    query, key, value = graph.pad(rows).permute(2, 0, 3, 1, 4)
    attended = dot_product_attention(query, key, value, key_mask(graph))
    return graph.unpad(attended.transpose(1, 2)).flatten(1)


def key_mask(graph: Graph) -> Tensor | None:
    """Keys that take part, bool ``[num_graphs, 1, 1, max_nodes]``; ``None`` if nothing is padded."""
    if graph.num_graphs == 1:
        return None
    padding = graph.padding
    # A graph without nodes would divide zero by zero; its rows are not used, so any key will do.
    return (~padding | padding.all(dim=1, keepdim=True))[:, None, None]


@register_global_attention("performer")
class Performer(nn.Module):
    """PyTorch Geometric's ``PerformerAttention``, at linear cost.

    `Rethinking Attention with Performers <https://arxiv.org/abs/2009.14794>`_. The modules and, for a graph by itself,
    the result are PyG's. The forward pass is ours, because in PyG's the padding of a batch counts as keys.

    Args:
        hidden_channels: width of node features.
        heads: number of heads; divides ``hidden_channels``.
        head_channels: width of each head; PyG's default.

    Raises:
        ValueError: if ``heads`` does not divide ``hidden_channels``, or a head has fewer than two channels.
    """

    def __init__(self, hidden_channels: int, heads: int, head_channels: int = 64) -> None:
        super().__init__()
        check_heads(hidden_channels, heads)
        check_count("head_channels", head_channels, least=2)
        self.attention = PerformerAttention(hidden_channels, heads, head_channels)

    def reset_parameters(self) -> None:
        """Draw the weights and the random features anew."""
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
class SGFormer(nn.Module):
    """PyTorch Geometric's ``SGFormerAttention``, with one head as published, at linear cost.

    `SGFormer <https://arxiv.org/abs/2306.10759>`_. The modules and, for a graph by itself, the result are PyG's. The
    forward pass is ours, because in PyG's the padding of a batch counts as nodes.

    Args:
        hidden_channels: width of node features.
        heads: not read: there is one.
    """

    def __init__(self, hidden_channels: int, heads: int = 1) -> None:
        super().__init__()
        self.attention = SGFormerAttention(hidden_channels, 1, hidden_channels)

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        self.attention.reset_parameters()

    def forward(self, h: Tensor, graph: Graph, state: None) -> tuple[Tensor, None]:
        """Attend to all nodes of a graph, see :func:`register_global_attention`."""
        attention, graphs = self.attention, graph.graphs
        value = attention.v(h)
        query, key = (_unit_rows(linear(h)) for linear in (attention.q, attention.k))
        sizes = graphs.gather(graphs.ptr.diff()).unsqueeze(1).to(value.dtype)
        padded, key_sum = graph.pad(query), graphs.sum(key)
        found = padded @ (graph.pad(key).mT @ graph.pad(value))
        total = (query * graphs.gather(key_sum)).sum(1, keepdim=True) + sizes
        return (graph.unpad(found) + sizes * value) / total, None


def _unit_rows(rows: Tensor) -> Tensor:
    """Rows of length one, as in PyG: zeros become small numbers first."""
    rows = rows + 1e-6 * (rows == 0).to(rows.dtype)
    return rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True)


@register_global_attention("none")
class NoAttention(nn.Module):
    """No exchange beyond the neighbours; :class:`~tg_lpe.nn.attention.HybridLayer` leaves the global part out.

    Args:
        hidden_channels, heads: not read.
    """

    def __init__(self, hidden_channels: int, heads: int) -> None:
        super().__init__()

    def forward(self, h: Tensor, graph: Graph, state: Any) -> tuple[Tensor, Any]:
        """Zeros."""
        return torch.zeros_like(h), state
