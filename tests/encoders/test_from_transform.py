"""Transforms of PyTorch Geometric as encoders."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import Graph, from_networkx, refusals
from torch_geometric.data import Data
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE, BaseTransform

import tg_lpe
from tg_lpe import AddPositionalEncoding, Encoder
from tg_lpe.encoders import FromTransform, make_encoder
from tg_lpe.testing import EncoderTestCase


class TestRandomWalkTransform(EncoderTestCase):
    tolerance = 1e-5  # the transform is in float32

    def make(self) -> Encoder:
        return FromTransform("AddRandomWalkPE", options={"walk_length": 5})

    def oracle(self, graph: Graph) -> tuple[np.ndarray, None]:
        """With edge weights it is no random walk: a step has the inverse of the sum of weights, one at least."""
        weights = np.diag(np.diag(graph.laplacian())) - graph.laplacian()
        step = nx.to_numpy_array(graph.networkx(), weight=None) / np.maximum(weights.sum(1), 1.0)[:, None]
        return np.stack([np.diag(np.linalg.matrix_power(step, t)) for t in range(1, 6)], -1), None


class TestLocalDegreeProfile(EncoderTestCase):
    """A transform without an ``attr_name``, which writes features."""

    tolerance = 1e-5

    def make(self) -> Encoder:
        return FromTransform()

    def test_values_of_corner_cases(self) -> None:
        star = from_networkx(nx.star_graph(3))
        assert self.alone(self.double(), star).node.tolist() == [[3, 1, 1, 1, 0], *[[1, 3, 3, 3, 0]] * 3]


class Squares(BaseTransform):
    """Writes the square of each degree, one column without its dimension."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def forward(self, data: Data) -> Data:
        data.squares = self.factor * data.edge_index[0].bincount(minlength=data.num_nodes) ** 2
        return data


class Identity(BaseTransform):
    """Writes as many columns as there are nodes."""

    def forward(self, data: Data) -> Data:
        data.ones = torch.eye(data.num_nodes)
        return data


def test_a_transform_of_ones_own(tmp_path: Path) -> None:
    encoder = FromTransform(Squares(2.0), "squares")
    index = torch.tensor([[0, 1, 1, 1], [1, 0, 0, 2]])
    assert encoder(None, index).node.tolist() == [[2.0], [8.0], [2.0]]
    assert AddPositionalEncoding(encoder)(Data(edge_index=index, num_nodes=3)).pe.tolist() == [[2.0], [8.0], [2.0]]
    with pytest.raises(TypeError, match=r"transform=Squares\(factor=2.0\)"):
        encoder.save_pretrained(tmp_path)
    other = FromTransform(Squares(3.0), "squares")
    assert repr(other) != repr(encoder) and other.name != encoder.name
    with pytest.raises(ValueError, match="precomputed"):
        other(None, index, precomputed=encoder.precompute(tg_lpe.Graph(index, 3)))


def test_a_graph_on_the_cpu_leaves_generators_of_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise dropout on a GPU would draw the same masks after each encoding."""
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("seeded all GPUs"))
    FromTransform(AddLaplacianEigenvectorPE(3))(None, torch.tensor([range(5), range(1, 6)]))


def test_a_name_and_its_transform_encode_alike() -> None:
    index = from_networkx(nx.gnm_random_graph(30, 50, seed=0)).edge_index()
    named = FromTransform("AddLaplacianEigenvectorPE", options={"k": 3})
    given = FromTransform(AddLaplacianEigenvectorPE(3))
    state, numpy_state = torch.get_rng_state(), str(np.random.get_state())  # noqa: NPY002
    assert torch.equal(named(None, index).node, given(None, index).node)
    assert torch.equal(torch.get_rng_state(), state) and str(np.random.get_state()) == numpy_state  # noqa: NPY002
    assert not torch.equal(
        FromTransform(AddLaplacianEigenvectorPE(3), seed=3)(None, index).node, named(None, index).node
    )
    data = Data(edge_index=torch.cat([index, index.flip(0)], 1), num_nodes=30)
    expected = AddRandomWalkPE(6)(data).random_walk_pe
    assert torch.allclose(FromTransform(AddRandomWalkPE(6))(None, index).node, expected)


def test_a_changed_configuration_leaves_its_encoder_alone() -> None:
    options = {"walk_length": 3}
    encoder = FromTransform("AddRandomWalkPE", options=options)
    options["walk_length"] = 4
    config = encoder.config_dict()
    config["options"]["walk_length"], config["out_channels"] = 5, 5
    assert encoder.config_dict()["options"] == {"walk_length": 3}
    assert make_encoder(config).out_channels == 5


test_refusals = refusals(
    lambda **arguments: make_encoder({"class": "FromTransform", **arguments}),
    *(({"transform": name}, "transform must be the name") for name in ("os.system", "functional", "__all__")),
    ({"transform": 3}, "transform must"),
    ({"transform": Squares()}, "attr_name='x'"),
    ({"transform": Squares(), "options": {"factor": 2.0}}, "options"),
    ({"transform": "LargestConnectedComponents"}, "attr_name='x'"),
    *(
        ({"transform": "AddRandomWalkPE", "options": options}, "options=")
        for options in ({}, {"walk_length": 3, "steps": 4})
    ),
    ({"transform": "AddRandomWalkPE", "options": {"walk_length": 3}, "attr_name": "edge_index"}, "attr_name"),
    ({"transform": "AddLaplacianEigenvectorPE", "options": {"k": 100}}, "out_channels"),
)


def test_a_graph_on_which_the_transform_fails_is_named() -> None:
    encoder = FromTransform("AddLaplacianEigenvectorPE", options={"k": 3})
    with pytest.raises(ValueError, match=r"AddLaplacianEigenvectorPE\(k=3.* graph 1 of 2 nodes"):
        encoder(None, torch.tensor([[0, 1, 2, 4], [1, 2, 3, 5]]), batch=torch.tensor([0, 0, 0, 0, 1, 1]))
    with pytest.raises(ValueError, match=r"out_channels=64.* got 3 on graph 1"):
        FromTransform(Identity(), "ones")(
            None, torch.tensor([[0, 64], [1, 65]]), batch=torch.tensor([0] * 64 + [1] * 3)
        )
    with pytest.raises(ValueError, match="out_channels=2"):
        FromTransform("AddRandomWalkPE", options={"walk_length": 3}, out_channels=2)(None, torch.tensor([[0], [1]]))
