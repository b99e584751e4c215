"""A comparison of runs from their folders alone: a table for the terminal, a page to look at, figures to keep.

Runs on different data are never ranked against each other; runs that differ in nothing but the seed make one row.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

from tg_lpe.files import read_json, replacing
from tg_lpe.training.figures import BLUE, ENCODING_COLORS, SPARE_COLORS, Curve, Score, curves_svg, scores_svg
from tg_lpe.training.run_folder import RunFolder
from tg_lpe.training.state import read_metrics

DASH = "–"
# Settings that belong to the encoding; two runs that agree in all others are compared like with like.
_ENCODING_SETTINGS = ("pe", "pe_dim", "probes", "k", "encoder", "encoder_lr")
_SIZES = ("num_train", "num_val", "num_test")
_SKIPPED_SHOWN = 1000
_MACHINE = ("processor", "cores", "threads", "cpu_capability", "accelerator", "system")
# Sets known by a name: that does not say where they lie, so two of them need not be the same.
_NAMED = ("zinc", "zinc12k", "qm9")


@dataclass(frozen=True)
class Run:
    """What a run folder says.

    Attributes:
        path: the folder, as it was named.
        kind: ``train`` or ``pretrain``.
        settings: what decided the result.
        data: source, sizes and the list of skipped molecules.
        environment: machine, command and versions; empty if the folder has none.
        metrics: one row per epoch done.
        result: final figures; ``None`` while the run is unfinished.
    """

    path: Path
    kind: str
    settings: Mapping[str, Any]
    data: Mapping[str, Any]
    environment: Mapping[str, Any]
    metrics: tuple[Mapping[str, Any], ...]
    result: Mapping[str, Any] | None

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.path.name or self.path.resolve().name

    @property
    def source(self) -> str:
        """What the data was called."""
        return str(self.data.get("source", "unnamed data"))

    @property
    def finished(self) -> bool:
        """Whether there is a result."""
        return self.result is not None

    @property
    def epochs(self) -> int:
        """Epochs done."""
        return len(self.metrics) or int(_number(self.result, "epochs") or 0)

    @property
    def validation_key(self) -> str:
        """The column of the metrics that chose the best epoch."""
        return "val_mae" if self.kind == "train" else "val_loss"

    @property
    def test_error(self) -> float | None:
        """Test MAE of a training, test loss of a pretraining."""
        if self.kind == "train":
            return _number(self.result, "test_mae")
        return _first(_number(self.result, "test_loss"), _number(self.result, "loss"))

    @property
    def validation_error(self) -> float | None:
        """The best epoch's; of an unfinished run, the lowest so far."""
        column = [value for _, value in self.curve(self.validation_key)]
        return _first(_number(self.result, self.validation_key), min(column, default=None))

    @property
    def seconds(self) -> float | None:
        """Time spent in training epochs, evaluation not counted."""
        column = [value for _, value in self.curve("seconds")]
        return sum(column) if column else None

    @property
    def precision(self) -> str | None:
        """What was computed with: the result knows what ``auto`` became."""
        return _first(_text(self.result, "precision"), _text(self.settings, "precision"))

    def curve(self, key: str) -> list[tuple[float, float]]:
        """``(epoch, value)`` of a column of the metrics, rows without it left out."""
        pairs = ((_number(row, "epoch"), _number(row, key)) for row in self.metrics)
        return [(epoch, value) for epoch, value in pairs if epoch is not None and value is not None]


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation of a figure over seeds; one seed has no deviation."""

    mean: float
    std: float | None
    count: int

    def __str__(self) -> str:
        if self.std is None:
            return _figure(self.mean)
        return f"{_figure(self.mean)} ± {format(self.std, _form(self.mean))}"


@dataclass(frozen=True)
class Variant:
    """Runs that differ in nothing but the seed: all finished, or all unfinished.

    Attributes:
        runs: by seed.
        settings: those that had an effect, without the seed.
        label: what tells it from the other variants on the same data.
        color: of its marks in every picture.
    """

    runs: tuple[Run, ...]
    settings: Mapping[str, Any]
    label: str = ""
    color: str = BLUE

    @property
    def finished(self) -> bool:
        """Whether the runs have ended."""
        return self.runs[0].finished

    @property
    def seeds(self) -> list[str]:
        """The seeds, as text."""
        return [str(run.settings.get("seed", DASH)) for run in self.runs]

    @property
    def test(self) -> Spread | None:
        """Test error over seeds."""
        return _spread([run.test_error for run in self.runs])

    @property
    def validation(self) -> Spread | None:
        """Validation error over seeds."""
        return _spread([run.validation_error for run in self.runs])

    @property
    def speed(self) -> float | None:
        """Median graphs per second over all epochs of all runs."""
        column = [value for run in self.runs for _, value in run.curve("graphs_per_second")]
        return statistics.median(column) if column else None


@dataclass(frozen=True)
class Group:
    """All runs of one kind on one data set.

    Attributes:
        kind: ``train`` or ``pretrain``.
        source: what the data was called, numbered where other data goes by the same name.
        data: its description, of the first run.
        variants: best first, unfinished ones last; pretrainings in the order they were named.
    """

    kind: str
    source: str
    data: Mapping[str, Any]
    variants: tuple[Variant, ...]

    @property
    def ranked(self) -> list[Variant]:
        """Finished variants with a finite test error, best first; none for pretraining, whose losses differ in kind."""
        if self.kind != "train":
            return []
        return [v for v in self.variants if v.finished and v.test is not None and math.isfinite(v.test.mean)]

    @property
    def best(self) -> Variant | None:
        """The lowest test error, where there is something to compare it with."""
        return self.ranked[0] if len(self.ranked) > 1 else None

    def baseline(self, variant: Variant) -> Variant | None:
        """The runs without a positional encoding whose other settings are the same."""
        for other in self.ranked:
            if other.settings.get("pe") == "none" and _apart_from_encoding(other) == _apart_from_encoding(variant):
                return other
        return None

    def difference(self, variant: Variant) -> float | None:
        """Mean test error less that of :meth:`baseline`, where both have ended."""
        base = self.baseline(variant)
        if base is None or base is variant or variant not in self.ranked or base.test is None or variant.test is None:
            return None
        return variant.test.mean - base.test.mean

    @property
    def sizes(self) -> str:
        """Graphs of each split, in words."""
        counts = [(name.removeprefix("num_"), _number(self.data, name)) for name in _SIZES]
        return ", ".join(f"{count:,.0f} {name}" for name, count in counts if count is not None)


def read_run(path: str | Path) -> Run:
    """Read a run folder. Only ``config.json`` must be there; keys it does not know are passed over.

    Args:
        path: the folder.

    Returns:
        The run, finished or not.

    Raises:
        ValueError: if the folder holds no run, with what is missing, or one of its files is damaged.
    """
    folder = RunFolder(path)
    if not folder.path.is_dir():
        raise ValueError(f"{folder.path} is no run folder: there is no folder of that name")
    if not folder.config.is_file():
        inside = sorted(child.parent.name for child in folder.path.glob(f"*/{folder.config.name}"))
        hint = f"; the folders in it do hold runs, name them: {', '.join(inside[:5])}" if inside else ""
        raise ValueError(f"{folder.path} is no run folder: it has no {folder.config.name}{hint}")
    config = _object(folder.config)
    result = _object(folder.result) if folder.result.is_file() else None
    rows = [row for row in read_metrics(folder.metrics) if isinstance(row, dict)] if folder.metrics.is_file() else []
    kind = "pretrain" if _is_pretraining(config, result, rows) else "train"
    settings, data = (config.get(name) for name in ("pretrain" if "pretrain" in config else "train", "data"))
    if not isinstance(settings, dict) or not isinstance(data, dict):
        lacking = [name for name, part in ((kind, settings), ("data", data)) if not isinstance(part, dict)]
        raise ValueError(f"{folder.config} is not a run's: it lacks {' and '.join(map(repr, lacking))}")
    environment = _object(folder.environment) if folder.environment.is_file() else {}
    return Run(folder.path, kind, settings, data, environment, tuple(rows), result)


def compare(runs: Sequence[Run]) -> list[Group]:
    """Sort runs into data sets and rows.

    Args:
        runs: in any order.

    Returns:
        One group per kind of run and data set, trainings first.
    """
    by_data: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.kind != "train"):
        by_data.setdefault(_data_key(run), []).append(run)
    names: Counter[tuple[str, str]] = Counter()
    groups = []
    for group in map(_group, by_data.values()):
        names[group.kind, group.source] += 1
        number = names[group.kind, group.source]
        groups.append(group if number == 1 else replace(group, source=f"{group.source} ({number})"))
    return groups


def comparison_table(runs: Sequence[Run]) -> str:
    """The comparison as plain text for a terminal.

    Args:
        runs: in any order.

    Returns:
        One aligned table per data set, the best row marked with a star, with what to bear in mind below it.
    """
    blocks = []
    for group in compare(runs):
        rows = [_row(group, variant) for variant in group.variants]
        marks = ["* " if variant is group.best else "  " for variant in group.variants]
        columns = list(rows[0])
        widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in columns}
        lines = [_heading(group), "  " + "  ".join(name.ljust(widths[name]) for name in columns)]
        lines += [
            mark + "  ".join(row[name].ljust(widths[name]) for name in columns)
            for mark, row in zip(marks, rows, strict=True)
        ]
        notes = [f"  - {note}" for note in _notes(group)]
        blocks.append("\n".join(line.rstrip() for line in lines + notes))
    return "\n\n".join(blocks)


def benchmark_json(runs: Sequence[Run]) -> dict[str, Any]:
    """The comparison as figures, fit for strict JSON: what is not finite becomes ``None``.

    Args:
        runs: in any order.

    Returns:
        ``{"runs": [...], "comparison": [...]}``: each run's command, settings, result, machine and versions; and the
        rows of the table by data set, as numbers.
    """
    values = {
        "runs": [_run_figures(run) for run in runs],
        "comparison": [
            {
                "kind": group.kind,
                "data": group.source,
                **{name: group.data.get(name) for name in _SIZES},
                "rows": [_variant_figures(group, variant) for variant in group.variants],
                "notes": _notes(group),
            }
            for group in compare(runs)
        ],
    }
    figures: dict[str, Any] = _finite(values)
    return figures


def write_report(paths: Sequence[str | Path], out: str | Path = "report.html") -> Path:
    """Write the comparison of run folders as one page that needs nothing beside it.

    Args:
        paths: run folders; one named twice counts once.
        out: the page.

    Returns:
        The page's path.

    Raises:
        ValueError: if there is no run, or a folder holds none.
        ModuleNotFoundError: if matplotlib is not installed.
    """
    runs = [read_run(path) for path in {Path(path).resolve(): path for path in paths}.values()]
    if not runs:
        raise ValueError("a report needs at least one run folder")
    page = _page(runs)
    with replacing(Path(out)) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return Path(out)


# Sorting runs


def _is_pretraining(config: dict[str, Any], result: dict[str, Any] | None, rows: Sequence[dict[str, Any]]) -> bool:
    kind = _first(_text(result, "kind"), _text(config, "kind"))
    if kind is not None:
        return kind == "pretrain"
    return "train" not in config if "pretrain" in config else bool(rows) and "val_loss" in rows[0]


def _data_key(run: Run) -> str:
    """Equal for runs on the same data.

    A file or folder is known by its path; its constants follow from its split, which may be drawn by the seed.
    """
    names = (*_SIZES, "normalization", "atom_types") if run.source in _NAMED else _SIZES
    return json.dumps([run.kind, run.source, *(run.data.get(name) for name in names)], sort_keys=True)


def _effective(run: Run) -> dict[str, Any]:
    """The settings that had an effect, without the seed."""
    settings = {name: value for name, value in run.settings.items() if name != "seed"}
    idle: set[str] = set()
    if settings.get("pe", "linear-transformer") != "linear-transformer":
        idle |= {"probes", "k", "encoder", "encoder_lr"}
    if settings.get("pe") == "none":
        idle.add("pe_dim")
    if settings.get("encoder") is not None:
        idle |= {"probes", "k"}  # the encoder brings its own
    if settings.get("schedule", "halving") != "halving":
        idle.add("halve_every")
    if settings.get("schedule", "one-cycle") != "one-cycle":
        idle.add("warmup")
    if run.precision is not None:
        settings["precision"] = run.precision
    return {name: value for name, value in settings.items() if name not in idle}


def _group(runs: Sequence[Run]) -> Group:
    """Runs on the same data, as rows."""
    copies: Counter[str] = Counter()
    members: dict[str, list[Run]] = {}
    for run in sorted(runs, key=_seed_order):
        key = json.dumps([_effective(run), run.finished, run.test_error is None], sort_keys=True)
        seed = json.dumps([key, run.settings.get("seed")])
        copies[seed] += 1  # the same seed again adds no spread: a row of its own
        members.setdefault(f"{key}{copies[seed]}", []).append(run)
    order = {id(run): number for number, run in enumerate(runs)}
    variants = [Variant(tuple(same), _effective(same[0])) for same in members.values()]
    variants.sort(key=lambda v: min(order[id(run)] for run in v.runs) if runs[0].kind != "train" else _rank(v))
    return Group(runs[0].kind, runs[0].source, runs[0].data, _told_apart(variants))


def _seed_order(run: Run) -> tuple[float, str]:
    return _first(_number(run.settings, "seed"), math.inf), str(run.path)


def _rank(variant: Variant) -> tuple[int, float]:
    spread = variant.test if variant.finished else variant.validation
    finite = spread is not None and math.isfinite(spread.mean)
    return 2 * (not variant.finished) + (not finite), spread.mean if spread is not None and finite else 0.0


def _told_apart(variants: Sequence[Variant]) -> tuple[Variant, ...]:
    """The same variants with labels and colours of their own."""
    bases = [_base_label(variant) for variant in variants]
    spare, used, labels = list(SPARE_COLORS), set[str](), Counter[str]()
    named = []
    for base, variant in zip(bases, variants, strict=True):
        alike = [v.settings for b, v in zip(bases, variants, strict=True) if b == base]
        label = ", ".join([base, *(f"{name} {variant.settings.get(name, DASH)}" for name in _differing(alike))])
        labels[label] += 1
        color = ENCODING_COLORS.get(str(variant.settings.get("pe", "linear-transformer")), BLUE)
        if color in used:
            color = spare[0]
            spare = spare[1:] + spare[:1]
        used.add(color)
        number = f" ({labels[label]})" if labels[label] > 1 else ""
        named.append(replace(variant, label=label + number, color=color))
    return tuple(named)


def _base_label(variant: Variant) -> str:
    encoding = str(variant.settings.get("pe", "linear-transformer"))
    if encoder := variant.settings.get("encoder"):
        path = Path(str(encoder))  # a pretraining leaves it in `encoder/` of its run folder
        return f"{encoding} from {path.parent.name or path.name if path.name == 'encoder' else path.name}"
    return f"{encoding}, {variant.settings['probes']} probes" if "probes" in variant.settings else encoding


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of settings that are not the same in all; what ``auto`` will become is not known to differ."""
    values: dict[str, set[str]] = {}
    for each in settings:
        for name, value in each.items():
            if (name, value) != ("precision", "auto"):
                values.setdefault(name, set()).add(str(value))
    return [name for name, different in values.items() if len(different) > 1]


def _apart_from_encoding(variant: Variant) -> dict[str, Any]:
    return {name: value for name, value in variant.settings.items() if name not in _ENCODING_SETTINGS}


# Rows and remarks


def _row(group: Group, variant: Variant) -> dict[str, str]:
    """Cells of the table by column."""
    first, training = variant.runs[0], group.kind == "train"
    seconds = _spread([run.seconds for run in variant.runs])
    test = _or_dash(variant.test) if variant.finished else "unfinished"
    cells = {"encoding": variant.label, ("test MAE" if training else "test loss"): test}
    if training:
        cells["against none"] = _difference(group, variant)
    cells |= {
        ("validation MAE" if training else "validation loss"): _or_dash(variant.validation),
        "seeds": ", ".join(variant.seeds),
        "epochs": _progress(variant),
        ("model + encoder" if training else "parameters"): _parameters(first),
        "graphs/s": DASH if variant.speed is None else f"{variant.speed:,.0f}",
        "time a run": DASH if seconds is None else _duration(seconds.mean),
        "precision": _first(first.precision, DASH),
    }
    return cells


def _difference(group: Group, variant: Variant) -> str:
    difference, base = group.difference(variant), group.baseline(variant)
    if difference is None or base is None or base.test is None:
        return DASH
    share = f" ({_signed(100 * difference / base.test.mean, '.1f')} %)" if base.test.mean > 0 else ""
    return _signed(difference, ".4f") + share


def _progress(variant: Variant) -> str:
    """Epochs done, of how many where that is not all."""
    done = sorted({run.epochs for run in variant.runs})
    planned = _number(variant.settings, "epochs")
    text = f"{done[0]}" if len(done) == 1 else f"{done[0]}–{done[-1]}"
    return text if planned is None or done == [planned] else f"{text} of {planned:.0f}"


def _parameters(run: Run) -> str:
    total, encoder = _number(run.result, "num_parameters"), _number(run.result, "encoder_parameters")
    if total is None:
        return DASH
    return f"{total - encoder:,.0f} + {encoder:,.0f}" if encoder else f"{total:,.0f}"


def _heading(group: Group) -> str:
    title = group.source if group.kind == "train" else f"{group.source}, pretraining"
    return f"{title}: {group.sizes} graphs" if group.sizes else title


def _verdict(group: Group) -> str:
    """The outcome in a sentence or two; empty where there is nothing to compare."""
    best = group.best
    if best is None:
        return ""
    second = group.ranked[1]
    against = f", against none {_difference(group, best)}" if group.difference(best) is not None else ""
    text = f"Lowest test MAE: {best.label}, {best.test}{against}. Next: {second.label}, {second.test}."
    tests = [variant.test for variant in (best, second) if variant.test is not None]
    if tests[-1].mean - tests[0].mean < max(test.std or 0.0 for test in tests):
        text += " The two are closer than the spread over seeds."
    return text


def _notes(group: Group) -> list[str]:
    """What a reader of the table must bear in mind."""
    variants, runs = group.variants, [run for variant in group.variants for run in variant.runs]
    notes = []
    if any(len(v.runs) > 1 for v in variants):
        notes.append("± is the sample standard deviation over seeds; a row of one seed has none.")
    elif group.best is not None:
        notes.append("One seed a row: how far another seed would move a figure is not known.")
    if len({tuple(v.seeds) for v in variants if v.finished}) > 1:
        notes.append("Not all rows were run with the same seeds.")
    others = [name for name in _differing([v.settings for v in variants]) if name not in _ENCODING_SETTINGS]
    if others and group.kind == "train":
        differing = ", ".join(others)
        notes.append(f"Rows differ in more than the encoding: {differing}. `against none` compares like with like.")
    if len({json.dumps([r.data.get("normalization"), r.data.get("atom_types")], sort_keys=True) for r in runs}) > 1:
        notes.append("The split was drawn by the seed: runs with different seeds were tested on different molecules.")
    machines = {json.dumps([_machine(run), run.environment.get("threads")]) for run in runs if run.environment}
    if len(machines) > 1:
        notes.append("Not all runs had the same machine and threads: graphs/s and times do not compare.")
    if any(not v.finished for v in variants):
        notes.append("Unfinished runs are not ranked; their validation figure is the lowest so far.")
    return notes


def _machine(run: Run) -> str:
    return str(run.environment.get("accelerator") or run.environment.get("processor") or DASH)


# Figures for JSON


def _run_figures(run: Run) -> dict[str, Any]:
    speed = [value for _, value in run.curve("graphs_per_second")]
    skipped = run.data.get("skipped")
    return {
        "name": run.name,
        "kind": run.kind,
        "command": run.environment.get("command"),
        "finished": run.finished,
        "epochs": run.epochs,
        "settings": dict(run.settings),
        "data": {name: value for name, value in run.data.items() if name != "skipped"}
        | {"num_skipped": len(skipped) if isinstance(skipped, list) else None},
        "result": None if run.result is None else dict(run.result),
        "validation_error": run.validation_error,
        "training_seconds": run.seconds,
        "graphs_per_second": statistics.median(speed) if speed else None,
        "machine": {name: run.environment.get(name) for name in _MACHINE},
        "versions": {"python": run.environment.get("python"), **_mapping(run.environment, "packages")},
    }


def _variant_figures(group: Group, variant: Variant) -> dict[str, Any]:
    def figures(spread: Spread | None) -> dict[str, Any] | None:
        return None if spread is None else {"mean": spread.mean, "std": spread.std, "seeds": spread.count}

    return {
        "label": variant.label,
        "runs": [run.name for run in variant.runs],
        "finished": variant.finished,
        "best": variant is group.best,
        ("test_mae" if group.kind == "train" else "test_loss"): figures(variant.test),
        ("val_mae" if group.kind == "train" else "val_loss"): figures(variant.validation),
        "against_none": group.difference(variant),
        "graphs_per_second": variant.speed,
    }


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# The page


def _page(runs: Sequence[Run]) -> str:
    groups = compare(runs)
    places = {id(run): f"run-{number}" for number, run in enumerate(runs, 1)}
    unfinished = sum(not run.finished for run in runs)
    summary = f"{_count(len(runs), 'run')} on {_count(len({group.source for group in groups}), 'data set')}"
    if unfinished:
        summary += f", {unfinished} unfinished"
    training = any(group.kind == "train" for group in groups)
    title = "Positional encodings compared" if training else "Pretraining of positional encodings"
    sections = "\n".join(_section(group, places) for group in groups)
    listed: dict[str, str] = {}
    details = "\n".join(_details(run, places[id(run)], listed) for run in runs)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<header><h1>{escape(title)}</h1><p class="quiet">{escape(summary)}</p></header>
{sections}
<section>
<h2>Runs</h2>
{details}
</section>
<footer class="quiet">Written by <code>tg-lpe report</code> from the run folders alone.</footer>
</main>
</body>
</html>
"""


def _section(group: Group, places: Mapping[int, str]) -> str:
    """One data set: outcome, table, pictures."""
    title = group.source if group.kind == "train" else f"{group.source}: pretraining"
    rows = [_row(group, variant) for variant in group.variants]
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in rows[0])
    body = "\n".join(_table_row(group, variant, row, places) for variant, row in zip(group.variants, rows, strict=True))
    verdict = _verdict(group)
    notes = "".join(f"<li>{_code(note)}</li>" for note in _notes(group))
    pictures = "\n".join(
        f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>" for svg, caption in _pictures(group)
    )
    return f"""<section>
<h2>{escape(title)}</h2>
<p class="quiet">{escape(f"{group.sizes} graphs" if group.sizes else "sizes not known")}</p>
{f'<p class="verdict">{escape(verdict)}</p>' if verdict else ""}
<div class="scroll" tabindex="0" role="region" aria-label="{escape(f"comparison, {title}")}">
<table>
<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody>
</table>
</div>
{f'<ul class="notes">{notes}</ul>' if notes else ""}
<div class="figures">
{pictures}
</div>
</section>"""


def _table_row(group: Group, variant: Variant, row: Mapping[str, str], places: Mapping[int, str]) -> str:
    name, *cells = row.values()
    kind = "best" if variant is group.best else "" if variant.finished else "unfinished"
    links = dict(zip(variant.seeds, (places[id(run)] for run in variant.runs), strict=True))
    seeds = ", ".join(f'<a href="#{place}">{escape(seed)}</a>' for seed, place in links.items())
    mark = ' <span class="badge">lowest</span>' if kind == "best" else ""
    swatch = f'<span class="swatch" style="background:{variant.color}"></span>'
    columns = [seeds if column == "seeds" else escape(cell) for column, cell in zip(list(row)[1:], cells, strict=True)]
    return (
        f'<tr class="{kind}"><th scope="row">{swatch}{escape(name)}{mark}</th>'
        + "".join(f"<td>{cell}</td>" for cell in columns)
        + "</tr>"
    )


def _pictures(group: Group) -> list[tuple[str, str]]:
    """Pictures of a data set with their captions."""
    training = group.kind == "train"
    figure = "validation MAE" if training else "validation loss"
    curves = [
        Curve(
            v.label if v.finished else f"{v.label} (unfinished)",
            [run.curve(run.validation_key) for run in v.runs],
            v.color,
            dashed=not v.finished,
        )
        for v in group.variants
    ]
    several = " Thin: each seed, thick: their mean." if any(len(v.runs) > 1 for v in group.variants) else ""
    caption = f"{figure.capitalize()} by epoch.".replace("mae", "MAE") + several
    pictures = [(curves_svg(curves, figure, f"{group.source}: {figure} by epoch"), caption)]
    done = [v for v in group.variants if v.finished and v.test is not None]
    if training and done:
        none = next((v for v in group.ranked if v.settings.get("pe") == "none"), None)
        scores = [
            Score(v.label, [_first(r.test_error, math.nan) for r in v.runs], str(v.test), v.color, v is group.best)
            for v in done
        ]
        caption = "Test MAE at the epoch of lowest validation MAE; less is better."
        if any(len(v.runs) > 1 for v in done):
            caption += " Dots: seeds, diamond: mean, bar: ± one standard deviation."
        if none is not None:
            caption += f" Upright strokes: {none.label}."
        reference = none.test.mean if none is not None and none.test is not None else None
        pictures.append((scores_svg(scores, "test MAE", reference, f"{group.source}: test MAE by encoding"), caption))
    return [(svg, caption) for svg, caption in pictures if svg]


def _details(run: Run, place: str, listed: dict[str, str]) -> str:
    """Everything else about a run, folded away; ``listed`` remembers where skipped molecules were listed."""
    state = f"unfinished, {_count(run.epochs, 'epoch')}"
    if run.finished:
        figure = "test MAE" if run.kind == "train" else "test loss"
        state = "finished" if run.test_error is None else f"{figure} {_figure(run.test_error)}"
    environment = {name: value for name, value in run.environment.items() if name not in ("packages", "command")}
    parts = [
        f"<p><code>{escape(str(run.environment.get('command') or 'command not recorded'))}</code></p>",
        f'<p class="quiet">Folder: <code>{escape(str(run.path))}</code></p>',
        _facts("Result", run.result) if run.result is not None else "<p>No result yet.</p>",
        _facts("Settings", run.settings),
        _facts("Data", {name: value for name, value in run.data.items() if name != "skipped"}),
        _skipped(run, place, listed),
        _facts("Machine", environment),
        _facts("Versions", _mapping(run.environment, "packages")),
    ]
    body = "\n".join(part for part in parts if part)
    return (
        f'<details class="run" id="{place}"><summary><b>{escape(run.name)}</b> '
        f'<span class="quiet">{escape(state)}</span></summary>\n{body}\n</details>'
    )


def _facts(title: str, facts: Mapping[str, Any]) -> str:
    if not facts:
        return f"<h3>{title}</h3><p>{DASH}</p>"
    pairs = "".join(
        f"<div><dt>{escape(str(name))}</dt><dd>{escape(_value(value))}</dd></div>" for name, value in facts.items()
    )
    return f"<h3>{title}</h3><dl>{pairs}</dl>"


def _skipped(run: Run, place: str, listed: dict[str, str]) -> str:
    skipped = run.data.get("skipped")
    if not isinstance(skipped, list):
        return "<p>Skipped molecules: not recorded.</p>"
    if not skipped:
        return "<p>No molecule was skipped.</p>"
    key = json.dumps(skipped)
    if key in listed:
        return f'<p>{_count(len(skipped), "molecule")} skipped, <a href="#{listed[key]}">the same as above</a>.</p>'
    listed[key] = place
    lines = "".join(f"<li><code>{escape(str(line))}</code></li>" for line in skipped[:_SKIPPED_SHOWN])
    rest = len(skipped) - _SKIPPED_SHOWN
    more = f"<p>and {rest:,} more, all in config.json of the run folder</p>" if rest > 0 else ""
    return f"<details><summary>{_count(len(skipped), 'molecule')} skipped</summary><ol>{lines}</ol>{more}</details>"


_STYLE = """
:root { color-scheme: light dark; --ink: #1d2329; --paper: #fff; --quiet: #5b6670; --line: #d8dde2; --tint: #f4f6f8;
  --mark: #e8f2f9; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e3e7ea; --paper: #16191c; --quiet: #9aa5ae; --line: #363d44; --tint: #1f2428; --mark: #1b2f3d; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, "Segoe UI", Roboto, Helvetica,
  "DejaVu Sans", sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 0; padding-top: .75rem; border-top: 1px solid var(--line);
  overflow-wrap: anywhere; }
h3 { font-size: .95rem; margin: 1.1rem 0 .25rem; }
header p, h2 + p { margin-top: .25rem; }
a { color: inherit; }
code { font: .875em/1.5 ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
.quiet { color: var(--quiet); }
.verdict { font-size: 1.05rem; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-size: .84rem; font-variant-numeric: tabular-nums; }
th, td { padding: .5rem .6rem; text-align: left; white-space: nowrap; border-bottom: 1px solid var(--line); }
tbody tr:last-child > * { border-bottom: 0; }
thead th { white-space: normal; vertical-align: bottom; background: var(--tint); font-weight: 600;
  color: var(--quiet); }
th:first-child { position: sticky; left: 0; background: var(--paper); white-space: normal; min-width: 8.5rem; }
@media (min-width: 60rem) { th:first-child { min-width: 13rem; } }
thead th:first-child { background: var(--tint); }
tbody th { font-weight: 500; }
.best > * { font-weight: 700; }
.best > th, .best > td { background: var(--mark); }
.unfinished > td { color: var(--quiet); font-style: italic; }
.badge { display: inline-block; padding: 0 .4em; border: 1px solid currentColor; border-radius: 1em; font-size: .7rem;
  font-weight: 500; }
.swatch { display: inline-block; width: .7em; height: .7em; margin-right: .5em; border-radius: 50%;
  print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.notes { margin: .75rem 0 0; padding-left: 1.1rem; font-size: .875rem; color: var(--quiet); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1rem 2rem;
  margin-top: 1.25rem; }
figure { margin: 0; max-width: 36rem; break-inside: avoid; }
figure svg { display: block; width: 100%; height: auto; }
figure svg text { font-family: inherit !important; }
figcaption { font-size: .8125rem; color: var(--quiet); }
details.run { border: 1px solid var(--line); border-radius: 6px; margin-top: .75rem; padding: .6rem .9rem; }
summary { cursor: pointer; overflow-wrap: anywhere; }
details:target { border-color: currentColor; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 15rem), 1fr)); gap: .3rem 1.5rem;
  margin: 0; font-size: .875rem; }
dt { color: var(--quiet); font-size: .8125rem; }
dd { margin: 0; overflow-wrap: anywhere; }
ol { font-size: .8125rem; }
footer { margin-top: 2.5rem; font-size: .8125rem; }
@media print {
  :root { font-size: 75%; }
  body { font-size: 1rem; }
  main { max-width: none; padding: 0; }
  .scroll { overflow: visible; border: 0; }
  table { font-size: 7pt; }
  th, td { padding: .2rem .3rem; white-space: normal; }
  th:first-child { min-width: 0; }
  .figures { grid-template-columns: 1fr 1fr; }
  tr, details { break-inside: avoid; }
}
"""


# Values as text


def _figure(value: float) -> str:
    return format(value, _form(value))


def _form(value: float) -> str:
    return ".4f" if value == 0 or 0.001 <= abs(value) < 1000 else ".4g"


def _signed(value: float, form: str) -> str:
    return format(value, f"+{form}").replace("-", "−")


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _value(value: Any) -> str:
    if value is None:
        return DASH
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_value(part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value)) or DASH
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _code(text: str) -> str:
    """Escaped, with what stands between backquotes as code."""
    return "".join(f"<code>{part}</code>" if odd % 2 else part for odd, part in enumerate(escape(text).split("`")))


def _or_dash(spread: Spread | None) -> str:
    return DASH if spread is None else str(spread)


# Values from folders that may lack them


def _object(path: Path) -> dict[str, Any]:
    values = read_json(path)
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(values).__name__}")
    return values


def _number(values: Mapping[str, Any] | None, name: str) -> float | None:
    value = None if values is None else values.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _text(values: Mapping[str, Any] | None, name: str) -> str | None:
    value = None if values is None else values.get(name)
    return value if isinstance(value, str) else None


def _mapping(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = values.get(name)
    return value if isinstance(value, Mapping) else {}


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _spread(values: Sequence[float | None]) -> Spread | None:
    there = [value for value in values if value is not None]
    if not there:
        return None
    if not all(map(math.isfinite, there)):
        return Spread(math.nan, None, len(there))
    return Spread(statistics.fmean(there), statistics.stdev(there) if len(there) > 1 else None, len(there))
