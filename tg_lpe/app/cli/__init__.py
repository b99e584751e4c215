"""The command line: ``tg-lpe train | compare | pretrain | encode | predict | report | zoo``.

Each command is a module with two functions: ``parse(parser, words)`` declares and parses its options, ``run(args)``
does the work. Only the module of the requested command is imported.
"""

from __future__ import annotations

import importlib
import io
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonargparse import Namespace

COMMANDS = {
    "train": "train a model with a positional encoding, and write a run folder",
    "compare": "train with each of several encodings on your data, and write one table and one page",
    "pretrain": "fit an encoder to Laplacian eigenvectors or kernels, and write a checkpoint for --pretrained",
    "encode": "write the positional encodings of the molecules in a file or a Parquet collection",
    "predict": "predict for the molecules in a file with one or several trained models",
    "report": "compare runs: print a table, and write a page with figures",
    "zoo": "list the checkpoints that ship with the package",
}
"""Commands with their descriptions."""

RESUMED = "; the same command with --resume continues after the last complete epoch"
CONTINUES = {"train": RESUMED, "pretrain": RESUMED, "compare": RESUMED.replace(" with --resume", "")}
"""Hints for continuing a command that was stopped."""

_NO_MEMORY = "can't (allocate memory|start new thread)|out of memory|bad_alloc"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ``tg-lpe`` command.

    Args:
        argv: arguments without the program's name; those of the process if absent.

    Returns:
        The exit status, which is 0 for success, 1 for refused input, 2 for invalid arguments, 130 after Ctrl-C.
    """
    words = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    name = " ".join(["tg-lpe", *(word for word in words[:1] if word in COMMANDS)])
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # of characters that a terminal lacks
        status = _run(*words)
        if sys.stdout is not None:  # it is if it was closed
            sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print(f"\n{name}: stopped{CONTINUES.get(words[0], '')}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the output has enough: drop the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if (message := _message(error)) is None:
            raise
        print(f"{name}: {message}", file=sys.stderr)
        return 1


def _message(error: Exception) -> str | None:
    """Return an error in one line; ``None`` for a fault of code."""
    if "tg_lpe.arguments" in sys.modules:  # it imports torch, for which no other error waits
        from tg_lpe.app.cli.parser import as_option
        from tg_lpe.arguments import ArgumentError

        if isinstance(error, ArgumentError):
            return error.told(as_option)
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and re.search(_NO_MEMORY, str(error))):
        return f"not enough memory: {str(error).partition(chr(10))[0]}"
    return str(error) if isinstance(error, ValueError | TypeError | OSError | ImportError) else None


def _run(command: str, *words: str) -> int:
    """Run a command and return the exit status."""
    if command in ("-h", "--help"):
        listed = "\n".join(f"  {name:9} {text}" for name, text in COMMANDS.items())
        print(
            "usage: tg-lpe COMMAND ...\n\nPositional encodings for graphs: train, compare, encode.\n\n"
            f"commands:\n{listed}\n\noptions:\n  --help     also for a command: tg-lpe train --help\n"
            "  --version  print the version of the package"
        )
        return 0
    if command == "--version":
        from tg_lpe import __version__

        print(f"tg-lpe {__version__}")
        return 0
    if command not in COMMANDS:
        print(f"tg-lpe: COMMAND must be one of {', '.join(COMMANDS)}, got {command}", file=sys.stderr)
        return 2
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    is_first = os.environ.get("RANK", "0") == "0"  # of the processes started by torchrun
    logging.getLogger("tg_lpe").setLevel(logging.INFO if is_first else logging.WARNING)
    module, args = parse(command, words)
    with short_warnings():
        module.run(args)
    return 0


@contextmanager
def short_warnings() -> Iterator[None]:
    """Print warnings without the file and the line that they come from."""
    usual = warnings.formatwarning
    warnings.formatwarning = lambda message, *about, **more: f"{message}\n"
    try:
        yield
    finally:
        warnings.formatwarning = usual


def parse(command: str, words: Sequence[str]) -> tuple[Any, Namespace]:
    """Return the module of a command and its parsed arguments; exit with status 2 if they are invalid."""
    from tg_lpe.app.cli.parser import Parser

    module = importlib.import_module(f"tg_lpe.app.cli.{command}")
    text = COMMANDS[command]
    return module, module.parse(Parser(prog=f"tg-lpe {command}", description=f"{text[0].upper()}{text[1:]}."), words)
