"""Read the inputs of predictions: lists and columns of SMILES or RDKit molecules, and graphs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

from torch_geometric.data import Batch, Data


def check_collection(graphs: Any) -> None:
    """Raise a ``TypeError`` that says what to write where there is one graph, a batch or a table."""
    name = type(graphs).__name__
    if isinstance(graphs, Batch):
        raise TypeError(f"predict takes a list of SMILES or graphs, got a {name}: batch.to_data_list() will do")
    if isinstance(graphs, Data) or is_molecule(graphs):
        raise TypeError(f"predict takes a list of SMILES or graphs, got one {name}: [...] will do")
    columns = graphs if isinstance(graphs, Mapping) else getattr(graphs, "columns", None)
    if columns is not None:
        names = [str(column) for column in columns]
        smiles = next((column for column in names if "smi" in column.lower()), "smiles")
        raise TypeError(
            f"predict takes one column of a table, got a {name} with {', '.join(map(repr, names))}: "
            f"table[{smiles!r}] will do"
        )
    if not hasattr(graphs, "__len__") or not hasattr(graphs, "__getitem__"):
        raise TypeError(f"predict takes a list of SMILES or graphs, got {name}: list(...) will do")


def is_missing(item: Any) -> bool:
    """Tell whether an entry of a column is empty: ``None``, NaN, or pandas' NA."""
    return item is None or type(item).__name__ == "NAType" or (isinstance(item, Real) and item != item)


def is_molecule(item: Any) -> bool:
    """Tell whether something is a string or an RDKit molecule."""
    return isinstance(item, str) or hasattr(item, "GetNumAtoms")


def strings(molecules: Iterable[Any]) -> list[str | None]:
    """Return the SMILES of strings and RDKit molecules; ``None`` where there is none."""
    texts: list[str | None] = []
    for molecule in molecules:
        if isinstance(molecule, str) or is_missing(molecule):
            texts.append(str(molecule) if isinstance(molecule, str) else None)
        elif is_molecule(molecule):
            from tg_lpe.datasets.molecules import _molecule

            texts.append(_molecule.smiles_of(molecule))
        else:
            raise TypeError(f"predict takes SMILES or graphs, got both: strings and {type(molecule).__name__}")
    return texts


def rows_beside(extra: Any, columns: Sequence[str], number: int) -> list[tuple[Any, ...]] | None:
    """Return the values that a model reads beside each molecule, in the order of its columns; ``None`` without any.

    Args:
        extra: a dictionary or a table of columns.
        columns: names of those that the model reads.
        number: number of the molecules.

    Raises:
        ValueError: if a column is missing or has another number of values, or the model reads none.
    """
    if not columns:
        if extra is not None:
            raise ValueError("this model reads nothing beside SMILES, so extra= must not be given")
        return None
    if lacking := [name for name in columns if extra is None or name not in extra]:
        example = f"extra={{{', '.join(f'{name!r}: [...]' for name in columns)}}}"
        found = "nothing" if extra is None else ", ".join(map(repr, extra))
        lacks = ", ".join(map(repr, lacking))
        raise ValueError(f"this model reads {lacks} beside SMILES, as {example}, got {found}")
    read = [list(extra[name]) for name in columns]
    for name, values in zip(columns, read, strict=True):
        if len(values) != number:
            raise ValueError(f"extra[{name!r}] must have a number for each of {number} molecules, got {len(values)}")
    return list(zip(*read, strict=True))


def number_of(cell: Any) -> float:
    """Return a cell of a table as a number; NaN if it is none."""
    try:
        return float(cell)
    except (TypeError, ValueError):
        return math.nan


class Graphs(Sequence[Data]):
    """A sequence that raises a ``TypeError`` where an element is no ``Data``."""

    def __init__(self, graphs: Any) -> None:
        self._graphs = graphs

    def __len__(self) -> int:
        return len(self._graphs)

    def __getitem__(self, index: Any) -> Any:
        graph = self._graphs[index]
        if not isinstance(graph, Data) or graph.edge_index is None:
            what = f"Data with {graph.keys()}" if isinstance(graph, Data) else f"of type {type(graph).__name__}"
            raise TypeError(f"graphs must be Data with edge_index, graph {index} is {what}")
        return graph
