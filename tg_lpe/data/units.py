"""Write units of labels, and convert energies from Hartree to meV."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
