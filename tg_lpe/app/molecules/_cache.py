"""Store processed splits on disk as safetensors, with metadata as JSON in the header."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from tg_lpe.app.molecules.molecule_dataset import MoleculeDataset, MoleculeSplits
from tg_lpe.app.molecules.report import FileCount, LoadReport, MissingLabels, SkippedMolecule
from tg_lpe.app.molecules.solubility import SolubilityNormalization
from tg_lpe.app.molecules.vocabulary import AtomVocabulary
from tg_lpe.checkpoints.files import digest_of_json, load_tensors, save_tensors
from tg_lpe.data import DataSpec, TargetSpec
from tg_lpe.data.splits import PARTS

# Increase it whenever the same files and options give other tensors or metadata.
FORMAT_VERSION = 8

_LOGGER = logging.getLogger("tg_lpe.app.molecules")


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


def store(splits: MoleculeSplits, path: Path) -> None:
    """Write splits atomically. An error is logged and not raised, since the cache only saves time."""
    tensors = {}
    for name in PARTS:
        dataset: MoleculeDataset = getattr(splits, name)
        for key, slices in dataset.slices.items():
            tensors[f"{name}.{key}"], tensors[f"{name}.{key}.slices"] = dataset._data[key], slices
    # SMILES are a tensor, since the size of the header is limited.
    tensors["smiles"] = torch.frombuffer(bytearray(json.dumps(splits.smiles).encode()), dtype=torch.uint8)
    document = {
        "spec": splits.spec.to_dict(),
        "target": splits.target.to_dict(),
        "types": None if splits.vocabulary is None else splits.vocabulary.types,
        "bond_types": splits.bond_types,
        "normalization": None if splits.normalization is None else asdict(splits.normalization),
        "report": asdict(splits.report),
    }
    try:
        save_tensors(path, tensors, document, sealed=True)
    except OSError as error:
        _LOGGER.warning("the processed molecules could not be cached in %s: %s", path.parent, error)


def load(path: Path) -> MoleculeSplits | None:
    """Read the splits that :func:`store` wrote; `None` if the file is missing or damaged."""
    if not path.is_file():
        return None
    try:
        return _splits(*load_tensors(path, sealed=True))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _LOGGER.warning("the cached molecules in %s are damaged and will be made again: %s", path, error)
        return None


def _splits(tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> MoleculeSplits:
    datasets = {}
    for name in PARTS:
        keys = [key.split(".")[1] for key in tensors if key.startswith(f"{name}.") and key.endswith(".slices")]
        data = Data(**{key: tensors[f"{name}.{key}"] for key in keys})
        datasets[name] = MoleculeDataset(data, {key: tensors[f"{name}.{key}.slices"] for key in keys})
    constants, types, report = document["normalization"], document["types"], document["report"]
    kinds = {"files": FileCount, "skipped": SkippedMolecule, "missing_labels": MissingLabels}
    entries = {name: tuple(kind(*entry) for entry in report[name]) for name, kind in kinds.items()}
    return MoleculeSplits(
        **datasets,
        spec=DataSpec.from_dict(document["spec"]),
        target=TargetSpec.from_dict(document["target"]),
        smiles=json.loads(tensors["smiles"].numpy().tobytes()),
        vocabulary=None if types is None else AtomVocabulary(tuple(types)),
        bond_types=tuple(document["bond_types"]),
        normalization=None if constants is None else SolubilityNormalization(**constants),
        report=LoadReport(**{**report, **entries}),
    )
