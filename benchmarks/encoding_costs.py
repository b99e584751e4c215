"""Measure the cost of encodings of nodes, edges and pairs on molecules, and of attention over all pairs.

    python benchmarks/encoding_costs.py [--quick] [--data ZINC_DIR] [--json FILE]

There are four parts, on one thread. Seconds are CPU time: medians of rounds in which the rows of a part take turns,
after a first round that does not count.

- "beforehand": encodings of nodes and edges that are computed once for a dataset; PyG's AddRandomWalkPE encodes only
  nodes, one graph at a time.
- "pairs": encodings of all pairs of nodes in batches of 128, which each step computes from the list of edges, in
  addition to what is computed beforehand.
- "step": the encoder's part of a training step on such a batch, forward and backward.
- "attention": a training step of a GraphTransformer with four layers and 64 channels on such a batch, and its ratio to
  the step of softmax attention over all nodes.

Without --data the molecules are those that ship with RDKit.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from _arguments import Parser
from _measure import take_turns
from _results import show, write_results
from throughput import one_by_one
from torch_geometric.data import Batch
from torch_geometric.transforms import AddRandomWalkPE

from tg_lpe import AddPositionalEncoding, Encoder, GramTransformer, Graph, GraphTransformer, encoders
from tg_lpe.app.molecules import load_molecules

BATCH = 128
PEER = "PyG's AddRandomWalkPE(16)"

BEFOREHAND: dict[str, Callable[[], Encoder]] = {
    "RandomWalk(16)": lambda: encoders.RandomWalk(16),
    "RRWP(16)": lambda: encoders.RRWP(16),
    "DirectedWalk(5)": lambda: encoders.DirectedWalk(5),
    "LaplacianEigenvectors(16)": lambda: encoders.LaplacianEigenvectors(16),
    "MagneticLaplacian(4)": lambda: encoders.MagneticLaplacian(4),
    "CycleCounts()": encoders.CycleCounts,
    f"FromTransform, {PEER}": lambda: encoders.FromTransform(AddRandomWalkPE(16)),
}
PAIRS: dict[str, Callable[[], Encoder]] = {
    "RRWP(16)": lambda: encoders.RRWP(16),
    "ShortestPath(8)": lambda: encoders.ShortestPath(8),
    "PersonalizedPageRank()": encoders.PersonalizedPageRank,
    "EffectiveResistance": lambda: encoders.EffectiveResistance(pair_out_channels=None),
    "HeatKernel": lambda: encoders.HeatKernel(pair_out_channels=None),
    "Positions(8)": lambda: encoders.Positions(8, pair_out_channels=None),
    "DirectedWalk(5)": lambda: encoders.DirectedWalk(5),
    "MagneticLaplacian(4)": lambda: encoders.MagneticLaplacian(4),
    "GramTransformer": lambda: GramTransformer(16, pair_out_channels=8),
    "GramTransformer(direction=0.1)": lambda: GramTransformer(16, pair_out_channels=8, direction=0.1),
}
STEPS: dict[str, Callable[[], Encoder]] = {
    "GramTransformer(16)": lambda: GramTransformer(16),
    "GramTransformer(16, direction=0.1)": lambda: GramTransformer(16, direction=0.1),
    "LPE(16, 16)": lambda: encoders.LPE(16, 16),
    "SPE(16, 16)": lambda: encoders.SPE(16, 16),
    "SignNet()": encoders.SignNet,
    "RPEARL()": encoders.RPEARL,
    "PPGN()": encoders.PPGN,
}
ATTENTIONS: dict[str, dict[str, Any]] = {
    "softmax over all nodes": {
        "attention": "hybrid",
        "attention_options": {"global_attention": "softmax", "local": "none"},
    },
    '"bias"': {"attention": "bias"},
    '"pairs"': {"attention": "pairs"},
    '"edge", neighbours alone': {"attention": "edge"},
}
"""Attentions that read RRWP(16) at nodes, edges or pairs; the others are compared with the first."""


@torch.no_grad()
def encode_pairs(encoder: Encoder, batches: Iterable[Batch], beforehand: Iterable[dict[str, torch.Tensor]]) -> None:
    """Encode all pairs of each batch."""
    for batch, known in zip(batches, beforehand, strict=True):
        graph = Graph.from_data(batch)
        encoder(None, graph, pairs=graph.pairs, precomputed=known or None)


def encoder_step(encoder: Encoder, batch: Batch) -> Callable[[], None]:
    """Run the encoder's part of a training step."""
    known, generator = encoder.precompute(Graph.from_data(batch)), torch.Generator().manual_seed(0)

    def run() -> None:
        found = encoder(None, Graph.from_data(batch), generator=generator, precomputed=known or None)
        sum(part.sum() for part in found if part is not None).backward()  # type: ignore[union-attr]

    return run


def training_step(batch: Batch, options: dict[str, Any]) -> Callable[[], None]:
    """Run a training step of a model that reads RRWP."""
    torch.manual_seed(0)
    types = {"num_node_types": int(batch.x.max()) + 1, "num_edge_types": int(batch.edge_attr.max()) + 1}
    model = GraphTransformer(**types, encoder=encoders.RRWP(16), hidden_channels=64, num_layers=4, **options)
    optimizer, known = torch.optim.Adam(model.parameters()), model.encoder.precompute(Graph.from_data(batch))

    def run() -> None:
        optimizer.zero_grad()
        of_graphs = {"batch": batch.batch, "num_graphs": batch.num_graphs, "precomputed": known}
        model(batch.x, batch.edge_index, batch.edge_attr, **of_graphs).square().sum().backward()
        optimizer.step()

    return run


def main() -> None:
    parser = Parser(__doc__, "a few molecules, one round", "encoding_costs.json")
    parser.add_argument("--data", metavar="DIR", help="folder of ZINC molecules (train/val/test.smi)")
    args = parser.parse_args()

    torch.set_num_threads(1)
    count, rounds = (64, 1) if args.quick else (1024, 5)
    train = load_molecules(args.data or "nci", name="zinc" if args.data else "nci").train
    dataset = train.copy(torch.arange(count))  # copy the subset, so that it has its own storage
    graphs = [dataset[number] for number in range(count)]
    results: list[dict[str, Any]] = []

    def report(part: str, runs: dict[str, Callable[[], Any]], rounds: int, num_graphs: int) -> None:
        for name, times in take_turns(runs, rounds).items():
            taken = statistics.median(times)
            row = {"part": part, "what": name, "seconds": taken, "graphs_per_second": num_graphs / taken}
            results.append(row)
            show(row)

    few = count // 8
    for name, make in BEFOREHAND.items():
        encoder, size = make(), few if name.startswith("From") else count
        transform = AddPositionalEncoding(encoder, edge_attr_name="edge_pe" if encoder.edge_out_channels else None)
        run = partial(transform.encode_dataset, train.copy(torch.arange(size)), False)
        report("beforehand", {name: run}, rounds, size)
    report("beforehand", {PEER: one_by_one(AddRandomWalkPE(16), graphs[:few])}, rounds, few)
    batches, runs = [Batch.from_data_list(graphs[first : first + BATCH]) for first in range(0, count, BATCH)], {}
    for name, make in PAIRS.items():
        encoder = make()
        known = [encoder.precompute(Graph.from_data(batch)) for batch in batches]
        runs[name] = partial(encode_pairs, encoder, batches, known)
    report("pairs", runs, rounds, count)
    batch = batches[0]
    steps = {name: encoder_step(make(), batch) for name, make in STEPS.items()}
    report("step", steps, rounds, batch.num_graphs)
    models = {name: training_step(batch, options) for name, options in ATTENTIONS.items()}
    report("attention", models, 3 * rounds, batch.num_graphs)
    of_softmax = next(row["seconds"] for row in results if row["part"] == "attention")
    for row in results:
        if row["part"] == "attention":
            row["ratio"] = row["seconds"] / of_softmax
    write_results(args.json, results, num_graphs=count, data="zinc" if args.data else "nci")


if __name__ == "__main__":
    main()
