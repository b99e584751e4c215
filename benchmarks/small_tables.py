"""Train regressions on small tables of molecules with default settings, from scratch and from a shipped model.

    python benchmarks/small_tables.py [--data DIR] [--tables esol logP ...] [--seeds 0 1 2]

DIR holds MoleculeNet's esol.csv; without it that table is left out. The other tables are properties that RDKit computes
for its NCI molecules, in the order of the file, with 300, 600 or 1,200 rows. Every run is one `tg-lpe train` command of
20 epochs with its own folder under --out: with only the target as option, and with `--start transformer-zinc12k --lr
1e-4` as in the tutorial. Each test error is compared with the error of the constant, the median of the training labels.
Complete runs are not repeated, and a run of another process is skipped.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _arguments import Parser
from _runs import complete_runs, nci_smiles, run, summary, write_csv, write_runs
from rdkit import Chem
from rdkit.Chem import QED, Crippen, Descriptors, GraphDescriptors, rdMolDescriptors

from tg_lpe.app.training.run_folder import RunFolder
from tg_lpe.checkpoints.files import read_json

ESOL = "logp"  # of the water solubility
TABLES = {
    "esol": 1128,
    "logP": 600,
    "TPSA": 300,
    "MolWt": 1200,
    "QED": 600,
    "rings": 300,
    "fraction_sp3": 1200,
    "BalabanJ": 600,
}
"""Rows of each table; some of their molecules cannot be used."""
STARTS = {"scratch": [], "transformer-zinc12k": ["--start", "transformer-zinc12k", "--lr", "1e-4"]}


PROPERTIES: dict[str, Callable[[Any], float]] = {
    "logP": Crippen.MolLogP,
    "TPSA": rdMolDescriptors.CalcTPSA,
    "MolWt": Descriptors.MolWt,
    "QED": QED.qed,
    "rings": rdMolDescriptors.CalcNumRings,
    "fraction_sp3": rdMolDescriptors.CalcFractionCSP3,
    "BalabanJ": GraphDescriptors.BalabanJ,
}
"""RDKit's functions of a molecule by column."""


def main() -> None:
    parser = Parser(__doc__, "an epoch on one table", "small_tables.json")
    parser.add_argument("--data", metavar="DIR", type=Path, help="folder with esol.csv")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES), help="(default: all)")
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=list(STARTS), help="(default: both)")
    parser.add_options("--seeds", "--threads", "--collect")
    parser.set_defaults(seeds=[0, 1, 2])
    args = parser.parse_args()
    options = ["--task", "regression", "--canonical", "false"]
    if args.quick:
        args.tables, args.seeds, args.starts = ["TPSA"], [0], ["scratch"]
        options += ["--epochs", "1", "--model.hidden_channels", "16"]
    files = {} if args.collect else {name: file for name in args.tables if (file := table(name, args)) is not None}
    for seed in args.seeds:
        for name, file in files.items():
            target = ESOL if name == "esol" else name
            for start in args.starts:
                chosen = ["--target", target, "--seed", str(seed), *options, *STARTS[start]]
                run("train", str(file), args.out / f"{name}--{start}-s{seed}", chosen, None, args.threads)
    entries = [
        entry(name, start, runs)
        for name in TABLES
        for start in STARTS
        if (runs := complete_runs(args.out, f"{name}--{start}"))
    ]
    write_runs(args.json, entries, args.out, epochs=20)


def entry(name: str, start: str, runs: dict[int, RunFolder]) -> dict[str, Any]:
    """Return test errors of a table by seed, and the errors of the constant."""
    results = {seed: read_json(folder.result) for seed, folder in runs.items()}
    return {
        "table": name,
        "start": start,
        "rows": sum(next(iter(results.values()))[f"num_{part}"] for part in ("train", "val", "test")),
        "mae": {str(seed): round(result["test_mae"], 4) for seed, result in results.items()},
        "constant": {str(seed): round(result["test_mae_constant"], 4) for seed, result in results.items()},
        "learned": all(result["test_mae"] < result["test_mae_constant"] for result in results.values()),
        "seconds": summary(runs)["seconds"],
    }


def table(name: str, args: argparse.Namespace) -> Path | None:
    """Return the csv file of a table, written if absent; ``None`` for esol without ``--data``."""
    if name == "esol":
        return None if args.data is None else args.data / "esol.csv"
    file = args.out / f"{name}.csv"
    if not file.exists():
        molecules = ((text, Chem.MolFromSmiles(text)) for text in nci_smiles() if "." not in text)
        usable = [(text, molecule) for text, molecule in molecules if molecule is not None][: TABLES[name]]
        write_csv(file, ["smiles", name], ((text, PROPERTIES[name](molecule)) for text, molecule in usable))
    return file


if __name__ == "__main__":
    main()
