"""A checkpoint is opened once and handed on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from tg_lpe import GramTransformer
from tg_lpe.checkpoints import zoo
from tg_lpe.checkpoints.checkpoint import Checkpoint, Kind
from tg_lpe.encoders import load_encoder
from tg_lpe.prediction import load

COUNTING = """
import json, sys
from collections import Counter
opened, made = Counter(), 0

def watch(event, arguments):
    if event == "open" and isinstance(arguments[0], str):
        opened[arguments[0]] += 1

import tg_lpe
from tg_lpe.cli import main
from tg_lpe.encoders import GramTransformer

begin = GramTransformer.__init__
def count(self, *args, **kwargs):
    global made
    made += 1
    begin(self, *args, **kwargs)

GramTransformer.__init__ = count
sys.addaudithook(watch)
status = main(sys.argv[1:])
print(json.dumps([status, opened, made]))
"""


def test_a_training_opens_each_file_once_and_builds_the_module_at_most_twice(tmp_path: Path) -> None:
    """Once as shapes alone, to compare the weights with, and once with them."""
    rows = [f"{'C' * size}{end},{size}.5" for size in range(2, 8) for end in ("O", "N", "C(C)C")]
    (tmp_path / "mine.csv").write_text("smiles,y\n" + "\n".join(rows) + "\n", encoding="utf-8")
    command = ["train", "mine.csv", "--target", "y", "--pretrained", "gram-k16", "--epochs", "1", "--quiet"]
    command += ["--model.hidden_channels", "8", "--model.num_layers", "1", "--cache", "cache", "--out", "run"]
    run = [sys.executable, "-c", COUNTING, *command]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True)
    status, opened, made = json.loads(done.stdout.splitlines()[-1])
    files = Counter({Path(name).name: count for name, count in opened.items() if str(zoo.path("gram-k16")) in name})
    assert status == 0 and files == {"config.json": 1, "model.safetensors": 1}, files
    assert made <= 2


def test_what_a_checkpoint_says() -> None:
    checkpoint = Checkpoint.open("gram-zinc")
    assert Checkpoint.open(checkpoint) is checkpoint and checkpoint.encoder is checkpoint
    assert checkpoint.kind is Kind.CHECKPOINT and checkpoint.config["class"] == "GramTransformer"
    assert not checkpoint.is_model and Checkpoint.open("transformer-zinc12k").is_model
    assert checkpoint.card == zoo.card("gram-zinc")
    assert checkpoint.descriptions[0] == (checkpoint.folder / "card.json", checkpoint.card["data"])
    assert load_encoder(checkpoint) is checkpoint.module, "made once"
    torch.testing.assert_close(load_encoder("gram-zinc").state_dict(), checkpoint.module.state_dict(), rtol=0, atol=0)
    assert load_encoder("gram-zinc") is not load_encoder("gram-zinc")


def test_a_model_is_predicted_with_from_an_open_checkpoint() -> None:
    checkpoint = Checkpoint.open("transformer-zinc12k")
    predictor = load(checkpoint)
    assert predictor.task is not None and type(predictor.model).__name__ == checkpoint.config["class"]


def test_a_run_folder_is_opened_without_weights(tmp_path: Path) -> None:
    """Its encoder is another checkpoint; an unfinished run has none."""
    (tmp_path / "config.json").write_text('{"command": "pretrain", "data": {"canonical": false}}', encoding="utf-8")
    run = Checkpoint.open(tmp_path)
    assert run.kind is Kind.PRETRAINING and not run.is_model
    with pytest.raises(ValueError, match="encoder"):
        run.encoder  # noqa: B018
    GramTransformer(2, num_layers=2).save_pretrained(tmp_path / "encoder")
    assert run.encoder.folder == tmp_path / "encoder" and not run.encoder.is_canonical
