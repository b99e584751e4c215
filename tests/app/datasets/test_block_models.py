"""PATTERN and CLUSTER: sizes, densities, labels, and that a seed decides everything."""

import pytest
import torch
from helpers import refusals
from torch_geometric.utils import is_undirected, to_dense_adj

from tg_lpe.app.datasets import cluster_graphs, pattern_graphs
from tg_lpe.app.datasets.block_models import BLOCK_MODEL_SIZES, BLOCK_MODELS, load_block_model

MODELS = pytest.mark.parametrize("name", list(BLOCK_MODELS))


def densities(graphs, same):
    """Share of pairs with an edge, where `same` says of which pairs, over all graphs; and its standard deviation."""
    edges = pairs = 0.0
    for data in graphs:
        adjacency, wanted = to_dense_adj(data.edge_index, max_num_nodes=data.num_nodes)[0], same(data).triu(1)
        edges, pairs = edges + float(adjacency[wanted].sum()), pairs + float(wanted.sum())
    return edges / pairs, 0.5 / pairs**0.5


def alike(data):
    return data.y.unsqueeze(1) == data.y


@MODELS
def test_graphs_are_simple_and_symmetric(name):
    for data in BLOCK_MODELS[name](20, 3):
        assert data.x.dtype == data.y.dtype == torch.int64
        assert data.x.shape == data.y.shape == (data.num_nodes,)
        assert not data.has_self_loops() and data.is_coalesced() and is_undirected(data.edge_index)


@MODELS
def test_a_seed_decides_all(name):
    make, state = BLOCK_MODELS[name], torch.get_rng_state()
    few, many, other = make(3, 5), make(6, 5), make(3, 6)
    assert torch.equal(torch.get_rng_state(), state)
    for one, same in zip(few, many[:3], strict=True):
        assert all(torch.equal(one[key], same[key]) for key in ("x", "edge_index", "y"))
    assert any(one.edge_index.shape != same.edge_index.shape for one, same in zip(few, other, strict=True))
    assert make(0, 5) == []


def test_cluster():
    graphs = cluster_graphs(60, 0)
    for data in graphs:
        sizes = data.y.bincount(minlength=6)
        assert len(sizes) == 6 and int(sizes.min()) >= 5 and int(sizes.max()) <= 34
        marked = data.x > 0
        assert torch.equal(data.x[marked].sort().values, torch.arange(1, 7))
        assert torch.equal(data.y[marked], data.x[marked] - 1)
    inside, spread = densities(graphs, alike)
    assert abs(inside - 0.55) < 4 * spread
    between, spread = densities(graphs, lambda data: ~alike(data))
    assert abs(between - 0.25) < 4 * spread
    mean = sum(data.num_nodes for data in graphs) / 60
    assert abs(mean - 6 * 19.5) < 4 * (6 * 75 / 60) ** 0.5  # a block's variance: 75


def test_pattern():
    graphs = pattern_graphs(60, 0)
    for data in graphs:
        assert 5 <= int(data.y.sum()) <= 34 and set(data.x.tolist()) <= {0, 1, 2}
    joined, spread = densities(graphs, lambda data: ~alike(data))
    assert abs(joined - 0.5) < 4 * spread
    # Of all pairs outside the pattern, a share of E[sum s^2] / E[(sum s)^2] = 0.231 lies in one block.
    outside, _ = densities(graphs, lambda data: (data.y.unsqueeze(1) + data.y) == 0)
    assert abs(outside - (0.35 + 0.15 * 0.231)) < 0.01


@MODELS
def test_splits_are_cut_from_one_list(name):
    splits, graphs = load_block_model(name, 3, num_train=20), BLOCK_MODELS[name](28 if name == "pattern" else 24, 3)
    parts = [*splits.train, *splits.val, *splits.test]
    assert len(parts) == len(graphs)
    for part, graph in zip(parts, graphs, strict=True):
        assert torch.equal(part.edge_index, graph.edge_index) and torch.equal(part.y, graph.y.float())
    train, val, test = BLOCK_MODEL_SIZES[name]
    assert (len(splits.train), len(splits.val), len(splits.test)) == (20, 20 * val // train, 20 * test // train)
    assert splits.spec.num_node_types == (3 if name == "pattern" else 7) and splits.target.level == "node"
    assert splits.split == {"kind": "generated", "seed": 3}
    few = load_block_model(name, 0, num_train=2)
    assert (len(few.train), len(few.val), len(few.test)) == (2, 1, 1)


test_refused_arguments = refusals(
    lambda make, *arguments: make(*arguments),
    *(((make, *arguments), "must be an") for make in BLOCK_MODELS.values() for arguments in ((-1, 0), (1, "0"))),
    ((load_block_model, "sbm", 0), "name must"),
    ((load_block_model, "pattern", 0, 0), "num_train must"),
)
