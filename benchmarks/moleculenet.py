"""Compare `tg-lpe train` as it is typed with what else a chemist may type, on MoleculeNet.

    python benchmarks/moleculenet.py --data DIR [--sets SET ...] [--rows ROW ...] [--seeds 0 1 2] [--chemprop PATH]

DIR holds a csv file for each dataset (https://arxiv.org/abs/1703.00564): SMILES in the first column, labels in the
others. The split is by scaffold, 80/10/10, the same for all rows and seeds. The rows:

- default: `tg-lpe train SET.csv`, with nothing but targets, task and split.
- start: `--start transformer-zinc12k --lr 1e-4`; molecules that this model refuses get the mean training label.
- descriptors: the default with `--descriptors`.
- chemprop: `chemprop train` with its defaults, left out without PATH, the command in an environment of its own.
- forest, boosting: for each label column, scikit-learn's random forest of 500 trees and HistGradientBoosting, on counts
  of the 2,048 Morgan fragments of radius 2.
- both: the forest on Morgan counts and the columns of tg_lpe.app.sklearn.MoleculeEncoder.

The figure is the ROC-AUC averaged over the label columns, and for esol the RMSE. Differences to the default row are
paired; their standard errors are bootstrapped over test molecules and seeds. Seconds are those of one core, from the
table to the predictions. Complete runs under --out are not repeated, and a stopped run starts again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from _arguments import Parser
from _runs import nci_smiles, over_seeds, write_csv, write_runs
from rdkit import Chem
from rdkit.Chem import rdFingerprintGenerator
from sklearn import ensemble
from threadpoolctl import threadpool_limits

from tg_lpe.app.molecules import load_molecules
from tg_lpe.app.sklearn import MoleculeEncoder
from tg_lpe.checkpoints.files import read_json, write_json

TASKS = {
    **{"bbbp": "binary", "bace": "binary", "clintox": "multilabel", "tox21": "multilabel"},
    **{"sider": "multilabel", "esol": "regression"},
}
ROWS = ("default", "start", "descriptors", "chemprop", "forest", "boosting", "both")
TREES, DRAWS = 500, 1000


def main() -> None:
    parser = Parser(__doc__, "an epoch, on molecules that RDKit brings", "moleculenet.json")
    parser.add_argument("--data", metavar="DIR", type=Path, help="folder with a csv file for each dataset")
    parser.add_argument("--sets", nargs="+", choices=TASKS, default=list(TASKS), metavar="SET", help=", ".join(TASKS))
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS, metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--chemprop", metavar="PATH", help="the command of chemprop")
    parser.add_options("--seeds", "--collect")
    args = parser.parse_args()
    if args.quick:
        args.sets, args.rows, args.data = ["bbbp", "esol"], [row for row in ROWS if row != "both"], args.out / "data"
        write_molecules(args.data)
    elif args.data is None:
        parser.error("--data DIR is missing, a folder with bbbp.csv, bace.csv, ...")
    tables = {name: split_table(args.data / f"{name}.csv") for name in args.sets}
    for seed in [] if args.collect else args.seeds:
        for name, table in tables.items():
            for row in args.rows:
                run(name, row, seed, table, args)
    entries = [entry for name, table in tables.items() for entry in entries_of(name, table, args)]
    write_runs(args.json, entries, args.out, split="scaffold")


def split_table(file: Path) -> pd.DataFrame:
    """Return the molecules that RDKit can read: the columns "smiles" and "part", and the labels."""
    table = pd.read_csv(file)
    table = table.rename(columns={table.columns[0]: "smiles"})
    splits = load_molecules(file, targets=list(table.columns[1:]), split="scaffold", progress=False)
    parts = {text: part for part in ("val", "test") for text in splits.smiles[part]}
    table.insert(1, "part", [parts.get(text, "train") for text in table["smiles"]])
    return table[[Chem.MolFromSmiles(text) is not None for text in table["smiles"]]]


def run(name: str, row: str, seed: int, table: pd.DataFrame, args: argparse.Namespace) -> None:
    """Write the predictions of a row for the test molecules, unless they are there."""
    file = predictions_file(name, row, seed, args)
    if file.exists() or (row == "boosting" and seed > 0):  # boosting is not random
        return
    shutil.rmtree(file.parent, ignore_errors=True)
    file.parent.mkdir(parents=True)
    start = sum(os.times()[:4])
    try:
        if row in ("forest", "boosting", "both"):
            predicted = by_columns(name, row, seed, table)
        else:
            predicted = (by_chemprop if row == "chemprop" else by_tg_lpe)(name, row, seed, table, args).to_numpy()
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        print(f"{name}, {row} is left out: {error}", file=sys.stderr)
    else:
        write_json(file, {"seconds": sum(os.times()[:4]) - start, "predicted": predicted.tolist()})


def predictions_file(name: str, row: str, seed: int, args: argparse.Namespace) -> Path:
    return Path(args.out, f"{name}--{row}-s{seed}", "predictions.json")


def by_tg_lpe(name: str, row: str, seed: int, table: pd.DataFrame, args: argparse.Namespace) -> pd.DataFrame:
    """Train by `tg-lpe train` in a process of its own."""
    folder, source = predictions_file(name, row, seed, args).parent, args.data / f"{name}.csv"
    targets = list(table.columns[2:])
    options = ["--target", *targets, "--task", TASKS[name], "--seed", str(seed)]
    if row == "start":
        source = folder / "table.csv"
        table.to_csv(source, index=False)
        options += ["--split_column", "part", "--start", "transformer-zinc12k", "--lr", "1e-4"]
    else:
        options += ["--split", "scaffold", *(["--descriptors"] if row == "descriptors" else [])]
    options += ["--epochs", "1"] if args.quick else []
    places = ["--out", str(folder), "--cache", str(folder / "cache"), "--quiet", "--threads", "1"]
    child(sys.executable, "-m", "tg_lpe.app.cli", "train", str(source), *options, *places)
    return of_test(folder / "predictions_test.csv", table, [f"predicted_{target}" for target in targets])


def by_chemprop(name: str, row: str, seed: int, table: pd.DataFrame, args: argparse.Namespace) -> pd.DataFrame:
    """Train by `chemprop train` in a process of its own."""
    if args.chemprop is None:
        raise FileNotFoundError("--chemprop PATH names its command")
    source = predictions_file(name, row, seed, args).with_name("table.csv")
    table.to_csv(source, index=False)
    targets = list(table.columns[2:])
    options = ["-i", str(source), "-o", str(source.parent), "-s", "smiles", "--target-columns", *targets]
    options += ["-t", "regression" if TASKS[name] == "regression" else "classification", "--splits-column", "part"]
    child(args.chemprop, "train", *options, "--pytorch-seed", str(seed), "--data-seed", str(seed))
    return of_test(source.with_name("model_0") / "test_predictions.csv", table, targets)


def child(*command: str) -> None:
    """Run a command with one thread."""
    print(f"$ {' '.join(command)[:300]}", file=sys.stderr)
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def of_test(file: Path, table: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Return the columns of a file for the test molecules; those it lacks have the mean label of the training set."""
    predictions = pd.read_csv(file).drop_duplicates("smiles").set_index("smiles")[columns]
    means = table.loc[table["part"] == "train", table.columns[2:]].mean()
    predictions.columns = means.index
    return predictions.reindex(table.loc[table["part"] == "test", "smiles"]).fillna(means)


def by_columns(name: str, row: str, seed: int, table: pd.DataFrame) -> np.ndarray[Any, Any]:
    """Fit a forest or boosting for each label column; missing labels are left out."""
    counts = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=2048).GetCountFingerprintAsNumPy
    x = np.stack([counts(Chem.MolFromSmiles(text)) for text in table["smiles"]])
    if row == "both":
        x = np.hstack([x, MoleculeEncoder().fit_transform(list(table["smiles"]))])
    kind = "Regressor" if TASKS[name] == "regression" else "Classifier"
    train, test, predicted = table["part"] == "train", table["part"] == "test", []
    for target in table.columns[2:]:
        fit = train & table[target].notna()
        model = getattr(ensemble, f"HistGradientBoosting{kind}")()
        if row != "boosting":
            model = getattr(ensemble, f"RandomForest{kind}")(TREES, random_state=seed)
        with threadpool_limits(1):
            model.fit(x[fit], table.loc[fit, target])
            predicted.append(model.predict(x[test]) if kind == "Regressor" else model.predict_proba(x[test])[:, -1])
    return np.stack(predicted, axis=1)


def entries_of(name: str, table: pd.DataFrame, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the figures of the complete runs of a dataset, and their differences to the default row."""
    labels, rng = table.loc[table["part"] == "test", table.columns[2:]].to_numpy(dtype=float), np.random.default_rng(0)
    drawn = rng.multinomial(len(labels), np.full(len(labels), 1 / len(labels)), DRAWS)
    weights = np.vstack([np.ones(len(labels)), drawn])
    entries, means = [], {}
    for row in ROWS:
        files = {seed: predictions_file(name, row, seed, args) for seed in args.seeds}
        runs = {seed: read_json(file) for seed, file in files.items() if file.exists()}
        if not runs:
            continue
        figures = np.stack([figure(name, labels, np.array(one["predicted"]), weights) for one in runs.values()])
        seeds = rng.integers(len(runs), size=(len(runs), DRAWS))
        means[row] = np.take_along_axis(figures[:, 1:], seeds, axis=0).mean(axis=0)
        entry = {"set": name, "row": row, "metric": "rmse" if TASKS[name] == "regression" else "roc_auc"}
        entry |= {"seeds": list(runs), **over_seeds("test", figures[:, 0].tolist())}
        if row != "default" and "default" in means:
            entry["difference"] = entry["test"] - entries[0]["test"]
            entry["difference_error"] = float((means[row] - means["default"]).std())
        entry["molecules"] = [int((table["part"] == part).sum()) for part in ("train", "val", "test")]
        entries.append({**entry, **over_seeds("seconds", [one["seconds"] for one in runs.values()])})
    return entries


def figure(name: str, labels: Any, predicted: Any, weights: Any) -> np.ndarray[Any, Any]:
    """Return the figure of predictions for each row of weights of the test molecules, ``[num_rows]``."""
    if TASKS[name] == "regression":
        return np.sqrt(weights @ np.square(labels - predicted).mean(axis=1) / weights.sum(axis=1))
    columns = []
    for label, value in zip(labels.T, predicted.T, strict=True):
        yes, no = label == 1, label == 0
        wins = (value[yes][:, None] > value[no]) + (value[yes][:, None] == value[no]) / 2
        pairs = weights[:, yes].sum(axis=1) * weights[:, no].sum(axis=1)
        won = ((weights[:, yes] @ wins) * weights[:, no]).sum(axis=1)
        columns.append(np.divide(won, pairs, out=np.full(len(won), np.nan), where=pairs > 0))  # NaN without one class
    return np.nanmean(columns, axis=0)


def write_molecules(folder: Path) -> None:
    """Write small files of the same form from RDKit's molecules; labels come from the SMILES, some are missing."""
    smiles = nci_smiles()[:240]
    labels = {"bbbp": lambda text: "" if "S" in text else int("N" in text), "esol": lambda text: -0.1 * len(text)}
    for name, label in labels.items():
        write_csv(folder / f"{name}.csv", ("smiles", "y"), ((text, label(text)) for text in smiles))


if __name__ == "__main__":
    main()
