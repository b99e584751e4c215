"""Write metrics and labels with their units, and convert energies from Hartree to meV."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tg_lpe.app.training.metrics import IN_UNITS

MEV_IN = {"Hartree": 27211.386246}
"""meV of one unit of energy, https://physics.nist.gov/cuu/Constants (2018)."""


def common_unit(units: Iterable[str]) -> str:
    """Return the unit of all columns; empty if units differ or there are none."""
    different = set(units)
    return different.pop() if len(different) == 1 else ""


def in_mev(value: float, unit: str) -> str:
    """Return a value in meV, as text in brackets after a space; empty unless its unit is Hartree."""
    if unit not in MEV_IN:
        return ""
    energy = MEV_IN[unit] * value
    return f" ({energy:,.1f} meV)" if abs(energy) < 1000 else f" ({energy:,.0f} meV)"


def units_text(columns: Sequence[str], units: Sequence[str]) -> str:
    """List the columns by unit, with the value of the unit in meV if known."""
    by_unit: dict[str, list[str]] = {}
    for name, unit in zip(columns, units, strict=True):
        by_unit.setdefault(f"{unit} (1 {unit} = {MEV_IN[unit]:,.1f} meV)" if unit in MEV_IN else unit, []).append(name)
    return "; ".join(f"{', '.join(names)} in {unit}" for unit, names in by_unit.items())


def figures_text(card: Mapping[str, Any]) -> str:
    """Format the metrics of a card; errors in Hartree are also given in meV."""
    units = card["data"].get("target", {}).get("units")
    unit = common_unit(units) if units and card.get("task", {}).get("metric") in IN_UNITS else ""
    numbers = {name: value for name, value in card["metrics"].items() if isinstance(value, float)}
    if not unit:
        return ", ".join(f"{name} {value:.4f}" for name, value in numbers.items())
    return ", ".join(f"{name} {value:.4f} {unit}{in_mev(value, unit)}" for name, value in numbers.items())
