"""Pictures of test predictions agree with the csv files of the run."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from tg_lpe.app.report import compare, read_run, write_report
from tg_lpe.app.report.predictions import Scored, scored
from tg_lpe.app.training import TrainConfig, build_model, task_for, train
from tg_lpe.data import GraphSplits

NAN = math.nan


def run(folder: Path, name: str, label: Any, seed: int = 0, **target: Any) -> Path:
    """Train for an epoch on rings, whose labels are a function of their size, and return the folder."""
    generator = torch.Generator().manual_seed(seed)

    def rings(number: int) -> list[Data]:
        graphs = []
        for size in torch.randint(3, 12, (number,), generator=generator).tolist():
            node = torch.arange(size)
            x, ends = torch.full((size, 1), size / 10), torch.stack([node, node.roll(1)])
            graphs.append(Data(x=x, edge_index=torch.cat([ends, ends.flip(0)], 1), y=torch.tensor([label(size)])))
        return graphs

    splits = GraphSplits.of(rings(30), rings(40), rings(60), level="graph", columns=target.pop("columns", ("a",)))
    splits = replace(splits, target=replace(splits.target, **target))
    task = task_for(splits, name)
    model = build_model(splits.spec, task, None, seed=seed, hidden_channels=8, num_layers=1)
    train(model, splits, task, TrainConfig(epochs=1, seed=seed, precision="float32"), folder=folder, progress=False)
    return folder


def cells(path: Path) -> np.ndarray[Any, Any]:
    """Numbers of ``predictions_test.csv``, without its row numbers."""
    rows = list(csv.reader((path / "predictions_test.csv").open(encoding="utf-8")))[1:]
    return np.array([[float(cell or "nan") for cell in row[1:]] for row in rows])


def page(tmp_path: Path, *folders: Path) -> str:
    pytest.importorskip("matplotlib")
    return write_report(folders, tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_regression_has_parity_and_the_coverage_of_its_intervals(tmp_path: Path) -> None:
    noise = torch.Generator().manual_seed(0)  # without, many errors are the width itself, give or take rounding
    folder = run(tmp_path / "run", "regression", lambda size: size**1.5 + float(torch.rand((), generator=noise)))
    (one,) = scored(compare([read_run(folder)])[0])
    labels, values = cells(folder).T
    np.testing.assert_allclose(one.scores, values)
    np.testing.assert_allclose(one.labels, labels)
    validation = np.loadtxt(folder / "predictions_val.csv", delimiter=",", skiprows=1)
    errors = np.sort(np.abs(validation[:, 1] - validation[:, 2]))
    assert one.width == pytest.approx(errors[math.ceil(41 * 0.9) - 1], rel=1e-5)
    held = 100 * np.mean(np.abs(labels - values) <= one.width * (1 + 1e-6))  # graphs of one size are alike
    r2 = 1 - np.mean((labels - values) ** 2) / labels.var()
    assert one.remarks[0] == f"R² {r2:.3f}" and one.remarks[-1].endswith(f"holds {held:.1f} %")
    html = page(tmp_path, folder)
    assert "predictions over labels" in html and f"holds {held:.1f} %" in html


def test_three_panels_leave_no_fourth_of_empty_axes() -> None:
    pytest.importorskip("matplotlib")
    from tg_lpe.app.report.figures import parity_svg

    values = torch.arange(30.0)
    one = Scored("a", "#0072b2", ["R² 1", "Spearman 1"], values, values, 1.0)
    assert [parity_svg([one] * number, ["y"], "three").count("<clipPath") for number in (2, 3)] == [2, 3]


def test_a_row_a_panel_or_a_column_of_the_best_row(tmp_path: Path) -> None:
    """Labels that are missing are left out; a folder without predictions has no panel."""
    one = [run(tmp_path / f"run-{seed}", "regression", float, seed) for seed in range(2)]
    (one[1] / "predictions_test.csv").unlink()
    assert len(scored(compare([read_run(folder) for folder in one])[0])) == 1
    two = run(tmp_path / "two", "regression", lambda n: [n, 2.0 * n if n % 2 else NAN], columns=("a", "b"))
    drawn = scored(compare([read_run(two)])[0])
    known = cells(two)[~np.isnan(cells(two)[:, 1])]
    assert [one.label for one in drawn] == ["a", "b"] and len(drawn[1].labels) == len(known) < 60
    np.testing.assert_allclose(drawn[1].labels, known[:, 1])
    (two / "predictions_val.csv").unlink()
    assert all(one.width == math.inf for one in scored(compare([read_run(two)])[0]))
    assert page(tmp_path, two).count("<figure>") == 3


def test_probabilities_are_not_drawn(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", "binary", lambda size: float(size > 6))
    assert scored(compare([read_run(folder)])[0]) == [] and page(tmp_path, folder).count("<figure>") == 2
