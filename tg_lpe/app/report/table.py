"""Compare runs in tables: one table for each dataset, one row for runs that differ only in the seed."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tg_lpe.app.report.format import DASH, duration_text, figure_form, figure_text
from tg_lpe.app.report.runs import UNNAMED, Run, title_of
from tg_lpe.app.report.settings import RANKED_BY, differing, effective_settings, labels, of_encoding
from tg_lpe.data.splits import PARTS

CONSTANT = "constant (median of the training labels)"
MAX_COLUMNS = 6
"""Largest number of label columns in a table; results of runs have all of them."""

UNITLESS = ("r2", "spearman")
"""Test metrics of a regression that tables show in addition to its metric."""

# Okabe and Ito's colours, which colour-blind people can distinguish.
GREY, BLUE = "#8a8a8a", "#0072b2"
SPARE_COLORS = ("#cc79a7", "#d55e00", "#56b4e9", "#b5a800")
ENCODING_COLORS = {"none": GREY, "LaplacianEigenvectors": "#e69f00", "RandomWalk": "#009e73", "GramTransformer": BLUE}
"""Colours by encoder class; other encoders take the next spare colour."""

SIZES = tuple(f"num_{part}" for part in PARTS)
# Datasets with a fixed name instead of a path: two of the same name may differ.
_NAMED = ("zinc", "zinc12k", "qm9", "qm9-solubility")


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds; the deviation of one seed is ``None``."""

    mean: float
    std: float | None
    seeds: int

    def __str__(self) -> str:
        std = "" if self.std is None else f" ± {format(self.std, figure_form(self.mean))}"
        return figure_text(self.mean) + std


class Row:
    """Runs that differ only in the seed: all finished, or all unfinished.

    Attributes:
        settings: settings of the runs, without the seed; encoder arguments are named ``encoder.NAME``.
        speed: median of graphs per second over all epochs of all runs.
        label, color: label and colour of the row in its table.
    """

    def __init__(self, runs: Sequence[Run], settings: Mapping[str, Any]) -> None:
        self.runs, self.settings = tuple(runs), settings
        self.encoder = settings["encoder"]
        self.finished = runs[0].finished
        self.seeds = [run.draw for run in runs]
        self.test, self.validation = _spread(run.test for run in runs), _spread(run.validation for run in runs)
        speeds = [value for run in runs for _, value in run.curve("graphs_per_second")]
        self.speed = statistics.median(speeds) if speeds else None
        self.label, self.color = "", BLUE

    @property
    def is_no_better_than_constant(self) -> bool:
        """Whether the mean test figure is not better than that of the constant, over the runs that have both."""
        pairs = [(run.test, run.constant()) for run in self.runs]
        excess = [test - constant for test, constant in pairs if test is not None and constant is not None]
        return bool(excess) and sum(excess) * (-1 if self.runs[0].larger_is_better else 1) >= 0


class Table:
    """All runs of one kind on one dataset.

    Attributes:
        source: name of the data, with a number if other data has the same name.
        rows: rows with the best first and unfinished ones last; pretrainings in the order of the input.
        ranked: finished rows with a finite test figure, best first; empty for pretrainings, whose losses differ.
        best: the first of ``ranked`` if it has several rows, else ``None``.
        columns: names of the label columns, as in :meth:`Run.columns`; empty if there are too many for a table.
        beside: names of the test metrics shown in addition to the metric.
        further: names of additional columns from :attr:`Run.cells`; columns of dashes are left out.
    """

    def __init__(self, source: str, runs: Sequence[Run]) -> None:
        run = runs[0]
        self.kind, self.source, self.data, self.runs = run.kind, source, run.data, runs
        self.metric, self.larger_is_better = run.metric, run.larger_is_better
        self.rows = _rows(runs)
        ranked = [row for row in self.rows if row.finished and row.test is not None and math.isfinite(row.test.mean)]
        self.ranked = ranked if self.kind == "train" else []
        self.best = ranked[0] if len(self.ranked) > 1 else None
        columns = dict.fromkeys(name for run in runs for name in run.columns())
        self.columns = list(columns) if len(columns) <= MAX_COLUMNS else []
        self.beside = [
            name
            for name in UNITLESS
            if name != run.figure and any(run.result.get(f"test_{name}") is not None for run in runs)
        ]
        further = dict.fromkeys(name for run in runs for name in run.cells)
        self.further = [name for name in further if any(run.cells.get(name, DASH) != DASH for run in runs)]

    @property
    def heading(self) -> str:
        """The data, the label columns and the metric."""
        if self.kind != "train":
            return f"{self.source}, pretraining"
        unit = self.runs[0].unit
        return f"{', '.join([self.source, *self.target])} ({self.metric}{unit and f', {unit}'})"

    @property
    def target(self) -> list[str]:
        """The names of the label columns, at most three of them."""
        columns = [str(column) for column in _target_of(self.data) if column is not None]
        return columns[:3] + ([f"{len(columns) - 3} more"] if len(columns) > 3 else [])

    @property
    def sizes(self) -> str:
        """Number of graphs, or of labelled nodes, in each split as text; empty if unknown."""
        for prefix, noun in (("num_labelled_", "labelled nodes"), ("num_", "graphs")):
            counts = [(part, self.data.get(f"{prefix}{part}")) for part in PARTS]
            if text := ", ".join(f"{count:,.0f} {part}" for part, count in counts if count is not None):
                return f"{text} {noun}"
        return ""

    def cells(self, row: Row) -> dict[str, str]:
        """Return the cells of a row as text, by column."""
        run, training = row.runs[0], self.kind == "train"
        epochs, planned = sorted({run.epochs for run in row.runs}), row.settings["epochs"]
        done = str(epochs[0]) if len(epochs) == 1 else f"{epochs[0]}–{epochs[-1]}"
        weights, learned = run.result.get("num_parameters"), run.result.get("encoder_parameters", 0)
        seconds = _spread(run.seconds for run in row.runs)
        return {
            "encoding": row.label,
            f"test {self.metric}": _text(run.test for run in row.runs) if row.finished else "unfinished",
            **{title_of(name): _text(run.result.get(f"test_{name}") for run in row.runs) for name in self.beside},
            **{name: run.cells.get(name, DASH) for name in self.further},
            **{self._title(name): _text(run.columns().get(name) for run in row.runs) for name in self.columns},
            f"validation {self.metric}": _text(run.validation for run in row.runs),
            "seeds": ", ".join(row.seeds),
            "epochs": done if epochs == [planned] else f"{done} of {planned}",
            "model + encoder" if training else "parameters": (
                DASH if weights is None else f"{weights - learned:,.0f}" + (f" + {learned:,.0f}" if learned else "")
            ),
            "graphs/s": DASH if row.speed is None else f"{row.speed:,.0f}",
            "time a run": DASH if seconds is None else duration_text(seconds.mean),
            "precision": run.precision or DASH,
        }

    def constant_cells(self) -> dict[str, str]:
        """Return the cells of the row that predicts the median of the training labels; empty if not recorded."""

        def text(values: Iterable[float | None]) -> str:
            return _text(dict.fromkeys(values))  # seeds with one split have one constant

        test = text(run.constant() for run in self.runs)
        cells = dict.fromkeys(self.cells(self.rows[0]), DASH) | {"encoding": CONSTANT, f"test {self.metric}": test}
        for name in self.columns:
            cells[self._title(name)] = text(run.columns("_constant").get(name) for run in self.runs)
        cells[f"validation {self.metric}"] = text(run.constant("val") for run in self.runs)
        return {} if test == DASH else cells

    def _title(self, column: str) -> str:
        """Return the heading of the test figure of a label column."""
        run = self.runs[0]
        unit = run.units.get(column, "")
        return f"test {title_of(run.column_figure)}, {column}{unit and f' in {unit}'}"

    @property
    def verdict(self) -> str:
        """The outcome in a few sentences; empty if there is nothing to compare."""
        if self.best is None:
            return ""
        best, second = self.ranked[:2]
        extreme = "Highest" if self.larger_is_better else "Lowest"
        text = f"{extreme} test {self.metric}: {best.label}, {best.test}. Next: {second.label}, {second.test}."
        first, last = best.test, second.test
        if first and last and abs(last.mean - first.mean) < max(first.std or 0.0, last.std or 0.0):
            text += " Their difference is smaller than the standard deviation over seeds."
        return text

    @property
    def other_settings(self) -> str:
        """Names of the settings of model and training in which rows differ; empty for pretrainings."""
        names = differing([row.settings for row in self.rows]) if self.kind == "train" else []
        return ", ".join(name for name in names if not of_encoding(name))

    @property
    def notes(self) -> list[str]:
        """List notes on how to read the table."""
        rows, machines = self.rows, [run.environment for run in self.runs if run.environment]
        several = any(len(row.runs) > 1 for row in rows)
        uneven = len({tuple(row.seeds) for row in rows if row.finished}) > 1
        is_unfinished = not all(row.finished for row in rows)
        useless = ", ".join(row.label for row in rows if row.is_no_better_than_constant)
        splits = {json.dumps(run.data["split"], sort_keys=True) for run in self.runs if run.data.get("split")}
        computers = {str([m.get("accelerator") or m.get("processor"), m.get("threads")]) for m in machines}
        notes = [
            ("± is the sample standard deviation over seeds or folds; a row of one run has none.", several),
            (
                "In columns `against ...`, ± is the standard error of the paired difference over test rows and seeds.",
                any(name.startswith("against ") for name in self.further),
            ),
            ("Each row has one seed, so the variation between seeds is unknown.", not several and self.best),
            ("Rows have different seeds.", uneven),
            (f"These rows are no better than the constant: {useless}.", useless),
            (f"Rows differ in more than the encoding: {self.other_settings}.", self.other_settings),
            ("The split depends on the seed or fold, so other seeds or folds have other test sets.", len(splits) > 1),
            ("Machines or numbers of threads differ, so graphs/s and times are not comparable.", len(computers) > 1),
            ("Unfinished runs are not ranked; their validation figure is the best so far.", is_unfinished),
        ]
        return [note for note, applies in notes if applies]


def compare(runs: Sequence[Run]) -> list[Table]:
    """Sort runs into tables, one for each kind of run and dataset, trainings first."""
    names: Counter[tuple[str, str]] = Counter()
    tables = []
    for same_words in _grouped(sorted(runs, key=lambda run: run.kind != "train"), _data_key):
        for same_data in _by_digest(same_words):
            run = same_data[0]
            names[run.kind, run.source] += 1
            number = names[run.kind, run.source]
            tables.append(Table(f"{run.source} ({number})" if number > 1 else run.source, same_data))
    return tables


def _by_digest(runs: Sequence[Run]) -> list[list[Run]]:
    """Group runs by the digest of their data if that shows different data, else keep them in one group.

    A digest also covers the split and the numbering of atom types. So only runs that agree in these, such as those of
    one seed, show by different digests that their files differ. Then each digest is a group.
    """
    digests: dict[str, set[str]] = {}
    for run in runs:
        if (digest := run.data.get("digest")) is not None:
            names = ("split", "atom_types", "bond_types", "target", "weight_column", "extra_columns", "descriptors")
            description = [run.data.get(name) for name in names]
            digests.setdefault(json.dumps(description, sort_keys=True), set()).add(digest)
    clash = any(len(group) > 1 for group in digests.values())
    return _grouped(runs, lambda run: str(run.data.get("digest")) if clash else "")


def comparison_table(runs: Sequence[Run], without: Sequence[str] = ()) -> str:
    """Format a comparison of runs for a terminal; a star marks the best row of each table, and notes follow.

    Args:
        runs: the runs.
        without: names of columns to leave out.
    """
    blocks = []
    for table in compare(runs):
        rows = [table.cells(row) for row in table.rows]
        shown = [name for name in rows[0] if name not in without]
        grid = [shown, *([cells[name] for name in shown] for cells in [*rows, table.constant_cells()] if cells)]
        widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
        lines = [f"{table.heading}: {table.sizes}" if table.sizes else table.heading]
        for row, cells in zip([None, *table.rows, None], grid, strict=False):
            mark = "* " if row is not None and row is table.best else "  "
            lines.append(mark + "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)))
        lines += [f"  - {note}" for note in table.notes]
        blocks.append("\n".join(line.rstrip() for line in lines))
    return "\n\n".join(blocks)


def _spread(values: Iterable[float | None]) -> Spread | None:
    """Return mean and deviation of the values except ``None``; ``None`` without values, NaN if one is not finite."""
    known = [value for value in values if value is not None]
    if not all(map(math.isfinite, known)):
        return Spread(math.nan, None, len(known))
    std = statistics.stdev(known) if len(known) > 1 else None
    return Spread(statistics.fmean(known), std, len(known)) if known else None


def _text(values: Iterable[float | None]) -> str:
    """Format mean and deviation of figures."""
    spread = _spread(values)
    return DASH if spread is None else str(spread)


def _grouped(runs: Iterable[Run], key: Callable[[Run], str]) -> list[list[Run]]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return list(groups.values())


def _data_key(run: Run) -> str:
    """Return a key that is equal for runs on the same data, as far as their descriptions show.

    A file or folder is identified by its path, not by constants of its split, which may depend on the seed.
    """
    split = run.data.get("split") or {}
    folds = split.get("folds")
    names = SIZES if folds is None else ()  # the sizes of folds may differ by one
    if run.source in _NAMED:
        names += ("normalization", "atom_types")
    key = [run.kind, run.source, folds, *(run.data.get(name) for name in names)]
    if run.kind == "train":
        key += [*(run.task.get(name) for name in RANKED_BY), _target_of(run.data)]
    if run.source == UNNAMED:
        key.append(run.data.get("spec"))  # data from Python has no path
    if split.get("kind") in ("scaffold", "butina", "column"):
        key.append(split)  # such a split may be harder than a random one
    return json.dumps(key, sort_keys=True)


def _target_of(data: Mapping[str, Any]) -> list[Any]:
    """Return the label columns, or the name of the computed label; empty if not recorded."""
    target = data.get("target") or {}
    return list(target.get("columns") or []) if target.get("computed") is None else ["penalised logP", None]


def _rows(runs: Sequence[Run]) -> list[Row]:
    """Sort runs on the same data into rows, and label and colour the rows."""
    order = {id(run): number for number, run in enumerate(runs)}
    copies: Counter[str] = Counter()

    def key(run: Run) -> str:
        same = json.dumps([settings[id(run)], run.finished, run.test is None, run.title], sort_keys=True)
        seed = json.dumps([same, run.draw])
        copies[seed] += 1  # a repeated seed says nothing about the spread, so it gets its own row
        return f"{same}{copies[seed]}"

    def rank(row: Row) -> tuple[bool, bool, float]:
        spread = row.test if row.finished else row.validation
        value = spread.mean if spread is not None and math.isfinite(spread.mean) else None
        return not row.finished, value is None, (value or 0.0) * (-1 if row.runs[0].larger_is_better else 1)

    by_seed = sorted(runs, key=lambda run: (run.settings["seed"], str(run.path)))
    settings = {id(run): effective_settings(run) for run in by_seed}
    groups = _grouped(by_seed, key)
    names = (name for of_run in settings.values() for name in of_run)
    options = dict.fromkeys(name for name in names if name.startswith("attention_options."))
    rows = [Row(group, {**options, **settings[id(group[0])]}) for group in groups]
    rows.sort(key=rank if runs[0].kind == "train" else lambda row: min(order[id(run)] for run in row.runs))
    colors, spare = set[str](), list(SPARE_COLORS)
    for row, label in zip(rows, labels([row.settings for row in rows]), strict=True):
        color = ENCODING_COLORS.get(row.encoder or "none", "")
        if not color or color in colors:
            color = spare.pop(0)
            spare.append(color)
        colors.add(color)
        row.label, row.color = row.runs[0].title or label, color
    return rows
