"""Splits of molecules from a folder, a file, or RDKit's own collection."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal, get_args

from rdkit import RDConfig, rdBase

from tg_lpe.datasets.molecules import _cache
from tg_lpe.datasets.molecules._build import BuildOptions, build_list, build_splits
from tg_lpe.datasets.molecules._files import SourceFile, find_split
from tg_lpe.datasets.molecules._pool import resolve_num_workers
from tg_lpe.datasets.molecules.molecule_dataset import MoleculeDataset, MoleculeSplits
from tg_lpe.datasets.molecules.report import LoadReport, first_few
from tg_lpe.datasets.molecules.solubility import SolubilityNormalization
from tg_lpe.datasets.molecules.vocabulary import AtomVocabulary

DatasetName = Literal["zinc", "qm9", "nci", "zinc12k"]

_LOGGER = logging.getLogger("tg_lpe.datasets")


def load_molecules(
    source: str | Path,
    *,
    name: DatasetName | None = None,
    normalization: SolubilityNormalization | Literal["zinc", "qm9"] | None = None,
    label_column: str | None = None,
    train_files: Sequence[str] = ("train",),
    cache_dir: str | Path | None = None,
    strict: bool = False,
    seed: int = 0,
    num_workers: int | None = None,
    progress: bool = True,
) -> MoleculeSplits:
    """Reads molecules into training, validation and test sets.

    Labels are the csv files' label column as it stands, or else the normalised constrained solubility. Molecules that
    cannot be used are named in the result's report and counted in a log line. Salts stay whole: a graph may have
    several components. The source is only read; the processed splits are cached elsewhere, keyed by content.

    Args:
        source: A folder with one file `NAME.smi`, `NAME.csv`, `NAME.smi.xz` or `NAME.csv.xz` for each of train, val
            and test, and perhaps an `atom_dict.txt` that fixes the atom types; or one such file, which is split
            80/10/10 at random; or `"nci"` for the 5,000 molecules that ship with RDKit.
            Lines of .smi files are `SMILES [name]`; csv files have a header with the column `smiles`.
        name: The dataset that this is. `"zinc"` and `"qm9"` set the published normalisation; `"qm9"` also rewrites
            bracketed radical atoms to plain ones and keeps each molecule's largest fragment, as published;
            `"zinc12k"` insists on labels. Other sources are taken as they are.
        normalization: Constants of the computed target, in place of the name's. By default measured on the training
            set for sources without a name.
        label_column: Column of the labels; by default `y` where the csv files have it.
        train_files: Names of the files that make up the training set.
        cache_dir: Where processed splits are kept; by default `$XDG_CACHE_HOME/tg_lpe` or `~/.cache/tg_lpe`.
        strict: Raise if any molecule is unusable.
        seed: Draws the split of a single file.
        num_workers: Processes that read SMILES; 0 for none besides this one, `None` for one per core if it pays.
        progress: Show a progress bar.

    Returns:
        The three datasets with their atom types, normalisation and report.

    Raises:
        FileNotFoundError: If the source or one of its files is missing; the message lists what was looked for.
        TypeError: If `seed` is not an integer or `train_files` is one string.
        ValueError: If an option is unknown or contradicts the files, a file is malformed, a split has no usable
            molecule, or `strict` is set and a molecule is unusable.
        RuntimeError: If a worker process dies.
    """
    _check_options(name, seed, train_files, num_workers)
    wanted = normalization or (name if name in ("zinc", "qm9") else None)
    constants = None if wanted is None else SolubilityNormalization.resolve(wanted)
    files, vocabulary = _open(source, train_files)
    rows = {split: [row for file in part for row in file.rows(label_column)] for split, part in files.items()}
    labelled = any(row.label is not None for part in rows.values() for row in part)
    if name == "zinc12k" and not labelled:
        raise ValueError(f"zinc12k comes with labels, but the files in {source} have no column 'y'")
    if normalization is not None and labelled:
        raise ValueError("normalization applies to the computed target, but these files bring their own labels")

    path = _cache_path(source, name, cache_dir, files, vocabulary, constants, label_column, seed)
    splits = _cache.load(path)
    if splits is None:
        options = BuildOptions(name == "qm9", constants, vocabulary, seed, num_workers, progress)
        splits = build_splits(rows, options)
        _cache.store(splits, path)
    _announce(source, splits.report, strict)
    return splits


def read_molecules(
    path: str | Path,
    *,
    vocabulary: AtomVocabulary | None = None,
    strict: bool = False,
    num_workers: int | None = None,
    progress: bool = True,
) -> tuple[MoleculeDataset, AtomVocabulary, LoadReport, list[tuple[int, str]]]:
    """Reads one file of molecules in its order, without labels and without a cache.

    Args:
        path: A file `NAME.smi`, `NAME.csv`, `NAME.smi.xz` or `NAME.csv.xz`.
        vocabulary: The atom types; by default those that occur.
        strict: Raise if any molecule is unusable.
        num_workers: Processes that read SMILES, as for :func:`load_molecules`.
        progress: Show a progress bar.

    Returns:
        The graphs (`y` is NaN), their atom types, the report, and for each graph its line and SMILES.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If no molecule is usable, or `strict` is set and one is not.
    """
    rows = SourceFile.read(Path(path)).rows(None)
    options = BuildOptions(False, None, vocabulary, 0, num_workers, progress)
    dataset, vocabulary, report, used = build_list(rows, options)
    _announce(path, report, strict)
    return dataset, vocabulary, report, [(row.line, row.smiles) for row in used]


def _announce(source: str | Path, report: LoadReport, strict: bool) -> None:
    """One log line about what was left out; an error instead where `strict` is set."""
    if strict and report.skipped:
        lines = "\n  ".join([report.summary(), *first_few(report.skipped, 5)])
        raise ValueError(f"{source} holds unusable molecules, and strict is set: {lines}")
    _LOGGER.log(logging.WARNING if report.skipped else logging.INFO, "%s: %s", source, report.summary())


def _check_options(name: str | None, seed: int, train_files: Sequence[str], num_workers: int | None) -> None:
    if name is not None and name not in get_args(DatasetName):
        allowed = ", ".join(map(repr, get_args(DatasetName)))
        raise ValueError(f"unknown dataset name {name!r}; allowed are {allowed} and None")
    if not isinstance(seed, int):
        raise TypeError(f"seed must be an integer, got {seed!r}")
    if isinstance(train_files, str):
        raise TypeError(f"train_files must be a sequence of names such as ({train_files!r},), got one string")
    if not train_files:
        raise ValueError("train_files names no file")
    resolve_num_workers(num_workers, 0)


def _open(source: str | Path, train_files: Sequence[str]) -> tuple[dict[str, list[SourceFile]], AtomVocabulary | None]:
    """The source's files per split (or under `all`), and the atom types that it fixes."""
    path = Path(RDConfig.RDDataDir, "NCI", "first_5K.smi") if source == "nci" else Path(source)
    if not path.exists():
        raise FileNotFoundError(f"there is no folder or file {path}; the one source with a name of its own is 'nci'")
    if not path.is_dir():
        return {"all": [SourceFile.read(path)]}, None
    stems = {"train": tuple(train_files), "val": ("val",), "test": ("test",)}
    files = {split: [SourceFile.read(find_split(path, stem)) for stem in part] for split, part in stems.items()}
    dictionary = path / "atom_dict.txt"
    if not dictionary.is_file():
        return files, None
    try:
        return files, AtomVocabulary.from_file(dictionary)
    except ValueError as error:
        raise ValueError(f"{dictionary}: {error}") from error


def _cache_path(
    source: str | Path,
    name: str | None,
    cache_dir: str | Path | None,
    files: dict[str, list[SourceFile]],
    vocabulary: AtomVocabulary | None,
    constants: SolubilityNormalization | None,
    label_column: str | None,
    seed: int,
) -> Path:
    key = _cache.cache_key(
        {
            # Names too: they stand in the report.
            "files": {split: [(file.name, file.digest) for file in part] for split, part in files.items()},
            "vocabulary": None if vocabulary is None else vocabulary.types,
            "normalization": None if constants is None else asdict(constants),
            "repair_radicals": name == "qm9",
            "label_column": label_column,
            "seed": seed if "all" in files else None,
            # Another release may read a string, or score it, differently.
            "rdkit": rdBase.rdkitVersion,
        }
    )
    folder = _cache.default_dir() if cache_dir is None else Path(cache_dir)
    label = name or os.path.basename(os.path.normpath(source)) or "molecules"
    return folder / f"{label}-{key}.safetensors"
