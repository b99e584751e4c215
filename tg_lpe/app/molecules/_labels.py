"""Convert cells of label columns to numbers: values, indices of named classes, or missing labels."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas

from tg_lpe.app.molecules.files import Row
from tg_lpe.arguments import ArgumentError

MARKS = frozenset({"n/a", "#n/a", "n.a.", "na", "nd", "n.d.", "null", "-", "--", "?", "."})
"""Words, in lower case, that usually mean a missing label and not a class."""

SHOWN = 4
ROUNDED = 1e-3
"""Largest rounding of a column without a warning, in standard deviations of the column."""
_LOGGER = logging.getLogger("tg_lpe.app.molecules")
_DECIMAL_COMMA = r"[+-]?\d*,\d+"


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
    read, classes = [], []
    for place, column in enumerate(columns):
        cells, numbers = _numbers(rows, place, column, missing or ())
        words = cells[numbers.isna() & ~cells.isin(["", *(missing or ())]) & (cells.str.lower() != "nan")]
        names, has_numbers = sorted(words.unique()), bool(numbers.notna().any())
        wrong = words if has_numbers or missing is not None else words[words.str.lower().isin(MARKS)]
        if len(wrong) and (has_numbers or missing is None):
            raise _not_labels(column, wrong, rows, "number" if has_numbers else "class name", missing)
        if (len(names) > 2 and 2 * len(names) > len(words)) or words.str.fullmatch(_DECIMAL_COMMA).any():
            shown = f"{len(names)} different words in {len(words)} cells, such as {', '.join(map(repr, names[:SHOWN]))}"
            raise ValueError(
                f"column {column!r} holds {shown}: neither numbers nor classes; write numbers with a decimal point, "
                "without units, signs such as % and separators of thousands"
            )
        numbers[words.index] = words.map({name: float(number) for number, name in enumerate(names)}).astype(float)
        read.append(numbers.tolist())
        classes.append(tuple(names))
    return list(zip(*read, strict=True)) or [()] * len(rows), tuple(classes) * any(classes)


def read_numbers(rows: Sequence[Row], columns: Sequence[str], start: int) -> list[tuple[float, ...]]:
    """Read the numbers of further columns of rows, whose cells begin at place ``start`` of ``Row.labels``.

    Raises:
        ValueError: If a cell holds no number, or one that does not fit float32; the message names the line.
    """
    read = []
    for place, column in enumerate(columns, start):
        cells, numbers = _numbers(rows, place, column)
        for at in numbers.index[numbers.isna()]:
            raise ValueError(f"{rows[at].file}:{rows[at].line}: {cells[at]!r} in column {column!r} must be a number")
        read.append(numbers.tolist())
    return list(zip(*read, strict=True)) or [()] * len(rows)


def _numbers(rows: Sequence[Row], place: int, column: str, missing: Sequence[str] = ()) -> tuple[Any, Any]:
    """Return the cells of a column, and their numbers, NaN for other cells; warn if float32 does not tell them apart.

    Raises:
        ValueError: If a number does not fit float32.
    """
    cells = pandas.Series([row.labels[place] for row in rows], dtype=str)
    numbers = pandas.to_numeric(cells.mask(cells.isin(list(missing)), ""), errors="coerce").astype(float)
    for at in numbers.index[numbers.abs() > np.finfo(np.float32).max]:
        raise ValueError(
            f"{rows[at].file}:{rows[at].line}: {cells[at]!r} in column {column!r} is not finite in float32"
        )
    known = numbers.dropna()
    rounding = (known - known.astype(np.float32)).abs().max()
    if known.nunique() > 1 and rounding > ROUNDED * known.std():
        near = known.iloc[(known - known.median()).abs().argmin()]
        message = "column %r: numbers are rounded by up to %.2g: float32 holds 7 digits; subtract %.7g in the file"
        _LOGGER.warning(message, column, rounding, near)
    return cells, numbers


def _not_labels(
    column: str, wrong: Any, rows: Sequence[Row], kind: str, missing: Sequence[str] | None
) -> ArgumentError:
    """Make the error for words among numbers, or for marks of missing labels among names of classes."""
    words = wrong.drop_duplicates()
    places = [f"{word!r} in {rows[at].file}:{rows[at].line}" for at, word in words[:SHOWN].items()]
    places += [f"{len(words) - SHOWN} other words"] if len(words) > SHOWN else []
    count = "1 cell is" if len(wrong) == 1 else f"{len(wrong)} cells are"
    marks = [word for word in words if not any(map(str.isdigit, word))]
    return ArgumentError(
        "column {!r}: {} no {}: {}. Leave the cell of a missing label empty, or pass {missing}",
        *(column, count, kind if len(wrong) == 1 else f"{kind}s", ", ".join(places)),
        missing=[*(missing or ()), *marks] or ...,
    )
