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

TYPES = {
    **{"int": "an integer", "float": "a number", "bool": "true or false", "str": "a text", "NoneType": "null"},
    "Sequence": "a list in brackets",
}


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
        """Print the error and what to type, and exit with status 2."""
        print(f"{self.prog}: {self._in_words(message)}\nAll options: {self.prog} --help", file=sys.stderr)
        sys.exit(2)

    def _in_words(self, message: str) -> str:
        if match := re.match(r"unrecognized arguments: (--[\w.-]+)", message):
            return message + self._known(match[1])
        if message.startswith("the following arguments are required"):
            lists = [action.option_strings for action in self._actions if action.nargs == "+" and action.option_strings]
            hint = f". All words that follow {lists[0][0]} belong to it" if lists else ""
            return f"{message}; write {self.usage}{hint}"
        message = re.sub(r'(Parser key "[\w.]+") element \d+:', r"\1:", message)
        if match := re.search(r'Parser key "([\w.]+)":\s+Expected an? (.*?)\. Got value: (.*)$', message, re.DOTALL):
            key, kinds, value = match[1], [match[2]], match[3]
        elif match := re.search(
            r'Parser key "([\w.]+)":\s+Does not.*Errors:(.*)Given value: (.*)$', message, re.DOTALL
        ):
            key, kinds, value = match[1], re.findall(r"^\s+- Expected an? (.*)$", match[2], re.MULTILINE), match[3]
        else:
            return message
        return f"--{key} must be {' or '.join(map(_type_in_words, kinds))}, got {value}" if kinds else message

    def _known(self, flag: str) -> str:
        """Suggest what to type instead of an option that does not exist."""
        group, dot, _ = flag.partition(".")
        flags = list(self._option_string_actions)
        of_class = [known for known in flags if dot and known.startswith(f"{group}.") and known != f"{group}.class"]
        chooses_class = f"{group}.class" in flags
        if near := difflib.get_close_matches(flag, of_class if chooses_class else flags, n=1, cutoff=0.75):
            return f"; did you mean {near[0]}?"
        if of_class:
            return f"; the class that {group} chooses takes {', '.join(of_class)}"
        return f"; first choose a class that takes it with {group} CLASS" if chooses_class else ""


def _type_in_words(kind: str) -> str:
    """Describe a type of the parser in words."""
    if literal := re.search(r"Literal\[(.*?)\]", kind):
        return f"one of {literal[1].replace(chr(39), '')}"
    cls = re.fullmatch(r"<class '(?:[\w.]+\.)?(\w+)'>", kind)
    return TYPES.get(cls[1], cls[1]) if cls else kind


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
