"""Draw curves of validation figures, scores and predictions for the report."""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

import numpy as np
import torch

from tg_lpe.app.report.predictions import Scored
from tg_lpe.app.report.table import Table

INK = "#010203"  # replaced by the text colour of the page, which may be light or dark
MAX_POINTS = 400
"""Approximate limit on the points of a panel, because the page stores each point."""


def curves_svg(table: Table) -> str:
    """Draw validation figures by epoch, with thin lines for seeds and a thick line for their mean.

    Returns:
        An ``<svg>`` element; empty if no value is finite, or positive on the logarithmic axis of errors.
    """
    log, values = not table.larger_is_better, []
    with _figure(5.2, 3.4 + 0.2 * len(table.rows)) as figure:
        axes = figure.add_subplot()
        for row in table.rows:
            curves = [run.curve(f"val_{run.figure}") for run in row.runs]
            seeds = [{x: y if _is_drawable(y, log) else math.nan for x, y in points} for points in curves]
            values += [y for points in seeds for y in points.values() if math.isfinite(y)]
            style: dict[str, Any] = {"color": row.color, "linestyle": "-" if row.finished else (0, (3, 1.5))}
            if len(seeds) > 1:
                for points in seeds:
                    axes.plot(*_columns(points), linewidth=0.8, alpha=0.5, **style)
            if max(map(len, seeds)) < 40:
                style |= {"marker": "o", "markersize": 3}
            epochs = sorted(set.intersection(*map(set, seeds)))  # the mean is always over all seeds
            mean = {x: sum(points[x] for points in seeds) / len(seeds) for x in epochs}
            label = row.label if row.finished else f"{row.label} (unfinished)"
            axes.plot(*_columns(mean), linewidth=1.9, label=label, **style)
        if not values:
            return ""
        if log:
            _log_scale(axes, values)
        figure_name = f"validation {table.metric}"
        axes.set(xlabel="epoch", ylabel=", ".join([figure_name, *table.target]))
        axes.xaxis.get_major_locator().set_params(integer=True)
        # A legend inside the panel would hide lines; one next to it would need a phone's whole width.
        figure.legend(loc="outside upper left", frameon=False, borderaxespad=0.2, handlelength=2.4)
        return _svg(figure, f"{table.source}: {figure_name} by epoch")


def scores_svg(table: Table) -> str:
    """Draw the test figures of all finished rows, with a dot for each seed, the mean and the standard deviation.

    A vertical line in every row marks the best row without an encoding.

    Returns:
        An ``<svg>`` element; empty if no figure is finite.
    """
    rows = [row for row in table.rows if row.finished and row.test is not None]
    scores = [[run.test for run in row.runs if run.test is not None and math.isfinite(run.test)] for row in rows]
    if not any(scores):
        return ""
    none = next((row.test.mean for row in table.ranked if row.encoder is None and row.test is not None), None)
    with _figure(5.2, 0.9 + 0.52 * len(rows)) as figure:
        axes = figure.add_subplot()
        for place, (row, values) in enumerate(zip(rows, scores, strict=True)):
            weight: Any = {"fontweight": "bold" if row is table.best else "normal", "va": "bottom"}
            weight["transform"] = axes.get_yaxis_transform()
            axes.text(0.0, place - 0.2, row.label, ha="left", **weight)
            axes.text(1.0, place - 0.2, str(row.test), ha="right", **weight)
            if none is not None:  # one piece for each row, so that it does not cross the text
                axes.plot([none] * 2, [place - 0.12, place + 0.32], color=INK, alpha=0.6, linewidth=1.2, zorder=1)
            axes.axhline(place + 0.1, color=INK, alpha=0.12, linewidth=0.8, zorder=0)
            if not values:
                continue
            mean, faint = np.mean(values), {"color": row.color, "alpha": 0.6}
            if len(values) > 1:
                spread = np.std(values, ddof=1)
                axes.plot([mean - spread, mean + spread], [place + 0.1] * 2, linewidth=2.5, **faint)
                axes.plot(values, [place + 0.1] * len(values), "o", markersize=3.5, **faint)
            axes.plot(mean, place + 0.1, "D" if len(values) > 1 else "o", markersize=7, color=row.color)
        axes.set(xlabel=", ".join([f"test {table.metric}", *table.target]), ylim=(len(rows) - 0.55, -0.8), yticks=[])
        axes.margins(x=0.08)
        axes.grid(False)
        axes.locator_params(axis="x", nbins=6)
        axes.spines["left"].set_visible(False)
        return _svg(figure, f"{table.source}: test {table.metric} by encoding")


def parity_svg(drawn: Sequence[Scored], target: Sequence[str], description: str) -> str:
    """Draw predictions against labels as ``<svg>``, one panel for each entry; dashed lines bound the intervals."""
    across = min(2, len(drawn))
    down = math.ceil(len(drawn) / across)
    with _figure(5.2, (3.1 if across > 1 else 4.6) * down) as figure:
        panels = list(figure.subplots(down, across, squeeze=False).flat)
        for axes, entry in zip(panels, drawn, strict=False):
            step = max(1, len(entry.labels) // MAX_POINTS)
            low, high = (float(edge) for edge in torch.cat([entry.labels, entry.scores]).aminmax())
            ends = np.array([low, high])
            axes.plot(ends, ends, color=INK, alpha=0.6, linewidth=1)
            for side in (-entry.width, entry.width) if math.isfinite(entry.width) else ():
                axes.plot(ends, ends + side, color=INK, alpha=0.6, linewidth=0.8, linestyle=(0, (3, 3)))
            axes.plot(entry.labels[::step], entry.scores[::step], ".", color=entry.color, markersize=4, alpha=0.5)
            margin = 0.04 * (high - low) or 1.0
            axes.set(xlim=(low - margin, high + margin), ylim=(low - margin, high + margin), aspect="equal")
            axes.locator_params(nbins=5)
            title = [*textwrap.wrap(entry.label, 32), ", ".join(entry.remarks[:2]), *entry.remarks[2:]]
            axes.set_title("\n".join(title), fontsize=9)
        for axes in panels[len(drawn) :]:
            axes.set_axis_off()
        figure.supxlabel(", ".join(["label", *target]), fontsize=10)
        figure.supylabel("prediction", fontsize=10)
        return _svg(figure, description)


@contextmanager
def _figure(width: float, height: float) -> Iterator[Any]:
    """Yield an empty figure that needs no display; matplotlib's settings hold only inside the block."""
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        message = "drawing a report needs matplotlib: pip install 'tg-lpe[plot]'"
        raise ModuleNotFoundError(message, name="matplotlib") from error
    settings: Any = {
        **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color"), INK),
        **{"axes.grid": True, "axes.axisbelow": True, "grid.color": INK, "grid.alpha": 0.12},
        **dict.fromkeys(("axes.formatter.useoffset", "axes.spines.right", "axes.spines.top"), False),
        "font.size": 10,
        "svg.fonttype": "none",
        "text.parse_math": False,  # a folder's name may hold a dollar sign
    }
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def _log_scale(axes: Any, values: Sequence[float]) -> None:
    """Make the vertical axis logarithmic, with plain decimal ticks even if it spans less than a decade."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, MaxNLocator, NullLocator

    axes.set(yscale="log")
    ratio = max(values) / min(values)
    subs: tuple[float, ...] = (1, 2, 5) if ratio > 10 else (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
    few = MaxNLocator(7, steps=[1, 2, 5, 10])
    axes.yaxis.set_major_locator(few if ratio < 2.5 else LogLocator(subs=subs, numticks=20))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))


def _columns(points: dict[float, float]) -> tuple[list[float], list[float]]:
    return list(points), list(points.values())


def _is_drawable(value: Any, log: bool) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and (value > 0 or not log)


def _svg(figure: Any, description: str) -> str:
    """Return the figure as an ``<svg>`` element that takes its width, font and colour from the page."""
    import matplotlib

    out = io.StringIO()
    # The salt makes the hashed ids of two pictures on a page different.
    with matplotlib.rc_context({"svg.hashsalt": description}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    _, opening, content = re.split(r"(<svg[^>]*>)", out.getvalue(), maxsplit=1)
    content = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->\n?", "", content, flags=re.DOTALL)
    content = re.sub(r'<g id="[^"]*"', "<g", content).replace(INK, "currentColor").strip()
    view = re.search(r'viewBox="[^"]*"', opening)
    return f'<svg role="img" aria-label="{escape(description)}" {view.group() if view else ""}>{content}'
