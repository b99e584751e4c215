"""The graphs of :mod:`tg_lpe.testing` for all tests, a dataset of a list, and an encoder as a user writes one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch_geometric.data import Data, InMemoryDataset

import tg_lpe
from tg_lpe import Encoder, Encoding
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
    relative_error,
)

__all__ = [
    "Degrees",
    "Batched",
    "Graph",
    "Stored",
    "assert_same_gradients",
    "batch_of",
    "corner_cases",
    "few",
    "fewer",
    "from_networkx",
    "graph_of",
    "graphs",
    "listings",
    "log_uniform",
    "normal",
    "randomize_",
    "relative_error",
]


def graph_of(*parts: Graph) -> tg_lpe.Graph:
    """Return graphs of the tests as one batch of the library."""
    return tg_lpe.Graph(**batch_of(list(parts)).arguments())


class Degrees(Encoder):
    """An encoder as a user writes one: weighted degrees, and at edges their sum; it cannot leave the edges out."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.out_channels = self.edge_out_channels = 1

    def encode(
        self,
        graph: tg_lpe.Graph,
        x: Tensor | None = None,
        edge_attr: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
        precomputed: Mapping[str, Tensor] | None = None,
    ) -> Encoding:
        node = self.scale * graph.laplacian_diagonal(torch.empty(0)).unsqueeze(1)
        edge = node[graph.edge_index].sum(0) * (graph.edge_index[0] != graph.edge_index[1]).unsqueeze(1)
        return Encoding(node, edge)


class Stored(InMemoryDataset):
    """A dataset in memory made of a list."""

    def __init__(self, graphs: Sequence[Data], transform: Callable[[Data], Data] | None = None) -> None:
        super().__init__(None, transform)
        self.data, self.slices = self.collate(list(graphs))
