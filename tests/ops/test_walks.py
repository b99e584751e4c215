"""Walks against polynomials of dense matrices in numpy, their backward pass against autograd, estimates likewise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers import Graph, few, fewer, graphs, normal, relative_error
from hypothesis import given
from hypothesis import strategies as st
from numpy.polynomial.chebyshev import chebval
from scipy.linalg import hadamard
from torch import Tensor

import tg_lpe.ops.segment
from tg_lpe.ops.segment import has_torch_scatter
from tg_lpe.ops.walks import BASES, EdgePositions, SparseSymmetric, estimated_walks, walks

F64 = torch.float64
bases = pytest.mark.parametrize("basis", sorted(BASES))
layers = st.tuples(st.integers(1, 6), st.integers(0, 2))
blocks = st.lists(graphs(min_nodes=1, max_nodes=7), min_size=1, max_size=3)
CYCLE = Graph(5, [(0, 1), (0, 4), (1, 2), (2, 3), (3, 4)], [1.0] * 5)
TRIANGLE = Graph(3, [(0, 1), (0, 2), (1, 2)], [1.0] * 3)


def positions(parts: list[Graph], fill: int = 0) -> EdgePositions:
    """The graphs as one block, each with ``fill`` rows or more that no edge reaches."""
    height = max(graph.num_nodes for graph in parts) + fill
    ends = [(i * height + u, i * height + v) for i, graph in enumerate(parts) for u, v in graph.edges]
    tail, head = torch.tensor(ends, dtype=torch.int64).reshape(-1, 2).T.contiguous()
    return EdgePositions(len(parts), height, torch.arange(len(ends)), tail, head)


def couplings(where: EdgePositions, num_filters: int = 2, seed: int = 0) -> Tensor:
    """Of both signs, with eigenvalues of about one: of graphs of 7 nodes no row sum exceeds 6."""
    return 0.4 * normal(num_filters, where.tail.numel(), seed=seed)


def dense(coupling: Tensor, where: EdgePositions) -> np.ndarray:
    """``[num_filters, num_graphs, height, height]``, entry by entry."""
    matrix = np.zeros((coupling.size(0), where.num_graphs, where.height, where.height))
    for column, (tail, head) in enumerate(zip(where.tail.tolist(), where.head.tolist(), strict=True)):
        graph, u, v = tail // where.height, tail % where.height, head % where.height
        matrix[:, graph, u, v] = matrix[:, graph, v, u] = coupling[:, column].detach().numpy()
    return matrix


def polynomials(matrix: np.ndarray, basis: str, num_layers: int, num_squarings: int) -> list[np.ndarray]:
    """Each layer through the eigenvalues."""
    values, vectors = np.linalg.eigh(matrix)

    def of(eigenvalues: np.ndarray) -> np.ndarray:
        return (vectors * eigenvalues[..., None, :]) @ np.swapaxes(vectors, -1, -2)

    powers = range(1, num_layers + 1)
    last = [values**t if basis == "power" else chebval(values, np.eye(num_layers + 1)[t]) for t in powers]
    for _ in range(num_squarings):
        last.append(last[-1] ** 2)
    return [of(v) for v in last]


def read(layer: np.ndarray, where: EdgePositions) -> tuple[np.ndarray, np.ndarray]:
    tail, head = where.tail.numpy(), where.head.numpy()
    entries = layer[:, tail // where.height, tail % where.height, head % where.height]
    return np.diagonal(layer, axis1=2, axis2=3).reshape(len(layer), -1), entries


def expected_walks(coupling: Tensor, where: EdgePositions, *options: Any) -> tuple[np.ndarray, np.ndarray]:
    parts = [read(layer, where) for layer in polynomials(dense(coupling, where), *options)]
    return np.stack([d for d, _ in parts], 1), np.stack([e for _, e in parts], 1)


@bases
@few
@given(blocks, st.integers(0, 2), layers)
def test_against_eigenvalues(basis: str, parts: list[Graph], fill: int, depth: tuple[int, int]) -> None:
    where = positions(parts, fill)
    coupling = couplings(where)
    diagonal, entries = walks(coupling, where, basis, *depth)
    expected = expected_walks(coupling, where, basis, *depth)
    num_layers = sum(depth)
    assert diagonal.shape == (2, num_layers, where.num_graphs * where.height)
    assert entries.shape == (2, num_layers, where.tail.numel())
    for layer in range(num_layers):  # each by itself: the last may dwarf the first
        scale = max(np.abs(expected[0][:, layer]).max(initial=1e-3), np.abs(expected[1][:, layer]).max(initial=1e-3))
        for got, want in zip((diagonal, entries), expected, strict=True):
            assert np.abs(got[:, layer].numpy() - want[:, layer]).max(initial=0.0) < 1e-12 * scale


def test_by_hand() -> None:
    where = positions([Graph(3, [(0, 1), (1, 2)], [1.0] * 2)])
    coupling = torch.tensor([[2.0, 3.0]], dtype=F64)
    diagonal, entries = walks(coupling, where, "power", 3)
    assert diagonal.tolist() == [[[0, 0, 0], [4, 13, 9], [0, 0, 0]]]
    assert entries.tolist() == [[[2, 3], [0, 0], [26, 39]]]
    diagonal, entries = walks(coupling, where, "chebyshev", 3)  # 2 P^2 - 1, 4 P^3 - 3 P
    assert diagonal.tolist() == [[[0, 0, 0], [7, 25, 17], [0, 0, 0]]]
    assert entries.tolist() == [[[2, 3], [0, 0], [98, 147]]]
    diagonal, entries = walks(coupling, where, "power", 1, 2)  # P, P^2, P^4
    assert diagonal.tolist() == [[[0, 0, 0], [4, 13, 9], [52, 169, 117]]]


def test_chebyshev_polynomials_stay_bounded() -> None:
    """Of a matrix with eigenvalues in -1..1: that is what the basis is for."""
    where = positions([CYCLE])
    coupling = torch.full((1, 5), 0.5, dtype=F64)  # a random walk on a cycle
    decayed, kept = (walks(coupling, where, basis, 40)[0][0, -1].abs().max() for basis in ("power", "chebyshev"))
    angles = 2 * np.pi * np.arange(5) / 5
    assert decayed == pytest.approx(np.mean(np.cos(angles) ** 40), rel=1e-12)
    assert kept == pytest.approx(np.mean(np.cos(40 * angles)), rel=1e-10) == pytest.approx(1.0)


CASES = [[CYCLE], [TRIANGLE, Graph(1, [], []), CYCLE], [Graph(2, [(0, 1)], [1.0]), Graph(4, [(1, 3)], [1.0])]]


@bases
@pytest.mark.parametrize("squarings", [0, 1, 2])
@pytest.mark.parametrize("parts", CASES, ids=["one", "three", "fill"])
@pytest.mark.parametrize("num_layers", [1, 2, 4])
def test_gradients(basis: str, squarings: int, parts: list[Graph], num_layers: int) -> None:
    where = positions(parts)

    def of(coupling: Tensor) -> tuple[Tensor, Tensor]:
        return walks(coupling, where, basis, num_layers, squarings)

    assert torch.autograd.gradcheck(of, couplings(where).requires_grad_())


def dense_reference(
    coupling: Tensor, where: EdgePositions, basis: str, num_layers: int, num_squarings: int
) -> tuple[Tensor, Tensor]:
    """The recurrence on dense matrices, left to autograd."""
    graph, u, v = where.tail // where.height, where.tail % where.height, where.head % where.height
    p = coupling.new_zeros(coupling.size(0), where.num_graphs, where.height, where.height)
    p[:, graph, u, v] = coupling
    p[:, graph, v, u] = coupling
    before, phi = torch.eye(where.height, dtype=p.dtype).expand_as(p), p
    layers = [phi]
    for _ in range(num_layers - 1):
        before, phi = phi, p @ phi if basis == "power" else 2 * p @ phi - before
        layers.append(phi)
    for _ in range(num_squarings):
        layers.append(layers[-1] @ layers[-1])
    diagonals = [layer.diagonal(dim1=2, dim2=3).flatten(1) for layer in layers]
    return torch.stack(diagonals, 1), torch.stack([layer[:, graph, u, v] for layer in layers], 1)


@bases
@few
@given(blocks, layers, st.sampled_from(["both", "diagonal", "entries"]))
def test_backward_is_that_of_autograd(basis: str, parts: list[Graph], depth: tuple[int, int], what: str) -> None:
    where = positions(parts)
    results = []
    for function in (walks, dense_reference):
        coupling = couplings(where, 3).requires_grad_()
        diagonal, entries = function(coupling, where, basis, *depth)
        loss = 0.0
        if what != "entries":
            loss = loss + (diagonal * normal(*diagonal.shape, seed=1)).sum()
        if what != "diagonal":
            loss = loss + (entries * normal(*entries.shape, seed=2)).sum()
        loss.backward()
        results.append(coupling.grad)
    assert relative_error(*results) < 1e-11


@bases
def test_gradients_that_arrive_in_any_layout(basis: str) -> None:
    where = positions([TRIANGLE, CYCLE])
    coupling = couplings(where, 3).requires_grad_()
    outs = walks(coupling, where, basis, 3, 1)
    weights = [normal(*out.shape, seed=i) for i, out in enumerate(outs)]
    (expected,) = torch.autograd.grad(outs, coupling, weights, retain_graph=True)
    strided = [w.permute(2, 1, 0).contiguous().permute(2, 1, 0) for w in weights]
    assert not any(w.is_contiguous() for w in strided)
    assert torch.equal(torch.autograd.grad(outs, coupling, strided, retain_graph=True)[0], expected)
    (alike,) = torch.autograd.grad(
        sum(out.sum() for out in outs), coupling, retain_graph=True
    )  # expanded from a scalar
    ones = [torch.ones_like(out) for out in outs]
    assert torch.equal(torch.autograd.grad(outs, coupling, ones)[0], alike)


@bases
@pytest.mark.parametrize("squarings", [0, 2])
def test_the_same_without_gradient_and_in_single_precision(basis: str, squarings: int) -> None:
    where = positions([TRIANGLE, CYCLE])
    coupling = couplings(where)
    recorded = walks(coupling.clone().requires_grad_(), where, basis, 5, squarings)
    assert all(torch.equal(a, b) for a, b in zip(recorded, walks(coupling, where, basis, 5, squarings), strict=True))
    with torch.no_grad():
        without = walks(coupling.clone().requires_grad_(), where, basis, 5, squarings)
    assert all(torch.equal(a, b) and not b.requires_grad for a, b in zip(recorded, without, strict=True))
    single = walks(coupling.float(), where, basis, 5, squarings)
    assert all(
        a.dtype == torch.float32 and 0 < relative_error(a, b) < 1e-4 for a, b in zip(single, recorded, strict=True)
    )


def test_a_second_derivative_is_refused() -> None:
    where = positions([TRIANGLE])
    coupling = couplings(where).requires_grad_()
    loss = walks(coupling, where, "power", 3)[0].square().sum()
    (first,) = torch.autograd.grad(loss, coupling, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        first.sum().backward()


@few
@given(blocks, st.integers(0, 2))
def test_positions(parts: list[Graph], fill: int) -> None:
    where = positions(parts, fill)
    coupling = couplings(where, 3)
    matrix = where.fill(coupling)
    expected = dense(coupling, where)
    assert np.array_equal(matrix.numpy(), expected.reshape(-1, where.height, where.height))
    assert torch.equal(where.at_edges(matrix), coupling)
    full = normal(*matrix.shape)
    diagonal, entries = read(full.view(expected.shape).numpy(), where)
    assert np.array_equal(where.diagonal(full).numpy(), diagonal)
    assert np.array_equal(where.at_edges(full).numpy(), entries)


@few
@given(blocks)
def test_sparse_products(parts: list[Graph]) -> None:
    where = positions(parts)
    coupling, z = couplings(where, 1)[0], normal(where.num_graphs * where.height, 3)
    got = SparseSymmetric(where).product(coupling, z)
    matrix = dense(coupling.unsqueeze(0), where)[0]
    rows = z.numpy().reshape(where.num_graphs, where.height, 3)
    assert relative_error(got, (matrix @ rows).reshape(-1, 3)) < 1e-13


@pytest.fixture(params=["with torch-scatter", "without"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without":
        monkeypatch.setattr(tg_lpe.ops.segment, "torch_scatter", None)
    elif not has_torch_scatter():
        pytest.skip("torch-scatter is not installed or switched off")


@bases
@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("parts", CASES, ids=["one", "three", "fill"])
def test_gradients_of_estimates(basis: str, parts: list[Graph]) -> None:
    where = positions(parts)
    edges, signs = SparseSymmetric(where), normal(where.num_graphs * where.height, 3).sign()

    def of(coupling: Tensor) -> tuple[Tensor, Tensor]:
        return estimated_walks(coupling, signs, edges, basis, 4)

    assert torch.autograd.gradcheck(of, couplings(where, 1)[0].requires_grad_())


@bases
@fewer
@given(blocks, st.integers(1, 6))
def test_estimates_from_orthogonal_signs_are_exact(basis: str, parts: list[Graph], num_layers: int) -> None:
    """The columns of a Hadamard matrix are signs with ``V V^T = 8 I``: the mean over them has no error."""
    where = positions(parts)
    signs = torch.from_numpy(hadamard(8)).to(F64)[: where.height].repeat(where.num_graphs, 1)
    coupling = couplings(where)
    expected = expected_walks(coupling, where, basis, num_layers, 0)
    for number, row in enumerate(coupling):
        got = estimated_walks(row, signs, SparseSymmetric(where), basis, num_layers)
        for estimate, exact in zip(got, expected, strict=True):
            scale = max(np.abs(expected[0][number]).max(initial=0.0), 1.0)
            assert np.abs(estimate.numpy() / 8 - exact[number]).max(initial=0.0) < 1e-11 * scale


@bases
def test_a_single_probe_is_the_definition(basis: str) -> None:
    """The first layer is known; of the others, the product of two that are half as deep."""
    where = positions([CYCLE, TRIANGLE])
    coupling, signs = couplings(where, 1), normal(where.num_graphs * where.height, 1).sign()
    diagonal, entries = estimated_walks(coupling[0], signs, SparseSymmetric(where), basis, 6)
    v = signs.numpy().reshape(where.num_graphs, where.height)
    images = [np.einsum("gij,gj->gi", phi[0], v).ravel() for phi in polynomials(dense(coupling, where), basis, 3, 0)]
    tail, head = where.tail.numpy(), where.head.numpy()
    p = coupling[0].numpy()
    assert not diagonal[0].any() and torch.equal(entries[0], coupling[0])
    for layer in range(2, 7):
        a, b = images[layer // 2 - 1], images[layer - layer // 2 - 1]
        node, edge = a * b, (a[tail] * b[head] + b[tail] * a[head]) / 2
        if basis == "chebyshev":  # T_a+b = 2 T_a T_b - T_b-a
            node, edge = 2 * node - (layer % 2 == 0), 2 * edge - p * (layer % 2)
        assert relative_error(diagonal[layer - 1], node) < 1e-12
        assert relative_error(entries[layer - 1], edge) < 1e-12


@bases
def test_edges_that_nobody_reads_are_zero(basis: str) -> None:
    where = positions([CYCLE, TRIANGLE])
    coupling, signs = couplings(where, 1)[0], normal(where.num_graphs * where.height, 2).sign()
    both, nodes = (estimated_walks(coupling, signs, SparseSymmetric(where), basis, 5, read) for read in (True, False))
    assert torch.equal(both[0], nodes[0]) and both[1].any() and not nodes[1].any() and nodes[1].shape == both[1].shape
