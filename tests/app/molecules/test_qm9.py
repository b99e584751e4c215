"""QM9's own properties: the published file, splits by name, units, and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tg_lpe.app.molecules import QM9_UNITS, MoleculeSplits, load_molecules, qm9_split
from tg_lpe.data import TargetSpec

FACTS = {
    "mu": (2.672953, 1.503479),
    "alpha": (75.28119, 8.173831),
    "homo": (-0.2402102, 0.02196659),
    "lumo": (0.01183489, 0.04685007),
    "gap": (0.252045, 0.04719233),
    "r2": (1189.411, 280.4782),
    "zpve": (0.1490897, 0.03313771),
    "u0": (-410.8194, 39.89428),
    "u298": (-410.811, 39.89407),
    "h298": (-410.81, 39.89407),
    "g298": (-410.8529, 39.89478),
    "cv": (31.62036, 4.067581),
}
"""Mean and standard deviation of each column over all molecules."""

ROWS = 24
SMILES = [f"C1C{'C' * n}C1" if n % 3 == 2 else "C" * (n // 3 + 1) + "ON"[n % 3] for n in range(ROWS)]
"""Two thirds without a ring, and rings of different sizes: eight scaffolds besides none."""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A small table with QM9's columns, row by row 1, 2, ... times the number of the column."""
    columns = {name: [round((n + 1) * (k + 1) / 7, 3) for n in range(ROWS)] for k, name in enumerate(QM9_UNITS)}
    folder = tmp_path / "qm9"
    folder.mkdir()
    pd.DataFrame({"smiles": SMILES, **columns}).to_csv(folder / "properties.csv.xz", index=False)
    (folder / "train.smi").write_text("CCO\n", encoding="utf-8")  # of the computed target, left alone
    return folder


def load(source: Path, tmp_path: Path, **options: Any) -> MoleculeSplits:
    options = {"name": "qm9", "cache_dir": tmp_path / "cache", "num_workers": 0, "progress": False, **options}
    return load_molecules(source, **options)


@pytest.fixture(scope="module")
def published(shared_data: Path) -> pd.DataFrame:
    file = shared_data / "qm9" / "properties.csv.xz"
    if not file.is_file():
        pytest.skip(f"QM9's properties are not here: looked for {file}")
    return pd.read_csv(file)


def test_the_published_file(published: pd.DataFrame) -> None:
    assert len(published) == 130_831 and published["index"].is_monotonic_increasing
    assert set(QM9_UNITS) <= set(published.columns) and not published.isna().any().any()
    for name, facts in FACTS.items():
        assert (published[name].mean(), published[name].std()) == pytest.approx(facts, rel=1e-6), name
    difference = published["lumo"] - published["homo"] - published["gap"]
    assert difference.abs().max() < 1.5e-4, "gap is lumo less homo, each rounded to four decimals"
    assert (difference.abs() < 5e-5).mean() > 0.7


@pytest.mark.slow
def test_standard_split_of_the_published_file(published: pd.DataFrame, shared_data: Path, tmp_path: Path) -> None:
    splits = load(shared_data / "qm9", tmp_path, targets=["gap", "u0"], split="standard", num_workers=None)
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [100_000, 17_748, 13_083]
    assert splits.report.num_kept == 130_831
    for part, rows in zip(("train", "val", "test"), qm9_split(130_831), strict=True):
        expected = torch.tensor(published.iloc[rows][["gap", "u0"]].to_numpy(), dtype=torch.float32)
        assert torch.equal(splits.labels(part), expected)


def test_targets_and_units(table: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(table / "properties.csv.xz")
    every = list(QM9_UNITS)
    for names in (["gap"], ["gap", "mu"], every):
        for source in (table, table / "properties.csv.xz"):  # a folder, or the file; then from the cache
            splits = load(source, tmp_path, targets=names)
            assert splits.target == TargetSpec(tuple(names), units=tuple(QM9_UNITS[name] for name in names))
            assert TargetSpec.from_dict(splits.describe()["target"]) == splits.target
            labels = torch.cat([splits.labels(part) for part in ("train", "val", "test")])
            assert torch.equal(
                labels[labels[:, 0].argsort()], torch.tensor(frame[names].to_numpy(), dtype=torch.float32)
            )
    assert splits.normalization is None and splits.repair_radicals is False


def test_splits_by_name(table: Path, tmp_path: Path) -> None:
    def parts(**options: Any) -> list[list[float]]:
        splits = load(table, tmp_path, targets=["gap"], **options)
        return [splits.labels(part).flatten().tolist() for part in ("train", "val", "test")]

    assert parts(seed=1) == parts(split="random", seed=1) != parts(seed=2)
    assert [len(part) for part in parts()] == [20, 2, 2]
    assert parts(split="scaffold", seed=1) == parts(split="scaffold", seed=2)
    with pytest.raises(ValueError, match=r"split='standard'.*130,831 .*got 24"):
        parts(split="standard")
    with pytest.raises(ValueError, match=r"split='standard'.*name='qm9'"):
        load(table / "properties.csv.xz", tmp_path, name=None, targets=["gap"], split="standard")


def test_the_standard_split() -> None:
    """Seed 0 gives the parts of the published code: numpy's legacy permutation, training, validation, test."""
    parts = qm9_split(130_831)
    np.random.seed(0)  # noqa: NPY002 (as that code has it)
    order = np.random.permutation(130_831)  # noqa: NPY002
    for part, rows in zip(parts, np.split(order, [100_000, 117_748]), strict=True):
        assert part == sorted(rows.tolist())
    assert parts == qm9_split(130_831, 0) != qm9_split(130_831, 1)
    for size, seed, said in ((130_831, 2**32, "2\\^32"), (130_831, "0", "seed"), (133_885, 0, "130,831 .*got 133,885")):
        with pytest.raises(ValueError, match=said):
            qm9_split(size, seed)


def test_refusals(table: Path, tmp_path: Path) -> None:
    for targets in (["gapp"], ["gap", "gapp"], ["y"]):
        with pytest.raises(ValueError, match=rf"targets=.*mu, alpha, homo, .*cv, not {targets[-1]}"):
            load(table, tmp_path, targets=targets)
    for options in ({}, {"computed": "penalised_logp"}):
        with pytest.raises(ValueError, match=r"qm9 needs targets=\['gap'\].*qm9-solubility"):
            load(table, tmp_path, **options)
    with pytest.raises(ValueError, match=r"computed='penalised_logp'"):
        load(table, tmp_path, targets=["gap"], computed="penalised_logp")
    folder = tmp_path / "smi"
    folder.mkdir()
    for part in ("train", "val", "test"):
        (folder / f"{part}.smi").write_text("CCO\nCC\n", encoding="utf-8")
    with pytest.raises(FileNotFoundError, match="has no properties split: looked for properties with"):
        load(folder, tmp_path, targets=["gap"])
    (folder / "mine.csv").write_text("smiles,gap\nCCO,1\nCC,2\nC,3\n", encoding="utf-8")
    assert len(load(folder / "mine.csv", tmp_path, targets=["gap"]).train) == 1
    with pytest.raises(ValueError, match=r"no column 'homo'; there are 'smiles', 'gap'"):
        load(folder / "mine.csv", tmp_path, targets=["homo"])
