"""Store processed splits on disk as safetensors."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from tg_lpe.app.molecules.molecule_dataset import MoleculeDataset
from tg_lpe.checkpoints.files import digest_of_json, load_tensors, save_tensors
from tg_lpe.data.splits import PARTS

# Increase it whenever the same files and options give other tensors or facts.
FORMAT_VERSION = 10

_LOGGER = logging.getLogger("tg_lpe.app.molecules")

Built = tuple[Mapping[str, MoleculeDataset], Mapping[str, Any]]
"""The datasets of the parts, and what else is known of them, JSON-able."""


def path_of(name: str, folder: str | Path | None, content: Mapping[str, Any]) -> Path:
    """Return the file of processed splits.

    Args:
        name: How its name begins.
        folder: Its folder; by default `$XDG_CACHE_HOME/tg_lpe`, or `~/.cache/tg_lpe`.
        content: Everything that determines the splits, as JSON-able values.
    """
    if folder is None:
        # The XDG specification says to ignore relative paths in the variable.
        base = os.environ.get("XDG_CACHE_HOME", "")
        folder = (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "tg_lpe"
    key = digest_of_json({"format": FORMAT_VERSION, **content})[:32]
    return Path(folder, f"{name}-{key}.safetensors")


def store(path: Path, datasets: Mapping[str, MoleculeDataset], facts: Mapping[str, Any]) -> None:
    """Write splits atomically. An error is logged and not raised, since the cache only saves time."""
    # The facts are a tensor, since the size of the header is limited.
    tensors = {"facts": torch.frombuffer(bytearray(json.dumps(facts).encode()), dtype=torch.uint8)}
    for part, dataset in datasets.items():
        for key, slices in dataset.slices.items():
            tensors[f"{part}.{key}"], tensors[f"{part}.{key}.slices"] = dataset._data[key], slices
    try:
        save_tensors(path, tensors, sealed=True)
    except OSError as error:
        _LOGGER.warning("the processed molecules could not be cached in %s: %s", path.parent, error)


def load(path: Path) -> Built | None:
    """Read the splits that :func:`store` wrote; `None` if the file is missing or damaged."""
    if not path.is_file():
        return None
    try:
        tensors, _ = load_tensors(path, sealed=True)
    except (OSError, ValueError) as error:
        _LOGGER.warning("the cached molecules in %s are damaged and will be made again: %s", path, error)
        return None
    datasets = {}
    for part in PARTS:
        keys = [key.split(".")[1] for key in tensors if key.startswith(f"{part}.") and key.endswith(".slices")]
        data = Data(**{key: tensors[f"{part}.{key}"] for key in keys})
        datasets[part] = MoleculeDataset(data, {key: tensors[f"{part}.{key}.slices"] for key in keys})
    return datasets, json.loads(tensors["facts"].numpy().tobytes())
