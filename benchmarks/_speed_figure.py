"""Draw the figure of docs/performance.md from the files under benchmarks/results.

    python benchmarks/_speed_figure.py

It shows graphs encoded per second, compared with PyG and dense algebra; graphs trained on per second; time per edge by
size of the graph; and quality of eigenvectors against time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tg_lpe.checkpoints.files import read_json, replacing

RESULTS = Path(__file__).parent / "results"
OURS, THEIRS = "#1f8a5b", "#8a8a8a"


def bars(axes: Any, rows: list[tuple[str, float, bool]], title: str) -> None:
    """Draw the graphs per second of each row, with this library in colour."""
    places = range(len(rows), 0, -1)
    axes.barh(places, [value for _, value, _ in rows], color=[OURS if own else THEIRS for _, _, own in rows])
    axes.set_yticks(places, [name for name, _, _ in rows], fontsize=6)
    axes.set(title=title, xlabel="graphs a second", xscale="log")


def throughput(axes: Any) -> None:
    rows = read_json(RESULTS / "throughput.json")["results"]
    shown = [(row["what"].replace(", ", ",\n", 1), row["graphs_per_second"], "Linear" in row["what"]) for row in rows]
    bars(axes, shown, "encoding, ZINC")


def training(axes: Any) -> None:
    rows = read_json(RESULTS / "training.json")["results"]
    bars(axes, [(r["row"], r["graphs_per_second"], not r["row"].startswith("PyG")) for r in rows], "training, ZINC")
    axes.set_xscale("linear")


def scaling(axes: Any, content: dict[str, Any]) -> None:
    for kind, style in (("grid", "o-"), ("random", "s-"), ("random, reordered", "^:")):
        rows = [row for row in content["results"] if row["graph"] == kind]
        nodes, times = [row["num_nodes"] for row in rows], [row["ns_per_edge_and_layer"] for row in rows]
        axes.plot(nodes, times, style, label=kind, linewidth=1.1, markersize=4)
    axes.set(title="one graph, 9 layers", xlabel="nodes", ylabel="ns an edge and layer", xscale="log", ylim=(0, 16))
    axes.legend(frameon=False, fontsize=7)


def quality(axes: Any, content: dict[str, Any]) -> None:
    for what in dict.fromkeys(row["what"] for row in content["results"]):
        rows = [row for row in content["results"] if row["what"] == what]
        color, style = OURS if what.startswith("ours") else None, "o--" if "Corollary" in what else "o-"
        seconds, errors = [row["seconds"] for row in rows], [row["residual"] for row in rows]
        axes.plot(seconds, errors, style, label=what.split(",")[0], color=color, linewidth=1.1, markersize=4)
    axes.set(title="eigenvectors of a grid", xlabel="seconds", ylabel="residual", xscale="log", yscale="log")
    axes.legend(frameon=False, fontsize=7)


def main() -> None:
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 4)
    throughput(panels[0])
    training(panels[1])
    content = read_json(RESULTS / "scaling.json")
    scaling(panels[2], content)
    quality(panels[3], read_json(RESULTS / "eigenvectors.json"))
    for axes in panels:
        axes.tick_params(labelsize=6)
        axes.grid(alpha=0.25)
    with replacing(RESULTS / "speed.png") as temporary:
        figure.savefig(temporary, format="png", dpi=110)


if __name__ == "__main__":
    main()
