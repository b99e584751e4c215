"""Train published systems on the datasets of their papers, with budgets of minutes.

    python benchmarks/systems.py primphormer --data DIR [--experiments NAME ...] [--rows ROW ...] [--seeds 0 1 2]
    python benchmarks/systems.py san --data DIR

DIR has a folder for each dataset: zinc12k, peptides and molhiv with train, val and test, and nodes with photo.npz and
cs.npz; PATTERN and CLUSTER are generated. Every run is one `tg-lpe train` command with its own folder under --out.
Complete runs are not repeated, a stopped run is resumed, and a run of another process is skipped: start the command
several times to use several cores, or again to add seeds.

All complete runs of the system are collected into a JSON file: for each experiment and row the mean and spread over
seeds of the test figure at the best validation epoch, and the published figure with its number of epochs.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

from _arguments import Parser
from _runs import complete_runs, run, slug, summary, write_runs


class Experiment(NamedTuple):
    """A dataset and budget on which rows are compared."""

    source: str
    """Source for ``tg-lpe train``; for node tasks a file below --data."""
    metric: str
    epochs: int
    options: list[str]
    """Options of all rows."""
    rows: dict[str, list[str]]
    folder: str | None = None
    """Folder of the data below --data."""
    published: str = ""
    """The published figure and its number of epochs."""


def hybrid(attention: str, **options: Any) -> list[str]:
    """Return the options of a hybrid layer's global part."""
    chosen = ["--model.attention_options.global_attention", attention]
    return [*chosen, *(["--model.attention_options.global_options", json.dumps(options)] if options else [])]


ATTENTIONS = {
    "none": hybrid("none"),
    "softmax": hybrid("softmax"),
    "primal": hybrid("primal", eta=0.1),
    "primal, eta 0": hybrid("primal", eta=0.0),
    "dual": [*hybrid("dual"), "--import", "tg_lpe.theory"],
    "ksvd": [*hybrid("ksvd"), "--import", "tg_lpe.theory"],
    "performer": hybrid("performer"),
    "sgformer": hybrid("sgformer"),
}


def attentions(*names: str) -> dict[str, list[str]]:
    """Return rows by their names."""
    return {name: ATTENTIONS[name] for name in names}


HYBRID = ["--model.attention", "hybrid", "--model.heads", "4", "--model.num_layers", "4"]
SMALL = [*HYBRID, "--model.hidden_channels", "64", "--model.attention_options.local", "gine"]
WALKS = ["--encoder", "RandomWalk", "--encoder.steps", "16", "--edge_encoding", "false"]
GRAM = [
    *["--encoder", "GramTransformer", "--encoder.probes", "identity"],
    *["--encoder.out_channels", "8", "--encoder.edge_out_channels", "8"],
]
PEPTIDES = [
    *[*HYBRID, *WALKS, "--features", "ogb", "--target", *(f"y{i}" for i in range(10)), "--task", "multilabel"],
    *["--model.hidden_channels", "96", "--model.attention_options.dropout", "0.1"],
    *["--model.readout.pooling", "mean", "--batch_size", "32", "--canonical", "false"],
]
"""The published model, in smaller batches."""

NODES = [
    *["--encoder", "none", "--task", "multiclass", "--model.attention", "hybrid", "--model.heads", "4"],
    *["--model.num_layers", "2", "--model.hidden_channels", "64", "--lr", "0.003"],
    *["--model.attention_options.dropout", "0.5"],
]
NODE_ROWS = attentions("none", "primal", "primal, eta 0", "dual", "performer", "sgformer")
PEPTIDES_ROWS = attentions("none", "softmax", "primal", "primal, eta 0", "dual", "sgformer")

PRIMPHORMER = {
    "zinc12k-4000": Experiment(*("zinc12k", "mae", 8, [*SMALL, *WALKS, "--graphs", "4000"], ATTENTIONS, "zinc12k")),
    "zinc12k-4000-gatedgcn": Experiment(
        *("zinc12k", "mae", 8, [*HYBRID, "--model.hidden_channels", "64", *WALKS, "--graphs", "4000"]),
        *(attentions("none", "softmax", "primal", "dual"), "zinc12k"),
    ),
    "zinc12k-gram": Experiment(
        *("zinc12k", "mae", 15, [*SMALL, *GRAM], attentions("none", "softmax", "primal", "dual"), "zinc12k")
    ),
    "peptides-2000": Experiment(
        *("peptides", "average_precision", 15, [*PEPTIDES, "--graphs", "2000"], PEPTIDES_ROWS, "peptides"),
        "primal 0.6612, softmax 0.6535, 250 epochs of 10,873",
    ),
    "peptides": Experiment(
        *("peptides", "average_precision", 15, PEPTIDES, PEPTIDES_ROWS, "peptides"),
        "primal 0.6612, softmax 0.6535, 250 epochs",
    ),
    "photo": Experiment("nodes/photo.npz", "accuracy", 100, NODES, NODE_ROWS),
    "photo-gine": Experiment(
        *("nodes/photo.npz", "accuracy", 100, [*NODES, "--model.attention_options.local", "gine"], NODE_ROWS)
    ),
    "cs": Experiment("nodes/cs.npz", "accuracy", 50, NODES, NODE_ROWS),
}

PRESET = ["--preset", "san", "--schedule", "one-cycle"]
"""The san preset with another schedule, because the published one waits longer than these budgets last."""

SAN_ROWS = {
    "none": ["--encoder", "none"],
    "node LPE": [],
    "eigenspaces": ["--encoder.tokens", "eigenspaces", "--encoder.feedforward_channels", "64"],
}
BLOCKS = [*PRESET, "--graphs", "1000", "--lr", "0.001", "--encoder_lr", "0.001"]
SAN = {
    "pattern": Experiment(
        *("pattern", "balanced_accuracy", 20, BLOCKS, SAN_ROWS, None), "0.8658, until a plateau, 10,000 graphs"
    ),
    "cluster": Experiment(
        *("cluster", "balanced_accuracy", 20, BLOCKS, SAN_ROWS, None), "0.7669, until a plateau, 10,000 graphs"
    ),
    "molhiv": Experiment(
        *("molhiv", "roc_auc", 5, [*PRESET, "--lr", "0.0005", "--encoder_lr", "0.0005"], SAN_ROWS, "molhiv"),
        "0.7785, until a plateau",
    ),
}
SYSTEMS = {"primphormer": PRIMPHORMER, "san": SAN}


def main() -> None:
    parser = Parser(__doc__, "one epoch of tiny models on nci or PATTERN", "{system}.json")
    parser.add_argument(
        "system", nargs="?", choices=list(SYSTEMS), default="primphormer", help="(default: %(default)s)"
    )
    parser.add_argument("--data", metavar="DIR", type=Path, help="folder of the folders of data")
    names = [name for system in SYSTEMS.values() for name in system]
    parser.add_argument("--experiments", nargs="+", metavar="NAME", choices=names, help=f"(default: all) {names}")
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="names in the tables (default: all)")
    parser.add_options("--seeds", "--device", "--collect")
    args = parser.parse_args()
    if args.data is None and not args.collect and not args.quick:
        parser.error("--data DIR is missing, the folder of zinc12k, peptides, molhiv and nodes")
    experiments = quick(SYSTEMS[args.system]) if args.quick else SYSTEMS[args.system]
    base = args.out / args.system
    for seed in [] if args.collect else args.seeds:
        for name, experiment in experiments.items():
            for row in experiment.rows if args.experiments is None or name in args.experiments else ():
                if args.rows is None or row in args.rows:
                    train(name, experiment, row, seed, base, args)
    entries = [
        {"experiment": name, "row": row, **entry}
        for name, experiment in experiments.items()
        for row in experiment.rows
        if (entry := collect(name, experiment, row, base)) is not None
    ]
    write_runs(args.json, entries, base)


def quick(experiments: dict[str, Experiment]) -> dict[str, Experiment]:
    """Make a tiny version of the first experiment with all rows."""
    name, first = next(iter(experiments.items()))
    tiny = ["--graphs", "64", "--model.hidden_channels", "40", "--model.num_layers", "1"]
    source = "nci" if first.source == "zinc12k" else first.source
    return {name: first._replace(source=source, folder=None, epochs=1, options=[*first.options, *tiny])}


def train(name: str, experiment: Experiment, row: str, seed: int, base: Path, args: argparse.Namespace) -> None:
    """Run a training, unless it is complete or another process runs it."""
    source, data = experiment.source, None
    if source.endswith(".npz") or source == "peptides":
        source = str(args.data / source)
    elif experiment.folder is not None:
        data = args.data / experiment.folder
    options = [*experiment.options, *experiment.rows[row], "--epochs", str(experiment.epochs), "--seed", str(seed)]
    run("train", source, base / f"{folder_name(name, row)}-s{seed}", options, data, args.device)


def collect(name: str, experiment: Experiment, row: str, base: Path) -> dict[str, Any] | None:
    """Return the figures of a row over all complete seeds; ``None`` if there are none."""
    runs = complete_runs(base, folder_name(name, row))
    if not runs:
        return None
    budget = {"metric": experiment.metric, "epochs": experiment.epochs, "published": experiment.published}
    return {**budget, "options": [*experiment.options, *experiment.rows[row]], **summary(runs, experiment.metric)}


def folder_name(experiment: str, row: str) -> str:
    """Return the folder of the runs of a row, without the seed."""
    return slug(f"{experiment}--{row}")


if __name__ == "__main__":
    main()
