"""The scripts in examples/ run alone."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from pages import ROOT

QUICK = {
    "pe_in_your_model": ["1"],
    "train_on_csv": ["--epochs", "1"],
    "pretrain": ["--epochs", "1", "--graphs", "40"],
    "one_large_graph": ["--nodes", "2000"],
    "own_encoder": [],
    "link_prediction": ["--nodes", "300", "--epochs", "5"],
}


def test_every_example_is_run() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(QUICK)


@pytest.mark.parametrize("name", QUICK)
def test_example_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "train_on_csv":
        pytest.importorskip("rdkit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *QUICK[name]])
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out
