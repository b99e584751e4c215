"""Compare electric flow on a large sparse graph with scipy's conjugate gradients.

    python benchmarks/electric_flow.py [--quick] [--json FILE]

Lemma 1 runs on a random regular graph of degree 6 with eight demands and as many layers as the bound requires. It is
compared with `scipy.sparse.linalg.cg` on the same Laplacian, one demand after the other, stopped at the same residual.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import numpy as np
import torch
from _arguments import Parser
from _measure import timed
from _results import show, write_results
from scipy.sparse import coo_matrix, csr_matrix, diags
from scipy.sparse.linalg import cg
from torch import Tensor

from tg_lpe import Graph
from tg_lpe import theory as c
from tg_lpe.data.synthetic import random_regular_edges

DEGREE, DEMANDS, TOLERANCE = 6, 8, 1e-4


def scipy_laplacian(graph: Graph) -> csr_matrix:
    tail, head = graph.tail.numpy(), graph.head.numpy()
    ends = np.concatenate([tail, head]), np.concatenate([head, tail])
    adjacency = coo_matrix((np.ones(2 * len(tail)), ends), (graph.num_nodes,) * 2).tocsr()
    return (diags(np.asarray(adjacency.sum(axis=1)).ravel()) - adjacency).tocsr()


def residual(graph: Graph, potential: Tensor, demands: Tensor) -> float:
    """Return the largest ``|psi - L phi| / |psi|``."""
    rest = torch.linalg.vector_norm(demands - graph.laplacian(potential), dim=0)
    return float((rest / torch.linalg.vector_norm(demands, dim=0)).max())


def conjugate_gradients(laplacian: csr_matrix, demands: Tensor, rtol: float) -> tuple[Tensor, int]:
    """Solve for all demands; return the solutions and the iterations of the slowest."""
    columns, counts = [], []
    for psi in demands.T.numpy():
        steps: list[int] = []
        x, failed = cg(laplacian, psi, rtol=rtol, atol=0.0, callback=lambda _, steps=steps: steps.append(1))
        if failed:
            raise RuntimeError(f"cg did not converge: {failed}")
        columns.append(x)
        counts.append(len(steps))
    return torch.from_numpy(np.stack(columns, axis=1)), max(counts)


def main() -> None:
    args = Parser(__doc__, "2,000 nodes", "electric_flow.json").parse_args()
    num_nodes, repeats = (2_000, 1) if args.quick else (100_000, 3)
    graph = Graph(random_regular_edges(num_nodes, DEGREE, torch.Generator().manual_seed(0)), num_nodes)
    draw = torch.randn(num_nodes, DEMANDS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    demands = c.remove_component_means(graph, draw)
    interval, interval_seconds = timed(lambda: c.spectral_interval(graph))
    low, high = map(float, interval)
    layers = c.layers_needed(lambda count: low * c.electric_flow_bound(count, low, high), TOLERANCE)
    model, laplacian = c.electric_flow(DEMANDS, layers, 1 / high), scipy_laplacian(graph)
    iterations = conjugate_gradients(laplacian, demands, TOLERANCE)[1]
    methods: dict[str, tuple[int, Callable[[], Tensor]]] = {
        "linear transformer, Lemma 1": (layers, lambda: model(graph, demands)),
        "scipy cg": (iterations, lambda: conjugate_gradients(laplacian, demands, TOLERANCE)[0]),
    }
    rows = []
    for what, (count, run) in methods.items():
        with torch.no_grad():
            potential, *times = run(), *(timed(run)[1] for _ in range(repeats))
        rows.append(
            {
                "what": what,
                "num_nodes": graph.num_nodes,
                "num_edges": graph.num_edges,
                "demands": DEMANDS,
                "layers": count,
                "residual": residual(graph, potential, demands),
                "seconds": statistics.median(times),
                "spread": [min(times), max(times)],
            }
        )
        show(rows[-1])
    write_results(args.json, rows, lambda_min=low, lambda_max=high, interval_seconds=interval_seconds)


if __name__ == "__main__":
    main()
