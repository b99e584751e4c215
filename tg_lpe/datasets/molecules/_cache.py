"""Store processed splits on disk as safetensors, with metadata as JSON in the header."""

from __future__ import annotations

import hashlib
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

from tg_lpe.checkpoints.files import digest_of_tensors, load_tensors, save_tensors
from tg_lpe.data import DataSpec, TargetSpec
from tg_lpe.datasets.molecules.molecule_dataset import MoleculeDataset, MoleculeSplits
from tg_lpe.datasets.molecules.report import FileCount, LoadReport, MissingLabels, SkippedMolecule
from tg_lpe.datasets.molecules.solubility import SolubilityNormalization
from tg_lpe.datasets.molecules.vocabulary import AtomVocabulary

# Increase it whenever the same files and options give other tensors or metadata.
FORMAT_VERSION = 7

_DIGEST = "sha256"
_SPLITS = ("train", "val", "test")
_KEYS = ("x", "edge_index", "edge_attr", "y")
_OPTIONAL = ("graph_attr", "graph_weight")
_LOGGER = logging.getLogger("tg_lpe.datasets")


def default_dir() -> Path:
    """Return `$XDG_CACHE_HOME/tg_lpe`, or `~/.cache/tg_lpe`."""
    # The XDG specification says to ignore relative paths in the variable.
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "tg_lpe"


def cache_key(content: Mapping[str, Any]) -> str:
    """Return the digest of everything that determines the processed splits, as JSON-able values."""
    text = json.dumps({"format": FORMAT_VERSION, **content}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def store(splits: MoleculeSplits, path: Path) -> None:
    """Write splits atomically. An error is logged and not raised, since the cache only saves time."""
    tensors = {}
    for name in _SPLITS:
        dataset: MoleculeDataset = getattr(splits, name)
        for key in (*_KEYS, *(key for key in _OPTIONAL if key in dataset._data)):
            tensors[f"{name}.{key}"], tensors[f"{name}.{key}.slices"] = dataset._data[key], dataset.slices[key]
    # SMILES are a tensor, since the size of the header is limited.
    tensors["smiles"] = torch.frombuffer(bytearray(json.dumps(splits.smiles).encode()), dtype=torch.uint8)
    document = {
        "spec": splits.spec.to_dict(),
        "target": splits.target.to_dict(),
        "types": None if splits.vocabulary is None else splits.vocabulary.types,
        "bond_types": splits.bond_types,
        "normalization": None if splits.normalization is None else asdict(splits.normalization),
        "files": splits.report.files,
        "skipped": splits.report.skipped,
        "missing_labels": splits.report.missing_labels,
        "repeated": [splits.report.num_repeated, splits.report.repeated],
    }
    try:
        save_tensors(path, tensors, {**document, _DIGEST: digest_of_tensors(tensors, document)})
    except OSError as error:
        _LOGGER.warning("the processed molecules could not be cached in %s: %s", path.parent, error)


def load(path: Path) -> MoleculeSplits | None:
    """Read the splits that :func:`store` wrote; `None` if the file is missing or damaged."""
    if not path.is_file():
        return None
    try:
        tensors, document = load_tensors(path)
        if document.pop(_DIGEST) != digest_of_tensors(tensors, document):
            raise ValueError("its content does not match its digest")
        return _splits(tensors, document)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _LOGGER.warning("the cached molecules in %s are damaged and will be made again: %s", path, error)
        return None


def _splits(tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> MoleculeSplits:
    datasets = {}
    keys = (*_KEYS, *(key for key in _OPTIONAL if f"train.{key}" in tensors))
    for name in _SPLITS:
        data = Data(**{key: tensors[f"{name}.{key}"] for key in keys})
        datasets[name] = MoleculeDataset(data, {key: tensors[f"{name}.{key}.slices"] for key in keys})
    constants, types, target = document["normalization"], document["types"], document["target"]
    return MoleculeSplits(
        **datasets,
        spec=DataSpec.from_dict(document["spec"]),
        target=TargetSpec.from_dict(target),
        smiles=json.loads(tensors["smiles"].numpy().tobytes()),
        vocabulary=None if types is None else AtomVocabulary(tuple(types)),
        bond_types=tuple(document["bond_types"]),
        normalization=None if constants is None else SolubilityNormalization(**constants),
        report=LoadReport(
            files=tuple(FileCount(*count) for count in document["files"]),
            skipped=tuple(SkippedMolecule(*entry) for entry in document["skipped"]),
            missing_labels=tuple(MissingLabels(*entry) for entry in document["missing_labels"]),
            num_repeated=document["repeated"][0],
            repeated=document["repeated"][1],
        ),
    )
