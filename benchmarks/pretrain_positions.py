"""Pretrain `Positions` on many families of graphs, and compare rules for the cut.

    python benchmarks/pretrain_positions.py [--steps 1500] [--ship] [--quick] [--json FILE]

The distribution of Gaussian columns is the same in every orthonormal basis, and the filter is a polynomial of the
normalized adjacency. So a simulation only needs the eigenvalues of a graph: a loop multiplies the rows of Gaussian
columns by numbers. A run has 2 to 5 loops, and its loss is the mean over the loops of log(1 - share + 1e-3). The share
is the part of the first k eigenvectors in the span of all columns, which does not depend on signs and bases. Some
families are held out for the test.

Rules are compared by the number of layers until the first eight of sixteen columns hold 0.995 of the first eight
eigenvectors:

- the cut set by hand to the smallest Ritz value, with an amplification of up to 1,000 or 100 per loop;
- a cut learned from the Ritz values.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import torch
from _arguments import Parser
from _results import show, write_results
from _ship import ZOO, write_card
from positions import FAMILIES, blocks, connected, normalized
from scipy.linalg import eigvalsh
from scipy.sparse import csr_matrix, triu
from torch import Tensor, nn
from tqdm import tqdm

from tg_lpe.encoders import Positions
from tg_lpe.graph.subspace import AMPLIFICATION, BELOW_ONE, FIRST_LAYERS, LearnedCut

K, COLUMNS, GOAL, MOST = 8, 16, 0.995, 4096

Spectrum = tuple[Tensor, Tensor]
"""Non-trivial eigenvalues of the normalized adjacency, descending, and the number that each stands for."""


def spectrum(values: np.ndarray, kept: int = 400, bins: int = 40, rows: int = 16) -> Spectrum:
    """Return the first eigenvalues of a graph, and bins of the others."""
    values = np.sort(values)[::-1]
    if len(values) <= kept + bins * rows:
        return torch.from_numpy(values.copy()), torch.ones(len(values), dtype=torch.float64)
    parts = np.array_split(values[kept:], bins)
    rest = [np.quantile(part, (np.arange(rows) + 0.5) / rows)[::-1] for part in parts]
    counts = [np.ones(kept), *(np.full(rows, len(part) / rows) for part in parts)]
    return torch.from_numpy(np.concatenate([values[:kept], *rest])), torch.from_numpy(np.concatenate(counts))


def of_matrix(adjacency: csr_matrix) -> Spectrum:
    return spectrum(eigvalsh(normalized(adjacency)[0].toarray())[::-1][1:])


def weighted(adjacency: csr_matrix, seed: int) -> csr_matrix:
    """Return the edges with weights over four orders of magnitude."""
    upper = triu(adjacency, 1).tocsr()
    upper.data = 10 ** np.random.default_rng(seed).uniform(-2, 2, len(upper.data))
    return (upper + upper.T).tocsr()


def of_networkx(graph: nx.Graph) -> Spectrum:
    edges = np.array(list(nx.convert_node_labels_to_integers(graph).edges)).T
    return of_matrix(connected(edges[0], edges[1], graph.number_of_nodes()))


def grid(height: int, width: int, ends: int) -> Spectrum:
    """Return the spectrum of a grid, ``ends=1``, or torus, ``ends=2``, from the eigenvalues of its sides."""
    sides = (np.cos(ends * np.pi * np.arange(n) / (n - (ends == 1))) for n in (height, width))
    return spectrum(np.sort(np.add.outer(*sides).ravel() / 2)[::-1][1:])


def trained(is_quick: bool) -> dict[str, list[Spectrum]]:
    """Return the spectra of the training families."""
    sizes = (150,) if is_quick else (150, 400, 1000, 2000)
    found = {
        family: [
            of_matrix(connected(*edges(n, 500 + s), n)) for n in sizes for s in range(1 if is_quick or n >= 1000 else 3)
        ]
        for family, edges in FAMILIES.items()
    }
    if is_quick:
        return found
    for count in (2, 3, 4, 8, 15, 30, 50):
        parts = (connected(*blocks(1000, count, inside, 20 - inside, 7), 1000) for inside in (7, 10, 14, 18))
        found[f"{count} blocks, four contrasts"] = [of_matrix(part) for part in parts]
    for family in ("grid", "geometric", "5 blocks", "tree"):
        parts = (weighted(connected(*FAMILIES[family](n, 900), n), 0) for n in (400, 1500))
        found[f"{family}, weights over four orders"] = [of_matrix(part) for part in parts]
    sides = ((30, 40), (60, 60), (100, 130), (200, 300), (300, 300), (8, 400), (20, 1000))
    found["grid, large"] = [grid(*pair, 1) for pair in sides]
    found["torus"] = [grid(*pair, 2) for pair in sides]
    found["path"] = [spectrum(np.cos(np.pi * np.arange(1, n) / (n - 1))) for n in (300, 3000, 30_000)]
    return found


def held_out(is_quick: bool) -> dict[str, list[Spectrum]]:
    """Return the spectra of the held-out families."""
    makers: dict[str, Callable[[int], nx.Graph]] = {
        "Watts-Strogatz, 10 % moved": lambda n: nx.connected_watts_strogatz_graph(n, 4, 0.1, seed=1),
        "power law with triangles": lambda n: nx.powerlaw_cluster_graph(n, 3, 0.3, seed=1),
        "ring of cliques": lambda n: nx.connected_caveman_graph(n // 20, 20),
        "triangular lattice": lambda n: nx.triangular_lattice_graph(int(n**0.5), 2 * int(n**0.5)),
        "random labelled tree": lambda n: nx.random_labeled_tree(n, seed=1),
        "Gaussian partition": lambda n: nx.gaussian_random_partition_graph(n, 40, 5, 0.25, 0.01, seed=1),
        "hypercube": lambda n: nx.hypercube_graph(int(math.log2(n))),
        "binary tree": lambda n: nx.balanced_tree(2, int(math.log2(n)) - 1),
        "ladder": lambda n: nx.circular_ladder_graph(n // 2),
    }
    return {
        name: [of_networkx(make(n)) for n in ((150,) if is_quick else (400, 1500))] for name, make in makers.items()
    }


def polynomial(values: Tensor, cut: Tensor, length: int) -> Tensor:
    """Evaluate the filter, at most one, at each eigenvalue ``[num_graphs, num_values]``."""
    centre, radius = (cut.unsqueeze(1) - 1) / 2, (cut.unsqueeze(1) + 1) / 2
    t = (values - centre) / radius
    before, now = torch.ones_like(t), t
    for _ in range(length - 1):
        before, now = now, 2 * t * now - before
    return now / now.abs().amax(1, keepdim=True)


class Run:
    """Simulate a run on several graphs at once."""

    def __init__(self, graphs: list[Spectrum], columns: int, generator: torch.Generator) -> None:
        self.values = nn.utils.rnn.pad_sequence([values for values, _ in graphs], batch_first=True)
        counts = nn.utils.rnn.pad_sequence([counts for _, counts in graphs], batch_first=True)
        noise = torch.randn(*self.values.shape, columns, generator=generator, dtype=torch.float64)
        self.x, self.ritz = noise * counts.sqrt().unsqueeze(2), torch.zeros(len(graphs), columns).double()
        self.missing, self.loop, self.length = torch.ones(len(graphs)).double(), 0, FIRST_LAYERS

    def step(self, rule: LearnedCut, k: int, amplification: float, longest: int = MOST) -> Tensor:
        """Run a loop, and return the share of the first ``k`` eigenvectors in the span, ``[num_graphs]``."""
        if self.loop:
            cut = rule(self.ritz, self.missing, k).clamp(max=BELOW_ONE)
            largest = ((2 * self.ritz[:, 0] + 1 - cut) / (1 + cut)).detach().clamp(min=1 + 1e-12)
            self.length = max(
                2, min(2 * self.length, int((math.acosh(amplification) / largest.acosh()).median()), longest)
            )
        else:
            cut = rule.start.double().expand(len(self.values))
        columns = polynomial(self.values, cut, self.length).unsqueeze(2) * self.x
        q = torch.linalg.qr(columns / torch.linalg.vector_norm(columns, dim=1, keepdim=True)).Q
        with torch.no_grad():
            ritz, mix = torch.linalg.eigh(q.transpose(1, 2) @ (self.values.unsqueeze(2) * q))
            self.ritz, mix = ritz.flip(1), mix.flip(2)
        self.x, self.loop = q @ mix, self.loop + 1
        with torch.no_grad():
            residual = (self.values.unsqueeze(2) - self.ritz[:, None, :k]) * self.x[..., :k]
            gaps = (self.ritz[:, :k] - self.ritz[:, -1:]).clamp(min=1e-150)
            self.missing = (residual.square().sum(1) / gaps.square()).clamp(max=1).mean(1)
        return self.x[:, :k].square().sum((1, 2)) / k


def fit(rule: LearnedCut, graphs: list[Spectrum], steps: int, seed: int = 0) -> LearnedCut:
    """Train a rule by Adam with a cosine schedule."""
    generator, choose = torch.Generator().manual_seed(seed), random.Random(seed)
    optimizer = torch.optim.Adam(rule.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in tqdm(range(steps), desc=type(rule).__name__):
        k, columns = choose.choice([(K, COLUMNS), (K, COLUMNS), (2 * K, 2 * COLUMNS), (K // 2, COLUMNS - 4)])
        run, amplification = (
            Run(choose.sample(graphs, min(10, len(graphs))), columns, generator),
            choose.choice([100.0, 1000.0]),
        )
        shares = [run.step(rule, k, amplification, 256) for _ in range(choose.choice([2, 3, 4, 5]))]
        loss = torch.stack([(1 - share + 1e-3).log().mean() for share in shares]).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(rule.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return rule.eval()


@torch.no_grad()
def layers_needed(rule: LearnedCut, graph: Spectrum, amplification: float, seed: int) -> int:
    """Return the number of layers until the first columns hold the share of the first eigenvectors."""
    run, layers, share = Run([graph], COLUMNS, torch.Generator().manual_seed(seed)), 0, 0.0
    while share < GOAL and layers < MOST:
        run.step(rule, K, amplification)
        layers, share = layers + run.length, float(run.x[:, :K, :K].square().sum() / K)
    return layers


def compared(
    rules: dict[str, tuple[LearnedCut, float]], families: dict[str, list[Spectrum]], seeds: int
) -> list[dict[str, Any]]:
    """Return a row for each rule: layers by family, and their mean relative to the first rule."""
    rows, first = [], []
    for name, (rule, amplification) in rules.items():
        start = time.process_time()
        needed = {
            family: [layers_needed(rule, graph, amplification, seed) for graph in graphs for seed in range(seeds)]
            for family, graphs in tqdm(families.items(), desc=name)
        }
        layers = [count for counts in needed.values() for count in counts]
        first = first or layers
        ratio = math.exp(statistics.fmean(math.log(a / b) for a, b in zip(layers, first, strict=True)))
        row = {"rule": name, "ratio": ratio, "layers": {name: statistics.fmean(of) for name, of in needed.items()}}
        rows.append(row | {"seconds": time.process_time() - start})
        show(rows[-1])
    return rows


def main() -> None:
    parser = Parser(__doc__, "small graphs and ten steps", "pretrain_positions.json")
    parser.add_argument("--steps", type=int, default=1500, help="of training (default: %(default)s)")
    parser.add_argument("--ship", action="store_true", help="write the learned cut to the zoo as positions-k16")
    args = parser.parse_args()
    families, held, steps = trained(args.quick), held_out(args.quick), 10 if args.quick else args.steps
    graphs = [graph for parts in families.values() for graph in parts]
    smallest = LearnedCut().requires_grad_(False)  # untrained
    torch.manual_seed(0)
    cut = fit(LearnedCut().double(), graphs, steps)
    rules: dict[str, tuple[LearnedCut, float]] = {
        "smallest Ritz value, amplification 1,000": (smallest, 1e3),
        "smallest Ritz value": (smallest, AMPLIFICATION),
        "learned cut": (cut, AMPLIFICATION),
    }
    seeds = 1 if args.quick else 2
    results = {"trained": compared(rules, families, seeds), "held_out": compared(rules, held, seeds)}
    rows = [{"families": part, **row} for part, found in results.items() for row in found]
    write_results(args.json, rows, steps=steps)
    if args.ship:
        ship(cut, results, steps)


def ship(cut: LearnedCut, results: dict[str, Any], steps: int) -> None:
    """Write the checkpoint and its card; its README, which has the layers by family, is edited by hand."""
    name, encoder = "positions-k16", Positions(2 * K)
    encoder.cut.load_state_dict(cut.state_dict())
    encoder.save_pretrained(ZOO / name)
    rows = {part: {row["rule"]: row for row in found} for part, found in results.items()}
    card: dict[str, Any] = {
        "name": name,
        "class": "Positions",
        "summary": "Place of each node in its component: 16 columns that span the leading Laplacian eigenvectors. "
        "For any graph.",
        "num_parameters": sum(parameter.numel() for parameter in encoder.parameters()),
        "data": {"source": "graphs of many families", "atom_types": None, "bond_types": None},
        "command": f"python benchmarks/pretrain_positions.py --steps {steps} --ship",
        "seed": 0,
        "metrics": {f"layers_{part}": found["learned cut"]["ratio"] for part, found in rows.items()},
        "sample": {"molecules": "at most 500", "normalization": "zinc", "max_nodes": None},
        "torch": torch.__version__,
    }
    write_card(card)


if __name__ == "__main__":
    main()
