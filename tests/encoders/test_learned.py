"""Learned tables of encoders agree with their encodings."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import Graph, few, graphs, randomize_
from hypothesis import given
from hypothesis import strategies as st

import tg_lpe
from tg_lpe import GramTransformer
from tg_lpe.encoders import ENCODERS, Encoder, make_encoder
from tg_lpe.encoders.gram_transformer import PARTS


@few
@given(graph=graphs(min_nodes=1), basis=st.sampled_from(["power", "chebyshev"]))
def test_responses_and_conductances_give_the_encoding(graph: Graph, basis: str) -> None:
    """The channels are sums over filters of ``r(S)``, with ``S`` made from the conductances that the tables say."""
    encoder = GramTransformer(
        3, 2, num_filters=2, num_layers=5, basis=basis, probes="identity",
        num_edge_types=4, num_node_types=3,
    )  # fmt: skip
    randomize_(encoder).double()
    tables = {table.title: table for table in encoder.learned()}
    conductance, ground = (
        tables[name].values.numpy() for name in ("conductance of edges", "ground conductance of nodes")
    )
    x, kinds = torch.arange(graph.num_nodes) % 3, torch.arange(len(graph.edges)) % 4
    incidence = tg_lpe.Graph(graph.edge_index(), graph.num_nodes)
    with torch.no_grad():
        node, edge, _ = encoder(x, incidence, kinds)
    expected = np.zeros((2, graph.num_nodes, graph.num_nodes, 3)), np.zeros((2, graph.num_nodes, graph.num_nodes, 2))
    for number in range(2):
        own = Graph(graph.num_nodes, graph.edges, [float(conductance[kind, number]) for kind in kinds])
        laplacian = own.laplacian() + np.diag(ground[x.numpy(), number])
        scale = 1 / np.sqrt(np.diag(laplacian))
        eigenvalues, vectors = np.linalg.eigh(scale[:, None] * laplacian * scale[None])
        for level, name in enumerate(("response at nodes", "response at edges")):
            table = tables[name]
            for channel in range(table.values.size(2)):
                # A polynomial of degree 5 through 101 points, read between them.
                values = table.values[:, number, channel].numpy()
                series = np.polynomial.Chebyshev.fit(table.rows.numpy(), values, 5, domain=[0, 2])
                expected[level][number, :, :, channel] = (vectors * series(eigenvalues)) @ vectors.T
    got = node.numpy() - encoder.readout.bias.detach().numpy()
    np.testing.assert_allclose(got, np.einsum("fiic->ic", expected[0]), atol=1e-7, rtol=1e-6)
    u, v = graph.edge_index().numpy()
    np.testing.assert_allclose(edge.numpy(), expected[1].sum(0)[u, v], atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "titles"),
    [
        ({}, ["ground conductance of nodes"]),
        ({"conductances": "fixed"}, []),
        ({"edge_dim": 3, "in_channels": 2}, []),
        ({"num_edge_types": (2, 3), "num_node_types": (4, 5)}, []),
        ({"num_edge_types": 2, "conductances": "ground"}, ["ground conductance of nodes"]),
        (
            {"out_channels": 2, "edge_out_channels": 2, "direction": 0.1},
            ["ground conductance of nodes", *(f"response {part}" for level in PARTS.values() for part in level)],
        ),
        ({"out_channels": 2, "edge_out_channels": 0}, ["ground conductance of nodes", "response at nodes"]),
    ],
    ids=str,
)
def test_what_is_told(options: dict[str, object], titles: list[str]) -> None:
    assert [table.title for table in GramTransformer(**options).learned()] == titles  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ENCODERS)
def test_tables_of_every_encoder_are_well_formed(name: str) -> None:
    encoder: Encoder = make_encoder({"class": name})
    for table in encoder.learned():
        assert table.over in ("edge_attr", "x", "eigenvalue")
        assert table.values.shape[:2] == (table.rows.numel(), len(table.columns))
        assert not table.values.requires_grad and bool((table.rows.diff() > 0).all())
