"""Build splits from the rows of files: everything between reading and caching."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from tg_lpe.app.molecules import _molecule, _pool
from tg_lpe.app.molecules._butina import butina_clusters
from tg_lpe.app.molecules._cache import Built
from tg_lpe.app.molecules._labels import place_of, read_labels, read_numbers
from tg_lpe.app.molecules._molecule import Molecule
from tg_lpe.app.molecules.molecule_dataset import MoleculeDataset
from tg_lpe.app.molecules.options import OF_KIN, LoadOptions
from tg_lpe.app.molecules.qm9 import qm9_split
from tg_lpe.app.molecules.reader import number_atoms
from tg_lpe.app.molecules.report import LoadReport, SkippedMolecule
from tg_lpe.app.molecules.solubility import SolubilityNormalization
from tg_lpe.app.molecules.vocabulary import AtomVocabulary
from tg_lpe.arguments import ArgumentError
from tg_lpe.data import TargetSpec
from tg_lpe.data.splits import PARTS, fold_indices, split_indices
from tg_lpe.data.storage import with_attribute

PART_NAMES = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
"""The part that each allowed cell of a column of parts names."""


class ReadRows(NamedTuple):
    """Hold all rows of a source, independent of the split."""

    places: Any
    """The table of `part`, `file`, `line` and `smiles`."""
    labels: Any
    classes: tuple[tuple[str, ...], ...]
    extra: Any
    """The table of the numbers of further columns."""
    molecules: Sequence[Molecule | str]
    """The molecule of each row, or the reason why there is none."""


def read_rows(
    places: Any, cells: Any, options: LoadOptions, target: TargetSpec, num_workers: int | None, progress: bool
) -> ReadRows:
    """Read parts, labels, further columns and molecules.

    Args:
        places: The table of `part`, `file`, `line` and `smiles`.
        cells: The table of the cells of all columns that the options and the target name.
        options: The options.
        target: The target.
        num_workers, progress: As for :func:`~tg_lpe.app.molecules.load_molecules`.

    Raises:
        ValueError: If a cell is no label, number, weight or part.
        ModuleNotFoundError: If ogb's features are requested and ogb is not installed.
    """
    if options.split_column is not None:
        places = places.assign(part=_parts(places, cells[options.split_column]))
    # First, so that a bad cell fails early.
    labels, classes = read_labels(places, cells[label_columns(target)])
    numbers = [column for option, column in options.further if option != "split_column"]
    extra = read_numbers(places, cells[numbers], options.weight_column)
    molecules = read_strings(
        places.smiles.tolist(),
        options.vocabulary,
        num_workers,
        progress,
        repair_radicals=options.repair_radicals,
        with_terms=target.computed is not None,
        kinship=options.split if options.split in OF_KIN else None,
        features=options.features,
        canonical=bool(options.canonical),
        with_names=True,
        descriptors=tuple(_molecule.DESCRIPTORS) if options.descriptors else (),
    )
    return ReadRows(places, labels, classes, extra, molecules)


def label_columns(target: TargetSpec) -> list[str]:
    """Return the columns of the files that hold the labels; none for a computed target."""
    return list(target.columns) if target.computed is None else []


def build_splits(read: ReadRows, options: LoadOptions, target: TargetSpec) -> Built:
    """Build splits from the result of :func:`read_rows`, which several folds may share.

    Raises:
        ValueError: If a split has no usable molecule.
    """
    usable, report = sift(read.places, read.molecules, read.labels)
    members = _members(read, usable, options, report)
    labels, constants = read.labels.to_numpy(), None
    if not label_columns(target):
        labels = np.full((len(read.molecules), 1), np.nan)
    if target.computed is not None:
        terms = {at: molecule.terms for at, molecule in usable.items() if molecule.terms is not None}
        constants = options.normalization
        if constants is None:
            constants = SolubilityNormalization.from_terms([terms[at] for at in members["train"]])
        for at, values in terms.items():
            labels[at] = constants(*values)
    vocabulary, molecules = options.vocabulary, read.molecules
    if options.features == "types" and vocabulary is None:
        vocabulary = collect_types(usable, members["train"])
        molecules = number_atoms(molecules, vocabulary)
    widths = (1, 1) if options.features == "types" else tuple(map(len, _molecule.ogb_feature_sizes()))
    datasets = {}
    for part, rows in members.items():
        dataset = MoleculeDataset.from_molecules([molecules[at] for at in rows], labels[rows], widths)
        if options.extra_columns:
            values = read.extra.loc[rows, options.extra_columns].to_numpy(np.float32)
            dataset = dataset.with_columns(torch.tensor(values))
        if options.weight_column is not None:
            values = read.extra.loc[rows, options.weight_column].to_numpy(np.float32)
            dataset = with_attribute(dataset, "graph_weight", "graph", torch.tensor(values))
        datasets[part] = dataset
    return datasets, {
        "smiles": {part: read.places.smiles[members[part]].tolist() for part in PARTS},
        "types": None if vocabulary is None else list(vocabulary),
        "classes": read.classes,
        "normalization": constants and asdict(constants),
        "report": asdict(_with_repeated(report, read.places, usable, members)),
    }


def _parts(places: Any, cells: Any) -> Any:
    """Return the part that each cell of a column names.

    Raises:
        ValueError: If a cell names no part (the message names its line), or a part has no row.
    """
    parts = cells.str.lower().map(PART_NAMES)
    for at in parts.index[parts.isna()]:
        allowed = "train, val (or valid, validation) or test; remove rows of no part"
        raise ValueError(f"{place_of(places, at)}: {cells[at]!r} in column {cells.name!r} must be {allowed}")
    if empty := [part for part in PARTS if part not in set(parts)]:
        few = f"puts no molecule into {', '.join(empty)}; each part needs at least one"
        raise ValueError(f"column {cells.name!r} {few}")
    return parts


def read_strings(
    smiles: Sequence[str], vocabulary: AtomVocabulary | None, num_workers: int | None, progress: bool, **options: Any
) -> list[Molecule | str]:
    """Read the molecule of each string, or the reason for none; number atoms if there is a vocabulary."""
    molecules: list[Molecule | str] = []
    chunks = _pool.read_smiles(smiles, num_workers=num_workers, **options)
    with tqdm(total=len(smiles), desc="molecules", unit="mol", disable=None if progress else True) as bar:
        for _, chunk in chunks:
            molecules += chunk
            bar.update(len(chunk))
    return molecules if vocabulary is None else number_atoms(molecules, vocabulary)


def sift(places: Any, molecules: Sequence[Molecule | str], labels: Any) -> tuple[dict[int, Molecule], LoadReport]:
    """Return the usable molecules by the position of their row, and the report of other rows and missing labels."""
    usable, skipped = {}, []
    reason = "its label is missing" if labels.shape[1] == 1 else "all its labels are missing"
    unlabelled = labels.isna().all(axis=1) & (labels.shape[1] > 0)
    for at, (molecule, has_none) in enumerate(zip(molecules, unlabelled, strict=True)):
        if isinstance(molecule, str) or has_none:
            why = molecule if isinstance(molecule, str) else reason
            skipped.append(SkippedMolecule(places.file[at], int(places.line[at]), places.smiles[at], why))
        else:
            usable[at] = molecule
    missing = {column: int(number) for column, number in labels.loc[list(usable)].isna().sum().items() if number}
    return usable, LoadReport(len(molecules), len(usable), tuple(skipped), missing)


def _members(
    read: ReadRows, usable: Mapping[int, Molecule], options: LoadOptions, report: LoadReport
) -> Mapping[str, Sequence[int]]:
    """Return the positions of the usable rows of each split."""
    parts = read.places.part[list(usable)]
    members = {part: parts.index[parts == part].tolist() for part in PARTS}
    if all(members.values()):
        return members
    fault = f"no usable molecule for {', '.join(part for part, rows in members.items() if not rows)}"
    if (parts == "all").any():
        if len(usable) >= len(PARTS):
            positions = list(usable)
            divided = _divide(list(usable.values()), options)
            return {part: [positions[place] for place in rows] for part, rows in divided.items()}
        fault = "train, val and test need at least 3 molecules"
    raise ValueError(f"{fault}: {report}")


def _with_repeated(
    report: LoadReport, places: Any, usable: Mapping[int, Molecule], members: Mapping[str, Sequence[int]]
) -> LoadReport:
    """Add to the report the molecules of validation and test that the training set contains too."""
    trained = {usable[at].name: at for at in reversed(members["train"])}
    repeated = [at for part in PARTS[1:] for at in members[part] if usable[at].name in trained]
    if not repeated:
        return report
    first = repeated[0]
    twin = place_of(places, trained[usable[first].name])
    said = f"{place_of(places, first)} ({places.smiles[first]}) is {twin}"
    return replace(report, num_repeated=len(repeated), repeated=said)


def _divide(molecules: Sequence[Molecule], options: LoadOptions) -> Mapping[str, Sequence[int]]:
    """Divide molecules at random or by kinship, and return their positions by split."""
    if options.fold is not None:
        return dict(zip(PARTS, fold_indices(len(molecules), options.seed, options.fold), strict=True))
    if options.split not in OF_KIN:
        draw = qm9_split if options.split == "standard" else split_indices
        return dict(zip(PARTS, draw(len(molecules), options.seed), strict=True))
    kin = [molecule.kinship for molecule in molecules]
    if options.split == "butina":
        kin = butina_clusters(kin)
    parts = scaffold_split(kin)
    if empty := [split for split, part in parts.items() if not part]:
        scaffold, count = Counter(kin).most_common(1)[0]
        shared = f"have the scaffold {scaffold!r}" if scaffold else "have no ring, and so the same, empty scaffold"
        if options.split == "butina":
            shared = "are one cluster"
        message = "{split} leaves no molecule for {}: {:,} of the {:,} usable molecules {}; use a random split"
        raise ArgumentError(message, ", ".join(empty), count, len(molecules), shared, split=options.split)
    return parts


def scaffold_split(scaffolds: Sequence[str | int]) -> dict[str, list[int]]:
    """Split molecules 80/10/10 so that no scaffold is in two parts, as MoleculeNet does.

    `MoleculeNet <https://arxiv.org/abs/1703.00564>`_, section 3.2. The sets of molecules with equal scaffolds, largest
    first, fill the training set, then validation, then test. Nothing is random.

    Args:
        scaffolds: The scaffold of each molecule, or its cluster.

    Returns:
        Positions of each part, in ascending order.
    """
    sets: dict[str | int, list[int]] = {}
    for position, scaffold in enumerate(scaffolds):
        sets.setdefault(scaffold, []).append(position)
    train_end, val_end = 0.8 * len(scaffolds), 0.9 * len(scaffolds)
    parts: dict[str, list[int]] = {"train": [], "val": [], "test": []}
    for members in sorted(sets.values(), key=lambda members: (len(members), members[0]), reverse=True):
        if len(parts["train"]) + len(members) <= train_end:
            parts["train"] += members
        elif len(parts["train"]) + len(parts["val"]) + len(members) <= val_end:
            parts["val"] += members
        else:
            parts["test"] += members
    return {split: sorted(part) for split, part in parts.items()}


def collect_types(usable: Mapping[int, Molecule], train: Sequence[int]) -> AtomVocabulary:
    """Collect the atom types; those that the training set, the positions ``train``, lacks come last."""
    counts = Counter(name for at in train for name in usable[at].atoms)
    return AtomVocabulary.from_counts({name: counts[name] for molecule in usable.values() for name in molecule.atoms})
