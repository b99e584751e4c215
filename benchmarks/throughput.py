"""Measure the graphs per second of each positional encoding, in one run on one machine.

    python benchmarks/throughput.py [--quick] [--data ZINC_DIR] [--device DEVICE] [--json FILE]

The encodings of this library run on a collated dataset, on a list of Data, whose collation counts, and on single
graphs. They are compared with PyG's AddLaplacianEigenvectorPE, AddRandomWalkPE and AddGPSE, whose network of 20 layers
has random weights here, one graph at a time. Figures are medians of rounds in which all methods take turns, after a
first round that does not count.

With --device, all graphs are one Batch on that device instead. The encodings of this library, AddRandomWalkPE and
torch.linalg.eigh on padded graphs are compared with AddLaplacianEigenvectorPE, which computes one graph at a time on
the CPU. Before torch 2.12, batched torch.linalg.eigh takes matrices above 32 x 32 one by one there. Without --data, the
molecules are those that ship with RDKit.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from _arguments import Parser
from _measure import take_turns
from _results import show, write_results
from torch_geometric.data import Batch, Data
from torch_geometric.nn.models import GPSE
from torch_geometric.nn.models.gpse import IdentityHead
from torch_geometric.transforms import AddGPSE, AddLaplacianEigenvectorPE, AddRandomWalkPE
from torch_geometric.utils import to_dense_adj

from tg_lpe import LinearTransformerPE
from tg_lpe.app.molecules import load_molecules

K = 8
ENCODERS = ("gram-k16", "positions-k16")
REFERENCE = "AddLaplacianEigenvectorPE, one graph at a time"
"""The method with which all others are compared; it comes first."""

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
    wait = partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
    title = f"one Batch on {device}"
    return [(f"{name}, {title}", len(graphs), lambda call=call: (call(), wait())) for name, call in calls.items()]


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


def cpu_rows(dataset: Any, graphs: list[Data], few: list[Data], encoders: dict[str, LinearTransformerPE]) -> list[Row]:
    """Return the methods on a dataset, on the list of its graphs and on a few graphs one at a time."""
    torch.manual_seed(0)
    model = GPSE()
    model.post_mp = IdentityHead()  # the predictions of the network's heads are not part of the encoding
    rows: list[Row] = [
        (f"LinearTransformerPE({name!r}).encode_dataset, {kind}", len(graphs), partial(pe.encode_dataset, given, False))
        for name, pe in encoders.items()
        for kind, given in (("InMemoryDataset", dataset), ("list of Data", graphs))
    ]
    alone = {
        **{f"LinearTransformerPE({name!r})": pe for name, pe in encoders.items()},
        "AddGPSE, random weights": AddGPSE(model),
        "AddLaplacianEigenvectorPE(is_undirected=True)": AddLaplacianEigenvectorPE(K, is_undirected=True),
        "AddRandomWalkPE(16)": AddRandomWalkPE(16),
    }
    for name, transform in alone.items():
        part = few[:50] if name.startswith("AddGPSE") else few
        rows.append((f"{name}, one graph at a time", len(part), one_by_one(transform, part)))
    return rows


def main() -> None:
    parser = Parser(__doc__, "100 graphs, two rounds", "throughput.json")
    parser.add_argument("--data", metavar="DIR", help="folder of ZINC molecules (train/val/test.smi)")
    parser.add_argument("--device", type=torch.device, help="measure one large Batch there, such as cuda")
    args = parser.parse_args()

    num_graphs = 100 if args.quick else 5000
    rounds = 2 if args.quick else 15 if args.device is None else 3
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
    seconds = take_turns({name: run for name, _, run in rows}, rounds, time.perf_counter)
    results: list[dict[str, Any]] = []
    for name, count, _ in rows:
        middle = statistics.median(seconds[name])
        row = {"what": name, "graphs_per_second": count / middle, "seconds": middle}
        results.append({**row, "ratio": row["graphs_per_second"] / (results or [row])[0]["graphs_per_second"]})
        show(results[-1])
    write_results(args.json, results, k=K, num_graphs=len(graphs), data="zinc" if args.data else "nci")


if __name__ == "__main__":
    main()
