"""PyG's own ZINC and QM9 classes, run on small raw files in their raw formats."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from helpers import refusals
from rdkit import Chem
from rdkit.Chem import AllChem
from torch_geometric.data import Data
from torch_geometric.datasets import QM9, ZINC
from torch_geometric.loader import DataLoader

from tg_lpe.app.molecules import QM9_UNITS, ZINC_VOCABULARY, AtomVocabulary, from_pyg, smiles_to_data
from tg_lpe.data import TargetSpec

ZINC_SMILES = {"train": ["CCO", "C#N", "c1ccccc1Cl", "C[C@H](O)F"], "val": ["CC[O-]"], "test": ["CCBr", "C"]}
QM9_COLUMNS = [
    *["A", "B", "C", "mu", "alpha", "homo", "lumo", "gap", "r2", "zpve", "u0", "u298", "h298", "g298", "cv"],
    *["u0_atom", "u298_atom", "h298_atom", "g298_atom"],
]
"""Names in the raw table, from which PyG takes columns by number."""
QM9_SMILES = ["C", "CC#N", "C=O", "CO", "c1cc[nH]c1", "CCF", "CC"]


@pytest.fixture
def zinc_root(tmp_path: Path) -> Path:
    """The raw form of ZINC: a pickled list of dictionaries with dense bond matrices, and an index per split."""
    raw = tmp_path / "zinc" / "raw"
    raw.mkdir(parents=True)
    for split, smiles in ZINC_SMILES.items():
        molecules = []
        for number, text in enumerate(smiles):
            data = smiles_to_data(text, ZINC_VOCABULARY)
            bonds = torch.zeros(data.num_nodes, data.num_nodes, dtype=torch.int8)
            bonds[data.edge_index[0], data.edge_index[1]] = data.edge_attr.to(torch.int8)
            label = torch.tensor([number + 0.5])
            molecules.append(
                {
                    "num_atom": data.num_nodes,
                    "atom_type": data.x.view(-1).to(torch.int8),
                    "bond_type": bonds,
                    "logP_SA_cycle_normalized": label,
                }
            )
        with (raw / f"{split}.pickle").open("wb") as file:
            pickle.dump(molecules, file)
        (raw / f"{split}.index").write_text(",".join(str(number) for number in range(len(smiles))) + "\n")
    return raw.parent


@pytest.fixture
def qm9(tmp_path: Path) -> QM9:
    """The raw form of QM9: structures with hydrogens, a property table, and a list of molecules to leave out."""
    raw = tmp_path / "qm9" / "raw"
    raw.mkdir(parents=True)
    writer = Chem.SDWriter(str(raw / "gdb9.sdf"))
    for number, smiles in enumerate(QM9_SMILES):
        molecule = Chem.AddHs(Chem.MolFromSmiles(smiles))
        AllChem.EmbedMolecule(molecule, randomSeed=0)
        molecule.SetProp("_Name", f"gdb_{number + 1}")
        writer.write(molecule)
    writer.close()
    header = "mol_id," + ",".join(QM9_COLUMNS)
    rows = [f"gdb_{n + 1}," + ",".join(str(100 * n + column) for column in range(19)) for n in range(len(QM9_SMILES))]
    (raw / "gdb9.sdf.csv").write_text("\n".join([header, *rows]) + "\n")
    # Nine lines of heading and two at the end stand around the numbers; the last molecule is left out.
    (raw / "uncharacterized.txt").write_text("heading\n" * 9 + f"{len(QM9_SMILES)} gdb_7\n" + "end\n")
    return QM9(str(raw.parent))


@pytest.mark.parametrize("subset", [True, False])
def test_zinc(zinc_root: Path, subset: bool) -> None:
    parts = [ZINC(str(zinc_root), subset=subset, split=split) for split in ("train", "val", "test")]
    splits = from_pyg(*parts)
    assert splits.vocabulary == ZINC_VOCABULARY
    assert splits.bond_types == ("NONE", "SINGLE", "DOUBLE", "TRIPLE")
    assert splits.normalization is None
    for split, smiles in ZINC_SMILES.items():
        dataset = getattr(splits, split)
        assert len(dataset) == len(smiles)
        for data, text in zip(dataset, smiles, strict=True):
            expected = smiles_to_data(text, ZINC_VOCABULARY)
            assert all(torch.equal(data[key], expected[key]) for key in ("x", "edge_index", "edge_attr"))
    assert splits.train.y.tolist() == [0.5, 1.5, 2.5, 3.5]
    assert splits.report.num_kept == 7
    [batch] = DataLoader(splits.train, batch_size=4)
    assert batch.x.shape == (16, 1)


def test_qm9(qm9: QM9) -> None:
    assert len(qm9) == 6
    splits = from_pyg(qm9[:4], qm9[4:5], qm9[5:], target=3)
    assert splits.vocabulary.types == ("H", "C", "N", "O", "F")
    assert splits.bond_types[1:] == ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [4, 1, 1]
    for data, original in zip(splits.train, qm9[:4], strict=True):
        assert set(data.keys()) == {"x", "edge_index", "edge_attr", "y"}
        assert [int(z) for z in original.z] == [[1, 6, 7, 8, 9][code] for code in data.x.view(-1).tolist()]
        assert torch.equal(data.edge_index, original.edge_index)
        assert torch.equal(data.edge_attr, original.edge_attr.argmax(1) + 1)
        assert data.y.item() == original.y[0, 3].item()
    nitrile = splits.train[1]
    assert 3 in nitrile.edge_attr.tolist()
    assert splits.train[2].edge_attr.tolist().count(2) == 2


def test_properties_of_qm9_by_name(qm9: QM9) -> None:
    """The published value of the raw table comes back, whatever PyG's order and units."""
    for name, unit in QM9_UNITS.items():
        for target in (name, [name]):
            splits = from_pyg(qm9[:4], qm9[4:5], qm9[5:], target=target)
            raw = [100 * molecule + QM9_COLUMNS.index(name) for molecule in range(6)]
            labels = torch.cat([splits.labels(part) for part in ("train", "val", "test")])
            assert labels.flatten().tolist() == pytest.approx(raw, rel=1e-6)
            assert splits.target == TargetSpec((name,), units=(unit,)) and splits.train[0].y.shape == (1,)
    splits = from_pyg(qm9[:4], qm9[4:5], qm9[5:], target=["gap", "mu"])
    assert splits.train[1].y.tolist() == [pytest.approx([107.0, 103.0])]
    assert splits.target.units == ("Hartree", "Debye")


def test_qm9_needs_a_target_that_it_has(qm9: QM9) -> None:
    for target, said in (
        (["gap", "u0_atom"], r"target=\['gap', 'u0_atom'\].*mu, alpha.*not u0_atom"),
        ([], r"target=0\.\.18"),
        (None, "target="),
        (19, "target must"),
        (-1, "got -1"),
    ):
        with pytest.raises(ValueError, match=said):
            from_pyg(qm9[:4], qm9[4:5], qm9[5:], target=target)


def graph(**changes: object) -> Data:
    parts = {
        "x": torch.tensor([[0], [2]]),
        "edge_index": torch.tensor([[1, 0], [0, 1]]),
        "edge_attr": torch.tensor([1, 1]),
        "y": torch.tensor([0.5]),
    }
    return Data(**{**parts, **changes})


test_unfit_graphs = refusals(
    lambda val=None, target=None, **changes: from_pyg(
        [graph(**changes)], [graph()] if val is None else val, [graph()], target=target
    ),
    ({"edge_attr": None}, TypeError, "edge_attr is missing"),
    ({"x": torch.ones(2, 3)}, r"train\[0\] has x torch.float32 \[2, 3\].*ZINC"),
    ({"x": torch.ones(2, 5), "edge_attr": torch.eye(4)[:2]}, "not one-hot"),
    ({"val": []}, "val split has no graphs"),
    ({"val": [graph(x=torch.eye(5)[:2], edge_attr=torch.eye(4)[:2])]}, r"val\[0\] has features of another form"),
    ({"target": "gap"}, r"train\[0\]\.y has 1 columns; .*gap"),
)


def test_plain_graphs_are_sorted_and_get_numbered_types() -> None:
    splits = from_pyg([graph()], [graph()], [graph()])
    assert splits.train[0].edge_index.tolist() == [[0, 1], [1, 0]]
    assert splits.vocabulary == AtomVocabulary(("type 0", "type 1", "type 2"))
