"""What each positional encoding adds to a training step.

    python benchmarks/training_step.py [--quick] [--data ZINC_DIR] [--json FILE]

The same batches of 128 molecules go through the same graph transformer with each encoding in turn, step by step, so
that whatever else slows the machine slows all alike. Medians over the steps; a step is forward, backward, clipping and
AdamW, without collation. Encodings computed beforehand (laplacian, random-walk) cost only their embedding here.
Without --data the molecules are those that ship with RDKit.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch_geometric.loader import DataLoader

from tg_lpe.datasets import load_molecules
from tg_lpe.files import write_json
from tg_lpe.training.config import TrainConfig
from tg_lpe.training.joint import JointTraining
from tg_lpe.training.run_folder import environment

BATCH = 128

CONFIGS: dict[str, dict[str, Any]] = {
    "none": {"pe": "none"},
    "laplacian": {"pe": "laplacian"},
    "random-walk": {"pe": "random-walk"},
    "linear-transformer": {"pe_dim": 8},
    "linear-transformer, two filters": {"pe_dim": 8, "num_filters": 2},
    "linear-transformer, nodes alone": {"pe_dim": 8, "edge_pe": False},
    "linear-transformer, probes from atom types": {"probes": "features"},
}
"""Settings of each row beside the defaults."""


def step(training: JointTraining, batch: object, generator: torch.Generator) -> float:
    """Seconds of one training step."""
    start = time.perf_counter()
    loss = training.loss(batch, generator)
    training.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    for group in training.optimizer.param_groups:
        nn.utils.clip_grad_norm_(group["params"], training.config.clip)
    training.optimizer.step()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    parser.add_argument("--data", metavar="DIR", help="folder of ZINC molecules (train/val/test.smi)")
    parser.add_argument("--json", metavar="FILE", default="benchmarks/results/training_step.json")
    args = parser.parse_args()

    num_steps = 6 if args.quick else 40
    splits = load_molecules(args.data or "nci", name="zinc" if args.data else "nci")
    splits = type(splits)(**{**vars(splits), "train": splits.train.copy(torch.arange(BATCH * 20))})
    trainings, batches = {}, {}
    for pe, settings in CONFIGS.items():
        config = TrainConfig(**settings, batch_size=BATCH)
        trainings[pe] = JointTraining(config, splits, progress=False)
        trainings[pe].model.train()
        batches[pe] = list(DataLoader(trainings[pe].train_set, BATCH))

    generator = torch.Generator().manual_seed(0)
    seconds: dict[str, list[float]] = {pe: [] for pe in CONFIGS}
    for number in itertools.islice(itertools.cycle(range(20)), num_steps + 2):
        for pe, training in trainings.items():
            seconds[pe].append(step(training, batches[pe][number], generator))
    warm = {pe: times[2:] for pe, times in seconds.items()}

    none = statistics.median(warm["none"])
    results = []
    print(f"{'':44} ms a step   graphs/s   over none")
    for pe, times in warm.items():
        # Paired by batch: the median of the ratios is steadier than the ratio of the medians.
        ratio = statistics.median(ours / base for ours, base in zip(times, warm["none"], strict=True))
        middle = statistics.median(times)
        results.append({"row": pe, "seconds": middle, "graphs_per_second": BATCH / middle, "ratio_to_none": ratio})
        print(f"{pe:44} {1e3 * middle:9.1f}   {BATCH / middle:8.0f}   {ratio:9.3f}")
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
