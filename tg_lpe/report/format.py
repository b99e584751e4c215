"""Format numbers and JSON values for tables and pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DASH = "–"


def figure_text(value: float) -> str:
    """Format a figure of merit as tables print it."""
    return format(value, figure_form(value))


def figure_form(value: float) -> str:
    """Return the format of a figure: four decimals, or four digits where those say nothing."""
    return ".4f" if value == 0 or 0.001 <= abs(value) < 1000 else ".4g"


def signed(value: float, form: str) -> str:
    """Format a number with its sign; the minus sign is as wide as the plus."""
    return format(value, f"+{form}").replace("-", "−")


def duration_text(seconds: float) -> str:
    """Format a time as seconds, minutes or hours."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def counted(number: int, noun: str) -> str:
    """Format a number and its noun, which takes an s unless the number is one."""
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
