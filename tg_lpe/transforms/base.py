"""Base of transforms: compute attributes of a graph, a batch, or a whole dataset in large batches."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset
from torch_geometric.data.hypergraph_data import HyperGraphData
from torch_geometric.transforms import BaseTransform
from tqdm import tqdm

from tg_lpe.arguments import check_choice
from tg_lpe.data.storage import is_collated, iterate_chunks, with_attribute
from tg_lpe.graph.graph import REDUCTIONS, Graph, as_plain
from tg_lpe.ops.blas import torch_threads_for
from tg_lpe.transforms import hetero as heterogeneous
from tg_lpe.transforms.attributes import warn_of_loss, with_features, write_to_batch

EDGE_WEIGHT = "edge_weight"
"""The default name of the conductances, which a graph need not have."""

EXPAND = "the second row of its edge_index numbers hyperedges: make a graph of it, by clique or star expansion"

CHUNK = 4096
"""Graphs that are encoded at once, at most."""

CHUNK_PAIRS = 2**22
"""Pairs of nodes, graph by graph, that are encoded at once, at most: a matrix of each filter has as many entries."""


class Attribute(NamedTuple):
    """An attribute that a transform writes."""

    name: str | None
    """Its name; ``None`` appends the columns of a node attribute to ``x``."""
    level: str
    """Level of its rows: ``"node"``, ``"edge"`` (one for each column of ``edge_index``) or ``"graph"``. Also ``"pair"``
    of nodes, in transforms with an :meth:`GraphTransform.encode_dataset` of their own."""
    values: Tensor


class GraphTransform(BaseTransform, ABC):
    """A transform that adds attributes to graphs, computed batch by batch.

    A subclass implements :meth:`compute`. Works on ``Data`` and ``Batch``, and on ``HeteroData`` if ``hetero`` says
    how, without gradient, and changes none of them.

    Edges count in both directions: an edge that is listed one way only is encoded as if it were listed both ways. Where
    directions matter, take an encoder that is ``directed``, such as :class:`~tg_lpe.encoders.DirectedWalk`, or keep
    them as features of edges or nodes, which models and attention layers read beside the encoding.

    Args:
        edge_weight: name of the attribute that holds conductances, ``None`` to ignore weights. ``"edge_weight"`` need
            not be there; another name must be an attribute of the graph, or of some graph of a dataset.
        reduce: how weights of an edge that is listed several times are merged, ``"error"``, ``"add"`` or ``"mean"``, as
            :class:`~tg_lpe.Graph`.
        hetero: what is done with ``HeteroData``. ``"error"``: it is refused. ``"whole"``: all its nodes and edges are
            one graph, as ``to_homogeneous`` makes it, and each node type gets its rows. ``"edge_type"``: each edge
            type, with the nodes at both its ends, is a graph of its own; its encoding of the nodes is written to an
            attribute with the edge type in its name, such as ``pe_user__rates__film``.

    Raises:
        TypeError: if ``edge_weight`` is no name.
        ValueError: on an unknown ``reduce`` or ``hetero``.
    """

    features: tuple[str, ...] = ()
    """Which of ``x`` and ``edge_attr`` are read."""

    def __init__(self, edge_weight: str | None, reduce: str = "error", hetero: str = "error") -> None:
        check_choice("reduce", reduce, REDUCTIONS)
        check_choice("hetero", hetero, heterogeneous.HETERO)
        if not isinstance(edge_weight, str | None):
            raise TypeError(f"edge_weight must be the name of an attribute or None, got {edge_weight!r}")
        self.edge_weight = edge_weight
        self.reduce = reduce
        self.hetero = hetero

    @abstractmethod
    def compute(self, graph: Graph, features: Mapping[str, Tensor]) -> list[Attribute]:
        """Compute what to write for a graph or batch.

        Args:
            graph: the graph or batch, with its conductances.
            features: those that :attr:`features` names.
        """

    def forward(self, data: Data | HeteroData) -> Data | HeteroData:
        """Write the attributes into ``data``; calling the transform does so on a copy.

        Raises:
            TypeError: if ``data`` is no graph that the transform takes.
            ValueError: if it has no ``edge_index``, lacks features or the weights that are named, or is malformed.
        """
        name = type(self).__name__
        num_graphs = getattr(data, "num_graphs", None) if isinstance(data, Batch) else None  # one made by hand has none
        if isinstance(data, HeteroData) and self.hetero != "error":
            self._check_weight([data])
            parts = [
                (part, self._compute(part.edge_index, part.row.numel(), part.batch, num_graphs, part.attribute))
                for part in heterogeneous.parts(data, self.hetero)
            ]
            for part, computed in parts:  # all were computed from the features as they were
                for attribute in computed:
                    heterogeneous.write(part, *attribute)
            return data
        if not isinstance(data, Data) or isinstance(data, HyperGraphData):
            raise TypeError(_not_one_graph(name, data))
        if data.edge_index is None:
            raise ValueError(
                f"{name} needs edge_index, got data with {data.keys()}; for a graph without edges it is "
                "an empty [2, 0] tensor, and T.ToSparseTensor, which removes it, comes after this transform"
            )
        self._check_weight([data])
        computed = self._compute(
            data.edge_index,
            data.num_nodes,
            data.get("batch"),  # also of a Data that says which nodes belong together
            num_graphs,
            data.get,
        )
        for attribute in computed:
            _write(data, attribute)
        return data

    def encode_dataset(
        self, dataset: InMemoryDataset | Sequence[Data], progress: bool = True
    ) -> InMemoryDataset | list[Data]:
        """Encode all graphs of a dataset in large batches, many times faster than one by one.

        Args:
            dataset: a PyG dataset, or a sequence of ``Data``; it is not changed. ``HeteroData`` are encoded one by one.
            progress: whether to show a progress bar.

        Returns:
            For an ``InMemoryDataset`` (whole, without ``transform`` or ``get`` of its own) a dataset of the same class
            that shares its storage and has the new attributes; otherwise a list of ``Data``.

        Raises:
            TypeError: if ``dataset`` is one graph or no sequence, or an element is no graph, or a batch of several.
            ValueError: if a graph is refused, as when the transform is called with it.
        """
        check_dataset(dataset)
        if len(dataset) == 0:
            return dataset if isinstance(dataset, InMemoryDataset) else []
        collated = is_collated(dataset)
        # What is encoded is what is returned: a dataset's own transform may give another graph at each access.
        graphs = [] if collated else [copy.copy(dataset[i]) for i in range(len(dataset))]
        wrong = next((number for number, data in enumerate(graphs) if not isinstance(data, Data | HeteroData)), None)
        if wrong is not None:
            raise TypeError(f"encode_dataset takes graphs, graph {wrong} is {type(graphs[wrong]).__name__}")
        if any(isinstance(data, HyperGraphData) for data in graphs):
            raise TypeError(f"encode_dataset takes graphs, got HyperGraphData; {EXPAND}")
        if any(isinstance(data, HeteroData) for data in graphs):
            return [self(data) for data in tqdm(graphs, **bar_options(progress))]
        self._check_weight([dataset._data] if collated and isinstance(dataset, InMemoryDataset) else graphs)
        carried = self.features + (() if self.edge_weight is None else (self.edge_weight,))
        parts: list[list[Attribute]] = []
        sizes: list[int] = []
        with tqdm(total=len(dataset), **bar_options(progress)) as bar:
            for chunk in iterate_chunks(dataset if collated else graphs, CHUNK, carried, CHUNK_PAIRS):
                given = chunk.attributes.get
                parts.append(self._compute(chunk.edge_index, chunk.num_nodes, chunk.batch, chunk.num_graphs, given))
                if not collated:
                    sizes += torch.bincount(chunk.batch, minlength=chunk.num_graphs).tolist()
                bar.update(chunk.num_graphs)
        result: Any = dataset
        for same in zip(*parts, strict=True):
            name, level = same[0].name, same[0].level
            values = torch.cat([part.values for part in same])
            if collated:
                warn_of_loss(result._data, name)
                if level == "node":
                    values = with_features(result._data.get("x"), name, values)
                result = with_attribute(result, _written_to(name), level, values)
                continue
            edges = [data.edge_index.size(1) for data in graphs]
            rows = values.split({"node": sizes, "edge": edges, "graph": [1] * len(graphs)}[level])
            for data, own in zip(graphs, rows, strict=True):
                _write(data, Attribute(name, level, own))
        return result if collated else graphs

    def _check_weight(self, graphs: Sequence[Data | HeteroData]) -> None:
        """Refuse graphs none of which has the weights that are named; the default name need not be there."""
        name = self.edge_weight
        if name in (None, EDGE_WEIGHT) or any(name in data.keys() for data in graphs):  # noqa: SIM118 (not a mapping)
            return
        raise ValueError(
            f"edge_weight={name!r} names an attribute that no graph has, got {sorted(set(graphs[0].keys()))}; "
            "edge_weight=None ignores weights"
        )

    def _compute(
        self,
        edge_index: Tensor,
        num_nodes: int | None,
        batch: Tensor | None,
        num_graphs: int | None,
        attribute: Callable[[str], Tensor | None],
    ) -> list[Attribute]:
        edge_index, batch = as_plain(edge_index), as_plain(batch)  # which PyTorch Geometric refuses in inference mode
        weight = None if self.edge_weight is None else attribute(self.edge_weight)
        features = {}
        for name in self.features:
            feature = attribute(name)
            if feature is None:
                what = "node" if name == "x" else "edge"
                raise ValueError(f"this encoder reads {what} features from data.{name}, got data without {name}")
            features[name] = feature
        with torch.inference_mode():
            graph = Graph(
                edge_index, num_nodes, edge_weight=weight, batch=batch, num_graphs=num_graphs, reduce=self.reduce
            )
            with torch_threads_for(8 * graph.num_nodes**3):  # a few products of matrices as large as the graph
                computed = self.compute(graph, features)
        # Copied outside of inference mode: tensors that autograd may use.
        return [Attribute(name, level, values.clone()) for name, level, values in computed]


def _not_one_graph(name: str, data: Any) -> str:
    """Return the error message for what a transform does not take."""
    if isinstance(data, HyperGraphData):
        return f"{name} takes graphs, got HyperGraphData; {EXPAND}"
    if isinstance(data, Sequence | InMemoryDataset):
        return f"{name} takes one graph, got {type(data).__name__}; encode_dataset takes several"
    return (
        f"{name} takes Data or Batch of one node type, got {type(data).__name__}; hetero='whole' encodes HeteroData "
        "as one graph, hetero='edge_type' each edge type by itself"
    )


def check_dataset(dataset: Any) -> None:
    """Refuse what is no dataset, nor a sequence.

    Raises:
        TypeError: if it is one graph, or cannot be indexed.
    """
    what = f"encode_dataset takes a dataset or a sequence of Data, got one {type(dataset).__name__}"
    if isinstance(dataset, Batch):
        raise TypeError(f"{what}; call the transform itself, or pass batch.to_data_list()")
    if isinstance(dataset, Data | HeteroData):
        raise TypeError(f"{what}; call the transform itself, or pass a list of one")
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__") or isinstance(dataset, Mapping):
        raise TypeError(
            f"encode_dataset takes a dataset or a sequence of Data, got {type(dataset).__name__}; pass the dataset "
            "that it reads, or a list"
        )


def bar_options(progress: bool) -> dict[str, Any]:
    """Return the options that all progress bars of encodings have."""
    return {"desc": "encoding", "unit": "graph", "disable": None if progress else True}


def _write(data: Data, attribute: Attribute) -> None:
    name, level, values = attribute
    warn_of_loss(data, name)
    if level == "node":
        values = with_features(data.x, name, values)
    if isinstance(data, Batch):
        write_to_batch(data, _written_to(name), level, values)
    else:
        data[_written_to(name)] = values


def _written_to(name: str | None) -> str:
    return "x" if name is None else name
