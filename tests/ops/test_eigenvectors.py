"""Eigenvectors of stacked matrices against numpy, by the compiled part and by LAPACK."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import few, normal
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tg_lpe.ops.eigenvectors import symmetric_eigenvectors

pytestmark = pytest.mark.usefixtures("backend")


def check(matrices: Tensor, count: int, largest: bool) -> None:
    values, vectors = symmetric_eigenvectors(matrices, count, largest)
    num_matrices, n, _ = matrices.shape
    assert values.shape == (num_matrices, count) and vectors.shape == (num_matrices, n, count)
    for matrix, mine, v in zip(matrices.numpy(), values.numpy(), vectors.numpy(), strict=True):
        expected = np.linalg.eigvalsh(matrix)
        expected = expected[::-1][:count] if largest else expected[:count]
        size = max(float(np.abs(matrix).max()) if n else 0.0, 1e-300) * max(n, 1)
        np.testing.assert_allclose(mine, expected, rtol=0, atol=1e-14 * size)
        np.testing.assert_allclose(v.T @ v, np.eye(count), atol=1e-13)
        np.testing.assert_allclose(matrix @ v, v * mine, rtol=0, atol=2e-14 * size)


@few
@given(st.integers(0, 4), st.integers(1, 70), st.integers(-5, 5), st.booleans(), st.data())
def test_random_matrices(num_matrices: int, n: int, exponent: int, largest: bool, data: st.DataObject) -> None:
    matrices = normal(num_matrices, n, n, seed=n) * 10.0**exponent
    check(matrices + matrices.mT, data.draw(st.integers(1, n)), largest)


@pytest.mark.parametrize("largest", [False, True])
def test_special_matrices(largest: bool) -> None:
    graded = torch.diag(10.0 ** torch.arange(-150.0, 150.0, 30.0, dtype=torch.float64))
    for matrix in (
        torch.zeros(5, 5),
        torch.eye(7),
        torch.ones(9, 9),
        torch.diag(torch.arange(6.0)).flip(0),
        graded,
        graded + 1e-200,
        1e-300 * torch.ones(4, 4, dtype=torch.float64),
        torch.block_diag(torch.ones(3, 3), torch.zeros(2, 2), torch.ones(4, 4)),
    ):
        check((matrix + matrix.mT).double().unsqueeze(0), matrix.size(0), largest)


@pytest.mark.parametrize(
    "graph",
    [
        nx.complete_bipartite_graph(30, 40),
        nx.star_graph(200),
        nx.complete_graph(80),
        nx.hypercube_graph(7),
        nx.turan_graph(80, 5),
        nx.windmill_graph(10, 8),
    ],
)
def test_repeated_eigenvalues_of_graphs(graph: nx.Graph) -> None:
    """LAPACK's solver for a few eigenvectors finds too few of them, or fails."""
    for matrix in (nx.normalized_laplacian_matrix(graph), nx.laplacian_matrix(graph)):
        dense = torch.from_numpy(matrix.toarray().astype(float))
        for count in (1, 3, 8, 16):
            for largest in (False, True):
                check(dense.unsqueeze(0), count, largest)


def test_a_matrix_does_not_depend_on_its_neighbours() -> None:
    matrices = normal(300, 20, 20)
    matrices = matrices + matrices.mT
    values, vectors = symmetric_eigenvectors(matrices, 20)
    for at in (0, 150, 299):
        alone = symmetric_eigenvectors(matrices[at : at + 1], 20)
        assert torch.equal(alone[0][0], values[at]) and torch.equal(alone[1][0], vectors[at])


def test_refuses_what_is_not_finite() -> None:
    with pytest.raises(ValueError, match="finite"):
        symmetric_eigenvectors(torch.full((1, 5, 5), torch.nan, dtype=torch.float64), 3)
    for matrices, count in (
        (torch.ones(2, 2), 1),
        (torch.ones(1, 2, 3).double(), 1),
        (torch.ones(1, 2, 2).double(), 3),
    ):
        with pytest.raises(ValueError, match=r"num_matrices|count must"):
            symmetric_eigenvectors(matrices, count)
