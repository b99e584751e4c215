"""Batches made from the storage equal PyG's in every attribute and in order, and separate again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import Graph, Stored, few, graphs, normal
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

from tg_lpe.app.training.batches import batch_loader
from tg_lpe.data import GraphDataset
from tg_lpe.data.storage import whole
from tg_lpe.encoders import HeatKernel, LaplacianEigenvectors
from tg_lpe.encoders.precompute import store_precomputed


def as_data(graph: Graph, number: int, names: set[str]) -> Data:
    index, weight = graph.both_ways(torch.float32)
    values = {
        "x": normal(graph.num_nodes, 2, seed=number).float(),
        "edge_weight": weight,
        "edge_attr": torch.arange(index.size(1) * 3).view(-1, 3),
        "y": torch.full((1, 2), float(number)),
        "label": number % 2,
        "graph_attr": torch.tensor(number / 2),
        "smiles": "C" * number,
        "root_index": torch.arange(min(graph.num_nodes, 1)),
        "face": torch.zeros(3, number % 3, dtype=torch.int64),
        "pair_index": index[:, :1],
        "mark_index": torch.ones(1),
        "root_batch": torch.arange(2),
        "atoms": ["C"] * number,
        "tensors": [torch.ones(1)],
    }
    data = Data(edge_index=index, **{name: values[name] for name in values if name in names})
    if "num_nodes" in names or "x" not in names:
        data.num_nodes = graph.num_nodes
    return data


def check_equal(ours: Data, theirs: Data) -> None:
    assert type(ours) is type(theirs) and list(ours.keys()) == list(theirs.keys())
    assert ours.num_nodes == theirs.num_nodes
    for name in theirs.keys():  # noqa: SIM118
        expected = theirs[name]
        assert type(ours[name]) is type(expected), name
        if isinstance(expected, torch.Tensor):
            torch.testing.assert_close(ours[name], expected, rtol=0, atol=0, equal_nan=True, msg=name)
        else:
            assert str(ours[name]) == str(expected), name


PLAIN = ("x", "num_nodes", "edge_weight", "edge_attr", "y", "label", "graph_attr", "smiles")
PLAIN += ("root_index", "pair_index", "face")
UNUSUAL = ("mark_index", "root_batch", "atoms", "tensors")
lists = st.lists(graphs(max_nodes=5, exponents=(-1.0, 1.0)), min_size=1, max_size=6)


@few
@given(lists, st.sets(st.sampled_from(PLAIN)), st.sets(st.sampled_from(UNUSUAL), max_size=1), st.data())
def test_as_pyg_makes_them(parts: list[Graph], plain: set[str], unusual: set[str], data: st.DataObject) -> None:
    dataset = Stored([as_data(graph, i, plain | unusual) for i, graph in enumerate(parts)])
    for encoder in data.draw(st.sets(st.sampled_from((LaplacianEigenvectors(2), HeatKernel((1.0,)))))):
        dataset = store_precomputed(encoder, dataset)
    if data.draw(st.booleans()):
        dataset = dataset[torch.tensor(data.draw(st.lists(st.integers(0, len(parts) - 1), min_size=1, max_size=8)))]
    size, seed = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 9))
    generators = [torch.Generator().manual_seed(seed) for _ in range(2)]
    ours, theirs = (
        list(load(dataset, size, shuffle=True, generator=generator))
        for load, generator in zip((batch_loader, DataLoader), generators, strict=True)
    )
    assert torch.equal(*(generator.get_state() for generator in generators))
    assert len(ours) == len(theirs)
    for batch, expected in zip(ours, theirs, strict=True):
        check_equal(batch, expected)
        assert batch.num_graphs == expected.num_graphs
        for graph, single in zip(batch.to_data_list(), expected.to_data_list(), strict=True):
            check_equal(graph, single)


@few
@given(lists, st.sets(st.sampled_from(PLAIN)), st.sets(st.sampled_from(UNUSUAL), max_size=1), st.data())
def test_a_selection_as_pyg_collates_it(parts: list[Graph], plain: set[str], unusual: set[str], data: Any) -> None:
    dataset = Stored([as_data(graph, i, plain | unusual) for i, graph in enumerate(parts)])
    chosen = dataset[torch.tensor(data.draw(st.lists(st.integers(0, len(parts) - 1), min_size=1, max_size=8)))]
    ours, theirs = whole(chosen), GraphDataset.from_data_list([chosen[i] for i in range(len(chosen))])
    check_equal(ours._data, theirs._data)
    assert str(ours.slices) == str(theirs.slices)
    for graph, single in zip(ours, theirs, strict=True):
        check_equal(graph, single)


@pytest.mark.parametrize("unusual", [None, *UNUSUAL])
def test_no_graph_is_made_for_plain_attributes_alone(unusual: str | None) -> None:
    graph = Graph(3, [(0, 1)], [1.0])
    dataset = Stored([as_data(graph, i, {*PLAIN, unusual} - {None}) for i in range(1, 4)])
    batches = list(batch_loader(dataset, 2))
    assert [batch.num_graphs for batch in batches] == [2, 1]
    chosen = dataset[1:]
    whole(chosen)
    for read in (dataset, chosen):
        assert (read._data_list is None) == (unusual is None), "PyG keeps the graphs that it made"


def test_what_a_dataset_does_to_its_elements_is_done() -> None:
    def double(data: Data) -> Data:
        data.x = 2 * data.x
        return data

    class Own(Data):
        def __inc__(self, key: str, *args: object, **kwargs: object) -> int:
            return 5 if key == "label" else super().__inc__(key, *args, **kwargs)

    singles = [Data(x=torch.ones(size, 1), edge_index=torch.zeros(2, 1, dtype=torch.int64)) for size in (1, 2)]
    for dataset in (Stored(singles, double), singles, [double(data) for data in singles]):
        (ours,), (theirs,) = batch_loader(dataset, 2), DataLoader(dataset, 2)
        check_equal(ours, theirs)
    (batch,) = batch_loader(Stored([Own(**data.to_dict(), label=torch.zeros(1)) for data in singles]), 2)
    assert batch.label.tolist() == [0, 5]
