"""Training on one's own graphs: any task and level, any encoder, with weights on edges, and without RDKit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from tg_lpe.data import GraphSplits, random_node_masks
from tg_lpe.hub.files import read_json
from tg_lpe.training import TrainConfig, build_model, make_task, task_for, train
from tg_lpe.training.state import read_metrics

MODEL: dict[str, Any] = {"hidden_channels": 16, "heads": 2, "num_layers": 1}
QUICK = TrainConfig(epochs=20, batch_size=8, lr=1e-2, precision="float32")


def rings(count: int, seed: int, weighted: bool = False) -> list[Data]:
    """Rings with label 1 and paths with label 0, of three to eight nodes."""
    generator = torch.Generator().manual_seed(seed)
    result = []
    for number in range(count):
        size = int(torch.randint(3, 9, (1,), generator=generator))
        ends = torch.arange(size)
        one_way = torch.stack([ends, (ends + 1) % size])[:, : size if number % 2 else size - 1]
        data = Data(edge_index=torch.cat([one_way, one_way.flip(0)], 1), num_nodes=size, x=torch.ones(size, 2))
        data.y = torch.tensor([float(number % 2)])
        if weighted:
            weight = torch.rand(one_way.size(1), generator=generator) + 0.5
            data.edge_weight = torch.cat([weight, weight])
        result.append(data)
    return result


def splits_of_rings(weighted: bool = False) -> GraphSplits:
    return GraphSplits.of(*(rings(n, seed, weighted) for seed, n in enumerate((40, 10, 10))), level="graph")


def test_the_best_epoch_of_a_metric_that_grows(tmp_path: Path) -> None:
    splits = splits_of_rings()
    task = make_task({"name": "binary", "metric": "roc_auc"})
    model = build_model(splits.spec, task, {"class": "RandomWalk", "steps": 8}, **MODEL)
    result = train(model, splits, task, QUICK, folder=tmp_path, progress=False)
    values = [row["val_roc_auc"] for row in read_metrics(tmp_path / "metrics.jsonl")]
    assert result["val_roc_auc"] == max(values) and result["best_epoch"] == values.index(max(values)) + 1
    assert {"test_roc_auc", "test_average_precision", "test_accuracy", "test_roc_auc_relabelled"} <= set(result)
    assert result["test_roc_auc"] > 0.9 and "test_mae" not in result
    assert result["test_roc_auc_relabelled"] == pytest.approx(result["test_roc_auc"], abs=1e-6)


def test_classes_and_logits_of_each() -> None:
    splits = splits_of_rings()
    task = make_task({"name": "multiclass", "num_classes": 3})
    model = build_model(splits.spec, task, {"class": "RandomWalk", "steps": 8}, **MODEL)
    result = train(model, splits, task, QUICK, progress=False)
    assert model.config_dict()["out_channels"] == 3 and result["test_accuracy"] >= 0.8


def test_labels_of_nodes(tmp_path: Path) -> None:
    """Splits of one graph with masks: nodes of a grid, labelled by their number of neighbours."""
    side = 12
    number = torch.arange(side * side).view(side, side)
    ends = torch.cat(
        [
            torch.stack([number[:, :-1], number[:, 1:]], -1).view(-1, 2),
            torch.stack([number[:-1], number[1:]], -1).view(-1, 2),
        ]
    )
    edge_index = torch.cat([ends.T, ends.T.flip(0)], 1)
    label = torch.bincount(edge_index[0]) - 2
    data = Data(edge_index=edge_index, num_nodes=side * side, x=torch.ones(side * side, 1), y=label)
    splits = GraphSplits.of_masks(random_node_masks(data, seed=0))
    task = task_for(splits, "multiclass")
    model = build_model(splits.spec, task, {"class": "RandomWalk", "steps": 4}, **MODEL)
    config = TrainConfig(epochs=40, lr=1e-2, precision="float32")
    result = train(model, splits, task, config, folder=tmp_path, progress=False)
    assert (task.level, task.out_channels) == ("node", 3) and result["test_accuracy"] > 0.9
    assert read_json(tmp_path / "config.json")["task"]["level"] == "node"


@pytest.mark.parametrize("encoder", [{"class": "GramTransformer"}, {"class": "EffectiveResistance"}], ids=str)
def test_weights_of_edges_are_read(encoder: dict[str, Any]) -> None:
    weighted, task = splits_of_rings(weighted=True), make_task({"name": "regression"})
    results = []
    for splits in (weighted, splits_of_rings()):
        model = build_model(splits.spec, task, encoder, **MODEL)
        results.append(train(model, splits, task, QUICK, progress=False))
    assert results[0] != results[1]


def test_a_folder_is_resumed_and_not_overwritten(tmp_path: Path) -> None:
    splits, task = splits_of_rings(), make_task({"name": "binary"})

    def run(epochs: int, resume: bool) -> dict[str, Any]:
        config = TrainConfig(epochs=epochs, batch_size=8, precision="float32")
        model = build_model(splits.spec, task, **MODEL)
        return train(model, splits, task, config, folder=tmp_path, resume=resume, progress=False)

    result = run(2, resume=False)
    assert run(2, resume=True) == result == read_json(tmp_path / "result.json"), "complete: read, not trained again"
    with pytest.raises(ValueError, match="already holds a run"):
        run(2, resume=False)
    with pytest.raises(ValueError, match=r"loop\.epochs was 2, is 3"):
        run(3, resume=True)


def test_any_module_of_the_same_forward_pass() -> None:
    """The loop accepts any model, also one without an encoder."""

    class Mean(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(2, 1)

        def forward(self, x, edge_index, edge_attr, batch, edge_weight, *, num_graphs, **_):  # type: ignore[no-untyped-def]
            return torch.zeros(num_graphs, 1).index_add(0, batch, self.linear(x))

    splits = splits_of_rings()
    result = train(Mean(), splits, make_task({"name": "binary"}), QUICK, progress=False)
    assert result["num_parameters"] == 3 and result["encoder_parameters"] == 0


def test_without_rdkit_and_ogb(tmp_path: Path) -> None:
    code = """
import sys
for name in ("rdkit", "ogb"):
    sys.modules[name] = None
import torch
from torch_geometric.data import Data
from tg_lpe.data import GraphSplits
from tg_lpe.training import TrainConfig, build_model, task_for, train
ring = torch.tensor([[0, 1, 2, 1, 2, 0], [1, 2, 0, 0, 1, 2]])
graphs = [Data(x=torch.full((3, 1), float(n)), edge_index=ring, y=torch.tensor([n + 0.5])) for n in range(6)]
splits = GraphSplits.of(graphs[:4], graphs[4:5], graphs[5:], level="graph")
task = task_for(splits)
model = build_model(splits.spec, task, {"class": "GramTransformer"}, hidden_channels=8, num_layers=1)
print(train(model, splits, task, TrainConfig(epochs=1), progress=False)["test_mae"] > 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr
