"""Section 6 of the paper, comparable accuracy with less computation: error and encoding time by layers and columns.

    python benchmarks/less_computation.py --data ZINC_DIR [--epochs 15] [--seeds 0]

The linear transformer of `--preset paper` with fewer layers or fewer columns is compared with Laplacian eigenvectors
and no encoding under one budget. B is not updated, so a layer costs O(num_edges k). Each encoder is first pretrained on
eigenvectors with the same number of layers and columns. The encoding time is the median time of repeated calls that
encode the test set, without loading and without the model. Complete runs under --out are not repeated, and a stopped
run is resumed. The figure is written next to the JSON file.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from _arguments import Parser
from _figures import draw_less_computation
from _measure import measure
from _runs import complete_runs, run, summary, write_runs

from tg_lpe.app.molecules import load_molecules
from tg_lpe.data.storage import GraphDataset
from tg_lpe.encoders import LaplacianEigenvectors, load_encoder
from tg_lpe.encoders.base import Encoder
from tg_lpe.transforms import AddPositionalEncoding

SIZES = [(layers, 8) for layers in (1, 2, 3, 6, 9, 15)] + [(9, k) for k in (1, 2, 4, 16)]
QUICK = [(1, 2), (3, 8)]
"""Layers and columns. Up to three layers have separate weights; more layers loop three blocks, as in the paper."""

WIDTH = 6
"""Channels of every encoding in the model, as in the paper for ZINC."""


def main() -> None:
    parser = Parser(__doc__, "three encodings, one epoch of a tiny model", "less_computation.json")
    parser.add_argument("--data", metavar="DIR", help="folder of ZINC (default: the molecules that ship with RDKit)")
    parser.add_argument("--epochs", type=int, default=15, help="of each training (default: %(default)s)")
    parser.add_options("--seeds", "--threads")
    args = parser.parse_args()
    if args.quick:
        args.data, args.epochs = None, 1
    source = "zinc" if args.data else "nci"
    base = args.out / f"{source}-{args.epochs}"
    graphs = load_molecules(args.data or source, name=source, targets=(), progress=False).test
    entries: list[dict[str, Any]] = []
    for layers, k in [(None, None), (None, WIDTH), *(QUICK if args.quick else SIZES)]:
        name = label(layers, k)
        for seed in args.seeds:
            train(name, layers, k, seed, base, source, args)
        if runs := complete_runs(base, name):
            encoder = load_encoder(pretrained(base, name)) if layers else LaplacianEigenvectors(WIDTH) if k else None
            times = {} if encoder is None else encoding_times(encoder, graphs)
            entries.append({"row": name, "layers": layers, "k": k, "epochs": args.epochs, **summary(runs), **times})
    write_runs(args.json, entries, base, set=source)
    if any(entry["layers"] for entry in entries):
        draw_less_computation(entries, args.json.with_suffix(".png"))


def label(layers: int | None, k: int | None) -> str:
    """Return the name of a row, also used for its folders."""
    return f"linear-transformer-{layers}x{k}" if layers else "laplacian" if k else "none"


def pretrained(base: Path, name: str) -> Path:
    """Pretrain the encoder of a row."""
    return base / "pretrain" / name / "encoder"


def train(
    name: str, layers: int | None, k: int | None, seed: int, base: Path, source: str, args: argparse.Namespace
) -> None:
    """Run a training after the pretraining of its encoder."""
    options = ["--preset", "paper", "--epochs", str(args.epochs), "--seed", str(seed)]
    width, depth = ("16", "1") if args.quick else ("64", "4")
    options += ["--model.hidden_channels", width, "--model.num_layers", depth]
    if layers is None:
        options += ["--encoder", "LaplacianEigenvectors" if k else "none"]
    else:
        loops = layers // 3 if layers > 3 else 1
        sizes = {"k": k, "num_blocks": layers // loops, "num_loops": loops, "probes": "learned"}
        start = ["--preset", "paper", "--encoder.update_incidence", "false", "--epochs", str(args.epochs)]
        start += [word for option, value in sizes.items() for word in (f"--encoder.{option}", str(value))]
        encoder = pretrained(base, name)
        if not run("pretrain", source, encoder.parent, start, args.data, args.threads):
            return
        options += ["--pretrained", str(encoder)]
    run("train", source, base / f"{name}-s{seed}", options, args.data, args.threads)


def encoding_times(encoder: Encoder, graphs: GraphDataset, repeats: int = 7) -> dict[str, float]:
    """Return the median microseconds to encode a graph, and graphs per second."""
    transform = AddPositionalEncoding(encoder)
    with torch.no_grad():
        middle, _ = measure(lambda: transform.encode_dataset(graphs, progress=False), repeats)
    return {"microseconds_a_graph": 1e6 * middle / len(graphs), "graphs_per_second": len(graphs) / middle}


if __name__ == "__main__":
    main()
