"""Draw error and bound of each lemma against the number of layers, on a weighted path of ten nodes.

python benchmarks/_lemmas_figure.py

Each construction is compared with dense algebra in float64. The eigenvalues of the path lie between 0.039 and 9.64, so
that gradient descent is slow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from _figures import GREY, OURS, save
from _results import RESULTS
from matplotlib.figure import Figure
from torch import Tensor

from tg_lpe import theory as c
from tg_lpe.data.synthetic import random_conductances

TEMPERATURE = 0.5
WIDTH = 3
"""Number of eigenvectors; the error is that of the projector onto their span, the sine of the largest angle."""
PATH_SEED = 2418
"""Seed of the weighted path with lambda_min = 0.039 and lambda_max = 9.64."""
FLOOR = 1e-15


@dataclass
class Spectrum:
    """A dense graph and its spectrum."""

    b: Tensor
    laplacian: Tensor
    values: Tensor
    vectors: Tensor

    @classmethod
    def of(cls, b: Tensor) -> Spectrum:
        return cls(b, b @ b.mT, *torch.linalg.eigh(b @ b.mT))

    @property
    def interval(self) -> tuple[float, float]:
        return float(self.values[1]), float(self.values[-1])

    def function(self, f: Callable[[Tensor], Tensor]) -> Tensor:
        """Return ``f(L)``, with ``f`` evaluated at all eigenvalues except the first, which is zero."""
        return self.vectors[:, 1:] * f(self.values[1:]) @ self.vectors[:, 1:].mT

    @property
    def centred(self) -> Tensor:
        return self.function(torch.ones_like)


@dataclass
class Construction:
    """A lemma: the bound on its error after some steps, and its output after some layers."""

    lemma: str
    what: str
    most: int
    """Largest number of layers drawn."""
    bound: Callable[[Spectrum], Callable[[int], float]]
    run: Callable[[Spectrum, int], Tensor]
    exact: Callable[[Spectrum], Tensor]
    layers_a_step: int = 1


def _electric(g: Spectrum, layers: int) -> Tensor:
    return c.electric_flow(len(g.values), layers, 1 / g.interval[1])(g.b, g.centred)


def _fast_electric(g: Spectrum, layers: int) -> Tensor:
    z = c.fast_electric_flow_input(g.laplacian, g.centred, 1 / g.interval[1])
    return c.fast_electric_flow_output(c.fast_electric_flow(layers)(z))


def _resistive(g: Spectrum, layers: int) -> Tensor:
    return c.resistive_embedding_layers(len(g.values), layers, g.interval[1])(g.b, g.centred)


def _heat(g: Spectrum, layers: int) -> Tensor:
    return c.heat_kernel_layers(len(g.values), layers, TEMPERATURE)(g.b, g.centred)


def _fast_heat(g: Spectrum, layers: int) -> Tensor:
    return g.centred @ c.fast_heat_kernel(layers)(c.fast_heat_kernel_input(g.laplacian, layers, TEMPERATURE))


def _iterated(g: Spectrum, top: bool) -> tuple[Tensor, Tensor]:
    """Return eigenvalues and eigenvectors of the iterated matrix, the wanted ones first."""
    if top:
        return g.values.flip(0), g.vectors.flip(1)
    return g.values[-1] - g.values, g.vectors


def _start(g: Spectrum) -> Tensor:
    return torch.randn(len(g.values), WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def _subspace_bound(g: Spectrum, top: bool) -> Callable[[int], float]:
    values, vectors = _iterated(g, top)
    inside, outside = vectors[:, :WIDTH].mT @ _start(g), vectors[:, WIDTH:].mT @ _start(g)
    tangent = float(torch.linalg.matrix_norm(outside @ torch.linalg.inv(inside), 2))
    ratio = abs(float(values[WIDTH] / values[WIDTH - 1]))
    return lambda steps: c.subspace_iteration_bound(steps, ratio, tangent)


def _subspace(g: Spectrum, layers: int, top: bool) -> Tensor:
    count = layers // (WIDTH + 1)
    model = c.top_eigenvectors(WIDTH, count) if top else c.bottom_eigenvectors(WIDTH, count, g.interval[1])
    q, _ = torch.linalg.qr(model(g.b, _start(g)))
    return q @ q.mT


def _projector(g: Spectrum, top: bool) -> Tensor:
    wanted = _iterated(g, top)[1][:, :WIDTH]
    return wanted @ wanted.mT


def _inverse(g: Spectrum) -> Tensor:
    return g.function(torch.reciprocal)


def _exponential(g: Spectrum) -> Tensor:
    return g.function(lambda values: torch.exp(-TEMPERATURE * values))


CONSTRUCTIONS = (
    Construction(
        *("Lemma 1", "electric flow, gradient descent", 4000),
        lambda g: lambda n: c.electric_flow_bound(n, *g.interval),
        *(_electric, _inverse),
    ),
    Construction(
        *("Lemma 2", "resistive embedding", 3500),
        lambda g: lambda n: c.resistive_embedding_bound(n, *g.interval),
        *(_resistive, lambda g: g.function(torch.rsqrt)),
    ),
    Construction(
        *("Lemma 3", "heat kernel, power series", 24),
        lambda g: lambda n: c.heat_kernel_bound(n, g.interval[1], TEMPERATURE),
        *(_heat, _exponential),
    ),
    Construction(
        *("Lemma 4", "electric flow, products", 13),
        lambda g: lambda n: c.fast_electric_flow_bound(n, *g.interval),
        *(_fast_electric, _inverse),
    ),
    Construction(
        *("Lemma 5", "heat kernel, cubing", 13),
        lambda g: lambda n: c.fast_heat_kernel_bound(n, g.interval[1], TEMPERATURE),
        *(_fast_heat, _exponential),
    ),
    *(
        Construction(
            *(lemma, f"{WIDTH} {'top' if top else 'bottom'} eigenvectors", most),
            partial(_subspace_bound, top=top),
            *(partial(_subspace, top=top), partial(_projector, top=top)),
            layers_a_step=WIDTH + 1,
        )
        for lemma, most, top in (("Lemma 6", 120, True), ("Corollary 7", 2400, False))
    ),
)


def path(num_nodes: int, generator: torch.Generator) -> Tensor:
    """Return the dense incidence matrix ``B`` of a path with random conductances."""
    root, columns = random_conductances((num_nodes - 1,), generator).sqrt(), torch.arange(num_nodes - 1)
    b = torch.zeros(num_nodes, num_nodes - 1, dtype=torch.float64)
    b[columns, columns], b[columns + 1, columns] = -root, root
    return b


def main() -> None:
    torch.set_num_threads(1)
    g = Spectrum.of(path(10, torch.Generator().manual_seed(PATH_SEED)))
    figure = Figure(figsize=(10.5, 5), layout="constrained")
    axes = figure.subplots(2, 4).flatten()
    for panel, construction in zip(axes, CONSTRUCTIONS, strict=False):
        unit, most, bound = construction.layers_a_step, construction.most, construction.bound(g)
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
        panel.set_title(f"{construction.lemma}: {construction.what}", fontsize=8.5)
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
