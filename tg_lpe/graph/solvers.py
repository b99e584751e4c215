"""Eigenvectors of stacked dense matrices, and sparse solvers for one large connected graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix, diags, eye
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh, splu
from scipy.special import ellipj, ellipkm1, ive

from tg_lpe.arguments import check_choice
from tg_lpe.graph.components import Array
from tg_lpe.ops.blas import threads_for
from tg_lpe.ops.eigenvectors import symmetric_eigenvectors
from tg_lpe.ops.operator import without_transforms

METHODS = ("auto", "dense", "iterative")

DENSE_LIMIT = 4096
"""Nodes of a graph up to which its dense eigendecomposition is attempted (half a minute and 0.5 GB at this size)."""

RESIDUAL = 1e-8
"""Largest residual ``|S v - lambda v|`` of an iterated eigenvector, over the largest eigenvalue."""

DENSE_SIZE = 512
"""Nodes of a component up to which dense algebra helps out where Lanczos' method fails."""

SAME_EIGENVALUE = 1e-12
"""Difference of eigenvalues, over the largest, below which one is as good as the other."""

LANCZOS_RESTARTS = 60
"""Restarts of Lanczos' method on the matrix itself, after which it is factored if no eigenvector was found."""

MOST_RESTARTS = 1200
"""Restarts where some eigenvectors were found by then: on large expanders, whose factors would fill the memory."""


def is_dense(num_nodes: int, method: str, limit: int) -> bool:
    """Whether a component is treated by dense algebra.

    Args:
        num_nodes: its size.
        method: one of :data:`METHODS`.
        limit: for ``"auto"``, the size up to which dense algebra is the faster.

    Raises:
        ValueError: if dense algebra is asked for and the component is too large.
    """
    if method == "auto":
        return num_nodes <= limit
    if method == "dense" and num_nodes > DENSE_LIMIT:
        raise ValueError(
            f"dense algebra on a graph of {num_nodes} nodes needs {num_nodes**2 * 8 / 2**30:.1f} GiB a matrix and "
            f"O(n^3) time; it is offered up to {DENSE_LIMIT} nodes. method='iterative' is for larger ones."
        )
    return method == "dense"


def check_method(method: str, allowed: tuple[str, ...] = METHODS) -> None:
    """Refuse an unknown method."""
    check_choice("method", method, allowed)


def stacked_eigh(matrices: Array, count: int, top: bool = False) -> tuple[Array, Array]:
    """Eigenvectors of symmetric matrices; what comes of a matrix depends on nothing else in the stack.

    Args:
        matrices: float64 ``[num_matrices, n, n]``.
        count: how many are wanted.
        top: whether those of the largest eigenvalues are wanted.

    Returns:
        Eigenvalues ``[num_matrices, count]``, smallest or with ``top`` largest first, and eigenvectors
        ``[num_matrices, n, count]``.
    """
    with threads_for(matrices.shape[1]), without_transforms():  # so that a repeated eigenvalue has the same basis there
        values, vectors = symmetric_eigenvectors(torch.from_numpy(matrices), count, top)
        return values.numpy(), vectors.numpy()


class GroundedSolver:
    """``L^+ b`` of one connected graph: a sparse factorisation of ``L`` without the row and column of one node.

    Without that node the matrix is a diagonally dominant M-matrix, and no eigenvalue has to be told apart from zero.
    The relative error is about 1e-16 times the ratio of the largest conductance to the smallest.

    Args:
        laplacian: ``L``, ``[n, n]``.
        grounded: whether ``L`` holds a ground conductance, and is invertible itself.
    """

    def __init__(self, laplacian: csr_matrix, grounded: bool = False) -> None:
        self.size, self.first = laplacian.shape[0], 0 if grounded else 1
        kept = laplacian[self.first :, self.first :].tocsc()
        self._solve = factorized(kept) if kept.shape[0] else None

    def __call__(self, b: Array) -> Array:
        """``x`` with ``L x = b`` for ``b`` of sum zero, ``[n, k]``, and ``x = 0`` at the first node."""
        x = np.zeros_like(b)
        if self._solve is not None:
            x[self.first :] = self._solve(b[self.first :])
        return x


def factorized(matrix: csr_matrix) -> Callable[[Array], Array]:
    """The solver of a sparse symmetric positive definite system, without pivoting."""
    options = {"SymmetricMode": True}
    lu = splu(matrix.tocsc(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)
    return lambda b: lu.solve(np.ascontiguousarray(b))


def sparse_eigenvectors(
    laplacian: csr_matrix, scale: Array, count: int, top: bool, grounded: bool, seed: int
) -> tuple[Array, Array]:
    """Eigenvectors of ``S = diag(s) L diag(s)`` of one connected graph, without its null vector.

    Args:
        laplacian: ``L``, ``[n, n]``.
        scale: ``s``, ``[n]``, positive.
        count: how many, below ``n - 1``.
        top: whether those of the largest eigenvalues are wanted, largest first, instead of the smallest.
        grounded: whether ``L`` has no null vector.
        seed: of the first vector of Lanczos' method.

    Returns:
        Eigenvalues ``[count]`` and eigenvectors ``[n, count]``.

    Raises:
        RuntimeError: if the iteration does not converge.
    """
    with threads_for(len(scale)):
        return _sparse_eigenvectors(laplacian, scale, count, top, grounded, seed)


def _sparse_eigenvectors(
    laplacian: csr_matrix, scale: Array, count: int, top: bool, grounded: bool, seed: int
) -> tuple[Array, Array]:
    n = len(scale)
    matrix = diags(scale) @ laplacian @ diags(scale)
    null = np.zeros(n) if grounded else 1 / scale
    null = null if grounded else null / np.linalg.norm(null)
    bound = float(abs(matrix).sum(1).max())

    def project(x: Array) -> Array:
        return x - null * (null @ x)

    # The smallest eigenvalues of S are the largest of what mirrors it, with the null vector at zero.
    mirrored = LinearOperator((n, n), lambda x: bound * project(x) - matrix @ x, dtype=np.float64)

    def found(operator: object, restarts: int) -> Array | None:
        return _with_repeated(operator, matrix if top else -matrix, count, bound, project, seed, restarts)

    vectors = found(matrix if top else mirrored, MOST_RESTARTS if top else LANCZOS_RESTARTS)
    if vectors is None:
        # Eigenvalues that lie close together are far apart after inversion.
        if top:
            shift = 2 * float(matrix.diagonal().max()) * (1 + 1e-9)  # above all eigenvalues, as L <= 2 diag(L)
            solve = factorized((shift * eye(n) - matrix).tocsr())
            inverse = LinearOperator((n, n), solve, dtype=np.float64)
        else:
            solver = GroundedSolver(laplacian, grounded)
            inverse = LinearOperator((n, n), lambda x: project(solver(project(x) / scale) / scale), dtype=np.float64)
        vectors = found(inverse, MOST_RESTARTS)
    if vectors is None and n <= DENSE_SIZE:
        moved = matrix.toarray() + (0.0 if top else 2 * bound) * np.outer(null, null)
        vectors = stacked_eigh(moved[None], count, top)[1][0]
    if vectors is None:
        which = "largest" if top else "smallest"
        raise RuntimeError(f"the {count} {which} eigenvectors of a graph of {n} nodes did not converge")
    ritz = _rayleigh(matrix, vectors)
    order = np.argsort(-ritz if top else ritz)
    vectors, ritz = vectors[:, order], ritz[order]
    residual = np.linalg.norm(matrix @ vectors - vectors * ritz, axis=0).max()
    if not residual <= RESIDUAL * bound:
        raise RuntimeError(
            f"the {count} eigenvectors of a graph of {n} nodes have a residual of {residual:.1g}, "
            f"more than {RESIDUAL * bound:.1g}"
        )
    return ritz, vectors


def _with_repeated(
    operator: Any,
    matrix: csr_matrix,
    count: int,
    bound: float,
    project: Callable[[Array], Array],
    seed: int,
    restarts: int,
) -> Array | None:
    """Eigenvectors of the largest eigenvalues, as many of each as it is repeated; ``None`` without convergence.

    From one vector, Lanczos' method finds one eigenvector of each eigenspace, and others by rounding alone: it may pass
    some over. So the largest eigenvalue is sought among vectors orthogonal to those found, until it is none of theirs.

    Args:
        operator: what is iterated.
        matrix: with the same eigenvectors in the same order, ``[n, n]``; ``operator`` may be its inverse.
        count: how many.
        bound: at least the norm of ``matrix``.
        project: takes the null vector away.
        seed: of the first vectors.
        restarts: of the first iteration, at most, if no eigenvector was found by then.
    """
    n = matrix.shape[0]
    generator = np.random.default_rng(seed)
    vectors = _eigsh(operator, count, project(generator.standard_normal(n)), restarts)
    if vectors is None or count == 1:
        return vectors
    for _ in range(count):

        def outside(x: Array, found: Array = vectors) -> Array:
            x = project(x)
            return x - found @ (found.T @ x)

        others = LinearOperator((n, n), lambda x, outside=outside: outside(operator @ outside(x)), dtype=np.float64)
        other = _eigsh(others, 1, outside(generator.standard_normal(n)), MOST_RESTARTS, tolerance=1e-9)
        if other is None:
            return None
        values = _rayleigh(matrix, vectors)
        last = int(values.argmin())
        if _rayleigh(matrix, other)[0] <= values[last] + SAME_EIGENVALUE * bound:
            break
        other = _eigsh(others, 1, other[:, 0], MOST_RESTARTS)
        if other is None:
            return None
        vectors[:, last] = other[:, 0]
    return vectors


def _rayleigh(matrix: csr_matrix, vectors: Array) -> Array:
    """``v^T S v`` of each column."""
    return np.einsum("nk,nk->k", vectors, matrix @ vectors)


def _eigsh(operator: Any, count: int, start: Array, restarts: int, tolerance: float = 0.0) -> Array | None:
    """Eigenvectors of the largest eigenvalues by Lanczos' method; ``None`` where it did not converge, or broke down."""
    space = min(len(start) - 1, max(2 * count + 1, 40))
    try:
        _, vectors = eigsh(operator, count, which="LA", v0=start, ncv=space, maxiter=restarts, tol=tolerance)
    except ArpackNoConvergence as error:
        if len(error.eigenvalues) and restarts < MOST_RESTARTS:
            return _eigsh(operator, count, start, MOST_RESTARTS, tolerance)
        return None
    except ArpackError:
        return None
    return vectors


def heat_columns(laplacian: csr_matrix, times: tuple[float, ...], columns: Array, bound: float) -> Array:
    """Columns of ``exp(-s L)`` by Chebyshev's series, to rounding.

    Args:
        laplacian: ``L``, ``[n, n]``.
        times: ``s``.
        columns: which columns.
        bound: at least the largest eigenvalue.

    Returns:
        ``[num_times, n, num_columns]``.
    """
    n, half = laplacian.shape[0], max(bound, 1e-300) / 2
    shifted = (laplacian / half - eye(n)).tocsr()
    terms = heat_terms(times, bound)
    weights = np.array([_heat_series(s * half, terms) for s in times])
    previous, current = np.zeros((n, len(columns))), np.zeros((n, len(columns)))
    current[columns, np.arange(len(columns))] = 1.0
    out = weights[:, 0, None, None] * current
    for term in range(1, terms):
        product = shifted @ current
        previous, current = current, product if term == 1 else 2 * product - previous
        for number in range(len(times)):
            if abs(weights[number, term]) > 1e-18:
                out[number] += weights[number, term] * current
    return out


def heat_terms(times: tuple[float, ...], bound: float) -> int:
    """Terms after which Chebyshev's series of ``exp(-s L)`` is below rounding, for eigenvalues up to ``bound``."""
    x = max(times) * max(bound, 1e-300) / 2  # the series is that of exp(-x (1 + t)) on [-1, 1]
    return int(10 + 9 * math.sqrt(x) + min(x, 40.0))


def _heat_series(x: float, terms: int) -> Array:
    """The coefficients ``(2 - [j = 0]) (-1)^j exp(-x) I_j(x)``."""
    j = np.arange(terms)
    return np.where(j == 0, 1.0, 2.0) * (-1.0) ** j * ive(j, x)


def inverse_root(laplacian: csr_matrix, b: Array, lower: float, upper: float, tolerance: float) -> Array:
    """``L^(-1/2) b`` by a rational approximation: a few sparse systems ``(L + t I) x = b``.

    `Computing A^alpha, log(A), and related matrix functions by contour integrals
    <https://doi.org/10.1137/070700607>`_, method 3.

    Args:
        laplacian: ``L``, ``[n, n]``, with eigenvalues from ``lower`` to ``upper`` on the span of ``b``.
        b: ``[n, k]``.
        lower, upper: bounds of the eigenvalues.
        tolerance: relative error.
    """
    ratio = min(lower / upper, 0.5)
    period = ellipkm1(ratio)
    count = math.ceil((math.log(1 / ratio) + 3) * math.log(10 / tolerance) / (2 * math.pi**2)) + 1
    sn, cn, dn, _ = ellipj((np.arange(count) + 0.5) * period / count, 1 - ratio)
    out = np.zeros_like(b)
    for shift, weight in zip(lower * (sn / cn) ** 2, dn / cn**2, strict=True):
        out += weight * factorized(laplacian + shift * eye(laplacian.shape[0]))(b)
    return out * (2 * period * math.sqrt(lower) / (math.pi * count))
