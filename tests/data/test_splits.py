"""Splits and sizes of PyG data: inferred values, and errors for ambiguous data."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Stored, refusals
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.loader import DataLoader

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


test_sizes_that_are_not_clear = refusals(
    DataSpec.of,
    (([graph(x=torch.eye(3, dtype=torch.long))],), "only 0 and 1"),
    (([graph(x=torch.eye(3, dtype=torch.bool))],), "bool"),
    (([graph(x=torch.tensor([[-1], [0], [1]]))],), "-1"),
    (([graph(x=torch.rand(3))],), r"x.unsqueeze\(1\)"),
    (([graph(x=torch.rand(3, 2, 2))],), r"x.flatten\(1\)"),
    (([graph(graph_attr=torch.rand(3))],), r"graph_attr.view\(1, -1\)"),
    (([graph(x=torch.rand(3, 2)), graph(x=torch.rand(3, 1))],), r"x must .* got size 1 for tensor number 1"),
    (([graph(y=torch.ones(1)), graph(y=torch.ones(1, 2))],), r"y must .* in all graphs"),
    (([graph()], [graph(x=torch.rand(3, 1))]), "x"),
    (([graph(x=torch.rand(3, 2))], [graph(x=torch.rand(3, 1))]), "x"),
    (([graph(), graph(x=None, num_nodes=3)],), "graph 1"),
    ((), "dataset"),
    (([],), "graph"),
    ((Stored([graph(), graph()], transform=lambda data: data),), "transform"),
    (([1, 2],), TypeError, "graph 0"),
    ((graph(),), TypeError, r"\[data\]"),
    (([Data(x=torch.rand(3, 1))],), "edge_index"),
    (([graph(x=torch.eye(3).to_sparse())],), r"x.to_dense\(\)"),
    (([graph(x=torch.eye(3).to_sparse_csr())] * 2,), r"x.to_dense\(\)"),  # which PyG joins to a list
)


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
    splits = GraphSplits.of(*3 * [[graph(nodes, y=torch.arange(nodes)) for nodes in (3, 5)]])
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


def test_without_labels() -> None:
    splits = GraphSplits.of(*3 * [[graph(y=None), graph(4, y=None)]])
    assert splits.target.columns == () and splits.labels("train").shape == (2, 0)


ONE = [graph()]
test_splits_that_do_not_fit = refusals(
    lambda train, val=ONE, test=ONE, options={}: GraphSplits.of(train, val, test, **options),
    ((ONE, []), "val split"),
    ((ONE, [graph(y=None)]), "val"),
    ((ONE, ONE, ONE, {"level": "edge"}), "'edge'"),
    ((ONE, ONE, ONE, {"columns": ["a", "b"]}), "1 columns"),
    ((ONE, ONE, ONE, {"columns": "a"}), TypeError, "'a'"),
    ((ONE, ONE, ONE, {"spec": {"in_channels": 1}}), TypeError, "spec"),
    ((ONE, ONE, ONE, {"level": "node"}), "train: y"),
    (([graph(y=torch.rand(1, 2))],), "columns"),
    ((*3 * [[graph(y=torch.rand(3, 2), train_mask=torch.ones(3) > 0)]],), "train_mask"),
    ((Stored([graph(), graph()], lambda d: d),), "train: .* transform"),
)
test_labels_that_do_not_fit = refusals(
    lambda y, **options: GraphSplits.of(*3 * [[graph(y=y)]], **options),
    ({"y": None, "columns": ["a"]}, "y"),
    ((torch.rand(2, 2),), "one row per graph or one per node"),
    ((torch.rand(1, 2, 3),), "y"),
    ((torch.ones(1) + 1j,), TypeError, "real"),
    (("toxic",), TypeError, "y"),
)


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


test_masks_that_do_not_fit = refusals(
    lambda **changes: GraphSplits.of_masks(node_graph(**changes)),
    (masks([0], [0], [1]), "share"),
    (masks([0], [1], []), "test_mask"),
    ({"val_mask": None}, "random_node_masks"),
    ({"y": torch.zeros(1)}, r"y must .* got \(1,\)"),
    ({"y": torch.tensor(1.0)}, r"y must .* got \(\)"),
    ({"y": torch.rand(4, 1, 1)}, r"y must .* got \(4, 1, 1\)"),
    ({"y": None}, "None"),
)
test_columns_of_masks_that_do_not_fit = refusals(
    lambda **changes: node_splits(node_graph(**changes), 0),
    ({"train_mask": np.array([True, False, False, False])}, "train_mask"),
    ({"train_mask": torch.empty(4, 0, dtype=torch.bool)}, "train_mask"),
    ({"train_mask": torch.eye(4, 2, dtype=torch.bool), "val_mask": np.array([False, True, False, False])}, "val_mask"),
)


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


def test_shares_of_a_split() -> None:
    for number in (*range(3, 200), 10_000, 70_000):
        assert [len(part) for part in split_indices(number, 0)][1:] == [max(1, number // 10)] * 2


test_what_cannot_be_split = refusals(
    lambda split, *arguments: split(*arguments),
    ((split_indices, 2, 0), "2 rows"),
    ((split_indices, 10, 0, 0.5, 0.5), r"0\.5"),
    ((split_indices, 10, 0, "0.1"), r"'0\.1'"),
    ((split_indices, 10, 2**64), ValueError, "seed"),
    *(((random_folds, range(20), 0, 5, val), f"{val}") for val in (-1.0, 0.0, 0.8, 1.5)),
    ((random_folds, range(20), "0"), ValueError, "seed"),
    ((random_split, graph(), 0), TypeError, "random_node_masks"),
    ((random_split, HeteroData(), 0), TypeError, "HeteroData"),
    ((random_split, Batch.from_data_list([graph()] * 20), 0), TypeError, "to_data_list"),
    ((GraphSplits.of_masks, [node_graph()]), TypeError, "list"),
)


def test_several_published_splits_with_one_test_mask() -> None:
    """As in WikiCS."""
    rows = torch.arange(12)
    train, val = ((rows.unsqueeze(1) - torch.arange(3)) % 8 == place for place in (0, 3))
    data = Data(x=torch.rand(12, 1), edge_index=EDGES, y=rows % 2, train_mask=train, val_mask=val, test_mask=rows > 9)
    found = node_splits(data, 1)
    for part, mask in (("train", train[:, 1]), ("val", val[:, 1]), ("test", rows > 9)):
        assert torch.equal(~found.labels(part).squeeze(1).isnan(), mask)
    assert found.split == {"kind": "published", "number": 1}


def test_random_node_masks() -> None:
    data = Data(x=torch.rand(50, 1), edge_index=EDGES)
    masked = random_node_masks(data, seed=3)
    assert [int(masked[f"{part}_mask"].sum()) for part in ("train", "val", "test")] == [30, 10, 10]
    assert bool((masked.train_mask ^ masked.val_mask ^ masked.test_mask).all())
    assert "train_mask" not in data
    assert torch.equal(masked.train_mask, random_node_masks(data, seed=3).train_mask)


test_refused_node_masks = refusals(
    lambda **shares: random_node_masks(Data(x=torch.rand(18, 1)), **{"seed": 3, **shares}),
    ({"val": 1}, "shares"),
    ({"seed": "a"}, ValueError, "seed"),
)


def edge_set(edge_index: Tensor) -> set[tuple[int, int]]:
    """Edges as ordered pairs of nodes."""
    return {(min(pair), max(pair)) for pair in edge_index.T.tolist()}


def test_link_split_hides_edges_and_draws_pairs_without() -> None:
    data = cluster_graphs(1, 0)[0]
    data.edge_weight = 0.3 + 1e-8 * torch.rand(data.num_edges)  # equal in both directions but for rounding
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
        expected = torch.initial_seed(), torch.get_rng_state().tolist(), random.getstate()
        with monkeypatch.context() as patched:
            patched.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("seeded all GPUs"))
            splits.append(random_link_split(data, seed=5))
        assert (torch.initial_seed(), torch.get_rng_state().tolist(), random.getstate()) == expected
    for one, other in zip(*splits, strict=True):
        assert torch.equal(one.edge_index, other.edge_index)
        assert torch.equal(one.edge_label_index, other.edge_label_index)
    assert not torch.equal(random_link_split(data, seed=6)[2].edge_label_index, splits[0][2].edge_label_index)


test_link_split_refuses_edges_that_would_leak = refusals(
    lambda edges, **attributes: random_link_split(Data(edge_index=edges, num_nodes=4, **attributes), seed=0),
    ((torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]),), "one direction"),
    ((torch.tensor([[0, 1, 1, 0, 0, 1], [1, 0, 2, 1, 1, 0]]),), "twice"),
    ((torch.tensor([[0, 1, 2, 2], [1, 0, 2, 2]]),), "self-loops"),
    ((torch.tensor([[0, 4], [4, 0]]),), r"edge_index .*0\.\.4"),
    ((torch.tensor([[0, -1], [-1, 0]]),), r"edge_index .*-1\.\.0"),
    ((torch.tensor([[0.0, 1.0], [1.0, 0.0]]),), "edge_index"),
    ((torch.tensor([0, 1]),), "edge_index"),
    ((EDGES.numpy(),), TypeError, "edge_index"),
    ({"edges": EDGES, "edge_weight": torch.tensor([1.0, 2.0, 3.0, 3.0])}, "unequal edge_weight"),
    ({"edges": EDGES, "edge_label": torch.ones(4)}, "an edge_label"),
)


test_link_split_refuses_other_arguments = refusals(
    lambda data=None, seed=0, **shares: random_link_split(data or cluster_graphs(1, 0)[0], seed, **shares),
    ({"val": 0.0}, "val and test"),
    ({"seed": None}, ValueError, "seed"),
    ({"data": [graph()]}, TypeError, "data"),
)
