"""Runs the Python of a Markdown page and checks the results that its comments state."""

from __future__ import annotations

import ast
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, InMemoryDataset

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCS = sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts)

BLOCK = re.compile(r"^```python\n(.*?)^```", flags=re.S | re.M)
SHAPE = re.compile(r"#\s*(\[\d+(?:, \d+)*\])")
NUMBERS = re.compile(r"#\s*(-?\d+\.\d+(?:, -?\d+\.\d+)*)")


def python_blocks(page: Path) -> list[str]:
    """The Python of a page, block by block."""
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def run_blocks(blocks: list[str], name: str) -> dict[str, Any]:
    """Run blocks one after the other in one module, and check each claim, see :func:`checked`.

    Returns:
        The names that they define.
    """
    module = types.ModuleType(name)  # classes name the module that defines them
    sys.modules[name] = module
    try:
        for number, block in enumerate(blocks, start=1):
            exec(compile(checked(block), f"{name}, block {number}", "exec"), module.__dict__)
    finally:
        del sys.modules[name]
    return module.__dict__


def checked(block: str) -> ast.Module:
    """A block in which claims are asserted: an expression on a line that ends in ``# True``, ``# [6, 8]``, a shape, or
    ``# 1.27, -0.50``, values in rows."""
    tree, lines = ast.parse(block), block.splitlines()
    for place, statement in enumerate(tree.body):
        if not isinstance(statement, ast.Expr):
            continue
        line = lines[statement.end_lineno - 1]
        text = ast.unparse(statement.value)
        shape, numbers = SHAPE.search(line), NUMBERS.search(line)
        if re.search(r"#\s*True\b", line):
            claim = text
        elif shape is not None:
            claim = f"list(({text}).shape) == {shape[1]}"
        elif numbers is not None:
            decimals = len(numbers[1].rpartition(".")[2])
            claim = f"[round(float(row), {decimals}) for row in ({text})] == [{numbers[1]}]"
        else:
            continue
        assertion = ast.parse(f"assert {claim}, {f'{line.strip()} does not hold'!r}").body[0]
        tree.body[place] = ast.fix_missing_locations(ast.copy_location(assertion, statement))
    return tree


class Rings(InMemoryDataset):
    """Rings of 6 to 9 nodes with types of nodes and edges: replacements for data sets that pages download."""

    def __init__(
        self,
        root: str,
        subset: bool = False,
        split: str = "train",
        transform: Callable[[Data], Data] | None = None,
        pre_transform: Callable[[Data], Data] | None = None,
    ) -> None:
        super().__init__(None, transform)
        graphs = [ring(size) for size in range(6, 10)]
        self.data, self.slices = self.collate(
            [graph if pre_transform is None else pre_transform(graph) for graph in graphs]
        )


def ring(size: int) -> Data:
    """A ring, each edge in both directions."""
    tail = torch.arange(size)
    there = torch.stack([tail, (tail + 1) % size])
    return Data(
        x=(tail % 3).unsqueeze(-1),
        edge_index=torch.cat([there, there.flip(0)], dim=1),
        edge_attr=torch.ones(2 * size, dtype=torch.int64),
        y=torch.ones(1),
    )


@pytest.fixture
def no_downloads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Rings in the place of ZINC, and an empty folder to work in."""
    monkeypatch.setattr("torch_geometric.datasets.ZINC", Rings)
    monkeypatch.chdir(tmp_path)
