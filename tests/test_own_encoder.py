"""A user's own encoder works wherever the encoders of the package do."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from tg_lpe import Encoder
from tg_lpe.app.cli import main
from tg_lpe.app.training import TrainConfig, build_model, train
from tg_lpe.data import GraphSplits
from tg_lpe.encoders import ENCODERS
from tg_lpe.testing import EncoderTestCase

OWN = '''
import torch
from torch import nn
import tg_lpe

@tg_lpe.encoders.register
class DegreeTable(tg_lpe.Encoder):
    """A learned row for each degree; at an edge, the sum of the rows of its ends.

    Args:
        out_channels: width of both encodings.
        largest: degrees above it share a row.
    """

    def __init__(self, out_channels: int = 4, edge_out_channels: int | None = None, largest: int = 8):
        super().__init__()
        self.out_channels = out_channels
        self.edge_out_channels = out_channels if edge_out_channels is None else edge_out_channels
        self.rows = nn.Embedding(largest + 1, out_channels)

    def precompute(self, graph):
        degree = torch.bincount(graph.edge_index[1], minlength=graph.num_nodes)
        return {"node_degree": degree.clamp(max=self.rows.num_embeddings - 1)}

    def encode(self, graph, inputs):
        node = self.rows((inputs.precomputed or self.precompute(graph))["node_degree"])
        edge = node[graph.edge_index].sum(0) if self.edge_out_channels else None
        return tg_lpe.Encoding(node, edge)
'''

PAGE = Path(__file__).parents[1] / "docs" / "add_your_own.md"


class TestTheEncoderOfTheDocumentation(EncoderTestCase):
    learned = True
    checks_precomputed = False

    def make(self) -> Encoder:
        names: dict[str, Any] = {}
        if "DegreeEmbedding" not in ENCODERS:
            exec(PAGE.read_text(encoding="utf-8").split("```python\n")[1].partition("```")[0], names)
        return ENCODERS["DegreeEmbedding"]()


def graphs(count: int, seed: int = 0) -> list[Data]:
    """Random graphs whose label is their number of nodes of degree two or more: degrees decide it."""
    generator = torch.Generator().manual_seed(seed)
    result = []
    for _ in range(count):
        size = int(torch.randint(2, 9, (1,), generator=generator))
        chosen = torch.triu(torch.rand(size, size, generator=generator) < 0.4, 1).nonzero().T
        edge_index = torch.cat([chosen, chosen.flip(0)], 1)
        label = (torch.bincount(edge_index[1], minlength=size) > 1).float().sum()
        result.append(Data(edge_index=edge_index, num_nodes=size, x=torch.ones(size, 1), y=label.view(1)))
    return result


def test_trained_jointly_on_own_graphs(own: ModuleType, tmp_path: Path) -> None:
    splits = GraphSplits.of(graphs(40), graphs(10, 1), graphs(10, 2), level="graph")
    from tg_lpe.app.training import make_task
    from tg_lpe.data.seeding import seeded

    task = make_task({"name": "regression"})
    with seeded(0):
        encoder = own.DegreeTable()
    model = build_model(splits.spec, task, encoder, hidden_channels=16, num_layers=1, readout={"pooling": "sum"})
    before = model.encoder.rows.weight.detach().clone()
    config = TrainConfig(epochs=15, batch_size=8, lr=1e-2, precision="float32")
    result = train(model, splits, task, config, folder=tmp_path / "run", progress=False)
    assert result["test_mae"] < 0.5 and result["test_mae_relabelled"] == pytest.approx(result["test_mae"], rel=1e-4)
    assert not torch.equal(model.encoder.rows.weight, before)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["encoder"] == {"class": "DegreeTable", "out_channels": 4, "edge_out_channels": None, "largest": 8}


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", ["own_classes.DegreeTable", "DegreeTable"])
def test_on_the_command_line(own: ModuleType, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rdkit")
    lines = [f"{'C' * length}{end},{length}.5" for length in range(2, 8) for end in ("O", "N", "C(C)C")]
    (tmp_path / "own.csv").write_text("smiles,size\n" + "\n".join(lines) + "\n", encoding="utf-8")
    common = ["own.csv", "--cache", "cache", "--threads", "1", "--quiet"]
    options = ["--epochs", "1", "--target", "size", "--model.hidden_channels", "8", "--model.num_layers", "1"]
    chosen = ["--import", "own_classes", "--encoder", name]
    with pytest.raises(SystemExit) as stopped:
        main(["train", *chosen, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert stopped.value.code == 0 and "--encoder.largest LARGEST degrees above it share a row" in shown
    for largest in ("3", "5"):
        command = ["train", *common, *options, *chosen, "--encoder.largest", largest, "--out", f"run{largest}"]
        assert main(command) == 0
        out = capsys.readouterr().out
        assert f"own.csv, DegreeTable: all in run{largest}" in out and "test MAE" in out
    config = json.loads(Path("run3", "config.json").read_text())
    assert config["encoder"]["class"] == "DegreeTable" and config["encoder"]["largest"] == 3
    assert main(["train", *common, *options, "--encoder", "none", "--out", "none"]) == 0
    pretrain = ["pretrain", *common, "--epochs", "1", "--eigenvectors", "4", *chosen, "--out", "pre"]
    assert main(pretrain) == 0
    assert main(["train", *common, *options, "--pretrained", "pre/encoder", "--out", "from-pre"]) == 0
    pytest.importorskip("matplotlib")
    capsys.readouterr()
    assert main(["report", "run3", "run5", "none", "pre", "from-pre"]) == 0
    table = capsys.readouterr().out
    for label in ("DegreeTable, largest 3", "DegreeTable, largest 5", "DegreeTable from pre", "none"):
        assert f"  {label}  " in table or f"* {label}  " in table, table
    assert "DegreeTable" in Path("report.html").read_text(encoding="utf-8")
