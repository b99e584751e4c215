"""A run folder: locking, reuse, and the recorded origin of a result."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tg_lpe.app.training.run_folder import RunFolder, environment
from tg_lpe.app.training.state import MetricsLog
from tg_lpe.checkpoints.files import load_tensors, read_json

SETTINGS: dict[str, Any] = {"loop": {"lr": 0.001, "encoder_lr": 0.1}, "data": {"source": "zinc", "num_train": 10}}
CONFIG = {"layout": 2, "command": "train", **SETTINGS}


def begin(path: Path, epochs: int = 1) -> None:
    """Write the files of a run that was stopped after some epochs."""
    folder = RunFolder(path)
    assert not folder.start("train", SETTINGS, resume=False)
    log = MetricsLog(folder.metrics)
    for epoch in range(epochs):
        log.append({"epoch": epoch + 1})
        folder.save_state({"model.weight": torch.ones(2)}, {"epoch": epoch + 1})


def test_a_used_folder_needs_resume(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    with pytest.raises(ValueError, match="resume="):
        RunFolder(tmp_path / "run").start("train", SETTINGS, resume=False)
    with pytest.raises(ValueError, match="command"):
        RunFolder(tmp_path / "run").start("pretrain", SETTINGS, resume=True)
    with pytest.raises(ValueError, match="folder"):
        RunFolder("")
    folder = RunFolder(tmp_path / "run")
    assert folder.start("train", SETTINGS, resume=True)
    tensors, metadata = folder.load_state() or ({}, {})
    assert torch.equal(tensors["model.weight"], torch.ones(2)) and metadata == {"epoch": 1}


def test_resume_of_an_empty_folder_starts(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "deep" / "run")
    assert folder.start("train", SETTINGS, resume=True) is False
    assert folder.load_state() is None and read_json(folder.config) == CONFIG


def test_other_settings_are_quoted(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    other = {"loop": {"lr": 0.01, "clip": 0.5}, "data": {"source": "zinc", "num_train": 12}}
    with pytest.raises(ValueError, match="other settings") as caught:
        RunFolder(tmp_path / "run").start("train", other, resume=True)
    said = str(caught.value)
    for part in ("data.num_train was 10, is 12", "loop.clip was None, is 0.5", "loop.lr was 0.001, is 0.01"):
        assert part in said
    assert said.index("loop.clip") < said.index("loop.lr") < said.index("data.num_train") and "folder" in said
    assert "source" not in said
    assert read_json(tmp_path / "run" / "config.json") == CONFIG


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("has_metrics", [False, True])
def test_settings_of_a_run_that_never_began_may_be_replaced(tmp_path: Path, resume: bool, has_metrics: bool) -> None:
    """An error between the start and the end of the first epoch, such as a wrong encoder, leaves the folder free."""
    folder = RunFolder(tmp_path)
    folder.start("train", SETTINGS, resume=False)
    if has_metrics:
        MetricsLog(folder.metrics)
    folder.release()
    other = {**SETTINGS, "loop": {"lr": 0.5}}
    assert RunFolder(tmp_path).start("train", other, resume=resume) is False
    assert read_json(tmp_path / "config.json") == {**CONFIG, **other}


def test_a_finished_run_keeps_its_machine(tmp_path: Path) -> None:
    begin(tmp_path)
    folder = RunFolder(tmp_path)
    folder.save_result({"test_mae": 0.5}, nn.Linear(2, 1))
    folder.environment.write_text(json.dumps({"processor": "the one that did it"}))
    folder.start("train", SETTINGS, resume=True)
    assert read_json(folder.environment) == {"processor": "the one that did it"}
    assert read_json(folder.result) == {"test_mae": 0.5}
    assert set(load_tensors(folder.model)[0]) == {"weight", "bias"}


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network file systems have none: a run there is not in use by another process."""
    fcntl = pytest.importorskip("fcntl")

    def refuse(*arguments: Any) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    begin(tmp_path)
    assert RunFolder(tmp_path).start("train", SETTINGS, resume=True)


def test_the_environment_is_json_and_lists_the_packages() -> None:
    found = json.loads(json.dumps(environment()))
    assert found["packages"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert found["threads"] == torch.get_num_threads() and found["cores"] >= 1 and found["processor"]


@pytest.mark.parametrize("name", ["config.json", "result.json", "metrics.jsonl", "model.safetensors"])
@pytest.mark.parametrize("resume", [False, True])
def test_what_is_no_run_or_a_part_of_one_is_not_overwritten(tmp_path: Path, name: str, resume: bool) -> None:
    (tmp_path / name).write_text('{"my": "app"}', encoding="utf-8")
    with pytest.raises(ValueError, match=name):
        RunFolder(tmp_path).start("train", SETTINGS, resume=resume)
    assert read_json(tmp_path / name) == {"my": "app"}
    assert {path.name for path in tmp_path.iterdir()} <= {name, ".lock"}
