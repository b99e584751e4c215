"""The loop: schedules, seeds, and what the same seed fixes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch, InMemoryDataset

from tg_lpe.datasets.molecules import MoleculeSplits
from tg_lpe.hub.files import load_tensors, read_json
from tg_lpe.training.config import ENCODINGS, TrainConfig
from tg_lpe.training.joint import JointTraining, build_model
from tg_lpe.training.loop import hash_seed, seeded
from tg_lpe.training.run_folder import RunFolder
from tg_lpe.training.state import read_metrics

SMALL: dict[str, Any] = {"channels": 16, "heads": 2, "num_layers": 1, "k": 4, "pe_dim": 3, "batch_size": 8, "epochs": 4}


RANDOM: dict[str, Any] = {"probes": "rademacher", "num_filters": 1, "encoder_layers": 3}


def train(splits: MoleculeSplits, folder: RunFolder | None = None, **settings: Any) -> JointTraining:
    return JointTraining(TrainConfig(**{**SMALL, **settings}), splits, folder, progress=False)


def factors(splits: MoleculeSplits, total: int, **settings: Any) -> list[float]:
    training = train(splits, **settings)
    return [training._schedule(step, total) for step in range(total)]


def test_constant_schedule(splits: MoleculeSplits) -> None:
    assert factors(splits, 10, schedule="constant", epochs=5) == [1.0] * 10


def test_halving_schedule(splits: MoleculeSplits) -> None:
    got = factors(splits, 12, schedule="halving", epochs=6, halve_every=2)
    assert got == [1.0] * 4 + [0.5] * 4 + [0.25] * 4


def test_one_cycle_schedule(splits: MoleculeSplits) -> None:
    got = factors(splits, 100, schedule="one-cycle", epochs=10, warmup=0.2)
    assert got[0] == pytest.approx(0.04) and got[20] == 1.0 == max(got)
    assert got[10] == pytest.approx(0.52) and got[60] == pytest.approx(0.5)
    assert got[:21] == sorted(got[:21]) and got[20:] == sorted(got[20:], reverse=True)
    assert 0 < got[-1] < 1e-2


def test_one_cycle_of_a_single_step(splits: MoleculeSplits) -> None:
    (factor,) = factors(splits, 1, schedule="one-cycle", epochs=1)
    assert 0 < factor <= 1


def test_hash_seed() -> None:
    seeds = {hash_seed(a, b) for a in range(50) for b in range(50)}
    assert len(seeds) == 2500
    assert all(0 <= seed < 2**63 for seed in seeds)
    bits = [bin(hash_seed(0, a) ^ hash_seed(0, a + 1)).count("1") for a in range(200)]
    assert 25 < sum(bits) / len(bits) < 38, "neighbours share about half their bits"
    assert hash_seed(1, 2) == hash_seed(1, 2) and hash_seed(-1, 2**70) >= 0
    torch.Generator().manual_seed(max(seeds))


def test_seeded_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with seeded(3):
        first = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    with seeded(3):
        assert torch.equal(torch.rand(3), first)


@pytest.mark.parametrize("readout", ["mlp", "paper"])
def test_every_encoding_starts_from_the_same_graph_transformer(splits: MoleculeSplits, readout: str) -> None:
    states: dict[str, dict[str, Tensor]] = {}
    for pe in ENCODINGS:
        model = build_model(TrainConfig(**{**SMALL, "pe": pe, "readout": readout}), splits)
        states[pe] = {name: value for name, value in model.state_dict().items() if not name.startswith("encoder.")}
    shared = set.intersection(*(set(state) for state in states.values()))
    own = {name.split(".")[0] for name in set(states["laplacian"]) - shared}
    assert own <= {"pe_embedding", "edge_pe_embedding"}, "only the embeddings of the encoding are not in all"
    for name in shared:
        assert all(torch.equal(state[name], states["none"][name]) for state in states.values()), name
    for name in set(states["laplacian"]):
        if not name.startswith("edge_pe_embedding"):  # an encoding of edges may have another width
            assert torch.equal(states["laplacian"][name], states["linear-transformer"][name]), name
    other = build_model(TrainConfig(**{**SMALL, "pe": "none", "readout": readout, "seed": 1}), splits).state_dict()
    assert any(not torch.equal(other[name], states["none"][name]) for name in shared)


class Watched(JointTraining):
    """Counts evaluations by data set and keeps the weights of each epoch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.evaluated: list[str] = []
        self.by_epoch: list[dict[str, Tensor]] = []

    def evaluate(self, dataset: InMemoryDataset) -> float:
        self.evaluated.append("test" if dataset is self.test_set else "val" if dataset is self.val_set else "other")
        if dataset is self.val_set:
            self.by_epoch.append({name: value.clone() for name, value in self.model.state_dict().items()})
        return super().evaluate(dataset)


@pytest.mark.parametrize(
    ("pe", "settings"),
    [
        *((pe, {}) for pe in ENCODINGS),
        ("linear-transformer", {"probes": "features"}),
        ("linear-transformer", {"pe_dim": None, "pooling": "mean", "pe_norm": False, **RANDOM}),
        ("linear-transformer", {"num_squarings": 1, "basis": "chebyshev", "conductances": "fixed", "pooling": "sum"}),
        ("laplacian", {"edge_pe": False, "pe_norm": False}),
    ],
    ids=str,
)
def test_training_learns_and_validation_chooses(
    splits: MoleculeSplits, tmp_path: Path, pe: str, settings: dict[str, Any]
) -> None:
    folder = RunFolder(tmp_path)
    config = TrainConfig(**{**SMALL, "pe": pe, "epochs": 8, "lr": 1e-2, "schedule": "constant", **settings})
    training = Watched(config, splits, folder, progress=False)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    result = training.fit()
    assert torch.equal(torch.get_rng_state(), before), "the global generator is the caller's"

    rows = read_metrics(folder.metrics)
    assert [row["epoch"] for row in rows] == list(range(1, 9))
    assert rows[-1]["train_loss"] < 0.7 * rows[0]["train_loss"]
    assert training.evaluated == ["val"] * 8 + ["test", "other"], "read once, and once under other numbers"
    validation = [row["val_mae"] for row in rows]
    best = validation.index(min(validation))
    assert result["best_epoch"] == best + 1 and result["val_mae"] == validation[best]
    weights = load_tensors(folder.model)[0]
    for name, value in training.by_epoch[best].items():
        assert torch.equal(weights[name], value) and torch.equal(training.model.state_dict()[name], value)
    assert read_json(folder.result) == result
    expected = torch.cat(
        [training._predict(Batch.from_data_list([data])).detach() - data.y for data in training.test_set]
    )
    assert result["test_mae"] == pytest.approx(float(expected.abs().mean()), rel=1e-4)
    assert (result["encoder_parameters"] > 0) == (pe == "linear-transformer")


@pytest.mark.parametrize(
    ("pe", "settings"),
    [
        ("laplacian", {}),
        ("linear-transformer", {"probes": "random"}),
        ("linear-transformer", {"probes": "identity"}),
        ("linear-transformer", RANDOM),
    ],
    ids=str,
)
@pytest.mark.usefixtures("one_thread")
def test_a_seed_decides_every_bit(splits: MoleculeSplits, pe: str, settings: dict[str, Any]) -> None:
    results, states = [], []
    for number, seed in enumerate((3, 3, 4)):
        torch.manual_seed(number)  # the caller's generator has no part
        training = train(splits, pe=pe, seed=seed, epochs=2, **settings)
        results.append(training.fit())
        states.append(training.model.state_dict())
    assert results[0] == results[1] and math.isfinite(results[0]["test_mae"])
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert results[0]["test_mae"] != results[2]["test_mae"]


@pytest.mark.parametrize("pe", ["laplacian", "linear-transformer"])
def test_random_probes_and_signs_are_drawn_in_training_alone(splits: MoleculeSplits, pe: str) -> None:
    training = train(splits, pe=pe, pe_norm=False, **RANDOM)
    training.model.eval()
    batch = Batch.from_data_list([training.train_set[i] for i in range(8)])
    generator = torch.Generator().manual_seed(0)
    drawn = [training._predict(batch, generator) for _ in range(2)]
    assert not torch.equal(*drawn)
    assert torch.equal(training._predict(batch), training._predict(batch))
    if pe == "linear-transformer":
        exact = train(splits, pe=pe, probes="identity", pe_norm=False)
        exact.model.eval()
        assert torch.equal(exact._predict(batch, generator), exact._predict(batch)), "identity probes draw nothing"


def test_an_equivariant_encoding_does_not_mind_another_numbering(splits: MoleculeSplits) -> None:
    def deviation(**settings: Any) -> float:
        training = train(splits, epochs=2, lr=1e-2, **settings)
        result = training.fit()
        return abs(result["test_mae_relabelled"] - result["test_mae"]) / result["test_mae"]

    for settings in ({"pe": "none"}, {"pe": "random-walk"}, {"probes": "identity"}, {"probes": "features"}):
        assert deviation(**settings) < 1e-5, settings
    assert deviation(probes="learned") > 1e-4, "which the paper's own is not"


def test_the_encoder_has_a_learning_rate_of_its_own(splits: MoleculeSplits) -> None:
    training = train(splits, probes="identity", pe_dim=None)
    model, encoder = training.model, list(training.model.encoder.parameters())
    assert len(encoder) == 2
    groups = training.optimizer.param_groups
    assert [group["peak_lr"] for group in groups] == [training.config.lr, training.config.encoder_lr]
    assert [len(group["params"]) for group in groups] == [len(list(model.parameters())) - 2, 2]
    assert all(a is b for a, b in zip(groups[1]["params"], encoder, strict=True)) and groups[1]["weight_decay"] == 0
    without = train(splits, conductances="fixed", ground=False, pe_dim=None)
    assert len(without.optimizer.param_groups) == 1, "nothing to learn: no group"
    without.fit()


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("stop", [1, 3, 4])
def test_resumption_inside_a_process(splits: MoleculeSplits, tmp_path: Path, stop: int) -> None:
    """Stopped after a metrics line, before that epoch's checkpoint: the epoch is done again, to the same figures."""

    class Stopped(JointTraining):
        def _checkpoint(self) -> None:
            if self.epoch == stop:
                raise KeyboardInterrupt
            super()._checkpoint()

    config = TrainConfig(**SMALL)
    whole = RunFolder(tmp_path / "whole")
    JointTraining(config, splits, whole, progress=False).fit()
    broken = RunFolder(tmp_path / "broken")
    broken.path.mkdir()
    with pytest.raises(KeyboardInterrupt):
        Stopped(config, splits, broken, progress=False).fit()
    assert len(read_metrics(broken.metrics)) == stop and not broken.result.exists()
    JointTraining(config, splits, broken, progress=False).fit(resume=True)
    assert_same_run(whole.path, broken.path)


def assert_same_run(one: Path, other: Path) -> None:
    """Metrics but for times, result and weights, bit by bit."""
    rows = [
        [{name: v for name, v in row.items() if name not in ("seconds", "graphs_per_second")} for row in metrics]
        for metrics in (read_metrics(folder / "metrics.jsonl") for folder in (one, other))
    ]
    assert rows[0] == rows[1] and rows[0]
    for name in ("result.json", "model.safetensors"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
