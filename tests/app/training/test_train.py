"""Training on one's own graphs: any task and level, any encoder, with weights on edges, and without RDKit."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import refusals
from torch_geometric.data import Batch, Data
from torch_geometric.utils import stochastic_blockmodel_graph

from tg_lpe import Encoder, Encoding
from tg_lpe.app.prediction import Predictor, load
from tg_lpe.app.training import JointTraining, Task, TrainConfig, build_model, make_task, task_for, train
from tg_lpe.app.training.joint import _relabelled
from tg_lpe.app.training.state import read_metrics
from tg_lpe.checkpoints.files import read_json
from tg_lpe.data import GraphSplits, random_node_masks
from tg_lpe.encoders import Combined, GramTransformer, Inputs, RandomWalk
from tg_lpe.models import GraphTransformer, Model

MODEL: dict[str, Any] = {"hidden_channels": 16, "heads": 2, "num_layers": 1}
QUICK = TrainConfig(epochs=20, batch_size=8, lr=1e-2, precision="float32")
ONCE = replace(QUICK, epochs=1, lr=1e-3)
BINARY, REGRESSION = make_task({"name": "binary"}), make_task({"name": "regression"})
WALKS = {"class": "RandomWalk", "steps": 8}


def fitted(
    splits: GraphSplits, task: Task, encoder: Any = None, config: TrainConfig = QUICK, **arguments: Any
) -> tuple[Model, dict[str, Any]]:
    """Train a model of this encoder, and return it with the result."""
    model = build_model(splits.spec, task, encoder, **MODEL)
    return model, train(model, splits, task, config, progress=False, **arguments)


def rings(count: int, seed: int, weighted: bool = False) -> list[Data]:
    """Rings with label 1 and paths with label 0, of three to eight nodes."""
    generator = torch.Generator().manual_seed(seed)
    result = []
    for number in range(count):
        size = int(torch.randint(3, 9, (1,), generator=generator))
        ends = torch.arange(size)
        one_way = torch.stack([ends, (ends + 1) % size])[:, : size if number % 2 else size - 1]
        data = Data(edge_index=torch.cat([one_way, one_way.flip(0)], 1), num_nodes=size, x=torch.ones(size, 2))
        data.y = torch.tensor([float(number % 2)])
        if weighted:
            weight = torch.rand(one_way.size(1), generator=generator) + 0.5
            data.edge_weight = torch.cat([weight, weight])
        result.append(data)
    return result


def splits_of_rings(weighted: bool = False) -> GraphSplits:
    return GraphSplits.of(*(rings(n, seed, weighted) for seed, n in enumerate((40, 10, 10))), level="graph")


def test_the_best_epoch_of_a_metric_that_grows(tmp_path: Path) -> None:
    result = fitted(splits_of_rings(), BINARY, WALKS, folder=tmp_path)[1]
    values = [row["val_roc_auc"] for row in read_metrics(tmp_path / "metrics.jsonl")]
    assert result["val_roc_auc"] == max(values) and result["best_epoch"] == values.index(max(values)) + 1
    assert {"test_roc_auc", "test_average_precision", "test_accuracy", "test_roc_auc_relabelled"} <= set(result)
    assert result["test_roc_auc"] > 0.9 and "test_mae" not in result
    assert result["test_roc_auc_relabelled"] == pytest.approx(result["test_roc_auc"], abs=1e-6)


def test_nothing_is_kept_of_a_training(tmp_path: Path) -> None:
    """A process may train many models one after the other."""
    splits = splits_of_rings()
    model = fitted(splits, BINARY, WALKS, ONCE, folder=tmp_path)[0]
    kept = [weakref.ref(thing) for thing in (model, splits.train, splits.train._data.edge_index)]
    del model, splits
    gc.collect()
    assert [thing() for thing in kept] == [None] * 3


@pytest.mark.parametrize("encoder", [{"class": "GramTransformer"}, {"class": "EffectiveResistance"}], ids=str)
def test_weights_of_edges_are_read(encoder: dict[str, Any]) -> None:
    weighted, plain = (fitted(splits_of_rings(has_weights), REGRESSION, encoder)[1] for has_weights in (True, False))
    assert weighted != plain


def test_a_folder_is_resumed_and_not_overwritten(tmp_path: Path) -> None:
    splits, models = splits_of_rings(), []

    def run(epochs: int, resume: bool, seed: int = 0) -> dict[str, Any]:
        models.append(build_model(splits.spec, BINARY, seed=seed, **MODEL))
        config = replace(ONCE, epochs=epochs)
        return train(models[-1], splits, BINARY, config, folder=tmp_path, resume=resume, progress=False)

    result = run(2, resume=False)
    with pytest.raises(ValueError, match="resume=") as held:  # held, as in a notebook: the folder is free all the same
        run(2, resume=False)
    assert run(2, resume=True, seed=1) == result == read_json(tmp_path / "result.json"), "read, not trained again"
    first, last = models[0].state_dict(), models[-1].state_dict()
    assert all(torch.equal(value, last[name]) for name, value in first.items()) and not models[-1].training
    with pytest.raises(ValueError, match=r"loop\.epochs"):
        run(3, resume=True)
    assert held.value is not None


def test_a_model_without_an_encoder() -> None:
    class Mean(Model):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(2, 1)

        def forward(self, x, edge_index, edge_attr, batch, edge_weight, *, num_graphs, **_):  # type: ignore[no-untyped-def]
            return torch.zeros(num_graphs, 1).index_add(0, batch, self.linear(x))

    splits = splits_of_rings()
    result = train(Mean(), splits, BINARY, QUICK, progress=False)
    assert result["num_parameters"] == 3 and result["encoder_parameters"] == 0


@pytest.mark.parametrize("changed", ["x", "y", "edge_index", "edge_weight"])
def test_other_data_is_not_resumed(tmp_path: Path, changed: str) -> None:
    def run(*parts: list[Data]) -> None:
        splits = GraphSplits.of(*parts, level="graph")
        fitted(splits, REGRESSION, {"class": "EffectiveResistance"}, ONCE, folder=tmp_path, resume=True)

    parts = [rings(n, seed, weighted=True) for seed, n in enumerate((6, 2, 2))]
    run(*parts)
    run(*([data.clone() for data in part] for part in parts))
    other = parts[1][1].clone()
    other[changed] = other[changed].flip(0) if changed == "edge_index" else other[changed] + 1
    parts[1][1] = other
    with pytest.raises(ValueError, match=r"data\.digest"):
        run(*parts)


def train_on_seven(**task: Any) -> None:
    parts = [rings(n, seed) for seed, n in enumerate((10, 4, 4))]
    parts[2][0].y = torch.tensor([7.0])
    fitted(GraphSplits.of(*parts, level="graph"), make_task(task))


test_labels_of_another_task = refusals(
    train_on_seven,
    ({"name": "binary", "level": "node"}, "level='node'"),
    ({"name": "multilabel", "num_targets": 3}, "num_targets"),
    ({"name": "multiclass", "num_classes": 2}, "0, 1, 7"),
    ({"name": "binary"}, "0, 1, 7"),
)


@pytest.mark.parametrize("part", ["val", "test"])
def test_labels_of_one_class_are_refused_before_the_first_epoch(part: str, tmp_path: Path) -> None:
    parts = {name: rings(n, n) for name, n in (("train", 10), ("val", 4), ("test", 6))}
    for data in parts[part]:
        data.y = torch.tensor([1.0])
    splits = GraphSplits.of(**parts, level="graph")
    with pytest.raises(ValueError, match=f"{part} set, y .* another metric"):
        fitted(splits, BINARY, folder=tmp_path)
    assert not any(tmp_path.iterdir()), "a folder that nothing can be done with"
    fitted(splits, make_task({"name": "binary", "metric": "accuracy"}), config=ONCE, folder=tmp_path)


def test_columns_left_out_of_the_average_are_named() -> None:
    parts = {name: rings(n, n) for name, n in (("train", 10), ("val", 4), ("test", 6))}
    for name, graphs in parts.items():
        for number, data in enumerate(graphs):
            data.y = torch.tensor([[number % 2, 1 if name == "test" else number % 2, number % 2]]).float()
            if name == "val":
                data.y[0, 0] = torch.nan
    splits = GraphSplits.of(**parts, level="graph", columns=["toxic", "bitter", "sweet"])
    result = fitted(splits, make_task({"name": "multilabel", "num_targets": 3}), config=ONCE)[1]
    assert result["val_undefined_columns"] == ["toxic"] and result["test_undefined_columns"] == ["bitter"]
    assert (result["val_num_labels"], result["val_num_missing"]) == (8, 4)
    assert (result["test_num_labels"], result["test_num_missing"]) == (18, 0)


@pytest.mark.parametrize("encoder", [None, {"class": "RandomWalk", "steps": 4}], ids=str)
def test_attributes_that_are_not_read_do_not_matter(encoder: dict[str, Any] | None) -> None:
    """One-way rings have as many nodes as edges, so the level of such an attribute is ambiguous."""

    def ring(size: int, extra: bool) -> Data:
        ends = torch.arange(size)
        data = Data(edge_index=torch.stack([ends, (ends + 1) % size]), y=torch.tensor([size / 2]))
        if extra:
            data.charge = torch.ones(size)
            data.pos = torch.ones(size, 3)
            data.name = f"ring of {size}"
        else:
            data.num_nodes = size
        return data

    results = []
    for extra in (False, True):
        splits = GraphSplits.of(*([ring(3 + i, extra) for i in range(n)] for n in (6, 1, 4)), level="graph")
        results.append(fitted(splits, REGRESSION, encoder, ONCE)[1])
        assert not extra or splits.test._data.charge.numel() == 18, "the caller's data is as it was"
    assert results[0] == results[1]
    assert results[1]["test_mae_relabelled"] == pytest.approx(results[1]["test_mae"], rel=1e-5)


def test_weights_that_no_encoder_reads() -> None:
    """A model without an encoder is the baseline on weighted graphs too, as on the same graphs without weights."""
    figures, predictions = [], []
    for weighted in (False, True):
        parts = [rings(n, seed, weighted=True) for seed, n in enumerate((40, 10, 10))]
        for data in (data for part in parts for data in part if not weighted):
            del data.edge_weight
        splits = GraphSplits.of(*parts, level="graph")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model, result = fitted(splits, BINARY, config=ONCE)
        figures.append(result["test_roc_auc"])
        assert sum("edge_weight" in str(warning.message) for warning in caught) == weighted
        graphs = [splits.test[number] for number in range(3)]
        predictions.append(Predictor(model.eval(), BINARY).predict(graphs).values)
    assert figures[0] == figures[1] and torch.equal(*predictions)


def test_weights_under_another_name_are_not_read_in_silence() -> None:
    splits = splits_of_rings(weighted=True)
    for part in (splits.train, splits.val, splits.test):
        part._data.weight, part.slices["weight"] = part._data.edge_weight, part.slices.pop("edge_weight")
        del part._data.edge_weight
    with pytest.warns(UserWarning, match=r"^weight .*edge_weight"):
        fitted(splits, BINARY, config=ONCE)


def one_graph() -> GraphSplits:
    """Four blocks of twenty nodes, labelled by their block."""
    probabilities = torch.full((4, 4), 0.05).fill_diagonal_(0.5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        edge_index = stochastic_blockmodel_graph([20] * 4, probabilities)
    data = Data(edge_index=edge_index, num_nodes=80, y=torch.arange(4).repeat_interleave(20))
    return GraphSplits.of_masks(random_node_masks(data, 0))


EIGENVECTORS: dict[str, Any] = {"class": "LaplacianEigenvectors", "k": 4, "edge_out_channels": 0}


@pytest.mark.parametrize("encoder", [EIGENVECTORS, {"class": "Whitened", "encoder": EIGENVECTORS}])
def test_signs_stay_fixed_on_one_graph(encoder: dict[str, Any]) -> None:
    """Signs drawn in each step would hide in which block a node is."""
    splits = one_graph()
    model = build_model(splits.spec, task := task_for(splits, name="multiclass"), encoder, **MODEL)
    loop = JointTraining(replace(QUICK, epochs=60), model, splits, task, progress=False)
    assert loop.fit()["test_accuracy"] > 0.8
    batch = Batch.from_data_list([loop.train_set[0]])
    with torch.no_grad():
        assert torch.equal(loop.predict(batch, torch.Generator().manual_seed(1)), loop.predict(batch))
    others = GraphSplits.of(*([part[0]] * 2 for part in (splits.train, splits.val, splits.test)), level="node")
    assert not JointTraining(QUICK, model, others, task, progress=False).is_one_graph


def test_norms_have_the_statistics_of_the_one_graph() -> None:
    """Running statistics lag behind the weights, of which an epoch makes a single step."""
    splits = one_graph()
    model = build_model(splits.spec, task := task_for(splits, name="multiclass"), {"class": "RandomWalk"}, **MODEL)
    loop = JointTraining(replace(QUICK, lr=0.1), model, splits, task, progress=False)
    batch = Batch.from_data_list([loop.train_set[0]])
    for _ in range(5):
        loop.train_epoch()
        with loop.evaluated_weights(), torch.no_grad():
            evaluated = loop.outputs(loop.train_set)[0]
            model.train()
            trained = loop.predict(batch)
        torch.testing.assert_close(evaluated, trained, rtol=0.05, atol=0.05 * float(trained.abs().max()))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_precision_of_a_result(tmp_path: Path, precision: Any) -> None:
    """Of a model and data in double precision as well, whose run is loaded in double precision."""
    for dtype in (torch.float32, torch.float64):
        parts = [rings(n, n) for n in (10, 4, 6)]
        for data in (data for part in parts for data in part):
            data.x = data.x.to(dtype)
        splits = GraphSplits.of(*parts, level="graph")
        model = build_model(splits.spec, BINARY, WALKS, **MODEL).to(dtype)
        folder = tmp_path / str(dtype)
        result = train(model, splits, BINARY, replace(ONCE, precision=precision), folder=folder, progress=False)
        assert result["precision"] == ("float64" if dtype == torch.float64 else precision)
        expected = Predictor(model.eval(), BINARY).predict(parts[2]).values
        loaded = load(folder)
        assert loaded.model.readout[-1].weight.dtype == dtype
        assert torch.equal(loaded.predict(parts[2]).values, expected)


def test_predictions_are_not_rounded_to_bfloat16() -> None:
    """The last map of the read-out is of full precision: predictions near 100 differ by less than bfloat16 can say."""
    splits = splits_of_rings()
    model = build_model(splits.spec, REGRESSION, WALKS, **MODEL)
    torch.nn.init.constant_(model.readout[-1].bias, 100.0)
    training = JointTraining(TrainConfig(precision="bfloat16"), model, splits, REGRESSION, progress=False)
    model.eval()
    with torch.no_grad():
        out = training.predict(Batch.from_data_list([training.test_set[i] for i in range(10)]))
    assert out.dtype == torch.float32
    assert not torch.equal(out, out.bfloat16().float()) and len(out.unique()) > 2


def test_training_needs_labels_to_learn_from() -> None:
    parts = [rings(n, seed) for seed, n in enumerate((8, 4, 4))]
    for part, call in ((0, lambda splits: fitted(splits, task_for(splits, "regression"))), (1, task_for)):
        for data in parts[0] if part == 0 else parts[1] + parts[2]:
            data.y = torch.full_like(data.y, torch.nan, dtype=torch.float32)
        with pytest.raises(ValueError, match=r"\by\b"):
            call(GraphSplits.of(*parts, level="graph"))


test_a_model_of_another_task = refusals(
    lambda use, **arguments: use(GraphTransformer(in_channels=2, **MODEL, **arguments).eval()),
    *(
        ({"use": use, **arguments}, name)
        for use in (
            lambda model: train(model, splits_of_rings(), BINARY, QUICK, progress=False),
            lambda model: Predictor(model, BINARY),
        )
        for arguments, name in (({"readout": {"level": "node"}}, "level"), ({"out_channels": 3}, "out_channels"))
    ),
    ({"use": lambda model: train(model, splits_of_rings(), BINARY, progress=False), "pe_channels": 4}, "pe_channels"),
)


def test_a_model_of_which_nothing_is_trained() -> None:
    splits, encoder = splits_of_rings(), {"class": "GramTransformer", "num_layers": 2, "out_channels": 4}
    model = build_model(splits.spec, BINARY, encoder, **MODEL).requires_grad_(False)
    with pytest.raises(ValueError, match="requires_grad"):
        train(model, splits, BINARY, QUICK, progress=False)
    model.encoder.requires_grad_(True)
    with pytest.raises(ValueError, match="encoder_lr"):
        train(model, splits, BINARY, replace(QUICK, encoder_lr=0.0), progress=False)
    before = [p.clone() for p in model.parameters()]
    train(model, splits, BINARY, replace(QUICK, epochs=1), progress=False)
    moved = {n: not torch.equal(p, b) for (n, p), b in zip(model.named_parameters(), before, strict=True)}
    assert any(moved.values()) and all(name.startswith("encoder.") for name, is_so in moved.items() if is_so)


def test_an_encoder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="train takes"):
        train(GramTransformer(4, 4), splits_of_rings(), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_in_its_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    splits = splits_of_rings()

    def run(resume: bool, precision: Any = "auto") -> dict[str, Any]:
        return fitted(splits, BINARY, None, replace(ONCE, precision=precision), folder=tmp_path, resume=resume)[1]

    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False)
    result = run(resume=False)
    assert read_json(tmp_path / "config.json")["loop"]["precision"] == result["precision"] == "float32"
    assert run(resume=True) == run(resume=True, precision="float32") == result
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    assert run(resume=True) == result, "a complete run is only read"
    with pytest.raises(ValueError, match=r"loop\.precision"):
        run(resume=True, precision="bfloat16")
    (tmp_path / "result.json").unlink()
    with pytest.raises(ValueError, match=r"loop\.precision"):
        run(resume=True)


def test_penalties_are_in_the_metrics(tmp_path: Path) -> None:
    splits, options = splits_of_rings(), {"eta": 0.1}
    attention = {"attention": "hybrid", "attention_options": {"global_attention": "primal", "global_options": options}}
    model = build_model(splits.spec, BINARY, **MODEL, **attention)
    train(model, splits, BINARY, replace(ONCE, epochs=2), folder=tmp_path, progress=False)
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert len(rows) == 2 and all(0 < row["train_penalty"] < row["train_loss"] for row in rows)


class _Normed(Encoder):
    """A map of degrees with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.out_channels = 4
        self.linear, self.norm = torch.nn.Linear(1, 4), torch.nn.BatchNorm1d(4)

    def encode(self, graph: Any, inputs: Inputs) -> Encoding:
        return Encoding(self.norm(self.linear(graph.laplacian_diagonal(self.linear.weight).unsqueeze(1))))


def test_statistics_of_a_frozen_encoder_are_kept() -> None:
    splits = splits_of_rings()
    for encoder, rate, is_kept in (
        (_Normed(), 0.0, True),
        (_Normed(), 0.01, False),
        (Combined([_Normed().requires_grad_(False).eval(), RandomWalk(2)]), 0.01, True),
    ):
        before = copy.deepcopy(encoder.state_dict())
        model = fitted(splits, BINARY, encoder, replace(QUICK, epochs=2, recalibrate=10, encoder_lr=rate))[0]
        after = model.encoder.state_dict()
        assert all(torch.equal(after[name], value) for name, value in before.items()) == is_kept


SPLITS = splits_of_rings()
test_refused_arguments = refusals(
    lambda model=None, splits=SPLITS, task=BINARY, **options: train(
        model or build_model(SPLITS.spec, BINARY, None, **MODEL), splits, task, **options
    ),
    ({"model": torch.nn.Linear(2, 2)}, TypeError, "Linear"),
    ({"splits": []}, TypeError, "splits"),
    ({"task": "binary"}, TypeError, "task"),
    ({"config": {"epochs": 1}}, TypeError, "config"),
    ({"device": "gpu"}, "gpu"),
    ({"resume": True}, "resume="),
    ({"resume": "no"}, "resume"),
    ({"progress": "no"}, "progress"),
)
test_refused_arguments_of_models = refusals(
    build_model,
    ((SPLITS, BINARY, None), TypeError, "spec"),
    ((SPLITS.spec, "binary", None), TypeError, "task"),
    ((SPLITS.spec, BINARY, "GramTransformer"), "'class': 'GramTransformer'"),
)
test_refused_splits_of_a_task = refusals(task_for, (([], "binary"), TypeError, "splits"))


@pytest.mark.parametrize("level", ["graph", "node"])
def test_a_relabelled_graph_is_the_same_graph(level: str) -> None:
    ends = torch.tensor([[0, 0, 1, 2, 3], [1, 1, 1, 0, 2]])  # an edge twice, and a self-loop
    names = torch.arange(10.0, 14.0)
    graph = Data(x=names.unsqueeze(1), edge_index=ends, edge_attr=torch.tensor([5.0, 6.0, 7.0, 8.0, 9.0]), y=names)
    graph.graph_attr, graph.edge_weight = torch.tensor([[1.0, 2.0]]), graph.edge_attr + 0.5
    edges, orders = [(10, 11, 5), (10, 11, 6), (11, 11, 7), (12, 10, 8), (13, 12, 9)], set()
    for seed in range(6):
        moved = _relabelled(graph, level, torch.Generator().manual_seed(seed))
        name = moved.x.flatten()
        found = torch.stack([*name[moved.edge_index], moved.edge_attr], 1).int().tolist()
        assert sorted(map(tuple, found)) == edges and torch.equal(moved.edge_weight, moved.edge_attr + 0.5)
        assert torch.equal(moved.y, name if level == "node" else names)
        assert torch.equal(moved.graph_attr, graph.graph_attr) and moved.num_nodes == 4
        orders.add(tuple(name.tolist()))
    assert len(orders) > 3
