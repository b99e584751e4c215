"""Eq. (7) against the paper's formula in numpy, against eq. (3) with Lemma 9's blocks, and on the edges alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from construction_graphs import CASES, random_weights
from helpers import Graph, LargestTensor, few, graph_of, graphs, normal, randomize_, refusals, relative_error
from hypothesis import given
from hypothesis import strategies as st

import tg_lpe
from tg_lpe import theory as c
from tg_lpe.data.synthetic import random_regular_edges
from tg_lpe.theory.efficient import EfficientTransformer, Weights, efficient_layer

normalisations = pytest.mark.parametrize("how", [None, "frobenius", "columns"])
incidences = pytest.mark.parametrize("incidence", [False, True])


def literal(b: np.ndarray, phi: np.ndarray, w: Weights) -> tuple[np.ndarray, np.ndarray]:
    """Eq. (7): both lines from the same similarity."""
    a_v, a_q, a_k, a_r, w_v, w_q, w_k, w_r = (value.detach().numpy() for value in w)
    similarity = a_q * a_k * b @ b.T + phi @ w_q.T @ w_k @ phi.T
    b_next = (1 + a_r) * b.T + a_v * b.T @ similarity
    phi_next = (np.eye(len(w_r)) + w_r) @ phi.T + w_v @ phi.T @ similarity
    return b_next.T, phi_next.T


def loaded(
    k: int, width: int, num_weights: int, seed: int = 0, alpha_v: bool = True, **options
) -> EfficientTransformer:
    model = randomize_(EfficientTransformer(k, width, num_weights, **options), seed, 0.3)
    if not alpha_v:
        torch.nn.init.zeros_(model.alpha_v)
    return model


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_a_layer_is_eq_7(lead: tuple[int, ...]) -> None:
    b, phi, w = normal(*lead, 6, 8, seed=20), normal(*lead, 6, 4, seed=21), random_weights((), 4)
    got = efficient_layer(b, phi, w)
    flat = zip(b.reshape(-1, 6, 8), phi.reshape(-1, 6, 4), strict=True)
    for number, (own_b, own_phi) in enumerate(flat):
        for mine, expected in zip(got, literal(own_b.numpy(), own_phi.numpy(), w), strict=True):
            assert relative_error(mine.reshape(-1, *expected.shape)[number], expected) < 1e-13


@normalisations
@incidences
@pytest.mark.parametrize("width", [3, 6])
@pytest.mark.parametrize("blockwise", [False, True])
def test_it_is_eq_3_with_the_blocks_of_lemma_9(how: str | None, incidence: bool, width: int, blockwise: bool) -> None:
    options = {"normalize_phi": how, "normalize_incidence": incidence, "blockwise": blockwise}
    model = loaded(3, width, 3, schedule=[2, 0, [1, 0, 2], 0], **options)
    assert model.w_v.size(-1) == (width // 3 if blockwise else width)
    b, phi = 0.5 * normal(2, 7, 9, seed=30), 0.5 * normal(2, 7, width, seed=31)
    full = model.full(9)
    assert full.height == 9 + width and full.num_layers == 4
    states = zip(model.trace(b, phi), full.trace(torch.cat([b, phi], -1).mT), strict=True)
    for (own_b, own_phi), z in states:
        assert relative_error(torch.cat([own_b, own_phi], -1).mT, z) < 1e-10


@few
@given(
    graphs(min_nodes=1, exponents=(-1.0, 1.0)),
    st.sampled_from([None, "frobenius", "columns"]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 9),
)
def test_on_the_edges_alone(graph: Graph, how: str | None, incidence: bool, blockwise: bool, seed: int) -> None:
    """With ``alpha_v = 0`` the incidence matrix only changes by a factor."""
    options = {"normalize_phi": how, "normalize_incidence": incidence, "blockwise": blockwise}
    model = loaded(2, 4, 3, seed, alpha_v=False, schedule=[0, [1, 2], 2], **options)
    with torch.no_grad():  # the second layer has a head that reads Phi alone, and one that reads the graph alone
        model.alpha_q[1] = model.alpha_k[1] = model.w_q[2] = model.w_k[2] = 0.0
    phi = normal(graph.num_nodes, 4)
    b, sparse = torch.from_numpy(graph.incidence()), graph_of(graph)
    for (own_b, dense), (factor, got) in zip(model.trace(b, phi), model.trace(sparse, phi), strict=True):
        assert relative_error(got, dense) < 1e-10
        if graph.edges:
            assert relative_error(factor * b, own_b) < 1e-12 and factor.shape == ()


def test_lemmas_written_out_as_the_paper_prints_them() -> None:
    flow, d = c.electric_flow(2, 5, 0.25).full(7), 7
    for weight, (row, column), value in ((flow.w_v, (2, 2), -0.25), (flow.w_r, (2, 0), 0.25)):
        expected = torch.zeros(4, 4).double()
        expected[row : row + 2, column : column + 2] = value * torch.eye(2)
        assert torch.equal(weight[0, d:, d:], expected)


def test_gradients() -> None:
    w = [value.requires_grad_() for value in random_weights((), 4)]
    b, phi = (0.5 * normal(3, 5, seed=50)).requires_grad_(), (0.5 * normal(3, 4, seed=51)).requires_grad_()
    assert torch.autograd.gradcheck(lambda b, phi, *w: efficient_layer(b, phi, Weights(*w)), (b, phi, *w))
    model = loaded(2, 4, 2, normalize_phi="columns", normalize_incidence=True)
    model(b, phi[:, :2]).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())


test_refusals = refusals(
    EfficientTransformer,
    ((2, 2, 2, [0, 2, 0]), "schedule"),
    ((2, 2, 2, None, "rows"), "normalize_phi"),
    ((2, 3, 2), "width"),
)
test_refused_shapes = refusals(
    lambda run, graph, psi: getattr(EfficientTransformer(2, 4, 1), run)(graph, psi),
    (("forward", CASES[0].b, normal(10, 3)), "psi"),
    (("forward", CASES[0].incidence, normal(9, 2)), "phi"),
    (("run", CASES[0].b, normal(10, 2)), "phi"),
)


def test_refuses_to_make_the_incidence_dense() -> None:
    model, psi = loaded(2, 4, 2, schedule=[0, 0]), normal(10, 2)
    with pytest.raises(ValueError, match="alpha_v"):
        model(CASES[0].incidence, psi)
    with torch.no_grad():
        model.alpha_v[0] = 0.0
    assert model(CASES[0].incidence, psi).isfinite().all(), "weights that no layer uses do not matter"


def test_a_large_graph_is_never_written_out() -> None:
    n, k = 100_000, 1
    edges = random_regular_edges(n, 6, torch.Generator().manual_seed(0))
    graph, demands = tg_lpe.Graph(edges, n), normal(n, k)
    with LargestTensor() as seen:
        phi = c.electric_potential(graph, demands, 1e-4)
    psi = c.remove_component_means(graph, demands)
    assert float((psi - graph.laplacian(phi)).norm() / psi.norm()) < 1e-4
    assert seen.largest <= 2 * edges.numel() * k
