"""Each misprinted formula of the paper fails, and its corrected form holds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from construction_graphs import CASES, COMPLETE, WEIGHTED_PATH, Case, column_norms, every_case, spectral_norm
from helpers import normal, relative_error
from torch import Tensor

from tg_lpe import theory as c

WEIGHTED_CSL = next(case for case in CASES if case.name == "weighted csl")
TEN_NODES = [COMPLETE, WEIGHTED_CSL, WEIGHTED_PATH]
ten_nodes = pytest.mark.parametrize("case", TEN_NODES, ids=[case.name for case in TEN_NODES])


pytestmark = pytest.mark.usefixtures("no_grad")


def test_lemma_1_printed_bound_is_violated_at_every_layer() -> None:
    case = WEIGHTED_PATH
    low, delta = case.lambda_min, 1 / case.lambda_max
    psi = case.demands()
    model = c.electric_flow(3, 200, delta)
    for layer, (_, phi) in enumerate(model.trace(case.b, model.embed(psi))):
        error = float((column_norms(phi[:, 3:] - case.inverse @ psi) / column_norms(psi)).max())
        printed = np.exp(-delta * layer * low / 2) / low**0.5
        assert error > 2 * printed
        assert error <= c.electric_flow_bound(layer, low, case.lambda_max) * (1 + 1e-12)


def fast_errors(model: c.FullTransformer, case: Case, phi: Tensor | None = None) -> list[float]:
    """Relative deviation of ``Phi_l`` from ``L^+`` at each layer; with another ``Phi_0`` if given."""
    z = c.fast_electric_flow_input(case.laplacian, case.projection, 1 / case.lambda_max)
    if phi is not None:
        z = torch.cat([z[: 2 * case.num_nodes], phi])
    return [spectral_norm(c.fast_electric_flow_output(z) - case.inverse) * case.lambda_min for z in model.trace(z)]


@ten_nodes
def test_lemma_4_printed_values_do_not_converge(case: Case) -> None:
    printed = c.fast_electric_flow(20)
    printed.w_v[0, 2] = torch.tensor([1.0, 0.0, 0.0])
    errors = fast_errors(printed, case)
    assert errors[-1] > 0.1 and errors[-1] == pytest.approx(errors[-5], rel=1e-9), errors
    assert fast_errors(c.fast_electric_flow(20), case)[-1] < 1e-12


@ten_nodes
def test_lemma_4_printed_input_leaves_a_residual_along_the_ones(case: Case) -> None:
    delta = 1 / case.lambda_max
    z = c.fast_electric_flow_input(case.laplacian, case.projection, delta)
    ones = torch.ones(10).double() / 10**0.5
    for phi, residual in ((delta * torch.eye(10).double(), delta), (delta * case.projection, 0.0)):
        for state in c.fast_electric_flow(20).trace(torch.cat([z[:20], phi])):
            along = c.fast_electric_flow_output(state) @ ones
            assert float((along - residual * ones).norm()) < 1e-13 * delta * 2**4
    assert fast_errors(c.fast_electric_flow(20), case, delta * torch.eye(10).double())[-1] == pytest.approx(
        delta * case.lambda_min
    )


@ten_nodes
def test_eq_13_ends_one_power_later(case: Case) -> None:
    m = case.projection - case.laplacian / case.lambda_max
    identity = torch.eye(10).double()
    powers = [identity]
    for _ in range(2**5):
        powers.append(powers[-1] @ m)
    product = identity
    for t in range(4):
        product = product @ (identity + torch.linalg.matrix_power(m, 2**t))
        ends = {end: relative_error(sum(powers[: end + 1]), product) for end in (2**t, 2 ** (t + 1) - 1)}
        assert ends[2 ** (t + 1) - 1] < 1e-14
        assert t == 0 or ends[2**t] > 1e-3
        layers = c.fast_electric_flow(t + 1)
        z = layers(c.fast_electric_flow_input(case.laplacian, case.projection, 1 / case.lambda_max))
        expected = sum(powers[: 2 ** (t + 1)]) @ case.projection / case.lambda_max
        assert relative_error(c.fast_electric_flow_output(z), expected) < 1e-13


@ten_nodes
def test_eq_14_printed_residual_doubles_the_incidence_matrix(case: Case) -> None:
    model, phi, d = c.top_eigenvectors(2, 5), normal(10, 2), case.b.size(1)
    printed, mended, z = model.full(d), model.full(d), torch.cat([case.b, phi], 1).mT
    printed.w_r[0, range(d), range(d)] = 1.0
    for layer, (of_printed, of_mended) in enumerate(zip(printed.trace(z), mended.trace(z), strict=True)):
        multiplied = -(-layer // 3)  # layers 0, 3, 6, ... multiply by L
        assert relative_error(of_printed[:d], 2.0**multiplied * case.b.mT) < 1e-15
        assert torch.equal(of_mended[:d], case.b.mT)


@every_case
def test_corollary_7_printed_values_add_the_laplacian(case: Case) -> None:
    mu, phi = 1.1 * case.lambda_max, normal(case.num_nodes, 2)

    def normalized(x: Tensor) -> Tensor:
        return x / column_norms(x)

    def once(value: float) -> Tensor:
        model = c.bottom_eigenvectors(2, 1, mu)
        model.w_v[0] = value * torch.eye(2)
        return list(model.trace(case.b, phi))[1][1]

    minus, plus = (normalized(mu * phi + sign * case.laplacian @ phi) for sign in (-1, 1))
    assert relative_error(once(-1.0), minus) < 1e-13
    assert relative_error(once(1.0), plus) < 1e-13
    assert relative_error(once(1.0), minus) > 0.1


@ten_nodes
def test_lemma_9_printed_residual_for_lemma_2_is_no_square_root(case: Case) -> None:
    psi = case.demands()
    layers = c.layers_needed(lambda n: c.resistive_embedding_bound(n, case.lambda_min, case.lambda_max), 1e-2)
    mended = c.resistive_embedding_layers(3, layers, case.lambda_max)
    printed = c.resistive_embedding_layers(3, layers, case.lambda_max)
    printed.w_r[:, 1, 0] = 1 / case.lambda_max
    errors = [column_norms(model(case.b, psi) - case.root @ psi) / column_norms(psi) for model in (mended, printed)]
    bound = c.resistive_embedding_bound(layers, case.lambda_min, case.lambda_max)
    assert errors[0].max() <= bound + 1e-13 and errors[1].max() > 10 * bound
    # The printed weights compute Lemma 1.
    flow = c.electric_flow(3, layers, 1 / case.lambda_max)(case.b, psi)
    assert relative_error(printed(case.b, psi), flow) < 1e-12


@every_case
def test_lemma_9_printed_similarity_for_lemma_8_lets_the_graph_in(case: Case) -> None:
    start = torch.linalg.qr(normal(case.num_nodes, 3))[0]
    start[:, 0] = (start[:, 0] + 0.4 * start[:, 2]) / 1.16**0.5
    mended, printed = c.orthogonalize(3, 0), c.orthogonalize(3, 0)
    printed.alpha_q[0] = printed.alpha_k[0] = 1.0
    inner = [float((model(case.b, start).mT @ model(case.b, start))[0, 1:].abs().max()) for model in (mended, printed)]
    assert inner[0] < 1e-14 and inner[1] > 1e-3


@every_case
def test_lemma_8_from_the_first_column_on_gives_no_orthonormal_columns(case: Case) -> None:
    k, phi = 3, normal(case.num_nodes, 3)
    mended = c.top_eigenvectors(k, 1)
    printed = c.EfficientTransformer(k, k, k + 1, [0, 1, 2, 3], normalize_phi="columns")
    printed.load_state_dict(mended.state_dict())
    assert mended.schedule == [0, 3, 2, 1]
    defects = []
    for model in (mended, printed):
        out = model(case.b, phi)
        defects.append(float((out.mT @ out - torch.eye(k)).abs().max()))
    assert defects[0] < 1e-12 and defects[1] > 1e-4
