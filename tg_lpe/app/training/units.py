"""Write metrics and labels with their units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tg_lpe.app.training.metrics import IN_UNITS


def common_unit(units: Iterable[str]) -> str:
    """Return the unit of all columns; empty if units differ or there are none."""
    different = set(units)
    return different.pop() if len(different) == 1 else ""


def units_text(columns: Sequence[str], units: Sequence[str]) -> str:
    """List the columns by unit."""
    by_unit: dict[str, list[str]] = {}
    for name, unit in zip(columns, units, strict=True):
        by_unit.setdefault(unit, []).append(name)
    return "; ".join(f"{', '.join(names)} in {unit}" for unit, names in by_unit.items())


def figures_text(card: Mapping[str, Any]) -> str:
    """Format the metrics of a card with their unit."""
    units = card["data"].get("target", {}).get("units")
    unit = common_unit(units) if units and card.get("task", {}).get("metric") in IN_UNITS else ""
    numbers = {name: value for name, value in card["metrics"].items() if isinstance(value, float)}
    return ", ".join(f"{name} {value:.4f} {unit}".rstrip() for name, value in numbers.items())
