"""Folders and files of molecules: reading, skipping, caching and errors."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from children import run_python
from rdkit import Chem
from rdkit.Chem import Descriptors

from tg_lpe.app.molecules import (
    AtomVocabulary,
    MoleculeDataset,
    MoleculeReader,
    MoleculeSplits,
    SkippedMolecule,
    _molecule,
    _pool,
    constrained_solubility,
    load_molecules,
    read_molecules,
    smiles_to_data,
)
from tg_lpe.data import TargetSpec
from tg_lpe.data.storage import whole

SMI = {"train.smi": "CCO ethanol\nCC=O\nC1CCCCCCC1 a ring\nCCN\n", "val.smi": "CO\nCS\n", "test.smi": "[Na+].[Cl-]\n"}
CSV = {f"{split}.csv": "smiles,y\nCCO,1.5\nCN,-2\n" for split in ("train", "val", "test")}

Write = Callable[..., Path]


def load(tmp_path: Path, source: Path, **options: Any) -> MoleculeSplits:
    return load_molecules(source, cache_dir=tmp_path / "cache", progress=False, **options)


def test_smi_folder(write_folder: Write, tmp_path: Path) -> None:
    folder = write_folder(SMI)
    splits = load(tmp_path, folder, computed="penalised_logp")
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [4, 2, 1]
    # C 13 times, O twice, N once in training; the others only in other splits, ordered by name.
    assert splits.vocabulary.types == ("C", "O", "N", "Cl -", "Na +", "S")
    for number, smiles in enumerate(["CCO", "CC=O", "C1CCCCCCC1", "CCN"]):
        expected = smiles_to_data(smiles, splits.vocabulary)
        data = splits.train[number]
        assert all(torch.equal(data[key], expected[key]) for key in ("x", "edge_index", "edge_attr"))
        assert splits.normalization is not None
        assert data.y.item() == pytest.approx(constrained_solubility(smiles, splits.normalization), rel=1e-5)
    assert splits.test[0].num_nodes == 2
    assert splits.test[0].num_edges == 0
    assert (splits.report.num_read, splits.report.num_kept, splits.report.skipped) == (7, 7, ())
    assert abs(splits.train.y.mean().item()) < 1e-6
    assert sorted(path.name for path in folder.iterdir()) == sorted(SMI)


@pytest.mark.parametrize("name", [None, "zinc12k"])
def test_rings_of_published_sets_alone_follow_the_string(write_folder: Write, tmp_path: Path, name: str | None) -> None:
    xylene = "Cc1c(C)cccc1"
    folder = write_folder({file: content.replace("CCO", xylene) for file, content in CSV.items()})
    splits = load(tmp_path, folder, name=name, targets=["y"])
    graphs = [smiles_to_data(xylene, splits.vocabulary, canonical=how) for how in (False, True)]
    assert not torch.equal(graphs[0].edge_attr, graphs[1].edge_attr)
    assert torch.equal(splits.train[0].edge_attr, graphs[name is None].edge_attr)
    assert splits.describe().get("canonical") is (True if name is None else None)


def test_labels_are_used_as_published(write_folder: Write, tmp_path: Path) -> None:
    folder = write_folder({**CSV, "train.csv": "id,smiles,logp,y\n1,CCO,7,1.5\n2,CN,8,-2\n"})
    for choice in ({"targets": ["y"]}, {"name": "zinc12k"}, {"name": "zinc"}):
        splits = load(tmp_path, folder, **choice)
        assert splits.train.y.tolist() == [1.5, -2.0]
        assert splits.normalization is None
        assert splits.target == TargetSpec(("y",))
    with pytest.raises(ValueError, match=r"val.csv has no column 'logp'; there are 'smiles', 'y'"):
        load(tmp_path, folder, targets=["logp"])


def test_everything_left_out_is_reported(
    write_folder: Write, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    train = "smiles,y\nCCO,1\nC1CC,2\n\n# note\nCN,\nCC,nan\n\nCS,3\n,4\nCF\n"
    folder = write_folder({**CSV, "train.csv": train, "atom_dict.txt": "C\nO\nN\nF\nCl\n"})
    with caplog.at_level(logging.INFO, logger="tg_lpe.app.datasets"):
        splits = load(tmp_path, folder)
    assert capfd.readouterr().err == ""
    assert splits.report.skipped == (
        SkippedMolecule("train.csv", 3, "C1CC", "RDKit cannot read it as SMILES"),
        SkippedMolecule("train.csv", 5, "# note", "RDKit cannot read it as SMILES"),
        SkippedMolecule("train.csv", 6, "CN", "its label is missing"),
        SkippedMolecule("train.csv", 7, "CC", "its label is missing"),
        SkippedMolecule("train.csv", 9, "CS", "unknown atom type 'S'"),
        SkippedMolecule("train.csv", 10, "", "it has no atoms"),
        SkippedMolecule("train.csv", 11, "CF", "its label is missing"),
    )
    assert splits.train.y.tolist() == [1.0]
    assert splits.train[0].x.view(-1).tolist() == [0, 0, 1]
    assert splits.report.num_read == 12
    record, untrained, again = caplog.records
    assert record.levelno == untrained.levelno == logging.WARNING
    assert "5 of 12 molecules used; left out: its label is missing (3)" in record.getMessage()
    assert "; the first left out: train.csv:3: 'C1CC': RDKit" in record.getMessage() and "\n" not in record.getMessage()
    assert "2 of the 4 molecules of val and test are also" in again.getMessage()
    assert "train.csv:9: 'CS': unknown atom type 'S'" in str(splits.report)
    assert load(tmp_path, folder).report == splits.report, "from the cache now"


def test_atom_types_that_training_lacks_are_named(
    write_folder: Write, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_folder(SMI)
    for _ in range(2):  # as read, then from the cache
        caplog.clear()
        load(tmp_path, folder, targets=())
        assert "the training set lacks these atom types, so they stay untrained: 'Cl -', 'Na +', 'S'" in (caplog.text)
    caplog.clear()
    (folder / "train.smi").write_text("CSO.[Na+].[Cl-]\n", encoding="utf-8")
    load(tmp_path, folder, targets=())
    assert "untrained" not in caplog.text


def test_molecules_are_read_with_a_readers_atom_types(tmp_path: Path) -> None:
    (tmp_path / "one.smi").write_text("CCO\n", encoding="utf-8")
    vocabulary = AtomVocabulary(("O", "N", "C"))
    dataset, types, _, _ = read_molecules(tmp_path / "one.smi", reader=MoleculeReader(vocabulary), progress=False)
    assert dataset[0].x.view(-1).tolist() == [2, 2, 0] and types == vocabulary
    with pytest.raises(ValueError, match="vocabulary="):
        read_molecules(tmp_path / "one.smi", reader=MoleculeReader(None), progress=False)


def test_smi_headers_comments_and_odd_bytes(write_folder: Write, tmp_path: Path) -> None:
    folder = write_folder({**SMI, "train.smi": ""})
    (folder / "train.smi").write_bytes(
        b"\xef\xbb\xbfSMILES Name \r\n# remark\r\nCCO\t1\r\n\r\n   \r\nC\x00C\nsmiles name\nC\x0cN |note|\n"
    )
    splits = load(tmp_path, folder, computed="penalised_logp")
    skipped = [(entry.line, entry.reason) for entry in splits.report.skipped]
    assert skipped == [(6, "it holds characters that SMILES do not have")]
    assert [data.num_nodes for data in splits.train] == [3, 1]


def test_missing_and_ambiguous_files(write_folder: Write, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no folder or file .*nowhere.*'nci'"):
        load_molecules(tmp_path / "nowhere")
    folder = write_folder({"train.smi": "C\n", "readme.txt": ""})
    with pytest.raises(FileNotFoundError, match=r"no val split: .*\.smi, \.csv, .*holds readme.txt, train"):
        load_molecules(folder)
    (folder / "train.csv").write_text("smiles\nC\n")
    with pytest.raises(ValueError, match=r"more than one train split: train.csv, train.smi"):
        load_molecules(folder)


def test_split_without_usable_molecules(write_folder: Write, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no usable molecule for val: (.*\n)+.*val.smi:1: 'C1'"):
        load(tmp_path, write_folder({**SMI, "val.smi": "C1\n"}), computed="penalised_logp")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"name": "moses"}, ValueError, "'zinc', 'qm9', 'qm9-solubility', 'nci', 'zinc12k', .*'moses'"),
        ({"seed": "0"}, ValueError, "seed must"),
        ({"extra_columns": "t"}, TypeError, r"\['t'\], got 't'"),
        ({"columns": ["t"]}, TypeError, "'columns'"),
        ({"num_workers": -1}, ValueError, "got -1"),
    ],
)
def test_wrong_options(
    write_folder: Write, options: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        load(tmp_path, write_folder(SMI), **options)


def test_cache_is_used_and_keyed(write_folder: Write, tmp_path: Path) -> None:
    folder, cache = write_folder(SMI), tmp_path / "cache"
    first = load(tmp_path, folder, computed="penalised_logp")
    assert len(list(cache.iterdir())) == 1
    again = load(tmp_path, folder, computed="penalised_logp")
    train = ["CCO", "CC=O", "C1CCCCCCC1", "CCN"]
    assert first.smiles == again.smiles == {"train": train, "val": ["CO", "CS"], "test": ["[Na+].[Cl-]"]}
    for split in ("train", "val", "test"):
        for key in ("x", "edge_index", "edge_attr", "y"):
            assert torch.equal(getattr(first, split)._data[key], getattr(again, split)._data[key])
            assert torch.equal(getattr(first, split).slices[key], getattr(again, split).slices[key])
    for part in ("vocabulary", "normalization", "report"):
        assert getattr(again, part) == getattr(first, part)
    load(tmp_path, folder, computed="penalised_logp", seed=5, num_workers=0)  # neither shapes a folder
    assert len(list(cache.iterdir())) == 1
    load(tmp_path, folder, computed="penalised_logp", name="zinc")
    (folder / "test.smi").write_text("CCCC\n")
    assert load(tmp_path, folder, computed="penalised_logp").test[0].num_nodes == 4
    (folder / "atom_dict.txt").write_text("O\nC\nN\nS\n")
    assert load(tmp_path, folder, computed="penalised_logp").train[0].x.view(-1).tolist() == [1, 1, 0]
    assert len(list(cache.iterdir())) == 4


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "garbage"])
def test_damaged_cache_is_made_anew(
    write_folder: Write, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder, cache = write_folder(SMI), tmp_path / "cache"
    first = load(tmp_path, folder, computed="penalised_logp")
    [path] = cache.iterdir()
    good = path.read_bytes()
    flipped = good[:-1] + bytes([good[-1] ^ 1])
    path.write_bytes({"empty": b"", "cut": good[:-9], "flipped": flipped, "garbage": b"no tensors here"}[damage])
    again = load(tmp_path, folder, computed="penalised_logp")
    assert "damaged" in caplog.text
    assert torch.equal(again.train.y, first.train.y)
    assert path.read_bytes() == good


def test_single_file_is_split_by_seed(tmp_path: Path) -> None:
    path = tmp_path / "chains.smi"
    path.write_text("".join(f"{'C' * n}\n" for n in range(1, 51)) + "C1\n")

    def sizes(seed: int) -> list[list[int]]:
        splits = load(tmp_path, path, seed=seed, computed="penalised_logp")
        return [[data.num_nodes for data in part] for part in (splits.train, splits.val, splits.test)]

    drawn = sizes(0)
    assert [len(part) for part in drawn] == [40, 5, 5]
    assert sorted(size for part in drawn for size in part) == list(range(1, 51))
    state = torch.get_rng_state()
    assert sizes(0) == drawn
    assert sizes(1) != drawn
    assert torch.equal(torch.get_rng_state(), state)
    path.write_text("C\nCC\n")
    with pytest.raises(ValueError, match="train, val and test need at least 3 molecules: 2 of 2 molecules used"):
        sizes(0)


def test_a_part_of_one_molecule_with_further_columns(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("smiles,y,t,w\n" + "".join(f"{'C' * n}O,{n}.5,{n}.25,{n}\n" for n in range(1, 11)))
    splits = load(tmp_path, path, targets=["y"], extra_columns=["t"], weight_column="w")
    (data,) = splits.val
    assert data.graph_attr.tolist() == [[data.y.item() - 0.25]] and data.graph_weight.item() == data.y.item() - 0.5
    assert splits.digest() == load(tmp_path, path, targets=["y"], extra_columns=["t"], weight_column="w").digest()


def test_descriptors_are_those_of_rdkit_before_further_columns(tmp_path: Path) -> None:
    path, smiles = tmp_path / "own.csv", [f"{'C' * n}O" for n in range(1, 10)] + ["[Na+].[Cl-]"]
    path.write_text("smiles,y,t\n" + "".join(f"{text},0,{len(text)}\n" for text in smiles))
    splits = load(tmp_path, path, targets=["y"], extra_columns=["t"], descriptors=True, features="ogb")
    again = load(tmp_path, path, targets=["y"], extra_columns=["t"], descriptors=True, features="ogb")
    assert splits.digest() == again.digest() != load(tmp_path, path, targets=["y"], extra_columns=["t"]).digest()
    description = splits.describe()
    reader = MoleculeReader.of(description)
    for text, data in zip(splits.smiles["test"], splits.test, strict=True):
        values = Descriptors.CalcMolDescriptors(Chem.MolFromSmiles(text), missingVal=0.0, silent=True)
        expected = np.nan_to_num([values[name] for name in splits.descriptors], posinf=0.0, neginf=0.0)
        np.testing.assert_allclose(data.graph_attr[0, :-1].numpy(), np.arcsinh(expected), rtol=1e-5)
        assert data.graph_attr[0, -1].item() == len(text)
        [batch] = reader.read([text], num_workers=0)
        assert torch.equal(batch.graphs[0].graph_attr, data.graph_attr[:, :-1])
    assert set(values) - set(splits.descriptors) == {"Ipc", "AvgIpc"} and splits.spec.graph_dim == len(values) - 1
    with pytest.raises(ValueError, match=r"the model reads Own, which RDKit .* does not have"):
        MoleculeReader.of({**description, "descriptors": ["MolWt", "Own"]})


def test_workers_agree_with_one_process(write_folder: Write, tmp_path: Path) -> None:
    smiles = [f"{'C' * (1 + n % 7)}{'NOS'[n % 3]}" for n in range(700)] + ["C1CC", "c1cc[nH]c1"]
    folder = write_folder({**SMI, "train.smi": "\n".join(smiles)})
    alone = load_molecules(folder, computed="penalised_logp", cache_dir=tmp_path / "one", num_workers=0, progress=False)
    shared = load_molecules(
        folder, computed="penalised_logp", cache_dir=tmp_path / "two", num_workers=3, progress=False
    )
    assert alone.report == shared.report
    assert alone.vocabulary == shared.vocabulary
    assert torch.equal(alone.train.x, shared.train.x)
    assert torch.equal(alone.train.y, shared.train.y)
    assert torch.equal(alone.train._data.edge_index, shared.train._data.edge_index)


def test_a_script_that_uses_workers_runs_once(write_folder: Write, tmp_path: Path) -> None:
    folder = write_folder(SMI)
    script = tmp_path / "script.py"
    script.write_text(
        "print('started')\n"
        "from tg_lpe.app.molecules import load_molecules\n"
        f"splits = load_molecules({str(folder)!r}, computed='penalised_logp', cache_dir={str(tmp_path / 'c')!r}, "
        "num_workers=2, progress=False)\n"
        "print(len(splits.train))\n"
    )
    said = run_python(str(script), said=tmp_path / "said").splitlines()
    assert said.count("started") == 1 and said[-1] == "4"


def die(smiles: list[str]) -> None:
    os._exit(3)


def test_a_worker_that_dies_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_molecule, "process", die)
    with pytest.raises(RuntimeError, match="a process that read molecules died; num_workers=0"):
        list(_pool.read_smiles(["C"] * 600, num_workers=2))


def test_graphs_of_molecules() -> None:
    molecules = [_molecule.Molecule([0, 1], [0, 1, 1]), "a reason", _molecule.Molecule([0], [])]
    dataset = MoleculeDataset.from_molecules(molecules)
    assert [data.num_edges for data in dataset] == [2, 0] and dataset[0].y.isnan()
    assert len(MoleculeDataset.from_molecules(molecules[2:])) == 1
    assert whole(dataset[1:])[0].num_nodes == 1


def test_csv_without_labels_gets_the_computed_target(write_folder: Write, tmp_path: Path) -> None:
    folder = write_folder({f"{split}.csv": "SMILES,name\nCCO,ethanol\nCN,\n" for split in ("train", "val", "test")})
    splits = load(tmp_path, folder, name="zinc")
    assert splits.val.y[1].item() == pytest.approx(constrained_solubility("CN", "zinc"), rel=1e-6)
    with pytest.raises(ValueError, match="zinc12k needs labels"):
        load(tmp_path, folder, name="zinc12k")


def test_unwritable_cache_is_not_fatal(write_folder: Write, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    splits = load_molecules(write_folder(SMI), computed="penalised_logp", cache_dir=tmp_path / "file", progress=False)
    assert len(splits.train) == 4
    assert "could not be cached" in caplog.text


def test_long_smiles(tmp_path: Path) -> None:
    """RDKit ends the process on some of these."""
    path = tmp_path / "long.smi"
    path.write_text("C1" + "C" * 200_000 + "1\nCC\n")
    graphs, _, report, _ = read_molecules(path, progress=False)
    assert len(graphs) == 1 and "it has 200,003 characters, more than 10,000" in report.summary()


def test_an_error_names_its_file(tmp_path: Path) -> None:
    path = tmp_path / "none.smi"
    path.write_text("]]]\n")
    with pytest.raises(ValueError, match=r"none\.smi: no usable molecule"):
        load(tmp_path, path, computed="penalised_logp")
    for content in (b"C\nC\n", b"\xff", b""):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"none\.smi: "):
            AtomVocabulary.from_file(path)
