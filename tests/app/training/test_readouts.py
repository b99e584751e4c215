"""Closed-form read-outs: principal components of the layers' values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import normal
from torch import Tensor
from torch_geometric.data import Data

from tg_lpe import GramTransformer
from tg_lpe.app.training import principal_readouts
from tg_lpe.app.training.readouts import principal_axes
from tg_lpe.data.storage import GraphDataset
from tg_lpe.encoders.precompute import incidences


@pytest.fixture(scope="module")
def graphs() -> GraphDataset:
    """Random graphs with weights over two orders."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for n in range(4, 34):
        edges = torch.randint(0, n, (2, 2 * n), generator=generator)
        edges = edges[:, edges[0] < edges[1]].unique(dim=1)
        weight = 10 ** torch.rand(edges.size(1), generator=generator).sub(0.5).mul(2)
        found.append(Data(edge_index=torch.cat([edges, edges.flip(0)], 1), edge_weight=weight.repeat(2), num_nodes=n))
    return GraphDataset.from_data_list(found)


@pytest.fixture(scope="module")
def encoder() -> GramTransformer:
    torch.manual_seed(0)
    return GramTransformer(num_filters=2, num_layers=6, conductances="ground").double()


def values_and_channels(
    encoder: GramTransformer, graphs: GraphDataset, k: int, edge_k: int
) -> list[tuple[Tensor, Tensor]]:
    """Return the layers' values and the encoding, for nodes and for edges."""
    fitted = principal_readouts(encoder, graphs, k, edge_k)
    with torch.no_grad():
        (graph,) = incidences(graphs, 100)
        node, edge = encoder.gram(graph)
        out = fitted(None, graph)
    assert out.edge is not None
    return [(node, out.node), (edge, graph.merge_directed(out.edge))]


def explained(values: Tensor, channels: Tensor) -> float:
    """Share of the variance of the values, each scaled to one, that linear regression on some channels explains."""
    y, x = (part.numpy() - part.numpy().mean(0) for part in (values, channels))
    y = y[:, y.std(0) > 1e-9]
    y = y / y.std(0)
    left = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    return 1 - float((left**2).sum() / (y**2).sum())


def test_no_other_directions_explain_more(encoder: GramTransformer, graphs: GraphDataset) -> None:
    """Every prefix explains the maximum by the singular values, and more than random directions."""
    for level, (values, channels) in enumerate(values_and_channels(encoder, graphs, 6, 4)):
        y = values.numpy() - values.numpy().mean(0)
        y = y[:, y.std(0) > 1e-9]
        squares = np.linalg.svd(y / y.std(0), compute_uv=False) ** 2
        for m in range(1, channels.size(1) + 1):
            best = float(squares[:m].sum() / squares.sum())
            assert explained(values, channels[:, :m]) == pytest.approx(best, abs=1e-9), level
            assert explained(values, values @ normal(values.size(1), m, seed=m)) < best


def test_channels_are_uncorrelated_of_variance_one(encoder: GramTransformer, graphs: GraphDataset) -> None:
    (_, node), (_, edge) = values_and_channels(encoder, graphs, 6, 4)
    torch.testing.assert_close(node.mean(0), torch.zeros(6, dtype=node.dtype), rtol=0, atol=1e-9)
    for channels in (node, edge):
        identity = torch.eye(channels.size(1), dtype=channels.dtype)
        torch.testing.assert_close(channels.mT.cov(correction=0), identity, rtol=0, atol=1e-8)


def test_filters_stay_and_the_encoder_is_not_changed(encoder: GramTransformer, graphs: GraphDataset) -> None:
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    fitted = principal_readouts(encoder, graphs, 3)
    assert (fitted.out_channels, fitted.edge_out_channels, fitted.training) == (3, 0, False)
    assert encoder.out_channels == 12 and encoder.training
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(tensor, before[name]) and torch.equal(fitted.state_dict()[name], tensor)


def test_refusals(encoder: GramTransformer, graphs: GraphDataset) -> None:
    with_features = GramTransformer(num_node_types=3, num_edge_types=2)
    for arguments, error, name in (
        ((with_features, graphs, 2), ValueError, "edge_attr"),
        ((torch.nn.Identity(), graphs, 2), TypeError, "encoder"),
        ((encoder, graphs, 40), ValueError, "40 channels"),
    ):
        with pytest.raises(error, match=name):
            principal_readouts(*arguments)
    with pytest.raises(ValueError, match="1 channels"):
        principal_axes(torch.ones(5, 3, dtype=torch.float64), 1)
