"""Pictures of training runs, for a run's own folder and for the page."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from tg_lpe.hub.files import replacing
from tg_lpe.report.values import mapping_in
from tg_lpe.training.metrics import METRICS
from tg_lpe.training.run_folder import RunFolder
from tg_lpe.training.state import read_metrics

# Okabe and Ito's colours, which people with any colour vision can tell apart.
GREY, BLUE = "#8a8a8a", "#0072b2"
SPARE_COLORS = ("#cc79a7", "#d55e00", "#56b4e9", "#b5a800")
ENCODING_COLORS = {None: GREY, "LaplacianEigenvectors": "#e69f00", "RandomWalk": "#009e73", "GramTransformer": BLUE}
"""Colours by class of the encoder; other encoders take the next spare colour."""

INK = "#010203"  # replaced by the colour of the page's text, on light and dark pages


@dataclass(frozen=True)
class Curve:
    """One line of :func:`curves_svg`: ``(epoch, value)`` of each seed; several are drawn thin, their mean thick."""

    label: str
    seeds: Sequence[Sequence[tuple[float, float]]]
    color: str
    dashed: bool = False


@dataclass(frozen=True)
class Score:
    """One row of :func:`scores_svg`: the value of each seed, and the text to print for them all."""

    label: str
    values: Sequence[float]
    text: str
    color: str
    best: bool = False


def draw_curve(folder: RunFolder) -> Path | None:
    """Draw a run's training loss and validation error by epoch into ``curve.png``.

    Returns:
        The picture's path; ``None`` where matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return None
    rows = read_metrics(folder.metrics)
    with _figure(6, 4) as (figure, axes):
        named = {"train_loss": "training loss", "val_loss": "validation loss"}
        named |= {f"val_{name}": f"validation {metric.title}" for name, metric in METRICS.items()}
        log = not any(f"val_{name}" in row for row in rows for name in METRICS if METRICS[name].direction == "max")
        drawn: dict[str, list[tuple[float, float]]] = {}
        for key in named:
            points = [(row["epoch"], row[key]) for row in rows if _drawable(row.get(key), log) and "epoch" in row]
            if points:
                drawn[key] = points
        metrics = [points for key, points in drawn.items() if key not in ("train_loss", "val_loss")]
        for name, title in ((f"val_{name}_columns", metric.title) for name, metric in METRICS.items()):
            columns = dict.fromkeys(column for row in rows for column in mapping_in(row, name))
            for column in list(columns)[: len(SPARE_COLORS)]:
                values = [(row.get("epoch"), mapping_in(row, name).get(column)) for row in rows]
                points = [(epoch, value) for epoch, value in values if epoch is not None and _drawable(value, log)]
                if points:
                    drawn[f"{name} {column}"], named[f"{name} {column}"] = points, f"validation {title}, {column}"
        if any(_alike(points, drawn.get("val_loss", [])) for points in metrics):
            del drawn["val_loss"]  # the metric is the loss, and its line would hide this one
        for key, points in drawn.items():
            axes.plot(*_columns(points), label=named[key], marker="." if len(rows) < 40 else None)
        if axes.lines:
            if log:
                log_scale(axes, [value for line in axes.lines for value in line.get_ydata()])
            axes.legend(frameon=False)
        axes.set(xlabel="epoch", title=folder.path.name)
        axes.xaxis.get_major_locator().set_params(integer=True)
        with replacing(folder.curve) as temporary:
            figure.savefig(temporary, format="png", dpi=120)
    return folder.curve


def curves_svg(curves: Sequence[Curve], ylabel: str, description: str, *, log: bool = True) -> str:
    """Values by epoch, as an ``<svg>`` element for a page.

    Args:
        curves: lines, in the order of the legend.
        ylabel: what the values are.
        description: read out where the picture is not seen.
        log: whether the axis is logarithmic, for errors; it is linear for scores, which may be zero.

    Returns:
        The element; empty if there is no finite value to draw, on a logarithmic axis no positive one.

    Raises:
        ModuleNotFoundError: if matplotlib is not installed.
    """
    values: list[float] = []
    with _figure(5.2, 3.4 + 0.2 * len(curves)) as (figure, axes):
        for curve in curves:
            seeds = [[(x, y if _drawable(y, log) else math.nan) for x, y in points] for points in curve.seeds]
            values += [y for points in seeds for _, y in points if _drawable(y, log)]
            style: dict[str, Any] = {"color": curve.color, "linestyle": (0, (3, 1.5)) if curve.dashed else "-"}
            marker = {"marker": "o", "markersize": 3} if max(map(len, seeds), default=0) < 40 else {}
            if len(seeds) > 1:
                for points in seeds:
                    axes.plot(*_columns(points), linewidth=0.8, alpha=0.5, **style)
            axes.plot(*_columns(_mean_curve(seeds)), linewidth=1.9, label=curve.label, **marker, **style)
        if not values:
            return ""
        if log:
            log_scale(axes, values)
        axes.set(xlabel="epoch", ylabel=ylabel)
        axes.xaxis.get_major_locator().set_params(integer=True)
        # Above the panel: a legend inside it hides lines, and labels beside it take a phone's whole width.
        figure.legend(loc="outside upper left", frameon=False, borderaxespad=0.2, handlelength=2.4)
        return as_svg(figure, description)


def scores_svg(scores: Sequence[Score], xlabel: str, reference: float | None, description: str) -> str:
    """A row of dots for each encoding, with mean and sample standard deviation, as an ``<svg>`` element for a page.

    Args:
        scores: rows, from the top.
        xlabel: what the values are.
        reference: value to mark by a vertical stroke in every row.
        description: read out where the picture is not seen.

    Returns:
        The element; empty if there is nothing finite to draw.

    Raises:
        ModuleNotFoundError: if matplotlib is not installed.
    """
    if not any(math.isfinite(value) for score in scores for value in score.values):
        return ""
    with _figure(5.2, 0.9 + 0.52 * len(scores)) as (figure, axes):
        for row, score in enumerate(scores):
            weight: Any = {"fontweight": "bold" if score.best else "normal", "transform": axes.get_yaxis_transform()}
            axes.text(0.0, row - 0.2, score.label, ha="left", va="bottom", **weight)
            axes.text(1.0, row - 0.2, score.text, ha="right", va="bottom", **weight)
            if reference is not None and math.isfinite(reference):  # in pieces, so that it does not cross the text
                axes.plot([reference] * 2, [row - 0.12, row + 0.32], color=INK, alpha=0.6, linewidth=1.2, zorder=1)
            values = [value for value in score.values if math.isfinite(value)]
            axes.axhline(row + 0.1, color=INK, alpha=0.12, linewidth=0.8, zorder=0)
            if not values:
                continue
            mean = sum(values) / len(values)
            if len(values) > 1:
                spread = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
                axes.plot([mean - spread, mean + spread], [row + 0.1] * 2, color=score.color, linewidth=2.5, alpha=0.6)
                axes.plot(values, [row + 0.1] * len(values), "o", markersize=3.5, color=score.color, alpha=0.6)
            axes.plot(mean, row + 0.1, "D" if len(values) > 1 else "o", markersize=7, color=score.color)
        axes.set(xlabel=xlabel, ylim=(len(scores) - 0.55, -0.8), yticks=[])
        axes.margins(x=0.08)
        axes.grid(False)
        axes.locator_params(axis="x", nbins=6)
        axes.spines["left"].set_visible(False)
        return as_svg(figure, description)


@contextmanager
def _figure(width: float, height: float) -> Iterator[tuple[Any, Any]]:
    """A figure and its axes."""
    with blank_figure(width, height) as figure:
        axes = figure.add_subplot()
        axes.grid(color=INK, alpha=0.12)
        axes.set_axisbelow(True)
        yield figure, axes


@contextmanager
def blank_figure(width: float, height: float) -> Iterator[Any]:
    """A figure without axes, without a window system, and without global state but the settings inside the block."""
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ModuleNotFoundError(
            "drawing a report needs matplotlib: pip install 'tg-lpe[plot]'", name="matplotlib"
        ) from error
    settings: Any = {
        "axes.edgecolor": INK,
        "axes.formatter.useoffset": False,
        "axes.labelcolor": INK,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "font.size": 10,
        "svg.fonttype": "none",
        "text.color": INK,
        "text.parse_math": False,  # a folder's name may hold a dollar sign
        "xtick.color": INK,
        "ytick.color": INK,
    }
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def log_scale(axes: Any, values: Sequence[float], axis: str = "y", max_ticks: int = 20) -> None:
    """A logarithmic axis with a few plainly written ticks, also over less than a decade."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, MaxNLocator, NullLocator

    axes.set(**{f"{axis}scale": "log"})
    ticks = getattr(axes, f"{axis}axis")
    ratio = max(values) / min(values)
    subs: tuple[float, ...] = (1, 2, 5) if ratio > 10 else (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
    if max_ticks < 10:
        subs = (1, 2, 5) if ratio < 10 else (1, 3) if ratio < 100 else (1,)
    ticks.set_major_locator(
        MaxNLocator(min(7, max_ticks), steps=[1, 2, 5, 10])
        if ratio < 2.5
        else LogLocator(subs=subs, numticks=max_ticks)
    )
    ticks.set_minor_locator(NullLocator())
    ticks.set_major_formatter(FormatStrFormatter("%g"))


def _mean_curve(seeds: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """Mean over seeds at every epoch that all of them have reached."""
    by_epoch: dict[float, list[float]] = {}
    for points in seeds:
        for x, y in points:
            by_epoch.setdefault(x, []).append(y)
    return [(x, sum(ys) / len(ys)) for x, ys in sorted(by_epoch.items()) if len(ys) == len(seeds)]


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _alike(first: Sequence[tuple[float, float]], second: Sequence[tuple[float, float]]) -> bool:
    """Whether two lines are one to the eye."""
    return len(first) == len(second) and all(
        a == b and math.isclose(y, z, rel_tol=1e-3) for (a, y), (b, z) in zip(first, second, strict=True)
    )


def _drawable(value: object, log: bool) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and (value > 0 or not log)


def as_svg(figure: Any, description: str) -> str:
    """The figure as one element that takes its width, font and ink from the page around it."""
    import matplotlib

    out = io.StringIO()
    # Marks are named by hash; the description keeps those of two pictures on a page apart.
    with matplotlib.rc_context({"svg.hashsalt": description}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\n?", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    view = re.search(r'viewBox="[^"]*"', svg)
    opening = f'<svg role="img" aria-label="{escape(description)}" {view.group() if view else ""}>'
    return opening + svg[svg.index(">") + 1 :].replace(INK, "currentColor").strip()
