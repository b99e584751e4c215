"""What Primphormer's theory says, in float64: what holds as printed, what holds in another form, and what does not.

Rows are nodes: ``f`` is ``[N_s, s]``, scores are ``E = Phi_q W_e^T f`` and ``R = Phi_k W_r^T f``, ``F_X = f^T f``.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from helpers import normal, relative_error
from scipy.linalg import sqrtm
from torch import Tensor
from torch.nn import functional

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


class Stationary:
    """A stationary point by construction: a kernel whose singular values fit ``F_X`` and Lambda."""

    def __init__(self, seed: int, n: int = 9, rank: int = 3, num_rows: int = 3, width: int = 5) -> None:
        self.f, self.lambda_ = well_conditioned(num_rows, rank, seed), normal(rank, seed=seed + 1).abs() + 0.5
        root = self.lambda_.sqrt()
        mu, q = torch.linalg.eigh(root.unsqueeze(1) * (self.f.T @ self.f) * root)
        others = (0.3 + torch.arange(width - rank)) / mu.median()
        self.mu, self.singular = mu, torch.cat([1 / mu, others])
        u, v = orthonormal(n, width, seed + 2), orthonormal(n, width, seed + 3)
        mix = normal(width, width, seed=seed + 4)
        self.phi_q, self.phi_k = u * self.singular @ mix, v @ torch.linalg.inv(mix).T
        self.kernel = self.phi_q @ self.phi_k.T
        c, w = normal(rank, seed=seed + 5), q / root.unsqueeze(1)  # columns w_k
        self.e, self.r = u[:, :rank] * c @ w.T, v[:, :rank] * c @ w.T

    def weights(self, e: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        """Eq. (2.7) with ``H = scores Lambda``."""
        return self.f @ (r * self.lambda_).T @ self.phi_k, self.f @ (e * self.lambda_).T @ self.phi_q

    def rest(self) -> tuple[Tensor, ...]:
        return self.phi_q, self.phi_k, self.f, self.lambda_


@pytest.mark.parametrize("seed", SEEDS)
def test_1_dual_variables_give_the_dual_form(seed: int) -> None:
    """(2.7) into (2.8), for any ``H``, stationary or not."""
    phi_q, phi_k = (unit(normal(11, 4, seed=seed + i)) for i in (0, 1))
    f = well_conditioned(6, 3, seed)
    h = normal(11, 3, seed=seed + 2)
    kernel, auto = phi_q @ phi_k.T, f.T @ f
    assert relative_error(phi_q @ (f @ h.T @ phi_k).T @ f, kernel @ h @ auto) < 1e-13
    assert relative_error(phi_k @ (f @ h.T @ phi_q).T @ f, kernel.T @ h @ auto) < 1e-13


@pytest.mark.parametrize("seed", SEEDS)
def test_2_any_weights_have_a_dual_form(seed: int) -> None:
    phi_q, phi_k = (unit(normal(11, 4, seed=seed + i)) for i in (0, 1))
    w_e, f = normal(6, 4, seed=seed + 2), well_conditioned(6, 3, seed)
    values = torch.linalg.pinv(phi_k).T @ w_e.T @ f
    assert relative_error(phi_q @ phi_k.T @ values, phi_q @ w_e.T @ f) < 1e-12


@pytest.mark.parametrize("seed", SEEDS)
def test_3_stationary_points(seed: int) -> None:
    """Theorem 1 and 2: eq. (2.6), a gradient of zero, and J = 0."""
    point = Stationary(seed)
    h_e, h_r, auto = point.e * point.lambda_, point.r * point.lambda_, point.f.T @ point.f
    assert relative_error(point.kernel @ h_r @ auto, h_e / point.lambda_) < 1e-12
    assert relative_error(point.kernel.T @ h_e @ auto, h_r / point.lambda_) < 1e-12
    w_e, w_r = point.weights(point.e, point.r)
    assert relative_error(point.phi_q @ w_e.T @ point.f, point.e) < 1e-12
    assert norm(*gradient(w_e, w_r, *point.rest())) < 1e-12 * norm(w_e, w_r)
    energy = (point.lambda_ * point.e.square()).sum()
    assert abs(float(objective(w_e, w_r, *point.rest()) / energy)) < 1e-12


def test_3_the_sign_of_r_matters() -> None:
    point = Stationary(0)
    h_e, h_r, auto = point.e * point.lambda_, -point.r * point.lambda_, point.f.T @ point.f
    residual = point.kernel @ h_r @ auto - h_e / point.lambda_
    assert norm(residual) == pytest.approx(2 * norm(point.e), rel=1e-12)


@pytest.mark.parametrize("pairs", [0, 1, 3])
def test_4_solutions_of_2_6(pairs: int) -> None:
    """Their dimension is the number of pairs with ``sigma_k mu_l = 1``: a diagonal Lambda fits few kernels."""
    n, s, width = 6, 3, 4
    f, lambda_ = well_conditioned(5, s, 0), normal(s, seed=1).abs() + 0.5
    auto = f.T @ f
    mu = torch.linalg.eigvalsh(lambda_.sqrt().unsqueeze(1) * auto * lambda_.sqrt())
    singular = torch.cat([1 / mu[:pairs], 7 + torch.arange(width - pairs).double()])
    kernel = orthonormal(n, width, 2) * singular @ orthonormal(n, width, 3).T
    eye, sigma = torch.eye(n).double(), torch.diag(1 / lambda_)
    one = torch.cat([-torch.kron(eye, sigma), torch.kron(kernel, auto)], 1)
    two = torch.cat([torch.kron(kernel.T.contiguous(), auto), -torch.kron(eye, sigma)], 1)
    values = torch.linalg.svdvals(torch.cat([one, two]))
    assert int((values < 1e-9 * values[0]).sum()) == pairs


@pytest.mark.parametrize("seed", SEEDS)
def test_5_theorem_2_is_eulers_identity(seed: int) -> None:
    """J is quadratic: its gradient along W is 2 J, so J = 0 wherever the gradient is, and elsewhere too."""
    phi_q, phi_k = (unit(normal(11, 4, seed=seed + i)) for i in (0, 1))
    rest = (phi_q, phi_k, well_conditioned(6, 3, seed), normal(3, seed=seed).abs() / 100)
    w_e, w_r = normal(6, 4, seed=seed + 2), normal(6, 4, seed=seed + 3)
    g_e, g_r = gradient(w_e, w_r, *rest)
    twice = 2 * objective(w_e, w_r, *rest)
    assert abs(float((g_e * w_e).sum() + (g_r * w_r).sum() - twice)) < 1e-13 * norm(g_e, g_r) * norm(w_e, w_r)
    # J along (W, t W): positive at t = -1, negative at t = 1, so zero in between, and not stationary there.
    at = {t: float(objective(w_e, t * w_e, *rest)) for t in (-1.0, 0.0, 1.0)}
    assert at[1.0] < 0 < at[-1.0]
    a, b, c = (at[1.0] + at[-1.0]) / 2 - at[0.0], (at[1.0] - at[-1.0]) / 2, at[0.0]
    t = (-b - (b * b - 4 * a * c) ** 0.5) / (2 * a)
    assert abs(float(objective(w_e, t * w_e, *rest))) < 1e-12 * norm(w_e) ** 2
    assert norm(*gradient(w_e, t * w_e, *rest)) > 0.5 * norm(w_e, t * w_e)


def hessian(point: Any) -> Tensor:
    shape = (2, point.f.size(0), point.phi_q.size(1))
    function = lambda w: objective(*w.view(shape), *point.rest())  # noqa: E731
    return torch.autograd.functional.hessian(function, torch.zeros(torch.Size(shape).numel()).double())


@pytest.mark.parametrize("seed", SEEDS)
def test_6_stationary_points_are_saddles(seed: int) -> None:
    """ "min" in (2.5) means stationary: each pair with ``sigma_k mu_l < 1`` is a direction in which J falls."""
    point = Stationary(seed)
    values = torch.linalg.eigvalsh(hessian(point))
    products = (point.singular.unsqueeze(1) * point.mu).flatten()
    falling = int((products < 1 - 1e-9).sum())
    assert int((values < -1e-11 * values[-1]).sum()) == falling > 0
    assert int((values.abs() <= 1e-11 * values[-1]).sum()) == 3, "the stationary points are a space of this dimension"
    assert 0.2 < falling / len(values) < 0.5


def test_6_more_rows_than_rank_have_no_minimum() -> None:
    point = Stationary(0, num_rows=6)
    null = torch.linalg.qr(point.f, mode="complete")[0][:, 3:]
    z = null @ normal(3, 5, seed=9)
    for t in (1.0, 10.0, 1e3):
        assert float(objective(t * z, t * z, *point.rest())) == pytest.approx(-(t**2) * norm(z) ** 2, rel=1e-10)


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
def test_9_singular_vectors_from_small_matrices(seed: int) -> None:
    """The SVD of K by Cholesky factors of two p x p matrices and one p x p SVD: O(N p^2 + p^3), not N^3."""
    phi_q, phi_k = (unit(normal(40, 4, seed=seed + i)) for i in (0, 1))
    low_q, low_k = (torch.linalg.cholesky(phi.T @ phi) for phi in (phi_q, phi_k))
    left, singular, right = torch.linalg.svd(low_q.T @ low_k)
    u, v = phi_q @ torch.linalg.inv(low_q).T @ left, phi_k @ torch.linalg.inv(low_k).T @ right.T
    kernel, eye = phi_q @ phi_k.T, torch.eye(4).double()
    assert relative_error(u * singular @ v.T, kernel) < 1e-12
    assert relative_error(u.T @ u, eye) < 1e-12 and relative_error(v.T @ v, eye) < 1e-12
    assert relative_error(singular, torch.linalg.svdvals(kernel)[:4]) < 1e-12


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
        c_q, c_k, scale = (torch.from_numpy(sqrtm(x + ridge * eye)) for x in (*grams, auto))
        # The square root of C_k^(1/2) C_q C_k^(1/2): these are the singular values of C_q^(1/2) C_k^(1/2).
        _, singular, right = torch.linalg.svd(c_q @ c_k)
        sigma = scale @ (right.T * singular @ right) @ scale
        h_e, h_r = e @ torch.linalg.inv(sigma), r @ torch.linalg.inv(sigma)
        rest = norm(kernel @ h_r @ auto - e, kernel.T @ h_e @ auto - r)
        residuals.append(rest / norm(e, r))
    assert low < sum(residuals) / len(residuals) < high


def test_10_published_rank_one_and_folded_forms() -> None:
    phi, w = unit(normal(11, 4, seed=0)), normal(6, 4, seed=1)
    projection, node = normal(6, 3, seed=2), normal(3, seed=3)
    concat = normal(5, 3, seed=4)
    published = phi @ w.T @ (projection + node)
    rank_one = phi @ (projection.T @ w).T + (phi @ w.sum(0)).unsqueeze(1) * node
    assert relative_error(rank_one, published) < 1e-14
    folded = phi @ (w.T @ projection @ concat.T) + (phi @ w.sum(0)).unsqueeze(1) * (concat @ node)
    assert relative_error(folded, published @ concat.T) < 1e-14


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


def test_shared_weights_attend_across_graphs() -> None:
    """(2.7) over a batch: the scores of one graph read the keys of the other, through ``f_g'^T f_g``."""
    phi_q, phi_k, h = ([unit(normal(5, 4, seed=10 * i + g)) for g in (0, 1)] for i in range(3))
    f = [well_conditioned(6, 4, g) for g in (0, 1)]
    w_e = sum(f[g] @ h[g].T @ phi_k[g] for g in (0, 1))
    scores = phi_q[0] @ w_e.T @ f[0]
    own = phi_q[0] @ phi_k[0].T @ h[0] @ f[0].T @ f[0]
    other = phi_q[0] @ phi_k[1].T @ h[1] @ f[1].T @ f[0]
    assert relative_error(scores, own + other) < 1e-13
    assert norm(other) > 0.1 * norm(own)


def test_at_most_as_many_active_pairs_as_a_head_is_wide() -> None:
    """rank K <= p: with s > p (as published for Func, Struct and PCQM) s - p columns of a solution are empty."""
    kernel = unit(normal(12, 3, seed=0)) @ unit(normal(12, 3, seed=1)).T
    values = torch.linalg.svdvals(kernel)
    assert int((values > 1e-12 * values[0]).sum()) == 3


def test_shapes_and_names_that_do_not_exist_as_printed() -> None:
    """``1_s`` in f_X is ``1_N``, the virtual node's map goes to the rank, and ``F.normalized`` is ``F.normalize``."""
    d, n, s, num_rows = 4, 7, 3, 5
    x, b = normal(d, n, seed=0), normal(s, d, seed=1)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        b @ x @ torch.ones(s, 1).double()
    assert (b @ x @ torch.ones(n, 1).double() @ torch.ones(1, num_rows).double()).shape == (s, num_rows)
    with pytest.raises(RuntimeError, match="must match the size"):
        normal(2, 1, d, seed=2) + normal(num_rows, s, seed=3)  # pooled vn_proj as printed, plus batch.fx
    assert not hasattr(functional, "normalized")


def test_second_derivatives_of_square_roots() -> None:
    y = torch.tensor([[4.0]], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(matrix_sqrt(y).sum(), y, create_graph=True)
    assert slope.item() == pytest.approx(1 / 4)
    assert torch.autograd.grad(slope.sum(), y)[0].item() == pytest.approx(-1 / 32)

    def root(a: torch.Tensor) -> torch.Tensor:
        return matrix_sqrt(a @ a.mT + torch.eye(3).double())

    a = torch.randn(2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(root, a) and torch.autograd.gradgradcheck(root, a)
