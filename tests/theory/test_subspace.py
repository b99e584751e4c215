"""Lemmas 6 and 8 and Corollary 7 against subspace iteration with numpy's QR, and against numpy's eigenvectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from construction_graphs import COMPLETE, Case, every_case
from helpers import normal, refusals, relative_error
from torch import Tensor

from tg_lpe import theory as c

pytestmark = pytest.mark.usefixtures("no_grad")

WIDEST = 6
MU = 1.1
"""Over ``lambda_max``: with one, ``mu I - L`` of a complete graph has rank one, and no QR decomposition is unique."""
SHIFT = 2.0
ways = pytest.mark.parametrize(
    "way", ["top", "bottom", "shifted top", "parallel top", "parallel bottom", "inverse", "inverse of one layer"]
)


def qr_from_the_last(phi: np.ndarray) -> np.ndarray:
    """Q of a QR decomposition that starts at the last column, with a positive diagonal of R."""
    q, r = np.linalg.qr(phi[:, ::-1])
    return (q * np.sign(np.diag(r)))[:, ::-1]


def iterates(case: Case, way: str, phi: Tensor, count: int) -> list[Tensor]:
    """``Phi`` before the iterations and after each."""
    k, step, parallel = phi.size(1), 1 / case.lambda_max, "parallel" in way
    if "inverse" in way:
        depth = 1 if "one layer" in way else 20
        z = torch.cat([c.fast_electric_flow_input(case.laplacian, case.projection, step), phi.mT])
        states = list(c.inverse_eigenvectors(case.num_nodes, k, depth, count).trace(z))
        return [z[-k:].mT for z in states[depth :: k + 1]]
    if "top" in way:
        model = c.top_eigenvectors(k, count, SHIFT * ("shift" in way), parallel)
    else:
        model = c.bottom_eigenvectors(k, count, MU / step, parallel)
    return [phi for _, phi in model.trace(case.b, phi)][:: 2 if parallel else k + 1]


def iterated(case: Case, way: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The matrix of the iteration, its eigenvalues from the largest on, and their eigenvectors."""
    if "top" in way:
        shift = SHIFT * ("shift" in way)
        return shift * np.eye(case.num_nodes) + case.laplacian.numpy(), case.values[::-1] + shift, case.vectors[:, ::-1]
    if "bottom" in way:
        mu = MU * case.lambda_max
        return mu * np.eye(case.num_nodes) - case.laplacian.numpy(), mu - case.values, case.vectors
    of = (lambda x: (2 - x / case.lambda_max) / case.lambda_max) if "one layer" in way else (lambda x: 1 / x)
    values = np.append(of(case.values[case.null :]), np.zeros(case.null))
    return case.function(of).numpy(), values, np.roll(case.vectors, -case.null, axis=1)


def widest_gap(case: Case, way: str) -> tuple[int, float]:
    """``k`` with the smallest ratio of the first unwanted to the last wanted eigenvalue, and the ratio.

    The unweighted complete graph has one gap only, between zero and all others.
    """
    values = iterated(case, way)[1]
    wide = range(1, WIDEST + 1) if case.name != "complete" else (1, case.num_nodes - 1)
    ratio, k = min((abs(values[k] / values[k - 1]), k) for k in wide)
    return k, float(ratio)


def tangent(phi: Tensor, span: np.ndarray) -> float:
    """The tangent of the largest angle to orthonormal columns."""
    q = np.linalg.qr(phi.detach().numpy())[0]
    cosine = np.linalg.svd(span.T @ q, compute_uv=False).min()
    sine = np.linalg.norm(q - span @ (span.T @ q), 2)
    return float(sine / cosine)


@every_case
@ways
@pytest.mark.parametrize("k", [1, 3, 5])
def test_each_iteration_is_one_of_subspace_iteration(case: Case, way: str, k: int) -> None:
    """With parallel heads, the last columns span the same, for every number of them; later, rounding shows."""
    phi, parallel = normal(case.num_nodes, k), "parallel" in way
    expected = phi.numpy()
    for number, got in enumerate(iterates(case, way, phi, 5 if parallel else 15)):
        if number:
            expected = qr_from_the_last(iterated(case, way)[0] @ expected)
            assert relative_error(qr_from_the_last(got.numpy()) if parallel else got, expected) < 1e-10, number


@every_case
def test_columns_of_parallel_heads_become_orthonormal(case: Case) -> None:
    phi = c.top_eigenvectors(4, 200, parallel=True)(case.incidence, normal(case.num_nodes, 4))
    assert (phi.mT @ phi - torch.eye(4)).abs().amax() < 1e-10


@every_case
@ways
def test_angles_keep_their_bound_at_every_iteration(case: Case, way: str) -> None:
    k, ratio = widest_gap(case, way)
    span, start = iterated(case, way)[2][:, :k], normal(case.num_nodes, k)
    for number, phi in enumerate(iterates(case, way, start, 5 if "parallel" in way else 30)):
        bound = c.subspace_iteration_bound(number, ratio, tangent(start, span))
        assert tangent(phi, span) <= bound * (1 + 1e-9) + 1e-13, number


def test_a_shift_keeps_the_null_space() -> None:
    phi = c.top_eigenvectors(10, 20, shift=1.0)(COMPLETE.b, normal(10, 10))
    assert relative_error(phi.mT @ phi, np.eye(10)) < 1e-10


@pytest.mark.parametrize(("k", "index"), [(1, 0), (4, 0), (4, 1), (4, 2), (4, 3)])
def test_lemma_8_is_exact(k: int, index: int) -> None:
    phi = normal(10, k)
    phi[:, index + 1 :] = torch.linalg.qr(phi[:, index + 1 :])[0]
    phi[:, : index + 1] /= torch.linalg.vector_norm(phi[:, : index + 1], dim=0)
    out = c.orthogonalize(k, index)(COMPLETE.b, phi).detach()
    others = [column for column in range(k) if column != index]
    assert relative_error(out[:, others], phi[:, others]) < 1e-15
    expected = phi[:, index] - sum(phi[:, index] @ phi[:, j] * phi[:, j] for j in range(index + 1, k))
    assert relative_error(out[:, index], expected / expected.norm()) < 1e-15
    assert (out[:, index + 1 :].mT @ out[:, index]).abs().amax() < 1e-15 if index + 1 < k else True


@every_case
@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_parallel_heads_are_a_qr_decomposition_of_two_columns_and_in_sequence_of_more(case: Case, k: int) -> None:
    phi, layer = normal(case.num_nodes, k), c.orthogonalize(k)
    phi = phi / torch.linalg.vector_norm(phi, dim=0)
    expected, errors = qr_from_the_last(phi.numpy()), []
    for _ in range(max(k - 1, 1)):
        z = layer.full(case.b.size(1))(torch.cat([case.b, phi], 1).mT)
        phi = layer(case.b, phi)
        assert relative_error(z[-k:].mT, phi) < 1e-13
        errors.append(relative_error(phi, expected))
    assert errors[-1] < 1e-12 and (k <= 2 or errors[0] > 1e-3)


@pytest.mark.parametrize(("k", "possible"), [(2, True), (3, False), (4, False)])
def test_no_heads_are_a_qr_decomposition_of_three_columns(k: int, possible: bool) -> None:
    """What a layer with any heads adds up to in column 1 is linear in its weights; none keep it along the exact one."""
    off = []
    for seed in range(60):
        phi = normal(8, k, seed=seed)
        phi = phi / torch.linalg.vector_norm(phi, dim=0)
        inner = torch.cat([torch.ones(1), (phi.mT @ phi)[tuple(torch.triu_indices(k, k, 1))]])
        terms = (phi.unsqueeze(2) * inner).flatten(1)  # phi_c and <phi_a, phi_b> phi_c
        exact = torch.from_numpy(qr_from_the_last(phi.numpy())[:, :1].copy())
        off.append(terms - exact @ (exact.mT @ terms))
    assert (torch.linalg.svdvals(torch.cat(off))[-1] < 1e-12) == possible


test_refusals = refusals(c.orthogonalize, ((3, -1), "index"), ((3, 3), "index"))


def test_layers_share_their_weights() -> None:
    model = c.bottom_eigenvectors(3, 50, 2.0)
    assert model.num_layers == 200 and len(model.w_v) == 4
