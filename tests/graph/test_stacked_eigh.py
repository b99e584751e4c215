"""Eigenvectors of stacked matrices against numpy."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import few, normal
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tg_lpe.graph.solvers import stacked_eigh


def check(matrices: Tensor, count: int, largest: bool) -> None:
    values, vectors = stacked_eigh(matrices.numpy(), count, largest)
    num_matrices, n, _ = matrices.shape
    assert values.shape == (num_matrices, count) and vectors.shape == (num_matrices, n, count)
    for matrix, mine, v in zip(matrices.numpy(), values, vectors, strict=True):
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


@pytest.mark.parametrize("graph", [nx.complete_bipartite_graph(30, 40), nx.star_graph(200), nx.turan_graph(80, 5)])
def test_repeated_eigenvalues_of_graphs(graph: nx.Graph) -> None:
    """LAPACK's solver for a few eigenvectors finds too few of them, or fails."""
    for matrix in (nx.normalized_laplacian_matrix(graph), nx.laplacian_matrix(graph)):
        dense = torch.from_numpy(matrix.toarray().astype(float))
        for count in (1, 3, 8, 16):
            for largest in (False, True):
                check(dense.unsqueeze(0), count, largest)


def test_a_matrix_does_not_depend_on_its_neighbours() -> None:
    matrices = normal(300, 20, 20)
    matrices = (matrices + matrices.mT).numpy()
    values, vectors = stacked_eigh(matrices, 20)
    for at in (0, 150, 299):
        alone = stacked_eigh(matrices[at : at + 1], 20)
        assert np.array_equal(alone[0][0], values[at]) and np.array_equal(alone[1][0], vectors[at])


def test_refuses_what_is_not_finite() -> None:
    with pytest.raises(ValueError, match="finite"):
        stacked_eigh(np.full((1, 5, 5), np.nan), 3)
