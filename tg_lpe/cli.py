"""The command line: ``tg-lpe train | pretrain | encode | report | zoo | demo``."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

SOURCES = ("zinc", "zinc12k", "qm9", "nci")
EDGE_ENCODING = "linear_transformer_edge_pe"
GRAM_OPTIONS = ("num_filters", "encoder_layers", "num_squarings", "basis", "conductances", "ground", "end_features")
KERNEL_OPTIONS = ("num_filters", "num_layers", "num_squarings", "basis", "features")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the ``tg-lpe`` command.

    Args:
        argv: arguments without the program's name; those of the process if absent.

    Returns:
        Exit status: 0 done, 1 the user's input was refused, 130 stopped by Ctrl-C. Arguments that do not parse exit
        with 2.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    args = _parser().parse_args(argv)
    try:
        args.run(args)
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"tg-lpe {args.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        hints = {
            "train": "; the same command with --resume goes on from the last whole epoch",
            "pretrain": "; the same command with --resume goes on from the last whole epoch",
            "demo": "; the same command goes on from the last whole epoch",
        }
        print(f"\ntg-lpe {args.command}: stopped{hints.get(args.command, '')}", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tg-lpe",
        description="Learned positional encodings for graphs: train and compare them on molecules, encode graphs.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_train(commands)
    _add_pretrain(commands)
    _add_encode(commands)
    _add_report(commands)
    _add_zoo(commands)
    _add_demo(commands)
    return parser


def _add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        help=f"what the data is: {', '.join(SOURCES)} (conventions of those sets), or any folder or .smi/.csv file",
    )
    parser.add_argument(
        "--data", metavar="DIR", help="where it lies: train/val/test as .smi or .csv; not needed for nci"
    )
    parser.add_argument("--strict", action="store_true", help="stop if any molecule is unusable, instead of listing it")
    parser.add_argument("--cache", metavar="DIR", help="where processed molecules are kept (default: ~/.cache/tg_lpe)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, order and random splits (default: 0)")
    parser.add_argument("--threads", type=int, help="threads to compute with (default: one per core)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ... (default: cpu)")
    parser.add_argument("--out", metavar="DIR", help="run folder (default: runs/SOURCE-PE-sSEED)")
    parser.add_argument("--resume", action="store_true", help="go on with the run in the folder")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")


def _add_switch(parser: Any, name: str, default: bool, text: str) -> None:
    """An option that is on or off, ``--name`` or ``--no-name``."""
    state = "on" if default else "off"
    parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, default=default, help=f"{text} ({state})")


def _add_loop(parser: argparse.ArgumentParser, defaults: Any) -> None:
    """Options of the training loop itself, with a command's own defaults."""
    from tg_lpe.training.config import SCHEDULES

    parser.add_argument("--epochs", type=int, default=defaults.epochs, help="(default: %(default)s)")
    parser.add_argument(
        "--batch-size", type=int, default=defaults.batch_size, help="graphs a step (default: %(default)s)"
    )
    parser.add_argument("--schedule", choices=SCHEDULES, default=defaults.schedule, help="(default: %(default)s)")
    parser.add_argument(
        "--halve-every",
        type=int,
        default=defaults.halve_every,
        help="epochs, for --schedule halving (default: %(default)s)",
    )
    parser.add_argument(
        "--clip", type=float, default=defaults.clip, help="largest gradient norm (default: %(default)s)"
    )


def _add_train(commands: Any) -> None:
    parser = commands.add_parser(
        "train",
        help="train a graph transformer with one of the positional encodings",
        description="Train a graph transformer with a positional encoding to predict a property of molecules. "
        "The run folder it leaves is what `tg-lpe report` compares.",
        epilog="example: tg-lpe train zinc --data ZINC_DIR --pe linear-transformer --epochs 20 --seed 0",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    from tg_lpe.models.graph_transformer import ATTENTIONS, POOLINGS, READOUTS
    from tg_lpe.ops.walks import BASES
    from tg_lpe.training.config import CONDUCTANCES, ENCODER_PROBES, ENCODINGS, PRECISIONS, TrainConfig

    defaults = TrainConfig()
    _add_data(parser)
    parser.add_argument(
        "--pe", choices=ENCODINGS, default=defaults.pe, help="positional encoding (default: %(default)s)"
    )
    parser.add_argument(
        "--pe-dim", type=int, help="its width (default: 6 eigenvectors, 16 steps, all that Gram read-outs see)"
    )
    _add_switch(parser, "edge-pe", defaults.edge_pe, "encode the edges too")
    _add_switch(parser, "pe-norm", defaults.pe_norm, "batch norm on the encoding")
    parser.add_argument(
        "--probes",
        choices=ENCODER_PROBES,
        help="starting vectors of the linear transformer: identity (exact Gram read-outs), rademacher (estimated "
        "ones), auto (exact up to 256 atoms), from atom types (features), random, or one learned row per atom index "
        "(the paper's, which reads the order of the atoms) (default: identity, or the pretrained encoder's)",
    )
    gram = parser.add_argument_group("Gram read-outs (--probes identity or rademacher)")
    gram.add_argument("--num-filters", type=int, default=defaults.num_filters, help="(default: %(default)s)")
    gram.add_argument("--encoder-layers", type=int, default=defaults.encoder_layers, help="(default: %(default)s)")
    gram.add_argument(
        "--num-squarings",
        type=int,
        default=defaults.num_squarings,
        help="multiplicative layers after them (default: %(default)s)",
    )
    gram.add_argument("--basis", choices=tuple(BASES), default=defaults.basis, help="(default: %(default)s)")
    gram.add_argument(
        "--conductances", choices=CONDUCTANCES, default=defaults.conductances, help="(default: %(default)s)"
    )
    _add_switch(gram, "ground", defaults.ground, "ground conductances of the nodes")
    _add_switch(gram, "end-features", defaults.end_features, "conductances read the atoms at both ends too")
    parser.add_argument("--encoder", metavar="NAME|DIR", help="pretrained linear transformer to start from")
    parser.add_argument("--lr", type=float, default=defaults.lr, help="of the graph transformer (default: %(default)s)")
    parser.add_argument("--pe-lr", type=float, help="of the maps from the encoding into it (default: that of --lr)")
    parser.add_argument("--encoder-lr", type=float, default=defaults.encoder_lr, help="(default: %(default)s)")
    _add_loop(parser, defaults)
    model = parser.add_argument_group("graph transformer")
    model.add_argument("--attention", choices=ATTENTIONS, default=defaults.attention, help="(default: %(default)s)")
    for name in ("channels", "heads", "num_layers"):
        option = f"--{name.replace('_', '-')}"
        model.add_argument(option, type=int, default=getattr(defaults, name), help="(default: %(default)s)")
    model.add_argument("--readout", choices=READOUTS, default=defaults.readout, help="(default: %(default)s)")
    model.add_argument("--pooling", choices=POOLINGS, default=defaults.pooling, help="(default: %(default)s)")
    parser.add_argument(
        "--weight-decay",
        type=float,
        default=defaults.weight_decay,
        help="of the graph transformer (default: %(default)s)",
    )
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default=defaults.precision,
        help="auto: bfloat16 where the hardware has it, else float32 (default: %(default)s)",
    )
    parser.set_defaults(run=_train)


def _train(args: argparse.Namespace) -> None:
    from dataclasses import fields

    from tg_lpe.training.config import TrainConfig
    from tg_lpe.training.joint import JointTraining

    own = ("pe_dim", "probes", "k")  # a pretrained encoder brings them along
    settings = {f.name: getattr(args, f.name) for f in fields(TrainConfig) if f.name not in own and f.name in args}
    config = TrainConfig(**_encoder_settings(args), **settings)
    done = _run_training(args, "train", config, JointTraining, args.pe)
    if done is not None:
        folder, result = done
        print(
            f"{args.source}, {args.pe}: test MAE {result['test_mae']:.4f} "
            f"(validation {result['val_mae']:.4f} at epoch {result['best_epoch']} of {result['epochs']}); "
            f"all in {folder}"
        )


def _encoder_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Width and probes of the encoding: a pretrained encoder's own, else what was asked for, else the defaults."""
    from tg_lpe.encoders.gram_transformer import GRAM_PROBES
    from tg_lpe.encoders.registry import load_encoder

    if args.pe != "linear-transformer":
        unread = ("encoder", "probes", *GRAM_OPTIONS, *(("pe_dim", "pe_lr") if args.pe == "none" else ()))
        _refuse_unread(args, unread, f"--pe {args.pe}")
        return {"pe_dim": args.pe_dim, "probes": "identity"}
    if args.encoder is not None:
        _refuse_unread(args, GRAM_OPTIONS, f"--encoder {args.encoder}, which brings its own")
    elif args.probes not in (None, *GRAM_PROBES):
        _refuse_unread(args, GRAM_OPTIONS, f"--probes {args.probes}")
    if args.encoder is None:
        return {"pe_dim": args.pe_dim, "probes": args.probes or "identity"}
    encoder = load_encoder(args.encoder)
    own = {"pe_dim": encoder.out_channels, "probes": encoder.probe_kind}
    for name, value in own.items():
        if getattr(args, name) not in (None, value):
            raise ValueError(f"encoder {args.encoder} has {name}={value!r}, got {name}={getattr(args, name)!r}")
    return {**own, "k": getattr(encoder, "k", 8)}


def _refuse_unread(args: argparse.Namespace, names: Sequence[str], instead: str) -> None:
    """Refuse options that were set although nothing would read them, because of what was given ``instead``."""
    default = _parser().parse_args([args.command, args.source])
    for name in names:
        value = getattr(args, name)
        if value != getattr(default, name):
            given = f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
            raise ValueError(f"{given} would have no effect with {instead}")


def _run_training(
    args: argparse.Namespace, kind: str, config: Any, training: Any, label: str
) -> tuple[Path, dict[str, Any]] | None:
    """Run a training into its folder, from the beginning or on from where it was; ``None`` if it is complete already.

    Args:
        args: the command's arguments.
        kind: key of the settings in ``config.json``.
        config: the settings.
        training: class of the training loop.
        label: what the default folder's name says between data and seed.
    """
    from tg_lpe.report import draw_curve
    from tg_lpe.training.run_folder import RunFolder

    _set_threads(args.threads)
    device = _device(args.device)
    splits = _load(args)
    folder = RunFolder(args.out or f"runs/{Path(args.source).stem}-{label}-s{args.seed}")
    going_on = folder.start({kind: config.to_dict(), "data": _describe(args, splits)}, args.resume)
    if folder.result.exists():
        print(f"{folder.path} is complete already", file=sys.stderr)
        folder.release()
        return None
    try:
        result = training(config, splits, folder, device, progress=not args.quiet).fit(resume=going_on)
    finally:
        if folder.metrics.exists():
            draw_curve(folder)  # of an interrupted run too
        folder.release()
    return folder.path, result


def _add_pretrain(commands: Any) -> None:
    from tg_lpe.graph.spectral import KERNELS
    from tg_lpe.ops.walks import BASES
    from tg_lpe.training.config import KernelPretrainConfig, PretrainConfig

    defaults = PretrainConfig()
    parser = commands.add_parser(
        "pretrain",
        help="pretrain a linear transformer on Laplacian eigenvectors or kernels",
        description="Fit a linear transformer's columns to the first non-trivial eigenvectors of the normalised "
        "Laplacian, blind to their signs; or, with --kernels, its Gram read-outs to kernels of the Laplacian. "
        "RUN/encoder is then a checkpoint for `train --encoder` and `encode --encoder`.",
        epilog="examples: tg-lpe pretrain zinc --data ZINC_DIR --eigenvectors 8 --out runs/eigen-k8\n"
        "          tg-lpe pretrain zinc --data ZINC_DIR --kernels heat resistance --lr 0.03 --out runs/heat-k8",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_data(parser)
    parser.add_argument(
        "--eigenvectors", type=int, default=defaults.num_eigenvectors, help="how many, the width (default: %(default)s)"
    )
    parser.add_argument("--k", type=int, default=defaults.k, help="width inside (default: %(default)s)")
    parser.add_argument(
        "--probes", choices=("random", "features", "learned"), default=defaults.probes, help="(default: %(default)s)"
    )
    parser.add_argument(
        "--update-incidence", action="store_true", help="let the incidence matrix change too (small graphs)"
    )
    gram = parser.add_argument_group("kernels instead of eigenvectors")
    kernels = KernelPretrainConfig()
    gram.add_argument("--kernels", nargs="+", choices=tuple(KERNELS), metavar="KERNEL", help=f"of {', '.join(KERNELS)}")
    for name in ("num_filters", "num_layers", "num_squarings"):
        option = f"--{name.replace('_', '-')}"
        gram.add_argument(option, type=int, default=getattr(kernels, name), help="(default: %(default)s)")
    gram.add_argument("--basis", choices=tuple(BASES), default=kernels.basis, help="(default: %(default)s)")
    _add_switch(gram, "features", kernels.features, "conductances read bond and atom types")
    parser.add_argument("--lr", type=float, help=f"(default: {defaults.lr}, for kernels {kernels.lr})")
    _add_loop(parser, defaults)
    parser.set_defaults(run=_pretrain)


def _pretrain(args: argparse.Namespace) -> None:
    from dataclasses import fields

    from tg_lpe.training.config import KernelPretrainConfig, PretrainConfig
    from tg_lpe.training.kernels import KernelPretraining
    from tg_lpe.training.pretrain import EigenvectorPretraining

    given = {"lr": args.lr} if args.lr is not None else {}
    if args.kernels is None:
        _refuse_unread(args, KERNEL_OPTIONS, "eigenvectors; it belongs to --kernels")
    else:
        _refuse_unread(args, ("eigenvectors", "k", "probes", "update_incidence"), "--kernels")
        names = [f.name for f in fields(KernelPretrainConfig) if f.name in args and f.name not in ("lr", "kernels")]
        kernels = KernelPretrainConfig(
            kernels=tuple(args.kernels), **{name: getattr(args, name) for name in names}, **given
        )
        done = _run_training(args, "pretrain-kernels", kernels, KernelPretraining, "pretrain-kernels")
        if done is not None:
            folder, result = done
            print(
                f"{args.source}, {' and '.join(args.kernels)}: test loss {result['test_loss']:.4f}, "
                f"where a constant has 1; encoder in {folder / 'encoder'}"
            )
        return
    names = [f.name for f in fields(PretrainConfig) if f.name in args and f.name != "lr"]
    config = PretrainConfig(
        num_eigenvectors=args.eigenvectors, **{name: getattr(args, name) for name in names}, **given
    )
    done = _run_training(args, "pretrain", config, EigenvectorPretraining, f"pretrain-{args.probes}")
    if done is not None:
        folder, result = done
        print(
            f"{args.source}, {args.eigenvectors} eigenvectors, {args.probes} probes: test loss "
            f"{result['test_loss']:.3f} of at most {result['max_loss']:.0f}; encoder in {folder / 'encoder'}"
        )


def _add_encode(commands: Any) -> None:
    from tg_lpe.transforms.linear_transformer_pe import DEFAULT_ENCODER

    parser = commands.add_parser(
        "encode",
        help="write the positional encodings of molecules",
        description="Encode every molecule of a file. OUT holds, under these names: linear_transformer_pe "
        "[num_nodes, k], edge_index [2, num_edges] (counted per molecule), x (atom type), node_ptr and edge_ptr "
        "[num_molecules + 1], line [num_molecules] (line of IN); with --edges linear_transformer_edge_pe [num_edges, "
        "edge_channels] too. A .pt file is read by torch.load, a .safetensors file by safetensors.torch.load_file.",
        epilog="example: tg-lpe encode molecules.smi encodings.pt",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("input", metavar="IN", help=".smi or .csv file (also .xz)")
    parser.add_argument("output", metavar="OUT", help=".pt or .safetensors file")
    parser.add_argument("--encoder", metavar="NAME|DIR", default=DEFAULT_ENCODER, help="(default: %(default)s)")
    parser.add_argument("--k", type=int, help="columns to write (default: all of the encoder's)")
    parser.add_argument("--edges", action="store_true", help="encode bonds too; the encoder must have edge channels")
    parser.add_argument("--strict", action="store_true", help="stop if any molecule is unusable, instead of listing it")
    parser.add_argument("--threads", type=int, help="threads to compute with (default: one per core)")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    parser.set_defaults(run=_encode)


def _encode(args: argparse.Namespace) -> None:
    import torch

    from tg_lpe.datasets.molecules import MoleculeDataset, read_molecules
    from tg_lpe.encoders.registry import load_encoder
    from tg_lpe.hub.files import replacing, save_tensors
    from tg_lpe.transforms import LinearTransformerPE

    _set_threads(args.threads)
    output = Path(args.output)
    if output.suffix not in (".pt", ".safetensors"):
        raise ValueError(f"OUT must end in .pt or .safetensors, got {args.output}")
    encoder = load_encoder(args.encoder)
    transform = LinearTransformerPE(args.k, encoder=encoder, edge_attr_name=EDGE_ENCODING if args.edges else None)
    known = _atom_types_of(args.encoder) if "x" in encoder.reads else None
    dataset, vocabulary, report, used = read_molecules(
        args.input, vocabulary=known, strict=args.strict, progress=not args.quiet
    )
    for molecule in report.skipped:
        print(f"left out: {molecule}", file=sys.stderr)
    encoded = cast(MoleculeDataset, transform.encode_dataset(dataset, progress=not args.quiet))
    tensors = {
        "linear_transformer_pe": encoded._data.linear_transformer_pe,
        "x": encoded._data.x,
        "edge_index": encoded._data.edge_index,
        "node_ptr": encoded.slices["x"],
        "edge_ptr": encoded.slices["edge_index"],
        "line": torch.tensor([line for line, _ in used]),
    }
    if args.edges:
        tensors[EDGE_ENCODING] = encoded._data[EDGE_ENCODING]
    if output.suffix == ".safetensors":
        save_tensors(output, tensors, {"atom_types": list(vocabulary.types), "encoder": repr(transform)})
    else:
        with replacing(output) as temporary:
            torch.save({**tensors, "atom_types": list(vocabulary.types), "encoder": repr(transform)}, temporary)
    edges = f", {tensors[EDGE_ENCODING].size(1)} for each bond" if args.edges else ""
    print(f"{len(encoded)} molecules, {tensors['x'].size(0)} atoms, {transform.k} columns{edges}: {output}")


def _atom_types_of(encoder: str) -> Any:
    """The atom types by the numbers that an encoder knows them by, from its card or the run folder that it lies in."""
    from tg_lpe import zoo
    from tg_lpe.datasets.molecules import AtomVocabulary
    from tg_lpe.hub.files import read_json
    from tg_lpe.training.run_folder import RunFolder

    folder = zoo.path(encoder) if encoder in zoo.names() else Path(encoder).resolve()
    card, config = folder / "card.json", RunFolder(folder.parent).config
    for file in (card, config):
        types = read_json(file).get("data", {}).get("atom_types") if file.is_file() else None
        if types:
            return AtomVocabulary(tuple(types))
    raise ValueError(
        f"encoder {encoder} reads atom types, and which number is which type is written in its card or in the run "
        f"folder of its training, but there is neither {card} nor {config} that says so; name the encoder inside its "
        "run folder, or one that reads no atom types"
    )


def _add_report(commands: Any) -> None:
    parser = commands.add_parser(
        "report",
        help="compare runs: a table here, and a page with figures",
        description="Compare finished and unfinished runs from their folders alone.",
        epilog="example: tg-lpe report runs/*",
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders")
    parser.add_argument("--out", default="report.html", help="page to write (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="also write the figures as JSON")
    parser.set_defaults(run=_report)


def _report(args: argparse.Namespace) -> None:
    from tg_lpe.hub.files import write_json
    from tg_lpe.report import benchmark_json, comparison_table, read_run, write_report

    paths = list(dict.fromkeys(args.runs))
    runs = [read_run(path) for path in paths]
    print(comparison_table(runs))
    if args.json is not None:
        write_json(Path(args.json), benchmark_json(runs))
    print(f"report: {write_report(paths, args.out)}")


def _add_zoo(commands: Any) -> None:
    parser = commands.add_parser(
        "zoo",
        help="list the checkpoints that ship with the package",
        description="List the checkpoints that from_pretrained knows by name; with NAME, all that its card says.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="one of them")
    parser.set_defaults(run=_zoo)


def _zoo(args: argparse.Namespace) -> None:
    import json

    from tg_lpe import zoo

    if args.name is not None:
        print(json.dumps(zoo.card(args.name), indent=2))
        return
    cards = {name: zoo.card(name) for name in zoo.names()}
    wide = max(len(name) for name in cards)
    for name, card in cards.items():
        metrics = ", ".join(f"{key} {value:.4f}" for key, value in card["metrics"].items() if isinstance(value, float))
        print(f"{name:{wide}}  {card['class']}, {card['num_parameters']:,} parameters: {card['summary']} ({metrics})")


def _add_demo(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="the main job on 5,000 molecules that ship with RDKit, in a few minutes",
        description="Pretrain a linear transformer on kernels of the Laplacian, train a graph transformer without "
        "encoding, with Laplacian eigenvectors, random walks and the linear transformer under one budget, compare.",
    )
    parser.add_argument("--out", default="runs/demo", help="folder for the runs and the report (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=8, help="of each training run (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--threads", type=int, help="threads to compute with (default: one per core)")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    parser.set_defaults(run=_demo)


def _demo(args: argparse.Namespace) -> None:
    out = Path(args.out)
    common = ["nci", "--seed", str(args.seed), "--resume"]
    common += ["--quiet"] * args.quiet + ([] if args.threads is None else ["--threads", str(args.threads)])
    pretrained, runs = str(out / "pretrain"), []
    kernels = ["--kernels", "heat", "resistance", "--features"]
    steps = [["pretrain", *common, *kernels, "--epochs", "4", "--out", pretrained]]
    for pe in ("none", "laplacian", "random-walk", "linear-transformer"):
        runs.append(str(out / pe))
        extra = ["--encoder", f"{pretrained}/encoder"] if pe == "linear-transformer" else []
        steps.append(["train", *common, "--pe", pe, *extra, "--epochs", str(args.epochs), "--out", runs[-1]])
    steps.append(["report", pretrained, *runs, "--out", str(out / "report.html")])
    for step in steps:
        print(f"$ tg-lpe {' '.join(step)}", file=sys.stderr)
        parsed = _parser().parse_args(step)
        parsed.run(parsed)


def _load(args: argparse.Namespace) -> Any:
    """The molecules that the arguments name."""
    from tg_lpe.datasets.molecules import load_molecules

    named = args.source in SOURCES
    if not named and not Path(args.source).exists():
        raise ValueError(
            f"the source is one of {', '.join(SOURCES)}, or a folder or file that exists; got {args.source!r}"
        )
    if args.data is None and args.source in ("zinc", "zinc12k", "qm9"):
        raise ValueError(f"{args.source} needs --data DIR, a folder with train, val and test as .smi or .csv")
    return load_molecules(
        args.data if args.data is not None else args.source,
        name=args.source if named else None,
        cache_dir=args.cache,
        strict=args.strict,
        seed=args.seed,
        progress=not args.quiet,
    )


def _describe(args: argparse.Namespace, splits: Any) -> dict[str, Any]:
    """What the data was, JSON-able; part of what a resumed run must agree with."""
    from dataclasses import asdict

    return {
        "source": args.source,
        "num_train": len(splits.train),
        "num_val": len(splits.val),
        "num_test": len(splits.test),
        "atom_types": list(splits.vocabulary.types),
        "bond_types": list(splits.bond_types),
        "normalization": asdict(splits.normalization) if splits.normalization is not None else None,
        "skipped": [str(molecule) for molecule in splits.report.skipped],
    }


def _device(name: str) -> Any:
    """The device of a name, refused while nothing has been read or written yet if this machine has none such."""
    import torch

    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # an AssertionError where torch was built without it
        raise ValueError(f"--device {name} cannot be used here: {str(error).splitlines()[0]}") from error
    return device


def _set_threads(threads: int | None) -> None:
    import torch

    if threads is not None:
        if threads < 1:
            raise ValueError(f"--threads must be at least 1, got {threads}")
        torch.set_num_threads(threads)


if __name__ == "__main__":
    sys.exit(main())
