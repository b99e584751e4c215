"""The one contract of positional encodings: every one of them is an :class:`Encoder`."""

from __future__ import annotations

import copy
import inspect
import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from tg_lpe.data.spec import DataSpec
from tg_lpe.graph.incidence import Incidence
from tg_lpe.hub.checkpoints import CheckpointMixin

FEATURES = ("x", "edge_attr", "edge_weight")
"""What an encoder may read of a graph besides its edges."""

LEVELS = ("node", "edge", "graph")
"""What the rows of a precomputed tensor may stand for; its name starts with one of these and an underscore."""

E = TypeVar("E", bound="Encoder")


class Encoding(NamedTuple):
    """A positional encoding."""

    node: Tensor
    """Of the nodes, ``[num_nodes, out_channels]``."""
    edge: Tensor | None = None
    """Of the directed edges in the order of ``edge_index``, ``[num_directed_edges, edge_out_channels]``; the same in
    both directions of an edge, zero at self-loops. ``None`` where the encoder has no edge channels."""


class Encoder(CheckpointMixin, nn.Module, ABC):
    """A positional encoding of nodes, and of edges if it has some: learned, computed, or both.

    A subclass sets :attr:`out_channels`, :attr:`edge_out_channels` and :attr:`reads`, and implements :meth:`encode`. If
    a part of its work depends on the graph and on no weight, :meth:`precompute` does that part, and datasets store its
    result. Its constructor takes JSON-able arguments, so that checkpoints, configuration files and the command line can
    make it. :func:`tg_lpe.encoders.register` gives it a name. Then it works as a transform, inside
    :class:`~tg_lpe.GraphTransformer`, in ``tg-lpe train``, in checkpoints and in reports.

    Attributes:
        out_channels: width of the node encoding.
        edge_out_channels: width of the edge encoding; 0 for none.
        reads: which of ``"x"``, ``"edge_attr"`` and ``"edge_weight"`` decide the encoding besides the edges.
    """

    out_channels: int
    edge_out_channels: int = 0
    reads: frozenset[str] = frozenset({"edge_weight"})

    @abstractmethod
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
            graph: the graph or batch, with its edge weights.
            x: node features ``[num_nodes, ...]``, if the encoder reads them.
            edge_attr: features of the directed edges ``[num_directed_edges, ...]``, likewise.
            generator: the source of randomness (probes, signs of eigenvectors), drawn anew at each call; without it the
                encoding of a graph is always the same.
            precomputed: what :meth:`precompute` returns for this graph; computed if absent.

        Returns:
            The encoding.

        Raises:
            ValueError: if a feature that it reads is missing or does not fit.
        """

    def precompute(self, graph: Incidence) -> dict[str, Tensor]:
        """The part of the work that depends on the graph and on no weight.

        Args:
            graph: the graph or batch.

        Returns:
            Tensors by name. A name starts with ``node_``, ``edge_`` or ``graph_``, which says what its rows are: nodes,
            directed edges or graphs. The rows of a batch are those of its graphs one after the other.
        """
        return {}

    def forward(
        self,
        x: Tensor | None,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        edge_weight: Tensor | None = None,
        *,
        num_nodes: int | None = None,
        num_graphs: int | None = None,
        generator: torch.Generator | None = None,
        precomputed: Mapping[str, Tensor] | None = None,
    ) -> Encoding:
        """Encode a graph, or each graph of a batch by itself; the arguments are in PyTorch Geometric's order.

        Args:
            x: node features ``[num_nodes, ...]``, if the encoder reads them; ``None`` otherwise.
            edge_index: int64 ``[2, num_directed_edges]``; :class:`~tg_lpe.Incidence` says what a list of edges means.
            edge_attr: features of the directed edges ``[num_directed_edges, ...]``, likewise.
            batch: graph of each node, int64 ``[num_nodes]``, sorted; ``None`` for a single graph.
            edge_weight: conductances ``[num_directed_edges]``; all one if absent.
            num_nodes: number of nodes; found from ``batch``, ``x`` or ``edge_index`` if absent.
            num_graphs: number of graphs; found from ``batch`` if absent.
            generator, precomputed: as :meth:`encode`.

        Returns:
            The encoding.

        Raises:
            ValueError: on a malformed graph, or features that are missing or do not fit.
        """
        if num_nodes is None and batch is None and x is not None:
            num_nodes = x.size(0)
        graph = Incidence(edge_index, num_nodes, edge_weight=edge_weight, batch=batch, num_graphs=num_graphs)
        return self.encode(graph, x, edge_attr, generator=generator, precomputed=precomputed)

    def without_edges(self: E) -> E:
        """This encoder for nodes alone: the same weights, ``edge_out_channels`` zero, nothing computed for edges.

        A class whose constructor has no argument ``edge_out_channels`` returns itself, unless it overrides this method.
        """
        if not self.edge_out_channels or "edge_out_channels" not in inspect.signature(type(self)).parameters:
            return self
        arguments = self.config_dict()
        arguments.pop("class")
        slim = type(self)(**{**arguments, "edge_out_channels": 0})
        weights, needed = self.state_dict(), slim.state_dict()
        slim.load_state_dict({name: weights[name] for name in needed})
        return copy_placement(slim, self)

    def freeze(self: E) -> E:
        """Put the module into eval mode, without gradients. A subclass may prepare more, for good."""
        self.eval().requires_grad_(False)
        return self

    def reset_parameters(self) -> None:
        """Draw all weights anew, from torch's global generator."""
        for module in self.children():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()

    @classmethod
    def data_arguments(cls, spec: DataSpec, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Which sizes of the data the constructor takes and was not given.

        Args:
            spec: sizes of the data.
            arguments: what the constructor will be given besides.

        Returns:
            Arguments to add: by default, each size that the constructor has an argument for and the data has.
        """
        parameters = inspect.signature(cls).parameters
        return {
            name: value
            for name, value in spec.to_dict().items()
            if value is not None and name in parameters and arguments.get(name) is None
        }


def copy_placement(module: E, like: nn.Module) -> E:
    """Put a module on the device, into the dtype and into the mode of another that has all of its parameters."""
    tensor = next(itertools.chain(like.parameters(), like.buffers()), None)
    if tensor is not None:
        module.to(tensor.device, tensor.dtype)
    trained = dict(like.named_parameters())
    for name, own in module.named_parameters():
        own.requires_grad_(trained[name].requires_grad)
    return module.train(like.training)


def frozen_copy(encoder: E) -> E:
    """A copy on the CPU that nobody else can change, without gradients."""
    return copy.deepcopy(encoder).cpu().freeze()
