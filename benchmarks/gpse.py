"""Train a small GPSE (https://arxiv.org/abs/2307.07107) by the network and the loss of PyTorch Geometric.

    python benchmarks/gpse.py [--data DIR] [--quick] [--json FILE]

GPSE predicts encodings from random numbers at the nodes, and its last hidden layer is an encoding. The published
weights have 20 layers of 512 channels, from more than 300,000 molecules. Here are fewer, without dropout, from the
training molecules of ZINC-12k in DIR, or RDKit's. Targets are as published, with mean zero and variance one over the
nodes of a graph: electrostatic potentials, absolute eigenvectors, walks, heat kernels; of the graph: eigenvalues,
numbers of edges and cycles. The figures are R2 on test molecules. grid.py reads the weights for its rows of GPSE.
"""

from __future__ import annotations

import math
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from _arguments import Parser
from _results import show, write_results
from torch import Tensor
from torch_geometric.data import Batch, Data, InMemoryDataset
from torch_geometric.loader import DataLoader
from torch_geometric.nn.models import GPSE
from torch_geometric.nn.models.gpse import IdentityHead, gpse_loss, gpse_process_batch, process_batch_idx
from torch_geometric.transforms import VirtualNode

from tg_lpe import Graph
from tg_lpe.app.molecules import load_molecules
from tg_lpe.encoders import CycleCounts, HeatKernel, RandomWalk
from tg_lpe.encoders.computed import NodeEdgeEncoder
from tg_lpe.encoders.precompute import incidences
from tg_lpe.encoders.registry import register
from tg_lpe.graph.eigenvectors import laplacian_eigenvectors

WEIGHTS = Path("runs", "gpse", "weights.pt")
SIZES = {"dim_inner": 128, "layers_mp": 10, "dropout": 0.0}
BATCH, RATE, EPOCHS = 64, 0.002, 60
ENCODERS = RandomWalk(21, 0), HeatKernel(range(1, 21), 0), CycleCounts(range(3, 9))
TARGETS = {"electrostatic": 7, "eigenvectors": 4, "walks": 20, "heat": 20, "eigenvalues": 4, "cycles": 7}


@register
class RetrainedGPSE(NodeEdgeEncoder):
    """Encode nodes by the last hidden layer of a network that this script trained, from random numbers of one seed."""

    name = "gpse"

    def __init__(self, file: str = str(WEIGHTS)) -> None:
        super().__init__(SIZES["dim_inner"], 0, None)
        model = GPSE(**SIZES).eval()
        model.load_state_dict(torch.load(file, weights_only=True)["model"], assign=True)
        model.post_mp = IdentityHead()
        self.file, self._columns = file, partial(gpse_process_batch, model)

    def compute(self, graph: Graph) -> tuple[Tensor, Tensor]:
        """Apply the network to all graphs at once, each with a virtual node as its last."""
        rows, last = torch.arange(graph.num_nodes) + graph.batch, graph.ptr[1:] + torch.arange(graph.num_graphs)
        ends = torch.cat([rows[graph.tail], rows]), torch.cat([rows[graph.head], last[graph.batch]])
        edges, ptr = torch.stack([torch.cat(ends), torch.cat(ends[::-1])]), torch.cat([graph.ptr[:1], last + 1])
        np.random.seed(0)  # noqa: NPY002
        columns, _ = self._columns(Data(edge_index=edges, num_nodes=int(ptr[-1]), ptr=ptr), "NormalSE")
        return columns[rows], columns.new_zeros(graph.num_edges, 0)


def electrostatic(edges: Tensor, size: int) -> Tensor:
    """Return seven statistics of the potentials between each node and the others, ``[size, 7]``."""
    adjacency = torch.zeros(size, size, dtype=torch.float64)
    adjacency[edges[0], edges[1]] = 1.0
    degree = adjacency.sum(1)
    potential = torch.linalg.pinv(torch.diag(degree) - adjacency, hermitian=True)
    potential = potential - potential.diagonal()
    near = adjacency / degree.clamp(min=1).unsqueeze(1) * potential
    found = [potential.amin(0), potential.mean(0), potential.std(0), potential.amin(1), potential.std(1)]
    return torch.stack([*found, near.sum(0), near.sum(1)], 1)


def with_targets(molecules: InMemoryDataset) -> list[Data]:
    """Return the graphs of molecules with a virtual node and the targets."""
    found = []
    for graph in incidences(molecules, 1):
        edges = torch.stack([torch.cat([graph.tail, graph.head]), torch.cat([graph.head, graph.tail])])
        vectors, values = laplacian_eigenvectors(graph, 4)
        walks, heat, cycles = (encoder.compute(graph)[0] for encoder in ENCODERS)
        y = torch.cat([electrostatic(edges, graph.num_nodes), vectors.abs(), walks[:, 1:], heat], 1)
        y = (y - y.mean(0)) * (y.var(0) >= 1e-5) / (y.var(0, correction=0) + 1e-5).sqrt()
        of_graph = [values[0], torch.tensor([graph.num_edges]), cycles.sum(0) / torch.arange(3, 9)]
        targets = {"y": y.nan_to_num(0).float(), "y_graph": torch.cat(of_graph).nan_to_num(0).float().unsqueeze(0)}
        found.append(VirtualNode()(Data(edge_index=edges, num_nodes=graph.num_nodes, **targets)))
    return found


def train(model: GPSE, graphs: list[Data], epochs: int, file: Path) -> float:
    """Train the model, resuming from the file, and return the seconds."""
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=1e-4)
    saved = torch.load(file, weights_only=True) if file.exists() else {"epochs": 0, "seconds": 0.0}
    if saved["epochs"]:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    for epoch in range(saved["epochs"], epochs):
        torch.manual_seed(epoch)
        start, loader = time.perf_counter(), DataLoader(graphs, BATCH, shuffle=True, drop_last=True)
        for number, batch in enumerate(loader):
            now = epoch + (number + 1) / len(loader)
            optimizer.param_groups[0]["lr"] = RATE * min(now / 5, 0.5 + 0.5 * math.cos(math.pi * now / epochs))
            batch.x = torch.randn(batch.num_nodes, 20).index_fill(0, batch.ptr[1:] - 1, 0.0)
            predicted, true = model.train()(batch)
            loss, _ = gpse_loss(predicted, true, process_batch_idx(batch.batch, true))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        saved = {"epochs": epoch + 1, "seconds": saved["seconds"] + time.perf_counter() - start}
        torch.save({**saved, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        show({**saved, "loss": float(loss)})
    return float(saved["seconds"])


@torch.no_grad()
def scores(model: GPSE, graphs: list[Data]) -> dict[str, float]:
    """Return R2 of each kind of target; of several columns, over all of them."""
    torch.manual_seed(0)
    batch, rows, found = Batch.from_data_list(graphs), len(graphs), {}
    batch.x = torch.randn(batch.num_nodes, 20).index_fill(0, batch.ptr[1:] - 1, 0.0)
    parts = (values.split(list(TARGETS.values()), 1) for values in reversed(model.eval()(batch)))
    for kind, a, b in zip(TARGETS, *parts, strict=True):
        a, b = (a[-rows:], b[-rows:]) if kind in ("eigenvalues", "cycles") else (a[:-rows], b[:-rows])
        found[kind] = 1 - float((a - b).square().sum() / (a - a.mean(0)).square().sum())
    return found


def main() -> None:
    parser = Parser(__doc__, "300 molecules, one epoch", "gpse.json")
    parser.add_argument("--data", type=Path, metavar="DIR", help="of ZINC-12k")
    parser.add_options()
    args = parser.parse_args()
    torch.manual_seed(0)
    splits, model = load_molecules(args.data or "nci", name="zinc12k" if args.data else "nci"), GPSE(**SIZES)
    limit, epochs = (300, 1) if args.quick else (None, EPOCHS)
    args.out.mkdir(parents=True, exist_ok=True)
    seconds = train(model, with_targets(splits.train[:limit]), epochs, args.out / WEIGHTS.name)
    found = scores(model, with_targets(splits.test[:limit]))
    results = [{"row": kind, "r2": found[kind], "seconds": seconds} for kind in TARGETS]
    write_results(args.json, results, epochs=epochs, num_parameters=sum(p.numel() for p in model.parameters()))


if __name__ == "__main__":
    main()
