"""Measure the cost of attention over all nodes: one graph of up to a million nodes, and a batch of small graphs.

    python benchmarks/primal.py [--quick] [--json FILE]

Each attention of the hybrid layer is measured by itself, with 64 channels and 4 heads in float32: microseconds per node
for forward and backward with the regulariser. Rounds go through all rows in turn, so that other load affects all rows;
a row is the median of its rounds. Softmax stops at 10,000 nodes, Performer at 100,000.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from _arguments import Parser
from _measure import take_turns
from _results import show, write_results

import tg_lpe.theory  # noqa: F401 (registers dual)
from tg_lpe.graph.graph import Graph
from tg_lpe.nn.attention import GLOBAL_ATTENTIONS, AttentionLayer
from tg_lpe.nn.attention.hybrid import NothingShared

CHANNELS, HEADS, RANK, ROUNDS = 64, 4, 30, 5
ROWS: dict[str, tuple[str, dict[str, Any], int]] = {
    "primal": ("primal", {"rank": RANK}, 10**9),
    "dual": ("dual", {}, 10**9),
    "SGFormer": ("sgformer", {}, 10**9),
    "Performer": ("performer", {}, 10**5),
    "softmax": ("softmax", {}, 10**4),
}
"""Name, options and largest graph of each attention."""

SIZES = (1_000, 10_000, 100_000, 1_000_000)
BATCH = (25, 128)
"""Nodes of each graph of a batch, and graphs."""


def training(name: str, size: int, graphs: int) -> Callable[[], None]:
    """Return forward and backward of an attention on a batch of graphs of the same size."""
    attention, options, _ = ROWS[name]
    torch.manual_seed(0)
    layer: AttentionLayer = GLOBAL_ATTENTIONS[attention](CHANNELS, HEADS, **options)
    shared = layer.shared() or NothingShared()
    batch = torch.arange(graphs).repeat_interleave(size)
    neighbourhoods = Graph(torch.empty(2, 0, dtype=torch.int64), batch=batch, num_graphs=graphs)
    h = torch.randn(graphs * size, CHANNELS, generator=torch.Generator().manual_seed(0))

    def run() -> None:
        out, state = layer(h, neighbourhoods, shared(neighbourhoods))
        (out.sum() if state is None else out.sum() + state.penalty).backward()

    return run


def main() -> None:
    parser = Parser(__doc__, "up to 1,000 nodes, one round", "primal.json")
    args = parser.parse_args()
    sizes = SIZES[:1] if args.quick else SIZES
    rows = []
    for size, graphs in (*((size, 1) for size in sizes), BATCH):  # one at a time: not all would fit into memory
        runs = {name: training(name, size, graphs) for name in ROWS if size <= ROWS[name][2]}
        for name, times in take_turns(runs, 1 if args.quick else ROUNDS, time.perf_counter).items():
            seconds = statistics.median(times)
            row = {"attention": name, "nodes_a_graph": size, "graphs": graphs, "seconds": seconds}
            rows.append({**row, "training_us_a_node": 1e6 * seconds / (size * graphs)})
            show(rows[-1])
    write_results(args.json, rows)


if __name__ == "__main__":
    main()
