"""A run that is killed and resumed writes the same files as an uninterrupted one, bit by bit."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers import assert_same_run

from tg_lpe.app.cli import main
from tg_lpe.app.training.run_folder import RunFolder
from tg_lpe.app.training.state import read_metrics

EPOCHS = 6


def arguments(molecules: Path, cache: Path, out: Path, *more: str) -> list[str]:
    words = ["train", str(molecules), "--data", str(molecules), "--cache", str(cache), "--out", str(out), "--quiet"]
    words += ["--threads", "1", "--epochs", str(EPOCHS), "--batch_size", "12", "--computed", "solubility"]
    return [*words, *more]


@contextmanager
def interruptible() -> Iterator[None]:
    """Let processes started here be interrupted; background jobs of a shell would ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def stop_after_one_epoch(command: list[str], out: Path, how: signal.Signals) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, and send it a signal once its first line of metrics is there."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with interruptible():
        process = subprocess.Popen(
            [sys.executable, "-m", "tg_lpe.app.cli", *command], stderr=subprocess.PIPE, text=True, env=environment
        )
    metrics = out / "metrics.jsonl"
    deadline = time.monotonic() + 120
    try:
        while not (metrics.exists() and b"\n" in metrics.read_bytes()):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline, "no epoch in two minutes"
            time.sleep(0.002)
        if sys.platform != "win32":
            process.send_signal(signal.SIGSTOP)  # it waits, so that it does not end before it is stopped
            before = (out / "environment.json").read_bytes()
            with pytest.raises(ValueError, match="in use by another process"):
                RunFolder(out).start("train", {}, resume=True)
            assert (out / "environment.json").read_bytes() == before
    finally:
        process.send_signal(how)
        if sys.platform != "win32":
            process.send_signal(signal.SIGCONT)
        _, said = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, None, said)


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
    stopped = stop_after_one_epoch(arguments(molecules, cache, out), out, how)
    if how == signal.SIGINT:
        assert stopped.returncode == 130
        assert "--resume" in stopped.stderr.splitlines()[-1] and "Traceback" not in stopped.stderr
    else:
        assert stopped.returncode == -signal.SIGKILL
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
