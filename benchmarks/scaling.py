"""Encode one graph of a million or ten million nodes: time, and memory.

    python benchmarks/scaling.py [--quick] [--json FILE]

The linear transformer with 8 columns and 9 layers runs on a 2-D grid, whose neighbours are close in memory, and on a
random graph of degree 10 with its nodes in random order and in reverse Cuthill-McKee order. Each size runs in a
separate process, so that its peak memory can be measured. All sizes run three times in turn, so that other load affects
all sizes; a row is the median of its three runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

import numpy as np
import torch
from _arguments import Parser
from _measure import in_own_process, peak_gib, timed
from _results import show, write_results
from scipy.sparse import coo_matrix, csr_matrix
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor

from tg_lpe import Graph, LinearTransformer
from tg_lpe.data.synthetic import grid_edges, random_regular_edges
from tg_lpe.encoders import Inputs

K, LAYERS, DEGREE = 8, 9, 10
GRAPHS = ("grid", "random", "random, reordered")
REORDERED_NODES = 1_000_000
"""Largest size with a reordering, which would take longest above it."""

SIZES, ROUNDS = (1_000_000, 10_000_000), 3


def edges_of(kind: str, num_nodes: int) -> tuple[Tensor, int]:
    """Return the edges of a graph of about the given size, each once, and the exact number of nodes."""
    if kind == "grid":
        side = round(num_nodes**0.5)
        return grid_edges(side), side * side
    edges = random_regular_edges(num_nodes, DEGREE, torch.Generator().manual_seed(0))
    if kind == "random, reordered":
        ends = edges.numpy()
        ones = np.ones(edges.size(1), dtype=np.int8)
        order = reverse_cuthill_mckee(csr_matrix(coo_matrix((ones, (ends[0], ends[1])), (num_nodes,) * 2)))
        place = torch.empty(num_nodes, dtype=torch.int64)
        place[torch.from_numpy(order.astype(np.int64))] = torch.arange(num_nodes)
        edges = place[edges]
    return edges, num_nodes


def encoder() -> LinearTransformer:
    """Make the encoder with initial weights: a low-pass filter and some orthogonalisation at each layer."""
    torch.manual_seed(0)
    return LinearTransformer(k=K, num_blocks=LAYERS // 3, num_loops=3).eval().requires_grad_(False)


def measure(kind: str, num_nodes: int, repeats: int) -> dict[str, Any]:
    """Measure times and memory of one graph."""
    edges, num_nodes = edges_of(kind, num_nodes)
    model = encoder()
    graph, built = timed(lambda: Graph(edges, num_nodes))
    probes = model.probes(graph, None, None)
    with torch.inference_mode():
        _, *times = (timed(lambda: model.encode(graph, Inputs(), probes=probes))[1] for _ in range(repeats + 1))
    return {
        "graph": kind,
        "num_nodes": num_nodes,
        "num_edges": graph.num_edges,
        "build_seconds": built,
        "seconds": statistics.median(times),
        "spread": [min(times), max(times)],
        "peak_gib": peak_gib(),
    }


def main() -> None:
    parser = Parser(__doc__, "1,000 nodes, once", "scaling.json")
    parser.add_argument("--one", nargs=2, metavar=("GRAPH", "NODES"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one[0], int(args.one[1]), repeats=5)))
        return

    sizes = (1_000,) if args.quick else SIZES
    wanted = [(kind, size) for kind in GRAPHS for size in sizes if size <= REORDERED_NODES or kind != GRAPHS[-1]]
    found: dict[tuple[str, int], list[dict[str, Any]]] = {row: [] for row in wanted}
    for kind, size in wanted * (1 if args.quick else ROUNDS):
        found[kind, size].append(in_own_process(__file__, "--one", kind, str(size)))
    rows = [sorted(rounds, key=lambda row: row["seconds"])[len(rounds) // 2] for rounds in found.values()]
    for row in rows:
        show(row)
    write_results(args.json, rows)


if __name__ == "__main__":
    main()
