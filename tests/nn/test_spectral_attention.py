"""Spectral attention against the dense formulas, pair by pair."""

from __future__ import annotations

import contextlib
import copy
from typing import Any, ClassVar

import pytest
import torch
from helpers import normal, randomize_, relative_error
from torch import Tensor

from tg_lpe import GraphTransformer
from tg_lpe.graph.graph import Graph
from tg_lpe.nn.attention import make_attention
from tg_lpe.nn.attention.spectral import SpectralAttention, _MaskedWeights, missing_pairs
from tg_lpe.testing.attention_test_case import BATCH, CHANNELS, EDGES, GRAPHS, HEADS, AttentionTestCase, make_layer


def dense_attention(
    attention: Any, feature: Tensor | None, h: Tensor, e: Tensor, index: Tensor, batch: Tensor
) -> Tensor:
    """Sums over all ordered pairs of nodes, written out."""
    n, width = len(h), h.size(1) // attention.heads
    gamma = attention.gamma if attention.log_gamma is None else attention.log_gamma.exp()
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
    variants: ClassVar[list[dict[str, Any]]] = [
        {},
        {"residual": False, "norm": "none"},
        FULL,
        {**FULL, "softmax": "separate"},
        {**FULL, "learn_gamma": True},
    ]

    def expected(self, layer: Any, h: Tensor, e: Tensor, edge_index: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        feature = None if layer.shared.embedding is None else layer.shared.embedding.weight[0]
        layer = layer.layer

        def normed(norm: Any, x: Tensor) -> Tensor:
            if not hasattr(norm, "running_mean"):
                return x
            return (x - norm.running_mean) / (norm.running_var + 1e-5).sqrt() * norm.weight + norm.bias

        update = layer.out(dense_attention(layer.attention, feature, h, e, edge_index, batch))
        h = normed(layer.norm_attention, h + update if layer.residual else update)
        first, second = layer.feed_forward[0], layer.feed_forward[3]
        update = second(first(h).clamp(min=0))
        return normed(layer.norm_feed_forward, h + update if layer.residual else update), e


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
def test_small_gamma(softmax: str) -> None:
    """The error falls as gamma at nodes with edges; nodes without are continuous only because of the floor."""
    h, e = normal(4, CHANNELS, seed=1), normal(4, CHANNELS, seed=2)
    index, batch = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), torch.zeros(4, dtype=torch.int64)  # node 3 has no edges
    layer = layer_of(softmax=softmax)
    without = layer.layer.attention(h, e, Graph(index, batch=batch, num_graphs=1), None).detach()
    joined, isolated = {}, {}
    for gamma in (1e-2, 1e-5, 1e-7, 1e-8, 1e-12):
        layer.layer.attention.gamma = gamma
        error = (attended(layer, h, e, index, batch) - without).abs().detach()
        joined[gamma], isolated[gamma] = float(error[:3].max()), float(error[3].max())
    if softmax == "joint":
        assert joined[1e-5] < 1e-2 and joined[1e-12] < 1e-9
        assert joined[1e-7] == pytest.approx(joined[1e-5] / 100, rel=0.05)
        assert isolated[1e-5] == pytest.approx(isolated[1e-2], rel=0.1), "any gamma is as good as one"
        assert isolated[1e-2] > 0.12 and isolated[1e-8] < isolated[1e-2] / 2
        assert isolated[1e-12] < 1e-4
    else:
        # Without the floor the sparse attention is larger by a share of 1e-6 e^5 at most.
        assert joined[1e-12] < 1e-3
        assert isolated[1e-5] < 1e-3 and isolated[1e-12] < 1e-10


@pytest.mark.parametrize("softmax", ["joint", "separate"])
def test_gradient_where_logits_are_clamped(softmax: str) -> None:
    """First and second derivatives are those of the dense formulas."""
    layer = layer_of(softmax=softmax)
    for weight in layer.layer.attention.parameters():
        weight.data *= 7
    h, e = normal(5, CHANNELS, seed=1).requires_grad_(), normal(3, CHANNELS, seed=2)
    index, batch = torch.tensor([[0, 1, 3], [1, 2, 2]]), torch.tensor([0, 0, 0, 0, 0])
    feature = layer.shared.embedding.weight[0]
    results = [
        attended(layer, h, e, index, batch),
        dense_attention(layer.layer.attention, feature, h, e, index, batch),
    ]
    assert relative_error(*results) < 1e-10
    firsts = [torch.autograd.grad(out.square().sum(), h, create_graph=True)[0] for out in results]
    assert relative_error(*firsts) < 1e-10
    seconds = [torch.autograd.grad(first.square().sum(), h)[0] for first in firsts]
    assert relative_error(*seconds) < 1e-8
    attention = layer.layer.attention
    product = attention.missing_query(h)[0] * attention.missing_key(h)[2] * attention.missing_edge(feature)
    assert float(product.detach().unflatten(0, (HEADS, -1)).sum(1).abs().max()) > 5 * (CHANNELS // HEADS) ** 0.5


@pytest.mark.parametrize("sizes", [[4, 1, 3], [70, 2, 90]], ids=["one bucket", "buckets"])
@pytest.mark.parametrize("options", [{}, {"softmax": "separate"}, {"learn_gamma": True}], ids=str)
def test_edges_of_one_feature_are_as_edges_with_equal_features(options: dict[str, Any], sizes: list[int]) -> None:
    """Products of all pairs and gathers at edges, with repeated edges, loops and clamped logits: two derivatives."""
    layer = layer_of(**options)
    for weight in layer.layer.attention.parameters():
        if weight.dim() == 2:
            weight.data *= 5
    batch = torch.repeat_interleave(torch.arange(3), torch.tensor(sizes))
    last = len(batch) - 1
    index = torch.tensor([[0, 1, 0, 3, 3, last, last - 1, 2], [1, 0, 1, 3, 2, last - 1, last, 3]])
    h, row = normal(len(batch), CHANNELS, seed=1).requires_grad_(), normal(CHANNELS, seed=2).requires_grad_()
    inputs = [h, row, *layer.layer.attention.parameters()]
    firsts, seconds, outs = [], [], []
    for e in (row.expand(8, -1), row.repeat(8, 1)):
        outs.append(attended(layer, h, e, index, batch))
        firsts.append(torch.autograd.grad(outs[-1].square().sum(), inputs, create_graph=True))
        seconds.append(torch.autograd.grad(sum(first.square().sum() for first in firsts[-1]), inputs))
    assert relative_error(*outs) < 1e-10
    for one, other in zip(*firsts, strict=True):
        assert relative_error(one, other) < 1e-10
    for one, other in zip(*seconds, strict=True):
        assert relative_error(one, other) < 1e-8


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_weights_have_the_derivative_of_clamped_exponentials(dtype: torch.dtype) -> None:
    """Also where a rounded weight lies inside of the bounds that its logit exceeds."""
    logits = torch.arange(-6.9, 7.0, 0.2, dtype=dtype).repeat(2, 1).requires_grad_()
    mask = torch.tensor([[True], [False]]).expand_as(logits)
    weight = _MaskedWeights.apply(logits, mask)
    expected = logits.float().clamp(-5, 5).exp() * mask
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(weight.double(), expected.double(), rtol=max(tolerance, 1e-6), atol=0)
    grad = torch.autograd.grad(weight.sum(), logits)[0]
    inside = mask & (logits.abs() < 5)
    torch.testing.assert_close(grad, torch.where(inside, weight, 0.0).to(dtype), rtol=0, atol=0)


def test_a_complete_graph_has_no_missing_pairs() -> None:
    h, batch = normal(4, CHANNELS, seed=1), torch.zeros(4, dtype=torch.int64)
    index = torch.ones(4, 4).fill_diagonal_(0).nonzero().T
    e = normal(index.size(1), CHANNELS, seed=2)
    for softmax, share in (("joint", 1.0), ("separate", 1 / 1.3)):
        layer = layer_of(softmax=softmax)
        without = layer.layer.attention(h, e, Graph(index, batch=batch, num_graphs=1), None)
        # The sparse attention has the floor of 1e-6 in a sum of three weights of at least exp(-5).
        assert relative_error(attended(layer, h, e, index, batch), share * without) < 5e-5
        ones = h.index_fill(1, torch.tensor(0), 1.0)
        layer.layer.attention.value.weight.data = torch.eye(CHANNELS).double()[:1].expand(CHANNELS, -1)
        weights = attended(layer, ones, e, index, batch)  # sums of weights, as all values are one
        torch.testing.assert_close(
            weights, torch.full_like(weights, share), rtol=0, atol=1e-15 if softmax == "separate" else 1e-4
        )
    single = attended(layer_of(), h[:1], e[:0], index[:, :0], batch[:1])
    assert torch.equal(single, torch.zeros_like(single))


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


@pytest.mark.parametrize("repeats", [False, True], ids=["products", "gathers"])
@pytest.mark.parametrize("softmax", ["joint", "separate"])
@pytest.mark.parametrize(("dtype", "autocast"), half_precisions())
def test_logits_that_overflow_half_precision(dtype: torch.dtype, autocast: bool, softmax: str, repeats: bool) -> None:
    """Those of edges are too large for float16, those of missing pairs too far below zero: all are clamped."""
    attention = randomize_(SpectralAttention(CHANNELS, HEADS, True, 0.3, softmax=softmax)).to(dtype).double()
    for name, weight in attention.named_parameters():
        if not name.startswith("value"):
            weight.data.fill_(-1.0 if name.startswith("missing_edge") else 1.0)
    rows = [normal(3, CHANNELS, seed=1).abs() + 10, torch.full((CHANNELS,), 10.0), torch.full((CHANNELS,), 10.0)]
    h, edge, feature = rows = [part.to(dtype).double().requires_grad_() for part in rows]
    index = torch.tensor([[0, 1], [1, 0]])
    expected = dense_attention(attention, feature, h, edge.expand(2, -1), index, torch.zeros(3, dtype=torch.int64))
    low = copy.deepcopy(attention).to(torch.float32 if autocast else dtype)
    got = attended_in_half(low, rows, index, dtype, repeats)
    assert relative_error(got, expected) < 2 * torch.finfo(dtype).eps
    grads = [torch.autograd.grad(out.sum(), h)[0] for out in (got, expected)]
    assert relative_error(*grads) < 4 * torch.finfo(dtype).eps
    # Forward mode and torch.func go another way.
    point, direction = h.detach(), normal(3, CHANNELS, seed=5)
    run = lambda h: attended_in_half(low, [h, edge, feature], index, dtype, repeats)  # noqa: E731
    assert relative_error(torch.func.grad(lambda h: run(h).sum())(point), grads[0]) < torch.finfo(dtype).eps
    assert bool(torch.func.jvp(run, (point,), (direction,))[1].isfinite().all())


@pytest.mark.parametrize("repeats", [False, True], ids=["products", "gathers"])
@pytest.mark.parametrize(("dtype", "autocast"), half_precisions())
def test_sums_over_many_nodes_in_half_precision(dtype: torch.dtype, autocast: bool, repeats: bool) -> None:
    """700 weights of e^5 are more than float16 holds; they are equal, so that the output is the mean of the others."""
    attention = randomize_(SpectralAttention(CHANNELS, HEADS, True, 0.1)).to(dtype).double()
    for name in ("query", "key", "edge"):
        getattr(attention, f"missing_{name}").weight.data.fill_(1.0)
    rows = [normal(700, CHANNELS, seed=1).abs() + 1, torch.ones(CHANNELS), torch.ones(CHANNELS)]
    rows = [part.to(dtype).double() for part in rows]
    low = copy.deepcopy(attention).to(torch.float32 if autocast else dtype)
    got = attended_in_half(low, rows, torch.tensor([[0, 1], [1, 0]]), dtype, repeats)
    value = attention.value(rows[0])
    expected = (value.sum(0) - value[2:]) / 699
    assert relative_error(got[2:], expected) < 2 * torch.finfo(dtype).eps


def test_gamma_is_learned_if_asked_for() -> None:
    assert "attention.log_gamma" in dict(
        make_attention("spectral", 8, 2, {**FULL, "learn_gamma": True}).named_parameters()
    )
    assert "attention.log_gamma" not in make_attention("spectral", 8, 2, FULL).state_dict()


def test_layers_share_the_feature_of_missing_edges() -> None:
    model = GraphTransformer(attention="spectral", attention_options=FULL, hidden_channels=8, heads=2, num_layers=3)
    assert [name for name in model.state_dict() if name.startswith("shared")] == ["shared.embedding.weight"]
    assert model.layers[0].attention.missing_edge is not model.layers[1].attention.missing_edge
    assert model(None, EDGES, batch=BATCH, num_graphs=GRAPHS).shape == (GRAPHS, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": 0.0}, "gamma must be positive and finite, got 0.0"),
        ({"softmax": "one"}, r"softmax must be one of \('joint', 'separate'\), got 'one'"),
        ({"gamma": 0.1}, "gamma=0.1 would have no effect with full=False"),
        ({"learn_gamma": True}, "learn_gamma=True would have no effect with full=False"),
        ({"softmax": "separate"}, "softmax='separate' would have no effect with full=False"),
        ({"hidden": 3}, "attention 'spectral' takes the options .*full.*, got hidden=3"),
    ],
)
def test_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_attention("spectral", CHANNELS, HEADS, options)
