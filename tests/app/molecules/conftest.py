"""Fixtures of the molecule tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


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
