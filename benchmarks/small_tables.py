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
import csv
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _arguments import Parser
from _runs import complete_runs, machine_of, run, summary

from tg_lpe.checkpoints.files import read_json, write_json
from tg_lpe.training.run_folder import RunFolder

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


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--data", metavar="DIR", type=Path, help="folder with esol.csv")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES), help="(default: all)")
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=list(STARTS), help="(default: both)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="(default: 0 1 2)")
    parser.add_argument("--threads", type=int, help="threads of this process")
    parser.add_argument("--out", metavar="DIR", default="runs/small_tables", help="(default: %(default)s)")
    parser.add_argument("--collect", action="store_true", help="run nothing, collect what is complete")
    parser.add_argument("--quick", action="store_true", help="an epoch on one table")
    parser.add_argument("--json", metavar="FILE", default="benchmarks/results/small_tables.json", help="(%(default)s)")
    args = parser.parse_args()
    if not args.quick:
        compare(args, [])
        return
    args.tables, args.seeds, args.starts = ["TPSA"], [0], ["scratch"]
    with tempfile.TemporaryDirectory() as folder:
        args.out = folder
        compare(args, ["--epochs", "1", "--model.hidden_channels", "16"])


def compare(args: argparse.Namespace, options: list[str]) -> None:
    """Run the missing runs and collect the complete ones."""
    files = {} if args.collect else {name: file for name in args.tables if (file := table(name, args)) is not None}
    for seed in args.seeds:
        for name, file in files.items():
            target = ESOL if name == "esol" else name
            common = ["--target", target, "--task", "regression", "--canonical", "false", "--seed", str(seed), *options]
            for start in args.starts:
                out = Path(args.out) / f"{name}--{start}-s{seed}"
                run("train", str(file), out, [*common, *STARTS[start]], None, args.threads)
    entries = []
    for name in TABLES:
        for start in STARTS:
            if runs := complete_runs(Path(args.out), f"{name}--{start}"):
                entries.append(entry(name, start, runs))
                print(" | ".join(str(entries[-1][key]) for key in ("table", "start", "mae", "constant")))
    if not entries:
        sys.exit(f"no run under {args.out} is complete")
    first = complete_runs(Path(args.out), f"{entries[0]['table']}--{entries[0]['start']}")
    machine = machine_of(next(iter(first.values())))
    write_json(Path(args.json), {"epochs": 20, "results": entries, "machine": machine})


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
    from rdkit import Chem, RDConfig

    file = Path(args.out, f"{name}.csv")
    if file.exists():
        return file
    lines = Path(RDConfig.RDDataDir, "NCI", "first_5K.smi").read_text(encoding="utf-8").splitlines()
    smiles = [line.split()[0] for line in lines]
    molecules = ((text, Chem.MolFromSmiles(text)) for text in smiles if "." not in text)
    usable = [(text, molecule) for text, molecule in molecules if molecule is not None][: TABLES[name]]
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([("smiles", name), *((text, properties()[name](m)) for text, m in usable)])
    return file


def properties() -> dict[str, Callable[[Any], float]]:
    """Return RDKit's functions of a molecule by column."""
    from rdkit.Chem import QED, Crippen, Descriptors, GraphDescriptors, rdMolDescriptors

    return {
        "logP": Crippen.MolLogP,
        "TPSA": rdMolDescriptors.CalcTPSA,
        "MolWt": Descriptors.MolWt,
        "QED": QED.qed,
        "rings": rdMolDescriptors.CalcNumRings,
        "fraction_sp3": rdMolDescriptors.CalcFractionCSP3,
        "BalabanJ": GraphDescriptors.BalabanJ,
    }


if __name__ == "__main__":
    main()
