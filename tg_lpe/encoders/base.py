"""The interface that all positional encodings share: :class:`Encoder`."""

from __future__ import annotations

import copy
import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from tg_lpe.arguments import check_devices, check_generator, check_rows
from tg_lpe.checkpoints.checkpoint import CheckpointMixin
from tg_lpe.data.spec import DataSpec
from tg_lpe.graph.graph import Graph, make_graph
from tg_lpe.ops.checks import ValueChecks

FEATURES = ("x", "edge_attr", "edge_weight")
"""Features that an encoder may read in addition to the edges."""

LEVELS = ("node", "edge", "graph")
"""Levels of precomputed tensors: a tensor's name starts with one of these and an underscore."""

E = TypeVar("E", bound="Encoder")


class Inputs(NamedTuple):
    """Hold what an encoder may read in addition to the graph."""

    x: Tensor | None = None
    """Node features ``[num_nodes, ...]``."""
    edge_attr: Tensor | None = None
    """Features of the directed edges ``[num_directed_edges, ...]``."""
    pairs: Tensor | None = None
    """Pairs of nodes to encode, with or without an edge between them, int64 or int32 ``[2, num_pairs]``, in any order.
    Both nodes of a pair are in the same graph; they may be equal."""
    generator: torch.Generator | None = None
    """Generator of random probes or signs of eigenvectors. Without it, a graph always has the same encoding."""
    precomputed: Mapping[str, Tensor] | None = None
    """Result of :meth:`Encoder.precompute` for this graph with these edge weights; computed if absent."""


class Encoding(NamedTuple):
    """A positional encoding."""

    node: Tensor
    """Encoding of the nodes, ``[num_nodes, out_channels]``; no columns if the encoder only encodes edges."""
    edge: Tensor | None = None
    """Encoding of the directed edges in the order of ``edge_index``, ``[num_directed_edges, edge_out_channels]``. Both
    directions of an edge have equal rows unless the encoder is ``directed``; self-loops have zeros. ``None`` if the
    encoder has no edge channels."""
    pair: Tensor | None = None
    """Encoding of the pairs that were asked for, ``[num_pairs, pair_out_channels]``. The pairs ``(u, v)`` and
    ``(v, u)`` may have different rows."""


class Encoder(CheckpointMixin, nn.Module, ABC):
    """Base class of all positional encodings of nodes and, optionally, edges and pairs of nodes.

    A subclass sets :attr:`out_channels`, :attr:`edge_out_channels` and :attr:`reads`, and implements :meth:`encode`.
    Put work that depends only on the graph into :meth:`precompute`; datasets store its result. The constructor takes
    JSON-able arguments, so that checkpoints, configuration files and the command line can create the encoder.
    :func:`tg_lpe.encoders.register` registers it by name. The encoder then works as a transform, inside
    :class:`~tg_lpe.GraphTransformer`, in ``tg-lpe train``, in checkpoints and in reports.

    An encoder with :attr:`pair_out_channels` also encodes pairs of nodes, but only those of :attr:`Inputs.pairs`:
    the number of all pairs grows with the square of the number of nodes.

    Attributes:
        out_channels: width of the node encoding; 0 if the encoder only encodes edges.
        edge_out_channels: width of the edge encoding; 0 for none.
        pair_out_channels: width of the encoding of pairs of nodes; 0 for none.
        reads: the features, of ``"x"``, ``"edge_attr"`` and ``"edge_weight"``, that the encoding depends on.
        encodes_once: whether each graph is encoded only once, as in a transform; the encoder may then spend more time
            on a better result.
        mixes_polynomials: whether linear maps ``readout`` and ``edge_readout`` mix polynomials of the Laplacian.
        directed: whether the encoding depends on the direction in which an edge is listed. If not, an edge that is
            listed in one direction, in both, or several times is the same edge.
    """

    out_channels: int
    edge_out_channels: int = 0
    pair_out_channels: int = 0
    reads: frozenset[str] = frozenset({"edge_weight"})
    encodes_once: bool = False
    mixes_polynomials: bool = False
    directed: bool = False

    @abstractmethod
    def encode(self, graph: Graph, inputs: Inputs) -> Encoding:
        """Encode a graph, or each graph of a batch independently. To encode, call the module, which checks the graph.

        Args:
            graph: the graph or batch, with its edge weights.
            inputs: features, pairs, generator and precomputed tensors.

        Raises:
            ValueError: if a required feature is missing or has a wrong type or shape.
        """

    @property
    def is_constant(self) -> bool:
        """Whether the graph and a seed decide nodes and edges: polynomials without features that are not trained."""
        is_trained = any(parameter.requires_grad for parameter in self.parameters())
        return self.mixes_polynomials and self.reads <= {"edge_weight"} and not is_trained

    def precompute(self, graph: Graph) -> dict[str, Tensor]:
        """Compute what depends only on the graph and its edge weights: the whole encoding if it :attr:`is_constant`.

        Args:
            graph: the graph or batch.

        Returns:
            Tensors by name. A name starts with ``node_``, ``edge_`` or ``graph_``, and the tensor's rows are nodes,
            directed edges or graphs. The rows of a batch are the rows of its graphs, one graph after the other. The
            tensors are constants: no gradient flows from them to edge weights.
        """
        if not self.is_constant:
            return {}
        encoding = copy.deepcopy(self).to(graph.device).encode(graph, Inputs())
        return {f"{level}_encoding": values for level, values in encoding._asdict().items() if values is not None}

    @property
    def is_fitted(self) -> bool:
        """Whether the encoder, and each one inside it, is ready to encode; ``False`` if it needs :meth:`fit` first."""
        return all(part.is_fitted for part in _inner(self))

    def fit(self: E, dataset: Sequence[Data], *, generator: torch.Generator | None = None) -> E:
        """Compute the statistics of training graphs that encoders inside this one need, unless they have them.

        :func:`tg_lpe.app.training.train` and ``tg-lpe train`` call it with the training part of the data if
        :attr:`is_fitted` is ``False``.

        Args:
            dataset: a PyG dataset or a sequence of ``Data``.
            generator: the generator passed to :meth:`encode`; without it, the statistics are deterministic.

        Returns:
            This encoder.
        """
        for part in _inner(self):
            if not part.is_fitted:
                part.fit(dataset, generator=generator)
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
    ) -> Encoding:
        """Encode a graph, or each graph of a batch independently; the arguments are in PyTorch Geometric's order.

        Models call their encoder with a :class:`~tg_lpe.Graph`, so forward hooks of the encoder run.

        Args:
            x, edge_attr, pairs, generator, precomputed: see :class:`Inputs`. Features that the encoder does not read
                are ignored; pass weights as ``edge_weight``.
            edge_index, batch, edge_weight, reduce: see :class:`~tg_lpe.Graph`; ``edge_index`` may be a graph, which
                has its own batch, weights and counts. Precomputed tensors pass no gradient to edge weights.
            num_nodes: number of nodes; inferred from ``batch``, ``x`` or ``edge_index`` if absent.
            num_graphs: number of graphs; inferred from ``batch`` if absent.

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
        if pairs is not None:
            check_pairs(self, graph, pairs)
        inputs = Inputs(x, edge_attr, pairs, generator, precomputed)
        stored = precomputed if precomputed and pairs is None and self.is_constant else {}
        if "node_encoding" not in stored:
            return checked_encoding(self, graph, inputs, self.encode(graph, inputs))
        return checked_encoding(self, graph, inputs, Encoding(stored["node_encoding"], stored.get("edge_encoding")))

    def train(self: E, mode: bool = True) -> E:
        """Put the encoder into training mode, if a parameter requires a gradient, or into eval mode.

        So a frozen encoder, ``encoder.requires_grad_(False).eval()``, stays in eval mode inside a model.
        """
        return super().train(mode and any(parameter.requires_grad for parameter in self.parameters()))

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


def _inner(encoder: Encoder) -> list[Encoder]:
    """Return the encoders inside an encoder."""
    return [part for part in encoder.modules() if isinstance(part, Encoder) and part is not encoder]


def warn_if_untrained(encoder: Encoder) -> None:
    """Warn if the encoder may have random weights, as it is in training mode; the warning points at the user's call."""
    if encoder.training and any(parameter.requires_grad for parameter in encoder.parameters()):
        name = type(encoder).__name__
        warnings.warn(
            f"this {name} is in training mode, as one with random weights is: load a pretrained one with "
            f"{name}.from_pretrained(NAME_OR_FOLDER), or train it and call eval()",
            stacklevel=3,
        )


def copy_tensors(module: nn.Module, like: nn.Module) -> None:
    """Copy all parameters, buffers and training modes from ``like`` to ``module``."""
    copies: dict[int, Tensor] = {}  # tensors that two submodules share stay shared
    for name, part in module.named_modules():
        other = like.get_submodule(name)
        part.training = other.training
        for key, parameter in part._parameters.items():
            source = other._parameters[key]
            if parameter is not None and source is not None:
                values = nn.Parameter(source.detach().clone(), requires_grad=source.requires_grad)
                part._parameters[key] = copies.setdefault(id(source), values)  # type: ignore[assignment]
        for key, buffer in part._buffers.items():
            source_buffer = other._buffers[key]
            if buffer is not None and source_buffer is not None and buffer.shape == source_buffer.shape:
                part._buffers[key] = copies.setdefault(id(source_buffer), source_buffer.detach().clone())


def check_encoder(encoder: Encoder) -> None:
    """Raise ``ValueError`` unless an encoder declares its widths and the features it reads."""
    name, reads = type(encoder).__name__, encoder.reads
    for attribute in ("out_channels", "edge_out_channels", "pair_out_channels"):
        width = getattr(encoder, attribute, None)
        if not isinstance(width, int) or isinstance(width, bool) or width < 0:
            raise ValueError(f"{name} must set {attribute} to an integer of at least 0, got {width!r}")
    if encoder.out_channels == encoder.edge_out_channels == 0:
        raise ValueError(f"{name} encodes nothing: out_channels and edge_out_channels are both 0")
    if not isinstance(reads, Set) or not reads <= set(FEATURES):
        raise ValueError(f"{name} must set reads to a set of names from {FEATURES}, got {reads!r}")


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


def checked_encoding(encoder: Encoder, graph: Graph, inputs: Inputs, encoding: Any) -> Encoding:
    """Return an encoding; raise ``TypeError`` or ``ValueError`` unless it has the widths that the encoder declares.

    With edge weights, it is also an error if a value is not finite.
    """
    name = type(encoder).__name__
    if not isinstance(encoding, Encoding) or not isinstance(encoding.node, Tensor):
        kind = type(encoding.node if isinstance(encoding, Encoding) else encoding).__name__
        raise TypeError(f"{name}.encode must return an Encoding of tensors, got {kind}")
    num_pairs = None if inputs.pairs is None else inputs.pairs.size(1)
    of_edges = graph.num_directed_edges if encoder.edge_out_channels else None
    levels = (
        ("node", "out_channels", graph.num_nodes, encoder.out_channels),
        ("edge", "edge_out_channels", of_edges, encoder.edge_out_channels),
        ("pair", "pair_out_channels", num_pairs, encoder.pair_out_channels),
    )
    for values, (level, attribute, rows, width) in zip(encoding, levels, strict=True):
        expected = None if rows is None else [rows, width]
        got = list(values.shape) if isinstance(values, Tensor) else values
        if got != expected:
            raise ValueError(f"{name} has {attribute}={width}, so its {level} encoding must be {expected}, got {got}")
    w = graph.conductance
    if w is None or not len(w) or torch.compiler.is_compiling():
        return encoding
    if not bool(torch.stack([part.isfinite().all() for part in encoding if part is not None]).all()):
        low, high = w.aminmax()
        raise ValueError(
            f"{name} gives values that are not finite: its parameters, or edge_weight from "
            f"{float(low):.3g} to {float(high):.3g}, are too large or too small"
        )
    return encoding


def check_pairs(encoder: Encoder, graph: Graph, pairs: Tensor) -> None:
    """Raise ``TypeError`` or ``ValueError`` unless the encoder encodes pairs, and these are of nodes of one graph."""
    if not encoder.pair_out_channels:
        raise ValueError(f"{type(encoder).__name__} has pair_out_channels=0: it encodes no pairs")
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


def frozen_copy(encoder: E) -> E:
    """Return a frozen copy on the CPU that encodes each graph once."""
    frozen = copy.deepcopy(encoder).cpu().requires_grad_(False).eval()
    frozen.encodes_once = True
    for part in _inner(frozen):
        part.encodes_once = True
    return frozen
