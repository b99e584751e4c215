"""Softmax attention by torch, or by other implementations where torch's is slow on processors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tg_lpe.ops.operator import reference_gradients

SMALL_PRODUCTS = 512
"""Largest ``num_tokens^2 * width`` for which :func:`token_attention` does not use torch's kernel."""

ROWS_AT_ONCE = 512
"""Rows of tokens whose scores fit into a core's cache."""


def dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """Compute ``softmax(Q K^T / sqrt(width)) V`` by torch; on the CPU, in float32 at least.

    On the CPU, torch's backward pass in bfloat16 mostly takes more than three times as long as in float32.

    Args:
        query: ``[num_graphs, heads, num_queries, width]``.
        key: ``[num_graphs, heads, num_keys, width]``.
        value: ``[num_graphs, heads, num_keys, width]``.
        mask: bool, ``True`` for keys to attend to; or floating point, a differentiable bias of the scores. Its shape
            expands to ``[num_graphs, heads, num_queries, num_keys]``.
        dropout: share of the weights that is dropped.

    Returns:
        ``[num_graphs, heads, num_queries, width]``, in the dtype of ``value``.
    """
    if not value.numel():  # torch's kernel returns no gradient of an empty mask
        unread = key.sum() + value.sum() + (0 if mask is None or mask.dtype == torch.bool else mask.sum())
        return (0 * (query + unread)).to(value.dtype)
    if mask is not None and mask.is_floating_point():
        mask = mask.to(query.dtype)
    if value.device.type != "cpu" or value.dtype not in (torch.bfloat16, torch.float16):
        return functional.scaled_dot_product_attention(query, key, value, mask, dropout)
    with torch.autocast("cpu", enabled=False):
        rows = query.float(), key.float(), value.float()
        mask = mask.float() if mask is not None and mask.is_floating_point() else mask
        return functional.scaled_dot_product_attention(*rows, mask, dropout).to(value.dtype)


def token_attention(query_key_value: Tensor, absent: Tensor, dropout: float = 0.0) -> Tensor:
    """Compute softmax attention between the tokens of each row, for many rows of few tokens.

    Args:
        query_key_value: ``[num_rows, num_tokens, 3, heads, width]``.
        absent: whether a token is padding, bool ``[num_rows, num_tokens]``; each row has at least one token.
        dropout: share of the weights that is dropped.

    Returns:
        ``[num_rows, num_tokens, heads, width]``.
    """
    num_tokens, width = query_key_value.size(1), query_key_value.size(4)
    is_small = num_tokens**2 * width <= SMALL_PRODUCTS and len(query_key_value) > 0
    if dropout or not is_small or query_key_value.device.type != "cpu":
        query, key, value = query_key_value.permute(2, 0, 3, 1, 4)
        return dot_product_attention(query, key, value, ~absent[:, None, None], dropout).transpose(1, 2)
    precise = torch.promote_types(query_key_value.dtype, torch.float32)
    # Rows are the last dimension, so that consecutive rows are contiguous in memory.
    rows = query_key_value.to(precise).permute(2, 3, 4, 1, 0)
    bias = torch.zeros_like(absent, dtype=precise).masked_fill(absent, -torch.inf).T
    parts = zip(rows.split(ROWS_AT_ONCE, 4), bias.split(ROWS_AT_ONCE, 1), strict=True)
    outputs = [_SmallAttention.apply(*part.contiguous(), mask) for part, mask in parts]  # type: ignore[no-untyped-call]
    return torch.cat(outputs, 3).permute(3, 2, 0, 1).to(query_key_value.dtype)


class _SmallAttention(torch.autograd.Function):
    """Attention by elementwise products of all pairs of tokens, channel by channel.

    Queries, keys and values are ``[heads, width, num_tokens, num_rows]``, the bias is ``[num_tokens, num_rows]``.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        scale = query.size(1) ** -0.5
        weight = _outer(query, key).mul_(scale).add_(bias).softmax(2)
        ctx.save_for_backward(query, key, value, bias, weight)
        return _over_keys(weight, value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        query, key, value, bias, weight = ctx.saved_tensors
        if torch.is_grad_enabled():
            return tuple(reference_gradients(_attention, (query, key, value, bias), [grad]))
        by_score = _outer(grad, value).mul_(weight)
        by_score.addcmul_(weight, by_score.sum(2, keepdim=True), value=-1).mul_(query.size(1) ** -0.5)
        return _over_keys(by_score, key), _over_queries(by_score, query), _over_queries(weight, grad), None


def _attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Compute :class:`_SmallAttention` by operations with second derivatives."""
    logits = torch.einsum("hdqr,hdkr->hqkr", query, key) * query.size(1) ** -0.5 + bias
    return torch.einsum("hqkr,hdkr->hdqr", logits.softmax(2), value)


def _outer(left: Tensor, right: Tensor) -> Tensor:
    """Sum products over channels, ``[heads, num_queries, num_keys, num_rows]``."""
    outer = left[:, 0].unsqueeze(2) * right[:, 0].unsqueeze(1)
    for channel in range(1, left.size(1)):
        outer.addcmul_(left[:, channel].unsqueeze(2), right[:, channel].unsqueeze(1))
    return outer


def _over_keys(weight: Tensor, rows: Tensor) -> Tensor:
    return torch.stack([(weight * channel.unsqueeze(1)).sum(2) for channel in rows.unbind(1)], dim=1)


def _over_queries(weight: Tensor, rows: Tensor) -> Tensor:
    return torch.stack([(weight * channel.unsqueeze(2)).sum(1) for channel in rows.unbind(1)], dim=1)
