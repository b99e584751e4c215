"""Values as text, and values from run folders that may lack them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DASH = "–"


def number_in(values: Mapping[str, Any] | None, name: str) -> float | None:
    """The number of that name; ``None`` if there is none."""
    value = None if values is None else values.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def text_in(values: Mapping[str, Any] | None, name: str) -> str | None:
    """The text of that name; ``None`` if there is none."""
    value = None if values is None else values.get(name)
    return value if isinstance(value, str) else None


def mapping_in(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The mapping of that name, empty if there is none."""
    value = values.get(name)
    return value if isinstance(value, Mapping) else {}


def first_of(*values: Any) -> Any:
    """The first value that is there."""
    return next((value for value in values if value is not None), None)


def figure_text(value: float) -> str:
    """A figure as the tables print it."""
    return format(value, figure_form(value))


def figure_form(value: float) -> str:
    """The format of a figure: four decimals, or four digits where those say nothing."""
    return ".4f" if value == 0 or 0.001 <= abs(value) < 1000 else ".4g"


def signed(value: float, form: str) -> str:
    """A number with its sign; the minus sign is as wide as the plus."""
    return format(value, f"+{form}").replace("-", "−")


def duration_text(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def counted(number: int, noun: str) -> str:
    """A number and its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def value_text(value: Any) -> str:
    """Any JSON value on one line."""
    if value is None:
        return DASH
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {value_text(part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(value_text, value)) or DASH
    return f"{value:.6g}" if isinstance(value, float) else str(value)
