"""Each entry takes PyG's ``EdgeIndex`` and ``Index`` as the plain tensor, and says what to write for ``adj_t``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import TRANSFORMS
from torch import Tensor
from torch_geometric import EdgeIndex, Index
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.transforms import ToSparseTensor

from tg_lpe import AddPositionalEncoding, Graph, GraphTransformer, encoders, plot
from tg_lpe.data import DataSpec, GraphSplits, random_link_split
from tg_lpe.encoders import ENCODERS, Positions, RandomWalk
from tg_lpe.models import TupleTransformer
from tg_lpe.nn.attention import ATTENTIONS
from tg_lpe.theory import wl

X, Y, BATCH = torch.eye(4)[:, :3], torch.tensor([0.0, 1.0, 0.0, 1.0]), torch.zeros(4, dtype=torch.int64)
EDGES = torch.tensor([[0, 1, 2, 3, 1, 2, 3, 0], [1, 2, 3, 0, 0, 1, 2, 3]])
INDEX = EdgeIndex(EDGES, sparse_size=(4, 4), is_undirected=True)  # PyG's own is_undirected and coalesce fail on it
SMALL: dict[str, Any] = {"in_channels": 3, "hidden_channels": 8, "heads": 2, "num_layers": 1}
POSITIONS, WALKS = Positions(2), AddPositionalEncoding(RandomWalk(4))
ALONE = {*ENCODERS} - {"Combined", "FromTransform", "Whitened"}  # the others are made of an encoder


def store(edges: Tensor) -> dict[str, Tensor]:
    return {"edge_index" if edges.layout == torch.strided else "adj_t": edges}


def graph(edges: Tensor) -> Data:
    return Data(x=X, y=Y, num_nodes=4, **store(edges))


def called(module: Any) -> Callable[[Tensor], Any]:
    return lambda edges: module.eval()(X, edges, batch=Index(BATCH, dim_size=1) if edges is INDEX else BATCH)


def encoded(make: Callable[[], Any]) -> Callable[[Tensor], Any]:
    return lambda edges: [value for name, value in make()(graph(edges)).items() if name in ("pe", "edge_pe")]


ENTRIES: dict[str, Callable[[Tensor], Any]] = {
    "Graph": lambda edges: Graph(edges, 4).edge_index,
    "from_data": lambda edges: Graph.from_data(graph(edges)).edge_index,
    "Batch": lambda edges: WALKS(Batch.from_data_list([graph(edges)] * 2)).pe,
    "encode_dataset": lambda edges: [one.pe for one in WALKS.encode_dataset([graph(edges)] * 2, progress=False)],
    "hetero": lambda edges: (
        AddPositionalEncoding(RandomWalk(4), hetero="whole")(
            HeteroData({"a": {"num_nodes": 4}, ("a", "to", "a"): store(edges), ("a", "of", "a"): store(edges)})
        )["a"].pe
    ),
    "update": lambda edges: POSITIONS.update(graph(edges), torch.ones(4, 2)),
    "DataSpec": lambda edges: DataSpec.of([graph(edges)]) == DataSpec.of([graph(EDGES)]),
    "GraphSplits": lambda edges: hash(GraphSplits.of(*[[graph(edges)]] * 3, level="node").digest()),
    "links": lambda edges: [torch.as_tensor(one.edge_index) for one in random_link_split(graph(edges), seed=0)],
    "exact_walks": lambda edges: wl.exact_walks(graph(edges)),
    "plot": lambda edges: plot.graph(graph(edges), RandomWalk(2)) == plot.graph(graph(EDGES), RandomWalk(2)),
    "TupleTransformer": called(TupleTransformer(**SMALL)),
    **{name: called(GraphTransformer(attention=name, **SMALL)) for name in ATTENTIONS},
    **{f"transform {number}": encoded(make) for number, make in enumerate(TRANSFORMS)},
    **{name: called(ENCODERS[name]()) for name in encoders.__all__ if name in ALONE},
}


@pytest.mark.parametrize("name", ENTRIES)
def test_edge_index_of_pyg(name: str) -> None:
    """It is a tensor without memory of its own, which C++ would read at address zero."""
    torch.testing.assert_close(ENTRIES[name](INDEX), ENTRIES[name](EDGES), rtol=0, atol=0, equal_nan=True)
    assert isinstance(WALKS(graph(INDEX)).edge_index, EdgeIndex)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=str)
@pytest.mark.parametrize("name", ENTRIES)
def test_adj_t_in_place_of_edge_index(name: str, layout: torch.layout) -> None:
    adj_t = ToSparseTensor(layout=layout)(Data(edge_index=EDGES, num_nodes=4)).adj_t
    with pytest.raises((TypeError, ValueError), match=r"edge_index.*(ToSparseTensor|to_edge_index\(adj_t\.t\(\)\))"):
        ENTRIES[name](adj_t)
