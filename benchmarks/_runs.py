"""What comparisons of trained models share: a run of tg-lpe in a folder of its own, and its figures over seeds."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tg_lpe.checkpoints.files import read_json
from tg_lpe.cli import main as tg_lpe
from tg_lpe.training.run_folder import RunFolder
from tg_lpe.training.state import read_metrics

# torch and oneDNN keep up to 1,024 bfloat16 products each, one for every number of rows that a batch had: gigabytes in
# a process of many runs. Both read this at their first product.
for cache in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
    os.environ.setdefault(cache, "64")


def run(
    command: str,
    source: str,
    out: Path,
    options: Sequence[str],
    data: str | None = None,
    threads: int | None = None,
    device: str = "cpu",
) -> bool:
    """A command of tg-lpe, its folder resumed if there is one; whether the run is complete afterwards."""
    folder = RunFolder(out)
    if folder.result.exists():
        return True
    place = ["--data", data] if data else []
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
    """The complete runs ``base/NAME-sSEED`` by seed."""
    folders = {int(path.name.rpartition("-s")[2]): RunFolder(path) for path in base.glob(f"{name}-s[0-9]*")}
    return {seed: folder for seed, folder in sorted(folders.items()) if folder.result.exists()}


def slug(row: str) -> str:
    """A row's name as part of a folder's."""
    return row.replace(", ", "--").replace(" ", "-")


def summary(runs: Mapping[int, RunFolder], metric: str = "mae") -> dict[str, Any]:
    """Mean and spread over seeds of the figures of some runs, sizes, and mean seconds."""
    results = [read_json(folder.result) for folder in runs.values()]
    metrics = [read_metrics(folder.metrics) for folder in runs.values()]
    entry: dict[str, Any] = {"seeds": list(runs)}
    test, validation = f"test_{metric}", f"val_{metric}"
    for name in (test, f"{test}_relabelled", validation):
        values = [result[name] for result in results]
        entry[name] = statistics.fmean(values)
        entry[f"{name}_std"] = statistics.stdev(values) if len(values) > 1 else None
        entry[f"{name}_by_seed"] = values
    if columns := results[0].get("test_mae_columns"):
        entry["test_mae_columns"] = {
            name: statistics.fmean(result["test_mae_columns"][name] for result in results) for name in columns
        }
    gaps = [abs(result[test] - result[f"{test}_relabelled"]) for result in results]
    return entry | {
        "largest_relabelling_gap": max(gaps),
        "num_parameters": results[0]["num_parameters"],
        "encoder_parameters": results[0]["encoder_parameters"],
        "precision": ", ".join(dict.fromkeys(result["precision"] for result in results)),
        "molecules": [results[0][f"num_{split}"] for split in ("train", "val", "test")],
        "seconds": statistics.fmean(sum(line["seconds"] for line in lines) for lines in metrics),
        f"{validation}_by_epoch": [[round(line[validation], 5) for line in lines] for lines in metrics],
    }


def machine_of(folder: RunFolder) -> dict[str, Any]:
    """Machine and versions of a run, without the command that started it."""
    machine: dict[str, Any] = read_json(folder.environment)
    machine.pop("command")
    return machine
