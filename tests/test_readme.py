"""The README's figures are those of the files under benchmarks/results, and its Python runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_tables_are_those_of_the_results() -> None:
    script = [sys.executable, str(ROOT / "benchmarks" / "_readme.py"), "--check"]
    assert subprocess.run(script, check=False).returncode == 0, "run benchmarks/_readme.py"


def test_every_results_file_is_in_the_readme() -> None:
    files = {path.stem for path in (ROOT / "benchmarks" / "results").glob("*.json")}
    assert files == set(re.findall(r"<!-- benchmarks/results/(\w+)\.json -->\n\|", README))


def test_pictures_are_there() -> None:
    for path in re.findall(r"!\[[^]]*\]\(([^)]+)\)", README):
        assert (ROOT / path).is_file(), path


def test_python_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples, one after the other, with a stand-in for the data set that the first downloads."""
    ring = Data(
        x=torch.zeros(6, 1, dtype=torch.int64),
        edge_index=torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]]),
        edge_attr=torch.ones(6, dtype=torch.int64),
    )

    def zinc(root: str, subset: bool, pre_transform: Any) -> list[Data]:
        return [pre_transform(ring), pre_transform(ring)]

    monkeypatch.setattr("torch_geometric.datasets.ZINC", zinc)
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.S)
    assert len(blocks) == 3
    for block in blocks:
        exec(block, names)
    assert names["dataset"][0].linear_transformer_pe.shape == (6, 8)
    assert names["prediction"].shape == (2, 1)
    resistance, potentials = names["resistance"], names["potentials"]
    assert torch.allclose(resistance[0], torch.tensor([0.0, 0.625, 0.5, 0.625], dtype=torch.float64))
    diagonal = potentials.diagonal()
    assert torch.allclose(diagonal[0] + diagonal - 2 * potentials[0], resistance[0], atol=1e-5)
