"""The public functions against networkx, scipy and numpy: any graph, any list of its edges, any batch."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
import torch
from construction_graphs import CASES, WEIGHTED_PATH, Case, every_case
from helpers import (
    Graph,
    corner_cases,
    data_of,
    few,
    fewer,
    graph_of,
    graphs,
    listings,
    normal,
    pseudo_inverse,
    refusals,
    relative_error,
)
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.linalg import expm
from torch import Tensor
from torch_geometric.data import Batch, Data

import tg_lpe
from tg_lpe import theory as c
from tg_lpe.theory.functions import FAST_FLOOR

EPS = 2.0**-52
LOOPS = {
    "effective_resistance": lambda data, **more: c.effective_resistance(data, **more),
    "electric_potential": lambda data, **more: c.electric_potential(data, normal(data.num_nodes, 2), **more),
    "heat_kernel": lambda data, **more: c.heat_kernel(data, 1.0, **more),
    "heat_kernel_columns": lambda data, **more: c.heat_kernel(data, 1.0, normal(data.num_nodes, 2), **more),
    "resistive_embedding": lambda data, **more: c.resistive_embedding(data, **more),
    "laplacian_eigenvectors": lambda data, **more: c.laplacian_eigenvectors(data, 2, **more)[0],
}
every_function = pytest.mark.parametrize("name", sorted(LOOPS))


def mates(graph: Graph) -> np.ndarray:
    """Whether two nodes are in one component."""
    together = np.zeros((graph.num_nodes, graph.num_nodes), dtype=bool)
    for part in nx.connected_components(graph.networkx()) if graph.num_nodes else ():
        together[np.ix_(sorted(part), sorted(part))] = True
    return together


def resistances(graph: Graph) -> np.ndarray:
    """Effective resistances from the pseudo-inverse, infinite between components."""
    inverse = pseudo_inverse(graph)
    diagonal = np.diag(inverse)
    out = np.where(mates(graph), diagonal[:, None] + diagonal[None] - 2 * inverse, math.inf)
    np.fill_diagonal(out, 0.0)
    return out


def condition(graph: Graph) -> float:
    """``lambda_max / lambda_min`` at most, by :func:`tg_lpe.theory.spectral_bounds`."""
    low, high = c.spectral_bounds(graph_of(graph))
    return float(high / low)


def assert_resistances(got: Tensor | np.ndarray, expected: np.ndarray, tolerance: float = 1e-8) -> None:
    got = np.asarray(got)
    finite = np.isfinite(expected)
    assert got.shape == expected.shape and np.array_equal(np.isinf(got), ~finite) and (got >= 0).all()
    np.testing.assert_allclose(got[finite], expected[finite], rtol=tolerance, atol=tolerance)


# Effective resistances.


@pytest.mark.parametrize("number", range(len(corner_cases())))
def test_effective_resistance_of_corner_cases(number: int) -> None:
    graph = corner_cases()[number]
    # Rounding grows with the width of the spectrum: weights over ten orders leave at least eight digits.
    allowed = max(1e-8, 10 * EPS * condition(graph))
    assert allowed < 1e-2
    scale = 1 / min(filter(None, graph.weights), default=1.0)
    expected = resistances(graph)
    got = np.asarray(c.effective_resistance(graph_of(graph)))
    assert_resistances(got / scale, expected / scale, allowed)


@few
@given(st.data(), graphs(min_nodes=1, exponents=(-1.0, 1.0)))
def test_edges_agree_with_all_pairs_for_any_edge_list(data: st.DataObject, graph: Graph) -> None:
    """Self-loops, duplicates and one-way edges do not change the graph."""
    index, weight = data.draw(listings(graph))
    listed = Data(edge_index=index, edge_weight=weight, num_nodes=graph.num_nodes)
    every, edges = c.effective_resistance(listed), c.effective_resistance(listed, "edges")
    assert_resistances(every, resistances(graph))
    assert edges.shape == (index.size(1),) and edges.dtype == torch.float64
    assert_resistances(edges, every[index[0], index[1]].numpy(), 1e-12)
    assert not edges[index[0] == index[1]].any()


@fewer
@given(st.lists(st.one_of(graphs(exponents=(-1.0, 1.0)), st.sampled_from(corner_cases()[:5])), max_size=5))
def test_resistances_of_a_batch(parts: list[Graph]) -> None:
    graph = graph_of(*parts)
    edges = c.effective_resistance(graph, "edges").split([2 * len(part.edges) for part in parts])
    for part, at in zip(parts, edges, strict=True):
        expected = resistances(part)
        assert_resistances(at, np.array([expected[u, v] for u, v in part.both_ways()[0].T.tolist()]))


# Potentials.


@few
@given(graphs(min_nodes=1, exponents=(-1.0, 1.0)), st.sampled_from([1e-2, 1e-6]))
def test_potentials_of_random_graphs(graph: Graph, tolerance: float) -> None:
    assume(condition(graph) < 500)
    demands = normal(graph.num_nodes, 2)
    laplacian, inverse = graph.laplacian(), pseudo_inverse(graph)
    phi = c.electric_potential(data_of(graph), demands, tolerance).numpy()
    psi = laplacian @ inverse @ demands.numpy()
    size = np.linalg.norm(psi, axis=0)
    assert (np.linalg.norm(psi - laplacian @ phi, axis=0) <= tolerance * size + 1e-12).all()
    assert (np.linalg.norm(phi - inverse @ psi, axis=0) <= tolerance * size / smallest(graph) + 1e-12).all()
    assert np.abs(mates(graph) @ phi).max() < 1e-9, "of mean zero on each component"


def smallest(graph: Graph) -> float:
    return float(c.spectral_interval(graph_of(graph))[0])


@few
@given(st.data(), graphs(min_nodes=1, exponents=(-1.0, 1.0)))
def test_currents_obey_the_laws_of_ohm_and_kirchhoff(data: st.DataObject, graph: Graph) -> None:
    index, weight = data.draw(listings(graph))
    listed = Data(edge_index=index, edge_weight=weight, num_nodes=graph.num_nodes)
    potential = normal(graph.num_nodes, 2)
    current = c.electric_current(listed, potential)
    expected = weight.unsqueeze(-1) * (potential[index[0]] - potential[index[1]])
    assert current.dtype == torch.float64 and current.shape == (index.size(1), 2)
    assert relative_error(current, expected) < 1e-13
    both = Data(edge_index=graph.both_ways()[0], edge_weight=graph.both_ways()[1], num_nodes=graph.num_nodes)
    out = torch.zeros_like(potential).index_add(0, both.edge_index[0], c.electric_current(both, potential))
    assert relative_error(out, graph.laplacian() @ potential.numpy()) < 1e-12


# Heat kernels.


@few
@given(graphs(min_nodes=1, exponents=(-1.0, 1.0)), st.sampled_from([0.0, 0.3, 5.0]), st.sampled_from([1e-2, 1e-6]))
def test_heat_kernels_of_random_graphs(graph: Graph, s: float, tolerance: float) -> None:
    expected, psi = expm(-s * graph.laplacian()), normal(graph.num_nodes, 2)
    got = c.heat_kernel(data_of(graph), s, tolerance=tolerance)
    assert got.dtype == torch.float64 and np.linalg.norm(got.numpy() - expected, 2) <= tolerance
    columns = c.heat_kernel(data_of(graph), s, psi, tolerance=tolerance).numpy()
    errors = np.linalg.norm(columns - expected @ psi.numpy(), axis=0)
    assert (errors <= tolerance * np.linalg.norm(psi, axis=0)).all()


# Resistive embeddings.


@every_case
def test_resistive_embeddings_of_known_graphs(case: Case) -> None:
    for tolerance in (1e-2, 1e-7):
        rows = c.resistive_embedding(case.incidence, tolerance=tolerance)
        error = float(torch.linalg.matrix_norm(rows - case.root, 2))
        assert error <= tolerance * case.lambda_min**-0.5
    squared = (rows.unsqueeze(0) - rows.unsqueeze(1)).square().sum(-1).numpy()
    together = mates(case.graph)
    assert relative_error(squared[together], resistances(case.graph)[together]) < 1e-6


def test_projected_embeddings() -> None:
    """``k`` random directions keep squared distances up to about ``sqrt(2 / k)``."""
    case, k = CASES[1], 2000
    rows = c.resistive_embedding(case.incidence, k)
    squared = (rows.unsqueeze(0) - rows.unsqueeze(1)).square().sum(-1).numpy()
    off = ~np.eye(10, dtype=bool)
    ratio = squared[off] / resistances(case.graph)[off]
    assert rows.shape == (10, k) and np.abs(ratio - 1).max() < 5 * (2 / k) ** 0.5
    few_columns = c.resistive_embedding(case.incidence, 8, seed=3)
    assert torch.equal(few_columns, c.resistive_embedding(case.incidence, 8, seed=3))
    assert relative_error(few_columns, c.resistive_embedding(case.incidence, 8, seed=4)) > 0.1


# Eigenvectors.


def check_eigenvectors(graph: tg_lpe.Graph, laplacian: np.ndarray, k: int, which: str) -> None:
    n = graph.num_nodes
    vectors, found = c.laplacian_eigenvectors(graph, k, which, max_layers=10**6)
    vectors, found, count = vectors.numpy(), found[0].numpy(), min(k, n)
    assert vectors.shape == (n, k) and found.shape == (k,)
    assert not vectors[:, count:].any() and np.isnan(found[count:]).all()
    values, basis = np.linalg.eigh(laplacian)
    if which == "top":
        values, basis = values[::-1], basis[:, ::-1]
    scale = max(abs(values).max(), 1e-300)
    assert np.abs(found[:count] - values[:count]).max() < 1e-6 * scale
    np.testing.assert_allclose(vectors[:, :count].T @ vectors[:, :count], np.eye(count), atol=1e-10)
    if count < n and abs(values[count] - values[count - 1]) > 1e-6 * scale:
        assert np.linalg.norm(vectors - basis[:, :count] @ (basis[:, :count].T @ vectors), 2) < 1e-6


@pytest.mark.parametrize("which", ["bottom", "top"])
@every_case
def test_eigenvectors_of_known_graphs(case: Case, which: str) -> None:
    for k in (1, 4):
        check_eigenvectors(case.incidence, case.laplacian.numpy(), k, which)


# Refusals, and properties that all of them share.

PATH, BATCH = WEIGHTED_PATH.incidence, Batch.from_data_list([data_of(case.graph) for case in CASES[:2]])

test_refusals = refusals(
    lambda function, *arguments, **options: getattr(c, function)(*arguments, **options),
    *((("electric_potential", PATH, torch.zeros(shape)), "demands") for shape in ((10,), (9, 2), (10, 0), (10, 2, 1))),
    (("electric_current", PATH, torch.zeros(9, 2)), "potential"),
    *((("heat_kernel", PATH, s, psi), "s") for s in (-1.0, math.inf, math.nan) for psi in (None, normal(10, 1))),
    (("heat_kernel", PATH, 1.0, normal(3, 2)), "psi"),
    (("heat_kernel", BATCH, 1.0), "pass psi"),
    (("resistive_embedding", PATH, 0), "k"),
    (("resistive_embedding", BATCH), "pass k"),
    (("effective_resistance", BATCH, "every"), "pairs"),
    (("effective_resistance", BATCH), "pairs='edges'"),
    (("laplacian_eigenvectors", PATH, 2, "middle"), "which"),
    (("laplacian_eigenvectors", PATH, 0), "k"),
    (("effective_resistance", [PATH]), TypeError, "list"),
)
test_refused_tolerances = refusals(
    lambda function, **options: LOOPS[function](PATH, **options),
    ({"function": "effective_resistance", "tolerance": 0.0}, "tolerance"),
    ({"function": "heat_kernel", "tolerance": 1e-8}, f"{FAST_FLOOR:g}"),
    *(
        ({"function": function, "max_layers": 9}, "max_layers=9")
        for function in ("electric_potential", "heat_kernel_columns", "resistive_embedding", "laplacian_eigenvectors")
    ),
)


@every_function
def test_nodes_without_edges(name: str) -> None:
    edgeless = Data(edge_index=torch.zeros(2, 0, dtype=torch.int64), num_nodes=3)
    out = LOOPS[name](edgeless)
    expected = {
        "effective_resistance": torch.full((3, 3), math.inf).fill_diagonal_(0.0),
        "electric_potential": torch.zeros(3, 2),
        "heat_kernel": torch.eye(3),
        "heat_kernel_columns": normal(3, 2),
        "resistive_embedding": torch.zeros(3, 3),
    }
    if name in expected:
        assert torch.allclose(out, expected[name].double(), rtol=0, atol=1e-15)
    empty = LOOPS[name](Data(edge_index=torch.zeros(2, 0, dtype=torch.int64), num_nodes=0))
    assert empty.size(0) == 0
