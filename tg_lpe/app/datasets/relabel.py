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

_EDGE_ATTRIBUTES = frozenset({"edge_attr", "edge_weight", "edge_type", "edge_index"})
_NODE_ATTRIBUTES = frozenset({"x", "pos", "y", "node_type", "batch", "train_mask", "val_mask", "test_mask"})


def relabel_nodes(dataset: Any, generator: torch.Generator) -> InMemoryDataset:
    """Copy a dataset with the nodes of each graph numbered at random.

    Attributes with one row per node, or per directed edge, are reordered with the nodes or edges. Attributes whose name
    contains ``index``, and ``face``, hold node numbers, as in PyG, and are renumbered. All other attributes are
    unchanged.

    Args:
        dataset: an in-memory dataset without ``transform``, or a sequence of ``Data``; not changed.
        generator: draws the numberings.

    Returns:
        Isomorphic graphs in the same order, edges sorted by row, then column.

    Raises:
        TypeError: if an element is not a ``Data``, or ``generator`` is no generator.
        ValueError: if an attribute is sparse, or has one row per node and per edge in each graph and a name that does
            not decide between them.
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
        if name in ("edge_index", "num_nodes", "_num_nodes") or name not in slices:
            continue
        if hasattr(value, "sparse_sizes") or (isinstance(value, Tensor) and value.layout != torch.strided):
            raise ValueError(f"relabel_nodes does not read sparse matrices, such as {name}; use edge_index")
        if not isinstance(value, Tensor):
            continue
        level = _level(name, slices[name], nodes, edges)
        if level is not None:
            value = value.index_select(data.__cat_dim__(name, value) or 0, shuffled if level == "node" else order)
        moved[name] = renumber(value, slices[name]) if "index" in name or name == "face" else value
    result = copy.copy(dataset)
    result._data, result._data_list = moved, None
    return result


def _level(name: str, starts: Tensor, nodes: Tensor, edges: Tensor) -> str | None:
    """Return whether an attribute has one row per ``"node"`` or directed ``"edge"`` of every graph, or ``None``."""
    per_node, per_edge = torch.equal(starts, nodes), torch.equal(starts, edges)
    if name == "face" or (per_node and "edge" in name and "index" in name):
        return None  # triangles, or pairs of nodes such as edge_label_index
    if per_node and per_edge:
        if name in _NODE_ATTRIBUTES:
            return "node"
        if name in _EDGE_ATTRIBUTES or "edge" in name:
            return "edge"
        raise ValueError(f"{name} has one row per node and per edge of every graph: put 'edge' in its name if of edges")
    return "node" if per_node else "edge" if per_edge else None
