"""The predictions in a run folder equal those of the loaded run, and have the right labels."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from tg_lpe.app.prediction import load
from tg_lpe.app.training import TrainConfig, build_model, task_for, train
from tg_lpe.app.training.outputs import new_names, read_outputs, write_outputs
from tg_lpe.app.training.tasks import Regression
from tg_lpe.data import GraphSplits, TargetSpec

NAN = float("nan")


def splits_of(labels: Any, columns: tuple[str, ...], **target: Any) -> GraphSplits:
    """Return splits of twelve rings each, with these labels in turn."""

    def rings() -> list[Data]:
        graphs = []
        for size in range(3, 15):
            node = torch.arange(size)
            edge_index = torch.stack([torch.cat([node, node.roll(1)]), torch.cat([node.roll(1), node])])
            label = torch.tensor([labels[size % len(labels)]]).reshape(1, -1)
            graphs.append(Data(x=torch.ones(size, 1), edge_index=edge_index, y=label))
        return graphs

    splits = GraphSplits.of(rings(), rings(), rings(), columns=columns, level="graph")
    return replace(splits, target=replace(splits.target, **target))


def test_new_names_differ_from_the_others_and_from_one_another() -> None:
    assert new_names(["line", "y", "predicted_y"], ["y"]) == ["line", "predicted_y", "predicted_predicted_y"]
    assert new_names(["line", "smiles", "line"], []) == ["line", "smiles", "predicted_line"]


@pytest.mark.parametrize(
    ("name", "splits", "header"),
    [
        ("regression", splits_of([0.5, 2.25, -1.0], ("a",)), ["row", "a", "predicted_a"]),
        (
            "regression",
            splits_of([[0.5, NAN], [2.0, 1.0], [NAN, NAN]], ("a", "row")),
            ["predicted_predicted_row", "a", "row", "predicted_a", "predicted_row"],
        ),
        ("binary", splits_of([0.0, 1.0], ("tox",), classes=(("no", "yes"),)), ["row", "tox", "tox_yes"]),
        (
            "multiclass",
            splits_of([0.0, 1.0, 2.0], ("k",), classes=(("low", "mid", "high"),)),
            ["row", "k", "k_low", "k_mid", "k_high"],
        ),
        ("multiclass", splits_of([0.0, 1.0, 2.0], ("k",)), ["row", "k", "k_0", "k_1", "k_2"]),
    ],
)
def test_predictions_are_those_of_the_run(tmp_path: Path, name: str, splits: GraphSplits, header: list[str]) -> None:
    task = task_for(splits, name)
    splits = replace(splits, smiles={"test": [f"name {number}" for number in range(12)]})
    model = build_model(splits.spec, task, None, hidden_channels=8, num_layers=1)
    train(model, splits, task, TrainConfig(epochs=1, precision="float32"), folder=tmp_path, progress=False)
    target, predictor = splits.target.to_dict(), load(tmp_path)
    for part, dataset in (("val", splits.val), ("test", splits.test)):
        labels = splits.labels(part)
        labelled = ~labels.isnan().all(1)
        path = tmp_path / f"predictions_{part}.csv"
        got = read_outputs(path, task, target)
        assert list(got.rows) == labelled.nonzero().flatten().tolist()
        torch.testing.assert_close(got.labels, labels[labelled], equal_nan=True)
        torch.testing.assert_close(got.values, predictor.predict(dataset).values[labelled], rtol=1e-5, atol=1e-5)
        assert list(got.smiles) == [f"name {row}" if part == "test" else "" for row in got.rows]
        first, *rows = csv.reader(path.open(encoding="utf-8"))
        assert [cell for cell in first if cell != "smiles"] == header and ("smiles" in first) == (part == "test")
        for row, of_row in zip(rows, labels[labelled], strict=True):
            cells = row[1 + (part == "test") :][: task.num_targets]
            assert [not cell for cell in cells] == of_row.isnan().tolist()
            if names := splits.target.classes:
                assert cells == [names[0][int(of_row)]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_file_holds_all_digits(tmp_path: Path, dtype: torch.dtype) -> None:
    numbers = torch.tensor([[-123456.789], [1.0], [0.1], [3e-7], [NAN]], dtype=dtype)
    write_outputs(tmp_path / "a.csv", Regression(), TargetSpec(("a",)).to_dict(), numbers.nan_to_num(), numbers)
    _, *rows = csv.reader((tmp_path / "a.csv").open(encoding="utf-8"))
    for row, number in zip(rows, numbers[:4, 0], strict=True):
        assert [torch.tensor(float(cell), dtype=dtype) for cell in row[1:]] == [number, number]
    assert [row[1] for row in rows[1:3]] == ["1", "0.1"]


def test_nodes_outside_of_a_mask_are_left_out(tmp_path: Path) -> None:
    edge_index = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 0, 3, 2, 5, 4]])
    data = Data(x=torch.rand(6, 2, generator=torch.Generator().manual_seed(0)), edge_index=edge_index, y=torch.rand(6))
    for part, rows in {"train": [0, 1], "val": [2, 4], "test": [3, 5]}.items():
        data[f"{part}_mask"] = torch.zeros(6, dtype=torch.bool).index_fill_(0, torch.tensor(rows), True)
    splits = GraphSplits.of_masks(data)
    task = task_for(splits, "regression")
    model = build_model(splits.spec, task, None, hidden_channels=8, num_layers=1)
    train(model, splits, task, TrainConfig(epochs=1), folder=tmp_path, progress=False)
    assert read_outputs(tmp_path / "predictions_test.csv", task, splits.target.to_dict()).rows == (3, 5)


def test_another_file_is_named(tmp_path: Path) -> None:
    path, splits = tmp_path / "predictions_val.csv", splits_of([0.5, 1.5], ("a",))
    for text in ("", "row,a,predicted_a\n0,1.5\n", "row,a,predicted_a\n0,word,1.5\n"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=r"predictions_val\.csv"):
            read_outputs(path, task_for(splits), splits.target.to_dict())
