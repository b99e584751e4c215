"""Measure error and time of Gram read-outs on large graphs, by kind of graph, probes and number of nodes.

    python benchmarks/large_graph.py [--quick] [--json FILE]

The Gram transformer has 4 filters and 16 layers. `probes="rademacher"` estimates every layer from random signs;
`probes="auto"` computes entries exactly if they depend on few edges, and estimates the others. The truth comes from
products of identity columns in float64, at some random nodes and at their edges. Errors are root mean squares over all
layers, relative to the root mean square of the truth; `worst_layer` is the largest error of a single layer, without
layers whose root mean square is below 1 % of the largest: some are zero on bipartite graphs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import networkx as nx
import numpy as np
import torch
from _arguments import Parser
from _measure import timed
from _results import show, write_results
from scipy.sparse import coo_matrix
from scipy.spatial import Delaunay
from torch import Tensor

from tg_lpe import GramTransformer, Graph
from tg_lpe.data.synthetic import grid_edges, random_regular_edges

FILTERS, LAYERS = 4, 16
METHODS = [("rademacher", 64), ("auto", 16), ("auto", 64)]
NUM_COLUMNS = 128
"""Number of nodes at which the truth is computed."""


def road(num_nodes: int) -> Tensor:
    """Return the shortest edges of a triangulation of random points in the plane, 1.4 per node."""
    points = np.random.default_rng(1).random((num_nodes, 2))
    triangles = Delaunay(points).simplices
    edges = np.unique(np.sort(triangles[:, [[0, 1], [1, 2], [0, 2]]].reshape(-1, 2), axis=1), axis=0)
    length = np.linalg.norm(points[edges[:, 0]] - points[edges[:, 1]], axis=1)
    return torch.from_numpy(edges[np.argsort(length)[: int(1.4 * num_nodes)]].T.copy()).long()


def polymer(num_nodes: int) -> Tensor:
    """Join rings of six in a random tree: each is bonded to an earlier ring, at random atoms."""
    generator, rings = torch.Generator().manual_seed(1), num_nodes // 6
    first = torch.arange(rings).unsqueeze(1) * 6
    around = torch.stack([first + torch.arange(6), first + torch.arange(1, 7) % 6]).flatten(1)
    parent = (torch.rand(rings - 1, generator=generator) * torch.arange(1, rings)).long()
    atoms = torch.randint(6, (2, rings - 1), generator=generator)
    return torch.cat([around, torch.stack([parent * 6 + atoms[0], torch.arange(1, rings) * 6 + atoms[1]])], 1)


def listed(graph: nx.Graph) -> Tensor:
    return torch.tensor(list(graph.edges)).T.contiguous()


def power_law(num_nodes: int) -> Tensor:
    """Draw random edges between nodes whose degrees have a tail with exponent 2.3."""
    degree = np.minimum((np.random.default_rng(1).pareto(1.3, num_nodes) + 1) * 1.5, num_nodes**0.75).astype(int)
    degree[0] += degree.sum() % 2
    return listed(nx.Graph(nx.configuration_model(degree.tolist(), seed=1)))


FAMILIES: dict[str, Callable[[int], Tensor]] = {
    "random regular, degree 6": lambda n: random_regular_edges(n, 6, torch.Generator().manual_seed(1)),
    "grid": lambda n: grid_edges(int(n**0.5)),
    "road": road,
    "polymer": polymer,
    "small world": lambda n: listed(nx.watts_strogatz_graph(n, 6, 0.1, seed=1)),
    "preferential attachment": lambda n: listed(nx.barabasi_albert_graph(n, 3, seed=1)),
    "power law": power_law,
}


def model_of(probes: str, num_probes: int) -> GramTransformer:
    """Make the encoder with the same weights for any probes."""
    torch.manual_seed(0)
    return GramTransformer(None, None, FILTERS, LAYERS, probes=probes, num_probes=num_probes).eval()


def truth(graph: Graph) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute exact entries at some nodes and edges, ``[..., num_filters, num_layers]``."""
    model = model_of("rademacher", 1).double()
    adjacency = model._adjacency(graph, None, None).numpy()
    tail, head, size = graph.tail.numpy(), graph.head.numpy(), (graph.num_nodes,) * 2
    chosen = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(2))[:NUM_COLUMNS]
    column = np.full(graph.num_nodes, -1)
    column[chosen.numpy()] = np.arange(chosen.numel())
    edges = np.flatnonzero(column[head] >= 0)
    nodes_found, edges_found = [], []
    for row in adjacency:
        upper = coo_matrix((row, (tail, head)), size)
        P, phi = (upper + upper.T).tocsr(), np.zeros((graph.num_nodes, chosen.numel()))
        phi[chosen.numpy(), np.arange(chosen.numel())] = 1
        for _ in range(LAYERS):
            phi = P @ phi
            nodes_found.append(phi[chosen.numpy(), np.arange(chosen.numel())])
            edges_found.append(phi[tail[edges], column[head[edges]]])
    found = (torch.from_numpy(np.array(part)).T.unflatten(1, (FILTERS, LAYERS)) for part in (nodes_found, edges_found))
    return chosen, torch.from_numpy(edges), *found


def errors(got: Tensor, exact: Tensor) -> tuple[float, float]:
    """Return the relative root mean square error of all layers together, and of the worst layer."""
    error = (got.unflatten(1, (FILTERS, LAYERS)).double() - exact).square().mean((0, 1))
    size = exact.square().mean((0, 1))
    is_read = size > 1e-4 * size.max()
    return float((error.sum() / size.sum()).sqrt()), float((error / size)[is_read].max().sqrt())


def measure(family: str, num_nodes: int, repeats: int) -> list[dict[str, object]]:
    """Measure time and error of each method on one graph."""
    edge_index = FAMILIES[family](num_nodes)
    graph = Graph(edge_index, int(edge_index.max()) + 1)
    chosen, edges, *exact = truth(graph)
    rows = []
    for probes, num_probes in METHODS:
        model = model_of(probes, num_probes)
        found, *times = timed(lambda model=model: model.gram(graph))
        times += [timed(lambda model=model: model.gram(graph))[1] for _ in range(repeats - 1)]
        at_nodes, at_edges = (
            errors(got[at], true) for got, at, true in zip(found, (chosen, edges), exact, strict=True)
        )
        rows.append(
            {
                "family": family,
                "num_nodes": graph.num_nodes,
                "num_edges": graph.num_edges,
                "probes": probes,
                "num_probes": num_probes,
                "seconds": statistics.median(times),
                "spread": [min(times), max(times)],
                "error_nodes": at_nodes[0],
                "error_edges": at_edges[0],
                "worst_layer_nodes": at_nodes[1],
                "worst_layer_edges": at_edges[1],
            }
        )
        show(rows[-1])
    return rows


@torch.inference_mode()
def main() -> None:
    args = Parser(__doc__, "smaller graphs, fewer repeats", "large_graph.json").parse_args()
    sizes, repeats = ([10_000], 1) if args.quick else ([2_000, 10_000, 100_000], 3)
    rows = [row for size in sizes for family in FAMILIES for row in measure(family, size, repeats)]
    write_results(args.json, rows)


if __name__ == "__main__":
    main()
