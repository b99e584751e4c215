"""From the rows of files to splits: everything between reading and caching."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from tqdm import tqdm

from tg_lpe.datasets.molecules import _pool
from tg_lpe.datasets.molecules._files import Row
from tg_lpe.datasets.molecules.molecule_dataset import MoleculeDataset, MoleculeSplits
from tg_lpe.datasets.molecules.report import FileCount, LoadReport, SkippedMolecule, first_few
from tg_lpe.datasets.molecules.solubility import SolubilityNormalization
from tg_lpe.datasets.molecules.vocabulary import AtomVocabulary

_LARGEST_FLOAT32 = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class BuildOptions:
    """What shapes the splits besides the rows.

    Args:
        repair_radicals: Whether to apply QM9's clean-up.
        normalization: Constants of the computed target; `None` measures them on the training set.
        vocabulary: The atom types; `None` collects them.
        seed: Draws the split of a single file.
        num_workers: Worker processes, `None` to choose.
        progress: Whether to show a bar.
    """

    repair_radicals: bool
    normalization: SolubilityNormalization | None
    vocabulary: AtomVocabulary | None
    seed: int
    num_workers: int | None
    progress: bool


class _Molecule(NamedTuple):
    atoms: list[int]
    bonds: list[int]
    terms: tuple[float, float, float] | None


def build_splits(rows: Mapping[str, Sequence[Row]], options: BuildOptions) -> MoleculeSplits:
    """Turns rows into splits.

    Args:
        rows: Rows per split `train`, `val`, `test`; or under the one key `all`, to be split at random.
        options: See there.

    Raises:
        ValueError: If only some rows have labels, or a split has no usable molecule.
    """
    flat = [row for split in rows.values() for row in split]
    labelled = _are_labelled(flat)
    names, molecules = _read(flat, options, with_terms=not labelled)
    usable, skipped = _sift(flat, molecules, names, options.vocabulary)
    report = _report(flat, usable, skipped)
    members = _members(rows, usable, options.seed, report)

    vocabulary = options.vocabulary or _collect_types(names, molecules, members)
    normalization = None if labelled else options.normalization or _measure(molecules, members["train"])
    datasets = {}
    for split, positions in members.items():
        labels = [_label(flat[position], molecules[position], normalization) for position in positions]
        datasets[split] = _dataset(molecules, positions, names, vocabulary, labels)
    return MoleculeSplits(**datasets, vocabulary=vocabulary, normalization=normalization, report=report)


def build_list(
    rows: Sequence[Row], options: BuildOptions
) -> tuple[MoleculeDataset, AtomVocabulary, LoadReport, list[Row]]:
    """Turns rows into one dataset in their order, without labels (`y` is NaN).

    Returns:
        The dataset, its atom types, the report, and the row of each graph.

    Raises:
        ValueError: If no row is usable.
    """
    names, molecules = _read(rows, options, with_terms=False)
    usable, skipped = _sift([row._replace(label=None) for row in rows], molecules, names, options.vocabulary)
    report = _report(rows, usable, skipped)
    if not usable:
        raise ValueError(f"no usable molecule: {report.summary()}")
    vocabulary = options.vocabulary or _collect_types(names, molecules, {"train": usable})
    dataset = _dataset(molecules, usable, names, vocabulary, [math.nan] * len(usable))
    return dataset, vocabulary, report, [rows[position] for position in usable]


def _dataset(
    molecules: Sequence[_Molecule | str],
    positions: Sequence[int],
    names: Sequence[str],
    vocabulary: AtomVocabulary,
    labels: Sequence[float],
) -> MoleculeDataset:
    remap = [vocabulary.index(name) if name in vocabulary else -1 for name in names]
    chosen = [molecule for molecule in (molecules[p] for p in positions) if isinstance(molecule, _Molecule)]
    return MoleculeDataset.from_graphs(
        atoms=[[remap[code] for code in molecule.atoms] for molecule in chosen],
        bonds=[molecule.bonds for molecule in chosen],
        labels=labels,
    )


def _are_labelled(rows: Sequence[Row]) -> bool:
    labelled = {row.file: row.label is not None for row in rows}
    if len(set(labelled.values())) > 1:
        with_labels = ", ".join(file for file, has in labelled.items() if has)
        without = ", ".join(file for file, has in labelled.items() if not has)
        raise ValueError(f"labels must be in all files or in none; {with_labels} has them, {without} does not")
    return any(labelled.values())


def _read(rows: Sequence[Row], options: BuildOptions, with_terms: bool) -> tuple[list[str], list[_Molecule | str]]:
    """Atom type names by code, and per row the molecule in these codes or the reason why there is none."""
    codes: dict[str, int] = {}
    molecules: list[_Molecule | str] = []
    answers = _pool.read_smiles(
        [row.smiles for row in rows],
        repair_radicals=options.repair_radicals,
        with_terms=with_terms,
        num_workers=options.num_workers,
    )
    with tqdm(total=len(rows), desc="molecules", unit="mol", disable=not options.progress) as bar:
        for answer in answers:
            remap = [codes.setdefault(name, len(codes)) for name in answer["types"]]
            for entry in answer["molecules"]:
                if isinstance(entry, str):
                    molecules.append(entry)
                else:
                    atoms, bonds, terms = entry
                    molecules.append(_Molecule([remap[code] for code in atoms], bonds, terms and tuple(terms)))
            bar.update(len(answer["molecules"]))
    return list(codes), molecules


def _sift(
    rows: Sequence[Row], molecules: Sequence[_Molecule | str], names: Sequence[str], vocabulary: AtomVocabulary | None
) -> tuple[list[int], list[SkippedMolecule]]:
    unknown = {code for code, name in enumerate(names) if vocabulary is not None and name not in vocabulary}
    usable, skipped = [], []
    for position, (row, molecule) in enumerate(zip(rows, molecules, strict=True)):
        if isinstance(molecule, str):
            reason: str | None = molecule
        elif foreign := sorted({names[code] for code in molecule.atoms if code in unknown}):
            reason = f"unknown atom type {', '.join(map(repr, foreign))}"
        else:
            reason = _label_problem(row.label)
        if reason is None:
            usable.append(position)
        else:
            skipped.append(SkippedMolecule(row.file, row.line, row.smiles, reason))
    return usable, skipped


def _label_problem(label: str | None) -> str | None:
    if label is None:
        return None
    if not label:
        return "its label is missing"
    try:
        value = float(label)
    except ValueError:
        return f"its label {label!r} is not a number"
    return None if abs(value) <= _LARGEST_FLOAT32 else f"its label {label!r} is not finite"


def _label(row: Row, molecule: _Molecule | str, normalization: SolubilityNormalization | None) -> float:
    if row.label is not None:
        return float(row.label)
    if normalization is None or isinstance(molecule, str) or molecule.terms is None:
        raise ValueError(f"{row.file}:{row.line} has neither a label nor the terms of the computed target")
    return normalization(*molecule.terms)


def _members(
    rows: Mapping[str, Sequence[Row]], usable: Sequence[int], seed: int, report: LoadReport
) -> dict[str, list[int]]:
    """Positions of the usable rows of each split."""
    if "all" in rows:
        tenth = max(1, len(usable) // 10)
        order = torch.randperm(len(usable), generator=torch.Generator().manual_seed(seed)).tolist()
        drawn = [usable[place] for place in order]
        parts = {"train": drawn[2 * tenth :], "val": drawn[:tenth], "test": drawn[tenth : 2 * tenth]}
        members = {split: sorted(part) for split, part in parts.items()}
    else:
        members, start = {}, 0
        allowed = set(usable)
        for split, part in rows.items():
            members[split] = [position for position in range(start, start + len(part)) if position in allowed]
            start += len(part)
    empty = [split for split, part in members.items() if not part]
    if empty:
        lines = "\n  ".join([report.summary(), *first_few(report.skipped, 5)])
        raise ValueError(f"no usable molecule for {', '.join(empty)}: {lines}")
    return members


def _collect_types(
    names: Sequence[str], molecules: Sequence[_Molecule | str], members: Mapping[str, Sequence[int]]
) -> AtomVocabulary:
    counts: Counter[int] = Counter()
    for split, positions in members.items():
        for position in positions:
            molecule = molecules[position]
            if isinstance(molecule, _Molecule):
                # Types that only other splits have get a place too, after all that occur in training.
                counts.update(molecule.atoms if split == "train" else dict.fromkeys(molecule.atoms, 0))
    return AtomVocabulary.from_counts({names[code]: count for code, count in counts.items()})


def _measure(molecules: Sequence[_Molecule | str], positions: Sequence[int]) -> SolubilityNormalization:
    terms = [m.terms for m in (molecules[p] for p in positions) if isinstance(m, _Molecule) and m.terms is not None]
    return SolubilityNormalization.from_terms(terms)


def _report(rows: Sequence[Row], usable: Sequence[int], skipped: Sequence[SkippedMolecule]) -> LoadReport:
    read = Counter(row.file for row in rows)
    kept = Counter(rows[position].file for position in usable)
    return LoadReport(tuple(FileCount(file, count, kept[file]) for file, count in read.items()), tuple(skipped))
