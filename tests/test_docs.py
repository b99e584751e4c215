"""The documentation: every Python block runs, every table and picture is there, every page is reachable."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import DOCS, README, ROOT, checked, no_downloads, python_blocks, run_blocks

__all__ = ["no_downloads"]

CHANGELOG = ROOT / "CHANGELOG.md"
WITH_PYTHON = [page for page in DOCS if python_blocks(page)]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda path: str(path.relative_to(ROOT)))
@pytest.mark.usefixtures("no_downloads")
def test_python_of_a_page_runs(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for module, package in (
        ("datasets.molecules", "rdkit"),
        ("from ogb", "ogb"),
        ("import pyarrow", "pyarrow"),
        ("tg_lpe.graphgym", "pytorch_lightning"),
    ):
        if module in text:
            pytest.importorskip(package)
    run_blocks(python_blocks(page), f"docs_{page.stem}")


def test_claims_in_comments_are_checked() -> None:
    with pytest.raises(AssertionError, match="1 == 2"):
        exec(compile(checked("1 == 2  # True"), "page", "exec"))
    with pytest.raises(AssertionError, match="does not hold"):
        exec(compile(checked("import torch\ntorch.zeros(2, 3)  # [2, 4]: too many"), "page", "exec"))
    exec(compile(checked("import torch\ntorch.zeros(2, 3)  # [2, 3]\n1 == 1  # True"), "page", "exec"))


def test_every_results_file_has_a_table() -> None:
    files = {path.stem for path in (ROOT / "benchmarks" / "results").glob("*.json")}
    pages = "".join(page.read_text(encoding="utf-8") for page in (README, *DOCS))
    assert files == set(re.findall(r"<!-- benchmarks/results/(\w+)\.json -->\n\|", pages))


@pytest.mark.parametrize("page", [README, CHANGELOG, *DOCS], ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_headings_that_a_page_names_are_there(page: Path) -> None:
    for file, heading in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", without_code(page)):
        if "://" not in file:
            target = page.parent / file if file else page
            assert target.is_file(), f"{page.name} links to {file}"
            assert not heading or heading in headings(target), f"{page.name} links to {file}#{heading}"


def without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)


def headings(page: Path) -> set[str]:
    """What follows ``#`` in a link to each heading."""
    titles = re.findall(r"^#+ (.+)$", without_code(page), flags=re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
