"""Intervals calibrated on validation: a plain loop over the csv files of runs, and the coverage that is promised."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from tg_lpe.app.cli import main
from tg_lpe.app.prediction import load, load_many
from tg_lpe.app.prediction.intervals import Intervals
from tg_lpe.app.training import TrainConfig, build_model, task_for, train
from tg_lpe.app.training.outputs import Outputs
from tg_lpe.data import GraphSplits

NAN = math.nan


def outputs(values: torch.Tensor, labels: torch.Tensor) -> Outputs:
    return Outputs(tuple(range(len(labels))), ("",) * len(labels), labels, values)


@pytest.mark.parametrize("models", [1, 3])
@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_the_share_of_new_labels_is_the_coverage(models: int, coverage: float) -> None:
    """Over many draws of 19 validation labels the mean share is ceil(20 c) / 20, to the standard error of the draws."""
    generator = torch.Generator().manual_seed(0)
    shares = []
    for _ in range(400):
        parts = []
        for number in (19, 200):
            scale = torch.rand(number, 1, generator=generator) + 0.1
            truth = torch.randn(number, 1, generator=generator)
            of_each = [truth + scale * torch.randn(number, 1, generator=generator) for _ in range(models)]
            parts.append([outputs(values, truth) for values in of_each])
        shares.append(Intervals.of(*parts, coverage).reached[0])
    assert np.mean(shares) == pytest.approx(
        math.ceil(20 * coverage) / 20, abs=4 * np.std(shares) / 20 + 0.01 * (models > 1)
    )


def test_models_that_agree_have_the_interval_of_one() -> None:
    generator = torch.Generator().manual_seed(0)
    values, labels = (torch.randn(30, 1, generator=generator) for _ in range(2))
    one, both = ([outputs(values, labels)] * models for models in (1, 2))
    alone, together = (Intervals.of(models, models, 0.8).around(values, torch.zeros(30, 1)) for models in (one, both))
    torch.testing.assert_close(torch.stack(together), torch.stack(alone))


def test_missing_labels_and_too_few_of_them() -> None:
    values, labels = torch.zeros(12, 2), torch.arange(12.0).repeat(2, 1).T.clone()
    labels[3:, 1] = NAN
    intervals = Intervals.of([outputs(values, labels)], [outputs(values, labels * NAN)], 0.9)
    assert intervals.num_labels == (12, 3) and all(map(math.isnan, intervals.reached))
    assert intervals.width.tolist() == [11.0, math.inf]  # ceil(13 * 0.9) = 12; ceil(4 * 0.9) = 4 of 3
    low, high = intervals.around(torch.ones(1, 2))
    assert low.tolist() == [[-10.0, -math.inf]] and high.tolist() == [[12.0, math.inf]]
    tiny = Intervals.of([outputs(values, labels)], [outputs(values, labels)], 1e-12)
    assert tiny.width.tolist() == [0.0, 0.0], "no rank is less than 1"
    nine = [outputs(values[:9], labels[:9])]
    assert Intervals.of(nine, nine, 0.9).width[0] == 8.0  # rank 9 of 9, though 10 * 0.9 may round up


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three seeds on molecules of one split."""
    pytest.importorskip("rdkit")
    folder = tmp_path_factory.mktemp("intervals")
    lines = [f"{'C' * n}{end},{n + len(end) / 3}" for n in range(1, 25) for end in ("O", "N", "OC", "C=O")]
    (folder / "in.csv").write_text("\n".join(["smiles,y", *lines]) + "\n", encoding="utf-8")
    options = "--target y --task regression --epochs 1 --model.hidden_channels 8 --model.num_layers 1 --encoder none"
    common = ["train", str(folder / "in.csv"), "--cache", str(folder / "cache"), "--quiet", *options.split()]
    assert main([*common, "--seeds", "0", "1", "2", "--out", str(folder / "runs")]) == 0
    assert main([*common, "--seed", "5", "--out", str(folder / "other")]) == 0
    return [*(folder / "runs" / f"s{seed}" for seed in range(3)), folder / "other"]


@pytest.mark.parametrize("number", [1, 3])
def test_on_the_command_line(runs: list[Path], number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, names = tmp_path / "out.csv", [str(run) for run in runs[:number]]
    assert main(["predict", *names, str(runs[0].parents[1] / "in.csv"), str(out), "--quiet", "--coverage", "0.8"]) == 0
    said = capsys.readouterr().out
    kept = {}
    for part in ("val", "test"):
        tables = [list(csv.DictReader((run / f"predictions_{part}.csv").open())) for run in runs[:number]]
        kept[part] = np.array([[float(row["predicted_y"]) for row in rows] for rows in tables])
        kept[f"{part} labels"] = np.array([float(row["y"]) for row in tables[0]])
    scale = {part: 1.0 if number == 1 else kept[part].std(0, ddof=1) for part in ("val", "test")}
    floor = 0.0 if number == 1 else np.sort(scale["val"])[(len(scale["val"]) - 1) // 2]
    scores = np.abs(kept["val"].mean(0) - kept["val labels"]) / (scale["val"] + floor)
    width = np.sort(scores)[math.ceil((len(scores) + 1) * 0.8) - 1]
    errors = np.abs(kept["test"].mean(0) - kept["test labels"])
    held = 100 * np.mean(errors <= width * (scale["test"] + floor))
    assert f"80 % intervals from {len(scores)} validation labels; they contain {held:.1f} %" in said
    for row in csv.DictReader(out.open(encoding="utf-8")):
        middle, spread = float(row["predicted_y"]), float(row.get("y_spread") or 1.0)
        half = width * (spread + floor)
        assert float(row["y_low"]) == pytest.approx(middle - half, rel=1e-3)
        assert float(row["y_high"]) == pytest.approx(middle + half, rel=1e-3)
    assert "too few validation labels" not in said
    assert main(["predict", *names, str(runs[0].parents[1] / "in.csv"), str(out), "--quiet", "--coverage", "0.99"]) == 0
    assert "too few validation labels for this share" in capsys.readouterr().out


def test_in_python_and_where_there_is_no_interval(runs: list[Path], tmp_path: Path) -> None:
    predictor = load(runs[0])
    got = predictor.predict(["CCO", "CCCN"], coverage=0.8)
    assert got.interval_columns == ("y_low", "y_high") and bool(
        (got.low < got.values).all() & (got.values < got.high).all()
    )
    assert predictor.predict(["CCO"]).low is None
    if frame := pytest.importorskip("pandas"):
        assert isinstance(got.to_frame(), frame.DataFrame) and list(got.to_frame()["y_low"]) == got.low[:, 0].tolist()
    with pytest.raises(ValueError, match="one split"):
        load_many([runs[0], runs[3]]).predict(["CCO"], coverage=0.8)
    for wrong in (0, 1, -0.5, 90):
        with pytest.raises(ValueError, match="coverage"):
            predictor.predict(["CCO"], coverage=wrong)
    predictor.save(tmp_path / "saved")
    with pytest.raises(ValueError, match="coverage"):
        load(tmp_path / "saved").predict(["CCO"], coverage=0.8)


def test_probabilities_have_no_interval(tmp_path: Path) -> None:
    graphs = [
        Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([n % 2.0])) for n in range(8)
    ]
    splits = GraphSplits.of(graphs, graphs, graphs, level="graph")
    task = task_for(splits, "binary")
    model = build_model(splits.spec, task, None, hidden_channels=8, num_layers=1)
    train(model, splits, task, TrainConfig(epochs=1), folder=tmp_path, progress=False)
    with pytest.raises(ValueError, match=r"coverage=0\.9.*binary"):
        load(tmp_path).predict(graphs, coverage=0.9)
