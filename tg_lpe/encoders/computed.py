"""The base class of encoders without weights."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tg_lpe.encoders.base import Encoder, Encoding, check_precomputed
from tg_lpe.graph.graph import Graph


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
        self._not_jsonable = {}  # arguments() has all of them, as plain values
        self.out_channels = out_channels
        self.edge_out_channels = edge_width if edge_out_channels is None else edge_out_channels
        self.register_buffer("unit", torch.ones(()), persistent=False)  # in the module's dtype

    def encode(
        self,
        graph: Graph,
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

        Raises:
            ValueError: if ``precomputed`` is that of another encoder or graph.
        """
        if precomputed is None:
            precomputed = self.precompute(graph)
        else:
            check_precomputed(self, graph, precomputed, self.widths())
        return self.assemble(graph, precomputed, generator)

    @abstractmethod
    def widths(self) -> dict[str, int]:
        """The names of what :meth:`precompute` returns, and its numbers of columns."""

    def config_dict(self) -> dict[str, Any]:
        """The class and :meth:`arguments`."""
        return {"class": type(self).__name__, **self.arguments()}

    @abstractmethod
    def assemble(self, graph: Graph, precomputed: Mapping[str, Tensor], generator: torch.Generator | None) -> Encoding:
        """The encoding from what was precomputed."""

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments, read from attributes of the same names: what decides the output."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def cast(self, values: Tensor) -> Tensor:
        """Values in the module's dtype."""
        return values.to(self.unit.dtype)

    def extra_repr(self) -> str:
        """The constructor's arguments."""
        dtype = "" if self.unit.dtype == torch.float32 else f", dtype={self.unit.dtype}"
        return ", ".join(f"{name}={value!r}" for name, value in self.arguments().items()) + dtype


class NodeEdgeEncoder(ComputedEncoder):
    """A :class:`ComputedEncoder` of one tensor for nodes and one for edges, which :meth:`compute` gives."""

    name: str
    """Name of the precomputed tensors: tells what decides their values besides the graph and their width."""

    @abstractmethod
    def compute(self, graph: Graph) -> tuple[Tensor, Tensor]:
        """Values of the nodes ``[num_nodes, out_channels]`` and undirected edges ``[num_edges, ...]``, float64."""

    def precompute(self, graph: Graph) -> dict[str, Tensor]:
        """``node_NAME``, and ``edge_NAME`` of the directed edges if they are encoded; see :attr:`name`."""
        with torch.no_grad():
            node, edge = self.compute(graph)
            found = {f"node_{self.name}": self.cast(node)}
            if self.edge_out_channels:
                found[f"edge_{self.name}"] = self.cast(graph.spread_to_directed(edge))
        return found

    def widths(self) -> dict[str, int]:
        """Return the widths of the precomputed tensors by name."""
        found = {f"node_{self.name}": self.out_channels}
        if self.edge_out_channels:
            found[f"edge_{self.name}"] = self.edge_out_channels
        return found

    def assemble(self, graph: Graph, precomputed: Mapping[str, Tensor], generator: torch.Generator | None) -> Encoding:
        """Return what was precomputed, in the module's dtype; nothing in it is random."""
        edge = self.cast(precomputed[f"edge_{self.name}"]) if self.edge_out_channels else None
        return Encoding(self.cast(precomputed[f"node_{self.name}"]), edge)
