"""TensorBoard and Weights & Biases get the rows of metrics.jsonl and the result: fakes record the calls."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from tg_lpe.app.cli import main
from tg_lpe.app.training import TrainConfig, build_model, task_for, train
from tg_lpe.app.training.loggers import LOGGERS
from tg_lpe.app.training.state import read_metrics
from tg_lpe.checkpoints.files import read_json
from tg_lpe.data import GraphSplits

Rows = dict[int, dict[str, float]]


def run(folder: Path | None, logger: str, epochs: int = 3, **options: Any) -> dict[str, Any]:
    """Train on pairs of nodes with two targets."""
    edge_index = torch.tensor([[0, 1], [1, 0]])
    graphs = [
        Data(x=torch.full((2, 1), n / 8), edge_index=edge_index, y=torch.tensor([[n, 8.0 - n]])) for n in range(8)
    ]
    splits = GraphSplits.of(graphs, graphs, graphs, level="graph", columns=("a", "b"))
    task = task_for(splits, "regression")
    model = build_model(splits.spec, task, None, hidden_channels=8, num_layers=1)
    config = TrainConfig(epochs=epochs, schedule="constant")
    return train(model, splits, task, config, folder=folder, progress=False, logger=logger, **options)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[Rows, dict[str, Any]]]:
    """Replace a logger's module by a fake that records its options and the rows by step."""

    def fake(name: str) -> tuple[Rows, dict[str, Any]]:
        rows: Rows = {}
        opened: dict[str, Any] = {"open": 0}

        class Fake:
            def __init__(self, *where: Any, **options: Any) -> None:
                opened.update(options, where=where)

            def __enter__(self) -> Fake:
                opened["open"] += 1
                return self

            def __exit__(self, *error: object) -> None:
                opened["open"] -= 1

            def add_scalar(self, key: str, value: float, step: int) -> None:
                self.log({key: value}, step)

            def log(self, row: dict[str, float], step: int) -> None:
                known = rows.setdefault(step, {})
                assert not (set(row) & set(known)) - {"epoch"}, "a second value at one step is a point beside the curve"
                known.update(row)

        module = ModuleType(name)
        module.SummaryWriter = module.init = Fake  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, LOGGERS[name], module)
        return rows, opened

    return fake


@pytest.mark.parametrize("name", LOGGERS)
def test_rows_and_result_are_logged_at_their_epochs(tmp_path: Path, recorded: Any, name: str) -> None:
    rows, opened = recorded(name)
    result = run(tmp_path / "run", name)
    metrics = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert list(rows) == [1, 2, 3] and opened["open"] == 0
    for row in metrics:
        columns = {f"val_mae_columns/{column}": value for column, value in row["val_mae_columns"].items()}
        expected = {key: value for key, value in {**row, **columns}.items() if not isinstance(value, dict)}
        assert expected.items() <= rows[row["epoch"]].items()
    assert rows[3]["test_scaled_mae"] == result["test_scaled_mae"] and "test_scaled_mae" not in rows[2]
    assert all(isinstance(value, int | float) for row in rows.values() for value in row.values())
    with pytest.raises(ValueError, match=rf"logger='{name}'.*folder"):
        run(None, name)
    if name == "tensorboard":
        assert opened["where"] == (str(tmp_path / "run"),)
    else:
        settings = read_json(tmp_path / "run" / "config.json")
        assert (
            opened["name"] == "run" and opened["config"]["loop"] == settings["loop"] and "data" not in opened["config"]
        )


def test_a_run_that_goes_on_logs_its_earlier_epochs(
    tmp_path: Path, recorded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tg_lpe.app.training import JointTraining

    recorded("wandb")
    validate = JointTraining.validate

    def stop(self: JointTraining) -> dict[str, Any]:
        if self.epoch == 3:
            raise KeyboardInterrupt
        return validate(self)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(JointTraining, "validate", stop)
        run(tmp_path, "wandb")
    rows, opened = recorded("wandb")
    run(tmp_path, "wandb", resume=True)
    assert list(rows) == [1, 2, 3] and opened["open"] == 0


def test_what_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="logger"):
        run(tmp_path, "csv")
    for name in LOGGERS:
        if importlib.util.find_spec(name) is None:
            with pytest.raises(ModuleNotFoundError, match=f"pip install {name}"):
                run(tmp_path, name)
            assert main(["train", "nowhere.csv", "--logger", name]) == 1
            assert f"pip install {name}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_itself(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(tmp_path, "tensorboard")
    events = EventAccumulator(str(tmp_path)).Reload()
    values = [event.value for event in events.Scalars("val_scaled_mae")]
    assert values == pytest.approx([row["val_scaled_mae"] for row in read_metrics(tmp_path / "metrics.jsonl")])
