"""``tg-lpe compare``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from tg_lpe.app.cli.data import add_data, load_data
from tg_lpe.app.cli.options import (
    Chosen,
    add_import,
    add_model,
    add_task,
    chosen_model,
    class_named,
    parse_rest,
    settings_of,
)
from tg_lpe.app.cli.parser import Parser
from tg_lpe.app.cli.runs import add_process, set_threads
from tg_lpe.app.cli.train import add_loop, add_target, config_of, of_target, task_arguments
from tg_lpe.app.comparison import ENCODINGS, candidates_of, compare
from tg_lpe.app.comparison.grid import MODEL, SEEDS
from tg_lpe.app.training import TrainConfig, task_for
from tg_lpe.arguments import checked_device
from tg_lpe.checkpoints.files import check_writable, write_json
from tg_lpe.models.registry import DEFAULT_MODEL


def parse(parser: Parser, words: Sequence[str]) -> Namespace:
    """Declare the options of the command and parse them."""
    chosen = Chosen(parser, words, "config", "model", "task")
    parser.usage = "tg-lpe compare SOURCE [options]"
    parser.epilog = "example: tg-lpe compare mine.csv --target y --encodings none walks gram-k16 my_encodings.Mine"
    add_data(parser, has_preset=False)
    add_target(parser)
    add_task(parser, chosen)
    rows = parser.add_argument_group("encodings")
    rows.add_argument(
        "--encodings",
        nargs="+",
        metavar="NAME|FILE|CLASS",
        help=f"encodings to compare: {', '.join(ENCODINGS)} (default: all of these), a class such as HeatKernel, the "
        "import path of your own class, a checkpoint (its weights are frozen), or a YAML file with encoder or "
        "pretrained and optionally encoder_lr, edge_encoding and model",
    )
    rows.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS), help="seeds of each encoding's trainings")
    add_import(rows)
    add_model(parser, chosen)
    if chosen.classes["model"].__name__ == DEFAULT_MODEL:
        parser.set_defaults({f"model.{name}": value for name, value in MODEL.items()})
    add_loop(parser, skip=("seed",))
    run = parser.add_argument_group("run")
    run.add_argument("--quick", action="store_true", help="a small model, few epochs, one seed, to see that it works")
    text = "also score boosted trees that read counts of Morgan fragments alone; printed, and in comparison.json"
    run.add_argument("--fingerprint", action="store_true", help=text)
    run.add_argument("--collect", action="store_true", help="only write the table of the complete trainings")
    add_process(run, has_device=True)
    run.add_argument("--out", metavar="DIR", help="folder; trainings in it go on (default: runs/compare-SOURCE)")
    return parse_rest(parser, chosen)


def run(args: Namespace) -> None:
    """Train a model with each encoding and seed, skipping complete ones, and write one table and one page."""
    check_writable(Path(args.out or "runs/run", "comparison.json"))
    args.seed = args.split_seed or 0
    settings_of(TrainConfig, args)  # raises before any data is read
    set_threads(args.threads)
    checked_device("--device", args.device)
    out = Path(args.out or f"runs/compare-{Path(args.source).stem}{'-quick' * args.quick}")
    rows = candidates_of(None if args.encodings is None else [_entry(name) for name in args.encodings])
    splits = load_data(args, None, **of_target(args))
    task = task_for(splits, **task_arguments(args))
    scores = None
    if args.fingerprint:
        from tg_lpe.app.comparison.fingerprint import fingerprint_scores

        scores = fingerprint_scores(splits, task, not args.quiet)
    comparison = compare(
        splits,
        rows,
        task=task,
        model=chosen_model(args, task.level),
        config=config_of(args, splits),
        seeds=args.seeds,
        out=out,
        source=os.path.normpath(args.source),
        device=args.device,
        quick=args.quick,
        collect=args.collect,
        progress=not args.quiet,
    )
    if scores is not None:
        comparison.about["fingerprint"] = scores
        write_json(out / "comparison.json", comparison.to_dict())
    print(comparison)
    print(f"all in {out}: comparison.html, comparison.json, and the trainings' run folders")


def _entry(name: str) -> Any:
    """Return the class of an import path; other names are as :func:`tg_lpe.app.comparison.candidates_of` takes them."""
    is_path = "." in name and not Path(name).exists() and not name.endswith((".yaml", ".yml"))
    return class_named("encoder", name) if is_path else name
