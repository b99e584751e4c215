"""Every benchmark runs with --quick and writes its JSON; the figure of error over budget is drawn from run folders."""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(BENCHMARKS.glob("[!_]*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_benchmark_runs(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    done = subprocess.run(
        [sys.executable, str(script), "--quick", "--json", str(out)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert result["results"] and all(row["seconds"] > 0 for row in result["results"])
    assert result["machine"]["packages"]["torch"]


def test_there_are_benchmarks() -> None:
    assert SCRIPTS


def test_quick_figures_replace_no_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    parser = importlib.import_module("_arguments").Parser("A benchmark.")
    results = str(tmp_path / "results.json")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", default=results)
    assert parser.parse_args([]).json == results
    assert parser.parse_args(["--quick", "--json", "mine.json"]).json == "mine.json"
    quick = parser.parse_args(["--quick"]).json
    assert quick.name == "results.json" and quick.parent != tmp_path
    quick.parent.rmdir()


@pytest.fixture
def budget_figure(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """The script with these arguments, in this process."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    script = importlib.import_module("_budget_figure")

    def call(*arguments: object) -> None:
        monkeypatch.setattr(sys, "argv", ["_budget_figure.py", *map(str, arguments)])
        script.main()

    return call


def write_run(folder: Path, encoder: str | None, epochs: int, seed: int, error: float | None, **settings: Any) -> Path:
    """A run folder as `tg-lpe train` leaves it; without an error, one that was stopped."""
    folder.mkdir()
    config = {
        "layout": 2,
        "command": "train",
        "encoder": None if encoder is None else {"class": encoder},
        "model": {"class": "GraphTransformer", "hidden_channels": 64, **settings},
        "loop": {"epochs": epochs, "seed": seed},
        "data": {"source": "zinc12k"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    if error is not None:
        result = {"test_mae": error, "test_mae_relabelled": error, "val_mae": error + 0.02}
        (folder / "result.json").write_text(json.dumps(result))
    return folder


def test_error_over_budget(tmp_path: Path, budget_figure: Callable[..., None]) -> None:
    runs = [
        write_run(tmp_path / "a", "RandomWalk", 100, 0, 0.11),
        write_run(tmp_path / "b", "RandomWalk", 15, 0, 0.2),
        write_run(tmp_path / "c", "RandomWalk", 15, 1, 0.3),
        write_run(tmp_path / "d", "GramTransformer", 15, 0, 0.1),
        write_run(tmp_path / "e", None, 15, 0, 0.4),
        write_run(tmp_path / "f", None, 100, 0, None),
    ]
    out = tmp_path / "budget.json"
    budget_figure(*runs, "--json", out)
    rows = json.loads(out.read_text())["results"]
    assert [(row["row"], row["epochs"], row["seeds"]) for row in rows] == [
        ("GramTransformer", 15, [0]),
        ("none", 15, [0]),
        ("random-walk", 15, [0, 1]),
        ("random-walk", 100, [0]),
    ]
    assert rows[2]["test_mae"] == pytest.approx(0.25) and rows[2]["val_mae_std"] == pytest.approx(0.005**0.5)
    assert rows[3]["test_mae_std"] is None and rows[2]["test_mae_by_seed"] == [0.2, 0.3]
    assert (tmp_path / "budget.png").read_bytes().startswith(b"\x89PNG")

    other = write_run(tmp_path / "g", "RandomWalk", 40, 0, 0.15, num_layers=2)
    with pytest.raises(ValueError, match="differ in more than encoder, epochs and seed"):
        budget_figure(*runs, other, "--json", out)
    with pytest.raises(ValueError, match="are the same run"):
        budget_figure(*runs, runs[0], "--json", out)
    with pytest.raises(SystemExit, match="none of these runs is complete"):
        budget_figure(runs[-1], "--json", out)
    assert json.loads(out.read_text())["results"] == rows

    budget_figure(other, "--json", out, "--keep")
    kept = json.loads(out.read_text())["results"]
    assert [row for row in kept if row["epochs"] != 40] == rows
    assert [(row["row"], row["epochs"]) for row in kept][2:] == [("random-walk", n) for n in (15, 40, 100)]


def test_other_probes_or_pretraining_are_other_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of complete runs are not read again for an encoder that starts differently."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    less_computation = importlib.import_module("less_computation")
    folders: list[set[Path]] = []
    monkeypatch.setattr(less_computation, "run", lambda command, source, out, *_: not folders[-1].add(out))
    splits = argparse.Namespace(test=None)
    monkeypatch.setattr(less_computation, "load_molecules", lambda *_, **__: splits)
    for probes, epochs, layers in (("learned", 15, 1), ("features", 15, 1), ("learned", 3, 1), ("learned", 15, 2)):
        folders.append(set())
        chosen = {"data": None, "epochs": 30, "pretrain_epochs": epochs, "probes": probes, "seeds": [0], "threads": 1}
        chosen |= {"hidden_channels": 16, "num_layers": layers, "rows": None}
        with pytest.raises(SystemExit, match="no run"):
            less_computation.compare(argparse.Namespace(**chosen, out=tmp_path, sizes=[(3, 8)], quick=False))
    assert all(folders)
    assert not any(folders[0] & other for other in folders[1:])
