"""The shipped checkpoints agree with their cards."""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tg_lpe import GraphTransformer, zoo
from tg_lpe.app.cli import main
from tg_lpe.app.prediction import Predictor
from tg_lpe.app.training.tasks import make_task
from tg_lpe.checkpoints import checkpoint as checkpoints
from tg_lpe.checkpoints.checkpoint import Kind, kind_of
from tg_lpe.checkpoints.files import load_tensors
from tg_lpe.encoders import load_encoder
from tg_lpe.models import MODELS

LIMIT = 20 * 2**20
FIXTURE = Path(__file__).parents[1] / "fixtures" / "zoo.safetensors"


@pytest.mark.parametrize("name", zoo.names())
def test_card_describes_the_checkpoint(name: str) -> None:
    card, folder = zoo.card(name), zoo.path(name)
    model = checkpoints.load(name)
    assert card["name"] == name and type(model).__name__ == card["class"]
    assert card["num_parameters"] == sum(p.numel() for p in model.parameters())
    assert card["sha256"] == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert not model.training
    config = json.loads((folder / "config.json").read_text())
    if isinstance(config.get("num_node_types"), int):  # ogb's have a number for each column
        assert len(card["data"]["atom_types"]) == config["num_node_types"]
    if isinstance(config.get("num_edge_types"), int):
        assert len(card["data"]["bond_types"]) == config["num_edge_types"]
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert card["command"] in text or "made by" not in text
    assert card["summary"] in text
    if (config.get("encoder") or {}).get("out_channels") == 0:
        assert "at the edges" in card["summary"], "the encoder does not encode nodes"
    assert all(word.count("{") == word.count("}") for word in shlex.split(card["command"])), "not as a shell splits it"
    figures = (f"{value:.{digits}f}" for value in card["metrics"].values() for digits in (3, 4))
    assert name in text and any(figure in text for figure in figures)


@pytest.mark.parametrize("name", [name for name in zoo.names() if zoo.card(name)["command"].startswith("tg-lpe ")])
def test_the_command_of_a_card_has_options_that_there_are(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*shlex.split(zoo.card(name)["command"])[1:], "--print_config"])
    assert stopped.value.code == 0, capsys.readouterr().err


SMILES = [
    "CC(=O)Nc1ccc(O)cc1",
    "c1ccccc1",
    "CCO",
    "CC(C)(C)c1ccc2occ(CC(=O)Nc3ccccc3F)c2c1",
    "C1CC1",
    "CCN(Cc1ccc(OC)c(OC)c1)C(=O)c1ccco1",
]


@pytest.mark.parametrize("name", zoo.names())
def test_outputs_are_those_recorded(name: str) -> None:
    """The fixture holds a batch of graphs, the float64 outputs of each encoder for it, and predictions of models."""
    recorded = load_tensors(FIXTURE)[0]
    if zoo.card(name)["class"] in MODELS:
        pytest.importorskip("rdkit")
        model = zoo.load(name)
        model.reader = replace(model.reader, canonical=False)
        parts = {"prediction": model.predict(SMILES).values}
    else:
        with torch.no_grad():
            graphs = {key: recorded[key] for key in ("x", "edge_index", "edge_attr", "batch")}
            out = load_encoder(name).double()(**graphs)
        parts = {part: value.float() for part, value in out._asdict().items() if value is not None}
    assert {key for key in recorded if key.startswith(f"{name}.")} == {f"{name}.{part}" for part in parts}
    for part, value in parts.items():
        if name == "positions-k16" and part == "node":  # where an eigenvalue repeats, columns may turn
            same = recorded["batch"][:, None] == recorded["batch"]
            value, recorded[f"{name}.{part}"] = (x @ x.mT * same for x in (value, recorded[f"{name}.{part}"]))
        torch.testing.assert_close(value, recorded[f"{name}.{part}"], rtol=1e-5, atol=3e-5)


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script that computes the figures of cards."""
    pytest.importorskip("rdkit")
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return pytest.importorskip("_score", reason="benchmarks/ is not beside the tests")


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.names())
def test_card_figures_are_reproduced(name: str, scores: ModuleType) -> None:
    # The order of float32 sums depends on the processor; a broken model is off by more than this tolerance.
    sample = zoo.card(name)["sample"]
    for figure, value in scores.score(name).items():
        assert value == pytest.approx(sample[figure], rel=2e-3), figure


@pytest.mark.slow
def test_published_errors_are_reproduced(scores: ModuleType, shared_data: Path) -> None:
    """On the test set of the model's own split; the mean absolute error is that of its training run."""
    found, card = scores.errors_on_test_set("transformer-qm9-gap", shared_data / "qm9"), zoo.card("transformer-qm9-gap")
    assert found["test_mae"] == pytest.approx(card["metrics"]["test_mae"], rel=2e-3)
    assert found["molecules"] == card["data"]["num_test"]


@pytest.mark.slow
def test_the_score_tells_weights_apart(tmp_path: Path, scores: ModuleType) -> None:
    """The score on a card depends on the weights: other weights give another score."""
    name = next(name for name in zoo.names() if zoo.card(name)["class"] not in MODELS)
    encoder = load_encoder(name)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    encoder.save_pretrained(tmp_path)
    assert scores.score(name, zoo.card(name), tmp_path)["mae"] != pytest.approx(
        zoo.card(name)["sample"]["mae"], rel=2e-3
    )


def test_the_score_of_labels_that_rdkit_has_not(tmp_path: Path, scores: ModuleType) -> None:
    """It is the mean probability of each label, also with ogb's features."""
    pytest.importorskip("ogb")
    from rdkit import RDConfig

    sizes = {"num_node_types": [119, 5, 12, 12, 10, 6, 6, 2, 2], "num_edge_types": [5, 6, 2]}
    torch.manual_seed(0)
    model = GraphTransformer(**sizes, hidden_channels=8, heads=2, num_layers=1, out_channels=3).eval()
    task = make_task({"name": "multilabel", "num_targets": 3})
    data = {"atom_types": None, "bond_types": []}
    Predictor(model, task, data).save(tmp_path)
    sample = {"normalization": None, "max_nodes": None}
    card = {"class": "GraphTransformer", "task": task.to_dict(), "data": data, "sample": sample}
    found = scores.score("not shipped yet", card, tmp_path)["mean_prediction"]

    lines = Path(RDConfig.RDDataDir, "NCI", "first_5K.smi").read_text().splitlines()[:600]
    as_spelled = Predictor(model, task, {**data, "canonical": False})
    values = as_spelled.predict([line.split()[0] for line in lines]).values
    usable = values[~values.isnan().any(1)]
    assert len(usable) >= scores.SAMPLE
    assert found == pytest.approx(usable[: scores.SAMPLE].mean(0).tolist(), rel=1e-4)


def test_all_of_it_is_small() -> None:
    assert sum(file.stat().st_size for name in zoo.names() for file in zoo.path(name).iterdir()) < LIMIT


def test_list_and_card_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "parameters)" in line] == zoo.names()
    assert main(["zoo", "heat-k8"]) == 0
    assert json.loads(capsys.readouterr().out) == zoo.card("heat-k8")
    assert main(["zoo", "nothing"]) == 1
    assert "'nothing'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"class": "GramTransformer", "num_layers": 2}, Kind.CHECKPOINT),
        ({"class": "OfAUser", "command": "go", "train": True}, Kind.CHECKPOINT),
        ({}, Kind.CHECKPOINT),
        ({"layout": 2, "command": "train", "encoder": None}, Kind.TRAINING),
        ({"layout": 2, "command": "pretrain-kernels"}, Kind.PRETRAINING),
    ],
)
def test_what_a_folder_holds(config: dict[str, Any], kind: Kind) -> None:
    assert kind_of(config) is kind
