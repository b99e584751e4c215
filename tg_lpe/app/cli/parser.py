"""The parser of a command, with plain help and short errors that say what to type."""

from __future__ import annotations

import difflib
import re
import shlex
import sys
from argparse import Action, HelpFormatter
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, DefaultHelpFormatter

OPTION_OF = {"targets": "target", "fold": "folds", "metric": "task.metric", "folder": "out"}
"""Options whose names differ from the arguments that they set."""


class PlainHelp(DefaultHelpFormatter):
    """Format help from docstrings without their markup."""

    def start_section(self, heading: str | None) -> None:
        super().start_section(heading and plain(heading))

    def add_text(self, text: str | None) -> None:
        super().add_text(text and plain(text))

    def _expand_help(self, action: Action) -> str:
        return re.sub(r"Optional\[(.*)\]", r"\1 | null", plain(super()._expand_help(action)))

    def _split_lines(self, text: str, width: int) -> list[str]:
        """Start each item of a list on its own line."""
        items = re.split(r"\n\s*(?=- )", text)
        return [line for item in items for line in super(PlainHelp, self)._split_lines(item, width)]

    def _format_action_invocation(self, action: Action) -> str:
        return super()._format_action_invocation(action).replace(".class ", " ")  # --encoder.class is --encoder


class Parser(ArgumentParser):
    """Parse options without abbreviations; errors point to ``--help`` instead of listing all options."""

    asks_for_all = True
    """Whether required options must be present."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, allow_abbrev=False, formatter_class=PlainHelp, print_config=None, **kwargs)

    def validate(self, *args: Any, skip_required: bool = False, **kwargs: Any) -> None:
        """Validate, without required options if :attr:`asks_for_all` is false."""
        super().validate(*args, skip_required=skip_required or not self.asks_for_all, **kwargs)

    def format_help(self, formatter: HelpFormatter | None = None) -> str:
        """Leave out the default null, because the text of such an option says what its absence means."""
        return re.sub(r",\s+default:\s+null|\s+\(default:\s+null\)", "", super().format_help(formatter))

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the error, the nearest option if one does not exist, and exit with status 2."""
        if message.startswith("unrecognized arguments: "):
            word = message.split()[2]
            flags = [flag for flag in self._option_string_actions if flag.count(".") == word.count(".")]
            near = difflib.get_close_matches(word, flags, n=1, cutoff=0.75)
            message += f"; did you mean {near[0]}?" if near else ""
        print(f"{self.prog}: {message}\nAll options: {self.prog} --help", file=sys.stderr)
        sys.exit(2)


def plain(text: str) -> str:
    """Strip the markup of reStructuredText: literals, roles and links; only ``~`` shortens a role to its last name."""
    text = re.sub(r"`([^`<]*?)\s*<([^`>]*)>`_", r"\1 (\2)", text)
    text = re.sub(r":\w+:`(?:~[^`]*\.)?([^`]+)`", r"\1", text)
    return re.sub(r"`+([^`]*)`+", r"\1", text)


def as_option(name: str, value: object) -> str:
    """Format an argument as on the command line, for :meth:`tg_lpe.arguments.ArgumentError.told`."""
    flag = f"--{OPTION_OF.get(name, name)}"
    if value is ... or value is True:
        return flag
    values = value if isinstance(value, list | tuple) else ["none" if value is None else value]
    return shlex.join([flag, *map(str, values)])
