"""What transforms share: they compute attributes of a graph, of a batch, or of a whole dataset in large batches."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, InMemoryDataset
from torch_geometric.transforms import BaseTransform
from tqdm import tqdm

from tg_lpe.data.storage import is_collated, iterate_chunks, with_attribute
from tg_lpe.graph.incidence import Incidence
from tg_lpe.transforms.attributes import with_features, write_to_batch

CHUNK = 4096
"""Graphs that are encoded at once, at most."""

CHUNK_PAIRS = 2**22
"""Pairs of nodes, graph by graph, that are encoded at once, at most: a matrix of each filter has as many entries."""


class Attribute(NamedTuple):
    """What a transform writes."""

    name: str | None
    """Its name; ``None`` appends the columns of a node attribute to ``x``."""
    level: str
    """What its rows are: ``"node"``, ``"edge"`` (one for each column of ``edge_index``) or ``"graph"``."""
    values: Tensor


class GraphTransform(BaseTransform, ABC):
    """A transform that adds attributes to graphs, computed batch by batch.

    A subclass implements :meth:`compute`. Works on ``Data`` and ``Batch``, without gradient, and changes neither.

    Args:
        edge_weight: name of the attribute that holds conductances, ``None`` to ignore weights.
    """

    features: tuple[str, ...] = ()
    """Which of ``x`` and ``edge_attr`` are read."""

    def __init__(self, edge_weight: str | None) -> None:
        self.edge_weight = edge_weight

    @abstractmethod
    def compute(self, graph: Incidence, features: Mapping[str, Tensor]) -> list[Attribute]:
        """What to write for a graph or batch.

        Args:
            graph: the graph or batch, with its conductances.
            features: those that :attr:`features` names.
        """

    def forward(self, data: Data) -> Data:
        """Write the attributes into ``data``; calling the transform does so on a copy."""
        name = type(self).__name__
        if not isinstance(data, Data):
            raise TypeError(f"{name} takes Data or Batch of one node type, got {type(data).__name__}")
        if data.edge_index is None:
            raise ValueError(
                f"{name} needs edge_index, got data with {data.keys()}; for a graph without edges it is "
                "an empty [2, 0] tensor, and T.ToSparseTensor, which removes it, comes after this transform"
            )
        computed = self._compute(
            data.edge_index,
            data.num_nodes,
            data.get("batch"),  # also of a Data that says which nodes belong together
            data.num_graphs if isinstance(data, Batch) else None,
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
            dataset: a PyG dataset, or a sequence of ``Data``; it is not changed.
            progress: whether to show a progress bar.

        Returns:
            For an ``InMemoryDataset`` (whole, without a transform of its own) a dataset of the same class that shares
            its storage and has the new attributes; otherwise a list of ``Data``.
        """
        if isinstance(dataset, Data):
            raise TypeError(
                f"encode_dataset takes a dataset or a sequence of Data, got one {type(dataset).__name__}; call the "
                "transform itself, or pass a list of one"
            )
        if len(dataset) == 0:
            return dataset if isinstance(dataset, InMemoryDataset) else []
        collated = is_collated(dataset) and getattr(self, "attr_name", "") is not None
        # What is encoded is what is returned: a dataset's own transform may give another graph at each access.
        graphs = [] if collated else [copy.copy(dataset[i]) for i in range(len(dataset))]
        carried = self.features + (() if self.edge_weight is None else (self.edge_weight,))
        parts: list[list[Attribute]] = []
        sizes: list[int] = []
        with tqdm(total=len(dataset), desc="encoding", unit="graph", disable=None if progress else True) as bar:
            for chunk in iterate_chunks(dataset if collated else graphs, CHUNK, carried, CHUNK_PAIRS):
                given = chunk.attributes.get
                parts.append(self._compute(chunk.edge_index, chunk.num_nodes, chunk.batch, chunk.num_graphs, given))
                if not collated:
                    sizes += torch.bincount(chunk.batch, minlength=chunk.num_graphs).tolist()
                bar.update(chunk.num_graphs)
        result = dataset
        for same in zip(*parts, strict=True):
            name, level = same[0].name, same[0].level
            values = torch.cat([part.values for part in same])
            if collated:
                result = with_attribute(result, name, level, values)  # type: ignore[arg-type]
                continue
            edges = [data.edge_index.size(1) for data in graphs]
            rows = values.split({"node": sizes, "edge": edges, "graph": [1] * len(graphs)}[level])
            for data, own in zip(graphs, rows, strict=True):
                _write(data, Attribute(name, level, own))
        return result if collated else graphs

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
                what = "node" if name == "x" else "edge"
                raise ValueError(f"this encoder reads {what} features from data.{name}, got data without {name}")
            features[name] = feature
        with torch.inference_mode():
            graph = Incidence(edge_index, num_nodes, edge_weight=weight, batch=batch, num_graphs=num_graphs)
            computed = self.compute(graph, features)
        # Copied outside of inference mode: tensors that autograd may use.
        return [Attribute(name, level, values.clone()) for name, level, values in computed]


def _write(data: Data, attribute: Attribute) -> None:
    name, level, values = attribute
    if level == "node":
        name, values = name or "x", with_features(data, name, values)
    assert name is not None  # only node attributes may be columns of x
    if isinstance(data, Batch):
        write_to_batch(data, name, level, values)
    else:
        data[name] = values
