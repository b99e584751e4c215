"""The content of a report: the table, the page and the figures, parsed again."""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tg_lpe.report import benchmark_json, compare, comparison_table, draw_curve, read_run, write_report
from tg_lpe.report.runs import UNNAMED
from tg_lpe.training.config import KernelPretrainConfig, PretrainConfig, TrainConfig
from tg_lpe.training.run_folder import RunFolder
from tg_lpe.training.state import read_metrics

MakeRun = Callable[..., Path]
VOID = {"meta", "br", "hr", "img", "link", "input"}
DATA = {
    "source": "zinc",
    "num_train": 20000,
    "num_val": 2000,
    "num_test": 24445,
    "atom_types": ["C", "O"],
    "skipped": [],
}
MODEL = {
    **{"class": "GraphTransformer", "num_node_types": 2, "hidden_channels": 128, "heads": 8, "num_layers": 4},
    **{"readout": "mlp", "pooling": "both", "pe_norm": True, "attention": "edge", "attention_options": None},
}
TASK = {"name": "regression", "level": "graph", "num_targets": 1, "metric": "mae", "loss_function": "l1"}
NONE = None
LAPLACIAN = {"class": "LaplacianEigenvectors", "k": 6}
WALK = {"class": "RandomWalk", "steps": 16}
GRAM = {"class": "GramTransformer", "probes": "identity", "num_node_types": 2}
FEATURES = {"class": "LinearTransformer", "probes": "features", "num_node_types": 2}
ENVIRONMENT = {
    "processor": "A Processor",
    "cores": 2,
    "threads": 1,
    "accelerator": None,
    "command": "tg-lpe train zinc --encoder none",
    "python": "3.11.7",
    "packages": {"torch": "2.13.0", "torch-scatter": None},
}


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Writes a run folder; ``test`` absent leaves it unfinished, ``val`` are the validation figures by epoch."""

    def make(
        name: str,
        *,
        test: float | None = None,
        val: Sequence[float] = (0.9, 0.5, 0.6),
        data: dict[str, Any] | None = None,
        environment: dict[str, Any] | None = None,
        result: dict[str, Any] | None = None,
        encoder: dict[str, Any] | None = GRAM,
        pretrained: str | None = None,
        task: dict[str, Any] = TASK,
        **settings: Any,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        model = {**MODEL, **{key: value for key, value in settings.items() if key in MODEL}}
        loop = TrainConfig(**{"epochs": 3, **{key: value for key, value in settings.items() if key not in MODEL}})
        config = {"layout": 2, "command": "train", "encoder": encoder, "model": model, "pretrained": pretrained}
        config |= {"task": task, "loop": loop.to_dict(), "data": {**DATA, **(data or {})}}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        (folder / "environment.json").write_text(json.dumps({**ENVIRONMENT, **(environment or {})}), encoding="utf-8")
        rows = [
            {
                "epoch": epoch,
                "train_loss": 1 / epoch,
                "seconds": 60.0,
                "graphs_per_second": 100.0 * epoch,
                f"val_{task['metric']}": value,
            }
            for epoch, value in enumerate(val, 1)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        if test is not None:
            weights = 232 if encoder in (GRAM, FEATURES) or pretrained is not None else 0
            figures = {
                f"test_{task['metric']}": test,
                f"val_{task['metric']}": min(val) if task["metric"] == "mae" else max(val),
                "best_epoch": 2,
                "epochs": len(val),
                "precision": "float32",
            }
            figures |= {"num_parameters": 500_000 + weights, "encoder_parameters": weights, **(result or {})}
            (folder / "result.json").write_text(json.dumps(figures), encoding="utf-8")
        return folder

    return make


@pytest.fixture
def make_pretraining(tmp_path: Path) -> MakeRun:
    """Writes the folder of a pretraining."""

    def make(name: str, *, finished: bool = True, **settings: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        encoder = {"class": "LinearTransformer", "k": settings.pop("k", 8)}
        loop = PretrainConfig(**{"epochs": 2, **settings}).to_dict()
        config = {"layout": 2, "command": "pretrain", "encoder": encoder, "loop": loop, "data": DATA}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        rows = [{"epoch": epoch, "train_loss": 9.0, "val_loss": 8.0 / epoch} for epoch in (1, 2)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        if finished:
            result = {"kind": "pretrain", "test_loss": 4.25, "val_loss": 4.0, "num_parameters": 696, "new_key": [1]}
            (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
        return folder

    return make


class Page(HTMLParser):
    """Checks that tags nest, and collects identifiers, addresses, table cells and text."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            if name == "id":
                self.ids.append(str(value))
            if name in ("src", "href", "xlink:href", "action", "data", "srcset"):
                self.addresses.append(str(value))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            return
        self.text += data
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


@pytest.fixture
def page(tmp_path: Path) -> Callable[..., Page]:
    """Writes a report of folders and parses it."""
    pytest.importorskip("matplotlib")
    return lambda *folders: Page(write_report(folders, tmp_path / "out" / "report.html"))


def test_seeds_make_one_row(make_run: MakeRun) -> None:
    tests = [0.30, 0.33, 0.36]
    runs = [read_run(make_run(f"a{seed}", encoder=LAPLACIAN, seed=seed, test=test)) for seed, test in enumerate(tests)]
    (group,) = compare(runs[::-1])
    (variant,) = group.variants
    assert variant.seeds == ["0", "1", "2"]
    assert variant.test is not None and variant.test.std is not None
    assert variant.test.mean == pytest.approx(0.33)
    assert variant.test.std == pytest.approx(0.03)  # sample standard deviation; the population's would be 0.0245
    assert "0.3300 ± 0.0300" in comparison_table(runs)
    assert variant.speed == 200.0
    assert group.best is None  # a single row is not ranked


def test_one_seed_has_no_spread(make_run: MakeRun) -> None:
    run = read_run(make_run("a", test=0.31))
    assert "±" not in comparison_table([run])
    assert "0.3100" in comparison_table([run])


def test_same_seed_again_is_no_evidence(make_run: MakeRun) -> None:
    runs = [read_run(make_run(name, encoder=NONE, test=0.3)) for name in "ab"]
    (group,) = compare(runs)
    assert [len(variant.runs) for variant in group.variants] == [1, 1]
    assert len({variant.label for variant in group.variants}) == 2


def test_a_kept_encoder_separates_runs(make_run: MakeRun) -> None:
    trained = make_run("a", test=0.3, pretrained="gram-k16", result={"encoder_parameters": 900})
    kept = make_run("b", test=0.3, pretrained="gram-k16", encoder_lr=0, result={"encoder_parameters": 900})
    (group,) = compare([read_run(trained), read_run(kept)])
    assert {variant.label.partition(", ")[2] for variant in group.variants} == {"encoder_lr 0.01", "encoder_lr 0.0"}


def test_settings_with_effect_separate_runs(make_run: MakeRun) -> None:
    runs = [read_run(make_run(f"a{lr}", seed=seed, test=0.3, lr=lr)) for seed, lr in enumerate([0.001, 0.01])]
    (group,) = compare(runs)
    assert sorted(variant.label for variant in group.variants) == [
        "GramTransformer, lr 0.001",
        "GramTransformer, lr 0.01",
    ]
    assert "Rows differ in more than the encoding: lr." in comparison_table(runs)


@pytest.mark.parametrize(
    ("shared", "idle"),
    [
        ({"encoder": NONE}, {"pe_norm": False, "pe_lr": 0.5, "encoder_lr": 0.5, "halve_every": 400}),
        ({"encoder": LAPLACIAN}, {"encoder_lr": 0.5, "patience": 5, "min_lr": 0.1}),
        ({"schedule": "plateau"}, {"warmup": 0.5, "halve_every": 400}),
        ({"encoder": WALK}, {"encoder": {**WALK, "edge_out_channels": None, "method": "auto"}}),
        ({}, {"encoder": {**GRAM, "num_node_types": 9, "num_filters": 4}, "halve_every": 400}),
        ({"pretrained": "heat-k8"}, {"encoder": {**GRAM, "num_filters": 2}}),
    ],
    ids=str,
)
def test_settings_without_effect_do_not_separate_runs(
    make_run: MakeRun, shared: dict[str, Any], idle: dict[str, Any]
) -> None:
    """Sizes of the data, defaults that are spelled out, settings of what a run does not have."""
    counts = {"encoder_parameters": 232 if "encoder" not in shared else 0}
    runs = [
        read_run(make_run("a", test=0.3, result=counts, **shared)),
        read_run(make_run("b", seed=1, test=0.3, result=counts, **{**shared, **idle})),
    ]
    assert [variant.seeds for variant in compare(runs)[0].variants] == [["0", "1"]]


@pytest.mark.parametrize(
    ("shared", "change", "words"),
    [
        ({}, {"encoder": {**GRAM, "edge_out_channels": 0}}, ["with edge encoding", "without edge encoding"]),
        ({"pe_norm": False}, {"pe_norm": True}, ["without normalized encoding", "with normalized encoding"]),
        ({}, {"encoder": {**GRAM, "conductances": "fixed"}}, ["learned conductances", "fixed conductances"]),
        ({}, {"encoder": {**GRAM, "basis": "chebyshev"}}, ["power basis", "chebyshev basis"]),
        ({}, {"encoder": {**GRAM, "probes": "rademacher"}}, ["identity probes", "rademacher probes"]),
        ({"pooling": "mean"}, {"pooling": "sum"}, ["mean pooling", "sum pooling"]),
        ({"attention": "edge"}, {"attention": "gps"}, ["edge attention", "gps attention"]),
        ({}, {"encoder": {**GRAM, "out_channels": 8}}, ["all channels", "out_channels 8"]),
        ({}, {"encoder": {**GRAM, "num_filters": 9}}, ["num_filters 4", "num_filters 9"]),
        ({}, {"encoder_lr": 0.5}, ["encoder_lr 0.01", "encoder_lr 0.5"]),
        ({"encoder": WALK}, {"encoder": {**WALK, "steps": 20}}, ["steps 16", "steps 20"]),
        ({"encoder": NONE, "pooling": "mean"}, {"pooling": "sum"}, ["mean pooling", "sum pooling"]),
        ({"encoder": FEATURES}, {"encoder": {**FEATURES, "k": 3}}, ["k 8", "k 3"]),
    ],
    ids=str,
)
def test_differing_settings_are_shown(
    make_run: MakeRun, shared: dict[str, Any], change: dict[str, Any], words: list[str]
) -> None:
    result = {"encoder_parameters": 232}
    runs = [
        read_run(make_run("a", test=0.3, result=result, **shared)),
        read_run(make_run("b", test=0.4, result=result, **{**shared, **change})),
    ]
    base = "none" if runs[0].encoder is None else runs[0].encoder["class"]
    (group,) = compare(runs)
    assert [variant.label for variant in group.variants] == [f"{base}, {word}" for word in words]
    assert group.difference(group.variants[0]) is None
    more = [name for name in ("pooling", "attention") if name in change]
    told = [f"Rows differ in more than the encoding: {name}." in comparison_table(runs) for name in more]
    assert all(told) and ("Rows differ" in comparison_table(runs)) == bool(more)


def test_options_of_attention_layers_are_settings(make_run: MakeRun) -> None:
    """Rows of one attention layer are told apart by the options that differ, not by all of them."""
    primal = {"global_attention": "primal", "global_options": {"eta": 0.0, "rank": 30}}
    options = [
        None,
        {"local": "gine", "global_attention": "softmax"},
        {"local": "gine", **primal},
        {"local": "gine", **primal, "global_options": {"eta": 0.1, "rank": 30}},
        {"local": "gine", "global_attention": "none"},
    ]
    settings = {"attention": "hybrid", "encoder": NONE}
    runs = [
        read_run(make_run(f"a{i}", test=0.3 + i / 10, **settings, attention_options=chosen))
        for i, chosen in enumerate(options)
    ]
    (group,) = compare(runs[1:])
    assert [variant.label for variant in group.variants] == [
        "none, softmax global attention",
        "none, primal global attention, eta 0.0, rank 30",
        "none, primal global attention, eta 0.1, rank 30",
        "none, no global attention",
    ]
    (group,) = compare(runs[:2])
    assert [variant.label for variant in group.variants] == ["none", "none, gine local, softmax global attention"]
    told = "Rows differ in more than the encoding: attention_options.local, attention_options.global_attention."
    assert told in comparison_table(runs[:2])


def test_classes_of_encoders_are_different_rows(make_run: MakeRun) -> None:
    """Encoders of this package and an unknown one are labelled by name and differing arguments."""
    encoders = [NONE, LAPLACIAN, WALK, GRAM, FEATURES, {"class": "Own", "depth": 1}, {"class": "Own", "depth": 2}]
    runs = [read_run(make_run(f"a{i}", test=0.3 + i / 10, encoder=encoder)) for i, encoder in enumerate(encoders)]
    (group,) = compare(runs)
    names = ["none", "LaplacianEigenvectors", "RandomWalk", "GramTransformer", "LinearTransformer"]
    assert [variant.label for variant in group.variants] == [*names, "Own, depth 1", "Own, depth 2"]
    assert len({variant.color for variant in group.variants}) == 7


def test_edge_encoding_is_shown_for_every_row_that_has_it(make_run: MakeRun) -> None:
    runs = [
        read_run(make_run("none", encoder=NONE, test=0.5)),
        read_run(make_run("walk", encoder={**WALK, "edge_out_channels": 0}, test=0.4)),
        read_run(make_run("ours", test=0.3)),
        read_run(make_run("features", encoder=FEATURES, test=0.45)),
    ]
    (group,) = compare(runs)
    found = {variant.label: group.difference(variant) for variant in group.variants}
    assert found == {
        "GramTransformer, with edge encoding": pytest.approx(-0.2),
        "RandomWalk, without edge encoding": pytest.approx(-0.1),
        "LinearTransformer": pytest.approx(-0.05),  # it has no encoding of edges
        "none": None,
    }
    assert "Rows differ in more than the encoding" not in comparison_table(runs)


def test_none_is_compared_at_the_same_pooling(make_run: MakeRun) -> None:
    other = {**GRAM, "edge_out_channels": 0, "num_filters": 2}
    runs = [
        read_run(make_run("a", encoder=NONE, test=0.5, pooling="mean")),
        read_run(make_run("b", encoder=NONE, test=0.4, pooling="sum")),
        read_run(make_run("c", test=0.3, pooling="sum", encoder=other, pe_norm=False)),
    ]
    (group,) = compare(runs)
    assert group.difference(group.variants[0]) == pytest.approx(-0.1)


def test_larger_is_better_where_the_metric_says_so(make_run: MakeRun, page: Callable[..., Page]) -> None:
    task = {"name": "binary", "level": "graph", "num_targets": 1, "metric": "roc_auc"}
    folders = [
        make_run("none", encoder=NONE, task=task, test=0.7, val=(0.6, 0.8)),
        make_run("walk", encoder=WALK, task=task, test=0.9, val=(0.8, 0.9)),
        make_run("going", encoder=LAPLACIAN, task=task, val=(0.5, 0.95, 0.6)),
    ]
    runs = [read_run(folder) for folder in folders]
    (group,) = compare(runs)
    assert [variant.label for variant in group.variants] == ["RandomWalk", "none", "LaplacianEigenvectors"]
    assert group.best is group.variants[0] and group.difference(group.variants[0]) == pytest.approx(0.2)
    assert runs[2].validation_error == 0.95
    table, shown = comparison_table(runs), page(*folders)
    assert "test ROC-AUC" in table and "MAE" not in table
    assert "Highest test ROC-AUC: RandomWalk" in shown.text and "MAE" not in shown.text
    row = benchmark_json(runs)["comparison"][0]["rows"][0]
    assert row["test_roc_auc"]["mean"] == 0.9 and "test_mae" not in row


def test_tasks_are_not_ranked_together(make_run: MakeRun) -> None:
    target = {"target": {"columns": ["size"], "level": "graph", "computed": None}}
    runs = [
        read_run(make_run("a", test=0.3)),
        read_run(make_run("b", test=0.3, task={**TASK, "metric": "rmse"})),
        read_run(make_run("c", test=0.3, data=target)),
    ]
    assert [len(group.variants) for group in compare(runs)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("encoder", "name"), [("eigen-k8", "eigen-k8"), ("runs/pretrain/encoder", "pretrain"), ("encoder", "encoder")]
)
def test_pretrained_encoder_is_named(make_run: MakeRun, encoder: str, name: str) -> None:
    (group,) = compare([read_run(make_run("a", test=0.3, pretrained=encoder))])
    assert group.variants[0].label == f"GramTransformer from {name}"


def test_difference_to_none(make_run: MakeRun) -> None:
    runs = [
        read_run(make_run("none", encoder=NONE, test=0.40)),
        read_run(make_run("none long", encoder=NONE, test=0.20, epochs=30)),
        read_run(make_run("ours", test=0.30)),
        read_run(make_run("walk", encoder=WALK, test=0.44)),
    ]
    (group,) = compare(runs)
    found = {variant.label: group.difference(variant) for variant in group.variants}
    assert found == {
        "none, epochs 30": None,
        "GramTransformer": pytest.approx(-0.1),
        "none, epochs 3": None,
        "RandomWalk": pytest.approx(0.04),
    }
    table = comparison_table(runs)
    assert "−0.1000 (−25.0 %)" in table
    assert "+0.0400 (+10.0 %)" in table
    assert next(line for line in table.splitlines() if line.startswith("* ")).startswith("* none, epochs 30")


def test_difference_is_over_the_seeds_of_both(make_run: MakeRun) -> None:
    runs = [
        read_run(make_run("none", encoder=NONE, test=3.0)),
        read_run(make_run("none again", encoder=NONE, test=2.4, seed=1)),
        read_run(make_run("walk", encoder=WALK, test=3.1)),
        read_run(make_run("ours", test=1.0, seed=2)),
    ]
    (group,) = compare(runs)
    found = {variant.label: group.difference(variant) for variant in group.variants}
    assert found == {"RandomWalk": pytest.approx(0.1), "GramTransformer": None, "none": None}
    assert "+0.1000 (+3.3 %)" in comparison_table(runs)


@pytest.mark.parametrize(
    "other",
    [{"source": "qm9"}, {"num_train": 19999}, {"atom_types": ["C", "N"]}, {"normalization": {"logp_mean": 1.0}}],
    ids=lambda other: next(iter(other)),
)
def test_other_data_is_not_ranked_together(make_run: MakeRun, other: dict[str, Any]) -> None:
    runs = [read_run(make_run("a", encoder=NONE, test=0.3)), read_run(make_run("b", test=0.2, data=other))]
    groups = compare(runs)
    assert [len(group.variants) for group in groups] == [1, 1]
    assert [group.source for group in groups] == ["zinc", other.get("source", "zinc (2)")]
    assert all(group.best is None and group.difference(group.variants[0]) is None for group in groups)
    assert not any(line.startswith("* ") for line in comparison_table(runs).splitlines())


def test_split_is_read_from_the_folder(make_run: MakeRun) -> None:
    def table(*splits: dict[str, Any]) -> str:
        runs = []
        for split in splits:
            number = next(numbers)
            data = {"source": "my/molecules.smi", "split": split}
            runs.append(read_run(make_run(f"a{number}", seed=number, test=0.3, data=data)))
        return comparison_table(runs)

    numbers = iter(range(9))
    said = "The split was drawn by the seed"
    assert said in table({"kind": "random", "seed": 0}, {"kind": "random", "seed": 1})
    assert said not in table({"kind": "random", "seed": 0}, {"kind": "random", "seed": 0})
    assert said not in table({"kind": "given"}, {"kind": "given"})
    apart = table({"kind": "scaffold"}, {"kind": "random", "seed": 0})
    assert said not in apart and "my/molecules.smi (2)" in apart, "scaffold splits are other data"


def test_digests_tell_data_apart(make_run: MakeRun) -> None:
    """Where the words about it are the same; but not where another split, or other features, gives another digest."""

    def tables(*data: dict[str, Any]) -> list[str]:
        names = [f"d{next(numbers)}" for _ in data]
        runs = [read_run(make_run(name, seed=0, test=0.3, data=own)) for name, own in zip(names, data, strict=True)]
        at = {str(run.path): number for number, run in enumerate(runs)}
        groups = [[at[str(run.path)] for v in group.variants for run in v.runs] for group in compare(runs)]
        return ["".join(map(str, sorted(group))) for group in groups]

    numbers = iter(range(99))
    for split in ({"source": "my/data", "split": {"kind": "given"}}, {"source": UNNAMED, "split": None}):
        assert tables({**split, "digest": "a"}, {**split, "digest": "b"}, {**split, "digest": "a"}) == ["02", "1"]
        assert tables({**split, "digest": "a"}, split) == ["01"], "earlier releases wrote none"
        assert tables(
            {**split, "digest": "a", "bond_types": ["SINGLE"]}, {**split, "digest": "b", "bond_types": []}
        ) == ["01"], "of one file, with other features"
    seeds = [{"source": "my/data", "split": {"kind": "random", "seed": seed}} for seed in range(3)]
    digests = [{**split, "digest": digest} for split, digest in zip(seeds, "abc", strict=True)]
    assert tables(*digests) == ["012"], "seeds of one file"
    assert tables(digests[0], {**seeds[0], "digest": "other"}) == ["0", "1"], "two files, split alike"
    assert tables(*digests[:2], {**seeds[0], "digest": "other"}) == ["0", "1", "2"], "whose seed 1 is, is not known"


def test_heading_says_what_is_predicted(make_run: MakeRun, page: Callable[..., Page]) -> None:
    columns = {"target": {"columns": ["size", "b", "c", "d", "e"], "level": "graph", "computed": None}}
    folder = make_run("a", test=0.3, data=columns)
    heading = "zinc, size, b, c, 2 more (MAE)"
    assert comparison_table([read_run(folder)]).startswith(f"{heading}: ") and heading in page(folder).text


def test_labelled_nodes_are_counted(make_run: MakeRun) -> None:
    counts = {"num_train": 1, "num_val": 1, "num_test": 1}
    counts |= {"num_labelled_train": 140, "num_labelled_val": 500, "num_labelled_test": 1000}
    table = comparison_table([read_run(make_run("a", test=0.3, data=counts))])
    assert "140 train, 500 val, 1,000 test labelled nodes" in table and "1 train" not in table


def test_losses_are_compared_by_their_metric(make_run: MakeRun) -> None:
    """What a run minimised is a setting; what it is ranked by is the metric."""
    tasks = [{**TASK, "loss_function": loss} for loss in ("l1", "mse")]
    runs = [read_run(make_run(f"a{n}", test=0.3 - 0.1 * n, task=task)) for n, task in enumerate(tasks)]
    (group,) = compare(runs)
    assert [variant.label for variant in group.variants] == [
        "GramTransformer, loss_function mse",
        "GramTransformer, loss_function l1",
    ]


def test_scores_have_a_linear_axis() -> None:
    """A score may be zero; on a logarithmic axis it would be left out."""
    pytest.importorskip("matplotlib")
    from tg_lpe.report.figures import Curve, curves_svg

    curve = Curve("none", [[(1, 0.0), (2, 0.0)]], "#000000")
    assert curves_svg([curve], "validation ROC-AUC", "scores", log=False)
    assert curves_svg([curve], "validation MAE", "errors") == ""


def test_unfinished_runs_are_shown(make_run: MakeRun, page: Callable[..., Page]) -> None:
    folders = [
        make_run("done", encoder=NONE, test=0.5),
        make_run("going", encoder=LAPLACIAN, val=(0.8, 0.1), epochs=40),
        make_run("not begun", encoder=WALK, val=()),
    ]
    (folders[2] / "metrics.jsonl").unlink()
    (group,) = compare([read_run(folder) for folder in folders])
    assert group.ranked == [group.variants[0]]
    table = comparison_table([read_run(folder) for folder in folders])
    assert "2 of 40" in table
    assert "0 of 3" in table
    assert table.count("unfinished") == 2
    shown = page(*folders)
    assert "3 runs on 1 data set, 2 unfinished" in shown.text
    rows = {row[0]: row for row in shown.rows}
    assert rows["LaplacianEigenvectors"][1:4] == ["unfinished", "–", "0.1000"]
    assert "LaplacianEigenvectors (unfinished)" in shown.text  # in the figure's legend


def test_diverged_run_is_neither_dropped_nor_best(make_run: MakeRun, page: Callable[..., Page]) -> None:
    folders = [
        make_run("bad", test=math.nan, val=(math.nan, math.nan), result={"val_mae": math.inf}),
        make_run("good", encoder=NONE, test=0.3),
        make_run("fair", encoder=LAPLACIAN, test=0.4),
    ]
    runs = [read_run(folder) for folder in folders]
    (group,) = compare(runs)
    assert group.best is not None and group.best.label == "none"
    assert group.variants[-1].runs[0].name == "bad"
    assert "nan" in comparison_table(runs)
    assert "nan" in page(*folders).text
    figures = json.dumps(benchmark_json(runs), allow_nan=False)
    assert json.loads(figures)["comparison"][0]["rows"][-1]["test_mae"]["mean"] is None


def test_pretraining(make_run: MakeRun, make_pretraining: MakeRun, page: Callable[..., Page]) -> None:
    folders = [
        make_pretraining("first"),
        make_run("train", test=0.3),
        make_pretraining("second", k=12),
        make_pretraining("third", finished=False),
    ]
    runs = [read_run(folder) for folder in folders]
    assert [run.kind for run in runs] == ["pretrain", "train", "pretrain", "pretrain"]
    training, pretraining = compare(runs)
    assert (training.kind, pretraining.kind) == ("train", "pretrain")
    assert [variant.runs[0].name for variant in pretraining.variants] == ["first", "second", "third"]
    assert pretraining.best is None
    shown = page(*folders)
    (row,) = (row for row in shown.rows if row[0] == "LinearTransformer, k 12")
    assert row[1:3] == ["4.2500", "4.0000"]
    assert "zinc, pretraining" in shown.text


def test_kernel_pretraining(tmp_path: Path, make_pretraining: MakeRun, page: Callable[..., Page]) -> None:
    folders = [make_pretraining("eigenvectors")]
    for name, settings in (("a", {"num_filters": 3}), ("b", {"num_filters": 9}), ("c", {"kernels": ("heat",)})):
        folders.append(tmp_path / name)
        folders[-1].mkdir()
        encoder = {"class": "GramTransformer", "num_filters": settings.get("num_filters", 4)}
        loop = KernelPretrainConfig(epochs=1, kernels=settings.get("kernels", ("heat", "resistance"))).to_dict()
        config = {"layout": 2, "command": "pretrain-kernels", "encoder": encoder, "loop": loop, "data": DATA}
        (folders[-1] / "config.json").write_text(json.dumps(config), encoding="utf-8")
        (folders[-1] / "metrics.jsonl").write_text('{"epoch": 1, "val_loss": 0.5}\n', encoding="utf-8")
    result = {"kind": "pretrain-kernels", "test_loss": 0.0625, "val_loss": 0.05}
    (folders[1] / "result.json").write_text(json.dumps(result), encoding="utf-8")
    runs = [read_run(folder) for folder in folders]
    assert [(run.kind, run.finished) for run in runs] == [
        ("pretrain", True),
        ("pretrain", True),
        ("pretrain", False),
        ("pretrain", False),
    ]
    (group,) = compare(runs)
    assert [variant.label for variant in group.variants] == [
        "LinearTransformer",
        "GramTransformer, heat and resistance kernels, num_filters 3",
        "GramTransformer, heat and resistance kernels, num_filters 9",
        "GramTransformer, heat kernels",
    ]
    (row,) = (row for row in page(*folders).rows if row[0].endswith("num_filters 3"))
    assert row[1:3] == ["0.0625", "0.0500"]


def test_page_is_whole_and_needs_nothing_else(make_run: MakeRun, page: Callable[..., Page]) -> None:
    skipped = [f"train.smi:{line}: 'C{line}': no bond" for line in range(1200)]
    folders = [make_run(f"none-{seed}", encoder=NONE, seed=seed, test=0.3 + seed / 100) for seed in (0, 1)]
    folders += [make_run(f"ours-{seed}", seed=seed, test=0.2, data={"skipped": skipped}) for seed in (0, 1)]
    folders += [make_run("qm9", test=0.1, data={"source": "qm9"})]
    shown = page(*folders)
    assert {"html", "table", "svg", "details", "title", "style"} <= set(shown.tags)
    assert not {"script", "link", "img", "iframe", "object"} & set(shown.tags)
    assert shown.tags.count("svg") == 4
    assert "://" not in shown.source
    assert "@import" not in shown.source
    assert len(shown.ids) == len(set(shown.ids))
    assert shown.addresses
    assert all(address.startswith("#") and address[1:] in shown.ids for address in shown.addresses)
    rows = {row[0].removesuffix(" lowest"): row[1:] for row in shown.rows}
    spread = statistics.stdev([0.30, 0.31])
    assert rows["none"][0] == f"0.3050 ± {spread:.4f}"
    assert rows["none"][3:6] == ["0, 1", "3", "500,000"]
    assert rows["none"][6:] == ["200", "3 min", "float32"]
    assert "500,000 + 232" in rows["GramTransformer"]
    assert "Lowest test MAE: GramTransformer, 0.2000 ± 0.0000, against none −0.1050" in shown.text
    assert shown.text.count("1,200 molecules skipped") == 2
    assert shown.text.count("no bond") == 1000
    assert "and 200 more" in shown.text
    assert "A Processor" in shown.text
    assert "2.13.0" in shown.text


def test_page_is_the_same_every_time(make_run: MakeRun, page: Callable[..., Page]) -> None:
    folders = [make_run("a", test=0.3), make_run("b", encoder=NONE, test=0.4)]
    assert page(*folders).source == page(*folders, folders[0]).source  # named twice, counted once


def test_what_users_write_is_escaped(make_run: MakeRun, page: Callable[..., Page]) -> None:
    evil = "<script>alert('&amp;\"')</script>$x_1$ `b`"
    folder = make_run(
        "<i>run & $co$",
        test=0.3,
        data={"source": evil, "skipped": [evil], "odd": {"key<b>": [evil]}},
        environment={"processor": evil, "command": evil, "packages": {evil: evil}},
        pretrained=evil,
    )
    other = make_run("other", encoder=NONE, test=0.4, data={"source": evil})
    shown = page(folder, other)
    assert not {"script", "i", "b>"} & set(shown.tags)
    assert shown.text.count(evil) >= 6
    assert "<i>run & $co$" in shown.text


def test_lenient_about_what_is_missing(tmp_path: Path, page: Callable[..., Page]) -> None:
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "config.json").write_text(
        '{"layout": 2, "command": "train", "encoder": {"class": "new"}, "loop": {"seed": "x"}, "data": {}, "more": 1}',
        encoding="utf-8",
    )
    (folder / "metrics.jsonl").write_text('{"epoch": 1, "val_mae": "high"}\n[]\n{"epoch": 2, "val_', encoding="utf-8")
    (folder / "result.json").write_text('{"test_mae": null}', encoding="utf-8")
    run = read_run(folder)
    assert (run.epochs, run.test_error, run.validation_error, run.seconds, run.precision) == (1, None, None, None, None)
    (row,) = (row for row in page(folder).rows if row[0] == "new")
    assert row[1:] == ["–", "–", "–", "x", "1", "–", "–", "–", "–"]
    json.dumps(benchmark_json([run]), allow_nan=False)


def test_no_run_folder(tmp_path: Path, make_run: MakeRun) -> None:
    make_run("inside", test=0.3)
    with pytest.raises(ValueError, match="nowhere is no run folder: there is no folder of that name"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"is no run folder: it has no config\.json; .* name them: inside"):
        read_run(tmp_path)
    with pytest.raises(ValueError, match="at least one run folder"):
        write_report([], tmp_path / "report.html")
    for path in (tmp_path / "inside", str(tmp_path / "inside")):
        with pytest.raises(TypeError, match="paths must"):
            write_report(path, tmp_path / "report.html")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "message"),
    [("{", "not valid JSON"), ("[]", "must hold a JSON object, got list"), ("{}", "lacks 'loop' and 'data'")],
)
def test_damaged_run_folder(tmp_path: Path, config: str, message: str) -> None:
    (tmp_path / "config.json").write_text(config, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_run(tmp_path)


def test_failure_leaves_the_old_report(make_run: MakeRun, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "report.html"
    write_report([make_run("a", test=0.3)], out)
    before = out.read_bytes()
    with pytest.raises(ValueError, match="no run folder"):
        write_report([tmp_path / "a", tmp_path / "nowhere"], out)
    assert out.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "report.html"]


def test_without_matplotlib(make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run("a", test=0.3)
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'tg-lpe\[plot\]'"):
        write_report([folder], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
    assert draw_curve(RunFolder(folder)) is None
    assert "0.3100" not in comparison_table([read_run(folder)])  # the table leaves it out


def test_benchmark_json(make_run: MakeRun) -> None:
    runs = [
        read_run(make_run("a", encoder=NONE, test=0.4, data={"skipped": ["x", "y"]})),
        *(read_run(make_run(f"b{seed}", seed=seed, test=0.3 + seed / 10)) for seed in (0, 1)),
    ]
    values = json.loads(json.dumps(benchmark_json(runs), allow_nan=False))
    first = values["runs"][0]
    assert (first["name"], first["command"], first["result"]["test_mae"]) == (
        "a",
        "tg-lpe train zinc --encoder none",
        0.4,
    )
    assert first["machine"]["processor"] == "A Processor"
    assert first["versions"] == {"python": "3.11.7", "torch": "2.13.0", "torch-scatter": None}
    assert first["data"]["num_skipped"] == 2
    assert "skipped" not in first["data"]
    (comparison,) = values["comparison"]
    assert comparison["data"] == "zinc"
    row = comparison["rows"][0]
    assert (row["runs"], row["best"]) == (["b0", "b1"], True)
    assert row["test_mae"] == {"mean": pytest.approx(0.35), "std": pytest.approx(0.1 / math.sqrt(2)), "seeds": 2}
    assert row["against_none"] == pytest.approx(-0.1)  # over the seed of both


@pytest.mark.parametrize("val", [(0.9, 0.5, 0.6), (0.9,), (math.nan,), (0.0, 0.5), ()], ids=str)
def test_curve(make_run: MakeRun, val: Sequence[float]) -> None:
    pytest.importorskip("matplotlib")
    folder = make_run("a", val=val)
    path = draw_curve(RunFolder(folder))
    assert path == folder / "curve.png"
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("loss", "labels"),
    [
        (1.0, ["training loss", "validation MAE"]),
        (1.5, ["training loss", "validation loss", "validation MAE"]),
    ],
)
def test_a_curve_hides_no_other(
    make_run: MakeRun, loss: float, labels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the metric is the loss one line stands for both; epochs are whole."""
    figure = pytest.importorskip("matplotlib.figure")
    folder = RunFolder(make_run("a", val=(0.9, 0.5, 0.6, 0.4)))
    rows = [{**row, "val_loss": loss * row["val_mae"]} for row in read_metrics(folder.metrics)]
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    drawn = []
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, path, **_: (drawn.append(self), Path(path).touch()))
    draw_curve(folder)
    (axes,) = drawn[0].axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == labels
    low, high = axes.get_xlim()
    assert all(tick == round(tick) for tick in axes.get_xticks() if low <= tick <= high)


def test_other_data_and_features_are_no_seeds(make_run: MakeRun) -> None:
    unnamed = {"source": None, "bond_types": None}
    specs = [{**unnamed, "spec": {"in_channels": width}} for width in (3, 7, 3)]
    folders = [make_run(f"s{n}", test=0.3, seed=n, encoder=None, data=spec) for n, spec in enumerate(specs)]
    for folder in folders:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        del config["data"]["source"]
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    groups = compare([read_run(folder) for folder in folders])
    assert [len(group.variants) for group in groups] == [1, 1]
    assert sorted(len(group.variants[0].runs) for group in groups) == [1, 2]
    bonds = [make_run(f"b{n}", test=0.3, seed=n, encoder=None, data={"bond_types": b}) for n, b in enumerate(([1], []))]
    (group,) = compare([read_run(folder) for folder in bonds])
    assert [len(variant.runs) for variant in group.variants] == [1, 1]
    assert {variant.settings["features"] for variant in group.variants} == {"types", "ogb"}


def test_a_regression_stands_beside_the_constant(make_run: MakeRun, page: Callable[..., Page]) -> None:
    constant = {"test_mae_constant": 0.5, "val_mae_constant": 0.45}
    folders = [
        make_run("good", encoder=NONE, test=0.25, result=constant),
        make_run("useless", encoder=WALK, test=0.75, result=constant),
    ]
    runs = [read_run(folder) for folder in folders]
    table = comparison_table(runs)
    (row,) = (line for line in table.splitlines() if "constant (median" in line)
    assert "0.5000" in row and "0.4500" in row and "±" not in row
    (note,) = (line for line in table.splitlines() if "No better than the constant" in line)
    assert "RandomWalk" in note and "none" not in note
    (cells,) = (row for row in page(*folders).rows if row and row[0].startswith("constant"))
    assert "0.5000" in cells and "0.4500" in cells
    assert "constant" not in comparison_table([read_run(make_run("earlier", test=0.3))])


def test_columns_of_labels_have_figures(make_run: MakeRun) -> None:
    task = {**TASK, "num_targets": 2, "metric": "scaled_mae", "mean": [2.0, 50.0], "std": [1.0, 30.0]}
    columns = {
        "test_mae_columns": {"logP": 0.5, "TPSA": 15.0},
        "test_mae_constant_columns": {"logP": 1.5, "TPSA": 24.0},
    }
    figures = {**columns, "test_scaled_mae_constant": 1.1, "val_scaled_mae_constant": 1.2}
    run = make_run("a", encoder=NONE, test=0.5, task=task, result=figures)
    table = comparison_table([read_run(run)])
    head, row, constant = table.splitlines()[1:4]
    assert "test MAE, logP" in head and "test MAE, TPSA" in head and "MAE in standard deviations" in head
    assert "0.5000" in row and "15.0000" in row and "1.5000" in constant and "24.0000" in constant


def test_a_curve_of_each_column(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = pytest.importorskip("matplotlib.figure")
    task = {**TASK, "num_targets": 2, "metric": "scaled_mae"}
    folder = RunFolder(make_run("a", task=task))
    rows = [{**row, "val_mae_columns": {"logP": 0.5, "TPSA": 15.0}} for row in read_metrics(folder.metrics)]
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    drawn = []
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, path, **_: (drawn.append(self), Path(path).touch()))
    draw_curve(folder)
    labels = [line.get_label() for line in drawn[0].axes[0].lines]
    assert {"validation MAE, logP", "validation MAE, TPSA"} <= set(labels)
