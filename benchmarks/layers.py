"""Compare the layers that the bounds require for a tolerance with the error after these layers.

    python benchmarks/layers.py [--quick] [--json FILE]

For 200 random weighted graphs (complete, CSL, paths, Erdos-Renyi) and tolerances of 1e-2, 1e-4 and 1e-6, each
construction runs with the number of layers that its bound requires, and is compared with dense algebra in float64. The
first rows are a weighted path whose eigenvalues lie between 0.039 and 9.64, on which gradient descent is slow.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from _arguments import Parser
from _results import show, write_results
from torch import Tensor

from tg_lpe import theory as c
from tg_lpe.data.synthetic import complete_edges, random_conductances, random_incidences

TOLERANCES = (1e-2, 1e-4, 1e-6)
TEMPERATURE = 0.5
WIDTH = 3
"""Number of eigenvectors; the error is that of the projector onto their span, the sine of the largest angle."""
PATH_SEED = 2418
"""Seed of the weighted path with lambda_min = 0.039 and lambda_max = 9.64."""


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
    bound: Callable[[Spectrum], Callable[[int], float]]
    run: Callable[[Spectrum, int], Tensor]
    exact: Callable[[Spectrum], Tensor]
    layers_a_step: int = 1

    def layers(self, g: Spectrum, tolerance: float) -> int:
        """Return the number of layers that the bound requires."""
        return self.layers_a_step * c.layers_needed(self.bound(g), tolerance)


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
        *("1", "electric flow, gradient descent"),
        lambda g: lambda n: c.electric_flow_bound(n, *g.interval),
        *(_electric, _inverse),
    ),
    Construction(
        *("4", "electric flow, products"),
        lambda g: lambda n: c.fast_electric_flow_bound(n, *g.interval),
        *(_fast_electric, _inverse),
    ),
    Construction(
        *("2", "resistive embedding"),
        lambda g: lambda n: c.resistive_embedding_bound(n, *g.interval),
        *(_resistive, lambda g: g.function(torch.rsqrt)),
    ),
    Construction(
        *("3", "heat kernel, power series"),
        lambda g: lambda n: c.heat_kernel_bound(n, g.interval[1], TEMPERATURE),
        *(_heat, _exponential),
    ),
    Construction(
        *("5", "heat kernel, cubing"),
        lambda g: lambda n: c.fast_heat_kernel_bound(n, g.interval[1], TEMPERATURE),
        *(_fast_heat, _exponential),
    ),
    *(
        Construction(
            *(lemma, f"{WIDTH} {'top' if top else 'bottom'} eigenvectors"),
            partial(_subspace_bound, top=top),
            *(partial(_subspace, top=top), partial(_projector, top=top)),
            layers_a_step=WIDTH + 1,
        )
        for lemma, top in (("6", True), ("7", False))
    ),
)


def incidence(edges: Tensor, num_nodes: int, generator: torch.Generator) -> Tensor:
    """Return the dense incidence matrix ``B`` of a graph with random conductances."""
    root = random_conductances((edges.size(1),), generator).sqrt()
    columns = torch.arange(edges.size(1))
    b = torch.zeros(num_nodes, edges.size(1), dtype=torch.float64)
    b[edges[0], columns], b[edges[1], columns] = -root, root
    return b


def path(num_nodes: int, generator: torch.Generator) -> Tensor:
    nodes = torch.arange(num_nodes)
    return incidence(torch.stack([nodes[:-1], nodes[1:]]), num_nodes, generator)


def random_graphs(count: int, seed: int) -> Iterator[Tensor]:
    """Draw ``count`` connected graphs, a quarter of each kind."""
    generator = torch.Generator().manual_seed(seed)
    yield from random_incidences("complete", count // 4, generator)
    yield from random_incidences("csl", count // 4, generator)
    for _ in range(count // 4):
        yield path(int(torch.randint(4, 13, (), generator=generator)), generator)
    for _ in range(count - 3 * (count // 4)):
        every = complete_edges(16)
        kept = every[:, torch.rand(every.size(1), generator=generator) < 0.2]
        chain = torch.stack([torch.arange(15), torch.arange(1, 16)])  # makes the random graph connected
        yield incidence(torch.unique(torch.cat([kept, chain], dim=1), dim=1), 16, generator)


def measure(
    construction: Construction, graphs: list[Spectrum], tolerances: Sequence[float], where: str
) -> dict[str, Any]:
    """Measure layers and errors over some graphs for each tolerance."""
    start = time.perf_counter()
    row: dict[str, Any] = {
        "graphs": where,
        "num_graphs": len(graphs),
        "lemma": construction.lemma,
        "construction": construction.what,
        "tolerances": list(tolerances),
        "layers_median": [],
        "layers_max": [],
        "worst_error": [],
    }
    for tolerance in tolerances:
        layers, errors = [], []
        for graph in graphs:
            layers.append(construction.layers(graph, tolerance))
            with torch.no_grad():
                difference = construction.run(graph, layers[-1]) - construction.exact(graph)
            errors.append(float(torch.linalg.matrix_norm(difference, 2)))
        row["layers_median"].append(statistics.median_low(layers))
        row["layers_max"].append(max(layers))
        row["worst_error"].append(max(errors))
    row["seconds"] = time.perf_counter() - start
    show(row)
    return row


def main() -> None:
    args = Parser(__doc__, "8 graphs, no tolerance below 1e-2", "layers.json").parse_args()
    torch.set_num_threads(1)  # matrices of ten rows
    weighted = Spectrum.of(path(10, torch.Generator().manual_seed(PATH_SEED)))
    random = [Spectrum.of(b) for b in random_graphs(8 if args.quick else 200, seed=0)]
    rows = []
    for where, graphs in (("weighted path", [weighted]), ("random", random)):
        for construction in CONSTRUCTIONS:
            rows.append(measure(construction, graphs, TOLERANCES[: 1 if args.quick else 3], where))
    low, high = weighted.interval
    write_results(args.json, rows, path={"lambda_min": low, "lambda_max": high})


if __name__ == "__main__":
    main()
