"""Build splits from the rows of files: everything between reading and caching."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import torch
from tqdm import tqdm

from tg_lpe.app.molecules import _molecule, _pool
from tg_lpe.app.molecules._butina import butina_clusters
from tg_lpe.app.molecules._labels import read_labels, read_numbers
from tg_lpe.app.molecules._molecule import Molecule
from tg_lpe.app.molecules.files import Row
from tg_lpe.app.molecules.molecule_dataset import MoleculeDataset, MoleculeSplits, spec_of
from tg_lpe.app.molecules.qm9 import qm9_split
from tg_lpe.app.molecules.reader import dataset_of, number_atoms
from tg_lpe.app.molecules.report import FileCount, LoadReport, MissingLabels, SkippedMolecule, with_examples
from tg_lpe.app.molecules.solubility import SolubilityNormalization
from tg_lpe.app.molecules.vocabulary import BOND_TYPES, AtomVocabulary
from tg_lpe.arguments import ArgumentError
from tg_lpe.data import TargetSpec
from tg_lpe.data.splits import PARTS, fold_indices, split_indices
from tg_lpe.data.storage import with_attribute

Features = Literal["types", "ogb"]
Split = Literal["random", "scaffold", "butina", "standard"]

OF_KIN = ("scaffold", "butina")
"""Splits that keep related molecules together, without a random draw."""

PART_NAMES = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
"""The part that each allowed cell of a column of parts names."""


@dataclass(frozen=True)
class BuildOptions:
    """Hold the resolved options of :func:`~tg_lpe.app.molecules.load_molecules` that determine the splits.

    The target is chosen, and the vocabulary is set if the source fixes it.
    """

    target: TargetSpec = field(default_factory=lambda: TargetSpec(columns=()))
    repair_radicals: bool = False
    normalization: SolubilityNormalization | None = None
    vocabulary: AtomVocabulary | None = None
    features: Features = "types"
    canonical: bool = False
    split: Split = "random"
    fold: tuple[int, int] | None = None
    seed: int = 0
    missing: tuple[str, ...] | None = None
    extra_columns: tuple[str, ...] = ()
    weight_column: str | None = None
    num_workers: int | None = None
    progress: bool = True

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns of the files that hold the labels; none for a computed target."""
        return self.target.columns if self.target.computed is None else ()


Entries = Sequence[Molecule | str]
"""The molecule of each row, or the reason why there is none."""


class ReadRows(NamedTuple):
    """Hold all rows of a source with their molecules, independent of the split."""

    rows: Sequence[Row]
    labels: Sequence[tuple[float, ...]]
    classes: tuple[tuple[str, ...], ...]
    extra: Sequence[tuple[float, ...]]
    """Numbers of ``extra_columns``, then the weight."""
    molecules: Entries


def read_rows(rows: Mapping[str, Sequence[Row]], options: BuildOptions) -> ReadRows:
    """Read labels, extra columns and molecules.

    Raises:
        ValueError: If a label is neither a number nor the name of a class.
        ModuleNotFoundError: If ogb's features are requested and ogb is not installed.
    """
    flat = [row for split in rows.values() for row in split]
    columns = options.label_columns
    labels, classes = read_labels(flat, columns, options.missing)  # first: a bad cell fails early
    extra = _read_extra(flat, len(columns), options)
    kinship = options.split if "all" in rows and options.split in OF_KIN else None
    return ReadRows(flat, labels, classes, extra, _read(flat, options, kinship, with_names=True))


def build_splits(rows: Mapping[str, Sequence[Row]], options: BuildOptions, read: ReadRows) -> MoleculeSplits:
    """Build splits from rows.

    Args:
        rows: Rows of each split `train`, `val`, `test`; or of the key `all`, to be split.
        options: The options.
        read: The result of :func:`read_rows` for these rows; several folds may share it.

    Raises:
        ValueError: If a split has no usable molecule.
    """
    flat, labels, classes, extra, molecules = read
    sizes = _molecule.ogb_feature_sizes() if options.features == "ogb" else None
    usable, report = _sift(flat, molecules, options.label_columns, labels)
    members = _members(rows, usable, options, report)
    report = _with_repeated(report, flat, usable, members)

    normalization = options.normalization
    targets = {position: labels[position] or (math.nan,) for position in usable}
    if options.target.computed is not None:
        terms = {position: molecule.terms for position, molecule in usable.items() if molecule.terms is not None}
        if normalization is None:
            normalization = SolubilityNormalization.from_terms([terms[position] for position in members["train"]])
        targets = {position: (normalization(*values),) for position, values in terms.items()}
    vocabulary = options.vocabulary
    numbered: Mapping[int, Molecule | str] = usable
    if sizes is None and vocabulary is None:
        vocabulary = _collect_types(usable, set(members["train"]))
        numbered = dict(zip(usable, number_atoms(usable.values(), vocabulary), strict=True))
    widths = (1, 1) if sizes is None else (len(sizes[0]), len(sizes[1]))
    datasets = {}
    for split, part in members.items():
        dataset = dataset_of([numbered[at] for at in part], [targets[at] for at in part], widths)
        datasets[split] = _with_extra(dataset, [extra[at] for at in part], options)
    spec = spec_of(datasets.values(), *(sizes or (len(vocabulary or ()), len(BOND_TYPES))))
    return MoleculeSplits(
        **datasets,
        spec=replace(spec, graph_dim=len(options.extra_columns) or None),
        target=replace(options.target, classes=classes),
        vocabulary=vocabulary,
        normalization=normalization,
        report=report,
        bond_types=BOND_TYPES if sizes is None else (),
        smiles={split: [flat[position].smiles for position in members[split]] for split in ("val", "test")},
    )


def _read_extra(rows: Sequence[Row], place: int, options: BuildOptions) -> list[tuple[float, ...]]:
    """Read the numbers of extra columns, then the weight, of each row; an error names the line of a wrong cell."""
    weight = () if options.weight_column is None else (options.weight_column,)
    numbers = read_numbers(rows, (*options.extra_columns, *weight), place)
    for row, values in zip(rows, numbers, strict=True) if weight else ():
        if values[-1] < 0:
            cell, column = row.labels[place + len(values) - 1], options.weight_column
            raise ValueError(f"{row.file}:{row.line}: the weight {cell!r} in column {column!r} must be at least 0")
    return numbers


def _with_extra(dataset: MoleculeDataset, numbers: list[tuple[float, ...]], options: BuildOptions) -> MoleculeDataset:
    """Add the numbers of :func:`_read_extra` to a dataset as attributes of its graphs."""
    values, width = torch.tensor(numbers), len(options.extra_columns)
    if width:
        dataset = with_attribute(dataset, "graph_attr", "graph", values[:, :width].contiguous())
    if options.weight_column is not None:
        dataset = with_attribute(dataset, "graph_weight", "graph", values[:, width].contiguous())
    return dataset


def divide_by_column(rows: Sequence[Row], column: str) -> dict[str, list[Row]]:
    """Divide rows by their last cell, which names the part.

    Raises:
        ValueError: If a cell names no part (the message names its line), or a part has no row.
    """
    parts: dict[str, list[Row]] = {part: [] for part in PARTS}
    for row in rows:
        part = PART_NAMES.get(row.labels[-1].lower())
        if part is None:
            allowed = "train, val (or valid, validation) or test; remove rows of no part"
            raise ValueError(f"{row.file}:{row.line}: {row.labels[-1]!r} in column {column!r} must be {allowed}")
        parts[part].append(row)
    if empty := [part for part, members in parts.items() if not members]:
        raise ValueError(f"column {column!r} puts no molecule into {', '.join(empty)}; each part needs at least one")
    return parts


def build_list(
    rows: Sequence[Row], options: BuildOptions
) -> tuple[MoleculeDataset, AtomVocabulary, LoadReport, list[Row]]:
    """Build one dataset from rows, in their order, without labels (`y` is NaN).

    Returns:
        The dataset, its atom types, the report, and the row of each graph.

    Raises:
        ValueError: If no row is usable.
    """
    molecules = _read(rows, options)
    usable, report = _sift(rows, molecules, (), [()] * len(rows))
    if not usable:
        raise ValueError(f"no usable molecule: {report.summary()}")
    vocabulary, numbered = options.vocabulary, list[Molecule | str](usable.values())
    if vocabulary is None:
        vocabulary = _collect_types(usable, usable)
        numbered = number_atoms(numbered, vocabulary)
    return dataset_of(numbered), vocabulary, report, [rows[position] for position in usable]


def _with_repeated(
    report: LoadReport, rows: Sequence[Row], usable: Mapping[int, Molecule], members: Mapping[str, Sequence[int]]
) -> LoadReport:
    """Add to the report the molecules of validation and test that the training set contains too."""
    trained = {usable[position].name: rows[position] for position in reversed(members["train"])}
    repeated = [position for part in PARTS[1:] for position in members[part] if usable[position].name in trained]
    if not repeated:
        return report
    row, twin = rows[repeated[0]], trained[usable[repeated[0]].name]
    return replace(
        report, num_repeated=len(repeated), repeated=f"{row.file}:{row.line} ({row.smiles}) is {twin.file}:{twin.line}"
    )


def _read(
    rows: Sequence[Row], options: BuildOptions, kinship: str | None = None, with_names: bool = False
) -> list[Molecule | str]:
    """Read the molecule of each row, or the reason for none; number atoms if the options have a vocabulary."""
    molecules: list[Molecule | str] = []
    chunks = _pool.read_smiles(
        [row.smiles for row in rows],
        repair_radicals=options.repair_radicals,
        with_terms=options.target.computed is not None,
        kinship=kinship,
        features=options.features,
        canonical=options.canonical,
        with_names=with_names,
        num_workers=options.num_workers,
    )
    with tqdm(total=len(rows), desc="molecules", unit="mol", disable=None if options.progress else True) as bar:
        for _, chunk in chunks:
            molecules += chunk
            bar.update(len(chunk))
    return molecules if options.vocabulary is None else number_atoms(molecules, options.vocabulary)


def _sift(
    rows: Sequence[Row], molecules: Entries, columns: Sequence[str], labels: Sequence[tuple[float, ...]]
) -> tuple[dict[int, Molecule], LoadReport]:
    """Return the usable molecules by the position of their row, and the report of other rows and missing labels."""
    usable, skipped = {}, []
    for position, (row, molecule, numbers) in enumerate(zip(rows, molecules, labels, strict=True)):
        if isinstance(molecule, str):
            skipped.append(SkippedMolecule(row.file, row.line, row.smiles, molecule))
        elif numbers and all(map(math.isnan, numbers)):
            reason = "its label is missing" if len(numbers) == 1 else "all its labels are missing"
            skipped.append(SkippedMolecule(row.file, row.line, row.smiles, reason))
        else:
            usable[position] = molecule
    read, used = Counter(row.file for row in rows), Counter(rows[position].file for position in usable)
    missing = [
        MissingLabels(column, sum(math.isnan(labels[position][number]) for position in usable))
        for number, column in enumerate(columns)
    ]
    return usable, LoadReport(
        tuple(FileCount(file, count, used[file]) for file, count in read.items()),
        tuple(skipped),
        tuple(entry for entry in missing if entry.number),
    )


def _members(
    rows: Mapping[str, Sequence[Row]], usable: Mapping[int, Molecule], options: BuildOptions, report: LoadReport
) -> dict[str, list[int]]:
    """Return the positions of the usable rows of each split."""
    if "all" not in rows:
        members, start = {}, 0
        for split, part in rows.items():
            members[split] = [position for position in range(start, start + len(part)) if position in usable]
            start += len(part)
        if all(members.values()):
            return members
        fault = f"no usable molecule for {', '.join(split for split, part in members.items() if not part)}"
    elif len(usable) >= len(PARTS):
        positions = list(usable)
        parts = _divide(list(usable.values()), options)
        return {split: [positions[place] for place in part] for split, part in parts.items()}
    else:
        few = "train, val and test need at least 3 molecules"
        fault = few if usable else f"no usable molecule for {', '.join(PARTS)}"
    raise ValueError(f"{fault}: {with_examples(report)}")


def _divide(molecules: Sequence[Molecule], options: BuildOptions) -> Mapping[str, Sequence[int]]:
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


def _collect_types(usable: Mapping[int, Molecule], train: Container[int]) -> AtomVocabulary:
    """Collect the atom types; those that the training set, the positions ``train``, lacks come last."""
    counts: Counter[str] = Counter()
    for position, molecule in usable.items():
        counts.update(molecule.atoms if position in train else dict.fromkeys(molecule.atoms, 0))
    return AtomVocabulary.from_counts(counts)
