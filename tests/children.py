"""Child processes that start with the package imported: forks of one process, which imports it once."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

CONTEXT = get_context("spawn" if sys.platform == "win32" else "forkserver")
CONTEXT.set_forkserver_preload(["tg_lpe.app.cli.train", "tg_lpe.app.cli.predict", "tg_lpe.theory"])


def start(function: Callable[..., Any], *arguments: Any, said: Path) -> BaseProcess:
    """Start a process that calls a function of a module and writes both streams into the file ``said``."""
    process = CONTEXT.Process(target=_call, args=(function, arguments, said))
    process.start()
    return process


def start_python(*words: str, said: Path) -> BaseProcess:
    """Start what ``python *words`` runs: a script, or ``-m`` and a module, and their arguments."""
    return start(_python, words, said=said)


def exit_status(process: BaseProcess, seconds: float = 300) -> int | None:
    """Wait for the end of a process, kill it after so many seconds, and return its exit status."""
    process.join(seconds)
    process.kill()
    process.join()
    return process.exitcode


def run_python(*words: str, said: Path) -> str:
    """Run what :func:`start_python` starts to its end, which must be a success, and return what it said."""
    status, text = exit_status(start_python(*words, said=said)), said.read_text(encoding="utf-8")
    assert status == 0, text
    return text


def _call(function: Callable[..., Any], arguments: tuple[Any, ...], said: Path) -> None:
    with said.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
    tempfile.tempdir = str(said.parent)  # forks leave without removing theirs
    function(*arguments)


def _python(words: tuple[str, ...]) -> None:
    if words[0] == "-m":
        sys.argv = list(words[1:])
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(words)
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")
