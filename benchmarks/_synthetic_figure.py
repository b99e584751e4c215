"""Draw figures 1, 2 and 3 of the paper as one, from the rows of synthetic.py: loss by number of layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tg_lpe.checkpoints.files import replacing

PANELS = (
    ("1a", "electric, eq. (3)"),
    ("1b", "resistive, eq. (3)"),
    ("1c", "heat, eq. (3)"),
    ("3a", "electric, eq. (7)"),
    ("3b", "resistive, eq. (7)"),
    ("3c", "heat, eq. (7)"),
    ("3d", "eigenvectors 1-10, eq. (7)"),
    ("2d", "eigenvectors 1-10, eq. (3)"),
    ("2e", "each of 1-10, complete"),
    ("2f", "each of 1-10, CSL"),
    ("2a", "eigenvectors 1-5, eq. (3)"),
    ("2b", "each of 1-5, complete"),
    ("2c", "each of 1-5, CSL"),
)
CELLS = (0, 1, 2, 4, 5, 6, 7, 3, 8, 9, 12, 13, 14)  # of a grid of four columns
KINDS = {"complete": ("#3b7dd8", "complete"), "csl": ("#b04a5a", "CSL")}
VECTORS = ("#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#e3d01c", "#f39c12")


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the geometric mean over seeds, and their range, of every curve."""
    figure = Figure(figsize=(13, 12), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(4, 4)
    for (panel, title), cell in zip(PANELS, CELLS, strict=True):
        axes = figure.add_subplot(grid[cell // 4, cell % 4])
        draw_panel(axes, [row for row in rows if row["panel"] == panel])
        axes.set_title(f"{panel[0]}({panel[1]}) {title}", fontsize=10)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=90)


def draw_panel(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Draw a panel: both kinds of graphs, or the eigenvectors of one kind."""
    for row in rows:
        if len({other["graphs"] for other in rows}) == len(rows) or row["curve"].startswith("loss_1-"):
            color, label = KINDS[row["graphs"]]
            label = f"{label}, slope {row['slope']:.2f}"
        else:
            number = int(row["curve"].removeprefix("loss_"))
            color, label = VECTORS[number - 2], f"$v_{{{number}}}$"
        losses = [sorted(values) for values in row["loss"]]
        middle = [_geometric_mean(values) for values in losses]
        axes.plot(row["depths"], middle, color=color, marker="o", markersize=3, linewidth=1.2, label=label)
        low, high = [values[0] for values in losses], [values[-1] for values in losses]
        axes.fill_between(row["depths"], low, high, color=color, alpha=0.15, linewidth=0)
    axes.set(xlabel="layers", ylabel="test loss", yscale="log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25, which="both")
    axes.tick_params(labelsize=7)
    if rows:
        axes.legend(frameon=False, fontsize=7, ncols=1 if len(rows) < 3 else 2)


def _geometric_mean(values: list[float]) -> float:
    product = 1.0
    for value in values:
        product *= value ** (1 / len(values))
    return product
