"""Make gram-k16 and universal-k32, the shipped encoders with ordered channels.

    python benchmarks/_ordered.py gram-k16|universal-k32 --data DIR [--without molecules|tree|...]

DIR holds the molecules of ZINC-12k. Channels of gram-k16 are principal components of the values of four filters, over
training molecules and random graphs. The structure of universal-k32 has those of a linear transformer from the identity
with random weights; its graphs also include weighted, complete, bipartite and star graphs, so that values stay small.
An encoder --without one kind of graphs goes to runs, for a row of grid.py, and not to the zoo.
The cards hold figures of benchmarks/results/k.json: make the encoders, run benchmarks/k.py, and make them again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from _results import RESULTS, earlier_rows
from _score import SAMPLE
from _ship import ZOO, finish
from torch import Tensor
from torch_geometric.data import Data

from tg_lpe import GramTransformer, LinearTransformer
from tg_lpe.app.molecules import load_molecules
from tg_lpe.app.training.loop import count_parameters
from tg_lpe.app.training.readouts import principal_readouts
from tg_lpe.app.training.run_folder import environment
from tg_lpe.data.synthetic import random_regular_edges
from tg_lpe.encoders import Combined, Encoder, Positions, load_encoder

NAME, UNIVERSAL, CHANNELS, EDGE_CHANNELS = "gram-k16", "universal-k32", 16, 8
GROUND = (0.01, 0.1, 0.5, 2.0)
"""Ground conductances; a wide range lets the values span more dimensions. heat-k8 has 0.03 to 0.4."""

MAX_NODES, MIN_NODES, SIZES = 60, 512, (4, 8, 16, 32, 64, 128, 256)
"""Most nodes of a random graph, fewest of a graph whose nodes have a place, and nodes of extreme graphs."""

SUMMARIES = {
    NAME: "Structure around each node, in 16 columns ordered by how much they explain. For any graph.",
    UNIVERSAL: "Structure in 16 ordered columns, and place in 16 more, zero in graphs of fewer than 512 nodes.",
}
MEASURES, SHOWN = ("unexplained_molecules", "unexplained_random", "f1_5", "f1_6", "f1_other"), (8, 16)
FAMILIES = ("sparse", "tree", "regular", "geometric", "attached")


def random_graphs(count: int, seed: int, without: str | None = None) -> list[Data]:
    """Draw graphs of at most 60 nodes from each family in turn, without isolated nodes."""
    generator = torch.Generator().manual_seed(seed)
    families = [FAMILIES[number % len(FAMILIES)] for number in range(count)]
    return [random_graph(family, generator) for family in families if family != without]


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
    return Data(edge_index=torch.cat([edges, edges.flip(0)], dim=1).unique(dim=1), num_nodes=joined.numel())


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


def left_out(name: str, kind: str) -> Path:
    """Return the folder of an encoder that was made without one kind of graphs."""
    return Path("runs", f"{name}, no {kind}")


def bare(dataset: Any) -> list[Data]:
    """Return the graphs without features and labels."""
    return [Data(edge_index=data.edge_index, num_nodes=data.num_nodes) for data in dataset]


def universal_encoder(graphs: list[Data]) -> Combined:
    """Make the encoder of structure and place from graphs, and from extreme and weighted ones."""
    graphs = [*graphs, *extreme_graphs()]
    for data in graphs:
        data.edge_weight = torch.ones(data.edge_index.size(1))
    graphs += weighted_graphs(20, seed=1)
    torch.manual_seed(0)
    structure = LinearTransformer(32, CHANNELS, 3, 5, "identity", edge_out_channels=EDGE_CHANNELS - 2).eval()
    with torch.no_grad():
        structure.polynomials.conductances.ground.table.copy_(torch.tensor([GROUND]).expm1().log())
    principal_readouts(structure, graphs)
    place = Positions(16, min_nodes=MIN_NODES).eval()
    place.load_state_dict(load_encoder("positions-k16").state_dict())
    return Combined([structure, place]).eval()


def extreme_graphs() -> list[Data]:
    """Return complete graphs, balanced bipartite ones and stars."""
    pairs = [torch.triu_indices(n, n, offset=1) for n in SIZES]
    pairs += [torch.cartesian_prod(torch.arange(n // 2), torch.arange(n // 2, n)).mT for n in SIZES]
    pairs += [torch.stack([torch.zeros(n - 1, dtype=torch.int64), torch.arange(1, n)]) for n in SIZES]
    return [Data(edge_index=torch.cat([e, e.flip(0)], 1), num_nodes=int(e.max()) + 1) for e in pairs]


def weighted_graphs(count: int, seed: int) -> list[Data]:
    """Draw random graphs with log-normal weights."""
    generator, graphs = torch.Generator().manual_seed(seed), []
    for data in random_graphs(count, seed):
        edges = data.edge_index[:, data.edge_index[0] < data.edge_index[1]].unique(dim=1)
        weight = torch.randn(edges.size(1), generator=generator).mul(1.5).softmax(0) * edges.size(1)
        both = torch.cat([edges, edges.flip(0)], 1)
        graphs.append(Data(edge_index=both, edge_weight=weight.repeat(2), num_nodes=data.num_nodes))
    return graphs


def ordered_encoder(graphs: list[Data]) -> GramTransformer:
    """Make the encoder with ordered channels from graphs."""
    encoder = GramTransformer(CHANNELS, EDGE_CHANNELS, len(GROUND), conductances="ground")
    with torch.no_grad():
        encoder.conductances.ground.table.copy_(torch.tensor([GROUND]).expm1().log())  # the inverse of softplus
    return principal_readouts(encoder, graphs).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=(NAME, UNIVERSAL))
    parser.add_argument("--data", metavar="DIR", required=True)
    parser.add_argument("--without", choices=("molecules", *FAMILIES))
    args = parser.parse_args()
    splits = load_molecules(args.data, name="zinc12k")
    molecules = [] if args.without == "molecules" else bare(splits.train)
    graphs = [*molecules, *random_graphs(len(splits.train) // 4, 0, args.without)]
    encoder: Encoder = (ordered_encoder if args.name == NAME else universal_encoder)(graphs)
    if args.without is not None:
        encoder.save_pretrained(left_out(args.name, args.without))
        return
    encoder.save_pretrained(ZOO / args.name)
    rows = earlier_rows(RESULTS / "k.json")
    mine = [row for row in rows if row["encoding"] == args.name]
    metrics = {f"{name}_k{row['k']}": row[name] for name in MEASURES for row in mine if row["k"] in SHOWN}
    command = f"python benchmarks/_ordered.py {args.name}"
    card = {
        "name": args.name,
        "class": type(encoder).__name__,
        "summary": SUMMARIES[args.name],
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
