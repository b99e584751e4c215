"""``tg-lpe demo``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import Namespace

from tg_lpe.app.cli import main
from tg_lpe.app.cli.parser import Parser
from tg_lpe.app.cli.runs import add_process

ENCODINGS = {
    "none": ["--encoder", "none"],
    "laplacian": ["--encoder", "LaplacianEigenvectors", "--encoder.k", "6"],
    "random-walk": ["--encoder", "RandomWalk", "--encoder.steps", "16"],
}


def parse(parser: Parser, words: Sequence[str]) -> Namespace:
    """Declare the options of the command and parse them."""
    parser.usage = "tg-lpe demo [options]"
    parser.add_argument("--out", default="runs/demo", metavar="DIR", help="folder for the runs and the report")
    parser.add_argument("--epochs", type=int, default=8, help="epochs of each training run")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and splits")
    add_process(parser)
    return parser.parse_args(words)


def run(args: Namespace) -> None:
    """Pretrain an encoder, train with four encodings and compare them; continue the runs that exist."""
    out = Path(args.out)
    pretrained = str(out / "pretrain")
    common = ["nci", "--seed", str(args.seed), "--resume"]
    common += ["--quiet"] * args.quiet + ([] if args.threads is None else ["--threads", str(args.threads)])
    kernels = ["--kernels", "heat", "resistance", "--read_features"]
    steps = [["pretrain", *common, *kernels, "--epochs", "4", "--out", pretrained]]
    encodings = {**ENCODINGS, "GramTransformer": ["--pretrained", f"{pretrained}/encoder"]}
    for name, options in encodings.items():
        small = ["--model.hidden_channels", "64", "--epochs", str(args.epochs)]  # minutes on two cores
        steps.append(["train", *common, *options, *small, "--out", str(out / name)])
    steps.append(["report", pretrained, *(str(out / name) for name in encodings), "--out", str(out / "report.html")])
    for step in steps:
        print(f"$ tg-lpe {' '.join(step)}", file=sys.stderr)
        if status := main(step):
            sys.exit(status)
