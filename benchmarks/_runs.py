"""Run tg-lpe in run folders, and collect figures over seeds; molecules for quick runs."""

from __future__ import annotations

import csv
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from _results import earlier_rows, show, write_results
from rdkit import RDConfig

from tg_lpe.app.cli import main as tg_lpe
from tg_lpe.app.training.run_folder import RunFolder
from tg_lpe.app.training.state import read_metrics
from tg_lpe.checkpoints.files import read_json

# torch and oneDNN cache up to 1,024 bfloat16 products each, one for every number of rows of a batch: gigabytes in
# a process with many runs. Both read the limit at their first product.
for cache in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
    os.environ.setdefault(cache, "64")


def run(
    command: str,
    source: str,
    out: Path,
    options: Sequence[str],
    data: str | Path | None = None,
    device: str = "cpu",
) -> bool:
    """Run a command of tg-lpe, resuming its folder if it exists; return whether the run is complete."""
    folder = RunFolder(out)
    if folder.result.exists():
        return True
    place = ["--data", str(data)] if data else []
    full = [command, source, *place, *options, "--device", device, "--out", str(out), "--resume", "--quiet"]
    print(f"$ tg-lpe {' '.join(full)}", file=sys.stderr)
    before, sys.argv = sys.argv, ["tg-lpe", *full]  # the run folder records them
    try:
        if tg_lpe(full) != 0:
            print(f"{out}: left out", file=sys.stderr)
    finally:
        sys.argv = before
    return folder.result.exists()


def complete_runs(base: Path, name: str) -> dict[int, RunFolder]:
    """Return the complete runs ``base/NAME-sSEED`` by seed."""
    folders = {int(path.name.rpartition("-s")[2]): RunFolder(path) for path in base.glob(f"{name}-s[0-9]*")}
    return {seed: folder for seed, folder in sorted(folders.items()) if folder.result.exists()}


def slug(row: str) -> str:
    """Convert a row's name to a part of a folder's name."""
    return row.replace(", ", "--").replace(" ", "-")


def summary(runs: Mapping[int, RunFolder], metric: str = "mae") -> dict[str, Any]:
    """Return mean and spread of figures over seeds, sizes and mean seconds of some runs."""
    results = [read_json(folder.result) for folder in runs.values()]
    metrics = [read_metrics(folder.metrics) for folder in runs.values()]
    entry: dict[str, Any] = {"seeds": list(runs)}
    test, validation = f"test_{metric}", f"val_{metric}"
    for name in (test, f"{test}_relabelled", validation):
        entry |= over_seeds(name, [result[name] for result in results])
    if columns := results[0].get("test_mae_columns"):
        entry["test_mae_columns"] = {
            name: statistics.fmean(result["test_mae_columns"][name] for result in results) for name in columns
        }
    return entry | {
        "num_parameters": results[0]["num_parameters"],
        "encoder_parameters": results[0]["encoder_parameters"],
        "precision": ", ".join(dict.fromkeys(result["precision"] for result in results)),
        "molecules": [results[0][f"num_{split}"] for split in ("train", "val", "test")],
        **over_seeds("seconds", [sum(line["seconds"] for line in lines) for lines in metrics]),
    }


def over_seeds(name: str, values: Sequence[float]) -> dict[str, Any]:
    """Return mean and spread of a figure over seeds, and the figure of each seed."""
    spread = statistics.stdev(values) if len(values) > 1 else None
    return {name: statistics.fmean(values), f"{name}_std": spread, f"{name}_by_seed": list(values)}


def with_earlier_rows(
    file: Path, entries: Sequence[Mapping[str, Any]], key: Callable[[Mapping[str, Any]], Any]
) -> list[Mapping[str, Any]]:
    """Return the rows of a file whose key none of the entries has, then the entries."""
    collected = {key(entry) for entry in entries}
    return [*(row for row in earlier_rows(file) if key(row) not in collected), *entries]


def machine_of(folder: RunFolder) -> dict[str, Any]:
    """Return machine and versions of a run, without its command."""
    machine: dict[str, Any] = read_json(folder.environment)
    machine.pop("command")
    return machine


def write_runs(file: Path, entries: Sequence[Mapping[str, Any]], base: Path, **about: Any) -> None:
    """Print collected figures, and write them with the machine of a complete run in a folder, or this one.

    Raises:
        SystemExit: if there are none.
    """
    if not entries:
        sys.exit(f"no run under {base} is complete")
    for entry in entries:
        show(entry)
    complete = sorted(base.glob("*-s[0-9]*/result.json"))
    write_results(file, entries, machine_of(RunFolder(complete[0].parent)) if complete else None, **about)


def nci_smiles() -> list[str]:
    """Return the molecules that ship with RDKit."""
    lines = Path(RDConfig.RDDataDir, "NCI", "first_5K.smi").read_text(encoding="utf-8").splitlines()
    return [line.split()[0] for line in lines]


def write_csv(file: Path, head: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a table."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([list(head), *rows])
