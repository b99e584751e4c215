"""The variants of primal attention that an audit needs: against dense algebra, scores and gradients."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import scipy.linalg
import torch
from helpers import normal, randomize_, refusals, relative_error
from torch import Tensor, nn
from torch.nn import functional

from tg_lpe.graph.graph import Graph
from tg_lpe.nn.attention import GLOBAL_ATTENTIONS, HybridLayer, make_attention
from tg_lpe.nn.attention.primal import PrimalState
from tg_lpe.testing.attention_test_case import BATCH, CHANNELS, EDGES, HEADS, AttentionTestCase
from tg_lpe.theory import DualAttention

PRIMAL = {"rank": 3, "num_rows": 5}


def unit(rows: Tensor) -> Tensor:
    return rows / rows.norm(dim=-1, keepdim=True)


def dual(attention: Any, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
    """The kernel, written out, and its transpose."""
    same = (batch.unsqueeze(1) == batch).to(x.dtype)
    sizes = same.sum(1, keepdim=True)
    count = same / sizes if attention.pooling == "mean" else same
    if attention.edges:
        source, target = edge_index
        count = count.index_put((target, source), x.new_ones(()), accumulate=True)
    out = []
    for q, k, v in zip(
        *(rows(x).chunk(attention.heads, 1) for rows in (attention.features.query, attention.features.key)),
        attention.value(x).chunk(attention.heads, 1),
        strict=True,
    ):
        kernel = count * (unit(q) @ unit(k).T)
        out.append(attention.out(torch.cat([kernel @ v, kernel.T @ v], 1)))
    return torch.cat(out, 1)


def ksvd(attention: Any, x: Tensor, batch: Tensor, projection: Tensor) -> Tensor:
    """The formula graph by graph, with scipy's square roots of matrices."""

    def root(matrix: Tensor) -> Tensor:
        return torch.from_numpy(scipy.linalg.sqrtm(matrix.numpy()).real)

    out = torch.zeros_like(x)
    for graph in batch.unique():
        rows = x[batch == graph]
        f = projection + attention.virtual(rows.mean(0))
        both = (rows_of(rows).chunk(HEADS, 1) for rows_of in (attention.features.query, attention.features.key))
        parts = []
        for phi_q, phi_k in (map(unit, pair) for pair in zip(*both, strict=True)):
            ridge = attention.ridge * torch.eye(phi_q.size(1)).double()
            c_q, c_k = (phi.T @ phi / len(rows) + ridge for phi in (phi_q, phi_k))
            scale = root(f.T @ f + ridge)
            s = root(root(c_k) @ c_q @ root(c_k))
            r = phi_k @ c_q @ root(c_k) @ torch.linalg.inv(s) @ scale
            parts.append(attention.out(torch.cat([phi_q @ root(c_k) @ scale, r], 1)))
        out[batch == graph] = torch.cat(parts, 1)
    return out


class TestVariants(AttentionTestCase):
    name = "hybrid"
    variants: ClassVar[list[dict[str, Any]]] = [
        {"global_attention": "ksvd", "local": "none", "norm": "none", "global_options": {"num_rows": 6}},
        {"global_attention": "dual", "local": "none", "norm": "none"},
        {"global_attention": "dual", "local": "none", "norm": "none", "global_options": {"edges": True}},
        {
            "global_attention": "dual",
            "local": "none",
            "norm": "none",
            "global_options": {"edges": True, "pooling": "sum"},
        },
    ]

    def expected(self, layer: Any, h: Tensor, e: Tensor, edge_index: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        shared, layer = layer.shared, layer.layer
        if isinstance(layer.attention, DualAttention):
            y = h + dual(layer.attention, h, edge_index, batch)
        else:
            y = h + ksvd(layer.attention, h, batch, shared.projection)
        first, second = layer.feed_forward[0], layer.feed_forward[3]
        return y + second(first(y).clamp(min=0)), e


def attention_of(name: str = "audited_primal", seed: int = 0, **options: Any) -> tuple[Any, Any]:
    """Return an attention in float64 with random weights, and the shared state of its layers."""
    attention = GLOBAL_ATTENTIONS[name](CHANNELS, HEADS, **options)
    shared = HybridLayer(CHANNELS, HEADS, global_attention=name, global_options=options).shared()
    return randomize_(attention, seed, 0.7).double(), randomize_(shared, seed + 1, 0.7).double()


def graph_of(batch: Tensor = BATCH, edges: Tensor = EDGES) -> Graph:
    return Graph(edges, batch=batch, num_graphs=int(batch[-1]) + 1)


def values_of(attention: Any, state: PrimalState, h: Tensor, batch: Tensor) -> Tensor:
    """Eq. (2.5) of each graph and head with Lambda as it is, by scores; ``[num_graphs, heads]`` and the sizes."""
    found = []
    for graph in batch.unique():
        rows, f = h[batch == graph], state.projection + state.node[graph]
        for head in range(HEADS):
            part = slice(head * CHANNELS // HEADS, (head + 1) * CHANNELS // HEADS)
            w_e, w_r = attention.weight_e[:, head], attention.weight_r[:, head]
            e = unit(attention.features.query(rows)[:, part]) @ w_e.T @ f
            r = unit(attention.features.key(rows)[:, part]) @ w_r.T @ f
            found.append((e, r, (w_e * w_r).sum(), attention.lambda_[head]))
    return found


@pytest.mark.parametrize("kind", ["printed", "per_graph"])
def test_regularizers_against_scores(kind: str) -> None:
    batch = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2])
    h, graph = normal(len(batch), CHANNELS, seed=3), graph_of(batch, EDGES[:, :0])
    attention, shared = attention_of(kind=kind, eta=2.0, **PRIMAL)
    state = attention(h, graph, shared(graph))[1]
    squares = []
    for e, r, trace, lambda_ in values_of(attention, state, h, batch):
        if kind == "printed":
            value = (lambda_ * (e.square().sum(0) + r.square().sum(0))).sum() / 2 - trace
        else:
            value = (functional.softplus(lambda_) * (e.square().mean(0) + r.square().mean(0))).sum() / 2 - trace
        squares.append(value**2)
    expected = torch.stack(squares).mean()
    assert relative_error(state.penalty, 2.0 * expected) < 1e-12


@pytest.mark.parametrize("batch", [[0, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1, 2]])
def test_stationarity_is_the_gradient(batch: list[int]) -> None:
    """The squared gradient of J per graph over the squared weights, for each head and graph; the mean of these."""
    h, graph = normal(len(batch), CHANNELS, seed=3), graph_of(torch.tensor(batch), EDGES[:, :0])
    attention, shared = attention_of(kind="stationarity", eta=1.0, **PRIMAL)
    state = attention(h, graph, shared(graph))[1]
    expected = []
    for number, (e, r, trace, lambda_) in enumerate(values_of(attention, state, h, graph.batch)):
        head = number % HEADS
        value = (functional.softplus(lambda_) * (e.square().mean(0) + r.square().mean(0))).sum() / 2 - trace
        weights = (attention.weight_e, attention.weight_r)
        gradient = torch.autograd.grad(value, weights, retain_graph=True)
        squares = [sum(x[:, head].square().sum() for x in pair) for pair in (gradient, weights)]
        expected.append(squares[0] / squares[1])
    assert relative_error(state.penalty, torch.stack(expected).mean()) < 1e-12


def test_dual_reads_inner_products_only() -> None:
    """An orthogonal map of all features changes nothing: encodings known up to rotation may enter the kernel."""
    attention, _ = attention_of("dual")
    features, values = normal(len(BATCH), HEADS, 2, 6, seed=1), normal(len(BATCH), HEADS, 4, seed=2)
    rotation = torch.linalg.qr(normal(6, 6, seed=3))[0]
    before, after = (attention.scores(rows, values, graph_of()) for rows in (features, features @ rotation))
    assert relative_error(after, before) < 1e-13


def test_stationarity_of_weights_that_are_zero() -> None:
    attention, shared = attention_of(kind="stationarity", eta=1.0, **PRIMAL)
    for weight in (attention.weight_e, attention.weight_r):
        nn.init.zeros_(weight)
    graph = graph_of()
    penalty = attention(normal(len(BATCH), CHANNELS), graph, shared(graph))[1].penalty
    penalty.backward()
    assert penalty == 0 and bool(attention.weight_e.grad.isfinite().all())


test_refusals = refusals(
    lambda name, options: make_attention(
        "hybrid", CHANNELS, HEADS, {"global_attention": name, "global_options": options}
    ),
    (("dual", {"edges": "no"}), "edges"),
    (("dual", {"pooling": "max"}), "pooling"),
    (("ksvd", {"ridge": 0.0}), "ridge"),
    (("audited_primal", {"kind": "J"}), "kind"),
)
