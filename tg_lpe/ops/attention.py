"""Compute attention of each node over its in-neighbours, modulated by edge features."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tg_lpe.ops.cpu import attention as cpu_attention
from tg_lpe.ops.cpu.attention import SCORE_BOUND, SMALLEST_TOTAL
from tg_lpe.ops.operator import differentiable, is_traced, keep_inputs, kept_inputs, reference_gradients
from tg_lpe.ops.segment import RowGroups


def edge_attention(
    query: Tensor,
    key_value: Tensor,
    edge: Tensor,
    source: RowGroups,
    target: RowGroups,
    heads: int,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Attend over edges, see :class:`tg_lpe.nn.attention.EdgeAttention`.

    Args:
        query: ``[num_nodes, channels]``.
        key_value: keys, then values, ``[num_nodes, 2 * channels]``.
        edge: ``[num_edges, channels]``, sorted by target.
        source, target: the ends of the edges, sorted by target.
        heads: number of heads; divides ``channels``.
        dropout: probability of dropping a weight.

    Returns:
        Weighted means of values ``[num_nodes, channels]`` and scores ``[num_edges, channels]``.
    """
    if dropout or is_traced() or not cpu_attention.supports(heads, query, key_value, edge):
        return _reference(query, key_value, edge, source, target, heads, dropout)
    out, score, _ = _compiled(query, key_value, edge, source, target, heads)
    return out, score


def _reference(
    query: Tensor, key_value: Tensor, edge: Tensor, source: RowGroups, target: RowGroups, heads: int, dropout: float
) -> tuple[Tensor, Tensor]:
    """Compute :func:`edge_attention` in torch."""
    if edge.dtype in (torch.bfloat16, torch.float16) and edge.device.type == "cpu":  # broadcasting is slow in these
        out, score = _reference(query.float(), key_value.float(), edge.float(), source, target, heads, dropout)
        return out.to(edge.dtype), score.to(edge.dtype)
    # Split before gathering, so that the backward pass concatenates gradients of nodes, not of edges.
    key, value = (source.gather(part) for part in key_value.chunk(2, dim=-1))
    score = target.gather(query * (1.0 / math.sqrt(query.size(1) // heads))) * key * edge
    logits = score.unflatten(1, (heads, -1)).sum(2)
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    weight = precise.clamp(-SCORE_BOUND, SCORE_BOUND).exp().to(value.dtype)
    total = target.sum(weight).clamp(min=SMALLEST_TOTAL)
    weight = functional.dropout(weight, dropout) if dropout else weight
    weighted = target.sum(_scale_heads(value, weight))
    return _scale_heads(weighted, total.reciprocal()), score


def _scale_heads(x: Tensor, factor: Tensor) -> Tensor:
    """Multiply ``x``, ``[num_rows, channels]``, by a factor per head, ``[num_rows, heads]``."""
    return (x.unflatten(1, (factor.size(1), -1)) * factor.unsqueeze(2)).flatten(1)


def _run(
    query: Tensor, key_value: Tensor, edge: Tensor, source: RowGroups, target: RowGroups, heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    return cpu_attention.edge_attention(query, key_value, edge, source.index, target.ptr, heads)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    out, _, weight = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(weight)
    keep_inputs(ctx, (*inputs, out, weight), output)


def _backward(ctx: Any, grad_out: Tensor | None, grad_score: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    query, key_value, edge, source, target, heads, out, weight = kept_inputs(ctx)
    if torch.is_grad_enabled():

        def attend(query: Tensor, key_value: Tensor, edge: Tensor) -> tuple[Tensor, Tensor]:
            return _reference(query, key_value, edge, source, target, heads, 0.0)

        return *reference_gradients(attend, (query, key_value, edge), (grad_out, grad_score)), None, None, None
    by_source = {"ccol": source.ptr, "order": source.sorted_order, "target": target.index}
    grad_out = torch.zeros_like(query) if grad_out is None else grad_out
    grads = cpu_attention.edge_attention_backward(
        query, key_value, edge, source.index, target.ptr, out, weight, grad_out, grad_score, by_source
    )
    return *grads, None, None, None


_compiled = differentiable(_run, _keep, _backward)
