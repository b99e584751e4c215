"""What Primphormer's theory says, in float64: what holds as printed, what holds in another form, and what does not.

Rows are nodes: ``f`` is ``[N_s, s]``, scores are ``E = Phi_q W_e^T f`` and ``R = Phi_k W_r^T f``, ``F_X = f^T f``.
"""

from __future__ import annotations

import itertools
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
from tg_lpe.theory.primal import ksvd_maps, matrix_sqrt

SEEDS = range(3)


def orthonormal(rows: int, columns: int, seed: int) -> Tensor:
    return torch.linalg.qr(normal(rows, columns, seed=seed))[0]


def well_conditioned(num_rows: int, rank: int, seed: int) -> Tensor:
    """``f`` with singular values from 1 to 3."""
    return (
        orthonormal(num_rows, rank, seed) * torch.linspace(1, 3, rank).double() @ orthonormal(rank, rank, seed + 50).T
    )


def unit(rows: Tensor) -> Tensor:
    return rows / rows.norm(dim=-1, keepdim=True)


def objective(w_e: Tensor, w_r: Tensor, phi_q: Tensor, phi_k: Tensor, f: Tensor, lambda_: Tensor) -> Tensor:
    """Eq. (2.5)."""
    e, r = phi_q @ w_e.T @ f, phi_k @ w_r.T @ f
    return ((lambda_ * e.square()).sum() + (lambda_ * r.square()).sum()) / 2 - (w_e * w_r).sum()


def gradient(w_e: Tensor, w_r: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
    pair = [w.detach().clone().requires_grad_() for w in (w_e, w_r)]
    found = torch.autograd.grad(objective(*pair, *rest), pair)
    return found[0], found[1]


def norm(*matrices: Tensor) -> float:
    return float(torch.stack([m.square().sum() for m in matrices]).sum().sqrt())


@pytest.mark.parametrize("seed", SEEDS)
def test_7_the_construction_of_theorem_3(seed: int) -> None:
    """(C16)-(C22) for any xi, columns as nodes; ``W_c`` is stacked where (C21) prints its blocks side by side."""
    d, inner, n, num_rows = 3, 2, 5, 4
    total = 1 + d + 2 * inner
    x, xi = normal(d, n, seed=seed), normal(inner, n, seed=seed + 1)
    zeros = lambda *shape: torch.zeros(shape).double()  # noqa: E731
    eye = lambda k: torch.eye(k).double()  # noqa: E731
    w = torch.cat(
        [
            torch.cat([zeros(d, 1), eye(d), zeros(d, inner), zeros(d, inner)], 1),
            torch.cat([zeros(inner, 1), zeros(inner, d), eye(inner), zeros(inner, inner)], 1),
        ]
    ).T
    b = torch.cat([torch.ones(n, 1).double(), zeros(n, d + 2 * inner)], 1).T
    x_1 = w @ torch.cat([x, xi]) + b  # (C17)
    assert torch.equal(x_1, torch.cat([torch.ones(1, n).double(), x, xi, zeros(inner, n)]))
    first = eye(total)[:, :1]
    phi = torch.cat([first, zeros(total, total - 1)], 1) @ x_1
    assert torch.equal(phi, functional.normalize(phi, dim=0))  # (C18): of length one already
    pick = torch.cat([zeros(inner, 1), zeros(inner, d), eye(inner), zeros(inner, inner)], 1)
    f = pick @ x_1 @ torch.ones(n, 1).double() @ torch.ones(1, num_rows).double()  # (C19): 1_N, not 1_s
    sums = xi.sum(1, keepdim=True)
    w_e = torch.cat([first, zeros(total, num_rows - 1)], 1).T
    e = f @ w_e @ phi
    assert relative_error(e, sums.expand(-1, n)) < 1e-12
    w_c = torch.cat([zeros(1 + d + inner, 2 * inner), torch.cat([eye(inner) / 2, eye(inner) / 2], 1)])
    out = x_1 + w_c @ torch.cat([e, e])
    assert relative_error(out, torch.cat([torch.ones(1, n).double(), x, xi, sums.expand(-1, n)])) < 1e-12  # (C22)

    # J = N q - 1. The printed weights are not stationary; spread over all rows of f they may be.
    lambda_ = torch.full((inner,), 1.0).double()
    rest = lambda scale: (phi.T, phi.T, f.T, scale * lambda_)  # noqa: E731
    q = float((sums.T * lambda_) @ sums)
    assert float(objective(w_e, w_e, *rest(1.0))) == pytest.approx(n * q - 1, rel=1e-12)
    spread = torch.ones(num_rows, 1).double() @ first.T / num_rows
    assert relative_error(f @ spread @ phi, e) < 1e-12
    for weights, scale, stationary in (
        (w_e, 1 / (n * q), False),
        (spread, 1 / (n * num_rows * q), True),
        (spread, 2 / (n * num_rows * q), False),
    ):
        residual = norm(*gradient(weights, weights, *rest(scale))) / norm(weights)
        assert residual < 1e-12 if stationary else residual > 0.1


@pytest.mark.parametrize(("d", "steps", "n"), [(1, 4, 3), (2, 3, 4), (3, 2, 2), (2, 5, 1)])
def test_8_column_ids(d: int, steps: int, n: int) -> None:
    """(C27): the images of the columns lie in disjoint intervals below one, with the printed ends and step."""
    delta = 1 / steps
    u = [(1 - delta) / (n * delta ** (-d + 1)) * delta**-k for k in range(d)]
    last = -1.0
    for i in range(1, n + 1):
        grid = itertools.product(*[[i - 1 + delta * j for j in range(steps)]] * d)
        ids = sorted(sum(a * b for a, b in zip(u, point, strict=True)) for point in grid)
        total = sum(delta**-k for k in range(d))
        scale = (1 - delta) / (n * delta ** (-d + 1))
        assert ids[0] == pytest.approx(scale * (i - 1) * total, abs=1e-12)
        end = scale * i * total - (delta**-d - 1) / (n * delta ** (-d - 1))
        assert ids[-1] == pytest.approx(end, abs=1e-12)
        for a, b in itertools.pairwise(ids):
            assert b - a == pytest.approx((1 - delta) / (n * delta**-d), abs=1e-12)
        assert ids[0] > last and ids[-1] < 1
        last = ids[-1]


@pytest.mark.parametrize("seed", SEEDS)
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


def test_the_published_code_computes_another_objective() -> None:
    """Means where (2.5) has sums, and Lambda squared: the mean over heads of (2.5) with Lambda = lambda^2 / N."""
    phi_q, phi_k = (unit(normal(11, 2, 4, seed=i)) for i in (0, 1))
    w_e, w_r, f = normal(6, 2, 4, seed=2), normal(6, 2, 4, seed=3), normal(6, 3, seed=4)
    lambda_ = normal(2, 3, seed=5)  # of any sign: squared, it is positive
    e, r = (torch.einsum("nhp,vhp,vs->nhs", phi, w, f) for phi, w in ((phi_q, w_e), (phi_k, w_r)))
    code = ((e * lambda_).norm(dim=-1) ** 2).mean() / 2 + ((r * lambda_).norm(dim=-1) ** 2).mean() / 2
    code = code - torch.einsum("dhe,ehk->dhk", w_e.permute(2, 1, 0), w_r).mean(dim=1).trace()
    printed = [objective(w_e[:, i], w_r[:, i], phi_q[:, i], phi_k[:, i], f, lambda_[i].square() / 11) for i in range(2)]
    assert relative_error(code, torch.stack(printed).mean()) < 1e-13
    # Heads, and graphs, are averaged before the square: +1 and -1 cancel.
    zero, one = torch.zeros(1).double(), torch.ones(1, 1).double()
    pair = [objective(one, sign * one, one, one, one, zero) for sign in (1, -1)]
    assert torch.stack(pair).mean() == 0 and torch.stack(pair).square().mean() == 1


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
