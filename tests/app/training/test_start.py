"""Trainings that begin from the weights of a trained model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from tg_lpe import GraphTransformer
from tg_lpe.app.cli import main
from tg_lpe.app.prediction import load
from tg_lpe.app.training import TrainConfig, build_model, train
from tg_lpe.app.training.tasks import Regression
from tg_lpe.checkpoints.files import load_tensors
from tg_lpe.data import GraphSplits
from tg_lpe.encoders import RandomWalk

SMALL = {"num_node_types": 3, "hidden_channels": 8, "heads": 2, "num_layers": 2}


def model(seed: int, **options: Any) -> GraphTransformer:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GraphTransformer(**{**SMALL, **options})


LAST = "readout.2."
"""The last map of the read-out, which a start sets to zero."""


def copies(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def test_all_but_the_head_is_taken_over() -> None:
    trained, fresh = model(0, encoder=RandomWalk(4)), model(1, encoder=RandomWalk(4), out_channels=5)
    with torch.no_grad():
        for value in trained.state_dict().values():
            value.add_(1)  # statistics of batch norms too
    before, other = copies(fresh), copies(trained)
    fresh.start_from(trained)
    for name, value in fresh.state_dict().items():
        own = torch.zeros_like(value) if name.startswith(LAST) else before[name]
        assert torch.equal(value, own if name.startswith("readout.") else other[name]), name
    assert all(torch.equal(value, other[name]) for name, value in trained.state_dict().items())
    assert fresh.readout[-1].out_features == 5
    edges = torch.tensor([[0, 1], [1, 0]])
    first = fresh.eval()(torch.tensor([0, 1]), edges)
    assert not bool(first.any())  # of scaled labels the mean, whatever the graph


def test_models_that_do_not_fit_are_refused_and_left_alone() -> None:
    class Other(GraphTransformer):
        """Of another class."""

    fresh = model(0)
    before = copies(fresh)
    for trained, message in (
        (model(1, hidden_channels=16), "node_embedding"),
        (model(1, num_node_types=4), "node_embedding"),
        (model(1, num_layers=1), "absent there"),
        (model(1, encoder=RandomWalk(4)), "pe_embedding"),
        (model(1, heads=4), "heads"),
        (Other(**SMALL), "Other"),
    ):
        with pytest.raises(ValueError, match=message):
            fresh.start_from(trained)
    with pytest.raises(ValueError, match="fresh"):
        fresh.start_from(model(1), fresh=("embedding",))
    with pytest.raises(TypeError, match="fresh"):
        fresh.start_from(model(1), fresh="layers")
    assert all(torch.equal(value, before[name]) for name, value in fresh.state_dict().items())


def test_parts_that_stay_fresh() -> None:
    trained, fresh = model(0, encoder=RandomWalk(4)), model(1, encoder=RandomWalk(4), num_node_types=7)
    before, other = copies(fresh), copies(trained)
    fresh.start_from(trained, fresh=("node_embedding",))
    for name, value in fresh.state_dict().items():
        own = name.startswith(("readout.", "node_embedding.")) and not name.startswith(LAST)
        assert name.startswith(LAST) or torch.equal(value, before[name] if own else other[name]), name


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("rdkit")
    monkeypatch.chdir(tmp_path)
    chains = [f"{'C' * length}{end}" for length in range(2, 8) for end in ("O", "N", "F")]
    lines = [f"{smiles},{len(smiles)}.5" for smiles in chains]
    Path("large.csv").write_text("smiles,size\n" + "\n".join(lines) + "\n", encoding="utf-8")
    classes = [f"{smiles},{number % 2},{'' if number % 3 else 1 - number % 2}" for number, smiles in enumerate(chains)]
    classes.append("CCS,0,1")  # an element that the first file does not have
    Path("small.csv").write_text("smiles,a,b\n" + "\n".join(classes) + "\n", encoding="utf-8")
    return tmp_path


COMMON = ["--cache", "cache", "--threads", "1", "--quiet", "--epochs", "1"]
TRAINED = ["--model.hidden_channels", "8", "--model.num_layers", "1", "--model.readout.pooling", "sum"]
TRAINED += ["--encoder", "RandomWalk"]
LABELS = ["--target", "a", "b", "--task", "multilabel", "--task.metric", "accuracy"]


def weights(folder: str) -> dict[str, Tensor]:
    return load_tensors(Path(folder, "model.safetensors"))[0]


@pytest.mark.usefixtures("files", "threads")
@pytest.mark.parametrize("features", ["types", "ogb"])
def test_on_the_command_line(features: str, capsys: pytest.CaptureFixture[str]) -> None:
    if features == "ogb":
        pytest.importorskip("ogb")
    train = ["train", "large.csv", *COMMON, "--target", "size", *TRAINED, "--encoder.steps", "5"]
    assert main([*train, "--features", features, "--out", "first"]) == 0
    tune = ["train", "small.csv", *COMMON, *LABELS, "--start", "first", "--lr", "1e-9", "--encoder_lr", "1e-9"]
    assert main([*tune, "--model.attention_options.dropout", "0.25", "--out", "second"]) == 0
    assert "small.csv, RandomWalk-from-first: all in second\nsmall.csv, " in capsys.readouterr().out
    config = json.loads(Path("second", "config.json").read_text())
    assert config["start"] == "first" and config["encoder"] == {**config["encoder"], "class": "RandomWalk", "steps": 5}
    assert config["model"]["hidden_channels"] == 8 and config["model"]["readout"]["pooling"] == "sum"
    assert config["model"]["attention_options"] == {"dropout": 0.25} and config["model"]["out_channels"] == 2
    assert config["data"]["atom_types"] == json.loads(Path("first", "config.json").read_text())["data"]["atom_types"]
    assert sum(config["data"][f"num_{part}"] for part in ("train", "val", "test")) == 18 + (features == "ogb")
    before, after = weights("first"), weights("second")
    assert before.keys() == after.keys()
    for name, value in after.items():
        if "running" not in name and "batches" not in name and not name.startswith("readout."):
            torch.testing.assert_close(value, before[name], rtol=1e-4, atol=1e-6)
    assert load("second").predict(["CCO"]).values.shape == (1, 2)
    assert main([*tune, "--model.attention_options.dropout", "0.25", "--out", "second", "--resume"]) == 0  # complete
    other = {"types": "ogb", "ogb": "types"}[features]
    assert main([*tune, "--features", other, "--out", "third"]) == 1
    assert f"model first was trained with --features {features}, got --features {other}" in capsys.readouterr().err


@pytest.mark.usefixtures("files", "threads")
def test_from_pairs_of_nodes_to_triples(capsys: pytest.CaptureFixture[str]) -> None:
    """A run of another order brings its options and its layers; embeddings and read-out are new."""
    tuples = ["--model", "TupleTransformer", "--model.hidden_channels", "12", "--model.heads", "3"]
    train = ["train", "large.csv", *COMMON, "--target", "size"]
    assert main([*train, *tuples, "--model.num_layers", "2", "--encoder", "RandomWalk", "--out", "pairs"]) == 0
    triples = [*train, "--start", "pairs", "--model.k", "3", "--seed", "1", "--lr", "1e-12", "--encoder_lr", "1e-12"]
    assert main([*triples, "--out", "triples"]) == 0
    config = json.loads(Path("triples", "config.json").read_text())
    chosen = {name: config["model"][name] for name in ("class", "k", "s", "hidden_channels", "heads", "num_layers")}
    assert list(chosen.values()) == ["TupleTransformer", 3, 1, 12, 3, 2]
    assert config["start"] == "pairs" and config["encoder"]["class"] == "RandomWalk"
    before, after = weights("pairs"), weights("triples")
    for name in before.keys() & after.keys():
        if name.startswith(("layers.", "token_norm.")):
            torch.testing.assert_close(after[name], before[name], rtol=0, atol=1e-8)
        elif name.endswith("weight") and "norm" not in name and name not in ("readout.2.weight", "graph_token.weight"):
            assert before[name].shape != after[name].shape or (after[name] - before[name]).abs().max() > 1e-3, name
    assert main([*triples, "--model.num_layers", "1", "--out", "short"]) == 1
    assert "--start pairs: the layers do not fit: num_layers is 1 here and 2 there" in capsys.readouterr().err


@pytest.mark.usefixtures("files", "threads")
def test_what_does_not_fit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    train = ["train", "large.csv", *COMMON, "--target", "size", *TRAINED]
    assert main([*train, "--out", "first"]) == 0
    tune = ["train", "small.csv", *COMMON, *LABELS, "--start", "first"]
    assert main([*tune, "--model.hidden_channels", "16", "--out", "wide"]) == 1
    assert "--start first: the weights do not fit: node_embedding" in capsys.readouterr().err
    load("first").model.save_pretrained("bare")  # type: ignore[operator]
    assert main([*tune[:-1], "bare", "--out", "none"]) == 1
    assert "model bare does not say how it reads molecules" in capsys.readouterr().err


def test_the_head_has_a_learning_rate_of_its_own() -> None:
    """A few steps at the rate of trained weights leave a fresh read-out where it began."""
    parts = [[Data(x=torch.tensor([[0], [1]]), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.rand(1))] * 2] * 3
    splits = GraphSplits.of(*parts, level="graph")
    network = build_model(splits.spec, Regression(), hidden_channels=8, heads=2, num_layers=1)
    before = copies(network)
    train(network, splits, Regression(), TrainConfig(epochs=1, lr=1e-9, head_lr=0.1, encoder_lr=0.0), progress=False)
    moved = {name: float((value - before[name]).abs().max()) for name, value in network.named_parameters()}
    assert moved["readout.2.bias"] > 1e-4
    assert all(change < 1e-6 for name, change in moved.items() if not name.startswith("readout."))
