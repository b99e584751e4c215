"""Read SMILES as graphs, in the same way as a model's training data."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rdkit import rdBase
from torch_geometric.data import Data

from tg_lpe.app.molecules import _molecule, _pool
from tg_lpe.app.molecules._molecule import Molecule
from tg_lpe.app.molecules.molecule_dataset import MoleculeDataset
from tg_lpe.app.molecules.vocabulary import AtomVocabulary
from tg_lpe.arguments import check_count, check_type


def reasons_of(molecules: Iterable[Molecule | str]) -> list[str | None]:
    """Return for each molecule why it is unusable; `None` if it is usable."""
    return [molecule if isinstance(molecule, str) else None for molecule in molecules]


def number_atoms(molecules: Iterable[Molecule | str], vocabulary: AtomVocabulary) -> list[Molecule | str]:
    """Number the atom types of molecules; a molecule with an unknown type is replaced by the reason."""
    numbers = {name: number for number, name in enumerate(vocabulary)}
    numbered: list[Molecule | str] = []
    for molecule in molecules:
        if not isinstance(molecule, str):
            if unknown := sorted(set(molecule.atoms) - numbers.keys()):
                molecule = f"unknown atom type {', '.join(map(repr, unknown))}"
            else:
                molecule = molecule._replace(atoms=[numbers[name] for name in molecule.atoms])
        numbered.append(molecule)
    return numbered


class MoleculeBatch(NamedTuple):
    """Hold the graphs of consecutive SMILES strings."""

    smiles: list[str | None]
    """The strings."""
    graphs: MoleculeDataset
    """The graphs of the usable strings, in order; `y` is NaN."""
    reasons: list[str | None]
    """For each string, why it is unusable; `None` if it has a graph."""


@dataclass(frozen=True)
class MoleculeReader:
    """Read SMILES in the same way as a model's training data.

    Args:
        vocabulary: The atom types by number; `None` for ogb's features.
        repair_radicals: Rewrite bracketed radical atoms to plain ones and keep the largest fragment, as for QM9.
        canonical: Kekulise rings as in canonical SMILES, so that the graph does not depend on the spelling of a string,
            except for the order of its atoms. If `False`, double bonds in rings follow the order of the string.
        descriptors: Names of RDKit's descriptors in `graph_attr`.
    """

    vocabulary: AtomVocabulary | None
    repair_radicals: bool = False
    canonical: bool = True
    descriptors: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> MoleculeReader:
        """Make the reader for a description of training data.

        Args:
            data: The result of :meth:`MoleculeSplits.describe`, which checkpoints and run folders contain. The reader
                is canonical unless it contains `"canonical": false`.

        Raises:
            ValueError: If `data` does not describe molecules, or names a descriptor that this RDKit lacks.
        """
        atoms = data.get("atom_types")
        if data.get("bond_types") is None:
            raise ValueError("its training data were no molecules with atom and bond types; it takes graphs (Data)")
        vocabulary = AtomVocabulary(tuple(atoms)) if atoms else None
        descriptors = tuple(data.get("descriptors", ()))
        if lacking := [name for name in descriptors if name not in _molecule.DESCRIPTORS]:
            raise ValueError(f"the model reads {', '.join(lacking)}, which RDKit {rdBase.rdkitVersion} does not have")
        return cls(vocabulary, bool(data.get("repair_radicals")), data.get("canonical") is not False, descriptors)

    def read(
        self, smiles: Sequence[str | None], *, batch_size: int = _pool.CHUNK, num_workers: int | None = None
    ) -> Generator[MoleculeBatch, None, None]:
        """Read strings in batches, in order.

        Args:
            smiles: The strings; `None` is unusable.
            batch_size: Largest number of strings in a batch.
            num_workers: Number of worker processes; 0 reads in this process, `None` starts one per core if that
                is faster.

        Raises:
            ModuleNotFoundError: If ogb's features are needed and ogb is not installed.
            RuntimeError: If a worker process dies.
            TypeError: If `smiles` is a single string.
            ValueError: If `batch_size` is less than 1 or `num_workers` negative.
        """
        if isinstance(smiles, str):
            raise TypeError(f"smiles must be several strings, got {smiles!r}; write [{smiles!r}] for one")
        check_count("batch_size", batch_size)
        answers = _pool.read_smiles(
            smiles,
            repair_radicals=self.repair_radicals,
            features="ogb" if self.vocabulary is None else "types",
            canonical=self.canonical,
            descriptors=self.descriptors,
            num_workers=num_workers,
            chunk_size=batch_size,
        )
        widths = (1, 1) if self.vocabulary is not None else tuple(map(len, _molecule.ogb_feature_sizes()))
        for strings, molecules in answers:
            if self.vocabulary is not None:
                molecules = number_atoms(molecules, self.vocabulary)
            graphs = MoleculeDataset.from_molecules(molecules, widths=widths)
            yield MoleculeBatch(strings, graphs, reasons_of(molecules))


def smiles_to_data(smiles: str, vocabulary: AtomVocabulary, canonical: bool = True) -> Data:
    """Convert a SMILES string to a kekulised molecular graph without hydrogens or stereochemistry.

    The graph equals that of the published ZINC benchmark up to the order of the atoms, which follows the string.

    Args:
        smiles: The molecule. Several components give one graph with several components.
        vocabulary: The atom types.
        canonical: As for :class:`MoleculeReader`.

    Returns:
        Data with int64 attributes `x` `[num_nodes, 1]` (atom type), `edge_index` `[2, num_edges]` (both directions,
        sorted by row, then column) and `edge_attr` `[num_edges]` (1 single, 2 double, 3 triple).

    Raises:
        TypeError: If `smiles` is not a string or `vocabulary` not an AtomVocabulary.
        ValueError: If RDKit refuses the string, it has no atoms, an atom type is not in the vocabulary, or a bond is
            not single, double or triple.
    """
    if not isinstance(smiles, str):
        raise TypeError(f"smiles must be a string, got {type(smiles).__name__}")
    check_type("vocabulary", vocabulary, AtomVocabulary)
    [batch] = MoleculeReader(vocabulary, canonical=canonical).read([smiles], num_workers=0)
    if batch.reasons[0] is not None:
        raise ValueError(f"unusable SMILES {smiles!r}: {batch.reasons[0]}; the atom types are {', '.join(vocabulary)}")
    data: Data = batch.graphs[0]
    del data.y
    return data
