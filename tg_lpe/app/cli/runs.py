"""Options of the process and of the run folder, and a training run in it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from jsonargparse import Namespace

from tg_lpe.app.cli.parser import Parser
from tg_lpe.app.training import RunFolder
from tg_lpe.app.training.loop import TrainingLoop, run_in_folder
from tg_lpe.checkpoints.files import subfolder
from tg_lpe.nn.parallel import process_number


def add_process(group: Any, has_device: bool = False) -> None:
    """Add the options of commands that compute."""
    group.add_argument("--threads", type=int, metavar="N", help="number of threads (default: one per core)")
    group.add_argument("--quiet", action="store_true", help="show no progress bars")
    if has_device:
        group.add_argument("--device", default="cpu", help="device: cpu, cuda, cuda:1, ...")


def add_run(parser: Parser) -> None:
    """Add the options of commands that train."""
    group = parser.add_argument_group("run")
    add_process(group, has_device=True)
    text = "run folder (default: runs/SOURCE-[MODEL-]ENCODER-sSEED; --folds K appends -foldsK)"
    group.add_argument("--out", metavar="DIR", help=text)
    group.add_argument("--resume", action="store_true", help="continue the run in the folder")


def run_training(
    args: Namespace, label: str, command: str, settings: Mapping[str, Any], make: Callable[[RunFolder], TrainingLoop]
) -> tuple[Path, dict[str, Any]] | None:
    """Train in the run folder, or read a complete run; return ``None`` in all processes but the first."""
    folds = "" if args.get("folds") is None else f"-folds{args.folds}"
    out = args.out or f"runs/{Path(args.source).stem}-{label}-s{args.seed}{folds}"
    folder = RunFolder(subfolder(Path(out), args.inside) if "inside" in args else out)
    was_complete = folder.result.exists()
    try:
        result = run_in_folder(lambda: make(folder), folder, command, settings, args.resume)
    except TypeError as error:  # a fault of code, such as the user's own encoder: show the traceback
        raise RuntimeError(f"training with {label} failed: {error}") from error
    if process_number() > 0:
        return None
    if was_complete:
        print(f"{folder.path} is complete already", file=sys.stderr)
    return folder.path, result


def set_threads(threads: int | None) -> None:
    """Set the number of threads; ``None`` keeps it."""
    if threads is not None:
        if threads < 1:
            raise ValueError(f"--threads must be at least 1, got {threads}")
        torch.set_num_threads(threads)
