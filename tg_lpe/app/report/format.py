"""Format numbers and JSON values for tables and pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DASH = "–"


def figure_text(value: float) -> str:
    """Format a metric for tables."""
    return format(value, figure_form(value))


def figure_form(value: float) -> str:
    """Return the format of a metric: four decimals, or four significant digits for very small or large values."""
    return ".4f" if value == 0 or 0.001 <= abs(value) < 1000 else ".4g"


def signed(value: float, form: str) -> str:
    """Format a number with its sign; the typographic minus is as wide as the plus."""
    return format(value, f"+{form}").replace("-", "−")


def duration_text(seconds: float) -> str:
    """Format a time as seconds, minutes or hours."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def counted(number: int, noun: str) -> str:
    """Format a number with its noun, in the plural unless the number is 1."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def value_text(value: Any) -> str:
    """Format any JSON value on one line."""
    if value is None:
        return DASH
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {value_text(part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(value_text, value)) or DASH
    return f"{value:.6g}" if isinstance(value, float) else str(value)
