"""Make gram-k16, the shipped encoder with ordered channels.

    python benchmarks/_ordered.py --data DIR

DIR holds the molecules of ZINC-12k. The script writes tg_lpe/zoo/gram-k16: filters with four ground conductances, whose
channels are principal components of the filters' values over the training molecules and random graphs. The card holds
figures of benchmarks/results/k.json, so make the encoder, run benchmarks/k.py, and make the encoder again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from _score import SAMPLE
from _ship import ZOO, finish
from torch import Tensor
from torch_geometric.data import Data

from tg_lpe import GramTransformer
from tg_lpe.app.molecules import load_molecules
from tg_lpe.app.training.loop import count_parameters
from tg_lpe.app.training.readouts import principal_readouts
from tg_lpe.app.training.run_folder import environment
from tg_lpe.checkpoints.files import read_json
from tg_lpe.data.storage import GraphDataset
from tg_lpe.data.synthetic import random_regular_edges

NAME, CHANNELS, EDGE_CHANNELS = "gram-k16", 16, 8
GROUND = (0.01, 0.1, 0.5, 2.0)
"""Ground conductances; a wide range lets the values span more dimensions. heat-k8 has 0.03 to 0.4."""

MAX_NODES = 60
MEASURES, SHOWN = ("unexplained_molecules", "unexplained_random", "f1_5", "f1_6", "f1_other"), (8, 16)
FAMILIES = ("sparse", "tree", "regular", "geometric", "attached")


def random_graphs(count: int, seed: int, families: tuple[str, ...] = FAMILIES) -> list[Data]:
    """Draw graphs of at most 60 nodes from each family in turn, without isolated nodes."""
    generator = torch.Generator().manual_seed(seed)
    return [random_graph(families[number % len(families)], generator) for number in range(count)]


def random_graph(family: str, generator: torch.Generator) -> Data:
    """Draw a random graph: independent edges, tree, regular, geometric, or preferential attachment."""
    n = int(torch.randint(3, MAX_NODES + 1, (), generator=generator))
    share = torch.rand((), generator=generator)
    pairs = torch.triu_indices(n, n, offset=1)
    if family == "sparse":  # one to six edges per node
        edges = pairs[:, torch.rand(pairs.size(1), generator=generator) < (1 + 5 * share) / n]
    elif family == "tree":
        edges = attached_edges(n, 1, False, generator)
    elif family == "regular":
        edges = random_regular_edges(n, 2 if share < 0.5 else 4, generator)
    elif family == "geometric":
        points = torch.rand(n, 2, generator=generator)
        edges = pairs[:, torch.cdist(points, points)[pairs[0], pairs[1]] < (1 + share) / n**0.5]
    else:
        edges = attached_edges(n, 1 + int(3 * share), True, generator)
    joined, edges = edges.unique(return_inverse=True)
    return Data(edge_index=torch.cat([edges, edges.flip(0)], dim=1), num_nodes=joined.numel())


def attached_edges(num_nodes: int, count: int, by_degree: bool, generator: torch.Generator) -> Tensor:
    """Join each node to at most ``count`` earlier ones, drawn uniformly or by degree."""
    degree = torch.ones(num_nodes)
    edges = []
    for node in range(1, num_nodes):
        weight = degree[:node] if by_degree else torch.ones(node)
        for other in torch.multinomial(weight, min(count, node), generator=generator).tolist():
            edges.append((other, node))
            degree[[other, node]] += 1
    return torch.tensor(edges).view(-1, 2).mT


def bare(dataset: Any) -> list[Data]:
    """Return the graphs without features and labels."""
    return [Data(edge_index=data.edge_index, num_nodes=data.num_nodes) for data in dataset]


def training_graphs(molecules: Any) -> GraphDataset:
    """Return the molecules, and one random graph for every four of them."""
    return GraphDataset.from_data_list([*bare(molecules), *random_graphs(len(molecules) // 4, seed=0)])


def ordered_encoder(graphs: GraphDataset) -> GramTransformer:
    """Make the encoder with ordered channels."""
    return principal_readouts(filters(), graphs, CHANNELS, EDGE_CHANNELS)


def filters() -> GramTransformer:
    """Make an encoder of all filter values, without features."""
    encoder = GramTransformer(num_filters=len(GROUND), conductances="ground")
    with torch.no_grad():
        encoder.conductances.ground.table.copy_(torch.tensor([GROUND]).expm1().log())  # the inverse of softplus
    return encoder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="DIR", required=True)
    parser.add_argument("--results", metavar="FILE", default="benchmarks/results/k.json")
    args = parser.parse_args()
    splits = load_molecules(args.data, name="zinc12k")
    encoder = ordered_encoder(training_graphs(splits.train))
    encoder.save_pretrained(ZOO / NAME)
    rows = read_json(Path(args.results))["results"] if Path(args.results).exists() else []
    mine = [row for row in rows if row["encoding"] == NAME]
    metrics = {f"{name}_k{row['k']}": row[name] for name in MEASURES for row in mine if row["k"] in SHOWN}
    command = "python benchmarks/_ordered.py"
    card = {
        "name": NAME,
        "class": type(encoder).__name__,
        "summary": f"{CHANNELS} channels for any graph, in the order of what they explain: no features read",
        "num_parameters": count_parameters(encoder),
        "data": {
            "source": "zinc12k",
            "num_train": len(splits.train),
            "num_random": len(splits.train) // 4,
            "num_val": len(splits.val),
            "num_test": len(splits.test),
            "atom_types": None,
            "bond_types": None,
        },
        "pretraining": None,
        "command": command,
        "seed": 0,
        "metrics": metrics,
        "sample": {"molecules": f"at most {SAMPLE}", "normalization": "zinc", "max_nodes": None},
        "torch": environment()["packages"]["torch"],
    }
    made = f"`{command}`: principal components over the training molecules and {len(splits.train) // 4:,} random graphs"
    finish(card, made)


if __name__ == "__main__":
    main()
