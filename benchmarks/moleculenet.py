"""Train on MoleculeNet, https://arxiv.org/abs/1703.00564, from scratch and from a model trained on ZINC.

    python benchmarks/moleculenet.py --data DIR [--sets bbbp bace ...] [--rows ROW ...] [--seeds 0 1 2]
    python benchmarks/moleculenet.py --data DIR --starts scratch

DIR holds the folders moleculenet, with a csv file for each dataset, and zinc, with train, val and test. Datasets are
split by scaffold, 80/10/10. The figure is the ROC-AUC averaged over the label columns, and for esol the RMSE. For the
start from ZINC, a model of each row is first trained on the penalised logP of ZINC's molecules; its weights
without the head are the start of all seeds. Both trainings read ogb's features of atoms and bonds.

The row "fingerprints" is a control without a graph: for each label column, a random forest of scikit-learn with 500
trees on counts of the 2,048 Morgan fragments of radius 2. "MoleculeEncoder" is the same forest on the columns of
tg_lpe.app.sklearn, and "both" on all columns. --add keeps the other rows.

Every other run is one `tg-lpe train` command with its own folder under --out. Complete runs are not repeated, a stopped
run is resumed, and a run of another process is skipped: start the command several times to use several cores, or again
to add seeds. The complete runs are collected into a JSON file with mean and spread over seeds of the test figures at
the best validation epoch, for each dataset and row.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from _arguments import Parser
from _runs import complete_runs, nci_smiles, run, slug, summary, with_earlier_rows, write_csv, write_runs
from rdkit import Chem
from rdkit.Chem import rdFingerprintGenerator
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.metrics import roc_auc_score, root_mean_squared_error

from tg_lpe.app.molecules import load_molecules
from tg_lpe.app.sklearn import MoleculeEncoder
from tg_lpe.app.training.run_folder import RunFolder

SETS = ("bbbp", "bace", "clintox", "tox21", "sider", "esol")
STARTS = ("scratch", "zinc")
SLOW = ["--encoder_lr", "0.001"]
FROZEN = ["--encoder_lr", "0"]
NOT_PRETRAINED = "GramTransformer, not pretrained"
ENCODERS: dict[str, list[str]] = {
    "none": ["--encoder", "none"],
    "random-walk": ["--encoder", "RandomWalk", "--encoder.steps", "16"],
    "LPE": ["--encoder", "LPE", *SLOW],
    NOT_PRETRAINED: [
        *["--encoder", "GramTransformer", "--encoder.probes", "identity"],
        *["--encoder.out_channels", "8", "--encoder.edge_out_channels", "8"],
    ],
    "gram-k16, frozen, nodes alone": ["--pretrained", "gram-k16", *FROZEN, "--edge_encoding", "false"],
}
ROWS = {
    **ENCODERS,
    f"(2,1)-GT, {NOT_PRETRAINED}": [*ENCODERS[NOT_PRETRAINED], "--model", "TupleTransformer"],
}
"""Options of the trainings from scratch and on ZINC."""
FORESTS, TREES = ("fingerprints", "MoleculeEncoder", "both"), 500  # no training of tg-lpe

MODEL = ["--model.hidden_channels", "64", "--model.num_layers", "4", "--model.attention_options.dropout", "0.1"]
UNSCALED = ["--task.mean", "[0]", "--task.std", "[1]"]  # as in the runs of the table
LOOP = ["--lr", "5e-4", "--batch_size", "32", "--precision", "float32"]


def main() -> None:
    parser = Parser(__doc__, "an epoch of tiny models on molecules that RDKit brings", "moleculenet.json")
    parser.add_argument("--data", metavar="DIR", type=Path, help="folder with moleculenet and zinc")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS, metavar="SET", help=f"of {', '.join(SETS)}")
    parser.add_argument(
        "--rows",
        nargs="+",
        choices=[*ROWS, *FORESTS],
        default=list(ROWS),
        metavar="ROW",
        help="; ".join([*ROWS, *FORESTS]),
    )
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=STARTS, help="(default: both)")
    parser.add_argument("--epochs", type=int, default=45, help="from scratch (default: %(default)s)")
    parser.add_options("--seeds", "--device", "--threads", "--collect", "--add")
    args = parser.parse_args()
    args.tuning_epochs, args.zinc_epochs = 15, 20
    if args.quick:
        args.sets, args.rows, args.data = ["bbbp", "esol"], ["none", "both"], args.out / "data"
        args.epochs = args.tuning_epochs = args.zinc_epochs = 1
        write_molecules(args.data)
    elif args.data is None and not args.collect:
        parser.error("--data DIR is missing, a folder with moleculenet and zinc")
    compare(args)


def compare(args: argparse.Namespace) -> None:
    """Run the missing runs and collect the complete ones."""
    for seed in [] if args.collect else args.seeds:
        for row in (row for row in args.rows if row in ROWS):
            for start in args.starts:
                for name in args.sets:
                    train(name, row, start, seed, args)
    found = {
        (name, row): {start: complete_runs(args.out, folder_name(name, row, start, args)) for start in STARTS}
        for name in SETS
        for row in ROWS
    }
    entries = [entry(*key, by_start) for key, by_start in found.items() if any(by_start.values())]
    for row in FORESTS if not args.collect else ():
        entries += [{"set": name, "row": row, **by_forest(name, row, args)} for name in args.sets if row in args.rows]
    if args.add:
        entries = with_earlier_rows(args.json, entries, lambda one: (one["set"], one["row"]))
    entries.sort(key=lambda one: (SETS.index(one["set"]), [*ROWS, *FORESTS].index(one["row"])))
    budget = {"epochs": args.epochs, "tuning_epochs": args.tuning_epochs, "zinc_epochs": args.zinc_epochs}
    write_runs(args.json, entries, args.out, **budget)


def by_forest(name: str, row: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of random forests on the same split; missing labels are left out of fits and figures."""
    start = time.process_time()
    file = args.data / "moleculenet" / f"{name}.csv"
    with open(file, newline="", encoding="utf-8") as lines:
        targets = next(reader := csv.reader(lines))[1:]
        rows = {text: labels for text, *labels in reader if Chem.MolFromSmiles(text) is not None}
    splits = load_molecules(file, targets=targets, split="scaffold", canonical=False, progress=False)
    val, test = (set(splits.smiles[part]) for part in ("val", "test"))
    counts = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=2048).GetCountFingerprintAsNumPy
    x = np.stack([counts(Chem.MolFromSmiles(text)) for text in rows])
    if row != "fingerprints":
        x = np.hstack([x[:, : x.shape[1] * (row == "both")], MoleculeEncoder().fit_transform(list(rows))])
    y = np.array([[float(cell) if cell else np.nan for cell in labels] for labels in rows.values()])
    in_test = np.array([text in test for text in rows])
    in_train = ~(in_test | np.array([text in val for text in rows]))
    values = []
    for seed in args.seeds:
        by_column = []
        for column in y.T:
            fit, asked = (part & ~np.isnan(column) for part in (in_train, in_test))
            if name == "esol":
                forest = RandomForestRegressor(TREES, random_state=seed).fit(x[fit], column[fit])
                by_column.append(root_mean_squared_error(column[asked], forest.predict(x[asked])))
            elif len(set(column[asked])) == len(set(column[fit])) == 2:
                forest = RandomForestClassifier(TREES, random_state=seed).fit(x[fit], column[fit])
                by_column.append(roc_auc_score(column[asked], forest.predict_proba(x[asked])[:, 1]))
        values.append(statistics.fmean(by_column))
    figure = f"test_{metric(name)}"
    scratch = {
        "seeds": args.seeds,
        figure: statistics.fmean(values),
        f"{figure}_std": statistics.stdev(values) if len(values) > 1 else None,
        f"{figure}_by_seed": values,
        "num_parameters": None,
        "molecules": [int(in_train.sum()), len(val), int(in_test.sum())],
    }
    seconds = (time.process_time() - start) / len(args.seeds)
    return {"metric": metric(name), "scratch": scratch, "zinc": None, "seconds": seconds}


def train(name: str, row: str, start: str, seed: int, args: argparse.Namespace) -> None:
    """One run, unless it is complete or another process works on it."""
    file = args.data / "moleculenet" / f"{name}.csv"
    with open(file, newline="", encoding="utf-8") as lines:
        targets = next(csv.reader(lines))[1:]
    task = ["regression", "--task.loss_function", "mse", *UNSCALED] if name == "esol" else ["multilabel"]
    options = ["--target", *targets, "--task", *task, "--task.metric", metric(name), "--split", "scaffold", *LOOP]
    options += ["--canonical", "false"]
    if start == "scratch":
        options += [*model(row, args), "--epochs", str(args.epochs)]
    elif (trained := trained_on_zinc(row, args)) is not None:
        options += ["--start", str(trained), *loop_options(row), "--epochs", str(args.tuning_epochs)]
    else:
        print(f"{name}, {row}: left out, its start is still being trained", file=sys.stderr)
        return
    out = args.out / f"{folder_name(name, row, start, args)}-s{seed}"
    run("train", str(file), out, [*options, "--seed", str(seed)], None, args.threads, args.device)


def trained_on_zinc(row: str, args: argparse.Namespace) -> Path | None:
    """The model of a row that was trained on ZINC's molecules; ``None`` while another process trains it."""
    folder, data = args.out / f"zinc--{slug(row)}-{args.zinc_epochs}", args.data / "zinc"
    options = [*model(row, args), "--epochs", str(args.zinc_epochs)]
    return folder if run("train", "zinc", folder, options, data, args.threads, args.device) else None


def model(row: str, args: argparse.Namespace) -> list[str]:
    """Return the options of a model with fresh weights."""
    tiny = ["--model.hidden_channels", "16", "--model.num_layers", "1"] if args.quick else MODEL
    return ["--features", "ogb", *ROWS[row], *tiny]


def loop_options(row: str) -> list[str]:
    """Return the options of a row's loop, which ``--start`` does not set."""
    return next((options for options in (SLOW, FROZEN) if set(options) <= set(ROWS[row])), [])


def folder_name(name: str, row: str, start: str, args: argparse.Namespace) -> str:
    """Return the folder of the runs of a dataset, row and start, without the seed."""
    budget = f"{args.epochs}" if start == "scratch" else f"{args.zinc_epochs}-{args.tuning_epochs}"
    return f"{name}--{slug(row)}--{start}-{budget}"


def metric(name: str) -> str:
    return "rmse" if name == "esol" else "roc_auc"


def entry(name: str, row: str, by_start: dict[str, dict[int, RunFolder]]) -> dict[str, Any]:
    """Return the figures of a dataset and row, from scratch and from ZINC; ``None`` without complete runs."""
    starts = {start: summary(runs, metric(name)) if runs else None for start, runs in by_start.items()}
    seconds = sum(one["seconds"] for one in starts.values() if one is not None)
    return {"set": name, "row": row, "metric": metric(name), "options": ROWS[row], **starts, "seconds": seconds}


def write_molecules(folder: Path) -> None:
    """Write small files of the same form from RDKit's molecules; labels come from the SMILES, some are missing."""
    smiles = nci_smiles()[:240]
    labels = {"bbbp": lambda text: "" if "S" in text else int("N" in text), "esol": lambda text: -0.1 * len(text)}
    for name, label in labels.items():
        write_csv(folder / "moleculenet" / f"{name}.csv", ("smiles", "y"), ((text, label(text)) for text in smiles))
    for part, chosen in (("train", smiles[:160]), ("val", smiles[160:200]), ("test", smiles[200:])):
        write_csv(folder / "zinc" / f"{part}.csv", ["smiles"], ([text] for text in chosen))


if __name__ == "__main__":
    main()
