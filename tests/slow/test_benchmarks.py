"""Every benchmark runs with --quick and writes its JSON, and quick runs replace no results."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

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


def test_earlier_seeds_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    runs = importlib.import_module("_runs")

    def summary(errors: dict[int, float], seconds: list[float], precision: str) -> dict[str, Any]:
        figures = {**runs.over_seeds("test_mae", list(errors.values())), **runs.over_seeds("seconds", seconds)}
        return {"seeds": list(errors), **figures, "precision": precision, "encoder_parameters": 3}

    newer = summary({1: 0.5}, [30.0], "bfloat16")
    older = summary({0: 0.25, 1: 9.0, 2: 0.75}, [60.0] * 3, "float32")
    for name in ("seconds_std", "seconds_by_seed"):  # files of earlier versions have neither
        del older[name]
    merged = runs.with_earlier_seeds(newer, {**older, "machine": "the first"})
    assert runs.with_earlier_seeds(newer, merged) == merged
    assert merged.pop("machine_of_earlier_seeds") == "the first"
    assert merged == summary({0: 0.25, 1: 0.5, 2: 0.75}, [60.0, 30.0, 60.0], "float32, bfloat16")
