"""Encodings of pairs of nodes: with those of nodes and edges, estimated, differentiated."""

from __future__ import annotations

import pytest
import torch
from helpers import Degrees, Graph, batch_of, from_networkx, graph_of, randomize_, relative_error
from networkx import barbell_graph, random_regular_graph
from torch import Tensor

import tg_lpe
from tg_lpe import Encoder, Encoding, GramTransformer
from tg_lpe.encoders import PPGN
from tg_lpe.encoders.base import check_encoder, checked_pairs

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
    node, edge = encoder.encode(incidence, x, edge_attr)
    assert edge is not None
    pairs = torch.cat([graph.edge_index, torch.arange(15).expand(2, -1)], 1)
    got = encoder.encode_pairs(incidence, pairs, x, edge_attr)
    assert relative_error(got[: edge.size(0)], edge) < 1e-12
    assert relative_error(got[edge.size(0) :] + encoder.readout.bias, node) < 1e-12


def test_large_graphs_are_estimated() -> None:
    encoder = plain(probes="rademacher", num_probes=4096)
    graph = graph_of(from_networkx(random_regular_graph(3, 40, seed=0)))
    error = encoder.encode_pairs(graph, graph.pairs) - plain(probes="identity").encode_pairs(graph, graph.pairs)
    assert 1e-4 < float(error.abs().max()) < 0.1


def test_gradients_of_pairs() -> None:
    encoder = randomize_(GramTransformer(2, 0, 2, 3, pair_out_channels=2)).double()
    names = [name for name, _ in encoder.named_parameters() if not name.startswith("readout")]
    pairs = torch.tensor([[0, 0, 1, 5], [2, 0, 4, 0]])

    def of(weight: Tensor, *values: Tensor) -> Tensor:
        state = dict(zip(names, values, strict=True))
        with torch.nn.utils.stateless._reparametrize_module(encoder, state):
            return encoder.encode_pairs(tg_lpe.Graph(RING, 6, edge_weight=weight), pairs)

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
        for call in (encoder.encode_pairs, encoder.encode_with_pairs):
            with pytest.raises(ValueError, match=message):
                call(two, torch.tensor(pairs))
    with pytest.raises(TypeError, match="pairs must"):
        encoder.encode_pairs(two, [[0], [1]])


class Wrong(Degrees):
    """Says that it encodes pairs, and returns something else."""

    pair_out_channels = 2

    def encode_with_pairs(self, graph: tg_lpe.Graph, pairs: Tensor, *features, **options) -> tuple[Encoding, Tensor]:
        return self.encode(graph, *features), torch.zeros(pairs.size(1), 3)


def test_a_wrong_encoding_of_pairs_is_refused() -> None:
    encoder: Encoder = Wrong()
    with pytest.raises(ValueError, match="pair_out_channels"):
        checked_pairs(encoder, 6, encoder.encode_pairs(tg_lpe.Graph(RING, 6), RING))
    with pytest.raises(TypeError, match="encode_with_pairs must"):
        checked_pairs(encoder, 6, None)
    encoder.pair_out_channels = 2.0
    with pytest.raises(TypeError, match="pair_out_channels"):
        check_encoder(encoder)
