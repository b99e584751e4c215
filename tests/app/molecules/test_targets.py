"""The targets of a file of molecules: chosen explicitly, read unchanged, never guessed."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tg_lpe.app.molecules import MoleculeSplits, SkippedMolecule, constrained_solubility, load_molecules, read_molecules
from tg_lpe.app.molecules._build import scaffold_split
from tg_lpe.app.molecules.solubility import NORMALIZATIONS
from tg_lpe.app.training import task_for
from tg_lpe.app.training.tasks import Multiclass
from tg_lpe.data import DataSpec, TargetSpec

Write = Callable[..., Path]

TABLE = "id,smiles,expt,calc,toxic\n" + "".join(
    f"m{number},{smiles},{expt},{number}.5,{toxic}\n"
    for number, (smiles, expt, toxic) in enumerate(
        [("CCO", "-1.25", "1"), ("CN", "", "0"), ("c1ccccc1", "2e1", ""), ("C#N", "3", "1"), ("CCCC", "", "")]
    )
)


def load(source: Path, tmp_path: Path, **options: Any) -> MoleculeSplits:
    return load_molecules(source, cache_dir=tmp_path / "cache", num_workers=0, progress=False, **options)


def three(write_folder: Write, table: str) -> Path:
    """A folder whose three splits are one table, so that their order is the table's."""
    return write_folder({f"{split}.csv": table for split in ("train", "val", "test")})


def test_one_column(write_folder: Write, tmp_path: Path) -> None:
    folder = three(write_folder, TABLE)
    splits = load(folder, tmp_path, targets=["expt"])
    assert splits.train.y.tolist() == [-1.25, 20.0, 3.0] and splits.train[0].y.shape == (1,)
    assert splits.target == TargetSpec(("expt",)) and splits.normalization is None
    assert [entry.reason for entry in splits.report.skipped] == ["its label is missing"] * 6
    assert splits.report.missing_labels == {}
    assert splits.spec == DataSpec(num_node_types=len(splits.vocabulary or ()), num_edge_types=4, max_nodes=6)


def test_several_columns_and_missing_labels(write_folder: Write, tmp_path: Path) -> None:
    folder = three(write_folder, TABLE)
    for _ in range(2):  # as read, then from the cache
        splits = load(folder, tmp_path, targets=["toxic", "expt"])
        assert splits.target.columns == ("toxic", "expt")
        labels = [[None if math.isnan(v) else v for v in row] for row in splits.labels("train").tolist()]
        assert labels == [[1.0, -1.25], [0.0, None], [None, 20.0], [1.0, 3.0]]
        assert splits.train[2].y.shape == (1, 2)
        assert splits.report.missing_labels == {"toxic": 3, "expt": 3}
        assert splits.report.skipped[0] == SkippedMolecule("train.csv", 6, "CCCC", "all its labels are missing")
        assert "missing labels: toxic 3, expt 3" in splits.report.summary()
        assert splits.describe()["missing_labels"] == {"toxic": 3, "expt": 3}
    assert len(list((tmp_path / "cache").iterdir())) == 1
    load(folder, tmp_path, targets=["expt", "toxic"])
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_computed_on_request(write_folder: Write, tmp_path: Path) -> None:
    folder = three(write_folder, TABLE)
    splits = load(folder, tmp_path, computed="penalised_logp", name="zinc")
    assert splits.train.y[0].item() == pytest.approx(constrained_solubility("CCO", "zinc"), rel=1e-6)
    assert splits.target == TargetSpec(("penalised logP",), computed="penalised_logp")
    assert splits.normalization == NORMALIZATIONS["zinc"]
    assert load(folder, tmp_path, name="qm9-solubility").normalization == NORMALIZATIONS["qm9"]


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (TABLE, {}, "targets="),
        ("smiles,freesolv\nC,1\n", {}, "targets="),
        ("smiles,y,extra\nC,1,2\n", {}, "'y', 'extra'"),
        ("smiles,the label\nC,1\n", {}, "targets="),
        ("smiles\nC\n", {}, "computed="),
        (TABLE, {"targets": ["exp"]}, "train.csv has no column 'exp'; there are 'id', 'smiles', 'expt'"),
        (TABLE, {"targets": ["expt"], "smiles_column": 1}, "train.csv has no column 1"),
        ("smiles,a,a\nC,1,2\n", {"targets": ["a"]}, "more than one column 'a'"),
        (TABLE, {"targets": ["expt", "expt"]}, r"each column once, got \['expt', 'expt'\]"),
        (TABLE, {"targets": ["expt"], "computed": "penalised_logp"}, "targets="),
        (TABLE, {"computed": "logp"}, "computed must"),
        (TABLE, {"features": "atoms"}, "features must"),
        (TABLE, {"split": "time"}, "split must"),
        (TABLE, {"split": "scaffold", "targets": ["calc"]}, "has its own split"),
        ("smiles,a\nC,1\nCC,high\n", {"targets": ["a"]}, r"'high' in train.csv:3"),
        ("smiles,a\nC,low\nCC,-\n", {"targets": ["a"]}, r"no class name: '-' in train.csv:3"),
        ("smiles,a\nC,low\nCC,n.d.\n", {"targets": ["a"]}, r"3 cells are no class name: 'n.d.' in train.csv:3"),
        ("smiles,a\nC,1e99\n", {"targets": ["a"]}, r"train.csv:2: '1e99' in column 'a' is not finite"),
        ("smiles,a\nC,inf\n", {"targets": ["a"]}, "not finite"),
        ("smiles,SMILES,y\nC,C,1\n", {}, "smiles_column"),
        ("smiles,y\nC,1\n", {"smiles_column": "mol"}, "no column 'mol'; there are 'smiles', 'y'"),
    ],
)  # fmt: skip
def test_what_is_not_clear_is_an_error(
    write_folder: Write, tmp_path: Path, table: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load(three(write_folder, table), tmp_path, **options)


def test_files_without_columns(write_folder: Write, tmp_path: Path) -> None:
    folder = write_folder({f"{split}.smi": "C\nCC\n" for split in ("train", "val", "test")})
    for options, error, message in (
        ({}, ValueError, "computed="),
        ({"targets": ["y"]}, ValueError, "train.smi has no columns, so there is no column 'y'"),
        ({"targets": (), "smiles_column": "mol"}, ValueError, "train.smi has no columns, so there is no column 'mol'"),
        ({"targets": "y"}, TypeError, r"such as \['y'\], got 'y'"),
        ({"targets": 3}, TypeError, "targets must .* got 3"),
        ({"descriptors": "no"}, ValueError, "descriptors must .* got 'no'"),
    ):
        with pytest.raises(error, match=message):
            load(folder, tmp_path, **options)


def test_sodium_is_a_class(write_folder: Write, tmp_path: Path) -> None:
    ions = three(write_folder, "smiles,ion\nC,Na\nCC,K\nCCC,Na\nCCCC,NA\nCO,None\nCCO,Ca\n")
    splits = load(ions, tmp_path, targets=["ion"])
    assert splits.target.classes == (("Ca", "K", "Na"),) and splits.train.y.tolist() == [2.0, 1.0, 2.0, 0.0]


def test_columns_of_the_smiles(write_folder: Write, tmp_path: Path) -> None:
    bace = three(write_folder, "mol,Class\nCCO,1\nC,0\n")
    assert load(bace, tmp_path, targets=["Class"]).train.y.tolist() == [1.0, 0.0]
    both = write_folder({f"{split}.csv": "smiles,SMILES,y\nC,CC,1\n" for split in ("train", "val", "test")}, "both")
    assert load(both, tmp_path, smiles_column="SMILES", targets=["y"]).train[0].num_nodes == 2
    assert load(both, tmp_path, smiles_column="smiles", targets=["y"]).train[0].num_nodes == 1
    assert read_molecules(both / "val.csv", smiles_column="SMILES", progress=False)[0][0].num_nodes == 2


def test_ogbs_features_are_those_of_smiles2graph(write_folder: Write, tmp_path: Path) -> None:
    mol = pytest.importorskip("ogb.utils.mol")
    from ogb.utils.features import get_atom_feature_dims, get_bond_feature_dims

    smiles = ["CC(=O)Oc1ccccc1C(=O)O", "C", "[Na+].[Cl-]", "C/C=C/C[C@H](N)F", "c1cc[nH]c1", "C1CC", "[Fe]"]
    splits = load(three(write_folder, "smiles,y\n" + "".join(f"{s},0.5\n" for s in smiles)), tmp_path, features="ogb")
    assert splits.vocabulary is None and splits.describe()["bond_types"] == []
    atoms, bonds = tuple(get_atom_feature_dims()), tuple(get_bond_feature_dims())
    assert splits.spec == DataSpec(num_node_types=atoms, num_edge_types=bonds, max_nodes=13)
    assert [entry.smiles for entry in splits.report.skipped] == ["C1CC"] * 3
    for data, text in zip(splits.train, [text for text in smiles if text != "C1CC"], strict=True):
        expected = mol.smiles2graph(text)
        assert torch.equal(data.x, torch.from_numpy(expected["node_feat"]))
        index, attr = torch.from_numpy(expected["edge_index"]), torch.from_numpy(expected["edge_feat"])
        order = (index[0] * 100 + index[1]).argsort()
        assert torch.equal(data.edge_index, index[:, order]) and torch.equal(data.edge_attr, attr[order])
    again = load(tmp_path / "molecules", tmp_path, features="ogb")
    assert again.spec == splits.spec and torch.equal(again.train.x, splits.train.x)
    assert load(tmp_path / "molecules", tmp_path).vocabulary is not None
    assert splits.train[0].validate() and len(splits.train[1:3]) == 2


def moleculenet_split(scaffolds: list[str]) -> tuple[list[int], ...]:
    """DeepChem's ScaffoldSplitter, written down from its definition."""
    groups: dict[str, list[int]] = {}
    for position, name in enumerate(scaffolds):
        groups.setdefault(name, []).append(position)
    train, valid, test = parts = [], [], []
    for group in sorted(groups.values(), key=lambda group: (len(group), group[0]), reverse=True):
        if len(train) + len(group) <= 0.8 * len(scaffolds):
            train += group
        elif len(train) + len(valid) + len(group) <= 0.9 * len(scaffolds):
            valid += group
        else:
            test += group
    return parts


@pytest.mark.parametrize("seed", range(10))
def test_scaffold_split_is_moleculenets(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scaffolds = [f"s{int(value)}" for value in (30 * torch.rand(200, generator=generator) ** 2)]
    parts = scaffold_split(scaffolds)
    assert [parts[name] for name in ("train", "val", "test")] == [sorted(p) for p in moleculenet_split(scaffolds)]


def test_a_scaffold_is_in_one_part_alone(tmp_path: Path) -> None:
    from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmilesFromSmiles

    aromatic = ["c1ccccc1", "c1ccncc1", "c1ccoc1", "c1ccsc1"]
    rings = [*aromatic, "C1CCCCC1", "C1CCNC1", "C1CC1", "C1CCC1", "C1CCOCC1", "C1CO1"]
    smiles = [f"{'C' * (1 + number)}{ring}" for number in range(5) for ring in rings]
    path = tmp_path / "rings.csv"
    path.write_text("smiles,y\n" + "".join(f"{text},{number}\n" for number, text in enumerate(smiles)))
    splits = load(path, tmp_path, split="scaffold")
    found = [
        {MurckoScaffoldSmilesFromSmiles(smiles[int(data.y)]) for data in part}
        for part in (splits.train, splits.val, splits.test)
    ]
    assert sum(map(len, found)) == len(set().union(*found)) == 10
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [40, 5, 5]
    assert load(path, tmp_path, split="scaffold", seed=7).test.y.tolist() == splits.test.y.tolist()
    assert len(list((tmp_path / "cache").iterdir())) == 1  # nothing is drawn, so the seed makes no difference
    assert load(path, tmp_path, split="random").test.y.tolist() == load(path, tmp_path).test.y.tolist()


def test_a_scaffold_that_most_molecules_share_is_named(tmp_path: Path) -> None:
    path = tmp_path / "chains.csv"

    def write(*smiles: str) -> None:
        path.write_text("smiles,y\n" + "".join(f"{text},1\n" for text in smiles), encoding="utf-8")

    write(*("C" * n for n in range(1, 18)), "c1ccccc1", "Cc1ccccc1", "C1CCCCC1")
    said = r"split='scaffold' leaves no molecule for test: 17 of the 20 usable molecules have no ring, .*a random split"
    with pytest.raises(ValueError, match=said):
        load(path, tmp_path, split="scaffold")
    write(*(f"{'C' * n}c1ccccc1" for n in range(9)), "C")
    said = r"no molecule for .*: 9 of the 10 usable molecules have the scaffold 'c1ccccc1'"
    with pytest.raises(ValueError, match=said):
        load(path, tmp_path, split="scaffold")
    write("C1", "CC", "C2")
    with pytest.raises(ValueError, match="train, val and test need at least 3 molecules: 1 of 3 molecules used"):
        load(path, tmp_path, split="scaffold")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "columns", "usable", "missing"),
    [("bbbp", 1, 2039, 0), ("bace", 1, 1513, 0), ("tox21", 12, 7831, None), ("esol", 1, 1128, 0)],
)
def test_moleculenet(
    shared_data: Path, tmp_path: Path, file: str, columns: int, usable: int, missing: int | None
) -> None:
    path = shared_data / "moleculenet" / f"{file}.csv"
    names = [name for name in path.read_text().splitlines()[0].split(",") if name not in ("smiles", "mol")]
    assert len(names) == columns
    splits = load_molecules(path, targets=names, features="ogb", split="scaffold", cache_dir=tmp_path, progress=False)
    assert splits.report.num_read == usable and splits.report.num_kept >= 0.99 * usable
    lines = path.read_text().splitlines()[1:]
    empty = sum(line.split(",")[1:].count("") for line in lines)
    assert (missing is None) == (empty > 0)
    kept_empty = sum(splits.report.missing_labels.values())
    assert kept_empty <= empty and (empty == 0) == (kept_empty == 0)


@pytest.mark.parametrize(
    ("first", "step", "is_rounded"), [(1e12, 1, True), (-33000, 0.01, True), (-1234.5, 0.1, False)]
)
def test_numbers_that_float32_does_not_tell_apart(
    write_folder: Write, tmp_path: Path, caplog: pytest.LogCaptureFixture, first: float, step: float, is_rounded: bool
) -> None:
    values = [first + number * step for number in range(8)]
    table = "smiles,y,t\n" + "".join(f"{'C' * (n + 1)}O,{value!r},{value!r}\n" for n, value in enumerate(values))
    rounding = max(abs(float(np.float32(value)) - value) for value in values)
    load(three(write_folder, table), tmp_path, targets=["y"], extra_columns=["t"])
    for column in ("y", "t"):
        assert (f"'{column}': numbers are rounded by up to {rounding:.2g}" in caplog.text) == is_rounded


@pytest.mark.filterwarnings("error")
def test_equal_and_missing_numbers_are_not_rounded(
    write_folder: Write, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cells = "".join(f"{'C' * (n + 1)}O,0.1,{'7.3' * (n == 0)},\n" for n in range(9))
    load(three(write_folder, f"smiles,equal,single,empty\n{cells}"), tmp_path, targets=["equal", "single", "empty"])
    assert "rounded" not in caplog.text


def test_words_are_classes(write_folder: Write, tmp_path: Path) -> None:
    """Numbered by name, as read and from the cache; missing cells are named."""
    table = "smiles,tox\nCCO,toxic\nCN,safe\nc1ccccc1,\nC#N,toxic\nCCCC,n/a\nCCN,safe\n"
    folder = three(write_folder, table)
    for _ in range(2):
        splits = load(folder, tmp_path, targets=["tox"])
        assert splits.target.classes == (("safe", "toxic"),) and splits.train.y.tolist() == [1.0, 0.0, 1.0, 0.0]
        assert splits.describe()["target"]["classes"] == [["safe", "toxic"]]
    assert task_for(splits) == Multiclass(num_classes=2)
    with pytest.raises(ValueError, match=r"'safe', 'toxic'.*task"):
        task_for(splits, "regression")
    for part in ("train", "val", "test"):  # Python reads 1_0 as 10
        words = table.replace("n/a", "").replace("toxic", "1_0").replace("safe", "2_0")
        (folder / f"{part}.csv").write_text(words, encoding="utf-8")
    assert load(folder, tmp_path, targets=["tox"]).target.classes == (("1_0", "2_0"),)
    names = [f"name{n}" for n in range(24)]
    for part in ("train", "val", "test"):
        lines = (f"{'C' * (n + 1)}O,{names.pop()}\n" for n in range(8))
        (folder / f"{part}.csv").write_text("smiles,tox\n" + "".join(lines), encoding="utf-8")
    with pytest.raises(ValueError, match="24 different words in 24 cells"):
        load(folder, tmp_path, targets=["tox"])


def test_cells_that_are_no_numbers_are_told_at_once(write_folder: Write, tmp_path: Path) -> None:
    """The error counts all cells, shows each word with file and line, and says what to write."""
    cells = ["1.5", "n/a", "2", "-", "n/a", ">5", "3"]
    table = "smiles,value\n" + "".join(f"{'C' * (n + 1)}O,{cell}\n" for n, cell in enumerate(cells))
    folder = write_folder({"train.csv": table, "val.csv": "smiles,value\nCC,1\n", "test.csv": table})
    with pytest.raises(ValueError, match=r"'-' in train.csv:5, '>5' in train.csv:7\. Leave .* empty") as caught:
        load(folder, tmp_path, targets=["value"])
    assert "4 cells" in str(caught.value)
    for part in ("train", "test"):
        (folder / f"{part}.csv").write_text(table.replace(">5", "5").replace(",-", ",NULL"), encoding="utf-8")
    splits = load(folder, tmp_path, targets=["value"])
    assert splits.train.y.tolist() == [1.5, 2.0, 5.0, 3.0]
