"""Several models predict NumPy's mean and standard deviation of the single predictions."""

from __future__ import annotations

import csv
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import refusals
from torch_geometric.data import Data

from tg_lpe import GraphTransformer, zoo
from tg_lpe.app.cli import main
from tg_lpe.app.prediction import Predictor, load_many
from tg_lpe.app.training.tasks import make_task

ATOMS = ("C", "O", "N")
BONDS = ("NONE", "SINGLE", "DOUBLE", "TRIPLE")
SMILES = ["CCO", "C1CC(", "CCN", "C[Si](C)C", "OCCO", None, "CCCl"]


def model(seed: int, task: dict[str, Any] | None = None, readout: Any = "mlp", **data: Any) -> Predictor:
    """A small model of two columns with random weights, as if trained on molecules."""
    known = make_task(task or {"name": "regression", "num_targets": 2})
    described = {"target": {"columns": ["a", "b"]}, "atom_types": ATOMS, "bond_types": BONDS, **data}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        options = {"num_node_types": 9, "num_edge_types": 4, "hidden_channels": 8, "num_layers": 1}
        net = GraphTransformer(out_channels=known.out_channels, readout=readout, **options)
    return Predictor(net.eval(), known, described)


def ring(size: int) -> Data:
    node = torch.arange(size)
    return Data(x=node.unsqueeze(1) % 3, edge_index=torch.stack([node, (node + 1) % size]), edge_attr=node % 4)


def together(predictors: Iterable[Predictor]) -> Predictor:
    """Return a predictor as load_many does."""
    first, *others = predictors
    predictor = Predictor(first.model, first.task, first.data)
    predictor.others = tuple(others)
    return predictor


def check(predictors: Iterable[Predictor], graphs: Any, **options: Any) -> Any:
    """Compare with the single predictions, and return those of all models together."""
    predictors = list(predictors)
    got = together(predictors).predict(graphs, on_error="nan", **options)
    single = np.stack([one.predict(graphs, on_error="nan", **options).numpy() for one in predictors])
    np.testing.assert_allclose(got.numpy(), single.mean(0), rtol=1e-5, atol=1e-6)
    assert got.spread is not None and got.spread.dtype == torch.float32
    np.testing.assert_allclose(got.spread.numpy(), single.std(0, ddof=1), rtol=1e-4, atol=1e-6)
    return got


@pytest.mark.parametrize("batch_size", [1, 2, 100])
def test_mean_and_spread_of_graphs(batch_size: int) -> None:
    got = check(map(model, range(3)), [ring(size) for size in (3, 4, 7, 5)], batch_size=batch_size)
    assert got.columns == ("a", "b") and got.spread_columns == ("a_spread", "b_spread")
    assert bool((got.spread > 1e-4).all()), "three models that differ"
    empty = together([model(0), model(1)]).predict([])
    assert empty.values.shape == (0, 2) and empty.spread is not None and empty.spread.shape == (0, 2)
    assert model(0).predict([ring(3)]).spread is None


def test_graphs_are_fetched_once() -> None:
    """A dataset's random transform must give all models the same graph."""

    class Counted(list[Data]):
        fetched = 0

        def __getitem__(self, index: Any) -> Any:
            self.fetched += 1
            return super().__getitem__(index)

    graphs, alone = Counted(map(ring, (3, 4, 5))), Counted(map(ring, (3, 4, 5)))
    together(map(model, range(3))).predict(graphs)
    model(0).predict(alone)
    assert graphs.fetched == alone.fetched > 0


def test_levels_and_classes() -> None:
    graphs = [ring(3), ring(5), ring(4)]
    task = {"name": "multiclass", "num_classes": 3}
    named = {"columns": ["tox"], "classes": [["high", "low", "none"]]}
    got = check([model(seed, task, target=named) for seed in range(3)], graphs)
    torch.testing.assert_close(got.values.sum(1), torch.ones(3))
    assert got.names == [got.classes[k] for k in got.values.argmax(1).tolist()]
    assert got.spread_columns == ("tox_high_spread", "tox_low_spread", "tox_none_spread")
    pytest.importorskip("pandas")
    assert [*got.to_frame().columns] == [*got.columns, *got.spread_columns, "class", "outside", "refused"]
    np.testing.assert_array_equal(got.to_frame()["tox_low_spread"].to_numpy(), got.spread[:, 1].numpy())
    binary = {"name": "binary", "num_targets": 1}
    assert check([model(s, binary, target={"columns": ["t"]}) for s in (0, 1)], graphs).columns == ("t",)


def test_a_graph_that_one_model_refuses_is_refused() -> None:
    small = Predictor(GraphTransformer(num_node_types=2, num_edge_types=4, hidden_channels=8).eval())
    large = Predictor(GraphTransformer(num_node_types=9, num_edge_types=4, hidden_channels=8).eval())
    fine = Data(x=torch.tensor([[0], [1]]), edge_index=torch.tensor([[0], [1]]), edge_attr=torch.tensor([0]))
    got = check([large, small], [fine, ring(5), fine])
    assert [refusal.index for refusal in got.refused] == [1] and got.values.isnan().flatten().tolist() == [0, 1, 0]
    with pytest.raises(ValueError, match="graph at place 1"):
        together([large, small]).predict([fine, ring(5)])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_each_reads_molecules_with_its_own_atom_types(num_workers: int) -> None:
    pytest.importorskip("rdkit")
    models = [model(0), model(1, atom_types=("N", "Cl", "C", "O")), model(2)]
    got = check(models, SMILES, num_workers=num_workers, batch_size=2)
    assert {refusal.index: refusal.what for refusal in got.refused} == {i: repr(SMILES[i]) for i in (1, 3, 5, 6)}
    assert [refusal.index for refusal in got.refused] == [1, 3, 5, 6]
    with pytest.raises(ValueError, match="pass SMILES"):
        together(models).predict([ring(3)])


def test_outside_for_one_is_outside() -> None:
    pytest.importorskip("rdkit")
    names = ["transformer-zinc12k", "san-zinc12k"]
    models = [zoo.load(name) for name in names]
    smiles = ["CC(=O)Nc1ccc(O)cc1", "CCO", "O" + "C" * 45]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = check(models, smiles)
        assert torch.equal(zoo.load_many(names).predict(smiles).values, got.values)
        single = [{other.index for other in one.predict(smiles).outside} for one in models]
    assert {other.index for other in got.outside} == single[0] | single[1] >= {1, 2}
    for other in got.outside:
        reasons = other.reason.split("; ")
        assert len(set(reasons)) == len(reasons) and other.what == repr(smiles[other.index])


def test_a_refused_molecule_is_not_outside() -> None:
    """One model has ranges and marks both molecules; the other does not know chlorine."""
    pytest.importorskip("rdkit")
    known = ("C", "O", "N", "Cl")
    sizes = {"atoms": [5, 9], "bonds": [0, 9], "rings": [0, 0], "labels": {}}
    sizes["atom_types"] = {name: [9, 9] for name in known}
    both = together([model(0), model(1, atom_types=known, ranges=sizes)])
    with pytest.warns(UserWarning, match="1 of 2 graphs"):
        got = both.predict(["CCO", "CCCl"], on_error="nan")
    assert [other.index for other in got.outside] == [0] and "3 atoms" in got.outside[0].reason
    assert [refusal.index for refusal in got.refused] == [1]


def load_both(**other: Any) -> Predictor:
    with tempfile.TemporaryDirectory() as folder:
        model(0).save(f"{folder}/0")
        model(1, **other).save(f"{folder}/1")
        return load_many([f"{folder}/0", f"{folder}/1"])


test_models_that_do_not_fit_are_refused = refusals(
    load_both,
    ({"target": {"columns": ["a", "c"]}}, r"target of .*/1 .*'c'"),
    ({"target": {"columns": ["a", "b"], "units": ["Hartree", "Hartree"]}}, "units"),
    ({"target": {"columns": ["a", "b"], "computed": "penalised_logp"}}, "computed"),
    ({"task": {"name": "multilabel", "num_targets": 2}}, "task of .*'multilabel'.*'regression'"),
    ({"task": {"name": "regression", "num_targets": 2, "level": "node"}, "readout": {"level": "node"}}, "'node'"),
    ({"atom_types": None}, "input of .*ogb"),
    ({"bond_types": None}, "input of .*Data"),
    ({"repair_radicals": True}, "repair_radicals"),
    ({"canonical": False}, "canonical"),
)


test_refusals = refusals(
    lambda make, *arguments: make(*arguments),
    ((load_many, "transformer-zinc"), TypeError, "names_or_dirs"),
    ((load_many, ["somewhere", "somewhere/"]), "models"),
    ((load_many, []), "models"),
    ((load_both().save, "both"), TypeError, "load_many"),
)


def test_names_of_columns_do_not_clash() -> None:
    clash = together([model(seed, target={"columns": ["a", "a_spread"]}) for seed in (0, 1)])
    assert len({*clash.columns, *clash.spread_columns}) == 4 and repr(clash).count("Predictor of") == 2


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rdkit")
    folders = [tmp_path / f"run{seed}" for seed in range(3)]
    for seed, folder in enumerate(folders):
        model(seed).save(folder)
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("smiles,a,b_spread\nCCO,1,x\nC1CC(,2,y\nCCN,3,z\n", encoding="utf-8")
    command = ["predict", *map(str, folders), str(source), str(out), "--threads", "1", "--quiet", "--workers", "0"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "3 molecules, 1 of them refused" in said and "3 models" in said and "b_spread" in said
    with out.open(newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    added = ["predicted_a", "b", "a_spread", "predicted_b_spread", "outside"]
    assert head == ["line", "smiles", "a", "b_spread", *added]
    single = np.stack([zoo.load(folder).predict(["CCO", "CCN"]).numpy() for folder in folders])
    expected = np.concatenate([single.mean(0), single.std(0, ddof=1)], 1)
    np.testing.assert_allclose([[float(cell) for cell in rows[i][4:8]] for i in (0, 2)], expected, rtol=1e-4, atol=1e-6)
    assert rows[1] == ["3", "C1CC(", "2", "y", "", "", "", "", ""]
