"""OGB's features and Evaluator with the models here, on a few molecules and on real ones where they are."""

from __future__ import annotations

import csv
import gzip
import io
import lzma
from pathlib import Path

import pytest
import torch
from pages import ROOT
from torch_geometric.data import Data
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import GlobalStorage
from torch_geometric.loader import DataLoader

pytest.importorskip("rdkit")
pytest.importorskip("ogb")

from ogb.graphproppred import Evaluator, PygGraphPropPredDataset
from ogb.utils import smiles2graph
from ogb.utils.features import get_atom_feature_dims, get_bond_feature_dims

from tg_lpe import LinearTransformerPE
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


def test_a_dataset_of_ogb_loads_as_documented(tmp_path: Path) -> None:
    """OGB reads its own file with ``torch.load``, which refuses PyG's classes unless they are allowed."""
    folder, atom, bond = tmp_path / "ogbg_tiny", "7," * 8 + "7\n", "2,2,2\n"
    files = {
        "raw/edge.csv.gz": "0,1\n1,2\n0,1\n",
        "raw/num-node-list.csv.gz": "3\n2\n",
        "raw/num-edge-list.csv.gz": "2\n1\n",
        "raw/node-feat.csv.gz": atom * 5,
        "raw/edge-feat.csv.gz": bond * 3,
        "raw/graph-label.csv.gz": "0\n1\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(gzip.compress(text.encode()))
    (folder / "RELEASE_v1.txt").touch()
    meta = dict.fromkeys(("additional node files", "additional edge files"), "None")
    meta |= dict.fromkeys(("has_node_attr", "has_edge_attr", "add_inverse_edge"), "True")
    meta |= {"dir_path": str(folder), "download_name": "tiny", "task type": "binary classification", "binary": "False"}
    meta |= {"num tasks": 1, "num classes": 2, "eval metric": "rocauc", "version": 1, "url": "", "split": "scaffold"}
    options = {"root": str(tmp_path), "meta_dict": meta, "pre_transform": LinearTransformerPE(8, attr_name="pe")}
    text = (ROOT / "docs/tutorials/ogb.md").read_text(encoding="utf-8")
    allowed = [DataEdgeAttr, DataTensorAttr, GlobalStorage]
    assert f"add_safe_globals([{', '.join(cls.__name__ for cls in allowed)}])" in text
    with torch.serialization.safe_globals(allowed):
        dataset = PygGraphPropPredDataset("ogbg-tiny", **options)
    assert [data.pe.shape for data in dataset] == [(3, 8), (2, 8)]
