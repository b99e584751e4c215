"""Find the folders and cards of shipped checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tg_lpe.checkpoints.files import read_object

_FOLDER = Path(__file__).parents[1] / "zoo"


def names() -> list[str]:
    """List the names of the checkpoints that ship with the package."""
    return sorted([path.parent.name for path in _FOLDER.glob("*/config.json")])


def path(name: str) -> Path:
    """Return the folder of a shipped checkpoint; raise ``ValueError`` if the name is unknown."""
    if name not in names():
        raise ValueError(f"no checkpoint named {name!r} ships with tg_lpe; there are {names()}")
    return _FOLDER / name


def card(name: str) -> dict[str, Any]:
    """Read the card of a shipped checkpoint, which says how it was made and how well it performs.

    Returns:
        A dictionary with ``class``, ``summary``, ``data`` (with ``atom_types`` and ``bond_types`` if the checkpoint
        reads them), ``command``, ``seed``, ``epochs``, ``metrics`` on the test split, and ``sample``, a figure on
        RDKit's molecules that ``benchmarks/_score.py`` can reproduce.
    """
    return read_object(path(name) / "card.json")
