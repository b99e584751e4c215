"""Measure the graphs per second of each positional encoding, in one run on one machine.

    python benchmarks/throughput.py [--quick] [--data ZINC_DIR] [--device DEVICE] [--json FILE]

On batches, the encodings of this library run on a collated dataset and on a list of Data, whose collation counts. They
are compared with torch.linalg.eigh on padded graphs, scipy.linalg.eigh with joblib, PyG's AddLaplacianEigenvectorPE and
AddRandomWalkPE one graph at a time, and PyG's AddGPSE, whose network of 20 layers has random weights here. Single
graphs are compared with PyG. Every figure is the median of repeated runs after a warm-up.

With --device, all graphs are one Batch on that device instead. The encodings of this library and the peers that run
there are compared with AddLaplacianEigenvectorPE, which computes one graph at a time on the CPU. Before torch 2.12,
batched torch.linalg.eigh takes matrices above 32 x 32 one by one there. Without --data, the molecules are those that
ship with RDKit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from _arguments import Parser
from _measure import measure, on_device
from _results import show, write_results
from joblib import Parallel, cpu_count, delayed
from scipy.linalg import eigh as scipy_eigh
from torch_geometric.data import Batch, Data
from torch_geometric.nn.models import GPSE
from torch_geometric.nn.models.gpse import IdentityHead
from torch_geometric.transforms import AddGPSE, AddLaplacianEigenvectorPE, AddRandomWalkPE
from torch_geometric.utils import to_dense_adj

from tg_lpe import Graph, LinearTransformerPE
from tg_lpe.app.molecules import load_molecules
from tg_lpe.graph.eigenvectors import laplacian_eigenvectors

K = 8
ENCODERS = ("gram-k16", "positions-k16")
REFERENCE = "AddLaplacianEigenvectorPE, one graph at a time"
"""The method with which all others are compared; it is measured first."""

Row = tuple[str, int, Callable[[], Any]]
"""Name of a method, number of graphs and call."""


def batch_rows(graphs: list[Data], encoders: dict[str, LinearTransformerPE], device: torch.device) -> list[Row]:
    """Return the methods on all graphs as one batch on a device."""
    batch = Batch.from_data_list(graphs).to(str(device))
    calls: dict[str, Callable[[], Any]] = {
        **{f"LinearTransformerPE({name!r})": partial(pe, batch) for name, pe in encoders.items()},
        "torch.linalg.eigh, padded, float64": partial(eigenvectors_by_torch, batch, torch.float64),
        "torch.linalg.eigh, padded, float32": partial(eigenvectors_by_torch, batch, torch.float32),
        "AddRandomWalkPE(16)": partial(AddRandomWalkPE(16), batch),
    }
    return [(f"{name}, one Batch on {device}", len(graphs), on_device(call, device)) for name, call in calls.items()]


def eigenvectors_by_torch(batch: Batch, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Compute the first eigenvectors of each normalised Laplacian, padded, ``[num_graphs, max_nodes, K]``."""
    adjacency = to_dense_adj(batch.edge_index, batch.batch, batch_size=batch.num_graphs).to(dtype)
    scale = adjacency.sum(-1).clamp(min=1).rsqrt()
    diagonal = torch.full_like(scale, 3.0)  # padding has eigenvalues above all others
    diagonal[batch.batch, torch.arange(batch.num_nodes, device=scale.device) - batch.ptr[batch.batch]] = 1.0
    laplacian = torch.diag_embed(diagonal) - scale.unsqueeze(-1) * adjacency * scale.unsqueeze(-2)
    return torch.linalg.eigh(laplacian)[1][:, :, 1 : K + 1]


def one_by_one(transform: Callable[[Any], Any], graphs: list[Any]) -> Callable[[], None]:
    """Apply a transform to each graph in turn."""

    def run() -> None:
        for data in graphs:
            transform(data)

    return run


def eigenvectors_by_scipy(parts: list[tuple[np.ndarray, int]]) -> list[np.ndarray]:
    """Compute the first eigenvectors of each normalised Laplacian as PyG's transform does."""
    out = []
    for edge_index, n in parts:
        adjacency = np.zeros((n, n))
        adjacency[edge_index[0], edge_index[1]] = 1.0
        scale = 1 / np.sqrt(np.maximum(adjacency.sum(1), 1.0))
        _, vectors = scipy_eigh(np.eye(n) - scale[:, None] * adjacency * scale)
        out.append(vectors[:, 1 : K + 1])
    return out


def cpu_rows(dataset: Any, graphs: list[Data], few: list[Data], encoders: dict[str, LinearTransformerPE]) -> list[Row]:
    """Return the methods on a dataset, on the list of its graphs and on a few graphs one at a time."""
    arrays = [(data.edge_index.numpy(), data.num_nodes) for data in graphs]
    workers = cpu_count()
    shares = [arrays[part::workers] for part in range(workers)]
    torch.manual_seed(0)
    model = GPSE()
    model.post_mp = IdentityHead()  # the predictions of the network's heads are not part of the encoding
    all_graphs: dict[str, Callable[[], Any]] = {
        **{
            f"LinearTransformerPE({name!r}).encode_dataset, {kind}": partial(pe.encode_dataset, given, False)
            for name, pe in encoders.items()
            for kind, given in (("InMemoryDataset", dataset), ("list of Data", graphs))
        },
        "laplacian_eigenvectors, float64, list of Data": lambda: laplacian_eigenvectors(
            Graph.from_data(Batch.from_data_list(graphs)), K
        ),
        "torch.linalg.eigh on padded graphs, float64, list of Data": lambda: eigenvectors_by_torch(
            Batch.from_data_list(graphs)
        ),
        f"scipy.linalg.eigh, float64, joblib with {workers} processes": lambda: Parallel(n_jobs=workers)(
            delayed(eigenvectors_by_scipy)(share) for share in shares
        ),
    }
    alone = {
        **{f"LinearTransformerPE({name!r})": pe for name, pe in encoders.items()},
        "AddGPSE, random weights": AddGPSE(model),
        "AddLaplacianEigenvectorPE(is_undirected=True)": AddLaplacianEigenvectorPE(K, is_undirected=True),
        "AddRandomWalkPE(16)": AddRandomWalkPE(16),
    }
    rows: list[Row] = [(name, len(graphs), run) for name, run in all_graphs.items()]
    for name, transform in alone.items():
        part = few[:50] if name.startswith("AddGPSE") else few
        rows.append((f"{name}, one graph at a time", len(part), one_by_one(transform, part)))
    return rows


def main() -> None:
    parser = Parser(__doc__, "a tenth of the work", "throughput.json")
    parser.add_argument("--data", metavar="DIR", help="folder of ZINC molecules (train/val/test.smi)")
    parser.add_argument("--device", type=torch.device, help="measure one large Batch there, such as cuda")
    args = parser.parse_args()

    num_graphs, repeats = (500, 5) if args.quick else (5000, 15)
    train = load_molecules(args.data or "nci", name="zinc" if args.data else "nci").train
    dataset = train.copy(torch.arange(min(num_graphs, len(train))))  # copy the subset, so that it has its own storage
    graphs = [dataset[i] for i in range(len(dataset))]
    large_enough = [data for data in graphs if data.num_nodes > K]  # PyG's eigenvectors fail on the others
    few = large_enough[: max(50, num_graphs // 10)]
    encoders = {name: LinearTransformerPE.from_pretrained(name, K) for name in ENCODERS}
    rows: list[Row] = [(REFERENCE, len(few), one_by_one(AddLaplacianEigenvectorPE(K), few))]
    if args.device is None:
        rows += cpu_rows(dataset, graphs, few, encoders)
    else:
        rows += batch_rows(graphs, encoders, args.device)
    results: list[dict[str, Any]] = []
    for name, count, run in rows:
        seconds, spread = measure(run, repeats, limit=5.0 if args.device else 60.0)
        row = {"what": name, "graphs_per_second": count / seconds, "seconds": seconds, "iqr_seconds": spread}
        results.append({**row, "ratio": row["graphs_per_second"] / (results or [row])[0]["graphs_per_second"]})
        show(results[-1])
    write_results(args.json, results, k=K, num_graphs=len(graphs), data="zinc" if args.data else "nci")


if __name__ == "__main__":
    main()
