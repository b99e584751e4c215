"""Closed-form read-outs: principal components of the layers' values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import normal
from torch import Tensor
from torch_geometric.data import Data

from tg_lpe import GramTransformer, LinearTransformer
from tg_lpe.app.training import principal_readouts
from tg_lpe.data.storage import GraphDataset
from tg_lpe.encoders import RandomWalk
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
        weight = weight / weight.mean()
        found.append(Data(edge_index=torch.cat([edges, edges.flip(0)], 1), edge_weight=weight.repeat(2), num_nodes=n))
    return GraphDataset.from_data_list(found)


@pytest.fixture(params=["Gram", "linear"])
def encoder(request: pytest.FixtureRequest) -> GramTransformer | LinearTransformer:
    torch.manual_seed(0)
    if request.param == "Gram":
        return GramTransformer(6, 4, num_filters=2, num_layers=6, conductances="ground").double()
    return LinearTransformer(9, 6, 2, 3, "identity", edge_out_channels=4, num_filters=2).double()


@torch.no_grad()
def values_and_channels(
    encoder: GramTransformer | LinearTransformer, graphs: GraphDataset
) -> list[tuple[Tensor, Tensor]]:
    """Return the values that the read-outs read and the encoding, for nodes and for edges."""
    (graph,) = incidences(graphs, 100)
    if isinstance(encoder, GramTransformer):
        node, edge = encoder.gram(graph)
    else:
        constant, powers = encoder.coefficients()
        node, edge = (values @ powers.mT for values in encoder.polynomials.gram(graph))  # type: ignore[union-attr]
        node = node + constant
    out = encoder(None, graph)
    return [(node, out.node), (edge, graph.merge_directed(out.edge))]


def explained(values: Tensor, channels: Tensor) -> float:
    """Share of the variance of the values, each scaled to one, that linear regression on some channels explains."""
    y, x = (part.numpy() - part.numpy().mean(0) for part in (values, channels))
    y = y[:, y.std(0) > 1e-9]
    y = y / y.std(0)
    left = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    return 1 - float((left**2).sum() / (y**2).sum())


def test_no_other_directions_explain_more(encoder: GramTransformer | LinearTransformer, graphs: GraphDataset) -> None:
    """Every prefix explains the maximum by the singular values, and more than random directions."""
    principal_readouts(encoder, graphs)
    for level, (values, channels) in enumerate(values_and_channels(encoder, graphs)):
        y = values.numpy() - values.numpy().mean(0)
        y = y[:, y.std(0) > 1e-9]
        squares = np.linalg.svd(y / y.std(0), compute_uv=False) ** 2
        for m in range(1, channels.size(1) + 1):
            best = float(squares[:m].sum() / squares.sum())
            assert explained(values, channels[:, :m]) == pytest.approx(best, abs=1e-9), level
            assert explained(values, values @ normal(values.size(1), m, seed=m)) < best


def test_channels_are_uncorrelated_of_variance_one(encoder: GramTransformer, graphs: GraphDataset) -> None:
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    assert principal_readouts(encoder, graphs) is encoder
    (_, node), (_, edge) = values_and_channels(encoder, graphs)
    torch.testing.assert_close(node.mean(0), torch.zeros(6, dtype=node.dtype), rtol=0, atol=1e-8)
    for channels in (node, edge):
        identity = torch.eye(channels.size(1), dtype=channels.dtype)
        torch.testing.assert_close(channels.mT.cov(correction=0), identity, rtol=0, atol=1e-8)
    changed = [name for name, tensor in encoder.state_dict().items() if not torch.equal(tensor, before[name])]
    assert changed == ["readout.weight", "readout.bias", "edge_readout.weight"]


def test_channels_beyond_the_rank_are_zero() -> None:
    """On single edges, all nodes are alike, and so are all edges."""
    encoder = GramTransformer(3, 2, num_edge_types=4)
    edges = [Data(edge_index=torch.tensor([[0, 1], [1, 0]]), edge_attr=torch.zeros(2, dtype=torch.int64), num_nodes=2)]
    encoding = principal_readouts(encoder, edges)(None, edges[0].edge_index, edges[0].edge_attr, num_nodes=2)
    assert not encoding.node.any() and not encoding.edge.any()
    assert principal_readouts(encoder, []) is encoder and not encoder.readout.weight.any()


def test_refusals(graphs: GraphDataset) -> None:
    for other in (RandomWalk(3), LinearTransformer(4), GramTransformer()):
        with pytest.raises(TypeError, match="probes='identity'"):
            principal_readouts(other, graphs)
    with pytest.raises(ValueError, match="edge types"):
        principal_readouts(GramTransformer(3, num_edge_types=2), graphs)
