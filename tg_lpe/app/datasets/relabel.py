"""Renumber the nodes of graphs, to test that the output of an equivariant model follows."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import InMemoryDataset
from torch_geometric.data.collate import collate

from tg_lpe.arguments import check_generator
from tg_lpe.data.storage import node_slices, whole


def relabel_nodes(dataset: Any, generator: torch.Generator) -> InMemoryDataset:
    """Copy a dataset with the nodes of each graph numbered at random.

    Attributes with one row per node, or per directed edge, are reordered with the nodes or edges. If each graph has as
    many nodes as edges, those with ``edge`` in their names belong to edges, as in PyG. Attributes whose name contains
    ``index``, and ``face``, hold node numbers and are renumbered. All others, and sparse ones, are unchanged.

    Args:
        dataset: an in-memory dataset without ``transform``, or a sequence of ``Data``; not changed.
        generator: draws the numberings.

    Returns:
        Isomorphic graphs in the same order, edges sorted by row, then column.

    Raises:
        TypeError: if an element is not a ``Data``, or ``generator`` is no generator.
    """
    check_generator(generator)
    dataset = whole(dataset)
    data = dataset._data
    nodes = node_slices(dataset)
    slices = dataset.slices
    if slices is None:  # PyG leaves them out for a dataset of a single graph
        slices = collate(type(data), [data], increment=False, add_batch=False)[1]
    edges = slices["edge_index"]
    graph = torch.repeat_interleave(torch.arange(len(dataset)), nodes.diff())
    # Sorting by (graph, random number) shuffles each graph by itself.
    shuffled = torch.rand(graph.numel(), generator=generator, dtype=torch.float64).add_(graph).argsort()
    place = torch.empty_like(shuffled)
    place[shuffled] = torch.arange(graph.numel())

    def renumber(index: Tensor, starts: Tensor) -> Tensor:
        """Renumber nodes ``[..., num_entries]`` of all graphs, counted within each graph."""
        offset = torch.repeat_interleave(nodes[:-1], starts.diff())
        return place[index + offset] - offset

    index = renumber(data.edge_index, edges)
    owner = torch.repeat_interleave(torch.arange(len(dataset)), edges.diff())
    longest = int(nodes.diff().max()) if len(dataset) else 0
    # Stable, so that duplicate edges keep their order.
    order = ((owner * longest + index[0]) * longest + index[1]).argsort(stable=True)

    moved = copy.copy(data)
    moved.edge_index = index[:, order]
    for name, value in data.to_dict().items():
        if name == "edge_index" or name not in slices or not isinstance(value, Tensor) or value.layout != torch.strided:
            continue
        per_node, per_edge = (torch.equal(slices[name], starts) for starts in (nodes, edges))
        if per_edge and ("edge" in name or not per_node):
            value = value.index_select(data.__cat_dim__(name, value) or 0, order)
        elif per_node and name != "face" and not ("edge" in name and "index" in name):
            value = value.index_select(data.__cat_dim__(name, value) or 0, shuffled)
        moved[name] = renumber(value, slices[name]) if "index" in name or name == "face" else value
    result = copy.copy(dataset)
    result._data, result._data_list = moved, None
    return result
