"""Convert cells of label columns to numbers: values, indices of named classes, or missing labels."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas

from tg_lpe.arguments import ArgumentError

MARKS = frozenset({"n/a", "#n/a", "n.a.", "na", "nd", "n.d.", "null", "-", "--", "?", "."})
"""Words, in lower case, that usually mean a missing label and not a class."""

SHOWN = 4
ROUNDED = 1e-3
"""Largest rounding of a column without a warning, in standard deviations of the column."""
_LOGGER = logging.getLogger("tg_lpe.app.molecules")
_DECIMAL_COMMA = r"[+-]?\d*,\d+"


def read_labels(places: Any, cells: Any, missing: Sequence[str] | None) -> tuple[Any, tuple[tuple[str, ...], ...]]:
    """Read labels, and the names of classes.

    A column of words holds classes, numbered in the order of their names.

    Args:
        places: The table of files and lines.
        cells: The table of the label columns.
        missing: Cells that mean a missing label, in addition to empty cells and `nan`. If set, all other words are
            classes.

    Returns:
        The table of labels, NaN if missing; and the names of the classes of each column, empty for a column of numbers,
        or an empty tuple if no column has classes.

    Raises:
        ValueError: If a column has both words and numbers, a word that looks like a missing label or has a decimal
            comma, or a different word in nearly every row, or if a number does not fit float32.
    """
    labels: dict[str, Any] = {}
    classes = []
    for column, texts in cells.items():
        numbers = _numbers(places, texts, missing or ())
        words = texts[numbers.isna() & ~texts.isin(["", *(missing or ())]) & (texts.str.lower() != "nan")]
        names, has_numbers = sorted(words.unique()), bool(numbers.notna().any())
        wrong = words if has_numbers or missing is not None else words[words.str.lower().isin(MARKS)]
        if len(wrong) and (has_numbers or missing is None):
            raise _not_labels(wrong, places, "number" if has_numbers else "class name", missing)
        if (len(names) > 2 and 2 * len(names) > len(words)) or words.str.fullmatch(_DECIMAL_COMMA).any():
            shown = f"{len(names)} different words in {len(words)} cells, such as {', '.join(map(repr, names[:SHOWN]))}"
            raise ValueError(
                f"column {column!r} holds {shown}: neither numbers nor classes; write numbers with a decimal point, "
                "without units, signs such as % and separators of thousands"
            )
        numbers[words.index] = words.map({name: float(number) for number, name in enumerate(names)}).astype(float)
        labels[column] = numbers
        classes.append(tuple(names))
    return pandas.DataFrame(labels, index=cells.index), tuple(classes) * any(classes)


def read_numbers(places: Any, cells: Any, weight_column: str | None) -> Any:
    """Read the table of the numbers of further columns.

    Raises:
        ValueError: If a cell holds no number, one that does not fit float32, or a weight below 0; the message names the
            line.
    """
    numbers = {}
    for column, texts in cells.items():
        read = numbers[column] = _numbers(places, texts)
        for at in read.index[read.isna()]:
            raise ValueError(f"{place_of(places, at)}: {texts[at]!r} in column {column!r} must be a number")
        for at in read.index[read < 0] if column == weight_column else ():
            raise ValueError(
                f"{place_of(places, at)}: the weight {texts[at]!r} in column {column!r} must be at least 0"
            )
    return pandas.DataFrame(numbers, index=cells.index)


def place_of(places: Any, at: Any) -> str:
    """Return the file and the line of a row."""
    return f"{places.file[at]}:{places.line[at]}"


def _numbers(places: Any, cells: Any, missing: Sequence[str] = ()) -> Any:
    """Return the numbers of a column, NaN for other cells; warn if float32 does not tell them apart.

    Raises:
        ValueError: If a number does not fit float32.
    """
    numbers = pandas.to_numeric(cells.mask(cells.isin(list(missing)), ""), errors="coerce").astype(float)
    for at in numbers.index[numbers.abs() > np.finfo(np.float32).max]:
        raise ValueError(f"{place_of(places, at)}: {cells[at]!r} in column {cells.name!r} is not finite in float32")
    known = numbers.dropna()
    rounding = (known - known.astype(np.float32)).abs().max()
    if known.nunique() > 1 and rounding > ROUNDED * known.std():
        near = known.iloc[(known - known.median()).abs().argmin()]
        message = "column %r: numbers are rounded by up to %.2g: float32 holds 7 digits; subtract %.7g in the file"
        _LOGGER.warning(message, cells.name, rounding, near)
    return numbers


def _not_labels(wrong: Any, places: Any, kind: str, missing: Sequence[str] | None) -> ArgumentError:
    """Make the error for words among numbers, or for marks of missing labels among names of classes."""
    words = wrong.drop_duplicates()
    shown = [f"{word!r} in {place_of(places, at)}" for at, word in words[:SHOWN].items()]
    shown += [f"{len(words) - SHOWN} other words"] if len(words) > SHOWN else []
    count = "1 cell is" if len(wrong) == 1 else f"{len(wrong)} cells are"
    marks = [word for word in words if not any(map(str.isdigit, word))]
    return ArgumentError(
        "column {!r}: {} no {}: {}. Leave the cell of a missing label empty, or pass {missing}",
        *(wrong.name, count, kind if len(wrong) == 1 else f"{kind}s", ", ".join(shown)),
        missing=[*(missing or ()), *marks] or ...,
    )
