"""Compute attention of each node over its in-neighbours, modulated by edge features."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tg_lpe.ops import cpu
from tg_lpe.ops.cpu import DTYPES, Double, Function, Int, Pointer, Required
from tg_lpe.ops.operator import differentiable, keep_inputs, kept_inputs, reference_gradients
from tg_lpe.ops.segment import RowGroups

SCORE_BOUND = 5.0
"""Scores are clamped to this before the exponential, as by Dwivedi and Bresson, so that softmax needs no shift."""

SMALLEST_TOTAL = 1e-3
"""Floor of the sum of a node's weights, which is at least exp(-5) if the node has an edge; float16 can invert it."""

HEAD_CHANNELS = range(8, 129)
"""Widths of a head that the library supports."""

WITH_HALF = {**DTYPES, torch.bfloat16: "bfloat16"}

_kernel = Function(
    "edge_attention",
    (Int, "num_nodes num_edges heads channels"),
    (Pointer, "crow source ccol order target query key_value edge"),
    (Double, "scale bound floor"),
    (Pointer, "out score weight grad_out grad_score grad_query grad_key_value grad_edge slope"),
    (Int, "num_threads"),
    dtypes=WITH_HALF,
)


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
    if dropout or torch.compiler.is_compiling() or not _supports(heads, query, key_value, edge):
        return _reference(query, key_value, edge, source, target, heads, dropout)
    out, score, _ = _compiled(query, key_value, edge, source, target, heads)
    return out, score


def _supports(heads: int, *rows: Tensor) -> bool:
    """Return whether the library supports these rows: of one dtype, including bfloat16, in the CPU's memory."""
    dtype, channels = rows[0].dtype, rows[0].size(1) // heads
    are_plain = all([x.device.type == "cpu" and x.dtype == dtype and type(x) is Tensor for x in rows])
    has_kernel = dtype in WITH_HALF and channels in HEAD_CHANNELS
    return cpu.library is not None and has_kernel and are_plain


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
    """Compute output and scores, and the weights for the gradient, ``[num_edges, heads]``."""
    out, score = query.new_empty(query.shape), edge.new_empty(edge.shape)
    weight = edge.new_empty(len(edge), heads, dtype=torch.promote_types(edge.dtype, torch.float32))
    results = {"out": out, "score": score, "weight": weight}
    _call(query, key_value, edge, {"source": source.index, "crow": target.ptr}, heads, {}, results)
    return out, score, weight


def _call(
    query: Tensor,
    key_value: Tensor,
    edge: Tensor,
    indices: dict[str, Tensor],
    heads: int,
    saved: dict[str, Required],
    results: dict[str, Tensor],
) -> None:
    (num_nodes, width), num_edges = query.shape, edge.size(0)
    lengths = {"crow": num_nodes + 1, "ccol": num_nodes + 1}
    _kernel(
        edge.dtype,
        "edges must be sorted by target and join nodes of the batch",
        {
            "query": (query, edge.dtype, (num_nodes, width)),
            "key_value": (key_value, edge.dtype, (num_nodes, 2 * width)),
            "edge": (edge, edge.dtype, (num_edges, width)),
            **{name: (index, torch.int64, (lengths.get(name, num_edges),)) for name, index in indices.items()},
            **saved,
        },
        results,
        num_nodes=num_nodes,
        num_edges=num_edges,
        heads=heads,
        channels=width // heads,
        scale=1 / math.sqrt(width // heads),
        bound=SCORE_BOUND,
        floor=SMALLEST_TOTAL,
    )


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
    indices = {"source": source.index, "crow": target.ptr}
    indices |= {"ccol": source.ptr, "order": source.sorted_order, "target": target.index}
    grad_out = torch.zeros_like(query) if grad_out is None else grad_out
    saved: dict[str, Required] = {
        "grad_out": (grad_out, edge.dtype, tuple(query.shape)),
        "out": (out, edge.dtype, tuple(query.shape)),
        "weight": (weight, weight.dtype, (len(edge), heads)),
    }
    if grad_score is not None:
        saved["grad_score"] = (grad_score, edge.dtype, tuple(edge.shape))
    results = {
        f"grad_{name}": x.new_empty(x.shape)
        for name, x in {"query": query, "key_value": key_value, "edge": edge}.items()
    }
    slope = weight.new_empty(len(edge), 2, heads)
    _call(query, key_value, edge, indices, heads, saved, results | {"slope": slope})
    return *results.values(), None, None, None


_compiled = differentiable(_run, _keep, _backward)
