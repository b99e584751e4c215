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
BY_EIGENVECTORS = ("VOC", "PCQM")


def lap_pe() -> SpectralEncoder:
    """The deep set over eigenvectors of the Laplacian as it is, of the published models for VOC and PCQM."""
    return SpectralEncoder(16, 0, net="deep_set", tokens="eigenvectors", normalization=None)


def num_parameters(data: str, layers: int, d: int, heads: int, rank: int, head: tuple[int, ...]) -> int:
    """Of a model that keeps the last layer's norm of edge features, which nothing reads."""
    options: dict[str, Any] = {"global_attention": "primal", "global_options": {"rank": rank}}
    encoding: dict[str, Any] = {"pe_options": {"merge": "concat"}, "encoder": lap_pe()}
    if data not in BY_EIGENVECTORS:
        encoding, options = {"pe_options": {"merge": "apart"}}, {**options, "pe_gate": True}
    sizes = dict(DATA[data])
    model = GraphTransformer(
        readout={"hidden": head[1:-1], "level": sizes.pop("level", "graph")},
        **sizes,
        **encoding,
        hidden_channels=d,
        heads=heads,
        num_layers=layers,
        out_channels=head[-1],
        attention="hybrid",
        attention_options=options,
    )
    return sum(parameter.numel() for parameter in model.parameters()) + 2 * d


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
    assert num_parameters(data, layers, d, heads, rank, head) == parameters
