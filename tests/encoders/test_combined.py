"""In combined encodings, each part equals the encoding of its encoder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import from_networkx, refusals
from networkx import gnp_random_graph
from torch_geometric.data import Data

from tg_lpe import AddPositionalEncoding, Encoder, Graph
from tg_lpe.data import DataSpec
from tg_lpe.encoders import RRWP, Combined, DirectedWalk, HeatKernel, RandomWalk, Whitened, load_encoder, make_encoder
from tg_lpe.testing.encoder_test_case import EncoderTestCase

GRAPH = from_networkx(gnp_random_graph(9, 0.4, seed=0), lambda number: 1.0 + number % 3)
INDEX, WEIGHT = GRAPH.both_ways()
GIVEN = Graph(INDEX, GRAPH.num_nodes, edge_weight=WEIGHT)
GRAM = {"class": "GramTransformer", "out_channels": 3, "edge_out_channels": 2, "num_layers": 2}


class TestCombined(EncoderTestCase):
    tolerance = 1e-7

    def make(self) -> Encoder:
        return Combined(
            [RandomWalk(5), {"class": "HeatKernel", "edge_out_channels": 0}, HeatKernel(pair_out_channels=None)]
        )


class TestCombinedWithLearned(EncoderTestCase):
    """Frozen statistics, weights, and weights that read types of edges."""

    learned = True

    def make(self) -> Encoder:
        fitted = Whitened(RandomWalk(3)).fit([Data(edge_index=INDEX, edge_weight=WEIGHT, num_nodes=GRAPH.num_nodes)])
        return Combined([fitted, {**GRAM, "num_edge_types": 2, "pair_out_channels": 2}])


def test_each_part_is_what_its_encoder_computes() -> None:
    parts = [RandomWalk(4), RRWP(3), HeatKernel(pair_out_channels=None)]
    encoder = Combined(parts)
    node, edge, _ = encoder(None, GIVEN)
    alone = [part(None, GIVEN) for part in parts]
    assert torch.equal(node, torch.cat([each.node for each in alone], dim=1))
    assert edge is not None and torch.equal(edge, torch.cat([e.edge for e in alone if e.edge is not None], dim=1))
    pairs = encoder(None, GIVEN, pairs=GIVEN.pairs).pair
    expected = [part(None, GIVEN, pairs=GIVEN.pairs).pair for part in parts if part.pair_out_channels]
    assert torch.equal(pairs, torch.cat(expected, dim=1))


def test_two_of_one_class_do_not_share_what_they_precompute() -> None:
    encoder = Combined([RandomWalk(3), RandomWalk(6)])
    given = encoder.precompute(GIVEN)
    assert {name.split("_")[1] for name in given} == {"0", "1"}
    assert torch.equal(encoder(None, GIVEN, precomputed=given).node, encoder(None, GIVEN).node)
    with pytest.raises(ValueError, match="precomputed"):
        encoder(None, GIVEN, precomputed={"node_walks": given[next(iter(given))]})


def test_pretrained_ones_by_name(tmp_path: Path) -> None:
    encoder = Combined(["gram-k16", "positions-k16"])
    gram, positions = (load_encoder(name) for name in ("gram-k16", "positions-k16"))
    assert encoder.out_channels == gram.out_channels + positions.out_channels
    assert torch.equal(encoder(None, GIVEN).node[:, : gram.out_channels], gram(None, GIVEN).node)
    encoder.save_pretrained(tmp_path)
    assert torch.equal(load_encoder(tmp_path)(None, GIVEN).node, encoder.eval()(None, GIVEN).node)


def test_those_without_statistics_are_fitted() -> None:
    data = Data(edge_index=INDEX, edge_weight=WEIGHT, num_nodes=GRAPH.num_nodes)
    encoder = Combined([RandomWalk(2), Whitened(RandomWalk(3))])
    assert not encoder.is_fitted and encoder.fit([data]).is_fitted
    assert AddPositionalEncoding(encoder)(data).pe.shape == (GRAPH.num_nodes, 5)


def test_sizes_of_the_data_reach_the_encoders() -> None:
    config = {"class": "Combined", "encoders": [GRAM, {"class": "RandomWalk", "steps": 2}]}
    encoder = make_encoder(config, DataSpec(num_node_types=4, num_edge_types=3))
    assert encoder.config_dict()["encoders"][0]["num_edge_types"] == 3


def test_one_that_reads_directions_is_enough(tmp_path: Path) -> None:
    DirectedWalk(2).save_pretrained(tmp_path)
    for directed in (str(tmp_path), {"class": "DirectedWalk"}):
        assert Combined(["gram-k8", directed]).directed and not Combined(["gram-k8"]).directed


test_refuses_what_is_no_list_of_encoders = refusals(
    Combined,
    *(((encoders,), TypeError, "encoders?") for encoders in ("gram-k16", {"class": "RandomWalk"}, ["gram-k16", 3])),
    *(((encoders,), "encoders") for encoders in ([], [None])),
)
