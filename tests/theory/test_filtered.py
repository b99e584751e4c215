"""Eigenvectors of graphs too large for Lemma 6, against numpy; the filter against numpy's Chebyshev polynomials."""

from __future__ import annotations

import math
import warnings

import networkx as nx
import numpy as np
import pytest
import torch
from construction_graphs import CASES, Case, angle, every_case
from helpers import Graph, batch_of, from_networkx, graph_of, normal, refusals, relative_error
from torch import Tensor

import tg_lpe
from tg_lpe import theory as c

pytestmark = pytest.mark.usefixtures("no_grad")


@every_case
@pytest.mark.parametrize("degree", [1, 2, 7, 30])
@pytest.mark.parametrize("side", ["bottom", "top"])
def test_the_filter_is_a_chebyshev_polynomial(case: Case, degree: int, side: str) -> None:
    low, high = (0.4 * case.lambda_max, case.lambda_max) if side == "bottom" else (0.0, 0.7 * case.lambda_max)
    psi = normal(case.num_nodes, 3)
    points = (high + low - 2 * case.values) / (high - low)
    raised = np.polynomial.chebyshev.chebval(points, [0.0] * degree + [1.0])
    expected = (case.vectors * raised) @ (case.vectors.T @ psi.numpy())
    model = c.chebyshev_filter(3, degree, low, high)
    assert model.num_layers == degree
    assert relative_error(model(case.b, psi), expected) < 1e-9
    assert relative_error(model(case.incidence, psi), expected) < 1e-9
    d = case.incidence.num_edges
    z = torch.cat([case.b, model.embed(psi)], dim=1).mT
    assert relative_error(model.full(d)(z)[d:].mT[:, -3:], expected) < 1e-9


@pytest.mark.parametrize("degree", [2, 4, 8])
def test_loops_of_filters_meet_their_bound(degree: int) -> None:
    """On the normalised Laplacian; as many columns as wanted vectors, and a cut above all others."""
    graph = graph_of(from_networkx(nx.random_partition_graph([20] * 6, 0.5, 0.03, seed=0)))
    b = graph.dense() / graph.laplacian_diagonal(torch.empty(0).double()).sqrt().unsqueeze(1)
    values, vectors = torch.linalg.eigh(b @ b.mT)
    basis = vectors[:, 1:6].numpy()

    def tangent(columns: Tensor) -> float:
        return math.tan(math.asin(min(angle(columns, basis), 1.0)))

    low, x = float(values[6]), normal(graph.num_nodes, 5)
    x -= vectors[:, :1] @ (vectors[:, :1].mT @ x)
    first, ratio = tangent(x), c.chebyshev_filter_bound(degree, low, 2.0, float(values[5]))
    for loop in range(1, 6):
        x = torch.linalg.qr(c.chebyshev_filter(5, degree, low, 2.0)(b, x)).Q
        x -= vectors[:, :1] @ (vectors[:, :1].mT @ x)
        assert tangent(x) <= 1.0001 * c.subspace_iteration_bound(loop, ratio, first) + 1e-7
    assert tangent(x) < 0.01 * first


test_refusals = refusals(c.chebyshev_filter, ((2, 0, 0.0, 1.0), "degree"), ((2, 3, 1.0, 1.0), "low"))


def dense(graph: tg_lpe.Graph) -> np.ndarray:
    b = graph.dense()
    return (b @ b.mT).numpy()


LARGE = {
    "random": from_networkx(nx.random_regular_graph(4, 1030, seed=0)),
    "weighted grid": from_networkx(nx.grid_2d_graph(31, 34), lambda i: 0.5 + (7 * i % 10) / 10),
    "two components": from_networkx(nx.disjoint_union(nx.cycle_graph(400), nx.random_regular_graph(3, 700, seed=1))),
}
large_graphs = pytest.mark.parametrize("name", sorted(LARGE))


@large_graphs
@pytest.mark.parametrize("which", ["bottom", "top"])
@pytest.mark.parametrize("k", [1, 11])
def test_eigenvectors_of_large_graphs(name: str, which: str, k: int) -> None:
    graph = graph_of(LARGE[name])
    laplacian = dense(graph)
    values, vectors = np.linalg.eigh(laplacian)
    if which == "top":
        values, vectors = values[::-1], vectors[:, ::-1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warning about a missing gap
        got, found = c.laplacian_eigenvectors(graph, k, which, tolerance=1e-8)
    assert relative_error(got.mT @ got, torch.eye(k)) < 1e-12
    assert np.abs(found[0].numpy() - values[:k]).max() < 1e-9 * values.max()
    assert np.abs(laplacian @ got.numpy() - got.numpy() * found[0].numpy()).max() < 1e-6
    if abs(values[k] - values[k - 1]) > 1e-3:
        assert angle(got, vectors[:, :k]) < 1e-5


def test_a_batch_of_small_and_large_graphs() -> None:
    parts = [CASES[4].graph, LARGE["weighted grid"], Graph(0, [], []), CASES[8].graph]
    batch = batch_of(parts)
    vectors, values = c.laplacian_eigenvectors(tg_lpe.Graph(**batch.arguments()), 4)
    for number, (part, own) in enumerate(zip(parts, batch.split(vectors), strict=True)):
        if part.num_nodes:
            alone, found = c.laplacian_eigenvectors(graph_of(part), 4)
            assert relative_error(own, alone) < 1e-8
            assert relative_error(values[number], found[0]) < 1e-8


def test_a_missing_gap_is_reported() -> None:
    star = graph_of(from_networkx(nx.star_graph(1100)))
    with pytest.warns(UserWarning, match="gap is too small"):
        vectors, values = c.laplacian_eigenvectors(star, 3)
    assert np.abs(values[0].numpy() - [0.0, 1.0, 1.0]).max() < 1e-8
    assert float((star.laplacian(vectors) - vectors * values[0]).abs().max()) < 1e-7
