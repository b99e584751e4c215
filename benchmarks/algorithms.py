"""Learn graph algorithms on graphs of 16 nodes, and test on graphs of up to 512 of other kinds.

    python benchmarks/algorithms.py --data DIR [--tasks NAME ...] [--rows NAME ...] [--seeds 0 1 2] [--quick]

The tasks, graphs and scores are those of GraphBench's algorithmic reasoning at its level "hard", drawn on the spot by
its own generators (flow-requirements.txt): random graphs of Erdos and Renyi for training, five other kinds for the
test, four for flows, as networkx refuses the probabilities of its block model there. An edge is one example, where
GraphBench has both of its directions and marks only one. DIR keeps graphs and encodings, and --out the figures of
complete runs, which are not repeated.

- bridges, mst, steinertree: which edges are bridges, of the minimum spanning tree, of a tree that joins three terminals
  (F1 over all edges);
- flow: the value of a maximum flow (mean absolute error). The capacity out of the source or into the sink, whichever is
  smaller, bounds it; the models predict the share of that bound.

Rows read conductances: one over the length of an edge, the mean capacity of its directions, or one; "walks" reads none.
"resistance" has effective resistances, and the leverage of edges: resistance times conductance. "electric" adds the
leverages for two higher powers of the conductances, and the currents between terminals. By Kirchhoff's theorem the
leverage of an edge is the share of spanning trees with it, weighted by their conductances; the higher the power, the
nearer to the minimum one. Rows "untrained" have no weights: leverages above one half, or for bridges above those of the
longest cycle; two thirds of the currents between terminals; the bound of the flow.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from _arguments import Parser
from _measure import timed
from _results import show, write_results
from _runs import slug
from flow import ENCODERS, WIDTH, cached, train, transformer
from flow import encodings as of_encoders
from grid import BACKBONES
from sklearn.metrics import f1_score
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import global_add_pool

from tg_lpe.app.training import paired_difference
from tg_lpe.checkpoints.files import read_json, write_json
from tg_lpe.encoders import EffectiveResistance, ElectricFlow

TASKS = ["bridges", "mst", "steinertree", "flow"]
SIZES = [16, 64, 128, 512]
PARTS = ["none", "resistance", "electric", *ENCODERS, "R-PEARL"]
POWERS = (1, 3, 6)
EPOCHS = 15


def draw(task: str, size: int, number: int, is_training: bool) -> list[Data]:
    """Draw graphs whose edges are listed once in each direction, 2i and 2i + 1."""
    from graphbench._algoreas_helpers import _algoreas_utils as graphbench  # its data sets have no seed

    random.seed(size)
    weights = (graphbench._SAMPLING_LIST_TRAIN if is_training else graphbench._SAMPLING_LIST_TEST)["hard"]
    if task == "flow":
        weights = [*weights[:-1], 0]  # its block model has probabilities that networkx refuses
    make = {
        "bridges": graphbench._bridges_graph,
        "mst": graphbench._mst_graph,
        "steinertree": graphbench._steiner_tree_graph,
        "flow": lambda n, name, kinds, is_training: graphbench._flow_graph(kinds, n, name, is_training),
    }[task]
    graphs: list[Data] = []
    while len(graphs) < number:
        with contextlib.suppress(KeyError):  # networkx finds no tree in the parts of a graph
            graphs.append(labelled(task, *make(size, task, weights, is_training)))
    return graphs


def labelled(task: str, graph: Any, *found: Any) -> Data:
    """Return the data of one of GraphBench's graphs and its solution."""
    pairs = [(u, v) for u, v in graph.edges if task != "flow" or u < v]
    attributes = [[graph.edges[edge].get("edge_attr", 1.0) for edge in (pair, pair[::-1])] for pair in pairs]
    values = torch.tensor(attributes, dtype=torch.float64)
    x, ends, bound = torch.zeros(graph.number_of_nodes(), 3), [], 1.0
    if task == "flow":
        source, sink, value = found
        bound = min(graph.out_degree(source, weight="edge_attr"), graph.in_degree(sink, weight="edge_attr"))
        y, ends = torch.tensor([value / max(bound, 1e-9)]), [source, sink]
    else:
        chosen = {frozenset(edge) for edge in found[0]}
        y, ends = torch.tensor([float(frozenset(pair) in chosen) for pair in pairs]), [*(found[1] if found[1:] else ())]
    for place, end in enumerate(ends):
        x[end, place if task == "flow" else 0] = 1.0
    conductances = values.mean(1) if task == "flow" else 1 / values[:, 0].clamp(min=1e-3)
    index = torch.tensor(pairs).T
    return Data(
        x=x,
        edge_index=torch.stack([index, index.flip(0)], 2).flatten(1),
        edge_attr=torch.stack([values, values.flip(1)], 1).flatten(0, 1).float(),
        edge_weight=conductances.repeat_interleave(2),
        y=y.float(),
        ends=torch.tensor([ends], dtype=torch.long).reshape(1, -1),
        bound=bound,
    )


def sharpened(weights: Tensor, power: int, graph: Data) -> Tensor:
    """Return powers of conductances, relative to the typical best one of a node and cut off at both ends."""
    best = torch.zeros(graph.num_nodes, dtype=weights.dtype).scatter_reduce(0, graph.edge_index[0], weights, "amax")
    limit = 10 ** (4.0 / power)
    return (weights / best[best > 0].median()).clamp(1 / limit, limit) ** power


def log_odds(shares: Tensor) -> Tensor:
    """Return logarithms of odds, which tell shares near one apart."""
    return ((shares + 1e-4) / (1 - shares + 1e-4).clamp(min=1e-5)).log() / 5


def electric(graph: Data, powers: tuple[int, ...], has_flow: bool) -> tuple[Tensor, Tensor]:
    """Return resistances, leverages and currents of a graph with given powers of its conductances."""
    node, edge = [], []
    demands = torch.zeros(graph.num_nodes, graph.ends.size(1), dtype=torch.float64)
    if has_flow and len(demands.T):
        demands[graph.ends[0]] = torch.eye(len(demands.T), dtype=torch.float64) - 1 / len(demands.T)
    for power in powers:
        weights = sharpened(graph.edge_weight, power, graph)
        found = EffectiveResistance()(None, graph.edge_index, edge_weight=weights)
        node.append(found.node)
        edge += [found.edge.clamp(min=1e-6).log() / 5, log_odds(found.edge * weights[:, None])]
        if has_flow and len(demands.T):
            flow = ElectricFlow([*range(len(demands.T))])(demands, graph.edge_index, edge_weight=weights)
            node.append(flow.node[graph.ends[0]].diagonal().sum().expand(len(demands), 1))  # resistance between ends
            edge += [flow.edge.abs().sum(1, keepdim=True), flow.edge.abs().amax(1, keepdim=True)]
    return torch.cat(node, 1).float().clamp(-1e4, 1e4).arcsinh(), torch.cat(edge, 1).float()


@torch.no_grad()
def encodings(row: str, graphs: list[Data]) -> list[tuple[Tensor, Tensor | None]]:
    """Return the encoding of nodes and edges of each graph."""
    if row in ENCODERS:
        return [(node, edge) for node, edge, _ in of_encoders(row, graphs)]
    powers = POWERS[: 1 if row == "resistance" else None]
    return [electric(graph, powers, row == "electric") for graph in graphs]


def graphs_of(task: str, size: int, row: str, args: argparse.Namespace) -> list[Data]:
    """Return training graphs (size 0) or test graphs of a size, with what a row reads as ``pe`` and ``edge_pe``."""
    train, test = (100, 10) if args.quick else (2000, 100 if size < 512 else 30)
    make = partial(draw, task, size or 16, test if size else train, not size)
    graphs = cached(args.data / f"{task}-{size}.pt", make)
    if row in ENCODERS or row in ("resistance", "electric"):
        found = cached(args.data / f"{task}-{size}-{slug(row)}.pt", partial(encodings, row, graphs))
        for graph, (node, edge) in zip(graphs, found, strict=True):
            graph.pe, graph.edge_pe = node, graph.edge_attr[:, :0] if edge is None else edge
    for graph in graphs:
        graph.ends = graph.ends.flatten()
        graph.edge_attr = torch.cat([graph.edge_attr, graph.edge_attr.clamp(min=1e-3).log()], 1) / 4
    return graphs


class Predictor(nn.Module):
    """Predict a logit of each edge, or of the share of the bound of a flow."""

    def __init__(self, row: str, backbone: str, task: str, graph: Data) -> None:
        super().__init__()
        self.is_flow = task == "flow"
        pe, edge_pe = (graph[name].size(1) if name in graph else 0 for name in ("pe", "edge_pe"))
        self.backbone = transformer(row, backbone, graph)
        wide = 2 * WIDTH + (pe if self.is_flow else 8 + edge_pe)
        self.read = nn.Sequential(nn.Linear(wide, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))

    def forward(self, data: Data) -> Tensor:
        """Return ``[num_edges]`` of undirected edges, or ``[num_graphs]``."""
        encoding = {name: data[name] for name in ("pe", "edge_pe") if name in data and data[name].size(1)}
        h = self.backbone(data.x, data.edge_index, data.edge_attr, data.batch, **encoding)
        if self.is_flow:
            at = [global_add_pool(h * data.x[:, [end]], data.batch) for end in (0, 1)]
            at += [global_add_pool(data.pe * data.x[:, [0]], data.batch)] if "pe" in encoding else []
            return self.read(torch.cat(at, 1)).squeeze(1)
        (tail, head), edge_attr = data.edge_index[:, ::2], data.edge_attr.unflatten(0, (-1, 2)).flatten(1)
        extra = [data.edge_pe[::2]] if "edge_pe" in encoding else []
        return self.read(torch.cat([h[tail] + h[head], (h[tail] - h[head]).abs(), edge_attr, *extra], 1)).squeeze(1)

    def loss(self, batch: Data) -> Tensor:
        """Return the cross-entropy of labels or shares."""
        return nn.functional.binary_cross_entropy_with_logits(self(batch), batch.y)


@torch.no_grad()
def scores(predict: Callable[[Data], Tensor], task: str, graphs: list[Data]) -> dict[str, Any]:
    """Return the score of predicted logits, and that of each graph."""
    found = [(predict(batch), batch.y, batch.bound) for batch in DataLoader(graphs)]
    if task == "flow":
        each = [float((logit.sigmoid() - y).abs() * bound) for logit, y, bound in found]
        return {"score": statistics.fmean(each), "each": each}
    each = [f1_score(y, logit > 0, zero_division=1.0) for logit, y, _ in found]
    y, logit = (torch.cat([one[place] for one in found]) for place in (1, 0))
    return {"score": f1_score(y, logit > 0, zero_division=1.0), "each": each}


def untrained(task: str, data: Data) -> Tensor:
    """Return logits without weights."""
    if task == "flow":
        return torch.full([1], torch.inf)
    if task == "bridges":  # an edge of a cycle of n edges has at most the leverage 1 - 1 / n
        return data.edge_pe[::2, 1] - log_odds(1 - 0.5 / torch.tensor(float(data.num_nodes)))
    # two thirds and two times a third of the currents from three terminals flow along a branch to one of them
    return data.edge_pe[::2, -2] - 2 / 3 if task == "steinertree" else data.edge_pe[::2, -1]


def run(task: str, row: str, backbone: str, seed: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Train a row, and return an entry with its scores for each size."""
    torch.manual_seed(seed)
    graphs, start = graphs_of(task, 0, row, args), time.process_time()
    model = Predictor(row, backbone, task, graphs[0])
    train(model, model.loss, graphs, 2 if args.quick else EPOCHS, size=32)
    about = {"task": task, "row": row, "backbone": backbone, "seed": seed, "seconds": time.process_time() - start}
    about["parameters"] = sum(weight.numel() for weight in model.parameters())
    return [
        {**about, "size": size, **scores(model.eval(), task, graphs_of(task, size, row, args))} for size in args.sizes
    ]


def paired(runs: list[dict[str, Any]], entry: dict[str, Any], reference: str) -> dict[str, float]:
    """Return the paired difference of a row from another one over graphs and seeds, and its standard error."""
    same = ("task", "size", "backbone")
    found = [
        {run["seed"]: run["each"] for run in runs if run["row"] == row and all(run[k] == entry[k] for k in same)}
        for row in (entry["row"], reference)
    ]
    seeds = sorted(found[0].keys() & found[1].keys())
    pair = paired_difference(*([one[seed] for seed in seeds] for one in found))
    return {"mean": pair.mean, "error": pair.error}


def main() -> None:
    parser = Parser(__doc__, "two tasks, 100 graphs, 2 epochs", "algorithms.json")
    parser.add_argument("--data", type=Path, metavar="DIR", help="of graphs and encodings (default: in --out)")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS, metavar="NAME")
    parser.add_argument("--rows", nargs="+", choices=PARTS, default=PARTS, metavar="NAME")
    parser.add_argument("--backbones", nargs="+", choices=BACKBONES, default=["gine"], metavar="NAME")
    parser.add_options("--seeds", "--collect")
    args = parser.parse_args()
    if importlib.util.find_spec("graphbench") is None:
        sys.exit("algorithms.py needs graphbench-lib: pip install -r benchmarks/flow-requirements.txt")
    args.sizes, args.data = SIZES, args.data or args.out / "graphs"
    if args.quick:
        args.sizes, args.tasks, args.rows = SIZES[:1], ["mst", "flow"], ["none", "electric", "walks", "R-PEARL"]
    for seed, task, row, backbone in () if args.collect else product(args.seeds, args.tasks, args.rows, args.backbones):
        file = args.out / backbone / f"{task}-{slug(row)}-s{seed}.json"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, {"results": run(task, row, backbone, seed, args)})
            for entry in read_json(file)["results"]:
                show({name: entry[name] for name in ("task", "row", "seed", "size", "score", "seconds")})
    runs = [entry for file in sorted(args.out.glob("*/*-s[0-9]*.json")) for entry in read_json(file)["results"]]
    results = [
        {
            **{name: value for name, value in entry.items() if name != "each" or entry["size"] == max(SIZES)},
            "electric": paired(runs, entry, "electric"),
        }
        for entry in runs
    ]
    for task, size in product(args.tasks, args.sizes):
        graphs = graphs_of(task, size, "electric", args)
        found, seconds = timed(partial(scores, partial(untrained, task), task, graphs))
        results.append({"task": task, "row": "untrained", "size": size, "seconds": seconds, "score": found["score"]})
    write_results(args.json, results)


if __name__ == "__main__":
    main()
