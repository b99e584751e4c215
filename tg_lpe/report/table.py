"""The comparison as plain text: rows, remarks, outcome."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tg_lpe.report.groups import Group, Spread, Variant, compare, differing, of_encoding, spread_of
from tg_lpe.report.runs import Run
from tg_lpe.report.values import DASH, duration_text, first_of, number_in, signed
from tg_lpe.training.metrics import METRICS

CONSTANT = "constant (median of the training labels)"
MAX_COLUMNS = 6
"""Columns of labels that a table has room for; the figures of more are in the runs' own results."""


def comparison_table(runs: Sequence[Run]) -> str:
    """The comparison as plain text for a terminal.

    Args:
        runs: in any order.

    Returns:
        One aligned table per data set; a star marks the best row, and notes on the comparison follow.
    """
    blocks = []
    for group in compare(runs):
        rows = [row_of(group, variant) for variant in group.variants]
        marks = ["* " if variant is group.best else "  " for variant in group.variants]
        if (constant := constant_row(group)) is not None:
            rows.append(constant)
            marks.append("  ")
        columns = list(rows[0])
        widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in columns}
        lines = [_heading(group), "  " + "  ".join(name.ljust(widths[name]) for name in columns)]
        lines += [
            mark + "  ".join(row[name].ljust(widths[name]) for name in columns)
            for mark, row in zip(marks, rows, strict=True)
        ]
        notes = [f"  - {note}" for note in notes_on(group)]
        blocks.append("\n".join(line.rstrip() for line in lines + notes))
    return "\n\n".join(blocks)


def row_of(group: Group, variant: Variant) -> dict[str, str]:
    """Cells of the table by column."""
    first, training = variant.runs[0], group.kind == "train"
    seconds = spread_of([run.seconds for run in variant.runs])
    test = _or_dash(variant.test) if variant.finished else "unfinished"
    cells = {"encoding": variant.label, f"test {group.figure_title}": test}
    if training:
        cells["against none"] = _difference(group, variant)
    cells |= {name: _or_dash(variant.column(column)) for name, column in _column_heads(group).items()}
    cells |= {
        f"validation {group.figure_title}": _or_dash(variant.validation),
        "seeds": ", ".join(variant.seeds),
        "epochs": _progress(variant),
        ("model + encoder" if training else "parameters"): _parameters(first),
        "graphs/s": DASH if variant.speed is None else f"{variant.speed:,.0f}",
        "time a run": DASH if seconds is None else duration_text(seconds.mean),
        "precision": first_of(first.precision, DASH),
    }
    return cells


def constant_row(group: Group) -> dict[str, str] | None:
    """Cells of the row of a prediction that is the same for all, the median of the training labels; ``None`` of a task
    that has none, or runs that do not tell it.
    """
    test = group.constant()
    if test is None:
        return None
    cells = dict.fromkeys(row_of(group, group.variants[0]), DASH)
    cells |= {"encoding": CONSTANT, f"test {group.figure_title}": str(test)}
    cells |= {name: _or_dash(group.constant(column=column)) for name, column in _column_heads(group).items()}
    return cells | {f"validation {group.figure_title}": _or_dash(group.constant("val"))}


def _column_heads(group: Group) -> dict[str, str]:
    """Heads of the table's cells for columns of labels, and these; none where there are too many for a table."""
    if len(group.columns) > MAX_COLUMNS:
        return {}
    figure = group.variants[0].runs[0].column_figure
    title = METRICS[figure].title if figure in METRICS else figure
    return {f"test {title}, {column}": column for column in group.columns}


def _difference(group: Group, variant: Variant) -> str:
    baseline = group.beside_baseline(variant)
    if baseline is None:
        return DASH
    difference, base = baseline[0] - baseline[1], baseline[1]
    share = f" ({signed(100 * difference / base, '.1f')} %)" if base > 0 else ""
    return signed(difference, ".4f") + share


def _progress(variant: Variant) -> str:
    """Epochs done, of how many where that is not all."""
    done = sorted({run.epochs for run in variant.runs})
    planned = number_in(variant.settings, "epochs")
    text = f"{done[0]}" if len(done) == 1 else f"{done[0]}–{done[-1]}"
    return text if planned is None or done == [planned] else f"{text} of {planned:.0f}"


def _parameters(run: Run) -> str:
    total, encoder = number_in(run.result, "num_parameters"), number_in(run.result, "encoder_parameters")
    if total is None:
        return DASH
    return f"{total - encoder:,.0f} + {encoder:,.0f}" if encoder else f"{total:,.0f}"


def _heading(group: Group) -> str:
    return f"{group.title}: {group.sizes}" if group.sizes else group.title


def verdict_on(group: Group) -> str:
    """The outcome in a sentence or two; empty where there is nothing to compare."""
    best = group.best
    if best is None:
        return ""
    second = group.ranked[1]
    against = f", against none {_difference(group, best)}" if group.difference(best) is not None else ""
    extreme = "Highest" if group.larger_is_better else "Lowest"
    text = f"{extreme} test {group.figure_title}: {best.label}, {best.test}{against}. "
    text += f"Next: {second.label}, {second.test}."
    tests = [variant.test for variant in (best, second) if variant.test is not None]
    if abs(tests[-1].mean - tests[0].mean) < max(test.std or 0.0 for test in tests):
        text += " The two are closer than the spread over seeds."
    return text


def notes_on(group: Group) -> list[str]:
    """List what a reader of the table must bear in mind."""
    variants, runs = group.variants, [run for variant in group.variants for run in variant.runs]
    notes = []
    if any(len(v.runs) > 1 for v in variants):
        notes.append("± is the sample standard deviation over seeds; a row of one seed has none.")
    elif group.best is not None:
        notes.append("One seed a row: how far another seed would move a figure is not known.")
    if len({tuple(v.seeds) for v in variants if v.finished}) > 1:
        notes.append("Not all rows were run with the same seeds; `against none` is over those that both rows have.")
    if learned_nothing := [variant.label for variant in variants if group.is_constant(variant)]:
        notes.append(f"No better than the constant, and so of no use: {', '.join(learned_nothing)}.")
    others = [name for name in differing([v.settings for v in variants]) if not of_encoding(name)]
    if others and group.kind == "train":
        names = ", ".join(others)
        notes.append(f"Rows differ in more than the encoding: {names}. `against none` compares like with like.")
    if _split_by_seed(runs):
        notes.append("The split was drawn by the seed: runs with different seeds were tested on different molecules.")
    machines = {json.dumps([_machine(run), run.environment.get("threads")]) for run in runs if run.environment}
    if len(machines) > 1:
        notes.append("Not all runs had the same machine and threads: graphs/s and times do not compare.")
    if any(not v.finished for v in variants):
        notes.append("Unfinished runs are not ranked; their validation figure is the best so far.")
    return notes


def _split_by_seed(runs: Sequence[Run]) -> bool:
    """Whether runs on one data set have different splits of it, as far as their folders say."""
    drawn = {json.dumps(run.data["split"], sort_keys=True) for run in runs if run.data.get("split")}
    return len(drawn) > 1


def _machine(run: Run) -> str:
    return str(run.environment.get("accelerator") or run.environment.get("processor") or DASH)


def _or_dash(spread: Spread | None) -> str:
    return DASH if spread is None else str(spread)
