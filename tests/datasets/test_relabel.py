"""Renumbered molecules are the same molecules."""

from __future__ import annotations

import networkx as nx
import pytest
import torch
from torch_geometric.data import Data

from tg_lpe.datasets import relabel_nodes
from tg_lpe.datasets.molecules import MoleculeDataset

SMALL = MoleculeDataset.from_graphs(
    atoms=[[0, 1, 2, 1, 0], [3], [1, 1, 2], [0, 1]],
    bonds=[[0, 1, 1, 1, 2, 2, 2, 3, 1, 3, 4, 3], [], [0, 1, 1, 1, 2, 2], [0, 1, 2]],
    labels=[1.0, 2.0, 3.0, 4.0],
)


def as_networkx(data: Data) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from((node, {"type": int(kind)}) for node, kind in enumerate(data.x))
    pairs = zip(data.edge_index.T.tolist(), data.edge_attr.tolist(), strict=True)
    graph.add_edges_from((u, v, {"bond": bond}) for (u, v), bond in pairs)
    return graph


def isomorphic(a: Data, b: Data) -> bool:
    return nx.is_isomorphic(as_networkx(a), as_networkx(b), lambda x, y: x == y, lambda x, y: x == y)


@pytest.mark.parametrize("seed", range(5))
def test_the_same_molecules_in_another_order(seed: int) -> None:
    moved = relabel_nodes(SMALL, torch.Generator().manual_seed(seed))
    assert len(moved) == len(SMALL)
    for before, after in zip(SMALL, moved, strict=True):
        assert isomorphic(before, after)
        assert torch.equal(before.y, after.y)
        key = after.edge_index[0] * 100 + after.edge_index[1]
        assert torch.equal(key, key.sort().values)


def test_the_order_does_change_and_the_seed_decides_it() -> None:
    first, again, other = (relabel_nodes(SMALL, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(first._data.x, again._data.x) and torch.equal(first._data.edge_index, again._data.edge_index)
    assert not torch.equal(first._data.edge_index, other._data.edge_index)
    orders = {
        tuple(relabel_nodes(SMALL, torch.Generator().manual_seed(seed))[0].x.flatten().tolist()) for seed in range(40)
    }
    assert len(orders) > 10  # of 5! / (2! 2!) = 30


def test_selected_molecules() -> None:
    """A selection is not the head of its storage."""
    chosen = SMALL[torch.tensor([2, 0])]
    moved = relabel_nodes(chosen, torch.Generator().manual_seed(0))
    assert [float(data.y) for data in moved] == [3.0, 1.0]
    assert isomorphic(moved[0], SMALL[2]) and isomorphic(moved[1], SMALL[0])
    assert SMALL.whole() is SMALL
    assert torch.equal(chosen.whole()._data.y, torch.tensor([3.0, 1.0]))
