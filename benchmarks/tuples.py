"""Measure the cost of tuples as tokens on molecules: their number, the time to find them, and training steps.

    python benchmarks/tuples.py [--data ZINC12K_DIR] [--quick] [--rounds N] [--json FILE]

Each row is a set of tuples and an attention of the tuple transformer with 4 layers, 64 channels and 4 heads (66 and 6
if there are six kinds of neighbours), in float32 with batches of 128 molecules and one thread. The figures are tokens
per molecule, molecules per second whose tokens are found, milliseconds per molecule of a forward pass and of a training
step, and KiB kept for the backward pass. Rounds go through all rows in turn, so that other load affects all rows; a row
is the median of its rounds. Without --data, the molecules are those that ship with RDKit.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _arguments import Parser
from torch import Tensor
from torch_geometric.loader import DataLoader

from tg_lpe import GramTransformer, Graph
from tg_lpe.checkpoints.files import write_json
from tg_lpe.datasets.molecules import load_molecules
from tg_lpe.models.tuple_transformer import TupleTransformer
from tg_lpe.nn.tuples import tuple_tokens
from tg_lpe.training.run_folder import environment

BATCH = 128
ROWS = {
    "(1,1), full": (1, 1, "full", False),
    "(2,1), full": (2, 1, "full", False),
    "(2,1), local": (2, 1, "local", False),
    "(2,1), full, GramTransformer with pairs": (2, 1, "full", True),
    "(2,1), local, GramTransformer with pairs": (2, 1, "local", True),
    "(3,1), full": (3, 1, "full", False),
    "(3,1), local": (3, 1, "local", False),
    "(3,1), local, GramTransformer with pairs": (3, 1, "local", True),
    "(3,1), local and global": (3, 1, "delta", False),
}
"""Tuples, attention, and whether there is an encoder, which also encodes pairs."""


class Case:
    """A set of tuples and an attention on some batches."""

    def __init__(self, name: str, batches: list[Any], types: dict[str, Any]) -> None:
        self.name, self.batches = name, batches
        self.k, self.s, attention, with_encoder = ROWS[name]
        heads = 6 if attention == "delta" else 4

        torch.manual_seed(0)
        encoder = GramTransformer(32, 32, **types, pair_out_channels=16) if with_encoder else None
        self.model = TupleTransformer(
            **types,
            encoder=encoder,
            k=self.k,
            s=self.s,
            hidden_channels=66 if heads == 6 else 64,
            heads=heads,
            attention=attention,
        )
        self.token_seconds: list[float] = []
        self.forward_seconds: list[float] = []
        self.training_seconds: list[float] = []

    def loss(self, batch: Any) -> Tensor:
        out: Tensor = self.model(batch.x, batch.edge_index, batch.edge_attr, batch.batch, num_graphs=batch.num_graphs)
        return out.square().sum()

    def round(self) -> None:
        for batch in self.batches:
            start = time.perf_counter()
            graph = Graph(batch.edge_index, batch.num_nodes, batch=batch.batch, num_graphs=batch.num_graphs)
            tuple_tokens(graph, self.k, self.s)
            self.token_seconds.append((time.perf_counter() - start) / batch.num_graphs)
            start = time.perf_counter()
            with torch.no_grad():
                self.loss(batch)
            self.forward_seconds.append((time.perf_counter() - start) / batch.num_graphs)
            start = time.perf_counter()
            self.loss(batch).backward()
            self.training_seconds.append((time.perf_counter() - start) / batch.num_graphs)
            self.model.zero_grad(set_to_none=True)

    def saved_bytes(self) -> int:
        """Return the bytes kept for the backward pass of a batch, without weights."""
        own = {tensor.untyped_storage().data_ptr() for tensor in self.model.parameters()}
        kept: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = self.loss(self.batches[0])
        del loss
        return sum(kept.values())

    def row(self) -> dict[str, Any]:
        sizes = []
        for batch in self.batches:
            graph = Graph(batch.edge_index, batch.num_nodes, batch=batch.batch, num_graphs=batch.num_graphs)
            sizes.append(tuple_tokens(graph, self.k, self.s).batch.bincount(minlength=batch.num_graphs))
        tokens = torch.cat(sizes).numpy()
        # The first call of a round warms up.
        tokens_s, forward, training = (
            statistics.median(times[1:] or times)
            for times in (self.token_seconds, self.forward_seconds, self.training_seconds)
        )
        return {
            "row": self.name,
            "molecules": len(tokens),
            "tokens_mean": float(tokens.mean()),
            "tokens_95": float(np.quantile(tokens, 0.95)),
            "tokens_max": int(tokens.max()),
            "tokenized_a_second": 1.0 / tokens_s,
            "forward_ms": 1e3 * forward,
            "training_ms": 1e3 * training,
            "seconds": training,
            "kept_kib": self.saved_bytes() / 1024 / self.batches[0].num_graphs,
            "num_parameters": sum(p.numel() for p in self.model.parameters()),
        }


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--data", type=Path, help="folder of ZINC-12k")
    parser.add_argument("--quick", action="store_true", help="one batch of 32 molecules, one round")
    parser.add_argument("--batches", type=int, default=8, help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", default="benchmarks/results/tuples.json")
    args = parser.parse_args()

    torch.set_num_threads(1)
    splits = load_molecules(args.data or "nci", name="zinc12k" if args.data else "nci", progress=False)
    batch_size, count = (32, 1) if args.quick else (BATCH, args.batches)
    batches = list(DataLoader(splits.train.copy(torch.arange(batch_size * count)), batch_size))
    types = {name: getattr(splits.spec, name) for name in ("num_node_types", "num_edge_types")}
    cases = [Case(name, batches, types) for name in ROWS]
    for _ in range(1 if args.quick else args.rounds):
        for case in cases:
            case.round()
    rows = []
    for case in cases:
        row = case.row()
        rows.append(row)
        tokens = f"{row['tokens_mean']:5.0f} tokens, {row['tokenized_a_second']:9,.0f} molecules/s"
        times = f"{row['forward_ms']:7.2f} ms forwards, {row['training_ms']:7.2f} in training"
        print(f"{row['row']:42} {tokens}, {times}, {row['kept_kib']:8,.0f} KiB kept", flush=True)
    machine = environment()
    write_json(Path(args.json), {"results": rows, "machine": machine})


if __name__ == "__main__":
    main()
