"""The C++ part stays within its memory, whatever its callers pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SANITIZE = Path(__file__).parent.parent / "sanitize.py"


def test_sanitizers_are_skipped_where_the_compiler_has_none() -> None:
    command = [sys.executable, str(SANITIZE)]
    out = subprocess.run(command, env={**os.environ, "CXX": "echo"}, capture_output=True, text=True)
    assert out.returncode == 0 and out.stdout.count("skipped") == 2, out.stderr
