"""Every benchmark runs with --quick and writes its JSON, and quick runs replace no results."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(BENCHMARKS.glob("[!_]*.py"))


@pytest.mark.parametrize(
    "words",
    [*([script] for script in SCRIPTS), [BENCHMARKS / "molecules.py", "qm9"]],
    ids=lambda words: Path(words[-1]).stem,
)
def test_benchmark_runs(words: list[str | Path], tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    done = subprocess.run(
        [sys.executable, *map(str, words), "--quick", "--json", str(out)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert result["results"] and all(row["seconds"] > 0 for row in result["results"])
    assert result["machine"]["packages"]["torch"]


def test_quick_figures_replace_no_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    parser = importlib.import_module("_arguments").Parser("A benchmark.", "less", "results_{part}.json")
    parser.add_argument("--part", default="a")
    results = BENCHMARKS / "results"
    assert parser.parse_args([]).json == results / "results_a.json"
    assert parser.parse_args(["--quick", "--json", "mine.json"]).json == Path("mine.json")
    quick = parser.parse_args(["--quick"]).json
    assert quick.name == "results_a.json" and quick.parent != results
    quick.parent.rmdir()
