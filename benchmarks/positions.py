"""Measure positions: the share of leading eigenvectors that they hold, their worth for communities, and their time.

    python benchmarks/positions.py [communities | large | updates] [--quick] [--json FILE]

- communities: the accuracy of two SAGE layers with each encoding on blocks of equal size without features, of which a
  tenth of the nodes is labelled; five seeds.
- large: seconds, and the share of the leading eigenvectors of the normalized adjacency (from SciPy's `eigsh`) that the
  columns hold, for 300,000 nodes at several tolerances, compared with `LaplacianEigenvectors`, `eigsh` and
  `lobpcg`; with --device DEVICE, such as cuda, also positions on that device, from edge arrays to arrays of positions.
- updates: seconds and share of `Positions.update` for 100,000 nodes and 1 % more, compared with new positions.

Seconds are processor time; with OMP_NUM_THREADS=1 that of one thread, independent of other load. On another device they
are wall time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from _arguments import Parser
from _measure import timed
from _results import show, write_results
from scipy.sparse import coo_matrix, csr_matrix, diags, identity, triu
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import eigsh, lobpcg
from scipy.spatial import cKDTree
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE, Sequential
from torch_geometric.transforms import AddLaplacianEigenvectorPE

from tg_lpe import AddPositionalEncoding, Graph, LinearTransformerPE
from tg_lpe.encoders import LaplacianEigenvectors, Positions, RandomWalk, load_encoder
from tg_lpe.graph.subspace import leading_subspace

K, CPU = 8, time.process_time
SHIPPED = "positions-k16"
PARTS = ("communities", "large", "updates")


def connected(u: np.ndarray, v: np.ndarray, num_nodes: int) -> csr_matrix:
    """Return the largest component of a list of edges as a symmetric matrix of ones."""
    different = u != v
    adjacency = coo_matrix((np.ones(different.sum()), (u[different], v[different])), (num_nodes, num_nodes)).tocsr()
    adjacency = adjacency + adjacency.T
    adjacency.data[:] = 1
    label = connected_components(adjacency, directed=False)[1]
    nodes = np.flatnonzero(label == np.bincount(label).argmax())
    return adjacency[nodes][:, nodes].tocsr()


def blocks(num_nodes: int, count: int, inside: float, between: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw a block model with given mean numbers of neighbours inside and outside of a node's block."""
    random, size = np.random.default_rng(seed), num_nodes // count
    u, v = random.integers(0, size * count, (2, int(num_nodes * (inside + between) / 2)))
    is_inside = random.random(len(u)) < inside / (inside + between)
    v[is_inside] = u[is_inside] // size * size + v[is_inside] % size
    return u, v


def grid(num_nodes: int, kept: float = 1.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return the edges of a grid, some of them left out."""
    height = int(np.sqrt(num_nodes / 1.3))
    index = np.arange(height * (num_nodes // height)).reshape(height, -1)
    u = np.concatenate([index[:-1].ravel(), index[:, :-1].ravel()])
    v = np.concatenate([index[1:].ravel(), index[:, 1:].ravel()])
    chosen = np.random.default_rng(seed).random(len(u)) < kept
    return u[chosen], v[chosen]


def geometric(num_nodes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return edges between near points of a square, eight neighbours on average."""
    tree = cKDTree(np.random.default_rng(seed).random((num_nodes, 2)))
    return tuple(tree.query_pairs(np.sqrt(8 / (np.pi * num_nodes)), output_type="ndarray").T)  # type: ignore[return-value]


def preferential(num_nodes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw edges of preferential attachment: each node joins three ends of earlier edges."""
    random, ends = np.random.default_rng(seed), np.zeros(6 * num_nodes, np.int64)
    for node in range(1, num_nodes):
        ends[6 * node : 6 * node + 3] = ends[random.integers(0, 6 * node, 3)]
        ends[6 * node + 3 : 6 * node + 6] = node
    pairs = ends.reshape(num_nodes, 2, 3)[1:]
    return pairs[:, 0].ravel(), pairs[:, 1].ravel()


def recursive_tree(num_nodes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw a tree in which each node joins an earlier one."""
    node = np.arange(1, num_nodes)
    return node, (np.random.default_rng(seed).random(num_nodes - 1) * node).astype(np.int64)


FAMILIES: dict[str, Callable[[int, int], tuple[np.ndarray, np.ndarray]]] = {
    "5 blocks": lambda n, seed: blocks(n, 5, 12, 8, seed),
    "preferential attachment": preferential,
    "grid": lambda n, seed: grid(n),
    "road": lambda n, seed: grid(n, 0.75, seed),
    "geometric": geometric,
    "tree": recursive_tree,
}
PLANAR = ("grid", "road", "geometric", "tree")
"""Families with fast factorisations, for which `eigsh` uses shift-invert."""


def normalized(adjacency: csr_matrix) -> tuple[csr_matrix, np.ndarray]:
    """Return ``P = D^-1/2 A D^-1/2`` and its trivial eigenvector."""
    root = np.sqrt(np.asarray(adjacency.sum(1)).ravel())
    return (diags(1 / root) @ adjacency @ diags(1 / root)).tocsr(), root / np.linalg.norm(root)


def by_eigsh(family: str, matrix: csr_matrix, tolerance: float, k: int = K) -> np.ndarray:
    """Compute the first non-trivial eigenvectors of ``P`` with SciPy."""
    if matrix.shape[0] <= 2000:
        return np.linalg.eigh(matrix.toarray())[1][:, ::-1][:, 1 : k + 1]
    options: dict[str, Any] = {"sigma": 1.00001} if family in PLANAR else {"ncv": 6 * k}
    values, vectors = eigsh(matrix.tocsc(), k + 1, which="LM" if family in PLANAR else "LA", tol=tolerance, **options)
    return vectors[:, np.argsort(-values)][:, 1:]


def incidence(adjacency: csr_matrix, device: str = "cpu") -> Graph:
    """Return the graph of a symmetric matrix."""
    upper = triu(adjacency, 1).tocoo()
    return Graph(torch.from_numpy(np.stack([upper.row, upper.col]).astype(np.int64)).to(device), adjacency.shape[0])


def share_of(vectors: np.ndarray, columns: np.ndarray) -> float:
    """Return the share of the energy of orthonormal vectors in the span of orthonormal columns."""
    return float(np.square(columns.T @ vectors).sum() / vectors.shape[1])


def accuracy(x: Tensor, data: Data, classes: int, seed: int) -> float:
    """Return the accuracy at unlabelled nodes of two SAGE layers, after 60 steps of Adam on the labelled tenth."""
    torch.manual_seed(seed)
    norm, sage = torch.nn.BatchNorm1d(x.size(1)), GraphSAGE(x.size(1), 64, num_layers=2, out_channels=classes)
    model = Sequential("x, adjacency", [(norm, "x -> x"), (sage, "x, adjacency -> x")])
    is_train = torch.rand(data.num_nodes) < 0.1
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    size, ones = (data.num_nodes, data.num_nodes), torch.ones(data.edge_index.size(1))
    adjacency = torch.sparse_coo_tensor(data.edge_index, ones, size).coalesce().to_sparse_csr()
    for _ in range(60):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x, adjacency)[is_train], data.y[is_train])
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        found = model.eval()(x, adjacency).argmax(1) == data.y
    return float(found[~is_train].float().mean())


def communities(size: int, seeds: int) -> Iterator[dict[str, Any]]:
    """Return a row for each encoding on five blocks; PyG's transform is only timed."""
    encodings: dict[str, Callable[[Data], Data]] = {
        "noise": lambda data: data.update(
            {"pe": torch.randn(data.num_nodes, 16, generator=torch.Generator().manual_seed(0))}
        ),
        "LinearTransformerPE(16)": LinearTransformerPE(16, attr_name="pe"),
        "RandomWalk(16)": AddPositionalEncoding(RandomWalk(16, 0)),
        f"LaplacianEigenvectors({K})": AddPositionalEncoding(LaplacianEigenvectors(K, 0)),
        f"{SHIPPED}, k={K}": LinearTransformerPE.from_pretrained(SHIPPED, k=K, attr_name="pe"),
    }
    for name, transform in encodings.items():
        figures, seconds = [], []
        for seed in range(seeds):
            data = block_data(size, seed)
            encoded, time_taken = timed(lambda t=transform, d=data: t(d), CPU)
            figures.append(accuracy(encoded.pe, data, 5, seed))
            seconds.append(time_taken)
        spread = statistics.stdev(figures) if len(figures) > 1 else None
        row = {"encoding": name, "nodes": size, "accuracy": statistics.fmean(figures), "spread": spread}
        yield row | {"seconds": statistics.median(seconds)}
    peer, data = AddLaplacianEigenvectorPE(K, is_undirected=True), block_data(size, 0)
    _, time_taken = timed(lambda: peer(data), CPU)
    yield {"encoding": f"PyG's AddLaplacianEigenvectorPE({K})", "nodes": size, "accuracy": None, "seconds": time_taken}


def block_data(size: int, seed: int) -> Data:
    """Draw five blocks, with the block of each node as its label."""
    coo = connected(*blocks(size, 5, 12, 8, seed), size).tocoo()
    edge_index = torch.from_numpy(np.stack([coo.row, coo.col]).astype(np.int64))
    data = Data(edge_index=edge_index, num_nodes=coo.shape[0])
    data.y = torch.arange(data.num_nodes) // (size // 5)
    return data


LARGE = {"5 blocks": 4, "preferential attachment": 8, "grid": 8, "road": 8, "geometric": 8, "tree": 8}
"""Numbers of eigenvectors of families: four separate five blocks, and no gap comes after the next."""


def large(size: int, device: str | None) -> Iterator[dict[str, Any]]:
    """Return a row for each family, method and setting; the share is that of eigenvectors to 1e-8."""
    cut = load_encoder(SHIPPED).cut
    if device is not None:  # loads its libraries
        leading_subspace(incidence(connected(*grid(2000), 2000), device), 4, cut=cut)
    for family, k in LARGE.items():
        adjacency = connected(*FAMILIES[family](size, 0), size)
        matrix, null = normalized(adjacency)
        start, laplacian = np.random.default_rng(0).standard_normal((len(null), 2 * k)), identity(len(null)) - matrix
        exact = by_eigsh(family, matrix, 1e-8, k)

        def positions(tolerance: float, on: str = "cpu", a: csr_matrix = adjacency, k: int = k) -> np.ndarray:
            return leading_subspace(incidence(a, on), k, cut=cut, tolerance=tolerance).vectors.cpu().numpy()

        def iterated(steps: int, m: csr_matrix = laplacian, x: np.ndarray = start, u: np.ndarray = null) -> np.ndarray:
            return lobpcg(m, x, Y=u[:, None], maxiter=steps, tol=1e-8, largest=False)[1][:, : x.shape[1] // 2]

        methods = {
            SHIPPED: (positions, (3e-2, 2e-3, 1e-4)),
            "LaplacianEigenvectors": (
                lambda _, a=adjacency, k=k: LaplacianEigenvectors(k, 0)(None, incidence(a)).node.numpy(),
                (0,),
            ),
            "eigsh": (partial(by_eigsh, family, matrix, k=k), (1e-1, 1e-2, 1e-4)),
            "lobpcg": (iterated, (20, 40, 80)),
        }
        if device is not None:
            methods[f"{SHIPPED}, {device}"] = partial(positions, on=device), (2e-3,)
        for method, (run, settings) in methods.items():
            clock = time.perf_counter if method.endswith(f", {device}") else CPU
            for setting in settings:
                columns, seconds = timed(partial(run, setting), clock)
                row = {"family": family, "k": k, "nodes": len(null), "method": method, "setting": setting}
                yield row | {"share": share_of(exact, columns), "seconds": seconds}


def grown(adjacency: csr_matrix) -> csr_matrix:
    """Add one in a hundred nodes, each joined to both ends of an edge."""
    upper, n = triu(adjacency, 1).tocoo(), adjacency.shape[0]
    chosen, new = np.random.default_rng(0).integers(0, upper.nnz, n // 100), n + np.arange(n // 100)
    u = np.concatenate([upper.row, upper.row[chosen], upper.col[chosen]])
    return connected(u, np.concatenate([upper.col, new, new]), n + n // 100)


def updates(size: int) -> Iterator[dict[str, Any]]:
    """Return two rows for each family: share and seconds of an update, and of columns computed anew."""
    for family, k in LARGE.items():
        before, encoder = connected(*FAMILIES[family](size, 0), size), Positions(k, 0)
        after, old = grown(before), encoder(None, incidence(before)).node
        exact = by_eigsh(family, normalized(after)[0], 1e-8, k)
        for method, run in (("update", partial(encoder.update, old=old)), ("anew", partial(encoder, None))):
            columns, seconds = timed(partial(run, incidence(after)), CPU)
            share = share_of(exact, np.linalg.qr(getattr(columns, "node", columns).double().numpy())[0])
            row = {"family": family, "k": k, "nodes": after.shape[0], "method": method}
            yield row | {"share": share, "seconds": seconds}


def main() -> None:
    parser = Parser(__doc__, "graphs of 500 nodes, one seed", "positions_{part}.json")
    parser.add_argument("part", nargs="?", choices=PARTS, default="large", help="(default: %(default)s)")
    parser.add_argument("--device", help="where large runs once more, such as cuda")
    args = parser.parse_args()
    seeds = 1 if args.quick else 5
    parts: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
        "communities": lambda: communities(500 if args.quick else 5_000, seeds),
        "large": lambda: large(3000 if args.quick else 300_000, args.device),
        "updates": lambda: updates(3000 if args.quick else 100_000),
    }
    rows = []
    for row in parts[args.part]():
        show(row)
        rows.append(row)
    write_results(args.json, rows)


if __name__ == "__main__":
    main()
