"""Make the reference grid: every encoding on many kinds of data, with tg_lpe.compare.

    python benchmarks/grid.py --data DIR [--columns NAME ...] [--rows NAME ...] [--seeds 0 1]
    python benchmarks/grid.py --data DIR --collect

DIR has the folders zinc12k, qm9 (properties.csv), molhiv, peptides, nodes (.npz) and brec; PATTERN, CLUSTER and the
graphs of cycles are generated. Every column has the model of tg-lpe compare, one budget and one split. Complete
trainings are not repeated, and stopped ones are resumed. Start the command again for more rows and seeds, or several
times at once to use more cores.

The columns of links hide edges of email, without features, and of Cora, with features (_links.py). BREC trains nothing:
its figure is the share of pairs of graphs that a model with random weights tells apart, by the protocol of brec.py.
Encodings that depend on the basis of eigenvectors are unreliable there, which counts as not told apart. The columns of
spanning trees and power grids are read from the files of algorithms.py and flow.py, whose models are GINE. The rows of
GPSE need the weights that gpse.py trains, those without a kind of graphs the encoders of _ordered.py.

All complete trainings are collected into a JSON file with a cell for each row and column: figures over the seeds, and
the paired differences to no encoding and to random walks (docs/compare.md). --add keeps the cells of the file that were
not run again with as many seeds. --backbone gine has a file of its own, without links and BREC.

To add a row, add an entry to ROWS; to add a column, write a function and name it in COLUMNS.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import brec
import torch
from _arguments import Parser
from _links import Links
from _ordered import left_out
from _readme import GRID_COLUMNS
from _results import RESULTS, write_results
from gpse import WEIGHTS, RetrainedGPSE
from torch import Tensor
from torch_geometric.data import Data

from tg_lpe.app.comparison import ENCODINGS, Candidate, compare
from tg_lpe.app.comparison.grid import MODEL
from tg_lpe.app.comparison.table import REFERENCES
from tg_lpe.app.datasets.block_models import load_block_model
from tg_lpe.app.datasets.nodes import load_node_graph
from tg_lpe.app.training import default_config, paired_difference, task_for
from tg_lpe.app.training.build import start_encoder
from tg_lpe.checkpoints.files import read_json, write_json
from tg_lpe.data import DataSpec, GraphSplits
from tg_lpe.data.splits import PARTS, node_splits
from tg_lpe.data.storage import whole
from tg_lpe.data.synthetic import random_regular_edges
from tg_lpe.encoders import without_edges
from tg_lpe.graph.cycles import cycle_counts
from tg_lpe.graph.graph import Graph

SLOW = 0.001
"""Published learning rate of learned spectral and dense encodings."""


def whitened(encoder: Mapping[str, Any] | str) -> Candidate:
    """Return the encoding transformed to principal components of variance one."""
    return Candidate({"class": "Whitened", "encoder": encoder}, edge_encoding=False)


BACKBONES: dict[str, dict[str, Any]] = {
    "transformer": MODEL,
    "gine": {
        "attention": "hybrid",
        "attention_options": {"local": "gine", "global_attention": "none"},
        "hidden_channels": 80,
    },
}
"""Models of about the same size: attention along edges, and message passing without attention."""

CYCLES = {"class": "CycleCounts"}
PLACE = {"class": "Combined", "encoders": ["gram-k16", "positions-k16"]}

ROWS: dict[str, Candidate] = {
    **ENCODINGS,
    "LinearTransformer": Candidate(
        {
            **{"class": "LinearTransformer", "probes": "identity", "k": 32, "num_loops": 5},
            **{"out_channels": 16, "edge_out_channels": 8},
        }
    ),
    "heat": Candidate({"class": "HeatKernel"}),
    "resistance": Candidate({"class": "EffectiveResistance"}),
    "cycles": Candidate(CYCLES),
    "distances": Candidate({"class": "ShortestPath"}),
    "SignNet": Candidate({"class": "SignNet"}, SLOW),
    "SPE": Candidate({"class": "SPE"}, SLOW),
    "LPE": Candidate({"class": "LPE"}, SLOW),
    "R-PEARL": Candidate({"class": "RPEARL"}, SLOW),
    "positions, trained": Candidate({"class": "Positions", "k": 8, "loops": 2}),
    "PPGN": Candidate({"class": "PPGN"}, SLOW),
    "whitened heat": whitened({"class": "HeatKernel"}),
    "whitened resistance": whitened({"class": "EffectiveResistance"}),
    "whitened cycles": whitened(CYCLES),
    "whitened gram-k16": whitened("gram-k16"),
    "whitened universal-k32": whitened("universal-k32"),
    "positions-k16": Candidate("positions-k16", 0, edge_encoding=False),
    "gram-k16 and positions": Candidate(PLACE, 0, edge_encoding=False),
    "whitened gram-k16 and positions": whitened(PLACE),
}

GPSE = {"class": RetrainedGPSE.__name__}
GPSE_ROWS = {"GPSE, retrained": Candidate(GPSE), "whitened GPSE, retrained": whitened(GPSE)}
LEFT_OUT = {(path := left_out("universal-k32", kind)).name: path for kind in ("molecules", "regular")}
ROW_ORDER = [*ROWS, *GPSE_ROWS, *LEFT_OUT, "electric flow"]
if WEIGHTS.exists():
    ROWS |= GPSE_ROWS
ROWS |= {name: Candidate(path, 0, edge_encoding=False) for name, path in LEFT_OUT.items() if path.exists()}


@dataclass(frozen=True)
class Column:
    """One kind of data, and the budget on it.

    Args:
        load: reads the data from the folder of all data.
        epochs: passes over the training set; those of tg-lpe compare if absent.
        task: arguments of :func:`~tg_lpe.app.training.task_for`.
        without: rows that are not for these data.
    """

    load: Callable[[Path], GraphSplits]
    epochs: int | None
    task: dict[str, Any] = field(default_factory=dict)
    batch_size: int = 128
    without: list[str] = field(default_factory=list)


def first_of(splits: GraphSplits, train: int, rest: int) -> GraphSplits:
    """Draw some graphs of each part with a fixed seed."""
    drawn = {}
    for part, number in zip(PARTS, (train, rest, rest), strict=True):
        dataset = getattr(splits, part)
        order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))
        drawn[part] = whole(dataset[order[:number].sort().values])
    return replace(splits, **drawn)


def molecules(data: Path, folder: str, train: int, rest: int, **options: Any) -> GraphSplits:
    """Load some molecules of a dataset."""
    from tg_lpe.app.molecules import load_molecules

    return first_of(load_molecules(data / folder, **options), train, rest)


def node_graph(data: Path, name: str, features: Callable[[Tensor], Tensor] | None = None) -> GraphSplits:
    """Load one graph with labels of nodes, with a function of their features or without them."""
    graph = load_node_graph(data / "nodes" / f"{name}.npz")
    graph.num_nodes = graph.num_nodes  # without features, PyG would infer it from the edges
    graph.x = None if features is None else features(graph.x)
    return node_splits(graph, 0)


def standardised(x: Tensor) -> Tensor:
    """Shift and scale features to mean zero and variance one."""
    return (x - x.mean(0)) / x.std(0)


def waves(x: Tensor) -> Tensor:
    """Return Fourier features of two coordinates, with wavelengths from about the whole graph to a thirtieth of it."""
    angles = standardised(x[:, :2].double()).unsqueeze(2) * 2 ** torch.arange(6)
    return torch.cat([angles.sin(), angles.cos()], 2).flatten(1).float()


def cycles(data: Path, length: int, number: int = 1500) -> GraphSplits:
    """Draw random 4-regular graphs; the label of a node is the number of cycles of a length through it."""
    draw, graphs = torch.Generator().manual_seed(length), []
    for size in torch.randint(20, 41, (number,), generator=draw).tolist():
        edges = random_regular_edges(size, 4, draw)
        edges = torch.cat([edges, edges.flip(0)], 1).unique(dim=1)
        counts = cycle_counts(Graph(edges, size), [length], 10_000_000)[0]
        graphs.append(Data(edge_index=edges, num_nodes=size, y=counts.float().flatten()))
    train = number * 2 // 3
    val = train + number // 6
    return GraphSplits.of(graphs[:train], graphs[train:val], graphs[val:], level="node")


CLASSES = {"name": "multiclass"}
BALANCED = {"name": "multiclass", "balanced": True, "metric": "balanced_accuracy"}
LARGE = ["PPGN", "SPE", "distances", *(row for row in ROWS if "cycles" in row)]
"""Rows that are not run on large or dense graphs."""

PEPTIDES = {"folder": "peptides", "canonical": False, "features": "ogb", "targets": [f"y{n}" for n in range(10)]}

ZINC = partial(molecules, folder="zinc12k", rest=1_000, name="zinc12k")
GAP = partial(molecules, folder="qm9", name="qm9", targets=["gap"])
FEW_LABELS = {300: 120, 1_000: 60, 3_000: 40}
"""Epochs by the number of training molecules."""

COLUMNS: dict[str, Column] = {
    "zinc12k": Column(partial(ZINC, train=10_000), 20),
    "qm9, gap": Column(partial(GAP, train=20_000, rest=5_000), 10),
    **{
        f"{name}, {train:,}": Column(partial(load, train=train, rest=1_000), epochs, {}, 32)
        for name, load in (("zinc12k", ZINC), ("qm9, gap", GAP))
        for train, epochs in FEW_LABELS.items()
    },
    "molhiv": Column(
        partial(molecules, folder="molhiv", train=10_000, rest=5_000, name="molhiv", features="ogb"),
        10,
        {"name": "binary"},
    ),
    "peptides-func": Column(
        partial(molecules, train=2_000, rest=1_000, **PEPTIDES), 15, {"name": "multilabel"}, 32, ["PPGN"]
    ),
    "PATTERN": Column(lambda data: load_block_model("pattern", 0, 1000), 15, BALANCED, 16, LARGE),
    "CLUSTER": Column(lambda data: load_block_model("cluster", 0, 1000), 15, BALANCED, 16, LARGE),
    "email": Column(partial(node_graph, name="email"), None, CLASSES, without=LARGE),
    "cora, no features": Column(partial(node_graph, name="cora"), None, CLASSES, without=LARGE),
    "squirrel": Column(
        partial(node_graph, name="squirrel_directed", features=torch.clone), None, CLASSES, without=LARGE
    ),
    "huangpu": Column(partial(node_graph, name="huangpu"), None, CLASSES, without=LARGE),
    "huangpu, features": Column(
        partial(node_graph, name="huangpu", features=standardised), None, CLASSES, without=LARGE
    ),
    "huangpu, coordinates": Column(partial(node_graph, name="huangpu", features=waves), None, CLASSES, without=LARGE),
    "debian": Column(partial(node_graph, name="debian"), None, CLASSES, without=LARGE),
    "5-cycles": Column(partial(cycles, length=5), 20, {"name": "regression"}, 32),
    "6-cycles": Column(partial(cycles, length=6), 20, {"name": "regression"}, 32),
}


BREC = "BREC"
NOT_BREC = ["cycles", *(row for row in ROWS if row.startswith("whitened") or " and " in row)]
"""Rows that take too long on dense graphs, or tell apart the same pairs as another row."""


LINKS = {"email, links": ("email", False), "cora, links": ("cora", True)}
"""Graphs with hidden edges, and whether their features are read, for the model and loop of _links.py."""


def network(candidate: Candidate) -> torch.nn.Module:
    """Make the model of brec.py with the encoder of a row."""
    encoder = None if candidate.encoder is None else start_encoder(candidate.encoder, DataSpec())
    if encoder is not None and not candidate.edge_encoding:
        encoder = without_edges(encoder)
    return brec.transformer(encoder)


def told_apart(row: str, pairs: list[brec.Pair], seed: int, file: Path) -> list[float]:
    """Return one for each pair that the model tells apart and zero for the others; cached in a file."""
    if not file.exists():
        model = brec.with_random_weights(partial(network, ROWS[row]), seed)
        found = []
        for number, pair in enumerate(pairs):
            draw = torch.Generator().manual_seed(number)
            verdict = brec.judge(lambda b: model(None, b.edge_index, None, b.batch), pair.a, pair.b, draw)
            found.append(float(verdict.is_reliable and verdict.is_apart))
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"told_apart": found})
        print(f"{row}, seed {seed}: {sum(found):.0f} of {len(pairs)}", file=sys.stderr)
    return list(read_json(file)["told_apart"])


def fill_brec(rows: list[str], args: argparse.Namespace, out: Path) -> list[dict[str, Any]]:
    """Judge the missing rows of BREC, and return all of its cells."""
    pairs = brec.read_pairs(args.data / "brec")

    def judge(row: str, seed: int, file: Path) -> list[float]:
        return told_apart(row, pairs, seed, file.with_suffix(".json"))

    return cells(BREC, "share", [row for row in ROWS if row not in NOT_BREC], rows, args, out, judge)


FLOWS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "spanning trees": ("algorithms", "f1", {"task": "mst", "size": 512, "backbone": "gine"}),
    "power grids": ("flow", "r2", {"grid": "case9241pegase", "backbone": "gine"}),
}
"""Files of algorithms.py and flow.py, their metric, and what a column shows of them."""
FLOW_ROWS = {"weighted walks": "walks", "electric": "electric flow", "flow": "electric flow"}


def fill_flows(name: str) -> list[dict[str, Any]]:
    """Return the cells of a column that another script has trained."""
    file, metric, shown = FLOWS[name]
    found: dict[str, dict[int, list[float]]] = {}
    for entry in read_json(RESULTS / f"{file}.json")["results"]:
        if "seed" in entry and entry["row"] != "walks" and shown.items() <= entry.items():  # "walks" has no weights
            found.setdefault(FLOW_ROWS.get(entry["row"], entry["row"]), {})[entry["seed"]] = entry["each"]
    return [cell(name, metric, row, found) for row in found if row in ROW_ORDER]


def fill_links(name: str, rows: list[str], args: argparse.Namespace, out: Path) -> list[dict[str, Any]]:
    """Train the missing rows of a column of links, and return all of its cells."""
    file, has_features = LINKS[name]
    links = Links(args.data / "nodes" / f"{file}.npz", has_features)

    def train(row: str, seed: int, folder: Path) -> list[float]:
        print(f"{row}, seed {seed}", file=sys.stderr)
        return links.train(ROWS[row], seed, folder)

    return cells(name, "roc_auc", [row for row in ROWS if row not in LARGE], rows, args, out, train)


def cells(
    column: str,
    metric: str,
    every: list[str],
    rows: list[str],
    args: argparse.Namespace,
    out: Path,
    values: Callable[[str, int, Path], list[float]],
) -> list[dict[str, Any]]:
    """Return the cells of a column whose figure is a mean over pairs of graphs or nodes."""
    found: dict[str, dict[int, list[float]]] = {}
    for row in every:
        paths = {seed: out / f"{row.replace(', ', '-')}-s{seed}" for seed in args.seeds}
        is_asked = row in rows and not args.collect
        found[row] = {
            seed: values(row, seed, path)
            for seed, path in paths.items()
            if is_asked or path.with_suffix(".json").exists() or (path / "result.json").exists()
        }
    return [cell(column, metric, row, found) for row in found if found[row]]


def cell(column: str, metric: str, row: str, found: Mapping[str, Mapping[int, list[float]]]) -> dict[str, Any]:
    """Return a cell of such a column in the form of the others."""
    means, differences = [statistics.fmean(values) for values in found[row].values()], {}
    for reference in REFERENCES:
        seeds = [seed for seed in found[row] if seed in found.get(reference, {})]
        if seeds and row != reference:
            pair = paired_difference(*([found[name][seed] for seed in seeds] for name in (row, reference)))
            differences[reference] = {**pair._asdict(), "error": pair.error, "seeds": seeds}
    std = statistics.stdev(means) if len(means) > 1 else None
    return {
        **{"column": column, "metric": metric, "direction": "max", "row": row, "name": row, "seeds": list(found[row])},
        "test": {"mean": statistics.fmean(means), "std": std, "by_seed": means},
        "differences": differences,
    }


EVERY = [*COLUMNS, *LINKS, BREC, *FLOWS]


def main() -> None:
    parser = Parser(__doc__, "a few rows of two columns that are drawn, 3 epochs", "grid.json")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of all data")
    parser.add_argument("--columns", nargs="+", choices=EVERY, default=EVERY, metavar="NAME")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="NAME")
    parser.add_argument("--backbone", choices=BACKBONES, default="transformer", help="(default: %(default)s)")
    parser.add_options("--seeds", "--device", "--collect", "--add")
    parser.set_defaults(seeds=[0, 1])
    args = parser.parse_args()
    if args.quick:
        args.columns, args.rows, args.seeds = ["5-cycles"], ["none", "walks", "gram-k16"], [0]
    elif args.data is None:
        parser.error("--data is needed")
    if args.backbone != "transformer":
        args.columns = [name for name in args.columns if name in COLUMNS]  # the others have a model of their own
        args.json = args.json.with_stem(f"{args.json.stem}_{args.backbone}")
    results = []
    for name in args.columns:
        print(f"column {name}", file=sys.stderr)
        folder = args.out / args.backbone / name.replace(", ", "-")
        if name in FLOWS:
            results += fill_flows(name)
        elif name == BREC:
            results += fill_brec(args.rows, args, folder)
        else:
            results += (fill_links if name in LINKS else fill)(name, args.rows, args, folder)
    earlier = read_json(args.json)["results"] if args.add else []
    found = sorted([*earlier, *results], key=lambda cell: len(cell["seeds"]))
    results = list({(cell["column"], cell["row"]): cell for cell in found}.values())
    results.sort(key=lambda cell: (list(GRID_COLUMNS).index(cell["column"]), ROW_ORDER.index(cell["row"])))
    write_results(args.json, results)


def fill(name: str, rows: list[str], args: argparse.Namespace, out: Path) -> list[dict[str, Any]]:
    """Train the missing rows of a column, and return all of its cells, including those of earlier calls."""
    column = COLUMNS[name]
    splits = first_of(column.load(args.data), 60, 20) if args.quick else column.load(args.data)
    config = replace(default_config(splits), batch_size=column.batch_size)
    if column.epochs is not None:
        config = replace(config, epochs=column.epochs)
    settings = {
        "task": task_for(splits, **column.task),
        "model": BACKBONES[args.backbone],
        "config": config,
        "out": out,
        "source": name,
        "device": args.device,
        "quick": args.quick,
    }
    every = {row: candidate for row, candidate in ROWS.items() if row not in column.without}
    if not args.collect:
        asked = {row: candidate for row, candidate in every.items() if row in rows}
        compare(splits, asked, seeds=args.seeds, **settings)
    seeds = {int(file.parent.name.rpartition("-s")[2]) for file in out.glob("*-s[0-9]*/result.json")}
    if not seeds:
        return []
    table = compare(splits, every, seeds=sorted(seeds), collect=True, **settings)
    print(table)
    about = {"column": name, "metric": table.about["metric"], "direction": table.about["direction"]}
    return [{**about, "row": row["name"], "seconds": row["epoch_seconds"], **row} for row in table.rows]


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    logging.getLogger("tg_lpe").setLevel(logging.INFO)
    warnings.filterwarnings("ignore", message=".*is too large to be encoded exactly")
    main()
