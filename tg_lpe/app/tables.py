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
    """Yield rows of a Parquet file as Arrow batches, without unpacking row groups beyond the last row.

    Args:
        path: the file.
        start, stop: the first row and the row after the last; all rows by default.
        columns: names of the columns; all by default.

    Raises:
        ModuleNotFoundError: if pyarrow is not installed.
        ValueError: if the file is damaged.
    """
    arrow = import_pyarrow()
    with open_parquet(path) as file:
        stop = file.metadata.num_rows if stop is None else stop
        ends = [0, *accumulate(file.metadata.row_group(group).num_rows for group in range(file.num_row_groups))]
        groups = [g for g in range(file.num_row_groups) if ends[g] < stop and start < ends[g + 1]]
        at = ends[groups[0]] if groups else 0
        try:
            for batch in file.iter_batches(BATCH_ROWS, row_groups=groups, columns=columns):
                low, high = max(start - at, 0), min(stop - at, len(batch))
                if low < high:
                    yield batch.slice(low, high - low)
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
    arrow = import_pyarrow()
    columns = None if columns is None else _names(columns)
    wanted = None if columns is None else {"edge_index", "num_nodes", REASON, *columns}
    tables = []
    for part in parquet_files(path):
        with open_parquet(part) as file:
            held = file.schema_arrow.names
            tables.append(file.read(held if wanted is None else [name for name in held if name in wanted]))
    table = arrow.concat_tables(tables, promote_options="default")
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
        counts = _numbers("num_nodes", _array(table["num_nodes"]))
        if counts.is_floating_point() or bool((counts < 0).any()):
            raise ValueError(f"num_nodes must be whole numbers of at least 0, got {counts[:5].tolist()}")
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
        starts = np.concatenate([[0], counts.cumsum()])
        return arrow.ListArray.from_arrays(arrow.array(starts, arrow.int32()), elements, mask=null)

    columns = {}
    for name in names:
        if name == "num_nodes":
            columns[name] = arrow.array(spread(node_slices(dataset).diff()), mask=~mask)
            continue
        values, slices = dataset._data[name], dataset.slices[name]
        if name == "edge_index":
            # The sources and then the targets of each graph, one graph after the other.
            ptr = slices[: num_usable + 1]
            graph, place = torch.arange(num_usable).repeat_interleave(ptr.diff()), torch.arange(values.size(1))
            interleaved = values.new_empty(values.numel())
            interleaved[place + ptr[graph]], interleaved[place + ptr[graph + 1]] = values
            ends = arrow.array((ptr.repeat_interleave(2)[:-1] + ptr.repeat_interleave(2)[1:]).numpy(), arrow.int32())
            inner = arrow.ListArray.from_arrays(ends, arrow.array(interleaved.numpy()))
            columns[name] = lists(2 * mask.astype(np.int64), inner)
            continue
        elements = arrow.array(values.reshape(-1).numpy())
        if values.dim() > 1:
            elements = arrow.FixedSizeListArray.from_arrays(elements, math.prod(values.shape[1:]))
        columns[name] = lists(spread(slices.diff()), elements)
    return columns


def _edges(column: Any) -> tuple[Tensor, Tensor]:
    """Read ``edge_index`` of all graphs, ``[2, num_edges]``, and the first edge of each."""
    outer = _lists(column)
    inner = None if outer is None else _lists(outer[1])
    flat = None if inner is None else _numbers("edge_index", inner[1])
    if outer is None or inner is None or flat is None or flat.is_floating_point():
        raise ValueError(f"edge_index must hold two lists of whole numbers for each graph, got {column.type}")
    wrong = outer[0] != 2
    if not bool(wrong.any()):
        lengths = inner[0].view(-1, 2)
        wrong = lengths[:, 0] != lengths[:, 1]
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise ValueError(f"edge_index must hold two lists of one length for each graph; row {row} does not")
    ptr = starts(lengths[:, 0])
    graph = torch.arange(len(lengths)).repeat_interleave(lengths[:, 0])
    place = torch.arange(len(graph))
    return torch.stack([flat[place + ptr[graph]], flat[place + ptr[graph + 1]]]), ptr


def _attribute(name: str, column: Any) -> tuple[Tensor, Tensor] | None:
    """Read the values of all graphs, and the first row of each; ``None`` if the column holds no numbers."""
    outer = _lists(column)
    if outer is None:
        return (_numbers(name, column), torch.arange(len(column) + 1)) if _is_number(column.type) else None
    lengths, elements = outer
    inner = _lists(elements)
    if inner is None:
        return (_numbers(name, elements), starts(lengths)) if _is_number(elements.type) else None
    if not _is_number(inner[1].type):
        return None
    width = int(inner[0][0]) if len(inner[0]) else getattr(elements.type, "list_size", 0)
    if bool((inner[0] != width).any()):
        raise ValueError(f"{name} must hold lists of one width, got {sorted(set(inner[0].tolist()))[:5]}")
    return _numbers(name, inner[1]).view(len(elements), width), starts(lengths)


def _lists(column: Any) -> tuple[Tensor, Any] | None:
    """Return lengths of the lists of a column, and their elements; ``None`` if it holds no lists."""
    import pyarrow.compute as compute
    import pyarrow.types as types

    if not (types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type)):
        return None
    array = _array(column)
    if array.null_count:
        raise ValueError(f"there are {array.null_count} null values in a column of {column.type}")
    return torch.from_numpy(np.array(compute.list_value_length(array), np.int64)), array.flatten()


def _array(column: Any) -> Any:
    """Combine a column of a table into one array."""
    return column.combine_chunks() if hasattr(column, "combine_chunks") else column


def _is_number(kind: Any) -> bool:
    import pyarrow.types as types

    return bool(types.is_integer(kind) or types.is_floating(kind))


def _numbers(name: str, column: Any) -> Tensor:
    """Convert numbers to a tensor, integers to int64, and null to NaN in floating point columns."""
    import pyarrow.types as types

    array = _array(column)
    if not _is_number(array.type):
        raise ValueError(f"{name} must hold numbers, got {array.type}")
    if array.null_count and types.is_integer(array.type):
        raise ValueError(f"{name} must not be null, got {array.null_count} null values of {array.type}")
    values = array.to_numpy(zero_copy_only=False)
    if types.is_uint64(array.type) and (large := values > np.iinfo(np.int64).max).any():
        raise ValueError(f"{name} must be below 2**63, got {values[large][0]}")
    return torch.from_numpy(np.array(values, dtype=np.int64 if types.is_integer(array.type) else values.dtype))


def _check_rows(name: str, slices: Tensor, expected: Tensor, unit: str) -> None:
    wrong = slices.diff() != expected.diff()
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        count, got = int(expected.diff()[row]), int(slices.diff()[row])
        raise ValueError(f"{name} must have a row for each of the {count} {unit} of row {row}, got {got}")
