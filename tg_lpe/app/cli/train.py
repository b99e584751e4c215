"""``tg-lpe train``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jsonargparse import Namespace

from tg_lpe.app.cli.data import GENERATED, add_data, load_data
from tg_lpe.app.cli.options import (
    DEFAULT_CLASS,
    Chosen,
    add_encoder,
    add_model,
    add_task,
    chosen_model,
    encoder_label,
    parse_rest,
    settings_of,
)
from tg_lpe.app.cli.parser import Parser
from tg_lpe.app.cli.pretrained import encoder_to_train
from tg_lpe.app.cli.runs import add_run, run_training, set_threads
from tg_lpe.app.report import comparison_table, read_run
from tg_lpe.app.training import JointTraining, TrainConfig, build_model, check_training, default_config, task_for
from tg_lpe.app.training.processes import join
from tg_lpe.app.training.run_folder import RunFolder, checkpoint_label, describe_model
from tg_lpe.app.training.tasks import TASKS, Regression
from tg_lpe.arguments import check_count, check_seed, checked_device
from tg_lpe.checkpoints.checkpoint import Checkpoint
from tg_lpe.checkpoints.files import check_writable
from tg_lpe.data import GraphSplits
from tg_lpe.models.registry import DEFAULT_MODEL
from tg_lpe.nn.parallel import process_number

NAMED_TASKS: dict[str, dict[str, Any]] = {
    "molhiv": {"name": "binary"},
    **{source: {"name": "multiclass", "balanced": True, "metric": "balanced_accuracy"} for source in GENERATED},
}
"""Arguments of :func:`tg_lpe.app.training.task_for` for sources whose labels do not determine them."""

PUBLISHED_REGRESSIONS = ("zinc", "zinc12k", "qm9-solubility", "nci")
"""Sources whose labels are not scaled, as in papers; their standard deviation is near one."""

BUDGET = ("epochs", "lr")
"""Settings whose defaults depend on the number of graphs."""


def parse(parser: Parser, words: Sequence[str]) -> Namespace:
    """Declare the options of the command and parse them."""
    options = ("config", "preset", "start", "pretrained", "encoder", "model", "task")
    chosen = Chosen(parser, words, *options, encoder=DEFAULT_CLASS)
    parser.usage = "tg-lpe train SOURCE [options]"
    parser.epilog = "example: tg-lpe train zinc --data ZINC_DIR --encoder RandomWalk --encoder.steps 20 --seed 0"
    add_data(parser)
    add_target(parser)
    add_task(parser, chosen)
    add_encoder(parser, chosen, f"default: {DEFAULT_CLASS}")
    parser.add_argument("--edge_encoding", type=bool, default=True, help="use the encoder's encoding of edges, if any")
    parser.add_argument(
        "--start",
        metavar="NAME|DIR",
        help="start from the weights of a trained model, except those of its read-out: a name listed by tg-lpe zoo, or "
        "a run folder. The class, options and encoder of this model are the defaults",
    )
    add_model(parser, chosen)
    add_loop(parser)
    add_run(parser)
    parser.add_argument(
        "--seeds",
        nargs="+",
        type=int,
        metavar="SEED",
        help="train once with each seed, into OUT/sSEED, and print mean and standard deviation. All runs share the "
        "split of --split_seed or --seed. If an .npz file has several published splits, each seed picks its own, "
        "unless --split_seed picks one",
    )
    parser.add_argument(
        "--folds",
        type=int,
        metavar="K",
        help="cross-validation: divide a single file at random into K test sets, train once for each, into "
        "OUT/foldNUMBER, and print mean and standard deviation",
    )
    args = parse_rest(parser, chosen)
    args.start_model = chosen.start
    return args


def add_target(parser: Parser) -> None:
    """Add the options of the target columns."""
    target = parser.add_argument_group("target")
    target.add_argument("--target", nargs="+", metavar="COLUMN", help="columns to predict")
    target.add_argument(
        "--extra_columns",
        nargs="+",
        default=[],
        metavar="COLUMN",
        help="columns of numbers that the model reads in addition to the molecule, such as a temperature; tg-lpe "
        "predict then needs the same columns",
    )
    target.add_argument(
        "--descriptors",
        action="store_true",
        help="also read RDKit's descriptors of the molecule (0 where it has none), which often helps on small tables",
    )
    target.add_argument(
        "--weight_column",
        metavar="COLUMN",
        help="column with the weight of each molecule in the training loss, at least 0; other figures are not weighted",
    )
    target.add_argument(
        "--computed", choices=("penalised_logp",), help="predict the penalised logP, computed from the molecule"
    )


def of_target(args: Namespace) -> dict[str, Any]:
    """Return the options of :func:`add_target` as arguments of ``load_molecules``."""
    names = ("computed", "extra_columns", "descriptors", "weight_column")
    return {"targets": args.target, **{name: args[name] for name in names}}


def add_loop(parser: Parser, skip: tuple[str, ...] = ()) -> None:
    """Add the settings of the training loop; the number of graphs determines the defaults of two of them."""
    parser.add_class_arguments(TrainConfig, skip={*skip, *BUDGET})
    group = parser.add_argument_group("budget")
    group.add_argument("--epochs", type=int, help="passes over the training set (default: 20; on a single graph 300)")
    group.add_argument("--lr", type=float, help="peak learning rate of AdamW (default: 0.001; on a single graph 0.003)")


def config_of(args: Namespace, splits: GraphSplits) -> TrainConfig:
    """Return the settings of the training loop."""
    default = default_config(splits).to_dict()
    return settings_of(TrainConfig, args, **{name: default[name] for name in BUDGET if args[name] is None})


def run(args: Namespace) -> None:
    """Train a model with a positional encoding, and write a run folder."""
    check_writable(RunFolder(args.out or "runs/run").config)  # before any data is read
    chosen = encoder_to_train(args)
    if chosen is None and not args.edge_encoding:
        raise ValueError("--edge_encoding false would have no effect with --encoder none")
    set_threads(args.threads)
    device = join(checked_device("--device", args.device))
    folders = [_train(each, chosen, device) for each in _each_run(args)]
    if process_number() == 0:
        print(comparison_table([read_run(folder) for folder in folders if folder is not None]))


def _each_run(args: Namespace) -> list[Namespace]:
    """Return the arguments of each run: one for each seed or fold, with its own seed, data and folder."""
    settings_of(TrainConfig, args)  # raises before any data is read
    if args.seeds is None and args.folds is None:
        return [args]
    if args.seeds is not None and args.folds is not None:
        raise ValueError("--seeds and --folds exclude each other: use --split_seed or --seed to draw other folds")
    if args.folds is not None:
        check_count("--folds", args.folds, least=2)
        changes = [{"fold": (number, args.folds), "inside": f"fold{number}"} for number in range(args.folds)]
    else:
        for seed in args.seeds:
            check_seed(seed)
        if len(set(args.seeds)) < len(args.seeds):
            raise ValueError(f"--seeds must be different, got {' '.join(map(str, args.seeds))}")
        changes = [{"seed": seed, "data_seed": args.seed} for seed in args.seeds]
        if args.out is not None:  # the default folder has the seed in its name
            changes = [{**change, "inside": f"s{change['seed']}"} for change in changes]
    return [Namespace({**vars(args), **change}) for change in changes]  # type: ignore[no-untyped-call]


def _train(args: Namespace, chosen: Mapping[str, Any] | Checkpoint | None, device: torch.device) -> Path | None:
    """Train once and return the run folder; ``None`` in all processes but the first."""
    start = args.start_model
    splits = load_data(args, chosen, start, **of_target(args))
    config = config_of(args, splits)
    task = task_for(splits, **task_arguments(args))
    options = chosen_model(args, task.level)
    options |= {"seed": config.seed, "edge_encoding": args.edge_encoding}
    dataset = splits.train if start is None else None  # the start brings its own read-outs
    model = build_model(splits.spec, task, chosen, dataset=dataset, **options)
    label = encoder_label(chosen)
    if (name := options["model"].__name__) != DEFAULT_MODEL:
        label = f"{name}-{label}"
    if start is not None:
        label += f"-from-{checkpoint_label(args.start)}"
        try:
            model.start_from(start.model)
        except ValueError as error:
            raise ValueError(f"--start {args.start}: {error}") from error
    check_training(model, splits, task)
    encoder = model.encoder
    if encoder is not None and not encoder.is_fitted:
        print(f"{label} takes its statistics from the training part: {len(splits.train):,} graphs", file=sys.stderr)
    settings = {
        **describe_model(model),
        "pretrained": chosen.name if isinstance(chosen, Checkpoint) else None,
        **({} if start is None else {"start": args.start}),
        "task": task.to_dict(),
        "loop": config.to_dict(),
        "data": {"source": os.path.normpath(args.source), **splits.describe()},
    }

    def begin(folder: RunFolder) -> JointTraining:
        if "mean" in (scale := task.to_dict()):
            mean, std = (", ".join(f"{value:.4g}" for value in scale[name]) for name in ("mean", "std"))
            print(f"labels are standardised: mean {mean}, standard deviation {std}", file=sys.stderr)
        return JointTraining(config, model, splits, task, folder, device, not args.quiet)

    done = run_training(args, label, "train", settings, begin)
    if done is None:
        return None
    folder, _ = done
    print(f"{args.source}, {label}: all in {folder}")
    return folder


def task_arguments(args: Namespace) -> dict[str, Any]:
    """Return arguments of :func:`tg_lpe.app.training.task_for`; the source gives the defaults if no task is named."""
    arguments = {name: value for name, value in dict(args.task).items() if value not in (None, "")}
    name = arguments.pop("class", None)
    defaults = NAMED_TASKS.get(args.source, {}) if name is None else {"name": name}
    is_published = args.source in PUBLISHED_REGRESSIONS and args.target is None
    is_regression = issubclass(TASKS[defaults.get("name", Regression.name)], Regression)
    if is_published and is_regression and not arguments.keys() & {"mean", "std"}:
        defaults = {**defaults, "mean": None, "std": None}
    return {**defaults, **arguments}
