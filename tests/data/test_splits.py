"""Splits and sizes of PyG data: inferred values, and errors for ambiguous data."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Stored
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.loader import DataLoader

from tg_lpe import AddPositionalEncoding
from tg_lpe.app.datasets.block_models import cluster_graphs
from tg_lpe.data import (
    DataSpec,
    GraphSplits,
    TargetSpec,
    random_folds,
    random_link_split,
    random_node_masks,
    random_split,
)
from tg_lpe.data.splits import node_splits, split_indices
from tg_lpe.data.storage import is_collated
from tg_lpe.encoders import LaplacianEigenvectors, Positions, RandomWalk

EDGES = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])


def graph(nodes: int = 3, **changes: Any) -> Data:
    parts = {
        "x": torch.arange(nodes).view(-1, 1),
        "edge_index": EDGES,
        "edge_attr": torch.tensor([1, 1, 2, 2]),
        "y": torch.tensor([0.5]),
    }
    merged = {**parts, **changes}
    return Data(**{name: value for name, value in merged.items() if value is not None})


@pytest.mark.parametrize("store", [list, Stored])
def test_sizes_of_categories(store: Any) -> None:
    dataset = store([graph(3), graph(7), graph(4)])
    assert DataSpec.of(dataset) == DataSpec(num_node_types=7, num_edge_types=3, max_nodes=7)
    assert DataSpec.of(dataset, [graph(9)]).num_node_types == 9
    flat = [graph(x=torch.tensor([4, 0, 1])), graph(x=torch.tensor([0, 0, 0]))]
    assert DataSpec.of(store(flat)).num_node_types == 5


def test_sizes_of_real_features_and_of_none() -> None:
    real = [graph(x=torch.rand(3, 5), edge_attr=torch.rand(4, 2), y=None)]
    assert DataSpec.of(real) == DataSpec(in_channels=5, edge_dim=2, max_nodes=3)
    bare = [Data(edge_index=EDGES, num_nodes=4), Data(edge_index=EDGES, num_nodes=6)]
    assert DataSpec.of(bare) == DataSpec(max_nodes=6)
    assert DataSpec.of([graph(edge_index=EDGES[:, :0], edge_attr=torch.zeros(0, dtype=torch.long))]).num_edge_types == 1


def test_sizes_of_several_integer_columns() -> None:
    x = torch.tensor([[0, 4], [2, 0], [1, 1]])
    spec = DataSpec.of([graph(x=x)], [graph(x=x + 1)])
    assert spec.num_node_types == (4, 6)
    assert DataSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


@pytest.mark.parametrize(
    ("datasets", "message"),
    [
        ([[graph(x=torch.eye(3, dtype=torch.long))]], "3 integer columns of only 0 and 1"),
        ([[graph(x=torch.eye(3, dtype=torch.bool))]], "x must be int64 .* got torch.bool; write x.long"),
        ([[graph(x=torch.tensor([[-1], [0], [1]]))]], "x must be categories from 0 on, got -1"),
        ([[graph(x=torch.rand(3))]], r"real x must .*; write x.unsqueeze\(1\)"),
        ([[graph(x=torch.rand(3, 2, 2))]], r"real x must .*; write x.flatten\(1\)"),
        ([[graph(x=torch.rand(3, 2)), graph(x=torch.rand(3, 1))]], r"x must .* \[3, 2\] in graph 0, \[3, 1\] in 1"),
        ([[graph(y=torch.ones(1)), graph(y=torch.ones(1, 2))]], r"y must .* \[1\] in graph 0, \[1, 2\] in 1"),
        ([[graph()], [graph(x=torch.rand(3, 1))]], "x has different forms"),
        ([[graph(x=torch.rand(3, 2))], [graph(x=torch.rand(3, 1))]], "x has different forms"),
        ([[graph(), graph(x=None, num_nodes=3)]], r"graph 1 has \["),
        ([], "at least one dataset"),
        ([[]], "at least one graph"),
        ([Stored([graph(), graph()], transform=lambda data: data)], "has a transform"),
    ],
)
def test_sizes_that_are_not_clear(datasets: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataSpec.of(*datasets)


def test_what_is_no_dataset_of_graphs() -> None:
    with pytest.raises(TypeError, match="graph 0 is of type int"):
        DataSpec.of([1, 2])
    with pytest.raises(TypeError, match=r"pass \[data\]"):
        DataSpec.of(graph())
    with pytest.raises(ValueError, match="needs edge_index"):
        DataSpec.of([Data(x=torch.rand(3, 1))])


@pytest.mark.parametrize(
    ("labels", "columns", "values"),
    [
        ([torch.tensor([1.0]), torch.tensor([2.0])], ("y",), [[1.0], [2.0]]),
        ([torch.tensor(1), torch.tensor(2)], ("y",), [[1.0], [2.0]]),
        ([torch.tensor(True), torch.tensor(False)], ("y",), [[1.0], [0.0]]),
        ([1.5, 2.5], ("y",), [[1.5], [2.5]]),
        ([torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])], ("y0", "y1"), [[1.0, 2.0], [3.0, 4.0]]),
        ([torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]])], ("y0", "y1"), [[1.0, 2.0], [3.0, 4.0]]),
    ],
)
def test_labels_of_graphs(labels: list[Any], columns: tuple[str, ...], values: list[list[float]]) -> None:
    graphs = [graph(5, y=label) for label in labels]
    splits = GraphSplits.of(graphs, Stored(graphs), graphs[:1])
    assert splits.target == TargetSpec(columns, "graph")
    assert splits.labels("train").tolist() == splits.labels("val").tolist() == values
    assert splits.labels("test").tolist() == values[:1]
    assert all(is_collated(part) for part in (splits.train, splits.val, splits.test))
    [batch] = DataLoader(splits.train, batch_size=2)
    assert batch.y.is_floating_point() and batch.y.reshape(2, -1).tolist() == values
    assert splits.train[0].y.shape == ((1,) if len(columns) == 1 else (1, 2))


def test_labels_of_nodes_in_many_graphs() -> None:
    graphs = [graph(nodes, y=torch.arange(nodes)) for nodes in (3, 5)]
    splits = GraphSplits.of(graphs, graphs, graphs)
    assert splits.target == TargetSpec(("y",), "node")
    assert splits.labels("train").flatten().tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    wide = [graph(nodes, y=torch.zeros(nodes, 2)) for nodes in (3, 5)]
    assert GraphSplits.of(wide, wide, wide, columns=["a", "b"]).target == TargetSpec(("a", "b"), "node")


def test_a_shape_that_fits_both_levels_asks() -> None:
    graphs = [graph(3, y=torch.arange(3.0)) for _ in range(2)]
    with pytest.raises(ValueError, match="level="):
        GraphSplits.of(graphs, graphs, graphs)
    assert GraphSplits.of(graphs, graphs, graphs, level="node").labels("train").shape == (6, 1)
    assert GraphSplits.of(graphs, graphs, graphs, level="graph").labels("train").shape == (2, 3)
    longer = [*graphs, graph(4, y=torch.arange(4.0))]  # in one split alone the level is clear
    assert GraphSplits.of(longer, graphs, graphs).target.level == "node"


def test_whole_numbers_stay_exact() -> None:
    graphs = [graph(y=torch.tensor([2**24 + 1])), graph(y=torch.tensor([0]))]
    assert GraphSplits.of(graphs, graphs, graphs).labels("train").tolist() == [[2**24 + 1], [0]]
    named = [graph(y="toxic"), graph(y="harmless")]
    with pytest.raises(TypeError, match="labels y must"):
        GraphSplits.of(named, named, named)


def test_without_labels() -> None:
    graphs = [graph(y=None), graph(4, y=None)]
    splits = GraphSplits.of(graphs, graphs, graphs)
    assert splits.target.columns == () and splits.labels("train").shape == (2, 0)


@pytest.mark.parametrize(
    ("parts", "options", "message"),
    [
        (([graph()], [], [graph()]), {}, "the val split has no graphs"),
        (([graph()], [graph(y=None)], [graph()]), {}, "train, test has them, val does not"),
        (([graph()], [graph()], [graph()]), {"level": "edge"}, "'graph', 'node'.*got 'edge'"),
        (([graph()], [graph()], [graph()]), {"columns": ["a", "b"]}, r"name the 1 columns of y, got \['a', 'b'\]"),
        (([graph()], [graph()], [graph()]), {"columns": "a"}, "got 'a'"),
        (([graph()], [graph()], [graph()]), {"level": "node"}, "train: y must have one row per node"),
        (([graph(y=None)],) * 3, {"columns": ["a"]}, "have no labels y"),
        (([graph(y=torch.rand(2, 2))],) * 3, {}, "one row per graph or one per node"),
        (([graph(y=torch.rand(1, 2, 3))],) * 3, {}, r"y must .*got shape \(1, 2, 3\)"),
        (([graph(y=torch.ones(1) + 1j)],) * 3, {}, "y must be real"),
        (([graph(y=torch.rand(1, 2))], [graph()], [graph()]), {}, "equally many columns in every split"),
        ((Stored([graph(), graph()], lambda d: d), [graph()], [graph()]), {}, "train: .* has a transform"),
    ],
)
def test_splits_that_do_not_fit(parts: tuple[Any, Any, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        GraphSplits.of(*parts, **options)


def masks(*chosen: list[int]) -> dict[str, Tensor]:
    result = {}
    for part, rows in zip(("train", "val", "test"), chosen, strict=True):
        result[f"{part}_mask"] = torch.zeros(4, dtype=torch.bool)
        result[f"{part}_mask"][rows] = True
    return result


def node_graph(**changes: Any) -> Data:
    return Data(
        **{
            "x": torch.rand(4, 2),
            "edge_index": EDGES,
            "y": torch.tensor([0, 2, 1, 1]),
            **masks([0, 3], [1], [2]),
            **changes,
        }
    )


def test_masks_become_missing_labels() -> None:
    data = node_graph()
    splits = GraphSplits.of_masks(data)
    assert splits.target == TargetSpec(("y",), "node")
    expected = {"train": [0, None, None, 1], "val": [None, 2, None, None], "test": [None, None, 1, None]}
    for part, values in expected.items():
        labels = splits.labels(part).flatten().tolist()
        assert [None if math.isnan(value) else value for value in labels] == values
        dataset = getattr(splits, part)
        assert dataset._data.x is data.x and len(dataset) == 1 and "train_mask" not in dataset[0]
    assert "train_mask" in data and data.y.dtype == torch.int64
    wide = GraphSplits.of_masks(node_graph(y=torch.rand(4, 3)), columns=["a", "b", "c"])
    assert int((~wide.labels("train").isnan()).sum()) == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (masks([0], [0], [1]), "must not share nodes"),
        (masks([0], [1], []), "test_mask selects no node"),
        ({"val_mask": torch.zeros(4)}, "val_mask must"),
        ({"val_mask": None}, r"got None; .*random_node_masks\(data, seed=0\)"),
        ({"y": torch.zeros(1)}, r"y must .* got \(1,\)"),
        ({"y": torch.tensor(1.0)}, r"y must .* got \(\)"),
        ({"y": torch.rand(4, 1, 1)}, r"y must .* got \(4, 1, 1\)"),
        ({"y": None}, "got None"),
    ],
)
def test_masks_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GraphSplits.of_masks(node_graph(**changes))
    with pytest.raises(TypeError, match="got list"):
        GraphSplits.of_masks([node_graph()])  # type: ignore[arg-type]


@pytest.mark.parametrize("store", [list, Stored])
def test_random_split(store: Any) -> None:
    dataset = store([graph(y=torch.tensor([float(number)])) for number in range(30)])
    state = torch.get_rng_state()

    def drawn(seed: int) -> list[list[float]]:
        return [[float(data.y) for data in part] for part in random_split(dataset, seed)]

    parts = drawn(0)
    assert [len(part) for part in parts] == [24, 3, 3] and drawn(0) == parts and drawn(1) != parts
    assert sorted(value for part in parts for value in part) == list(range(30))
    assert torch.equal(torch.get_rng_state(), state)
    assert GraphSplits.of(*random_split(dataset, 0)).labels("val").flatten().tolist() == parts[1]


def test_one_graph_is_no_dataset_to_split() -> None:
    with pytest.raises(TypeError, match="random_node_masks"):
        random_split(graph(), 0)
    with pytest.raises(TypeError, match="got one HeteroData"):
        random_split(HeteroData(), 0)
    with pytest.raises(TypeError, match=r"got one DataBatch; .*batch\.to_data_list\(\)"):
        random_split(Batch.from_data_list([graph()] * 20), 0)


def test_shares_of_a_split() -> None:
    for number in (*range(3, 200), 10_000, 70_000):
        assert [len(part) for part in split_indices(number, 0)][1:] == [max(1, number // 10)] * 2
    with pytest.raises(ValueError, match="2 rows are too few"):
        split_indices(2, 0)
    with pytest.raises(ValueError, match=r"got 0\.5 and 0\.5"):
        split_indices(10, 0, 0.5, 0.5)
    with pytest.raises(ValueError, match=r"got '0\.1' and 0\.1"):
        split_indices(10, 0, "0.1")  # type: ignore[arg-type]
    for seed in ("0", True):
        with pytest.raises(TypeError, match=f"got {seed!r}"):
            split_indices(10, seed)  # type: ignore[arg-type]


def test_shares_of_a_fold() -> None:
    for val in (-1.0, 0.0, 0.8, 1.5):
        with pytest.raises(ValueError, match=f"got {val} and 0.2"):
            random_folds(range(20), 0, val=val)
    with pytest.raises(TypeError, match="seed must"):
        random_folds(range(20), "0")  # type: ignore[arg-type]


def test_several_published_splits_with_one_test_mask() -> None:
    """As in WikiCS."""
    rows = torch.arange(12)
    train, val = ((rows.unsqueeze(1) - torch.arange(3)) % 8 == place for place in (0, 3))
    data = Data(x=torch.rand(12, 1), edge_index=EDGES, y=rows % 2, train_mask=train, val_mask=val, test_mask=rows > 9)
    found = node_splits(data, 1)
    for part, mask in (("train", train[:, 1]), ("val", val[:, 1]), ("test", rows > 9)):
        assert torch.equal(~found.labels(part).squeeze(1).isnan(), mask)
    assert found.split == {"kind": "published", "number": 1}


def test_a_mask_of_numpy_or_without_columns_is_refused_by_its_name() -> None:
    data = node_graph(train_mask=np.array([True, False, False, False]))
    with pytest.raises(ValueError, match="train_mask must"):
        node_splits(data, 0)
    data = node_graph(train_mask=torch.empty(4, 0, dtype=torch.bool))
    with pytest.raises(ValueError, match="train_mask must"):
        node_splits(data, 0)
    data = node_graph(val_mask=np.array([False, True, False, False]), train_mask=torch.eye(4, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match="val_mask must"):
        node_splits(data, 0)


def test_random_node_masks() -> None:
    data = Data(x=torch.rand(50, 1), edge_index=EDGES)
    masked = random_node_masks(data, seed=3)
    assert [int(masked[f"{part}_mask"].sum()) for part in ("train", "val", "test")] == [30, 10, 10]
    assert bool((masked.train_mask ^ masked.val_mask ^ masked.test_mask).all())
    assert "train_mask" not in data
    assert torch.equal(masked.train_mask, random_node_masks(data, seed=3).train_mask)
    with pytest.raises(TypeError, match="data"):
        random_node_masks(50, seed=3)  # type: ignore[arg-type]


def test_node_masks_of_each_class() -> None:
    y = torch.tensor([3] * 9 + [0] * 4 + [7] * 5)[torch.randperm(18, generator=torch.Generator().manual_seed(0))]
    data = Data(x=torch.rand(18, 1), edge_index=EDGES, y=y)
    state = torch.get_rng_state()
    masked = random_node_masks(data, seed=3, val=1, test=2)
    assert torch.equal(torch.get_rng_state(), state) and "val_mask" not in data
    masks = [masked[f"{part}_mask"] for part in ("train", "val", "test")]
    assert bool((torch.stack(masks).sum(0) == 1).all())
    counts = [[int((y[mask] == one).sum()) for one in (0, 3, 7)] for mask in masks]
    assert counts == [[1, 6, 2], [1, 1, 1], [2, 2, 2]]
    again, other = (random_node_masks(data, seed, 1, 2) for seed in (3, 4))
    assert torch.equal(masked.val_mask, again.val_mask) and not torch.equal(masked.test_mask, other.test_mask)
    drawn = torch.stack([random_node_masks(data, seed, 1, 2).val_mask for seed in range(60)])
    assert bool(drawn.any(0).all()), "every node may be drawn"
    with pytest.raises(ValueError, match="val="):
        random_node_masks(data, 3, 2, 2)
    for wrong, form in (
        (None, "None"),
        (y.float(), r"torch\.float32 \[18\]"),
        (y + 0j, "torch.complex64"),
        (y[:3], r"torch\.int64 \[3\]"),
    ):
        with pytest.raises(ValueError, match=rf"need a class of each node, y int64 \[18\], got {form}"):
            random_node_masks(Data(x=data.x, edge_index=EDGES, y=wrong), 3, 1, 2)
    for given, message in (((0, 2), "val must"), ((True, 2), "got True")):
        with pytest.raises(ValueError, match=message):
            random_node_masks(data, 3, *given)
    with pytest.raises(ValueError, match=r"positive shares that add up to less than one, got 0\.2 and 5"):
        random_node_masks(data, 3, 0.2, 5)
    with pytest.raises(TypeError, match="seed must"):
        random_node_masks(data, "a", 1, 2)  # type: ignore[arg-type]


def edge_set(edge_index: Tensor) -> set[tuple[int, int]]:
    """Edges as ordered pairs of nodes."""
    return {(min(pair), max(pair)) for pair in edge_index.T.tolist()}


def test_link_split_hides_edges_and_draws_pairs_without() -> None:
    data = cluster_graphs(1, 0)[0]
    train, val, test = random_link_split(data, seed=1, val=0.1, test=0.2)
    edges = edge_set(data.edge_index)
    hidden = {}
    for name, part in (("val", val), ("test", test)):
        pairs, is_edge = part.edge_label_index, part.edge_label == 1
        hidden[name] = edge_set(pairs[:, is_edge])
        assert len(hidden[name]) == int(is_edge.sum()) == int((~is_edge).sum())
        assert hidden[name] < edges and not edge_set(pairs[:, ~is_edge]) & edges
        assert bool((pairs[0] != pairs[1]).all())
    known = edge_set(train.edge_index)
    assert known == edge_set(val.edge_index) == edges - hidden["val"] - hidden["test"]
    assert edge_set(test.edge_index) == edges - hidden["test"] and not hidden["val"] & hidden["test"]
    assert edge_set(train.edge_label_index) == known and bool((train.edge_label == 1).all())


def test_link_split_comes_from_its_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    data = cluster_graphs(1, 0)[0]
    splits = []
    for state in (0, 1):  # of the global generators
        torch.manual_seed(state)
        random.seed(state)
        expected = torch.rand(1), random.random()
        torch.manual_seed(state)
        random.seed(state)
        with monkeypatch.context() as patched:
            patched.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("seeded all GPUs"))
            splits.append(random_link_split(data, seed=5))
        assert (torch.rand(1), random.random()) == expected
    for one, other in zip(*splits, strict=True):
        assert torch.equal(one.edge_index, other.edge_index)
        assert torch.equal(one.edge_label_index, other.edge_label_index)
    assert not torch.equal(random_link_split(data, seed=6)[2].edge_label_index, splits[0][2].edge_label_index)


def test_link_split_of_an_edge_index_that_knows_it_is_undirected() -> None:
    """PyG's own is_undirected and coalesce fail on it."""
    data = cluster_graphs(1, 0)[0]
    expected = random_link_split(data, seed=0)
    size = (data.num_nodes, data.num_nodes)
    data.edge_index = EdgeIndex(data.edge_index, sparse_size=size, is_undirected=True)
    for part, plain in zip(random_link_split(data, seed=0), expected, strict=True):
        assert torch.equal(torch.as_tensor(part.edge_index), plain.edge_index)
        assert torch.equal(part.edge_label_index, plain.edge_label_index)


@pytest.mark.parametrize(
    "encoder", [Positions(4), LaplacianEigenvectors(4), RandomWalk(4)], ids=lambda e: type(e).__name__
)
def test_encodings_of_a_link_split_know_no_hidden_edge(encoder: Any) -> None:
    """Each part has the encoding of a graph that never had its hidden edges."""
    data = cluster_graphs(1, 0)[0]
    encode = AddPositionalEncoding(encoder)
    train, val, test = (encode(part) for part in random_link_split(data, seed=2))
    fresh = encode(Data(edge_index=train.edge_index, num_nodes=data.num_nodes))
    assert torch.equal(train.pe, fresh.pe) and torch.equal(val.pe, train.pe)
    assert not torch.allclose(train.pe, encode(data).pe)
    assert torch.equal(test.pe, encode(Data(edge_index=test.edge_index, num_nodes=data.num_nodes)).pe)
    assert not torch.allclose(test.pe, train.pe)


@pytest.mark.parametrize(
    ("edge_index", "message"),
    [
        ([[0, 1, 2, 3], [1, 2, 3, 0]], "one direction"),
        ([[0, 1, 1, 0, 0, 1], [1, 0, 2, 1, 1, 0]], "twice"),
        ([[0, 1, 2, 2], [1, 0, 2, 2]], "self-loops"),
        ([[0, 4], [4, 0]], r"edge_index must lie in 0\.\.3 .*got 0\.\.4"),
        ([[0, -1], [-1, 0]], r"edge_index must lie in .*got -1\.\.0"),
        ([[0.0, 1.0], [1.0, 0.0]], "edge_index must be int64 or int32"),
        ([0, 1], "edge_index must be int64 or int32"),
    ],
)
def test_link_split_refuses_edges_that_would_leak(edge_index: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        random_link_split(Data(edge_index=torch.tensor(edge_index), num_nodes=4), seed=0)


def test_link_split_refuses_other_arguments() -> None:
    data = cluster_graphs(1, 0)[0]
    for shares in ({"val": 0.0}, {"test": 1.0}, {"val": 0.5, "test": 0.5}):
        with pytest.raises(ValueError, match="val and test"):
            random_link_split(data, 0, **shares)
    with pytest.raises(TypeError, match="seed"):
        random_link_split(data, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="data"):
        random_link_split([data], 0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="edge_index must"):
        random_link_split(Data(edge_index=data.edge_index.numpy(), num_nodes=data.num_nodes), 0)
