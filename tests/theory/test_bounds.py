"""Bounds and the layer counts that follow from them; bounds on eigenvalues without eigenvalues."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from itertools import islice, pairwise

import networkx as nx
import numpy as np
import pytest
import torch
from construction_graphs import CASES, WEIGHTED_PATH, Case, csl, every_case
from helpers import Graph, batch_of, corner_cases, few, from_networkx, graphs, normal
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tg_lpe import Incidence
from tg_lpe import theory as c
from tg_lpe.theory.bounds import EXACT_NODES
from tg_lpe.theory.functions import STEP

TOLERANCES = (1e-2, 1e-4, 1e-6)
COUNT, NODES = 200, 8


def nonzero_range(graph: Graph) -> tuple[float, float]:
    """Smallest and largest non-zero eigenvalue of the Laplacian, over the components; one where there are no edges."""
    lows, highs = [1.0], [1.0]
    for part in nx.connected_components(graph.networkx()):
        if len(part) > 1:
            values = np.linalg.eigvalsh(nx.laplacian_matrix(graph.networkx().subgraph(part)).toarray())
            lows.append(values[1])
            highs.append(values[-1])
    return (min(lows[1:]), max(highs[1:])) if len(lows) > 1 else (1.0, 1.0)


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


@few
@given(st.integers(0, 10**6))
def test_counts_are_found_wherever_they_lie(wanted: int) -> None:
    assert c.layers_needed(lambda n: 0.5 if n >= wanted else 2.0, 1.0) == wanted


@pytest.mark.parametrize("number", range(len(BOUNDS)))
def test_bounds_fall_with_depth(number: int) -> None:
    values = [BOUNDS[number](n) for n in (*range(40), 10**4, 10**6)]
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in pairwise(values)) and values[-1] < 1e-6


def test_counts_up_to_what_is_allowed() -> None:
    bound = BOUNDS[0]
    count = c.layers_needed(bound, 1e-6)
    assert c.layers_needed(bound, 1e-6, count) == count
    with pytest.raises(ValueError, match=rf"1e-06 needs more than {count - 1} layers, where the bound is 1\.\d+e-06"):
        c.layers_needed(bound, 1e-6, count - 1)
    for tolerance in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=f"tolerance must be positive, got {tolerance}"):
            c.layers_needed(bound, tolerance)


def test_the_example_of_the_docstring() -> None:
    assert c.layers_needed(lambda layers: c.electric_flow_bound(layers, 0.039, 9.7), 1e-6) == 4244


@pytest.mark.parametrize(
    "bound", [c.electric_flow_bound, c.fast_electric_flow_bound, c.resistive_embedding_bound], ids=lambda f: f.__name__
)
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 1.0), (2.0, 1.0), (1.0, math.inf), (math.nan, 1.0)])
def test_refuses_intervals_of_no_spectrum(bound: Callable[..., float], low: float, high: float) -> None:
    with pytest.raises(ValueError, match=f"0 < lambda_min <= lambda_max < inf must hold, got {low} and {high}"):
        bound(3, low, high)


@pytest.mark.parametrize("step", [0.0, -0.1, 0.51, math.nan])
def test_refuses_steps_that_are_too_long(step: float) -> None:
    for bound in (c.electric_flow_bound, c.fast_electric_flow_bound):
        with pytest.raises(ValueError, match=rf"step_size must lie in \(0, 1 / lambda_max = 0\.5\], got {step:g}"):
            bound(3, 0.1, 2.0, step)


@pytest.mark.parametrize("s", [-1.0, math.inf, math.nan])
def test_refuses_temperatures(s: float) -> None:
    for bound in (c.heat_kernel_bound, c.fast_heat_kernel_bound):
        with pytest.raises(ValueError, match=f"s must be finite and not negative, got {s}"):
            bound(3, 2.0, s)


@pytest.mark.parametrize("ratio", [1.0, 2.0, -0.1, math.nan])
def test_refuses_iterations_without_a_gap(ratio: float) -> None:
    with pytest.raises(ValueError, match=rf"ratio must lie in \[0, 1\), got {ratio}"):
        c.subspace_iteration_bound(3, ratio, 1.0)


def test_no_bound_overflows() -> None:
    assert c.heat_kernel_bound(1000, 1000.0, 1.0) == math.inf
    assert c.heat_kernel_bound(10**5, 1000.0, 1.0) == 0.0
    assert c.fast_heat_kernel_bound(10**5, 1000.0, 1.0) < 1e-200
    assert c.fast_electric_flow_bound(10**5, 1e-9, 1.0) == 0.0
    assert [c.heat_kernel_bound(n, 2.0, 0.0) for n in (0, 1, 5)] == [1.0, 0.0, 0.0]
    assert c.resistive_embedding_bound(0, 0.25, 1.0) == 2.0


# With the number of layers for a tolerance, the error is below the tolerance: on two hundred graphs each.


def random_conductances() -> Tensor:
    """Adjacency matrices ``[200, 8, 8]``: complete, CSL, paths, and random ones that may fall into components."""
    generator = np.random.default_rng(0)
    matrices = []
    for number in range(COUNT):
        kind = number % 4
        if kind == 0:
            graph, width = nx.complete_graph(NODES), 2.0
        elif kind == 1:
            graph, width = csl(NODES, 2 + number // 4 % 2), 1.0
        elif kind == 2:
            graph, width = nx.path_graph(NODES), 0.5
        else:
            graph, width = nx.gnp_random_graph(NODES, 0.35, seed=number), 0.5
        weight = np.exp(np.triu(generator.uniform(-width, width, (NODES, NODES)), 1))
        matrices.append(nx.to_numpy_array(graph, nodelist=range(NODES)) * np.triu(weight, 1))
    adjacency = torch.from_numpy(np.stack(matrices))
    return adjacency + adjacency.mT


class Many:
    """Two hundred graphs in one batch of dense matrices, and their spectra."""

    def __init__(self) -> None:
        adjacency = random_conductances()
        tail, head = np.triu_indices(NODES, 1)
        root = adjacency[:, tail, head].sqrt()
        self.adjacency, self.b = adjacency, torch.zeros(COUNT, NODES, len(tail)).double()
        self.b[:, tail, range(len(tail))], self.b[:, head, range(len(tail))] = -root, root
        self.laplacian = torch.diag_embed(adjacency.sum(-1)) - adjacency
        self.values, self.vectors = torch.linalg.eigh(self.laplacian)
        self.there = self.values > 1e-9
        self.low = torch.where(self.there, self.values, math.inf).amin(-1)
        self.high = self.values[:, -1]

    def function(self, of: Callable[[Tensor], Tensor]) -> Tensor:
        """A function of the Laplacian that is zero on its null space."""
        safe = torch.where(self.there, self.values, 1.0)
        return (self.vectors * torch.where(self.there, of(safe), 0.0).unsqueeze(-2)) @ self.vectors.mT

    @cached_property
    def incidences(self) -> list[Incidence]:
        found = [adjacency.triu(1).nonzero().T for adjacency in self.adjacency]
        pairs = zip(found, self.adjacency, strict=True)
        return [Incidence(index, NODES, edge_weight=own[index[0], index[1]]) for index, own in pairs]


@pytest.fixture(scope="module")
def many() -> Many:
    return Many()


def counts_of(bound: Callable[[int, float, float], float], low: Tensor, high: Tensor) -> Tensor:
    """Layers for each tolerance and graph, ``[3, 200]``."""
    pairs = list(zip(low.tolist(), high.tolist(), strict=True))
    own = [[c.layers_needed(lambda n, a=a, b=b: bound(n, a, b), tol) for a, b in pairs] for tol in TOLERANCES]
    return torch.tensor(own)


def assert_below_tolerance(counts: Tensor, errors_at: Callable[[Tensor], Tensor], states) -> None:
    """Check each graph's error at the depths computed for it."""
    depths, seen = set(counts.flatten().tolist()), 0
    with torch.no_grad():
        for depth, state in enumerate(states):
            if depth in depths:
                errors = errors_at(state)
                for tolerance, own in zip(TOLERANCES, counts, strict=True):
                    assert (errors[own == depth] < tolerance).all(), (depth, tolerance)
                    seen += int((own == depth).sum())
    assert seen == counts.numel()


def demands(many: Many) -> Tensor:
    """The eigenvector of the smallest non-zero eigenvalue, of length one: for it the bound is sharp."""
    first = many.there.double().argmax(-1)
    return many.vectors.gather(2, first.view(-1, 1, 1).expand(-1, NODES, 1))


def test_electric_flow_from_a_tolerance(many: Many) -> None:
    """Each graph is divided by its largest eigenvalue, so that one step size fits all."""
    b, low = many.b / many.high.sqrt().view(-1, 1, 1), many.low / many.high
    counts = counts_of(c.electric_flow_bound, low, torch.ones(COUNT))
    psi, model = demands(many), c.electric_flow(1, int(counts.max()), 1.0)
    expected = many.function(lambda x: 1 / x) * many.high.view(-1, 1, 1) @ psi
    states = (phi[..., 1:] for _, phi in model.trace(b, model.embed(psi)))
    assert_below_tolerance(counts, lambda phi: torch.linalg.vector_norm(phi - expected, dim=(1, 2)), states)


def test_resistive_embedding_from_a_tolerance(many: Many) -> None:
    b, low = many.b / many.high.sqrt().view(-1, 1, 1), many.low / many.high
    counts = counts_of(c.resistive_embedding_bound, low, torch.ones(COUNT))
    psi, model = demands(many), c.resistive_embedding_layers(1, int(counts.max()), 1.0)
    expected = many.function(lambda x: x**-0.5) * many.high.sqrt().view(-1, 1, 1) @ psi
    states = (phi[..., 1:] for _, phi in model.trace(b, model.embed(psi)))
    assert_below_tolerance(counts, lambda phi: torch.linalg.vector_norm(phi - expected, dim=(1, 2)), states)


def test_fast_electric_flow_from_a_tolerance(many: Many) -> None:
    counts = counts_of(c.fast_electric_flow_bound, many.low, many.high)
    z = c.fast_electric_flow_input(many.laplacian, many.function(torch.ones_like), 1 / many.high.view(-1, 1, 1))
    states = (c.fast_electric_flow_output(z) for z in c.fast_electric_flow(int(counts.max())).trace(z))
    expected = many.function(lambda x: 1 / x)
    assert_below_tolerance(counts, lambda phi: torch.linalg.matrix_norm(phi - expected, 2), states)


@pytest.mark.parametrize("s", [0.1, 0.7])
def test_heat_kernels_from_a_tolerance(many: Many, s: float) -> None:
    exact = torch.linalg.matrix_exp(-s * many.laplacian)
    counts = counts_of(lambda n, _, high: c.heat_kernel_bound(n, high, s), many.low, many.high)
    model = c.heat_kernel_layers(NODES, int(counts.max()), s)
    start = model.embed(torch.eye(NODES).double().expand(COUNT, NODES, NODES))
    states = (phi[..., NODES:] for _, phi in model.trace(many.b, start))
    assert_below_tolerance(counts, lambda phi: torch.linalg.matrix_norm(phi - exact, 2), states)

    counts = counts_of(lambda n, _, high: c.fast_heat_kernel_bound(n, high, s), many.low, many.high)
    for tolerance, own in zip(TOLERANCES, counts, strict=True):
        for layers in own.unique().tolist():
            at = own == layers
            with torch.no_grad():
                out = c.fast_heat_kernel(layers)(c.fast_heat_kernel_input(many.laplacian[at], layers, s))
            assert (torch.linalg.matrix_norm(out - exact[at], 2) < tolerance).all(), (layers, tolerance)


def sines(phi: Tensor, span: Tensor) -> Tensor:
    """The sine of the largest angle between the spans of orthonormal columns, graph by graph."""
    return torch.linalg.matrix_norm(phi - span @ (span.mT @ phi), 2)


@pytest.mark.parametrize("which", ["bottom", "top"])
def test_subspace_iteration_from_a_tolerance(many: Many, which: str) -> None:
    """Two vectors of each graph, divided by its largest eigenvalue; without a gap after them there is no bound."""
    k, scale = 2, many.high.view(-1, 1, 1)
    values, vectors = many.values / many.high.unsqueeze(-1), many.vectors
    values, vectors = (1.1 - values, vectors) if which == "bottom" else (values.flip(-1), vectors.flip(-1))
    ratio, span = values[:, k] / values[:, k - 1], vectors[..., :k]
    gap = ratio < 0.94
    assert gap.sum() > 100
    start = torch.linalg.qr(normal(COUNT, NODES, k))[0]
    tangent = 1 / torch.linalg.svdvals(span.mT @ start)[:, -1]
    pairs = list(zip(ratio[gap].tolist(), tangent[gap].tolist(), strict=True))
    counts = torch.tensor(
        [[c.layers_needed(lambda n, a=a: c.subspace_iteration_bound(n, *a), tol) for a in pairs] for tol in TOLERANCES]
    )
    last = int(counts.max())
    model = c.bottom_eigenvectors(k, last, 1.1) if which == "bottom" else c.top_eigenvectors(k, last)
    states = islice(model.trace((many.b / scale.sqrt())[gap], start[gap]), 0, None, k + 1)
    assert_below_tolerance(counts, lambda state: sines(state[1], span[gap]), states)


@pytest.mark.parametrize("which", ["bottom", "top"])
def test_eigenvectors_from_a_tolerance(many: Many, which: str) -> None:
    """A hundred graphs at each end; spans are not compared where an eigenvalue repeats at their end."""
    k, compared = 2, 0
    for number in range(which == "top", COUNT, 2):
        tolerance = TOLERANCES[number % 3]
        graph, values = many.incidences[number], many.values[number]
        vectors, found = c.laplacian_eigenvectors(graph, k, which, tolerance=tolerance)
        wanted = [0, 1] if which == "bottom" else [NODES - 1, NODES - 2]
        behind = k if which == "bottom" else NODES - 1 - k
        assert (found[0] - values[wanted]).abs().max() < tolerance * many.high[number]
        if (values[behind] - values[wanted[-1]]).abs() > 1e-6:
            assert sines(vectors, many.vectors[number][:, wanted]) < tolerance, number
            compared += 1
    assert compared > 80


# Eigenvalues.


def check_spectral_bounds(parts: list[Graph]) -> None:
    low, high = c.spectral_bounds(Incidence(**batch_of(parts).arguments()))
    exact_low, exact_high = c.spectral_interval(Incidence(**batch_of(parts).arguments()))
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
    low, high = c.spectral_bounds(Incidence(torch.zeros(2, 0, dtype=torch.int64), 3))
    assert low.tolist() == high.tolist() == [1.0]


@pytest.mark.parametrize("weight", [1e-5, 1.0, 3e4])
def test_spectral_bounds_are_exact_for_two_nodes(weight: float) -> None:
    graph = Incidence(torch.tensor([[0], [1]]), 2, edge_weight=torch.tensor([weight]).double())
    for found in (c.spectral_bounds(graph), c.spectral_interval(graph)):
        assert [float(x) for x in found] == pytest.approx([2 * weight, 2 * weight], rel=1e-11)


def test_spectral_bounds_do_not_look_at_edges_of_weight_zero() -> None:
    joined = Incidence(torch.tensor([[0, 1, 2], [1, 2, 3]]), 4, edge_weight=torch.tensor([1.0, 0.0, 3.0]))
    for low, high in (c.spectral_bounds(joined), c.spectral_interval(joined)):
        assert float(low) == pytest.approx(2.0) and float(high) == pytest.approx(6.0, rel=1e-11)


@every_case
def test_intervals_are_exact_for_small_graphs(case: Case) -> None:
    low, high = c.spectral_interval(case.incidence)
    assert float(low) == pytest.approx(case.lambda_min, rel=1e-11)
    assert float(high) == pytest.approx(case.lambda_max, rel=1e-11)


def test_intervals_of_large_graphs() -> None:
    """The eigenvalues of circulant graphs are sums of cosines."""
    n, skips = 3000, (1, 7, 54, 390)
    graph = from_networkx(nx.circulant_graph(n, skips), lambda number: 2.0)
    values = sum(4 * (1 - np.cos(2 * np.pi * np.arange(n) * skip / n)) for skip in skips)
    whole = Incidence(graph.edge_index(), n, edge_weight=graph.edge_weight())
    low, high = (float(x) for x in c.spectral_interval(whole))
    second, largest = np.sort(values)[1], values.max()
    assert n > EXACT_NODES and 0.97 * second < low <= 1.01 * second and largest <= high < 1.2 * largest
    batch = torch.zeros(n, dtype=torch.int64)
    apart = Incidence(graph.edge_index(), n + 1, edge_weight=graph.edge_weight())
    several = Incidence(graph.edge_index(), n + 1, batch=torch.cat([batch, torch.ones(1, dtype=torch.int64)]))
    for other in (apart, several):
        with pytest.raises(ValueError, match=rf"up to {EXACT_NODES} nodes a graph, got {other.max_nodes}"):
            c.spectral_interval(other)


def test_refuses_grounded_graphs() -> None:
    grounded = Incidence(torch.tensor([[0], [1]]), 2, ground=torch.ones(2))
    for function in (c.spectral_bounds, c.spectral_interval):
        with pytest.raises(ValueError, match="without ground conductances"):
            function(grounded)


def test_temperatures_of_one_step() -> None:
    """The terms of one run of the series stay so small that rounding costs four digits of sixteen."""
    assert math.exp(STEP) * 2.0**-53 < 1e-12
    assert WEIGHTED_PATH.lambda_max / WEIGHTED_PATH.lambda_min == pytest.approx(249, abs=1)
