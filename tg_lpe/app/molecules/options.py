"""Hold the options of loading molecules, and choose the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from tg_lpe.app.molecules.files import MoleculeFile
from tg_lpe.app.molecules.qm9 import QM9_UNITS, check_qm9_targets
from tg_lpe.app.molecules.solubility import NORMALIZATIONS, SolubilityNormalization
from tg_lpe.app.molecules.vocabulary import AtomVocabulary
from tg_lpe.arguments import ArgumentError, check_choice, check_flags, check_seed, check_strings
from tg_lpe.data import TargetSpec
from tg_lpe.data.splits import check_fold

DatasetName = Literal["zinc", "qm9", "qm9-solubility", "nci", "zinc12k", "molhiv"]
"""Names of published sets for :func:`load_molecules`."""

_CHOICES = {
    "name": get_args(DatasetName),
    "computed": ("penalised_logp",),
    "features": ("types", "ogb"),
    "canonical": (True, False),
    "split": ("random", "scaffold", "butina", "standard"),
}

_COMPUTED_BY_NAME = ("zinc", "qm9-solubility", "nci")
"""Published sets whose target is computed if their files have no labels."""

OF_KIN = ("scaffold", "butina")
"""Splits that keep related molecules together, without a random draw."""


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Hold the options of :func:`load_molecules` on which the splits depend.

    Args:
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
        extra_columns: Columns of numbers that the model reads in addition to the molecule, such as a temperature, in
            the order of the columns of `graph_attr`.
        descriptors: Whether the model also reads RDKit's descriptors of the whole molecule, such as its weight and
            logP, the first columns of `graph_attr`. They are on the scale of arsinh, 0 where RDKit has no value; `Ipc`
            and `AvgIpc`, which take longer than all others, are left out.
        weight_column: A column of numbers of at least 0, `graph_weight` of the graphs: the weight of a molecule in the
            training loss, relative to the mean of the training set. Metrics are not weighted.
        computed: `"penalised_logp"` computes the penalised logP as label, and ignores other columns. Its constants are
            the published ones of the `name`, or else those of the training set.
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
        seed: Draws the random or standard split of a single file.
    """

    name: DatasetName | None = None
    targets: Sequence[str] | None = None
    extra_columns: Sequence[str] | None = ()
    descriptors: bool = False
    weight_column: str | None = None
    computed: str | None = None
    smiles_column: str | None = None
    features: str = "types"
    canonical: bool | None = None
    vocabulary: AtomVocabulary | None = None
    split: str | None = None
    split_column: str | None = None
    fold: tuple[int, int] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for option, known in _CHOICES.items():
            check_choice(option, vars(self)[option], known if option == "features" else (None, *known))
        for option in ("targets", "extra_columns"):
            check_strings(option, vars(self)[option])
        check_flags(descriptors=self.descriptors)
        check_seed(self.seed)
        if self.fold is not None:
            check_fold(self.fold)
        if self.vocabulary is not None and self.features != "types":
            raise ArgumentError("vocabulary numbers atom types, which {features} does not use", features=self.features)
        self._check_target()

    def _check_target(self) -> None:
        if self.targets is not None and len(set(self.targets)) < len(self.targets):
            raise ValueError(f"targets must name each column once, got {list(self.targets)}")
        if self.targets is not None and self.computed is not None:
            message = "the labels are either columns or computed: got {targets} and {computed}"
            raise ArgumentError(message, targets=list(self.targets), computed=self.computed)
        if self.name == "qm9" and self.targets is None:
            message = "qm9 needs {targets}, one or more of {}; qm9-solubility is for the computed penalised logP"
            raise ArgumentError(message, ", ".join(QM9_UNITS), targets=["gap"])
        if self.name == "qm9":
            check_qm9_targets(self.targets or ())
        elif self.split == "standard":
            raise ArgumentError("{split} is QM9's, for name='qm9', got name={!r}", self.name, split=self.split)
        option_of: dict[str, str] = {}
        for option, column in [*(("targets", column) for column in self.targets or ()), *self.further]:
            if column in option_of:
                first = option_of[column]
                value = list(self.targets or ()) if first == "targets" else column
                both = f"{{{first}}} and {{{option}}} name the same column"
                raise ArgumentError(both, **{first: value, option: column})
            option_of[column] = option

    @property
    def repair_radicals(self) -> bool:
        """Whether SMILES are read with QM9's clean-up."""
        return self.name == "qm9-solubility"

    @property
    def normalization(self) -> SolubilityNormalization | None:
        """The published constants of the computed target; `None` to take those of the training set."""
        return NORMALIZATIONS.get({"zinc": "zinc", "qm9-solubility": "qm9"}.get(self.name or "", ""))

    @property
    def further(self) -> list[tuple[str, str]]:
        """The columns to read besides the labels, after the names of their options."""
        single = [("weight_column", self.weight_column), ("split_column", self.split_column)]
        named = [(option, column) for option, column in single if column is not None]
        return [*(("extra_columns", column) for column in self.extra_columns or ()), *named]

    def check_division(self, source: str | Path, is_single: bool) -> None:
        """Refuse options that divide molecules if they exclude each other or the source is divided already."""
        division = {"split": self.split, "split_column": self.split_column, "fold": self.fold and ...}
        given = {option: value for option, value in division.items() if value is not None}
        if given and not is_single:
            message = f"{{{next(iter(given))}}} is for a single file; the folder {{}} has its own split"
            raise ArgumentError(message, source, **given)
        if len(given) > 1 and given != {"split": "random", "fold": ...}:
            both = " and ".join(f"{{{option}}}" for option in given)
            raise ArgumentError(both + " exclude each other: each divides the molecules", **given)

    def target_of(self, files: Mapping[str, MoleculeFile], source: str | Path) -> TargetSpec:
        """Choose the target from the options and the columns of the files."""
        further = [column for _, column in self.further]
        for file in files.values():
            file.check_columns([*(self.targets or ()), *further])
        if self.targets is not None:
            units = tuple(QM9_UNITS[column] for column in self.targets) if self.name == "qm9" else ()
            return TargetSpec(tuple(self.targets), units=units)
        penalised_logp = TargetSpec(("penalised logP",), computed="penalised_logp")
        if self.computed is not None:
            return penalised_logp
        labels = (name for file in files.values() for name in file.label_columns if name not in further)
        columns = list(dict.fromkeys(labels))
        if columns == ["y"] or ("y" in columns and self.name is not None):
            return TargetSpec(("y",))
        if self.name is not None and self.name not in _COMPUTED_BY_NAME:
            raise ValueError(f"{self.name} needs labels, but the files in {source} have no column 'y'")
        if self.name is not None or source == "nci":
            return penalised_logp
        computing = "{computed} for the penalised logP, which is computed from the molecule"
        if not columns:
            message = "{} has no labels: its files have no columns other than the SMILES. Choose " + computing
            raise ArgumentError(message, source, computed="penalised_logp")
        message = "the target of {} is unclear: besides the SMILES, there are {}. Choose some, as with {targets}, or "
        listing = ", ".join(map(repr, columns))
        raise ArgumentError(message + computing, source, listing, targets=columns[-1:], computed="penalised_logp")
