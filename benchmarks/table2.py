"""Reproduce Table 2 of "Graph Transformers Dream of Electric Flow": six cells, also with renumbered test atoms.

    python benchmarks/table2.py --data DIR [--cells CELL ...] [--epochs N] [--seeds 0 1 2]
    python benchmarks/table2.py --data DIR --cells zinc-linear-transformer --epochs 200 --seeds 1 --add

DIR holds the folders zinc and qm9, each with train, val and test. Every run is one `tg-lpe train --preset paper`
command with its own folder under --out. Complete runs are not repeated, a stopped run is resumed, and a run of another
process is skipped. Without --epochs, a cell has as many as in the paper, 2,000 for ZINC and 1,000 for QM9; the decay of
the learning rate scales with the number. The linear transformer is first pretrained on eigenvectors from --starts
initialisations, of which validation chooses one. Training is in float32, or with --precision bfloat16 in half the time
on processors that support it. In addition to the paper's cells there is the same encoder with probes that read atom
types, which is equivariant.

The complete runs under --out are collected into a JSON file: for each cell and number of epochs the mean and spread
over seeds of the test error, the same after the atoms of every test molecule are renumbered at random, parameters and
time. --add keeps the file's other cells.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _arguments import Parser
from _runs import complete_runs, run, summary, with_earlier_rows, write_runs

from tg_lpe.checkpoints.files import read_json

PAPER: dict[str, dict[str, Any]] = {
    "zinc-none": {"mae": 0.286, "std": 0.0078, "parameters": "800,771 - 891", "epochs": 2000},
    "zinc-laplacian": {"mae": 0.201, "std": 0.0034, "parameters": "800,771", "epochs": 2000},
    "zinc-linear-transformer": {"mae": 0.138, "std": 0.012, "parameters": "800,771 + 488", "epochs": 2000},
    "qm9-none": {"mae": 0.419, "std": 0.0047, "parameters": "799,747 - 512", "epochs": 1000},
    "qm9-laplacian": {"mae": 0.227, "std": 0.0094, "parameters": "799,747", "epochs": 1000},
    "qm9-linear-transformer": {"mae": 0.221, "std": 0.0060, "parameters": "799,747 + 240", "epochs": 1000},
}
"""The six published cells: mean and standard deviation over four seeds."""

SOURCES = {"qm9": "qm9-solubility"}
"""Names of the data on the command line, if they differ."""

ROWS: dict[str, list[str]] = {
    "none": ["--encoder", "none"],
    "laplacian": ["--encoder", "LaplacianEigenvectors"],
    "linear-transformer": ["--encoder.probes", "learned"],
    "linear-transformer-features": ["--encoder.probes", "features"],
}
"""Options of the training, or of its pretraining."""

PRETRAINED = ("linear-transformer", "linear-transformer-features")
CELLS = [f"{name}-{row}" for name in ("zinc", "qm9") for row in ROWS]


def main() -> None:
    parser = Parser(__doc__, "one epoch of a tiny model on 100 of the nci molecules", "table2.json")
    parser.add_argument("--data", metavar="DIR", type=Path, help="folder with zinc and qm9")
    parser.add_argument(
        "--cells",
        nargs="+",
        default=list(PAPER),
        choices=CELLS,
        metavar="CELL",
        help=f"{', '.join(CELLS)} (default: the paper's six)",
    )
    parser.add_argument("--epochs", type=int, help="of each run (default: the paper's)")
    parser.add_argument("--pretrain_epochs", type=int, default=120, help="(default: %(default)s)")
    parser.add_argument("--starts", type=int, default=3, help="initialisations to pretrain (default: %(default)s)")
    parser.add_argument(
        "--precision", choices=("float32", "bfloat16"), default="float32", help="of the training (default: %(default)s)"
    )
    parser.add_options("--seeds", "--device", "--collect", "--add")
    args = parser.parse_args()
    if args.quick:
        args.cells, args.data = [f"nci-{row}" for row in ROWS], None
        args.epochs = args.pretrain_epochs = args.starts = 1
    elif args.data is None and not args.collect:
        parser.error("--data DIR is missing, a folder with zinc and qm9")
    for seed in [] if args.collect else args.seeds:
        for cell in args.cells:
            train(cell, seed, args)
    entries = collect(args.out)
    write_runs(
        args.json, sorted(with_earlier_rows(args.json, entries, place) if args.add else entries, key=place), args.out
    )


def train(cell: str, seed: int, args: argparse.Namespace) -> None:
    """Run a training after the pretraining of its encoder."""
    name, _, row = cell.partition("-")
    data = args.data / name if args.data else None
    epochs = args.epochs or PAPER[f"{name}-none"]["epochs"]
    options = ["--preset", "paper", "--epochs", str(epochs), "--seed", str(seed), "--precision", args.precision]
    if row in PRETRAINED:
        start = pretrained(cell, data, args)
        if start is None:
            print(f"{cell}: left out, its encoder is still being pretrained", file=sys.stderr)
            return
        options += ["--pretrained", str(start)]
    else:
        options += ROWS[row]
    if args.quick:
        options += ["--graphs", "100", "--model.hidden_channels", "16", "--model.num_layers", "1"]
    source = SOURCES.get(name, name)
    run("train", source, args.out / f"{cell}-{epochs}-s{seed}", options, data, args.device)


def pretrained(cell: str, data: Path | None, args: argparse.Namespace) -> Path | None:
    """Return the encoder with the best validation loss; ``None`` while another process pretrains one."""
    name, _, row = cell.partition("-")
    base = args.out / "pretrain"
    for start in range(args.starts):
        options = ["--preset", "paper", *ROWS[row], "--epochs", str(args.pretrain_epochs), "--seed", str(start)]
        options += ["--graphs", "100"] if args.quick else []
        folder = base / f"{cell}-{args.pretrain_epochs}-s{start}"
        if not run("pretrain", SOURCES.get(name, name), folder, options, data, args.device):
            return None
    starts = complete_runs(base, f"{cell}-{args.pretrain_epochs}")
    best = min(range(args.starts), key=lambda start: read_json(starts[start].result)["val_loss"])
    return starts[best].path / "encoder"


def collect(base: Path) -> list[dict[str, Any]]:
    """Return the figures of each cell and number of epochs over all complete seeds."""
    found = {match for path in base.glob("*-s[0-9]*") if (match := re.fullmatch(r"(.+)-(\d+)-s\d+", path.name))}
    entries = []
    for cell, epochs in {(match[1], int(match[2])) for match in found}:
        runs = complete_runs(base, f"{cell}-{epochs}")
        if not runs:
            continue
        name, _, row = cell.partition("-")
        entry = {"cell": cell, "set": name, "row": row, "epochs": epochs, **summary(runs)}
        entries.append({**entry, "paper": PAPER.get(cell)})
    return entries


def place(entry: Mapping[str, Any]) -> tuple[str, int, int]:
    """Return where a cell stands in the table."""
    return entry["set"], list(ROWS).index(entry["row"]), entry["epochs"]


if __name__ == "__main__":
    main()
