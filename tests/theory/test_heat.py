"""Lemmas 3 and 5 against scipy's matrix exponential, at every depth."""

from __future__ import annotations

import math

import pytest
import torch
from construction_graphs import Case, column_norms, every_case, spectral_norm
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


@pytest.mark.parametrize(("s", "steps"), [(-1.0, 1), (float("nan"), 1), (1.0, 0)])
def test_refuses_negative_temperatures_and_no_steps(s: float, steps: int) -> None:
    with pytest.raises(ValueError, match=f"got {s} and {steps}"):
        c.heat_kernel_layers(2, 3, s, steps)
