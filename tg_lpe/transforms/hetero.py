"""Graphs of several node and edge types: split them into parts to encode, and write the encodings back."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Batch, HeteroData

from tg_lpe.arguments import WITHOUT_EDGE_INDEX, as_plain
from tg_lpe.data.storage import RESERVED
from tg_lpe.graph.graph import check_edge_index
from tg_lpe.transforms.attributes import record_slices, warn_of_loss, with_features

EdgeType = tuple[str, str, str]

HETERO = ("error", "whole", "edge_type")
"""Ways to treat ``HeteroData``: raise an error, encode it as one graph, or encode each edge type separately."""


class Part(NamedTuple):
    """Some node and edge types of a heterogeneous graph as one graph, as in ``HeteroData.to_homogeneous``.

    In a batch, nodes are sorted by graph, as :class:`~tg_lpe.Graph` requires; :attr:`row` is their new order.
    """

    data: HeteroData
    node_types: list[str]
    edge_types: list[EdgeType]
    suffix: str
    """Suffix of the names of node attributes, so that parts of a graph do not overwrite each other's."""
    edge_index: Tensor
    """int64 ``[2, num_directed_edges]``."""
    row: Tensor
    """Number in :attr:`edge_index` of each node, type by type, int64 ``[num_nodes]``."""
    batch: Tensor | None

    def attribute(self, name: str) -> Tensor | None:
        """Return the node attribute ``x`` or an edge attribute, in the order of the part.

        Raises:
            TypeError: if an attribute is not a tensor.
            ValueError: if only some types have the attribute, or its widths differ.
        """
        types = self.node_types if name == "x" else self.edge_types
        tensors = {kind: self.data[kind].get(name) for kind in types}
        for kind, value in tensors.items():
            if value is not None and not isinstance(value, Tensor):
                raise TypeError(f"{name} of {kind} must be a tensor, got {type(value).__name__}")
        if all(value is None for value in tensors.values()):
            return None
        forms = {kind: None if value is None else list(value.shape[1:]) for kind, value in tensors.items()}
        if len(set(map(str, forms.values()))) > 1:
            raise ValueError(
                f"{name} of types that are encoded as one graph must have one form [num_rows, ...], and be there for "
                f"all or none, got {forms}"
            )
        values = torch.cat(list(tensors.values()))
        return values[self.row.argsort()] if name == "x" else values

    def split(self, level: str, values: Tensor) -> Iterator[tuple[str | EdgeType | None, Tensor]]:
        """Yield rows of nodes or edges by type; rows of graphs belong to the edge type, or to ``None`` for a whole."""
        if level == "node":
            sizes = [self.data[kind].num_nodes for kind in self.node_types]
            yield from zip(self.node_types, values[self.row].split(sizes), strict=True)
        elif level == "edge":
            sizes = [self.data[kind].edge_index.size(1) for kind in self.edge_types]
            yield from zip(self.edge_types, values.split(sizes), strict=True)
        else:
            yield (self.edge_types[0] if self.suffix else None), values


def parts(data: HeteroData, hetero: str) -> Iterator[Part]:
    """Yield the parts of a graph or batch that are encoded separately.

    Args:
        data: the graph or batch.
        hetero: ``"whole"`` or ``"edge_type"``.

    Raises:
        TypeError: if an ``edge_index`` is not a tensor.
        ValueError: if there are no edge types, an ``edge_index`` is missing, malformed or out of the range of its node
            types, the number of nodes of a type is unknown, or only some types have ``batch``.
    """
    if not data.edge_types:
        raise ValueError(f"HeteroData needs at least one edge type, got only the node types {data.node_types}")
    if hetero == "whole":
        yield _part(data, data.node_types, data.edge_types, "")
        return
    for kind in data.edge_types:
        yield _part(data, list(dict.fromkeys((kind[0], kind[2]))), [kind], f"_{'__'.join(kind)}")


def _part(data: HeteroData, node_types: list[str], edge_types: list[EdgeType], suffix: str) -> Part:
    ends = (kind for edge_type in edge_types for kind in (edge_type[0], edge_type[2]))
    for kind in dict.fromkeys((*node_types, *ends)):
        if kind not in data.node_types or data[kind].num_nodes is None:
            raise ValueError(f"node type {kind!r} has neither features nor num_nodes; set data[{kind!r}].num_nodes")
    for edge_type in edge_types:
        if data[edge_type].get("edge_index") is None:
            raise ValueError(f"edge type {edge_type} has no edge_index; {WITHOUT_EDGE_INDEX}")
        try:
            check_edge_index(data[edge_type].edge_index)
        except (TypeError, ValueError) as error:
            raise type(error)(f"edge type {edge_type}: {error}") from None
        for ends, kind in zip(as_plain(data[edge_type].edge_index), (edge_type[0], edge_type[2]), strict=True):
            # A number out of range would mean a node of another type.
            if ((ends < 0) | (ends >= data[kind].num_nodes)).any():
                raise ValueError(
                    f"edge_index of {edge_type} must be in 0..{data[kind].num_nodes - 1} for the nodes {kind!r}, got "
                    f"{int(ends.min())}..{int(ends.max())}"
                )
    sizes = [data[kind].num_nodes for kind in node_types]
    start = dict(zip(node_types, itertools.accumulate(sizes, initial=0), strict=False))
    device = data[edge_types[0]].edge_index.device
    edges = [
        as_plain(data[kind].edge_index) + torch.tensor([[start[kind[0]]], [start[kind[2]]]], device=device)
        for kind in edge_types
    ]
    row, batch = torch.arange(sum(sizes), device=device), None
    batched = [kind for kind in node_types if "batch" in data[kind]]
    if 0 < len(batched) < len(node_types):
        raise ValueError(
            f"batch must be there for all node types or none, got node types {node_types} and batch of {batched}"
        )
    if batched:
        batch, order = torch.cat([data[kind].batch for kind in node_types]).sort(stable=True)
        row = torch.empty_like(order).index_copy(0, order, row)
    return Part(data, node_types, edge_types, suffix, row[torch.cat(edges, dim=1)], row, batch)


def write(part: Part, name: str | None, level: str, values: Tensor) -> None:
    """Write an attribute to the graph or batch.

    Args:
        part: the part that was encoded.
        name: the attribute; ``None`` appends columns to ``x`` of the nodes.
        level: ``"node"``, ``"edge"`` or ``"graph"``.
        values: ``[num_rows, ...]``, in the order of the part.

    Raises:
        ValueError: if PyG would read the name with the edge type in it as node numbers.
    """
    data = part.data
    for kind, rows in part.split(level, values):
        store, key = data if kind is None else data[kind], "x" if name is None else name
        if level == "node":
            key += "" if name is None else part.suffix
            if any(word in key for word in RESERVED):
                raise ValueError(
                    f"the encoding of nodes would be named {key!r}, which PyTorch Geometric reads as node numbers; "
                    "rename the edge type, or use attr_name=None, which appends to x"
                )
            rows = with_features(store.get("x"), name, rows)
        warn_of_loss(store, key if name is not None else None)
        setattr(store, key, rows)
        if isinstance(data, Batch):
            record_slices(data, kind, key, level)
