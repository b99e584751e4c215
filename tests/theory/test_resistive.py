"""Lemma 2 against ``sqrt(L^+)`` from numpy's eigenvectors, at every depth, and Fact 1."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch
from construction_graphs import CASES, Case, column_norms, every_case
from helpers import relative_error
from scipy.special import comb

from tg_lpe import theory as c

pytestmark = pytest.mark.usefixtures("no_grad")

ROUNDING = 1e-12
"""Tolerance over ``|sqrt(L^+)|`` where a bound is below float64's rounding."""


@every_case
@pytest.mark.parametrize("slack", [1.0, 1.7])
def test_the_series_keeps_its_bound_at_every_depth(case: Case, slack: float) -> None:
    high, psi = slack * case.lambda_max, case.demands()
    expected, floor = case.root @ psi, ROUNDING / case.lambda_min**0.5
    model = c.resistive_embedding_layers(3, 200, high)
    for layer, (_, phi) in enumerate(model.trace(case.b, model.embed(psi))):
        error = column_norms(phi[:, 3:] - expected) / column_norms(psi)
        bound = c.resistive_embedding_bound(layer, case.lambda_min, high)
        assert error.max() <= bound + floor, (layer, error, bound)


@every_case
def test_each_layer_adds_a_term_of_eq_12(case: Case) -> None:
    delta, psi = 1 / case.lambda_max, case.demands()
    model = c.resistive_embedding_layers(3, 20, case.lambda_max)
    term, total = psi, torch.zeros_like(psi)
    for layer, (_, phi) in enumerate(model.trace(case.b, model.embed(psi))):
        assert relative_error(phi, torch.cat([term, total], 1)) < 1e-13
        total = total + delta**0.5 * comb(2 * layer, layer, exact=True) / 4**layer * term
        term = term - delta * case.laplacian @ term


@pytest.mark.parametrize("name", ["weighted complete", "weighted csl", "naphthalene"])
def test_squared_distances_are_effective_resistances(name: str) -> None:
    (case,) = (case for case in CASES if case.name == name)
    layers = c.layers_needed(lambda n: c.resistive_embedding_bound(n, case.lambda_min, case.lambda_max), 1e-10)
    rows = c.resistive_embedding_layers(case.num_nodes, layers, case.lambda_max)(case.b, case.projection)
    graph = case.graph.networkx()
    expected = nx.resistance_distance(graph, weight="weight", invert_weight=False)
    for u in graph:
        distances = (rows[u] - rows).square().sum(1).detach().numpy()
        np.testing.assert_allclose(distances, [expected[u][v] for v in range(len(graph))], atol=1e-8)


@pytest.mark.parametrize("value", [0.0, -2.0, float("nan")])
def test_refuses_a_largest_eigenvalue_that_is_not_positive(value: float) -> None:
    with pytest.raises(ValueError, match=f"lambda_max must be positive, got {value}"):
        c.resistive_embedding_layers(2, 3, value)
