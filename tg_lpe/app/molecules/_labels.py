"""Convert cells of label columns to numbers: values, indices of named classes, or missing labels."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pandas

MISSING = ("", "NaN", "nan", "NA", "N/A", "n/a", "#N/A", "NULL", "null", "None", "<NA>")
"""Cells that are missing labels, as pandas reads them."""
MARKS = ("na", "n.a.", "N.A.", "nd", "ND", "n.d.", "N.D.")
"""Words that usually mean a missing label and no class."""

SHOWN = 4
ROUNDED = 1e-3
"""Largest rounding of a column without a warning, in standard deviations of the column."""
_LOGGER = logging.getLogger("tg_lpe.app.molecules")
_DECIMAL_COMMA = r"[+-]?\d*,\d+"


def read_labels(places: Any, cells: Any) -> tuple[Any, tuple[tuple[str, ...], ...]]:
    """Read labels, and the names of classes.

    A column of words holds classes, numbered in the order of their names.

    Args:
        places: The table of files and lines.
        cells: The table of the label columns.

    Returns:
        The table of labels, NaN if missing; and the names of the classes of each column, empty for a column of numbers,
        or an empty tuple if no column has classes.

    Raises:
        ValueError: If a column has both words and numbers, a word that has a decimal comma or no letter, or a different
            word in nearly every row, or if a number does not fit float32.
    """
    labels: dict[str, Any] = {}
    classes = []
    for column, texts in cells.items():
        numbers = _numbers(places, texts)
        words = texts[numbers.isna() & ~texts.isin(MISSING)]
        names = sorted(words.unique())
        kind = "number" if numbers.notna().any() else "class name"
        wrong = words if kind == "number" else words[~words.str.contains(r"\w") | words.isin(MARKS)]
        if len(wrong):
            first = [f"{word!r} in {place_of(places, at)}" for at, word in wrong.drop_duplicates()[:SHOWN].items()]
            raise ValueError(
                f"column {column!r}: {len(wrong)} cell{'s are' if len(wrong) > 1 else ' is'} no {kind}: "
                f"{', '.join(first)}. Leave the cell of a missing label empty, and write classes as words or numbers"
            )
        if (len(names) > 2 and 2 * len(names) > len(words)) or words.str.fullmatch(_DECIMAL_COMMA).any():
            shown = ", ".join(map(repr, names[:SHOWN]))
            raise ValueError(
                f"column {column!r} holds {len(names)} different words in {len(words)} cells, such as {shown}: neither "
                "numbers nor classes; write numbers with a decimal point, without units, signs such as % and "
                "separators of thousands"
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


def _numbers(places: Any, cells: Any) -> Any:
    """Return the numbers of a column, NaN for other cells; warn if float32 does not tell them apart.

    Raises:
        ValueError: If a number does not fit float32.
    """
    numbers = pandas.to_numeric(cells, errors="coerce").astype(float)
    for at in numbers.index[numbers.abs() > np.finfo(np.float32).max]:
        raise ValueError(f"{place_of(places, at)}: {cells[at]!r} in column {cells.name!r} is not finite in float32")
    known = numbers.dropna()
    rounding = (known - known.astype(np.float32)).abs().max()
    if known.nunique() > 1 and rounding > ROUNDED * known.std():
        near = known.iloc[(known - known.median()).abs().argmin()]
        message = "column %r: numbers are rounded by up to %.2g: float32 holds 7 digits; subtract %.7g in the file"
        _LOGGER.warning(message, cells.name, rounding, near)
    return numbers
