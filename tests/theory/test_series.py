"""Lemmas 1 to 5 against ``L^+``, its root and the heat kernel from numpy's eigenvectors and scipy, at every depth."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from construction_graphs import Case, column_norms, every_case, spectral_norm
from helpers import Graph, few, graph_of, graphs, refusals, relative_error
from hypothesis import given
from scipy.linalg import expm
from scipy.special import comb
from torch import Tensor

from tg_lpe import theory as c

pytestmark = pytest.mark.usefixtures("no_grad")

ROUNDING = 1e-12
"""Tolerance over ``|L^+|``, or its root, where a bound is below rounding."""

temperatures = pytest.mark.parametrize("s", [0.05, 0.5])


def exact(case: Case, s: float) -> Tensor:
    return torch.from_numpy(expm(-s * case.laplacian.numpy()))


def rounding(case: Case, s: float) -> float:
    """The terms of the series grow to ``exp(s lambda_max)`` before they shrink, and their rounding errors remain."""
    return 1e-14 + 1e-15 * math.exp(s * case.lambda_max)


Lemma = tuple[c.EfficientTransformer, Tensor, Callable[[int], float], float]
"""A transformer, the matrix that it multiplies by, the bound on its error, and what rounding adds."""


def potentials(case: Case, fraction: float) -> Lemma:
    low, high, step = case.lambda_min, case.lambda_max, fraction / case.lambda_max
    bound = lambda n: c.electric_flow_bound(n, low, high, step)  # noqa: E731
    return c.electric_flow(3, 200, step), case.inverse, bound, ROUNDING / low


def embeddings(case: Case, slack: float) -> Lemma:
    low, high = case.lambda_min, slack * case.lambda_max
    bound = lambda n: c.resistive_embedding_bound(n, low, high)  # noqa: E731
    return c.resistive_embedding_layers(3, 200, high), case.root, bound, ROUNDING / low**0.5


def heat(case: Case, s: float) -> Lemma:
    depth = math.ceil(8 * s * case.lambda_max) + 20
    bound = lambda n: c.heat_kernel_bound(n, case.lambda_max, s)  # noqa: E731
    return c.heat_kernel_layers(3, depth, s), exact(case, s), bound, rounding(case, s)


@every_case
@pytest.mark.parametrize(
    ("of", "value"),
    [(potentials, 1.0), (potentials, 0.4), (embeddings, 1.0), (embeddings, 1.7), (heat, 0.05), (heat, 0.5)],
)
def test_errors_keep_their_bounds_at_every_depth(case: Case, of: Callable[[Case, float], Lemma], value: float) -> None:
    model, matrix, bound, floor = of(case, value)
    psi = case.demands()
    if of is heat:
        psi[:, 2:] += 1  # columns need not sum to zero
    for layer, (_, phi) in enumerate(model.trace(case.b, model.embed(psi))):
        error = column_norms(phi[:, 3:] - matrix @ psi) / column_norms(psi)
        assert error.max() <= bound(layer) + floor, (layer, error, bound(layer))


@every_case
@pytest.mark.parametrize("lemma", [1, 2, 3])
def test_each_layer_adds_a_term(case: Case, lemma: int) -> None:
    """Eqs. (11) and (12), and the terms of the series of section 10.3."""
    delta, s, psi, laplacian = 0.9 / case.lambda_max, 0.3, case.demands(), case.laplacian
    model = [
        c.electric_flow(3, 20, delta), c.resistive_embedding_layers(3, 20, 1 / delta), c.heat_kernel_layers(3, 20, s)
    ][lemma - 1]  # fmt: skip
    term, total, power = psi, torch.zeros_like(psi), psi
    for layer, (b, phi) in enumerate(model.trace(case.b, model.embed(psi))):
        assert relative_error(phi, torch.cat([term, total], 1)) < 1e-12 and torch.equal(b, case.b)
        if lemma == 1:
            total = total - delta * (laplacian @ total - psi)
        elif lemma == 2:
            total = total + delta**0.5 * comb(2 * layer, layer, exact=True) / 4**layer * term
            term = term - delta * laplacian @ term
        else:
            total, power = total + term, laplacian @ power
            term = (-s) ** (layer + 1) / math.factorial(layer + 1) * power


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


@every_case
@pytest.mark.parametrize("layers", [0, 1, 7])
def test_lemmas_4_and_5_read_the_incidence_matrix(case: Case, layers: int) -> None:
    delta, s, none, d = 1 / case.lambda_max, 0.5, torch.zeros_like(case.laplacian), case.b.size(1)
    flow, heat = c.fast_electric_flow(layers), c.fast_heat_kernel(layers)
    for model, step, start, known in (
        (flow, delta, c.fast_electric_flow_input(none, case.projection, delta), fast_input(case)),
        (
            heat,
            3.0**-layers * s,
            torch.eye(case.num_nodes).double(),
            c.fast_heat_kernel_input(case.laplacian, layers, s),
        ),
    ):
        prepended, expected = c.from_incidence(model, case.num_nodes, step), model(known)
        for incidence in (case.b, case.incidence):
            assert relative_error(prepended.run(incidence, start.mT)[1].mT, expected) < 1e-12
        assert relative_error(prepended.full(d)(torch.cat([case.b.mT, start]))[d:], expected) < 1e-12


@few
@given(graphs(min_nodes=1, exponents=(-1.0, 1.0)))
def test_one_layer_computes_the_laplacian(graph: Graph) -> None:
    identity, layer = torch.eye(graph.num_nodes).double(), c.from_incidence(c.fast_heat_kernel(0), graph.num_nodes, 1.0)
    for incidence in (torch.from_numpy(graph.incidence()), graph_of(graph)):
        assert relative_error(identity - layer(incidence, identity), graph.laplacian()) < 1e-12


NAN = float("nan")
test_refusals = refusals(
    lambda lemma, *arguments: getattr(c, lemma)(*arguments),
    *((("electric_flow", 1, 3, step), "step_size") for step in (0.0, -1.0, NAN)),
    *((("resistive_embedding_layers", 2, 3, value), "lambda_max") for value in (0.0, -2.0, NAN)),
    *((("heat_kernel_layers", 2, 3, s), "s") for s in (-1.0, NAN)),
    (("heat_kernel_layers", 2, 3, 1.0, 0), "num_steps"),
)
