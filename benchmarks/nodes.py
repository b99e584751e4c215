"""Compare encodings in node classification and link prediction with one model.

    python benchmarks/nodes.py --data DIR [--tasks NAME ...] [--encodings NAME ...] [--seeds 0 1 2] [--quick]

DIR holds email, cora, citeseer, photo, cs, tolokers, chameleon_directed and squirrel_directed as .npz; tasks without
their file are skipped. CLUSTER and PATTERN are generated with seed 0 and 1,000 training graphs. Runs in the JSON file
are not repeated.

Splits: cora and citeseer have their published split; tolokers, chameleon and squirrel the published split number SEED
of ten; email, photo and cs are split 60/20/20 by the seed. For links, 5 % of the edges are hidden for validation and
10 % for test, with as many pairs without an edge; encoding and messages only use the training edges.

Features: binary with rows of length one; for tolokers columns of variance one; for CLUSTER and PATTERN one-hot; without
features the logarithm of the degree.

Encodings have 16 columns, are computed once, and are read in addition to the features. Their columns are divided by
their root mean square, after subtraction of the mean unless the sign is arbitrary. With many graphs, arbitrary signs
are drawn in each step; on one graph, which has the test nodes, they are fixed.

- "positions, edges" also has inner products and squared distances at the edges.
- "directed walks" (15 columns), "magnetic" (eigenvectors of potentials 0.05 and 0.25) and "magnetic walks" (diagonals
  and currents of a GramTransformer with potential 0.25 and conductances one) are for chameleon and squirrel. These two
  are encoded as directed graphs, with messages in both directions. Other encodings do not see directions.

The model has a linear map to 64 channels, then layers, then a net with one hidden layer, which reads the channels of a
node to score classes, or the product of the channels of two nodes to score a link. A layer adds linear maps of the node
itself, of the sum over its neighbours and of the sum weighted by each edge channel, then applies batch norm, ReLU and a
residual. On one graph there are two layers with means instead of sums, dropout 0.5 (0 for links), and Adam with rate
0.01 and weight decay 5e-4, stopped 100 epochs after the best one. On many graphs there are four layers with sums
divided by the mean degree, batches of 16 graphs, a one-cycle rate up to 0.003, and classes weighted by frequency. The
test set is read once, at the best validation epoch. Seconds are CPU time.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from _arguments import Parser
from _results import show, write_results
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.transforms import RemoveSelfLoops
from torch_geometric.utils import to_undirected

from tg_lpe import AddPositionalEncoding, GramTransformer, LinearTransformerPE
from tg_lpe.app.datasets.block_models import cluster_graphs, load_block_model
from tg_lpe.app.datasets.nodes import load_node_graph
from tg_lpe.app.training.metrics import METRICS, hits_at
from tg_lpe.checkpoints.files import read_json
from tg_lpe.data import random_link_split, random_node_masks
from tg_lpe.encoders import DirectedWalk, LaplacianEigenvectors, MagneticLaplacian, Positions, RandomWalk
from tg_lpe.nn.probes import draw_signs

K, CHANNELS, HITS, PATIENCE, BATCH = 16, 64, 50, 100, 16

ENCODINGS: dict[str, Callable[[], AddPositionalEncoding] | None] = {
    "none": None,
    "random walks": lambda: AddPositionalEncoding(RandomWalk(K, 0)),
    "gram-k16": lambda: LinearTransformerPE.from_pretrained("gram-k16", k=K, attr_name="pe"),
    "eigenvectors": lambda: AddPositionalEncoding(LaplacianEigenvectors(K, 0)),
    "positions": lambda: AddPositionalEncoding(Positions(K, 0)),
    "positions, edges": lambda: AddPositionalEncoding(Positions(K), edge_attr_name="edge_pe"),
    "directed walks": lambda: AddPositionalEncoding(DirectedWalk(K // 3, 0)),
    "magnetic": lambda: AddPositionalEncoding(MagneticLaplacian(K // 4, (0.05, 0.25), edge_out_channels=0)),
    "magnetic walks": lambda: AddPositionalEncoding(
        GramTransformer(None, 0, 1, K // 2, conductances="fixed", direction=0.25)
    ),
}
DIRECTED = ("directed walks", "magnetic", "magnetic walks")
SIGNED = ("eigenvectors", "positions", "positions, edges", "magnetic")
"""Encodings whose columns have arbitrary signs or phases."""


class Task(NamedTuple):
    """A dataset and its prediction task."""

    kind: str
    source: str
    epochs: int
    metric: str = "accuracy"
    has_features: bool = True
    is_directed: bool = False

    def takes(self, encoding: str) -> bool:
        """Return whether the encoding is run on this task."""
        if self.is_directed:
            return encoding != "positions, edges"  # from edges of one direction, while messages use both
        return encoding not in DIRECTED


TASKS = {
    "email": Task("nodes", "email", 200, has_features=False),
    "cora, no features": Task("nodes", "cora", 200, has_features=False),
    "citeseer, no features": Task("nodes", "citeseer", 200, has_features=False),
    "cora": Task("nodes", "cora", 200),
    "citeseer": Task("nodes", "citeseer", 200),
    "email, links": Task("links", "email", 300, "roc_auc", has_features=False),
    "cora, links": Task("links", "cora", 300, "roc_auc"),
    "photo": Task("nodes", "photo", 100),
    "tolokers": Task("nodes", "tolokers", 100, "roc_auc"),
    "cs": Task("nodes", "cs", 40),
    "cs, links": Task("links", "cs", 100, "roc_auc"),
    "chameleon": Task("nodes", "chameleon_directed", 200, is_directed=True),
    "squirrel": Task("nodes", "squirrel_directed", 200, is_directed=True),
    "CLUSTER": Task("graphs", "cluster", 15, "balanced_accuracy"),
    "PATTERN": Task("graphs", "pattern", 15, "balanced_accuracy"),
}


Neighbours = tuple[list[Tensor], Tensor | float]
"""Symmetric matrices of ones and of each edge channel, and the factor on their sums."""


def neighbours_of(data: Data, mean_degree: float | None = None) -> Neighbours:
    """Return the matrices of sorted edges, with the factor for means, or for division by the mean degree."""
    row, col = data.edge_index
    degree = torch.bincount(row, minlength=data.num_nodes)
    pointers, col = F.pad(degree.cumsum(0), (1, 0)).int(), col.int()  # products with int64 indices are 50 % slower
    values = [torch.ones(len(row)), *(data.edge_pe.T.contiguous() if "edge_pe" in data else ())]
    matrices = [torch.sparse_csr_tensor(pointers, col, v, 2 * degree.shape, check_invariants=False) for v in values]
    return matrices, 1 / mean_degree if mean_degree else 1 / degree.clamp(min=1).unsqueeze(1)


class Layer(nn.Module):
    """Add linear maps of the node itself and of each sum over its neighbours."""

    def __init__(self, num_matrices: int, dropout: float) -> None:
        super().__init__()
        self.own = nn.Linear(CHANNELS, CHANNELS)
        self.others = nn.ModuleList(nn.Linear(CHANNELS, CHANNELS, bias=False) for _ in range(num_matrices))
        self.norm, self.dropout = nn.BatchNorm1d(CHANNELS), nn.Dropout(dropout)

    def forward(self, h: Tensor, neighbours: Neighbours) -> Tensor:
        """Return channels of the nodes, ``[num_nodes, 64]``."""
        total, (matrices, scale) = self.own(h), neighbours
        for linear, matrix in zip(self.others, matrices, strict=True):
            total = total + linear((matrix @ h) * scale)
        return h + self.dropout(self.norm(total).relu())


class Model(nn.Module):
    """Layers for the channels of nodes, and a head with ``out`` scores of a node or of the product of two."""

    def __init__(self, widths: tuple[int, int], num_matrices: int, layers: int, dropout: float, out: int) -> None:
        super().__init__()
        self.features, self.encoding = (nn.Linear(width, CHANNELS, bias=False) for width in widths)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(Layer(num_matrices, dropout) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(CHANNELS, CHANNELS), nn.ReLU(), nn.Linear(CHANNELS, out))

    def forward(self, x: Tensor, pe: Tensor, neighbours: Neighbours) -> Tensor:
        """Return channels of the nodes before the head, ``[num_nodes, 64]``."""
        h = self.dropout(x @ self.features.weight.T + self.encoding(pe)).relu()  # x may be sparse
        for layer in self.layers:
            h = layer(h, neighbours)
        return h


def encode(given: list[Data], name: str) -> tuple[list[Data], float]:
    """Return the graphs with standardised columns ``pe``, a zero column for "none", and the encoding seconds."""
    make, start = ENCODINGS[name], time.process_time()
    if make is None:
        return [copy.copy(data).update({"pe": torch.zeros(data.num_nodes, 1)}) for data in given], 0.0
    encoded = make().encode_dataset(given, progress=False)
    seconds = time.process_time() - start
    for attribute in ("pe", "edge_pe") if "edge_pe" in encoded[0] else ("pe",):
        values = torch.cat([data[attribute] for data in encoded])
        mean = values.mean(0) if attribute == "pe" and name not in SIGNED else 0.0
        root = (values - mean).square().mean(0).sqrt().clamp(min=1e-6) * (K**0.5 if attribute == "pe" else 1)
        for data in encoded:
            data[attribute] = (data[attribute] - mean) / root
    return encoded, seconds


def features_of(data: Data, has_features: bool) -> Tensor:
    """Return the features that the model reads in addition to the encoding."""
    if not has_features:
        degree = torch.bincount(data.edge_index[0], minlength=data.num_nodes).float().log1p().unsqueeze(1)
        return (degree - degree.mean()) / degree.std()
    if bool(((data.x == 0) | (data.x == 1)).all()):
        return F.normalize(data.x).to_sparse_csr()
    return (data.x - data.x.mean(0)) / data.x.std(0).clamp(min=1e-6) / data.x.size(1) ** 0.5


Losses, Evaluate = Callable[[], Iterator[Tensor]], Callable[[str], dict[str, float]]


def fit(model: Model, epochs: int, losses: Losses, evaluate: Evaluate, one_cycle_steps: int = 0) -> dict[str, Any]:
    """Train and return the figures of the best epoch by the first validation figure."""
    optimizer = torch.optim.Adam(model.parameters(), 0.01, weight_decay=5e-4)
    schedule: Any = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    if one_cycle_steps:
        optimizer = torch.optim.Adam(model.parameters())
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.003, one_cycle_steps + 1)
    best: dict[str, Any] = {"epoch": 0}
    for epoch in range(epochs):
        model.train()
        for loss in losses():
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        model.eval()
        with torch.no_grad():
            figures = evaluate("val")
        if epoch == 0 or next(iter(figures.values())) > next(iter(best["validation"].values())):
            best, weights = {"epoch": epoch, "validation": figures}, copy.deepcopy(model.state_dict())
        if epoch - best["epoch"] >= PATIENCE:
            break
    model.load_state_dict(weights)
    with torch.no_grad():
        return best | {"test": evaluate("test"), "num_parameters": sum(p.numel() for p in model.parameters())}


def nodes(data: Data, task: Task, seed: int) -> dict[str, Any]:
    """Classify the nodes of one graph."""
    data = data if "train_mask" in data else random_node_masks(data, seed)
    masks = {part: data[f"{part}_mask"].reshape(data.num_nodes, -1) for part in ("train", "val", "test")}
    masks = {part: mask[:, seed % mask.size(1)] for part, mask in masks.items()}
    x, neighbours = features_of(data, task.has_features), neighbours_of(data)
    model = Model((x.size(1), data.pe.size(1)), len(neighbours[0]), 2, 0.5, int(data.y.max()) + 1)

    def score(part: str) -> Tensor:
        return model.head(model(x, data.pe, neighbours)[masks[part]])

    def losses() -> Iterator[Tensor]:
        yield F.cross_entropy(score("train"), data.y[masks["train"]])

    def evaluate(part: str) -> dict[str, float]:
        scores = score(part)
        found = scores[:, 1] - scores[:, 0] if task.metric == "roc_auc" else scores.argmax(1)
        return {task.metric: METRICS[task.metric](found, data.y[masks[part]]).mean}

    return fit(model, task.epochs, losses, evaluate)


def links(splits: tuple[Data, Data, Data], task: Task, seed: int) -> dict[str, Any]:
    """Predict hidden edges; only the first graph, which is encoded, is read."""
    data, pairs = splits[0], dict(zip(("train", "val", "test"), splits, strict=True))
    x, neighbours = features_of(data, task.has_features), neighbours_of(data)
    model = Model((x.size(1), data.pe.size(1)), len(neighbours[0]), 2, 0.0, 1)
    generator = torch.Generator().manual_seed(seed)

    def score(ends: Tensor) -> Tensor:
        h = model(x, data.pe, neighbours)
        return model.head(h[ends[0]] * h[ends[1]]).squeeze(1)

    def losses() -> Iterator[Tensor]:
        ends = data.edge_label_index
        other = torch.randint(data.num_nodes, ends.shape, generator=generator)
        labels = (torch.arange(2 * ends.size(1)) < ends.size(1)).float()
        yield F.binary_cross_entropy_with_logits(score(torch.cat([ends, other], dim=1)), labels)

    def evaluate(part: str) -> dict[str, float]:
        scores, labels = score(pairs[part].edge_label_index), pairs[part].edge_label
        return {"roc_auc": METRICS["roc_auc"](scores, labels).mean, f"hits@{HITS}": hits_at(scores, labels, HITS)}

    return fit(model, task.epochs, losses, evaluate)


def graphs(splits: dict[str, list[Data]], task: Task, seed: int, signed: bool) -> dict[str, Any]:
    """Classify the nodes of many graphs."""
    train = Batch.from_data_list(splits["train"])
    mean_degree = train.edge_index.size(1) / train.num_nodes
    width, counts = int(train.x.max()) + 1, torch.bincount(train.y.long())
    num_matrices = 1 + (train.edge_pe.size(1) if "edge_pe" in train else 0)
    model = Model((width, train.pe.size(1)), num_matrices, 4, 0.0, len(counts))
    generator = torch.Generator().manual_seed(seed)
    loader = DataLoader(splits["train"], BATCH, shuffle=True, generator=generator)
    weight = len(train.y) / (len(counts) * counts)

    def score(batch: Batch, pe: Tensor) -> Tensor:
        return model.head(model(F.one_hot(batch.x, width).float(), pe, neighbours_of(batch, mean_degree)))

    def losses() -> Iterator[Tensor]:
        for batch in loader:
            pe = batch.pe * draw_signs(batch.num_graphs, K, generator)[batch.batch] if signed else batch.pe
            yield F.cross_entropy(score(batch, pe), batch.y.long(), weight)

    def evaluate(part: str) -> dict[str, float]:
        found = torch.cat([score(batch, batch.pe).argmax(1) for batch in DataLoader(splits[part], BATCH)])
        return {task.metric: METRICS[task.metric](found, torch.cat([graph.y for graph in splits[part]])).mean}

    return fit(model, task.epochs, losses, evaluate, task.epochs * len(loader))


def runs(name: str, encoding: str, seeds: list[int], folder: Path, quick: bool) -> Iterator[dict[str, Any]]:
    """Run each seed, encoding once unless the edges depend on the seed."""
    task = TASKS[name] if not quick else TASKS[name]._replace(epochs=2)
    if task.kind == "graphs":
        loaded = load_block_model(task.source, 0, 32 if quick else 1000)
        parts = {part: getattr(loaded, part) for part in ("train", "val", "test")}
        encoded, encoding_seconds = encode([graph for part in parts.values() for graph in part], encoding)
        listed = iter(encoded)
        splits = {part: [next(listed) for _ in range(len(found))] for part, found in parts.items()}
    else:
        file = folder / f"{task.source}.npz"
        graph = cluster_graphs(1, 0)[0] if quick else load_node_graph(file, undirected=not task.is_directed)
        graph = RemoveSelfLoops()(graph)
        if quick:
            graph.x, graph.y = F.one_hot(graph.x).float(), graph.y % 2
        if task.kind == "nodes":
            (data,), encoding_seconds = encode([graph], encoding)
            data.edge_index = to_undirected(data.edge_index) if task.is_directed else data.edge_index
    for seed in seeds:
        torch.manual_seed(seed)
        start = time.process_time()
        if task.kind == "graphs":
            figures = graphs(splits, task, seed, encoding in SIGNED)
        elif task.kind == "nodes":
            figures = nodes(data, task, seed)
        else:
            train, val, test = random_link_split(graph, seed)
            (train,), encoding_seconds = encode([train.sort()], encoding)
            start = time.process_time()
            figures = links((train, val, test), task, seed)
        yield figures | {"seed": seed, "seconds": time.process_time() - start, "encoding_seconds": encoding_seconds}


def summary(name: str, encoding: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return mean and spread over the runs of an encoding on a task."""
    row: dict[str, Any] = {"data": name, "encoding": encoding, "epochs": TASKS[name].epochs}
    for metric in found[0]["test"]:
        values = [run["test"][metric] for run in found]
        row[metric] = statistics.fmean(values)
        row[f"{metric}_std"] = statistics.stdev(values) if len(values) > 1 else None
    row |= {key: statistics.fmean(run[key] for run in found) for key in ("seconds", "encoding_seconds")}
    return row | {"num_parameters": found[0]["num_parameters"], "runs": found}


def main() -> None:
    parser = Parser(__doc__, "two epochs on small graphs that are drawn", "nodes.json")
    parser.add_argument("--data", metavar="DIR", type=Path, default=Path("nodes"), help="(default: %(default)s)")
    parser.add_argument("--tasks", nargs="+", metavar="NAME", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--encodings", nargs="+", metavar="NAME", choices=list(ENCODINGS), default=list(ENCODINGS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="(default: 0 1 2)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    known = read_json(args.json)["results"] if args.json.exists() else []
    rows = {(row["data"], row["encoding"]): row for row in known}
    for name in args.tasks:
        path = args.data / f"{TASKS[name].source}.npz"
        if TASKS[name].kind != "graphs" and not args.quick and not path.is_file():
            print(f"{name}: skipped, there is no file {path}", file=sys.stderr)
            continue
        for encoding in args.encodings:
            if not TASKS[name].takes(encoding):
                continue
            done = rows[name, encoding]["runs"] if (name, encoding) in rows else []
            seeds = [seed for seed in args.seeds if seed not in {run["seed"] for run in done}]
            for run in runs(name, encoding, seeds[:1] if args.quick else seeds, args.data, args.quick) if seeds else ():
                done = [*done, run]
                show({"data": name, "encoding": encoding, **run})
                rows[name, encoding] = summary(name, encoding, done)
                order = [(task, one) for task in TASKS for one in ENCODINGS if (task, one) in rows]
                write_results(args.json, [rows[key] for key in order])


if __name__ == "__main__":
    main()
