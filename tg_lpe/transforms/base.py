"""Base class of transforms: compute attributes of a graph, a batch, or a whole dataset in large batches."""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset
from torch_geometric.data.hypergraph_data import HyperGraphData
from torch_geometric.transforms import BaseTransform
from tqdm import tqdm

from tg_lpe.arguments import WITHOUT_EDGE_INDEX, check_choice
from tg_lpe.data.storage import GraphChunk, check_sequence, in_halves, is_collated, iterate_chunks, with_attribute
from tg_lpe.graph.graph import REDUCTIONS, Graph, counts_of
from tg_lpe.ops.blas import torch_threads_for
from tg_lpe.transforms.attributes import warn_of_loss, with_features, write
from tg_lpe.transforms.hetero import HETERO, Whole

EDGE_WEIGHT = "edge_weight"
"""Default name of edge weights, which a graph need not have."""

CHUNK = 4096
"""Most graphs that are encoded at once."""

CHUNK_PAIRS = 2**22
"""Most pairs of nodes, summed over graphs, that are encoded at once: dense matrices have as many entries."""


class Attribute(NamedTuple):
    """An attribute that a transform writes."""

    name: str | None
    """Name of the attribute; ``None`` appends the columns of a node attribute to ``x``."""
    level: str
    """Level of the rows: ``"node"``, ``"edge"`` (a row for each column of ``edge_index``) or ``"graph"``."""
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
        if isinstance(data, HeteroData) and self.hetero != "error":
            self._check_weight([data])
            num_graphs = getattr(data, "num_graphs", None) if isinstance(data, Batch) else None  # None if made by hand
            whole = Whole.of(data)
            for one in self._compute(whole.edge_index, len(whole.row), whole.batch, num_graphs, whole.attribute):
                whole.write(*one)
            return data
        if not isinstance(data, Data) or isinstance(data, HyperGraphData):
            raise TypeError(_not_one_graph(data))
        if data.edge_index is None:
            raise ValueError(f"a transform needs edge_index, got data with {data.keys()}; {WITHOUT_EDGE_INDEX}")
        self._check_weight([data])
        num_nodes, num_graphs = counts_of(data)
        computed = self._compute(data.edge_index, num_nodes, data.get("batch"), num_graphs, data.get)
        for attribute in computed:
            write(data, None, *attribute)
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
        if isinstance(dataset, Data | HeteroData):
            one = "batch.to_data_list()" if isinstance(dataset, Batch) else "a list of one"
            must = "encode_dataset takes a dataset or a sequence of Data, got one"
            raise TypeError(f"{must} {type(dataset).__name__}; call the transform itself, or pass {one}")
        check_sequence(dataset, "encode_dataset takes")
        if len(dataset) == 0:
            return dataset if isinstance(dataset, InMemoryDataset) else []
        collated = is_collated(dataset)
        # Access each graph only once, because a dataset's transform may return another graph at each access.
        graphs = [] if collated else [copy.copy(dataset[i]) for i in range(len(dataset))]
        for number, data in enumerate(graphs):
            if not isinstance(data, Data | HeteroData) or isinstance(data, HyperGraphData):
                raise TypeError(f"graph {number}: {_not_one_graph(data)}")
        form = {"desc": "encoding", "unit": "graph", "disable": None if progress else True}
        if any(isinstance(data, HeteroData) for data in graphs):
            for number, data in enumerate(tqdm(graphs, **form)):
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
        with tqdm(total=len(dataset), **form) as bar:
            for chunk in iterate_chunks(dataset if collated else graphs, CHUNK, names, CHUNK_PAIRS):
                try:
                    parts.append(self._of_part(chunk, 0, chunk.num_graphs))
                except (ValueError, TypeError) as error:
                    encode = partial(self._of_part, chunk)
                    for number, found in in_halves(encode, 0, chunk.num_graphs, (ValueError, TypeError)):
                        if isinstance(found, str) and len(dataset) > 1:
                            raise _about_graph(start + number, found, error) from error
                    raise
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
                result = with_attribute(result, "x" if name is None else name, level, values)
                continue
            edges = [data.edge_index.size(1) for data in graphs]
            rows = values.split({"node": sizes, "edge": edges, "graph": [1] * len(graphs)}[level])
            for data, data_values in zip(graphs, rows, strict=True):
                write(data, None, name, level, data_values)
        return result if collated else graphs

    def _check_weight(self, graphs: Sequence[Data | HeteroData]) -> None:
        """Check that some graph has the named weights; warn if the default is absent and others look like weights."""
        name = self.edge_weight
        if name is None or any([name in data.keys() for data in graphs]):  # noqa: SIM118 (fewer calls)
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

    def _of_part(self, chunk: GraphChunk, start: int, stop: int) -> list[Attribute]:
        part = chunk.part(start, stop)
        return self._compute(part.edge_index, part.num_nodes, part.batch, part.num_graphs, part.attributes.get)

    def _compute(
        self,
        edge_index: Tensor,
        num_nodes: int | None,
        batch: Tensor | None,
        num_graphs: int | None,
        attribute: Callable[[str], Tensor | None],
    ) -> list[Attribute]:
        weight = None if self.edge_weight is None else attribute(self.edge_weight)
        features = {}
        for name in self.features:
            feature = attribute(name)
            if feature is None:
                level = "node" if name == "x" else "edge"
                raise ValueError(f"this encoder reads {level} features from data.{name}, got data without {name}")
            features[name] = feature
        # Outside of inference mode, in which PyG's tensor subclasses fail.
        graph = Graph(edge_index, num_nodes, edge_weight=weight, batch=batch, num_graphs=num_graphs, reduce=self.reduce)
        with torch.inference_mode(), torch_threads_for(8 * graph.num_nodes**3):  # a few products of dense matrices
            computed = self.compute(graph, features)
        # Copies made outside of inference mode, which autograd may use.
        return [Attribute(name, level, values.clone()) for name, level, values in computed]


def _about_graph(number: int, message: str, error: Exception) -> Exception:
    """Return an error of the same kind that names a graph of the dataset."""
    return (ValueError if isinstance(error, ValueError) else TypeError)(f"graph {number}: {message}")


def _not_one_graph(data: Any) -> str:
    """Return the error message for an unsupported type of data."""
    hint = "write Data(edge_index=edge_index, num_nodes=n)"
    if isinstance(data, HyperGraphData):
        hint = "its edge_index numbers hyperedges: make a graph of it, by clique or star expansion"
    elif isinstance(data, Sequence | InMemoryDataset):
        hint = "encode_dataset takes several"
    elif isinstance(data, HeteroData):
        hint = "hetero='whole' encodes it as one graph"
    return f"a transform takes Data or Batch of one node type, got {type(data).__name__}; {hint}"
