"""``tg-lpe pretrain``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from tg_lpe.app.cli.data import add_data, load_data
from tg_lpe.app.cli.options import (
    SIZES,
    WIDTHS,
    Chosen,
    add_encoder,
    arguments_of,
    encoder_label,
    parse_rest,
    settings_of,
)
from tg_lpe.app.cli.parser import Parser
from tg_lpe.app.cli.pretrained import encoder_to_train
from tg_lpe.app.cli.runs import add_run, run_training, set_threads
from tg_lpe.app.training import (
    EigenvectorPretraining,
    KernelPretrainConfig,
    KernelPretraining,
    PretrainConfig,
    RunFolder,
)
from tg_lpe.app.training.build import start_encoder
from tg_lpe.app.training.kernels import KERNELS, kernel_channels
from tg_lpe.app.training.loop import TrainingLoop
from tg_lpe.app.training.processes import join
from tg_lpe.arguments import checked_device
from tg_lpe.checkpoints.checkpoint import Checkpoint
from tg_lpe.checkpoints.files import check_writable
from tg_lpe.data import DataSpec
from tg_lpe.data.seeding import seeded
from tg_lpe.encoders.registry import ENCODERS


def parse(parser: Parser, words: Sequence[str]) -> Namespace:
    """Declare the options of the command and parse them."""
    parser.usage = "tg-lpe pretrain SOURCE [options]"
    parser.epilog = (
        "examples: tg-lpe pretrain zinc --data ZINC_DIR --eigenvectors 8, "
        "tg-lpe pretrain zinc --data ZINC_DIR --kernels heat resistance --out runs/heat-k8"
    )
    chosen = Chosen(parser, words, "config", "preset", "pretrained", "encoder")
    eigenvectors, kernels = PretrainConfig(), KernelPretrainConfig()
    add_data(parser)
    targets = parser.add_argument_group("targets")
    targets.add_argument(
        "--eigenvectors",
        type=int,
        metavar="N",
        help="learn the first N non-trivial eigenvectors of the normalised Laplacian "
        f"(default: {eigenvectors.num_eigenvectors})",
    )
    targets.add_argument("--kernels", nargs="+", choices=tuple(KERNELS), help="learn kernels of the Laplacian instead")
    targets.add_argument("--read_features", action="store_true", help="with --kernels: read atom and bond types")
    default = "default: LinearTransformer for eigenvectors, GramTransformer for kernels"
    add_encoder(parser, chosen, default, SIZES | WIDTHS)
    parser.add_class_arguments(PretrainConfig, skip={"num_eigenvectors", "lr"})
    parser.add_argument(
        "--lr", type=float, help=f"peak learning rate (default: {eigenvectors.lr}, for kernels {kernels.lr})"
    )
    add_run(parser)
    return parse_rest(parser, chosen)


def run(args: Namespace) -> None:
    """Fit an encoder to Laplacian eigenvectors or kernels; RUN/encoder is then a checkpoint for `--pretrained`."""
    if args.kernels is None:
        if args.read_features:
            raise ValueError("--read_features would have no effect with eigenvectors; it is for --kernels")
        changes = {} if args.eigenvectors is None else {"num_eigenvectors": args.eigenvectors}
        config: Any = settings_of(PretrainConfig, args, **changes)
        widths = {"out_channels": config.num_eigenvectors}
        done, label = _run_pretraining(args, "pretrain", config, EigenvectorPretraining, "LinearTransformer", widths)
        targets, bound = f"{config.num_eigenvectors} eigenvectors", "of at most {max_loss:.0f}"
    else:
        if args.eigenvectors is not None:
            raise ValueError(f"--eigenvectors {args.eigenvectors} would have no effect with --kernels")
        config = settings_of(KernelPretrainConfig, args, kernels=tuple(args.kernels))
        channels = kernel_channels(config.kernels)
        widths = {"out_channels": channels, "edge_out_channels": channels}
        done, label = _run_pretraining(args, "pretrain-kernels", config, KernelPretraining, "GramTransformer", widths)
        targets, bound = f"{' and '.join(config.kernels)} kernels", "constant prediction 1"
    if done is not None:
        folder, result = done
        print(
            f"{args.source}, {targets}, {label}: test loss {result['test_loss']:.4f}, {bound.format(**result)}; "
            f"encoder in {folder / 'encoder'}"
        )


def _run_pretraining(
    args: Namespace, command: str, config: Any, training: Any, default: str, widths: Mapping[str, int]
) -> tuple[tuple[Path, dict[str, Any]] | None, str]:
    """Build and pretrain the encoder; return the result of :func:`run_training` and the encoder's label."""
    check_writable(RunFolder(args.out or "runs/run").config)  # before any data is read
    chosen = encoder_to_train(args)
    if chosen is None:
        if args.encoder["class"] is not None:
            raise ValueError("--encoder none has nothing to pretrain")
        chosen = {"class": default}
    set_threads(args.threads)
    device = join(checked_device("--device", args.device))
    splits = load_data(args, chosen, targets=())
    is_blind = isinstance(config, KernelPretrainConfig) and not config.read_features
    spec = DataSpec(max_nodes=splits.spec.max_nodes) if is_blind else splits.spec
    if isinstance(chosen, dict):
        arguments = arguments_of(ENCODERS[chosen["class"]])
        chosen = {**chosen, **{name: width for name, width in widths.items() if name in arguments}}
    label = encoder_label(chosen)
    with seeded(config.seed):
        try:
            encoder = start_encoder(chosen, spec)
        except ValueError as error:
            raise ValueError(f"{label} cannot be pretrained on these targets: {error}") from error
    settings = {
        "encoder": encoder.config_dict(),
        "pretrained": chosen.name if isinstance(chosen, Checkpoint) else None,
        "loop": config.to_dict(),
        "data": {"source": os.path.normpath(args.source), **splits.describe()},
    }

    def begin(folder: RunFolder) -> TrainingLoop:
        loop: TrainingLoop = training(config, encoder, splits, folder, device, progress=not args.quiet)
        return loop

    return run_training(args, f"{command}-{label}", command, settings, begin), label
