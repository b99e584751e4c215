"""Lemmas 3 and 5 against scipy's matrix exponential, at every depth."""

from __future__ import annotations

import math

import pytest
import torch
from construction_graphs import CASES, Case, column_norms, every_case, spectral_norm
from helpers import normal, relative_error
from scipy.linalg import expm
from torch import Tensor

from tg_lpe import theory as c

pytestmark = pytest.mark.usefixtures("no_grad")

temperatures = pytest.mark.parametrize("s", [0.05, 0.5])


def exact(case: Case, s: float) -> Tensor:
    return torch.from_numpy(expm(-s * case.laplacian.numpy()))


def rounding(case: Case, s: float) -> float:
    """The terms of the series grow to ``exp(s lambda_max)`` before they shrink, and their rounding errors remain."""
    return 1e-14 + 1e-15 * math.exp(s * case.lambda_max)


@every_case
@temperatures
def test_the_series_keeps_its_bound_at_every_depth(case: Case, s: float) -> None:
    x = s * case.lambda_max
    psi = torch.cat([case.demands(2), normal(case.num_nodes, 1)], 1)  # the last column does not sum to zero
    expected, floor = exact(case, s) @ psi, rounding(case, s)
    model = c.heat_kernel_layers(3, math.ceil(8 * x) + 20, s)
    for layer, (_, phi) in enumerate(model.trace(case.b, model.embed(psi))):
        error = column_norms(phi[:, 3:] - expected) / column_norms(psi)
        bound = c.heat_kernel_bound(layer, case.lambda_max, s)
        assert error.max() <= bound + floor, (layer, error, bound)
        assert (bound == math.inf) == (layer < x - 1)
        if layer >= 8 * x:
            assert bound <= 2.0 ** (8 * x - layer + 1), "sharper than the printed one"


@every_case
def test_each_layer_adds_a_term_of_the_series(case: Case) -> None:
    s, psi = 0.3, case.demands()
    model = c.heat_kernel_layers(3, 20, s)
    power, total = psi, torch.zeros_like(psi)
    for layer, (_, phi) in enumerate(model.trace(case.b, model.embed(psi))):
        coefficient = (-s) ** layer / math.factorial(layer)
        assert relative_error(phi, torch.cat([coefficient * power, total], 1)) < 1e-12
        total = total + coefficient * power
        power = case.laplacian @ power


@every_case
@pytest.mark.parametrize("steps", [2, 5])
def test_the_series_in_several_parts(case: Case, steps: int) -> None:
    s, psi = 4.0 * steps / case.lambda_max, case.demands()
    each = 32 + 40
    model = c.heat_kernel_layers(3, each, s, steps)
    assert model.num_layers == steps * (each + 1) - 1
    error = column_norms(model(case.b, psi) - exact(case, s) @ psi) / column_norms(psi)
    bound = c.heat_kernel_bound(each, case.lambda_max, s / steps)
    assert error.max() <= steps * (bound + rounding(case, s / steps)) * (1 + bound) ** steps


def test_parts_keep_a_large_temperature_from_being_lost() -> None:
    (case,) = (case for case in CASES if case.name == "caffeine")
    s, psi = 5.0, case.demands()
    once, parts = (c.heat_kernel_layers(3, layers, s, steps)(case.b, psi) for layers, steps in ((300, 1), (60, 8)))
    expected = exact(case, s) @ psi
    assert relative_error(once, expected) > 1e-7 and relative_error(parts, expected) < 1e-13


@every_case
@temperatures
def test_cubing_keeps_its_bound_at_every_depth(case: Case, s: float) -> None:
    expected = exact(case, s)
    for layers in range(16):
        out = c.fast_heat_kernel(layers)(c.fast_heat_kernel_input(case.laplacian, layers, s))
        bound = c.fast_heat_kernel_bound(layers, case.lambda_max, s)
        printed = 3.0 ** (1 - layers) * (s * case.lambda_max) ** 2
        error = spectral_norm(out - expected)
        assert error <= bound + 1e-15 * 3.0**layers, (layers, error, bound)
        assert bound <= printed * (1 + 1e-12) or bound == math.inf


def test_the_sharper_bound_is_nearly_attained() -> None:
    """For large ``s lambda_max`` the maximum of ``x^2 exp(-x) / C`` is about twice the true error, not more."""
    values = torch.linspace(0, 200, 20001, dtype=torch.float64)
    for layers in (6, 10):
        error = float((torch.exp(-values) - (1 - values / 3**layers) ** 3**layers).abs().max())
        assert 0.4 < error / c.fast_heat_kernel_bound(layers, 200.0, 1.0) <= 1


def test_a_batch_with_temperatures_of_their_own() -> None:
    cases = [case for case in CASES if case.num_nodes == 10]
    s = torch.linspace(0.1, 1.0, len(cases)).double()
    z = c.fast_heat_kernel_input(torch.stack([case.laplacian for case in cases]), 9, s.view(-1, 1, 1))
    for case, own, got in zip(cases, s.tolist(), c.fast_heat_kernel(9)(z), strict=True):
        alone = c.fast_heat_kernel(9)(c.fast_heat_kernel_input(case.laplacian, 9, own))
        assert relative_error(got, alone) < 1e-12


@pytest.mark.parametrize(("s", "steps"), [(-1.0, 1), (float("nan"), 1), (1.0, 0)])
def test_refuses_negative_temperatures_and_no_steps(s: float, steps: int) -> None:
    with pytest.raises(ValueError, match=f"got {s} and {steps}"):
        c.heat_kernel_layers(2, 3, s, steps)


def test_without_layers_or_temperature() -> None:
    psi = CASES[0].demands()
    assert not c.heat_kernel_layers(3, 0, 1.0)(CASES[0].b, psi).any()
    assert torch.equal(c.heat_kernel_layers(3, 4, 0.0)(CASES[0].b, psi), psi)
    assert relative_error(c.heat_kernel_layers(3, 4, 0.0, 3)(CASES[0].b, psi), psi) == 0
