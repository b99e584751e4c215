"""Folders and cards of the checkpoints of :mod:`tg_lpe.zoo`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tg_lpe.checkpoints.files import read_object

_FOLDER = Path(__file__).parents[1] / "zoo"


def names() -> list[str]:
    """List the names that ``from_pretrained`` loads without a network."""
    return sorted(path.parent.name for path in _FOLDER.glob("*/config.json"))


def path(name: str) -> Path:
    """Return the folder of a shipped checkpoint, or raise ``ValueError`` if there is none of that name."""
    if name not in names():
        raise ValueError(f"no checkpoint named {name!r} ships with tg_lpe; there are {names()}")
    return _FOLDER / name


def card(name: str) -> dict[str, Any]:
    """Read how a shipped checkpoint was made and what it scores.

    Returns:
        ``class``, ``summary``, ``data`` (with ``atom_types`` and ``bond_types`` where it reads them), ``command``,
        ``seed``, ``epochs``, ``metrics`` on the test split, and ``sample``: a figure that
        ``benchmarks/_score.py`` computes anew from molecules that ship with RDKit.
    """
    return read_object(path(name) / "card.json")
