"""What a table of one's own asks of ``tg-lpe train``: its own split, several seeds, folds, weights, further columns."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from rdkit import Chem, RDConfig
from rdkit.Chem import Crippen, rdMolDescriptors

from tg_lpe.cli import main
from tg_lpe.datasets.molecules import MoleculeSplits, load_molecules

TINY = "--target logp area --encoder none --epochs 1 --threads 1 --quiet --model.hidden_channels 8 --model.heads 2"
PARTS = {"train": "Train", "val": "valid", "test": "test"}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 1,000 molecules that ship with RDKit: two targets, a split, a weight, a temperature."""
    path = tmp_path_factory.mktemp("table") / "mine.csv"
    lines = Path(RDConfig.RDDataDir, "NCI", "first_5K.smi").read_text(encoding="utf-8").splitlines()
    rows = []
    for smiles in (line.split()[0] for line in lines):
        molecule = Chem.MolFromSmiles(smiles)
        if molecule is None or len(rows) == 1000:
            continue
        number, logp = len(rows), Crippen.MolLogP(molecule)
        part = PARTS["val" if number % 10 == 3 else "test" if number % 10 == 7 else "train"]
        area = rdMolDescriptors.CalcTPSA(molecule)
        rows.append([smiles, f"{logp:.4f}", f"{area:.2f}", part, 1 + number % 3, 280 + number % 50])
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["smiles", "logp", "area", "part", "weight", "temperature"], *rows])
    return path


def train(table: Path, *words: str | Path, status: int = 0) -> None:
    command = ["train", table, "--cache", table.parent / "cache", *TINY.split(), "--model.num_layers", "1", *words]
    assert main([str(word) for word in command]) == status


def refused(capsys: pytest.CaptureFixture[str], table: Path, *words: str | Path) -> str:
    """The error message of a training that does not begin."""
    capsys.readouterr()
    train(table, *words, status=1)
    return capsys.readouterr().err


def data_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))["data"]  # type: ignore[no-any-return]


def load(table: Path, **options: Any) -> MoleculeSplits:
    options = {"targets": ["logp"], "cache_dir": table.parent / "cache", "progress": False, **options}
    return load_molecules(table, **options)


def test_a_column_divides_the_table(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    splits = load(table, split_column="part")
    values = [float(row["logp"]) for row in csv.DictReader(table.open(encoding="utf-8")) if row["part"] == "valid"]
    assert splits.val.y.tolist() == pytest.approx(values, abs=1e-6)
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [800, 100, 100]
    run = tmp_path / "run"
    train(table, "--split_column", "part", "--out", run)
    data = data_of(run)
    assert data["split"] == {"kind": "column", "column": "part"} and data["num_test"] == 100
    train(table, "--split_column", "part", "--out", run, "--resume")  # complete already
    assert "data.split.kind was 'column', is 'random'" in refused(capsys, table, "--out", run, "--resume")


def test_a_column_that_does_not_divide(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str) -> str:
        return refused(capsys, table, "--out", tmp_path / "run", *words)

    assert "no column 'fold'; there are 'smiles', 'logp'" in said("--split_column", "fold")
    message = said("--split_column", "weight")
    assert "mine.csv:2: '1' in column 'weight' must be train, val (or valid, validation) or test" in message
    assert "--target logp area and --split_column area" in said("--split_column", "area")
    message = said("--split_column", "part", "--split", "random")
    assert "--split random and --split_column part exclude each other" in message
    assert "--split_seed 1 would have no effect" in said("--split_column", "part", "--split_seed", "1")
    assert "--split_seed 1 would have no effect" in said("--split", "scaffold", "--split_seed", "1")
    (tmp_path / "two.csv").write_text("smiles,y,part\nC,1.5,train\nCC,2.5,TEST\n", encoding="utf-8")
    with pytest.raises(ValueError, match="'part' puts no molecule into val"):
        load(tmp_path / "two.csv", targets=None, split_column="part")


def test_the_split_has_a_seed_of_its_own(table: Path, tmp_path: Path) -> None:
    runs = {}
    for seed, words in {"0": (), "3": ("--split_seed", "0"), "4": ("--split_seed", "7")}.items():
        train(table, "--seed", seed, *words, "--out", tmp_path / seed)
        runs[seed] = data_of(tmp_path / seed)
    assert runs["3"] == runs["0"] and runs["4"]["split"] == {"kind": "random", "seed": 7}
    assert runs["4"]["digest"] == load(table, targets=["logp", "area"], seed=7).digest()
