"""Read the inputs of predictions: lists and columns of SMILES or RDKit molecules, and graphs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

from torch_geometric.data.data import BaseData


def check_collection(graphs: Any) -> None:
    """Raise ``TypeError`` unless the input is a list or a column of molecules or graphs."""
    is_list = hasattr(graphs, "__len__") and hasattr(graphs, "__getitem__")
    is_one = isinstance(graphs, BaseData | Mapping) or is_molecule(graphs) or hasattr(graphs, "columns")
    if is_one or not is_list:
        raise TypeError(
            f"predict takes a list of SMILES strings, RDKit molecules or Data, got {repr(graphs)[:60]} of type "
            f"{type(graphs).__name__}: pass [...] for one, table['smiles'] of a table, or batch.to_data_list(); "
            "tg_lpe.app.prediction.predict_file reads a file"
        )


def check_graph(item: Any) -> None:
    """Raise ``TypeError`` unless the first item of a list that holds no SMILES is a graph."""
    if not isinstance(item, BaseData):
        got = f"one that holds {repr(item)[:60]} of type {type(item).__name__}"
        raise TypeError(f"predict takes a list of SMILES strings, RDKit molecules or Data, got {got}")


def is_missing(item: Any) -> bool:
    """Return whether an entry of a column is empty: ``None``, NaN, or pandas' NA."""
    return item is None or type(item).__name__ == "NAType" or (isinstance(item, Real) and item != item)


def is_molecule(item: Any) -> bool:
    """Return whether an item is a string or an RDKit molecule."""
    return isinstance(item, str) or hasattr(item, "GetNumAtoms")


def strings(molecules: Iterable[Any]) -> list[str | None]:
    """Return the SMILES of strings and RDKit molecules; ``None`` for missing ones."""
    texts: list[str | None] = []
    for molecule in molecules:
        if is_missing(molecule):
            texts.append(None)
        elif isinstance(molecule, str):
            texts.append(str(molecule))
        elif is_molecule(molecule):
            from tg_lpe.app.molecules import _molecule

            texts.append(_molecule.smiles_of(molecule))
        else:
            raise TypeError(f"predict takes either SMILES or graphs, got strings and {type(molecule).__name__}")
    return texts


def extra_rows(extra: Any, columns: Sequence[str], number: int) -> list[tuple[Any, ...]] | None:
    """Return one row of extra input values for each molecule; ``None`` if the model reads no extra columns.

    Args:
        extra: a dictionary or a table of columns.
        columns: names of the columns that the model reads.
        number: number of molecules.

    Raises:
        ValueError: if a column is missing or has another number of values, or the model reads no extra columns.
    """
    if not columns and extra is not None:
        raise ValueError("this model reads only SMILES, so extra= must not be given")
    if not columns:
        return None
    if lacking := [name for name in columns if extra is None or name not in extra]:
        example = f"extra={{{', '.join(f'{name!r}: [...]' for name in columns)}}}"
        present = "nothing" if extra is None else ", ".join(map(repr, extra))
        lacks = ", ".join(map(repr, lacking))
        raise ValueError(f"this model also reads {lacks}: pass {example}, got {present}")
    values_of = [list(extra[name]) for name in columns]
    for name, values in zip(columns, values_of, strict=True):
        if len(values) != number:
            raise ValueError(f"extra[{name!r}] must have a number for each of {number} molecules, got {len(values)}")
    return list(zip(*values_of, strict=True))


def number_of(cell: Any) -> float:
    """Convert a cell of a table to a number; NaN if it is none."""
    if isinstance(cell, str) and "_" in cell:  # Python reads 1_0 as 10
        return math.nan
    try:
        return float(cell)
    except (TypeError, ValueError):
        return math.nan
