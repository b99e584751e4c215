"""Fixtures of the molecule tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real molecules: `TG_LPE_DATA`, or `shared/data` beside the repository."""
    default = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    folder = Path(os.environ.get("TG_LPE_DATA") or default)
    if not folder.is_dir():
        pytest.skip(f"real molecules are not here: set TG_LPE_DATA to their folder (looked in {folder})")
    return folder


@pytest.fixture
def write_folder(tmp_path: Path) -> Callable[..., Path]:
    """Writes a folder of files from name/content pairs and returns it."""

    def write(files: dict[str, str], folder: str = "molecules") -> Path:
        target = tmp_path / folder
        target.mkdir()
        for name, content in files.items():
            (target / name).write_text(content, encoding="utf-8")
        return target

    return write
