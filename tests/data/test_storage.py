"""Datasets read straight from PyG's storage: the same graphs as one by one, and the caller's data stays unchanged."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import Graph, Stored, few, graphs, normal
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data

from tg_lpe.data import DataSpec, GraphDataset
from tg_lpe.data.storage import is_collated, iterate_chunks, node_slices, whole, with_attribute


def as_data(graph: Graph, seed: int = 0, **more) -> Data:
    index, weight = graph.both_ways(torch.float32)
    return Data(x=normal(graph.num_nodes, 2, seed=seed).float(), edge_index=index, edge_weight=weight, **more)


def check_chunks(dataset, expected: list[Data], size: int, attributes: tuple[str, ...]) -> None:
    chunks = list(iterate_chunks(dataset, size, attributes))
    assert [chunk.num_graphs for chunk in chunks] == [
        min(size, len(expected) - start) for start in range(0, len(expected), size)
    ]
    for number, chunk in enumerate(chunks):
        mine = expected[number * size : (number + 1) * size]
        offsets = torch.tensor([0, *[data.num_nodes for data in mine]]).cumsum(0)
        assert chunk.num_nodes == offsets[-1]
        edges = [data.edge_index + offset for data, offset in zip(mine, offsets[:-1], strict=True)]
        assert torch.equal(chunk.edge_index, torch.cat(edges, 1))
        assert chunk.batch.tolist() == [i for i, data in enumerate(mine) for _ in range(data.num_nodes)]
        assert set(chunk.attributes) == set(attributes) & set(mine[0].keys())
        for name, value in chunk.attributes.items():
            assert torch.equal(value, torch.cat([data[name] for data in mine]))


lists = st.lists(graphs(max_nodes=6, exponents=(-1.0, 1.0)), min_size=1, max_size=6)


@few
@given(lists, st.integers(1, 4))
def test_chunks_are_the_graphs_in_order(parts: list[Graph], size: int) -> None:
    expected = [as_data(graph, i) for i, graph in enumerate(parts)]
    attributes = ("x", "edge_weight", "absent")
    bare = [Data(edge_index=data.edge_index, num_nodes=data.num_nodes) for data in expected]
    for listed in (expected, bare):
        check_chunks(listed, listed, size, attributes)
        check_chunks(Stored(listed), listed, size, attributes)


@few
@given(lists)
def test_node_slices(parts: list[Graph]) -> None:
    bounds = torch.tensor([0, *[graph.num_nodes for graph in parts]]).cumsum(0).tolist()
    full = [as_data(graph) for graph in parts]
    assert node_slices(Stored(full)).tolist() == bounds
    assert node_slices(Stored([Data(edge_index=d.edge_index, num_nodes=d.num_nodes) for d in full])).tolist() == bounds
    # An attribute with one row per graph, or per edge, may have as many rows as there are nodes.
    labelled = [
        Data(edge_index=d.edge_index, y=torch.zeros(1), bond=torch.zeros(d.num_edges), num_nodes=d.num_nodes)
        for d in full
    ]
    assert node_slices(Stored(labelled)).tolist() == bounds


def test_rows_that_match_the_nodes_by_coincidence() -> None:
    none, pair = torch.zeros(2, 0, dtype=torch.int64), torch.tensor([[0], [1]])
    by_graph = [Data(y=torch.zeros(1), edge_index=e, num_nodes=n) for e, n in ((none, 0), (pair, 2))]
    assert node_slices(Stored(by_graph)).tolist() == [0, 0, 2]
    loops = torch.tensor([[0, 1, 1], [1, 0, 0]])
    by_edge = [Data(bond=torch.zeros(e.size(1)), edge_index=e, num_nodes=n) for e, n in ((loops, 2), (pair, 2))]
    assert node_slices(Stored(by_edge)).tolist() == [0, 2, 4]


@pytest.mark.parametrize(("name", "unit"), [("pe", "node"), ("edge_pe", "edge")])
@few
@given(lists)
def test_a_new_attribute_on_a_copy_that_shares_the_rest(name: str, unit: str, parts: list[Graph]) -> None:
    expected = [as_data(graph, i, y=torch.tensor([float(i)])) for i, graph in enumerate(parts)]
    dataset = Stored(expected)
    _ = [dataset[i] for i in range(len(dataset))]  # fills PyG's cache of elements
    sizes = [data.num_nodes if unit == "node" else data.num_edges for data in expected]
    values = normal(sum(sizes), 3)
    result = with_attribute(dataset, name, unit, values)
    assert type(result) is Stored and len(result) == len(dataset)
    rows = values.split(sizes)
    for i, data in enumerate(expected):
        assert torch.equal(result[i][name], rows[i]) and name not in dataset[i]
        assert all(torch.equal(result[i][other], data[other]) for other in ("x", "edge_index", "edge_weight", "y"))
    assert result._data.x.data_ptr() == dataset._data.x.data_ptr()
    assert name not in dataset._data and (dataset.slices is None or name not in dataset.slices)
    again = with_attribute(result, name, unit, -values)
    assert torch.equal(again[0][name], -rows[0]) and torch.equal(result[0][name], rows[0])
    batch = Batch.from_data_list([result[i] for i in range(len(result))])
    assert torch.equal(batch[name], values), "stacked, nothing added to the values"


@pytest.mark.parametrize(
    ("name", "unit"), [("x", "nodes"), ("edge_attr", "edges"), ("edge_weight", "edges"), ("weight", "edges")]
)
def test_rows_that_belong_to_the_next_graph_are_refused(name: str, unit: str) -> None:
    """Graphs 1 and 2 have together as many rows as they need, so that no batch of both shows it."""
    sizes = {"nodes": (3, 4, 5), "edges": (2, 3, 4)}[unit]
    right, wrong = (
        [path_of(n, **{name: torch.rand(rows)}) for n, rows in zip((3, 4, 5), given, strict=True)]
        for given in (sizes, (sizes[0], sizes[1] + 1, sizes[2] - 1))
    )
    message = f"graph 1 has {sizes[1]} {unit}, but {name} has {sizes[1] + 1} rows"
    whole(right)
    if name != "weight":  # weights of another name are known only where they are read
        with pytest.raises(ValueError, match=message):
            whole(wrong)
    assert len(list(iterate_chunks(Stored(right), 3, (name,)))) == len(list(iterate_chunks(Stored(wrong), 3))) == 1
    with pytest.raises(ValueError, match=message):
        list(iterate_chunks(Stored(wrong), 3, (name,)))


def path_of(size: int, **more) -> Data:
    node = torch.arange(size - 1)
    return Data(edge_index=torch.stack([node, node + 1]), num_nodes=size, **more)


@pytest.mark.parametrize("store", [list, Stored])
@pytest.mark.parametrize("node", [2, 5, -1])
def test_an_edge_to_a_node_of_the_next_graph_is_refused(store, node: int) -> None:
    bad = Data(edge_index=torch.tensor([[0, 1], [1, node]]), num_nodes=2)
    got = rf"edge_index must lie in 0\.\.1 \(num_nodes=2\), got {min(node, 0)}\.\.{max(node, 1)}"
    for parts, place in (
        ([path_of(3), bad, path_of(4)], 1),
        ([bad, path_of(4)], 0),
        ([path_of(6), bad], 1),
        ([bad], 0),
    ):
        for size in (1, 2, 5):
            with pytest.raises(ValueError, match=f"^graph {place}: {got}"):
                list(iterate_chunks(store(parts), size))
    graphs = [path_of(3), path_of(6), bad]
    chunk = next(iterate_chunks(store(graphs), 3, check_edges=False))
    assert chunk.misplaced() is not None and chunk.edge_ptr.tolist() == [0, 2, 7, 9]
    assert next(iterate_chunks(store(graphs[:2]), 3)).misplaced() is None


@pytest.mark.parametrize("store", [list, Stored])
@pytest.mark.parametrize("kind", [list, np.array])
def test_an_attribute_that_is_no_tensor_is_refused(store, kind) -> None:
    dataset = store([path_of(3, edge_weight=kind([0.5, 0.5])) for _ in range(2)])
    with pytest.raises(TypeError, match=r"edge_weight must be a tensor, got .*0\.5, 0\.5.* in graph 0"):
        list(iterate_chunks(dataset, 2, ("edge_weight",)))
    dataset = store([Data(edge_index=kind([[0], [1]]), num_nodes=2) for _ in range(2)])
    for wrong in (dataset, [Data(edge_index=torch.eye(2).to_sparse(), num_nodes=2)]):
        with pytest.raises(ValueError, match="edge_index must be a dense tensor"):
            whole(wrong)


def test_a_number_of_nodes_that_is_given_comes_first() -> None:
    graphs = [path_of(size, pos=torch.zeros(2 * size, 3)) for size in (4, 5)]
    assert node_slices(Stored(graphs)).tolist() == [0, 4, 9]
    assert DataSpec.of(Stored(graphs)).max_nodes == DataSpec.of(graphs).max_nodes == 5
    check_chunks(Stored(graphs), graphs, 2, ())
    # As an attribute like any other, with slices of its own.
    data = Data(edge_index=torch.tensor([[0, 0], [1, 1]]), pos=torch.zeros(9, 3))
    data._store["num_nodes"] = torch.tensor([2, 3])
    slices = {"edge_index": torch.arange(3), "pos": torch.tensor([0, 4, 9]), "num_nodes": torch.arange(3)}
    dataset = GraphDataset(data, slices)
    assert (
        node_slices(dataset).tolist() == [0, *torch.tensor([int(d.num_nodes) for d in dataset]).cumsum(0)] == [0, 2, 5]
    )


def test_a_batch_is_no_graph() -> None:
    batch = Batch.from_data_list([path_of(2), path_of(3)])
    for dataset in (batch, [path_of(3), batch], path_of(3)):
        for read in (whole, lambda dataset: list(iterate_chunks(dataset, 2))):
            with pytest.raises(TypeError, match=r"DataBatch; .*batch\.to_data_list\(\)|got Data; pass \[data\]"):
                read(dataset)
    own = [path_of(3, batch=torch.tensor([0, 1, 1])), path_of(2, batch=torch.tensor([0, 0]))]
    for dataset, what in ((own, "graph 0"), (Stored(own), "the dataset"), (Stored(own[:1]), "the dataset")):
        with pytest.raises(TypeError, match=f"but {what} has an attribute batch with numbers up to 1"):
            list(iterate_chunks(dataset, 2))
    assert next(iterate_chunks(own[1:], 1)).num_nodes == 2, "all in one graph"


def test_what_a_dataset_does_to_its_elements_is_read() -> None:
    class Doubled(Stored):
        def get(self, index: int) -> Data:
            data = super().get(index)
            data.x = 2 * data.x
            return data

    graphs = [path_of(size, x=torch.ones(size, 1)) for size in (2, 3)]
    dataset = Doubled(graphs)
    assert not is_collated(dataset) and is_collated(Stored(graphs))
    chunk = next(iterate_chunks(dataset, 2, ("x",)))
    assert chunk.attributes["x"].flatten().tolist() == [2.0] * 5
    assert whole(dataset)._data.x.flatten().tolist() == [2.0] * 5


def test_an_attribute_that_only_later_graphs_have() -> None:
    index = torch.tensor([[0, 1], [1, 2]])
    graphs = [Data(edge_index=index, num_nodes=3), Data(edge_index=index, num_nodes=3, edge_weight=torch.ones(2))]
    assert [sorted(chunk.attributes) for chunk in iterate_chunks(graphs, 8, ("edge_weight",))] == [[], ["edge_weight"]]
