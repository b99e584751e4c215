"""Convert a SMILES string to atoms, bonds and terms of the penalised logP."""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import networkx

try:
    from rdkit import Chem, RDConfig, rdBase
    from rdkit.Chem import Descriptors, rdFingerprintGenerator, rdMolDescriptors
    from rdkit.Chem.Scaffolds import MurckoScaffold
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("reading molecules needs RDKit: pip install 'tg-lpe[molecules]'", name="rdkit") from error

# Largest number of hydrogens of an atom that QM9's SMILES wrongly write as a radical.
_RADICAL_HYDROGENS = {"C": 2, "N": 2, "O": 0}

# Matches isotopes, written hydrogens and atom maps.
_ANNOTATED = re.compile(r"\[\d|\[H|:\d+\]")

# Usual valences of the elements that SMILES write without brackets at these valences.
_ORGANIC = {number: Chem.GetPeriodicTable().GetDefaultValence(number) for number in (5, 6, 7, 8, 9, 15, 16, 17, 35, 53)}

# Ring systems of drugs need a few dozen steps. After this many, the search stops, and RDKit's choice is used.
_MAX_STEPS = 20_000

# RDKit takes twelve seconds for a string of 36,000 characters; one of 200,000 exhausts its stack.
_MAX_CHARACTERS = 10_000

_BOND_CODES = {Chem.BondType.SINGLE: 1, Chem.BondType.DOUBLE: 2, Chem.BondType.TRIPLE: 3}

_scaffold_smiles: Any = MurckoScaffold.MurckoScaffoldSmiles  # has no type hints


class UnusableMoleculeError(ValueError):
    """Raised for a SMILES string that cannot become a graph; the message says why."""


class Molecule(NamedTuple):
    """Hold a molecule that RDKit has read."""

    atoms: list[Any]
    """The type of each atom, by name or numbered; or ogb's features of one atom after the other."""
    bonds: list[int]
    """Atom, atom and type (or features) of each bond, one after the other."""
    terms: tuple[float, float, float] | None = None
    """The terms of its penalised logP, if requested."""
    kinship: Any = None
    """Its scaffold or fingerprint, if requested."""
    name: str | None = None
    """Its canonical SMILES, if requested."""
    descriptors: Sequence[float] = ()
    """The values of RDKit's descriptors that were requested."""


def parse(smiles: str, repair_radicals: bool = False, ogb: bool = False) -> Any:
    """Read a SMILES string.

    Args:
        smiles: The string. Surrounding blanks and a name after it are ignored; atom maps are removed.
        repair_radicals: Give radical atoms of QM9 their usual hydrogens, and keep the largest fragment.
        ogb: Keep isotopes, and the hydrogens that ogb's `smiles2graph` keeps as atoms.

    Returns:
        The sanitised RDKit molecule, with implicit hydrogens.

    Raises:
        UnusableMoleculeError: If RDKit refuses the string, it has no atom, or more than 10,000 characters.
    """
    if len(smiles) > _MAX_CHARACTERS:
        raise UnusableMoleculeError(f"it has {len(smiles):,} characters, more than {_MAX_CHARACTERS:,}")
    words = smiles.split(maxsplit=1)
    # A name after the string is no part of the molecule, but ChemAxon's extension between bars is.
    text = smiles.strip() if len(words) > 1 and words[1].startswith("|") else "".join(words[:1])
    if not (text.isascii() and text.isprintable()):
        # RDKit stops reading at a character outside ASCII and returns the molecule before it.
        raise UnusableMoleculeError("it holds characters that SMILES do not have")
    with rdBase.BlockLogs():
        molecule = _read(text, ogb)
        if molecule is None:
            hint = "; rdkit.Chem.MolFromInchi(text) makes a molecule of it" if text.startswith("InChI=") else ""
            if text.replace("->", "").count(">") == 2:
                hint = ": it is a reaction, and a row must be one molecule, such as its product"
            raise UnusableMoleculeError(f"RDKit cannot read it as SMILES{hint}")
        if molecule.GetNumAtoms() == 0:
            raise UnusableMoleculeError("it has no atoms")
        if repair_radicals:
            molecule = _without_radicals(molecule)
            if "." in text:
                # Of equally large fragments, keep the last in alphabetical order, as in the published QM9 set.
                fragments = Chem.GetMolFrags(molecule, asMols=True)
                molecule = max(fragments, key=lambda part: (part.GetNumAtoms(), Chem.MolToSmiles(part)))
    return molecule


def _read(text: str, ogb: bool) -> Any:
    if not _ANNOTATED.search(text):
        return Chem.MolFromSmiles(text)
    # Unsanitised: otherwise RDKit would use maps and isotopes to find stereo centres.
    options: Any = Chem.SmilesParserParams()
    options.sanitize = options.removeHs = False
    molecule = Chem.MolFromSmiles(text, options)
    return None if molecule is None else plain(molecule, ogb)


def plain(molecule: Any, ogb: bool = False) -> Any:
    """Remove atom maps and isotopes of a molecule, in place, and make its hydrogens implicit.

    Args:
        molecule: An RDKit molecule, sanitised or not.
        ogb: As for :func:`parse`.

    Returns:
        The sanitised molecule; `None` if RDKit cannot sanitise it.
    """
    for atom in molecule.GetAtoms():
        atom.SetAtomMapNum(0)
        if not ogb:
            atom.SetIsotope(0)
    removal: Any = Chem.RemoveHsParameters()
    removal.removeDefiningBondStereo = not ogb
    try:
        molecule = Chem.RemoveHs(molecule, removal)
    except Chem.MolSanitizeException:
        return None
    Chem.AssignStereochemistry(molecule, cleanIt=True, force=True)
    return molecule


def _without_radicals(molecule: Any) -> Any:
    """Give radical atoms of QM9 their usual hydrogens, in place."""
    radicals = [
        atom
        for atom in molecule.GetAtoms()
        if atom.GetNumRadicalElectrons()
        and not atom.GetFormalCharge()
        and atom.GetTotalNumHs() <= _RADICAL_HYDROGENS.get(atom.GetSymbol(), -1)
    ]
    for atom in radicals:
        atom.SetNumRadicalElectrons(0)
        atom.SetNoImplicit(False)
        atom.SetNumExplicitHs(0)
    if radicals:
        Chem.SanitizeMol(molecule)
        Chem.AssignStereochemistry(molecule, cleanIt=True, force=True)
    return molecule


def _canonical(molecule: Any, name: str | None) -> tuple[Any, list[int]]:
    """Read a molecule from its canonical SMILES; return it, and the index in `molecule` of each of its atoms.

    `name` is the canonical SMILES, if :func:`smiles_of` has just computed it: RDKit stores the order of its atoms.
    """
    canonical = Chem.MolFromSmiles(smiles_of(molecule) if name is None else name)
    order = [int(number) for number in re.findall(r"\d+", molecule.GetProp("_smilesAtomOutputOrder"))]
    if canonical is None or canonical.GetNumAtoms() != len(order):
        raise UnusableMoleculeError("RDKit cannot read its canonical SMILES")
    return canonical, order


def graph(
    molecule: Any, canonical: bool = False, name: str | None = None
) -> tuple[list[str], list[tuple[int, int, int]]]:
    """Kekulise a molecule, which is not changed; return the types of its atoms, and both atoms and code of each bond.

    Args:
        molecule: A sanitised RDKit molecule.
        canonical: Whether to kekulise aromatic rings as in the canonical SMILES, for any order of the atoms.
        name: The result of :func:`smiles_of` for the molecule, if it was just called.

    Raises:
        UnusableMoleculeError: If a bond is not single, double or triple after kekulisation.
    """
    # By index, since RDKit's iterators over atoms and bonds are slow.
    numbers = range(molecule.GetNumBonds())
    aromatic = [number for number in numbers if molecule.GetBondWithIdx(number).GetIsAromatic()]
    if canonical and aromatic:
        canonical_molecule, order = _canonical(molecule, name)
        types, bonds = graph(canonical_molecule)
        return _in_order(types, order), [(order[a], order[b], code) for a, b, code in bonds]
    kekulised = Chem.Mol(molecule)
    try:
        Chem.Kekulize(kekulised, clearAromaticFlags=True)
    except Chem.KekulizeException as error:
        raise UnusableMoleculeError("RDKit cannot kekulise it") from error
    bonds = []
    for bond in map(kekulised.GetBondWithIdx, numbers):
        code = _BOND_CODES.get(bond.GetBondType())
        if code is None:
            raise UnusableMoleculeError(f"a {bond.GetBondType().name} bond is neither single, double nor triple")
        bonds.append((bond.GetBeginAtomIdx(), bond.GetEndAtomIdx(), code))
    if aromatic:
        _redistribute_double_bonds(bonds, aromatic)
    atoms = map(kekulised.GetAtomWithIdx, range(molecule.GetNumAtoms()))
    return [_atom_type(atom) for atom in atoms], bonds


def _in_order(rows: Sequence[Any], order: Sequence[int]) -> list[Any]:
    """Move each row to its place in ``order``."""
    place = dict(zip(order, rows, strict=True))
    return [place[number] for number in range(len(order))]


def _redistribute_double_bonds(bonds: list[tuple[int, int, int]], aromatic: Sequence[int]) -> None:
    """Place the double bonds of aromatic rings as in the published ZINC graphs.

    RDKit's choice between the Kekule structures of a ring depends on its release. The published choice is the first in
    order: each atom in turn, if it still lacks a double bond, gets one to its first neighbour that can take it, with
    neighbours in the order of the bonds. Which atoms have a double bond follows from valence and is the same.
    """
    needing = {atom for at in aromatic if bonds[at][2] == 2 for atom in bonds[at][:2]}
    partners: dict[int, list[int]] = {atom: [] for atom in sorted(needing)}
    for at in aromatic:
        first, second, _ = bonds[at]
        if first in needing and second in needing:
            partners[first].append(second)
            partners[second].append(first)
    mates: dict[int, int] = {}
    seen: set[int] = set()
    for start in partners:
        if start not in seen:
            # One ring system at a time, so that a dead end in one does not undo choices in another.
            system, stack = {start}, [start]
            while stack:
                fresh = set(partners[stack.pop()]) - system
                system |= fresh
                stack.extend(fresh)
            seen |= system
            matched = _first_pairing(sorted(system), partners)
            if matched is None:
                return
            mates.update(matched)
    for at in aromatic:
        first, second, _ = bonds[at]
        bonds[at] = (first, second, 2 if mates.get(first) == second else 1)


def _first_pairing(atoms: Sequence[int], partners: Mapping[int, Sequence[int]]) -> dict[int, int] | None:
    """Find the first perfect matching in lexicographic order by backtracking; `None` if it takes too long."""
    mates: dict[int, int] = {}
    stack = [(atoms[0], iter(partners[atoms[0]]))]
    for _ in range(_MAX_STEPS):
        atom, options = stack[-1]
        if atom in mates:
            del mates[mates.pop(atom)]
        partner = next((option for option in options if option not in mates), None)
        if partner is None:
            stack.pop()
            if not stack:
                return None
            continue
        mates[atom], mates[partner] = partner, atom
        following = next((candidate for candidate in atoms if candidate not in mates), None)
        if following is None:
            return mates
        stack.append((following, iter(partners[following])))
    return None


def _atom_type(atom: Any) -> str:
    """Return the element, hydrogens and charge of an atom of a kekulised molecule.

    Hydrogens are part of the type if the canonical SMILES needs brackets: for charged, stereo and radical atoms, atoms
    of unusual valence, and metals. This reproduces the published ZINC and QM9 graphs; brackets in the string have no
    effect.
    """
    name: str = atom.GetSymbol()
    hydrogens, charge = atom.GetTotalNumHs(), atom.GetFormalCharge()
    if hydrogens and (
        charge
        or atom.GetNumRadicalElectrons()
        or atom.GetChiralTag() != Chem.ChiralType.CHI_UNSPECIFIED
        or atom.GetTotalValence() != _ORGANIC.get(atom.GetAtomicNum())
    ):
        name += f" H{hydrogens}"
    if charge:
        sign = "+" if charge > 0 else "-"
        name += f" {sign}" if abs(charge) == 1 else f" {sign}{abs(charge)}"
    return sys.intern(name)


def solubility_terms(molecule: Any) -> tuple[float, float, float]:
    """Compute Crippen logP, synthetic accessibility, and the number of atoms of the longest ring beyond six.

    The ring is that of a cycle basis. Fused rings have several, whose longest rings differ; this one is that of the
    published ZINC labels.

    Args:
        molecule: A sanitised RDKit molecule with its aromatic flags, which both scores read.
    """
    bonds = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in molecule.GetBonds()]
    atoms = networkx.Graph()
    atoms.add_nodes_from(range(molecule.GetNumAtoms()))
    atoms.add_edges_from(sorted(map(sorted, bonds)))  # neighbours in ascending order, as in an adjacency matrix
    longest = max(map(len, networkx.cycle_basis(atoms)), default=0)
    with rdBase.BlockLogs():
        logp = float(rdMolDescriptors.CalcCrippenDescriptors(molecule)[0])
        # RDKit's Contrib folder is no package.
        scorer = _module_at(
            os.path.join(RDConfig.RDContribDir, "SA_Score", "sascorer.py"),
            "the synthetic accessibility score needs RDKit's Contrib folder, which the wheels on PyPI contain",
        )
        accessibility = float(scorer.calculateScore(molecule))
    return logp, accessibility, float(max(0, longest - 6))


@functools.cache
def _module_at(path: str, missing: str) -> ModuleType:
    """Load a file as a module by its path, without its package; ``missing`` begins the error if there is no file."""
    spec = importlib.util.spec_from_file_location(f"tg_lpe_{os.path.basename(path)[:-3]}", path)
    if not os.path.isfile(path) or spec is None or spec.loader is None:
        raise ImportError(f"{missing}, and {path} is not there")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def _ogb_features() -> ModuleType:
    # `import ogb` asks the network for a newer release; this file of ogb imports nothing else.
    package = importlib.util.find_spec("ogb")
    folders = package.submodule_search_locations if package is not None else None
    if not folders:
        raise ModuleNotFoundError("the features of ogb need ogb: pip install 'tg-lpe[molecules]'", name="ogb")
    return _module_at(os.path.join(folders[0], "utils/features.py"), "the features of ogb need its file of features")


def symbol(number: int) -> str:
    """Return the symbol of an element by its atomic number; number 119 stands for unknown elements in ogb."""
    return Chem.GetPeriodicTable().GetElementSymbol(number) if number < 119 else "other"


def ogb_feature_sizes() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the number of categories of each of ogb's atom features and bond features.

    Raises:
        ModuleNotFoundError: If ogb is not installed.
    """
    features = _ogb_features()
    return tuple(features.get_atom_feature_dims()), tuple(features.get_bond_feature_dims())


def ogb_graph(
    molecule: Any, canonical: bool = False, name: str | None = None
) -> tuple[list[int], list[tuple[int, ...]]]:
    """Return the categories of ogb's `smiles2graph`: those of all atoms, and both atoms and categories of each bond.

    Args:
        molecule: A sanitised RDKit molecule, not kekulised.
        canonical: Whether to read categories from the canonical SMILES, since the tags of stereo centres depend on the
            order of atoms.
        name: As for :func:`graph`.
    """
    features = _ogb_features()
    drawn, order = _canonical(molecule, name) if canonical else (molecule, list(range(molecule.GetNumAtoms())))
    atoms = _in_order([features.atom_to_feature_vector(atom) for atom in drawn.GetAtoms()], order)
    ends = ((bond, order[bond.GetBeginAtomIdx()], order[bond.GetEndAtomIdx()]) for bond in drawn.GetBonds())
    bonds = [(first, second, *features.bond_to_feature_vector(bond)) for bond, first, second in ends]
    return [code for atom in atoms for code in atom], bonds


def smiles_of(molecule: Any) -> str:
    """Return RDKit's canonical SMILES of a molecule."""
    with rdBase.BlockLogs():
        text: str = Chem.MolToSmiles(molecule)
        return text


_MORGAN = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=1024)
_KINSHIPS: Mapping[str | None, Any] = {
    None: lambda molecule: None,
    # The Bemis-Murcko scaffold, empty for a molecule without rings.
    "scaffold": lambda molecule: _scaffold_smiles(mol=molecule, includeChirality=False),
    "butina": _MORGAN.GetFingerprint,
}


# The two that are left out take 97 % of the time on large molecules.
DESCRIPTORS = {name: compute for name, compute in Descriptors.descList if name not in ("Ipc", "AvgIpc")}
"""RDKit's descriptors of whole molecules, by name."""


def _described(molecule: Any, name: str) -> float:
    """Return arsinh of a descriptor, on whose scale large values are no outliers; 0 where it has none."""
    try:
        value = math.asinh(DESCRIPTORS[name](molecule))
    except (ArithmeticError, RuntimeError, ValueError):
        return 0.0
    return value if math.isfinite(value) else 0.0


def process(
    smiles: Sequence[str | None],
    repair_radicals: bool = False,
    with_terms: bool = False,
    kinship: str | None = None,
    features: str = "types",
    canonical: bool = False,
    with_names: bool = False,
    descriptors: Sequence[str] = (),
) -> list[Molecule | str]:
    """Convert SMILES strings to molecules, whose atom types are names, or to the reasons why they are unusable.

    Args:
        smiles: The strings; `None` is unusable.
        repair_radicals: As for :func:`parse`.
        with_terms: Whether to compute the terms of the penalised logP.
        kinship: `"scaffold"` computes the scaffold, `"butina"` the fingerprint, to find related molecules.
        features: `"types"`, one type per atom and bond, or `"ogb"`, the categories of :func:`ogb_graph`.
        canonical: As for :func:`graph` and :func:`ogb_graph`.
        with_names: Whether to compute the canonical SMILES, to find equal molecules.
        descriptors: Names of RDKit's descriptors to compute.
    """

    def read(text: str | None) -> Molecule:
        if text is None:
            raise UnusableMoleculeError("there is no SMILES")
        molecule = parse(text, repair_radicals, ogb=features == "ogb")
        name = smiles_of(molecule) if with_names else None
        atoms, bonds = (ogb_graph if features == "ogb" else graph)(molecule, canonical, name)
        terms = solubility_terms(molecule) if with_terms else None
        if terms is not None and not all(map(math.isfinite, terms)):
            raise UnusableMoleculeError("its penalised logP is not finite")
        numbers = [number for bond in bonds for number in bond]
        values = [_described(molecule, wanted) for wanted in descriptors]
        return Molecule(atoms, numbers, terms, _KINSHIPS[kinship](molecule), name, values)

    molecules: list[Molecule | str] = []
    for text in smiles:
        try:
            with rdBase.BlockLogs():
                molecules.append(read(text))
        except ImportError:
            raise
        except UnusableMoleculeError as error:
            molecules.append(str(error))
        except Exception as error:  # RDKit raises many types; one odd molecule must not end the run
            molecules.append(f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}")
    return molecules
