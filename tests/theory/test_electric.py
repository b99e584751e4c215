"""Lemmas 1 and 4 against ``L^+`` from numpy's eigenvectors, at every depth."""

from __future__ import annotations

import pytest
import torch
from construction_graphs import WEIGHTED_PATH, Case, column_norms, every_case, spectral_norm
from helpers import relative_error

from tg_lpe import theory as c

pytestmark = pytest.mark.usefixtures("no_grad")

ROUNDING = 1e-12
"""Tolerance over ``|L^+|`` where a bound is below float64's rounding. ``eps lambda_max / lambda_min`` is below
1e-13."""


@every_case
@pytest.mark.parametrize("fraction", [1.0, 0.4])
def test_gradient_descent_keeps_its_bound_at_every_depth(case: Case, fraction: float) -> None:
    step, psi = fraction / case.lambda_max, case.demands()
    expected, floor = case.inverse @ psi, ROUNDING / case.lambda_min
    model = c.electric_flow(3, 200, step)
    for layer, (_, phi) in enumerate(model.trace(case.b, model.embed(psi))):
        error = column_norms(phi[:, 3:] - expected) / column_norms(psi)
        bound = c.electric_flow_bound(layer, case.lambda_min, case.lambda_max, step)
        assert error.max() <= bound + floor, (layer, error, bound)


@every_case
def test_each_layer_is_a_step_of_gradient_descent(case: Case) -> None:
    step, psi = 0.9 / case.lambda_max, case.demands()
    model = c.electric_flow(3, 20, step)
    expected = torch.zeros_like(psi)
    for b, phi in model.trace(case.b, model.embed(psi)):
        assert relative_error(phi, torch.cat([psi, expected], 1)) < 1e-13 and torch.equal(b, case.b)
        expected = expected - step * (case.laplacian @ expected - psi)


def fast_input(case: Case, fraction: float = 1.0) -> torch.Tensor:
    return c.fast_electric_flow_input(case.laplacian, case.projection, fraction / case.lambda_max)


@every_case
@pytest.mark.parametrize("fraction", [1.0, 0.4])
def test_doubling_keeps_its_bound_at_every_depth(case: Case, fraction: float) -> None:
    floor = ROUNDING / case.lambda_min
    for layer, z in enumerate(c.fast_electric_flow(20).trace(fast_input(case, fraction))):
        error = spectral_norm(c.fast_electric_flow_output(z) - case.inverse)
        step = fraction / case.lambda_max
        bound = c.fast_electric_flow_bound(layer, case.lambda_min, case.lambda_max, step)
        assert error <= bound + floor, (layer, error, bound)
    assert error <= 2 * floor, "twenty layers reach the floor"


@every_case
def test_so_many_layers_do_what_two_to_the_power_do(case: Case) -> None:
    slow = c.electric_flow(case.num_nodes, 256, 1 / case.lambda_max)
    states = [phi[:, case.num_nodes :] for _, phi in slow.trace(case.b, slow.embed(case.projection))]
    for layer, z in enumerate(c.fast_electric_flow(8).trace(fast_input(case))):
        assert relative_error(c.fast_electric_flow_output(z), states[2**layer]) < 1e-12


def test_the_path_needs_thirteen_layers_or_over_four_thousand() -> None:
    low, high = WEIGHTED_PATH.lambda_min, WEIGHTED_PATH.lambda_max
    assert low == pytest.approx(0.039, rel=2e-3) and high == pytest.approx(9.7, rel=2e-3)
    slow = c.layers_needed(lambda layers: c.electric_flow_bound(layers, low, high), 1e-6)
    fast = c.layers_needed(lambda layers: c.fast_electric_flow_bound(layers, low, high), 1e-6)
    assert fast == 13 and 4000 < slow < 4500
    got = c.fast_electric_flow_output(c.fast_electric_flow(fast)(fast_input(WEIGHTED_PATH)))
    assert spectral_norm(got - WEIGHTED_PATH.inverse) < 1e-6


@pytest.mark.parametrize("step", [0.0, -1.0, float("nan")])
def test_refuses_step_sizes_that_are_not_positive(step: float) -> None:
    with pytest.raises(ValueError, match=f"step_size must be positive, got {step}"):
        c.electric_flow(1, 3, step)
