"""Eigenvectors of stacked dense matrices, and sparse solvers for one large connected graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal
from scipy.sparse import csr_matrix, diags, eye
from scipy.sparse.csgraph import breadth_first_order
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh, splu
from scipy.special import ellipj, ellipkm1, ive

from tg_lpe.arguments import check_choice
from tg_lpe.graph.components import Array
from tg_lpe.graph.progress import shown, warn_if_long
from tg_lpe.ops.blas import one_thread, threads_for
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

COLUMNS = 32
"""Columns of a matrix polynomial that are computed at once: those of some thousand rows stay in a processor's cache."""

TERMS = 256
"""Terms of a polynomial whose entries are held at once."""

ROUNDING = 1e-16
"""Sum of the coefficients of a series that are left out, at most."""

WORTH_A_THREAD = 3e8
"""Multiplications from which on threads share the columns: a tenth of a second of them."""

PRODUCTS_A_SECOND = 2e9
"""Multiplications by entries of a sparse matrix that one thread makes, for estimates."""

TOLERANCE = 1e-12
"""Residual at which Lanczos' method on the matrix itself ends, over the eigenvalue; after inversion it is rounding."""

MISSED = 1e-9
"""Probability, at most, of passing over a repeated eigenvalue, and the residual at which the search for one ends."""

MOST_STEPS = 20_000
"""Products of that search, at most."""

NARROW = 4.0
"""Nodes at one distance from a node, over the root of their number, up to which a graph is factored at once."""

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


def check_method(method: str) -> None:
    """Refuse an unknown method."""
    check_choice("method", method, METHODS)


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
        self.first = 0 if grounded else 1
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
    bound = float((scale * scale * (abs(laplacian) @ np.ones(n))).max())  # of diag(s)^2 L, whose eigenvalues S has
    same = SAME_EIGENVALUE * bound

    def project(x: Array) -> Array:
        return x - null * (null @ x)

    def by_products() -> Array | None:
        # The smallest eigenvalues of S are the largest of what mirrors it, with the null vector at zero.
        mirrored = LinearOperator((n, n), lambda x: bound * project(x) - matrix @ x, dtype=np.float64)
        operator, restarts = (matrix, MOST_RESTARTS) if top else (mirrored, LANCZOS_RESTARTS)
        return _with_repeated(operator, count, lambda _: same, project, seed, restarts, TOLERANCE)

    def by_factors() -> Array | None:
        # Eigenvalues that lie close together are far apart after inversion.
        if top:
            shift = 2 * float(matrix.diagonal().max()) * (1 + 1e-9)  # above all eigenvalues, as L <= 2 diag(L)
            product = factorized((shift * eye(n) - matrix).tocsr())
        else:
            solver = GroundedSolver(laplacian, grounded)

            def product(x: Array) -> Array:
                return project(solver(project(x) / scale) / scale)

        inverse = LinearOperator((n, n), product, dtype=np.float64)
        return _with_repeated(inverse, count, lambda value: same * value**2, project, seed, MOST_RESTARTS)

    vectors = None if _is_narrow(matrix) else by_products()
    vectors = by_factors() if vectors is None else vectors
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


def _is_narrow(matrix: csr_matrix) -> bool:
    """Whether few nodes lie at one distance from a node at the rim, as in meshes: then sparse factors are small."""
    n, node, widest = matrix.shape[0], 0, 0
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
    """Eigenvectors of the largest eigenvalues, as many of each as it is repeated; ``None`` without convergence.

    From one vector, Lanczos' method finds one eigenvector of each eigenspace, and others by rounding alone: it may pass
    some over. So the largest eigenvalue is sought among vectors orthogonal to those found, until it is none of theirs.

    Args:
        operator: what is iterated, positive semidefinite, ``[n, n]``.
        count: how many.
        same: difference from an eigenvalue below which another is as good.
        project: takes the null vector away.
        seed: of the first vectors.
        restarts: of the first iteration, at most, if no eigenvector was found by then.
        tolerance: of the first iteration, relative; zero for rounding.
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
            return x - found @ (found.T @ x)

        last = int(values.argmin())
        smallest = float(values[last])
        start = outside(generator.standard_normal(n))
        others = LinearOperator((n, n), lambda x, outside=outside: outside(operator @ outside(x)), dtype=np.float64)
        if not _exceeds(others, start, smallest, same(smallest)):
            break
        other = _eigsh(others, 1, start, MOST_RESTARTS)
        if other is None:
            return None
        vectors[:, last] = other[:, 0]
        values[last] = _rayleigh(operator, other)[0]
    return vectors


def _exceeds(matrix: LinearOperator, start: Array, value: float, same: float) -> bool:
    """Whether a positive semidefinite matrix has an eigenvalue above another, by more than ``same``.

    Lanczos' method without restarts, which needs two vectors. It ends when its largest value exceeds the other, has
    settled, or is so far below that an eigenvalue above would have shown from almost every start: `Estimating the
    Largest Eigenvalue by the Power and Lanczos Algorithms with a Random Start <https://doi.org/10.1137/0613066>`_.

    Args:
        matrix: ``[n, n]``.
        start: a random vector, ``[n]``.
        value: the other eigenvalue.
        same: how much may be rounding.
    """
    before, now = np.zeros_like(start), start / np.linalg.norm(start)
    diagonal, beside, check = np.zeros(MOST_STEPS), np.zeros(MOST_STEPS), 8
    certain = math.log(1.648 * math.sqrt(len(start)) / MISSED)
    for step in range(1, MOST_STEPS):
        new = matrix @ now
        diagonal[step - 1] = now @ new
        new -= diagonal[step - 1] * now + beside[step - 2] * before
        beside[step - 1] = np.linalg.norm(new)
        if step == check or beside[step - 1] <= same:
            (largest,), mix = eigh_tridiagonal(
                diagonal[:step], beside[: step - 1], select="i", select_range=(step - 1, step - 1)
            )
            if largest > value + same:
                return True
            settled = beside[step - 1] * abs(mix[-1, 0]) <= MISSED * value
            if settled or math.sqrt(max(0.0, 1 - largest / value)) * (2 * step - 1) > certain:
                break
            check += max(8, check // 8)
        before, now = now, new / beside[step - 1]
    return False


def _rayleigh(matrix: Any, vectors: Array) -> Array:
    """``v^T S v`` of each column."""
    return np.array([v @ (matrix @ v) for v in vectors.T])


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


def polynomial_entries(
    matrix: csr_matrix,
    series: Array,
    chebyshev: bool,
    tail: Array,
    head: Array,
    faster: str,
    columns: Array | None = None,
) -> tuple[Array, Array]:
    """Polynomials of a sparse symmetric matrix ``P``, read on the diagonal and at edges.

    Some columns at a time go through all powers, few enough for the processor's cache, on as many threads as torch has.

    Args:
        matrix: ``P``, ``[n, n]``.
        series: coefficients of each polynomial, ``[num_polynomials, num_terms]``.
        chebyshev: whether they are those of Chebyshev's polynomials ``T_k(P)``, instead of powers ``P^k``.
        tail, head: the entries that are wanted besides the diagonal, ``[num_edges]``; those of other tails than
            ``columns`` are zero.
        faster: what a warning recommends where this takes long.
        columns: which are computed, ascending; all if absent.

    Returns:
        ``[n, num_polynomials]`` and ``[num_edges, num_polynomials]``.
    """
    n, terms = matrix.shape[0], series.shape[1]
    nodes, edges = np.zeros((n, len(series))), np.zeros((len(tail), len(series)))
    order = np.argsort(tail, kind="stable")
    first_edge = np.searchsorted(tail[order], np.arange(n + 1))
    step = 2 * matrix if chebyshev else matrix

    def read(own: Array) -> None:
        mine = np.concatenate([order[first_edge[node] : first_edge[node + 1]] for node in own])
        width = len(own)
        places = np.concatenate([own * width + np.arange(width), head[mine] * width + np.searchsorted(own, tail[mine])])
        before, now = np.zeros((n, width)), np.zeros((n, width))
        now[own, np.arange(width)] = 1.0
        found = np.zeros((len(series), len(places)))
        for start in range(0, terms, TERMS):
            values = np.empty((min(TERMS, terms - start), len(places)))
            for term in range(start, start + len(values)):
                now.take(places, out=values[term - start])
                if term + 1 < terms:
                    after = (step if term else matrix) @ now
                    if chebyshev and term:
                        after -= before
                    before, now = now, after
            found += series[:, start : start + TERMS] @ values
        nodes[own], edges[mine] = found[:, :width].T, found[:, width:].T

    columns = np.arange(n) if columns is None else columns
    blocks = np.split(columns, range(COLUMNS, len(columns), COLUMNS)) if len(columns) else []
    work = float(matrix.nnz + 2 * n) * len(columns) * terms
    threads = torch.get_num_threads() if work > WORTH_A_THREAD else 1
    seconds = work / (PRODUCTS_A_SECOND * threads)
    warn_if_long(seconds, faster)
    with one_thread(), shown(work, seconds) as bar, ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(read, blocks) if threads > 1 else map(read, blocks):
            bar.update(work / len(blocks))
    return nodes, edges


def heat_terms(times: tuple[float, ...], bound: float) -> int:
    """Terms after which Chebyshev's series of ``exp(-s L)`` is below rounding, for eigenvalues up to ``bound``."""
    x = max(times) * max(bound, 1e-300) / 2  # the series is that of exp(-x (1 + t)) on [-1, 1]
    return int(10 + 9 * math.sqrt(x) + min(x, 40.0))


def heat_series(times: tuple[float, ...], bound: float) -> Array:
    """Coefficients of ``exp(-s L)`` by Chebyshev's polynomials of ``2 L / bound - 1``, to rounding.

    They are ``(2 - [j = 0]) (-1)^j exp(-x) I_j(x)`` with ``x = s bound / 2``.

    Args:
        times: ``s``.
        bound: at least the largest eigenvalue.

    Returns:
        ``[num_times, num_terms]``.
    """
    j = np.arange(heat_terms(times, bound))
    x = np.array(times)[:, None] * bound / 2
    series = np.where(j == 0, 1.0, 2.0) * (-1.0) ** j * ive(j, x)
    rest = np.abs(series).max(0)[::-1].cumsum()[::-1]
    return series[:, : max(1, int((rest > ROUNDING).sum()))]


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
