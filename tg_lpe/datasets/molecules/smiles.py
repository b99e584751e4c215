"""Convert a single molecule to a graph."""

from __future__ import annotations

import math

from torch_geometric.data import Data

from tg_lpe.datasets.molecules import _molecule
from tg_lpe.datasets.molecules.reader import Molecule, dataset_of
from tg_lpe.datasets.molecules.vocabulary import AtomVocabulary


def smiles_to_data(smiles: str, vocabulary: AtomVocabulary, canonical: bool = True) -> Data:
    """Convert a SMILES string to a kekulised molecular graph without hydrogens or stereochemistry.

    The graph equals that of the published ZINC benchmark up to the order of the atoms, which follows the string.

    Args:
        smiles: The molecule. Several components give one graph with several components.
        vocabulary: The atom types.
        canonical: Kekulise rings as in RDKit's canonical SMILES, in the same way for every spelling. If `False`, double
            bonds in rings follow the order of the string.

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
    if not isinstance(vocabulary, AtomVocabulary):
        raise TypeError(f"vocabulary must be an AtomVocabulary, got {type(vocabulary).__name__}")
    try:
        graph = _molecule.graph(_molecule.parse(smiles), canonical)
        atoms = vocabulary.encode(graph.atom_types)
    except ValueError as error:
        raise ValueError(f"unusable SMILES {smiles!r}: {error}") from error
    bonds = [number for bond in graph.bonds for number in bond]
    data: Data = dataset_of([Molecule(atoms, bonds)], [(math.nan,)])[0]
    del data.y
    return data
