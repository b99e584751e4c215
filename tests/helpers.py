"""The graphs of :mod:`tg_lpe.testing` for all tests, and an encoder as a user writes one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from tg_lpe import Encoder, Encoding, Incidence
from tg_lpe.testing.graphs import (
    Batched,
    Graph,
    assert_same_gradients,
    batch_of,
    corner_cases,
    few,
    fewer,
    from_networkx,
    graphs,
    listings,
    log_uniform,
    normal,
    randomize_,
)

__all__ = [
    "Degrees",
    "Batched",
    "Graph",
    "assert_same_gradients",
    "batch_of",
    "corner_cases",
    "few",
    "fewer",
    "from_networkx",
    "graphs",
    "listings",
    "log_uniform",
    "normal",
    "randomize_",
    "relative_error",
]


def relative_error(got: Tensor | np.ndarray, expected: Tensor | np.ndarray) -> float:
    """Largest deviation in units of the largest expected entry."""
    got, expected = (np.asarray(x.detach() if isinstance(x, Tensor) else x, dtype=np.float64) for x in (got, expected))
    assert got.shape == expected.shape, (got.shape, expected.shape)
    if got.size == 0:
        return 0.0
    assert np.isfinite(got).all(), "not finite"
    return float(np.abs(got - expected).max() / max(np.abs(expected).max(), 1e-300))


class Degrees(Encoder):
    """An encoder as a user writes one: weighted degrees, and at edges their sum; it cannot leave the edges out."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.out_channels = self.edge_out_channels = 1

    def encode(
        self,
        graph: Incidence,
        x: Tensor | None = None,
        edge_attr: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
        precomputed: Mapping[str, Tensor] | None = None,
    ) -> Encoding:
        node = self.scale * graph.laplacian_diagonal(torch.empty(0)).unsqueeze(1)
        edge = node[graph.edge_index].sum(0) * (graph.edge_index[0] != graph.edge_index[1]).unsqueeze(1)
        return Encoding(node, edge)
