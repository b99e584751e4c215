"""Encoders by name: the class that was saved comes back, and says which features it reads."""

from __future__ import annotations

import pytest
import torch
from helpers import Graph, randomize_

from tg_lpe import Encoder, GramTransformer, LinearTransformer
from tg_lpe.encoders import load_encoder

TYPES = {"num_node_types": 4, "num_edge_types": 3}
GRAPH = Graph(6, [(0, 1), (1, 2), (1, 3), (3, 4)], [1.0, 2.0, 0.5, 3.0])
ENCODERS = [
    (LinearTransformer, {"k": 3}, (False, False)),
    (LinearTransformer, {"k": 3, "probes": "learned", "max_nodes": 7}, (False, False)),
    (LinearTransformer, {"k": 3, "probes": "features", "num_node_types": 4}, (True, False)),
    (GramTransformer, {"num_layers": 3}, (False, False)),
    (GramTransformer, {"num_layers": 3, "probes": "rademacher", "edge_out_channels": 0}, (False, False)),
    (GramTransformer, {"num_layers": 3, "probes": "identity"}, (False, False)),
    (GramTransformer, {"out_channels": 5, "edge_out_channels": 2, **TYPES}, (True, True)),
    (GramTransformer, {"out_channels": 5, **TYPES, "conductances": "ground"}, (True, False)),
]


def encode(encoder: Encoder, x: torch.Tensor, kind: torch.Tensor) -> torch.Tensor:
    """The entries of the encoding of one graph, with every feature that the encoder reads."""
    index, weight = GRAPH.both_ways(torch.float32)
    with torch.no_grad():
        return torch.cat([part.flatten() for part in encoder(x, index, kind, edge_weight=weight) if part is not None])


@pytest.mark.parametrize(("cls", "options", "reads"), ENCODERS)
def test_reads_what_changes_its_output(cls: type, options: dict, reads: tuple[bool, bool]) -> None:
    encoder = randomize_(cls(**options))
    x, kind = torch.tensor([0, 1, 2, 3, 1, 2]), torch.tensor([0, 1, 2, 1]).repeat(2)
    before = encode(encoder, x, kind)
    others = ((x + 1) % 4, kind), (x, (kind + 1) % 3)
    depends = [not torch.equal(before, encode(encoder, *other)) for other in others]
    assert depends == list(reads)
    assert ["x" in encoder.reads, "edge_attr" in encoder.reads] == list(reads)


def test_a_base_class_loads_what_the_checkpoint_holds() -> None:
    assert type(Encoder.from_pretrained("gram-k16")) is GramTransformer
    with pytest.raises(ValueError, match="does not fit Encoder: it holds a GraphTransformer"):
        Encoder.from_pretrained("transformer-zinc")


def test_a_graph_transformer_is_no_encoder() -> None:
    with pytest.raises(ValueError, match=r"holds no encoder.*zoo\.load\(.transformer-zinc.\)\.model\.encoder"):
        load_encoder("transformer-zinc")
