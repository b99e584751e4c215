"""Measure what the first 4, 8 and 16 channels of an encoder are worth.

    python benchmarks/k.py [--quick] [--data DIR] [--json FILE]

DIR holds the molecules of ZINC-12k; without it, the molecules are those that ship with RDKit. The encodings are

- gram-k16 and the structure of universal-k32, whose channels are principal components;
- gram-k8 and heat-k8, whose channels have no order;
- return probabilities of 2 to k + 1 steps.

The figures are measured on unseen graphs:

- unexplained: linear regression on the k channels predicts heat kernels, resistances and random walks, and this share
  of their variance remains, for molecules and for random graphs;
- F1 of a small network that classifies atoms of 5-rings, 6-rings and other rings from the atom's k channels.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import networkx as nx
import torch
from _arguments import Parser
from _ordered import NAME, UNIVERSAL, bare, random_graphs
from _results import show, write_results
from sklearn.metrics import f1_score
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.utils import to_networkx

from tg_lpe import Graph
from tg_lpe.app.molecules import load_molecules
from tg_lpe.app.training.kernels import WALK_STEPS, kernel_entries
from tg_lpe.data.storage import GraphDataset
from tg_lpe.encoders import load_encoder
from tg_lpe.encoders.precompute import incidences
from tg_lpe.graph.random_walks import random_walk_probabilities

KERNELS = ("heat", "resistance", "walks")
WIDTHS = (4, 8, 16)
CHUNK = 1000
NO_RING = 0
WALK = "random walk"


def over(dataset: GraphDataset, function: Callable[[Graph], Tensor]) -> Tensor:
    """Evaluate a function of the nodes of every graph, float64 ``[num_nodes, width]``."""
    with torch.no_grad():
        return torch.cat([function(graph).double() for graph in incidences(dataset, CHUNK)])


def linear(in_features: int, out_features: int, generator: torch.Generator) -> nn.Linear:
    """Make a linear map with weights from a generator."""
    layer = nn.Linear(in_features, out_features)
    with torch.no_grad():
        layer.weight.normal_(0, in_features**-0.5, generator=generator)
        layer.bias.zero_()
    return layer


def standardized(values: Tensor, like: Tensor | None = None) -> Tensor:
    """Standardise columns by mean and variance of ``like``, or their own, and clip them at ten."""
    like = values if like is None else like
    return ((values - like.mean(0)) / like.std(0).clamp(min=1e-9)).clamp(-10, 10)


def unexplained(fit: Tensor, fit_targets: Tensor, held: Tensor, held_targets: Tensor) -> float:
    """Return the share of variance that linear regression leaves, averaged over the target channels that vary."""
    fit, held = (torch.cat([part, part.new_ones(len(part), 1)], 1) for part in (fit, held))
    left = held_targets - held @ torch.linalg.lstsq(fit, fit_targets).solution
    variance = held_targets.var(0)
    return float((left.square().mean(0) / variance)[variance > 1e-9].mean())


def ring_scores(fit: Tensor, fit_rings: Tensor, held: Tensor, held_rings: Tensor, steps: int) -> list[float]:
    """Return the F1 scores for atoms of 5-rings, 6-rings and other rings."""
    generator = torch.Generator().manual_seed(0)
    x, seen = standardized(fit).float(), standardized(held, fit).float()
    sizes = [x.size(1), 64, 64, 4]
    layers = [linear(a, b, generator) for a, b in pairwise(sizes)]
    network = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
    wanted = ring_classes(fit_rings)
    for _ in range(steps):
        rows = torch.randint(0, len(x), (1024,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(network(x[rows]), wanted[rows]).backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        found = network(seen).argmax(1)
    return list(f1_score(ring_classes(held_rings), found, labels=[1, 2, 3], average=None, zero_division=0.0))


def ring_classes(rings: Tensor) -> Tensor:
    """Return 0 without a ring, 1 or 2 if the smallest ring has 5 or 6 atoms, 3 for other rings."""
    return torch.where(rings == NO_RING, 0, torch.where(rings == 5, 1, torch.where(rings == 6, 2, 3)))


def smallest_rings(dataset: GraphDataset) -> Tensor:
    """Return the size of the smallest ring of each node: an edge of it closes a shortest path between its ends."""
    sizes: list[int] = []
    for data in dataset:
        graph, best = to_networkx(data, to_undirected=True), [NO_RING] * data.num_nodes
        for edge in set(graph.edges) - set(nx.bridges(graph)):
            graph.remove_edge(*edge)
            size = nx.shortest_path_length(graph, *edge) + 1
            graph.add_edge(*edge)
            for node in edge:
                best[node] = min(best[node] or size, size)
        sizes += best
    return torch.tensor(sizes)


def encodings() -> dict[str, Callable[[Graph], Tensor]]:
    """Return encodings of nodes by name."""
    encoders = {name: load_encoder(name) for name in (NAME, UNIVERSAL, "gram-k8", "heat-k8")}
    found: dict[str, Callable[[Graph], Tensor]] = {
        name: lambda graph, encoder=encoder: encoder(None, graph).node for name, encoder in encoders.items()
    }
    found[WALK] = lambda graph: random_walk_probabilities(graph, WALK_STEPS[-1], with_edges=False)[0][:, 1:]
    return found


def main() -> None:
    parser = Parser(__doc__, "few molecules, steps and widths", "k.json")
    parser.add_argument("--data", metavar="DIR", help="folder of the ZINC-12k molecules")
    args = parser.parse_args()
    splits = load_molecules(args.data or "nci", name="zinc12k" if args.data else "nci")
    train, test, widths, steps = splits.train, splits.test, WIDTHS, 3000
    if args.quick:
        train, test, widths, steps = train[:400], test[:200], (8,), 300
    train, test = train.copy(), test.copy()  # copies with their own storage
    sets = {
        "fit": GraphDataset.from_data_list(bare(train)),
        "fit_random": GraphDataset.from_data_list(random_graphs(max(len(train) // 4, 100), seed=1)),
        "held": GraphDataset.from_data_list(bare(test)),
        "held_random": GraphDataset.from_data_list(random_graphs(max(len(test), 100), seed=2)),
    }
    kernels = {name: over(part, lambda graph: kernel_entries(graph, KERNELS)[0]) for name, part in sets.items()}
    rings = {name: smallest_rings(sets[name]) for name in ("fit", "held")}
    rows = []
    for name, encode in encodings().items():
        encoded = {part: over(dataset, encode) for part, dataset in sets.items()}
        for k in (k for k in widths if k <= encoded["fit"].size(1)):
            start = time.perf_counter()
            first = {part: values[:, :k] for part, values in encoded.items()}
            left = [
                unexplained(first[fit], kernels[fit], first[held], kernels[held])
                for fit, held in (("fit", "held"), ("fit_random", "held_random"))
            ]
            scores = ring_scores(first["fit"], rings["fit"], first["held"], rings["held"], steps // 10)
            row = {"encoding": name, "k": k, "unexplained_molecules": left[0], "unexplained_random": left[1]}
            row |= dict(zip(("f1_5", "f1_6", "f1_other"), scores, strict=True))
            rows.append({**row, "seconds": time.perf_counter() - start})
            show(rows[-1])
    write_results(args.json, rows, molecules={"fit": len(train), "held": len(test)})


if __name__ == "__main__":
    main()
