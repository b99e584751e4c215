"""Run tg-lpe in run folders, and collect figures over seeds; molecules for quick runs."""

from __future__ import annotations

import csv
import os
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from _results import show, write_results
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
    threads: int | None = None,
    device: str = "cpu",
) -> bool:
    """Run a command of tg-lpe, resuming its folder if it exists; return whether the run is complete."""
    folder = RunFolder(out)
    if folder.result.exists():
        return True
    place = ["--data", str(data)] if data else []
    limit = ["--threads", str(threads)] if threads is not None else []
    full = [command, source, *place, *options, "--device", device, "--out", str(out), "--resume", "--quiet", *limit]
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


def with_earlier_seeds(entry: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Add the seeds of an earlier summary of the same row to a summary, except those that it has itself.

    What is neither a figure of a seed nor their precision is that of the newer summary.
    """
    earlier = {"seconds_by_seed": [earlier["seconds"]] * len(earlier["seeds"]), **earlier}
    found = [(seed, entry, place) for place, seed in enumerate(entry["seeds"])]
    kept = [(seed, earlier, place) for place, seed in enumerate(earlier["seeds"]) if seed not in entry["seeds"]]
    order = sorted([*found, *kept], key=lambda one: one[0])
    merged = {**entry, "seeds": [seed for seed, _, _ in order]}
    for name in entry:
        if name.endswith("_by_seed"):
            merged |= over_seeds(name.removesuffix("_by_seed"), [source[name][place] for _, source, place in order])
    precisions = (name for _, source, _ in order for name in source["precision"].split(", "))
    merged["precision"] = ", ".join(dict.fromkeys(precisions))
    if kept and (machine := earlier.get("machine_of_earlier_seeds", earlier.get("machine"))):
        merged["machine_of_earlier_seeds"] = machine
    return merged


def machine_of(folder: RunFolder) -> dict[str, Any]:
    """Return machine and versions of a run, without its command."""
    machine: dict[str, Any] = read_json(folder.environment)
    machine.pop("command")
    return machine


def write_runs(file: Path, entries: Sequence[Mapping[str, Any]], base: Path, **about: Any) -> None:
    """Print collected figures, and write them with the machine of a complete run in a folder.

    Raises:
        SystemExit: if there are none.
    """
    if not entries:
        sys.exit(f"no run under {base} is complete")
    for entry in entries:
        show(entry)
    first = min(base.glob("*-s[0-9]*/result.json")).parent
    write_results(file, entries, machine_of(RunFolder(first)), **about)


def nci_smiles() -> list[str]:
    """Return the molecules that ship with RDKit."""
    lines = Path(RDConfig.RDDataDir, "NCI", "first_5K.smi").read_text(encoding="utf-8").splitlines()
    return [line.split()[0] for line in lines]


def write_csv(file: Path, head: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a table."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([list(head), *rows])
