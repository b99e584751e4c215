"""The README: its figures come from files under benchmarks/results, and its Python runs."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pages import README, ROOT, no_downloads, python_blocks, run_blocks

__all__ = ["no_downloads"]


def test_tables_are_those_of_the_results() -> None:
    script = [sys.executable, str(ROOT / "benchmarks" / "_readme.py"), "--check"]
    assert subprocess.run(script, check=False).returncode == 0, "run benchmarks/_readme.py"


@pytest.mark.usefixtures("no_downloads")
def test_python_runs() -> None:
    pytest.importorskip("rdkit")
    names = run_blocks(python_blocks(README), "readme")
    assert names["data"].pe.shape == (6, 16)
    assert names["model"].predict(names["molecules"]).outside == ()
