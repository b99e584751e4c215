"""Malformed graphs and files found by fuzzing, which must raise clear errors."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from helpers import refusals
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset
from torch_geometric.data.hypergraph_data import HyperGraphData
from torch_geometric.nn import to_hetero, to_hetero_with_bases

from tg_lpe import (
    AddPositionalEncoding,
    Encoder,
    GramTransformer,
    Graph,
    GraphTransformer,
    LinearTransformer,
    LinearTransformerPE,
)
from tg_lpe.app.training.loop import run_in_folder
from tg_lpe.app.training.run_folder import RunFolder
from tg_lpe.encoders import LaplacianEigenvectors, RandomWalk, ResistiveEmbedding
from tg_lpe.models import TupleTransformer
from tg_lpe.transforms import AddEffectiveResistance

EDGES = torch.tensor([[0, 1, 2], [1, 2, 0]])
BATCH = torch.zeros(3, dtype=torch.int64)
REAL = torch.ones(3, 2)
NAN, INFINITE = (REAL.index_fill(0, torch.tensor([1]), value) for value in (float("nan"), float("-inf")))


def model(**options: object) -> GraphTransformer:
    return GraphTransformer(hidden_channels=8, heads=2, num_layers=1, **options)


test_counts_and_indices = refusals(
    lambda make, edges, **given: make(edges, **given),
    *(
        ({"make": make, "edges": edges, **given}, error, name)
        for make in (Graph, lambda edges, **given: model()(None, edges, **given))
        for edges, given, error, name in (
            (EDGES, {"num_nodes": -3}, ValueError, "num_nodes"),
            (EDGES, {"num_nodes": 2**62}, ValueError, "num_nodes"),
            (EDGES, {"num_nodes": 3.5}, TypeError, "num_nodes"),
            (EDGES, {"batch": BATCH, "num_nodes": 3, "num_graphs": 10**12}, ValueError, "num_graphs"),
            (EDGES, {"batch": BATCH, "num_nodes": 3, "num_graphs": "1"}, TypeError, "num_graphs"),
            (EDGES, {"batch": [0, 0, 0], "num_nodes": 3}, TypeError, "batch"),
            (EDGES.tolist(), {"num_nodes": 3}, TypeError, "edge_index"),
        )
    ),
)


@pytest.mark.parametrize("convert", [to_hetero, to_hetero_with_bases])
@pytest.mark.parametrize("make", [model, lambda: TupleTransformer(hidden_channels=8), lambda: RandomWalk(4)])
def test_conversions_to_hetero_are_refused(convert, make) -> None:
    bases = {"num_bases": 2} if convert is to_hetero_with_bases else {}
    with pytest.raises(TypeError, match="to_homogeneous"):
        convert(make(), (["a", "b"], [("a", "to", "b"), ("b", "to", "a")]), **bases)


SPARSE = torch.ones(3, 2).to_sparse()
test_features = refusals(
    lambda call, x=None, edge_attr=None, **more: call(x, EDGES, edge_attr, **more),
    *(
        ({"call": call, "x": x}, error, name)
        for call in (
            model(in_channels=2),
            GramTransformer(4, in_channels=2),
            LinearTransformer(4, probes="features", in_channels=2),
        )
        for x, error, name in (
            (NAN, ValueError, "finite"),
            (INFINITE, ValueError, "finite"),
            (SPARSE, ValueError, "layout"),
            (torch.ones(3, 2).to_sparse_csr(), ValueError, "layout"),
            ([[1.0, 1.0]] * 3, TypeError, "x"),
        )
    ),
    ({"call": model(edge_dim=2), "edge_attr": NAN}, "edge features"),
    ({"call": GramTransformer(4, edge_dim=2), "edge_attr": NAN}, "edge features"),
    ({"call": model(pe_channels=2), "pe": NAN}, "pe"),
    ({"call": model(pe_options={"edge_channels": 2}), "edge_pe": NAN}, "edge_pe"),
    ({"call": model(graph_dim=2), "graph_attr": [[1.0, 2.0]]}, TypeError, "graph_attr"),
    *(
        ({"call": call, "generator": 0}, TypeError, "generator")
        for call in (LinearTransformer(4), RandomWalk(4), model(encoder=RandomWalk(4)))
    ),
)


def test_gradients_of_conductances_that_vanish() -> None:
    """Far below zero, softplus and with it the sum at a node underflows."""
    encoder = GramTransformer(4, in_channels=1, edge_dim=1)
    with torch.no_grad():
        for weight in (encoder.conductances.edge.weight, encoder.conductances.ground.weight):
            weight.fill_(-1.0)
    found = encoder(torch.full((3, 1), 60.0), EDGES, torch.full((3, 1), 85.0))
    gradients = torch.autograd.grad(found.node.square().sum() + found.edge.sum(), list(encoder.parameters()))
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)


@pytest.mark.parametrize("content", ["7", "[]", "null"])
def test_results_that_are_no_object(tmp_path: Path, content: str) -> None:
    folder = RunFolder(tmp_path)
    folder.start("train", {}, resume=False)
    folder.release()
    folder.result.write_text(content)
    with pytest.raises(ValueError, match=r"result\.json"):
        run_in_folder(lambda: pytest.fail("a run that is complete is not run"), folder, "train", {}, resume=True)


def test_a_default_device_that_is_not_the_cpu() -> None:
    data = Data(edge_index=EDGES, num_nodes=3)
    for encoder in (LinearTransformer(4), GramTransformer(4, 2), RandomWalk(4)):
        transform = AddPositionalEncoding(encoder)
        expected = transform(data).pe
        with torch.device("meta"):
            assert torch.equal(transform(data).pe, expected)


def encode_type(edges: object) -> None:
    data = HeteroData({"a": {"num_nodes": 3}, ("a", "to", "a"): {"edge_index": edges}})
    LinearTransformerPE(4, hetero="whole")(data)


test_edges_of_a_type = refusals(
    encode_type,
    ((torch.tensor([1, 2]),), "edge_index"),
    (([[0], [1]],), TypeError, "edge_index"),
)


def test_attributes_of_some_types() -> None:
    data = HeteroData()
    data["a"].num_nodes, data["b"].num_nodes = 4, 2
    data["a", "to", "b"].edge_index = torch.tensor([[0, 1, 2, 3], [0, 0, 1, 1]])
    data["a", "to", "b"].edge_attr = [1]
    with pytest.raises(ValueError, match=r"edge_attr must be a tensor .*'list'"):
        AddPositionalEncoding(GramTransformer(4, num_edge_types=2), hetero="whole")(data)


class WithLoops(InMemoryDataset):
    """Elements differ from the storage."""

    def __init__(self) -> None:
        super().__init__()
        self.data, self.slices = self.collate([Data(edge_index=EDGES, num_nodes=3)] * 2)

    def __getitem__(self, index: int) -> Data:
        data = super().__getitem__(index)
        data.edge_index = torch.cat([data.edge_index, torch.tensor([[0], [0]])], dim=1)
        return data


def test_what_is_no_graph() -> None:
    transform = AddEffectiveResistance()
    hyper = HyperGraphData(x=torch.randn(4, 2), edge_index=torch.tensor([[0, 1, 2, 3], [0, 0, 1, 1]]))
    for call in (transform, lambda data: transform.encode_dataset([data])):
        with pytest.raises(TypeError, match=r"got HyperGraphData; .* clique or star"):
            call(hyper)
    with pytest.raises(TypeError, match="takes a dataset or a sequence of Data, got dict"):
        transform.encode_dataset({"a": Data(edge_index=EDGES)})
    by_hand = transform(Batch(x=torch.ones(3, 1), edge_index=EDGES))
    assert torch.allclose(by_hand.effective_resistance, torch.full((3,), 2 / 3), atol=1e-5)
    out = transform.encode_dataset(WithLoops())[0]
    assert out.edge_index.size(1) == out.effective_resistance.numel() == 4


@pytest.mark.parametrize("encoder", [RandomWalk(4), LaplacianEigenvectors(2), ResistiveEmbedding(2)])
def test_what_was_precomputed_comes_in_the_dtype_of_the_module(encoder: Encoder) -> None:
    found = copy.deepcopy(encoder).double().precompute(Graph(EDGES, 3))
    assert encoder(None, EDGES, precomputed=found).node.dtype == torch.float32
    with pytest.raises(TypeError, match="precomputed must be a mapping of names to tensors, got list"):
        encoder(None, EDGES, precomputed=[1])
