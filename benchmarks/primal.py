"""Measure the cost of attention over all nodes: one graph of up to a million nodes, and batches of small graphs.

    python benchmarks/primal.py [--quick] [--sizes N ...] [--rounds N] [--json FILE]

Each attention of the hybrid layer is measured by itself, with 64 channels and 4 heads in float32: microseconds per node
for the forward pass, and for forward and backward with the regulariser; and bytes per node kept for the backward pass.
Rounds go through all rows in turn, so that other load affects all rows; a row is the median of its rounds. Softmax
stops at 10,000 nodes, Performer at 100,000.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import torch
from _arguments import Parser
from torch import Tensor, nn

import tg_lpe.theory  # noqa: F401 (registers dual and ksvd)
from tg_lpe.checkpoints.files import write_json
from tg_lpe.graph.graph import Graph
from tg_lpe.nn.attention import GLOBAL_ATTENTIONS, shared_of
from tg_lpe.nn.attention.hybrid import NothingShared
from tg_lpe.training.run_folder import environment

CHANNELS, HEADS, RANK = 64, 4, 30
ROWS: dict[str, tuple[str, dict[str, Any], int]] = {
    "primal": ("primal", {"rank": RANK}, 10**9),
    "primal, published form": ("primal", {"rank": RANK, "form": "published"}, 10**9),
    "dual": ("dual", {}, 10**9),
    "ksvd": ("ksvd", {}, 10**9),
    "SGFormer": ("sgformer", {}, 10**9),
    "Performer": ("performer", {}, 10**5),
    "softmax": ("softmax", {}, 10**4),
}
"""Name, options and largest graph of each attention."""

SIZES = (1_000, 10_000, 100_000, 1_000_000)
SMALL = (10, 25, 50, 100, 200)
"""Nodes of each graph of a batch."""

SMALL_BATCH = 128


class Case:
    """An attention and a batch of graphs of the same size."""

    def __init__(self, name: str, size: int, graphs: int) -> None:
        self.name, self.size, self.graphs = name, size, graphs
        attention, options, _ = ROWS[name]
        torch.manual_seed(0)
        self.attention: nn.Module = GLOBAL_ATTENTIONS[attention](CHANNELS, HEADS, **options)
        self.shared = shared_of(self.attention) or NothingShared()
        batch = torch.arange(graphs).repeat_interleave(size)
        self.neighbourhoods = Graph(torch.empty(2, 0, dtype=torch.int64), batch=batch, num_graphs=graphs)
        self.h = torch.randn(graphs * size, CHANNELS, generator=torch.Generator().manual_seed(0))
        self.forward_seconds: list[float] = []
        self.training_seconds: list[float] = []

    def loss(self) -> Tensor:
        out, state = self.attention(self.h, self.neighbourhoods, self.shared(self.neighbourhoods))
        return out.sum() if state is None else out.sum() + state.penalty

    def measure(self) -> None:
        """Run one round."""
        start = time.perf_counter()
        with torch.no_grad():
            self.loss()
        self.forward_seconds.append(time.perf_counter() - start)
        start = time.perf_counter()
        self.loss().backward()
        self.training_seconds.append(time.perf_counter() - start)

    def saved_bytes(self) -> int:
        """Return the bytes kept for the backward pass, without weights, features and the graph."""
        own = {tensor.untyped_storage().data_ptr() for tensor in (*self.attention.parameters(), self.h)}
        own |= {tensor.untyped_storage().data_ptr() for tensor in (self.neighbourhoods.batch,)}
        kept: dict[int, Tensor] = {}

        def keep(tensor: Tensor) -> Tensor:
            if tensor.untyped_storage().data_ptr() not in own:
                kept[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = self.loss()
        del loss
        return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())

    def row(self) -> dict[str, Any]:
        nodes = self.size * self.graphs
        forward, training = (statistics.median(times[1:]) for times in (self.forward_seconds, self.training_seconds))
        return {
            "attention": self.name,
            "nodes_a_graph": self.size,
            "graphs": self.graphs,
            "seconds": training,
            "forward_us_a_node": 1e6 * forward / nodes,
            "training_us_a_node": 1e6 * training / nodes,
            "saved_bytes_a_node": self.saved_bytes() / nodes,
            "rounds": [1e6 * seconds / nodes for seconds in self.training_seconds[1:]],
        }


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="up to 1,000 nodes, one round")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="(default: %(default)s)")
    parser.add_argument("--attentions", nargs="+", choices=list(ROWS), default=list(ROWS), help="(default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", default="benchmarks/results/primal.json")
    args = parser.parse_args()

    shapes = [(size, 1) for size in (SIZES[:1] if args.quick else args.sizes)]
    shapes += [(size, SMALL_BATCH) for size in (SMALL[:1] if args.quick else SMALL)]
    rows = []
    for size, graphs in shapes:  # one size at a time: all of them would not fit into memory
        cases = [Case(name, size, graphs) for name in args.attentions if size <= ROWS[name][2]]
        for _ in range(2 if args.quick else args.rounds + 1):  # the first is not counted
            for case in cases:
                case.measure()
        for row in (case.row() for case in cases):
            rows.append(row)
            times = f"{row['forward_us_a_node']:8.2f} us a node forward, {row['training_us_a_node']:8.2f} in training"
            kept = f"{row['saved_bytes_a_node']:9,.0f} bytes kept"
            print(f"{row['attention']:24} {graphs:4} x {size:9,} nodes: {times}, {kept}", flush=True)
    machine = environment()
    write_json(Path(args.json), {"results": rows, "machine": machine})


if __name__ == "__main__":
    main()
