"""Encodings of pairs of nodes: with those of nodes and edges, estimated, differentiated."""

from __future__ import annotations

import pytest
import torch
from helpers import Degrees, Graph, batch_of, from_networkx, graph_of, randomize_, relative_error
from networkx import barbell_graph, random_regular_graph
from torch import Tensor

import tg_lpe
from tg_lpe import Encoder, Encoding, GramTransformer
from tg_lpe.encoders import PPGN, Inputs
from tg_lpe.encoders.base import check_encoder

RING = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])


def plain(**options) -> GramTransformer:
    """Return an encoder with ``P = D^-1/2 A D^-1/2`` and an identity read-out: fixed conductances, no ground."""
    fixed = {"conductances": "fixed", "num_filters": 1, "pair_out_channels": None}
    return GramTransformer(**{**fixed, "num_layers": 5, **options}).double().eval()


@pytest.mark.parametrize("options", [{}, {"probes": "identity"}, {"basis": "chebyshev"}])
def test_pairs_agree_with_nodes_and_edges(options: dict) -> None:
    """With one read-out for all, an edge is the pair of its ends, and a node the pair of itself."""
    encoder = randomize_(
        GramTransformer(4, 4, 2, 6, **options, pair_out_channels=4, num_edge_types=3, num_node_types=2)
    ).double()
    for readout in (encoder.edge_readout, encoder.pair_readout):
        readout.weight.data.copy_(encoder.readout.weight.data)
    graph = batch_of([from_networkx(barbell_graph(5, 2), lambda i: 1.0 + i), Graph(3, [], [])])
    incidence = tg_lpe.Graph(**graph.arguments())
    x, edge_attr = torch.arange(15) % 2, torch.arange(incidence.num_directed_edges) % 3
    node, edge, _ = encoder(x, incidence, edge_attr)
    assert edge is not None
    pairs = torch.cat([graph.edge_index, torch.arange(15).expand(2, -1)], 1)
    got = encoder(x, incidence, edge_attr, pairs=pairs).pair
    assert relative_error(got[: edge.size(0)], edge) < 1e-12
    assert relative_error(got[edge.size(0) :] + encoder.readout.bias, node) < 1e-12


def test_large_graphs_are_estimated() -> None:
    encoder = plain(probes="rademacher", num_probes=4096)
    graph = graph_of(from_networkx(random_regular_graph(3, 40, seed=0)))
    error = encoder(None, graph, pairs=graph.pairs).pair - plain(probes="identity")(None, graph, pairs=graph.pairs).pair
    assert 1e-4 < float(error.abs().max()) < 0.1


def test_gradients_of_pairs() -> None:
    encoder = randomize_(GramTransformer(2, 0, 2, 3, pair_out_channels=2)).double()
    names = [name for name, _ in encoder.named_parameters() if not name.startswith("readout")]
    pairs = torch.tensor([[0, 0, 1, 5], [2, 0, 4, 0]])

    def of(weight: Tensor, *values: Tensor) -> Tensor:
        state = dict(zip(names, values, strict=True))
        with torch.nn.utils.stateless._reparametrize_module(encoder, state):
            return encoder(None, tg_lpe.Graph(RING, 6, edge_weight=weight), pairs=pairs).pair

    values = [encoder.get_parameter(name).detach().clone().requires_grad_() for name in names]
    weight = torch.linspace(0.5, 2.0, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(of, (weight, *values))


@pytest.mark.parametrize("encoder", [plain(), PPGN(2, 0, 3)], ids=["GramTransformer", "PPGN"])
def test_what_is_no_pair_is_refused(encoder: Encoder) -> None:
    two = tg_lpe.Graph(RING[:, :2], 6, batch=torch.tensor([0, 0, 0, 1, 1, 1]))
    for pairs, message in (
        ([[1, 0], [2, 5]], r"in the same graph, got \(0, 5\) in graph 0 and graph 1"),
        ([[-1], [0]], "pairs must"),
        ([[6], [5]], "pairs must"),
        ([[0, 1], [1, 2], [2, 0]], "pairs must"),
        ([[0.0], [1.0]], "pairs must"),
    ):
        with pytest.raises(ValueError, match=message):
            encoder(None, two, pairs=torch.tensor(pairs))
    with pytest.raises(TypeError, match="pairs must"):
        encoder(None, two, pairs=[[0], [1]])


class Wrong(Degrees):
    """Says that it encodes pairs, and returns something else."""

    pair_out_channels = 2
    result: Tensor | None = None

    def encode(self, graph: tg_lpe.Graph, inputs: Inputs) -> Encoding:
        return super().encode(graph, inputs)._replace(pair=self.result)


def test_a_wrong_encoding_of_pairs_is_refused() -> None:
    encoder = Wrong()
    for encoder.result, pairs in ((torch.zeros(6, 3), RING), (None, RING), (torch.zeros(6, 2), None)):
        with pytest.raises(ValueError, match=r"pair_out_channels=2, so its pair encoding must be (\[6, 2\]|None)"):
            encoder(None, tg_lpe.Graph(RING, 6), pairs=pairs)
    encoder.pair_out_channels = 2.0
    with pytest.raises(ValueError, match="pair_out_channels"):
        check_encoder(encoder)
