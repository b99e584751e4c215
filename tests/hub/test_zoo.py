"""The shipped checkpoints agree with their cards."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch

from tg_lpe import GramTransformer, GraphTransformer, LinearTransformer, zoo
from tg_lpe.cli import main
from tg_lpe.encoders import load_encoder

CLASSES = {cls.__name__: cls for cls in (GramTransformer, GraphTransformer, LinearTransformer)}
LIMIT = 20 * 2**20


def load(name: str) -> torch.nn.Module:
    return CLASSES[zoo.card(name)["class"]].from_pretrained(name)


@pytest.mark.parametrize("name", zoo.names())
def test_card_describes_the_checkpoint(name: str) -> None:
    card, folder = zoo.card(name), zoo.path(name)
    model = load(name)
    assert card["name"] == name and type(model).__name__ == card["class"]
    assert card["num_parameters"] == sum(p.numel() for p in model.parameters())
    assert card["sha256"] == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert not model.training
    config = json.loads((folder / "config.json").read_text())
    if config.get("num_node_types") is not None:
        assert len(card["data"]["atom_types"]) == config["num_node_types"]
    if config.get("num_edge_types") is not None:
        assert len(card["data"]["bond_types"]) == config["num_edge_types"]
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert name in text and any(f"{value:.3f}" in text for value in card["metrics"].values())


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.names())
def test_card_figures_are_reproduced(name: str) -> None:
    pytest.importorskip("rdkit")
    from tg_lpe.training.score import score

    # The order of float32 sums depends on the processor; a broken model is off by more than this tolerance.
    assert score(name) == pytest.approx(zoo.card(name)["sample"]["mae"], rel=2e-3)


@pytest.mark.slow
def test_the_score_tells_weights_apart(tmp_path: Path) -> None:
    """The score on a card depends on the weights: other weights give another score."""
    pytest.importorskip("rdkit")
    from tg_lpe.training.score import score

    name = next(name for name in zoo.names() if zoo.card(name)["class"] != "GraphTransformer")
    encoder = load_encoder(name)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    encoder.save_pretrained(tmp_path)
    assert score(name, zoo.card(name), tmp_path) != pytest.approx(zoo.card(name)["sample"]["mae"], rel=2e-3)


def test_all_of_it_is_small() -> None:
    assert sum(file.stat().st_size for name in zoo.names() for file in zoo.path(name).iterdir()) < LIMIT


def test_list_and_card_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == zoo.names()
    assert main(["zoo", "eigen-k8"]) == 0
    assert json.loads(capsys.readouterr().out) == zoo.card("eigen-k8")
    assert main(["zoo", "nothing"]) == 1
    assert "'nothing'" in capsys.readouterr().err
