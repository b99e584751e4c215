"""Base class of transforms: compute attributes of a graph, a batch, or a whole dataset in large batches."""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset
from torch_geometric.data.hypergraph_data import HyperGraphData
from torch_geometric.transforms import BaseTransform
from tqdm import tqdm

from tg_lpe.arguments import WITHOUT_EDGE_INDEX, as_plain, check_choice
from tg_lpe.data.storage import GraphChunk, check_sequence, in_halves, is_collated, iterate_chunks, with_attribute
from tg_lpe.graph.graph import REDUCTIONS, Graph, counts_of
from tg_lpe.ops.blas import torch_threads_for
from tg_lpe.transforms.attributes import record_slices, warn_of_loss, with_features
from tg_lpe.transforms.hetero import HETERO, Whole

EDGE_WEIGHT = "edge_weight"
"""Default name of edge weights, which a graph need not have."""

EXPAND = "the second row of its edge_index numbers hyperedges: make a graph of it, by clique or star expansion"

CHUNK = 4096
"""Most graphs that are encoded at once."""

CHUNK_PAIRS = 2**22
"""Most pairs of nodes, summed over graphs, that are encoded at once: dense matrices have as many entries."""


class Attribute(NamedTuple):
    """An attribute that a transform writes."""

    name: str | None
    """Name of the attribute; ``None`` appends the columns of a node attribute to ``x``."""
    level: str
    """Level of the rows: ``"node"``, ``"edge"`` (a row for each column of ``edge_index``) or ``"graph"``; also
    ``"pair"`` of nodes, if the transform is :attr:`~GraphTransform.one_by_one`."""
    values: Tensor


class GraphTransform(BaseTransform, ABC):
    """Base class of transforms that add attributes to graphs, computed batch by batch.

    A subclass implements :meth:`compute`. A transform works on ``Data`` and ``Batch``, and on ``HeteroData`` if
    ``hetero`` allows it. It computes no gradient and does not change its input.

    Directions of edges are dropped: an edge that is listed in one direction is encoded as if it were listed in both. If
    directions matter, choose an encoder that is ``directed``, such as :class:`~tg_lpe.encoders.DirectedWalk`, or keep
    them in the edge or node features that your model reads in addition to the encoding.

    Args:
        edge_weight: name of the attribute with edge weights, ``None`` to ignore weights. ``"edge_weight"`` may be
            absent; any other name must exist in the graph, or in some graph of a dataset.
        reduce: how to merge the weights of an edge that is listed several times, ``"error"``, ``"add"`` or ``"mean"``,
            see :class:`~tg_lpe.Graph`.
        hetero: how to treat ``HeteroData``: ``"error"`` raises an error, ``"whole"`` encodes all nodes and edges as one
            graph, as in ``to_homogeneous``, and writes to each type its rows.

    Raises:
        TypeError: if ``edge_weight`` is not a name.
        ValueError: if ``reduce`` or ``hetero`` is unknown.

    Warns:
        UserWarning: when it is called, if graphs have no ``edge_weight``, but a number for each edge in ``weight`` or
            ``edge_attr``.
    """

    features: tuple[str, ...] = ()
    """The features that are read: some of ``x`` and ``edge_attr``."""
    one_by_one: bool = False
    """Whether :meth:`encode_dataset` encodes each graph separately, into a list."""

    def __init__(self, edge_weight: str | None, reduce: str = "error", hetero: str = "error") -> None:
        check_choice("reduce", reduce, REDUCTIONS)
        check_choice("hetero", hetero, HETERO)
        if not isinstance(edge_weight, str | None):
            raise TypeError(f"edge_weight must be the name of an attribute or None, got {edge_weight!r}")
        self.edge_weight = edge_weight
        self.reduce = reduce
        self.hetero = hetero

    @abstractmethod
    def compute(self, graph: Graph, features: Mapping[str, Tensor]) -> list[Attribute]:
        """Compute the attributes of a graph or batch.

        Args:
            graph: the graph or batch, with its edge weights.
            features: the features listed in :attr:`features`.
        """

    def forward(self, data: Data | HeteroData) -> Data | HeteroData:
        """Write the attributes to ``data``; calling the transform writes them to a copy.

        Raises:
            TypeError: if ``data`` is not a supported type of graph.
            ValueError: if ``edge_index``, a required feature or a named edge weight is missing, or the graph is
                malformed.
        """
        name = type(self).__name__
        if isinstance(data, HeteroData) and self.hetero != "error":
            self._check_weight([data])
            num_graphs = getattr(data, "num_graphs", None) if isinstance(data, Batch) else None  # None if made by hand
            whole = Whole.of(data)
            for one in self._compute(whole.edge_index, len(whole.row), whole.batch, num_graphs, whole.attribute):
                whole.write(*one)
            return data
        if not isinstance(data, Data) or isinstance(data, HyperGraphData):
            raise TypeError(_not_one_graph(name, data))
        if data.edge_index is None:
            raise ValueError(f"{name} needs edge_index, got data with {data.keys()}; {WITHOUT_EDGE_INDEX}")
        self._check_weight([data])
        num_nodes, num_graphs = counts_of(data)
        computed = self._compute(data.edge_index, num_nodes, data.get("batch"), num_graphs, data.get)
        for attribute in computed:
            _write(data, attribute)
        return data

    def encode_dataset(
        self, dataset: InMemoryDataset | Sequence[Data], progress: bool = True
    ) -> InMemoryDataset | list[Data]:
        """Encode all graphs of a dataset in large batches, many times faster than one by one.

        Args:
            dataset: a PyG dataset or a sequence of ``Data``; it is not changed. ``HeteroData`` are encoded one by one.
            progress: whether to show a progress bar.

        Returns:
            For an ``InMemoryDataset``, a dataset of the same class that shares its storage and has the new attributes;
            for a subset of one, for one with a ``transform`` or its own ``get``, and for other sequences, a list of
            ``Data``.

        Raises:
            TypeError: if ``dataset`` is a single graph or not a sequence, or an element is not a single graph.
            ValueError: if a graph is invalid, see :meth:`forward`.
        """
        check_dataset(dataset)
        if len(dataset) == 0:
            return dataset if isinstance(dataset, InMemoryDataset) else []
        collated = is_collated(dataset) and not self.one_by_one
        # Access each graph only once, because a dataset's transform may return another graph at each access.
        graphs = [] if collated else [copy.copy(dataset[i]) for i in range(len(dataset))]
        wrong = next((number for number, data in enumerate(graphs) if not isinstance(data, Data | HeteroData)), None)
        if wrong is not None:
            raise TypeError(f"encode_dataset takes graphs, graph {wrong} is {type(graphs[wrong]).__name__}")
        if any(isinstance(data, HyperGraphData) for data in graphs):
            raise TypeError(f"encode_dataset takes graphs, got HyperGraphData; {EXPAND}")
        if self.one_by_one or any(isinstance(data, HeteroData) for data in graphs):
            for number, data in enumerate(tqdm(graphs, **bar_options(progress))):
                try:
                    graphs[number] = self(data)
                except (ValueError, TypeError) as error:
                    raise _about_graph(number, str(error), error) from error
            return graphs
        self._check_weight([dataset._data] if collated and isinstance(dataset, InMemoryDataset) else graphs)
        names = self.features + (() if self.edge_weight is None else (self.edge_weight,))
        parts: list[list[Attribute]] = []
        sizes: list[int] = []
        start = 0
        with tqdm(total=len(dataset), **bar_options(progress)) as bar:
            for chunk in iterate_chunks(dataset if collated else graphs, CHUNK, names, CHUNK_PAIRS):
                try:
                    parts.append(self._of_chunk(chunk))
                except (ValueError, TypeError) as error:
                    refused = self._first_refused(chunk) if len(dataset) > 1 else None
                    if refused is None:
                        raise
                    raise _about_graph(start + refused[0], refused[1], error) from error
                start += chunk.num_graphs
                if not collated:
                    sizes += torch.bincount(chunk.batch, minlength=chunk.num_graphs).tolist()
                bar.update(chunk.num_graphs)
        result: Any = dataset
        for chunks in zip(*parts, strict=True):
            name, level = chunks[0].name, chunks[0].level
            values = torch.cat([part.values for part in chunks])
            if collated:
                warn_of_loss(result._data, name)
                if level == "node":
                    values = with_features(result._data.get("x"), name, values)
                result = with_attribute(result, _written_to(name), level, values)
                continue
            edges = [data.edge_index.size(1) for data in graphs]
            rows = values.split({"node": sizes, "edge": edges, "graph": [1] * len(graphs)}[level])
            for data, data_values in zip(graphs, rows, strict=True):
                _write(data, Attribute(name, level, data_values))
        return result if collated else graphs

    def _check_weight(self, graphs: Sequence[Data | HeteroData]) -> None:
        """Check that some graph has the named weights; warn if the default is absent and others look like weights."""
        name = self.edge_weight
        if name is None or any(name in data.keys() for data in graphs):  # noqa: SIM118 (not a mapping)
            return
        if name != EDGE_WEIGHT:
            raise ValueError(
                f"edge_weight={name!r} names an attribute that no graph has, got {sorted(set(graphs[0].keys()))}; "
                "edge_weight=None ignores weights"
            )
        first = graphs[0]
        for other in ("weight", "edge_attr") if isinstance(first, Data) else ():
            values = first.get(other) if other not in self.features else None
            if not isinstance(values, Tensor) or values.shape != (first.num_edges,):
                continue
            if other == "weight" or values.is_floating_point():
                warnings.warn(
                    f"{type(self).__name__} does not read data.{other}, which has a number for each edge; if these are "
                    f"weights, pass edge_weight={other!r}, and if not, edge_weight=None",
                    stacklevel=4,  # the call of the transform
                )

    def _of_chunk(self, chunk: GraphChunk) -> list[Attribute]:
        return self._compute(chunk.edge_index, chunk.num_nodes, chunk.batch, chunk.num_graphs, chunk.attributes.get)

    def _first_refused(self, chunk: GraphChunk) -> tuple[int, str] | None:
        """Return the first graph of a chunk that cannot be encoded by itself, and why; ``None`` without one."""

        def encoded(start: int, stop: int) -> list[Attribute]:
            return self._of_chunk(chunk.part(start, stop))

        results = in_halves(encoded, 0, chunk.num_graphs, (ValueError, TypeError))
        return next(((number, result) for number, result in results if isinstance(result, str)), None)

    def _compute(
        self,
        edge_index: Tensor,
        num_nodes: int | None,
        batch: Tensor | None,
        num_graphs: int | None,
        attribute: Callable[[str], Tensor | None],
    ) -> list[Attribute]:
        edge_index, batch = as_plain(edge_index), as_plain(batch)  # PyG's tensor subclasses fail in inference mode
        weight = None if self.edge_weight is None else attribute(self.edge_weight)
        features = {}
        for name in self.features:
            feature = attribute(name)
            if feature is None:
                level = "node" if name == "x" else "edge"
                raise ValueError(f"this encoder reads {level} features from data.{name}, got data without {name}")
            features[name] = feature
        with torch.inference_mode():
            graph = Graph(
                edge_index, num_nodes, edge_weight=weight, batch=batch, num_graphs=num_graphs, reduce=self.reduce
            )
            with torch_threads_for(8 * graph.num_nodes**3):  # a few products of dense matrices
                computed = self.compute(graph, features)
        # Copies made outside of inference mode, which autograd may use.
        return [Attribute(name, level, values.clone()) for name, level, values in computed]


def _about_graph(number: int, message: str, error: Exception) -> Exception:
    """Return an error of the same kind that names a graph of the dataset."""
    return (ValueError if isinstance(error, ValueError) else TypeError)(f"graph {number}: {message}")


def _not_one_graph(name: str, data: Any) -> str:
    """Return the error message for an unsupported type of data."""
    if isinstance(data, HyperGraphData):
        return f"{name} takes graphs, got HyperGraphData; {EXPAND}"
    if isinstance(data, Sequence | InMemoryDataset):
        return f"{name} takes one graph, got {type(data).__name__}; encode_dataset takes several"
    if isinstance(data, HeteroData):
        ways = "hetero='whole' encodes it as one graph"
    else:
        ways = "write Data(edge_index=edge_index, num_nodes=n); torch_geometric.utils has from_networkx and others"
    return f"{name} takes Data or Batch of one node type, got {type(data).__name__}; {ways}"


def check_dataset(dataset: Any) -> None:
    """Raise ``TypeError`` if ``dataset`` is a single graph or cannot be indexed."""
    message = f"encode_dataset takes a dataset or a sequence of Data, got one {type(dataset).__name__}"
    if isinstance(dataset, Batch):
        raise TypeError(f"{message}; call the transform itself, or pass batch.to_data_list()")
    if isinstance(dataset, Data | HeteroData):
        raise TypeError(f"{message}; call the transform itself, or pass a list of one")
    check_sequence(dataset, "encode_dataset takes")


def bar_options(progress: bool) -> dict[str, Any]:
    """Return the common options of progress bars."""
    return {"desc": "encoding", "unit": "graph", "disable": None if progress else True}


def _write(data: Data, attribute: Attribute) -> None:
    name, level, values = attribute
    warn_of_loss(data, name)
    if level == "node":
        values = with_features(data.x, name, values)
    data[_written_to(name)] = values
    if isinstance(data, Batch):
        record_slices(data, None, _written_to(name), level)


def _written_to(name: str | None) -> str:
    return "x" if name is None else name
