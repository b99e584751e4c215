"""A run that is killed and resumed writes the same files as an uninterrupted one, bit by bit."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from children import exit_status, start_python
from helpers import assert_same_run

from tg_lpe.app.cli import main
from tg_lpe.app.training.run_folder import RunFolder
from tg_lpe.app.training.state import read_metrics

EPOCHS = 6


def arguments(molecules: Path, cache: Path, out: Path, *more: str) -> list[str]:
    words = ["train", str(molecules), "--data", str(molecules), "--cache", str(cache), "--out", str(out), "--quiet"]
    words += ["--threads", "1", "--epochs", str(EPOCHS), "--batch_size", "12", "--computed", "penalised_logp"]
    return [*words, *more]


def stop_after_one_epoch(command: list[str], out: Path, how: signal.Signals) -> tuple[int | None, str]:
    """Run the command in a process of its own, and send it a signal once its first line of metrics is there.

    Returns:
        Its exit status and what it said.
    """
    said, metrics = out.with_suffix(".txt"), out / "metrics.jsonl"
    process = start_python("-m", "tg_lpe.app.cli", *command, said=said)
    deadline = time.monotonic() + 120
    try:
        while not (metrics.exists() and b"\n" in metrics.read_bytes()):
            assert process.is_alive(), said.read_text()
            assert time.monotonic() < deadline, "no epoch in two minutes"
            time.sleep(0.002)
        if sys.platform != "win32":
            os.kill(process.pid, signal.SIGSTOP)  # it waits, so that it does not end before it is stopped
            before = (out / "environment.json").read_bytes()
            with pytest.raises(ValueError, match="in use by another process"):
                RunFolder(out).start("train", {}, resume=True)
            assert (out / "environment.json").read_bytes() == before
    finally:
        with suppress(ProcessLookupError):  # it has ended
            os.kill(process.pid, how)
            if sys.platform != "win32":
                os.kill(process.pid, signal.SIGCONT)
    return exit_status(process), said.read_text()


@pytest.fixture(scope="module")
def undisturbed(molecules: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The run folder of an uninterrupted run, and a cache of molecules."""
    import torch

    cache, out = tmp_path_factory.mktemp("cache"), tmp_path_factory.mktemp("runs") / "undisturbed"
    threads = torch.get_num_threads()
    assert main(arguments(molecules, cache, out)) == 0
    torch.set_num_threads(threads)
    return out, cache


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["kill", "ctrl-c"])
@pytest.mark.usefixtures("one_thread")
def test_a_stopped_run_goes_on_to_the_same_end(
    molecules: Path,
    undisturbed: tuple[Path, Path],
    tmp_path: Path,
    how: signal.Signals,
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected, cache = undisturbed
    out = tmp_path / "stopped"
    status, said = stop_after_one_epoch(arguments(molecules, cache, out), out, how)
    if how == signal.SIGINT:
        assert status == 130
        assert "--resume" in said.splitlines()[-1] and "Traceback" not in said
    else:
        assert status == -signal.SIGKILL
    assert 1 <= len(read_metrics(out / "metrics.jsonl")) < EPOCHS, "stopped on the way"
    assert not (out / "result.json").exists() and not (out / "model.safetensors").exists()

    capsys.readouterr()
    assert main(arguments(molecules, cache, out)) == 1
    assert "--resume" in capsys.readouterr().err
    assert main(arguments(molecules, cache, out, "--resume")) == 0

    assert_same_run(expected, out)
    assert (out / "config.json").read_bytes() == (expected / "config.json").read_bytes()
    assert len(read_metrics(out / "metrics.jsonl")) == EPOCHS
    before = (out / "result.json").stat().st_mtime_ns
    assert main(arguments(molecules, cache, out, "--resume")) == 0
    assert "is complete already" in capsys.readouterr().err
    assert (out / "result.json").stat().st_mtime_ns == before


@pytest.mark.usefixtures("one_thread")
def test_a_refused_run_writes_no_file(undisturbed: tuple[Path, Path], molecules: Path, tmp_path: Path) -> None:
    """The folder is another run's, which may be writing there."""
    expected, cache = undisturbed
    for file in ("config.json", "metrics.jsonl"):
        shutil.copy(expected / file, tmp_path)
    assert main(arguments(molecules, cache, tmp_path)) == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == [".lock", "config.json", "metrics.jsonl"]
