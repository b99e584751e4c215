"""Draw the README's figure from the files under benchmarks/results.

    python benchmarks/_figure.py

Left: validation error by epoch. Right: test error as the molecules are listed, and with their atoms numbered anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tg_lpe.files import read_json, replacing

RESULTS = Path(__file__).parent / "results"
CURVES, BARS = "zinc_100", "zinc12k_15"
COLORS = {
    "none": "#8a8a8a",
    "laplacian": "#c98b2e",
    "random-walk": "#3b7dd8",
    "linear-transformer-learned": "#b04a5a",
    "linear-transformer-features": "#8f6bb3",
    "linear-transformer": "#1f8a5b",
}


def main() -> None:
    curves, bars = ({row["row"]: row for row in read_json(RESULTS / f"{n}.json")["results"]} for n in (CURVES, BARS))
    figure = Figure(figsize=(9.6, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for name, color in COLORS.items():
        if name in curves:
            draw_curve(left, curves[name], color)
    left.set(xlabel="epoch", ylabel="validation MAE", yscale="log", title="ZINC, 20,000 molecules")
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.yaxis.set_major_formatter("{x:.2f}")
    left.yaxis.set_minor_formatter("{x:.2f}")
    left.grid(alpha=0.25, which="both")
    left.legend(frameon=False)

    shown = [bars[name] for name in COLORS if name in bars]
    places = range(len(shown))
    for offset, key, alpha, label in (
        (-0.2, "test_mae", 1.0, "as listed"),
        (0.2, "test_mae_relabelled", 0.45, "atoms renumbered"),
    ):
        heights = [row[key] for row in shown]
        spread = [row[f"{key}_std"] or 0.0 for row in shown]
        colors = [COLORS[row["row"]] for row in shown]
        right.bar([p + offset for p in places], heights, 0.38, yerr=spread, color=colors, alpha=alpha)
        right.bar([0], [0], color="black", alpha=alpha, label=label)
    right.set_xticks(
        list(places),
        [
            row["row"].replace("linear-transformer", "linear\ntransformer").replace("former-", "former\n")
            for row in shown
        ],
        fontsize=7,
    )
    right.set(ylabel="test MAE", title="ZINC-12k, 15 epochs")
    right.legend(frameon=False)
    with replacing(RESULTS / "encodings.png") as temporary:
        figure.savefig(temporary, format="png", dpi=110)


def draw_curve(axes: Any, row: dict[str, Any], color: str) -> None:
    """The validation error of each seed."""
    for number, values in enumerate(row["val_mae_by_epoch"]):
        label = f"{row['row']}, test {row['test_mae']:.3f}" if number == 0 else None
        axes.plot(range(1, len(values) + 1), values, color=color, label=label, linewidth=1.2)


if __name__ == "__main__":
    main()
