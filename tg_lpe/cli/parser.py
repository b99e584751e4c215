"""The parser of a command: what it refuses, it says in a few lines."""

from __future__ import annotations

import difflib
import re
import sys
from argparse import Action, HelpFormatter
from collections.abc import Sequence
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, DefaultHelpFormatter

from tg_lpe.models import MODELS, Model
from tg_lpe.models.registry import DEFAULT_MODEL

_TYPES = {"int": "an integer", "float": "a number", "bool": "true or false", "str": "a text", "NoneType": "null"}


class PlainHelp(DefaultHelpFormatter):
    """Help without the markup of the docstrings that it comes from."""

    def start_section(self, heading: str | None) -> None:
        super().start_section(heading and plain(heading))

    def add_text(self, text: str | None) -> None:
        super().add_text(text and plain(text))

    def _expand_help(self, action: Action) -> str:
        return plain(super()._expand_help(action))


def plain(text: str) -> str:
    """Strip the markup of reStructuredText: quotes of literals, roles, links."""
    text = re.sub(r"`([^`<]*?)\s*<([^`>]*)>`_", r"\1 (\2)", text)
    text = re.sub(r":\w+:`~?(?:[^`]*\.)?([^`.]+)`", r"\1", text)
    return re.sub(r"`+([^`]*)`+", r"\1", text)


class Parser(ArgumentParser):
    """Says what is wrong in a few lines; the list of all options is left to ``--help``. Options have one spelling."""

    command = "tg-lpe"
    model: type[Model] = MODELS[DEFAULT_MODEL]
    """The class that the options ``--model.*`` belong to."""
    flags: Sequence[str] = ()
    """All options of the command, and the words that were given: what error messages name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, "formatter_class": PlainHelp, **kwargs})

    def format_help(self, formatter: HelpFormatter | None = None) -> str:
        """Without the default null: the text of such an option says what its absence means."""
        return re.sub(r",\s+default:\s+null|\s+\(default:\s+null\)", "", super().format_help(formatter))

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if "are required: " in message:  # jsonargparse puts the command before all names but the first
            message = message.replace(f"{self.command.rpartition(' ')[2]}.", "")
        print(
            f"{self.command}: {_in_words(message, Parser.flags)}\nAll options: {self.command} --help", file=sys.stderr
        )
        sys.exit(2)


def _in_words(message: str, flags: Sequence[str]) -> str:
    """A message of the parser, with the option that it is about and the values allowed in plain words."""
    if found := re.match(r"unrecognized arguments: (--[\w.]+)", message):
        near = difflib.get_close_matches(
            found[1], [flag for flag in flags if flag not in message.split()], n=1, cutoff=0.75
        )
        return f"{message}; did you mean {near[0]}?" if near else message
    if message.startswith("Option "):
        return f"{message}; --encoder.help CLASS and --task.help TASK list the options of a class"
    found = re.match(r'Parser key "([\w.]+)":\s+Expected an? (.*?)\. Got value: (.*)$', message, re.DOTALL)
    if found is None:
        return message
    key, expected, value = found.groups()
    # A class's own parser knows its arguments by their bare names.
    flag = next((f for f in flags if f in (f"--{key}", f"--encoder.{key}", f"--task.{key}")), f"--{key}")
    if literal := re.search(r"Literal\[(.*?)\]", expected):
        allowed = f"one of {literal[1].replace(chr(39), '')}"
    elif known := re.fullmatch(r"<class '(\w+)'>", expected):
        allowed = _TYPES.get(known[1], known[1])
    else:
        allowed = expected
    return f"{flag} must be {allowed}, got {value}"
