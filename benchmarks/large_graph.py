"""Encode one large graph with random probes: time per edge, memory, and error of the estimate.

    python benchmarks/large_graph.py [--quick] [--json FILE]

A Gram transformer with 8 channels for nodes encodes random regular graphs of degree 6 of growing size with
`probes="rademacher"`. Time should be linear in the edges. On a graph small enough for identity probes the estimate is
compared with the exact encoding; its root mean square error must fall with the square root of the number of probes.
"""

from __future__ import annotations

import statistics
import time

import torch
from _arguments import Parser
from _measure import peak_gib
from _results import show, write_results
from torch import Tensor

from tg_lpe import GramTransformer, Graph
from tg_lpe.data.synthetic import random_regular_edges

DEGREE = 6
LAYERS, FILTERS, PROBES = 16, 4, 16


def regular_graph(num_nodes: int, seed: int) -> Tensor:
    """Draw a random graph of degree 6, int64 ``[2, 3 num_nodes]``."""
    return random_regular_edges(num_nodes, DEGREE, torch.Generator().manual_seed(seed))


def encoder(probes: str, num_probes: int) -> GramTransformer:
    """Make the encoder, with the same weights for any probes."""
    torch.manual_seed(0)
    return GramTransformer(8, 0, FILTERS, LAYERS, probes=probes, num_probes=num_probes).eval()


def seconds(num_nodes: int, num_probes: int, repeats: int) -> tuple[list[float], int]:
    """Return the time to encode a list of edges, and the number of undirected edges."""
    edge_index, model = regular_graph(num_nodes, seed=1), encoder("rademacher", num_probes)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        with torch.inference_mode():
            graph = Graph(edge_index, num_nodes)
            out = model(None, graph).node
        times.append(time.perf_counter() - start)
        assert bool(torch.isfinite(out).all())
    return times, graph.num_edges


def error(num_probes: int, num_nodes: int) -> float:
    """Return the relative root mean square error of the diagonals on a graph of moderate size."""
    graph = Graph(regular_graph(num_nodes, seed=2), num_nodes)
    with torch.inference_mode():
        exact, _ = encoder("identity", 1).gram(graph)
        guess, _ = encoder("rademacher", num_probes).gram(graph)
    return float((guess - exact).square().mean().sqrt() / exact.square().mean().sqrt())


def main() -> None:
    args = Parser(__doc__, "small graphs", "large_graph.json").parse_args()
    sizes, repeats = ([1_000, 4_000], 2) if args.quick else ([10_000, 100_000, 1_000_000], 3)
    rows = []
    for size in sizes:
        times, num_edges = seconds(size, PROBES, repeats)
        middle = statistics.median(times)
        unit = 1e9 * middle / (num_edges * LAYERS * FILTERS * PROBES)
        rows.append(
            {
                "num_nodes": size,
                "num_edges": num_edges,
                "seconds": middle,
                "spread": [min(times), max(times)],
                "ns_per_edge_layer_filter_probe": unit,
                "peak_gib": peak_gib(),
            }
        )
        show(rows[-1])
    small = 500 if args.quick else 2_000
    errors = {str(count): error(count, small) for count in (16, 64, 256)}
    print(f"relative error of the estimate, {small:,} nodes: {errors}")
    write_results(args.json, rows, num_probes=PROBES, relative_error_by_probes=errors)


if __name__ == "__main__":
    main()
