"""The same molecules written down in another order: what an equivariant model cannot notice."""

from __future__ import annotations

import torch
from torch_geometric.data import Data, InMemoryDataset


def relabel_nodes(dataset: InMemoryDataset, generator: torch.Generator) -> InMemoryDataset:
    """A copy in which the nodes of each molecule are numbered at random.

    Args:
        dataset: the molecules; encodings attached to them are not carried along.
        generator: draws the numberings.

    Returns:
        Isomorphic molecules in the same order; edges sorted by row, then column, as in any
        :class:`~tg_lpe.datasets.MoleculeDataset`.
    """
    dataset = dataset.whole()
    data, slices = dataset._data, dataset.slices
    nodes, edges = slices["x"], slices["edge_index"]
    graph = torch.repeat_interleave(torch.arange(len(dataset)), nodes.diff())
    # Sorting by (graph, random number) shuffles each molecule by itself.
    shuffled = torch.rand(graph.numel(), generator=generator, dtype=torch.float64).add_(graph).argsort()
    place = torch.empty_like(shuffled)
    place[shuffled] = torch.arange(graph.numel())
    offset = torch.repeat_interleave(nodes[:-1], edges.diff())
    index = place[data.edge_index + offset] - offset
    owner = torch.repeat_interleave(torch.arange(len(dataset)), edges.diff())
    longest = int(nodes.diff().max()) if len(dataset) else 0
    order = ((owner * longest + index[0]) * longest + index[1]).argsort()
    moved = Data(x=data.x[shuffled], edge_index=index[:, order], edge_attr=data.edge_attr[order], y=data.y)
    return type(dataset)(moved, slices)
