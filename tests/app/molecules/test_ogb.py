"""OGB's features and Evaluator with the models here, on a few molecules and on real ones where they are."""

from __future__ import annotations

import csv
import io
import lzma
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

pytest.importorskip("rdkit")
pytest.importorskip("ogb")

from ogb.graphproppred import Evaluator
from ogb.utils import smiles2graph
from ogb.utils.features import get_atom_feature_dims, get_bond_feature_dims

from tg_lpe.app.molecules import load_molecules
from tg_lpe.app.training import build_model, task_for
from tg_lpe.data import DataSpec, GraphSplits

ALCOHOLS = [("C" * n + "O" * label, label) for n in range(1, 9) for label in (0, 1)]
SPEC = DataSpec(num_node_types=tuple(get_atom_feature_dims()), num_edge_types=tuple(get_bond_feature_dims()))


def as_ogb_stores_it(smiles: str, label: float) -> Data:
    graph = smiles2graph(smiles)
    return Data(
        x=torch.from_numpy(graph["node_feat"]),
        edge_index=torch.from_numpy(graph["edge_index"]),
        edge_attr=torch.from_numpy(graph["edge_feat"]),
        y=torch.tensor([[int(label)]]),
    )


def check(molecules: list[tuple[str, int]], folder: Path) -> None:
    """Read from files or as OGB stores them: one model predicts the same, and both Evaluators agree."""
    for part in ("train", "val", "test"):
        rows = "".join(f"{smiles},{label}\n" for smiles, label in molecules)
        (folder / f"{part}.csv").write_text("smiles,y\n" + rows, encoding="utf-8")
    read = load_molecules(folder, features="ogb", cache_dir=folder / "cache", num_workers=0, progress=False)
    graphs = [as_ogb_stores_it(*molecule) for molecule in molecules]
    stored = GraphSplits.of(graphs, graphs, graphs, spec=SPEC)
    assert stored.spec is SPEC and read.spec.num_node_types == SPEC.num_node_types
    assert read.spec.num_edge_types == SPEC.num_edge_types
    task = task_for(stored, "binary")
    torch.manual_seed(0)
    model = build_model(SPEC, task, {"class": "GramTransformer"}, hidden_channels=16, heads=2, num_layers=2).eval()
    scores = []
    for splits in (read, stored):
        (batch,) = DataLoader(splits.test, batch_size=len(molecules))
        with torch.no_grad():
            scores.append(model(batch.x, batch.edge_index, batch.edge_attr, batch.batch))
        y = batch.y.view(-1, 1)
        rocauc = Evaluator("ogbg-molhiv").eval({"y_true": y, "y_pred": scores[-1]})["rocauc"]
        assert task.evaluate(scores[-1], y)["roc_auc"] == pytest.approx(rocauc, abs=1e-6)
    torch.testing.assert_close(*scores)
    assert scores[0].std() > 0


def test_alcohols(tmp_path: Path) -> None:
    check(ALCOHOLS, tmp_path)


def test_molhiv(shared_data: Path, tmp_path: Path) -> None:
    with lzma.open(shared_data / "molhiv" / "val.csv.xz", "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(io.StringIO(file.read())))
    active = [row for row in rows if row["y"] == "1"][:20]
    check([(row["smiles"], int(row["y"])) for row in rows[:100] + active], tmp_path)
