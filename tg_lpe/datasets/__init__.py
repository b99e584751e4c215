"""Molecules as graphs (from SMILES files, RDKit's collection, PyTorch Geometric's datasets), random weighted graphs."""

from tg_lpe.datasets import _molecule as _molecule  # first: it says what to install where RDKit is missing
from tg_lpe.datasets.load import DatasetName, load_molecules, read_molecules
from tg_lpe.datasets.molecule_dataset import MoleculeDataset, MoleculeSplits
from tg_lpe.datasets.pyg import from_pyg
from tg_lpe.datasets.relabel import relabel_nodes
from tg_lpe.datasets.report import FileCount, LoadReport, SkippedMolecule
from tg_lpe.datasets.smiles import smiles_to_data
from tg_lpe.datasets.solubility import SolubilityNormalization, constrained_solubility, solubility_terms
from tg_lpe.datasets.vocabulary import BOND_TYPES, ZINC_VOCABULARY, AtomVocabulary
from tg_lpe.datasets.weighted import random_incidences, random_weighted_graph

__all__ = [
    "BOND_TYPES",
    "ZINC_VOCABULARY",
    "AtomVocabulary",
    "DatasetName",
    "FileCount",
    "LoadReport",
    "MoleculeDataset",
    "MoleculeSplits",
    "SkippedMolecule",
    "SolubilityNormalization",
    "constrained_solubility",
    "from_pyg",
    "load_molecules",
    "random_incidences",
    "random_weighted_graph",
    "read_molecules",
    "relabel_nodes",
    "smiles_to_data",
    "solubility_terms",
]
