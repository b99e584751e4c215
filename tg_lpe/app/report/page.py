"""Write a comparison of runs as one self-contained HTML page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from torch import Tensor

from tg_lpe.app.report.figures import curves_svg, learned_svg, parity_svg, scores_svg
from tg_lpe.app.report.format import counted, figure_text, value_text
from tg_lpe.app.report.predictions import COVERAGE, scored
from tg_lpe.app.report.runs import Run, read_run
from tg_lpe.app.report.table import Table, compare
from tg_lpe.app.training.run_folder import RunFolder
from tg_lpe.app.training.state import with_prefix
from tg_lpe.checkpoints.checkpoint import module_with
from tg_lpe.checkpoints.files import load_tensors, replacing
from tg_lpe.encoders.base import LearnedTable
from tg_lpe.encoders.registry import make_encoder

MAX_TYPES, MAX_PANELS = 30, 8
"""Largest numbers of types and columns drawn of a learned table."""


def write_report(paths: Sequence[str | Path | Run], out: str | Path = "report.html") -> Path:
    """Write a comparison of runs as one self-contained HTML page.

    Args:
        paths: run folders, or runs of :func:`read_run`; a repeated run counts once.
        out: file to write.

    Returns:
        The path of the page.

    Raises:
        ValueError: if there is no run, or a folder is no run folder.
        ModuleNotFoundError: if matplotlib is not installed.
    """
    distinct = {(path.path if isinstance(path, Run) else Path(path)).resolve(): path for path in paths}.values()
    runs = [path if isinstance(path, Run) else read_run(path) for path in distinct]
    if not runs:
        raise ValueError("a report needs at least one run folder")
    tables = compare(runs)
    first_with = {json.dumps(run.data.get("skipped")): run for run in reversed(runs)}
    here = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=here, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"figure": figure_text, "value": value_text}
    page = environment.get_template("template.html").render(
        runs=runs,
        tables=tables,
        pictures=_pictures,
        learned=[
            (table, row, pictures)
            for table in tables
            for row in table.rows
            if (pictures := learned_pictures(row.runs[0], row.label))
        ],
        place={run.path: f"run-{number}" for number, run in enumerate(runs, 1)},
        first_with_skipped={run.path: first_with[json.dumps(run.data.get("skipped"))] for run in runs},
        counted=counted,
    )
    with replacing(Path(out)) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return Path(out)


def _pictures(table: Table) -> list[tuple[str, str]]:
    """Return the pictures of a table with their captions."""
    caption = f"Validation {table.metric} by epoch."
    if any(len(row.runs) > 1 for row in table.rows):
        caption += " Thin lines: single seeds; thick lines: their mean."
    pictures = [(curves_svg(table), caption)]
    if table.kind == "train":
        best = "highest" if table.larger_is_better else "lowest"
        caption = f"Test {table.metric} at the epoch with the {best} validation {table.metric}; {best} is best."
        if any(len(row.runs) > 1 for row in table.rows if row.finished and row.test is not None):
            caption += " Dots: seeds; diamond: mean; bar: ± one standard deviation."
        if none := [row.label for row in table.ranked if row.encoder is None]:
            caption += f" Vertical lines: {none[0]}."
        pictures.append((scores_svg(table), caption))
    if drawn := scored(table):
        rows = "" if drawn[0].label in [row.label for row in table.rows] else " by the best row"
        if any(len(row.runs) > 1 for row in table.rows):
            rows += ", first seed" if rows else ", first seed of each row"
        caption = f"Predictions against labels of the test set{rows}. Dashed lines: an interval that holds "
        caption += f"{100 * COVERAGE:.0f} % of the validation labels (split conformal); the last line of each title is "
        caption += "the share of test labels inside it."
        pictures.append((parity_svg(drawn, table.target, f"{table.source}: predictions over labels"), caption))
    return [(svg, caption) for svg, caption in pictures if svg]


def learned_pictures(run: Run, description: str) -> list[tuple[str, str]]:
    """Draw the tables of :meth:`Encoder.learned <tg_lpe.Encoder.learned>` with the weights in a run's folder.

    Args:
        run: the run.
        description: text alternative for screen readers.

    Returns:
        ``(<svg> element, caption)`` of each table; empty if the run is unfinished, or its encoder has no such tables,
        was not trained, or has a class that is not imported.
    """
    folder = RunFolder(run.path)
    if run.settings.get("encoder_lr") == 0 or not run.finished or not folder.model.is_file():
        return []
    weights = load_tensors(folder.model)[0]
    after = _tables(run, with_prefix(weights, "encoder.") if run.kind == "train" else weights)
    before: Sequence[LearnedTable | None] = [None] * len(after)
    if after and folder.initial.is_file():
        before = _tables(run, load_tensors(folder.initial)[0])
    pictures = []
    for old, new in zip(before, after, strict=True):
        names = _type_names(run, new)
        types = dict([(row, name) for row, name in enumerate(names) if name != "NONE"][:MAX_TYPES])
        of_filter = " to the eigenvalues of each filter's Laplacian, one line for each channel"
        caption = f"{new.title.capitalize()}{', by filter' if types else of_filter}. Blue: after training."
        if old is not None:
            caption += f" Grey: before training{', the pretrained encoder' if run.pretrained else ''}."
        if len(types) == MAX_TYPES < len(names):
            caption += f" Only the first {MAX_TYPES} of {len(names)} types are shown."
        if len(new.columns) > MAX_PANELS:
            caption += f" Only the first {MAX_PANELS} of {len(new.columns)} filters are shown."
        shown = new._replace(columns=new.columns[:MAX_PANELS])
        pictures.append((learned_svg(old, shown, types, f"{description}: {new.title}"), caption))
    return pictures


def _tables(run: Run, weights: Mapping[str, Tensor]) -> list[LearnedTable]:
    """Return the tables of a run's encoder for its weights."""
    if run.encoder is None:
        return []
    try:
        config = run.encoder
        encoder = module_with(weights, lambda: make_encoder(config))
    except (ValueError, RuntimeError):  # the class is not imported, or its arguments have changed
        return []
    return encoder.learned()  # type: ignore[no-any-return]


def _type_names(run: Run, table: LearnedTable) -> list[str]:
    """Name each row of a table over types; ``NONE`` stands for a bond type that no molecule has."""
    if table.over == "eigenvalue":
        return []
    entry, level = {"x": ("atom_types", "node"), "edge_attr": ("bond_types", "edge")}[table.over]
    names = run.data.get(entry)
    if isinstance(names, list) and len(names) == table.rows.numel():
        return [str(name) for name in names]
    if table.rows.numel() == 1:
        return [f"all {level}s"]
    return [f"{level} type {number}" for number in table.rows.tolist()]
