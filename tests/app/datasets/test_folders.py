"""Folders that the classes of PyTorch Geometric and OGB have made from raw files, read as they are."""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData, InMemoryDataset
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import GlobalStorage
from torch_geometric.datasets import QM9, ZINC, LRGBDataset, MoleculeNet

from tg_lpe.app.cli import main
from tg_lpe.app.datasets import load_folder
from tg_lpe.app.datasets.splits import graph_files, read_graphs, splits_of
from tg_lpe.data import GraphSplits, random_split
from tg_lpe.data.splits import PARTS

TINY = ["--epochs", "1", "--model.hidden_channels", "8", "--model.num_layers", "1", "--quiet", "--threads", "1"]


def path_graph(size: int) -> torch.Tensor:
    one_way = torch.stack([torch.arange(size - 1), torch.arange(1, size)])
    return torch.cat([one_way, one_way.flip(0)], dim=1)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())


def same(folder: Path, expected: GraphSplits) -> bool:
    """Whether a folder holds exactly these graphs, labels and parts."""
    read = load_folder(folder)
    return read.digest() == expected.digest() and read.spec == expected.spec and read.target == expected.target


@pytest.fixture
def zinc(tmp_path: Path) -> Path:
    """The root folder of ``ZINC``, of paths of three to seven atoms."""
    for shift, part in enumerate(PARTS):
        write(tmp_path, {f"raw/{part}.index": "0,2,3,4\n"})
        graphs = []
        for size in range(3, 8):
            bonds = torch.zeros(size, size, dtype=torch.int64)
            bonds[tuple(path_graph(size))] = 1 + size % 3
            types, label = (torch.arange(size) + shift) % 4, torch.tensor([size / 3 - shift])
            graphs.append({"atom_type": types, "bond_type": bonds, "logP_SA_cycle_normalized": label})
        (tmp_path / "raw" / f"{part}.pickle").write_bytes(pickle.dumps(graphs))
    ZINC(tmp_path, subset=True)
    return tmp_path


def test_zinc(zinc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = GraphSplits.of(*(ZINC(zinc, subset=True, split=part) for part in PARTS))
    assert same(zinc, expected) and same(zinc / "subset", expected) and len(expected.train) == 4
    shutil.rmtree(zinc / "raw")  # read without it, and without a download
    for run, source in {"named": ["zinc12k", "--data", str(zinc)], "root": [str(zinc)]}.items():
        assert main(["train", *source, "--out", str(zinc / run), *TINY]) == 0, capsys.readouterr().err
        config = json.loads((zinc / run / "config.json").read_text())
        assert config["data"]["split"] == {"kind": "published"} and config["data"]["digest"] == expected.digest()
        assert ("mean" in config["task"]) == (run == "root")  # labels of zinc12k are not scaled
    assert main(["report", str(zinc / "named"), str(zinc / "root"), "--out", str(zinc / "report.html")]) == 0
    assert main(["compare", str(zinc), "--encodings", "none", "walks", "--out", str(zinc / "out"), *TINY]) == 0
    write(zinc, {"in.smi": "CCO\n"})
    assert main(["predict", str(zinc / "root"), str(zinc / "in.smi"), "-"]) == 1
    assert "this model cannot read SMILES" in capsys.readouterr().err
    for name in ("zinc", "qm9-solubility"):
        assert main(["train", name, "--data", str(zinc), *TINY]) == 1
        assert f"{name} computes its label from SMILES, which the graphs in {zinc} lack" in capsys.readouterr().err
    for option in (
        "--split butina",
        "--split random",
        "--split_column random",
        "--features ogb",
        "--folds 3",
        "--split_seed 3",
    ):
        assert main(["train", str(zinc), *option.split(), "--out", str(zinc / "run"), *TINY]) == 1
        assert f"{option} would have no effect with {zinc}" in capsys.readouterr().err


def test_qm9(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chem = pytest.importorskip("rdkit.Chem")
    rows = [",".join([f"gdb_{n}", *(f"{n + column / 100}" for column in range(19))]) for n in range(12)]
    lists = {"raw/gdb9.sdf.csv": "\n".join(["header", *rows, ""]), "raw/uncharacterized.txt": "\n" * 9 + "3 C\n\n"}
    write(tmp_path, lists)
    with chem.SDWriter(str(tmp_path / "raw" / "gdb9.sdf")) as writer:
        for size in range(2, 14):
            writer.write(chem.AddHs(chem.MolFromSmiles("C" * size)))
    expected = GraphSplits.of(*random_split(QM9(tmp_path), 5))
    splits = load_folder(tmp_path, seed=5, targets=["gap", "A"])
    assert splits.target.columns == ("gap", "A") and splits.target.units == ("eV", "GHz")
    assert torch.equal(splits.labels("val"), expected.labels("val")[:, [4, 16]])
    assert splits.spec == expected.spec and splits.spec.in_channels == 11
    assert main(["train", "zinc12k", "--data", str(tmp_path), *TINY]) == 1
    assert f"zinc12k has one label, but graphs in {tmp_path} have 19" in capsys.readouterr().err
    train = ["train", "qm9", "--data", str(tmp_path), "--out", str(tmp_path / "run"), *TINY, "--target"]
    assert main([*train, "gapp"]) == 1
    assert "--target gapp must be some of the columns mu, alpha, homo" in capsys.readouterr().err
    assert main([*train, "gap", "--split", "random", "--seed", "5", "--graphs", "6"]) == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["data"]["split"] == {"kind": "random", "seed": 5} and config["data"]["num_train"] == 6


def test_moleculenet(tmp_path: Path) -> None:
    pytest.importorskip("rdkit")
    rows = "".join(f"x,{n / 2},c1ccccc1{'C' * n}O\n" for n in range(1, 13))
    write(tmp_path, {"esol/raw/delaney-processed.csv": "id,logp,smiles\n" + rows})
    dataset = MoleculeNet(tmp_path, "ESOL")
    assert len(dataset) == 12 and same(tmp_path, GraphSplits.of(*random_split(dataset, 0)))


def test_peptides(tmp_path: Path) -> None:
    (tmp_path / "peptides-func" / "raw").mkdir(parents=True)
    for shift, part in enumerate(PARTS):
        features = {n: (torch.full((n, 9), n), torch.full((2 * n - 2, 3), 2)) for n in range(3, 9)}
        graphs = [(*features[n], path_graph(n), torch.eye(10)[[n - shift]]) for n in features]
        torch.save(graphs, tmp_path / "peptides-func" / "raw" / f"{part}.pt")
    expected = [LRGBDataset(tmp_path, "peptides-func", part) for part in PARTS]
    assert same(tmp_path, GraphSplits.of(*expected)) and len(load_folder(tmp_path).target.columns) == 10


def test_ogb(tmp_path: Path) -> None:
    ogb, folder = pytest.importorskip("ogb.graphproppred"), tmp_path / "ogbg_molhiv"
    parts = {"train": [4, 0, 2], "valid": [1], "test": [3, 5]}
    nodes = "".join(f"{n},2,2,2,2,2,2,2,2\n" for n in range(12))
    raw = {"edge": "0,1\n" * 6, "edge-feat": "2,2,2\n" * 6, "node-feat": nodes, "graph-label": "0\n1\n" * 3}
    raw |= {"num-node-list": "2\n" * 6, "num-edge-list": "1\n" * 6}
    split = {part: "".join(f"{row}\n" for row in rows) for part, rows in parts.items()}
    write(folder, {f"raw/{name}.csv.gz": text for name, text in raw.items()})
    write(folder, {f"split/scaffold/{name}.csv.gz": text for name, text in split.items()} | {"RELEASE_v1.txt": ""})
    with torch.serialization.safe_globals([DataEdgeAttr, DataTensorAttr, GlobalStorage]):
        dataset = ogb.PygGraphPropPredDataset("ogbg-molhiv", str(tmp_path))
    rows = dataset.get_idx_split()
    assert same(folder, GraphSplits.of(*(dataset[rows[part]] for part in parts)))


def test_nodes_of_one_graph(tmp_path: Path) -> None:
    graph = Data(x=torch.rand(9, 2), edge_index=path_graph(9), y=torch.arange(9) % 3)
    for number, name in enumerate(PARTS):
        graph[f"{name}_mask"] = torch.arange(9) % 3 == number
    (tmp_path / "processed").mkdir()
    InMemoryDataset.save([graph], str(tmp_path / "processed" / "data.pt"))
    assert same(tmp_path, splits_of(graph))
    rows = {"train": "0\n1\n", "valid": "2\n", "test": "3\n4\n"}  # as in OGB's ogbn-arxiv
    write(tmp_path, {f"split/time/{name}.csv.gz": text for name, text in rows.items()})
    for name, mask in zip(PARTS, ([0, 1], [2], [3, 4]), strict=True):
        graph[f"{name}_mask"] = torch.isin(torch.arange(9), torch.tensor(mask))
    assert same(tmp_path, splits_of(graph))


def test_names_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ``GNNBenchmarkDataset``; tables of molecules win over ``processed``, and a generated set over a folder."""
    monkeypatch.chdir(tmp_path)
    for part in PARTS:
        write(tmp_path, {f"pattern/processed/{part}_data.pt": ""})
    assert [path.stem for path in graph_files("pattern")] == ["train_data", "val_data", "test_data"]
    assert main(["train", "pattern", "--graphs", "4", "--encoder", "none", "--out", "run", *TINY]) == 0
    write(tmp_path, {"pattern/train.csv": "smiles,y\n"})
    assert graph_files("pattern") == graph_files(tmp_path / "elsewhere") == []


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("unpickled",)


def test_files_that_are_not_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no folder processed"):
        load_folder(tmp_path)
    for folder in (tmp_path / "raw", tmp_path / "processed"):
        folder.mkdir()
        with pytest.raises(ValueError, match=r"got \[\]: make the data set once in Python, as in .*ZINC"):
            load_folder(tmp_path)
    relation = {("a", "to", "a"): {"edge_index": path_graph(3)}}
    graphs = {"x": torch.ones(4, 1), "edge_index": path_graph(3), "y": torch.ones(2)}
    starts = {"x": torch.tensor([0, 2, 4]), "edge_index": torch.tensor([0, 2, 4]), "y": torch.tensor([0, 1, 2])}
    wrong = [
        {"x": torch.tensor([0, 2])},
        {"x": torch.tensor([0, 2, 9])},
        {"y": torch.tensor([-1, 1, 2])},
        {"y": [0, 1]},
    ]
    contents = [Trap(), (Data(x=Trap()), {}), [1], (HeteroData(relation).to_dict(), None, HeteroData), "text"]
    contents += [([1], None), (None, None), *((graphs, starts | each) for each in wrong)]
    contents += [({**graphs, "edge_index": "abc"}, starts), (graphs, {"x": starts["x"]})]
    for number, content in enumerate(contents):
        torch.save(content, tmp_path / "processed" / "data.pt")
        with pytest.raises(ValueError, match=r"no graphs to read, make it again with PyG 2.7 or newer") as refused:
            read_graphs(tmp_path / "processed" / "data.pt")
        assert "weights_only" not in str(refused.value) and (
            number > 1 or "it holds _pytest.outcomes" in str(refused.value)
        )
    torch.save((graphs, starts), tmp_path / "processed" / "data.pt")
    assert len(read_graphs(tmp_path / "processed" / "data.pt")) == 2
    (tmp_path / "another" / "processed").mkdir(parents=True)
    with pytest.raises(ValueError, match="several data sets: name one, "):
        load_folder(tmp_path)
