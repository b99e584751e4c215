"""Draw the charts of the README and of the documentation from the files under benchmarks/results.

    python benchmarks/_figures.py [NAME ...]

NAME is the name of a picture there without `.png`, or "all", the default. Scripts whose results have a chart draw
it next to their JSON file.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from _readme import BUDGETS, FEW
from _results import MEV_IN, RESULTS
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from tg_lpe.checkpoints.files import read_json, replacing

Rows = Sequence[dict[str, Any]]
OURS, GREY, BLUE, RED, ORANGE, VIOLET = "#1f8a5b", "#8a8a8a", "#3b7dd8", "#b04a5a", "#c98b2e", "#7a5195"


def save(figure: Figure, path: Path, dpi: int = 110) -> None:
    """Write a figure as PNG."""
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=dpi)


def results_of(name: str) -> Rows:
    """Read the rows of a results file."""
    return list(read_json(RESULTS / f"{name}.json")["results"])


REFERENCE, GAP = "walks", "qm9, gap"
CERTAIN = 3
"""Standard errors from which a difference is certain."""

GRID_COLORS = LinearSegmentedColormap.from_list("difference", [RED, "#ffffff", OURS])
"""Colours from an error of twice that of random walks to one of half."""

GRID_NAMES = {
    "none": "no encoding",
    "eigenvectors": "LaplacianEigenvectors",
    "walks": "RandomWalk",
    "whitened-walks": "Whitened RandomWalk",
    "positions": "Positions",
    "positions, trained": "Positions, trained",
    "heat": "HeatKernel",
    "whitened heat": "Whitened HeatKernel",
    "resistance": "EffectiveResistance",
    "whitened resistance": "Whitened EffectiveResistance",
    "cycles": "CycleCounts",
    "whitened cycles": "Whitened CycleCounts",
    "distances": "ShortestPath",
    "R-PEARL": "RPEARL",
    "whitened GPSE, retrained": "Whitened GPSE, retrained",
}
"""Names of rows in the picture."""

GRID_TITLES = {
    "accuracy": "accuracy, % ↑",
    "average_precision": "precision, % ↑",
    "balanced_accuracy": "accuracy, % ↑",
    "f1": "F1, % ↑",
    "mae": "error ↓",
    "r2": "R2, % ↑",
    "roc_auc": "ROC-AUC, % ↑",
    "share": "told apart, % ↑",
}
"""Titles of metrics; an arrow points to better values."""


def draw_grid(path: Path) -> None:
    """Draw the reference grid: rows are encodings and columns kinds of data.

    The colour is the error compared with that of random walks; the error of a share is what it lacks to 100 %. Hatched
    cells differ by less than three standard errors, grey ones were not run. Rows with at least half of the columns come
    first, ordered by their mean colour.
    """
    cells = [
        cell for cell in results_of("grid") if cell["column"] not in FEW and "universal-k32, no " not in cell["row"]
    ]
    columns, rows = (list(dict.fromkeys(cell[key] for cell in cells)) for key in ("column", "row"))
    walks = {cell["column"]: error(cell) for cell in cells if cell["row"] == REFERENCE}
    gains = {(cell["row"], cell["column"]): gain(error(cell), walks[cell["column"]]) for cell in cells}
    means = {row: statistics.fmean(value for (name, _), value in gains.items() if name == row) for row in rows}
    counts = Counter(row for row, _ in gains)
    rows.sort(key=lambda row: (2 * counts[row] < len(columns), -means[row]))
    figure = Figure(figsize=(2.6 + 0.46 * len(columns), 1.7 + 0.2 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.set_facecolor("#e4e4e4")
    for cell, lead in zip(cells, gains.values(), strict=True):  # both in the order of the file
        draw_cell(axes, cell, lead, columns.index(cell["column"]), rows.index(cell["row"]))
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    titles = {cell["column"]: "meV ↓" if cell["column"] == GAP else GRID_TITLES[cell["metric"]] for cell in cells}
    names = [column.replace(", no features", "").replace("-func", "") for column in columns]
    labels = [f"{name}\n{titles[column]}" for name, column in zip(names, columns, strict=True)]
    axes.set_xticks(range(len(columns)), labels, fontsize=8, rotation=60, ha="left", rotation_mode="anchor")
    axes.set_yticks(range(len(rows)), [GRID_NAMES.get(row, row) for row in rows], fontsize=8)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    save(figure, path, 120)


def error(cell: dict[str, Any]) -> float:
    """Return the mean test error of a cell; for a share, what it lacks to one."""
    value = float(cell["test"]["mean"])
    return 1 - value if cell["direction"] == "max" else value


def gain(own: float, walks: float) -> float:
    """Return the share by which an error is below (positive) or above (negative) that of random walks."""
    return (walks - own) / max(walks, own)


def draw_cell(axes: Any, cell: dict[str, Any], lead: float, x: int, y: int) -> None:
    """Draw the colour and the figure of a cell."""
    pair = cell["differences"].get(REFERENCE)
    hatch = "/////" if pair is not None and abs(pair["mean"]) <= CERTAIN * pair["error"] else None
    corners = [x - 0.5, x + 0.5, x + 0.5, x - 0.5], [y - 0.5, y - 0.5, y + 0.5, y + 0.5]
    axes.fill(*corners, facecolor=GRID_COLORS(0.5 + lead), edgecolor="#00000033", linewidth=0, hatch=hatch)
    value = cell["test"]["mean"]
    if cell["column"] == GAP:
        text = f"{MEV_IN['Hartree'] * value:.0f}"
    else:
        text = f"{100 * value:.1f}" if cell["direction"] == "max" else f"{value:#.2g}"
    axes.text(x, y, text, ha="center", va="center", fontsize=7.5, color="white" if abs(lead) > 0.4 else "black")


FURTHER_ROWS = {
    "gram-k16, frozen, nodes alone, 9 layers": ("gram-k16, frozen", ORANGE),
    "GramTransformer, 9 layers": ("GramTransformer", OURS),
    "random-walk, whitened, nodes alone, 9 layers": ("random walks, whitened", VIOLET),
}


def draw_further(path: Path) -> None:
    """Draw the paired difference to random walks over the number of epochs, in percent of their error.

    Error bars have one standard error, over molecules and seeds together.
    """
    places: dict[str, list[tuple[int, float, float]]] = {name: [] for name in FURTHER_ROWS}
    for epochs in BUDGETS:
        rows = {row["row"]: row["further"] for row in results_of(f"zinc12k_{epochs}_further")}
        percent = 100 / rows["random-walk, 9 layers"]["mae"]
        for name in FURTHER_ROWS.keys() & rows.keys():
            difference = rows[name]["difference"]
            error = math.hypot(difference["mean_error"], difference["seed_error"])
            places[name].append((epochs, percent * difference["mean"], percent * error))
    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.axhline(0, color=BLUE, linewidth=1.2, label="random walks")
    for index, (name, (label, color)) in enumerate(FURTHER_ROWS.items()):
        epochs, means, errors = zip(*places[name], strict=True)
        beside = [budget * (1 + 0.03 * (index - 1)) for budget in epochs]  # bars do not hide each other
        axes.errorbar(beside, means, errors, color=color, label=label, marker="o", markersize=4, capsize=3)
    axes.set(xlabel="epochs", ylabel="difference of the mean error", xscale="log")
    axes.set_xticks(BUDGETS, map(str, BUDGETS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:+.0f} %".replace("-", "\N{MINUS SIGN}") if value else "0")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    save(figure, path)


POSITIONS = {"positions-k16": OURS, "LaplacianEigenvectors": ORANGE, "eigsh": BLUE, "lobpcg": RED}


def draw_positions(path: Path) -> None:
    """Draw the share of eigenvectors that is missing over the seconds, for each family, method and setting."""
    rows = results_of("positions_large")
    families = list(dict.fromkeys(row["family"] for row in rows))
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    for axes, family in zip(figure.subplots(2, 3, sharex=True, sharey=True).flat, families, strict=True):
        for method, color in POSITIONS.items():
            chosen = [row for row in rows if row["family"] == family and row["method"] == method]
            missing = [max(1 - row["share"], 1e-6) for row in chosen]
            axes.loglog(
                [row["seconds"] for row in chosen], missing, color=color, label=method, marker="o", markersize=4
            )
        axes.set_title(family, fontsize=9)
        axes.grid(alpha=0.25)
        axes.tick_params(labelsize=8)
    figure.supxlabel("seconds on one thread", fontsize=9)
    figure.supylabel("share of the eigenvectors that is missing", fontsize=9)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    save(figure, path)


SYNTHETIC_PANELS = {
    "1a": (0, "electric, eq. (3)"),
    "1b": (1, "resistive, eq. (3)"),
    "1c": (2, "heat, eq. (3)"),
    "3a": (4, "electric, eq. (7)"),
    "3b": (5, "resistive, eq. (7)"),
    "3c": (6, "heat, eq. (7)"),
    "3d": (7, "eigenvectors 1-10, eq. (7)"),
    "2d": (3, "eigenvectors 1-10, eq. (3)"),
    "2e": (8, "each of 1-10, complete"),
    "2f": (9, "each of 1-10, CSL"),
    "2a": (12, "eigenvectors 1-5, eq. (3)"),
    "2b": (13, "each of 1-5, complete"),
    "2c": (14, "each of 1-5, CSL"),
}
"""Cell of a grid of four columns, and title."""

KINDS = {"complete": (BLUE, "complete"), "csl": (RED, "CSL")}
VECTORS = ("#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#e3d01c", "#f39c12")


def draw_synthetic(rows: Rows, path: Path) -> None:
    """Draw figures 1, 2 and 3 of the paper as one: geometric mean over seeds, and their range, of every curve."""
    figure = Figure(figsize=(13, 12), layout="constrained")
    grid = figure.add_gridspec(4, 4)
    for panel, (cell, title) in SYNTHETIC_PANELS.items():
        axes = figure.add_subplot(grid[cell // 4, cell % 4])
        draw_losses(axes, [row for row in rows if row["panel"] == panel])
        axes.set_title(f"{panel[0]}({panel[1]}) {title}", fontsize=10)
    save(figure, path, 90)


def draw_losses(axes: Any, rows: Rows) -> None:
    """Draw a panel: both kinds of graphs, or the eigenvectors of one kind."""
    for row in rows:
        if len({other["graphs"] for other in rows}) == len(rows) or row["curve"].startswith("loss_1-"):
            color, label = KINDS[row["graphs"]]
            label = f"{label}, slope {row['slope']:.2f}"
        else:
            number = int(row["curve"].removeprefix("loss_"))
            color, label = VECTORS[number - 2], f"$v_{{{number}}}$"
        middle = [math.prod(value ** (1 / len(values)) for value in sorted(values)) for values in row["loss"]]
        axes.plot(row["depths"], middle, color=color, marker="o", markersize=3, linewidth=1.2, label=label)
        low, high = ([extreme(values) for values in row["loss"]] for extreme in (min, max))
        axes.fill_between(row["depths"], low, high, color=color, alpha=0.15, linewidth=0)
    axes.set(xlabel="layers", ylabel="test loss", yscale="log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25, which="both")
    axes.tick_params(labelsize=7)
    if rows:
        axes.legend(frameon=False, fontsize=7, ncols=1 if len(rows) < 3 else 2)


FIGURES: dict[str, Callable[[Path], None]] = {
    "grid": draw_grid,
    "zinc12k_further": draw_further,
    "positions_large": draw_positions,
    "synthetic": lambda path: draw_synthetic(results_of("synthetic"), path),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=["all", *FIGURES], default="all", metavar="NAME")
    names = parser.parse_args().names
    for name in FIGURES if "all" in names else names:
        FIGURES[name](RESULTS / f"{name}.png")


if __name__ == "__main__":
    main()
