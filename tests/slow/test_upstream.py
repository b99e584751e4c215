"""The patches of benchmarks: their tests fail with the installed PyTorch Geometric, and pass with the patches."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch_geometric
from pages import ROOT

PATCHES = sorted((ROOT / "benchmarks").glob("*.patch"))
VERSION = "2.8.1"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with the installed package."""
    if torch_geometric.__version__ != VERSION:
        pytest.skip(f"the patches are for PyTorch Geometric {VERSION}")
    package = Path(torch_geometric.__file__).parent
    shutil.copytree(package, tmp_path / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def apply(folder: Path, *options: str) -> None:
    subprocess.run(["git", "apply", *options, *map(str, PATCHES)], cwd=folder, check=True)


def passed(folder: Path) -> dict[str, bool]:
    """Which tests in the folder pass."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", "--rootdir", str(folder), str(folder / "test")],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith(("PASSED", "FAILED"))]
    assert lines, done.stdout + done.stderr
    return {line[1]: line[0] == "PASSED" for line in lines}


def test_patches_do_what_their_tests_say(copy: Path) -> None:
    assert len(PATCHES) == 3
    apply(copy, "--include=test/*")
    before = passed(copy)
    assert {name.partition("::")[0] for name in before} == {
        str(path.relative_to(copy)) for path in (copy / "test").rglob("*.py")
    }
    assert not any(before.values()), before
    apply(copy, "--exclude=test/*")
    after = passed(copy)
    assert before.keys() == after.keys() and all(after.values()), after
