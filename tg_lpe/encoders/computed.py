"""What encoders without weights share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tg_lpe.encoders.base import Encoder, Encoding
from tg_lpe.graph.incidence import Incidence


class ComputedEncoder(Encoder):
    """An encoder without weights: :meth:`precompute` does all the work, in float64.

    Its results are in the module's dtype: that of PyTorch's default when it was made, then as ``.double()`` or
    ``.float()`` say.

    Args:
        out_channels: width of the node encoding.
        edge_width: width that an edge encoding has.
        edge_out_channels: ``edge_width``, 0 for no edge encoding; ``edge_width`` if absent.

    Raises:
        ValueError: if ``edge_out_channels`` is anything else.
    """

    unit: Tensor

    def __init__(self, out_channels: int, edge_width: int, edge_out_channels: int | None) -> None:
        super().__init__()
        if edge_out_channels not in (None, 0, edge_width):
            raise ValueError(
                f"edge_out_channels of this {type(self).__name__} must be {edge_width}, or 0 for no edge encoding, "
                f"got {edge_out_channels!r}"
            )
        self.out_channels = out_channels
        self.edge_out_channels = edge_width if edge_out_channels is None else edge_out_channels
        self.register_buffer("unit", torch.ones(()), persistent=False)  # knows the module's dtype

    def encode(
        self,
        graph: Incidence,
        x: Tensor | None = None,
        edge_attr: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
        precomputed: Mapping[str, Tensor] | None = None,
    ) -> Encoding:
        """Encode a graph, or each graph of a batch by itself.

        Args:
            graph: the graph or batch.
            x, edge_attr: not read.
            generator: the source of random signs or directions, for encoders that have some.
            precomputed: what :meth:`precompute` returns for this graph; computed if absent.
        """
        return self.assemble(graph, self.precompute(graph) if precomputed is None else precomputed, generator)

    @abstractmethod
    def assemble(
        self, graph: Incidence, precomputed: Mapping[str, Tensor], generator: torch.Generator | None
    ) -> Encoding:
        """The encoding from what was precomputed."""

    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments: what decides the output."""

    def cast(self, values: Tensor) -> Tensor:
        """Values in the module's dtype."""
        return values.to(self.unit.dtype)

    def extra_repr(self) -> str:
        """The constructor's arguments."""
        dtype = "" if self.unit.dtype == torch.float32 else f", dtype={self.unit.dtype}"
        return ", ".join(f"{name}={value!r}" for name, value in self.arguments().items()) + dtype


def check_count(name: str, value: int) -> None:
    """Refuse what is no number of something."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")


class NodeEdgeEncoder(ComputedEncoder):
    """A :class:`ComputedEncoder` of one tensor for nodes and one for edges, which :meth:`compute` gives."""

    @abstractmethod
    def compute(self, graph: Incidence) -> tuple[Tensor, Tensor]:
        """Values of the nodes ``[num_nodes, out_channels]`` and undirected edges ``[num_edges, ...]``, float64."""

    def precompute(self, graph: Incidence) -> dict[str, Tensor]:
        """``node_encoding``, and ``edge_encoding`` of the directed edges if there is one."""
        node, edge = self.compute(graph)
        found = {"node_encoding": self.cast(node)}
        if self.edge_out_channels:
            found["edge_encoding"] = self.cast(graph.spread_to_directed(edge))
        return found

    def assemble(
        self, graph: Incidence, precomputed: Mapping[str, Tensor], generator: torch.Generator | None
    ) -> Encoding:
        """What was precomputed; nothing in it is random."""
        return Encoding(precomputed["node_encoding"], precomputed["edge_encoding"] if self.edge_out_channels else None)
