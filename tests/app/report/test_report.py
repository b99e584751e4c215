"""The content of a report: the table, the page and the figures, parsed again."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from helpers import refusals

from tg_lpe.app.report import Run, Table, compare, comparison_table, read_run, write_report
from tg_lpe.app.report.runs import UNNAMED
from tg_lpe.app.training.config import KernelPretrainConfig, PretrainConfig, TrainConfig
from tg_lpe.encoders.registry import ENCODERS, make_encoder

MakeRun = Callable[..., Run]
SIZES = {"num_train": 20000, "num_val": 2000, "num_test": 24445}
DATA = {"source": "zinc", **SIZES, "atom_types": ["C", "O"], "skipped": []}
MODEL = {"class": "GraphTransformer", "num_node_types": 2, "hidden_channels": 128, "pe_options": {"norm": True}}
MODEL |= {"readout": {"pooling": "both", "level": "graph"}}
MODEL |= {"attention": "edge", "attention_options": None}
TASK = {"name": "regression", "level": "graph", "num_targets": 1, "metric": "mae", "loss_function": "l1"}
BINARY = {"name": "binary", "level": "graph", "num_targets": 1, "metric": "roc_auc"}
LAPLACIAN = {"class": "LaplacianEigenvectors", "k": 6}
WALK = {"class": "RandomWalk", "steps": 16}
GRAM = {"class": "GramTransformer", "probes": "identity", "num_node_types": 2}
FEATURES = {"class": "LinearTransformer", "probes": "features", "num_node_types": 2}
ENVIRONMENT = {
    **{"processor": "A Processor", "cores": 2, "threads": 1, "accelerator": None, "python": "3.11.7"},
    **{"command": "tg-lpe train zinc --encoder none", "packages": {"torch": "2.13.0", "torch-scatter": None}},
}


def write_run(folder: Path, config: dict[str, Any], rows: Sequence[Any], **files: dict[str, Any] | None) -> Run:
    """Write the files of a run folder and read them."""
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for name, content in {"config": {"layout": 2, **config}, **files}.items():
        if content is not None:
            (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return read_run(folder)


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Write a run; ``test`` absent leaves it unfinished, ``val`` are the validation figures by epoch."""

    def make(
        name: str = "",
        test: float | None = None,
        encoder: dict[str, Any] | None = GRAM,
        *,
        val: Sequence[float] = (0.9, 0.5, 0.6),
        data: dict[str, Any] | None = None,
        environment: dict[str, Any] | None = None,
        result: dict[str, Any] | None = None,
        pretrained: str | None = None,
        start: str | None = None,
        task: dict[str, Any] = TASK,
        **settings: Any,
    ) -> Run:
        metric, learned = task["metric"], encoder in (GRAM, FEATURES) or pretrained is not None
        if encoder is not None and encoder["class"] in ENCODERS:
            encoder = make_encoder(encoder).config_dict()
        config = {"command": "train", "encoder": encoder, "pretrained": pretrained, "start": start, "task": task}
        config["model"] = MODEL | {key: value for key, value in settings.items() if key in MODEL}
        loop = {"epochs": 3} | {key: value for key, value in settings.items() if key not in MODEL}
        config |= {"loop": TrainConfig(**loop).to_dict(), "data": {**DATA, **(data or {})}}
        rows = [
            {"epoch": epoch, "train_loss": 1 / epoch, "seconds": 60.0, "graphs_per_second": 100.0 * epoch}
            | {f"val_{metric}": value}
            for epoch, value in enumerate(val, 1)
        ]
        figures = {f"test_{metric}": test, "best_epoch": 2, "epochs": len(val), "precision": "float32"}
        figures |= {"num_parameters": 500_000 + 232 * learned, "encoder_parameters": 232 * learned, **(result or {})}
        folder = tmp_path / (name or f"run-{len(list(tmp_path.iterdir()))}")
        environment = {**ENVIRONMENT, **(environment or {})}
        return write_run(folder, config, rows, environment=environment, result=None if test is None else figures)

    return make


@pytest.fixture
def make_pretraining(tmp_path: Path) -> MakeRun:
    """Write a pretraining."""

    def make(name: str, config: PretrainConfig | KernelPretrainConfig, *, test: float | None, **encoder: Any) -> Run:
        command = "pretrain" if isinstance(config, PretrainConfig) else "pretrain-kernels"
        settings = {"command": command, "encoder": encoder, "loop": config.to_dict(), "data": DATA}
        rows = [{"epoch": epoch, "train_loss": 9.0, "val_loss": 8.0 / epoch} for epoch in (1, 2)]
        result = {"kind": command, "test_loss": test, "val_loss": 4.0, "num_parameters": 696, "new_key": [1]}
        return write_run(tmp_path / name, settings, rows, result=None if test is None else result)

    return make


class Page(HTMLParser):
    """Check that tags nest, and collect identifiers, addresses, table cells and text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open, self.ids, self.addresses, self.tags = list[str](), list[str](), list[str](), list[str]()
        self.rows, self.text = list[list[str]](), ""
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        assert self.open == []
        self.text = " ".join(self.text.split())
        self.rows = [[" ".join(cell.split()) for cell in row] for row in self.rows]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag != "meta":
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [str(value) for name, value in attrs if name == "id"]
        self.addresses += [str(value) for name, value in attrs if name in ("src", "href", "xlink:href", "action")]
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


@pytest.fixture
def page(tmp_path: Path) -> Callable[..., Page]:
    """Write a report of runs and parse it."""
    pytest.importorskip("matplotlib")
    return lambda *runs: Page(write_report([run.path for run in runs], tmp_path / "out" / "report.html"))


def labels(*runs: Run) -> list[str]:
    """Return the labels of the rows of the only table of some runs."""
    (table,) = compare(runs)
    return [row.label for row in table.rows]


def test_seeds_make_one_row(make_run: MakeRun) -> None:
    runs = [make_run(f"a{seed}", 0.30 + 0.03 * seed, LAPLACIAN, seed=seed) for seed in range(3)]
    (table,) = compare(runs[::-1])
    (row,) = table.rows
    assert row.seeds == ["0", "1", "2"] and row.speed == 200.0
    assert row.test is not None and row.test.mean == pytest.approx(0.33)
    assert row.test.std == pytest.approx(0.03)  # sample standard deviation; the population's would be 0.0245
    assert "0.3300 ± 0.0300" in comparison_table(runs)
    assert table.best is None  # a single row is not ranked
    alone = comparison_table(runs[:1])
    assert "0.3000" in alone and "±" not in alone


def test_same_seed_again_is_no_evidence(make_run: MakeRun) -> None:
    (table,) = compare([make_run(name, 0.3, None) for name in "ab"])
    assert [len(row.runs) for row in table.rows] == [1, 1] and len({row.label for row in table.rows}) == 2


@pytest.mark.parametrize(
    ("shared", "idle"),
    [
        ({"encoder": WALK}, {"encoder": {**WALK, "edge_out_channels": None}}),
        ({}, {"encoder": {**GRAM, "num_node_types": 9, "num_filters": 4}}),
        ({"pretrained": "heat-k8"}, {"encoder": {**GRAM, "num_filters": 2}}),
    ],
    ids=str,
)
def test_settings_without_effect_do_not_separate_runs(
    make_run: MakeRun, shared: dict[str, Any], idle: dict[str, Any]
) -> None:
    """Such settings are sizes of the data, explicit defaults, and arguments that a checkpoint determines."""
    result = {"encoder_parameters": 232 if "encoder" not in shared else 0}
    runs = make_run("a", 0.3, result=result, **shared), make_run("b", 0.3, seed=1, result=result, **{**shared, **idle})
    assert [row.seeds for row in compare(runs)[0].rows] == [["0", "1"]]


@pytest.mark.parametrize(
    ("shared", "change", "words"),
    [
        ({}, {"encoder": {**GRAM, "edge_out_channels": 0}}, ["edge_encoding True", "edge_encoding False"]),
        ({"pe_options": {"norm": False}}, {"pe_options": {"norm": True}}, ["norm False", "norm True"]),
        (
            {},
            {"encoder": {"class": "GramTransformer", "conductances": "fixed"}},
            ["conductances learned", "conductances fixed"],
        ),
        ({}, {"encoder": {**GRAM, "basis": "chebyshev"}}, ["basis power", "basis chebyshev"]),
        ({"attention": "edge"}, {"attention": "gps"}, ["attention edge", "attention gps"]),
        ({}, {"encoder": {**GRAM, "out_channels": 8}}, ["out_channels None", "out_channels 8"]),
        ({}, {"encoder": {**GRAM, "num_filters": 9}}, ["num_filters 4", "num_filters 9"]),
        ({"pretrained": "gram-k16"}, {"encoder_lr": 0}, ["encoder_lr 0.01", "encoder_lr 0.0"]),
        (
            {"encoder": WALK},
            {"encoder": {**WALK, "steps": 20}},
            [f"steps {k}, edge_out_channels {k}" for k in (16, 20)],
        ),
        ({"encoder": None}, {"readout": {"pooling": "sum"}}, ["pooling both", "pooling sum"]),
        ({"encoder": FEATURES}, {"encoder": {**FEATURES, "k": 3}}, ["k 8", "k 3"]),
        ({}, {"lr": 0.01}, ["lr 0.001", "lr 0.01"]),
        ({}, {"task": {**TASK, "loss_function": "mse"}}, ["loss_function l1", "loss_function mse"]),
    ],
    ids=str,
)
def test_differing_settings_are_shown(
    make_run: MakeRun, shared: dict[str, Any], change: dict[str, Any], words: list[str]
) -> None:
    result = {"encoder_parameters": 232}
    runs = [make_run("a", 0.3, result=result, **shared), make_run("b", 0.4, result=result, **{**shared, **change})]
    base = {"none"} if runs[0].encoder is None else {runs[0].encoder["class"], "from gram-k16"}
    found = labels(*runs)
    assert len(set(found)) == 2 and all(label.endswith(word) for label, word in zip(found, words, strict=True))
    assert all(any(part in label for part in base) for label in found)
    apart = [name for name in change if name not in ("encoder", "encoder_lr", "pe_options")]
    (note,) = [note for note in compare(runs)[0].notes if "more than the encoding" in note] or [""]
    assert bool(note) == bool(apart) and all(("loss_function" if name == "task" else name) in note for name in apart)


def test_options_of_attention_layers_are_settings(make_run: MakeRun) -> None:
    """Labels of rows with one attention layer only name the options that differ."""
    primal = {"local": "gine", "global_attention": "primal", "global_options": {"eta": 0.0, "rank": 30}}
    options = [
        None,
        {"local": "gine", "global_attention": "softmax"},
        primal,
        {**primal, "global_options": {"eta": 0.1, "rank": 30}},
        {"local": "gine", "global_attention": "none"},
    ]
    runs = [
        make_run(f"a{number}", 0.3 + number / 10, None, attention="hybrid", attention_options=chosen)
        for number, chosen in enumerate(options)
    ]
    assert labels(*runs[1:]) == [
        "none, global_attention softmax",
        "none, global_attention primal, eta 0.0, rank 30",
        "none, global_attention primal, eta 0.1, rank 30",
        "none, global_attention none",
    ]
    assert labels(*runs[:2]) == ["none", "none, local gine, global_attention softmax"]
    (note,) = [note for note in compare(runs[:2])[0].notes if "more than the encoding" in note]
    assert "attention_options.local" in note and "attention_options.global_attention" in note


def test_classes_of_encoders_are_different_rows(make_run: MakeRun) -> None:
    """Encoders of this package and an unknown one are labelled by name and differing arguments."""
    encoders = [None, LAPLACIAN, WALK, GRAM, FEATURES, {"class": "Own", "depth": 1}, {"class": "Own", "depth": 2}]
    (table,) = compare([make_run(f"a{n}", 0.3 + n / 10, encoder) for n, encoder in enumerate(encoders)])
    names = ["none", "LaplacianEigenvectors", "RandomWalk", "GramTransformer", "LinearTransformer"]
    assert [row.label for row in table.rows] == [*names, "Own, depth 1", "Own, depth 2"]
    assert len({row.color for row in table.rows}) == 7


@pytest.mark.parametrize(
    ("encoder", "name"), [("gram-k8", "gram-k8"), ("runs/pretrain/encoder", "pretrain"), ("encoder", "encoder")]
)
def test_pretrained_encoder_is_named(make_run: MakeRun, encoder: str, name: str) -> None:
    assert labels(make_run("a", 0.3, pretrained=encoder)) == [f"GramTransformer from {name}"]


def test_starts_are_told_apart(make_run: MakeRun) -> None:
    rows = labels(make_run("tuned", 0.3, WALK, start="runs/first"), make_run("scratch", 0.4, WALK))
    assert rows == ["RandomWalk, from first", "RandomWalk, from scratch"]


def test_edge_encoding_is_shown_for_every_row_that_has_it(make_run: MakeRun) -> None:
    runs = [make_run("none", 0.5, None), make_run("walk", 0.4, {**WALK, "edge_out_channels": 0})]
    runs += [make_run("ours", 0.3), make_run("features", 0.45, FEATURES)]
    names = ["GramTransformer, edge_encoding True", "RandomWalk, edge_encoding False", "LinearTransformer", "none"]
    assert labels(*runs) == names, "LinearTransformer has no encoding of edges"
    assert not any("more than the encoding" in note for note in compare(runs)[0].notes)


def test_larger_is_better_where_the_metric_says_so(make_run: MakeRun, page: Callable[..., Page]) -> None:
    runs = [
        make_run("none", 0.7, None, task=BINARY, val=(0.6, 0.8)),
        make_run("walk", 0.9, WALK, task=BINARY, val=(0.0, 0.0)),  # a score may be zero, so its axis is linear
        make_run("going", None, LAPLACIAN, task=BINARY, val=(0.5, 0.95, 0.6)),
    ]
    (table,) = compare(runs)
    assert [row.label for row in table.rows] == ["RandomWalk", "none", "LaplacianEigenvectors"]
    assert table.best is table.rows[0]
    assert runs[2].validation == 0.95
    text, shown = comparison_table(runs), page(*runs)
    assert "test ROC-AUC" in text and "MAE" not in text
    assert "Highest test ROC-AUC: RandomWalk" in shown.text and "MAE" not in shown.text
    assert page(runs[1]).tags.count("svg") == 2


@pytest.mark.parametrize(
    "other",
    [
        {"data": {"source": "qm9"}},
        {"data": {"num_train": 19999}},
        {"data": {"atom_types": ["C", "N"]}},
        {"data": {"normalization": {"logp_mean": 1.0}}},
        {"data": {"target": {"columns": ["size"], "level": "graph", "computed": None}}},
        {"task": {**TASK, "metric": "rmse"}},
    ],
    ids=str,
)
def test_other_data_or_tasks_are_not_ranked_together(make_run: MakeRun, other: dict[str, Any]) -> None:
    runs = [make_run("a", 0.3, None), make_run("b", 0.2, **other)]
    tables = compare(runs)
    assert [len(table.rows) for table in tables] == [1, 1]
    assert [table.source for table in tables] == ["zinc", other.get("data", {}).get("source", "zinc (2)")]
    assert all(table.best is None for table in tables)
    assert not any(line.startswith("* ") for line in comparison_table(runs).splitlines())


def test_split_is_read_from_the_folder(make_run: MakeRun) -> None:
    def table(*splits: dict[str, Any]) -> str:
        data = [{"source": "my/molecules.smi", "split": split} for split in splits]
        return comparison_table([make_run(test=0.3, data=each, seed=seed) for seed, each in enumerate(data)])

    said = "split depends on the seed or fold"
    assert said in table({"kind": "random", "seed": 0}, {"kind": "random", "seed": 1})
    assert said not in table({"kind": "random", "seed": 0}, {"kind": "random", "seed": 0})
    assert said not in table({"kind": "given"}, {"kind": "given"})
    apart = table({"kind": "scaffold"}, {"kind": "random", "seed": 0})
    assert said not in apart and "my/molecules.smi (2)" in apart, "scaffold splits are other data"


def test_digests_tell_data_apart(make_run: MakeRun) -> None:
    """Digests separate data with equal descriptions, but not data with another split or other features."""

    def tables(*data: dict[str, Any]) -> list[str]:
        runs = [make_run(test=0.3, data=own) for own in data]
        at = {run.path: str(number) for number, run in enumerate(runs)}
        return ["".join(sorted(at[run.path] for run in table.runs)) for table in compare(runs)]

    for split in ({"source": "my/data", "split": {"kind": "given"}}, {"source": UNNAMED, "split": None}):
        first = {**split, "digest": "a"}
        assert tables(first, {**split, "digest": "b"}, first) == ["02", "1"]
        assert tables(first, split) == ["01"], "one says nothing"
        bonds = {**first, "bond_types": ["SINGLE"]}, {**split, "digest": "b", "bond_types": []}
        assert tables(*bonds) == ["01"], "of one file, with other features"
    seeds = [{"source": "my/data", "split": {"kind": "random", "seed": seed}} for seed in range(3)]
    digests = [{**split, "digest": digest} for split, digest in zip(seeds, "abc", strict=True)]
    assert tables(*digests) == ["012"], "seeds of one file"
    assert tables(digests[0], {**seeds[0], "digest": "other"}) == ["0", "1"], "two files, split alike"
    assert tables(*digests[:2], {**seeds[0], "digest": "other"}) == ["0", "1", "2"], "whose seed 1 is, is not known"


def test_data_from_python_is_told_apart_by_its_features(make_run: MakeRun) -> None:
    data = [{"source": UNNAMED, "spec": {"in_channels": width}} for width in (3, 7, 3)]
    tables = compare([make_run(test=0.3, encoder=None, seed=seed, data=own) for seed, own in enumerate(data)])
    assert sorted(len(table.runs) for table in tables) == [1, 2] and all(len(table.rows) == 1 for table in tables)
    bonds = [make_run(test=0.3, encoder=None, seed=n, data={"bond_types": b}) for n, b in enumerate(([1], []))]
    (table,) = compare(bonds)
    assert {row.settings["features"] for row in table.rows} == {"types", "ogb"}


def test_heading(make_run: MakeRun, page: Callable[..., Page]) -> None:
    run = make_run("a", 0.3, data={"target": {"columns": ["size", "b", "c", "d", "e"], "computed": None}})
    heading = "zinc, size, b, c, 2 more (MAE)"
    assert comparison_table([run]).startswith(f"{heading}: 20,000 train") and heading in page(run).text
    counts = {"num_train": 1, "num_labelled_train": 140, "num_labelled_val": 500, "num_labelled_test": 1000}
    table = comparison_table([make_run("nodes", 0.3, data=counts)])
    assert "140 train, 500 val, 1,000 test labelled nodes" in table and "1 train" not in table
    old, new = ({"columns": [name], "computed": name} for name in ("solubility", "penalised logP"))
    (table,) = compare([make_run(name["computed"], 0.3, data={"target": name}) for name in (old, new)])
    assert table.heading == "zinc, penalised logP (MAE)"
    assert page(*table.runs).text.count("test MAE, penalised logP") == 1


def test_unfinished_runs_are_shown(make_run: MakeRun, page: Callable[..., Page]) -> None:
    runs = [make_run("done", 0.5, None), make_run("going", None, LAPLACIAN, val=(0.8, 0.1), epochs=40)]
    runs.append(make_run("not begun", None, WALK, val=()))
    (runs[2].path / "metrics.jsonl").unlink()
    (table,) = compare([read_run(run.path) for run in runs])
    assert table.ranked == [table.rows[0]]
    text, shown = comparison_table(runs), page(*runs)
    assert "2 of 40" in text and "0 of 3" in text and text.count("unfinished") == 2
    assert "3 runs on 1 data set, 2 unfinished" in shown.text
    rows = {row[0]: row for row in shown.rows}
    assert rows["LaplacianEigenvectors"][1:3] == ["unfinished", "0.1000"]
    assert "LaplacianEigenvectors (unfinished)" in shown.text  # in the figure's legend


def test_diverged_run_is_neither_dropped_nor_best(make_run: MakeRun, page: Callable[..., Page]) -> None:
    runs = [make_run("bad", math.nan, val=(math.nan, math.nan), result={"val_mae": math.inf})]
    runs += [make_run("good", 0.3, None), make_run("fair", 0.4, LAPLACIAN)]
    (table,) = compare(runs)
    assert table.best is not None and table.best.label == "none" and table.rows[-1].runs[0].name == "bad"
    assert "nan" in comparison_table(runs) and "nan" in page(*runs).text


def test_pretrainings(make_run: MakeRun, make_pretraining: MakeRun, page: Callable[..., Page]) -> None:
    """Pretrainings are listed in the order of the input, unranked, in a table of their own."""
    eigenvectors, kernels = PretrainConfig(epochs=2), KernelPretrainConfig(epochs=2, kernels=("heat", "resistance"))
    linear, gram = {"class": "LinearTransformer"}, {"class": "GramTransformer"}
    runs = [
        make_pretraining("first", eigenvectors, test=4.25, k=8, **linear),
        make_run("train", 0.3),
        make_pretraining("second", eigenvectors, test=4.5, k=12, **linear),
        make_pretraining("a", kernels, test=0.0625, num_filters=3, **gram),
        make_pretraining("b", kernels, test=None, num_filters=9, **gram),
        make_pretraining("c", KernelPretrainConfig(epochs=2, kernels=("heat",)), test=None, **gram),
    ]
    assert [run.kind for run in runs] == ["pretrain", "train", *["pretrain"] * 4]
    training, table = compare(runs)
    assert (training.kind, table.kind, table.best) == ("train", "pretrain", None)
    assert [row.label for row in table.rows] == [
        "LinearTransformer, k 8",
        "LinearTransformer, k 12",
        "GramTransformer, heat and resistance kernels, num_filters 3",
        "GramTransformer, heat and resistance kernels, num_filters 9",
        "GramTransformer, heat kernels",
    ]
    shown = page(*runs)
    rows = {row[0]: row[1:] for row in shown.rows}
    assert rows["LinearTransformer, k 12"][:2] == ["4.5000", "4.0000"]
    assert rows["GramTransformer, heat kernels"][:2] == ["unfinished", "4.0000"]
    assert "zinc, pretraining" in shown.text


def test_page_is_whole_and_needs_nothing_else(make_run: MakeRun, page: Callable[..., Page]) -> None:
    skipped = [f"train.smi:{line}: 'C{line}': no bond" for line in range(1200)]
    relabelled = {"test_mae_relabelled": 0.321}
    runs = [make_run(f"none-{seed}", 0.3 + seed / 100, None, seed=seed, result=relabelled) for seed in (0, 1)]
    runs += [make_run(f"ours-{seed}", 0.2, seed=seed, data={"skipped": skipped}) for seed in (0, 1)]
    runs += [make_run("qm9", 0.1, data={"source": "qm9", "skipped": None})]
    shown = page(*runs)
    assert {"html", "table", "svg", "details", "title", "style"} <= set(shown.tags)
    assert not {"script", "link", "img", "iframe", "object"} & set(shown.tags)
    assert shown.tags.count("svg") == 4 and "://" not in shown.source and "@import" not in shown.source
    assert len(shown.ids) == len(set(shown.ids)) and shown.addresses
    assert all(address.startswith("#") and address[1:] in shown.ids for address in shown.addresses)
    rows = {row[0].removesuffix(" lowest"): row[1:] for row in shown.rows}
    assert rows["none"][0] == "0.3050 ± 0.0071" and rows["none"][2:5] == ["0, 1", "3", "500,000"]
    assert rows["none"][5:] == ["200", "3 min", "float32"] and "500,000 + 232" in rows["GramTransformer"]
    assert "Lowest test MAE: GramTransformer, 0.2000 ± 0.0000. Next: none" in shown.text
    assert shown.text.count("1,200 molecules skipped") == 2 and shown.text.count("no bond") == 40
    for fact in ("and 1,180 more", "not recorded", "A Processor", "2.13.0", "test_mae_relabelled", "0.321"):
        assert fact in shown.text
    assert shown.source == page(*runs, runs[0]).source  # named twice, counted once; the same every time


def test_what_users_write_is_escaped(make_run: MakeRun, page: Callable[..., Page]) -> None:
    evil = "<script>alert('&amp;\"')</script>$x_1$ `b`"
    data = {"source": evil, "skipped": [evil], "odd": {"key<b>": [evil]}}
    environment = {"processor": evil, "command": evil, "packages": {evil: evil}}
    run = make_run("<i>run & $co$", 0.3, data=data, environment=environment, pretrained=evil)
    shown = page(run, make_run("other", 0.4, None, data={"source": evil}))
    assert not {"script", "i", "b>"} & set(shown.tags)
    assert shown.text.count(evil) >= 6 and "<i>run & $co$" in shown.text


def test_no_run_folder(tmp_path: Path, make_run: MakeRun) -> None:
    make_run("inside", 0.3)
    for folder, what in (("nowhere", "nowhere"), (".", r"no config\.json.*inside")):
        with pytest.raises(ValueError, match=what):
            read_run(tmp_path / folder)
    for content, what in (("{", "JSON"), ("[]", "list"), ("{}", "'loop' and 'data'")):
        (tmp_path / "config.json").write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match=f"config.json.*{what}"):
            read_run(tmp_path)


def test_failure_leaves_the_old_report(make_run: MakeRun, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out, run = tmp_path / "report.html", make_run("a", 0.3)
    before = write_report([run.path], out).read_bytes()
    with pytest.raises(ValueError, match="nowhere"):
        write_report([run.path, tmp_path / "nowhere"], out)
    assert out.read_bytes() == before and sorted(path.name for path in tmp_path.iterdir()) == ["a", "report.html"]


def test_without_matplotlib(make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run("a", 0.31)
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"tg-lpe\[plot\]"):
        write_report([run.path], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
    assert "0.3100" in comparison_table([run])


def test_a_regression_stands_beside_the_constant(make_run: MakeRun, page: Callable[..., Page]) -> None:
    constant = {"test_mae_constant": 0.5, "val_mae_constant": 0.45}
    runs = [make_run("good", 0.25, None, result=constant), make_run("useless", 0.75, WALK, result=constant)]
    table: Table = compare(runs)[0]
    cells = table.constant_cells()
    assert (cells["test MAE"], cells["validation MAE"]) == ("0.5000", "0.4500")
    (note,) = (note for note in table.notes if "constant" in note)
    assert "RandomWalk" in note and "none" not in note
    assert list(cells.values()) in page(*runs).rows and cells["encoding"] in comparison_table(runs)
    assert compare([make_run("a", 0.3)])[0].constant_cells() == {}


test_a_path_is_no_run = refusals(
    lambda function, *arguments: function(*arguments), ((write_report, [], "report.html"), "run folder")
)


def test_columns_of_labels_have_figures(make_run: MakeRun) -> None:
    task = {**TASK, "num_targets": 2, "metric": "scaled_mae", "mean": [2.0, 50.0], "std": [1.0, 30.0]}
    figures = {"test_mae_columns": {"logP": 0.5, "TPSA": 15.0}, "test_scaled_mae_constant": 1.1}
    figures["test_mae_constant_columns"] = {"logP": 1.5, "TPSA": 24.0}
    (table,) = compare([make_run("a", 0.5, None, task=task, result=figures)])
    assert "MAE in standard deviations" in table.heading
    for cells, values in (
        (table.cells(table.rows[0]), ("0.5000", "15.0000")),
        (table.constant_cells(), ("1.5000", "24.0000")),
    ):
        assert (cells["test MAE, logP"], cells["test MAE, TPSA"]) == values
