"""Read molecules as graphs from SMILES files and RDKit's collection. Needs RDKit."""

from tg_lpe.app.molecules import _molecule as _molecule  # first: its error says what to install without RDKit
from tg_lpe.app.molecules.files import MoleculeFile
from tg_lpe.app.molecules.load import load_molecules, read_molecules
from tg_lpe.app.molecules.molecule_dataset import MoleculeDataset, MoleculeSplits
from tg_lpe.app.molecules.options import DatasetName, LoadOptions
from tg_lpe.app.molecules.qm9 import QM9_UNITS, qm9_split
from tg_lpe.app.molecules.reader import MoleculeBatch, MoleculeReader, smiles_to_data
from tg_lpe.app.molecules.report import LoadReport, SkippedMolecule
from tg_lpe.app.molecules.solubility import SolubilityNormalization, constrained_solubility
from tg_lpe.app.molecules.vocabulary import BOND_TYPES, ZINC_VOCABULARY, AtomVocabulary

__all__ = [
    "BOND_TYPES",
    "QM9_UNITS",
    "ZINC_VOCABULARY",
    "AtomVocabulary",
    "DatasetName",
    "LoadOptions",
    "LoadReport",
    "MoleculeBatch",
    "MoleculeDataset",
    "MoleculeFile",
    "MoleculeReader",
    "MoleculeSplits",
    "SkippedMolecule",
    "SolubilityNormalization",
    "constrained_solubility",
    "load_molecules",
    "qm9_split",
    "read_molecules",
    "smiles_to_data",
]
