"""Store molecules in PyTorch Geometric's in-memory storage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from tg_lpe.app.molecules import _molecule
from tg_lpe.app.molecules._molecule import Molecule
from tg_lpe.app.molecules.report import LoadReport
from tg_lpe.app.molecules.solubility import SolubilityNormalization
from tg_lpe.app.molecules.vocabulary import BOND_TYPES, AtomVocabulary
from tg_lpe.app.ranges import MoleculeRanges
from tg_lpe.data import DataSpec, GraphDataset, GraphSplits
from tg_lpe.data.storage import starts, with_attribute


class MoleculeDataset(GraphDataset):
    r"""Hold one split of molecules. Indexing, slicing and loaders work as for any PyG dataset.

    Each element has `x: int64 [num_nodes, 1]` (atom type), `edge_index: int64 [2, num_edges]` (both directions, sorted
    by row, then column), `edge_attr: int64 [num_edges]` (bond type) and `y: float32 [1]`. With ogb's features, `x` is
    `[num_nodes, 9]` and `edge_attr` `[num_edges, 3]`; with several labels, `y` is `[1, num_columns]`.

    Args:
        data: The concatenated graphs, with nodes numbered per graph.
        slices: Start of each graph: `{key: int64 [num_graphs + 1]}`.
        transform: Applied to every element on access.
    """

    slices: dict[str, Tensor]

    @classmethod
    def from_molecules(
        cls, molecules: Iterable[Molecule | str], labels: Any = None, widths: Sequence[int] = (1, 1)
    ) -> MoleculeDataset:
        """Build the storage from molecules that RDKit has read.

        Args:
            molecules: The molecules, with numbered atoms; reasons for none are skipped.
            labels: A numpy array with a row for each molecule, NaN by default; of one column, `y` is a vector.
            widths: Integers per atom and per bond.
        """
        usable = [molecule for molecule in molecules if not isinstance(molecule, str)]
        labels = np.full((len(usable), 1), np.nan) if labels is None else labels
        num_atoms = torch.tensor([len(molecule.atoms) // widths[0] for molecule in usable], dtype=torch.long)
        num_bonds = torch.tensor([len(molecule.bonds) // (2 + widths[1]) for molecule in usable], dtype=torch.long)
        atoms = [number for molecule in usable for number in molecule.atoms]
        flat = [number for molecule in usable for number in molecule.bonds]
        bonds = torch.tensor(flat, dtype=torch.long).view(-1, 2 + widths[1])
        owner = torch.arange(len(usable)).repeat_interleave(num_bonds).repeat(2)
        edge_index = torch.cat([bonds[:, :2], bonds[:, :2].flip(1)]).T
        longest = int(num_atoms.max()) if usable else 0
        # One integer orders by graph, then row, then column; it overflows only past 2^63 = graphs * longest^2.
        order = ((owner * longest + edge_index[0]) * longest + edge_index[1]).argsort()
        edge_attr = bonds[:, 2:].repeat(2, 1)[order]
        y = torch.tensor(labels, dtype=torch.float32)
        data = Data(
            x=torch.tensor(atoms, dtype=torch.long).view(-1, widths[0]),
            edge_index=edge_index[:, order],
            edge_attr=edge_attr.squeeze(1) if widths[1] == 1 else edge_attr,
            y=y.squeeze(1) if y.size(1) == 1 else y,
        )
        edges = starts(2 * num_bonds)
        slices = {"x": starts(num_atoms), "edge_index": edges, "edge_attr": edges.clone()}
        each = torch.arange(len(usable) + 1)
        if usable and usable[0].descriptors:
            data.graph_attr = torch.tensor([molecule.descriptors for molecule in usable])
            slices["graph_attr"] = each.clone()
        return cls(data, {**slices, "y": each})

    def with_columns(self, columns: Tensor) -> MoleculeDataset:
        """Append columns to the descriptors in `graph_attr`."""
        described = [self.graph_attr] if "graph_attr" in self.slices else []
        return with_attribute(self, "graph_attr", "graph", torch.cat([*described, columns], 1))


@dataclass(frozen=True, kw_only=True)
class MoleculeSplits(GraphSplits):
    """Hold three splits of molecules that share their atom and bond types.

    In addition to the attributes of :class:`~tg_lpe.data.GraphSplits`:

    Args:
        vocabulary: Atom types by their index in `x`; `None` for ogb's features.
        normalization: Constants of the computed target; `None` if labels come with the data.
        report: Counts of the source's molecules, and the molecules left out.
        repair_radicals: Whether SMILES were read with QM9's clean-up.
        canonical: Whether rings were kekulised as in canonical SMILES; `None` for a published set, read as published.
        weight_column: The column of `graph_weight`, if any.
        extra_columns: The last columns of `graph_attr`.
        descriptors: Names of RDKit's descriptors, its first columns.
    """

    train: MoleculeDataset
    val: MoleculeDataset
    test: MoleculeDataset
    vocabulary: AtomVocabulary | None
    normalization: SolubilityNormalization | None
    report: LoadReport
    repair_radicals: bool = False
    canonical: bool | None = None
    weight_column: str | None = None
    extra_columns: tuple[str, ...] = ()
    descriptors: tuple[str, ...] = ()

    def describe(self) -> dict[str, Any]:
        """Return :meth:`GraphSplits.describe` with types, ranges, constants and the molecules left out."""
        return {
            **super().describe(),
            **({"repair_radicals": True} if self.repair_radicals else {}),
            **({} if self.canonical is None else {"canonical": self.canonical}),
            **({} if self.weight_column is None else {"weight_column": self.weight_column}),
            **({"extra_columns": list(self.extra_columns)} if self.extra_columns else {}),
            **({"descriptors": list(self.descriptors)} if self.descriptors else {}),
            "atom_types": None if self.vocabulary is None else list(self.vocabulary.types),
            "bond_types": [] if self.vocabulary is None else list(BOND_TYPES),
            "ranges": self.ranges().to_dict(),
            "normalization": None if self.normalization is None else asdict(self.normalization),
            "skipped": [str(molecule) for molecule in self.report.skipped],
            "missing_labels": dict(self.report.missing_labels),
        }

    def ranges(self) -> MoleculeRanges:
        """Measure sizes, atom types and labels of the training set."""
        elements = range(1, int(self.train.x[:, 0].max()) + 2)
        names = self.vocabulary.types if self.vocabulary is not None else [_molecule.symbol(n) for n in elements]
        return MoleculeRanges.of(self.train, names, self.labels("train"), self.target.columns, self.extra_columns)


def spec_of(
    datasets: Iterable[MoleculeDataset], node_types: int | tuple[int, ...], edge_types: int | tuple[int, ...]
) -> DataSpec:
    """Describe the sizes of molecules with known numbers of categories."""
    largest = max(int(dataset.slices["x"].diff().max()) for dataset in datasets)
    return DataSpec(num_node_types=node_types, num_edge_types=edge_types, max_nodes=largest)
