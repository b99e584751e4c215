"""Time a training step of the graph transformer with each positional encoding, and of transformers of PyG.

    OMP_NUM_THREADS=1 python benchmarks/training.py [--quick] [--data ZINC_DIR] [--json FILE]

The same batches of 128 molecules go through all models in turn, step by step, so that other load affects all models.
All models have 4 layers of 128 channels and 8 heads, and similar numbers of parameters. Times are medians over the
steps; a step is forward, backward, clipping and AdamW, without collation. Encodings computed beforehand (laplacian,
random-walk) only cost their embedding here. Without --data, the molecules are those that ship with RDKit.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import cycle
from typing import Any

import torch
from _arguments import Parser
from _measure import take_turns
from _results import show, write_results
from torch import Tensor, nn
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINEConv, GPSConv, TransformerConv, global_add_pool, global_mean_pool

from tg_lpe.app.molecules import load_molecules
from tg_lpe.app.training.build import build_model
from tg_lpe.app.training.config import TrainConfig
from tg_lpe.app.training.joint import JointTraining
from tg_lpe.app.training.tasks import Regression
from tg_lpe.data import GraphSplits
from tg_lpe.models import Model

BATCH, CHANNELS, HEADS, LAYERS = 128, 128, 8, 4

GRAM = {"class": "GramTransformer", "probes": "identity", "out_channels": 8, "edge_out_channels": 8}
CONFIGS: dict[str, dict[str, Any]] = {
    "none": {"encoder": None},
    "laplacian": {"encoder": {"class": "LaplacianEigenvectors", "k": 6}},
    "random-walk": {"encoder": {"class": "RandomWalk", "steps": 16}},
    "GramTransformer": {"encoder": GRAM},
    "LinearTransformer, probes from atom types": {
        "encoder": {"class": "LinearTransformer", "out_channels": 6, "probes": "features"}
    },
}
"""Arguments of each row for :func:`tg_lpe.app.training.build_model`, besides the defaults of the command line."""


class TransformerLayer(nn.Module):
    """Combine PyG's TransformerConv with residuals, norms and a feed-forward net."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = TransformerConv(CHANNELS, CHANNELS // HEADS, HEADS, edge_dim=CHANNELS)
        self.norms = nn.ModuleList(nn.BatchNorm1d(CHANNELS) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(CHANNELS, 2 * CHANNELS), nn.ReLU(), nn.Linear(2 * CHANNELS, CHANNELS))

    def forward(self, h: Tensor, edge_index: Tensor, batch: Tensor, edge_attr: Tensor) -> Tensor:
        h = self.norms[0](h + self.attention(h, edge_index, edge_attr))
        return self.norms[1](h + self.mlp(h))


class Peer(Model):
    """Wrap layers of PyG in the embeddings and the read-out of our graph transformer."""

    encoder = None

    def __init__(self, make: Callable[[], nn.Module], num_node_types: int, num_edge_types: int) -> None:
        super().__init__()
        self.nodes, self.edges = nn.Embedding(num_node_types, CHANNELS), nn.Embedding(num_edge_types, CHANNELS)
        self.layers = nn.ModuleList(make() for _ in range(LAYERS))
        self.pool_norm = nn.BatchNorm1d(2 * CHANNELS)
        self.readout = nn.Sequential(nn.Linear(2 * CHANNELS, CHANNELS), nn.ReLU(), nn.Linear(CHANNELS, 1))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor, *_: Any, **__: Any) -> Tensor:
        h, e = self.nodes(x.view(-1)), self.edges(edge_attr.view(-1))
        for layer in self.layers:
            h = layer(h, edge_index, batch, edge_attr=e)
        pooled = [global_mean_pool(h, batch), global_add_pool(h, batch)]
        return self.readout(self.pool_norm(torch.cat(pooled, dim=1)))


def gps_layer() -> GPSConv:
    widths = nn.Linear(CHANNELS, CHANNELS), nn.ReLU(), nn.Linear(CHANNELS, CHANNELS)
    return GPSConv(CHANNELS, GINEConv(nn.Sequential(*widths)), HEADS)


PEERS: dict[str, Callable[[], nn.Module]] = {"PyG GPSConv": gps_layer, "PyG TransformerConv": TransformerLayer}


def training_of(row: str, splits: GraphSplits) -> JointTraining:
    task = Regression()
    if row in PEERS:
        torch.manual_seed(0)
        model: Model = Peer(PEERS[row], splits.spec.num_node_types, splits.spec.num_edge_types)
    else:
        options = {"readout": {"pooling": "both"}, "pe_options": {"norm": True}}
        model = build_model(splits.spec, task, **CONFIGS[row], **options)
    return JointTraining(TrainConfig(batch_size=BATCH), model, splits, task, progress=False)


def steps(training: JointTraining) -> Callable[[], None]:
    """Return a function that runs the next training step, over the batches in turn."""
    training.model.train()
    batches = cycle(list(DataLoader(training.train_set, training.config.batch_size)))
    generator = torch.Generator().manual_seed(0)

    def run() -> None:
        loss = training.loss(next(batches), generator)
        training.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for group in training.optimizer.param_groups:
            nn.utils.clip_grad_norm_(group["params"], training.config.clip)
        training.optimizer.step()

    return run


def main() -> None:
    parser = Parser(__doc__, "three models, a few steps", "training.json")
    parser.add_argument("--data", metavar="DIR", help="folder of ZINC molecules (train/val/test.smi)")
    args = parser.parse_args()
    num_steps, num_batches = (2, 1) if args.quick else (60, 20)
    splits = load_molecules(args.data or "nci", name="zinc" if args.data else "nci", progress=False)
    splits = type(splits)(**{**vars(splits), "train": splits.train.copy(torch.arange(BATCH * num_batches))})
    rows = ("none", "GramTransformer", "PyG TransformerConv") if args.quick else (*CONFIGS, *PEERS)
    trainings = {row: training_of(row, splits) for row in rows}
    seconds = take_turns({row: steps(training) for row, training in trainings.items()}, num_steps, time.perf_counter)
    results = []
    for row, times in seconds.items():
        # The median of ratios of the same batch varies less than the ratio of medians.
        ratio = statistics.median(ours / base for ours, base in zip(times, seconds["none"], strict=True))
        middle = statistics.median(times)
        results.append(
            {
                "row": row,
                "seconds": middle,
                "graphs_per_second": BATCH / middle,
                "ratio_to_none": ratio,
                "num_parameters": sum(p.numel() for p in trainings[row].model.parameters()),
            }
        )
        show(results[-1])
    precision = "bfloat16" if trainings["none"].autocast_dtype else "float32"
    write_results(args.json, results, batch_size=BATCH, data="zinc" if args.data else "nci", precision=precision)


if __name__ == "__main__":
    main()
