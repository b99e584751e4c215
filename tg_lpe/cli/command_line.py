"""The ``tg-lpe`` command: finds the command that is meant, parses its options, runs it, and says what went wrong."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

from tg_lpe import __version__
from tg_lpe.arguments import ArgumentError
from tg_lpe.cli import encode, predict, pretrain, report, show, train, zoo
from tg_lpe.cli.classes import preset_defaults, start_defaults
from tg_lpe.cli.parser import Parser
from tg_lpe.cli.runs import add_process
from tg_lpe.cli.trained import model_of, trained_model
from tg_lpe.cli.words import as_option, check_schedule, last_given, model_class, normalized

if TYPE_CHECKING:
    from tg_lpe.prediction import Predictor


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
    given = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    command, args = _parse(given)
    try:
        COMMANDS[command][1](args)
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"tg-lpe {command}: {_message(error)}", file=sys.stderr)
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


def _message(error: Exception) -> str:
    """What an error says, with options in place of arguments."""
    return error.told(as_option) if isinstance(error, ArgumentError) else str(error)


def _parse(argv: Sequence[str]) -> tuple[str, Namespace]:
    """The command and its arguments; exits with 2 if they do not parse."""
    description = "Positional encodings for graphs: train, compare, encode."
    parser = Parser(prog="tg-lpe", description=description, version=__version__)
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
                    start = trained_model(last_given(argv, "start"))
                    inner.model = model_class(argv, inner.model if start is None else type(model_of(start)))
            except (ValueError, ImportError) as error:
                inner.error(_message(error))
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
                chosen.set_defaults(start_defaults(model_of(start), args[args.command]))
        except ValueError as error:
            chosen.error(_message(error))
    if preset is not None or start is not None or plain != argv:
        args = parser.parse_args(argv)
    if "schedule" in args[args.command]:
        try:
            check_schedule(argv, args[args.command].schedule)
        except ValueError as error:
            commands.choices[args.command].error(_message(error))
    return args.command, args[args.command]


def _add_demo(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    parser.usage = "tg-lpe demo [options]"
    parser.add_argument("--out", default="runs/demo", metavar="DIR", help="folder for the runs and the report")
    parser.add_argument("--epochs", type=int, default=8, help="of each training run")
    parser.add_argument("--seed", type=int, default=0, help="of weights and splits")
    add_process(parser)


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
        "GramTransformer": ["--pretrained", f"{pretrained}/encoder"],
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
    "train": (train.add_options, train.run),
    "pretrain": (pretrain.add_options, pretrain.run),
    "encode": (encode.add_options, encode.run),
    "predict": (predict.add_options, predict.run),
    "show": (show.add_options, show.run),
    "report": (report.add_options, report.run),
    "zoo": (zoo.add_options, zoo.run),
    "demo": (_add_demo, _demo),
}
"""Of each command: what adds its options to a parser, and what runs it; the first line of the latter's docstring is
the command's help."""
