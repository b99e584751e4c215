"""Every benchmark runs with --quick and writes its JSON, and quick runs replace no results."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
from children import exit_status, start_python

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(BENCHMARKS.glob("[!_]*.py"))


@pytest.mark.parametrize(
    "words",
    [*([script] for script in SCRIPTS), [BENCHMARKS / "molecules.py", "qm9"]],
    ids=lambda words: Path(words[-1]).stem,
)
def test_benchmark_runs(words: list[str | Path], tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    process = start_python(*map(str, words), "--quick", "--json", str(out), said=tmp_path / "said")
    status, said = exit_status(process, 600), (tmp_path / "said").read_text(encoding="utf-8")
    if "pip install -r" in said:
        pytest.skip(said)
    assert status == 0, said
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


def test_earlier_rows_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    runs, results = importlib.import_module("_runs"), importlib.import_module("_results")
    file = tmp_path / "result.json"
    assert runs.with_earlier_rows(file, [{"row": "a", "mae": 1}], lambda row: row["row"]) == [{"row": "a", "mae": 1}]
    results.write_results(file, [{"row": "a", "mae": 2}, {"row": "b", "mae": 3}], {"processor": "another"})
    kept = {"row": "b", "mae": 3, "machine": {"processor": "another"}}
    found = runs.with_earlier_rows(file, [{"row": "a", "mae": 1}], lambda row: row["row"])
    assert found == [kept, {"row": "a", "mae": 1}]
