"""Files on disk between two epochs: moments of the optimizer, lines of metrics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from helpers import normal
from torch import nn

from tg_lpe.app.training.state import MetricsLog, pack_optimizer, read_metrics, unpack_optimizer
from tg_lpe.checkpoints.files import load_tensors, save_tensors


def make(seed: int) -> tuple[nn.Module, torch.optim.AdamW]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    groups = [
        {"params": model[0].parameters(), "weight_decay": 0.1},
        {"params": model[2].parameters(), "weight_decay": 0.0},
    ]
    return model, torch.optim.AdamW(groups, lr=1e-2)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    optimizer.zero_grad()
    model(normal(5, 3, seed=seed)).square().mean().backward()
    optimizer.step()


def test_an_optimizer_goes_on_where_it_was(tmp_path: Path) -> None:
    model, optimizer = make(0)
    for seed in range(3):
        step(model, optimizer, seed)
    save_tensors(tmp_path / "state", {**pack_optimizer(optimizer), "model.weight": torch.ones(1)})

    twin, restored = make(1)
    twin.load_state_dict(model.state_dict())
    unpack_optimizer(restored, load_tensors(tmp_path / "state")[0])
    fresh_model, fresh = make(1)
    fresh_model.load_state_dict(model.state_dict())
    for each, its_optimizer in ((model, optimizer), (twin, restored), (fresh_model, fresh)):
        step(each, its_optimizer, 9)
    expected, got, without = (torch.cat([p.flatten() for p in m.parameters()]) for m in (model, twin, fresh_model))
    assert torch.equal(got, expected)
    assert not torch.equal(without, expected), "the moments matter"
    assert [g["weight_decay"] for g in restored.param_groups] == [0.1, 0.0]


def test_an_optimizer_before_its_first_step() -> None:
    _, optimizer = make(0)
    assert pack_optimizer(optimizer) == {}
    unpack_optimizer(optimizer, {})
    assert optimizer.state_dict()["state"] == {}


def test_metrics_lines(tmp_path: Path) -> None:
    """Lines after the checkpoint are dropped."""
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    assert path.read_text() == ""
    for epoch in (1, 2, 3):
        log.append({"epoch": epoch, "val_mae": 1 / epoch})
        assert read_metrics(path) == log.rows
    assert [json.loads(line)["epoch"] for line in path.read_text().splitlines()] == [1, 2, 3]
    assert MetricsLog(path, keep=2).rows == read_metrics(path) == log.rows[:2]
    assert MetricsLog(path).rows == [] == read_metrics(path)
    assert sorted(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("cut", [1, 10, 20], ids=lambda n: f"{n} bytes lost")
def test_a_torn_last_line_is_passed_over(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for epoch in (1, 2, 3):
        log.append({"epoch": epoch, "val_mae": 0.25})
    whole = path.read_bytes()
    path.write_bytes(whole[: -1 - cut])  # the newline and some more
    assert [row["epoch"] for row in read_metrics(path)] == [1, 2]
    again = MetricsLog(path, keep=2)
    again.append({"epoch": 3, "val_mae": 0.25})
    assert path.read_bytes() == whole
