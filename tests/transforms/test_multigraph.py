"""Edges that are listed several times, through every transform: as the graph that PyG coalesces."""

from __future__ import annotations

import pytest
import torch
from helpers import TRANSFORMS, heat_pe, normal, refusals
from torch_geometric.data import Batch, Data
from torch_geometric.utils import coalesce

from tg_lpe import AddPositionalEncoding, GramTransformer, LinearTransformer


def multigraph() -> Data:
    """Both directions of eight edges between five nodes, three of which are listed twice."""
    index = torch.tensor([[0, 0, 0, 1, 2, 3, 1, 1], [1, 1, 2, 2, 3, 4, 3, 3]])
    weight = normal(8).abs().float() + 0.2
    return Data(edge_index=torch.cat([index, index.flip(0)], 1), edge_weight=torch.cat([weight, weight]), num_nodes=5)


@pytest.mark.parametrize("reduce", ["add", "mean"])
@pytest.mark.parametrize("make", TRANSFORMS)
def test_as_coalesced(make, reduce: str) -> None:
    data = multigraph()
    index, weight = coalesce(data.edge_index, data.edge_weight, num_nodes=5, reduce=reduce)
    simple = Data(edge_index=index, edge_weight=weight, num_nodes=5)
    transform = make(reduce=reduce)
    expected = make()(simple)
    key = index[0] * 5 + index[1]
    place = torch.searchsorted(key, data.edge_index[0] * 5 + data.edge_index[1])  # of each listed edge
    (listed,) = transform.encode_dataset([data], progress=False)
    (batched, _) = transform(Batch.from_data_list([data, data])).to_data_list()
    for got in (transform(data), listed, batched):
        assert torch.equal(got.edge_index, data.edge_index), "edges stay as they were listed"
        if "pe" in expected:
            torch.testing.assert_close(got.pe, expected.pe)
        if "edge_pe" in expected:
            torch.testing.assert_close(got.edge_pe, expected.edge_pe[place])
    with pytest.raises(ValueError, match=r"must agree .* reduce='add'"):
        make()(data)
    assert len({repr(make(reduce=option)) for option in ("error", "add", "mean")}) == 3


def test_without_weights_edges_that_are_added_up_count_one_each() -> None:
    data = multigraph()
    ones = multigraph()
    ones.edge_weight = torch.ones(16)
    del data.edge_weight
    add = heat_pe(reduce="add")
    torch.testing.assert_close(add(data).pe, add(ones).pe)
    assert not torch.allclose(add(data).pe, heat_pe()(data).pe)


@pytest.mark.parametrize("reduce", ["add", "mean"])
def test_an_encoder_called_by_itself(reduce: str) -> None:
    data = multigraph()
    index, weight = coalesce(data.edge_index, data.edge_weight, num_nodes=5, reduce=reduce)
    for encoder in (LinearTransformer(k=4), GramTransformer()):
        got = encoder(None, data.edge_index, edge_weight=data.edge_weight, num_nodes=5, reduce=reduce)
        torch.testing.assert_close(got.node, encoder(None, index, edge_weight=weight, num_nodes=5).node)


class Unweighted(GramTransformer):
    """Does not read edge weights."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = frozenset()


test_refused_ways_of_merging = refusals(  # an encoder that reads no weights merges none
    lambda call, *arguments, reduce="add": call(*arguments, reduce=reduce),
    ((AddPositionalEncoding, Unweighted()), "reduce="),
    ((Unweighted(), None, multigraph().edge_index), "so reduce must not be given"),
    ({"call": heat_pe, "reduce": "sum"}, "reduce must"),
)
