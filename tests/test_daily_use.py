"""Training on one's own table: its own split, several seeds, folds, weights, further columns."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rdkit import Chem, DataStructs, RDConfig
from rdkit.Chem import Crippen, rdFingerprintGenerator, rdMolDescriptors
from rdkit.ML.Cluster import Butina
from torch import Tensor
from torch_geometric.data import Data

from tg_lpe import GraphTransformer
from tg_lpe.app import prediction
from tg_lpe.app.cli import main
from tg_lpe.app.molecules import MoleculeSplits, _pool, load_molecules
from tg_lpe.app.molecules._butina import butina_clusters
from tg_lpe.app.training import JointTraining, TrainConfig, build_model, check_training, task_for
from tg_lpe.app.training import train as train_model
from tg_lpe.app.training.tasks import Regression
from tg_lpe.data import DataSpec, GraphSplits, random_folds
from tg_lpe.models import Model, TupleTransformer

TINY = "--target logp area --encoder none --epochs 1 --threads 1 --quiet --model.hidden_channels 8 --model.heads 2"
PARTS = {"train": "Train", "val": "valid", "test": "test"}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 400 molecules that ship with RDKit: two targets, a split, a weight, a temperature."""
    path = tmp_path_factory.mktemp("table") / "mine.csv"
    lines = Path(RDConfig.RDDataDir, "NCI", "first_5K.smi").read_text(encoding="utf-8").splitlines()
    rows = []
    for smiles in (line.split()[0] for line in lines):
        molecule = Chem.MolFromSmiles(smiles)
        if molecule is None or len(rows) == 400:
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


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--split_column fold", "no column 'fold'"),
        ("--split_column weight", "mine.csv:2: '1' in column 'weight'"),
        ("--split_column area", "--target logp area and --split_column area"),
        ("--split_column part --split random", "--split random and --split_column part"),
        ("--split_column part --split_seed 1", "--split_seed 1"),
        ("--split scaffold --split_seed 1", "--split_seed 1"),
        ("--seeds 0 --folds 2", "--seeds and --folds"),
        ("--seeds 1 1", "--seeds must be different"),
        ("--seeds -1", "seed"),
        ("--folds 1", "--folds"),
        ("--folds 2 --split_column part", "--split_column part and --folds"),
        ("--folds 2 --split scaffold", "--split scaffold and --folds"),
        ("--extra_columns dose", "no column 'dose'"),
        ("--extra_columns part", "mine.csv:2: 'Train' in column 'part'"),
        ("--extra_columns area", "--target logp area and --extra_columns area"),
        ("--extra_columns weight --weight_column weight", "--extra_columns weight and --weight_column weight"),
    ],
)
def test_refusals(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, named: str) -> None:
    assert named in refused(capsys, table, "--out", tmp_path / "run", *words.split())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("rows", "options", "error", "named"),
    [
        ("smiles,y,part\nC,1.5,train\nCC,2.5,TEST\n", {"split_column": "part"}, ValueError, "'part' .* val"),
        ("smiles,y\nC,1.5\n", {"fold": (5, 5)}, ValueError, "fold"),
        ("smiles,y\nC,1.5\n", {"fold": 3}, ValueError, "fold"),
        ("smiles,y\nC,1.5\n", {"fold": (0, 3, 5)}, ValueError, "fold"),
        ("smiles,y\nC,1.5\n", {"extra_columns": "y"}, TypeError, "extra_columns"),
        ("smiles,y\nC,1.5\n", {"weight_column": "y"}, ValueError, "weight_column='y'"),
        ("smiles,y,w\nC,1.5,1\nCC,2.5,2\nCO,3.5,much\n", {"weight_column": "w"}, ValueError, "own.csv:4: 'much'"),
        ("smiles,y,w\nC,1.5,\nCC,2.5,2\n", {"weight_column": "w"}, ValueError, "own.csv:2: ''"),
        ("smiles,y,w\nC,1.5,1\nCC,2.5,-2\n", {"weight_column": "w"}, ValueError, "own.csv:3: .*'-2'"),
    ],
)
def test_refused_tables(tmp_path: Path, rows: str, options: dict[str, Any], error: type, named: str) -> None:
    (tmp_path / "own.csv").write_text(rows, encoding="utf-8")
    with pytest.raises(error, match=named):
        load(tmp_path / "own.csv", targets=["y"], **options)


def data_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))["data"]  # type: ignore[no-any-return]


def load(table: Path, **options: Any) -> MoleculeSplits:
    options = {"targets": ["logp"], "cache_dir": table.parent / "cache", "progress": False, **options}
    return load_molecules(table, **options)


def test_a_column_divides_the_table(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    splits = load(table, split_column="part")
    values = [float(row["logp"]) for row in csv.DictReader(table.open(encoding="utf-8")) if row["part"] == "valid"]
    assert splits.val.y.tolist() == pytest.approx(values, abs=1e-6)
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [320, 40, 40]
    run = tmp_path / "run"
    train(table, "--split_column", "part", "--out", run)
    data = data_of(run)
    assert data["split"] == {"kind": "column", "column": "part"} and data["num_test"] == 40
    train(table, "--split_column", "part", "--out", run, "--resume")  # complete already
    assert "data.split.kind" in refused(capsys, table, "--out", run, "--resume")


def test_molecules_of_training_and_test(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Equal molecules in two parts are reported in any spelling, also from the cache; not within one part."""
    parts = {
        "train": ["CCO", "CCCl", "CCBr", "CCO", "c1ccccc1"],
        "val": ["CCN", "OCC"],
        "test": ["CCI", "C1=CC=CC=C1", "C1CCCCC1"],
    }
    rows = [f"{smiles},{len(smiles)}.5,{part}" for part, members in parts.items() for smiles in members]
    (tmp_path / "twice.csv").write_text("\n".join(["smiles,y,part", *rows]) + "\n", encoding="utf-8")
    for _ in range(2):
        caplog.clear()
        report = load(tmp_path / "twice.csv", targets=["y"], split_column="part").report
        assert report.num_repeated == 2 and report.repeated == "twice.csv:8 (OCC) is twice.csv:2"
        assert "2 of the 5 molecules of val and test are also" in caplog.text
    (tmp_path / "once.csv").write_text("\n".join(["smiles,y,part", *rows[:6], rows[7]]) + "\n", encoding="utf-8")
    caplog.clear()
    assert load(tmp_path / "once.csv", targets=["y"], split_column="part").report.num_repeated == 0
    assert "of val and test" not in caplog.text


def test_the_split_has_a_seed_of_its_own(table: Path, tmp_path: Path) -> None:
    runs = {}
    for seed, words in {"0": (), "3": ("--split_seed", "0"), "4": ("--split_seed", "7")}.items():
        train(table, "--seed", seed, *words, "--out", tmp_path / seed)
        runs[seed] = data_of(tmp_path / seed)
    assert runs["3"] == runs["0"] and runs["4"]["split"] == {"kind": "random", "seed": 7}
    assert runs["4"]["digest"] == load(table, targets=["logp", "area"], seed=7).digest()


def test_several_seeds_have_one_split(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("--seeds", "0", "5", "--out", tmp_path / "runs", "--graphs", "200")
    train(table, *command)
    out = capsys.readouterr().out
    runs = [tmp_path / "runs" / name for name in ("s0", "s5")]
    assert data_of(runs[0]) == data_of(runs[1]), "the seeds share one split"
    figures = [json.loads((run / "result.json").read_text())["test_scaled_mae"] for run in runs]
    mean = sum(figures) / 2
    assert figures[0] != figures[1] and f"{mean:.4f} ± " in out and "0, 5" in out
    assert "already holds a run" in refused(capsys, table, *command)
    (runs[1] / "result.json").unlink()  # as one that was stopped
    train(table, *command, "--resume")
    again, err = capsys.readouterr()
    assert again.splitlines()[-3:] == out.splitlines()[-3:] and "s0 is complete already" in err
    predictions = tmp_path / "predictions.csv"
    assert main(["predict", *map(str, runs), str(table), str(predictions), "--quiet", "--threads", "1"]) == 0
    assert "logp_spread" in predictions.read_text(encoding="utf-8").partition("\n")[0]
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "runs"), str(table), str(predictions)]) == 1
    assert "config.json is missing; name one of the folders in it that have one: s0, s5" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"zoo.load\('.*s0'\).model"):
        GraphTransformer.from_pretrained(runs[0])


def test_each_molecule_is_tested_in_one_fold(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    read: list[int] = []
    read_smiles = _pool.read_smiles
    monkeypatch.setattr(_pool, "read_smiles", lambda *args, **kw: read.append(len(args[0])) or read_smiles(*args, **kw))
    out = Path("runs", "mine-none-s0-folds3")
    train(table, "--folds", "3")
    assert read == [400], "once for all folds"
    said = capsys.readouterr().out
    described = [data_of(out / f"fold{number}") for number in range(3)]
    assert [data["split"]["fold"] for data in described] == [0, 1, 2]
    assert sum(data["num_test"] for data in described) == 400 and {data["num_val"] for data in described} == {40}
    assert len({data["digest"] for data in described}) == 3
    alone = load(table, targets=["logp", "area"], fold=(2, 3), cache_dir=tmp_path / "cache")
    assert alone.digest() == described[2]["digest"]
    assert " ± " in said.splitlines()[-4] and "0 fold 0, 0 fold 1, 0 fold 2" in said, "one row for all folds"
    capsys.readouterr()
    assert main(["report", *(str(out / f"fold{number}") for number in range(3)), "--out", str(out / "a.html")]) == 0
    assert "0 fold 0, 0 fold 1, 0 fold 2" in capsys.readouterr().out

    parts = random_folds(list(range(10)), seed=1, folds=4)
    assert sorted(row for _, _, test in parts for row in test) == list(range(10))
    assert all(sorted([*train, *val, *test]) == list(range(10)) for train, val, test in parts)


def test_weights_of_the_training_loss(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = table.read_text(encoding="utf-8").splitlines()
    twice = [line if place == 0 else f"{line},2" for place, line in enumerate(text)]
    twice[0] += ",two"
    (tmp_path / "twice.csv").write_text("\n".join(twice) + "\n", encoding="utf-8")
    results = {}
    for name, column in {"none": None, "equal": "two", "other": "weight"}.items():
        words = () if column is None else ("--weight_column", column)
        train(tmp_path / "twice.csv", "--graphs", "200", *words, "--out", tmp_path / name)
        results[name] = json.loads((tmp_path / name / "result.json").read_text(encoding="utf-8"))
    assert results["equal"] == results["none"] != results["other"]
    assert data_of(tmp_path / "other")["weight_column"] == "weight"
    assert "weight_column" not in data_of(tmp_path / "none")
    capsys.readouterr()
    assert main(["report", str(tmp_path / "none"), str(tmp_path / "other"), "--out", str(tmp_path / "page.html")]) == 0
    said = capsys.readouterr().out
    assert "weight_column weight" in said and said.count("constant (median") == 1, "two rows of one table"
    again = ("--graphs", "200", "--out", tmp_path / "other", "--resume")
    assert "data.weight_column was 'weight', is None" in refused(capsys, tmp_path / "twice.csv", *again)

    splits = load(table, weight_column="weight")
    assert splits.train[0].graph_weight.shape == (1,) and splits.train.graph_weight.unique().tolist() == [1, 2, 3]


def test_labels_that_teach_nothing_or_are_of_two_kinds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [f"{'C' * (n + 1)},1.5,{n}.5,{'ab'[n % 2]},{n % 2}" for n in range(20)]
    (tmp_path / "own.csv").write_text("\n".join(["smiles,same,value,word,bit", *rows]) + "\n", encoding="utf-8")
    task_for(load(tmp_path / "own.csv", targets=["same"]))
    assert "same: all 16 training labels are 1.5: nothing can be learned" in caplog.text
    with pytest.raises(ValueError, match=r"some of the columns value, word hold names, and value numbers"):
        task_for(load(tmp_path / "own.csv", targets=["value", "word"]))
    assert task_for(load(tmp_path / "own.csv", targets=["bit", "word"])).name == "multilabel"


def test_weights_that_do_not_fit() -> None:
    class Own(Regression):
        def loss(self, prediction: Tensor, target: Tensor) -> Tensor:  # type: ignore[override]
            return (prediction - target).abs().mean()

    def splits(weight: float) -> GraphSplits:
        graphs = [Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2, y=0.5 + n) for n in range(4)]
        for graph in graphs:
            graph.graph_weight = torch.tensor([weight])
        return GraphSplits.of(graphs, graphs, graphs, level="graph")

    model = GraphTransformer(hidden_channels=8, heads=2, num_layers=1)
    check_training(model, splits(2.0), Regression())
    with pytest.raises(ValueError, match="takes no weight="):
        check_training(model, splits(2.0), Own())
    for weight in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=r"graph_weight must be finite .*, got .* weight_column"):
            check_training(model, splits(weight), Regression())


def test_further_columns(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The model also reads two columns, in training, in predictions and from graphs."""
    command = ("--extra_columns", "temperature", "weight", "--split_column", "part", "--graphs", "200")
    runs = [tmp_path / "runs" / name for name in ("s0", "s1")]
    train(table, *command, "--seeds", "0", "1", "--out", tmp_path / "runs", "--precision", "float32")
    assert data_of(runs[0])["extra_columns"] == ["temperature", "weight"]
    again = ("--split_column", "part", "--graphs", "200", "--out", runs[0], "--resume")
    assert "data.extra_columns was ['temperature', 'weight'], is None" in refused(capsys, table, *again)

    predictor = prediction.load(runs[0])
    splits = load(table, split_column="part", extra_columns=["temperature", "weight"])
    training = splits.train.graph_attr[:200].double()
    embedding = predictor.model.graph_embedding
    torch.testing.assert_close(embedding.mean.double(), training.mean(0))
    torch.testing.assert_close(embedding.std.double(), training.std(0, correction=0))

    extra = dict(zip(predictor.extra_columns, splits.test.graph_attr.T.tolist(), strict=True))
    expected = predictor.predict(splits.smiles["test"], extra=extra).values
    torch.testing.assert_close(predictor.predict(splits.test).values, expected)
    colder = {**extra, "temperature": [value - 100 for value in extra["temperature"]]}
    far = predictor.predict(splits.smiles["test"], extra=colder)
    assert not torch.allclose(far.values, expected)
    assert "temperature 187, 280 to 329 in training" in far.outside[0].reason and len(far.outside) == 40
    kept = list(csv.DictReader((runs[0] / "predictions_test.csv").open(encoding="utf-8")))
    assert [float(row["predicted_logp"]) for row in kept] == pytest.approx(expected[:, 0].tolist(), abs=1e-4)

    out = tmp_path / "out.csv"
    assert main(["predict", str(runs[0]), str(table), str(out), "--quiet", "--threads", "1"]) == 0
    rows = [row for row in csv.DictReader(out.open(encoding="utf-8")) if row["part"] == "test"]
    assert [float(row["predicted_logp"]) for row in rows] == pytest.approx(expected[:, 0].tolist(), abs=1e-4)
    assert main(["predict", *map(str, runs), str(table), str(out), "--quiet", "--threads", "1"]) == 0

    described = tmp_path / "described"
    train(table, *command, "--descriptors", "--precision", "float32", "--out", described)
    assert main(["predict", str(described), str(table), str(out), "--quiet", "--threads", "1"]) == 0
    rows = [row for row in csv.DictReader(out.open(encoding="utf-8")) if row["part"] == "test"]
    kept = list(csv.DictReader((described / "predictions_test.csv").open(encoding="utf-8")))
    expected = [float(row["predicted_logp"]) for row in kept]
    assert [float(row["predicted_logp"]) for row in rows] == pytest.approx(expected, abs=1e-4)

    lines = ["smiles;temperature;weight", "CCO;290.5;1", "CC;29_0;1", "C1CC(;300;1", "CCN;;2"]
    (tmp_path / "few.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    listed = tmp_path / "refused.csv"
    words = [str(runs[0]), str(tmp_path / "few.csv"), str(out), "--refused", str(listed), "--quiet", "--threads", "1"]
    assert main(["predict", *words]) == 0
    reasons = {row["smiles"]: row["reason"] for row in csv.DictReader(listed.open(encoding="utf-8"))}
    assert reasons["CC"] == "'29_0' in column 'temperature' must be a number" and set(reasons) == {"CC", "C1CC(", "CCN"}
    capsys.readouterr()
    (tmp_path / "few.csv").write_text("smiles,temperature\nCCO,290\n", encoding="utf-8")
    assert main(["predict", *words]) == 1
    assert "few.csv has no column 'weight'; there are 'smiles', 'temperature'" in capsys.readouterr().err
    assert predictor.predict([], extra={"temperature": [], "weight": []}).values.shape == (0, 2)
    for call, named in (
        (lambda: predictor.predict(["CCO"], extra={"temperature": [290]}), "'weight': pass extra="),
        (lambda: predictor.predict(["CCO"], extra={"temperature": [290], "weight": [1, 2]}), r"extra\['weight'\]"),
        (lambda: predictor.predict(load(table, split_column="part").test), "graph_attr"),
    ):
        with pytest.raises(ValueError, match=named):
            call()


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (GraphTransformer, {}),
        (GraphTransformer, {"readout": {"pooling": "both"}}),
        (GraphTransformer, {"readout": {"level": "node"}}),
        (TupleTransformer, {"readout": {"level": "edge"}}),
        (TupleTransformer, {"readout": {"level": "node"}}),
        (TupleTransformer, {}),
    ],
)
def test_a_models_features_of_graphs(model: type[Model], options: dict[str, Any]) -> None:
    """Each row follows the features of its own graph, whatever the batch; without them the model is as it was."""
    torch.manual_seed(0)
    own = model(hidden_channels=8, heads=2, num_layers=1, graph_dim=2, **options).eval()
    plain = model(hidden_channels=8, heads=2, num_layers=1, **options).eval()
    plain.load_state_dict({name: v for name, v in own.state_dict().items() if "graph_embedding" not in name})
    edge_index, batch = torch.tensor([[0, 1, 2, 3, 3, 4], [1, 0, 3, 2, 4, 3]]), torch.tensor([0, 0, 1, 1, 1])
    values = torch.tensor([[300.0, 1.0], [280.0, 1.0]])
    own.graph_embedding.fit(values)
    assert own.graph_embedding.std.tolist() == [10.0, 1.0]
    first = own(None, edge_index, None, batch, graph_attr=values, num_nodes=5)
    other = own(None, edge_index, None, batch, graph_attr=values + torch.tensor([[0.0, 0.0], [5.0, 0.0]]), num_nodes=5)
    of_first = {"graph": 1, "node": 2, "edge": 2}[own.level]
    assert torch.equal(first[:of_first], other[:of_first])
    assert not torch.isclose(first[of_first:], other[of_first:]).all()
    alone = own(None, edge_index[:, :2], graph_attr=values[:1], num_nodes=2)
    torch.testing.assert_close(alone, first[:of_first])
    own.graph_embedding.fit(values[:1].expand(2, -1))
    same = own(None, edge_index, None, batch, graph_attr=values[:1].expand(2, -1), num_nodes=5)
    torch.testing.assert_close(same, plain(None, edge_index, None, batch, num_nodes=5))
    with pytest.raises(ValueError, match=r"graph_attr must be floating point \[2, 2\]"):
        own(None, edge_index, None, batch, num_nodes=5)
    with pytest.raises(ValueError, match="graph_attr= must not be given"):
        plain(None, edge_index, None, batch, graph_attr=values, num_nodes=5)


def test_butinas_clusters_are_rdkits_and_stay_whole(table: Path, tmp_path: Path) -> None:
    splits = load(table, split="butina")
    assert splits.describe()["split"] == {"kind": "butina"}
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [320, 40, 40]
    rows = list(csv.DictReader(table.open(encoding="utf-8")))
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=1024)
    prints = [generator.GetFingerprint(Chem.MolFromSmiles(row["smiles"])) for row in rows]
    pairs = (1 - s for i in range(1, 400) for s in DataStructs.BulkTanimotoSimilarity(prints[i], prints[:i]))
    expected = Butina.ClusterData(list(pairs), 400, 0.6, isDistData=True)
    found: dict[int, list[int]] = {}
    for place, cluster in enumerate(butina_clusters(prints)):
        found.setdefault(cluster, []).append(place)
    assert list(found.values()) == sorted(map(sorted, expected), key=lambda own: own[0]) and len(found) < 300

    alike = "".join(f"CC{'C' * n}O,{n}.5\n" for n in range(9, 20))
    (tmp_path / "few.csv").write_text(f"smiles,y\n{alike}", encoding="utf-8")
    with pytest.raises(ValueError, match="split='butina' leaves no molecule for train, val: 11 of the 11"):
        load(tmp_path / "few.csv", targets=["y"], split="butina")
    with pytest.raises(ValueError, match=r"split='butina' compares all pairs .* at most 50,000 molecules, got 50,001"):
        butina_clusters(prints[:1] * 50_001)


def test_features_of_your_own_graphs() -> None:
    edges = torch.tensor([[0, 1, 1, 2, 2, 0], [1, 0, 2, 1, 0, 2]])
    graphs = [Data(torch.ones(3, 2), edges, graph_attr=torch.full((1, 1), n / 2), y=n / 3) for n in range(9)]
    splits = GraphSplits.of(graphs[:3], graphs[3:6], graphs[6:], level="graph")
    assert splits.spec.graph_dim == 1
    task, options = task_for(splits), {"hidden_channels": 16, "heads": 2, "num_layers": 1}
    config = TrainConfig(epochs=1, precision="float32")
    model = build_model(splits.spec, task, **options)
    train_model(model, splits, task, config, progress=False)
    torch.testing.assert_close(model.graph_embedding.mean, splits.train.graph_attr.mean(0))
    with pytest.warns(UserWarning, match="graph_attr of the graphs is not read"):
        JointTraining(config, GraphTransformer(in_channels=2, **options), splits, task, progress=False)

    plain = [Data(edge_index=graph.edge_index, num_nodes=3, y=graph.y) for graph in splits.val]
    with pytest.raises(ValueError, match="graph_dim"):
        check_training(
            GraphTransformer(graph_dim=1, **options), GraphSplits.of(plain, plain, plain, level="graph"), task
        )
    with pytest.raises(ValueError, match="graph_attr must be floating point"):
        DataSpec.of([Data(edge_index=plain[0].edge_index, num_nodes=3, graph_attr=torch.tensor([[1]]))])

    class Bare(Model):
        def __init__(self, out_channels: int = 1) -> None:
            super().__init__()

        def forward(self, *args: Any, **options: Any) -> None:
            return None

    with pytest.raises(ValueError, match="Bare has no argument graph_dim"):
        build_model(splits.spec, task, model=Bare)
