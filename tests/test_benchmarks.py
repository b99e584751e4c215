"""Every benchmark runs with --quick and writes its JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parent.parent / "benchmarks").glob("[!_]*.py"))


@pytest.mark.slow
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
