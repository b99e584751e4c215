"""Predictions equal the model's own outputs, graph by graph, whatever they are made from."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import refusals
from torch import Tensor
from torch_geometric.data import Batch, Data

from tg_lpe import GraphTransformer, zoo
from tg_lpe.app.prediction import Predictor, load
from tg_lpe.app.ranges import MoleculeRanges
from tg_lpe.app.training import TrainConfig, build_model, task_for, train
from tg_lpe.app.training.tasks import Task, make_task
from tg_lpe.data import GraphDataset
from tg_lpe.models import TupleTransformer

pytest.importorskip("rdkit")

from rdkit import Chem, RDConfig

from tg_lpe.app.molecules import AtomVocabulary, MoleculeReader, load_molecules, smiles_to_data

MOLECULES = ["CCO", "c1ccccc1", "CC(=O)[O-].C[NH3+]", "N", "O=C(NCC1CC1)c1ccncc1", "FC(F)(F)c1ccc(Cl)cc1"]
BAD = {1: "unknown atom type 'Si'", 3: "RDKit cannot read it as SMILES", 4: "it has no atoms"}
MIXED = ["CCO", "C[Si](C)C", "c1ccccc1", "C1CC(", "", "CCN"]


def one_by_one(model: torch.nn.Module, graphs: list[Data]) -> Tensor:
    with torch.no_grad():
        return torch.cat([model(g.x, g.edge_index, g.get("edge_attr"), num_nodes=g.num_nodes) for g in graphs])


cached = cache(load)


def small(**options: Any) -> GraphTransformer:
    return GraphTransformer(num_node_types=3, hidden_channels=8, num_layers=1, **options).eval()


@pytest.fixture(scope="module")
def zinc() -> Predictor:
    return cached("transformer-zinc")


@pytest.mark.parametrize("batch_size", [1, 2, 4, 100])
def test_smiles_and_graphs_give_what_the_model_gives_one_by_one(zinc: Predictor, batch_size: int) -> None:
    vocabulary = AtomVocabulary(zoo.card("transformer-zinc")["data"]["atom_types"])
    graphs = [smiles_to_data(smiles, vocabulary) for smiles in MOLECULES]
    expected = one_by_one(GraphTransformer.from_pretrained("transformer-zinc"), graphs)
    for given in (MOLECULES, tuple(MOLECULES), graphs):
        got = zinc.predict(given, batch_size=batch_size)
        assert got.columns == ("penalised logP",) and got.refused == ()
        torch.testing.assert_close(got.values, expected, rtol=1e-4, atol=1e-4)
    dataset = GraphDataset.from_data_list(graphs)
    torch.testing.assert_close(zinc.predict(dataset, batch_size=batch_size).values, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(zinc.predict(dataset[2:4]).values, expected[2:4], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_refused_molecules_are_named(zinc: Predictor, batch_size: int) -> None:
    got = zinc.predict(MIXED, on_error="nan", batch_size=batch_size)
    assert {refusal.index: refusal.reason for refusal in got.refused} == BAD
    assert [refusal.what for refusal in got.refused] == [repr(MIXED[place]) for place in BAD]
    assert got.values.isnan().flatten().tolist() == [place in BAD for place in range(len(MIXED))]
    usable = [smiles for place, smiles in enumerate(MIXED) if place not in BAD]
    torch.testing.assert_close(got.values[~got.values.isnan()], zinc.predict(usable).values[:, 0], rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match=r"'C\[Si\]\(C\)C' at place 1: unknown atom type 'Si'"):
        zinc.predict(MIXED, batch_size=batch_size)
    nothing = zinc.predict(["?", "C1CC("], on_error="nan")
    assert nothing.values.shape == (2, 1) and bool(nothing.values.isnan().all())


def test_a_column_with_gaps_and_molecules(zinc: Predictor) -> None:
    """A filtered column keeps its row numbers, so that it may have no row 0."""
    pandas = pytest.importorskip("pandas")
    smiles = pandas.Series(["xyz", "CCO", "c1ccccc1"])[1:]
    torch.testing.assert_close(zinc.predict(smiles).values, zinc.predict(list(smiles)).values)
    paracetamol, gone = "CC(=O)Nc1ccc(O)cc1", "there is no SMILES"
    column = pandas.Series([None, paracetamol, float("nan"), Chem.MolFromSmiles(paracetamol), pandas.NA, "C1CC("])
    column.index = [10, 20, 20, 30, 40, 50]
    got = zinc.predict(column, on_error="nan")
    reasons = {refusal.index: refusal.reason for refusal in got.refused}
    assert reasons == {0: gone, 2: gone, 4: gone, 5: "RDKit cannot read it as SMILES"}
    assert got.values.isnan().flatten().tolist() == [place in reasons for place in range(6)]
    torch.testing.assert_close(got.values[1], got.values[3])
    with pytest.raises(ValueError, match="place 0"):
        zinc.predict(column)
    assert len(zinc.predict([None, float("nan")], on_error="nan").refused) == 2
    assert zinc.predict(pandas.Series([], dtype=object)).values.shape == (0, 1)
    frame = got.to_frame()
    assert frame.columns.tolist() == ["penalised logP", "outside", "refused"] and frame.index.equals(column.index)
    assert frame["refused"].tolist() == [reasons.get(place, "") for place in range(6)]
    assert zinc.predict([paracetamol]).to_frame().index.tolist() == [0]
    for dtype in ("string", "category"):
        given = pandas.Series([paracetamol], dtype=dtype)
        torch.testing.assert_close(zinc.predict(given).values, got.values[3:4])


def test_predictions_are_rows(zinc: Predictor) -> None:
    got = zinc.predict(MOLECULES)
    assert len(got) == len(MOLECULES) and [float(row) for row in got] == got.values[:, 0].tolist()
    assert torch.equal(got[2], got.values[2]) and torch.equal(got[1:3], got.values[1:3])
    assert got.numpy().tolist() == got.values.tolist()


def test_what_lies_outside_of_the_training_set_is_marked(zinc: Predictor) -> None:
    """By size, by rings, by atoms that training lacks or has fewer of, by the prediction; in one warning."""
    vocabulary = zinc.reader.vocabulary
    assert vocabulary is not None and zinc.ranges is not None
    inside, small, large = "CC(=O)Nc1ccc(O)cc1", "CCO", "C" * 60
    fluorine = "FC(F)(F)C(F)(F)C(F)(F)C(F)(F)C(F)(F)F"
    with pytest.warns(UserWarning, match="3 of 5 graphs differ") as caught:
        got = zinc.predict([small, inside, "C1CC(", large, fluorine], on_error="nan")
    assert len(caught) == 1
    reasons = {other.index: other.reason for other in got.outside}
    assert sorted(reasons) == [0, 3, 4] and [refusal.index for refusal in got.refused] == [2]
    low, high = zinc.ranges.atoms
    assert f"3 atoms, {low} to {high} in training" in reasons[0] and "bonds" in reasons[0]
    assert "60 atoms" in reasons[3]
    assert f"12 atoms of type 'F', at most {zinc.ranges.atom_types['F'][1]} in training" in reasons[4]
    graphs = [smiles_to_data(smiles, vocabulary) for smiles in (inside, small)]
    with pytest.warns(UserWarning, match="1 of 2 graphs"):
        assert [(other.index, other.what) for other in zinc.predict(graphs).outside] == [(1, "graph")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert zinc.predict([inside] * 3).outside == ()


def test_a_run_knows_what_it_was_trained_on(tmp_path: Path) -> None:
    rows = "".join(f"{'C' * size}O,{size}.5\n" for size in range(1, 31))
    (tmp_path / "own.csv").write_text("smiles,size\n" + rows, encoding="utf-8")
    splits = load_molecules(tmp_path / "own.csv", targets=["size"], cache_dir=tmp_path, progress=False)
    task = task_for(splits, "regression")
    model = build_model(splits.spec, task, hidden_channels=8, num_layers=1)
    train(model, splits, task, TrainConfig(epochs=1, precision="float32"), folder=tmp_path / "run", progress=False)
    sizes = splits.train.slices["x"].diff()
    predictor = load(tmp_path / "run")
    predictor.save(tmp_path / "saved")
    for trained in (predictor, load(tmp_path / "saved")):
        assert trained.ranges is not None
        assert trained.ranges.atoms == (int(sizes.min()), int(sizes.max())) and trained.ranges.rings == (0, 0)
        assert trained.ranges.atom_types["O"] == (len(splits.train), 1)
        assert trained.ranges.labels["size"] == (float(splits.train.y.min()), float(splits.train.y.max()))
        (other,) = trained.predict(["C1CCCCC1O", "CCCCCO"]).outside
        assert other.index == 0 and "1 ring, 0 to 0 in training" in other.reason
    # A run of before the ranges goes on.
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    del config["data"]["ranges"]
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    config_of_run = TrainConfig(epochs=1, precision="float32")
    train(model, splits, task, config_of_run, folder=tmp_path / "run", progress=False, resume=True)
    assert load(tmp_path / "run").predict(["C1CCCCC1O"]).outside == ()


def test_rings_and_components_are_counted() -> None:
    smiles = ["C1CC1.C1CC1", "c1ccc2ccccc2c1", "C.C.C", "CCC"]
    vocabulary = AtomVocabulary(("C",))
    read = MoleculeReader(vocabulary).read(smiles, num_workers=0)
    ranges = MoleculeRanges.of(next(read).graphs, vocabulary.types, torch.zeros(4, 0), ())
    assert (ranges.atoms, ranges.bonds, ranges.rings) == ((3, 10), (0, 11), (0, 2))
    assert ranges.atom_types == {"C": (22, 10)} and MoleculeRanges.from_dict(ranges.to_dict()) == ranges


def test_what_a_predictor_says_of_itself(zinc: Predictor, tmp_path: Path) -> None:
    for predictor, said in (
        (zinc, ("penalised logP", "no unit", "SMILES", "20,000 molecules of zinc", "atoms")),
        (zoo.load("transformer-zinc12k"), ("y", "penalised logP", "10,000 molecules of zinc12k", "9 to 37 atoms")),
        (zoo.load("primphormer-peptides"), ("y9", "probabilities", "SMILES", "ogb", "10,873 molecules")),
        (Predictor(small()), ("output", "graphs (Data)")),
    ):
        assert all(word in repr(predictor) for word in said), repr(predictor)
    task = make_task({"name": "regression"})
    data = {"source": "there/mine.csv", "target": {"columns": ["logP"]}}
    own = Predictor(small(), task, data)
    assert "logP" in repr(own) and "units of the labels in mine.csv" in repr(own)


GRAPH = Data(x=torch.zeros(2, 1, dtype=torch.int64), edge_index=torch.zeros(2, 0, dtype=torch.int64))
BATCH = Batch.from_data_list([GRAPH, GRAPH])
TABLE = {"name": ["ethanol"], "SMILES": ["CCO"]}
test_what_is_given_must_be_molecules_or_graphs = refusals(
    lambda given, **options: cached("transformer-zinc").predict(given, **options),
    ((TABLE,), TypeError, r"table\['smiles'\]"),
    *(
        ({"given": given, "on_error": on_error}, TypeError, r"batch\.to_data_list\(\)")
        for given in (BATCH, [BATCH], [GRAPH, BATCH])
        for on_error in ("raise", "nan")
    ),
    *(((given,), TypeError, r"pass \[...\]") for given in ("CCO", GRAPH)),
    *(((given,), TypeError, "predict takes a list") for given in (iter(["CCO"]), {"CCO"}, None)),
    ((["CCO", GRAPH],), TypeError, "strings and Data"),
    (([1, 2],), TypeError, "int"),
    (([b"CCO"],), TypeError, "bytes"),
    (([["CCO"]],), TypeError, "list$"),
    ((np.zeros(2),), TypeError, "float64"),
    *(((path,), TypeError, "predict_file") for path in (Path(__file__), __file__, Path("missing.csv"))),
    (([Data(x=GRAPH.x)],), "graph 0"),
    *((({"given": ["CCO"], "num_workers": number}), "num_workers") for number in (-1, "2", 1.5, True)),
    ({"given": ["CCO"], "on_error": "ignore"}, "on_error"),
    ({"given": ["CCO"], "batch_size": 0}, "batch_size"),
    ({"given": [GRAPH], "extra": {"a": [1]}}, "extra="),
    ((["InChI=1S/CH4/h1H4"],), "MolFromInchi"),
    *((([reaction],), "reaction") for reaction in ("CCO>>CC=O", "CCO>[Na+]>CC=O", "[NH3]->[Pt]>>N")),
)


def test_a_table_is_no_column(zinc: Predictor) -> None:
    assert zinc.predict([]).values.shape == (0, 1)
    with pytest.raises(TypeError, match=r"table\['smiles'\]"):
        zinc.predict(pytest.importorskip("pandas").DataFrame(TABLE))


def test_radicals_are_read_as_in_training() -> None:
    """QM9 writes amines as radicals; its model was trained on the molecules that they mean."""
    qm9 = zoo.load("transformer-qm9")
    got = qm9.predict(["C[C]([N])C", "CC(N)C"])
    torch.testing.assert_close(got.values[0], got.values[1], rtol=1e-4, atol=1e-4)


TASKS: dict[str, tuple[dict[str, Any], Any]] = {
    "regression": ({"num_targets": 2}, lambda out: out),
    "binary": ({}, torch.sigmoid),
    "multilabel": ({"num_targets": 3}, torch.sigmoid),
    "multiclass": ({"num_classes": 4}, lambda out: out.softmax(1)),
}


@pytest.mark.parametrize("name", TASKS)
def test_classes_are_probabilities(name: str) -> None:
    options, expected = TASKS[name]
    task: Task = make_task({"name": name, **options})
    model = small(out_channels=task.out_channels)
    graphs = [ring(size) for size in (3, 4, 7)]
    columns = [f"c{number}" for number in range(task.num_targets)]
    got = Predictor(model, task, {"target": {"columns": columns}}).predict(graphs)
    torch.testing.assert_close(got.values, expected(one_by_one(model, graphs)), rtol=1e-5, atol=1e-5)
    assert len(got.columns) == got.values.size(1)
    assert got.columns == (tuple(columns) if name != "multiclass" else ("c0_0", "c0_1", "c0_2", "c0_3"))


def test_classes_have_names() -> None:
    model = small(out_channels=3)
    graphs = [ring(size) for size in (3, 4, 7)]
    named = {"target": {"columns": ["tox"], "classes": [["high", "low", "none"]]}}
    got = Predictor(model, make_task({"name": "multiclass", "num_classes": 3}), named).predict(graphs)
    assert got.columns == ("tox_high", "tox_low", "tox_none")
    assert got.names == [got.classes[k] for k in got.values.argmax(1).tolist()]
    numbered = make_task({"name": "multiclass", "num_classes": 3})
    got = Predictor(model, numbered, {"target": {"columns": ["tox"]}}).predict(graphs)
    assert got.columns == ("tox_0", "tox_1", "tox_2") and set(got.names) <= {"0", "1", "2"}
    one = small()
    two = {"target": {"columns": ["tox"], "classes": [["no", "yes"]]}}
    got = Predictor(one, make_task({"name": "binary"}), two).predict(graphs)
    assert got.columns == ("tox_yes",) and got.names == []  # whose probability it is


def ring(size: int) -> Data:
    node = torch.arange(size)
    return Data(x=(node % 3).unsqueeze(1), edge_index=torch.stack([node, (node + 1) % size]))


def test_nodes_of_graphs() -> None:
    task = make_task({"name": "multiclass", "num_classes": 3, "level": "node"})
    model = small(out_channels=3, readout={"level": "node"})
    graphs = [ring(3), ring(5), ring(4)]
    predictor = Predictor(model, task)
    expected = one_by_one(model, graphs).softmax(1)
    torch.testing.assert_close(predictor.predict(graphs, batch_size=2).values, expected, rtol=1e-5, atol=1e-5)
    graphs[1].x = graphs[1].x + 9
    got = predictor.predict(graphs, on_error="nan")
    assert got.values.isnan().any(1).tolist() == [False] * 3 + [True] * 5 + [False] * 4
    assert got.graph is not None and got.graph.tolist() == [0] * 3 + [1] * 5 + [2] * 4
    none = predictor.predict([])
    assert none.graph is not None and none.graph.shape == (0,) and none.values.shape == (0, 3)
    pytest.importorskip("pandas")
    assert (got.to_frame()["refused"] != "").tolist() == [False] * 3 + [True] * 5 + [False] * 4
    with pytest.raises(ValueError, match="takes graphs"):
        predictor.predict(["CCO"])


def write_csv(path: Path) -> Path:
    molecules = [f"{'C' * n}{end}" for n in range(2, 9) for end in ("O", "N", "C(=O)O")]
    rows = [f"{smiles},{len(smiles)}.5,{int('N' in smiles)}" for smiles in molecules]
    path.write_text("smiles,size,amine\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(("features", "encoder"), [("types", True), ("ogb", False)])
def test_a_run_folder_knows_its_vocabulary_and_task(tmp_path: Path, features: Any, encoder: bool) -> None:
    splits = load_molecules(
        write_csv(tmp_path / "own.csv"), targets=["amine"], features=features, cache_dir=tmp_path, progress=False
    )
    task = task_for(splits, "binary", metric="accuracy")
    given = {"class": "GramTransformer", "num_layers": 3, "out_channels": 4} if encoder else None
    model = build_model(splits.spec, task, given, hidden_channels=8, num_layers=1)
    config = TrainConfig(epochs=1, precision="float32")
    train(model, splits, task, config, folder=tmp_path / "run", progress=False)
    loaded = load(tmp_path / "run")
    smiles = ["CCCO", "CCN", "CCS", "Cc1c(C)cccc1"]
    got = loaded.predict(smiles, on_error="nan")
    assert got.columns == ("amine",) and [r.index for r in got.refused] == ([2] if features == "types" else [])
    again = Predictor(model.eval(), task, splits.describe()).predict(smiles, on_error="nan").values
    torch.testing.assert_close(got.values, again, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert bool(((got.values >= 0) & (got.values <= 1))[:2].all())
    loaded.save(tmp_path / "saved")
    saved = load(tmp_path / "saved").predict(smiles, on_error="nan")
    assert saved.columns == got.columns and saved.refused == got.refused
    assert torch.equal(saved.values.nan_to_num(9), got.values.nan_to_num(9))
    (tmp_path / "run" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="resume="):
        load(tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(ValueError, match="unfinished"):
        load(tmp_path / "run")
    train(model, splits, task, config, folder=tmp_path / "run", progress=False, resume=True)
    restored = load(tmp_path / "run").predict(smiles, on_error="nan")
    assert torch.equal(restored.values.nan_to_num(9), got.values.nan_to_num(9))
    (tmp_path / "run" / "result.json").unlink()
    with pytest.warns(UserWarning, match=r"unfinished run: result\.json is missing"):
        load(tmp_path / "run")


def test_a_model_trained_on_the_strings_reads_the_strings(zinc: Predictor) -> None:
    xylene = ["Cc1ccccc1C", "Cc1c(C)cccc1", "c1(C)c(C)cccc1"]
    as_spelled = Predictor(zinc.model, zinc.task, {**zinc.data, "canonical": False}).predict(xylene).values
    assert as_spelled.max() - as_spelled.min() > 1e-3


def test_a_bare_checkpoint_predicts_from_graphs_alone(tmp_path: Path) -> None:
    model = small(out_channels=2)
    model.save_pretrained(tmp_path)
    loaded = load(tmp_path)
    graphs = [ring(3), ring(6)]
    assert torch.equal(loaded.predict(graphs).values, loaded.predict(graphs, batch_size=2).values)
    torch.testing.assert_close(loaded.predict(graphs).values, one_by_one(model, graphs))
    assert loaded.columns == ("output_0", "output_1")
    with pytest.raises(ValueError, match="cannot read SMILES: its training data were no molecules"):
        loaded.predict(["CCO"])


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        ("task", 3, "task .* got 3"),
        ("task.level", "atom", "level"),
        ("data", [], "data"),
        ("data.num_train", "10", "num_train"),
        ("data.target", "y", "target"),
        ("data.target.columns", 3, "columns"),
        ("data.target.classes", [3], "classes"),
        ("data.atom_types", "C", "atom_types"),
        ("data.bond_types", [1], "bond_types"),
        ("data.canonical", "no", "canonical"),
        ("data.ranges", 3, "ranges"),
        ("data.ranges.atoms", [1], "atoms"),
        ("data.ranges.rings", None, "rings"),
        ("data.ranges.atom_types.C", [1, True], "atom_types.C"),
    ],
)
def test_a_card_of_another_form_names_the_entry(
    zinc: Predictor, tmp_path: Path, place: str, value: object, named: str
) -> None:
    zinc.save(tmp_path)
    card = json.loads((tmp_path / "card.json").read_text())
    *outer, last = place.split(".")
    reduce(getitem, outer, card)[last] = value
    (tmp_path / "card.json").write_text(json.dumps(card))
    with pytest.raises(ValueError, match=named):
        load(tmp_path).predict(["CCO"])


def test_a_card_that_cannot_be_written_leaves_the_model_of_before(zinc: Predictor, tmp_path: Path) -> None:
    """Without its card the model would load and give raw outputs."""
    zinc.save(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    ranges = {**zinc.data["ranges"], "atoms": list(np.array([1, 2], np.float32))}
    predictor = Predictor(zinc.model, zinc.task, {**zinc.data, "ranges": ranges})
    with pytest.raises(TypeError, match="float32"):
        predictor.save(tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_entries_of_a_card_may_be_null(zinc: Predictor, tmp_path: Path) -> None:
    zinc.save(tmp_path)
    card = json.loads((tmp_path / "card.json").read_text())
    card["data"] |= {"num_train": None, "ranges": {**card["data"]["ranges"], "labels": None}}
    card["data"]["target"]["units"] = None
    (tmp_path / "card.json").write_text(json.dumps(card))
    loaded = load(tmp_path)
    assert "trained on: 0 molecules" in repr(loaded) and loaded.units == ()


test_what_cannot_be_loaded = refusals(
    load,
    (("gram-k8",), "GramTransformer"),
    (("nothing",), "'nothing'"),
    ({"name_or_dir": "transformer-zinc", "device": "gpu"}, "gpu"),
)
test_what_cannot_predict = refusals(
    lambda *arguments: Predictor(*arguments).predict(["CCO"]),
    (("transformer-zinc",), TypeError, "model"),
    ((small(), "regression"), TypeError, "task"),
    ((small().train(),), r"model.eval\(\)"),
)


def test_folders_that_are_no_trained_models(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"command": "pretrain", "layout": 2, "loop": {}}))
    with pytest.raises(ValueError, match="pretraining"):
        load(tmp_path)
    for name, content in (("config.json", '{"command": "train"}'), ("result.json", "{}"), ("model.safetensors", "")):
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match="'model' and 'task' and 'data'"):
        load(tmp_path)


@pytest.fixture
def typed() -> GraphTransformer:
    torch.manual_seed(0)
    return GraphTransformer(num_node_types=4, num_edge_types=3, hidden_channels=16, heads=4, num_layers=2).eval()


def path_of(edge_attr: Any, x: Any = (0, 1, 2), **more: Any) -> Data:
    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    return Data(x=torch.as_tensor(x), edge_index=edges, edge_attr=torch.as_tensor(edge_attr), **more)


RIGHT = [path_of([0, 0, 1, 1]), path_of([0, 1, 2, 2]), path_of([1, 1, 0, 0]), path_of([2, 2, 0, 0])]
NO_EDGES = torch.tensor([0, 0])


@pytest.mark.parametrize("batch_size", [1, 2, 100])
@pytest.mark.parametrize(
    ("odd", "named", "is_collated"),
    [
        ({0: path_of([0, 0, 1, 1], (99, 0, 1)), 3: path_of([0, 0, 1, 1], (0, 9, 1))}, "node types", True),
        # One edge too few in a graph and one too many in the next cancel in the batch.
        ({1: path_of([2, 2, 1]), 2: path_of([0, 0, 2, 2, 2])}, "edge", True),
        ({1: Data(torch.tensor([0, 1]), torch.tensor([[0, 3], [1, 5]]), NO_EDGES)}, "edge_index", True),
        ({1: path_of([0, 0, 1, 1], [0.0, 1.0, 2.0])}, "node", False),
        ({1: path_of([0, 0, 1, 1], [[0, 0], [1, 1], [2, 2]])}, "node", False),
        ({1: path_of([0, 0, 1, 1], [0, 1], num_nodes=3)}, "node", False),
        ({1: path_of([0.0, 0.0, 1.0, 1.0])}, "edge", False),
        ({1: Data(torch.tensor([0, 1]), torch.rand(2, 2), NO_EDGES, num_nodes=2)}, "edge_index", False),
        ({1: Data(torch.tensor([0, 1]), torch.zeros(4, 2).long(), NO_EDGES, num_nodes=2)}, "edge_index", False),
    ],
)
def test_odd_graphs_are_refused_alone(
    typed: GraphTransformer, odd: dict[int, Data], named: str, is_collated: bool, batch_size: int
) -> None:
    graphs = [odd.get(place, graph) for place, graph in enumerate(RIGHT)]
    expected = one_by_one(typed, RIGHT).index_fill(0, torch.tensor(list(odd)), torch.nan)
    for dataset in (graphs, *([GraphDataset.from_data_list(graphs)] if is_collated else [])):
        got = Predictor(typed).predict(dataset, on_error="nan", batch_size=batch_size)
        assert [refusal.index for refusal in got.refused] == list(odd)
        assert all(named in refusal.reason for refusal in got.refused), got.refused
        torch.testing.assert_close(got.values, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
        with pytest.raises((ValueError, TypeError), match=f"at place {min(odd)}: .*{named}"):
            Predictor(typed).predict(dataset, batch_size=batch_size)


def test_a_refused_graph_keeps_its_rows_where_edges_are_predicted() -> None:
    model = TupleTransformer(
        num_node_types=4, num_edge_types=3, hidden_channels=16, heads=4, num_layers=1, readout={"level": "edge"}
    ).eval()
    fine, bad = path_of([0, 0, 1, 1]), path_of([0, 0, 1, 1], [9, 9, 9])
    predictions = Predictor(model).predict([fine, bad, fine], on_error="nan")
    assert predictions.graph is not None and predictions.graph.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    got = predictions.values
    assert got.shape == (12, 1) and got[4:8].isnan().all()
    assert torch.equal(got[:4], got[8:]) and bool(got[:4].isfinite().all())
    with pytest.raises(ValueError, match="this model predicts edges and takes graphs"):
        Predictor(model).predict(["CCO"])


NUM_MOLECULES = 100
SPELLINGS = ("order",) * 3 + ("kekulised",) * 2 + ("hydrogens",) * 2 + ("mapped",) * 2 + ("mapped hydrogens",)


def spellings(smiles: str, draw: random.Random) -> Iterator[str]:
    for kind in SPELLINGS:
        molecule = Chem.MolFromSmiles(smiles)
        if "hydrogens" in kind:
            molecule = Chem.AddHs(molecule)
        if "mapped" in kind:
            for atom, number in zip(
                molecule.GetAtoms(), draw.sample(range(1, 900), molecule.GetNumAtoms()), strict=True
            ):
                atom.SetAtomMapNum(number)
        if kind == "kekulised":
            Chem.Kekulize(molecule, clearAromaticFlags=True)
        yield Chem.MolToRandomSmilesVect(molecule, 1, randomSeed=draw.randrange(1, 2**20))[0]


def test_ten_spellings_of_a_molecule_get_one_prediction() -> None:
    """Order, Kekule structures, written hydrogens and atom maps of a string do not decide."""
    model, draw = zoo.load("transformer-zinc12k"), random.Random(0)
    file = Path(RDConfig.RDDataDir, "NCI", "first_5K.smi")
    lines = [line.split()[0] for line in file.read_text(encoding="utf-8").splitlines()]
    (read,) = model.reader.read(lines[: 4 * NUM_MOLECULES], batch_size=len(lines), num_workers=0)
    molecules = [smiles for smiles, why in zip(read.smiles, read.reasons, strict=True) if why is None]
    molecules = molecules[: 2 * NUM_MOLECULES : 2]
    assert len(molecules) == NUM_MOLECULES
    spelled = [text for smiles in molecules for text in spellings(smiles, draw)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # many of the molecules are smaller than ZINC's
        expected = model.predict(molecules).values.repeat_interleave(len(SPELLINGS), 0)
        got = model.predict(spelled)
        torch.testing.assert_close(got.values, expected, rtol=1e-5, atol=3e-5)
        # If the string decides, the places of double bonds in aromatic rings follow the spelling; nothing else does.
        aliphatic = [s for s in molecules if not any(b.GetIsAromatic() for b in Chem.MolFromSmiles(s).GetBonds())]
        spelled = [text for smiles in aliphatic for text in spellings(smiles, draw)]
        model.reader = replace(model.reader, canonical=False)
        plain = model.predict(spelled).values
        expected = model.predict(aliphatic).values.repeat_interleave(len(SPELLINGS), 0)
    assert len(aliphatic) > 20
    torch.testing.assert_close(plain, expected, rtol=1e-5, atol=3e-5)
