"""A user's own model works wherever the graph transformer does."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from helpers import unparsed
from torch_geometric.data import Data

import tg_lpe
from tg_lpe.app.cli import main
from tg_lpe.app.prediction import load
from tg_lpe.app.training import TrainConfig, build_model, make_task, task_for, train
from tg_lpe.data import GraphSplits
from tg_lpe.models import make_model

OWN = '''
import torch
from torch import nn
import tg_lpe
from tg_lpe.encoders import as_encoder

@tg_lpe.models.register
class OwnModel(tg_lpe.models.Model):
    """A perceptron of each node's type and encoding, summed over the nodes of a graph.

    Args:
        channels: hidden width.
    """

    def __init__(self, num_node_types: int, out_channels: int = 1, encoder=None, channels: int = 8):
        super().__init__()
        self.encoder = as_encoder(encoder)
        self.types = nn.Embedding(num_node_types, channels)
        self.pe_embedding = None if encoder is None else nn.Linear(self.encoder.out_channels, channels)
        self.readout = nn.Linear(channels, out_channels)

    def forward(self, x, edge_index, edge_attr=None, batch=None, edge_weight=None, *, precomputed=None,
                num_nodes=None, num_graphs=None, generator=None):
        h = self.types(x.flatten())
        if self.encoder is not None:
            given = {"generator": generator, "precomputed": precomputed, "num_graphs": num_graphs}
            h = h + self.pe_embedding(self.encoder(x, edge_index, edge_attr, batch, **given).node)
        batch = torch.zeros_like(x.flatten()) if batch is None else batch
        return self.readout(h.relu().new_zeros(num_graphs or 1, h.size(1)).index_add(0, batch, h.relu()))
'''


def graphs(count: int, seed: int = 0) -> list[Data]:
    """Random graphs whose label is their number of nodes of type 1."""
    generator = torch.Generator().manual_seed(seed)
    result = []
    for _ in range(count):
        x = torch.randint(2, (int(torch.randint(2, 9, (1,), generator=generator)), 1), generator=generator)
        path = torch.stack([torch.arange(x.size(0) - 1), torch.arange(1, x.size(0))])
        result.append(Data(x=x, edge_index=torch.cat([path, path.flip(0)], 1), y=x.sum().float().view(1)))
    return result


def test_trained_loaded_and_saved(own: ModuleType, tmp_path: Path) -> None:
    splits = GraphSplits.of(graphs(40), graphs(10, 1), graphs(10, 2), level="graph")
    task = task_for(splits, "regression")
    encoder = {"class": "RandomWalk", "steps": 3}
    model = build_model(splits.spec, task, encoder, model=own.OwnModel, channels=16)
    config = TrainConfig(epochs=30, batch_size=8, lr=3e-2, precision="float32")
    result = train(model, splits, task, config, folder=tmp_path / "run", progress=False)
    assert result["test_mae"] < 0.5
    predictor = load(tmp_path / "run")
    assert type(predictor.model) is own.OwnModel
    some = graphs(5, 3)
    values = predictor.predict(some).values
    assert float((values.squeeze(1) - torch.cat([graph.y for graph in some])).abs().mean()) < 0.5
    predictor.save(tmp_path / "checkpoint")
    assert torch.equal(load(tmp_path / "checkpoint").predict(some).values, values)


def test_what_it_lacks_is_refused(own: ModuleType) -> None:
    splits = GraphSplits.of(graphs(4), graphs(2), graphs(2), level="graph")
    task = make_task({"name": "regression"})
    with pytest.raises(ValueError, match=r"unknown arguments \['heads'\] of OwnModel; known are \['channels'"):
        build_model(splits.spec, task, model="OwnModel", heads=2)
    nodes = make_task({"name": "regression", "level": "node"})
    with pytest.raises(ValueError, match="level="):
        build_model(splits.spec, nodes, model="OwnModel")
    with pytest.raises(ValueError, match="model must"):
        build_model(splits.spec, task, model="Unknown")


def test_registered_classes_are_models() -> None:
    with pytest.raises(TypeError, match="a model must"):
        tg_lpe.models.register(torch.nn.Linear)  # type: ignore[type-var]

    class Silent(tg_lpe.models.Model):
        def forward(self, *args: object, **kwargs: object) -> None: ...

    with pytest.raises(TypeError, match="Silent must"):
        tg_lpe.models.register(Silent)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", ["own_classes.OwnModel", "OwnModel"])
def test_on_the_command_line(own: ModuleType, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rdkit")
    lines = [f"{'C' * length}{end},{length}.5" for length in range(2, 8) for end in ("O", "N", "C(C)C")]
    (tmp_path / "own.csv").write_text("smiles,size\n" + "\n".join(lines) + "\n", encoding="utf-8")
    common = ["train", "own.csv", "--cache", "cache", "--threads", "1", "--quiet", "--epochs", "1", "--target", "size"]
    chosen = ["--import", "own_classes", "--model", name]
    with pytest.raises(SystemExit) as stopped:
        main(["train", *chosen, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert stopped.value.code == 0 and "--model.channels CHANNELS hidden width" in shown
    assert "--model.out_channels" not in shown and "--model.heads" not in shown
    walks = ["--encoder", "RandomWalk", "--encoder.steps", "3"]
    assert main([*common, *chosen, *walks, "--model.channels", "4", "--out", "own4"]) == 0
    config = json.loads(Path("own4", "config.json").read_text())
    assert config["model"]["class"] == "OwnModel" and config["model"]["channels"] == 4
    assert main([*common, *chosen, "--model.channels", "4", "--out", "own4", *walks, "--resume"]) == 0  # complete
    Path("options.yaml").write_text(f"model:\n  class: {name}\n  channels: 4\nimport: [own_classes]\n")
    assert main([*common, "--config", "options.yaml", *walks, "--model.channels", "6", "--out", "own6"]) == 0
    config = json.loads(Path("own6", "config.json").read_text())
    assert config["model"]["class"] == "OwnModel" and config["model"]["channels"] == 6
    assert "unrecognized arguments: --model.heads" in unparsed(capsys, *common, *chosen, "--model.heads", "2")
    assert "--preset paper sets heads, hidden_channels" in unparsed(capsys, *common, *chosen, "--preset", "paper")
    assert "--model must be one of GraphTransformer" in unparsed(capsys, *common, "--model", "Unknown")
    small = ["--model.hidden_channels", "8", "--model.num_layers", "1"]
    assert main([*common, *walks, *small, "--out", "transformer"]) == 0
    assert main(["predict", "own4", "own.csv", "out.csv", "--threads", "1", "--quiet"]) == 0
    assert len(Path("out.csv").read_text().splitlines()) == len(lines) + 1
    pytest.importorskip("matplotlib")
    capsys.readouterr()
    assert main(["report", "own4", "own6", "transformer"]) == 0
    table = capsys.readouterr().out
    for label in (
        "RandomWalk, OwnModel, channels 4",
        "RandomWalk, OwnModel, channels 6",
        "RandomWalk, GraphTransformer",
    ):
        assert label in table, table


def test_a_model_without_encoder_gets_none() -> None:
    @tg_lpe.models.register
    class Counter(tg_lpe.models.Model):
        def __init__(self, out_channels: int = 1) -> None:
            super().__init__()
            self.readout = torch.nn.Linear(1, out_channels)

        def forward(self, x, edge_index, edge_attr=None, batch=None, edge_weight=None, **given):  # type: ignore[no-untyped-def]
            return self.readout(torch.bincount(batch, minlength=given["num_graphs"]).float().unsqueeze(1))

    assert type(make_model({"class": "Counter", "encoder": None})) is Counter
    splits = GraphSplits.of(graphs(4), graphs(2), graphs(2), level="graph")
    with pytest.raises(ValueError, match="encoder"):
        build_model(splits.spec, make_task({"name": "regression"}), {"class": "RandomWalk"}, model=Counter)
