"""Compare encodings on molecules: one graph transformer, one budget, several seeds.

    python benchmarks/molecules.py zinc12k --data DIR [--rows ROW ...] [--seeds 0 1 2] [--epochs 15]
    python benchmarks/molecules.py qm9 --data DIR --rows properties --targets gap --epochs 10

DIR holds train, val and test of the dataset (see `tg-lpe train --help`), or the table of properties of `qm9`; `nci`
needs none. Every run is one `tg-lpe train` command with its own folder under --out. Complete runs are not repeated, a
stopped run is resumed, and a run of another process is skipped: start the command several times to use several cores,
or again to add seeds.

The complete runs are collected into a JSON file; --add keeps the file's other rows. Each row has mean and spread over
seeds of the test error at the best validation epoch, the same after the atoms of every test molecule are renumbered at
random, the paired difference of test errors to random walks in the same model, parameters and time. Each of the
--targets of `qm9` has its own file. The error of `frontier` is the mean over homo, lumo and gap in Hartree.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _arguments import Parser
from _results import RESULTS
from _runs import complete_runs, nci_smiles, run, slug, summary, with_earlier_rows, write_csv, write_runs
from torch import Tensor

from tg_lpe.app.molecules import QM9_UNITS
from tg_lpe.app.training import paired_difference
from tg_lpe.app.training.outputs import read_outputs
from tg_lpe.app.training.run_folder import RunFolder
from tg_lpe.app.training.tasks import make_task
from tg_lpe.app.training.units import common_unit
from tg_lpe.checkpoints.files import read_json

SETS = ("zinc", "zinc12k", "qm9", "qm9-solubility", "nci")

TARGETS: dict[str, list[str]] = {
    "gap": ["--target", "gap"],
    "frontier": ["--target", "homo", "lumo", "gap", "--task.metric", "mae"],
}
"""Properties of qm9 that one model predicts."""

GRAM = "GramTransformer"
"""The reference row: Gram read-outs with eight channels, pretrained on kernels of the Laplacian."""

WALKS = "random-walk, 9 layers"
"""The row with which those of the same model are compared."""

NOT_PRETRAINED = f"{GRAM}, not pretrained"

PRETRAINED = "PRETRAINED"
"""Placeholder for an encoder pretrained on the molecules of the same dataset, without labels."""

START = ["--pretrained", PRETRAINED]
FRESH = [
    *["--encoder", "GramTransformer", "--encoder.probes", "identity"],
    *["--encoder.out_channels", "8", "--encoder.edge_out_channels", "8"],
]
"""The same encoder with random weights."""

NONE = ["--encoder", "none"]
LAPLACIAN = ["--encoder", "LaplacianEigenvectors", "--encoder.k", "6"]
WALK = ["--encoder", "RandomWalk", "--encoder.steps", "16"]
NODES_ALONE = ["--edge_encoding", "false"]
FROZEN = ["--encoder_lr", "0"]
SLOW = ["--encoder_lr", "0.001"]
FIXED_NODES = ["--pretrained", "gram-k16", *FROZEN, *NODES_ALONE]
"""The pretrained GramTransformer."""

Rows = dict[str, list[str]]

WHITENED_WALK = [
    *["--encoder", "Whitened", "--encoder.encoder", "RandomWalk", "--encoder.encoder.steps", "16"],
    *NODES_ALONE,
]

REGULAR = [
    *["--model.hidden_channels", "64", "--model.num_layers", "9", "--model.attention_options.local", "gine"],
    *["--model.attention_options.norm", "bounded", "--model.readout.norm", "running", "--recalibrate", "2560"],
]
"""Below 500,000 parameters, with message passing in addition to attention, and less noise of batch norms."""

PROPERTIES: Rows = {
    f"{name}, 9 layers": [*options, *REGULAR]
    for name, options in {
        "none": NONE,
        "random-walk": WALK,
        GRAM: START,
        "gram-k16, frozen, nodes alone": FIXED_NODES,
    }.items()
}
BUDGET: Rows = {
    **PROPERTIES,
    "laplacian, 9 layers": [*LAPLACIAN, *REGULAR],
    "random-walk, whitened, nodes alone, 9 layers": [*WHITENED_WALK, *REGULAR],
    "gram-k16, nodes alone, 9 layers": ["--pretrained", "gram-k16", *SLOW, *NODES_ALONE, *REGULAR],
}
SPECTRAL_ENCODER = ["--encoder", "SpectralEncoder", *SLOW]
PUBLISHED = [*SPECTRAL_ENCODER, "--encoder.tokens", "eigenvectors", "--encoder.row_norm", "true"]
SPECTRA: Rows = {
    "node LPE": [*PUBLISHED, "--encoder.edge_out_channels", "0"],
    "edge LPE": [*PUBLISHED, "--encoder.out_channels", "0"],
    "eigenspaces": SPECTRAL_ENCODER,
    "spectral kernel": ["--encoder", "SpectralKernel", "--encoder.hidden_channels", "32"],
}
"""Learned encodings of the spectrum: published tokens of ten eigenvalues with feed-forward nets of 64 channels, and
forms without bases, tokens of ten eigenvalues and functions of 32."""

SAN = [
    *["--model.attention", "spectral", "--model.attention_options", '{"full": true, "gamma": 1e-5}'],
    *["--model.hidden_channels", "64", "--model.num_layers", "10", "--model.readout.pooling", "sum"],
    *["--model.pe_options.merge", "concat", "--model.readout.hidden", "pyramid"],
]
"""Spectral attention networks below 510,000 parameters."""

OF_SPECTRA: Rows = {"none": NONE, **SPECTRA, NOT_PRETRAINED: FRESH}
SPECTRAL: Rows = {**OF_SPECTRA, **{f"san, {name}": [*options, *SAN] for name, options in OF_SPECTRA.items()}}

TUPLES = ["--model", "TupleTransformer", "--model.hidden_channels", "104"]
LOCAL = [*FRESH, *TUPLES, "--model.attention", "local"]
TRIPLES = [*LOCAL, "--model.k", "3", "--encoder.pair_out_channels", "8"]
PAIRS = f"(2,1)-GT local, {NOT_PRETRAINED}"
FROM_PAIRS = "(3,1)-GT local, GramTransformer, order transfer"
TRAINED = "TRAINED"
"""Placeholder for the run of the row ``PAIRS`` with the same seed."""

TUPLE_TRANSFORMERS: Rows = {
    "(2,1)-GT, none": [*NONE, *TUPLES],
    "(2,1)-GT, LPE": ["--encoder", "LPE", *SLOW, *TUPLES],
    "(2,1)-GT, SPE": ["--encoder", "SPE", *SLOW, *TUPLES],
    f"(2,1)-GT, {NOT_PRETRAINED}": [*FRESH, *TUPLES],
    "(2,1)-GT, gram-k16, frozen, nodes alone": [*FIXED_NODES, *TUPLES],
    PAIRS: LOCAL,
    f"(3,1)-GT local, {NOT_PRETRAINED}": TRIPLES,
    FROM_PAIRS: [*TRIPLES, "--start", TRAINED],
}
"""Below 500,000 parameters, as wide and as deep as the graph transformer of 104 channels."""

OVER_PAIRS = {
    "edge": ["--model.hidden_channels", "96", "--model.attention_options.local", "gine"],
    "bias": ["--model.attention", "bias"],
    "pairs": ["--model.attention", "pairs", "--model.hidden_channels", "96"],
}
"""Attention over all pairs of nodes, compared with attention over edges, all below 500,000 parameters."""

OF_PAIRS: Rows = {
    "none": NONE,
    "RRWP": ["--encoder", "RRWP"],
    "ShortestPath": ["--encoder", "ShortestPath"],
    NOT_PRETRAINED: [*FRESH, "--encoder.pair_out_channels", "8"],
}
PAIR_ROWS: Rows = {
    f"{attention}, {name}": [*encoder, *options]
    for attention, options in OVER_PAIRS.items()
    for name, encoder in OF_PAIRS.items()
}

GROUPS: dict[str, Rows] = {
    "budget": BUDGET,
    "properties": PROPERTIES,
    "spectral": SPECTRAL,
    "tuples": TUPLE_TRANSFORMERS,
    "pairs": PAIR_ROWS,
}
ROWS: Rows = {name: options for group in GROUPS.values() for name, options in group.items()}
"""Options of each row for `tg-lpe train`."""


def main() -> None:
    parser = Parser(__doc__, "an epoch of tiny models on nci molecules; qm9's have made-up labels")
    parser.add_argument("set", nargs="?", choices=SETS, default="nci", help="(default: %(default)s)")
    parser.add_argument("--data", metavar="DIR", type=Path, help="folder of the set")
    parser.add_argument(
        "--rows",
        nargs="+",
        default=["budget"],
        choices=[*GROUPS, *ROWS],
        metavar="ROW",
        help=f"groups: {', '.join(GROUPS)}; rows: {', '.join(ROWS)}",
    )
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=["gap"], help="of qm9 (default: gap)")
    parser.add_argument(
        "--split", choices=("random", "scaffold"), default="random", help="of qm9 (default: %(default)s)"
    )
    parser.add_argument("--epochs", type=int, default=15, help="(default: %(default)s)")
    parser.add_options("--seeds", "--device", "--collect", "--add")
    args = parser.parse_args()
    if args.json and len(args.targets) > 1:
        parser.error(f"--json is for one of the --targets, got {', '.join(args.targets)}")
    if args.quick:
        args.epochs = 1
        if args.set == "qm9":
            args.data, args.rows, args.targets = args.out, ["properties"], ["frontier"]
            write_properties(args.data / "properties.csv")
        else:
            args.set, args.data, args.rows = "nci", None, ["none", f"{GRAM}, 9 layers", FROM_PAIRS]
    for target in args.targets if args.set == "qm9" else [None]:
        args.target = target
        compare(args)


def write_properties(file: Path) -> None:
    """Write a small table in QM9's form from RDKit's molecules, with labels from the SMILES."""
    smiles = nci_smiles()[:1200]
    labels = ([text, *(len(text) / 7 + text.count("N") * place for place in range(12))] for text in smiles)
    write_csv(file, ["smiles", *QM9_UNITS], labels)


def compare(args: argparse.Namespace) -> None:
    """Run the missing runs and collect the complete ones."""
    options = [] if args.target is None else [*TARGETS[args.target], "--split", args.split]
    if args.quick:
        options += ["--batch_size", "512", "--model.hidden_channels", "16", "--model.num_layers", "1"]
        options += [] if args.target else ["--graphs", "1024"]
    rows = list(dict.fromkeys(row for name in args.rows for row in GROUPS.get(name, [name])))
    data = args.set if args.target is None else f"{args.set}-{args.target}-{args.split}"
    base = args.out / f"{data}-{args.epochs}"
    for seed in [] if args.collect else args.seeds:
        for row in rows:
            train(row, seed, base, args, options)
    groups = "".join(f"-{name}" for name in args.rows if name in GROUPS and name != "properties")
    name = f"{data}-{args.epochs}{groups}".replace("-", "_")
    entries = [entry for row in rows if (entry := collect(row, base)) is not None]
    file = args.json or RESULTS / f"{name}.json"
    if args.add:
        entries = with_earlier_rows(file, entries, lambda entry: entry["row"])
    write_runs(file, entries, base, set=data, epochs=args.epochs)


def train(row: str, seed: int, base: Path, args: argparse.Namespace, more: list[str]) -> Path | None:
    """Run a training and return its folder; ``None`` while another process runs it or its pretraining."""
    folder = base / f"{slug(row)}-s{seed}"
    if RunFolder(folder).result.exists():
        return folder
    options = list(ROWS[row])
    begin: dict[str, Callable[[], Path | None]] = {
        PRETRAINED: lambda: pretrained(args),
        TRAINED: lambda: train(PAIRS, seed, base, args, more),
    }
    for word in begin.keys() & set(options):
        if (start := begin[word]()) is None:
            print(f"{folder}: left out, because its pretraining is not complete", file=sys.stderr)
            return None
        options[options.index(word)] = str(start)
    options += [*more, "--epochs", str(args.epochs), "--seed", str(seed)]
    return folder if run("train", args.set, folder, options, args.data, args.device) else None


def pretrained(args: argparse.Namespace) -> Path | None:
    """Return the encoder pretrained on the dataset; ``None`` while another process pretrains it."""
    split = [] if args.target is None else ["--split", args.split]
    folder = args.out / "-".join([args.set, *split[1:], f"pretrain{'-quick' * args.quick}"])
    options = ["--kernels", "heat", "resistance", "--read_features", "--epochs", "1" if args.quick else "5"]
    options += split
    complete = run("pretrain", args.set, folder, options, args.data, args.device)
    return folder / "encoder" if complete else None


def collect(row: str, base: Path) -> dict[str, Any] | None:
    """Return the figures of a row over all complete seeds; ``None`` if there are none."""
    runs = complete_runs(base, slug(row))
    if not runs:
        return None
    target = read_json(next(iter(runs.values())).config)["data"]["target"]
    unit = common_unit(target.get("units", ()))
    entry = {"row": row, "options": ROWS[row], **({"unit": unit} if unit else {}), **summary(runs)}
    walks = complete_runs(base, slug(WALKS)) if row.endswith(", 9 layers") and row != WALKS else {}
    if seeds := [seed for seed in runs if seed in walks]:
        pair = paired_difference(*(torch.stack([absolute_errors(of[seed]) for seed in seeds]) for of in (runs, walks)))
        entry["difference"] = {"seeds": seeds, **pair._asdict(), "error": pair.error}
    return entry


def absolute_errors(run: RunFolder) -> Tensor:
    """Return the absolute error of each test molecule, the mean over the targets, ``[num_molecules]``."""
    config = read_json(run.config)
    outputs = read_outputs(run.test_predictions, make_task(config["task"]), config["data"]["target"])
    return (outputs.values - outputs.labels).abs().mean(1)


if __name__ == "__main__":
    main()
