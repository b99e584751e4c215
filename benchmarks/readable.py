"""Measure how much of textbook encodings a linear map reads off universal-k32, on graphs that it was not made from.

    python benchmarks/readable.py [--quick] --data DIR [--json FILE]

DIR has the folders zinc12k, peptides and nodes. Least squares on the columns of nodes, for resistances on those of
edges, are fitted on half of the graphs, or on half of the nodes of a network. The figure is R2 on the other half,
averaged over the columns of the target that vary. Eigenvectors are those of networks: in small graphs the encoding has
no place. The other way round, `structure` is R2 of its columns of structure, read off random walks of 16 steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import torch
from _arguments import Parser
from _ordered import UNIVERSAL, bare
from _results import show, write_results
from grid import cycles
from k import unexplained
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.transforms import LargestConnectedComponents
from torch_geometric.utils import from_networkx

from tg_lpe import Encoder, Graph, encoders
from tg_lpe.app.datasets.nodes import load_node_graph
from tg_lpe.app.molecules import read_molecules

NODES: dict[str, Encoder] = {
    "walks": encoders.RandomWalk(16).double(),
    "heat": encoders.HeatKernel().double(),
    "cycles": encoders.CycleCounts((3, 4, 5, 6)).double(),
    "eigenvectors": encoders.LaplacianEigenvectors(8).double(),
}
RESISTANCE = encoders.EffectiveResistance().double()
STRUCTURE = 16
"""Columns of universal-k32 before those of place."""
DENSE = 10
"""Edges a node with which cycles are too many to count."""

SMALLEST = 1e-9
"""Standard deviation of a column that varies."""


def circuit(num_gates: int, seed: int) -> nx.Graph:
    """Draw a circuit: each gate reads two of the forty signals before it."""
    draw, graph = torch.Generator().manual_seed(seed), nx.Graph()
    for gate in range(8, num_gates):
        first, second = torch.randint(max(0, gate - 40), gate, (2,), generator=draw).tolist()
        graph.add_edges_from([(first, gate), (second, gate)])
    return graph


def read(file: Path) -> list[Data]:
    """Read the graphs of a file of molecules."""
    return bare(read_molecules(file, canonical=False, progress=False)[0])


def drawn(make: Callable[[int, int], nx.Graph], count: int) -> list[Data]:
    """Draw graphs of 60 to 260 nodes by ``make(num_nodes, seed)``."""
    sizes = torch.randint(60, 261, (count,), generator=torch.Generator().manual_seed(0)).tolist()
    return bare(map(from_networkx, (make(size, seed) for seed, size in enumerate(sizes))))


def kinds(data: Path | None, count: int) -> dict[str, list[Data]]:
    """Return the graphs by kind, only drawn ones without a folder of data; networks are their largest component."""
    found = {
        "4-regular": bare(cycles(Path(), 5, 3 * count).test),
        "trees": drawn(lambda size, seed: nx.random_labeled_tree(size, seed=seed), count),
        "grids": drawn(lambda size, seed: nx.grid_2d_graph(6 + seed % 9, size // 12), count),
        "circuits": drawn(circuit, count),
    }
    if data is None:
        return found
    found |= {
        "molecules": read(data / "zinc12k" / "test.csv"),
        "peptides": read(data / "peptides" / "test.csv.xz")[:count],
    }
    for name in ("huangpu", "cora", "citeseer", "email"):
        graph = load_node_graph(data / "nodes" / f"{name}.npz", undirected=True)
        found[name] = bare([LargestConnectedComponents()(Data(edge_index=graph.edge_index, num_nodes=graph.num_nodes))])
    return found


def half(rows: Tensor, num_graphs: int) -> Tensor:
    """Return which rows are fitted, from the numbers of their graphs: every other graph, or half of one network."""
    is_one = torch.rand(len(rows), generator=torch.Generator().manual_seed(0)) < 0.5
    return is_one if num_graphs == 1 else rows % 2 == 0


def readable(columns: Tensor, target: Tensor, fitted: Tensor) -> float:
    """Return R2 of a linear map from columns to a target on the rows that are not fitted."""
    columns = columns[:, columns[fitted].std(0) > SMALLEST]  # small graphs have no place: least squares lose digits
    return 1 - unexplained(columns[fitted], target[fitted], columns[~fitted], target[~fitted])


@torch.no_grad()
def scores(encoder: Encoder, graphs: list[Data]) -> dict[str, float]:
    """Return R2 of each target on graphs of one kind, and the seconds that all encodings took."""
    start, graph = time.perf_counter(), Graph.from_data(Batch.from_data_list(graphs))
    encoding, fitted = encoder(None, graph), half(graph.batch, graph.num_graphs)
    found, once = {}, graph.edge_index.diff(dim=0)[0] > 0
    for name, target in NODES.items():
        is_costly = name == "cycles" and graph.num_edges > DENSE * graph.num_nodes
        if not is_costly and (name != "eigenvectors" or graph.num_graphs == 1):
            found[name] = readable(encoding.node, target(None, graph).node, fitted)
    of_edges = half(graph.batch[graph.edge_index[0, once]], graph.num_graphs)
    found["resistance"] = readable(encoding.edge[once], RESISTANCE(None, graph).edge[once], of_edges)
    found["structure"] = readable(NODES["walks"](None, graph).node, encoding.node[:, :STRUCTURE], fitted)
    varying = {name: value for name, value in found.items() if not math.isnan(value)}
    return {**varying, "seconds": time.perf_counter() - start}


def main() -> None:
    parser = Parser(__doc__, "few graphs, all drawn", "readable.json")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of all data")
    args = parser.parse_args()
    if args.data is None and not args.quick:
        parser.error("--data is needed")
    encoder, rows = encoders.load_encoder(UNIVERSAL).double(), []
    for kind, graphs in kinds(args.data, 50 if args.quick else 500).items():
        rows.append({"kind": kind, **scores(encoder, graphs)})
        show(rows[-1])
    write_results(args.json, rows)


if __name__ == "__main__":
    main()
