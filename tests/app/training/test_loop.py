"""The loop: schedules, seeds and reproducibility."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import assert_same_run
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, InMemoryDataset

from tg_lpe import GramTransformer, Graph
from tg_lpe.app.molecules import MoleculeSplits
from tg_lpe.app.training.build import build_model
from tg_lpe.app.training.config import TrainConfig
from tg_lpe.app.training.joint import JointTraining
from tg_lpe.app.training.run_folder import RunFolder
from tg_lpe.app.training.state import copy_state, read_metrics
from tg_lpe.app.training.tasks import Regression
from tg_lpe.checkpoints.files import load_tensors, read_json
from tg_lpe.data import GraphSplits

MODEL: dict[str, Any] = {"hidden_channels": 16, "heads": 2, "num_layers": 1}
MODEL |= {"readout": {"pooling": "both"}, "pe_options": {"norm": True}}
LOOP: dict[str, Any] = {"batch_size": 8, "epochs": 4}
NONE = None
LAPLACIAN = {"class": "LaplacianEigenvectors", "k": 3}
WALK = {"class": "RandomWalk", "steps": 3}
EXACT = {"class": "GramTransformer", "out_channels": 3, "edge_out_channels": 3, "probes": "identity"}
RANDOM = {"class": "GramTransformer", "probes": "rademacher", "num_filters": 1, "num_layers": 3}
FEATURES = {"class": "LinearTransformer", "k": 4, "out_channels": 3, "probes": "features"}


def train(
    splits: MoleculeSplits,
    encoder: dict[str, Any] | None = EXACT,
    folder: RunFolder | None = None,
    cls: type[JointTraining] = JointTraining,
    model: dict[str, Any] | None = None,
    **loop: Any,
) -> JointTraining:
    config = TrainConfig(**{**LOOP, **loop})
    task = Regression()
    built = build_model(splits.spec, task, encoder, seed=config.seed, **{**MODEL, **(model or {})})
    return cls(config, built, splits, task, folder, progress=False)


def factors(splits: MoleculeSplits, total: int, **settings: Any) -> list[float]:
    training = train(splits, **settings)
    return [training._schedule(step, total) for step in range(total)]


def test_schedules(splits: MoleculeSplits) -> None:
    """Under "decay" half after 800 of 2,000 epochs, whatever the number of epochs and steps."""
    assert factors(splits, 10, schedule="constant", epochs=5) == [1.0] * 10
    got = factors(splits, 100, schedule="decay", epochs=10)
    assert got == pytest.approx([2 ** (-20 * step / 800) for step in range(100)], rel=1e-12)
    (factor,) = factors(splits, 1, schedule="one-cycle", epochs=1)
    assert 0 < factor <= 1
    got = factors(splits, 100, schedule="one-cycle", epochs=10, warmup=0.2)
    assert got[0] == pytest.approx(0.04) and got[20] == 1.0 == max(got)
    assert got[10] == pytest.approx(0.52) and got[60] == pytest.approx(0.5)
    assert got[:21] == sorted(got[:21]) and got[20:] == sorted(got[20:], reverse=True)
    assert 0 < got[-1] < 1e-2


def test_plateau_is_torchs(splits: MoleculeSplits) -> None:
    """The learning rate of each epoch, the last of which is the first below ``min_lr``."""
    losses = [1.0, 0.9, 0.95, 0.89995, 0.9, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.7, *[0.7] * 30]

    class Told(JointTraining):
        def validate(self) -> dict[str, float]:
            return {**super().validate(), "val_loss": losses[self.epoch - 1]}

        def train_epoch(self) -> dict[str, Any]:
            row = super().train_epoch()
            rates.append(row["lr"])
            return row

    rates: list[float] = []
    settings = {"schedule": "plateau", "patience": 2, "lr": 0.01, "min_lr": 0.001, "epochs": 60, "batch_size": 24}
    result = train(splits, NONE, cls=Told, **settings).fit()
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.01)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=2)
    expected: list[float] = []
    for loss in losses:
        expected.append(optimizer.param_groups[0]["lr"])
        theirs.step(loss)
        if optimizer.param_groups[0]["lr"] < 0.001:
            break
    assert rates == expected and min(rates) == 0.00125 and result["epochs"] == len(rates) < len(losses)


class Watched(JointTraining):
    """Counts evaluations by data set and keeps the weights of each epoch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.evaluated: list[str] = []
        self.by_epoch: list[dict[str, Tensor]] = []

    def outputs(self, dataset: InMemoryDataset) -> tuple[Tensor, Tensor]:
        self.evaluated.append("test" if dataset is self.test_set else "val" if dataset is self.val_set else "other")
        if dataset is self.val_set and len(self.by_epoch) < self.config.epochs:
            self.by_epoch.append({name: value.clone() for name, value in self.model.state_dict().items()})
        return super().outputs(dataset)


@pytest.mark.parametrize(
    ("encoder", "model"),
    [
        (NONE, {}),
        (LAPLACIAN, {}),
        (LAPLACIAN, {"edge_encoding": False, "pe_options": {"norm": False}}),
        (WALK, {}),
        (EXACT, {}),
        (FEATURES, {}),
        (RANDOM, {"readout": {"pooling": "mean"}, "pe_options": {"norm": False}}),
        ({**EXACT, "basis": "chebyshev", "conductances": "ground"}, {"readout": {"pooling": "sum"}}),
    ],
    ids=str,
)
def test_training_learns_and_validation_chooses(
    splits: MoleculeSplits, tmp_path: Path, encoder: dict[str, Any] | None, model: dict[str, Any]
) -> None:
    folder = RunFolder(tmp_path)
    training = train(splits, encoder, folder, Watched, model, epochs=8, lr=1e-2, schedule="constant")
    torch.manual_seed(0)
    before = torch.get_rng_state()
    result = training.fit()
    assert torch.equal(torch.get_rng_state(), before), "the global generator is the caller's"

    rows = read_metrics(folder.metrics)
    assert [row["epoch"] for row in rows] == list(range(1, 9))
    assert rows[-1]["train_loss"] < 0.7 * rows[0]["train_loss"]
    assert training.evaluated == ["val"] * 9 + ["test", "other"], "test: read once, and once under other numbers"
    validation = [row["val_mae"] for row in rows]
    best = validation.index(min(validation))
    assert result["best_epoch"] == best + 1 and result["val_mae"] == validation[best]
    weights = load_tensors(folder.model)[0]
    for name, value in training.by_epoch[best].items():
        assert torch.equal(weights[name], value) and torch.equal(training.model.state_dict()[name], value)
    assert read_json(folder.result) == result
    expected = torch.cat(
        [training.predict(Batch.from_data_list([data])).detach()[:, 0] - data.y for data in training.test_set]
    )
    assert result["test_mae"] == pytest.approx(float(expected.abs().mean()), rel=1e-4)
    assert result["test_rmse"] == pytest.approx(float(expected.square().mean().sqrt()), rel=1e-4)
    assert (result["encoder_parameters"] > 0) == (encoder in (EXACT, FEATURES, RANDOM) or "chebyshev" in str(encoder))


@pytest.mark.parametrize(
    "encoder", [LAPLACIAN, {"class": "LinearTransformer", "k": 4, "probes": "random"}, EXACT, RANDOM], ids=str
)
@pytest.mark.usefixtures("one_thread")
def test_a_seed_decides_every_bit(splits: MoleculeSplits, encoder: dict[str, Any]) -> None:
    results, states = [], []
    for number, seed in enumerate((3, 3, 4)):
        torch.manual_seed(number)  # the caller's generator is not used
        training = train(splits, encoder, seed=seed, epochs=2)
        results.append(training.fit())
        states.append(training.model.state_dict())
    assert results[0] == results[1] and math.isfinite(results[0]["test_mae"])
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert results[0]["test_mae"] != results[2]["test_mae"]


@pytest.mark.parametrize("encoder", [LAPLACIAN, RANDOM], ids=str)
def test_random_probes_and_signs_are_drawn_in_training_alone(splits: MoleculeSplits, encoder: dict[str, Any]) -> None:
    training = train(splits, encoder, model={"pe_options": {"norm": False}})
    training.model.eval()
    batch = Batch.from_data_list([training.train_set[i] for i in range(8)])
    generator = torch.Generator().manual_seed(0)
    drawn = [training.predict(batch, generator) for _ in range(2)]
    assert not torch.equal(*drawn)
    assert torch.equal(training.predict(batch), training.predict(batch))
    assert training.loss(batch, generator) != training.loss(batch, generator)
    exact = train(splits, EXACT, model={"pe_options": {"norm": False}})
    exact.model.eval()
    assert torch.equal(exact.predict(batch, generator), exact.predict(batch)), "identity probes draw nothing"


def test_each_graph_counts_by_its_weight() -> None:
    """Divided by the mean of the weights."""
    weights, edges = torch.tensor([0.0, 1.0, 2.0, 5.0]), torch.tensor([[0, 1], [1, 0]])
    graphs = [Data(torch.randn(2, 3), edges, y=torch.randn(1), graph_weight=weight[None]) for weight in weights]
    splits = GraphSplits.of(graphs, graphs, graphs, level="graph")
    model = build_model(splits.spec, Regression(), hidden_channels=8, heads=2, num_layers=1)
    training = JointTraining(TrainConfig(precision="float32"), model, splits, Regression(), progress=False)
    batch = Batch.from_data_list(list(training.train_set))
    expected = Regression().loss(training.predict(batch), batch.y, weight=weights / 2)
    torch.testing.assert_close(training.loss(batch, torch.Generator()), expected)


def test_an_equivariant_encoding_does_not_depend_on_the_numbering(splits: MoleculeSplits) -> None:
    def deviation(encoder: dict[str, Any] | None) -> float:
        result = train(splits, encoder, epochs=2, lr=1e-2).fit()
        return abs(result["test_mae_relabelled"] - result["test_mae"]) / result["test_mae"]

    for encoder in (NONE, WALK, EXACT, FEATURES):
        assert deviation(encoder) < 1e-5, encoder
    assert deviation({**FEATURES, "probes": "learned"}) > 1e-4, "which the paper's own is not"


def test_the_encoder_has_a_learning_rate_of_its_own(splits: MoleculeSplits) -> None:
    chosen = {"class": "GramTransformer", "probes": "identity"}
    training = train(splits, chosen)
    model, encoder = training.model, list(training.model.encoder.parameters())
    assert len(encoder) == 2
    groups = training.optimizer.param_groups
    assert [group["peak_lr"] for group in groups] == [training.config.lr, training.config.encoder_lr]
    assert [len(group["params"]) for group in groups] == [len(list(model.parameters())) - 2, 2]
    assert all(a is b for a, b in zip(groups[1]["params"], encoder, strict=True)) and groups[1]["weight_decay"] == 0
    without = train(splits, {**chosen, "conductances": "fixed"})
    assert len(without.optimizer.param_groups) == 1, "nothing to learn: no group"
    without.fit()


@pytest.mark.parametrize("chosen", ["gram-k16", {"class": "LinearTransformer", "probes": "features", "k": 4}])
def test_an_encoder_without_a_learning_rate_is_kept(splits: MoleculeSplits, chosen: Any) -> None:
    training = train(splits, chosen, encoder_lr=0, weight_decay=0.5, precision="float32")
    before = [p.clone() for p in training.model.encoder.parameters()]
    first = next(training.model.layers[0].parameters()).clone()
    assert before and len(training.optimizer.param_groups) == 1
    result = training.fit()
    assert all(torch.equal(p, q) for p, q in zip(training.model.encoder.parameters(), before, strict=True))
    assert not torch.equal(next(training.model.layers[0].parameters()), first)
    assert result["encoder_parameters"] == sum(p.numel() for p in before)
    assert all(p.requires_grad for p in training.model.encoder.parameters()), "for a training that goes on"
    tiny = train(splits, chosen, encoder_lr=1e-30, weight_decay=0.5, precision="float32").fit()
    assert result["test_mae"] == pytest.approx(tiny["test_mae"], rel=1e-3), "as a rate that changes nothing"


def test_a_frozen_encoder_encodes_each_graph_once(splits: MoleculeSplits, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded, gram = [], GramTransformer.gram

    def counted(self: GramTransformer, graph: Graph, *features: Any, **options: Any) -> tuple[Tensor, Tensor]:
        encoded.append(graph)
        return gram(self, graph, *features, **options)

    monkeypatch.setattr(GramTransformer, "gram", counted)
    train(splits, "gram-k16", encoder_lr=0, epochs=3).fit()
    every = [*splits.train, *splits.val, *splits.test, *splits.test]  # the last ones renumbered
    assert sum(graph.num_graphs for graph in encoded) == len(every)


def test_a_resumed_run_encodes_by_the_weights_of_its_checkpoint(splits: MoleculeSplits, tmp_path: Path) -> None:
    chosen = {**EXACT, "conductances": "ground"}
    first, other = (train(splits, chosen, RunFolder(tmp_path), encoder_lr=0, epochs=1, seed=seed) for seed in (0, 1))
    first.fit()
    stored = [each.train_set._data.precomputed_node_encoding for each in (first, other)]
    assert not torch.allclose(*stored)
    other.fit(resume=True)
    assert torch.equal(other.train_set._data.precomputed_node_encoding, stored[0])


def test_gradients_are_clipped_by_group_or_jointly(splits: MoleculeSplits) -> None:
    def norms(clip_jointly: bool) -> list[float]:
        training = train(splits, FEATURES, clip=1e-3, clip_jointly=clip_jointly, epochs=1, batch_size=24)
        training.train_epoch()
        groups = [group["params"] for group in training.optimizer.param_groups]
        return [float(torch.cat([p.grad.flatten() for p in params]).norm()) for params in groups]

    assert norms(False) == pytest.approx([1e-3, 1e-3], rel=1e-3)
    model, encoder = norms(True)
    assert math.hypot(model, encoder) == pytest.approx(1e-3, rel=1e-3) and encoder < 0.9e-3


RUNNING = {"pooling": "both", "norm": "running"}
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "none": ({}, {}),
    "dropout": ({"attention_options": {"dropout": 0.5}}, {}),
    "dropout of attention and paths": ({"attention_options": {"attention_dropout": 0.5, "drop_path": 0.3}}, {}),
    "message passing": ({"attention_options": {"local": "gine"}}, {}),
    "running norms": ({"attention_options": {"norm": "running"}, "readout": RUNNING}, {}),
    "plateau": ({}, {"schedule": "plateau", "patience": 0, "lr": 0.2}),
    "statistics taken anew": ({"readout": RUNNING}, {"recalibrate": 20}),
}
"""Arguments of the model and settings of the loop, mostly against noise and overfitting."""


@pytest.mark.parametrize(("name", "stop"), [("none", 1), ("none", 4), *((name, 2) for name in OPTIONS)])
@pytest.mark.usefixtures("one_thread")
def test_a_run_is_decided_by_its_seed_and_can_be_resumed(
    splits: MoleculeSplits, tmp_path: Path, name: str, stop: int
) -> None:
    """Stopped after an epoch's checkpoint, or (at an odd one, or the last) after its line of metrics: it runs again."""
    model, loop = OPTIONS[name]

    class Stopped(JointTraining):
        def _checkpoint(self) -> None:
            if stop == 2 or self.epoch < stop:
                super()._checkpoint()
            if self.epoch == stop:
                raise KeyboardInterrupt

    folders = [RunFolder(tmp_path / name) for name in ("one", "other", "stopped")]
    for number, folder in enumerate(folders):
        folder.path.mkdir()
        torch.manual_seed(number)  # the caller's generator is not used
        if number == 2:
            with pytest.raises(KeyboardInterrupt):
                train(splits, EXACT, folder, Stopped, model, **loop).fit()
            assert len(read_metrics(folder.metrics)) == stop and not folder.result.exists()
        before = torch.get_rng_state()
        train(splits, EXACT, folder, model=model, **loop).fit(resume=True)
        assert torch.equal(torch.get_rng_state(), before)
    assert_same_run(folders[0].path, folders[1].path)
    assert_same_run(folders[0].path, folders[2].path)
    if name != "none":
        assert train(splits, EXACT).fit() != read_json(folders[0].result), "the options have an effect"


def recorded(training: JointTraining) -> list[dict[str, Tensor]]:
    """The state of the model after each step of the optimizer, filled in by the run."""
    states: list[dict[str, Tensor]] = []
    training.optimizer.register_step_post_hook(lambda *_: states.append(copy_state(training.model)))
    return states


def test_statistics_taken_anew_are_of_a_sample(splits: MoleculeSplits) -> None:
    """A file may be sorted: of a training set in order of size, the first graphs are no sample."""
    sizes = torch.tensor([data.num_nodes for data in splits.train])
    ordered = replace(splits, train=splits.train.copy(sizes.argsort()))
    training = train(ordered, WALK, recalibrate=12, batch_size=8, epochs=1)
    seen: list[int] = []
    training.model.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    with training.evaluated_weights():
        pass
    assert abs(sum(seen) / 12 - sizes.float().mean()) < 0.5 * sizes.float().std()


@pytest.mark.parametrize("num_graphs", [20, 24])
@pytest.mark.usefixtures("one_thread")
def test_statistics_taken_anew_are_the_mean_over_batches_and_are_kept(splits: MoleculeSplits, num_graphs: int) -> None:
    settings: dict[str, Any] = {"batch_size": 2, "epochs": 1, "precision": "float32"}
    model = {"attention_options": {"norm": "batch", "dropout": 0.5}, "readout": RUNNING}
    plain = train(splits, WALK, model=model, **settings)
    anew = train(splits, WALK, model=model, recalibrate=num_graphs, **settings)
    after, same = recorded(anew), recorded(plain)
    plain.fit()
    anew.fit()
    last = after[-1]
    assert all(torch.equal(value, same[-1][name]) for name, value in last.items())
    norms = {name: module for name, module in anew.model.named_modules() if isinstance(module, nn.BatchNorm1d)}
    assert len(norms) == 5, "encodings of nodes and edges, two in the layer, one of pooled features"
    assert all(norm.momentum == (0.01 if name == "pool_norm" else 0.1) for name, norm in norms.items())
    kept = copy_state(anew.model)
    assert all(torch.equal(kept[name], last[name]) for name, _ in anew.model.named_parameters())
    seen: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in norms}
    for name, norm in norms.items():
        norm.register_forward_pre_hook(lambda _, x, name=name: seen[name].append(torch.var_mean(x[0], dim=0)))
        norm.train()  # the model is in evaluation mode: no dropout
    drawn = torch.randperm(len(anew.train_set), generator=torch.Generator().manual_seed(anew.config.seed))
    for numbers in drawn[:num_graphs].split(8):
        anew.predict(Batch.from_data_list([anew.train_set[int(i)] for i in numbers]))
    for name, parts in seen.items():
        variance, mean = (torch.stack(values).mean(0) for values in zip(*parts, strict=True))
        torch.testing.assert_close(kept[f"{name}.running_mean"], mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(kept[f"{name}.running_var"], variance, rtol=1e-4, atol=1e-5)
