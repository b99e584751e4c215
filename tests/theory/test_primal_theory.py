"""Formulas of Primphormer's theory that the package computes, in float64.

Rows are nodes: ``f`` is ``[N_s, s]``, scores are ``E = Phi_q W_e^T f`` and ``R = Phi_k W_r^T f``, ``F_X = f^T f``.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import scipy.linalg
import torch
from helpers import attention_of, normal, refusals, relative_error
from torch import Tensor, nn
from torch.nn import functional

from tg_lpe.graph.graph import Graph
from tg_lpe.nn.attention import make_attention
from tg_lpe.nn.attention.primal import PrimalState
from tg_lpe.testing.attention_test_case import BATCH, CHANNELS, EDGES, HEADS, AttentionTestCase
from tg_lpe.theory import DualAttention
from tg_lpe.theory.primal import ksvd_maps, matrix_sqrt


def orthonormal(rows: int, columns: int, seed: int) -> Tensor:
    return torch.linalg.qr(normal(rows, columns, seed=seed))[0]


def well_conditioned(num_rows: int, rank: int, seed: int) -> Tensor:
    """``f`` with singular values from 1 to 3."""
    return (
        orthonormal(num_rows, rank, seed) * torch.linspace(1, 3, rank).double() @ orthonormal(rank, rank, seed + 50).T
    )


def unit(rows: Tensor) -> Tensor:
    return rows / rows.norm(dim=-1, keepdim=True)


def norm(*matrices: Tensor) -> float:
    return float(torch.stack([m.square().sum() for m in matrices]).sum().sqrt())


@pytest.mark.parametrize("seed", range(3))
def test_9_exact_solutions_without_singular_vectors(seed: int) -> None:
    """``ksvd``: (2.6) holds for any kernel with a full positive definite Lambda."""
    phi_q, phi_k = (unit(normal(40, 4, seed=seed + i)) for i in (0, 1))
    f = well_conditioned(6, 4, seed)
    auto = f.T @ f
    grams = torch.stack([phi_q.T @ phi_q, phi_k.T @ phi_k])
    e, r = (phi @ part for phi, part in zip((phi_q, phi_k), ksvd_maps(grams, auto), strict=True))
    root, scale = matrix_sqrt(grams[1]), matrix_sqrt(auto)
    sigma = scale @ matrix_sqrt(root @ grams[0] @ root) @ scale
    h_e, h_r = e @ torch.linalg.inv(sigma), r @ torch.linalg.inv(sigma)
    kernel = phi_q @ phi_k.T
    assert relative_error(kernel @ h_r @ auto, h_e @ sigma) < 1e-12
    assert relative_error(kernel.T @ h_e @ auto, h_r @ sigma) < 1e-12
    assert bool((torch.linalg.eigvalsh(sigma) > 0).all())


@pytest.mark.parametrize(
    ("ridge", "n", "low", "high"),
    [
        (1e-3, 10, 0.07, 0.09),
        (1e-3, 20, 0.030, 0.036),
        (1e-3, 50, 0.018, 0.022),
        (1e-3, 200, 0.016, 0.018),
        (1e-6, 10, 0.0022, 0.0028),
        (1e-6, 20, 1e-6, 1e-4),
        (1e-6, 200, 1e-6, 1e-4),
    ],
)
def test_9_what_a_ridge_leaves_of_2_6(ridge: float, n: int, low: float, high: float) -> None:
    """``ksvd`` with 16 features: the relative residual that its docstring states, a mean over ten draws."""
    residuals, eye = [], torch.eye(16).double()
    for seed in range(10):
        phi_q, phi_k = (unit(normal(n, 16, seed=3 * seed + i)) for i in (0, 1))
        f = orthonormal(16, 16, 3 * seed + 2)  # as it starts
        auto, kernel = f.T @ f, phi_q @ phi_k.T / n
        grams = torch.stack([phi_q.T @ phi_q, phi_k.T @ phi_k]) / n
        e, r = (phi @ part for phi, part in zip((phi_q, phi_k), ksvd_maps(grams, auto, ridge), strict=True))
        c_q, c_k, scale = (torch.from_numpy(scipy.linalg.sqrtm(x + ridge * eye)) for x in (*grams, auto))
        # The square root of C_k^(1/2) C_q C_k^(1/2): these are the singular values of C_q^(1/2) C_k^(1/2).
        _, singular, right = torch.linalg.svd(c_q @ c_k)
        sigma = scale @ (right.T * singular @ right) @ scale
        h_e, h_r = e @ torch.linalg.inv(sigma), r @ torch.linalg.inv(sigma)
        rest = norm(kernel @ h_r @ auto - e, kernel.T @ h_e @ auto - r)
        residuals.append(rest / norm(e, r))
    assert low < sum(residuals) / len(residuals) < high


def test_second_derivatives_of_square_roots() -> None:
    y = torch.tensor([[4.0]], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(matrix_sqrt(y).sum(), y, create_graph=True)
    assert slope.item() == pytest.approx(1 / 4)
    assert torch.autograd.grad(slope.sum(), y)[0].item() == pytest.approx(-1 / 32)

    def root(a: torch.Tensor) -> torch.Tensor:
        return matrix_sqrt(a @ a.mT + torch.eye(3).double())

    a = torch.randn(2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(root, a) and torch.autograd.gradgradcheck(root, a)


# The attentions that an audit needs.

PRIMAL = {"rank": 3, "num_rows": 5}


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
        {"local": "none", "norm": "none", "global_attention": name, "global_options": options}
        for name, options in (
            *(("ksvd", {"num_rows": 6}), ("dual", {}), ("dual", {"edges": True})),
            ("dual", {"edges": True, "pooling": "sum"}),
        )
    ]

    def expected(self, layer: Any, h: Tensor, e: Tensor, edge_index: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        shared, layer = layer.shared, layer.layer
        if isinstance(layer.attention, DualAttention):
            y = h + dual(layer.attention, h, edge_index, batch)
        else:
            y = h + ksvd(layer.attention, h, batch, shared.projection)
        first, second = layer.feed_forward[0], layer.feed_forward[3]
        return y + second(first(y).clamp(min=0)), e


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
    h, graph = normal(len(batch), CHANNELS, seed=3), Graph(EDGES[:, :0], batch=batch)
    attention, shared = attention_of("audited_primal", kind=kind, eta=2.0, **PRIMAL)
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
    h, graph = normal(len(batch), CHANNELS, seed=3), Graph(EDGES[:, :0], batch=torch.tensor(batch))
    attention, shared = attention_of("audited_primal", kind="stationarity", eta=1.0, **PRIMAL)
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
    before, after = (
        attention.scores(rows, values, Graph(EDGES, batch=BATCH)) for rows in (features, features @ rotation)
    )
    assert relative_error(after, before) < 1e-13


def test_stationarity_of_weights_that_are_zero() -> None:
    attention, shared = attention_of("audited_primal", kind="stationarity", eta=1.0, **PRIMAL)
    for weight in (attention.weight_e, attention.weight_r):
        nn.init.zeros_(weight)
    graph = Graph(EDGES, batch=BATCH)
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
