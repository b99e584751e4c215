"""Graphs of several node and edge types: encode them as one graph, and write the encodings back to the types."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from tg_lpe.arguments import as_plain
from tg_lpe.graph.graph import check_edge_index
from tg_lpe.transforms.attributes import write

HETERO = ("error", "whole")
"""Ways to treat ``HeteroData``: raise an error, or encode it as one graph."""


class Whole(NamedTuple):
    """All node and edge types of a heterogeneous graph as one graph, as in ``HeteroData.to_homogeneous``.

    In a batch, nodes are sorted by graph, as :class:`~tg_lpe.Graph` requires; :attr:`row` is their new order.
    """

    data: HeteroData
    edge_index: Tensor
    """int64 ``[2, num_directed_edges]``."""
    row: Tensor
    """Number in :attr:`edge_index` of each node, type by type, int64 ``[num_nodes]``."""
    batch: Tensor | None

    @classmethod
    def of(cls, data: HeteroData) -> Whole:
        """Join the types of a graph or batch.

        Raises:
            TypeError: if an ``edge_index`` is missing or not a tensor.
            ValueError: if there are no edge types, an ``edge_index`` is malformed or out of range of its node types, or
                the number of nodes of a type is unknown.
        """
        if not data.edge_types:
            raise ValueError(f"HeteroData needs at least one edge type, got only the node types {data.node_types}")
        ends = (end for source, _, target in data.edge_types for end in (source, target))
        for kind in dict.fromkeys((*data.node_types, *ends)):
            if kind not in data.node_types or data[kind].num_nodes is None:
                raise ValueError(f"node type {kind!r} has neither features nor num_nodes; set data[{kind!r}].num_nodes")
        sizes = [data[kind].num_nodes for kind in data.node_types]
        start = dict(zip(data.node_types, itertools.accumulate(sizes, initial=0), strict=False))
        edges = []
        for kind in data.edge_types:
            check_edge_index(data[kind].get("edge_index"))
            for nodes, end in zip(as_plain(data[kind].edge_index), (kind[0], kind[2]), strict=True):
                # A number out of range would mean a node of another type.
                if ((nodes < 0) | (nodes >= data[end].num_nodes)).any():
                    raise ValueError(
                        f"edge_index of {kind} must be in 0..{data[end].num_nodes - 1} for the nodes {end!r}, got "
                        f"{int(nodes.min())}..{int(nodes.max())}"
                    )
                edges.append(nodes + start[end])
        edge_index = torch.stack([torch.cat(edges[::2]), torch.cat(edges[1::2])])
        row = torch.arange(sum(sizes), device=edge_index.device)
        if not any("batch" in data[kind] for kind in data.node_types):
            return cls(data, edge_index, row, None)
        batch, order = torch.cat([data[kind].batch for kind in data.node_types]).sort(stable=True)
        row = torch.empty_like(order).index_copy(0, order, row)
        return cls(data, row[edge_index], row, batch)

    def attribute(self, name: str) -> Tensor | None:
        """Return the node attribute ``x`` or an edge attribute of all types.

        Raises:
            ValueError: if only some types have the attribute, its widths differ, or it is not a tensor.
        """
        types = self.data.node_types if name == "x" else self.data.edge_types
        tensors = [self.data[kind].get(name) for kind in types]
        if all(value is None for value in tensors):
            return None
        forms = [list(value.shape[1:]) if isinstance(value, Tensor) else type(value).__name__ for value in tensors]
        if not isinstance(tensors[0], Tensor) or any(form != forms[0] for form in forms):
            told = dict(zip(types, forms, strict=True))
            raise ValueError(
                f"{name} must be a tensor of one form [num_rows, ...] for all types or for none, got {told}"
            )
        values = torch.cat(tensors)
        return values[self.row.argsort()] if name == "x" else values

    def write(self, name: str | None, level: str, values: Tensor) -> None:
        """Write an attribute to the types.

        Args:
            name: the attribute; ``None`` appends columns to ``x`` of the nodes.
            level: ``"node"``, ``"edge"`` or ``"graph"``.
            values: ``[num_rows, ...]``, in the order of this graph.
        """
        data, kinds, sizes = self.data, [None], [len(values)]  # one attribute of the whole
        if level == "node":
            kinds, sizes, values = data.node_types, [data[kind].num_nodes for kind in data.node_types], values[self.row]
        elif level == "edge":
            kinds, sizes = data.edge_types, [data[kind].edge_index.size(1) for kind in data.edge_types]
        for kind, rows in zip(kinds, values.split(sizes), strict=True):
            write(data, kind, name, level, rows)
