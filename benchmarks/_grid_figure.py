"""Draw the reference grid from benchmarks/results/grid.json.

    python benchmarks/_grid_figure.py

Rows are encodings and columns kinds of data. The colour is the paired difference to random walks in standard errors:
green means that the encoding is better, nearly white that the difference is within two standard errors, and grey that
the cell was not run. Rows with at least half of the columns come first, ordered by mean difference.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from tg_lpe.checkpoints.files import read_json, replacing
from tg_lpe.data.units import MEV_IN
from tg_lpe.datasets.molecules import QM9_UNITS

RESULTS = Path(__file__).parent / "results"
REFERENCE, GAP = "walks", "qm9, gap"
LIMIT = 10
"""Standard errors of the strongest colours."""

COLOURS = LinearSegmentedColormap.from_list("difference", ["#b04a5a", "#f3e3e5", "#ffffff", "#e0efe7", "#1f8a5b"])
"""Colours from worse to better."""

NAMES = {
    "walks": "random walks",
    "whitened-walks": "random walks, whitened",
    "gram-k16": "LinearTransformerPE(k=16)",
    "whitened gram-k16": "LinearTransformerPE, whitened",
    "heat": "heat kernels",
    "resistance": "resistances",
    "cycles": "cycle counts",
    "distances": "counts of nodes by distance",
    "LPE": "LPE, Müller and Morris's",
}
"""Names of rows in the README."""

TITLES = {
    "accuracy": "accuracy, % ↑",
    "average_precision": "precision, % ↑",
    "balanced_accuracy": "accuracy, % ↑",
    "mae": "error ↓",
    "roc_auc": "ROC-AUC, % ↑",
    "share": "told apart, % ↑",
}
"""Titles of metrics; an arrow points to better values."""


def main() -> None:
    cells = read_json(RESULTS / "grid.json")["results"]
    columns, rows = (list(dict.fromkeys(cell[key] for cell in cells)) for key in ("column", "row"))
    of_row = {row: [cell for cell in cells if cell["row"] == row] for row in rows}
    rows.sort(key=lambda row: (2 * len(of_row[row]) < len(columns), -mean_gain(of_row[row])))
    figure = Figure(figsize=(1.9 + 0.87 * len(columns), 0.9 + 0.25 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set_facecolor("#eeeeee")
    for cell in cells:
        draw(axes, cell, columns.index(cell["column"]), rows.index(cell["row"]))
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    titles = {cell["column"]: "meV ↓" if cell["column"] == GAP else TITLES[cell["metric"]] for cell in cells}
    labels = [f"{column.replace(', no features', '').replace('-func', '')}\n{titles[column]}" for column in columns]
    axes.set_xticks(range(len(columns)), labels, fontsize=7.5)
    axes.set_yticks(range(len(rows)), [NAMES.get(row, row) for row in rows], fontsize=8)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    with replacing(RESULTS / "grid.png") as temporary:
        figure.savefig(temporary, format="png", dpi=120)


def gain(cell: dict[str, Any]) -> float:
    """Return the lead over random walks in standard errors, clipped to the limit; zero for random walks."""
    pair = cell["differences"].get(REFERENCE)
    if pair is None:
        return 0.0
    better = pair["mean"] if cell["direction"] == "max" else -pair["mean"]
    error = pair["error"] or 1e-12  # all parts have the same difference
    return max(-LIMIT, min(LIMIT, better / error))


def mean_gain(cells: list[dict[str, Any]]) -> float:
    return sum(map(gain, cells)) / len(cells)


def draw(axes: Any, cell: dict[str, Any], x: int, y: int) -> None:
    """Draw the colour and the figure of a cell."""
    shade = 0.5 + 0.5 * gain(cell) / LIMIT
    axes.fill([x - 0.5, x + 0.5, x + 0.5, x - 0.5], [y - 0.5, y - 0.5, y + 0.5, y + 0.5], color=COLOURS(shade))
    value = cell["test"]["mean"]
    if cell["column"] == GAP:
        text = f"{MEV_IN[QM9_UNITS['gap']] * value:.0f}"
    else:
        text = f"{100 * value:.1f}" if cell["direction"] == "max" else f"{value:.2g}"
    colour = "white" if abs(gain(cell)) > 0.8 * LIMIT else "black"
    axes.text(x, y, text, ha="center", va="center", fontsize=7.5, color=colour)


if __name__ == "__main__":
    main()
