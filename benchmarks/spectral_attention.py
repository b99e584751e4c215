"""Measure the training steps of spectral attention networks.

    python benchmarks/spectral_attention.py [--data ZINC12K_DIR] [--quick] [--json FILE]

The published model for ZINC-12k trains with batches of 32: with feed-forward nets of 2048 channels in its encoding,
with 64 channels, and with the encodings that do not depend on signs and bases. These take turns, so that other load
affects all of them. Times are medians of the CPU time of this process with one thread. Without --data, the molecules
are those that ship with RDKit.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from _arguments import Parser
from _measure import take_turns
from _results import show, write_results
from training import steps

from tg_lpe.app.molecules import load_molecules
from tg_lpe.app.training.build import build_model
from tg_lpe.app.training.config import TrainConfig
from tg_lpe.app.training.joint import JointTraining
from tg_lpe.app.training.presets import san
from tg_lpe.app.training.tasks import Regression

OPTIONS = san("train", "zinc12k", {"class": "SpectralEncoder"})
PUBLISHED = {"class": "SpectralEncoder", **OPTIONS["encoder"]}
ENCODERS: dict[str, dict[str, Any] | None] = {
    "eigenvectors, 2048 channels": PUBLISHED,
    "eigenvectors, 64 channels": {**PUBLISHED, "feedforward_channels": 64},
    "eigenspaces, 64 channels": {**PUBLISHED, "feedforward_channels": 64, "tokens": "eigenspaces"},
    "kernel": {"class": "SpectralKernel", "edge_out_channels": 0, "num_eigenpairs": 10},
    "none": None,
}


def step_of(encoder: dict[str, Any] | None, splits: Any) -> Callable[[], None]:
    """Return a training step of the published model with an encoder."""
    config, task = TrainConfig(batch_size=OPTIONS["batch_size"], precision="float32"), Regression()
    options = {name.removeprefix("model."): value for name, value in OPTIONS.items() if name.startswith("model.")}
    model = build_model(splits.spec, task, encoder, **options)
    return steps(JointTraining(config, model, splits, task, progress=False))


def main() -> None:
    parser = Parser(__doc__, "few repetitions", "spectral_attention.json")
    parser.add_argument("--data", metavar="DIR", help="folder of ZINC-12k")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    splits = load_molecules(args.data or "nci", name="zinc12k" if args.data else "nci", progress=False)
    few = {part: getattr(splits, part).copy(torch.arange(64)) for part in ("train", "val", "test")}
    splits = type(splits)(**{**vars(splits), **few})
    runs, results = {name: step_of(encoder, splits) for name, encoder in ENCODERS.items()}, []
    for name, times in take_turns(runs, 2 if args.quick else 20).items():
        seconds = statistics.median(times)
        results.append({"method": name, "seconds": seconds, "graphs_per_second": OPTIONS["batch_size"] / seconds})
        show(results[-1])
    write_results(args.json, results, data="zinc12k" if args.data else "nci")


if __name__ == "__main__":
    main()
