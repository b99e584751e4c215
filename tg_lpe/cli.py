"""The command line: ``tg-lpe train | pretrain | encode | predict | show | report | zoo | demo``.

Options of encoders, tasks, models and the loop are the arguments of their constructors, read from the
signatures by jsonargparse: a new argument, and a new class, need no line here.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from jsonargparse import ArgumentParser, Namespace

from tg_lpe.training.options import (
    DEFAULT_ENCODER,
    TASK_SIZES,
    Parser,
    add_encoder,
    add_import,
    add_model,
    arguments_of,
    chosen_encoder,
    chosen_model,
    class_and_arguments,
    encoder_label,
    last_given,
    model_class,
    model_named,
    normalized,
    preset_defaults,
    settings_of,
    start_defaults,
)
from tg_lpe.training.presets import PRESETS

if TYPE_CHECKING:
    import torch

    from tg_lpe.data import GraphSplits
    from tg_lpe.datasets.molecules import AtomVocabulary
    from tg_lpe.encoders.base import Encoder
    from tg_lpe.models import Model
    from tg_lpe.prediction import Predictor
    from tg_lpe.training.loop import TrainingLoop
    from tg_lpe.training.run_folder import RunFolder
    from tg_lpe.transforms import LinearTransformerPE

SOURCES = ("zinc", "zinc12k", "qm9", "nci", "molhiv")
GENERATED = ("pattern", "cluster")
NAMED_TASKS: dict[str, dict[str, Any]] = {
    "molhiv": {"name": "binary"},
    **{source: {"name": "multiclass", "balanced": True, "metric": "balanced_accuracy"} for source in GENERATED},
}
"""Arguments of :func:`tg_lpe.training.task_for` by source, where the labels alone do not tell them."""
EDGE_ENCODING = "linear_transformer_edge_pe"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the ``tg-lpe`` command.

    Args:
        argv: arguments without the program's name; those of the process if absent.

    Returns:
        Exit status: 0 done, 1 the user's input was refused, 130 stopped by Ctrl-C. Arguments that do not parse exit
        with 2.
    """
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    is_first = os.environ.get("RANK", "0") == "0"  # of the processes that torchrun starts
    logging.getLogger("tg_lpe").setLevel(logging.INFO if is_first else logging.WARNING)
    given = list(sys.argv[1:] if argv is None else argv)
    command, args = _parse(given)
    try:
        COMMANDS[command][1](args)
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"tg-lpe {command}: {_with_flags(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        hints = {
            "train": "; the same command with --resume goes on from the last whole epoch",
            "pretrain": "; the same command with --resume goes on from the last whole epoch",
            "demo": "; the same command goes on from the last whole epoch",
        }
        print(f"\ntg-lpe {command}: stopped{hints.get(command, '')}", file=sys.stderr)
        return 130
    return 0


def _with_flags(message: str) -> str:
    """A message of the library, with options in place of the arguments that they stand for."""
    message = message.replace("; targets=() asks for no labels", "")
    message = re.sub(r"\w+=(?:\[[^]]*\]|'[^']*')? \((--[^()]+)\)", r"\1", message)
    return re.sub(r"\b(computed|features|split)='(\w+)'", r"--\1 \2", message)


def _parse(argv: Sequence[str]) -> tuple[str, Namespace]:
    """The command and its arguments; exits with 2 if they do not parse."""
    parser = Parser(prog="tg-lpe", description="Positional encodings for graphs: train, compare, encode.")
    commands = parser.add_subcommands(dest="command", metavar="COMMAND", title="commands")
    wanted = argv[0] if argv and argv[0] in COMMANDS else None
    if wanted is not None:
        parser.command = f"tg-lpe {wanted}"
    start: Predictor | None = None
    for name, (build, run) in COMMANDS.items():
        help_text = (run.__doc__ or "").partition("\n")[0]
        inner = type("CommandParser", (Parser,), {"command": f"tg-lpe {name}"})(description=help_text)
        if name == wanted:  # the others are listed only
            try:
                argv = [name, *normalized(name, argv[1:])]
                if name == "train":
                    start = _start(last_given(argv, "start"))
                    inner.model = model_class(argv, inner.model if start is None else type(_model_of(start)))
            except (ValueError, ImportError) as error:
                inner.error(str(error))
            build(inner)
            Parser.flags = [*inner._option_string_actions, *(word for word in argv if word.startswith("--"))]
        commands.add_subcommand(name, inner, help=help_text[0].lower() + help_text[1:].rstrip("."))
        inner.prog = f"tg-lpe {name}"
    plain = [word for word in argv if not word.startswith("--print_config")]
    args = parser.parse_args(plain)
    preset = args[args.command].get("preset")
    if preset is not None or start is not None:
        chosen = commands.choices[args.command]
        try:
            if start is None:
                chosen.set_defaults(preset_defaults(args.command, args[args.command]))
            else:
                chosen.set_defaults(start_defaults(_model_of(start), args[args.command]))
        except ValueError as error:
            chosen.error(str(error))
    if preset is not None or start is not None or plain != argv:
        args = parser.parse_args(argv)
    return args.command, args[args.command]


def _start(name: str | None) -> Predictor | None:
    """The trained model that ``--start`` names, with the data that it was trained on."""
    if name is None:
        return None
    from tg_lpe.models import MODELS
    from tg_lpe.prediction import load

    start = load(name)
    if type(start.model).__name__ not in MODELS:
        raise ValueError(f"--start {name} holds a {type(start.model).__name__}; models are {', '.join(MODELS)}")
    return start


def _model_of(start: Predictor) -> Model:
    return cast("Model", start.model)


# ---------------------------------------------------------------------------------------------------- shared options


def _add_data(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("data")
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help=f"what the data is: {', '.join(SOURCES)} (conventions of those sets), any folder or .smi/.csv file, "
        "an .npz file with one graph and classes of its nodes, or "
        f"{' or '.join(GENERATED)}, which are drawn from --seed",
    )
    parser.add_argument(
        "--config", action="config", help="YAML file with any of these options; --print_config shows one"
    )
    parser.add_argument(
        "--preset",
        choices=tuple(PRESETS),
        help="other defaults: paper, those of Table 2 of `Graph Transformers Dream of Electric Flow`; san, the "
        "published models of `Rethinking Graph Transformers with Spectral Attention`",
    )
    group.add_argument("--data", metavar="DIR", help="where it lies: train/val/test as .smi or .csv; not for nci")
    group.add_argument("--smiles_column", metavar="COLUMN", help="of csv files (default: smiles)")
    group.add_argument(
        "--features",
        choices=("types", "ogb"),
        help="of atoms and bonds: their types (default), or ogb's nine + three (default for molhiv)",
    )
    group.add_argument(
        "--split", choices=("random", "scaffold"), help="how a single file is divided 80/10/10 (default: random)"
    )
    group.add_argument("--strict", action="store_true", help="stop if any molecule is unusable, instead of listing it")
    group.add_argument(
        "--graphs",
        type=int,
        metavar="N",
        help="graphs for training: the first of a set of molecules (default: all); of pattern and cluster (default: "
        "10000), whose other sets are in proportion",
    )
    group.add_argument("--cache", metavar="DIR", help="where processed molecules are kept (default: ~/.cache/tg_lpe)")


def _add_run(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("run")
    _add_process(group)
    group.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ...")
    group.add_argument("--out", metavar="DIR", help="run folder (default: runs/SOURCE-ENCODER-sSEED)")
    group.add_argument("--resume", action="store_true", help="go on with the run in the folder")


def _add_process(group: Any) -> None:
    group.add_argument("--threads", type=int, metavar="N", help="threads to compute with (default: one per core)")
    group.add_argument("--quiet", action="store_true", help="no progress bars")


def _run_training(
    args: Namespace,
    label: str,
    command: str,
    settings: Mapping[str, Any],
    make: Callable[[RunFolder], TrainingLoop],
) -> tuple[Path, dict[str, Any]] | None:
    """Run a training into its folder; ``None`` if it is complete already, or another process says how it ended."""
    from tg_lpe.nn.parallel import process_number
    from tg_lpe.report import draw_curve
    from tg_lpe.training.loop import run_in_folder
    from tg_lpe.training.run_folder import RunFolder

    folder = RunFolder(args.out or f"runs/{Path(args.source).stem}-{label}-s{args.seed}")
    complete, ours = folder.result.exists(), False

    def begin() -> TrainingLoop:
        nonlocal ours
        ours = True
        return make(folder)

    try:
        result = run_in_folder(begin, folder, command, settings, args.resume)
        ours = True  # a run that is complete may have been stopped before its curve was drawn
    except TypeError as error:  # of code, such as an encoder of the user's own: the traceback says where
        raise RuntimeError(f"training with {label} failed: {error}") from error
    finally:
        if ours and folder.metrics.exists() and process_number() == 0:
            draw_curve(folder)  # of an interrupted run too
    if process_number() > 0:
        return None
    if complete:
        print(f"{folder.path} is complete already", file=sys.stderr)
        return None
    return folder.path, result


# ------------------------------------------------------------------------------------------------------------- train


def _add_train(parser: Parser) -> None:
    from tg_lpe.training.config import TrainConfig
    from tg_lpe.training.tasks import Task

    parser.usage = "tg-lpe train SOURCE [options]"
    parser.epilog = "example: tg-lpe train zinc --data ZINC_DIR --encoder RandomWalk --encoder.steps 20 --seed 0"
    _add_data(parser)
    target = parser.add_argument_group("target")
    target.add_argument("--target", nargs="+", metavar="COLUMN", help="columns of the csv files to predict")
    target.add_argument("--computed", choices=("solubility",), help="predict this property, computed from the molecule")
    target.add_subclass_arguments(
        Task,
        "task",
        as_group=False,
        skip=TASK_SIZES,
        instantiate=False,
        metavar="TASK",
        help="regression, binary, multilabel, multiclass, or a class of your own; --task.help TASK lists its options",
    )
    add_encoder(parser, "train", f"default: {DEFAULT_ENCODER}")
    parser.add_argument("--edge_encoding", type=bool, default=True, help="use the encoding of edges, if there is one")
    parser.add_argument(
        "--start",
        metavar="NAME|DIR",
        help="begin from the weights of a trained model, all but its head: see tg-lpe zoo, or a run folder. Its class, "
        "its options and its encoder's are the defaults",
    )
    add_model(parser)
    parser.add_class_arguments(TrainConfig)
    _add_run(parser)


def _train(args: Namespace) -> None:
    """Train a model with a positional encoding; `tg-lpe report` compares the run folders it writes."""
    from tg_lpe.training import JointTraining, TrainConfig, build_model, task_for
    from tg_lpe.training.metrics import METRICS
    from tg_lpe.training.processes import join
    from tg_lpe.training.run_folder import checkpoint_label, describe_model

    config: TrainConfig = settings_of(TrainConfig, args)
    chosen = chosen_encoder(args)
    if chosen is None and args.encoder is None and "encoder" in arguments_of(model_named(args.model["class"])):
        chosen = {"class": DEFAULT_ENCODER}
    if chosen is None and not args.edge_encoding:
        raise ValueError("--edge_encoding false would have no effect with --encoder none")
    _set_threads(args.threads)
    device = join(_device(args.device))
    start = _start(args.start)
    splits = _load(args, chosen, start, targets=args.target, computed=args.computed)
    task = task_for(splits, **_task(args))
    options = chosen_model(args, task.level)
    model = build_model(splits.spec, task, chosen, seed=config.seed, edge_encoding=args.edge_encoding, **options)
    label = encoder_label(chosen)
    if start is not None:
        label += f"-from-{checkpoint_label(args.start)}"
        try:
            model.start_from(_model_of(start))
        except ValueError as error:
            raise ValueError(f"--start {args.start}: {error}") from error
    settings = {
        **describe_model(model),
        "pretrained": chosen if isinstance(chosen, str) else None,
        **({} if start is None else {"start": args.start}),
        "task": task.to_dict(),
        "loop": config.to_dict(),
        "data": {"source": os.path.normpath(args.source), **splits.describe()},
    }
    done = _run_training(
        args,
        label,
        "train",
        settings,
        lambda folder: JointTraining(config, model, splits, task, folder, device, progress=not args.quiet),
    )
    if done is not None:
        folder, result = done
        print(
            f"{args.source}, {label}: "
            f"test {METRICS[task.metric].title} {result[f'test_{task.metric}']:.4f} "
            f"(validation {result[f'val_{task.metric}']:.4f} at epoch {result['best_epoch']} of {result['epochs']}); "
            f"all in {folder}"
        )


def _task(args: Namespace) -> dict[str, Any]:
    """Arguments of :func:`tg_lpe.training.task_for`."""
    from tg_lpe.training.tasks import register_task

    if args.task is None:
        return NAMED_TASKS.get(args.source, {})
    cls, arguments = class_and_arguments(args.task)
    given = {name: value for name, value in arguments.items() if value not in (None, "")}
    return {"name": register_task(cls).name, **given}


# ---------------------------------------------------------------------------------------------------------- pretrain


def _add_pretrain(parser: ArgumentParser) -> None:
    from tg_lpe.graph.spectral import KERNELS
    from tg_lpe.training.config import KernelPretrainConfig, PretrainConfig

    parser.usage = "tg-lpe pretrain SOURCE [options]"
    parser.epilog = (
        "examples: tg-lpe pretrain zinc --data ZINC_DIR --eigenvectors 8, "
        "tg-lpe pretrain zinc --data ZINC_DIR --kernels heat resistance --out runs/heat-k8"
    )
    eigenvectors, kernels = PretrainConfig(), KernelPretrainConfig()
    _add_data(parser)
    targets = parser.add_argument_group("what is learned")
    targets.add_argument(
        "--eigenvectors",
        type=int,
        metavar="N",
        help=f"the first N non-trivial eigenvectors of the normalised Laplacian ({eigenvectors.num_eigenvectors})",
    )
    targets.add_argument("--kernels", nargs="+", choices=tuple(KERNELS), help="these kernels of the Laplacian instead")
    targets.add_argument(
        "--read_features", action="store_true", help="for kernels: let the encoder read atom and bond types"
    )
    add_encoder(parser, "pretrain", "default: LinearTransformer for eigenvectors, GramTransformer for kernels")
    parser.add_class_arguments(PretrainConfig, skip={"num_eigenvectors", "lr"})
    parser.add_argument("--lr", type=float, help=f"peak learning rate ({eigenvectors.lr}, for kernels {kernels.lr})")
    _add_run(parser)


def _pretrain(args: Namespace) -> None:
    """Fit an encoder to Laplacian eigenvectors or kernels; RUN/encoder is then a checkpoint for `--pretrained`."""
    from tg_lpe.training import EigenvectorPretraining, KernelPretrainConfig, KernelPretraining, PretrainConfig

    if args.kernels is None:
        if args.read_features:
            raise ValueError("--read_features would have no effect with eigenvectors; it belongs to --kernels")
        more = {} if args.eigenvectors is None else {"num_eigenvectors": args.eigenvectors}
        config: Any = settings_of(PretrainConfig, args, **more)
        widths = {"out_channels": config.num_eigenvectors}
        done, label = _run_pretraining(args, "pretrain", config, EigenvectorPretraining, "LinearTransformer", widths)
        what, bound = f"{config.num_eigenvectors} eigenvectors", "of at most {max_loss:.0f}"
    else:
        if args.eigenvectors is not None:
            raise ValueError(f"--eigenvectors {args.eigenvectors} would have no effect with --kernels")
        from tg_lpe.graph.spectral import kernel_channels

        config = settings_of(KernelPretrainConfig, args, kernels=tuple(args.kernels))
        channels = kernel_channels(config.kernels)
        widths = {"out_channels": channels, "edge_out_channels": channels}
        done, label = _run_pretraining(args, "pretrain-kernels", config, KernelPretraining, "GramTransformer", widths)
        what, bound = f"{' and '.join(config.kernels)} kernels", "where a constant has 1"
    if done is not None:
        folder, result = done
        print(
            f"{args.source}, {what}, {label}: test loss {result['test_loss']:.4f}, {bound.format(**result)}; "
            f"encoder in {folder / 'encoder'}"
        )


def _run_pretraining(
    args: Namespace, command: str, config: Any, training: Any, default: str, widths: Mapping[str, int]
) -> tuple[tuple[Path, dict[str, Any]] | None, str]:
    """Build the encoder, pretrain it; what :func:`_run_training` returns, and the encoder's label."""
    from tg_lpe.data import DataSpec
    from tg_lpe.training.build import seeded, start_encoder
    from tg_lpe.training.processes import join

    chosen = chosen_encoder(args)
    if chosen is None:
        if args.encoder is not None:
            raise ValueError("--encoder none has nothing to pretrain")
        chosen = {"class": default}
    _set_threads(args.threads)
    device = join(_device(args.device))
    splits = _load(args, chosen, targets=())
    spec = splits.spec if getattr(config, "read_features", True) else DataSpec(max_nodes=splits.spec.max_nodes)
    if isinstance(chosen, dict):
        from tg_lpe.encoders.registry import ENCODERS

        taken = arguments_of(ENCODERS[chosen["class"]])
        chosen = {**chosen, **{name: width for name, width in widths.items() if name in taken}}
    with seeded(config.seed):
        encoder = cast("Encoder", start_encoder(chosen, spec))
    if not any(True for _ in encoder.parameters()):
        raise ValueError(f"{encoder_label(chosen)} has no parameters to learn; choose another --encoder")
    settings = {
        "encoder": encoder.config_dict(),
        "pretrained": chosen if isinstance(chosen, str) else None,
        "loop": config.to_dict(),
        "data": {"source": os.path.normpath(args.source), **splits.describe()},
    }
    label = encoder_label(chosen)
    done = _run_training(
        args,
        f"{command}-{label}",
        command,
        settings,
        lambda folder: training(config, encoder, splits, folder, device, progress=not args.quiet),
    )
    return done, label


# ------------------------------------------------------------------------------------------------------------ encode


def _add_encode(parser: ArgumentParser) -> None:
    from tg_lpe.transforms.linear_transformer_pe import DEFAULT_ENCODER as DEFAULT

    parser.usage = "tg-lpe encode IN OUT [options]"
    parser.epilog = (
        "A Parquet file, or a folder of them, with a column of SMILES or of graphs, is encoded shard by shard into the "
        "folder OUT; the same command goes on with a job that was stopped. Of other files, "
        "OUT holds linear_transformer_pe [num_nodes, k], edge_index [2, num_edges] (numbers of nodes per molecule), "
        "x (atom types), node_ptr and edge_ptr [num_molecules + 1], line [num_molecules] (line of IN); with --edges "
        f"{EDGE_ENCODING} [num_edges, edge_out_channels]. torch.load reads a .pt file, safetensors.torch.load_file a "
        ".safetensors file. Example: tg-lpe encode molecules.smi encodings.pt"
    )
    parser.add_argument("input", metavar="IN", help=".smi or .csv file (also .xz), .parquet file, or folder of these")
    parser.add_argument("output", metavar="OUT", help=".pt or .safetensors file; for Parquet, a folder")
    add_encoder(parser, "encode", f"default: the pretrained {DEFAULT}")
    parser.add_argument("--smiles_column", metavar="COLUMN", help="of a csv or Parquet file (default: smiles)")
    parser.add_argument("--k", type=int, help="columns to write (default: all of the encoder's)")
    parser.add_argument("--edges", action="store_true", help="encode bonds too; the encoder must have edge channels")
    parser.add_argument("--strict", action="store_true", help="stop if any molecule is unusable, instead of listing it")
    parquet = parser.add_argument_group("Parquet")
    parquet.add_argument("--rows_per_shard", type=int, metavar="N", help="rows of a file of OUT (default: 10000)")
    parquet.add_argument(
        "--part", metavar="I/N", help="every Nth shard from the Ith on, counted from 0: for N processes"
    )
    parquet.add_argument("--ray", action="store_true", help="shards are tasks of Ray, on this machine or its cluster")
    _add_process(parser)


def _encode(args: Namespace) -> None:
    """Write the positional encodings of the molecules of a file, or of a Parquet collection of molecules or graphs."""
    source, output = Path(args.input), Path(args.output)
    is_parquet = source.is_dir() or source.suffix == ".parquet"
    for name in ("rows_per_shard", "part", "ray"):
        if args[name] and not is_parquet:
            raise ValueError(f"--{name} {args[name]} would have no effect with {args.input}; it belongs to Parquet")
    if is_parquet and output.suffix in (".pt", ".safetensors", ".parquet"):
        raise ValueError(f"OUT must be a folder for the shards of Parquet files, got {args.output}")
    if not is_parquet and output.suffix not in (".pt", ".safetensors"):
        raise ValueError(f"OUT must end in .pt or .safetensors, got {args.output}")
    _set_threads(args.threads)
    (_encode_shards if is_parquet else _encode_file)(args, output)


def _encode_file(args: Namespace, output: Path) -> None:
    """Molecules of one file, in memory."""
    import torch

    from tg_lpe.datasets.molecules import MoleculeDataset, read_molecules
    from tg_lpe.hub.files import check_writable, replacing, save_tensors

    check_writable(output)
    transform, known = _transform(args)
    dataset, vocabulary, report, used = read_molecules(
        args.input, vocabulary=known, smiles_column=args.smiles_column, strict=args.strict, progress=not args.quiet
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
            try:
                torch.save({**tensors, "atom_types": list(vocabulary.types), "encoder": repr(transform)}, temporary)
            except RuntimeError as error:  # torch's word for a full disk
                raise OSError(f"{output} could not be written: {error}") from error
    edges = f", {tensors[EDGE_ENCODING].size(1)} for each bond" if args.edges else ""
    print(f"{len(encoded)} molecules, {tensors['x'].size(0)} atoms, {transform.k} columns{edges}: {output}")


def _encode_shards(args: Namespace, output: Path) -> None:
    """Molecules or graphs of Parquet files, shard by shard."""
    from tg_lpe.data.tables import open_parquet, parquet_files
    from tg_lpe.jobs import ROWS, EncodingJob

    if args.part is not None and args.ray:
        raise ValueError(f"--part {args.part} would have no effect with --ray, which divides the shards itself")
    part = re.fullmatch(r"(\d+)/(\d+)", args.part or "0/1")
    if part is None:
        raise ValueError(f"--part must be I/N, such as 0/2, got {args.part}")
    transform, known = _transform(args)
    with open_parquet(parquet_files(args.input)[0]) as file:
        holds_graphs = args.smiles_column is None and "edge_index" in file.schema_arrow.names
    reader = None
    if known is not None and not holds_graphs:
        from tg_lpe.datasets.molecules import MoleculeReader

        reader = MoleculeReader(known)
    job = EncodingJob(
        args.input,
        output,
        transform,
        reader=reader,
        smiles_column=args.smiles_column,
        rows_per_shard=ROWS if args.rows_per_shard is None else args.rows_per_shard,
        strict=args.strict,
    )
    done = job.run_on_ray() if args.ray else job.run((int(part[1]), int(part[2])), progress=not args.quiet)
    print(
        f"{done.num_shards:,} of {len(job.shards):,} shards encoded, {done.num_rows:,} rows, {done.num_refused:,} of "
        f"them refused: {output}"
    )


def _transform(args: Namespace) -> tuple[LinearTransformerPE, AtomVocabulary | None]:
    """The transform of ``encode``, and the atom types that its encoder knows by number."""
    from tg_lpe.transforms import LinearTransformerPE

    encoder, name = _fixed_encoder(args)
    transform = LinearTransformerPE(args.k, encoder=encoder, edge_attr_name=EDGE_ENCODING if args.edges else None)
    return transform, _atom_types_of(name) if name is not None and "x" in encoder.reads else None


def _vocabulary_for(chosen: Mapping[str, Any] | str | None, features: str) -> AtomVocabulary | None:
    """The atom types that a pretrained encoder knows by number; ``None`` if it reads none, or is not pretrained.

    Raises:
        ValueError: if it was trained on other features, or nothing says which atom types its numbers mean.
    """
    if not isinstance(chosen, str):
        return None
    from tg_lpe.encoders.registry import load_encoder

    reads = load_encoder(chosen).reads & {"x", "edge_attr"}
    if not reads:
        return None
    trained = next((data for _, data in _descriptions_of(chosen) if data.get("bond_types") is not None), {})
    if trained and (before := _features_of(trained)) != features:
        raise ValueError(f"encoder {chosen} was trained with --features {before}, got --features {features}")
    return _atom_types_of(chosen) if "x" in reads and features == "types" else None


def _features_of(data: Mapping[str, Any]) -> str | None:
    """The ``--features`` of the molecules that a run or a card describes; ``None`` if it describes none."""
    bond_types = data.get("bond_types")
    return None if bond_types is None else "types" if bond_types else "ogb"


def _vocabulary_of(data: Mapping[str, Any]) -> AtomVocabulary | None:
    """The atom types by number of the molecules that a run or a card describes; ``None`` if it has none."""
    from tg_lpe.datasets.molecules import AtomVocabulary

    return AtomVocabulary(tuple(data["atom_types"])) if data.get("atom_types") else None


def _atom_types_of(encoder: str) -> AtomVocabulary:
    """The atom types by the numbers that an encoder knows them by, from its card or the run folder that it lies in."""
    descriptions = _descriptions_of(encoder)
    for _, data in descriptions:
        if (vocabulary := _vocabulary_of(data)) is not None:
            return vocabulary
    card, *_, config = (file for file, _ in descriptions)
    raise ValueError(
        f"encoder {encoder} reads atom types, and neither {card} nor {config} says which number is which type; name "
        "the encoder inside the run folder of its training, or one that reads no atom types"
    )


def _descriptions_of(encoder: str) -> list[tuple[Path, Mapping[str, Any]]]:
    """The files that may describe the data that an encoder was trained on, and what they say of it."""
    from tg_lpe.hub.checkpoints import DESCRIPTION, find_folder
    from tg_lpe.hub.files import read_json
    from tg_lpe.training.run_folder import RunFolder

    folder = Path(encoder).resolve() if os.path.isdir(encoder) else find_folder(encoder)
    files = folder / DESCRIPTION, RunFolder(folder).config, RunFolder(folder.parent).config
    return [(file, read_json(file).get("data", {}) if file.is_file() else {}) for file in files]


# ----------------------------------------------------------------------------------------------------- predict, show


def _add_predict(parser: ArgumentParser) -> None:
    from tg_lpe.prediction.predictor import BATCH_SIZE

    parser.usage = "tg-lpe predict MODEL IN OUT [options]"
    parser.epilog = (
        "OUT has a row for each molecule of IN, in its order: line (of IN), smiles, and what is predicted, empty where "
        "a molecule is refused. Example: tg-lpe predict transformer-zinc molecules.smi predictions.csv"
    )
    parser.add_argument(
        "model", metavar="MODEL", help="name of a shipped model, a run folder, or a checkpoint's folder"
    )
    parser.add_argument("input", metavar="IN", help=".smi or .csv file (also .xz), of any length")
    parser.add_argument("output", metavar="OUT", help=".csv file")
    add_import(parser)
    parser.add_argument("--smiles_column", metavar="COLUMN", help="of a csv file (default: smiles)")
    parser.add_argument("--refused", metavar="FILE", help="csv file to list the refused molecules in, with the reasons")
    parser.add_argument("--strict", action="store_true", help="stop at the first refused molecule")
    parser.add_argument("--batch_size", type=int, default=BATCH_SIZE, help="molecules that are predicted at once")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ...")
    parser.add_argument(
        "--workers", type=int, metavar="N", help="processes that read SMILES (default: one for every four cores)"
    )
    _add_process(parser)


def _predict(args: Namespace) -> None:
    """Predict for the molecules of a file, with a trained model."""
    import torch

    from tg_lpe.hub.files import check_writable
    from tg_lpe.prediction import load, predict_file

    if not args.output.endswith(".csv"):
        raise ValueError(f"OUT must end in .csv, got {args.output}")
    for path in (args.output, args.refused):
        if path is not None:
            check_writable(Path(path))
    if args.workers is not None and args.workers < 0:
        raise ValueError(f"--workers must be at least 0, got {args.workers}")
    device, cores = _device(args.device), torch.get_num_threads()
    # Reading a molecule takes a third of the time of predicting it; a worker that has a core waits for nobody.
    workers = args.workers if args.workers is not None else 0 if cores == 1 else max(1, cores // 4)
    _set_threads(args.threads if args.threads is not None else max(1, cores - workers))
    done = predict_file(
        load(args.model, device),
        args.input,
        args.output,
        smiles_column=args.smiles_column,
        refused=args.refused,
        strict=args.strict,
        batch_size=args.batch_size,
        num_workers=workers,
        progress=not args.quiet,
    )
    print(f"{done.num_molecules:,} molecules, {done.num_refused:,} of them refused: {args.output}")


def _add_show(parser: ArgumentParser) -> None:
    from tg_lpe.transforms.linear_transformer_pe import DEFAULT_ENCODER as DEFAULT

    parser.usage = "tg-lpe show SMILES [options]"
    parser.epilog = (
        "examples: tg-lpe show CC(=O)Nc1ccc(O)cc1 --encoder gram-k8, "
        "tg-lpe show c1ccccc1O --encoder LaplacianEigenvectors --encoder.k 3 --out phenol.png"
    )
    parser.add_argument("smiles", metavar="SMILES", help="the molecule")
    add_encoder(
        parser, "show", f"default: the pretrained {DEFAULT}; a pretrained one or a run, by name or folder, will do too"
    )
    parser.add_argument(
        "--channels", type=int, nargs="+", metavar="N", help="channels to draw, from 0 (default: 0 to 5)"
    )
    parser.add_argument("--columns", type=int, default=3, metavar="N", help="drawings in a row")
    parser.add_argument("--out", default="molecule.svg", metavar="FILE", help=".svg or .png file to write")


def _show(args: Namespace) -> None:
    """Draw a molecule with its atoms and bonds coloured by the channels of an encoding."""
    from tg_lpe import plot
    from tg_lpe.hub.files import check_writable

    if not args.out.endswith((".svg", ".png")):
        raise ValueError(f"--out must end in .svg or .png, got {args.out}")
    check_writable(Path(args.out))
    encoder, name = _fixed_encoder(args)
    vocabulary = _atom_types_of(name) if name is not None and "x" in encoder.reads else None
    picture = plot.molecule(
        args.smiles, encoder, vocabulary=vocabulary, channels=args.channels, columns=args.columns
    ).save(args.out)
    print(f"{args.smiles}: {picture}")


def _fixed_encoder(args: Namespace) -> tuple[Encoder, str | None]:
    """The encoder that ``encode`` and ``show`` use as it is, and the name or folder of a pretrained one."""
    from tg_lpe.data import DataSpec
    from tg_lpe.training.build import start_encoder
    from tg_lpe.transforms.linear_transformer_pe import DEFAULT_ENCODER as DEFAULT

    chosen = chosen_encoder(args)
    if chosen is None:
        if args.encoder is not None:
            raise ValueError("--encoder none encodes nothing")
        chosen = DEFAULT
    if isinstance(chosen, str):
        return _trained_encoder(chosen), chosen
    encoder = cast("Encoder", start_encoder(chosen, DataSpec()))
    if any(True for _ in encoder.parameters()):
        raise ValueError(f"{encoder_label(chosen)} has weights to learn: name a checkpoint of one by --pretrained")
    return encoder, None


def _trained_encoder(name: str) -> Encoder:
    """A pretrained encoder, or that of a trained model or of a run."""
    from tg_lpe.encoders.registry import ENCODERS, load_encoder
    from tg_lpe.hub.checkpoints import CLASSES, read_config
    from tg_lpe.prediction import load

    config = read_config(name)
    if config.get("command", "train") != "train":
        return load_encoder(Path(name, "encoder"))
    if "command" not in config and (config.get("class") in ENCODERS or config.get("class") not in CLASSES):
        return load_encoder(name)
    encoder: Encoder | None = load(name).model.encoder  # type: ignore[assignment]
    if encoder is None:
        raise ValueError(f"{name} holds a model without an encoder")
    return encoder


# ------------------------------------------------------------------------------------------------- report, zoo, demo


def _add_report(parser: ArgumentParser) -> None:
    parser.usage = "tg-lpe report RUN [RUN ...] [options]"
    parser.epilog = "example: tg-lpe report runs/*"
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders, finished or not")
    parser.add_argument("--out", default="report.html", help="page to write")
    parser.add_argument("--json", metavar="FILE", help="also write the figures as JSON")


def _report(args: Namespace) -> None:
    """Compare runs: a table here, and a page with figures."""
    from tg_lpe.hub.files import check_writable, write_json
    from tg_lpe.report import benchmark_json, comparison_table, read_run, write_report

    for path in (args.out, args.json):
        if path is not None:
            check_writable(Path(path))
    paths = list(dict.fromkeys(args.runs))
    runs = [read_run(path) for path in paths]
    print(comparison_table(runs))
    if args.json is not None:
        write_json(Path(args.json), benchmark_json(runs))
    print(f"report: {write_report(paths, args.out)}")


def _add_zoo(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="one of them: print all that its card says")


def _zoo(args: Namespace) -> None:
    """List the checkpoints that ship with the package."""
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


def _add_demo(parser: ArgumentParser) -> None:
    parser.usage = "tg-lpe demo [options]"
    parser.add_argument("--out", default="runs/demo", metavar="DIR", help="folder for the runs and the report")
    parser.add_argument("--epochs", type=int, default=8, help="of each training run")
    parser.add_argument("--seed", type=int, default=0, help="of weights and splits")
    _add_process(parser)


def _demo(args: Namespace) -> None:
    """Pretrain an encoder, train with four encodings and compare them, on 5,000 molecules that ship with RDKit."""
    out = Path(args.out)
    common = ["nci", "--seed", str(args.seed), "--resume"]
    common += ["--quiet"] * args.quiet + ([] if args.threads is None else ["--threads", str(args.threads)])
    pretrained, runs = str(out / "pretrain"), []
    kernels = ["--kernels", "heat", "resistance", "--read_features"]
    steps = [["pretrain", *common, *kernels, "--epochs", "4", "--out", pretrained]]
    encodings = {
        "none": ["--encoder", "none"],
        "laplacian": ["--encoder", "LaplacianEigenvectors", "--encoder.k", "6"],
        "random-walk": ["--encoder", "RandomWalk", "--encoder.steps", "16"],
        "linear-transformer": ["--pretrained", f"{pretrained}/encoder"],
    }
    for name, options in encodings.items():
        runs.append(str(out / name))
        small = ["--model.hidden_channels", "64", "--epochs", str(args.epochs)]  # minutes on two cores
        steps.append(["train", *common, *options, *small, "--out", runs[-1]])
    steps.append(["report", pretrained, *runs, "--out", str(out / "report.html")])
    for step in steps:
        print(f"$ tg-lpe {' '.join(step)}", file=sys.stderr)
        command, parsed = _parse(step)
        COMMANDS[command][1](parsed)


COMMANDS: dict[str, tuple[Callable[[Any], None], Callable[[Any], None]]] = {
    "train": (_add_train, _train),
    "pretrain": (_add_pretrain, _pretrain),
    "encode": (_add_encode, _encode),
    "predict": (_add_predict, _predict),
    "show": (_add_show, _show),
    "report": (_add_report, _report),
    "zoo": (_add_zoo, _zoo),
    "demo": (_add_demo, _demo),
}
"""Of each command: what adds its options to a parser, and what runs it; the first line of the latter's docstring is
the command's help."""


def _load(
    args: Namespace, chosen: Mapping[str, Any] | str | None, start: Predictor | None = None, **targets: Any
) -> GraphSplits:
    """The data that the arguments name, with atom types as a pretrained encoder or model numbers them."""
    if args.source in GENERATED:
        from tg_lpe.datasets.block_models import load_block_model

        _refuse_options_of_molecules(args, targets)
        return load_block_model(args.source, args.seed, args.graphs)
    if args.source.endswith(".npz"):
        return _load_node_graph(args, targets)
    import torch

    from tg_lpe.datasets.molecules import load_molecules

    named = args.source in SOURCES
    if not named and not Path(args.source).exists():
        raise ValueError(
            f"the source is one of {', '.join((*SOURCES, *GENERATED))}, or a folder or file that exists; "
            f"got {args.source!r}"
        )
    if args.data is None and args.source in SOURCES and args.source != "nci":
        raise ValueError(f"{args.source} needs --data DIR, a folder with train, val and test as .smi or .csv")
    before = None if start is None else _features_of(start.data)
    features: Any = args.features or before or ("ogb" if args.source == "molhiv" else "types")
    if start is not None and before is None:
        raise ValueError(f"nothing says how model {args.start} reads molecules: name the run folder of its training")
    if before not in (None, features):
        raise ValueError(f"model {args.start} was trained with --features {before}, got --features {features}")
    splits = load_molecules(
        args.data if args.data is not None else args.source,
        name=args.source if named else None,
        smiles_column=args.smiles_column,
        features=features,
        vocabulary=_vocabulary_for(chosen, features) if start is None else _vocabulary_of(start.data),
        split=args.split,
        cache_dir=args.cache,
        strict=args.strict,
        seed=args.seed,
        progress=not args.quiet,
        **targets,
    )
    if args.graphs is None:
        return splits
    if not 1 <= args.graphs <= len(splits.train):
        raise ValueError(f"--graphs must be 1 to {len(splits.train)}, the size of the training set, got {args.graphs}")
    return replace(splits, train=splits.train.copy(torch.arange(args.graphs)))


def _load_node_graph(args: Namespace, targets: Mapping[str, Any]) -> GraphSplits:
    """One graph with classes of its nodes, which are divided 60/20/20 at random."""
    from tg_lpe.data import GraphSplits, random_node_masks
    from tg_lpe.datasets.nodes import load_node_graph

    _refuse_options_of_molecules(args, targets)
    splits = GraphSplits.of_masks(random_node_masks(load_node_graph(args.source), args.seed))
    return replace(splits, split={"kind": "random", "seed": args.seed})


def _refuse_options_of_molecules(args: Namespace, targets: Mapping[str, Any]) -> None:
    """Refuse options that only sources of molecules have."""
    given = {name: args[name] for name in ("data", "smiles_column", "split", "cache")}
    if args.source not in GENERATED:
        given["graphs"] = args.graphs
    given |= {"target": " ".join(targets.get("targets") or ()), "computed": targets.get("computed")}
    given |= {"strict": args.strict, "features": args.features}
    for name, value in given.items():
        if value:
            raise ValueError(f"--{name} {value} would have no effect with {args.source}; it belongs to molecules")


def _device(name: str) -> torch.device:
    """The device of a name, checked before anything is read or written."""
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
