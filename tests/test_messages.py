"""Errors name the argument that mends them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers import refusals
from torch_geometric.data import Data, HeteroData, InMemoryDataset
from torch_geometric.loader import DataLoader

from tg_lpe import (
    AddPositionalEncoding,
    Encoder,
    GramTransformer,
    Graph,
    GraphTransformer,
    LinearTransformerPE,
    compare,
    plot,
    zoo,
)
from tg_lpe.data import DataSpec, GraphSplits, random_folds, random_link_split, random_node_masks, random_split
from tg_lpe.encoders import RandomWalk, ResistiveEmbedding, make_encoder, precomputed_of, store_precomputed

RING = torch.tensor([[0, 1, 2, 1, 2, 0], [1, 2, 0, 0, 1, 2]])
WEIGHTS = torch.arange(1.0, 7.0)  # another one in each direction


def meta(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, device="meta")


test_graphs = refusals(
    Graph,
    ((RING.numpy(),), TypeError, "edge_index must .* got ndarray"),
    ((RING + 1, 3), r"edge_index - 1"),
    ((RING - 1, 3), r"-1\.\.1"),
    ((RING.t(),), r"edge_index must .* got torch.int64 \[6, 2\]"),
    ((torch.tensor([[], []]),), r"edge_index must .* got torch.float32 \[2, 0\]"),
    ({"edge_index": RING, "edge_weight": WEIGHTS.numpy()}, TypeError, "edge_weight must .* got ndarray"),
    ({"edge_index": RING, "edge_weight": WEIGHTS[:3]}, r"to_undirected\(edge_index, edge_weight\)"),
    ({"edge_index": RING, "edge_weight": WEIGHTS.unsqueeze(1)}, r"edge_weight must .* torch.float32 \[6, 1\]"),
    ({"edge_index": RING, "edge_weight": WEIGHTS.long()}, r"edge_weight must .* torch.int64 \[6\]"),
    ({"edge_index": RING, "num_nodes": 3, "batch": torch.zeros(3).int()}, r"batch.long\(\)"),
    ({"edge_index": RING, "batch": meta(3).long()}, "edge_index on cpu, batch on meta"),
)
test_graph_transformers = refusals(
    lambda options, *arguments, **more: GraphTransformer(**options)(*arguments, **more),
    (({}, torch.rand(3, 2), RING), "in_channels=2"),
    (({}, torch.zeros(3, dtype=torch.int64), RING), "num_node_types="),
    (({"in_channels": 2}, torch.rand(3, 2), RING, torch.rand(6, 4)), "edge_dim=4"),
    (({"in_channels": 2}, None, RING), "x is missing"),
    (({"num_node_types": 3}, torch.rand(3, 2), RING), "in_channels=2"),
    (({"in_channels": 4}, torch.rand(3, 2), RING), "in_channels=2"),
    (({"in_channels": 1}, [[1.0]] * 3, RING), TypeError, r"torch.as_tensor\(x\)"),
    (({"num_node_types": 3}, torch.rand(3), RING), r"types must be int64 .* got torch.float32 \[3\]"),
    (({"num_node_types": 3}, RING.t()[:3], RING), r"types must be int64 .* got torch.int64 \[3, 2\]"),
    (({"in_channels": 1}, RING[0, :3].unsqueeze(1), RING), r"floating point \[3, 1\], got torch.int64 \[3, 1\]"),
    (({"edge_dim": 1}, None, RING, torch.rand(6)), r"floating point \[6, 1\], got torch.float32 \[6\]"),
    (({"edge_dim": 2}, None, RING, torch.rand(6)), r"torch.float32 \[6\]"),
    (({}, None, RING, torch.rand(6)), "edge_dim=1, .* edge_attr=None"),
    (({"in_channels": 1}, torch.rand(4, 1), RING, torch.zeros(4).long()), "edge features"),
    (({}, Data(edge_index=RING, num_nodes=3)), TypeError, r"model\(data.x, data.edge_index"),
    (({}, None), TypeError, "edge_index"),
    (({"edge_dim": 1}, None, RING, torch.rand(3, 1)), r"to_undirected\(edge_index, edge_attr\)"),
    (({"num_edge_types": 1}, None, RING, RING[0, :3]), r"to_undirected\(edge_index, edge_attr\)"),
    (({"edge_dim": 1}, None, RING, torch.rand(9, 1)), "6 columns of edge_index"),
    (({}, RING, torch.rand(3, 3)), r"torch.float32 \[3, 3\]"),  # exchanged
    (({"in_channels": 1}, torch.rand(2, 1), RING), "rows of x, batch or pe"),
    (({"in_channels": 1}, meta(3, 1), RING), "edge_index on cpu, x on meta"),
    (({"edge_dim": 1}, None, RING, meta(6, 1)), "edge_attr on meta"),
    (({"encoder": RandomWalk},), TypeError, r"RandomWalk\("),
    (({"encoder": LinearTransformerPE(8)},), TypeError, "pre_transform, .* pe_channels="),
    (({"pe_channels": 1}, None, RING), "pe="),
)
test_given_encodings = refusals(
    lambda pe, **more: GraphTransformer(pe_channels=1)(None, RING, pe=pe, **more),
    ({"pe": torch.rand(2, 1), "num_nodes": 3}, "3 nodes"),
    ({"pe": torch.rand(3, 5)}, r"pe must have shape \(3, 1\), got \(3, 5\); pe_channels"),
)
test_encoders = refusals(
    lambda encoder, *arguments, **more: encoder(*arguments, **more),
    ((GramTransformer(num_edge_types=3), None, RING, torch.rand(6, 4)), "edge_dim=4"),
    ((GramTransformer(in_channels=1), torch.rand(3, 1), RING.to("meta")), "edge_index on meta, x on cpu"),
    (
        {"encoder": RandomWalk(4), "x": None, "edge_index": Graph(RING), "reduce": "add", "num_nodes": 3},
        "num_nodes and reduce",
    ),
    ((RandomWalk(4), Data(edge_index=RING, num_nodes=3)), TypeError, r"data.x, data.edge_index"),
    ((RandomWalk, np.int64(8)), r"steps must .* Python number"),
    ((LinearTransformerPE, np.int64(8)), r"k must .* Python number"),
    ((ResistiveEmbedding, 8, torch.tensor(0)), r"seed must .* Python number"),
    ((make_encoder, {"class": "Elsewhere"}), "--import"),
    ((store_precomputed, "LPE", []), TypeError, "encoder"),
    ((precomputed_of, []), TypeError, "data"),
)
HETERO = HeteroData({("a", "to", "b"): {"edge_index": RING}})
test_transforms = refusals(
    lambda make, argument, data=None: make(argument)(data),
    ((LinearTransformerPE, 8, [Data(edge_index=RING, num_nodes=3)]), TypeError, "encode_dataset"),
    ((LinearTransformerPE, "positions-k16"), r"from_pretrained\('positions-k16'\)"),
    ((AddPositionalEncoding, RandomWalk), TypeError, r"class RandomWalk; write RandomWalk\("),
    ((AddPositionalEncoding, "RandomWalk"), TypeError, r"RandomWalk\("),
    ((AddPositionalEncoding, "gram-k16"), TypeError, "from_pretrained"),
    (
        (AddPositionalEncoding, GramTransformer(8), Data(edge_index=RING, edge_weight=WEIGHTS, num_nodes=3)),
        "edge_weight=None",
    ),
    ((lambda k: LinearTransformerPE(k, hetero="whole"), 8, HETERO), r"data\['a'\].num_nodes"),
)


@pytest.mark.parametrize(
    "call",
    [
        lambda dataset: random_split(dataset, seed=0),
        lambda dataset: random_folds(dataset, seed=0),
        lambda dataset: GraphSplits.of(dataset, dataset, dataset),
        DataSpec.of,
        lambda dataset: compare(dataset, ["none"]),
        LinearTransformerPE(8).encode_dataset,
    ],
)
def test_what_is_no_dataset(call: Callable[[Any], Any]) -> None:
    graphs = [Data(edge_index=RING, num_nodes=3, y=torch.tensor([1.5]))] * 20
    table = pytest.importorskip("pandas").DataFrame({"smiles": ["C", "CC"]})
    for dataset, named in ((DataLoader(graphs), "a loader"), (iter(graphs), "a loader"), (table, "load_molecules")):
        with pytest.raises(TypeError, match=f"a dataset or a sequence of Data, got .*{named}"):
            call(dataset)


def test_a_dataset_with_columns_of_its_own_is_no_table() -> None:
    class Own(InMemoryDataset):
        columns = ("y",)

    dataset = Own()
    dataset._data, dataset.slices = InMemoryDataset.collate([Data(edge_index=RING, num_nodes=3)] * 20)
    assert [len(part) for part in random_split(dataset, seed=0)] == [16, 2, 2]


def test_several_node_types_where_one_is_taken() -> None:
    data = HeteroData({"a": {"x": torch.ones(3, 1)}, ("a", "to", "a"): {"edge_index": RING}})
    predictor = zoo.load("transformer-qm9-gap")
    for call in (
        lambda: DataSpec.of([data]),
        lambda: GraphSplits.of_masks(data),  # type: ignore[arg-type]
        lambda: random_link_split(data, seed=0),  # type: ignore[arg-type]
        lambda: random_node_masks(data, seed=0),  # type: ignore[arg-type]
        lambda: plot.graph(data, RandomWalk(2)),  # type: ignore[arg-type]
        lambda: predictor.predict([data]),
    ):
        with pytest.raises(TypeError, match=r"to_homogeneous\(\)"):
            call()
    with pytest.raises(TypeError, match=r"of type HeteroData: pass \[...\]"):
        predictor.predict(data)


def test_an_encoder_of_ones_own_shows_its_arguments() -> None:
    import inspect

    class Own(Encoder):
        def __init__(self, k: int = 3) -> None:
            super().__init__()

    for cls in (Own, type("Sub", (Own,), {})):
        assert str(cls.__signature__) == "(k: 'int' = 3)" and inspect.signature(cls) == cls.__signature__
