"""Compare runs: a table for each data set, a row where only the seed differs; as text."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tg_lpe.data.splits import PARTS
from tg_lpe.data.units import in_mev
from tg_lpe.report.format import DASH, duration_text, figure_form, figure_text, signed
from tg_lpe.report.runs import UNNAMED, Run, number_in, title_of, value_in
from tg_lpe.report.settings import RANKED_BY, differing, effective_settings, labels, of_encoding

CONSTANT = "constant (median of the training labels)"
MAX_COLUMNS = 6
"""Columns of labels that a table has room for; the figures of more are in the runs' own results."""

UNITLESS = ("r2", "spearman")
"""Test figures of a regression that stand beside its metric."""

# Okabe and Ito's colours, which people with any colour vision can tell apart.
GREY, BLUE = "#8a8a8a", "#0072b2"
SPARE_COLORS = ("#cc79a7", "#d55e00", "#56b4e9", "#b5a800")
ENCODING_COLORS = {"none": GREY, "LaplacianEigenvectors": "#e69f00", "RandomWalk": "#009e73", "GramTransformer": BLUE}
"""Colours by class of the encoder; other encoders take the next spare colour."""

SIZES = tuple(f"num_{part}" for part in PARTS)
# Names of known sets: the name does not tell the path, so two sets of one name may differ.
_NAMED = ("zinc", "zinc12k", "qm9", "qm9-solubility")


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation of a figure over seeds; one seed has no deviation."""

    mean: float
    std: float | None
    seeds: int

    def __str__(self) -> str:
        std = "" if self.std is None else f" ± {format(self.std, figure_form(self.mean))}"
        return figure_text(self.mean) + std


class Row:
    """Runs that differ only in the seed: all finished, or all unfinished.

    Attributes:
        settings: those that had an effect, without the seed; arguments of the encoder are named ``encoder.NAME``.
        rest: the same but for those of the encoding; rows that agree in these are compared like with like.
        speed: median of graphs per second over all epochs of all runs.
        label, color: what tells the row from the others of its table.
    """

    def __init__(self, runs: Sequence[Run], settings: Mapping[str, Any]) -> None:
        self.runs, self.settings = tuple(runs), settings
        self.rest = {name: value for name, value in settings.items() if not of_encoding(name)}
        self.encoder = settings["encoder"]
        self.finished = runs[0].finished
        self.seeds = [run.draw for run in runs]
        self.test, self.validation = _spread(run.test for run in runs), _spread(run.validation for run in runs)
        speeds = [value for run in runs for _, value in run.curve("graphs_per_second")]
        self.speed = statistics.median(speeds) if speeds else None
        self.label, self.color = "", BLUE


class Table:
    """All runs of one kind on one data set.

    Attributes:
        source: what the data was called, numbered where other data goes by the same name.
        rows: best first, unfinished ones last; pretrainings in the order they were named.
        ranked: finished rows with a finite test figure, best first; none of pretrainings, whose losses differ.
        best: the first of these, where there is another.
        columns: names of columns of labels, as in :meth:`Run.columns`; none where there are too many for a table.
        beside: names of further test figures that stand beside the metric.
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
        figures = [name for name in UNITLESS if name != run.figure and self.kind == "train"]
        self.beside = [
            name for name in figures if any(number_in(run.result, f"test_{name}") is not None for run in runs)
        ]
        self.further = {name: DASH for run in runs for name in run.cells}

    @property
    def heading(self) -> str:
        """The data, and what is predicted: the columns of the labels and the metric."""
        if self.kind != "train":
            return f"{self.source}, pretraining"
        columns = [str(column) for column in _target_of(self.data) if column is not None]
        rest = [f"{len(columns) - 3} more"] if len(columns) > 3 else []
        unit = self.runs[0].unit
        return f"{', '.join([self.source, *columns[:3], *rest])} ({self.metric}{unit and f', {unit}'})"

    @property
    def sizes(self) -> str:
        """Graphs of each split, or labelled nodes where nodes are predicted, in words; empty if not known."""
        for prefix, noun in (("num_labelled_", "labelled nodes"), ("num_", "graphs")):
            counts = [(part, number_in(self.data, f"{prefix}{part}")) for part in PARTS]
            if text := ", ".join(f"{count:,.0f} {part}" for part, count in counts if count is not None):
                return f"{text} {noun}"
        return ""

    def against_none(self, row: Row) -> tuple[float, float] | None:
        """Compare the test figure with that of the row without an encoding and with otherwise the same settings.

        Returns:
            The difference and the other figure, means over the seeds that both rows have; ``None`` without such a row.
        """
        base = next((other for other in self.ranked if other.encoder is None and other.rest == row.rest), None)
        if base is None or row.encoder is None or row not in self.ranked:
            return None
        pairs = [[(run.draw, run.test) for run in each.runs] for each in (row, base)]
        figures, others = ({seed: test for seed, test in each if test is not None} for each in pairs)
        seeds = [seed for seed in figures if seed in others]
        if not seeds:
            return None
        mean = statistics.fmean(others[seed] for seed in seeds)
        return statistics.fmean(figures[seed] for seed in seeds) - mean, mean

    def cells(self, row: Row) -> dict[str, str]:
        """Return the text of a row by column."""
        run, training = row.runs[0], self.kind == "train"
        epochs, planned = sorted({run.epochs for run in row.runs}), number_in(row.settings, "epochs")
        done = "–".join(map(str, dict.fromkeys((epochs[0], epochs[-1]))))
        weights, learned = number_in(run.result, "num_parameters"), number_in(run.result, "encoder_parameters") or 0
        seconds = _spread(run.seconds for run in row.runs)
        return {
            "encoding": row.label,
            f"test {self.metric}": _text((run.test for run in row.runs), run.unit) if row.finished else "unfinished",
            **({"against none": self._difference(row)} if training else {}),
            **{
                title_of(name): _text((number_in(run.result, f"test_{name}") for run in row.runs), "")
                for name in self.beside
            },
            **self.further,
            **run.cells,
            **{
                self._title(name): _text((run.columns().get(name) for run in row.runs), run.units.get(name, ""))
                for name in self.columns
            },
            f"validation {self.metric}": _text((run.validation for run in row.runs), run.unit),
            "seeds": ", ".join(row.seeds),
            "epochs": done if planned is None or epochs == [planned] else f"{done} of {planned:.0f}",
            "model + encoder" if training else "parameters": (
                DASH if weights is None else f"{weights - learned:,.0f}" + (f" + {learned:,.0f}" if learned else "")
            ),
            "graphs/s": DASH if row.speed is None else f"{row.speed:,.0f}",
            "time a run": DASH if seconds is None else duration_text(seconds.mean),
            "precision": run.precision or DASH,
        }

    def constant_cells(self) -> dict[str, str]:
        """Return the text of the row of the median of the training labels; empty if no run tells its figure."""

        def text(values: list[float | None], unit: str) -> str:
            seeds = [run.draw for run in self.runs]
            by_seed = dict([pair for pair in zip(seeds, values, strict=True) if pair[1] is not None][::-1])
            distinct = set(by_seed.values())  # one split for all seeds has one constant
            return _text(distinct if len(distinct) == 1 else by_seed.values(), unit)

        run = self.runs[0]
        test = text([run.constant() for run in self.runs], run.unit)
        cells = dict.fromkeys(self.cells(self.rows[0]), DASH) | {"encoding": CONSTANT, f"test {self.metric}": test}
        for name in self.columns:
            values = [run.columns("_constant").get(name) for run in self.runs]
            cells[self._title(name)] = text(values, run.units.get(name, ""))
        cells[f"validation {self.metric}"] = text([run.constant("val") for run in self.runs], run.unit)
        return {} if test == DASH else cells

    def _title(self, column: str) -> str:
        """Return the heading of the test figure of one of several columns of labels."""
        run = self.runs[0]
        unit = run.units.get(column, "")
        return f"test {title_of(run.column_figure)}, {column}{unit and f' in {unit}'}"

    def _difference(self, row: Row) -> str:
        if (pair := self.against_none(row)) is None:
            return DASH
        share = f" ({signed(100 * pair[0] / pair[1], '.1f')} %)" if pair[1] > 0 else ""
        return signed(pair[0], ".4f") + share

    @property
    def verdict(self) -> str:
        """The outcome in a sentence or two; empty where there is nothing to compare."""
        if self.best is None:
            return ""
        best, second = self.ranked[:2]
        extreme = "Highest" if self.larger_is_better else "Lowest"
        against = f", against none {self._difference(best)}" if self.against_none(best) is not None else ""
        text = f"{extreme} test {self.metric}: {best.label}, {best.test}{against}. Next: {second.label}, {second.test}."
        first, last = best.test, second.test
        if first and last and abs(last.mean - first.mean) < max(first.std or 0.0, last.std or 0.0):
            text += " The two are closer than the spread over seeds."
        return text

    @property
    def notes(self) -> list[str]:
        """List what a reader of the table must bear in mind."""
        rows, machines = self.rows, [run.environment for run in self.runs if run.environment]
        several = any(len(row.runs) > 1 for row in rows)
        uneven = len({tuple(row.seeds) for row in rows if row.finished}) > 1
        is_unfinished = not all(row.finished for row in rows)
        useless = ", ".join(row.label for row in rows if _is_no_better_than_constant(row))
        others = ", ".join(differing([row.rest for row in rows])) if self.kind == "train" else ""
        drawn = len({json.dumps(run.data["split"], sort_keys=True) for run in self.runs if run.data.get("split")}) > 1
        computers = {str([m.get("accelerator") or m.get("processor"), m.get("threads")]) for m in machines}
        notes = [
            ("± is the sample standard deviation over seeds or folds; a row of one run has none.", several),
            (
                "After `against`, ± is the standard error of the paired difference, over test rows and seeds.",
                any(name.startswith("against ") for name in self.further),
            ),
            ("One seed a row: how far another seed would move a figure is not known.", not several and self.best),
            ("Not all rows were run with the same seeds; `against none` is over those that both rows have.", uneven),
            (f"No better than the constant, and so of no use: {useless}.", useless),
            (f"Rows differ in more than the encoding: {others}. `against none` compares like with like.", others),
            ("The split was drawn by the seed or fold: runs with others were tested on different molecules.", drawn),
            ("Not all runs had the same machine and threads: graphs/s and times do not compare.", len(computers) > 1),
            ("Unfinished runs are not ranked; their validation figure is the best so far.", is_unfinished),
        ]
        return [note for note, applies in notes if applies]


def compare(runs: Sequence[Run]) -> list[Table]:
    """Sort runs into tables, one for each kind of run and data set, trainings first."""
    names: Counter[tuple[str, str]] = Counter()
    tables = []
    for same_words in _grouped(sorted(runs, key=lambda run: run.kind != "train"), _data_key):
        for same_data in _by_digest(same_words):
            run = same_data[0]
            names[run.kind, run.source] += 1
            number = names[run.kind, run.source]
            tables.append(Table(f"{run.source} ({number})" if number > 1 else run.source, same_data))
    return tables


def comparison_table(runs: Sequence[Run], without: Sequence[str] = ()) -> str:
    """Format the comparison for a terminal: a star marks the best row of a table, and notes follow it.

    Args:
        runs: the runs.
        without: columns to leave out.
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
    """Return the spread of the values that are not ``None``; ``None`` if all are, NaN if one is not finite."""
    known = [value for value in values if value is not None]
    if not all(map(math.isfinite, known)):
        return Spread(math.nan, None, len(known))
    std = statistics.stdev(known) if len(known) > 1 else None
    return Spread(statistics.fmean(known), std, len(known)) if known else None


def _text(values: Iterable[float | None], unit: str) -> str:
    spread = _spread(values)
    return DASH if spread is None else f"{spread}{in_mev(spread.mean, unit)}"


def _is_no_better_than_constant(row: Row) -> bool:
    pairs = [(run.test, run.constant()) for run in row.runs]
    known = [(test, constant) for test, constant in pairs if test is not None and constant is not None]
    excess = sum(test - constant for test, constant in known) * (-1 if row.runs[0].larger_is_better else 1)
    return bool(known) and excess >= 0


def _grouped(runs: Iterable[Run], key: Callable[[Run], str]) -> list[list[Run]]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return list(groups.values())


def _data_key(run: Run) -> str:
    """Return a key that is equal for runs on the same data, as far as their descriptions tell.

    A file or folder is known by its path; its constants follow from its split, which may be drawn by the seed.
    """
    split = value_in(run.data, "split", dict) or {}
    folds = split.get("folds")  # whose sizes may differ by one
    names = ((), ("normalization", "atom_types"))[run.source in _NAMED]
    key = [run.kind, run.source, folds, *(run.data.get(name) for name in (*(SIZES if folds is None else ()), *names))]
    if run.kind == "train":
        key += [*(run.task.get(name) for name in RANKED_BY), _target_of(run.data)]
    if run.source == UNNAMED:
        key.append(run.data.get("spec"))  # no path tells data from Python apart
    if split.get("kind") in ("scaffold", "butina", "column"):
        key.append(split)  # a harder split of the same file, perhaps
    return json.dumps(key, sort_keys=True)


def _target_of(data: Mapping[str, Any]) -> list[Any]:
    """Return the columns of the labels, or what they were computed as; empty if the folder does not say."""
    target = value_in(data, "target", dict) or {}
    computed = target.get("computed")
    return list(target.get("columns") or []) if computed is None else [computed, None]


def _by_digest(runs: Sequence[Run]) -> list[list[Run]]:
    """Group runs by the digest of their data; one group if digests do not differ.

    A digest covers the split and the numbers of atom types: two of them tell data apart where these agree, such as two
    files split by one seed. Which of the other seeds belong to which file is not known then, so each digest is apart.
    """
    digests: dict[str, set[str]] = {}
    for run in runs:
        if (digest := value_in(run.data, "digest", str)) is not None:
            names = ("split", "atom_types", "bond_types", "target", "weight_column", "extra_columns")
            how = [run.data.get(name) for name in names]
            digests.setdefault(json.dumps(how, sort_keys=True), set()).add(digest)
    clash = any(len(same) > 1 for same in digests.values())
    return _grouped(runs, lambda run: str(run.data.get("digest")) if clash else "")


def _rows(runs: Sequence[Run]) -> list[Row]:
    """Sort runs on the same data into rows, with labels and colours of their own."""
    order = {id(run): number for number, run in enumerate(runs)}
    copies: Counter[str] = Counter()
    settings: dict[int, dict[str, Any]] = {}

    def key(run: Run) -> str:
        settings[id(run)] = effective_settings(run)
        same = json.dumps([settings[id(run)], run.finished, run.test is None, run.title], sort_keys=True)
        seed = json.dumps([same, run.draw])
        copies[seed] += 1  # the same seed again adds no spread: a row of its own
        return f"{same}{copies[seed]}"

    def seed(run: Run) -> tuple[float, str]:
        number = number_in(run.settings, "seed")
        return math.inf if number is None else number, str(run.path)

    def rank(row: Row) -> tuple[bool, bool, float]:
        spread = row.test if row.finished else row.validation
        value = spread.mean if spread is not None and math.isfinite(spread.mean) else None
        return not row.finished, value is None, (value or 0.0) * (-1 if row.runs[0].larger_is_better else 1)

    groups = _grouped(sorted(runs, key=seed), key)
    options = dict.fromkeys(name for own in settings.values() for name in own if name.startswith("attention_options."))
    rows = [Row(same, {**options, **settings[id(same[0])]}) for same in groups]
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
