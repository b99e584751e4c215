"""The node encoder for GraphGym; ``docs/tutorials/graphgym.md``, which the tests run, trains with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.graphgym import register
from torch_geometric.graphgym.config import cfg, set_cfg

import tg_lpe.graphgym
from tg_lpe.encoders import load_encoder, make_encoder

pytest.importorskip("yacs", reason="GraphGym needs yacs: pip install torch_geometric[graphgym]")

EDGES = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])


@pytest.fixture(autouse=True)
def _fresh_configuration() -> Iterator[None]:
    """Reset GraphGym's global configuration to its defaults, and restore it afterwards."""
    before = cfg.clone()
    set_cfg(cfg)
    yield
    cfg.clear()
    cfg.update(before)


def batch(**features: torch.Tensor) -> Batch:
    """A ring and a path of four nodes."""
    edges = (EDGES, EDGES[:, :3])
    return Batch.from_data_list([Data(edge_index=index, num_nodes=4, **features) for index in edges])


def made(**options: Any) -> nn.Module:
    for name, value in options.items():
        cfg.tg_lpe[name] = value
    return register.node_encoder_dict["tg_lpe"](5)


def test_the_sum_of_encoding_and_features() -> None:
    cfg.share.dim_in = 3
    cfg.tg_lpe.arguments.steps = 4
    module, x = made(encoder="RandomWalk"), torch.randn(4, 3)
    encoder = make_encoder({"class": "RandomWalk", "steps": 4})
    for part, edge_index in zip(module(batch(x=x)).x.split(4), (EDGES, EDGES[:, :3]), strict=True):
        encoding = encoder(None, edge_index, num_nodes=4).node
        expected = module.embedding(encoding) + x @ module.features.weight.T + module.features.bias
        torch.testing.assert_close(part, expected)


def test_types_go_to_a_node_encoder_of_graphgym() -> None:
    pytest.importorskip("ogb")
    types = torch.zeros(4, 9, dtype=torch.int64)
    module = made(features="Atom")
    given = batch(x=types)
    out = module(given.clone()).x
    encoding = module.encoder(None, given.edge_index, batch=given.batch).node
    torch.testing.assert_close(out, module.embedding(encoding) + module.features(given.clone()).x)


def test_an_encoder_that_reads_features_reads_them_as_they_are() -> None:
    cfg.tg_lpe.arguments.in_channels = 3
    given = batch(x=torch.randn(4, 3))
    module = made(features="none")
    expected = module.embedding(module.encoder(given.x, given.edge_index, batch=given.batch).node)
    torch.testing.assert_close(module(given).x, expected)


def test_trained_or_pretrained() -> None:
    module = made(features="none")
    module(batch()).x.square().sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
    shipped = made(features="none", pretrained="heat-k8")
    assert not any(parameter.requires_grad for parameter in shipped.encoder.parameters())
    given = batch()
    expected = load_encoder("heat-k8")(None, given.edge_index, batch=given.batch).node
    torch.testing.assert_close(shipped(given).x, shipped.embedding(expected))


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="encoder must"):
        made(encoder="Gram")
    with pytest.raises(ValueError, match=r"tg_lpe.features must be one of .*'linear', 'none'.*got 'atoms'"):
        made(encoder="RandomWalk", features="atoms")
    cfg.share.dim_in = 3
    module = made(features="linear")
    for features, got in (({}, "None"), ({"x": torch.zeros(4, 3, dtype=torch.int64)}, r"torch.int64 \[8, 3\]")):
        with pytest.raises(ValueError, match=rf"real x of shape \[num_nodes, 3\], got {got}; 'none' is for graphs"):
            module(batch(**features))


def test_the_section_is_there_from_the_start() -> None:
    assert tg_lpe.graphgym.NAME in cfg and cfg.tg_lpe.encoder == "GramTransformer"
