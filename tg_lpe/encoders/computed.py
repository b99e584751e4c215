"""Base classes of encoders without weights."""

from __future__ import annotations

import copy
import inspect
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tg_lpe.encoders.base import Encoder, Encoding, Inputs, check_precomputed
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.pairs import check_pair_nodes
from tg_lpe.nn._util import without_autocast


class ComputedEncoder(Encoder):
    """Base class of encoders without weights: :meth:`precompute` does all the work, in float64.

    Results have the module's dtype: PyTorch's default dtype at construction, changed by ``.double()`` or ``.float()``.
    Autocast has no effect.

    Args:
        out_channels: width of the node encoding.
        edge_width: width of an edge encoding.
        edge_out_channels: ``edge_width`` (the default), or 0 for no edge encoding.
        pair_width: width of an encoding of pairs.
        pair_out_channels: ``pair_width`` (the default), or 0 for no encoding of pairs.

    Raises:
        ValueError: if ``edge_out_channels`` or ``pair_out_channels`` has any other value.
    """

    unit: Tensor

    def __init__(
        self,
        out_channels: int,
        edge_width: int,
        edge_out_channels: int | None,
        pair_width: int = 0,
        pair_out_channels: int | None = None,
    ) -> None:
        super().__init__()
        self._not_jsonable = {}  # arguments() returns plain values
        self.out_channels = out_channels
        self.edge_out_channels = self._width("edge", edge_width, edge_out_channels)
        self.pair_out_channels = self._width("pair", pair_width, pair_out_channels)
        self.register_buffer("unit", torch.ones(()), persistent=False)  # in the module's dtype

    def _width(self, level: str, width: int, wanted: int | None) -> int:
        """Return ``wanted`` if it is ``width`` or 0, and ``width`` by default."""
        if wanted not in (None, 0, width):
            raise ValueError(
                f"{level}_out_channels of this {type(self).__name__} must be {width}, or 0 for no {level} encoding, "
                f"got {wanted!r}"
            )
        return width if wanted is None else int(wanted)  # NumPy integers are not JSON-able

    @without_autocast
    def encode(self, graph: Graph, inputs: Inputs) -> Encoding:
        """Encode nodes, edges and pairs, see :meth:`Encoder.encode`; ``x`` and ``edge_attr`` are not read.

        Raises:
            ValueError: if ``precomputed`` belongs to another encoder or graph, or a graph is too large for pairs.
        """
        precomputed, pairs = inputs.precomputed, inputs.pairs
        if pairs is not None:
            check_pair_nodes(graph, type(self).__name__)
        if precomputed is None:
            is_traced = torch.compiler.is_compiling()  # SciPy computes on the host
            precomputed = (torch.compiler.disable(self.precompute) if is_traced else self.precompute)(graph)
        else:
            check_precomputed(self, graph, precomputed, self.widths())
            precomputed = {name: self.cast(precomputed[name]) for name in self.widths()}
        encoding = self.assemble(graph, precomputed, inputs.generator)
        if pairs is None:
            return encoding
        return encoding._replace(pair=self.cast(self.values_of_pairs(graph, pairs, precomputed)))

    def values_of_pairs(self, graph: Graph, pairs: Tensor, precomputed: Mapping[str, Tensor]) -> Tensor:
        """Compute the values of some pairs, ``[num_pairs, pair_out_channels]``; the default selects from all pairs."""
        with torch.no_grad():
            values = self.compute_pairs(graph)
        return values if pairs is graph.pairs else values.index_select(0, graph.pair_number(*pairs))

    def compute_pairs(self, graph: Graph) -> Tensor:
        """Compute the values of all pairs of nodes in the order of ``graph.pairs``, ``[num_pairs, pair_out_channels]``.

        Raises:
            NotImplementedError: if the encoder has pair channels but does not define this method.
        """
        raise NotImplementedError(f"{type(self).__name__} has pair_out_channels and must define compute_pairs")

    @abstractmethod
    def widths(self) -> dict[str, int]:
        """Return the names and numbers of columns of the tensors that :meth:`precompute` returns."""

    def config_dict(self) -> dict[str, Any]:
        """Return the class name and :meth:`arguments`."""
        return {"class": type(self).__name__, **copy.deepcopy(self.arguments())}

    @abstractmethod
    def assemble(self, graph: Graph, precomputed: Mapping[str, Tensor], generator: torch.Generator | None) -> Encoding:
        """Return the encoding from the precomputed tensors, in the module's dtype."""

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments, read from attributes of the same names."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def cast(self, values: Tensor) -> Tensor:
        """Return the values in the module's dtype."""
        return values.to(self.unit.dtype)

    def extra_repr(self) -> str:
        """Show the constructor's arguments."""
        dtype = "" if self.unit.dtype == torch.float32 else f", dtype={self.unit.dtype}"
        return ", ".join(f"{name}={value!r}" for name, value in self.arguments().items()) + dtype


class NodeEdgeEncoder(ComputedEncoder):
    """Base class of computed encoders with one tensor for nodes and one for edges, see :meth:`compute`."""

    name: str
    """Suffix of the names of precomputed tensors; it includes every argument that changes their values but not their
    widths."""

    @abstractmethod
    def compute(self, graph: Graph) -> tuple[Tensor, Tensor]:
        """Compute node values ``[num_nodes, out_channels]`` and edge values ``[num_edges, ...]``, float64.

        Edges are undirected; for a ``directed`` encoder they are the directed ones, ``[num_directed_edges, ...]``.
        """

    def precompute(self, graph: Graph) -> dict[str, Tensor]:
        """Return ``node_NAME`` and, if edges are encoded, ``edge_NAME`` of the directed edges; see :attr:`name`."""
        with torch.no_grad():
            node, edge = self.compute(graph)
            tensors = {f"node_{self.name}": self.cast(node)}
            if self.edge_out_channels:
                tensors[f"edge_{self.name}"] = self.cast(edge if self.directed else graph.spread_to_directed(edge))
        return tensors

    def widths(self) -> dict[str, int]:
        """Return the widths of the precomputed tensors by name."""
        widths = {f"node_{self.name}": self.out_channels}
        if self.edge_out_channels:
            widths[f"edge_{self.name}"] = self.edge_out_channels
        return widths

    def assemble(self, graph: Graph, precomputed: Mapping[str, Tensor], generator: torch.Generator | None) -> Encoding:
        """Return the precomputed tensors; the generator is not read."""
        edge = precomputed[f"edge_{self.name}"] if self.edge_out_channels else None
        return Encoding(precomputed[f"node_{self.name}"], edge)
