"""The interface that all positional encodings share: :class:`Encoder`."""

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

from tg_lpe.arguments import check_devices, check_generator, check_rows
from tg_lpe.checkpoints.checkpoint import CheckpointMixin
from tg_lpe.data.spec import DataSpec
from tg_lpe.graph.graph import Graph, make_graph
from tg_lpe.ops.checks import ValueChecks
from tg_lpe.ops.operator import is_transforming

FEATURES = ("x", "edge_attr", "edge_weight")
"""Features that an encoder may read in addition to the edges."""

LEVELS = ("node", "edge", "graph")
"""Levels of precomputed tensors: a tensor's name starts with one of these and an underscore."""

E = TypeVar("E", bound="Encoder")


class Encoding(NamedTuple):
    """A positional encoding."""

    node: Tensor
    """Encoding of the nodes, ``[num_nodes, out_channels]``; no columns if the encoder only encodes edges."""
    edge: Tensor | None = None
    """Encoding of the directed edges in the order of ``edge_index``, ``[num_directed_edges, edge_out_channels]``. Both
    directions of an edge have equal rows unless the encoder is ``directed``; self-loops have zeros. ``None`` if the
    encoder has no edge channels."""


class LearnedTable(NamedTuple):
    """Learned values of an encoder that a report can show."""

    title: str
    """Name of the values, such as ``"conductance of edges"``."""
    over: str
    """Meaning of the rows: ``"edge_attr"`` (edge types), ``"x"`` (node types) or ``"eigenvalue"``."""
    rows: Tensor
    """Type numbers, int64 ``[num_rows]``, or eigenvalues, in ascending order."""
    values: Tensor
    """``[num_rows, num_columns]``, or ``[num_rows, num_columns, num_channels]``."""
    columns: tuple[str, ...]
    """Names of the columns, such as ``("filter 0", "filter 1")``."""


class Encoder(CheckpointMixin, nn.Module, ABC):
    """Base class of all positional encodings of nodes and, optionally, edges and pairs of nodes.

    A subclass sets :attr:`out_channels`, :attr:`edge_out_channels` and :attr:`reads`, and implements :meth:`encode`.
    Put work that depends only on the graph into :meth:`precompute`; datasets store its result. The constructor takes
    JSON-able arguments, so that checkpoints, configuration files and the command line can create the encoder.
    :func:`tg_lpe.encoders.register` registers it by name. The encoder then works as a transform, inside
    :class:`~tg_lpe.GraphTransformer`, in ``tg-lpe train``, in checkpoints and in reports.

    An encoder may also encode pairs of nodes, see :meth:`encode_with_pairs`. Pairs are not part of :class:`Encoding`
    because their number grows with the square of the number of nodes, and most models need only some of them.

    Attributes:
        out_channels: width of the node encoding; 0 if the encoder only encodes edges.
        edge_out_channels: width of the edge encoding; 0 for none.
        pair_out_channels: width of the encoding of pairs of nodes; 0 for none.
        reads: the features, of ``"x"``, ``"edge_attr"`` and ``"edge_weight"``, that the encoding depends on.
        encodes_once: whether each graph is encoded only once, as in a transform; the encoder may then spend more time
            on a better result.
        directed: whether the encoding depends on the direction in which an edge is listed. If not, an edge that is
            listed in one direction, in both, or several times is the same edge.
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
        """Encode a graph, or each graph of a batch independently.

        Args:
            graph: the graph or batch, with its edge weights.
            x: node features ``[num_nodes, ...]``, if the encoder reads them.
            edge_attr: features of the directed edges ``[num_directed_edges, ...]``, if the encoder reads them.
            generator: the generator of random probes or signs of eigenvectors. Without it, the encoding of a graph is
                always the same.
            precomputed: the result of :meth:`precompute` for this graph with these edge weights; computed if absent.

        Returns:
            The encoding.

        Raises:
            ValueError: if a required feature is missing or has a wrong type or shape.
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
        """Return only the encoding of pairs of :meth:`encode_with_pairs`; the arguments are the same."""
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
        """Encode the graph as :meth:`encode` does, and pairs of nodes with or without an edge between them.

        Args:
            graph: the graph or batch.
            pairs: int64 or int32 ``[2, num_pairs]``, in any order. Both nodes of a pair are in the same graph; they may
                be equal.
            x, edge_attr, generator, precomputed: see :meth:`encode`.

        Returns:
            The encoding of the graph and the encoding of the pairs, ``[num_pairs, pair_out_channels]``. The pairs
            ``(u, v)`` and ``(v, u)`` may have different rows.

        Raises:
            ValueError: if the encoder has no pair channels, a pair spans two graphs, or :meth:`encode` raises it.
            NotImplementedError: if the encoder has pair channels but does not define this method.
        """
        if not self.pair_out_channels:
            raise ValueError(f"{type(self).__name__} has pair_out_channels=0: it encodes no pairs")
        check_pairs(graph, pairs)
        return self._encode_with_pairs(graph, pairs, x, edge_attr, generator=generator, precomputed=precomputed)

    def _encode_with_pairs(
        self, graph: Graph, pairs: Tensor, x: Tensor | None, edge_attr: Tensor | None, **options: Any
    ) -> tuple[Encoding, Tensor]:
        """Encode the graph and checked pairs; ``options`` are ``generator`` and ``precomputed``."""
        name, width = type(self).__name__, self.pair_out_channels
        raise NotImplementedError(f"{name} sets pair_out_channels={width} and must define encode_with_pairs")

    def precompute(self, graph: Graph) -> dict[str, Tensor]:
        """Compute the part of the encoding that depends only on the graph and its edge weights.

        Args:
            graph: the graph or batch.

        Returns:
            Tensors by name. A name starts with ``node_``, ``edge_`` or ``graph_``, and the tensor's rows are nodes,
            directed edges or graphs. The rows of a batch are the rows of its graphs, one graph after the other. The
            tensors are constants: no gradient flows from them to edge weights.
        """
        return {}

    @classmethod
    def reads_directions(cls, arguments: Mapping[str, Any]) -> bool:
        """Return whether an encoder with these arguments is ``directed``."""
        return cls.directed

    @property
    def is_fitted(self) -> bool:
        """Whether the encoder is ready to encode; ``False`` if it needs :meth:`fit` first."""
        return True

    def fit(self: E, dataset: Sequence[Data], *, generator: torch.Generator | None = None) -> E:
        """Compute the statistics of training graphs that the encoder needs; by default, none.

        :func:`tg_lpe.app.training.train` and ``tg-lpe train`` call it with the training part of the data if
        :attr:`is_fitted` is ``False``.

        Args:
            dataset: a PyG dataset or a sequence of ``Data``.
            generator: the generator passed to :meth:`encode`; without it, the statistics are deterministic.

        Returns:
            This encoder.
        """
        return self

    def forward(
        self,
        x: Tensor | None,
        edge_index: Tensor | Graph | None = None,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        edge_weight: Tensor | None = None,
        *,
        num_nodes: int | None = None,
        num_graphs: int | None = None,
        reduce: str = "error",
        pairs: Tensor | None = None,
        generator: torch.Generator | None = None,
        precomputed: Mapping[str, Tensor] | None = None,
    ) -> Encoding | tuple[Encoding, Tensor]:
        """Encode a graph, or each graph of a batch independently; the arguments are in PyTorch Geometric's order.

        Models call their encoder with a :class:`~tg_lpe.Graph`, so forward hooks of the encoder run.

        Args:
            x, edge_attr, generator, precomputed: see :meth:`encode`. Features that the encoder does not read are
                ignored; pass weights as ``edge_weight``.
            edge_index, batch, edge_weight, reduce: see :class:`~tg_lpe.Graph`; ``edge_index`` may be a graph, which
                has its own batch, weights and counts. Precomputed tensors pass no gradient to edge weights.
            num_nodes: number of nodes; inferred from ``batch``, ``x`` or ``edge_index`` if absent.
            num_graphs: number of graphs; inferred from ``batch`` if absent.
            pairs: pairs of nodes, see :meth:`encode_with_pairs`; ``None`` for no encoding of pairs.

        Returns:
            The encoding; with ``pairs``, the encoding and that of the pairs, ``[num_pairs, pair_out_channels]``.

        Raises:
            TypeError: if ``x`` or ``edge_index`` is not a tensor, or ``generator`` is not a generator.
            ValueError: if the graph is malformed, a required feature is missing or does not fit, ``edge_weight`` or
                ``reduce`` is passed to an encoder that does not read edge weights, or ``edge_index`` is a graph and its
                batch, weights, counts or ``reduce`` are passed too.

        Warns:
            UserWarning: if ``edge_attr`` is not read but looks like edge weights.
        """
        check_generator(generator)
        if isinstance(edge_index, Graph):
            graph = edge_index
            of_graph = {"batch": batch, "edge_weight": edge_weight, "num_nodes": num_nodes, "num_graphs": num_graphs}
            passed = [name for name, value in of_graph.items() if value is not None] + ["reduce"] * (reduce != "error")
            if passed:
                raise ValueError(f"a Graph has its own {' and '.join(passed)}: pass them to Graph(...) instead")
        else:
            if (edge_weight is not None or reduce != "error") and "edge_weight" not in self.reads:
                name = "reduce" if edge_weight is None else "edge_weight"
                raise ValueError(f"{type(self).__name__} reads {sorted(self.reads)}, so {name} must not be given")
            is_read = edge_weight is not None or "edge_attr" in self.reads or "edge_weight" not in self.reads
            if not is_read and isinstance(edge_attr, Tensor) and edge_attr.dim() == 1 and edge_attr.is_floating_point():
                warnings.warn(
                    f"{type(self).__name__} does not read edge_attr, which has a number for each edge; if these are "
                    "weights, pass edge_weight= instead",
                    stacklevel=4,  # the call of the module
                )
            check_rows("x", x)
            features = {"x": x, "edge_attr": edge_attr}
            check_devices(edge_index=edge_index, **{name: features[name] for name in self.reads & features.keys()})
            if num_nodes is None and batch is None and x is not None:
                num_nodes = x.size(0)
            graph = make_graph(
                edge_index, num_nodes, edge_weight=edge_weight, batch=batch, num_graphs=num_graphs, reduce=reduce
            )
        options: dict[str, Any] = {"generator": generator, "precomputed": precomputed}
        if pairs is None:
            return checked_encoding(self, graph, self.encode(graph, x, edge_attr, **options))
        encoding, values = self.encode_with_pairs(graph, pairs, x, edge_attr, **options)
        return checked_encoding(self, graph, encoding, checked_pairs(self, pairs.size(1), values)), values

    def learned(self) -> list[LearnedTable]:
        """Return tables of learned values that reports draw before and after training; by default, none."""
        return []

    def without_edges(self: E) -> E:
        """Return an encoder with the same weights that only encodes nodes.

        The default returns the encoder itself if its constructor has no argument ``edge_out_channels`` or received an
        argument that is not JSON-able.

        Raises:
            ValueError: if the encoder only encodes edges.
        """
        if not self.out_channels:
            raise ValueError(f"{type(self).__name__} only encodes edges, so without_edges leaves nothing")
        if not self.edge_out_channels or "edge_out_channels" not in inspect.signature(type(self)).parameters:
            return self
        if self._not_jsonable:
            return self
        slim = self.made_anew(edge_out_channels=0)
        copy_tensors(slim, self)
        return slim

    def keep_channels(self, k: int) -> None:
        """Compute only the first ``k`` node channels from now on, in place, if that saves work; by default, all.

        A transform calls it on its own copy, which is never saved.
        """

    def card_usage(self, repo_id: str) -> str:
        """Return code for the model card that loads a checkpoint as a module and as a transform."""
        edges = ', edge_attr_name="edge_pe"' if self.edge_out_channels else ""
        return (
            "from tg_lpe import AddPositionalEncoding\n\n"
            f'encoder = {type(self).__name__}.from_pretrained("{repo_id}")\n'
            f"transform = AddPositionalEncoding(encoder{edges})  # a PyG transform"
        )

    def freeze(self: E) -> E:
        """Put the encoder into eval mode, without gradients, and keep it there.

        It stays in eval mode, even when :meth:`train` is called on it or on a model that contains it, until a
        parameter requires a gradient again, for example after ``requires_grad_(True)``.
        """
        self.requires_grad_(False)
        self._is_frozen = True
        return self.eval()

    @property
    def is_frozen(self) -> bool:
        """Whether :meth:`freeze` is in effect: weights and statistics do not change."""
        return self._is_frozen and not any(parameter.requires_grad for parameter in self.parameters())

    def train(self: E, mode: bool = True) -> E:
        """Put the encoder into training mode, unless it is frozen, or into eval mode."""
        return super().train(mode and not self.is_frozen)

    def requires_grad_(self: E, requires_grad: bool = True) -> E:
        """Record gradients of the parameters or not; recording them ends :meth:`freeze`."""
        if requires_grad:
            self._is_frozen = False
        return super().requires_grad_(requires_grad)

    @contextmanager
    def kept_frozen(self) -> Iterator[None]:
        """Freeze the encoder inside a ``with`` block, even if :meth:`train` is called, and leave it in eval mode."""
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
        """Draw all weights again from torch's global generator, as the constructor does.

        Raises:
            TypeError: if an argument of the constructor is not JSON-able.
        """
        if self.state_dict():
            arguments = self.config_dict()
            del arguments["class"]
            self.load_state_dict(type(self)(**arguments).state_dict())

    @classmethod
    def data_arguments(cls, spec: DataSpec, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the constructor's arguments that follow from the data, such as ``num_node_types``.

        Args:
            spec: sizes of the data.
            arguments: the constructor's other arguments.

        Returns:
            Arguments to add; by default, each size in ``spec`` that the constructor has an argument for, unless
            ``arguments`` already has it.
        """
        parameters = inspect.signature(cls).parameters
        return {
            name: value
            for name, value in spec.to_dict().items()
            if value is not None and name in parameters and arguments.get(name) is None
        }


def warn_if_untrained(encoder: Encoder) -> None:
    """Warn if the encoder's weights are random and untrained; the warning points at the caller's caller."""
    weights = dict(encoder.named_parameters())
    if not weights or encoder._not_jsonable:
        return

    def is_drawn_now() -> bool:
        """Return whether a new encoder, drawn from the current random state, has these weights."""
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
            f"this {name} has random weights, so every new {name} gives another encoding: load a pretrained one with "
            f"{name}.from_pretrained(NAME_OR_FOLDER), or train it first; torch.manual_seed(SEED) before {name}(...) "
            "makes the weights reproducible",
            stacklevel=3,
        )


def copy_tensors(module: nn.Module, like: nn.Module) -> None:
    """Copy all parameters, buffers, training modes and whether encoders are frozen from ``like`` to ``module``."""
    copies: dict[int, Tensor] = {}  # tensors that two submodules share stay shared
    for name, part in module.named_modules():
        other = like.get_submodule(name)
        part.training = other.training
        if isinstance(part, Encoder) and isinstance(other, Encoder):
            part._is_frozen = other._is_frozen
        for key, parameter in part._parameters.items():
            source = other._parameters[key]
            if parameter is not None and source is not None:
                values = nn.Parameter(source.detach().clone(), requires_grad=source.requires_grad)
                part._parameters[key] = copies.setdefault(id(source), values)  # type: ignore[assignment]
        for key, buffer in part._buffers.items():
            source_buffer = other._buffers[key]
            if buffer is not None and source_buffer is not None:
                part._buffers[key] = copies.setdefault(id(source_buffer), source_buffer.detach().clone())


def check_encoder(encoder: Encoder) -> None:
    """Raise ``TypeError`` or ``ValueError`` unless an encoder declares its widths and the features it reads."""
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
    """Raise ``TypeError`` or ``ValueError`` unless precomputed tensors have the names and shapes of this graph.

    ``widths`` are the expected names and numbers of columns.
    """
    if not isinstance(precomputed, Mapping):
        raise TypeError(f"precomputed must be a mapping of names to tensors, got {type(precomputed).__name__}")
    rows = {"node": graph.num_nodes, "edge": graph.num_directed_edges, "graph": graph.num_graphs}
    expected = {name: [rows[name.partition("_")[0]], width] for name, width in widths.items()}
    if not all(name in precomputed and [*precomputed[name].shape] == shape for name, shape in expected.items()):
        got = {name: list(values.shape) for name, values in precomputed.items()}
        raise ValueError(f"precomputed of this {type(encoder).__name__} must hold tensors of {expected}, got {got}")


def checked_encoding(encoder: Encoder, graph: Graph, encoding: Any, pairs: Tensor | None = None) -> Encoding:
    """Return an encoding; raise ``TypeError`` or ``ValueError`` unless it has the widths that the encoder declares.

    With edge weights, it is also an error if a value, or one of ``pairs``, is not finite.
    """
    num_directed_edges = graph.num_directed_edges
    if not isinstance(encoding, Encoding) or not isinstance(encoding.node, Tensor):
        got = type(encoding.node if isinstance(encoding, Encoding) else encoding).__name__
        raise TypeError(f"{type(encoder).__name__}.encode must return an Encoding of tensors, got {got}")
    width, edge_width = encoder.out_channels, encoder.edge_out_channels
    _check_shape(encoder, "node", "out_channels", encoding.node, graph.num_nodes, width)
    edge = encoding.edge
    if edge_width and isinstance(edge, Tensor):
        _check_shape(encoder, "edge", "edge_out_channels", edge, num_directed_edges, edge_width)
    elif edge is not None or edge_width:
        got = f"one of shape {list(edge.shape)}" if isinstance(edge, Tensor) else repr(edge)
        expected = f"one of shape {[num_directed_edges, edge_width]}" if edge_width else None
        raise ValueError(
            f"{type(encoder).__name__} has edge_out_channels={edge_width}, so its edge encoding must be {expected}, "
            f"got {got}"
        )
    w = graph.conductance
    if w is not None and len(w) and not torch.compiler.is_compiling() and not is_transforming():
        parts = [part.isfinite().all() for part in (*encoding, pairs) if part is not None]
        if not bool(torch.stack(parts).all()):
            low, high = w.aminmax()
            raise ValueError(
                f"{type(encoder).__name__} gives values that are not finite: its parameters, or edge_weight from "
                f"{float(low):.3g} to {float(high):.3g}, are too large or too small"
            )
    return encoding


def check_pairs(graph: Graph, pairs: Tensor) -> None:
    """Raise ``TypeError`` or ``ValueError`` unless ``pairs`` are pairs of nodes, both in the same graph."""
    if pairs is graph.__dict__.get("pairs"):  # the graph's own list of all pairs
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
    """Return an encoding of pairs; raise ``TypeError`` or ``ValueError`` unless it is a tensor of the right shape."""
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
    """Return a frozen copy on the CPU that encodes each graph once."""
    frozen = copy.deepcopy(encoder).cpu().freeze()
    frozen.encodes_once = True
    return frozen
