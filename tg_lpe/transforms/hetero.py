"""Graphs of several node and edge types: which part is encoded as one graph, and where its rows go."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Batch, HeteroData

from tg_lpe.data.storage import RESERVED
from tg_lpe.graph.graph import as_plain, check_edge_index
from tg_lpe.transforms.attributes import warn_of_loss, with_features

EdgeType = tuple[str, str, str]

HETERO = ("error", "whole", "edge_type")
"""Ways to treat ``HeteroData``: refuse it, encode it as one graph, or each edge type by itself."""


class Part(NamedTuple):
    """Some node and edge types of a heterogeneous graph as one graph, as ``HeteroData.to_homogeneous`` makes it.

    In a batch, nodes are sorted by graph, which :class:`~tg_lpe.Graph` needs; :attr:`row` says where each one went.
    """

    data: HeteroData
    node_types: list[str]
    edge_types: list[EdgeType]
    suffix: str
    """Ending of the name of a node attribute, so that parts of one graph do not overwrite each other's."""
    edge_index: Tensor
    """int64 ``[2, num_directed_edges]``."""
    row: Tensor
    """Node of :attr:`edge_index` that each node is, type by type, int64 ``[num_nodes]``."""
    batch: Tensor | None

    def attribute(self, name: str) -> Tensor | None:
        """An attribute of the nodes if it is ``x``, of the edges otherwise, in the order of the part.

        Raises:
            TypeError: if it is no tensor.
            ValueError: if some types have it and others do not, or their widths differ.
        """
        types = self.node_types if name == "x" else self.edge_types
        found = {kind: self.data[kind].get(name) for kind in types}
        for kind, value in found.items():
            if value is not None and not isinstance(value, Tensor):
                raise TypeError(f"{name} of {kind} must be a tensor, got {type(value).__name__}")
        if all(value is None for value in found.values()):
            return None
        forms = {kind: None if value is None else list(value.shape[1:]) for kind, value in found.items()}
        if len(set(map(str, forms.values()))) > 1:
            raise ValueError(
                f"{name} of types that are encoded as one graph must have one form [num_rows, ...], and be there for "
                f"all or none, got {forms}"
            )
        values = torch.cat(list(found.values()))
        return values[self.row.argsort()] if name == "x" else values

    def split(self, level: str, values: Tensor) -> Iterator[tuple[str | EdgeType | None, Tensor]]:
        """Rows of nodes or edges by type; those of graphs belong to ``None``, the whole, or to the edge type."""
        if level == "node":
            sizes = [self.data[kind].num_nodes for kind in self.node_types]
            yield from zip(self.node_types, values[self.row].split(sizes), strict=True)
        elif level == "edge":
            sizes = [self.data[kind].edge_index.size(1) for kind in self.edge_types]
            yield from zip(self.edge_types, values.split(sizes), strict=True)
        else:
            yield (self.edge_types[0] if self.suffix else None), values


def parts(data: HeteroData, hetero: str) -> Iterator[Part]:
    """The parts of a graph or batch that are encoded by themselves.

    Args:
        data: the graph or batch.
        hetero: ``"whole"`` or ``"edge_type"``.

    Raises:
        TypeError: if an ``edge_index`` is no tensor.
        ValueError: if there are no edge types, an edge type has no ``edge_index``, a malformed one, or one that points
            outside of its node types; if the number of nodes of a type is not known, or not all types have ``batch``.
    """
    if not data.edge_types:
        raise ValueError(f"HeteroData needs at least one edge type, got node types {data.node_types} alone")
    if hetero == "whole":
        yield _part(data, data.node_types, data.edge_types, "")
        return
    for kind in data.edge_types:
        yield _part(data, list(dict.fromkeys((kind[0], kind[2]))), [kind], f"_{'__'.join(kind)}")


def _part(data: HeteroData, node_types: list[str], edge_types: list[EdgeType], suffix: str) -> Part:
    ends = (kind for edge_type in edge_types for kind in (edge_type[0], edge_type[2]))
    for kind in dict.fromkeys((*node_types, *ends)):
        if kind not in data.node_types or data[kind].num_nodes is None:
            raise ValueError(f"node type {kind!r} has neither features nor num_nodes")
    for edge_type in edge_types:
        if data[edge_type].get("edge_index") is None:
            raise ValueError(f"edge type {edge_type} has no edge_index")
        try:
            check_edge_index(data[edge_type].edge_index)
        except (TypeError, ValueError) as error:
            raise type(error)(f"edge type {edge_type}: {error}") from None
        for ends, kind in zip(as_plain(data[edge_type].edge_index), (edge_type[0], edge_type[2]), strict=True):
            # Beyond its own type a number would mean a node of another one.
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
    """Put an attribute into the graph or batch, each row where its node, edge or graph is.

    Args:
        part: what was encoded.
        name: the attribute; ``None`` appends columns to ``x`` of the nodes.
        level: ``"node"``, ``"edge"`` or ``"graph"``.
        values: ``[num_rows, ...]``, in the order of the part.

    Raises:
        ValueError: if PyG would read the name, with an edge type in it, as one of node numbers.
    """
    data = part.data
    for kind, rows in part.split(level, values):
        store, own = data if kind is None else data[kind], "x" if name is None else name
        if level == "node":
            own += "" if name is None else part.suffix
            if any(word in own for word in RESERVED):
                raise ValueError(
                    f"the encoding of nodes would be named {own!r}, which PyTorch Geometric reads as node numbers; "
                    "rename the edge type, or use attr_name=None, which appends to x"
                )
            rows = with_features(store.get("x"), name, rows)
        warn_of_loss(store, own if name is not None else None)
        setattr(store, own, rows)
        if isinstance(data, Batch):
            _record_slices(data, kind, own, level)


def _record_slices(batch: Batch, kind: str | EdgeType | None, name: str, level: str) -> None:
    """Note where each graph begins in an attribute, by which PyTorch Geometric takes a batch apart."""
    slices, offsets = getattr(batch, "_slice_dict", None), getattr(batch, "_inc_dict", None)
    if slices is None or offsets is None:
        return  # a batch that was not made from a list cannot be taken apart anyway
    if level == "graph":
        start = torch.arange(batch.num_graphs + 1)
    else:
        start = batch[kind].ptr if level == "node" else slices[kind]["edge_index"]
    zero = torch.zeros(batch.num_graphs, dtype=torch.int64)
    for attribute, given, value in (("_slice_dict", slices, start), ("_inc_dict", offsets, zero)):
        own = {name: value} if kind is None else {kind: {**given.get(kind, {}), name: value}}
        setattr(batch, attribute, {**given, **own})
