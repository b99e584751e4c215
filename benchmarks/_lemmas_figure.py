"""Draw error and bound of each lemma against the number of layers, on the weighted path of layers.py.

python benchmarks/_lemmas_figure.py
"""

from __future__ import annotations

import math

import torch
from _figures import GREY, OURS, save
from _results import RESULTS
from layers import CONSTRUCTIONS, PATH_SEED, Spectrum, path
from matplotlib.figure import Figure

MOST = {"1": 4000, "2": 3500, "3": 24, "4": 13, "5": 13, "6": 120, "7": 2400}
"""Largest number of layers drawn for each lemma."""
FLOOR = 1e-15


def main() -> None:
    torch.set_num_threads(1)
    g = Spectrum.of(path(10, torch.Generator().manual_seed(PATH_SEED)))
    figure = Figure(figsize=(10.5, 5), layout="constrained")
    axes = figure.subplots(2, 4).flatten()
    by_lemma = {construction.lemma: construction for construction in CONSTRUCTIONS}
    for panel, (lemma, most) in zip(axes, MOST.items(), strict=False):
        construction = by_lemma[lemma]
        unit, bound = construction.layers_a_step, construction.bound(g)
        layers = range(0 if unit == 1 else unit, most + 1, unit * max(1, most // unit // 40))
        with torch.no_grad():
            errors = [construction.run(g, count) - construction.exact(g) for count in layers]
        sizes = [max(float(torch.linalg.matrix_norm(error, 2)), FLOOR) for error in errors]
        limits = [bound(count // unit) for count in layers]
        known = [(count, limit) for count, limit in zip(layers, limits, strict=True) if math.isfinite(limit)]
        panel.plot(*zip(*known, strict=True), color=GREY, linestyle="--", linewidth=1.2, label="bound")
        panel.plot(layers, sizes, color=OURS, marker=".", markersize=4, linewidth=1.0, label="error")
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
    save(figure, RESULTS / "lemmas.png")


if __name__ == "__main__":
    main()
