"""A checkpoint is opened once and handed on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import Degrees
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import weight_norm
from torch_geometric.data import Data

from tg_lpe import GramTransformer, GraphTransformer
from tg_lpe.app.comparison import candidates_of
from tg_lpe.app.prediction import Predictor, load
from tg_lpe.app.training import TrainConfig, task_for, train
from tg_lpe.checkpoints import zoo
from tg_lpe.checkpoints.checkpoint import Checkpoint, Kind
from tg_lpe.data import GraphSplits
from tg_lpe.encoders import RandomWalk, Whitened, load_encoder, register


def changed(how: str) -> GraphTransformer:
    model = GraphTransformer(encoder=GramTransformer(4, 4), hidden_channels=8, heads=2, num_layers=1)
    if how == "pruned":
        prune.l1_unstructured(model.readout[0], "weight", 0.5)
    elif how == "parametrised":
        weight_norm(model.encoder.readout)
    else:
        model.readout = nn.Linear(8, 7)
    return model


@pytest.mark.parametrize("how", ["pruned", "parametrised", "replaced"])
def test_what_could_not_be_loaded_again_is_not_saved(tmp_path: Path, how: str) -> None:
    """A training into a folder warns: the fault used to appear when the model was needed."""
    model = changed(how).eval()
    for save in (model.save_pretrained, Predictor(model).save):
        with pytest.raises(ValueError, match="could not be loaded again"):
            save(tmp_path / "model")
    assert not (tmp_path / "model").exists()
    graphs = [Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2, y=torch.tensor([0.5 * n])) for n in range(6)]
    splits = GraphSplits.of(graphs[:4], graphs[4:5], graphs[5:], level="graph")
    if how != "replaced":  # seven outputs do not fit the task
        with pytest.warns(UserWarning, match="only this model can resume the run.* could not be loaded again"):
            train(model, splits, task_for(splits, "regression"), TrainConfig(epochs=1), folder=tmp_path / "run")
    if how == "pruned":
        prune.remove(model.readout[0], "weight")
        model.save_pretrained(tmp_path / "model")
        assert torch.equal(
            GraphTransformer.from_pretrained(tmp_path / "model").readout[0].weight, model.readout[0].weight
        )


class Inverse(Degrees):
    """An encoder whose constructor reads the values of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("inverse", torch.from_numpy(np.linalg.inv(torch.eye(2).numpy())))


def test_constructors_that_use_numpy_are_loaded_again(tmp_path: Path) -> None:
    """Weights are compared on the meta device first, where there are no values to read."""
    register(Inverse)
    Inverse().save_pretrained(tmp_path / "encoder")
    assert torch.equal(load_encoder(tmp_path / "encoder").inverse, torch.eye(2))
    GraphTransformer(encoder=Inverse(), hidden_channels=8, heads=2).save_pretrained(tmp_path / "model")
    assert torch.equal(GraphTransformer.from_pretrained(tmp_path / "model").encoder.inverse, torch.eye(2))


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


def test_an_encoder_with_an_encoder_inside_is_no_model(tmp_path: Path) -> None:
    """A comparison, ``tg-lpe encode`` and ``tg-lpe train --pretrained`` take it."""
    path = Data(edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]]), num_nodes=5)
    Whitened(RandomWalk(4)).fit([path]).save_pretrained(tmp_path)
    assert not Checkpoint.open(tmp_path).is_model
    (candidate,) = candidates_of([tmp_path]).values()
    assert candidate.pretrained == str(tmp_path)


def test_the_configuration_of_another_program_around_a_checkpoint_is_not_read(tmp_path: Path) -> None:
    """A project may keep an encoder next to a config.json of its own."""
    GramTransformer(8).save_pretrained(tmp_path / "encoder")
    for content in ({"data": "mine.csv"}, ["mine.csv"], {"data": {"source": "mine.csv", "target": "y"}}):
        (tmp_path / "config.json").write_text(json.dumps(content))
        assert Checkpoint.open(tmp_path / "encoder").is_canonical
    (tmp_path / "config.json").write_text(json.dumps({"command": "pretrain", "data": {"canonical": False}}))
    assert not Checkpoint.open(tmp_path / "encoder").is_canonical


def test_a_relative_path_stays_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    graphs = [Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2, y=torch.tensor([0.5 * n])) for n in range(9)]
    splits = GraphSplits.of(graphs[:4], graphs[4:7], graphs[7:], level="graph")
    model = GraphTransformer(encoder=GramTransformer(4), hidden_channels=8, heads=2, num_layers=1)
    train(model, splits, config=TrainConfig(epochs=1), folder="run", progress=False)
    model.save_pretrained("model")
    predictor, checkpoint = load("run"), Checkpoint.open("model")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert predictor.predict(graphs[:2], coverage=0.5).low is not None
    torch.testing.assert_close(checkpoint.load().state_dict(), model.state_dict())


def test_a_model_is_predicted_with_from_an_open_checkpoint() -> None:
    checkpoint = Checkpoint.open("transformer-zinc12k")
    predictor = load(checkpoint)
    assert predictor.task is not None and type(predictor.model).__name__ == checkpoint.config["class"]


def test_a_device_that_cannot_be_used_is_named() -> None:
    with pytest.raises(ValueError, match="map_location gpu cannot be used"):
        GramTransformer.from_pretrained("gram-k8", map_location="gpu")


def test_a_run_folder_is_opened_without_weights(tmp_path: Path) -> None:
    """Its encoder is another checkpoint; an unfinished run has none."""
    (tmp_path / "config.json").write_text('{"command": "pretrain", "data": {"canonical": false}}', encoding="utf-8")
    run = Checkpoint.open(tmp_path)
    assert run.kind is Kind.PRETRAINING and not run.is_model
    with pytest.raises(ValueError, match="is the run folder of a pretraining"):
        run.load()
    with pytest.raises(ValueError, match="encoder"):
        run.encoder  # noqa: B018
    GramTransformer(2, num_layers=2).save_pretrained(tmp_path / "encoder")
    assert run.encoder.folder == tmp_path / "encoder" and not run.encoder.is_canonical
