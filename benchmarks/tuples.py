"""Measure the cost of tuples as tokens on molecules: their number, and training steps.

    python benchmarks/tuples.py [--data ZINC12K_DIR] [--quick] [--json FILE]

Each row is a set of tuples and an attention of the tuple transformer with 4 layers, 64 channels and 4 heads (66 and 6
if there are six kinds of neighbours), in float32 with batches of 128 molecules and one thread. The figures are tokens
per molecule, milliseconds per molecule of a training step, and KiB kept for the backward pass. Rounds go through all
rows in turn, so that other load affects all rows; a row is the median of its rounds. Without --data, the molecules are
those that ship with RDKit.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _arguments import Parser
from _measure import saved_bytes, take_turns
from _results import show, write_results
from torch import Tensor
from torch_geometric.loader import DataLoader

from tg_lpe import Graph
from tg_lpe.app.molecules import load_molecules
from tg_lpe.models.tuple_transformer import TupleTransformer
from tg_lpe.nn.tuples import tuple_tokens

BATCH, ROUNDS = 128, 5
ROWS = {
    "(1,1), full": (1, 1, "full"),
    "(2,1), full": (2, 1, "full"),
    "(2,1), local": (2, 1, "local"),
    "(3,1), full": (3, 1, "full"),
    "(3,1), local": (3, 1, "local"),
    "(3,1), local and global": (3, 1, "delta"),
}
"""Tuples and attention."""


class Case:
    """A set of tuples and an attention on some batches."""

    def __init__(self, name: str, batches: list[Any], types: dict[str, Any]) -> None:
        self.name, self.batches = name, batches
        self.k, self.s, attention = ROWS[name]
        heads = 6 if attention == "delta" else 4

        torch.manual_seed(0)
        self.model = TupleTransformer(
            **types,
            k=self.k,
            s=self.s,
            hidden_channels=66 if heads == 6 else 64,
            heads=heads,
            attention=attention,
        )

    def loss(self, batch: Any) -> Tensor:
        out: Tensor = self.model(batch.x, batch.edge_index, batch.edge_attr, batch.batch, num_graphs=batch.num_graphs)
        return out.square().sum()

    def tokens(self, batch: Any) -> Tensor:
        """Count the tokens of each molecule."""
        return tuple_tokens(Graph.from_data(batch), self.k, self.s).batch.bincount(minlength=batch.num_graphs)

    def train(self, batch: Any) -> None:
        self.loss(batch).backward()
        self.model.zero_grad(set_to_none=True)

    def row(self, seconds: float) -> dict[str, Any]:
        """Return the figures of this case, from the seconds a molecule."""
        tokens = torch.cat([self.tokens(batch) for batch in self.batches])
        kept = saved_bytes(lambda: self.loss(self.batches[0]), self.model.parameters())
        return {
            "row": self.name,
            "molecules": len(tokens),
            "tokens_mean": float(tokens.double().mean()),
            "training_ms": 1e3 * seconds,
            "seconds": seconds,
            "kept_kib": kept / 1024 / self.batches[0].num_graphs,
            "num_parameters": sum(p.numel() for p in self.model.parameters()),
        }


def main() -> None:
    parser = Parser(__doc__, "one batch of 32 molecules, one round", "tuples.json")
    parser.add_argument("--data", type=Path, help="folder of ZINC-12k")
    args = parser.parse_args()

    torch.set_num_threads(1)
    splits = load_molecules(args.data or "nci", name="zinc12k" if args.data else "nci", progress=False)
    batch_size, count = (32, 1) if args.quick else (BATCH, 8)
    batches = list(DataLoader(splits.train.copy(torch.arange(batch_size * count)), batch_size))
    types = {name: getattr(splits.spec, name) for name in ("num_node_types", "num_edge_types")}
    cases = [Case(name, batches, types) for name in ROWS]
    runs = {(case.name, number): partial(case.train, batch) for case in cases for number, batch in enumerate(batches)}
    seconds = take_turns(runs, 1 if args.quick else ROUNDS, time.perf_counter)
    rows = []
    for case in cases:
        times = [taken for number in range(count) for taken in seconds[case.name, number]]
        rows.append(case.row(statistics.median(times) / batch_size))
        show(rows[-1])
    write_results(args.json, rows)


if __name__ == "__main__":
    main()
