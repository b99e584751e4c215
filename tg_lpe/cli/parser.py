"""The parser of a command: plain help, and errors of a few lines that say what to type."""

from __future__ import annotations

import difflib
import re
import shlex
import sys
from argparse import Action, HelpFormatter
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, DefaultHelpFormatter

OPTION_OF = {"targets": "target", "fold": "folds", "metric": "task.metric", "folder": "out"}
"""Options that have other names than the arguments that they stand for."""

TYPES = {
    **{"int": "an integer", "float": "a number", "bool": "true or false", "str": "a text", "NoneType": "null"},
    "Sequence": "a list in brackets",
}


class PlainHelp(DefaultHelpFormatter):
    """Help without the markup of the docstrings that it comes from."""

    def start_section(self, heading: str | None) -> None:
        super().start_section(heading and plain(heading))

    def add_text(self, text: str | None) -> None:
        super().add_text(text and plain(text))

    def _expand_help(self, action: Action) -> str:
        return plain(super()._expand_help(action))

    def _format_action_invocation(self, action: Action) -> str:
        return super()._format_action_invocation(action).replace(".class ", " ")  # --encoder.class is --encoder


class Parser(ArgumentParser):
    """A parser whose options have one spelling and whose errors leave the list of all options to ``--help``."""

    asks_for_all = True
    """Whether what is parsed must have all that is required."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, allow_abbrev=False, formatter_class=PlainHelp, print_config=None, **kwargs)

    def validate(self, *args: Any, skip_required: bool = False, **kwargs: Any) -> None:
        """Ask for what is required unless told not to."""
        super().validate(*args, skip_required=skip_required or not self.asks_for_all, **kwargs)

    def format_help(self, formatter: HelpFormatter | None = None) -> str:
        """Leave out the default null: the text of such an option says what its absence means."""
        return re.sub(r",\s+default:\s+null|\s+\(default:\s+null\)", "", super().format_help(formatter))

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print what is wrong and what to type, and exit with status 2."""
        print(f"{self.prog}: {self._in_words(message)}\nAll options: {self.prog} --help", file=sys.stderr)
        sys.exit(2)

    def _in_words(self, message: str) -> str:
        if found := re.match(r"unrecognized arguments: (--[\w.-]+)", message):
            return message + self._known(found[1])
        if message.startswith("the following arguments are required"):
            lists = [one.option_strings[0] for one in self._actions if one.option_strings and one.nargs == "+"]
            hint = f". All words that follow {lists[0]} belong to it" if lists else ""
            return f"{message}; write {self.usage}{hint}"
        message = re.sub(r'(Parser key "[\w.]+") element \d+:', r"\1:", message)
        found = re.search(r'Parser key "([\w.]+)":\s+Expected an? (.*?)\. Got value: (.*)$', message, re.DOTALL)
        if found is not None:
            key, kinds, value = found[1], [found[2]], found[3]
        elif found := re.search(
            r'Parser key "([\w.]+)":\s+Does not.*Errors:(.*)Given value: (.*)$', message, re.DOTALL
        ):
            key, kinds, value = found[1], re.findall(r"^\s+- Expected an? (.*)$", found[2], re.MULTILINE), found[3]
        else:
            return message
        return f"--{key} must be {' or '.join(map(_in_words, kinds))}, got {value}" if kinds else message

    def _known(self, flag: str) -> str:
        """Suggest what to type instead of an option that does not exist."""
        group, dot, _ = flag.partition(".")
        flags = list(self._option_string_actions)
        own = [known for known in flags if dot and known.startswith(f"{group}.") and known != f"{group}.class"]
        is_of_class = f"{group}.class" in flags
        if near := difflib.get_close_matches(flag, own if is_of_class else flags, n=1, cutoff=0.75):
            return f"; did you mean {near[0]}?"
        if own:
            return f"; the class that {group} chooses takes {', '.join(own)}"
        return f"; name a class that takes it, {group} CLASS" if is_of_class else ""


def _in_words(kind: str) -> str:
    """Name a type that the parser named."""
    if literal := re.search(r"Literal\[(.*?)\]", kind):
        return f"one of {literal[1].replace(chr(39), '')}"
    known = re.fullmatch(r"<class '(?:[\w.]+\.)?(\w+)'>", kind)
    return TYPES.get(known[1], known[1]) if known else kind


def plain(text: str) -> str:
    """Strip the markup of reStructuredText: quotes of literals, roles, links."""
    text = re.sub(r"`([^`<]*?)\s*<([^`>]*)>`_", r"\1 (\2)", text)
    text = re.sub(r":\w+:`~?(?:[^`]*\.)?([^`.]+)`", r"\1", text)
    return re.sub(r"`+([^`]*)`+", r"\1", text)


def as_option(name: str, value: object) -> str:
    """Write an argument as the command line has it, for :meth:`tg_lpe.arguments.ArgumentError.told`."""
    flag = f"--{OPTION_OF.get(name, name)}"
    if value is ... or value is True:
        return flag
    values = value if isinstance(value, list | tuple) else ["none" if value is None else value]
    return shlex.join([flag, *map(str, values)])
