"""The README's figures are those of the files under benchmarks/results, and its Python runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks" / "results"


def results(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def tables() -> dict[str, list[list[str]]]:
    """Rows of cells of each table, by the results file that the comment before it names."""
    found = {}
    for name, table in re.findall(r"<!-- benchmarks/results/(\w+)\.json -->\n((?:\|.*\n)+)", README):
        lines = table.splitlines()[2:]
        found[name] = [[cell.replace("*", "").strip(" `") for cell in line.strip("|").split("|")] for line in lines]
    return found


def test_every_results_file_is_in_the_readme() -> None:
    assert {path.stem for path in RESULTS.glob("*.json")} == set(tables())


@pytest.mark.parametrize("name", sorted({p.stem for p in RESULTS.glob("*.json")} - {"throughput", "training_step"}))
def test_accuracies(name: str) -> None:
    runs = {run["settings"]["pe"]: run for run in results(name)["runs"]}
    rows = {row[0].split(",")[0]: row for row in tables()[name]}
    assert set(rows) == set(runs)
    for pe, run in runs.items():
        assert run["finished"]
        test_mae, val_mae, parameters = rows[pe][1:4]
        assert test_mae == f"{run['result']['test_mae']:.3f}"
        assert val_mae == f"{run['result']['val_mae']:.3f}"
        assert int(parameters.replace(",", "")) == run["result"]["num_parameters"]


def test_throughput() -> None:
    measured = {row["what"]: row for row in results("throughput")["results"]}
    rows = {row[0]: row for row in tables()["throughput"]}
    assert set(rows) == set(measured)
    for what, row in rows.items():
        assert row[1] == f"{measured[what]['graphs_per_second']:,.0f}"
        assert row[2] == f"{measured[what]['ratio']:.1f}"


def test_training_step() -> None:
    measured = {row["pe"]: row for row in results("training_step")["results"]}
    rows = {row[0]: row for row in tables()["training_step"]}
    assert set(rows) == set(measured)
    for pe, row in rows.items():
        assert row[1] == f"{measured[pe]['graphs_per_second']:,.0f}"
        assert row[2] == f"{measured[pe]['ratio_to_none']:.3f}"


def test_pictures_are_there() -> None:
    for path in re.findall(r"!\[[^]]*\]\(([^)]+)\)", README):
        assert (ROOT / path).is_file(), path


def test_python_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two examples, one after the other, with a stand-in for the data set that they download."""
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
    assert len(blocks) == 2
    for block in blocks:
        exec(block, names)
    assert names["dataset"][0].linear_transformer_pe.shape == (6, 8)
    assert names["prediction"].shape == (2, 1)
