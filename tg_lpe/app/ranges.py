"""Measure sizes, atom types and labels of a training set of molecules, and find molecules outside of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from tg_lpe.data.storage import GraphChunk, iterate_chunks

CHUNK_SIZE = 4096
COUNTED = ("atoms", "bonds", "rings")


@dataclass(frozen=True)
class MoleculeRanges:
    """Hold the ranges of the molecules and labels of a training set.

    Attributes:
        atoms, bonds, rings: smallest and largest number in a molecule; rings are those of a cycle basis.
        atom_types: for each type of atom, the total number, and the largest number in a molecule.
        labels: smallest and largest label of each column that has labels.
        extra: smallest and largest value of each of the last columns of ``graph_attr``, by name.
    """

    atoms: tuple[int, int]
    bonds: tuple[int, int]
    rings: tuple[int, int]
    atom_types: Mapping[str, tuple[int, int]]
    labels: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    extra: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        dataset: Any,
        types: Sequence[str],
        labels: Tensor,
        columns: Sequence[str],
        extra_columns: Sequence[str] = (),
    ) -> MoleculeRanges:
        """Measure the molecules of a training set.

        Args:
            dataset: the molecules; the first column of ``x`` is the type of an atom.
            types: names of the atom types by number.
            labels: ``[num_molecules, num_columns]``, NaN if missing.
            columns: names of the columns of ``labels``.
            extra_columns: names of the last columns of ``graph_attr``.
        """
        counts, kinds = [], []
        for chunk in iterate_chunks(dataset, CHUNK_SIZE, ("x",)):
            counts.append(_counts(chunk))
            kinds.append(_type_counts(chunk, len(types)))
        sizes, atoms = torch.cat(counts), torch.cat(kinds)[:, : len(types)]
        bounds = torch.stack([sizes.amin(0), sizes.amax(0)], 1).tolist()
        totals = zip(types, atoms.sum(0).tolist(), atoms.amax(0).tolist(), strict=True)
        labelled = [(name, column[~column.isnan()]) for name, column in zip(columns, labels.T, strict=True)]
        last = dataset._data.graph_attr.T[-len(extra_columns) :] if extra_columns else ()
        return cls(
            **dict(zip(COUNTED, map(tuple, bounds), strict=True)),
            atom_types={name: (total, most) for name, total, most in totals},
            labels={name: (float(known.min()), float(known.max())) for name, known in labelled if known.numel()},
            extra={
                name: (float(column.min()), float(column.max()))
                for name, column in zip(extra_columns, last, strict=True)
            },
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MoleculeRanges:
        """Make the ranges from the dictionary of :meth:`to_dict`, also after it was written as JSON.

        Raises:
            ValueError: if a range of sizes is missing.
        """
        if lacking := [name for name in COUNTED if values.get(name) is None]:
            raise ValueError(f"ranges must have {', '.join(COUNTED)}, got none of {', '.join(lacking)}")
        sizes: dict[str, Any] = {name: tuple(values[name]) for name in COUNTED}
        for name in ("atom_types", "labels", "extra"):
            sizes[name] = {key: tuple(pair) for key, pair in (values.get(name) or {}).items() if pair is not None}
        return cls(**sizes)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able dictionary."""
        return {name: value for name, value in asdict(self).items() if name != "extra" or value}

    def __str__(self) -> str:
        sizes = ", ".join("{} to {} {}".format(*vars(self)[name], name) for name in COUNTED)
        bounds = (*self.labels.items(), *self.extra.items())
        return sizes + "".join(f"; {name} {low:.4g} to {high:.4g}" for name, (low, high) in bounds)

    def outside(self, chunk: GraphChunk) -> list[list[str]]:
        """List for each molecule of a batch the properties outside of the training set; empty if there are none."""
        reasons: list[list[str]] = [[] for _ in range(chunk.num_graphs)]
        sizes = _counts(chunk)
        for number, name in enumerate(COUNTED):
            low, high = vars(self)[name]
            column = sizes[:, number]
            for graph in ((column < low) | (column > high)).nonzero().flatten().tolist():
                noun = name.removesuffix("s") if column[graph] == 1 else name
                reasons[graph].append(f"{int(column[graph])} {noun}, {low} to {high} in training")
        names = list(self.atom_types)
        kinds = _type_counts(chunk, len(names))
        most = torch.tensor([most for _, most in self.atom_types.values()] + [0])
        for graph, kind in (kinds > most).nonzero().tolist():
            number = int(kinds[graph, kind])
            atoms = f"{number} atom{'s' if number > 1 else ''} of "
            if kind == len(names):
                reasons[graph].append(atoms + "a type that training does not have")
            else:
                seen = f"at most {int(most[kind])} in training" if most[kind] else "none in training"
                reasons[graph].append(f"{atoms}type {names[kind]!r}, {seen}")
        if self.extra and "graph_attr" in chunk.attributes:
            extra = _outside_of(self.extra, chunk.attributes["graph_attr"][:, -len(self.extra) :], tuple(self.extra))
            reasons = [first + second for first, second in zip(reasons, extra, strict=True)]
        return reasons

    def outside_labels(self, values: Tensor, columns: Sequence[str]) -> list[list[str]]:
        """List for each molecule the predictions, ``[num_molecules, num_columns]``, outside of the training labels."""
        return _outside_of(self.labels, values, columns)


def _outside_of(bounds: Mapping[str, tuple[float, float]], values: Tensor, columns: Sequence[str]) -> list[list[str]]:
    """List for each row of ``[num_rows, num_columns]`` the values outside of the bounds of their columns."""
    reasons: list[list[str]] = [[] for _ in range(len(values))]
    for number, name in enumerate(columns):
        if name in bounds:
            low, high = bounds[name]
            column = values[:, number]
            for row in ((column < low) | (column > high)).nonzero().flatten().tolist():
                reasons[row].append(f"{name} {float(column[row]):.4g}, {low:.4g} to {high:.4g} in training")
    return reasons


def _counts(chunk: GraphChunk) -> Tensor:
    """Count atoms, bonds and rings of each molecule, int64 ``[num_graphs, 3]``."""
    atoms = torch.bincount(chunk.batch, minlength=chunk.num_graphs).cpu()
    bonds = (chunk.edge_ptr.diff() // 2).cpu()
    row, col = chunk.edge_index.cpu().numpy()
    joined = coo_matrix((np.ones(len(row)), (row, col)), (chunk.num_nodes, chunk.num_nodes))
    first = np.unique(connected_components(joined, directed=False)[1], return_index=True)[1]
    components = torch.bincount(chunk.batch.cpu()[torch.from_numpy(first)], minlength=chunk.num_graphs)
    return torch.stack([atoms, bonds, bonds - atoms + components], 1)


def _type_counts(chunk: GraphChunk, num_types: int) -> Tensor:
    """Count atoms by type in each molecule, int64 ``[num_graphs, num_types + 1]``; the last column is unknown types."""
    x = chunk.attributes.get("x")
    if x is None or x.is_floating_point():
        return torch.zeros(chunk.num_graphs, num_types + 1, dtype=torch.int64)
    kind = (x[:, 0] if x.dim() > 1 else x).cpu().clamp(max=num_types)
    width = num_types + 1
    counts = torch.bincount(chunk.batch.cpu() * width + kind, minlength=chunk.num_graphs * width)
    return counts.view(-1, width)
