"""Compare encodings on molecules: one graph transformer, one budget, several seeds.

    python benchmarks/molecules.py zinc12k --data DIR [--rows ROW ...] [--seeds 0 1 2] [--epochs 15]
    python benchmarks/molecules.py zinc12k --data DIR --rows ablations
    python benchmarks/molecules.py zinc12k --data DIR --rows budget --seeds 0 1 2 --epochs 100
    python benchmarks/molecules.py zinc12k --data DIR --rows spectral --seeds 0 1 2
    python benchmarks/molecules.py zinc12k --data DIR --rows tuples --seeds 0 1 2
    python benchmarks/molecules.py zinc12k --data DIR --rows pairs --seeds 0 1 2
    python benchmarks/molecules.py qm9 --data DIR --rows properties --targets gap frontier all --epochs 40

DIR holds train, val and test of the dataset (see `tg-lpe train --help`), or the table of properties of `qm9`; `nci`
needs none. Every run is one `tg-lpe train` command with its own folder under --out. Complete runs are not repeated, a
stopped run is resumed, and a run of another process is skipped: start the command several times to use several cores,
or again to add seeds.

The complete runs are collected into a JSON file; --add keeps the file's other rows. Each row has mean and spread over
seeds of the test error at the best validation epoch, the same after the atoms of every test molecule are renumbered at
random, the paired difference of test errors to random walks in the same model, parameters and time. Each of the
--targets of `qm9` has its own file. The error of `frontier` is the mean over
homo, lumo and gap in Hartree; that of `all` is the mean over twelve properties in standard deviations.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _arguments import Parser
from _readme import figure_of, molecules_row
from _runs import complete_runs, machine_of, run, slug, summary
from rdkit import RDConfig
from torch import Tensor

from tg_lpe.checkpoints.files import read_json, write_json
from tg_lpe.data.units import common_unit
from tg_lpe.datasets.molecules import QM9_UNITS
from tg_lpe.training import paired_difference
from tg_lpe.training.metrics import IN_UNITS
from tg_lpe.training.outputs import read_outputs
from tg_lpe.training.run_folder import RunFolder
from tg_lpe.training.tasks import make_task

SETS = ("zinc", "zinc12k", "qm9", "qm9-solubility", "nci")

TARGETS: dict[str, list[str]] = {
    "gap": ["--target", "gap"],
    "frontier": ["--target", "homo", "lumo", "gap", "--task.metric", "mae"],
    "all": ["--target", *QM9_UNITS],
}
"""Properties of qm9 that one model predicts."""

GRAM = "GramTransformer"
"""The reference row: Gram read-outs with eight channels, pretrained on kernels of the Laplacian."""

WALKS = "random-walk, 9 layers"
"""The row with which those of the same model are compared."""

NOT_PRETRAINED = f"{GRAM}, not pretrained"

PRETRAINED = "PRETRAINED"
"""Placeholder for an encoder pretrained on the molecules of the same dataset, without labels."""

GRAM_CLASS = ["--encoder", "GramTransformer", "--encoder.probes", "identity"]
START = ["--pretrained", PRETRAINED]
FRESH = [*GRAM_CLASS, "--encoder.out_channels", "8", "--encoder.edge_out_channels", "8"]
"""The same encoder with random weights."""

LAPLACIAN = ["--encoder", "LaplacianEigenvectors", "--encoder.k", "6"]
WALK = ["--encoder", "RandomWalk", "--encoder.steps", "16"]
LINEAR = ["--encoder", "LinearTransformer", "--encoder.out_channels", "6", "--encoder.probes"]
NODES_ALONE = ["--edge_encoding", "false"]
FIXED = ["--encoder.conductances", "ground"]

ENCODINGS: dict[str, list[str]] = {
    "none": ["--encoder", "none"],
    "laplacian": LAPLACIAN,
    "random-walk": WALK,
    "positions": ["--encoder", "Positions", "--encoder.k", "8"],
    "LinearTransformer, probes from features": [*LINEAR, "features"],
    "LinearTransformer, random probes": [*LINEAR, "random"],
    "LinearTransformer, learned probes": [*LINEAR, "learned"],
    "GramTransformer, not pretrained, Rademacher probes": [*FRESH, "--encoder.probes", "rademacher"],
    GRAM: START,
}
ABLATIONS: dict[str, list[str]] = {
    NOT_PRETRAINED: FRESH,
    f"{NOT_PRETRAINED}, all 64 channels": GRAM_CLASS,
    f"{GRAM}, frozen": [*START, "--encoder_lr", "0"],
    f"{GRAM}, frozen, nodes alone": [*START, "--encoder_lr", "0", *NODES_ALONE],
    f"{GRAM}, nodes alone": [*START, *NODES_ALONE],
    f"{GRAM}, no norm": [*START, "--model.pe_options.norm", "false"],
    f"{GRAM}, mean pooling": [*START, "--model.readout.pooling", "mean"],
    f"{GRAM}, sum pooling": [*START, "--model.readout.pooling", "sum"],
    f"{GRAM}, encoder_lr 0.001": [*START, "--encoder_lr", "0.001"],
    f"{GRAM}, encoder_lr 0.03": [*START, "--encoder_lr", "0.03"],
    f"{NOT_PRETRAINED}, fixed conductances": [*FRESH, *FIXED],
    f"{NOT_PRETRAINED}, one filter": [*FRESH, "--encoder.num_filters", "1"],
    f"{NOT_PRETRAINED}, two filters": [*FRESH, "--encoder.num_filters", "2"],
    f"{NOT_PRETRAINED}, eight filters": [*FRESH, "--encoder.num_filters", "8"],
    f"{NOT_PRETRAINED}, eight layers": [*FRESH, "--encoder.num_layers", "8"],
    f"{NOT_PRETRAINED}, Chebyshev": [*FRESH, "--encoder.basis", "chebyshev"],
    "random-walk, nodes alone": [*WALK, *NODES_ALONE],
    "laplacian, nodes alone": [*LAPLACIAN, *NODES_ALONE],
    "random-walk, no norm": [*WALK, "--model.pe_options.norm", "false"],
    "laplacian, no norm": [*LAPLACIAN, "--model.pe_options.norm", "false"],
}
WITHOUT_FEATURES: dict[str, list[str]] = {
    f"{NOT_PRETRAINED}, fixed conductances": [*FRESH, *FIXED],
    "heat-k8": ["--pretrained", "heat-k8"],
    "heat-k8, frozen": ["--pretrained", "heat-k8", "--encoder_lr", "0"],
    "heat-k8, frozen, nodes alone": ["--pretrained", "heat-k8", "--encoder_lr", "0", *NODES_ALONE],
    "gram-k8, frozen, nodes alone": ["--pretrained", "gram-k8", "--encoder_lr", "0", *NODES_ALONE],
}
SMALL: dict[str, list[str]] = {
    f"{name}, {channels} channels": [*ENCODINGS[name], "--model.hidden_channels", channels]
    for name in ("random-walk", GRAM)
    for channels in ("104", "112")
}
"""104 channels stay below the 500,000 parameters of published comparisons."""

SUMMED: dict[str, list[str]] = {
    "random-walk, sum pooling": [*WALK, "--model.readout.pooling", "sum"],
    "GramTransformer, not pretrained, all 64 channels, sum pooling": [*GRAM_CLASS, "--model.readout.pooling", "sum"],
}
GPS = {
    f"gps, {name}": [*ENCODINGS[name], "--model.attention", "gps"]
    for name in ("none", "laplacian", "random-walk", GRAM)
}
REGULAR = [
    *["--model.hidden_channels", "64", "--model.num_layers", "9", "--model.attention_options.local", "gine"],
    *["--model.attention_options.norm", "bounded", "--model.readout.norm", "running", "--recalibrate", "2560"],
]
"""Below 500,000 parameters, with message passing in addition to attention, and less noise of batch norms."""

FIXED_NODES = ["--pretrained", "gram-k16", "--encoder_lr", "0", *NODES_ALONE]
"""The encoding of LinearTransformerPE(k=16)."""

WHITENED = ["--encoder", "Whitened", *NODES_ALONE, "--encoder.encoder"]
WHITENED_ROWS: dict[str, list[str]] = {
    "random-walk, whitened, nodes alone": [*WHITENED, "RandomWalk", "--encoder.encoder.steps", "16"],
    "laplacian, whitened, nodes alone": [*WHITENED, "LaplacianEigenvectors", "--encoder.encoder.k", "6"],
    "heat kernel, nodes alone": ["--encoder", "HeatKernel", *NODES_ALONE],
    "heat kernel, whitened, nodes alone": [*WHITENED, "HeatKernel"],
    "gram-k16, frozen, whitened, nodes alone": [*WHITENED, "gram-k16"],
}
"""The same encodings without correlations between channels, to separate information from conditioning."""

BUDGET = {
    **{f"{name}, 9 layers": [*ENCODINGS[name], *REGULAR] for name in ("none", "laplacian", "random-walk", GRAM)},
    **{
        f"{name}, 9 layers": [*options, *REGULAR]
        for name, options in {
            "random-walk, whitened, nodes alone": WHITENED_ROWS["random-walk, whitened, nodes alone"],
            "ShortestPath": ["--encoder", "ShortestPath"],
            "gram-k16, frozen, nodes alone": FIXED_NODES,
        }.items()
    },
}
PROPERTIES = {
    **{
        f"{name}, 9 layers": [*ENCODINGS[name], *REGULAR]
        for name in ("none", "laplacian", "random-walk", GRAM, "positions")
    },
    "gram-k16, frozen, nodes alone, 9 layers": [*FIXED_NODES, *REGULAR],
}
SLOW = ["--encoder_lr", "0.001"]
SPECTRAL_ENCODER = ["--encoder", "SpectralEncoder", *SLOW]
PUBLISHED = [*SPECTRAL_ENCODER, "--encoder.tokens", "eigenvectors", "--encoder.row_norm", "true"]
SPECTRA = {
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

SPECTRAL = {
    **SPECTRA,
    **{
        f"san, {name}": [*options, *SAN]
        for name, options in {"none": ENCODINGS["none"], **SPECTRA, NOT_PRETRAINED: FRESH}.items()
    },
}
PPGN = {
    "PPGN": ["--encoder", "PPGN", *SLOW],
    "PPGN, sines": ["--encoder", "PPGN", "--encoder.frequency", "10", *SLOW],
}
TUPLES = ["--model", "TupleTransformer", "--model.hidden_channels", "104"]
LOCAL = [*FRESH, *TUPLES, "--model.attention", "local"]
TRIPLES = [*LOCAL, "--model.k", "3", "--encoder.pair_out_channels", "8"]
PAIRS = f"(2,1)-GT local, {NOT_PRETRAINED}"
FROM_PAIRS = "(3,1)-GT local, GramTransformer, order transfer"
TRAINED = "TRAINED"
"""Placeholder for the run of the row ``PAIRS`` with the same seed."""

TUPLE_TRANSFORMERS: dict[str, list[str]] = {
    "(2,1)-GT, none": [*ENCODINGS["none"], *TUPLES],
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
    "bias with gine": [
        *["--model.attention", "bias", "--model.hidden_channels", "112", "--model.attention_options.local", "gine"]
    ],
    "pairs": ["--model.attention", "pairs", "--model.hidden_channels", "96"],
}
"""Attention over all pairs of nodes, compared with attention over edges, all below 500,000 parameters."""

OF_PAIRS = {
    "none": ENCODINGS["none"],
    "RRWP": ["--encoder", "RRWP"],
    "ShortestPath": ["--encoder", "ShortestPath"],
    NOT_PRETRAINED: [*FRESH, "--encoder.pair_out_channels", "8"],
}
COMBINED = ["--encoder", "Combined", "--encoder.encoders", '["gram-k16", {"class": "ShortestPath"}]']
OF_NODES = {
    "gram-k16": FIXED_NODES,
    "gram-k16 and ShortestPath": [*COMBINED, "--encoder_lr", "0", *NODES_ALONE],
}
"""Frozen encodings that show what the weights of ``gram-k16`` add to counts of nodes by distance."""

PAIR_ROWS = {
    **{
        f"{attention}, {name}": [*encoder, *options]
        for attention, options in OVER_PAIRS.items()
        for name, encoder in OF_PAIRS.items()
    },
    **{f"edge, {name}": [*encoder, *OVER_PAIRS["edge"]] for name, encoder in OF_NODES.items()},
}

ROWS = {
    **ENCODINGS,
    **ABLATIONS,
    **WITHOUT_FEATURES,
    "gram-k16, frozen, nodes alone": FIXED_NODES,
    **WHITENED_ROWS,
    **SMALL,
    **SUMMED,
    **GPS,
    **BUDGET,
    **PROPERTIES,
    **SPECTRAL,
    **PPGN,
    **TUPLE_TRANSFORMERS,
    **PAIR_ROWS,
}
GROUPS = {
    "default": ["none", "laplacian", "random-walk", GRAM],
    "encodings": list(ENCODINGS),
    "ablations": [GRAM, *ABLATIONS],
    "without-features": list(WITHOUT_FEATURES),
    "small": list(SMALL),
    "fixed": [
        *["none", "laplacian, nodes alone", "random-walk, nodes alone", "gram-k16, frozen, nodes alone"],
        *WHITENED_ROWS,
    ],
    "summed": list(SUMMED),
    "gps": list(GPS),
    "budget": list(BUDGET),
    "properties": list(PROPERTIES),
    "spectral": ["none", *SPECTRAL, NOT_PRETRAINED],
    "ppgn": ["none", *PPGN, NOT_PRETRAINED],
    "tuples": list(TUPLE_TRANSFORMERS),
    "pairs": list(PAIR_ROWS),
}


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("set", nargs="?", choices=SETS, default="nci", help="(default: %(default)s)")
    parser.add_argument("--data", metavar="DIR", help="folder of the set")
    parser.add_argument(
        "--rows",
        nargs="+",
        default=["default"],
        choices=[*GROUPS, *ROWS],
        metavar="ROW",
        help=f"groups: {', '.join(GROUPS)}; rows: {', '.join(ROWS)}",
    )
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=["gap"], help="of qm9 (default: gap)")
    parser.add_argument(
        "--split", choices=("random", "scaffold", "standard"), default="random", help="of qm9 (default: %(default)s)"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], help="(default: 0)")
    parser.add_argument("--epochs", type=int, default=15, help="(default: %(default)s)")
    parser.add_argument("--batch_size", type=int, help="graphs of a step (default: that of tg-lpe train)")
    parser.add_argument("--lr", type=float, help="peak learning rate (default: that of tg-lpe train)")
    parser.add_argument("--device", default="cpu", help="where to train (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="threads of this process")
    parser.add_argument("--out", metavar="DIR", default="runs/molecules", help="(default: %(default)s)")
    parser.add_argument("--collect", action="store_true", help="run nothing, collect what is complete")
    parser.add_argument("--add", action="store_true", help="keep the rows of the file that have no run under --out")
    parser.add_argument(
        "--quick", action="store_true", help="an epoch of tiny models on nci molecules; qm9's have made-up labels"
    )
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="(default: benchmarks/results/SET_EPOCHS.json, with the group of rows in its name)",
    )
    args = parser.parse_args()
    if args.json and len(args.targets) > 1:
        parser.error(f"--json is for one of the --targets, got {', '.join(args.targets)}")
    if not args.quick:
        for target in args.targets if args.set == "qm9" else [None]:
            args.target = target
            compare(args)
        return
    args.epochs, args.batch_size, args.target = 1, 512, None
    with tempfile.TemporaryDirectory() as args.out:
        if args.set == "qm9":
            args.data, args.rows, args.target = write_properties(Path(args.out)), ["properties"], "frontier"
        else:
            args.set, args.data, args.rows = "nci", None, ["none", GRAM, FROM_PAIRS]
        compare(args)


def write_properties(folder: Path) -> str:
    """Write a small table in QM9's form from RDKit's molecules, with labels from the SMILES."""
    lines = Path(RDConfig.RDDataDir, "NCI", "first_5K.smi").read_text(encoding="utf-8").splitlines()
    smiles = [line.split()[0] for line in lines[:1200]]
    with open(folder / "properties.csv", "w", newline="", encoding="utf-8") as file:
        labels = ([text, *(len(text) / 7 + text.count("N") * place for place in range(12))] for text in smiles)
        csv.writer(file).writerows([["smiles", *QM9_UNITS], *labels])
    return str(folder)


def compare(args: argparse.Namespace) -> None:
    """Run the missing runs and collect the complete ones."""
    options = [] if args.target is None else [*TARGETS[args.target], "--split", args.split]
    loop = {name: value for name in ("batch_size", "lr") if (value := getattr(args, name)) is not None}
    options += [word for name, value in loop.items() for word in (f"--{name}", str(value))]
    if args.quick:
        options += ["--model.hidden_channels", "16", "--model.num_layers", "1"]
        options += [] if args.target else ["--graphs", "1024"]
    rows = list(dict.fromkeys(row for name in args.rows for row in GROUPS.get(name, [name])))
    data = args.set if args.target is None else f"{args.set}-{args.target}-{args.split}"
    base = Path(args.out) / f"{data}-{args.epochs}{''.join(f'-{name}-{value}' for name, value in loop.items())}"
    for seed in args.seeds:
        for row in rows:
            if not args.collect:
                train(row, seed, base, args, options)
    collected = [entry for row in rows if (entry := collect(row, base)) is not None]
    if not collected:
        sys.exit(f"no run under {base} is complete")
    for entry in sorted(collected, key=lambda entry: -entry[figure_of(entry)]):
        print(" | ".join(molecules_row(entry)))
    unnamed = ("default", "encodings", "properties")
    groups = "".join(f"-{name}" for name in args.rows if name in GROUPS and name not in unnamed)
    folder = args.out if args.quick else "benchmarks/results"
    file = Path(args.json or f"{folder}/{f'{data}-{args.epochs}{groups}'.replace('-', '_')}.json")
    machine = machine_of(RunFolder(base / f"{slug(collected[0]['row'])}-s{collected[0]['seeds'][0]}"))
    if args.add and file.exists():
        known, added = read_json(file), {entry["row"] for entry in collected}
        if (known["set"], known["epochs"]) != (data, args.epochs):
            sys.exit(f"{file} is of {known['set']} and {known['epochs']} epochs")
        if machine != known["machine"]:  # the machine in the file is that of the other rows
            collected = [{**entry, "machine": machine} for entry in collected]
        machine = known["machine"]
        collected = [entry for entry in known["results"] if entry["row"] not in added] + collected
    write_json(file, {"set": data, "epochs": args.epochs, **loop, "results": collected, "machine": machine})


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
    return folder if run("train", args.set, folder, options, args.data, args.threads, args.device) else None


def pretrained(args: argparse.Namespace) -> Path | None:
    """Return the encoder pretrained on the dataset; ``None`` while another process pretrains it."""
    split = [] if args.target is None else ["--split", args.split]
    folder = Path(args.out) / "-".join([args.set, *split[1:], f"pretrain{'-quick' * args.quick}"])
    options = ["--kernels", "heat", "resistance", "--read_features", "--epochs", "1" if args.quick else "5"]
    options += split
    complete = run("pretrain", args.set, folder, options, args.data, args.threads, args.device)
    return folder / "encoder" if complete else None


def collect(row: str, base: Path) -> dict[str, Any] | None:
    """Return the figures of a row over all complete seeds; ``None`` if there are none."""
    runs = complete_runs(base, slug(row))
    if not runs:
        return None
    config = read_json(next(iter(runs.values())).config)
    metric, units = config["task"]["metric"], config["data"]["target"].get("units", ())
    unit = common_unit(units) if metric in IN_UNITS else ""
    entry = {"row": row, "options": ROWS[row], **({"unit": unit} if unit else {}), **summary(runs, metric)}
    walks = complete_runs(base, slug(WALKS)) if row.endswith(", 9 layers") and row != WALKS else {}
    is_one_unit = unit or len(config["data"]["target"]["columns"]) == 1
    if metric == "mae" and is_one_unit and (seeds := [seed for seed in runs if seed in walks]):
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
