"""Load splits of molecules from a folder, a file, or RDKit's collection."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, get_args

from rdkit import RDConfig, rdBase

from tg_lpe.app.molecules import _cache
from tg_lpe.app.molecules._build import (
    OF_KIN,
    BuildOptions,
    Features,
    Split,
    build_list,
    build_splits,
    divide_by_column,
    read_rows,
)
from tg_lpe.app.molecules._pool import resolve_num_workers
from tg_lpe.app.molecules.files import MoleculeFile, find_split
from tg_lpe.app.molecules.molecule_dataset import MoleculeDataset, MoleculeSplits
from tg_lpe.app.molecules.qm9 import QM9_UNITS, check_qm9_targets, qm9_table
from tg_lpe.app.molecules.reader import MoleculeReader
from tg_lpe.app.molecules.report import LoadReport, with_examples
from tg_lpe.app.molecules.solubility import SolubilityNormalization
from tg_lpe.app.molecules.vocabulary import AtomVocabulary
from tg_lpe.arguments import ArgumentError, check_choice, check_seed, check_strings
from tg_lpe.checkpoints.files import digest_of_file
from tg_lpe.data import TargetSpec
from tg_lpe.data.splits import check_fold

DatasetName = Literal["zinc", "qm9", "qm9-solubility", "nci", "zinc12k", "molhiv"]
"""Names of published sets for :func:`load_molecules`."""

ComputedTarget = Literal["penalised_logp", "solubility"]

_PUBLISHED = ("zinc", "qm9", "qm9-solubility", "zinc12k", "molhiv")
"""Sets whose published graphs are reproduced."""

_COMPUTED_BY_NAME = ("zinc", "qm9-solubility", "nci")
"""Published sets whose target is computed if their files have no labels."""

_NORMALIZATIONS = {"zinc": "zinc", "qm9-solubility": "qm9"}
"""Name of the constants of the computed target for each set."""

_TRAIN_FILES = ("train",)

_LOGGER = logging.getLogger("tg_lpe.app.molecules")


def load_molecules(
    source: str | Path,
    *,
    name: DatasetName | None = None,
    targets: Sequence[str] | None = None,
    missing: Sequence[str] | None = None,
    extra_columns: Sequence[str] = (),
    weight_column: str | None = None,
    computed: ComputedTarget | None = None,
    normalization: SolubilityNormalization | Literal["zinc", "qm9"] | None = None,
    smiles_column: str | None = None,
    features: Features = "types",
    canonical: bool | None = None,
    vocabulary: AtomVocabulary | None = None,
    split: Split | None = None,
    split_column: str | None = None,
    fold: tuple[int, int] | None = None,
    train_files: Sequence[str] = _TRAIN_FILES,
    cache_dir: str | Path | None = None,
    strict: bool = False,
    seed: int = 0,
    num_workers: int | None = None,
    progress: bool = True,
) -> MoleculeSplits:
    """Load molecules as training, validation and test sets.

    Labels are columns of the files, or computed on request. An empty cell is a missing label, NaN in `y`; the report
    counts them. Unusable molecules, and molecules without any label, are left out; the report names them, and a log
    line counts them. Salts stay whole, so a graph may have several components. The processed splits are cached, keyed
    by the content of the files.

    Args:
        source: A folder with one file for each of train, val and test, and optionally an `atom_dict.txt` that fixes the
            atom types; or one file, which is split 80/10/10; or `"nci"` for the 5,000 molecules that ship with RDKit.
            See :class:`~tg_lpe.app.molecules.MoleculeFile` for the formats.
        name: The published dataset that the source contains, if any.

            - `"qm9"`: QM9's properties in one table, from which `targets` chooses (see :data:`QM9_UNITS`). The source
              is that file, or a folder with the file `properties`.
            - `"zinc"`, `"qm9-solubility"`, `"nci"`: the target is computed if the files have no column `y`. The first
              two set its published normalisation. `"qm9-solubility"` also rewrites bracketed radical atoms to plain
              ones and keeps each molecule's largest fragment, as published.
            - `"zinc12k"`, `"molhiv"`: labels `y` are required.
        targets: Columns of the labels, in the order of the columns of `y`. An empty sequence means no labels, which is
            enough for pretraining. By default `y`, if it is the only column other than the SMILES. A column of words
            holds classes, numbered in the order of their names, which `splits.target.classes` lists.
        missing: Cells that mean a missing label, such as `("n/a", "-")`, in addition to empty cells.
        extra_columns: Columns of numbers that the model reads in addition to the molecule, such as a temperature, in
            the order of the columns of `graph_attr`.
        weight_column: A column of numbers of at least 0, `graph_weight` of the graphs: the weight of a molecule in the
            training loss, relative to the mean of the training set. Metrics are not weighted.
        computed: `"penalised_logp"` (formerly `"solubility"`) computes the penalised logP as label, and ignores other
            columns.
        normalization: Constants of the computed target, which this selects. By default the constants of the `name`, or
            else those of the training set.
        smiles_column: Column of the SMILES; by default `smiles`, in any case, or a common variant, or else `mol`.
        features: `"types"`: one atom type per node and one bond type per edge, of the kekulised molecule. `"ogb"`: the
            nine atom and three bond features of ogb's `smiles2graph`; `atom_dict.txt` is then ignored.
        canonical: Kekulise rings as in RDKit's canonical SMILES, so that the graph does not depend on the spelling of
            the string, except for the order of its atoms. If `False`, double bonds in rings follow the order of the
            string, also in predictions of a model trained on these graphs. By default `True`, except for published
            graphs: any `name` other than `"nci"`.
        vocabulary: The atom types by number, such as those of a pretrained encoder; molecules with other types are left
            out. By default the types of `atom_dict.txt`, or else all types that occur.
        split: How to split one file.

            - `"random"`: at random, the default.
            - `"scaffold"`: by Bemis-Murcko scaffold, as MoleculeNet does; not random.
            - `"butina"`: by Butina's clusters of Morgan fingerprints (radius 2, 1,024 bits, Tanimoto distance 0.6, as
              in DeepChem); not random, at most 50,000 molecules.
            - `"standard"`: with `name="qm9"`, see :func:`qm9_split`.
        split_column: A column of one file that names the part of each molecule: `train`, `val` (or `valid`,
            `validation`) or `test`, in any case; instead of `split`.
        fold: `(number, folds)` for one fold of a cross-validation of one file, such as `(0, 5)`. Each molecule is in
            the test set of one fold; a tenth of all molecules are drawn from the others for validation.
        train_files: Names of a folder's files that make up the training set.
        cache_dir: Folder of processed splits; by default `$XDG_CACHE_HOME/tg_lpe` or `~/.cache/tg_lpe`.
        strict: Raise if any molecule is unusable.
        seed: Draws the random or standard split of a single file.
        num_workers: Number of worker processes that read SMILES; 0 reads in this process, `None` starts one per core if
            that is faster.
        progress: Show a progress bar.

    Returns:
        The three datasets with their atom types, target, normalisation and report.

    Raises:
        FileNotFoundError: If the source or one of its files is missing.
        ModuleNotFoundError: If `features="ogb"` and ogb is not installed.
        TypeError: If `targets`, `extra_columns`, `missing` or `train_files` is no sequence of strings.
        ValueError: If the target is unclear; an option is unknown, contradicts another or does not fit the source; a
            file is malformed; a cell is no label, number, weight or part; a split has no usable molecule; or `strict`
            is set and a molecule is unusable.
        RuntimeError: If a worker process dies.
    """
    for option, value, known in (
        ("name", name, (None, *get_args(DatasetName))),
        ("computed", computed, (None, *get_args(ComputedTarget))),
        ("features", features, get_args(Features)),
        ("canonical", canonical, (None, True, False)),
        ("split", split, (None, *get_args(Split))),
    ):
        check_choice(option, value, known)
    lists = {"targets": targets, "missing": missing, "extra_columns": extra_columns, "train_files": train_files}
    for option, names in lists.items():
        check_strings(option, names)
    check_seed(seed)
    if fold is not None:
        check_fold(fold)
    resolve_num_workers(num_workers, 0)
    _check_targets(name, targets, computed, normalization, split)
    files, listed_types = _open(source, name, train_files, smiles_column)
    is_single = "all" in files
    _check_division(source, is_single, train_files, split=split, split_column=split_column, fold=fold)
    if vocabulary is not None:
        if features != "types":
            raise ArgumentError("vocabulary numbers atom types, which {features} does not use", features=features)
        if listed_types not in (None, vocabulary):
            types, listed = ", ".join(vocabulary), ", ".join(listed_types or ())
            raise ValueError(f"vocabulary has the atom types {types}, but atom_dict.txt in {source} has {listed}")
    single = [("weight_column", weight_column), ("split_column", split_column)]
    others = [("extra_columns", column) for column in extra_columns or ()]
    others += [(option, column) for option, column in single if column is not None]
    all_files = [file for part in files.values() for file in part]
    target = _choose_target(all_files, source, name, targets, computed, normalization, others)
    chosen = normalization or _NORMALIZATIONS.get(name or "")
    canonical = True if canonical is None and name not in _PUBLISHED else canonical
    options = BuildOptions(
        target=target,
        repair_radicals=name == "qm9-solubility",
        normalization=None if chosen is None or target.computed is None else SolubilityNormalization.resolve(chosen),
        vocabulary=(vocabulary or listed_types) if features == "types" else None,
        features=features,
        canonical=bool(canonical),
        missing=None if missing is None else tuple(missing),
        extra_columns=tuple(extra_columns or ()),
        weight_column=weight_column,
        split=split or "random",
        fold=fold,
        seed=0 if not is_single or split in OF_KIN else seed,
        num_workers=num_workers,
        progress=progress,
    )
    content = {
        # Names are part of the key, since the report contains them.
        "files": {part: [(file.name, digest_of_file(file.path)) for file in listed] for part, listed in files.items()},
        "smiles_column": smiles_column,
        "split_column": split_column,
        "rdkit": rdBase.rdkitVersion,  # another release may read or score a string differently
    }
    label = name or os.path.basename(os.path.normpath(source)) or "molecules"

    def path_of(options: BuildOptions) -> Path:
        of_options = asdict(replace(options, num_workers=None, progress=True))
        return _cache.path_of(label, cache_dir, {**content, "options": of_options})

    splits = _cache.load(path_of(options)) or _build(source, files, split_column, others, options, path_of)
    _announce(source, splits.report, strict)
    _warn_of_training_set(source, splits)
    how: dict[str, object] = {"kind": options.split, **({} if options.split in OF_KIN else {"seed": seed})}
    if not is_single:
        how = {"kind": "given"}
    elif split_column is not None:
        how = {"kind": "column", "column": split_column}
    elif fold is not None:
        how |= {"fold": fold[0], "folds": fold[1]}
    splits = replace(splits, repair_radicals=options.repair_radicals, canonical=canonical)
    return replace(splits, split=how, weight_column=weight_column, extra_columns=options.extra_columns)


def _check_division(source: str | Path, is_single: bool, train_files: Sequence[str], **division: Any) -> None:
    """Refuse options that divide molecules if they exclude each other or the source is divided already."""
    if not train_files:
        raise ValueError("train_files names no file")
    if tuple(train_files) != _TRAIN_FILES and is_single:
        raise ValueError(f"train_files={tuple(train_files)} is for a folder, but {source} is a single file")
    given = {name: ... if name == "fold" else value for name, value in division.items() if value is not None}
    if given and not is_single:
        message = f"{{{next(iter(given))}}} is for a single file; the folder {{}} has its own split"
        raise ArgumentError(message, source, **given)
    if len(given) > 1 and given != {"split": "random", "fold": ...}:
        both = " and ".join(f"{{{option}}}" for option in given)
        raise ArgumentError(both + " exclude each other: each divides the molecules", **given)


def _build(
    source: str | Path,
    files: Mapping[str, Sequence[MoleculeFile]],
    split_column: str | None,
    others: Sequence[tuple[str, str]],
    options: BuildOptions,
    path_of: Callable[[BuildOptions], Path],
) -> MoleculeSplits:
    """Build splits and store them, with those of the other folds: reading takes most of the time."""
    columns = [*options.label_columns, *(column for _, column in others)]
    rows = {part: [row for file in listed for row in file.rows(columns)] for part, listed in files.items()}
    if split_column is not None:
        rows = divide_by_column(rows["all"], split_column)
    with _named(source):
        read = read_rows(rows, options)
        splits = build_splits(rows, options, read)
        _cache.store(splits, path_of(options))
        number, folds = options.fold or (0, 0)
        for other in range(folds):
            if other != number:
                of_fold = replace(options, fold=(other, folds))
                _cache.store(build_splits(rows, of_fold, read), path_of(of_fold))
    return splits


def _choose_target(
    files: Sequence[MoleculeFile],
    source: str | Path,
    name: str | None,
    targets: Sequence[str] | None,
    computed: ComputedTarget | None,
    normalization: object | None,
    others: Sequence[tuple[str, str]],
) -> TargetSpec:
    """Choose the target from the arguments and the columns of the files, except columns that ``others`` name."""
    named: dict[str, tuple[str, object]] = {column: ("targets", targets) for column in targets or ()}
    for option, column in others:
        if column in named:
            first, value = named[column]
            both = f"{{{first}}} and {{{option}}} name the same column"
            raise ArgumentError(both, **{first: value, option: column})
        named[column] = option, column
    for file in files:
        file.check_columns(tuple(named))
    taken = {column for _, column in others}
    columns = {file.name: tuple(column for column in file.label_columns if column not in taken) for file in files}
    if targets is not None:
        return TargetSpec(tuple(targets), units=tuple(QM9_UNITS[column] for column in targets) if name == "qm9" else ())
    penalised_logp = TargetSpec(("penalised logP",), computed="penalised_logp")
    if computed is not None:
        return penalised_logp
    labelled = {file: "y" in names for file, names in columns.items()}
    alone = all(set(names) <= {"y"} for names in columns.values())
    if any(labelled.values()) and (alone or name is not None or normalization is not None):
        if not all(labelled.values()):
            with_labels = ", ".join(file for file, has in labelled.items() if has)
            without = ", ".join(file for file, has in labelled.items() if not has)
            raise ValueError(f"labels must be in all files or in none; {with_labels} has them, {without} does not")
        if normalization is not None:
            raise ValueError("normalization applies to the computed target, but these files have labels y")
        return TargetSpec(("y",))
    if name is not None and name not in _COMPUTED_BY_NAME:
        raise ValueError(f"{name} needs labels, but the files in {source} have no column 'y'")
    if name in _COMPUTED_BY_NAME or source == "nci" or normalization is not None:
        return penalised_logp
    computing = "{computed} for the penalised logP, which is computed from the molecule"
    files_by_columns: dict[tuple[str, ...], list[str]] = {}
    for file_name, names in columns.items():
        if names:
            files_by_columns.setdefault(names, []).append(file_name)
    if not files_by_columns:
        message = "{} has no labels: its files have no columns other than the SMILES. Choose " + computing
        raise ArgumentError(message, source, computed="penalised_logp")
    listing = "; ".join(
        f"{', '.join(map(repr, names))} in {', '.join(where)}" for names, where in files_by_columns.items()
    )
    example = next(iter(files_by_columns))[-1]
    message = "the target of {} is unclear: besides the SMILES, there are {}. Choose columns, as with {targets}, or "
    raise ArgumentError(message + computing, source, listing, targets=[example], computed="penalised_logp")


def read_molecules(
    path: str | Path,
    *,
    vocabulary: AtomVocabulary | None = None,
    reader: MoleculeReader | None = None,
    smiles_column: str | None = None,
    canonical: bool = True,
    strict: bool = False,
    num_workers: int | None = None,
    progress: bool = True,
) -> tuple[MoleculeDataset, AtomVocabulary, LoadReport, list[tuple[int, str]]]:
    """Read one file of molecules in its order, without labels and without a cache.

    Args:
        path: A file that :class:`~tg_lpe.app.molecules.MoleculeFile` supports.
        vocabulary: The atom types; by default those that occur.
        reader: Read as a model's training data, with the reader's atom types and `canonical` instead of the arguments.
        smiles_column: Column of the SMILES, as for :func:`load_molecules`.
        canonical: As for :func:`load_molecules`.
        strict: Raise if any molecule is unusable.
        num_workers: Number of worker processes, as for :func:`load_molecules`.
        progress: Show a progress bar.

    Returns:
        The graphs (`y` is NaN), their atom types, the report, and for each graph its line and SMILES.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If there is no SMILES column, no molecule is usable, `strict` is set and one is not, both
            `vocabulary` and `reader` are given, or the reader has no atom types.
    """
    if reader is None:
        reader = MoleculeReader(vocabulary, canonical=canonical)
    elif vocabulary is not None:
        raise ValueError(f"pass either vocabulary or reader, got both: {vocabulary}, {reader}")
    elif reader.vocabulary is None:
        raise ValueError(f"reader must have a vocabulary, but {reader} reads ogb's features; use reader.read(strings)")
    rows = list(MoleculeFile(path, smiles_column).rows())
    options = BuildOptions(
        vocabulary=reader.vocabulary,
        repair_radicals=reader.repair_radicals,
        canonical=reader.canonical,
        num_workers=num_workers,
        progress=progress,
    )
    with _named(path):
        dataset, vocabulary, report, used = build_list(rows, options)
    _announce(path, report, strict)
    return dataset, vocabulary, report, [(row.line, row.smiles) for row in used]


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


def _announce(source: str | Path, report: LoadReport, strict: bool) -> None:
    """Log which molecules were left out, or raise an error if `strict` is set."""
    if strict and report.skipped:
        raise ValueError(f"{source} holds unusable molecules, and strict is set: {with_examples(report)}")
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


def _check_targets(
    name: str | None,
    targets: Sequence[str] | None,
    computed: str | None,
    normalization: SolubilityNormalization | str | None,
    split: str | None,
) -> None:
    """Refuse targets that are repeated, contradict another option, or are not among QM9's."""
    if targets is not None and len(set(targets)) < len(targets):
        raise ValueError(f"targets must name each column once, got {list(targets)}")
    if targets is not None and (computed is not None or normalization is not None):
        other = "{computed}" if computed is not None else "normalization, which is for the computed target"
        message = "the labels are either columns or computed: got {targets} and " + other
        raise ArgumentError(message, targets=list(targets), computed=computed)
    if normalization is not None:
        SolubilityNormalization.resolve(normalization)
    if name == "qm9" and targets is None:
        message = "qm9 needs {targets}, one or more of {}; qm9-solubility is for the computed penalised logP"
        raise ArgumentError(message, ", ".join(QM9_UNITS), targets=["gap"])
    if name == "qm9":
        check_qm9_targets(targets or ())
    elif split == "standard":
        raise ArgumentError("{split} is QM9's, for name='qm9', got name={!r}", name, split=split)


def _open(
    source: str | Path, name: str | None, train_files: Sequence[str], smiles_column: str | None
) -> tuple[dict[str, list[MoleculeFile]], AtomVocabulary | None]:
    """Open the source's files for each split (or `all`), and read the atom types that it fixes."""
    path = Path(RDConfig.RDDataDir, "NCI", "first_5K.smi") if source == "nci" else Path(source)
    if not path.exists():
        raise FileNotFoundError(f"there is no folder or file {path}; only the set 'nci' needs none")
    if name == "qm9":
        path = qm9_table(path)
    if not path.is_dir():
        return {"all": [MoleculeFile(path, smiles_column)]}, None
    stems = {"train": train_files, "val": ("val",), "test": ("test",)}
    files = {
        split: [MoleculeFile(find_split(path, stem), smiles_column) for stem in part] for split, part in stems.items()
    }
    dictionary = path / "atom_dict.txt"
    return files, AtomVocabulary.from_file(dictionary) if dictionary.is_file() else None
