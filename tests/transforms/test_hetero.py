"""Graphs of several node and edge types: encoded as ``to_homogeneous`` of all of them."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers import TRANSFORMS, heat_pe, normal, refusals
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData

from tg_lpe import AddPositionalEncoding, GramTransformer, LinearTransformerPE
from tg_lpe.transforms import AddLaplacianEigenvectors

RATES, KNOWS, MAKES = ("user", "rates", "film"), ("user", "batches", "user"), ("studio", "makes", "film")


def films(users: int = 4, count: int = 3, weighted: bool = True) -> HeteroData:
    """Users rate films and know each other, by a name that PyG might misread; studios have no features."""
    data = HeteroData()
    data["user"].x = normal(users, 2, seed=users).float()
    data["film"].x = normal(count, 2, seed=count).float()
    data["studio"].num_nodes = 2
    user, film = torch.arange(users), torch.arange(count)
    data[RATES].edge_index = torch.stack([user, user % count])
    data[KNOWS].edge_index = torch.stack([user, (user + 1) % users])
    data[MAKES].edge_index = torch.stack([film % 2, film])
    if weighted:
        for number, kind in enumerate(data.edge_types):
            data[kind].edge_weight = normal(data[kind].num_edges, seed=number).abs().float() + 0.1
    return data


def by_type(data: HeteroData, homogeneous: Data, name: str, of_edges: bool = False) -> dict:
    """Rows of a homogeneous graph by the types that ``to_homogeneous`` noted."""
    kinds = homogeneous.edge_type if of_edges else homogeneous.node_type
    names = data.edge_types if of_edges else data.node_types
    return {kind: homogeneous[name][kinds == number] for number, kind in enumerate(names)}


@pytest.mark.parametrize("make", TRANSFORMS)
def test_whole_is_the_homogeneous_graph(make) -> None:
    data = films()
    got = make(hetero="whole")(data)
    homogeneous = make()(data.to_homogeneous(node_attrs=[]))
    assert {"pe", "edge_pe"} & set(homogeneous.keys())
    if "pe" in homogeneous:
        for kind, expected in by_type(data, homogeneous, "pe").items():
            torch.testing.assert_close(got[kind].pe, expected)
    if "edge_pe" in homogeneous:
        for kind, expected in by_type(data, homogeneous, "edge_pe", of_edges=True).items():
            torch.testing.assert_close(got[kind].edge_pe, expected)


def test_a_batch_is_its_graphs_one_by_one() -> None:
    transform = heat_pe(edge_attr_name="edge_pe", hetero="whole")
    eigenvalues = AddLaplacianEigenvectors(3, attr_name="vectors", eigenvalue_attr_name="values", hetero="whole")
    graphs = [films(4, 3), films(3, 5), films(7, 1)]
    together = eigenvalues(transform(Batch.from_data_list(graphs)))
    for got, data in zip(together.to_data_list(), graphs, strict=True):
        expected = eigenvalues(transform(data))
        same_stores(got, expected)


def same_stores(got: HeteroData, expected: HeteroData) -> None:
    for mine, other in zip(got.stores, expected.stores, strict=True):
        assert set(mine.keys()) == set(other.keys())
        for name, value in other.items():
            if isinstance(value, Tensor) and not name.startswith("vectors"):  # whose signs are a choice
                torch.testing.assert_close(mine[name], value, equal_nan=True)


def test_features_are_read_and_appended() -> None:
    """An encoder reads ``x`` and ``edge_attr`` of all types, before any of them is changed."""
    torch.manual_seed(0)
    encoder = GramTransformer(out_channels=4, in_channels=2, edge_dim=1)
    data = films(weighted=False)
    data["studio"].x = normal(2, 2, seed=9).float()
    for number, kind in enumerate(data.edge_types):
        data[kind].edge_attr = normal(data[kind].num_edges, 1, seed=number).float()
    whole = AddPositionalEncoding(encoder, attr_name=None, hetero="whole")(data)
    homogeneous = AddPositionalEncoding(encoder, attr_name=None)(data.to_homogeneous())
    for kind, expected in by_type(data, homogeneous, "x").items():
        torch.testing.assert_close(whole[kind].x, expected)
    batched = AddPositionalEncoding(encoder, attr_name=None, hetero="whole")(Batch.from_data_list([data, data]))
    for kind in data.node_types:
        torch.testing.assert_close(batched[kind].x, whole[kind].x.repeat(2, 1))


@pytest.mark.parametrize("make", TRANSFORMS)
def test_later_edges_are_not_read(make) -> None:
    data, never = films(weighted=False), films(weighted=False)
    for kind in data.edge_types:
        data[kind].time = torch.arange(data[kind].num_edges)
        never[kind].update({"edge_index": never[kind].edge_index[:, :2], "time": torch.arange(2)})
    same_stores(make(hetero="whole")(data.up_to(1)), make(hetero="whole")(never))


def test_the_graph_given_is_not_changed() -> None:
    transform, data = heat_pe(hetero="whole"), films()
    batch = Batch.from_data_list([data, data])
    for given in (data, batch):
        before = copy.deepcopy(given.to_dict())
        transform(given)
        assert str(given.to_dict()) == str(before)
    assert set(batch._slice_dict["user"]) == {"x"}


def test_refused_unless_the_argument_says_how() -> None:
    for make in TRANSFORMS:
        transform = make()
        for call in (transform, lambda data, t=transform: t.encode_dataset([data], progress=False)):
            with pytest.raises(TypeError, match="hetero="):
                call(films())
        with pytest.raises(ValueError, match="hetero must"):
            make(hetero=True)
        assert len({repr(make(hetero=option)) for option in ("error", "whole")}) == 2


LIKES, EDGE = ("user", "likes", "user"), {"edge_index": torch.tensor([[0], [1]])}
WEIGHTED = {**EDGE, "edge_weight": torch.ones(1)}
test_graphs_that_cannot_be_encoded = refusals(
    lambda *stores: heat_pe(hetero="whole")(HeteroData(dict(stores))),
    ((("user", {"num_nodes": 2}), ("film", {"num_nodes": 1}), (("film", "of", "actor"), EDGE)), "num_nodes"),
    ((("user", {"num_nodes": 2}), (KNOWS, EDGE), (LIKES, WEIGHTED)), "edge_weight"),
    ((("user", {"num_nodes": 2}),), r"at least one edge type, got .*'user'"),
    ((("user", {"num_nodes": 2}), (KNOWS, EDGE), (LIKES, {"edge_weight": torch.ones(1)})), TypeError, "edge_index"),
)


def rated(row: int, node: int) -> HeteroData:
    data = films(weighted=False)
    data[RATES].edge_index[row, 0] = node
    return data


test_an_edge_to_a_node_of_another_type_is_refused = refusals(  # beyond its own type it would mean one of the next
    lambda row, node: LinearTransformerPE(k=4, hetero="whole")(rated(row, node)),
    *(((0, node), r"must be in 0\.\.3 for the nodes 'user', got") for node in (4, -1)),
    *(((1, node), r"must be in 0\.\.2 for the nodes 'film', got") for node in (3, -1)),
)
