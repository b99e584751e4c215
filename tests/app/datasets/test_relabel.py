"""Renumbered graphs are the same graphs."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import Graph, Stored, few, graphs
from hypothesis import assume, given
from hypothesis import strategies as st
from torch_geometric.data import Data

from tg_lpe.app.datasets import relabel_nodes
from tg_lpe.app.molecules import MoleculeDataset
from tg_lpe.app.molecules._molecule import Molecule
from tg_lpe.data.storage import with_attribute

SMALL = MoleculeDataset.from_molecules(
    [
        Molecule([0, 1, 2, 1, 0], [0, 1, 1, 1, 2, 2, 2, 3, 1, 3, 4, 3]),
        Molecule([3], []),
        Molecule([1, 1, 2], [0, 1, 1, 1, 2, 2]),
        Molecule([0, 1], [0, 1, 2]),
    ],
    np.array([[1.0], [2.0], [3.0], [4.0]]),
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


def test_selected_molecules() -> None:
    """A selection is not the head of its storage."""
    chosen = SMALL[torch.tensor([2, 0])]
    moved = relabel_nodes(chosen, torch.Generator().manual_seed(0))
    assert [float(data.y) for data in moved] == [3.0, 1.0]
    assert isomorphic(moved[0], SMALL[2]) and isomorphic(moved[1], SMALL[0])
    assert SMALL.whole() is SMALL
    assert torch.equal(chosen.whole()._data.y, torch.tensor([3.0, 1.0]))
    marked = with_attribute(SMALL, "graph_attr", "graph", torch.arange(4.0).view(4, 1))
    assert marked[[2, 0]].whole()._data.graph_attr.tolist() == [[2.0], [0.0]]


def tagged(graph: Graph, number: int) -> Data:
    """A graph whose attributes name its nodes and edges."""
    index, weight = graph.both_ways()
    nodes = torch.arange(graph.num_nodes)
    return Data(
        edge_index=index,
        edge_weight=weight,
        pos=torch.stack([nodes, nodes + 100], 1).double(),
        y=nodes + 0.5,
        name_of_edge=1000 * index[0] + index[1],
        parent_index=nodes.flip(0),
        pair_index=torch.stack([nodes[:1], nodes[-1:]]),
        number=torch.tensor([number]),
        title=f"graph {number}",
        num_nodes=graph.num_nodes,
    )


@few
@given(st.lists(graphs(max_nodes=7, min_nodes=2, exponents=(-1.0, 1.0)), min_size=1, max_size=4), st.integers(0, 9))
def test_every_attribute_follows_its_nodes_and_edges(parts: list[Graph], seed: int) -> None:
    before = [tagged(graph, number) for number, graph in enumerate(parts)]
    for graph, data in zip(parts, before, strict=True):  # otherwise a row could belong to a node or to an edge
        assume(2 * len(graph.edges) != graph.num_nodes)
        assert data.num_nodes == graph.num_nodes
    dataset = Stored(before)
    kept = dataset._data.clone()
    moved = relabel_nodes(dataset, torch.Generator().manual_seed(seed))
    assert type(moved) is Stored and len(moved) == len(before)
    for old, new in zip(before, moved, strict=True):
        name = new.pos[:, 0].long()  # the former number of each node
        assert name.sort().values.tolist() == list(range(old.num_nodes)) and new.num_nodes == old.num_nodes
        assert torch.equal(new.pos, old.pos[name]) and torch.equal(new.y, old.y[name])
        assert torch.equal(new.name_of_edge, 1000 * name[new.edge_index[0]] + name[new.edge_index[1]])
        weight = {pair: w for pair, w in zip(old.name_of_edge.tolist(), old.edge_weight.tolist(), strict=True)}
        assert new.edge_weight.tolist() == [weight[pair] for pair in new.name_of_edge.tolist()]
        assert torch.equal(name[new.parent_index], old.parent_index[name])
        assert torch.equal(name[new.pair_index], old.pair_index)
        assert (new.number, new.title) == (old.number, old.title)
    for key in kept.keys():  # noqa: SIM118 (not a mapping)
        same = dataset._data[key]
        assert torch.equal(kept[key], same) if isinstance(same, torch.Tensor) else kept[key] == same


def test_duplicate_edges_and_self_loops() -> None:
    data = Data(
        x=torch.arange(3.0).view(-1, 1),
        edge_index=torch.tensor([[0, 0, 1, 2], [1, 1, 1, 0]]),
        edge_attr=torch.tensor([5.0, 6.0, 7.0, 8.0]).view(-1, 1),
    )
    for seed in range(6):
        [moved] = relabel_nodes([data], torch.Generator().manual_seed(seed))
        name = moved.x.flatten().long()
        rows = zip(name[moved.edge_index[0]].tolist(), name[moved.edge_index[1]].tolist(), strict=True)
        found = sorted(zip(rows, moved.edge_attr.flatten().tolist(), strict=True))
        assert found == [((0, 1), 5.0), ((0, 1), 6.0), ((1, 1), 7.0), ((2, 0), 8.0)]


def test_rows_that_may_be_of_nodes_or_of_edges() -> None:
    """The name decides, as in PyG."""
    ring = Data(x=torch.rand(3, 1), edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]), mark=torch.arange(3))
    ring.mark_of_edge, ring.unread = ring.mark, torch.eye(3).to_sparse()
    [moved] = relabel_nodes([ring], torch.Generator().manual_seed(1))
    assert torch.equal(moved.x, ring.x[moved.mark]) and torch.equal(moved.mark[moved.edge_index[0]], moved.mark_of_edge)
    with pytest.raises(TypeError, match="generator must"):
        relabel_nodes([ring], 0)  # type: ignore[arg-type]
