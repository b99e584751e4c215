"""Compare transforms for textbook encodings with those of PyTorch Geometric, one graph at a time and in datasets.

The graphs are random connected graphs of 300 nodes, and molecules; for random walks and effective resistances
also a grid and an expander. Times are medians after a warm-up, in seconds for one graph. A ratio is the time of a peer
divided by the time of this library in the same run; the peer is PyG's ``AddLaplacianEigenvectorPE(8,
is_undirected=True)`` unless a row names another.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import networkx as nx
import numpy as np
import torch
from _arguments import Parser
from _measure import measure
from _results import show, write_results
from numpy.typing import NDArray
from scipy.sparse.linalg import splu
from throughput import one_by_one
from torch_geometric.data import Data
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE
from torch_geometric.utils import get_laplacian, to_scipy_sparse_matrix, to_undirected

from tg_lpe import AddPositionalEncoding
from tg_lpe.app.molecules import load_molecules
from tg_lpe.data.synthetic import grid_edges, random_regular_edges
from tg_lpe.encoders import HeatKernel, RandomWalk, ResistiveEmbedding
from tg_lpe.transforms import AddEffectiveResistance, AddLaplacianEigenvectors

K = 8
SMALL = {"grid of 400 nodes": lambda: grid_edges(20)}
LARGE = {
    "grid of 4,900 nodes": lambda: grid_edges(70),
    "random graph of 3,000 nodes": lambda: random_regular_edges(3000, 6, torch.Generator().manual_seed(0)),
}


def random_graphs(num_nodes: int, count: int) -> list[Data]:
    """Draw trees plus a third as many edges, about as sparse as molecules."""
    graphs = []
    for seed in range(count):
        tree = nx.random_labeled_tree(num_nodes, seed=seed)
        tree.add_edges_from(nx.gnm_random_graph(num_nodes, num_nodes // 3, seed=seed).edges)
        index = torch.tensor(list(tree.edges)).T
        graphs.append(Data(edge_index=torch.cat([index, index.flip(0)], 1), num_nodes=num_nodes))
    return graphs


def resistances_by_scipy(data: Data) -> NDArray[np.float64]:
    """Compute the effective resistances of the edges by a sparse factorisation and a system for each node."""
    laplacian = get_laplacian(data.edge_index, num_nodes=data.num_nodes, dtype=torch.float64)
    matrix = to_scipy_sparse_matrix(*laplacian, data.num_nodes).tocsc()[1:, 1:]
    solve = splu(matrix, permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True}).solve
    tail, head = data.edge_index.numpy()
    diagonal, between = np.zeros(data.num_nodes), np.zeros(len(tail))
    for first in range(1, data.num_nodes, 256):
        nodes = np.arange(first, min(first + 256, data.num_nodes))
        columns = np.zeros((data.num_nodes, len(nodes)))
        columns[nodes, nodes - first] = 1
        columns[1:] = solve(columns[1:])
        diagonal[nodes] = columns[nodes, nodes - first]
        mine = (tail >= first) & (tail <= nodes[-1])
        between[mine] = columns[head[mine], tail[mine] - first]
    return diagonal[tail] + diagonal[head] - 2 * between


WALK = "AddPositionalEncoding(RandomWalk(16)), over AddRandomWalkPE"


def main() -> None:
    parser = Parser(__doc__, "a few small graphs", "transforms.json")
    parser.add_argument("--data", metavar="DIR", help="folder of ZINC molecules (train/val/test.smi)")
    args = parser.parse_args()

    repeats, count, num_few, num_molecules = (2, 2, 32, 128) if args.quick else (15, 20, 128, 4096)
    peer = AddLaplacianEigenvectorPE(K, is_undirected=True)
    ours: dict[str, Any] = {
        f"AddLaplacianEigenvectors({K}, normalization=None)": AddLaplacianEigenvectors(K, normalization=None),
        f"AddLaplacianEigenvectors({K}, normalization='sym')": AddLaplacianEigenvectors(K, normalization="sym"),
        "AddPositionalEncoding(HeatKernel())": AddPositionalEncoding(HeatKernel()),
        "AddEffectiveResistance()": AddEffectiveResistance(),
        f"AddPositionalEncoding(ResistiveEmbedding({K}))": AddPositionalEncoding(ResistiveEmbedding(K)),
    }
    results: list[dict[str, Any]] = []

    def add(
        what: str, where: str, count: int, run: Callable[[], Any], reference: float | None, repeats: int = repeats
    ) -> float:
        seconds, spread = measure(run, repeats)
        row = {"what": what, "graphs": where, "seconds": seconds / count, "iqr_seconds": spread / count}
        results.append({**row, "ratio": 1.0 if reference is None else reference / (seconds / count)})
        show(results[-1])
        return seconds / count

    graphs, where = random_graphs(300, count), "300 nodes, one at a time"
    reference = add("PyG AddLaplacianEigenvectorPE", where, count, one_by_one(peer, graphs), None)
    for name, transform in ours.items():
        add(name, where, count, one_by_one(transform, graphs), reference)

    large_peers: dict[str, tuple[Callable[[Data], Any], str, Callable[[Data], Any]]] = {
        "PyG AddRandomWalkPE(16)": (
            AddRandomWalkPE(16),
            "AddPositionalEncoding(RandomWalk(16, 0)), over AddRandomWalkPE",
            AddPositionalEncoding(RandomWalk(16, 0)),
        ),
        "scipy splu, a system a node": (
            resistances_by_scipy,
            "AddEffectiveResistance(), over splu",
            AddEffectiveResistance(),
        ),
    }
    for where, edges in (SMALL if args.quick else LARGE).items():
        index = edges()
        data = Data(edge_index=to_undirected(index), num_nodes=int(index.max()) + 1)
        for peer_name, (large_peer, name, own) in large_peers.items():
            reference = add(peer_name, where, 1, partial(large_peer, data), None, 3)
            add(name, where, 1, partial(own, data), reference)

    train = load_molecules(args.data or "nci", name="zinc" if args.data else "nci").train
    molecules = [data for data in (train[i] for i in range(min(num_molecules, len(train)))) if data.num_nodes > K]
    few, where = molecules[:num_few], "molecules, one at a time"
    reference = add("PyG AddLaplacianEigenvectorPE", where, len(few), one_by_one(peer, few), None)
    of_walk = add("PyG AddRandomWalkPE(16)", where, len(few), one_by_one(AddRandomWalkPE(16), few), None)
    with_walk = {**ours, WALK: AddPositionalEncoding(RandomWalk(16))}
    for name, transform in with_walk.items():
        add(name, where, len(few), one_by_one(transform, few), of_walk if name == WALK else reference)
    for name, transform in ours.items():
        run = partial(transform.encode_dataset, molecules, False)
        add(name, "molecules, encode_dataset", len(molecules), run, reference)
    write_results(args.json, results, k=K, num_molecules=len(molecules))


if __name__ == "__main__":
    main()
