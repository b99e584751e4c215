"""Single molecules: graphs, types, target."""

from __future__ import annotations

import sys

import networkx as nx
import networkx.algorithms.isomorphism as iso
import pytest
import torch
from helpers import refusals
from rdkit import Chem, RDConfig
from rdkit.Chem import Crippen
from torch_geometric.data import Data

from tg_lpe.app.molecules import (
    AtomVocabulary,
    MoleculeReader,
    SolubilityNormalization,
    constrained_solubility,
    smiles_to_data,
)
from tg_lpe.app.molecules import _molecule as molecule_module
from tg_lpe.app.molecules.solubility import NORMALIZATIONS

VOCABULARY = AtomVocabulary(("C", "O", "N", "C H1", "O -", "N H1 +", "N +"))


def test_edges_run_both_ways_and_are_sorted() -> None:
    data = smiles_to_data("C=CO", VOCABULARY)
    assert data.x.tolist() == [[0], [0], [1]]
    assert data.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert data.edge_attr.tolist() == [2, 2, 1, 1]
    assert (data.x.dtype, data.edge_index.dtype, data.edge_attr.dtype) == (torch.int64,) * 3
    assert set(data.keys()) == {"x", "edge_index", "edge_attr"}


@pytest.mark.parametrize(
    ("smiles", "types"),
    [
        ("C[C@H](O)N", ["C", "C H1", "O", "N"]),
        ("CC(O)N", ["C", "C", "O", "N"]),
        ("CC(=O)[O-]", ["C", "C", "O", "O -"]),
        ("C[NH+](C)C", ["C", "N H1 +", "C", "C"]),
        ("c1cc[nH]c1", ["C", "C", "C", "N", "C"]),
        ("C[N+](C)(C)C", ["C", "N +", "C", "C", "C"]),
    ],
)
def test_atom_types(smiles: str, types: list[str]) -> None:
    assert [VOCABULARY.types[index] for index in smiles_to_data(smiles, VOCABULARY).x.view(-1).tolist()] == types


@pytest.mark.parametrize(
    ("spelled", "smiles"),
    [
        ("[CH3:1][CH2:2][OH:3]", "CCO"),
        ("[cH:1]1[cH:2][cH:3][nH:4][cH:5]1", "c1cc[nH]c1"),
        ("[H]C([H])([H])[C@@:7]([H])(O)[NH2]", "C[C@@H](O)N"),
        ("[13CH3]C([2H])([2H])[18OH]", "CCO"),
        ("C[C@]([2H])([H])O", "CCO"),
        ("CC[C@:1]([13CH3])(C)O", "CCC(C)(C)O"),
        ("[H]/N=C(/C)N", "N=C(C)N"),
        ("C[NH3+:1]", "C[NH3+]"),
        ("C[N+]([H])([H])[H]", "C[NH3+]"),
        ("CCOP([H])(=O)O", "CCO[PH](=O)O"),
        ("CCOP(=O)O", "CCO[PH](=O)O"),
        ("  CCO", "CCO"),
        ("CCO ethanol", "CCO"),
        ("CCO\t\xe9thanol, 99 %", "CCO"),
    ],
)
def test_what_a_string_says_beside_the_molecule_does_not_decide(spelled: str, smiles: str) -> None:
    types = AtomVocabulary((*VOCABULARY.types, "N H3 +", "P H1"))
    for canonical in (False, True):
        one, other = (as_networkx(smiles_to_data(text, types, canonical)) for text in (spelled, smiles))
        match = iso.categorical_node_match("type", 0), iso.categorical_edge_match("type", 0)
        assert nx.is_isomorphic(one, other, *match)
    assert constrained_solubility(spelled, "zinc") == pytest.approx(constrained_solubility(smiles, "zinc"))


def test_kekule_structure_is_the_first_in_order() -> None:
    def double_bonds(smiles: str) -> list[tuple[int, int]]:
        _, bonds = molecule_module.graph(Chem.MolFromSmiles(smiles))
        return sorted((min(a, b), max(a, b)) for a, b, kind in bonds if kind == 2)

    # RDKit's default draws these differently from release to release.
    assert double_bonds("Cc1ccccc1Cl") == [(1, 2), (3, 4), (5, 6)]
    assert double_bonds("Cc1ccc2ncccc2c1") == [(1, 2), (3, 4), (5, 6), (7, 8), (9, 10)]
    # The first choice, 0=1 and so 2=3, leaves atom 4 without a partner; the search takes it back.
    assert double_bonds("c1ccc2cocc2c1") == [(0, 8), (1, 2), (3, 4), (6, 7)]


SPELLED = (
    *("Cc1ccccc1C", "Cc1ccc2ncccc2c1", "C[C@H](N)c1ccc(F)cc1.CC(=O)[O-]", "c1ccc2cocc2c1", "CC=Cc1c[nH]c(C)c1"),
    "C[C@H](N)C(=O)/C=C/C",
)


@pytest.mark.parametrize("smiles", SPELLED)
def test_canonical_graphs_do_not_depend_on_the_spelling(smiles: str) -> None:
    molecule = Chem.MolFromSmiles(smiles)
    spellings = {smiles, *Chem.MolToRandomSmilesVect(molecule, 30, randomSeed=1)}
    names = {name for s in spellings for name in molecule_module.graph(Chem.MolFromSmiles(s))[0]}
    vocabulary = AtomVocabulary(tuple(sorted(names)))
    first, *others = (as_networkx(smiles_to_data(s, vocabulary, canonical=True)) for s in sorted(spellings))
    assert len(others) > 3
    same = {"node_match": iso.categorical_node_match("type", 0), "edge_match": iso.categorical_edge_match("type", 0)}
    assert all(nx.is_isomorphic(first, other, **same) for other in others)
    plain, canonical = (smiles_to_data(smiles, vocabulary, canonical=how) for how in (False, True))
    assert torch.equal(plain.x, canonical.x) and torch.equal(plain.edge_index, canonical.edge_index)
    assert torch.equal(plain.edge_attr.sort().values, canonical.edge_attr.sort().values)


def as_networkx(data: Data) -> nx.Graph:
    graph = nx.Graph()
    graph.add_nodes_from((node, {"type": kind}) for node, kind in enumerate(data.x.flatten().tolist()))
    for (a, b), kind in zip(data.edge_index.T.tolist(), data.edge_attr.tolist(), strict=True):
        graph.add_edge(a, b, type=kind)
    return graph


@pytest.mark.parametrize(
    "smiles",
    [
        "c12c3c4c5c1c1c6c7c2c2c8c3c3c9c4c4c%10c5c5c1c1c6c6c%11c7c2c2c7c8c3c3c8c9c4c4c9c%10c5c5c1c1c6c6c%11c2c2c7c3c3"
        "c8c4c4c9c5c1c1c6c2c3c41",
        "c1ccc2c(c1)ccc1c2ccc2c1ccc1c2cccc1",
        ".".join(["c1ccc2ccccc2c1"] * 40),
        "c1cc(ccc1" * 30 + "C" + ")" * 30,
        "c1cc[nH]c1.O=c1cc[nH]cc1.c1cc[n+]([O-])cc1.c1ccoc1.[o+]1ccccc1.c1cc[cH-]c1",
    ],
)
def test_kekule_structure_keeps_valences(smiles: str) -> None:
    molecule = Chem.MolFromSmiles(smiles)
    reference = Chem.Mol(molecule)
    Chem.Kekulize(reference, clearAromaticFlags=True)
    _, bonds = molecule_module.graph(molecule)
    orders = [0.0] * molecule.GetNumAtoms()
    for a, b, kind in bonds:
        orders[a] += kind
        orders[b] += kind
    assert orders == [sum(bond.GetBondTypeAsDouble() for bond in atom.GetBonds()) for atom in reference.GetAtoms()]


@pytest.mark.parametrize(
    ("smiles", "message"),
    [
        ("C1CC", "'C1CC': RDKit cannot read"),
        ("", "no atoms"),
        ("CSi", "cannot read"),
        ("C[Si](C)C", "unknown atom type 'Si'.*C, O, N"),
        ("C[C-]12C3=C4C5=C1[Fe++]23456789[C-]%10C6=C7C8=C9%10", "DATIVE"),
    ],
)
def test_unusable_smiles_say_why(smiles: str, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=message):
        smiles_to_data(smiles, VOCABULARY)
    assert capfd.readouterr().err == ""


def test_target_from_its_terms() -> None:
    smiles = "CC1CCCCCCC1c1ccccc1O"
    terms = molecule_module.solubility_terms(molecule_module.parse(smiles))
    assert terms[0] == Crippen.MolLogP(Chem.MolFromSmiles(smiles))
    assert terms[2] == 2.0
    means, stds = (2.4570953396, 3.0525811293, 0.0485696877), (1.4343244011, 0.8335207025, 0.2860212110)
    logp, sa, cycle = ((t - m) / s for t, m, s in zip(terms, means, stds, strict=True))
    assert constrained_solubility(smiles, "zinc") == pytest.approx(logp - sa - cycle, rel=1e-12)
    assert constrained_solubility(smiles, NORMALIZATIONS["zinc"]) == constrained_solubility(smiles, "zinc")
    assert constrained_solubility(smiles, "qm9") != constrained_solubility(smiles, "zinc")


def test_synthetic_accessibility_is_rdkits_own(monkeypatch: pytest.MonkeyPatch) -> None:
    before = list(sys.path)
    molecule = Chem.MolFromSmiles("CC(=O)Oc1ccccc1C(=O)O")
    ours = molecule_module.solubility_terms(molecule)[1]
    assert sys.path == before
    monkeypatch.syspath_prepend(f"{RDConfig.RDContribDir}/SA_Score")
    import sascorer

    assert ours == sascorer.calculateScore(molecule)


@pytest.mark.parametrize("smiles", ["CCO", "Cc1cc2c3c(c1)CCc1cc(C)cc(c1-3)CC2", "CCO.C1CN2CN1CN3CCN(C2)C3"])
def test_longest_ring_as_published(smiles: str) -> None:
    """From the adjacency matrix; another order of atoms or neighbours finds other rings in the second and third."""
    molecule = Chem.MolFromSmiles(smiles)
    longest = max(map(len, nx.cycle_basis(nx.from_numpy_array(Chem.GetAdjacencyMatrix(molecule)))), default=0)
    assert molecule_module.solubility_terms(molecule)[2] == max(0, longest - 6)


@pytest.mark.parametrize(
    ("smiles", "repaired"),
    [
        ("CC1[N][C]1O", "CC1NC1O"),
        ("N#N.[O][C][C](C=O)C=O", "OCC(C=O)C=O"),
        ("[NH2]C.[CH2]", "CN"),
        ("CC.OO", "OO"),
        ("OO.CC", "OO"),
        ("C[NH+]1CC1[O-]", "C[NH+]1CC1[O-]"),
        ("[13C][CH3]", "CC"),
        ("[CH2:4][O:1]", "CO"),
        ("C[OH].[CH3]", "CO"),
    ],
)
def test_radical_repair(smiles: str, repaired: str) -> None:
    molecule = molecule_module.parse(smiles, repair_radicals=True)
    assert Chem.MolToSmiles(molecule) == Chem.CanonSmiles(repaired)


def test_vocabulary_round_trips_and_orders() -> None:
    vocabulary = AtomVocabulary.from_counts({"N": 2, "C": 9, "O": 2, "S": 0})
    assert vocabulary.types == ("C", "N", "O", "S")
    assert hash(AtomVocabulary(vocabulary.types)) == hash(vocabulary)
    assert ("N" in vocabulary, "Si" in vocabulary, len(vocabulary), list(vocabulary)) == (True, False, 4, [*"CNOS"])


test_vocabulary_errors = refusals(
    AtomVocabulary, ((("C", "C", "N"),), "more than once: 'C'"), (((),), "at least one"), (("CNO",), TypeError, "'CNO'")
)


@pytest.mark.parametrize("smiles", SPELLED)
def test_canonical_features_of_ogb_do_not_depend_on_the_spelling(smiles: str) -> None:
    pytest.importorskip("ogb")
    molecule = Chem.MolFromSmiles(smiles)
    kinds = set()
    mapped = Chem.Mol(molecule)
    for atom in mapped.GetAtoms():
        atom.SetAtomMapNum(mapped.GetNumAtoms() - atom.GetIdx())
    random_order = (s for m in (molecule, mapped) for s in Chem.MolToRandomSmilesVect(m, 30, randomSeed=1))
    for spelling in sorted({smiles, *random_order}):
        read = molecule_module.parse(spelling)
        atoms, bonds = molecule_module.ogb_graph(read, canonical=True)
        symbols = [atom.GetAtomicNum() - 1 for atom in read.GetAtoms()]
        assert atoms[::9] == symbols and len(bonds) == read.GetNumBonds(), "in the order of the string"
        kinds.add(tuple(sorted(tuple(atoms[first : first + 9]) for first in range(0, len(atoms), 9))))
    assert len(kinds) == 1


test_wrong_arguments = refusals(
    lambda call: call(),
    ((lambda: smiles_to_data(3, VOCABULARY),), TypeError, "must be a string, got int"),
    ((lambda: smiles_to_data("C", ["C"]),), TypeError, "AtomVocabulary, got list"),
    ((lambda: next(MoleculeReader(VOCABULARY).read("CCO")),), TypeError, r"write \['CCO'\]"),
    ((lambda: next(MoleculeReader(VOCABULARY).read(["C"], batch_size=0)),), "batch_size must"),
    ((lambda: constrained_solubility("C1CC", "zinc"),), "'C1CC'"),
    ((lambda: constrained_solubility("C", "moses"),), "'zinc', 'qm9'.*'moses'"),
    ((lambda: SolubilityNormalization(0.0, 1.0, 0.0, 0.0, 0.0, 1.0),), "sa_std must"),
)
