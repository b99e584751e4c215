"""Spectral attention against the dense formulas, pair by pair."""

from __future__ import annotations

import contextlib
import copy
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from helpers import normal, randomize_, refusals, relative_error
from torch import Tensor

from tg_lpe.graph.graph import Graph
from tg_lpe.nn.attention import make_attention
from tg_lpe.nn.attention.spectral import SpectralAttention, missing_pairs
from tg_lpe.testing.attention_test_case import CHANNELS, HEADS, AttentionTestCase, make_layer


def dense_attention(
    attention: Any, feature: Tensor | None, h: Tensor, e: Tensor, index: Tensor, batch: Tensor
) -> Tensor:
    """Sums over all ordered pairs of nodes, written out."""
    n, width = len(h), h.size(1) // attention.heads
    gamma = attention.gamma
    joined = {(int(j), int(i)) for j, i in index.T}
    out = torch.zeros_like(h)
    for head in range(attention.heads):
        part = slice(head * width, (head + 1) * width)

        def weight(query: Any, key: Any, edge: Tensor, i: int, j: int, part: slice = part) -> Tensor:
            product = query(h)[i, part] * key(h)[j, part] * edge[part]
            return (product.sum() / width**0.5).clamp(-5, 5).exp()

        for i in range(n):
            found, total = h.new_zeros(width), h.new_zeros(())
            for row, (j, target) in enumerate(index.T.tolist()):
                if target == i:
                    a = weight(attention.query, attention.key, attention.edge(e)[row], i, j)
                    found, total = found + a * attention.value(h)[j, part], total + a
            other, rest = h.new_zeros(width), h.new_zeros(())
            for j in range(n) if feature is not None else []:
                if j != i and batch[i] == batch[j] and (j, i) not in joined:
                    b = weight(attention.missing_query, attention.missing_key, attention.missing_edge(feature), i, j)
                    other, rest = other + b * attention.value(h)[j, part], rest + b
            if feature is None:
                out[i, part] = found / (total + 1e-6)
            elif attention.softmax == "joint":
                out[i, part] = (found + gamma * other) / (total + gamma * rest + 1e-6 * (1 + gamma))
            else:
                first = found / total if total > 0 else found
                second = other / rest if rest > 0 else other
                out[i, part] = (first + gamma * second) / (1 + gamma)
    return out


FULL: dict[str, Any] = {"full": True, "gamma": 0.3}


class TestSpectralAttention(AttentionTestCase):
    name = "spectral"
    variants: ClassVar[list[dict[str, Any]]] = [{}, {"norm": "none"}, FULL, {**FULL, "softmax": "separate"}]

    def expected(self, layer: Any, h: Tensor, e: Tensor, edge_index: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        feature = None if layer.shared.embedding is None else layer.shared.embedding.weight[0]
        layer = layer.layer
        update = layer.out(dense_attention(layer.attention, feature, h, e, edge_index, batch))
        h = layer.norm_attention(h + update)
        first, second = layer.feed_forward[0], layer.feed_forward[3]
        update = second(first(h).clamp(min=0))
        return layer.norm_feed_forward(h + update), e


@pytest.mark.parametrize("sizes", [[3, 9, 1, 0, 5, 2], [3, 90, 1, 0, 70, 80]], ids=["one bucket", "buckets"])
def test_missing_pairs(sizes: list[int]) -> None:
    batch = torch.repeat_interleave(torch.arange(6), torch.tensor(sizes))
    last = sum(sizes) - 1
    edges = torch.tensor([[0, 1, 3, 8, 6, last - 1, last - 1], [1, 0, 8, 3, 6, last, last]])
    n = len(batch)
    pairs = missing_pairs(Graph(edges, batch=batch, num_graphs=6), torch.zeros(1))
    found = set()
    for mask, node in zip(pairs.missing, pairs.rows.pad(torch.arange(n)), strict=True):
        found |= {(int(node[graph, j]), int(node[graph, i])) for graph, i, j in mask.nonzero().tolist()}
    every = {(j, i) for i in range(n) for j in range(n) if i != j and batch[i] == batch[j]}
    assert found == every - {tuple(edge) for edge in edges.T.tolist()}
    rows = normal(n, 2, 3, seed=0)
    assert torch.equal(pairs.rows.unpad(pairs.rows.pad(rows)), rows)


def attended(layer: Any, h: Tensor, e: Tensor, index: Tensor, batch: Tensor) -> Tensor:
    neighbourhoods = Graph(index, batch=batch, num_graphs=int(batch[-1]) + 1)
    return layer.layer.attention(h, e, neighbourhoods, layer.shared(neighbourhoods))


def layer_of(**options: Any) -> Any:
    return randomize_(make_layer("spectral", {**FULL, **options}), scale=0.2).double().eval()


@pytest.mark.parametrize("softmax", ["joint", "separate"])
def test_gradient_where_logits_are_clamped(softmax: str) -> None:
    """First and second derivatives equal those of the dense formulas."""
    layer = layer_of(softmax=softmax)
    for weight in layer.layer.attention.parameters():
        weight.data *= 7
    h, e = normal(5, CHANNELS, seed=1).requires_grad_(), normal(3, CHANNELS, seed=2)
    index, batch = torch.tensor([[0, 1, 3], [1, 2, 2]]), torch.tensor([0, 0, 0, 0, 0])
    feature = layer.shared.embedding.weight[0]
    results = [attended(layer, h, e, index, batch), dense_attention(layer.layer.attention, feature, h, e, index, batch)]
    assert relative_error(*results) < 1e-10
    firsts = [torch.autograd.grad(out.square().sum(), h, create_graph=True)[0] for out in results]
    assert relative_error(*firsts) < 1e-10
    seconds = [torch.autograd.grad(first.square().sum(), h)[0] for first in firsts]
    assert relative_error(*seconds) < 1e-8
    attention = layer.layer.attention
    product = attention.missing_query(h)[0] * attention.missing_key(h)[2] * attention.missing_edge(feature)
    assert float(product.detach().unflatten(0, (HEADS, -1)).sum(1).abs().max()) > 5 * (CHANNELS // HEADS) ** 0.5


def half_precisions() -> list[Any]:
    """Weights in half precision, and weights in float32 under autocast."""
    return [
        pytest.param(dtype, autocast, id=f"{str(dtype).removeprefix('torch.')}{', autocast' * autocast}")
        for dtype in (torch.float16, torch.bfloat16)
        for autocast in (False, True)
    ]


def attended_in_half(
    attention: SpectralAttention, rows: list[Tensor], index: Tensor, dtype: torch.dtype, repeats: bool
) -> Tensor:
    """Attention over nodes, the feature of all edges, as an expansion or repeated, and that of missing pairs."""
    own = attention.value.weight.dtype
    h, edge, feature = (part.to(own) for part in rows)
    e = edge.repeat(index.size(1), 1) if repeats else edge.expand(index.size(1), -1)
    neighbourhoods = Graph(index, len(h))
    with torch.autocast("cpu", dtype) if own == torch.float32 else contextlib.nullcontext():
        out = attention(h, e, neighbourhoods, missing_pairs(neighbourhoods, feature))
    assert out.dtype == dtype
    return out.double()


@pytest.mark.parametrize("repeats", [False, True], ids=["products", "gathers"])
@pytest.mark.parametrize("gamma", [1e-8, 1e-5, 1e-2])
@pytest.mark.parametrize(("dtype", "autocast"), half_precisions())
def test_a_small_gamma_in_half_precision(dtype: torch.dtype, autocast: bool, gamma: float, repeats: bool) -> None:
    """Values and gradients, nodes without edges by themselves: their sum of weights is gamma times some."""
    index, rows = (
        torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]),
        [normal(5, CHANNELS, seed=1), *normal(2, CHANNELS, seed=2)],
    )
    rows = [part.to(dtype).double().requires_grad_() for part in rows]
    attention = randomize_(SpectralAttention(CHANNELS, HEADS, True, gamma), scale=0.3).to(dtype).double()
    h, edge, feature = rows
    expected = dense_attention(attention, feature, h, edge.expand(4, -1), index, torch.zeros(5, dtype=torch.int64))
    low = copy.deepcopy(attention).to(torch.float32 if autocast else dtype)
    got = attended_in_half(low, rows, index, dtype, repeats)
    for part in (slice(0, 3), slice(3, 5)):
        assert relative_error(got[part], expected[part]) < 2 * torch.finfo(dtype).eps
        grads = [torch.autograd.grad(out[part].sum(), rows, retain_graph=True) for out in (got, expected)]
        for one, other in zip(*grads, strict=True):
            assert float((one - other).abs().max()) < 16 * torch.finfo(dtype).eps * float(grads[1][0].abs().max())


test_arguments = refusals(
    partial(make_attention, "spectral", CHANNELS, HEADS),
    (({"gamma": 0.0},), "gamma must be above 0"),
    (({"gamma": 0.1},), "gamma=0.1 would have no effect with full=False"),
    (({"softmax": "separate"},), "softmax='separate' would have no effect with full=False"),
    (({"hidden": 3},), "attention 'spectral' takes the options .*full.*, got hidden=3"),
)
