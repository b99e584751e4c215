"""Compare ways to the bottom eigenvectors of a large grid: residual against time.

    python benchmarks/eigenvectors.py [--quick] [--nodes N] [--json FILE]

Subspace iteration by the layers of Corollary 7 and the Chebyshev filter of `theory.laplacian_eigenvectors` are
compared with lobpcg and eigsh of scipy, all from the same start. The residual of a subspace measures how far it is from
invariant, and its mean Ritz value how far it is from the bottom. A grid favours eigsh, which relies on a factorisation.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from _arguments import Parser
from _measure import timed
from _results import show, write_results
from scipy.sparse import coo_matrix, diags
from scipy.sparse.linalg import eigsh, lobpcg
from torch import Tensor

from tg_lpe import Graph
from tg_lpe.data.synthetic import grid_edges
from tg_lpe.theory import bottom_eigenvectors, laplacian_eigenvectors

K = 8


def residual(laplacian: Callable[[Tensor], Tensor], basis: Tensor) -> tuple[float, float]:
    """Return the residual ``|L Q - Q T|_F / sqrt(k)`` of the span of some columns, and its mean Ritz value."""
    q, _ = torch.linalg.qr(basis.double())
    image = laplacian(q)
    t = q.mT @ image
    return float(torch.linalg.matrix_norm(image - q @ t)) / K**0.5, float(t.diagonal().mean())


def quality(num_nodes: int, quick: bool) -> list[dict[str, Any]]:
    """Measure residual against time of three ways to the bottom eigenvectors of a grid's Laplacian."""
    side = round(num_nodes**0.5)
    num_nodes = side * side
    graph = Graph(grid_edges(side), num_nodes)
    tail, head = graph.tail.numpy(), graph.head.numpy()
    upper = coo_matrix((np.ones(graph.num_edges), (tail, head)), (num_nodes,) * 2)
    adjacency = (upper + upper.T).tocsr()
    matrix = (diags(np.asarray(adjacency.sum(axis=1)).ravel()) - adjacency).tocsr()
    start_vectors = np.random.default_rng(0).standard_normal((num_nodes, K))
    rows = []

    def add(what: str, effort: int, run: Callable[[], Tensor]) -> None:
        basis, seconds = timed(run)
        error, ritz = residual(graph.laplacian, basis)
        rows.append({"what": what, "effort": effort, "seconds": seconds, "residual": error, "mean_ritz_value": ritz})
        show(rows[-1])

    def ours(products: int) -> Tensor:
        """Run Corollary 7 with 40 products between two orthogonalisations of 8 layers each."""
        model = bottom_eigenvectors(K, 1, mu=8.0)
        model.schedule = ([0] * 40 + model.schedule[1:]) * (products // 40)
        with torch.no_grad():
            return model(graph, torch.from_numpy(start_vectors))

    def by_filter(digits: int) -> Tensor:
        """Run the Chebyshev filter with a tolerance of the given number of decimal digits."""
        return laplacian_eigenvectors(graph, K, tolerance=10.0**-digits)[0]

    def by_lobpcg(iterations: int) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # does not converge; the residual is measured
            _, vectors = lobpcg(matrix, start_vectors.copy(), largest=False, maxiter=iterations, tol=1e-12)
        return torch.from_numpy(vectors)

    def by_eigsh(tolerance: float) -> Tensor:
        # Factorises L, which a grid allows: without it, Lanczos' method takes minutes. The shift lies less far below
        # zero than the first eigenvalues lie above it.
        _, vectors = eigsh(matrix, k=K, sigma=-1.0 / num_nodes, which="LM", tol=tolerance, v0=start_vectors[:, 0])
        return torch.from_numpy(vectors)

    for effort in (40, 120) if quick else (40, 120, 400, 1200):
        add("ours (Corollary 7), products", effort, lambda effort=effort: ours(effort))  # type: ignore[misc]
    for effort in (0, 4) if quick else (-3, 0, 4):
        add("ours (Chebyshev filter), digits", effort, lambda effort=effort: by_filter(effort))  # type: ignore[misc]
    for effort in (3, 10) if quick else (3, 10, 30, 100):
        add("lobpcg, iterations", effort, lambda effort=effort: by_lobpcg(effort))  # type: ignore[misc]
    add("eigsh (shift-invert), digits", 6, lambda: by_eigsh(1e-6))
    return rows


def main() -> None:
    parser = Parser(__doc__, "10,000 nodes", "eigenvectors.json")
    parser.add_argument("--nodes", type=int, default=1_000_000, help="(default: %(default)s)")
    args = parser.parse_args()
    num_nodes = 10_000 if args.quick else args.nodes
    write_results(args.json, quality(num_nodes, args.quick), num_nodes=num_nodes, k=K)


if __name__ == "__main__":
    main()
