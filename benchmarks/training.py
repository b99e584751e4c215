"""Time of a training step: our graph transformer with each positional encoding, and transformers of PyG.

    python benchmarks/training.py [--quick] [--data ZINC_DIR] [--json FILE]

The same batches of 128 molecules go through all models in turn, step by step, so that other load on the machine affects
all alike. All have 4 layers of 128 channels and 8 heads, and about as many parameters. Medians over the steps; a step
is forward, backward, clipping and AdamW, without collation. Encodings computed beforehand (laplacian, random-walk) cost
only their embedding here. The encoder's share is the time of its passes, forwards and backwards, by themselves, over
that of the step. Peak memory is the memory that a model's step adds, in a separate process. Work is that of the matrix
products of a forward pass over one batch, the same for all, as torch counts it; an encoder's is left out, since the
compiled passes cannot be counted. Without --data the molecules are those that ship with RDKit.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count
from torch_geometric.data import Batch
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINEConv, GPSConv, TransformerConv, global_add_pool, global_mean_pool

from tg_lpe.datasets.molecules import load_molecules
from tg_lpe.hub.files import write_json
from tg_lpe.training.build import build_model
from tg_lpe.training.config import TrainConfig
from tg_lpe.training.joint import JointTraining, autocast_dtype
from tg_lpe.training.run_folder import environment
from tg_lpe.training.tasks import Regression

BATCH, CHANNELS, HEADS, LAYERS = 128, 128, 8, 4

GRAM = {"class": "GramTransformer", "probes": "identity", "out_channels": 8, "edge_out_channels": 8}
CONFIGS: dict[str, dict[str, Any]] = {
    "none": {"encoder": None},
    "laplacian": {"encoder": {"class": "LaplacianEigenvectors", "k": 6}},
    "random-walk": {"encoder": {"class": "RandomWalk", "steps": 16}},
    "linear-transformer": {"encoder": GRAM},
    "linear-transformer, two filters": {"encoder": {**GRAM, "num_filters": 2}},
    "linear-transformer, nodes alone": {"encoder": {**GRAM, "edge_out_channels": 0}},
    "linear-transformer, probes from atom types": {
        "encoder": {"class": "LinearTransformer", "out_channels": 6, "probes": "features"}
    },
}
"""Arguments of each row for :func:`tg_lpe.training.build_model`, in addition to the defaults of the command line."""


class TransformerLayer(nn.Module):
    """PyG's TransformerConv with the other parts of a transformer layer: residuals, norms, a feed-forward net."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = TransformerConv(CHANNELS, CHANNELS // HEADS, HEADS, edge_dim=CHANNELS)
        self.norms = nn.ModuleList(nn.BatchNorm1d(CHANNELS) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(CHANNELS, 2 * CHANNELS), nn.ReLU(), nn.Linear(2 * CHANNELS, CHANNELS))

    def forward(self, h: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        h = self.norms[0](h + self.attention(h, edge_index, edge_attr))
        return self.norms[1](h + self.mlp(h))


class EdgeUpdatingLayer(nn.Module):
    """TransformerConv with the products of our layer: six on the nodes, four on the edges, or one in the last layer."""

    def __init__(self, update_edges: bool) -> None:
        super().__init__()
        # Our layer maps the output of attention instead of the node itself.
        self.attention = TransformerConv(CHANNELS, CHANNELS // HEADS, HEADS, edge_dim=CHANNELS, root_weight=False)
        self.attention.lin_skip = None  # created even where it is unused
        self.node_update = StreamUpdate()
        self.edge_update = StreamUpdate() if update_edges else None

    def forward(self, h: Tensor, edge_index: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
        out = self.node_update(h, self.attention(h, edge_index, e))
        if self.edge_update is not None:
            e = self.edge_update(e, h.index_select(0, edge_index[0]) * h.index_select(0, edge_index[1]) * e)
        return out, e


class StreamUpdate(nn.Module):
    """Output projection and feed-forward net of one stream, as wide as ours."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(CHANNELS, CHANNELS)
        self.norms = nn.ModuleList(nn.BatchNorm1d(CHANNELS) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(CHANNELS, CHANNELS), nn.ReLU(), nn.Linear(CHANNELS, CHANNELS))

    def forward(self, x: Tensor, update: Tensor) -> Tensor:
        x = self.norms[0](x + self.out(update))
        return self.norms[1](x + self.mlp(x))


class Peer(nn.Module):
    """The embeddings and the read-out of our graph transformer around layers of PyG."""

    def __init__(self, kind: str, num_node_types: int, num_edge_types: int) -> None:
        super().__init__()
        self.nodes, self.edges = nn.Embedding(num_node_types, CHANNELS), nn.Embedding(num_edge_types, CHANNELS)

        def layer(number: int) -> nn.Module:
            if kind == "GPSConv":
                widths = nn.Linear(CHANNELS, CHANNELS), nn.ReLU(), nn.Linear(CHANNELS, CHANNELS)
                return GPSConv(CHANNELS, GINEConv(nn.Sequential(*widths)), HEADS)
            return EdgeUpdatingLayer(number + 1 < LAYERS) if kind == "edges updated" else TransformerLayer()

        self.kind = kind
        self.layers = nn.ModuleList(layer(number) for number in range(LAYERS))
        self.pool_norm = nn.BatchNorm1d(2 * CHANNELS)
        self.readout = nn.Sequential(nn.Linear(2 * CHANNELS, CHANNELS), nn.ReLU(), nn.Linear(CHANNELS, 1))

    def forward(self, batch: Batch) -> Tensor:
        h, e = self.nodes(batch.x.view(-1)), self.edges(batch.edge_attr.view(-1))
        for layer in self.layers:
            if self.kind == "GPSConv":
                h = layer(h, batch.edge_index, batch.batch, edge_attr=e)
            elif self.kind == "edges updated":
                h, e = layer(h, batch.edge_index, e)
            else:
                h = layer(h, batch.edge_index, e)
        pooled = [global_mean_pool(h, batch.batch), global_add_pool(h, batch.batch)]
        return self.readout(self.pool_norm(torch.cat(pooled, dim=1))).squeeze(-1)


class PeerTraining:
    """Steps of a peer as :class:`~tg_lpe.training.joint.JointTraining` has them."""

    def __init__(self, kind: str, splits: Any) -> None:
        self.config = TrainConfig()
        self.model = Peer(kind, len(splits.vocabulary), len(splits.bond_types))
        self.autocast_dtype = autocast_dtype("auto", torch.device("cpu"))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.config.lr, fused=True)
        self.train_set = splits.train

    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        with torch.autocast("cpu", self.autocast_dtype, enabled=self.autocast_dtype is not None):
            out = self.model(batch)
        return nn.functional.l1_loss(out.float(), batch.y)


PEERS = {
    "PyG GPSConv": "GPSConv",
    "PyG TransformerConv": "TransformerConv",
    "PyG TransformerConv, edges updated": "edges updated",
}
ROWS = (*CONFIGS, *PEERS)


def training_of(row: str, splits: Any) -> Any:
    if row in PEERS:
        torch.manual_seed(0)
        return PeerTraining(PEERS[row], splits)
    task = Regression()
    model = build_model(splits.spec, task, **CONFIGS[row], pooling="both", pe_norm=True)
    return JointTraining(TrainConfig(batch_size=BATCH), model, splits, task, progress=False)


def step(training: Any, batch: object, generator: torch.Generator) -> float:
    """Seconds of one training step."""
    start = time.perf_counter()
    loss = training.loss(batch, generator)
    training.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    for group in training.optimizer.param_groups:
        nn.utils.clip_grad_norm_(group["params"], training.config.clip)
    training.optimizer.step()
    return time.perf_counter() - start


def encoder_step(encoder: nn.Module, batch: Batch) -> float:
    """Seconds of the encoder alone, forwards and backwards."""
    start = time.perf_counter()
    out = encoder(batch.x, batch.edge_index, batch.edge_attr, batch.batch, num_graphs=batch.num_graphs)
    parts = [part for part in out if part is not None]
    torch.autograd.backward(parts, [torch.ones_like(part) for part in parts])
    encoder.zero_grad(set_to_none=True)
    return time.perf_counter() - start


def forward_gflop(training: Any, batch: Batch) -> float:
    """1e9 floating-point operations in the matrix products of a forward pass, without those of the encoder."""
    # GPSConv's attention: the counter supports only the CUDA version of this operation.
    flash = {
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v)
    }
    with FlopCounterMode(display=False, custom_mapping=flash) as counter:
        training.loss(batch, torch.Generator().manual_seed(0))
    encoder = counter.get_flop_counts().get(f"{type(training.model).__name__}.encoder", {})
    return (counter.get_total_flops() - sum(encoder.values())) / 1e9


def load(data: str | None, num_batches: int) -> Any:
    splits = load_molecules(data or "nci", name="zinc" if data else "nci", progress=False)
    return type(splits)(**{**vars(splits), "train": splits.train.copy(torch.arange(BATCH * num_batches))})


def peak_mib(row: str, data: str | None) -> float:
    """Memory that training steps add to what the process held before them, at their peak."""
    training = training_of(row, load(data, 3))
    training.model.train()
    batches = list(DataLoader(training.train_set, BATCH))
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak, which loading has set
    before = resident("VmRSS")
    for batch in batches:
        step(training, batch, torch.Generator().manual_seed(0))
    return resident("VmHWM") - before


def resident(field: str) -> float:
    """A field of the process's status, in MiB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 2**10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps, no peak memory")
    parser.add_argument("--data", metavar="DIR", help="folder of ZINC molecules (train/val/test.smi)")
    parser.add_argument("--peak", metavar="ROW", help=argparse.SUPPRESS)
    parser.add_argument("--json", metavar="FILE", default="benchmarks/results/training.json")
    args = parser.parse_args()
    if args.peak:
        print(json.dumps(peak_mib(args.peak, args.data)))
        return

    num_steps = 6 if args.quick else 60
    splits = load(args.data, 20)
    trainings, batches = {}, {}
    for row in ROWS:
        trainings[row] = training_of(row, splits)
        trainings[row].model.train()
        batches[row] = list(DataLoader(trainings[row].train_set, BATCH))

    generator = torch.Generator().manual_seed(0)
    seconds: dict[str, list[float]] = {row: [] for row in ROWS}
    encoder_seconds: dict[str, list[float]] = {row: [] for row in ROWS}
    for number in itertools.islice(itertools.cycle(range(20)), num_steps + 2):
        for row, training in trainings.items():
            seconds[row].append(step(training, batches[row][number], generator))
            encoder = getattr(training.model, "encoder", None)
            if encoder is not None and any(parameter.requires_grad for parameter in encoder.parameters()):
                encoder_seconds[row].append(encoder_step(encoder, batches[row][number]))
    # The same batch for all, and after the clock has stopped.
    gflop = {row: forward_gflop(training, batches[row][0]) for row, training in trainings.items()}
    warm = {row: times[2:] for row, times in seconds.items()}

    none = statistics.median(warm["none"])
    results = []
    print(f"{'':44} ms a step   graphs/s   over none   encoder   GFLOP   parameters   peak MiB")
    for row, times in warm.items():
        # Paired by batch: the median of the ratios is steadier than the ratio of the medians.
        ratio = statistics.median(ours / base for ours, base in zip(times, warm["none"], strict=True))
        share = None
        if encoder_seconds[row]:
            alone = encoder_seconds[row][2:]
            share = statistics.median(own / all_of_it for own, all_of_it in zip(alone, times, strict=True))
        low, middle, high = statistics.quantiles(times, n=4)
        peak = None
        if not args.quick:
            command = [sys.executable, __file__, "--peak", row, *(["--data", args.data] if args.data else [])]
            peak = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        results.append(
            {
                "row": row,
                "seconds": middle,
                "iqr_seconds": high - low,
                "graphs_per_second": BATCH / middle,
                "ratio_to_none": ratio,
                "encoder_share": share,
                "gflop": gflop[row],
                "num_parameters": sum(p.numel() for p in trainings[row].model.parameters()),
                "peak_mib": peak,
            }
        )
        print(
            f"{row:44} {1e3 * middle:9.1f}   {BATCH / middle:8.0f}   {ratio:9.3f}   "
            f"{'' if share is None else f'{share:.1%}':>7}   {gflop[row]:5.2f}   "
            f"{results[-1]['num_parameters']:10,}   {'' if peak is None else f'{peak:8.0f}'}",
            flush=True,
        )
    machine = environment()
    machine.pop("command")
    precision = "bfloat16" if trainings["none"].autocast_dtype else "float32"
    print(f"{machine['processor']}, {machine['threads']} threads, {precision}")
    write_json(
        Path(args.json),
        {
            "batch_size": BATCH,
            "data": "zinc" if args.data else "nci",
            "precision": precision,
            "seconds_none": none,
            "results": results,
            "machine": machine,
        },
    )


if __name__ == "__main__":
    main()
