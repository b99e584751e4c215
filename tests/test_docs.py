"""Every Python block of the docs runs, page by page."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parent.parent / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.S)
    assert blocks, f"{page.name} shows no code"
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType(f"docs_{page.stem}")  # classes of the page say where they were defined
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for number, block in enumerate(blocks, start=1):
        exec(compile(block, f"{page.name}, block {number}", "exec"), module.__dict__)
