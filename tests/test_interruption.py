"""Runs survive a full disk, a killed process and a damaged file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tg_lpe.app.cli import main
from tg_lpe.app.training.run_folder import RunFolder
from tg_lpe.app.training.state import MetricsLog
from tg_lpe.checkpoints.files import save_tensors

resource = pytest.importorskip("resource")

LIMIT = 50_000
"""Bytes of a file on the full disk."""


@contextmanager
def full_disk() -> Iterator[None]:
    """No file grows beyond :data:`LIMIT`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def save_named(path: Path, size: int) -> None:
    save_tensors(path, {"x": torch.ones(size)})


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "data.pt"
    save_named(path, 10)
    before = path.read_bytes()
    with full_disk(), pytest.raises(OSError, match="too large"):
        save_named(path, LIMIT)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["encoded.pt", "encoded.safetensors"])
def test_encoding_says_that_the_disk_is_full(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    smiles = tmp_path / "molecules.smi"
    smiles.write_text("\n".join("C" * (5 + number % 20) for number in range(200)) + "\n")
    options = ["--encoder", "RandomWalk", "--encoder.steps", "8", "--quiet"]
    with full_disk():
        assert main(["encode", str(smiles), str(tmp_path / name), *options]) == 1
    said = capsys.readouterr().err
    assert f"{name} could not be written" in said and "Traceback" not in said
    assert list(tmp_path.iterdir()) == [smiles]


def test_a_full_disk_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.smi").write_text("CCO " + "a" * LIMIT)
    with full_disk():
        assert main(["predict", "transformer-zinc", f"{tmp_path}/in.smi", f"{tmp_path}/out.csv", "--quiet"]) == 1
        assert "out.csv could not be written: [Errno 27] File too large" in capsys.readouterr().err
        with pytest.raises(OSError, match=r"metrics\.jsonl could not be written"):
            MetricsLog(tmp_path / "metrics.jsonl").append({"a": "a" * LIMIT})


def run_of(path: Path, epochs: int) -> RunFolder:
    """The folder of a run that was killed after some epochs."""
    folder = RunFolder(path)
    folder.start("train", {}, resume=True)
    for epoch in range(1, epochs + 1):
        state = {"model.weight": torch.full((3,), float(epoch)), "count": torch.tensor(epoch)}
        folder.save_state(state, {"epoch": epoch, "best_value": float("inf")})
    folder.release()
    return folder


@pytest.mark.parametrize("how", ["cut off", "bit flipped", "number changed"])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, how: str) -> None:
    folder = run_of(tmp_path, 3)
    content = bytearray(folder.state.read_bytes())
    if how == "bit flipped":
        content[-5] ^= 16
    elif how == "number changed":
        content = content.replace(b'\\"epoch\\": 3', b'\\"epoch\\": 7')
    folder.state.write_bytes(content[:-5] if how == "cut off" else content)
    with pytest.raises(ValueError, match=r"state.safetensors .*; remove .* to start the run again"):
        folder.load_state()


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    folder = run_of(tmp_path, 2)
    with full_disk(), pytest.raises(OSError, match=r"state.safetensors could not be written"):
        folder.save_state({"model.weight": torch.ones(LIMIT)}, {"epoch": 3})
    assert (folder.load_state() or ({}, {}))[1]["epoch"] == 2
