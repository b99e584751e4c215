"""Files on disk between two epochs: moments of the optimizer, lines of metrics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tg_lpe.app.training.state import MetricsLog, read_metrics


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
