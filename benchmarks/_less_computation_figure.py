"""Draw the figure of less_computation.py: test error and encoding time by numbers of layers and columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tg_lpe.checkpoints.files import replacing

QUANTITIES = (("test_mae", "test MAE"), ("microseconds_a_graph", "µs to encode a graph"))
LEVELS = {"none": "#8a8a8a", "laplacian": "#c98b2e"}
COLOR = "#1f8a5b"


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the linear transformer as points, and no encoding and Laplacian eigenvectors as horizontal lines."""
    figure = Figure(figsize=(8.5, 6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 2, sharex="col", sharey="row")
    learned = [row for row in rows if row["layers"] is not None]
    widest = {name: most_common([row[other] for row in learned]) for name, other in (("layers", "k"), ("k", "layers"))}
    for column, (axis, other, title) in enumerate((("layers", "k", "layers"), ("k", "layers", "columns of Φ"))):
        shown = sorted((row for row in learned if row[other] == widest[axis]), key=lambda row: row[axis])
        for line, (key, name) in enumerate(QUANTITIES):
            axes = panels[line][column]
            spread = [row.get(f"{key}_std") or 0.0 for row in shown]
            places, values = [row[axis] for row in shown], [row[key] for row in shown]
            axes.errorbar(places, values, spread, color=COLOR, marker="o", markersize=4, label="linear transformer")
            for row in rows:
                if row["layers"] is None and key in row:
                    axes.axhline(row[key], color=LEVELS[row["row"]], linestyle="--", label=row["row"])
            axes.grid(alpha=0.25)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            if line == 1:
                axes.set(xlabel=f"{title} ({widest[axis]} {'columns' if other == 'k' else 'layers'})")
            if column == 0:
                axes.set(ylabel=name)
    panels[0][0].legend(frameon=False, fontsize=8)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)


def most_common(values: list[int]) -> int:
    """Return the most frequent value, the largest one if there are several."""
    return max(values, key=lambda value: (values.count(value), value))
