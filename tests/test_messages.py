"""Errors name the argument that mends them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric
from torch_geometric.data import Data, HeteroData, InMemoryDataset
from torch_geometric.loader import DataLoader
from torch_geometric.transforms import ToSparseTensor

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
from tg_lpe.theory import wl

RING = torch.tensor([[0, 1, 2, 1, 2, 0], [1, 2, 0, 0, 1, 2]])
WEIGHTS = torch.arange(1.0, 7.0)  # another one in each direction


def masked(mask: torch.Tensor | None) -> GraphSplits:
    one = torch.tensor([False, True, False])
    return GraphSplits.of_masks(
        Data(edge_index=RING, num_nodes=3, y=torch.rand(3), train_mask=mask, val_mask=one, test_mask=one.roll(1))
    )


def labelled(**options: Any) -> GraphSplits:
    graphs = [Data(edge_index=RING, num_nodes=3, y=torch.rand(1))]
    return GraphSplits.of(graphs, graphs, graphs, **options)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: GraphTransformer()(torch.rand(3, 2), RING), "in_channels=2"),
        (lambda: GraphTransformer()(torch.zeros(3, dtype=torch.int64), RING), "num_node_types="),
        (lambda: GraphTransformer(in_channels=2)(torch.rand(3, 2), RING, torch.rand(6, 4)), "edge_dim=4"),
        (lambda: GraphTransformer(in_channels=2)(None, RING, num_nodes=3), "x is missing"),
        (lambda: GraphTransformer(num_node_types=3)(torch.rand(3, 2), RING), "in_channels=2"),
        (lambda: GramTransformer(num_edge_types=3)(None, RING, torch.rand(6, 4), num_nodes=3), "edge_dim=4"),
        (lambda: LinearTransformerPE(8)([Data(edge_index=RING, num_nodes=3)]), "encode_dataset"),
        (lambda: LinearTransformerPE("positions-k16"), r"from_pretrained\('positions-k16'\)"),  # type: ignore[arg-type]
        (lambda: AddPositionalEncoding(RandomWalk), r"write RandomWalk\("),  # type: ignore[arg-type]
        (lambda: AddPositionalEncoding("RandomWalk"), r"write RandomWalk\("),  # type: ignore[arg-type]
        (lambda: AddPositionalEncoding("gram-k16"), "from_pretrained"),  # type: ignore[arg-type]
        (lambda: GraphTransformer(encoder=RandomWalk), r"write RandomWalk\("),  # type: ignore[arg-type]
        (
            lambda: AddPositionalEncoding(GramTransformer(8))(Data(edge_index=RING, edge_weight=WEIGHTS, num_nodes=3)),
            "edge_weight=None",
        ),
        (lambda: GraphTransformer(in_channels=4)(torch.rand(3, 2), RING), "in_channels=2, not 4$"),
        (lambda: GraphTransformer(dropout=0.1), "'dropout'; .* such as dropout, are entries of attention_options"),  # type: ignore[call-arg]
        (lambda: RandomWalk(k=8), "RandomWalk has no argument 'k'; its arguments are steps"),  # type: ignore[call-arg]
        (lambda: GraphTransformer(encoder=LinearTransformerPE(8)), "as pre_transform, .* pe_channels="),  # type: ignore[arg-type]
        (lambda: Graph(RING.numpy()), r"torch.as_tensor\(edge_index\)"),  # type: ignore[arg-type]
        (lambda: Graph(RING, edge_weight=WEIGHTS.numpy()), r"torch.as_tensor\(edge_weight\)"),  # type: ignore[arg-type]
        (lambda: GraphTransformer(in_channels=1)([[1.0]] * 3, RING), r"torch.as_tensor\(x\)"),
        (lambda: GraphTransformer(num_node_types=3)(torch.rand(3), RING), r"pass x.long\(\)$"),
        (
            lambda: GraphTransformer(num_node_types=3)(RING.t()[:3], RING),
            r"num_node_types=\[...\] .* each column, 2 in all$",
        ),
        (lambda: GraphTransformer(in_channels=1)(RING[0, :3].unsqueeze(1), RING), r"pass x.float\(\)$"),
        (lambda: GraphTransformer(in_channels=1)(RING[0, :3], RING), r"pass x.unsqueeze\(1\).float\(\)$"),
        (lambda: GraphTransformer(edge_dim=1)(None, RING, torch.rand(6)), r"pass edge_attr.unsqueeze\(1\)$"),
        (lambda: GraphTransformer(edge_dim=2)(None, RING, torch.rand(6)), r"got torch.float32 \[6\]$"),
        (
            lambda: GraphTransformer()(None, RING, WEIGHTS),
            r"edge_dim=1 and pass edge_attr.unsqueeze\(1\), .* edge_weight=$",
        ),
        (lambda: GraphTransformer()(None, RING, torch.rand(6, 2)), "edge_dim=2, or call it with edge_attr=None$"),
        (lambda: GraphTransformer()(torch.rand(3), RING), r"in_channels=1 and pass x.unsqueeze\(1\), .* x=None$"),
        (lambda: RandomWalk(4)(None, Graph(RING), reduce="add", num_nodes=3), "own num_nodes and reduce: pass them to"),
        (lambda: GraphTransformer(in_channels=1)(torch.rand(4, 1), RING, torch.zeros(4).long()), "batch=batch"),
        (lambda: make_encoder({"class": "Elsewhere"}), "--import"),
        (
            lambda: LinearTransformerPE(8, hetero="whole")(HeteroData({("a", "to", "b"): {"edge_index": RING}})),
            r"set data\['a'\].num_nodes",
        ),
        (lambda: GraphTransformer()(Data(edge_index=RING, num_nodes=3)), r"write model\(data.x, data.edge_index"),
        (lambda: RandomWalk(4)(Data(edge_index=RING, num_nodes=3)), r"data.x, data.edge_index"),
        (lambda: GraphTransformer()(None), "edge_index must be an int64 or int32 tensor"),
        (lambda: GraphTransformer(edge_dim=1)(None, RING, torch.rand(3, 1)), r"to_undirected\(edge_index, edge_attr\)"),
        (
            lambda: GraphTransformer(num_edge_types=1)(None, RING, RING[0, :3]),
            r"to_undirected\(edge_index, edge_attr\)",
        ),
        (lambda: GraphTransformer(edge_dim=1)(None, RING, torch.rand(9, 1)), "each of the 6 columns of edge_index$"),
        (lambda: GraphTransformer(pe_channels=1)(None, RING, pe=torch.rand(2, 1), num_nodes=3), "each of the 3 nodes"),
        (lambda: GraphTransformer(pe_channels=1)(None, RING, pe=torch.rand(3, 5)), "pe_channels, 5 in place of 1$"),
        (lambda: GraphTransformer(pe_channels=1)(None, RING, num_nodes=3), "pass pe=$"),
        (lambda: Graph(RING, edge_weight=WEIGHTS[:3]), r"to_undirected\(edge_index, edge_weight\)"),
        (lambda: Graph(RING, 3, batch=RING[0, :2]), "batch needs a row for each of the 3 nodes"),
        (lambda: Graph(RING, 3, batch=torch.zeros(3).int()), r"pass batch.long\(\)"),
        (lambda: GraphTransformer(in_channels=1)(torch.rand(2, 1), RING), "rows of x, batch or pe, must count 3 nodes"),
        (lambda: Graph(RING + 1, 3), "pass edge_index - 1$"),
        (lambda: Graph(RING - 1, 3), r"got -1\.\.1$"),
        (lambda: Graph(RING.t()), r"pass edge_index.t\(\)$"),
        (lambda: Graph(RING.t().float()), r"pass edge_index.t\(\).long\(\)$"),
        (lambda: Graph(RING[:, :2].float()), r"pass edge_index.long\(\)$"),
        (lambda: Graph(torch.tensor([[], []])), r"pass edge_index.long\(\)$"),
        (lambda: GraphTransformer()(RING, torch.rand(3, 3)), r"got torch.float32 \[3, 3\]$"),  # exchanged
        (lambda: Graph(RING, edge_weight=WEIGHTS.unsqueeze(1)), r"pass edge_weight.squeeze\(1\)$"),
        (lambda: Graph(RING, edge_weight=WEIGHTS.long()), r"pass edge_weight.float\(\)"),
        (lambda: Graph(RING, edge_weight=WEIGHTS.long().unsqueeze(1)), r"squeeze\(1\).float\(\)"),
        (lambda: Graph.from_data(HeteroData()), r"to_homogeneous\(\)"),
        (lambda: masked(torch.tensor([0, 1])), r"index_to_mask\(data.train_mask, 3\)"),
        (lambda: masked(torch.ones(3, dtype=torch.uint8)), r"pass data.train_mask.bool\(\)"),
        (lambda: masked(torch.ones(3, 2) > 0), r"data.train_mask\[:, i\]"),
        (lambda: masked(None), "random_node_masks"),
        (lambda: AddPositionalEncoding(RandomWalk), "the class RandomWalk"),
        (lambda: RandomWalk(np.int64(8)), r"steps must .* got np.int64\(8\); pass a Python number"),
        (lambda: LinearTransformerPE(np.int64(8)), r"k must .*; pass a Python number"),
        (lambda: ResistiveEmbedding(8, torch.tensor(0)), r"seed must .*; pass a Python number"),
        (lambda: Graph(RING, batch=torch.zeros(3).long().to("meta")), "edge_index on cpu, batch on meta; data.to"),
        (
            lambda: GraphTransformer(in_channels=1)(torch.rand(3, 1, device="meta"), RING),
            "edge_index on cpu, x on meta",
        ),
        (lambda: GraphTransformer(edge_dim=1)(None, RING, torch.rand(6, 1, device="meta")), "edge_attr on meta"),
        (lambda: GramTransformer(in_channels=1)(torch.rand(3, 1), RING.to("meta")), "edge_index on meta, x on cpu"),
        (lambda: store_precomputed("LPE", []), "encoder must be an Encoder, got str"),  # type: ignore[arg-type]
        (lambda: precomputed_of([]), "data must be a Data, got list"),  # type: ignore[arg-type]
        (lambda: labelled(columns=[3]), r"columns must .* got \[3\]"),
        (lambda: labelled(spec={"in_channels": 1}), "spec must be a DataSpec, got dict"),
    ],
)
def test_what_to_write_is_named(call: Callable[[], Any], named: str) -> None:
    with pytest.raises((ValueError, TypeError), match=named):
        call()


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
    for dataset, named in ((DataLoader(graphs), "a list"), (iter(graphs), "a list"), (table, "load_molecules")):
        with pytest.raises(TypeError, match=f"a dataset or a sequence of Data, got .*{named}"):
            call(dataset)


def test_a_dataset_with_columns_of_its_own_is_no_table() -> None:
    class Own(InMemoryDataset):
        columns = ("y",)

    dataset = Own()
    dataset._data, dataset.slices = InMemoryDataset.collate([Data(edge_index=RING, num_nodes=3)] * 20)
    assert [len(part) for part in random_split(dataset, seed=0)] == [16, 2, 2]


def test_the_edges_of_adj_t() -> None:
    adj_t = ToSparseTensor(layout=torch.sparse_coo)(Data(edge_index=RING[:, :3], num_nodes=3)).adj_t
    with pytest.raises(ValueError, match=r"pass torch_geometric.utils.to_edge_index\(adj_t.t\(\)\)\[0\]"):
        GraphTransformer()(None, adj_t)
    edge_index = torch_geometric.utils.to_edge_index(adj_t.t())[0]
    assert edge_index.tolist() == [[2, 0, 1], [0, 1, 2]]


def test_a_graph_with_adj_t_in_place_of_edge_index() -> None:
    sparse = ToSparseTensor(layout=torch.sparse_coo)
    data = sparse(Data(edge_index=RING, num_nodes=3, y=torch.tensor([1.5])))
    bare = HeteroData()
    bare["a"].num_nodes = 3
    bare["a", "to", "a"].adj_t = data.adj_t
    for call in (
        lambda: LinearTransformerPE(8)(data),
        lambda: LinearTransformerPE(8).encode_dataset([data, data], progress=False),
        lambda: LinearTransformerPE(8, hetero="whole")(bare),
        lambda: DataSpec.of([data, data]),
        lambda: Graph.from_data(data),
        lambda: GraphTransformer()(None, data.edge_index, num_nodes=3),
        lambda: wl.exact_walks(data),
        lambda: random_link_split(data, seed=0),
        lambda: plot.graph(data, RandomWalk(2)),
    ):
        with pytest.raises((TypeError, ValueError), match="edge_index"):
            call()


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
    with pytest.raises(TypeError, match=r"got one HeteroData: pass \[...\]"):
        predictor.predict(data)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_features(layout: torch.layout) -> None:
    """PyG joins sparse features of several graphs to a list."""
    data = Data(x=torch.eye(3).to_sparse(layout=layout), edge_index=RING)
    for graphs in ([data], [data, data]):
        with pytest.raises(ValueError, match=r"x must be dense, got the layout .*; write x.to_dense\(\)"):
            DataSpec.of(graphs)


def test_labels_that_are_strings_are_quoted() -> None:
    graphs = [Data(edge_index=RING, num_nodes=3, y="1.5")] * 20
    with pytest.raises(TypeError, match=r"y must be tensors or numbers, got '1\.5'"):
        GraphSplits.of(*random_split(graphs, seed=0))


def test_that_directions_are_dropped_is_said_where_it_is_so() -> None:
    from tg_lpe import transforms

    one_way, both = RING[:, :3], RING
    encode = LinearTransformerPE(8)
    values = [encode(Data(edge_index=index, num_nodes=3)).linear_transformer_pe for index in (one_way, both)]
    torch.testing.assert_close(*values)
    for name in transforms.__all__:
        assert "irections" in (getattr(transforms, name).__doc__ or ""), name


def test_an_encoder_of_ones_own_shows_its_arguments() -> None:
    import inspect

    class Own(Encoder):
        def __init__(self, k: int = 3) -> None:
            super().__init__()

    for cls in (Own, type("Sub", (Own,), {})):
        assert str(cls.__signature__) == "(k: 'int' = 3)" and inspect.signature(cls) == cls.__signature__
