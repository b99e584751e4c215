"""Checkpoints: opened once, the same bits in another process, and a clear error for every file that was altered."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from children import run_python
from helpers import Degrees, randomize_
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import weight_norm
from torch_geometric.data import Data

from tg_lpe import GramTransformer, GraphTransformer, LinearTransformer, zoo
from tg_lpe.app.comparison import candidates_of
from tg_lpe.app.prediction import Predictor, load
from tg_lpe.app.training import TrainConfig, task_for, train
from tg_lpe.checkpoints.checkpoint import (
    CONFIG,
    DESCRIPTION,
    DIGEST,
    WEIGHTS,
    Checkpoint,
    CheckpointMixin,
    Kind,
    module_digest,
)
from tg_lpe.checkpoints.files import check_writable, load_tensors, read_json, replacing, save_tensors, write_json
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


EDGES = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 4, 2]])
CHANGES = {"num_loops": 2, "seed": 1, "normalize": False, DIGEST: "0" * 64, "extra": 1}


class Other(CheckpointMixin, nn.Module):
    """A module whose constructor takes none of the encoder's arguments."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)


def encode(model: LinearTransformer, x: torch.Tensor | None = None) -> torch.Tensor:
    return model(x, EDGES).node


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    randomize_(LinearTransformer(k=4)).save_pretrained(tmp_path / "encoder")
    return tmp_path / "encoder"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_round_trip_is_exact(tmp_path: Path, dtype: torch.dtype) -> None:
    model = randomize_(LinearTransformer(k=5, seed=2**40, update_incidence=True), scale=0.2).to(dtype)
    model.save_pretrained(tmp_path)
    loaded = LinearTransformer.from_pretrained(tmp_path)
    assert torch.equal(encode(loaded), encode(model)) and encode(loaded).dtype == dtype
    assert not loaded.training
    assert all(p.requires_grad for p in loaded.parameters())
    assert module_digest(loaded) == module_digest(model)


def test_parts_of_different_dtypes_get_the_widest(tmp_path: Path) -> None:
    model = GraphTransformer(encoder=LinearTransformer(k=4), hidden_channels=8, heads=2, num_layers=1)
    randomize_(model).encoder.double()  # type: ignore[union-attr]
    model.readout[-1].bias.data = model.readout[-1].bias.data.double()
    model.save_pretrained(tmp_path)
    loaded = GraphTransformer.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(value.double(), loaded[name]) for name, value in model.state_dict().items())


def test_a_configuration_is_no_one_else_s(tmp_path: Path) -> None:
    """Later changes of the caller's dictionary or of the configuration do not affect each other."""
    options = {"full": True, "gamma": 0.5}
    model = GraphTransformer(attention="spectral", attention_options=options, hidden_channels=8, heads=2, num_layers=1)
    options["gamma"] = 0.1
    config = model.config_dict()
    assert config["attention_options"] == {"full": True, "gamma": 0.5}
    config["attention_options"]["softmax"] = "separate"
    assert options == {"full": True, "gamma": 0.1}
    model.save_pretrained(tmp_path)
    assert GraphTransformer.from_pretrained(tmp_path).layers[0].attention.gamma == 0.5


def test_a_new_process_computes_the_same_bits(tmp_path: Path) -> None:
    model = randomize_(LinearTransformer(k=5, seed=3, num_loops=2))
    model.save_pretrained(tmp_path / "encoder")
    save_file({"edges": EDGES}, tmp_path / "edges.safetensors")
    code = """
import sys, torch
from safetensors.torch import load_file, save_file
from tg_lpe import LinearTransformer, LinearTransformerPE
from tg_lpe.checkpoints.checkpoint import module_digest
folder = sys.argv[1]
model = LinearTransformer.from_pretrained(folder + "/encoder")
out = model(None, load_file(folder + "/edges.safetensors")["edges"]).node
save_file({"out": out.detach()}, folder + "/out.safetensors")
print(module_digest(model), LinearTransformerPE(k=2, encoder=model))
"""
    (tmp_path / "load.py").write_text(code, encoding="utf-8")
    said = run_python(str(tmp_path / "load.py"), str(tmp_path), said=tmp_path / "said").strip()
    assert torch.equal(load_file(tmp_path / "out.safetensors")["out"], encode(model))
    from tg_lpe import LinearTransformerPE

    assert said.endswith(f"{module_digest(model)} {LinearTransformerPE(k=2, encoder=model)}")


def flip(path: Path, where: int) -> None:
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)


def alter(path: Path, **change: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        *((name, Path.unlink, f"encoder is incomplete: {name} is missing") for name in (CONFIG, WEIGHTS)),
        *((WEIGHTS, partial(flip, where=at), "was truncated or altered: .* digest") for at in (0, 9, 200, -1, -40)),
        *((CONFIG, partial(alter, **{key: value}), "was truncated or altered") for key, value in CHANGES.items()),
        *((CONFIG, partial(Path.write_text, data=text), "not valid JSON") for text in ("", '{"k": 4')),
        (CONFIG, partial(Path.write_text, data="[1, 2]"), "must hold a JSON object, got list"),
        (CONFIG, partial(Path.write_text, data="{}"), "truncated or altered"),
    ],
)
def test_a_damaged_checkpoint_is_named(saved: Path, name: str, damage: Callable[[Path], None], message: str) -> None:
    damage(saved / name)
    with pytest.raises(ValueError, match=message) as caught:
        LinearTransformer.from_pretrained(saved)
    assert str(saved) in str(caught.value)


def test_a_checkpoint_of_another_class_is_refused(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not fit Other: it holds a LinearTransformer"):
        Other.from_pretrained(saved)
    Other().save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match="does not fit LinearTransformer: it holds a Other"):
        LinearTransformer.from_pretrained(tmp_path / "other")
    assert Other.from_pretrained(tmp_path / "other").linear.in_features == 3


@pytest.mark.parametrize("name", ["no-such-encoder", "./missing/folder", "a/b/c", "~/x", "/nowhere"])
def test_an_unknown_name_lists_what_there_is(name: str) -> None:
    with pytest.raises(ValueError, match="no checkpoint: it must be one of") as caught:
        LinearTransformer.from_pretrained(name)
    assert repr(name) in str(caught.value) and str(zoo.names()) in str(caught.value)


def test_saving_replaces_what_was_there(saved: Path) -> None:
    (saved / "README.md").write_text("my card")
    newer = randomize_(LinearTransformer(k=3), seed=8)
    newer.save_pretrained(saved)
    assert torch.equal(encode(LinearTransformer.from_pretrained(saved)), encode(newer))
    assert (saved / "README.md").read_text() == "my card"
    assert sorted(p.name for p in saved.iterdir()) == ["README.md", CONFIG, WEIGHTS]


def test_files_appear_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file.json"
    write_json(target, {"b": 1, "a": "é"})
    assert read_json(target) == {"b": 1, "a": "é"} and list(read_json(target)) == ["b", "a"]
    with pytest.raises(RuntimeError), replacing(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert read_json(target)["b"] == 1 and [p.name for p in target.parent.iterdir()] == ["file.json"]


def test_tensors_and_metadata_round_trip(tmp_path: Path) -> None:
    shared = torch.arange(6.0).view(2, 3)
    save_tensors(tmp_path / "t", {"a": shared.T, "b": shared, "c": torch.tensor(3)}, {"note": [1, None]})
    tensors, metadata = load_tensors(tmp_path / "t")
    assert torch.equal(tensors["a"], shared.T) and torch.equal(tensors["b"], shared) and tensors["c"] == 3
    assert metadata == {"note": [1, None]}
    (tmp_path / "t").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="damaged or not a safetensors file"):
        load_tensors(tmp_path / "t")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_only_files_are_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for call in (lambda: check_writable(tmp_path / "pipe"), lambda: write_json(tmp_path / "pipe", 1)):
        with pytest.raises(ValueError, match="pipe: it is a device or a pipe; only regular files"):
            call()
    assert (tmp_path / "pipe").is_fifo() and len(list(tmp_path.iterdir())) == 1


def test_another_model_s_card_does_not_stay(tmp_path: Path) -> None:
    (tmp_path / DESCRIPTION).write_text("{}", encoding="utf-8")
    LinearTransformer(k=3).save_pretrained(tmp_path)
    assert not (tmp_path / DESCRIPTION).exists()
