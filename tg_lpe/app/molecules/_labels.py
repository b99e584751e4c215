"""Convert cells of label columns to numbers: values, indices of named classes, or missing labels."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence

import torch

from tg_lpe.app.molecules.files import Row
from tg_lpe.arguments import ArgumentError

MARKS = frozenset({"n/a", "#n/a", "n.a.", "na", "nd", "n.d.", "null", "-", "--", "?", "."})
"""Words, in lower case, that usually mean a missing label and not a class."""

SHOWN = 4
ROUNDED = 1e-3
"""Largest rounding of a column without a warning, in standard deviations of the column."""
_LOGGER = logging.getLogger("tg_lpe.app.molecules")
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+")
_LARGEST_FLOAT32 = torch.finfo(torch.float32).max


def read_labels(
    rows: Sequence[Row], columns: Sequence[str], missing: Sequence[str] | None
) -> tuple[list[tuple[float, ...]], tuple[tuple[str, ...], ...]]:
    """Read the labels of rows, and the names of classes.

    A column of words holds classes, numbered in the order of their names.

    Args:
        rows: The rows, with the cells of the columns.
        columns: Names of the columns.
        missing: Cells that mean a missing label, in addition to empty cells and `nan`. If set, all other words are
            classes.

    Returns:
        The labels of each row, NaN if missing; and the names of the classes of each column, empty for a column of
        numbers, or an empty tuple if no column has classes.

    Raises:
        ValueError: If a column has both words and numbers, a word that looks like a missing label or has a decimal
            comma, or a different word in nearly every row, or if a number does not fit float32.
    """
    empty = {"", *(missing or ())}
    read: list[list[float]] = []
    classes: list[tuple[str, ...]] = []
    wrong: dict[str, list[Row]] = {}
    are_numbers = False
    for place, column in enumerate(columns):
        numbers, words = [], {}
        for position, row in enumerate(rows):
            value = math.nan if row.labels[place] in empty else _number(row, place, column)
            if value is None:
                words[position] = row.labels[place]
            numbers.append(math.nan if value is None else value)
        names = tuple(sorted(set(words.values())))
        has_numbers = any(not math.isnan(value) for value in numbers)
        if names and not has_numbers and (missing is not None or not any(name.lower() in MARKS for name in names)):
            if (len(names) > 2 and 2 * len(names) > len(words)) or any(map(_DECIMAL_COMMA.fullmatch, names)):
                shown = ", ".join(map(repr, names[:SHOWN]))
                words_text = f"{len(names)} different words in {len(words)} cells, such as {shown}"
                raise ValueError(
                    f"column {column!r} holds {words_text}: neither numbers nor classes; write numbers with a decimal "
                    "point, without units, signs such as % and separators of thousands"
                )
            number = {name: float(k) for k, name in enumerate(names)}
            for position, word in words.items():
                numbers[position] = number[word]
        else:
            for position, word in words.items():
                if has_numbers or word.lower() in MARKS:  # without numbers, other words are classes
                    wrong.setdefault(word, []).append(rows[position])
            are_numbers |= has_numbers and bool(words)
            names = ()
            _warn_of_rounding(column, numbers)
        read.append(numbers)
        classes.append(names)
    if wrong:
        raise _not_labels(wrong, columns, len({row.file for row in rows}) == 1, missing, are_numbers)
    return [tuple(labels) for labels in zip(*read, strict=True)] or [()] * len(rows), tuple(classes) * any(classes)


def read_numbers(rows: Sequence[Row], columns: Sequence[str], start: int) -> list[tuple[float, ...]]:
    """Read the numbers of further columns of rows, whose cells begin at place ``start`` of ``Row.labels``.

    Raises:
        ValueError: If a cell holds no number, or one that does not fit float32; the message names the line.
    """
    read: list[list[float]] = [[] for _ in columns]
    for place, column in enumerate(columns):
        for row in rows:
            value = _number(row, start + place, column)
            if value is None or math.isnan(value):
                cell = row.labels[start + place]
                raise ValueError(f"{row.file}:{row.line}: {cell!r} in column {column!r} must be a number")
            read[place].append(value)
        _warn_of_rounding(column, read[place])
    return list(zip(*read, strict=True)) or [()] * len(rows)


def _warn_of_rounding(column: str, numbers: Sequence[float]) -> None:
    """Warn if float32, in which numbers are stored, does not tell apart numbers that differ little for their size."""
    known = torch.tensor([number for number in numbers if not math.isnan(number)], dtype=torch.float64)
    if known.numel() == 0 or bool(known.min() == known.max()):  # the computed deviation of equal numbers may be above 0
        return
    rounding = (known - known.float().double()).abs().max()
    if rounding > ROUNDED * known.std():
        near = known[(known - known.median()).abs().argmin()]
        message = "column %r: numbers are rounded by up to %.2g: float32 holds 7 digits; subtract %.7g in the file"
        _LOGGER.warning(message, column, float(rounding), float(near))


def _number(row: Row, place: int, column: str) -> float | None:
    """Return the value of a cell; `None` for a word."""
    cell = row.labels[place]
    if "_" in cell:  # Python reads 1_0 as 10
        return None
    try:
        value = float(cell)
    except ValueError:
        return None
    if abs(value) > _LARGEST_FLOAT32:
        raise ValueError(f"{row.file}:{row.line}: {cell!r} in column {column!r} is not finite in float32")
    return value


def _not_labels(
    wrong: dict[str, list[Row]],
    columns: Sequence[str],
    one_file: bool,
    missing: Sequence[str] | None,
    are_numbers: bool,
) -> ArgumentError:
    """Make the error for words among numbers, or for marks of missing labels among names of classes."""
    cells = sorted(wrong, key=lambda cell: -len(wrong[cell]))
    total = sum(map(len, wrong.values()))
    by_file: dict[str, list[str]] = {}
    for cell in cells[:SHOWN]:
        lines: dict[str, list[int]] = {}
        for row in wrong[cell]:
            lines.setdefault(row.file, []).append(row.line)
        for file, numbers in lines.items():
            more = f" and {len(numbers) - SHOWN} more" if len(numbers) > SHOWN else ""
            places = f"line{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers[:SHOWN]))}{more}"
            by_file.setdefault(file, []).append(f"{cell!r} in {places}")
    shown = "; ".join(("" if one_file else f"{file}: ") + ", ".join(parts) for file, parts in by_file.items())
    others = f"; and {len(cells) - SHOWN} other words" if len(cells) > SHOWN else ""
    marks = [cell for cell in cells if not any(letter.isdigit() for letter in cell)]
    kinds = ("number", "numbers") if are_numbers else ("name of a class", "names of classes")
    count = f"1 cell is no {kinds[0]}" if total == 1 else f"{total} cells are no {kinds[1]}"
    rest = "; replace the others by numbers in the file" if 0 < len(marks) < len(cells) else ""
    return ArgumentError(
        "column{} {}: {}: {}{}. Leave the cell of a missing label empty, or pass {missing}{}",
        "s" * (len(columns) > 1),
        ", ".join(map(repr, columns)),
        count,
        shown,
        others,
        rest,
        missing=[*(missing or ()), *marks] or ...,
    )
