"""Bounds and the layer counts that follow from them; bounds on eigenvalues without eigenvalues."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
import torch
from construction_graphs import CASES
from helpers import Graph, corner_cases, few, from_networkx, graph_of, graphs, refusals
from hypothesis import given
from hypothesis import strategies as st

import tg_lpe
from tg_lpe import theory as c
from tg_lpe.theory.bounds import EXACT_NODES


def nonzero_range(graph: Graph) -> tuple[float, float]:
    """Smallest and largest non-zero eigenvalue of the Laplacian, over the components; one where there are no edges."""
    values = np.linalg.eigvalsh(graph.laplacian())[graph.num_components() :]
    return (values[0], values[-1]) if len(values) else (1.0, 1.0)


# Layer counts.

BOUNDS: list[Callable[[int], float]] = [
    lambda n: c.electric_flow_bound(n, 0.1, 2.0),
    lambda n: c.electric_flow_bound(n, 0.1, 2.0, 0.2),
    lambda n: c.fast_electric_flow_bound(n, 0.001, 2.0),
    lambda n: c.resistive_embedding_bound(n, 0.1, 2.0),
    lambda n: c.heat_kernel_bound(n, 2.0, 3.0),
    lambda n: c.fast_heat_kernel_bound(n, 2.0, 3.0),
    lambda n: c.subspace_iteration_bound(n, 0.9, 5.0),
]


@pytest.mark.parametrize("number", range(len(BOUNDS)))
@pytest.mark.parametrize("tolerance", [1e6, 1.0, 1e-2, 1e-6, 1e-12])
def test_the_smallest_number_of_layers(number: int, tolerance: float) -> None:
    bound = BOUNDS[number]
    count = c.layers_needed(bound, tolerance)
    assert bound(count) <= tolerance and (count == 0 or bound(count - 1) > tolerance)


@pytest.mark.parametrize("number", range(len(BOUNDS)))
def test_bounds_fall_with_depth(number: int) -> None:
    values = [BOUNDS[number](n) for n in (*range(40), 10**4, 10**6)]
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in pairwise(values)) and values[-1] < 1e-6


def test_counts_up_to_what_is_allowed() -> None:
    count = c.layers_needed(BOUNDS[0], 1e-6)
    assert c.layers_needed(BOUNDS[0], 1e-6, count) == count
    with pytest.raises(ValueError, match=f"more than {count - 1} layers"):
        c.layers_needed(BOUNDS[0], 1e-6, count - 1)


test_refusals = refusals(
    lambda bound, *arguments: getattr(c, bound)(*arguments),
    *((("layers_needed", BOUNDS[0], tolerance), "tolerance") for tolerance in (0.0, -1.0, math.nan)),
    *(
        ((bound, 3, low, high), "lambda_min")
        for bound in ("electric_flow_bound", "fast_electric_flow_bound", "resistive_embedding_bound")
        for low, high in ((0.0, 1.0), (2.0, 1.0), (1.0, math.inf), (math.nan, 1.0))
    ),
    *((("electric_flow_bound", 3, 0.1, 2.0, step), "step_size") for step in (0.0, 0.51, math.nan)),
    *((("heat_kernel_bound", 3, 2.0, s), "s") for s in (-1.0, math.inf, math.nan)),
    *((("subspace_iteration_bound", 3, ratio, 1.0), "ratio") for ratio in (1.0, -0.1, math.nan)),
    (("chebyshev_filter_bound", 3, 2.0, 1.0, 0.5), "low"),
)


def test_no_bound_overflows() -> None:
    assert c.heat_kernel_bound(1000, 1000.0, 1.0) == math.inf
    assert c.heat_kernel_bound(10**5, 1000.0, 1.0) == 0.0
    assert c.fast_heat_kernel_bound(10**5, 1000.0, 1.0) < 1e-200
    assert c.fast_electric_flow_bound(10**5, 1e-9, 1.0) == 0.0
    assert [c.heat_kernel_bound(n, 2.0, 0.0) for n in (0, 1, 5)] == [1.0, 0.0, 0.0]
    assert c.resistive_embedding_bound(0, 0.25, 1.0) == 2.0


@pytest.mark.parametrize("x", [0.1, 1.0, 9.5])
def test_the_bound_of_the_heat_kernel_is_sharper_than_the_printed_one(x: float) -> None:
    for layers in range(120):
        bound = c.heat_kernel_bound(layers, x, 1.0)
        assert (bound == math.inf) == (layers < x - 1)
        assert layers < 8 * x or bound <= 2.0 ** (8 * x - layers + 1)


# Eigenvalues.


def check_spectral_bounds(parts: list[Graph]) -> None:
    low, high = c.spectral_bounds(graph_of(*parts))
    exact_low, exact_high = c.spectral_interval(graph_of(*parts))
    assert low.dtype == high.dtype == torch.float64 and low.shape == high.shape == (len(parts),)
    for number, graph in enumerate(parts):
        true_low, true_high = nonzero_range(graph)
        # numpy's smallest eigenvalue is off by rounding of the largest.
        noise = 1e-13 * true_high
        assert 0 < low[number] <= true_low + noise and high[number] >= true_high * (1 - 1e-13)
        assert low[number] * (1 - 1e-12) <= exact_low[number] <= true_low + noise
        assert true_high * (1 - 1e-13) <= exact_high[number] <= true_high * (1 + 1e-11)
        assert exact_low[number] >= true_low - noise


@few
@given(st.lists(graphs(exponents=(-5.0, 5.0)), min_size=1, max_size=4))
def test_spectral_bounds_hold(parts: list[Graph]) -> None:
    check_spectral_bounds(parts)


def test_spectral_bounds_of_corner_cases() -> None:
    check_spectral_bounds(corner_cases())
    check_spectral_bounds([case.graph for case in CASES])
    check_spectral_bounds([Graph(0, [], [])])
    low, high = c.spectral_bounds(tg_lpe.Graph(torch.zeros(2, 0, dtype=torch.int64), 3))
    assert low.tolist() == high.tolist() == [1.0]


def test_spectral_bounds_do_not_look_at_edges_of_weight_zero() -> None:
    joined = tg_lpe.Graph(torch.tensor([[0, 1, 2], [1, 2, 3]]), 4, edge_weight=torch.tensor([1.0, 0.0, 3.0]))
    for low, high in (c.spectral_bounds(joined), c.spectral_interval(joined)):
        assert float(low) == pytest.approx(2.0) and float(high) == pytest.approx(6.0, rel=1e-11)


def test_intervals_of_large_graphs() -> None:
    """The eigenvalues of circulant graphs are sums of cosines."""
    n, skips = 3000, (1, 7, 54, 390)
    graph = from_networkx(nx.circulant_graph(n, skips), lambda number: 2.0)
    values = sum(4 * (1 - np.cos(2 * np.pi * np.arange(n) * skip / n)) for skip in skips)
    whole = tg_lpe.Graph(graph.edge_index(), n, edge_weight=graph.edge_weight())
    low, high = (float(x) for x in c.spectral_interval(whole))
    second, largest = np.sort(values)[1], values.max()
    assert n > EXACT_NODES and 0.97 * second < low <= 1.01 * second and largest <= high < 1.2 * largest
    batch = torch.zeros(n, dtype=torch.int64)
    apart = tg_lpe.Graph(graph.edge_index(), n + 1, edge_weight=graph.edge_weight())
    several = tg_lpe.Graph(graph.edge_index(), n + 1, batch=torch.cat([batch, torch.ones(1, dtype=torch.int64)]))
    for other in (apart, several):
        with pytest.raises(ValueError, match=f"above {EXACT_NODES} nodes"):
            c.spectral_interval(other)
