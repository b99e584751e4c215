"""Read and write graphs as rows of Arrow tables and Parquet files. Needs pyarrow, from the extra ``parquet``.

A graph is a row. ``edge_index`` holds two lists, the sources and the targets of its directed edges; ``num_nodes`` is a
number. Any other column of numbers is an attribute: one number for each graph, or a list for each graph whose elements
(numbers, or lists of one width) belong to nodes or edges.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from tg_lpe.data.storage import GraphDataset, node_slices, starts

EDGE_ATTRIBUTES = ("edge_attr", "edge_weight")
"""Attributes that must have a row for each directed edge; ``x`` must have one for each node."""

REASON = "reason"
"""Column with the reason why a row has no graph or could not be encoded; null otherwise."""

BATCH_ROWS = 10_000
"""Largest number of rows that are unpacked at once."""


def import_pyarrow() -> Any:
    """Import pyarrow, or raise an error that says what to install."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("Parquet files need pyarrow: pip install 'tg-lpe[parquet]'") from error
    return pyarrow


def open_parquet(path: Path) -> Any:
    """Open a ``pyarrow.parquet.ParquetFile``, which is a context manager.

    Raises:
        ModuleNotFoundError: if pyarrow is not installed.
        ValueError: if the file is damaged.
    """
    arrow = import_pyarrow()
    try:
        return arrow.parquet.ParquetFile(path)
    except (arrow.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path} is damaged or not a Parquet file: {error}") from error


def iterate_batches(
    path: Path, start: int = 0, stop: int | None = None, columns: Sequence[str] | None = None
) -> Iterator[Any]:
    """Yield the rows ``start`` to ``stop - 1`` of a Parquet file as Arrow batches, without unpacking later row groups.

    Raises:
        ModuleNotFoundError: if pyarrow is not installed.
        ValueError: if the file is damaged.
    """
    arrow = import_pyarrow()
    with open_parquet(path) as file:
        ends = [0, *accumulate(file.metadata.row_group(group).num_rows for group in range(file.num_row_groups))]
        stop = ends[-1] if stop is None else stop
        groups = [g for g in range(file.num_row_groups) if ends[g] < stop and start < ends[g + 1]]
        at = ends[groups[0]] if groups else 0
        try:
            for batch in file.iter_batches(BATCH_ROWS, row_groups=groups, columns=columns):
                if rows := batch[max(start - at, 0) : max(stop - at, 0)]:
                    yield rows
                at += len(batch)
                if at >= stop:
                    return
        except (arrow.ArrowInvalid, OSError) as error:
            raise ValueError(f"{path} is damaged: {error}") from error


def read_graphs(path: str | Path, columns: Iterable[str] | None = None) -> GraphDataset:
    """Read the graphs of a Parquet file, or of all Parquet files of a folder in the order of their names.

    Args:
        path: the file or folder, such as the output of :class:`tg_lpe.app.jobs.EncodingJob`.
        columns: attributes to read in addition to ``edge_index`` and ``num_nodes``; every column of numbers by default.

    Returns:
        The graphs, without rows that have a ``reason`` or a null ``edge_index``.

    Raises:
        ModuleNotFoundError: if pyarrow is not installed.
        TypeError: if ``columns`` is one string.
        ValueError: if there is no such file, it is no Parquet file, or a row is no graph.
    """
    columns = None if columns is None else _names(columns)
    wanted = None if columns is None else {"edge_index", "num_nodes", REASON, *columns}
    tables = []
    for part in parquet_files(path):
        with open_parquet(part) as file:
            tables.append(file.read([name for name in file.schema_arrow.names if wanted is None or name in wanted]))
    table = import_pyarrow().concat_tables(tables, promote_options="default")
    if "edge_index" in table.column_names:
        table = table.filter(table["edge_index"].is_valid())
    if REASON in table.column_names:
        table = table.filter(table[REASON].is_null())
    return graphs_of_table(table, columns)


def parquet_files(path: str | Path) -> list[Path]:
    """List a Parquet file, or those of a folder by name, except names that begin with ``.`` or ``_``, as Arrow does.

    Raises:
        ValueError: if there is no such file.
    """
    source = Path(path)
    if source.is_file():
        return [source]
    files = sorted(file for file in source.glob("*.parquet") if not file.name.startswith((".", "_")))
    if not files:
        raise ValueError(f"{source} is neither a file nor a folder with files NAME.parquet")
    return files


def graphs_of_table(table: Any, columns: Iterable[str] | None = None) -> GraphDataset:
    """Read the rows of a ``pyarrow.Table`` as graphs.

    Args:
        table: the table, see :mod:`tg_lpe.app.tables`.
        columns: attributes to read in addition to ``edge_index`` and ``num_nodes``; every column of numbers, and of
            lists of numbers, by default.

    Returns:
        The graphs, with integers as int64.

    Raises:
        TypeError: if ``columns`` is one string.
        ValueError: if a column is missing or has another type, a value is null, or the rows of features do not match
            the nodes or edges of their graph.
    """
    if "edge_index" not in table.column_names:
        raise ValueError(f"graphs need a column edge_index, got {table.column_names}")
    edge_index, edge_ptr = _edges(table["edge_index"])
    values: dict[str, Tensor] = {"edge_index": edge_index}
    slices = {"edge_index": edge_ptr}
    for name in _names(table.column_names if columns is None else columns):
        if name not in table.column_names:
            raise ValueError(f"there is no column {name!r}, only {table.column_names}")
        read = _attribute(name, table[name])
        if read is not None:
            values[name], slices[name] = read
        elif columns is not None:
            raise ValueError(f"column {name!r} must hold numbers or lists of them, got {table[name].type}")
    for name in EDGE_ATTRIBUTES:
        if name in slices:
            _check_rows(name, slices[name], edge_ptr, "directed edges")
    data = Data(**values)
    if "num_nodes" in table.column_names:
        read = _attribute("num_nodes", table["num_nodes"])
        if read is None or read[0].is_floating_point() or read[0].dim() > 1 or bool((read[0] < 0).any()):
            raise ValueError(f"num_nodes must be whole numbers of at least 0, got {table['num_nodes'][:5].to_pylist()}")
        counts = read[0]
        if "x" in slices:
            _check_rows("x", slices["x"], starts(counts), "nodes")
        data.num_nodes = int(counts.sum())
        data._store.__dict__["_num_nodes"] = counts.tolist()  # PyG's place for the num_nodes of each graph
    elif "x" not in slices:
        raise ValueError(f"graphs need a column num_nodes, or node features x, got {table.column_names}")
    return GraphDataset(data, slices)


def _names(columns: Iterable[str]) -> list[str]:
    """Return the columns without ``edge_index`` and ``num_nodes``, which are always read."""
    if isinstance(columns, str):
        raise TypeError(f"columns must be a list of names, got the string {columns!r}; write [{columns!r}]")
    return [name for name in columns if name not in ("edge_index", "num_nodes")]


def columns_of_graphs(dataset: Any, names: Iterable[str], usable: Sequence[bool]) -> dict[str, Any]:
    """Convert attributes of a dataset to Arrow arrays, the reverse of :func:`graphs_of_table`.

    Args:
        dataset: a dataset for which ``tg_lpe.data.storage.is_collated`` holds, with ``slices``.
        names: the attributes, which may include ``"num_nodes"``.
        usable: for each row, whether it is the next graph of the dataset; other rows are null.

    Returns:
        An array for each name, with an element for each row.
    """
    arrow = import_pyarrow()
    mask = np.array(usable, dtype=bool)
    null, num_usable = arrow.array(~mask), int(mask.sum())

    def spread(counts: Tensor) -> Any:
        rows = np.zeros(mask.size, np.int64)
        rows[mask] = counts[:num_usable].numpy()
        return rows

    def lists(counts: Any, elements: Any) -> Any:
        ends = np.concatenate([[0], counts.cumsum()])
        return arrow.ListArray.from_arrays(arrow.array(ends, arrow.int32()), elements, mask=null)

    columns = {}
    for name in names:
        if name == "num_nodes":
            columns[name] = arrow.array(spread(node_slices(dataset).diff()), mask=~mask)
            continue
        values, slices = dataset._data[name], dataset.slices[name]
        if name == "edge_index":
            # The sources and then the targets of each graph, one graph after the other.
            counts = slices.diff()
            graph = torch.arange(len(counts)).repeat_interleave(counts).repeat(2)
            ends = starts(counts.repeat_interleave(2)).numpy()
            interleaved = values.flatten()[graph.argsort(stable=True)].numpy()
            inner = arrow.ListArray.from_arrays(arrow.array(ends, arrow.int32()), arrow.array(interleaved))
            columns[name] = lists(2 * mask.astype(np.int64), inner)
            continue
        elements = arrow.array(values.reshape(-1).numpy())
        if values.dim() > 1:
            elements = arrow.FixedSizeListArray.from_arrays(elements, math.prod(values.shape[1:]))
        columns[name] = lists(spread(slices.diff()), elements)
    return columns


def _edges(column: Any) -> tuple[Tensor, Tensor]:
    """Read ``edge_index`` of all graphs, ``[2, num_edges]``, and the first edge of each."""
    lengths, elements = _unnested(column)
    if len(lengths) != 2 or not import_pyarrow().types.is_integer(elements.type):
        raise ValueError(f"edge_index must hold two lists of whole numbers for each graph, got {column.type}")
    wrong = lengths[0] != 2
    if not bool(wrong.any()):
        counts = lengths[1].view(-1, 2)
        wrong = counts[:, 0] != counts[:, 1]
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise ValueError(f"edge_index must hold two lists of one length for each graph; row {row} does not")
    flat, is_target = _numbers("edge_index", elements), torch.tensor([False, True]).repeat(len(counts))
    is_target = is_target.repeat_interleave(lengths[1])
    return torch.stack([flat[~is_target], flat[is_target]]), starts(counts[:, 0])


def _attribute(name: str, column: Any) -> tuple[Tensor, Tensor] | None:
    """Read the values of all graphs, and the first row of each; ``None`` if the column holds no numbers."""
    lengths, elements = _unnested(column)
    types = import_pyarrow().types
    if len(lengths) > 2 or not (types.is_integer(elements.type) or types.is_floating(elements.type)):
        return None
    values = _numbers(name, elements)
    if not lengths:
        return values, torch.arange(len(column) + 1)
    if len(lengths) == 2:
        widths = lengths[1].unique().tolist() or [getattr(column.type.value_type, "list_size", 0)]
        if len(widths) > 1:
            raise ValueError(f"{name} must hold lists of one width, got {widths[:5]}")
        values = values.view(len(lengths[1]), widths[0])
    return values, starts(lengths[0])


def _unnested(column: Any) -> tuple[list[Tensor], Any]:
    """Return the lengths of the lists of a column, level by level, and the elements of the innermost ones."""
    arrow, lengths = import_pyarrow(), []
    array = column.combine_chunks()
    while arrow.types.is_list(array.type) or arrow.types.is_large_list(array.type) or hasattr(array.type, "list_size"):
        if array.null_count:
            raise ValueError(f"there are {array.null_count} null values in a column of {array.type}")
        lengths.append(torch.from_numpy(np.array(arrow.compute.list_value_length(array), np.int64)))
        array = array.flatten()
    return lengths, array


def _numbers(name: str, array: Any) -> Tensor:
    """Convert numbers to a tensor, integers to int64, and null to NaN in floating point columns."""
    is_integer = import_pyarrow().types.is_integer(array.type)
    if array.null_count and is_integer:
        raise ValueError(f"{name} must not be null, got {array.null_count} null values of {array.type}")
    return torch.from_numpy(np.array((array.cast("int64") if is_integer else array).to_numpy(zero_copy_only=False)))


def _check_rows(name: str, slices: Tensor, expected: Tensor, unit: str) -> None:
    wrong = slices.diff() != expected.diff()
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        count, got = int(expected.diff()[row]), int(slices.diff()[row])
        raise ValueError(f"{name} must have a row for each of the {count} {unit} of row {row}, got {got}")
