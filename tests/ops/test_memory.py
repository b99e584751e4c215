"""The C++ part stays within its memory, whatever its callers pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
SANITIZE = TESTS / "sanitize.py"


def test_sanitizers_are_skipped_where_the_compiler_has_none() -> None:
    command = [sys.executable, str(SANITIZE)]
    out = subprocess.run(command, env={**os.environ, "CXX": "echo"}, capture_output=True, text=True)
    assert out.returncode == 0 and out.stdout.count("skipped") == 2, out.stderr


@pytest.mark.parametrize("without", ["0", "1"], ids=["", "without C++"])
def test_hostile_calls_of_operations_are_refused(without: str) -> None:
    """In a child process, which a crash would end."""
    env = {**os.environ, "PYTHONPATH": f"{TESTS.parent}:{TESTS}", "TG_LPE_NO_CPU_KERNELS": without}
    out = subprocess.run([sys.executable, str(TESTS / "hostile.py")], env=env, capture_output=True, text=True)
    assert out.returncode == 0 and "symmetric_eigenvectors" in out.stdout, out.stderr


def test_hostile_integers_of_checkpoints_are_refused() -> None:
    """Some of the integers of all classes, and more of signs, whose number once corrupted the heap."""
    for chosen in (["--every", "97"], ["GramTransformer, signs", "--every", "7"]):
        command = [sys.executable, str(TESTS / "hostile_arguments.py"), *chosen]
        env = {**os.environ, "PYTHONPATH": str(TESTS.parent)}
        out = subprocess.run(command, env=env, capture_output=True, text=True)
        assert out.returncode == 0, out.stdout + out.stderr
