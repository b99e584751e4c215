"""The one contract of positional encodings: every one of them is an :class:`Encoder`."""

from __future__ import annotations

import copy
import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from tg_lpe.arguments import check_generator
from tg_lpe.checkpoints.checkpoint import CheckpointMixin
from tg_lpe.data.spec import DataSpec
from tg_lpe.graph.graph import Graph, make_graph
from tg_lpe.nn._util import reset_parts
from tg_lpe.ops.checks import ValueChecks

FEATURES = ("x", "edge_attr", "edge_weight")
"""Features that an encoder may read besides the edges."""

LEVELS = ("node", "edge", "graph")
"""Levels of the rows of a precomputed tensor; its name starts with one of these and an underscore."""

E = TypeVar("E", bound="Encoder")


class Encoding(NamedTuple):
    """A positional encoding."""

    node: Tensor
    """Of the nodes, ``[num_nodes, out_channels]``; without columns where the encoder encodes edges alone."""
    edge: Tensor | None = None
    """Of the directed edges in the order of ``edge_index``, ``[num_directed_edges, edge_out_channels]``; the same in
    both directions of an edge, unless the encoder is ``directed``; zero at self-loops. ``None`` where the encoder has
    no edge channels."""


class LearnedTable(NamedTuple):
    """Values that an encoder has learned and that mean something by themselves, for reports."""

    title: str
    """Name of the values: ``"conductance of edges"``."""
    over: str
    """Meaning of the rows: ``"edge_attr"`` or ``"x"``, types of these by number, or ``"eigenvalue"``."""
    rows: Tensor
    """Numbers of types, int64 ``[num_rows]``, or eigenvalues, in ascending order."""
    values: Tensor
    """``[num_rows, num_columns]``, or ``[num_rows, num_columns, num_channels]``."""
    columns: tuple[str, ...]
    """Names of the columns: ``("filter 0", "filter 1")``."""


class Encoder(CheckpointMixin, nn.Module, ABC):
    """A positional encoding of nodes, and of edges if it has some: learned, computed, or both.

    A subclass sets :attr:`out_channels`, :attr:`edge_out_channels` and :attr:`reads`, and implements :meth:`encode`. If
    a part of its work depends on the graph and on no weight, :meth:`precompute` does that part, and datasets store its
    result. Its constructor takes JSON-able arguments, so that checkpoints, configuration files and the command line can
    make it. :func:`tg_lpe.encoders.register` gives it a name. Then it works as a transform, inside
    :class:`~tg_lpe.GraphTransformer`, in ``tg-lpe train``, in checkpoints and in reports.

    An encoder may encode pairs of nodes too, by :meth:`encode_with_pairs`. They are no part of :class:`Encoding`: there
    are as many as the squared sizes of the graphs add up to, and a reader, such as tokens of tuples, asks for few.

    Attributes:
        out_channels: width of the node encoding; 0 for an encoder of edges alone.
        edge_out_channels: width of the edge encoding; 0 for none.
        pair_out_channels: width of the encoding of pairs of nodes; 0 for none.
        reads: which of ``"x"``, ``"edge_attr"`` and ``"edge_weight"`` decide the encoding besides the edges.
        encodes_once: whether each graph is encoded once, as a transform does with its copy of an encoder, which may
            take more time for a better result then.
        directed: whether it reads in which directions an edge is listed. For others an edge listed in one direction,
            in both, or several times is the same.
    """

    out_channels: int
    edge_out_channels: int = 0
    pair_out_channels: int = 0
    reads: frozenset[str] = frozenset({"edge_weight"})
    encodes_once: bool = False
    directed: bool = False
    _is_frozen = False

    @abstractmethod
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
            graph: the graph or batch, with its edge weights.
            x: node features ``[num_nodes, ...]``, if the encoder reads them.
            edge_attr: features of the directed edges ``[num_directed_edges, ...]``, likewise.
            generator: the source of randomness (probes, signs of eigenvectors), drawn anew at each call; without it the
                encoding of a graph is always the same.
            precomputed: what :meth:`precompute` returned for this graph with these edge weights; computed if absent.

        Returns:
            The encoding.

        Raises:
            ValueError: if a feature that it reads is missing or does not fit.
        """

    def encode_pairs(
        self,
        graph: Graph,
        pairs: Tensor,
        x: Tensor | None = None,
        edge_attr: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
        precomputed: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """The second that :meth:`encode_with_pairs` returns; the arguments are the same."""
        return self.encode_with_pairs(graph, pairs, x, edge_attr, generator=generator, precomputed=precomputed)[1]

    def encode_with_pairs(
        self,
        graph: Graph,
        pairs: Tensor,
        x: Tensor | None = None,
        edge_attr: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
        precomputed: Mapping[str, Tensor] | None = None,
    ) -> tuple[Encoding, Tensor]:
        """Encode the graph as :meth:`encode` does, and pairs of nodes, whether or not an edge joins them.

        Args:
            graph: the graph or batch.
            pairs: int64 or int32 ``[2, num_pairs]``, in any order; both nodes of a pair are in the same graph, and may
                be the same.
            x, edge_attr, generator, precomputed: as :meth:`encode`.

        Returns:
            The encoding, and that of the pairs, ``[num_pairs, pair_out_channels]``; that of ``(u, v)`` may differ from
            that of ``(v, u)``.

        Raises:
            ValueError: if it encodes no pairs, a pair is in two graphs, or as :meth:`encode`.
            NotImplementedError: if an encoder of pairs does not define this method.
        """
        name, width = type(self).__name__, self.pair_out_channels
        if width:
            raise NotImplementedError(f"{name} sets pair_out_channels={width} and must define encode_with_pairs")
        raise ValueError(f"{name} has pair_out_channels=0: it encodes no pairs")

    def precompute(self, graph: Graph) -> dict[str, Tensor]:
        """The part of the work that depends on the graph and on no weight.

        Args:
            graph: the graph or batch.

        Returns:
            Tensors by name. A name starts with ``node_``, ``edge_`` or ``graph_``, which says what its rows are: nodes,
            directed edges or graphs. The rows of a batch are those of its graphs one after the other. They are
            constants of the graph: no gradient flows from them to edge weights.
        """
        return {}

    @classmethod
    def reads_directions(cls, arguments: Mapping[str, Any]) -> bool:
        """Whether an encoder with these arguments is ``directed``."""
        return cls.directed

    @property
    def is_fitted(self) -> bool:
        """Whether it can encode; ``False`` where :meth:`fit` must take statistics from training graphs first."""
        return True

    def fit(self: E, dataset: Sequence[Data], *, generator: torch.Generator | None = None) -> E:
        """Take the statistics that the encoder needs from training graphs; by default, it needs none.

        :func:`tg_lpe.training.train` and ``tg-lpe train`` do so with the training part of the data, if
        :attr:`is_fitted` is ``False``.

        Args:
            dataset: a PyG dataset or a sequence of ``Data``.
            generator: the source of randomness; absent, the statistics are those of what :meth:`encode` gives without.

        Returns:
            This encoder.
        """
        return self

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
        reduce: str = "error",
        generator: torch.Generator | None = None,
        precomputed: Mapping[str, Tensor] | None = None,
    ) -> Encoding:
        """Encode a graph, or each graph of a batch by itself; the arguments are in PyTorch Geometric's order.

        Args:
            x, edge_attr, generator, precomputed: as :meth:`encode`.
            edge_index, batch, edge_weight, reduce: as :class:`~tg_lpe.Graph`. What :meth:`precompute` computes passes
                no gradient to edge weights.
            num_nodes: number of nodes; found from ``batch``, ``x`` or ``edge_index`` if absent.
            num_graphs: number of graphs; found from ``batch`` if absent.

        Returns:
            The encoding.

        Raises:
            TypeError: if ``x`` is no tensor, or ``generator`` no generator.
            ValueError: on a malformed graph, features that are missing or do not fit, or edge weights, or
                ``reduce``, for an encoder that does not read edge weights.
        """
        if (edge_weight is not None or reduce != "error") and "edge_weight" not in self.reads:
            name = "reduce" if edge_weight is None else "edge_weight"
            raise ValueError(f"{type(self).__name__} reads {sorted(self.reads)}, so {name} must not be given")
        check_generator(generator)
        if num_nodes is None and batch is None and x is not None:
            if not isinstance(x, Tensor):
                raise TypeError(f"x must be a tensor with a row for each node, got {type(x).__name__}")
            num_nodes = x.size(0)
        graph = make_graph(
            edge_index, num_nodes, edge_weight=edge_weight, batch=batch, num_graphs=num_graphs, reduce=reduce
        )
        return self.encode(graph, x, edge_attr, generator=generator, precomputed=precomputed)

    def learned(self) -> list[LearnedTable]:
        """Return the meaning of the weights as tables that reports draw before and after training; by default, none."""
        return []

    def without_edges(self: E) -> E:
        """This encoder for nodes alone: the same weights, ``edge_out_channels`` zero, nothing computed for edges.

        An encoder returns itself, unless it overrides this method, if its constructor has no argument
        ``edge_out_channels``, or was given an argument that a configuration cannot hold.

        Raises:
            ValueError: if it encodes edges alone.
        """
        if not self.out_channels:
            raise ValueError(f"{type(self).__name__} encodes edges alone: without them nothing is left")
        if not self.edge_out_channels or "edge_out_channels" not in inspect.signature(type(self)).parameters:
            return self
        if self._not_jsonable:
            return self
        slim = self.made_anew(edge_out_channels=0)
        copy_tensors(slim, self)
        return slim

    def keep_channels(self, k: int) -> None:
        """Compute no more than the first ``k`` channels of the nodes, in place, if that saves work; by default, all.

        A transform does so with its own copy, which is never saved.
        """

    def card_usage(self, repo_id: str) -> str:
        """How a checkpoint is loaded, for its model card, as a module and as a transform."""
        edges = ', edge_attr_name="edge_pe"' if self.edge_out_channels else ""
        return (
            "from tg_lpe import AddPositionalEncoding\n\n"
            f'encoder = {type(self).__name__}.from_pretrained("{repo_id}")\n'
            f"transform = AddPositionalEncoding(encoder{edges})  # a PyG transform"
        )

    def freeze(self: E) -> E:
        """Put the module into eval mode, without gradients, and keep it there. A subclass may prepare more, for good.

        :meth:`train`, its own or that of a model it is a part of, leaves it in eval mode from here on, until
        ``requires_grad_(True)`` or until any of its parameters is made to require a gradient.
        """
        self.requires_grad_(False)
        self._is_frozen = True
        return self.eval()

    @property
    def is_frozen(self) -> bool:
        """Whether the weights and statistics stay as they are: after :meth:`freeze`."""
        return self._is_frozen and not any(parameter.requires_grad for parameter in self.parameters())

    def train(self: E, mode: bool = True) -> E:
        """Put the module into training mode, unless it is frozen, or into eval mode."""
        return super().train(mode and not self.is_frozen)

    def requires_grad_(self: E, requires_grad: bool = True) -> E:
        """Whether gradients of the parameters are recorded; if so, the module is frozen no more."""
        if requires_grad:
            self._is_frozen = False
        return super().requires_grad_(requires_grad)

    @contextmanager
    def kept_frozen(self) -> Iterator[None]:
        """Eval mode without gradients for a while, whoever calls :meth:`train` meanwhile; it is left in eval mode."""
        flags = [(parameter, parameter.requires_grad) for parameter in self.parameters()]
        was_frozen = self._is_frozen
        try:
            super().requires_grad_(False)
            self._is_frozen = True
            self.eval()
            yield
        finally:
            self._is_frozen = was_frozen
            for parameter, flag in flags:
                parameter.requires_grad_(flag)

    def reset_parameters(self) -> None:
        """Draw all weights anew, from torch's global generator.

        Raises:
            NotImplementedError: if this module or a part of it holds parameters and does not say how they are drawn.
        """
        reset_parts(self)

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


def warn_if_untrained(encoder: Encoder) -> None:
    """Warn the caller of a constructor if the weights of its encoder are random and still as they were drawn."""
    weights = dict(encoder.named_parameters())
    if not weights or encoder._not_jsonable:
        return

    def is_drawn_now() -> bool:
        """Whether the constructor would draw these weights."""
        drawn = dict(encoder.made_anew().named_parameters())
        return drawn.keys() == weights.keys() and all(
            torch.equal(drawn[name].to(weight), weight) for name, weight in weights.items()
        )

    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(encoder._rng_state)
        is_as_drawn = is_drawn_now()
        torch.rand(1)
        is_random = is_as_drawn and not is_drawn_now()
    if is_random:
        name = [type(part).__name__ for part in encoder.modules() if isinstance(part, Encoder)][-1]  # the innermost
        warnings.warn(
            f"this {name} has random weights, so each one that is made encodes differently: take a pretrained one, "
            f"{name}.from_pretrained(NAME_OR_FOLDER), or train it first; torch.manual_seed(SEED) before {name}(...) "
            "gives the same weights in every program",
            stacklevel=3,
        )


def copy_tensors(module: nn.Module, like: nn.Module) -> None:
    """Replace all parameters and buffers of a module by copies of another's, and take over its mode."""
    copies: dict[int, Tensor] = {}  # a tensor that two parts share is shared again
    for name, part in module.named_modules():
        other = like.get_submodule(name)
        part.training = other.training
        for key, parameter in part._parameters.items():
            given = other._parameters[key]
            if parameter is not None and given is not None:
                values = nn.Parameter(given.detach().clone(), requires_grad=given.requires_grad)
                part._parameters[key] = copies.setdefault(id(given), values)  # type: ignore[assignment]
        for key, buffer in part._buffers.items():
            there = other._buffers[key]
            if buffer is not None and there is not None:
                part._buffers[key] = copies.setdefault(id(there), there.detach().clone())


def check_encoder(encoder: Encoder) -> None:
    """Refuse an encoder that does not say what it computes and reads.

    Raises:
        TypeError: if a width is no integer, or ``reads`` no set.
        ValueError: if a width is out of range, or ``reads`` names something else than :data:`FEATURES`.
    """
    name = type(encoder).__name__
    for attribute in ("out_channels", "edge_out_channels", "pair_out_channels"):
        width = getattr(encoder, attribute, None)
        if not isinstance(width, int) or isinstance(width, bool):
            raise TypeError(f"{name} must set {attribute} to an integer of at least 0, got {width!r}")
        if width < 0:
            raise ValueError(f"{name} must set {attribute} to an integer of at least 0, got {width}")
    if encoder.out_channels == encoder.edge_out_channels == 0:
        raise ValueError(f"{name} encodes nothing: out_channels and edge_out_channels are both 0")
    reads = encoder.reads
    if not isinstance(reads, Set):
        raise TypeError(f"{name} must set reads to a set of names from {FEATURES}, got {reads!r}")
    if not reads <= set(FEATURES):
        raise ValueError(f"{name} must set reads to a set of names from {FEATURES}, got {set(reads)}")


def check_precomputed(
    encoder: Encoder, graph: Graph, precomputed: Mapping[str, Tensor], widths: Mapping[str, int]
) -> None:
    """Refuse what another encoder precomputed, or of another graph.

    Args:
        encoder: the encoder, for messages.
        graph: the graph.
        precomputed: what was given.
        widths: the names of what :meth:`Encoder.precompute` returns, and its numbers of columns.

    Raises:
        TypeError: if it is no mapping.
        ValueError: if a tensor is missing or of another shape. Names tell what was computed, shapes how much.
    """
    if not isinstance(precomputed, Mapping):
        raise TypeError(f"precomputed must be a mapping of names to tensors, got {type(precomputed).__name__}")
    rows = {"node": graph.num_nodes, "edge": graph.num_directed_edges, "graph": graph.num_graphs}
    expected = {name: [rows[name.partition("_")[0]], width] for name, width in widths.items()}
    if not all(name in precomputed and [*precomputed[name].shape] == shape for name, shape in expected.items()):
        got = {name: list(values.shape) for name, values in precomputed.items()}
        raise ValueError(f"precomputed of this {type(encoder).__name__} must hold tensors of {expected}, got {got}")


def checked_encoding(encoder: Encoder, num_nodes: int, num_directed_edges: int, encoding: Any) -> Encoding:
    """An encoding, if it is what the encoder says that it computes.

    Raises:
        TypeError: if it is no :class:`Encoding` of tensors.
        ValueError: if it has other shapes, or edges are encoded and should not be, or the reverse.
    """
    if not isinstance(encoding, Encoding) or not isinstance(encoding.node, Tensor):
        found = type(encoding.node if isinstance(encoding, Encoding) else encoding).__name__
        raise TypeError(f"{type(encoder).__name__}.encode must return an Encoding of tensors, got {found}")
    width, edge_width = encoder.out_channels, encoder.edge_out_channels
    _check_shape(encoder, "node", "out_channels", encoding.node, num_nodes, width)
    edge = encoding.edge
    if edge_width and isinstance(edge, Tensor):
        _check_shape(encoder, "edge", "edge_out_channels", edge, num_directed_edges, edge_width)
    elif edge is not None or edge_width:
        found = f"one of shape {list(edge.shape)}" if isinstance(edge, Tensor) else repr(edge)
        expected = f"one of shape {[num_directed_edges, edge_width]}" if edge_width else None
        raise ValueError(
            f"{type(encoder).__name__} has edge_out_channels={edge_width}, so its edge encoding must be {expected}, "
            f"got {found}"
        )
    return encoding


def check_pairs(graph: Graph, pairs: Tensor) -> None:
    """Refuse what are no pairs of nodes of one graph each.

    Raises:
        TypeError: if it is no tensor.
        ValueError: on another dtype or shape, a number that is no node, or a pair in two graphs.
    """
    if pairs is graph.__dict__.get("pairs"):  # all of them, as the graph lists them
        return
    if not isinstance(pairs, Tensor):
        raise TypeError(f"pairs must be an int64 or int32 tensor of shape [2, num_pairs], got {type(pairs).__name__}")
    if pairs.dtype not in (torch.int64, torch.int32) or pairs.dim() != 2 or pairs.size(0) != 2:
        raise ValueError(f"pairs must be int64 or int32 of shape [2, num_pairs], got {pairs.dtype} {list(pairs.shape)}")
    checks = ValueChecks()
    checks.in_range("pairs", pairs, graph.num_nodes)
    checks.run()
    first, second = graph.batch[pairs[0]], graph.batch[pairs[1]]
    if bool((wrong := first != second).any()):
        at = int(wrong.nonzero()[0])
        raise ValueError(
            f"both nodes of a pair must be in the same graph, got {tuple(pairs[:, at].tolist())} in graph "
            f"{int(first[at])} and graph {int(second[at])}"
        )


def checked_pairs(encoder: Encoder, num_pairs: int, values: Any) -> Tensor:
    """An encoding of pairs, if it is what the encoder says that it computes.

    Raises:
        TypeError: if it is no tensor.
        ValueError: if it has another shape.
    """
    if not isinstance(values, Tensor):
        raise TypeError(
            f"{type(encoder).__name__}.encode_with_pairs must return a tensor of pairs, got {type(values).__name__}"
        )
    _check_shape(encoder, "pair", "pair_out_channels", values, num_pairs, encoder.pair_out_channels)
    return values


ROWS = {"node": "nodes", "edge": "directed edges", "pair": "pairs"}


def _check_shape(encoder: Encoder, level: str, attribute: str, values: Tensor, rows: int, width: int) -> None:
    if values.dim() != 2 or values.size(0) != rows or values.size(1) != width:
        raise ValueError(
            f"{type(encoder).__name__} has {attribute}={width}, so its {level} encoding must be {[rows, width]} for "
            f"{rows} {ROWS[level]}, got {list(values.shape)}"
        )


def frozen_copy(encoder: E) -> E:
    """A copy on the CPU without gradients, to encode each graph once; changes of the original do not reach it."""
    frozen = copy.deepcopy(encoder).cpu().freeze()
    frozen.encodes_once = True
    return frozen
