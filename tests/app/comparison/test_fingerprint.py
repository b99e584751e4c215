"""Boosted trees on Morgan fragments, against scikit-learn and RDKit used by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rdkit import Chem, RDConfig
from rdkit.Chem import Crippen, rdFingerprintGenerator
from sklearn import ensemble, metrics

from tg_lpe.app.cli import main
from tg_lpe.app.comparison.fingerprint import fingerprint_scores
from tg_lpe.app.datasets import load_block_model
from tg_lpe.app.molecules import load_molecules
from tg_lpe.app.training import task_for

PARTS = ["train"] * 120 + ["val"] * 20 + ["test"] * 60


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines = Path(RDConfig.RDDataDir, "NCI", "first_5K.smi").read_text(encoding="utf-8").splitlines()
    read = [Chem.MolFromSmiles(line.split()[0]) for line in lines[: len(PARTS)]]
    logp = [Crippen.MolLogP(molecule) for molecule in read]
    rings = [molecule.GetRingInfo().NumRings() for molecule in read]
    texts = list(map(Chem.MolToSmiles, read))
    table = pd.DataFrame({"smiles": texts, "logp": logp, "large": np.greater(logp, 2), "rings": np.minimum(rings, 2)})
    table.loc[::7, "logp"] = np.nan
    path = tmp_path_factory.mktemp("fingerprint") / "own.csv"
    table.assign(large=table["large"].astype(int), part=PARTS).to_csv(path, index=False)
    return path


SLOW = pytest.mark.slow


@pytest.mark.parametrize("target", ["logp", pytest.param("large", marks=SLOW), pytest.param("rings", marks=SLOW)])
def test_scores_are_those_of_trees_fitted_by_hand(file: Path, tmp_path: Path, target: str) -> None:
    splits = load_molecules(file, targets=[target], split_column="part", cache_dir=tmp_path, progress=False)
    name = {"logp": "regression", "large": "binary", "rings": "multiclass"}[target]
    scores = fingerprint_scores(splits, task_for(splits, name), progress=False)
    table = pd.read_csv(file).dropna(subset=[target])
    x, counts = np.zeros((len(table), 2048)), rdFingerprintGenerator.GetMorganGenerator(radius=2)
    for row, molecule in zip(x, map(Chem.MolFromSmiles, table["smiles"]), strict=True):
        for fragment, number in counts.GetSparseCountFingerprint(molecule).GetNonzeroElements().items():
            row[fragment % 2048] += number
    y, train, test = table[target].to_numpy(), table["part"] == "train", table["part"] == "test"
    kind = ensemble.HistGradientBoostingRegressor if target == "logp" else ensemble.HistGradientBoostingClassifier
    model = kind(random_state=0).fit(x[train], y[train])
    if target == "logp":
        error = metrics.mean_absolute_error(y[test], model.predict(x[test]))
        assert (
            scores["mae"] == pytest.approx(error, rel=1e-3)
            and 0 < error < 0.9 * np.abs(y[test] - y[train].mean()).mean()
        )
    elif target == "large":
        area = metrics.roc_auc_score(y[test], model.predict_proba(x[test])[:, 1])
        assert scores["roc_auc"] == pytest.approx(area, abs=1e-9) and area > 0.7
    else:
        assert scores["accuracy"] == pytest.approx(model.score(x[test], y[test]), abs=1e-9)
    assert scores["num_labels"] == test.sum()


def test_a_column_with_one_class_in_training_tells_nothing(tmp_path: Path) -> None:
    path, parts = tmp_path / "two.csv", ["train"] * 8 + ["val"] * 2 + ["test"] * 2
    rows = [f"{'C' * (n + 1)}O,{n % 2},{int(n == 11)},{part}" for n, part in enumerate(parts)]
    path.write_text("\n".join(["smiles,a,b,part", *rows]) + "\n", encoding="utf-8")
    splits = load_molecules(path, targets=["a", "b"], split_column="part", cache_dir=tmp_path, progress=False)
    scores = fingerprint_scores(splits, task_for(splits, "multilabel", metric="roc_auc"), progress=False)
    assert scores["columns"]["roc_auc"][1] == 0.5


def test_the_command_adds_a_line_and_refuses_other_data(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--target logp --split_column part --graphs 60 --encodings none --quick --quiet"
    out = tmp_path / "out"
    assert (
        main(["compare", str(file), *words.split(), "--fingerprint", "--cache", str(tmp_path), "--out", str(out)]) == 0
    )
    score = json.loads((out / "comparison.json").read_text())["fingerprint"]["mae"]
    assert (
        f"Boosted trees on counts of Morgan fragments, without a graph: test MAE {score:.4f}."
        in capsys.readouterr().out
    )
    splits = load_block_model("pattern", 0, 10)
    with pytest.raises(ValueError, match="molecules: regression or classes; got multiclass of GraphSplits"):
        fingerprint_scores(splits, task_for(splits, "multiclass"))
