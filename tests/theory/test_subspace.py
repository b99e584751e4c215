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
ends = pytest.mark.parametrize("which", ["top", "bottom"])


def qr_from_the_last(phi: np.ndarray) -> np.ndarray:
    """Q of a QR decomposition that starts at the last column, with a positive diagonal of R."""
    q, r = np.linalg.qr(phi[:, ::-1])
    return (q * np.sign(np.diag(r)))[:, ::-1]


def transformer(case: Case, which: str, k: int, count: int) -> c.EfficientTransformer:
    return c.top_eigenvectors(k, count) if which == "top" else c.bottom_eigenvectors(k, count, MU * case.lambda_max)


def iterated(case: Case, which: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The matrix of the iteration, its eigenvalues from the largest on, and their eigenvectors."""
    laplacian = case.laplacian.numpy()
    if which == "top":
        return laplacian, case.values[::-1], case.vectors[:, ::-1]
    mu = MU * case.lambda_max
    return mu * np.eye(case.num_nodes) - laplacian, mu - case.values, case.vectors


def widest_gap(case: Case, which: str) -> tuple[int, float]:
    """``k`` with the smallest ratio of the first unwanted to the last wanted eigenvalue, and the ratio.

    The unweighted complete graph has one gap only, between zero and all others.
    """
    values = iterated(case, which)[1]
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
@ends
@pytest.mark.parametrize("k", [1, 3, 5])
def test_each_iteration_is_one_of_subspace_iteration(case: Case, which: str, k: int) -> None:
    matrix = iterated(case, which)[0]
    phi = normal(case.num_nodes, k)
    expected = phi.numpy()
    for layer, (_, got) in enumerate(transformer(case, which, k, 15).trace(case.b, phi)):
        if layer and layer % (k + 1) == 0:
            expected = qr_from_the_last(matrix @ expected)
            assert relative_error(got, expected) < 1e-10, layer


@every_case
@ends
def test_angles_keep_their_bound_at_every_iteration(case: Case, which: str) -> None:
    k, ratio = widest_gap(case, which)
    span, start = iterated(case, which)[2][:, :k], normal(case.num_nodes, k)
    first = tangent(start, span)
    for layer, (_, phi) in enumerate(transformer(case, which, k, 30).trace(case.b, start)):
        if layer % (k + 1) == 0:
            bound = c.subspace_iteration_bound(layer // (k + 1), ratio, first)
            assert tangent(phi, span) <= bound * (1 + 1e-9) + 1e-13, layer


def test_a_shift_keeps_the_null_space() -> None:
    phi = normal(10, 10)
    shifted = c.top_eigenvectors(10, 20, shift=1.0)(COMPLETE.b, phi)
    assert relative_error(shifted.mT @ shifted, np.eye(10)) < 1e-10
    for shift in (0.0, 2.0):
        expected = shifted_by_hand(phi[:, :3], shift, 9)
        assert relative_error(c.top_eigenvectors(3, 9, shift)(COMPLETE.b, phi[:, :3]), expected) < 1e-10


def shifted_by_hand(phi: Tensor, shift: float, count: int) -> np.ndarray:
    out = phi.numpy()
    for _ in range(count):
        out = qr_from_the_last(COMPLETE.laplacian.numpy() @ out + shift * out)
    return out


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


test_refusals = refusals(c.orthogonalize, ((3, -1), "index"), ((3, 3), "index"))


def test_layers_share_their_weights() -> None:
    model = c.bottom_eigenvectors(3, 50, 2.0)
    assert model.num_layers == 200 and len(model.w_v) == 4
