"""Two processes of ``torchrun`` train as one does with the whole batch, and go on after one of them is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from children import exit_status, start
from safetensors.torch import load_file
from two_processes import NORMS, ROWS, TRAININGS, launch, losses, make_pretraining, make_training, normalized

from tg_lpe.app.training.processes import Parts, join
from tg_lpe.app.training.state import read_metrics
from tg_lpe.checkpoints.files import read_json
from tg_lpe.nn import parallel


@pytest.fixture(scope="module")
def two_processes(molecules: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the two processes wrote to."""
    out = tmp_path_factory.mktemp("two")
    assert exit_status(start(launch, out, molecules, said=out / "said")) == 0, (out / "said").read_text()[-4000:]
    return out


@pytest.fixture(scope="module")
def found(two_processes: Path) -> dict[str, Any]:
    """Return the results of the first process."""
    return read_json(two_processes / "found-0.json")


def assert_close(got: list[list[float]], expected: list[list[float]]) -> None:
    """Training losses to rounding; figures in evaluation to the rounding that AdamW makes larger.

    The bias before a batch norm has no gradient but rounding, and moves by the learning rate whichever sign it has.
    """
    *epochs, _ = zip(got, expected, strict=True)
    for row, other in epochs:
        assert row[0] == pytest.approx(other[0], rel=1e-5)
    for row, other in zip(got, expected, strict=True):
        assert row == pytest.approx(other, rel=1e-3)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", TRAININGS)
def test_losses_of_the_whole_batch(found: dict[str, Any], name: str) -> None:
    """Norms, penalties, clipping, random signs and probes, averages, missing labels, a last batch of one graph."""
    assert_close(found["trainings"][name], losses(make_training(name)))


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kind", ["eigenvectors", "kernels"])
def test_losses_of_pretraining(found: dict[str, Any], kind: str) -> None:
    assert_close(found["pretrainings"][kind], losses(make_pretraining(kind)))


def test_all_processes_find_the_same(two_processes: Path, found: dict[str, Any]) -> None:
    assert read_json(two_processes / "found-1.json") == found


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("rows", ROWS)
def test_norms_of_the_whole_batch(two_processes: Path, name: str, rows: str) -> None:
    """Outputs, gradients and running statistics, whatever rows the processes have."""
    got = load_file(two_processes / "found-0.safetensors")
    for key, expected in normalized(name, rows, slice(None)).items():
        torch.testing.assert_close(got[f"{name}, {rows}: {key}"], expected, rtol=1e-9, atol=1e-9, msg=key)


def test_a_killed_process_is_started_again(two_processes: Path, found: dict[str, Any]) -> None:
    assert found["restarts"] == "1"
    assert found["killed"] == found["whole"]
    for name in ("model.safetensors", "result.json"):
        assert (two_processes / "killed" / name).read_bytes() == (two_processes / "whole" / name).read_bytes()
    assert [row["epoch"] for row in read_metrics(two_processes / "killed" / "metrics.jsonl")] == [1, 2, 3]


def test_the_command_line_says_everything_once(two_processes: Path) -> None:
    said = (two_processes / "said").read_text()
    assert said.count("test MAE") == 1
    assert read_json(two_processes / "cli" / "environment.json")["processes"] == 2


def test_gradients_that_not_every_process_has(found: dict[str, Any]) -> None:
    assert found["gradients"] == [[0.5], [2.0], None]


def test_what_would_not_be_the_same_is_refused(found: dict[str, Any]) -> None:
    said = found["refused"]
    assert "each of the 2 processes needs a graph of each batch, but batch_size is 1" in said["batch_size"]
    assert "pool_norm, a BatchNorm1d, would take its statistics from one process's part" in said["norm"]
    assert said["folder"] == "1"
    assert "model.safetensors is damaged" in said["weights"], "and no process waits for the weights"


def test_one_process_has_everything(splits: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parallel.num_processes() == 1 and parallel.process_number() == 0
    x = torch.ones(3, 2)
    with parallel.divided():
        assert not parallel.is_divided() and parallel.gather(x) is x and parallel.mean(x, 3) is x
        assert parallel.rows_before(5) == (0, 5)
    parts = Parts(splits.train, 7, torch.Generator().manual_seed(0))
    assert parts.sizes == [7, 7, 7, 3] == [batch.num_graphs for batch, _ in parts] and len(parts) == 4
    assert join("cuda:1") == torch.device("cuda:1"), "a device is a device"
    for name, value in (("WORLD_SIZE", "2"), ("LOCAL_RANK", "64"), ("TORCHELASTIC_RUN_ID", "one")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="device must"):
        join("cuda:1")
    with pytest.raises(ValueError, match="each process needs"):
        join("cuda")
