"""The README: its figures come from files under benchmarks/results, and its Python runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from children import run_python
from pages import README, ROOT, no_downloads, python_blocks, run_blocks

__all__ = ["no_downloads"]


def test_tables_are_those_of_the_results(tmp_path: Path) -> None:
    run_python(str(ROOT / "benchmarks" / "_readme.py"), "--check", said=tmp_path / "said")  # run it without --check


@pytest.mark.usefixtures("no_downloads")
def test_python_runs() -> None:
    pytest.importorskip("rdkit")
    names = run_blocks(python_blocks(README), "readme")
    assert names["batch"].pe.shape == (30, 16)  # all four rings
    assert names["model"].predict(names["molecules"]).outside == ()


def test_the_better_figure_of_a_column_of_the_grid_has_the_greener_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    figures = pytest.importorskip("_figures")
    shades = []
    monkeypatch.setattr(figures, "draw_cell", lambda axes, cell, lead, *place: shades.append((cell, lead)))
    monkeypatch.setattr(figures, "save", lambda *figure: None)
    figures.draw_grid(ROOT)
    assert len({cell["column"] for cell, _ in shades}) >= 15
    for cell, lead in shades:
        for other, other_lead in shades:
            sign = 1 if cell["direction"] == "max" else -1
            if cell["column"] == other["column"] and sign * (cell["test"]["mean"] - other["test"]["mean"]) > 0:
                assert lead > other_lead, (cell["row"], other["row"], cell["column"])
