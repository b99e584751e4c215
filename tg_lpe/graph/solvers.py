"""Compute eigenvectors of stacked dense matrices, and solve sparse problems of one large connected graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from scipy.linalg import eigh, eigh_tridiagonal
from scipy.sparse import csr_matrix, diags, eye
from scipy.sparse.csgraph import breadth_first_order
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh, splu
from scipy.special import ive

from tg_lpe.arguments import check_choice
from tg_lpe.graph.components import Array
from tg_lpe.graph.progress import Progress
from tg_lpe.ops.blas import one_thread, threads_for

METHODS = ("auto", "dense", "iterative")

DENSE_LIMIT = 4096
"""Largest graph for a dense eigendecomposition (half a minute and 0.5 GB at this size)."""

RESIDUAL = 1e-8
"""Largest residual ``|S v - lambda v|`` of an eigenvector, relative to the largest eigenvalue."""

SAME_EIGENVALUE = 1e-12
"""Difference, relative to the largest eigenvalue, below which eigenvalues count as equal."""

SUBSET_SIZE = 64
"""From this size of a matrix on, LAPACK computes only the wanted eigenvectors, if they are at most half."""

COLUMNS = 32
"""Columns of a matrix polynomial that are computed at once: with some thousand rows, they stay in the cache."""

TERMS = 256
"""Number of terms of a polynomial whose entries are in memory."""

ROUNDING = 1e-16
"""Largest sum of the coefficients of a series that are dropped."""

WORTH_A_THREAD = 3e8
"""Above this number of multiplications (a tenth of a second), threads share the columns."""

TOLERANCE = 1e-12
"""Relative residual at which Lanczos' method on the matrix itself stops; on its inverse, it goes on to rounding."""

MISSED = 1e-9
"""Largest probability of missing a repeated eigenvalue, and the relative residual at which the search for it stops."""

MOST_STEPS = 20_000
"""Largest number of products in that search."""

NARROW = 4.0
"""A graph is factored at once if no level of a breadth-first search has more than this times ``sqrt(n)`` nodes."""

LANCZOS_RESTARTS = 60
"""Restarts of Lanczos' method on the matrix itself; if no eigenvector was found by then, the matrix is factored."""

MOST_RESTARTS = 1200
"""Restarts if some eigenvectors were found by then, as on large expanders, whose factors would fill the memory."""


def is_dense(num_nodes: int, method: str, limit: int) -> bool:
    """Return whether to solve a component by dense algebra.

    Args:
        num_nodes: size of the component.
        method: one of :data:`METHODS`.
        limit: largest size that ``"auto"`` solves densely.

    Raises:
        ValueError: if the method is unknown, or ``"dense"`` and the component is too large.
    """
    check_method(method)
    if method == "auto":
        return num_nodes <= limit
    if method == "dense" and num_nodes > DENSE_LIMIT:
        raise ValueError(
            f"method='dense' on a graph of {num_nodes} nodes needs {num_nodes**2 * 8 / 2**30:.1f} GiB a matrix and "
            f"O(n^3) time, and takes up to {DENSE_LIMIT} nodes; use method='iterative' for larger graphs"
        )
    return method == "dense"


def check_method(method: str) -> None:
    """Refuse an unknown method."""
    check_choice("method", method, METHODS)


def stacked_eigh(matrices: Array, count: int, top: bool = False) -> tuple[Array, Array]:
    """Compute eigenvectors of symmetric matrices; each matrix gives the same result in any stack.

    Args:
        matrices: float64 ``[num_matrices, n, n]``.
        count: number of eigenvectors.
        top: whether to return those of the largest eigenvalues, largest first, instead of the smallest.

    Returns:
        Eigenvalues ``[num_matrices, count]`` and eigenvectors ``[num_matrices, n, count]``.

    Raises:
        ValueError: on an entry that is not finite.
    """
    if not np.isfinite(matrices).all():
        raise ValueError("matrices must be finite")
    n = matrices.shape[1]
    first = n - count if top else 0
    with threads_for(n):
        if n >= SUBSET_SIZE and 0 < 2 * count <= n and len(matrices):
            pairs = [_some_eigenvectors(matrix, first, first + count) for matrix in matrices]
            values, vectors = (np.stack(part) for part in zip(*pairs, strict=True))
        else:
            values, vectors = np.linalg.eigh(matrices)
            values, vectors = values[:, first : first + count], vectors[:, :, first : first + count]
    order = slice(None, None, -1 if top else 1)
    return values[:, order].copy(), vectors[:, :, order].copy()


def _some_eigenvectors(matrix: Array, first: int, stop: int) -> tuple[Array, Array]:
    """Compute the eigenvectors ``first..stop - 1`` of a matrix."""
    with suppress(np.linalg.LinAlgError):
        values, vectors = eigh(matrix, subset_by_index=(first, stop - 1), check_finite=False)
        if len(values) == stop - first:
            return values, vectors
    # If an eigenvalue repeats many times, LAPACK may fail on a subset, or find too few.
    values, vectors = np.linalg.eigh(matrix)
    return values[first:stop], vectors[:, first:stop]


def symmetric_matrix(tail: Array, head: Array, entries: Array, size: int) -> csr_matrix:
    """Return the sparse matrix ``[size, size]`` with the entries at ``(tail, head)`` and their conjugates mirrored."""
    ends = np.concatenate([tail, head]), np.concatenate([head, tail])
    return csr_matrix((np.concatenate([entries, entries.conj()]), ends), (size, size))


def factorized(matrix: csr_matrix) -> Callable[[Array], Array]:
    """Factorise a sparse symmetric positive definite matrix without pivoting, and return the solver."""
    options = {"SymmetricMode": True}
    lu = splu(matrix.tocsc(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)
    return lambda b: lu.solve(np.ascontiguousarray(b))


def sparse_eigenvectors(
    laplacian: csr_matrix, scale: Array, count: int, top: bool, seed: int, definite: bool = False
) -> tuple[Array, Array]:
    """Compute eigenvectors of ``S = diag(s) L diag(s)`` of one connected graph, without its null vector.

    Args:
        laplacian: ``L``, ``[n, n]``, real or Hermitian.
        scale: ``s``, ``[n]``, positive.
        count: number of eigenvectors, below ``n - 1``.
        top: whether to return those of the largest eigenvalues, largest first, instead of the smallest.
        seed: seed of the first vector of Lanczos' method.
        definite: whether ``L`` has no null vector.

    Returns:
        Eigenvalues ``[count]`` and eigenvectors ``[n, count]``.

    Raises:
        RuntimeError: if the iteration does not converge.
    """
    n = len(scale)
    matrix = diags(scale) @ laplacian @ diags(scale)
    null = np.zeros(n) if definite else 1 / scale / np.linalg.norm(1 / scale)
    bound = float((scale * scale * (abs(laplacian) @ np.ones(n))).max())  # S has the eigenvalues of diag(s)^2 L
    same = SAME_EIGENVALUE * bound

    def project(x: Array) -> Array:
        return x - null * (null @ x)

    def counted(product: Callable[[Array], Array]) -> LinearOperator:
        def counted_product(x: Array) -> Array:
            progress.update()
            return product(x)

        return LinearOperator((n, n), counted_product, dtype=matrix.dtype)

    def by_products() -> Array | None:
        # The smallest eigenvalues of S are the largest of bound - S, where the null vector is moved to zero.
        operator = counted(matrix.dot if top else lambda x: bound * project(x) - matrix @ x)
        restarts = MOST_RESTARTS if top else LANCZOS_RESTARTS
        return _with_repeated(operator, count, lambda _: same, project, seed, restarts, TOLERANCE)

    def by_factors() -> Array | None:
        # The inverse spreads eigenvalues that lie close together.
        if top:
            shift = 2 * float(matrix.diagonal().max()) * (1 + 1e-9)  # above all eigenvalues, as L <= 2 diag(L)
            product = factorized((shift * eye(n) - matrix).tocsr())
        else:
            # If L is singular, drop its first row and column, and set the first node to zero.
            first = 0 if definite else 1
            solve = factorized(laplacian[first:, first:])

            def product(x: Array) -> Array:
                b, x = project(x) / scale, np.zeros(n, matrix.dtype)
                x[first:] = solve(b[first:])
                return project(x / scale)

        return _with_repeated(counted(product), count, lambda value: same * value**2, project, seed, MOST_RESTARTS)

    with Progress(unit=" products") as progress:
        vectors = None if is_narrow(matrix) else by_products()
        vectors = by_factors() if vectors is None else vectors
    if vectors is None:
        which = "largest" if top else "smallest"
        raise RuntimeError(f"the {count} {which} eigenvectors of a graph of {n} nodes did not converge")
    if np.iscomplexobj(vectors):
        vectors = vectors @ np.linalg.eigh(vectors.conj().T @ (matrix @ vectors))[1]
    ritz = _rayleigh(matrix, vectors)
    order = np.argsort(-ritz if top else ritz)
    vectors, ritz = vectors[:, order], ritz[order]
    residual = np.linalg.norm(matrix @ vectors - vectors * ritz, axis=0).max()
    if not residual <= RESIDUAL * bound:
        most = RESIDUAL * bound
        raise RuntimeError(f"{count} eigenvectors of {n} nodes have a residual of {residual:.1g}, above {most:.1g}")
    return ritz, vectors


def is_narrow(matrix: csr_matrix) -> bool:
    """Return whether sparse factors are small: few nodes at each distance from some node, or no hubs and few cycles."""
    n, node, widest = matrix.shape[0], 0, 0
    if matrix.nnz < 3 * n + 2 * math.sqrt(n) and np.diff(matrix.indptr).max() < 10_000:  # two for each edge, and n
        return True
    matrix = abs(matrix)  # SciPy reads the real part of a complex matrix
    for _ in range(2):
        order, before = breadth_first_order(matrix, node)
        place = np.empty(n, np.int64)
        place[order] = np.arange(n)
        parent, ends = place[before[order[1:]]], [0, 1]
        while ends[-1] < len(order):
            ends.append(1 + int(np.searchsorted(parent, ends[-1])))
        widest, node = int(np.diff(ends).max()), order[-1]
    return widest <= NARROW * math.sqrt(n)


def _with_repeated(
    operator: Any,
    count: int,
    same: Callable[[float], float],
    project: Callable[[Array], Array],
    seed: int,
    restarts: int,
    tolerance: float = 0.0,
) -> Array | None:
    """Compute eigenvectors of the largest eigenvalues with multiplicity; ``None`` without convergence.

    From one vector, Lanczos' method finds one eigenvector of each eigenspace; it finds others only by rounding errors
    and may miss some. So the largest eigenvalue is searched among vectors orthogonal to those found, and replaces the
    smallest, until it is no larger.

    ``same`` is the largest difference from an eigenvalue that counts as equal, ``project`` removes the null vector, and
    ``restarts`` and ``tolerance`` (relative; zero for rounding) are those of the first iteration.
    """
    n = operator.shape[0]
    generator = np.random.default_rng(seed)
    vectors = _eigsh(operator, count, project(generator.standard_normal(n)), restarts, tolerance)
    if vectors is None or count == 1:
        return vectors
    values = _rayleigh(operator, vectors)
    for _ in range(count):

        def outside(x: Array, found: Array = vectors) -> Array:
            x = project(x)
            return x - found @ (found.conj().T @ x)

        last = int(values.argmin())
        smallest = float(values[last])
        start = outside(generator.standard_normal(n))
        others = LinearOperator((n, n), lambda x, outside=outside: outside(operator @ outside(x)), dtype=operator.dtype)
        if not _exceeds(others, start, smallest, same(smallest)):
            break
        other = _eigsh(others, 1, start, MOST_RESTARTS)
        if other is None:
            return None
        vectors[:, last] = other[:, 0]
        values[last] = _rayleigh(operator, other)[0]
    return vectors


def _exceeds(matrix: LinearOperator, start: Array, value: float, same: float) -> bool:
    """Return whether a positive semidefinite matrix has an eigenvalue above ``value + same``.

    This is Lanczos' method without restarts, which stores two vectors. It stops when its largest value exceeds the
    limit, has converged, or is so far below that almost every start would have shown a larger eigenvalue: `Estimating
    the Largest Eigenvalue by the Power and Lanczos Algorithms with a Random Start <https://doi.org/10.1137/0613066>`_.
    """
    before, now = np.zeros_like(start), start / np.linalg.norm(start)
    diagonal, off_diagonal, check = np.zeros(MOST_STEPS), np.zeros(MOST_STEPS), 8
    certain = math.log(1.648 * math.sqrt(len(start)) / MISSED)
    for step in range(1, MOST_STEPS):
        new = matrix @ now
        diagonal[step - 1] = (now.conj() @ new).real
        new -= diagonal[step - 1] * now + off_diagonal[step - 2] * before
        off_diagonal[step - 1] = np.linalg.norm(new)
        if step == check or off_diagonal[step - 1] <= same:
            (largest,), mix = eigh_tridiagonal(
                diagonal[:step], off_diagonal[: step - 1], select="i", select_range=(step - 1, step - 1)
            )
            if largest > value + same:
                return True
            settled = off_diagonal[step - 1] * abs(mix[-1, 0]) <= MISSED * value
            if settled or math.sqrt(max(0.0, 1 - largest / value)) * (2 * step - 1) > certain:
                break
            check += max(8, check // 8)
        before, now = now, new / off_diagonal[step - 1]
    return False


def _rayleigh(matrix: Any, vectors: Array) -> Array:
    """Compute ``v^H S v`` of each column."""
    return np.array([(v.conj() @ (matrix @ v)).real for v in vectors.T])


def _eigsh(operator: Any, count: int, start: Array, restarts: int, tolerance: float = 0.0) -> Array | None:
    """Compute eigenvectors of the largest eigenvalues by Lanczos' method; ``None`` if it fails to converge.

    Those of a complex matrix are an orthonormal basis of their span.
    """
    space = min(len(start) - 1, max(2 * count + 1, 40))
    try:
        _, vectors = eigsh(operator, count, which="LA", v0=start, ncv=space, maxiter=restarts, tol=tolerance)
    except ArpackNoConvergence as error:
        if len(error.eigenvalues) and restarts < MOST_RESTARTS:
            return _eigsh(operator, count, start, MOST_RESTARTS, tolerance)
        return None
    except ArpackError:
        return None
    return np.linalg.qr(vectors)[0] if np.iscomplexobj(vectors) else vectors  # for these, it is Arnoldi's method


def polynomial_entries(
    matrix: csr_matrix,
    series: Array,
    tail: Array,
    head: Array,
    progress: Progress,
) -> tuple[Array, Array]:
    """Compute the diagonal and the entries at edges of Chebyshev series of a sparse symmetric matrix ``P``.

    A block of columns goes through all powers, small enough for the cache, on as many threads as torch has.

    Args:
        matrix: ``P``, ``[n, n]``.
        series: coefficients of ``T_k(P)`` in each polynomial, ``[num_polynomials, num_terms]``.
        tail, head: columns and rows of the entries to compute in addition to the diagonal, ``[num_edges]``.
        progress: counts the columns that are computed, ``n``.

    Returns:
        ``[n, num_polynomials]`` and ``[num_edges, num_polynomials]``.
    """
    n, terms = matrix.shape[0], series.shape[1]
    nodes, edges = (np.zeros((rows, len(series))) for rows in (n, len(tail)))
    order = np.argsort(tail, kind="stable")
    first_edge = np.searchsorted(tail[order], np.arange(n + 1))
    twice = 2 * matrix

    def compute(block: Array) -> None:
        edge = np.concatenate([order[first_edge[node] : first_edge[node + 1]] for node in block])
        width, at = len(block), np.searchsorted(block, tail[edge])
        places = np.concatenate([block * width + np.arange(width), head[edge] * width + at])
        before, now = np.zeros((2, n, width))
        now[block, np.arange(width)] = 1.0
        sums = np.zeros((len(series), len(places)))
        for start in range(0, terms, TERMS):
            values = np.empty((min(TERMS, terms - start), len(places)))
            for term in range(start, start + len(values)):
                now.take(places, out=values[term - start])
                if term + 1 < terms:
                    after = (twice if term else matrix) @ now
                    after -= before
                    before, now = now, after
            sums += series[:, start : start + TERMS] @ values
        nodes[block], edges[edge] = sums[:, :width].T, sums[:, width:].T

    blocks = np.split(np.arange(n), range(COLUMNS, n, COLUMNS)) if n else []
    is_much = float(matrix.nnz + 2 * n) * n * terms > WORTH_A_THREAD
    threads = torch.get_num_threads() if is_much else 1
    with one_thread(), ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(compute, blocks) if threads > 1 else map(compute, blocks):
            progress.update(n / len(blocks))
    return nodes, edges


HEAT_TERMS = 2**20
"""Most terms of a series of heat kernels, each a pass over the edges."""


def heat_terms(times: tuple[float, ...], bound: float) -> int:
    """Return the terms of the Chebyshev series of ``exp(-s L)`` to rounding, for eigenvalues up to ``bound``."""
    x = max(times) * max(bound, 1e-300) / 2  # the series is that of exp(-x (1 + t)) on [-1, 1]
    return int(min(10 + 9 * math.sqrt(x) + min(x, 40.0), 2.0**62))


def heat_series(times: tuple[float, ...], bound: float) -> Array:
    """Return the coefficients of ``exp(-s L)`` in Chebyshev polynomials of ``2 L / bound - 1``, to rounding.

    They are ``(2 - [j = 0]) (-1)^j exp(-x) I_j(x)`` with ``x = s bound / 2``.

    Args:
        times: ``s``.
        bound: an upper bound of the eigenvalues.

    Returns:
        ``[num_times, num_terms]``.
    """
    if heat_terms(times, bound) > HEAT_TERMS:
        raise ValueError(f"edge_weight or times {times} are too large for an iterative heat kernel: divide the weights")
    j = np.arange(heat_terms(times, bound))
    x = np.array(times)[:, None] * bound / 2
    series = np.where(j == 0, 1.0, 2.0) * (-1.0) ** j * ive(j, x)
    rest = np.abs(series).max(0)[::-1].cumsum()[::-1]
    return series[:, : max(1, int((rest > ROUNDING).sum()))]
