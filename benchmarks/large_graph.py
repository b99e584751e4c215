"""Measure the error of Gram read-outs on large graphs, by kind of graph.

    python benchmarks/large_graph.py [--quick] [--json FILE]

The graphs are those of positions.py, and one whose degrees follow a power law. The Gram transformer has 4 filters and
16 layers. It computes entries exactly if they depend on few edges, and estimates the others from 64 random signs. The
truth comes from products of identity columns in float64, at some random nodes and at their edges. Errors are root mean
squares over all layers, relative to the root mean square of the truth.
"""

from __future__ import annotations

import numpy as np
import torch
from _arguments import Parser
from _measure import timed
from _results import show, write_results
from positions import FAMILIES, connected, incidence
from scipy.sparse import coo_matrix
from torch import Tensor

from tg_lpe import GramTransformer, Graph

FILTERS, LAYERS = 4, 16
NUM_COLUMNS = 128
"""Number of nodes at which the truth is computed."""


def power_law(num_nodes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw random edges between nodes whose degrees have a tail with exponent 2.3."""
    random = np.random.default_rng(seed)
    degree = np.minimum((random.pareto(1.3, num_nodes) + 1) * 1.5, num_nodes**0.75).astype(int)
    ends = random.permutation(np.repeat(np.arange(num_nodes), degree))
    return ends[: len(ends) // 2], ends[-(len(ends) // 2) :]


def truth(model: GramTransformer, graph: Graph) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute exact entries at some nodes and edges, ``[..., num_filters, num_layers]``."""
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


def error(entries: Tensor, exact: Tensor) -> float:
    """Return the relative root mean square error of all layers together."""
    difference = entries.unflatten(1, (FILTERS, LAYERS)).double() - exact
    return float((difference.square().sum() / exact.square().sum()).sqrt())


def measure(family: str, num_nodes: int) -> dict[str, object]:
    """Measure time and error on a graph."""
    draw = power_law if family == "power law" else FAMILIES[family]
    graph = incidence(connected(*draw(num_nodes, 0), num_nodes))
    torch.manual_seed(0)
    model = GramTransformer(None, None, FILTERS, LAYERS, num_probes=64).eval()
    (nodes, edges), seconds = timed(lambda: model.gram(graph))
    at_nodes, at_edges, exact_nodes, exact_edges = truth(model.double(), graph)
    return {
        "family": family,
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        "seconds": seconds,
        "error_nodes": error(nodes[at_nodes], exact_nodes),
        "error_edges": error(edges[at_edges], exact_edges),
    }


@torch.inference_mode()
def main() -> None:
    args = Parser(__doc__, "graphs of 10,000 nodes", "large_graph.json").parse_args()
    rows = []
    for family in (*FAMILIES, "power law"):
        rows.append(measure(family, 10_000 if args.quick else 100_000))
        show(rows[-1])
    write_results(args.json, rows)


if __name__ == "__main__":
    main()
