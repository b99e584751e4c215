"""Call attention over edges in C++; :mod:`tg_lpe.ops.attention` documents it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tg_lpe.ops import cpu
from tg_lpe.ops.cpu import DTYPES, Double, Function, Int, Pointer, checked
from tg_lpe.ops.operator import is_transforming

SCORE_BOUND = 5.0
"""Scores are clamped to this before the exponential, as by Dwivedi and Bresson, so that softmax needs no shift."""

SMALLEST_TOTAL = 1e-3
"""Floor of the sum of a node's weights, which is at least exp(-5) if the node has an edge; float16 can invert it."""

WITH_HALF = {**DTYPES, torch.bfloat16: "bfloat16"}

_edge_attention = Function(
    "edge_attention",
    (Int, "num_nodes num_edges heads channels"),
    (Pointer, "crow source ccol order target query key_value edge"),
    (Double, "scale bound floor"),
    (Pointer, "out score weight grad_out grad_score grad_query grad_key_value grad_edge slope"),
    (Int, "num_threads"),
    dtypes=WITH_HALF,
)


HEAD_CHANNELS = range(8, 129)
"""Widths of a head that the library supports."""


def supports(heads: int, *rows: Tensor) -> bool:
    """Return whether the library supports these rows: of one dtype, including bfloat16, in the CPU's memory."""
    dtype, channels = rows[0].dtype, rows[0].size(1) // heads
    are_plain = all(x.device.type == "cpu" and x.dtype == dtype and type(x) is Tensor for x in rows)
    has_kernel = dtype in WITH_HALF and channels in HEAD_CHANNELS
    return cpu.library is not None and has_kernel and are_plain and not is_transforming()


def edge_attention(
    query: Tensor, key_value: Tensor, edge: Tensor, source: Tensor, ptr: Tensor, heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute output and scores, and the weights for the backward pass, ``[num_edges, heads]``."""
    out, score = torch.empty_like(query, memory_format=torch.contiguous_format), torch.empty_like(edge)
    weight = edge.new_empty(len(edge), heads, dtype=torch.promote_types(edge.dtype, torch.float32))
    results = {"out": out, "score": score, "weight": weight}
    _call(query, key_value, edge, {"source": source, "crow": ptr}, results, {})
    return out, score, weight


def edge_attention_backward(
    query: Tensor,
    key_value: Tensor,
    edge: Tensor,
    source: Tensor,
    ptr: Tensor,
    out: Tensor,
    weight: Tensor,
    grad_out: Tensor,
    grad_score: Tensor | None,
    by_source: dict[str, Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of queries, of keys and values, and of edges."""
    grads = {"grad_out": (grad_out, query.shape), "grad_score": (grad_score, edge.shape)}
    required = {name: (grad, edge.dtype, tuple(shape)) for name, (grad, shape) in grads.items() if grad is not None}
    results = {
        f"grad_{name}": torch.empty_like(x, memory_format=torch.contiguous_format)
        for name, x in {"query": query, "key_value": key_value, "edge": edge}.items()
    }
    saved = {"out": out, "weight": weight, "slope": weight.new_empty(len(edge), 2, weight.size(1))}
    _call(query, key_value, edge, {"source": source, "crow": ptr, **by_source}, results | saved, checked(required))
    return results["grad_query"], results["grad_key_value"], results["grad_edge"]


def _call(
    query: Tensor,
    key_value: Tensor,
    edge: Tensor,
    indices: dict[str, Tensor],
    results: dict[str, Tensor],
    grads: dict[str, Tensor],
) -> None:
    (num_nodes, width), num_edges, heads = query.shape, edge.size(0), results["weight"].size(1)
    starts = {"crow", "ccol"}
    read = checked(
        {
            "query": (query, edge.dtype, (num_nodes, width)),
            "key_value": (key_value, edge.dtype, (num_nodes, 2 * width)),
            "edge": (edge, edge.dtype, (num_edges, width)),
            **{
                name: (index, torch.int64, (num_nodes + 1 if name in starts else num_edges,))
                for name, index in indices.items()
            },
        }
    )
    _edge_attention(
        edge.dtype,
        "edges must be sorted by target and join nodes of the batch",
        read | results | grads,
        num_nodes=num_nodes,
        num_edges=num_edges,
        heads=heads,
        channels=width // heads,
        scale=1 / math.sqrt(width // heads),
        bound=SCORE_BOUND,
        floor=SMALLEST_TOTAL,
    )
