"""Read PyG's in-memory storage as large batches, without collating it again."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset
from torch_geometric.data.data import BaseData
from torch_geometric.data.hypergraph_data import HyperGraphData

from tg_lpe.arguments import HOMOGENEOUS, WITHOUT_EDGE_INDEX, outside_nodes

T = TypeVar("T")
D = TypeVar("D", bound=InMemoryDataset)

RESERVED = ("index", "batch")
"""PyTorch Geometric adds node offsets to an attribute whose name contains one of these when it makes a batch."""

_NODE_ATTRIBUTES = ("x", "feat", "pos", "batch", "node_type", "n_id")
"""Attributes from which PyG infers the number of nodes; others may have as many rows by coincidence."""

WITH_ROWS = ("x", "edge_attr", "edge_weight")
"""Attributes with a row for each node or edge of a graph."""


@dataclass(frozen=True)
class GraphChunk:
    """Hold consecutive graphs of a dataset as one batch.

    Attributes:
        edge_index: int64 ``[2, num_edges]``, with nodes numbered within the chunk.
        edge_ptr: first edge of each graph, int64 ``[num_graphs + 1]``.
        num_nodes, num_graphs: counts.
        batch: graph of each node, int64 ``[num_nodes]``, from 0.
        attributes: the requested attributes of nodes, edges and graphs that the graphs have.
    """

    edge_index: Tensor
    edge_ptr: Tensor
    num_nodes: int
    num_graphs: int
    batch: Tensor
    attributes: dict[str, Tensor]

    def part(self, start: int, stop: int) -> GraphChunk:
        """Return the graphs ``start..stop - 1``."""
        if (start, stop) == (0, self.num_graphs):  # as it is: graphs and models refuse rows too many
            return self
        first, last = torch.searchsorted(self.batch, torch.tensor([start, stop], device=self.batch.device)).tolist()
        nodes = slice(first, last)
        edges = slice(int(self.edge_ptr[start]), int(self.edge_ptr[stop]))
        rows = {"x": nodes, "graph_attr": slice(start, stop)}
        return GraphChunk(
            edge_index=self.edge_index[:, edges] - first,
            edge_ptr=self.edge_ptr[start : stop + 1] - self.edge_ptr[start],
            num_nodes=last - first,
            num_graphs=stop - start,
            batch=self.batch[nodes] - start,
            attributes={name: values[rows.get(name, edges)] for name, values in self.attributes.items()},
        )

    def misplaced(self) -> tuple[int, str] | None:
        """Return the first graph with an edge to a node outside of it, and an error message; ``None`` without one."""
        if self.edge_index.dim() != 2 or self.edge_index.layout != torch.strided:
            return None  # Graph refuses such an edge_index
        graph = torch.arange(self.num_graphs + 1, device=self.batch.device)
        node_ptr = torch.searchsorted(self.batch, graph)
        owner = torch.repeat_interleave(graph[:-1], self.edge_ptr.diff())
        wrong = (self.edge_index < node_ptr[owner]) | (self.edge_index >= node_ptr[owner + 1])
        if not bool(wrong.any()):
            return None
        first = int(owner[wrong.any(0)].min())
        start, size = int(node_ptr[first]), int(node_ptr[first + 1] - node_ptr[first])
        edges = self.edge_index[:, int(self.edge_ptr[first]) : int(self.edge_ptr[first + 1])] - start
        low, high = int(edges.min()), int(edges.max())
        return first, outside_nodes(size, low, high)


def iterate_chunks(
    dataset: Any,
    chunk_size: int,
    attributes: Sequence[str] = (),
    max_pairs: int | None = None,
    *,
    check_edges: bool = True,
) -> Iterator[GraphChunk]:
    """Iterate over a dataset in batches of ``chunk_size`` graphs, in order.

    Args:
        dataset: a PyG dataset or a sequence of ``Data``. An ``InMemoryDataset`` without a ``transform`` or an
            overridden ``get`` is read from its storage; everything else is collated.
        chunk_size: number of graphs of a batch; the last may have fewer.
        attributes: attributes of nodes or edges to include if present, such as ``x`` or ``edge_weight``, and
            ``graph_attr``.
        max_pairs: largest sum of the squared numbers of nodes in a batch of several graphs, to bound memory that grows
            with the square of a graph's size.
        check_edges: whether to refuse edges that leave their graph; otherwise use :meth:`GraphChunk.misplaced`. A graph
            in a storage that has a wrong number of rows is refused too; otherwise it is a batch of its own.

    Raises:
        TypeError: if an element is a batch of several graphs, or an attribute is not a tensor.
        ValueError: if a graph has no ``edge_index``, or an edge to a node that it does not have, which would belong to
            the next graph of a batch.
    """
    start = 0
    for chunk in _chunks(dataset, chunk_size, attributes, max_pairs, check_edges):
        misplaced = chunk.misplaced() if check_edges else None
        if misplaced is not None:
            raise ValueError(f"graph {start + misplaced[0]}: {misplaced[1]}")
        start += chunk.num_graphs
        yield chunk


def _chunks(
    dataset: Any, chunk_size: int, attributes: Sequence[str], max_pairs: int | None, check: bool
) -> Iterator[GraphChunk]:
    dataset = _without_selection(dataset)
    if is_collated(dataset):
        check_single(dataset._data, "the dataset")
        for name in attributes:
            value = dataset._data.get(name)
            _check_tensor(name, value[0] if isinstance(value, list) and value else value, "graph 0")
        error = _wrong_rows(dataset, attributes)
        if error is not None and check:
            raise ValueError(error)
        if error is None:
            yield from _from_storage(dataset, chunk_size, attributes, max_pairs)
            return

    def single(index: int) -> Data:
        data: Data = dataset[index]
        check_single(data, f"graph {index}")
        return data

    def form(numbered: tuple[int, Data]) -> list[tuple[str, Any, Any, Any]]:
        """Return names, dtypes and shapes of the attributes, and the graph's number if a number of rows is wrong."""
        number, data = numbered
        edge_index: Any = data.edge_index
        num_rows = {"x": data.num_nodes, "graph_attr": 1}
        forms: list[tuple[str, Any, Any, Any]] = [
            ("edge_index", edge_index.dtype, None, None if len(edge_index) == 2 else number)
        ]
        for name in attributes:
            value = data.get(name)
            _check_tensor(name, value, f"graph {number}")
            if value is not None:
                fits = value.dim() > 0 and value.size(0) == num_rows.get(name, edge_index.size(1))
                forms.append((name, (value.dtype, value.layout), value.shape[1:], None if fits else number))
        return forms

    # Collate only graphs whose attributes have equal dtypes and shapes: concatenation would cast others, and wrong
    # numbers of rows would shift the rows of the next graph. PyG's collation of everything takes longer than encoding.
    for names, group in itertools.groupby(((i, single(i)) for i in range(len(dataset))), key=form):
        for graphs, sizes in _take((data for _, data in group), chunk_size, max_pairs):
            edges: list[Any] = [data.edge_index for data in graphs]
            nodes, listed = (
                torch.tensor(counts, device=edges[0].device) for counts in (sizes, [each.size(1) for each in edges])
            )
            values = {name: torch.cat([data[name] for data in graphs]) for name, *_ in names[1:]}
            yield _joined(torch.cat(edges, dim=1), nodes, listed, values)


def _check_tensor(name: str, value: Any, graph: str) -> None:
    """Raise ``TypeError`` for an attribute that is not a tensor, which PyG collates into a list."""
    if value is not None and not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {value!r:.80} in {graph}; torch.as_tensor(...) makes one")


def check_sequence(dataset: Any, must: str) -> None:
    """Raise ``TypeError`` unless a dataset can be indexed; ``must`` begins the message."""
    is_table = hasattr(type(dataset), "columns") and not isinstance(dataset, torch.utils.data.Dataset)
    is_list = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if is_table or isinstance(dataset, str | Mapping | BaseData) or not is_list:
        got = repr(dataset) if isinstance(dataset, str) else type(dataset).__name__
        hint = "pass [data] for one graph, batch.to_data_list(), a loader's dataset, or what load_molecules reads"
        raise TypeError(f"{must} a dataset or a sequence of Data, got {got}; {hint}")


def check_single(data: Any, name: str) -> None:
    """Raise an error unless ``data`` is one graph with edges; an attribute ``batch`` may separate several."""
    if not isinstance(data, Data):
        hint = f"; {HOMOGENEOUS}" * isinstance(data, HeteroData)
        raise TypeError(f"graphs must be Data, {name} is of type {type(data).__name__}{hint}")
    if isinstance(data, Batch):
        what = f"{name} is a {type(data).__name__}; batch.to_data_list() gives its graphs"
        raise TypeError(f"expected single graphs, but {what}")
    batch = data.get("batch")
    if isinstance(batch, Tensor) and bool(batch.any()):
        batches = f"has an attribute batch with numbers up to {int(batch.max())}"
        raise TypeError(f"expected single graphs, but {name} {batches}; make one Data of each, or remove the attribute")
    edges = data.edge_index
    if edges is None:
        raise ValueError(f"each graph needs edge_index, {name} is Data with {data.keys()}; {WITHOUT_EDGE_INDEX}")
    if not isinstance(edges, Tensor) or edges.layout != torch.strided or edges.dim() != 2:
        got = f"{edges.layout} {[*edges.shape]}" if isinstance(edges, Tensor) else type(edges).__name__
        raise ValueError(f"edge_index must be a dense tensor [2, num_directed_edges], got {got} in {name}")


def _take(graphs: Iterator[Data], chunk_size: int, max_pairs: int | None) -> Iterator[tuple[list[Data], list[int]]]:
    """Iterate over groups of consecutive graphs within the limits, with their numbers of nodes."""
    taken: list[Data] = []
    sizes: list[int] = []
    pairs = 0
    for data in graphs:
        size = data.num_nodes or 0  # read once, since PyG searches all attributes for it
        if taken and (len(taken) == chunk_size or (max_pairs is not None and pairs + size**2 > max_pairs)):
            yield taken, sizes
            taken, sizes, pairs = [], [], 0
        taken.append(data)
        sizes.append(size)
        pairs += size**2
    if taken:
        yield taken, sizes


def _joined(edge_index: Tensor, nodes: Tensor, edges: Tensor, attributes: dict[str, Tensor]) -> GraphChunk:
    """Number the nodes of concatenated graphs within the chunk, from their numbers of nodes and edges."""
    batch = torch.repeat_interleave(torch.arange(len(nodes), device=nodes.device), nodes)
    offset = torch.repeat_interleave(nodes.cumsum(0) - nodes, edges)
    return GraphChunk(edge_index + offset, starts(edges), len(batch), len(nodes), batch, attributes)


class GraphDataset(InMemoryDataset):
    """Hold graphs in PyG's in-memory storage, without files on disk.

    Args:
        data: the concatenated graphs, with nodes numbered per graph; or a single graph.
        slices: start of each graph in each attribute, int64 ``[num_graphs + 1]``; ``None`` for a single graph.
        transform: applied to every element on access.
    """

    def __init__(
        self, data: Data, slices: dict[str, Tensor] | None, transform: Callable[[Data], Data] | None = None
    ) -> None:
        super().__init__(None, transform)
        self._data = data
        self.slices = slices

    @classmethod
    def from_data_list(cls, graphs: Sequence[Data]) -> GraphDataset:
        """Collate single graphs.

        Raises:
            TypeError: if an element is not a ``Data``, or a batch of several graphs.
            ValueError: if there are no graphs, or they differ in their attributes or in the widths of these.
        """
        if not graphs:
            raise ValueError("a dataset needs at least one graph")
        for number, graph in enumerate(graphs):
            check_single(graph, f"graph {number}")
            # Collating takes the attributes of the first graph and drops others.
            names, first_names = sorted(graph.keys()), sorted(graphs[0].keys())
            if names != first_names:
                difference = f"graph 0 has {first_names}, graph {number} has {names}"
                raise ValueError(f"all graphs need the same attributes; {difference}")
        try:
            return cls(*cls.collate(list(graphs)))
        except RuntimeError as error:
            for name in graphs[0].keys():  # noqa: SIM118 (not a mapping)
                try:
                    cls.collate([Data(**{name: graph[name]}) for graph in graphs])
                except RuntimeError as of_name:
                    raise ValueError(f"{name} must be equally wide in all graphs: {of_name}") from error
            raise ValueError(str(error)) from error


def whole(dataset: Any) -> InMemoryDataset:
    """Return a dataset for which :func:`is_collated` holds.

    Args:
        dataset: a PyG dataset or a sequence of ``Data``.

    Returns:
        The dataset itself if it is collated, else a collated copy of its elements.

    Raises:
        TypeError: if an element is not a ``Data``, or a batch of several graphs.
        ValueError: if the dataset is empty or in memory with a ``transform``, a graph has no dense ``edge_index`` or
            wrong numbers of rows, or graphs differ in their attributes.
    """
    result: InMemoryDataset
    dataset = _without_selection(dataset)
    if is_collated(dataset):
        check_single(dataset._data, "the dataset")
        result = dataset
    elif isinstance(dataset, InMemoryDataset) and dataset.transform is not None:
        raise ValueError(
            f"{dataset} has a transform, which runs whenever a graph is read, but encodings are computed once: use "
            "pre_transform, or pass list(dataset) to apply it once, now"
        )
    else:
        result = GraphDataset.from_data_list([dataset[index] for index in range(len(dataset))])
    if (error := _wrong_rows(result)) is not None:
        raise ValueError(error)
    return result


def _wrong_rows(dataset: InMemoryDataset, names: Collection[str] = WITH_ROWS) -> str | None:
    """Return an error message for a wrong number of rows, which would shift the rows of the next graph of a batch.

    The names are ``x`` and attributes of edges, such as weights of any name; ``graph_attr`` is not checked.
    """
    data, slices = dataset._data, dataset.slices or {}
    for name in names:
        has_slices = name in slices and isinstance(data[name], Tensor) and data[name].layout == torch.strided
        if has_slices and name != "graph_attr":
            unit, rows = "nodes" if name == "x" else "edges", slices[name].diff()
            counts = (node_slices(dataset) if name == "x" else slices["edge_index"]).diff()
            if not torch.equal(rows, counts):
                at = int((rows != counts).nonzero()[0])
                return f"graph {at} has {int(counts[at])} {unit}, but {name} has {int(rows[at])} rows"
    return None


def in_halves(
    run: Callable[[int, int], T], start: int, stop: int, errors: tuple[type[Exception], ...] = (ValueError,)
) -> Iterator[tuple[int, T | str]]:
    """Run a function on rows ``start`` to ``stop - 1``, and bisect rows that it refuses down to single rows.

    Args:
        run: takes the first row and the row after the last.
        start, stop: the rows; nothing is run if there are none.
        errors: exceptions by which ``run`` refuses rows.

    Yields:
        The first row of each part, in order, and the result, or the error message for a refused row.
    """
    if start >= stop:
        return
    result: T | str
    try:
        result = run(start, stop)
    except errors as error:
        if stop - start > 1:
            middle = (start + stop) // 2
            yield from in_halves(run, start, middle, errors)
            yield from in_halves(run, middle, stop, errors)
            return
        result = str(error)
    yield start, result


def is_collated(dataset: Any) -> bool:
    """Return whether a dataset's storage equals its elements: in memory, no selection, no change on access."""
    return (
        isinstance(dataset, InMemoryDataset)
        and dataset._indices is None
        and dataset.transform is None
        and type(dataset).get is InMemoryDataset.get
        and type(dataset).__getitem__ is InMemoryDataset.__getitem__
        and isinstance(dataset._data, Data)
        and not isinstance(dataset._data, HyperGraphData)
        and dataset._data.edge_index is not None
    )


def plain_storage(dataset: Any) -> InMemoryDataset | None:
    """Return a dataset in memory without its selection of elements, to read their rows from its storage.

    The result is ``None`` unless PyG collates these graphs by concatenation, and batches them by concatenation and by
    adding node offsets, alone.
    """
    if not isinstance(dataset, InMemoryDataset):
        return None
    storage = copy.copy(dataset)
    storage._indices = None
    data, slices = storage._data, storage.slices
    if not is_collated(storage) or type(data) is not Data or slices is None or "edge_index" not in slices:
        return None
    is_plain = all(_is_plain_attribute(data, name, slices[name]) for name in slices if name in data)
    return storage if storage.len() > 1 and is_plain else None


def _is_plain_attribute(data: Data, name: str, slices: Any) -> bool:
    value = data[name]
    if "batch" in name or name in ("ptr", "num_nodes") or not isinstance(slices, Tensor) or slices.dim() != 1:
        return False
    if type(value) is list:
        return all(isinstance(entry, str) for entry in value)
    return (
        type(value) is Tensor
        and value.dim() > 0
        and value.layout == torch.strided
        and not value.is_nested
        and value.is_cpu
        and (data.__cat_dim__(name, value) == 0 or value.dtype == torch.int64)
    )


def node_slices(dataset: InMemoryDataset) -> Tensor:
    """Return the first node of each graph in a dataset's storage, int64 ``[num_graphs + 1]``."""
    slices, data = dataset.slices, dataset._data
    if slices is None:  # PyG's way to store a single graph
        return torch.tensor([0, data.num_nodes])
    counts = data._store.__dict__.get("_num_nodes")  # PyG's place for the num_nodes of each collated graph
    if counts is None and "num_nodes" not in slices:
        for name in _NODE_ATTRIBUTES:
            if name in slices and isinstance(data[name], Tensor):
                return slices[name]
    if counts is None:
        counts = [int(dataset.get(i).num_nodes) for i in range(len(dataset))]
    return starts(torch.tensor(counts, dtype=torch.int64))


def with_attribute(dataset: D, name: str, level: str, values: Tensor) -> D:
    """Copy a collated dataset and add an attribute; the shared storage is not changed.

    Args:
        dataset: a dataset for which :func:`is_collated` holds.
        name: attribute to write or replace.
        level: ``"node"``, ``"edge"`` or ``"graph"``, to which the rows of ``values`` belong.
        values: ``[num_rows, ...]`` for all nodes, edges or graphs of the dataset in order.

    Raises:
        ValueError: if elements of the dataset are selected.
    """
    if dataset._indices is not None:
        raise ValueError(f"{name} needs rows for the whole storage, but only {len(dataset)} elements are selected")
    result = copy.copy(dataset)
    result._data = copy.copy(dataset._data)
    result._data[name] = values
    result._data_list = None
    if dataset.slices is not None:
        if level == "node":
            slices = node_slices(dataset)
        else:
            slices = dataset.slices["edge_index"] if level == "edge" else torch.arange(len(values) + 1)
        result.slices = {**dataset.slices, name: slices}
    return result


def starts(counts: Tensor) -> Tensor:
    """Return the start of each of consecutive ranges, and the end of the last, int64 ``[len(counts) + 1]``."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def rows_of(slices: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the numbers of rows of some graphs, their starts in a batch, and the position of each row in storage."""
    first = slices[index]
    counts = slices[index + 1] - first
    ptr = starts(counts)
    return counts, ptr, torch.arange(int(ptr[-1])) + (first - ptr[:-1]).repeat_interleave(counts)


def _without_selection(dataset: Any) -> Any:
    """Copy selected graphs from a :func:`plain_storage`, as collating them would; return other datasets themselves."""
    check_sequence(dataset, "expected")
    storage = plain_storage(dataset)
    if storage is None or dataset._indices is None or len(dataset) < 2:
        return dataset
    numbers = dataset.indices()
    source, index = storage._data, torch.tensor(numbers)
    data, slices = Data(), {}
    for name in [name for name in storage.slices if name in source]:
        value, (_, slices[name], rows) = source[name], rows_of(storage.slices[name], index)
        if type(value) is list:
            data[name] = [value[number] for number in numbers]
        else:
            data[name] = value.index_select(source.__cat_dim__(name, value), rows)
    if "_num_nodes" in source._store.__dict__:  # PyG's place for the num_nodes of each collated graph
        counts = node_slices(storage).diff()[index]
        data._store._num_nodes, data.num_nodes = counts.tolist(), int(counts.sum())
    return GraphDataset(data, slices)


def _from_storage(
    dataset: InMemoryDataset, chunk_size: int, attributes: Sequence[str], max_pairs: int | None
) -> Iterator[GraphChunk]:
    data, slices = dataset._data, dataset.slices
    if slices is None:
        present = {name: data[name] for name in attributes if isinstance(data.get(name), Tensor)}
        batch = torch.zeros(data.num_nodes, dtype=torch.int64, device=data.edge_index.device)
        edge_ptr = torch.tensor([0, data.edge_index.size(-1)], device=data.edge_index.device)
        yield GraphChunk(data.edge_index, edge_ptr, data.num_nodes, 1, batch, present)
        return
    device = data.edge_index.device
    node_ptr, edge_ptr = node_slices(dataset).to(device), slices["edge_index"].to(device)
    pairs = starts(node_ptr.diff().square()).cpu()
    stop = 0
    while stop < len(dataset):
        start, stop = stop, min(stop + chunk_size, len(dataset))
        if max_pairs is not None:
            stop = max(start + 1, min(stop, int(torch.searchsorted(pairs, pairs[start] + max_pairs, right=True)) - 1))
        nodes, edges = node_ptr[start : stop + 1], edge_ptr[start : stop + 1]
        present = {
            name: data[name][int(slices[name][start]) : int(slices[name][stop])]
            for name in attributes
            if name in slices and isinstance(data[name], Tensor)
        }
        listed = data.edge_index[:, int(edges[0]) : int(edges[-1])]
        yield _joined(listed, nodes.diff(), edges.diff(), present)
