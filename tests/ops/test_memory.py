"""The C++ part stays within its memory, whatever its callers pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from children import run_python

TESTS = Path(__file__).parent.parent
SANITIZE = TESTS / "sanitize.py"


def test_sanitizers_are_skipped_where_the_compiler_has_none() -> None:
    command = [sys.executable, str(SANITIZE)]
    out = subprocess.run(command, env={**os.environ, "CXX": "echo"}, capture_output=True, text=True)
    assert out.returncode == 0 and out.stdout.count("skipped") == 2, out.stderr


@pytest.mark.parametrize("options", [[], ["--torch"]], ids=["C++", "torch"])
def test_hostile_calls_of_operations_are_refused(options: list[str], tmp_path: Path) -> None:
    """In a child process, which a crash would end."""
    assert "walks" in run_python(str(TESTS / "hostile.py"), *options, said=tmp_path / "said")


def test_hostile_integers_of_checkpoints_are_refused(tmp_path: Path) -> None:
    """Some of the integers of all classes, and more of signs, whose number once corrupted the heap."""
    for chosen in (["--every", "97"], ["GramTransformer, signs", "--every", "7"]):
        run_python(str(TESTS / "hostile_arguments.py"), *chosen, said=tmp_path / "said")
