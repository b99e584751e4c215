"""Load splits of molecules from a folder, a file, or RDKit's collection."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rdkit import RDConfig, rdBase

from tg_lpe.app.molecules import _cache, _molecule
from tg_lpe.app.molecules._build import build_splits, collect_types, label_columns, read_rows, read_strings, sift
from tg_lpe.app.molecules._molecule import Molecule
from tg_lpe.app.molecules._pool import resolve_num_workers
from tg_lpe.app.molecules.files import MoleculeFile, find_split, read_table
from tg_lpe.app.molecules.molecule_dataset import MoleculeDataset, MoleculeSplits, spec_of
from tg_lpe.app.molecules.options import OF_KIN, LoadOptions
from tg_lpe.app.molecules.reader import MoleculeReader, number_atoms
from tg_lpe.app.molecules.report import LoadReport, SkippedMolecule
from tg_lpe.app.molecules.solubility import SolubilityNormalization
from tg_lpe.app.molecules.vocabulary import BOND_TYPES, AtomVocabulary
from tg_lpe.arguments import ArgumentError
from tg_lpe.checkpoints.files import digest_of_file
from tg_lpe.data import TargetSpec
from tg_lpe.data.splits import PARTS

_LOGGER = logging.getLogger("tg_lpe.app.molecules")


def load_molecules(
    source: str | Path,
    *,
    cache_dir: str | Path | None = None,
    num_workers: int | None = None,
    progress: bool = True,
    **options: Any,
) -> MoleculeSplits:
    """Load molecules as training, validation and test sets.

    Labels are columns of the files, or computed on request. An empty cell, or one with `NA`, `N/A`, `null` or `NaN`, is
    a missing label, NaN in `y`; the report counts them. Unusable molecules, and molecules without any label, are left
    out; the report names them, and a log line counts them. Salts stay whole, so a graph may have several components.
    The processed splits are cached, keyed by the content of the files.

    Args:
        source: A folder with one file for each of train, val and test, and optionally an `atom_dict.txt` that fixes the
            atom types; or one file, which is split 80/10/10; or `"nci"` for the 5,000 molecules that ship with RDKit.
            See :class:`~tg_lpe.app.molecules.MoleculeFile` for the formats.
        cache_dir: Folder of processed splits; by default `$XDG_CACHE_HOME/tg_lpe` or `~/.cache/tg_lpe`.
        num_workers: Number of worker processes that read SMILES; 0 reads in this process, `None` starts one per core if
            that is faster.
        progress: Show a progress bar.
        options: The arguments of :class:`~tg_lpe.app.molecules.LoadOptions`: columns, features and split.

    Returns:
        The three datasets with their atom types, target, normalisation and report.

    Raises:
        FileNotFoundError: If the source or one of its files is missing.
        ModuleNotFoundError: If `features="ogb"` and ogb is not installed.
        TypeError: If an option is unknown, or `targets` or `extra_columns` is no sequence of strings.
        ValueError: If the target is unclear; the value of an option is unknown, contradicts another or does not fit the
            source; a file is malformed; a cell is no label, number, weight or part; or a split has no usable
            molecule.
        RuntimeError: If a worker process dies.
    """
    given = LoadOptions(**options)
    resolve_num_workers(num_workers, 0)
    files, listed_types = _open(source, given)
    is_single = "all" in files
    given.check_division(source, is_single)
    target = given.target_of(files, source)
    resolved = _resolved(given, source, is_single, listed_types)
    content = {
        # Names are part of the key, since the report contains them.
        "files": {part: (file.name, digest_of_file(file.path)) for part, file in files.items()},
        "target": target.to_dict(),
        "rdkit": rdBase.rdkitVersion,  # another release may read or score a string differently
    }
    label = given.name or os.path.basename(os.path.normpath(source)) or "molecules"

    def path_of(options: LoadOptions) -> Path:
        return _cache.path_of(label, cache_dir, {**content, "options": asdict(options)})

    built = _cache.load(path_of(resolved))
    if built is None:
        table = read_table(files, [*label_columns(target), *(column for _, column in given.further)])
        with _named(source):
            read = read_rows(*table, resolved, target, num_workers, progress)
            # All folds, since reading takes most of the time.
            number, folds = resolved.fold or (0, 1)
            for fold in range(folds):
                each = replace(resolved, fold=resolved.fold and (fold, folds))
                made = build_splits(read, each, target)
                _cache.store(path_of(each), *made)
                built = made if fold == number else built
    assert built is not None
    splits = _splits(built, resolved, target, is_single)
    _announce(source, splits.report)
    _warn_of_training_set(source, splits)
    return splits


def _resolved(
    given: LoadOptions, source: str | Path, is_single: bool, listed_types: AtomVocabulary | None
) -> LoadOptions:
    """Fill in defaults that depend on the source; refuse atom types that contradict those which it lists."""
    if given.vocabulary is not None and listed_types not in (None, given.vocabulary):
        types, listed = ", ".join(given.vocabulary), ", ".join(listed_types or ())
        raise ValueError(f"vocabulary has the atom types {types}, but atom_dict.txt in {source} has {listed}")
    return replace(
        given,
        vocabulary=(given.vocabulary or listed_types) if given.features == "types" else None,
        # Other names are of sets whose published graphs are reproduced.
        canonical=True if given.canonical is None and given.name in (None, "nci") else given.canonical,
        split=given.split or "random",
        fold=given.fold and (given.fold[0], given.fold[1]),
        seed=0 if not is_single or given.split in OF_KIN else given.seed,
    )


def _splits(built: _cache.Built, options: LoadOptions, target: TargetSpec, is_single: bool) -> MoleculeSplits:
    """Describe the datasets and facts of :func:`build_splits`, new or from the cache."""
    datasets, facts = built
    types, constants, report = facts["types"], facts["normalization"], facts["report"]
    sizes = (len(types), len(BOND_TYPES)) if options.features == "types" else _molecule.ogb_feature_sizes()
    how: dict[str, object] = {"kind": options.split, **({} if options.split in OF_KIN else {"seed": options.seed})}
    if not is_single:
        how = {"kind": "given"}
    elif options.split_column is not None:
        how = {"kind": "column", "column": options.split_column}
    elif options.fold is not None:
        how |= {"fold": options.fold[0], "folds": options.fold[1]}
    extra, descriptors = tuple(options.extra_columns or ()), tuple(_molecule.DESCRIPTORS) if options.descriptors else ()
    return MoleculeSplits(
        **datasets,
        spec=replace(spec_of(datasets.values(), *sizes), graph_dim=len(extra + descriptors) or None),
        target=replace(target, classes=tuple(map(tuple, facts["classes"]))),
        split=how,
        smiles=facts["smiles"],
        vocabulary=None if types is None else AtomVocabulary(tuple(types)),
        normalization=None if constants is None else SolubilityNormalization(**constants),
        report=LoadReport(**{**report, "skipped": tuple(SkippedMolecule(*entry) for entry in report["skipped"])}),
        repair_radicals=options.repair_radicals,
        canonical=options.canonical,
        weight_column=options.weight_column,
        extra_columns=extra,
        descriptors=descriptors,
    )


def read_molecules(
    path: str | Path,
    *,
    reader: MoleculeReader | None = None,
    smiles_column: str | None = None,
    canonical: bool = True,
    num_workers: int | None = None,
    progress: bool = True,
) -> tuple[MoleculeDataset, AtomVocabulary, LoadReport, list[tuple[int, str]]]:
    """Read one file of molecules in its order, without labels and without a cache.

    Args:
        path: A file that :class:`~tg_lpe.app.molecules.MoleculeFile` supports.
        reader: Read as a model's training data, with the reader's atom types and `canonical`; by default the types are
            those that occur.
        smiles_column: Column of the SMILES, as for :func:`load_molecules`.
        canonical: As for :func:`load_molecules`, without a `reader`.
        num_workers: Number of worker processes, as for :func:`load_molecules`.
        progress: Show a progress bar.

    Returns:
        The graphs (`y` is NaN), their atom types, the report, and for each graph its line and SMILES.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If there is no SMILES column, no molecule is usable, or the reader has no atom types.
    """
    if reader is not None and reader.vocabulary is None:
        raise ValueError(f"reader must have a vocabulary, but {reader} reads ogb's features; use reader.read(strings)")
    vocabulary = None if reader is None else reader.vocabulary
    places, cells = read_table({"all": MoleculeFile(path, smiles_column)})
    molecules = read_strings(
        places.smiles.tolist(),
        vocabulary,
        num_workers,
        progress,
        canonical=canonical if reader is None else reader.canonical,
        repair_radicals=reader is not None and reader.repair_radicals,
    )
    usable, report = sift(places, molecules, cells)
    if not usable:
        raise ValueError(f"{path}: no usable molecule: {report.summary()}")
    _announce(path, report)
    numbered: list[Molecule | str] = list(usable.values())
    if vocabulary is None:
        vocabulary = collect_types(usable, list(usable))
        numbered = number_atoms(numbered, vocabulary)
    lines = places.loc[list(usable)]
    used = list(zip(lines.line.tolist(), lines.smiles.tolist(), strict=True))
    return MoleculeDataset.from_molecules(numbered), vocabulary, report, used


@contextmanager
def _named(source: str | Path) -> Iterator[None]:
    """Prefix errors about molecules with the name of their source."""
    try:
        yield
    except ArgumentError as error:
        raise error.about(source) from error
    except ValueError as error:
        if str(error).startswith(f"{Path(source).name}:"):  # it names the file and line already
            raise
        raise ValueError(f"{source}: {error}") from error


def _announce(source: str | Path, report: LoadReport) -> None:
    """Log how many molecules were left out, and the first."""
    first = f"; the first left out: {report.skipped[0]}" if report.skipped else ""
    _LOGGER.log(logging.WARNING if first else logging.INFO, "%s: %s%s", source, report.summary(), first)


def _warn_of_training_set(source: str | Path, splits: MoleculeSplits) -> None:
    """Log the atom types that the training set lacks, and how many molecules of the other sets it contains."""
    if splits.vocabulary is not None:
        train, *others = (set(part.x.unique().tolist()) for part in (splits.train, splits.val, splits.test))
        if codes := sorted(set().union(*others) - train):
            names = ", ".join(repr(splits.vocabulary.types[code]) for code in codes)
            _LOGGER.warning("%s: the training set lacks these atom types, so they stay untrained: %s", source, names)
    if splits.report.num_repeated:
        _LOGGER.warning(
            "%s: %s of the %s molecules of val and test are also in the training set, which makes their figures look "
            "better than for new molecules: first, %s; the splits scaffold and butina keep equal molecules together",
            *(source, f"{splits.report.num_repeated:,}", f"{len(splits.val) + len(splits.test):,}"),
            splits.report.repeated,
        )


def _open(source: str | Path, options: LoadOptions) -> tuple[dict[str, MoleculeFile], AtomVocabulary | None]:
    """Open the source's file for each part (or `all`), and read the atom types that it fixes."""
    path = Path(RDConfig.RDDataDir, "NCI", "first_5K.smi") if source == "nci" else Path(source)
    if not path.exists():
        raise FileNotFoundError(f"there is no folder or file {path}; only the set 'nci' needs none")
    if options.name == "qm9" and path.is_dir():
        path = find_split(path, "properties")
    if not path.is_dir():
        return {"all": MoleculeFile(path, options.smiles_column)}, None
    files = {part: MoleculeFile(find_split(path, part), options.smiles_column) for part in PARTS}
    dictionary = path / "atom_dict.txt"
    return files, AtomVocabulary.from_file(dictionary) if dictionary.is_file() else None
