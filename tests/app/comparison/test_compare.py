"""Comparisons of encodings: rows and differences, going on, own encodings, levels, the command."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import refusals
from pages import DOCS, python_blocks
from torch import nn
from torch_geometric.data import Data

import tg_lpe
from tg_lpe.app.cli import main
from tg_lpe.app.comparison import Candidate, Comparison, compare
from tg_lpe.app.datasets.splits import splits_of
from tg_lpe.app.prediction import load
from tg_lpe.app.training import JointTraining, TrainConfig
from tg_lpe.data import GraphSplits, random_node_masks
from tg_lpe.encoders import RandomWalk

pytestmark = pytest.mark.usefixtures("one_thread")

PAGE = next(page for page in DOCS if page.stem == "compare")
SMALL: dict[str, Any] = {
    "model": {"hidden_channels": 8, "heads": 2, "num_layers": 1},
    "config": TrainConfig(epochs=2, batch_size=8, precision="float32"),
    "seeds": (0, 1),
    "progress": False,
}
ROWS = ["none", "walks", "GramTransformer"]


class OwnDegrees(tg_lpe.Encoder):
    """Learn a row for each degree; the comparison registers the class."""

    def __init__(self, out_channels: int = 4) -> None:
        super().__init__()
        self.out_channels = out_channels
        self.rows = nn.Embedding(12, out_channels)

    def encode(self, graph: Any, inputs: Any) -> tg_lpe.Encoding:
        degree = torch.bincount(graph.edge_index[0], minlength=graph.num_nodes).clamp(max=11)
        return tg_lpe.Encoding(self.rows(degree))


class OwnMistake(OwnDegrees):
    """Return one row too few."""

    def encode(self, graph: Any, inputs: Any) -> tg_lpe.Encoding:
        return tg_lpe.Encoding(super().encode(graph, inputs).node[1:])


def graph(size: int, seed: int, of_nodes: bool = False) -> Data:
    """Return a ring with some chords, with a label that depends on its structure."""
    draw = torch.Generator().manual_seed(seed)
    tail = torch.arange(size)
    chords = torch.randint(size, (2, size // 3), generator=draw)
    edges = torch.cat([torch.stack([tail, (tail + 1) % size]), chords], 1)
    edges = torch.cat([edges, edges.flip(0)], 1)
    y = torch.bincount(edges[0], minlength=size).float() if of_nodes else torch.tensor([chords.size(1) / size + size])
    return Data(edge_index=edges, num_nodes=size, y=y + 0.5)


@pytest.fixture(scope="module")
def graphs() -> list[Data]:
    return [graph(5 + number % 7, number) for number in range(40)]


@pytest.fixture(scope="module")
def complete(graphs: list[Data], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Comparison]:
    """The folder and the table of an uninterrupted comparison."""
    folder, threads, state = tmp_path_factory.mktemp("complete"), torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    table = compare(graphs, ROWS, out=folder, **SMALL)
    torch.set_num_threads(threads)
    assert torch.equal(torch.get_rng_state(), state), "the global generator is the caller's"
    return folder, table


def figures(table: Comparison) -> list[dict[str, Any]]:
    """Return the rows without measured times."""
    return [{key: value for key, value in row.items() if not key.endswith("_seconds")} for row in table.rows]


def test_differences_are_those_of_the_predictions(graphs: list[Data], complete: tuple[Path, Comparison]) -> None:
    splits, (folder, table) = splits_of(graphs), complete
    assert [row["name"] for row in table.rows] == ROWS
    assert all(row["seeds"] == [0, 1] for row in table.rows) and not table.about["missing"]
    target = splits.labels("test")

    def errors(name: str) -> torch.Tensor:
        models = [load(folder / f"{name}-s{seed}") for seed in (0, 1)]
        return torch.stack([(one.predict(splits.test).values - target).abs().flatten() for one in models]).double()

    pair = (errors("GramTransformer") - errors("walks")).mean(0)
    row = table["GramTransformer"]
    difference = row["differences"]["walks"]
    assert difference["mean"] == pytest.approx(float(pair.mean()), abs=1e-5)
    assert difference["mean"] == pytest.approx(row["test"]["mean"] - table["walks"]["test"]["mean"])
    assert difference["mean_error"] == pytest.approx(float(pair.std()) / 2, abs=1e-5)
    assert difference["error"] ** 2 == pytest.approx(difference["mean_error"] ** 2 + difference["seed_error"] ** 2)
    assert "none" not in table["none"]["differences"] and row["encode_seconds"] > 0
    assert row["num_parameters"] > table["none"]["num_parameters"] and row["encoder_parameters"] > 0


def test_files_say_the_same_and_the_page_describes_each_key(complete: tuple[Path, Comparison]) -> None:
    pytest.importorskip("matplotlib")
    folder, table = complete
    stored = json.loads((folder / "comparison.json").read_text())
    assert stored == json.loads(json.dumps(table.to_dict()))
    described = set(re.findall(r"`(\w+)`", PAGE.read_text(encoding="utf-8").partition("Keys of `comparison.json`")[2]))
    row = stored["rows"][1]
    assert {*stored, *row, *row["differences"]["none"], *row["test"]} <= described
    page, text = (folder / "comparison.html").read_text(encoding="utf-8"), str(table)
    for word in (*ROWS, "against walks", "after relabelling", "encoding a graph"):
        assert word in page and word in text


def test_what_was_stopped_goes_on_to_the_same_table(
    graphs: list[Data], complete: tuple[Path, Comparison], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_epoch, epochs = JointTraining.train_epoch, []

    def stopped(self: JointTraining) -> dict[str, Any]:
        epochs.append(self.epoch)
        if len(epochs) == 4:
            raise KeyboardInterrupt
        return train_epoch(self)

    monkeypatch.setattr(JointTraining, "train_epoch", stopped)
    with pytest.raises(KeyboardInterrupt):
        compare(graphs, ROWS, out=tmp_path / "stopped", **SMALL)
    table = compare(graphs, ROWS, out=tmp_path / "stopped", **SMALL)
    assert len(epochs) == 2 * len(ROWS) * 2 + 1
    assert figures(table) == figures(complete[1])
    monkeypatch.setattr(JointTraining, "train_epoch", lambda self: pytest.fail("trained again"))
    again = compare(graphs, ROWS, out=tmp_path / "stopped", **SMALL)
    assert figures(again) == figures(table)


def test_own_encodings_have_weights_of_their_own_in_each_training(graphs: list[Data], tmp_path: Path) -> None:
    own = OwnDegrees()
    before = own.rows.weight.detach().clone()
    rows = {"none": None, "object": own, "class": OwnDegrees, "walks of 4": RandomWalk(steps=4)}
    rows["inside"] = {"class": "Combined", "encoders": [own, RandomWalk(steps=4)]}
    table = compare(graphs, rows, out=tmp_path, **SMALL)
    assert [row["name"] for row in table.rows] == list(rows)
    assert torch.equal(own.rows.weight, before)
    assert (tmp_path / "walks-of-4-s1" / "result.json").exists()


def test_a_row_may_need_another_attention(graphs: list[Data], tmp_path: Path) -> None:
    rows = {"none": None, "pairs": Candidate({"class": "RRWP", "steps": 4}, model={"attention": "pairs"})}
    table = compare(graphs, rows, out=tmp_path, **{**SMALL, "seeds": (0,)})
    models = [json.loads((tmp_path / f"{name}-s0" / "config.json").read_text())["model"] for name in rows]
    assert [model["attention"] for model in models] == ["edge", "pairs"]
    assert table["pairs"]["model"] == {"attention": "pairs"} and table["none"]["model"] == {}


def test_nodes_of_one_graph_and_of_many(tmp_path: Path) -> None:
    single = random_node_masks(graph(60, 0, of_nodes=True), seed=0)
    table = compare(single, ["none", OwnDegrees], out=tmp_path / "single", **SMALL)
    assert table["OwnDegrees"]["differences"]["none"]["num_rows"] == 12
    many = [graph(5 + number % 4, number, of_nodes=True) for number in range(30)]
    table = compare(many, ["none", OwnDegrees], out=tmp_path / "many", **SMALL)
    assert table["OwnDegrees"]["differences"]["none"]["num_rows"] == 3  # nodes of a graph are one part


def test_a_training_that_another_process_left_is_missing_until_the_next_call(
    graphs: list[Data], tmp_path: Path
) -> None:
    fcntl = pytest.importorskip("fcntl")
    (tmp_path / "none-s1").mkdir()
    with (tmp_path / "none-s1" / ".lock").open("w") as lock:  # as a process that trains, and dies later
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert compare(graphs, ["none"], out=tmp_path, **SMALL).about["missing"] == {"none": [1]}
    assert compare(graphs, ["none"], out=tmp_path, **SMALL)["none"]["seeds"] == [0, 1]


def test_an_encoding_that_does_not_work_is_named_before_any_training(graphs: list[Data], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="OwnMistake"):
        compare(graphs, ["none", OwnMistake], out=tmp_path, **SMALL)
    assert not list(tmp_path.iterdir())


def test_a_training_that_fails_is_left_out(
    graphs: list[Data], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    train_epoch = JointTraining.train_epoch

    def diverging(self: JointTraining) -> dict[str, Any]:
        row = train_epoch(self)
        with_walks = type(self.encoder).__name__ == "RandomWalk" and self.config.seed == 1
        return {**row, "train_loss": float("nan")} if with_walks else row

    monkeypatch.setattr(JointTraining, "train_epoch", diverging)
    with caplog.at_level(logging.WARNING):
        table = compare(graphs, ROWS, out=tmp_path / "some", **SMALL)
    assert table.about["missing"] == {"walks": [1]} and "walks, seed 1" in caplog.text
    assert table["none"]["differences"]["walks"]["seeds"] == [0] and "walks (1)" in str(table)
    with pytest.raises(ValueError, match="diverged"):
        compare(graphs, ["walks"], out=tmp_path / "all", **{**SMALL, "seeds": (1,)})


def test_progress_counts_all_trainings(graphs: list[Data], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        compare(graphs, ["none", "walks"], out=tmp_path, **{**SMALL, "progress": True})
    assert all(f"[{number}/4]" in caplog.text for number in (1, 2, 3, 4)) and "walks, seed 1: test MAE" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO):
        compare(graphs, ["none", "walks"], out=tmp_path, **{**SMALL, "progress": True})
    assert "4 of 4" in caplog.text


def test_what_is_complete_is_collected(graphs: list[Data], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compare(graphs, ["none"], out=tmp_path, **SMALL)
    monkeypatch.setattr(JointTraining, "train_epoch", lambda self: pytest.fail("trained"))
    table = compare(graphs, ROWS, out=tmp_path, collect=True, **SMALL)
    assert [row["name"] for row in table.rows] == ["none"]
    with pytest.raises(KeyError, match="none"):
        table["walks"]
    assert "after relabelling" in str(table) and "against" not in str(table)
    assert table.about["missing"] == {"walks": [0, 1], "GramTransformer": [0, 1]}
    with pytest.raises(ValueError, match="complete"):
        compare(graphs, ["walks"], out=tmp_path, collect=True, **SMALL)


def test_a_folder_of_other_settings_is_refused(graphs: list[Data], tmp_path: Path) -> None:
    compare(graphs, ["none"], out=tmp_path, **SMALL)
    for collect in (True, False):
        with pytest.raises(ValueError, match="epochs"):
            compare(graphs, ["none"], out=tmp_path, collect=collect, **{**SMALL, "config": TrainConfig(epochs=1)})
    compare(graphs, {"mine": RandomWalk(steps=3)}, out=tmp_path, **SMALL)
    with pytest.raises(ValueError, match="steps"):
        compare(graphs, {"none": None, "mine": RandomWalk(steps=4)}, out=tmp_path, **SMALL)


test_refused_arguments = refusals(
    lambda **options: compare([graph(5 + n % 7, n) for n in range(40)], **{"encodings": ["none"], **SMALL, **options}),
    ({"seeds": ()}, "seeds"),
    ({"seeds": (1, 1)}, "seeds"),
    ({"seeds": 3}, "seeds"),
    ({"seeds": torch.arange(2)}, "seed"),
    ({"model": {"hidden_channels": "8"}, "quick": True}, "hidden_channels"),
    ({"out": ""}, "out"),
    ({"device": "gpu"}, "gpu"),
    ({"quick": 1}, "quick"),
    ({"config": {}}, TypeError, "config"),
    ({"model": nn.Linear}, "model"),
    ({"model": {"model": nn.Linear}}, TypeError, "model"),
    ({"encodings": {"a b": None, "a/b": None}}, "names"),
)
test_refused_data = refusals(splits_of, ((3,), TypeError, "got int"), (("mine.csv",), TypeError, "load_molecules"))


def test_splits_are_taken_as_they_are(graphs: list[Data]) -> None:
    splits = GraphSplits.of(graphs[:30], graphs[30:35], graphs[35:], level="graph")
    assert splits_of(splits) is splits


def test_the_encoding_of_the_page_is_a_row_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rdkit")
    own = next(block for block in python_blocks(PAGE) if "@tg_lpe.encoders.register" in block)
    assert own.count("\n") <= 30
    (tmp_path / "my_encodings.py").write_text(own.replace("MeanDegrees", "StrangersDegrees"), encoding="utf-8")
    rows = "".join(f"{'C' * (1 + number % 9)}{'O' * (number % 4)},{number % 9 + 0.5}\n" for number in range(60))
    (tmp_path / "mine.csv").write_text("smiles,y\n" + rows, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    options = ["--target", "y", "--quick", "--cache", str(tmp_path / "cache"), "--quiet", "--epochs", "1"]
    assert main(["compare", "mine.csv", *options, "--encodings", "none", "my_encodings.StrangersDegrees"]) == 0
    assert "StrangersDegrees" in capsys.readouterr().out
    stored = json.loads(Path("runs/compare-mine-quick/comparison.json").read_text())
    assert [row["name"] for row in stored["rows"]] == ["none", "StrangersDegrees"]
    assert stored["data"]["source"] == "mine.csv" and stored["budget"]["epochs"] == 1


def test_the_split_has_a_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rdkit")
    parts = ["train"] * 8 + ["val", "test"]
    rows = "".join(f"{'C' * (1 + n % 9)}{'O' * (n // 9)},{n + 0.5},{parts[n % 10]}\n" for n in range(40))
    (tmp_path / "mine.csv").write_text("smiles,y,part\n" + rows, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    words = ["compare", "mine.csv", "--target", "y", "--quick", "--cache", "cache", "--quiet", "--epochs", "1"]
    drawn = []
    for given in (["--split_seed", "4"], []):
        assert main([*words, "--encodings", "none", *given, "--out", "-".join(["out", *given])]) == 0
        stored = json.loads(Path("-".join(["out", *given]), "comparison.json").read_text())
        drawn.append((stored["data"]["split"]["seed"], stored["seeds"]))
    assert drawn == [(4, [0]), (0, [0])]
    capsys.readouterr()
    assert main([*words, "--split_seed", "1", "--split_column", "part"]) == 1
    assert "--split_seed 1 would have no effect" in capsys.readouterr().err
