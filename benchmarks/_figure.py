"""Draw the README's figure from the files under benchmarks/results.

    python benchmarks/_figure.py

It shows the validation error by epoch for a short and a long training, and the test error with the atoms in file order
and renumbered at random.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tg_lpe.checkpoints.files import read_json, replacing

RESULTS = Path(__file__).parent / "results"
SHORT, LONG = "zinc12k_15", "zinc_100_summed"
COLORS = {
    "none": "#8a8a8a",
    "laplacian": "#c98b2e",
    "random-walk": "#3b7dd8",
    "LinearTransformer, learned probes": "#b04a5a",
    "GramTransformer": "#1f8a5b",
}
NAMES = {
    "LinearTransformer, learned probes": "row per\natom index",
}


def main() -> None:
    figure = Figure(figsize=(11.5, 3.7), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 3)
    for axes, name, title in zip(panels, (SHORT, LONG), ("ZINC-12k, 15 epochs", "ZINC-250k, 100 epochs"), strict=False):
        draw_curves(axes, read_json(RESULTS / f"{name}.json")["results"])
        axes.set_title(title)
    draw_bars(panels[2], {row["row"]: row for row in read_json(RESULTS / f"{SHORT}.json")["results"]})
    with replacing(RESULTS / "encodings.png") as temporary:
        figure.savefig(temporary, format="png", dpi=110)


def draw_curves(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Draw the validation error of each seed by epoch."""
    for row in rows:
        encoding = row["row"].split(",")[0]
        if encoding not in COLORS:
            continue
        for number, values in enumerate(row["val_mae_by_epoch"]):
            label = f"{NAMES.get(encoding, encoding)}, test {row['test_mae']:.3f}" if number == 0 else None
            axes.plot(range(1, len(values) + 1), values, color=COLORS[encoding], label=label, linewidth=1.1)
    axes.set(xlabel="epoch", ylabel="validation MAE", yscale="log", ylim=(None, 1.0))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter("{x:.2f}")
    axes.yaxis.set_minor_formatter("{x:.2f}")
    axes.tick_params(axis="y", which="both", labelsize=7)
    axes.grid(alpha=0.25, which="both")
    axes.legend(frameon=False, fontsize=7)


def draw_bars(axes: Any, rows: dict[str, dict[str, Any]]) -> None:
    """Draw the test error before and after renumbering the atoms."""
    shown = [(name, rows[name]) for name in COLORS if name in rows]
    for offset, key, alpha, label in (
        (-0.2, "test_mae", 1.0, "as listed"),
        (0.2, "test_mae_relabelled", 0.45, "atoms numbered anew"),
    ):
        heights = [row[key] for _, row in shown]
        spread = [row[f"{key}_std"] or 0.0 for _, row in shown]
        places = [place + offset for place in range(len(shown))]
        axes.bar(places, heights, 0.38, yerr=spread, color=[COLORS[name] for name, _ in shown], alpha=alpha)
        axes.bar([0], [0], color="black", alpha=alpha, label=label)
    axes.set_xticks(range(len(shown)), [NAMES.get(name, name) for name, _ in shown], fontsize=6)
    axes.set(ylabel="test MAE", title="ZINC-12k, 15 epochs")
    axes.legend(frameon=False, fontsize=7)


if __name__ == "__main__":
    main()
