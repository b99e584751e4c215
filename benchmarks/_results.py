"""The results files of the benchmarks."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tg_lpe.app.training.run_folder import environment
from tg_lpe.checkpoints.files import read_json, write_json

RESULTS = Path(__file__).parent / "results"
MEV_IN = {"Hartree": 27211.386246}  # https://physics.nist.gov/cuu/Constants (2018)


def write_results(
    file: Path, results: Sequence[Mapping[str, Any]], machine: Mapping[str, Any] | None = None, **about: Any
) -> None:
    """Write the rows of a benchmark, what is common to them, and a machine, by default this one."""
    write_json(file, {**about, "results": results, "machine": environment() if machine is None else machine})


def earlier_rows(file: Path) -> list[dict[str, Any]]:
    """Return the rows that a file has, with their machine if it was another one."""
    if not file.exists():
        return []
    content = read_json(file)
    other = {} if content["machine"] == environment() else {"machine": content["machine"]}
    return [{**other, **row} for row in content["results"]]


def show(row: Mapping[str, Any]) -> None:
    """Print the figures of a row as soon as they are known."""
    values = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in row.items()}
    print(", ".join(f"{name}: {value}" for name, value in values.items()), file=sys.stderr, flush=True)
