"""Checkpoints that ship with the package, one folder each: ``config.json``, ``model.safetensors`` and a model card."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Names that ``LinearTransformer.from_pretrained`` knows without a network."""
    return sorted(path.parent.name for path in _FOLDER.glob("*/config.json"))


def path(name: str) -> Path:
    """Folder of a shipped checkpoint.

    Raises:
        ValueError: if there is none of that name.
    """
    if name not in names():
        raise ValueError(f"no checkpoint named {name!r} ships with tg_lpe; there are {names()}")
    return _FOLDER / name
