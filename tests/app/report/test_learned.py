"""Pictures of an encoder's learned tables, before and after training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from helpers import Degrees

from tg_lpe.app.cli import main
from tg_lpe.app.report import learned_pictures, read_run, write_report
from tg_lpe.checkpoints.files import load_tensors, save_tensors
from tg_lpe.encoders import ENCODERS, LearnedTable, make_encoder


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A pretraining, and a training that goes on from it."""
    pytest.importorskip("rdkit")
    molecules = [f"{'C' * n}{end}" for n in range(2, 9) for end in ("O", "C#N", "C(=O)O")]
    (tmp_path / "own.csv").write_text("smiles,y\n" + "\n".join(f"{s},{len(s)}.5" for s in molecules), encoding="utf-8")
    common = [str(tmp_path / "own.csv"), "--cache", str(tmp_path / "cache"), "--epochs", "1", "--quiet"]
    begin = ["--kernels", "resistance", "--read_features", "--encoder", "GramTransformer"]
    begin += ["--encoder.num_filters", "2", "--encoder.num_layers", "3", "--out", str(tmp_path / "pretraining")]
    assert main(["pretrain", *common, *begin]) == 0
    start = ["--pretrained", str(tmp_path / "pretraining"), "--model.hidden_channels", "8", "--model.num_layers", "1"]
    assert main(["train", *common, *start, "--out", str(tmp_path / "training")]) == 0
    return tmp_path / "pretraining", tmp_path / "training"


def test_before_and_after_are_those_of_the_run(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    pretraining, training = folders
    start = load_tensors(training / "initial.safetensors")[0]
    trained = load_tensors(pretraining / "model.safetensors")[0]
    assert set(start) == set(trained) and all(torch.equal(start[name], trained[name]) for name in start)
    for folder in folders:
        pictures = learned_pictures(read_run(folder), "run")
        captions = [caption for _, caption in pictures]
        assert [caption.split(",")[0].split(" to the")[0] for caption in captions] == [
            "Conductance of edges", "Ground conductance of nodes", "Response at nodes", "Response at edges",
        ]  # fmt: skip
        assert all("Grey: before training" in caption for caption in captions)
        assert "TRIPLE" in pictures[0][0] and "NONE" not in pictures[0][0] and "N" in pictures[1][0]
    before = torch.get_rng_state()
    page = write_report(folders, tmp_path / "report.html").read_text(encoding="utf-8")
    assert torch.equal(torch.get_rng_state(), before), "the global generator is the caller's"
    assert page.count("<h2>What was learned</h2>") == 1 and page.count('class="wide"') == 8

    encoder = read_run(pretraining).encoder

    class Nested(Degrees):  # the names of its weights start as those of a model's encoder
        def __init__(self) -> None:
            super().__init__()
            self.encoder = make_encoder(encoder)

        def learned(self) -> list[LearnedTable]:
            return self.encoder.learned()

    monkeypatch.setitem(ENCODERS, "Nested", Nested)
    expected = learned_pictures(read_run(pretraining), "run")
    file = pretraining / "config.json"
    config = {**json.loads(file.read_text(encoding="utf-8")), "encoder": Nested().config_dict()}
    file.write_text(json.dumps(config), encoding="utf-8")
    for name in ("initial.safetensors", "model.safetensors"):
        weights = load_tensors(pretraining / name)[0]
        save_tensors(pretraining / name, {f"encoder.{key}": value for key, value in weights.items()})
    assert learned_pictures(read_run(pretraining), "run") == expected
    (training / "initial.safetensors").unlink()
    assert not any("Grey" in caption for _, caption in learned_pictures(read_run(training), "run"))
    (training / "model.safetensors").unlink()
    assert learned_pictures(read_run(training), "run") == []
