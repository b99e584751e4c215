"""Primphormer as published: the numbers of parameters of six configurations, exactly."""

from __future__ import annotations

from typing import Any

import pytest

from tg_lpe import GraphTransformer
from tg_lpe.encoders import SpectralEncoder

ATOMS, BONDS = [119, 5, 12, 12, 10, 6, 6, 2, 2], [5, 6, 2]
DATA: dict[str, dict[str, Any]] = {
    "CIFAR10": {"in_channels": 5, "edge_dim": 1, "pe_channels": 8},
    "MNIST": {"in_channels": 3, "edge_dim": 1, "pe_channels": 8},
    "PATTERN": {"in_channels": 3, "pe_channels": 10, "level": "node"},  # 10 fits the count, the table says 8
    "CLUSTER": {"in_channels": 7, "pe_channels": 10, "level": "node"},
    "VOC": {"in_channels": 14, "edge_dim": 2, "level": "node"},
    "PCQM": {"num_node_types": ATOMS, "num_edge_types": BONDS, "level": "node"},
}


def lap_pe() -> SpectralEncoder:
    """The deep set over eigenvectors of the published models for VOC and PCQM."""
    return SpectralEncoder(16, 0, net="deep_set", tokens="eigenvectors")


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
    by_distances = "pe_channels" in DATA[data]
    encoding = {"pe_merge": "apart"} if by_distances else {"pe_merge": "concat", "encoder": lap_pe()}
    options = {"global_attention": "primal", "global_options": {"rank": rank}, "pe_gate": by_distances}
    model = GraphTransformer(
        **DATA[data],
        **encoding,
        hidden_channels=d,
        heads=heads,
        num_layers=layers,
        readout=head[1:-1],
        out_channels=head[-1],
        attention="hybrid",
        attention_options=options,
    )
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count + 2 * d == parameters  # the last layer's norm of edge features, which nothing reads
