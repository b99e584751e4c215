"""Write a comparison of runs as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

from tg_lpe.app.report.figures import curves_svg, parity_svg, scores_svg
from tg_lpe.app.report.format import counted, figure_text, value_text
from tg_lpe.app.report.predictions import COVERAGE, scored
from tg_lpe.app.report.runs import Run, read_run
from tg_lpe.app.report.table import Table, compare
from tg_lpe.checkpoints.files import replacing


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
    here = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=here, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"figure": figure_text, "value": value_text}
    page = environment.get_template("template.html").render(
        runs=runs,
        tables=tables,
        pictures=_pictures,
        place={run.path: f"run-{number}" for number, run in enumerate(runs, 1)},
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
