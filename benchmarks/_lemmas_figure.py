"""Draw error and bound of each lemma against the number of layers, on the weighted path of layers.py.

python benchmarks/_lemmas_figure.py
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
from layers import CONSTRUCTIONS, PATH_SEED, TEMPERATURE, WIDTH, Spectrum, _iterated, _start, path
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tg_lpe import theory as c
from tg_lpe.checkpoints.files import replacing

TARGET = Path(__file__).parent / "results" / "lemmas.png"
MOST = {"1": 4000, "2": 3500, "3": 24, "4": 13, "5": 13, "6": 120, "7": 2400}
"""Largest number of layers drawn for each lemma."""
FLOOR = 1e-15


def bounds(g: Spectrum) -> dict[str, Callable[[int], float]]:
    """Return the bound of each lemma by the number of layers."""
    low, high = g.interval
    return {
        "1": lambda n: c.electric_flow_bound(n, low, high),
        "2": lambda n: c.resistive_embedding_bound(n, low, high),
        "3": lambda n: c.heat_kernel_bound(n, high, TEMPERATURE),
        "4": lambda n: c.fast_electric_flow_bound(n, low, high),
        "5": lambda n: c.fast_heat_kernel_bound(n, high, TEMPERATURE),
        "6": subspace_bound(g, top=True),
        "7": subspace_bound(g, top=False),
    }


def subspace_bound(g: Spectrum, top: bool) -> Callable[[int], float]:
    """Return the bound on subspace iteration from the start in layers.py."""
    values, vectors = _iterated(g, top)
    inside, outside = vectors[:, :WIDTH].mT @ _start(g), vectors[:, WIDTH:].mT @ _start(g)
    tangent = float(torch.linalg.matrix_norm(outside @ torch.linalg.inv(inside), 2))
    ratio = abs(float(values[WIDTH] / values[WIDTH - 1]))
    return lambda n: c.subspace_iteration_bound(n // (WIDTH + 1), ratio, tangent)


def main() -> None:
    torch.set_num_threads(1)
    g = Spectrum.of(path(10, torch.Generator().manual_seed(PATH_SEED)))
    figure = Figure(figsize=(10.5, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 4).flatten()
    by_lemma = {construction.lemma: construction for construction in CONSTRUCTIONS}
    for panel, (lemma, bound) in zip(axes, bounds(g).items(), strict=False):
        construction = by_lemma[lemma]
        unit = WIDTH + 1 if lemma in "67" else 1
        step = unit * max(1, MOST[lemma] // unit // 40)
        layers = range(0 if unit == 1 else unit, MOST[lemma] + 1, step)
        with torch.no_grad():
            errors = [construction.run(g, count) - construction.exact(g) for count in layers]
        sizes = [max(float(torch.linalg.matrix_norm(error, 2)), FLOOR) for error in errors]
        limits = [bound(count) for count in layers]
        known = [(count, limit) for count, limit in zip(layers, limits, strict=True) if math.isfinite(limit)]
        panel.plot(*zip(*known, strict=True), color="#8a8a8a", linestyle="--", linewidth=1.2, label="bound")
        panel.plot(layers, sizes, color="#1f8a5b", marker=".", markersize=4, linewidth=1.0, label="error")
        panel.set_yscale("log")
        panel.set_ylim(bottom=min(1e-8, max(FLOOR, min(sizes))))
        panel.set_title(f"{'Corollary' if lemma == '7' else 'Lemma'} {lemma}: {construction.what}", fontsize=8.5)
        panel.set_xlabel("layers", fontsize=8)
        panel.tick_params(labelsize=7)
        panel.grid(alpha=0.25)
    axes[0].set_ylabel("spectral norm", fontsize=8)
    axes[4].set_ylabel("spectral norm", fontsize=8)
    axes[7].axis("off")
    axes[7].legend(*axes[0].get_legend_handles_labels(), loc="center", frameon=False)
    with replacing(TARGET) as temporary:
        figure.savefig(temporary, format="png", dpi=110)


if __name__ == "__main__":
    main()
