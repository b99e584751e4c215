"""Checks of features and encodings that all models share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from tg_lpe.arguments import check_generator
from tg_lpe.encoders.base import Encoder, copy_tensors
from tg_lpe.graph.graph import Graph, make_graph
from tg_lpe.models.base import Model
from tg_lpe.nn.features import EncodingChannels, EncodingEmbedding, FeatureEmbedding, GraphFeatures
from tg_lpe.ops.checks import ValueChecks

M = TypeVar("M", bound="FeatureModel")


class FeatureModel(Model):
    """A model that embeds features of nodes and edges, and encodings that it computes or is given.

    Attributes, which a subclass assigns in its constructor:
        encoder: computes the positional encoding; ``None`` if there is none, or it is given.
        node_embedding, edge_embedding: first maps of the features.
        pe_embedding, edge_pe_embedding: those of the encodings; ``None`` without them.
        graph_embedding: adds features of graphs to the rows that are read out; ``None`` without them.
    """

    encoder: Encoder | None
    node_embedding: FeatureEmbedding
    edge_embedding: FeatureEmbedding
    pe_embedding: EncodingEmbedding | EncodingChannels | None
    edge_pe_embedding: EncodingEmbedding | EncodingChannels | None
    graph_embedding: GraphFeatures | None
    head = ("graph_embedding", "readout")

    needs_undirected: ClassVar[bool] = False
    """Whether the model itself reads the undirected edges, as encoders do."""

    @property
    def reads_edge_weight(self) -> bool:  # type: ignore[override]
        """Whether the encoder reads edge weights; nothing else of the model does."""
        return self._encoder_reads("edge_weight")

    @property
    def reads_graph_attr(self) -> bool:  # type: ignore[override]
        """Whether the model was made with a ``graph_dim``."""
        return self.graph_embedding is not None

    def forward(
        self,
        x: Tensor | None,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        edge_weight: Tensor | None = None,
        *,
        pe: Tensor | None = None,
        edge_pe: Tensor | None = None,
        graph_attr: Tensor | None = None,
        precomputed: Mapping[str, Tensor] | None = None,
        num_nodes: int | None = None,
        num_graphs: int | None = None,
        generator: torch.Generator | None = None,
        return_penalty: bool = False,
    ) -> Any:
        """Predict one row per graph, node or edge.

        The values of all arguments are checked in one read from the device; sorting the undirected edges, for an
        encoder, is another. One more is needed to find ``num_graphs`` if it is absent, and one for the number of nodes
        if nothing but ``edge_index`` tells it.

        Args:
            x: node types int64 ``[num_nodes]`` or ``[num_nodes, num_columns]``, or features ``[num_nodes,
                in_channels]``, for the model or its encoder; ``None`` if both were built for neither.
            edge_index: int64 or int32 ``[2, num_edges]``; messages run from row 0 to row 1.
            edge_attr: edge types ``[num_edges]`` or ``[num_edges, num_columns]``, or features ``[num_edges,
                edge_dim]``, or ``None`` likewise.
            batch: graph of each node, int64 ``[num_nodes]``, sorted; ``None`` for a single graph.
            edge_weight: conductances ``[num_edges]``, for an encoder that reads them.
            pe: positional encoding ``[num_nodes, pe_channels]``; not given when the model has an encoder.
            edge_pe: encoding of the edges, ``[num_edges, edge_channels]`` of ``pe_options``, likewise.
            graph_attr: features of the graphs, ``[num_graphs, graph_dim]``, of a model with ``graph_dim``.
            precomputed: what the encoder's :meth:`~tg_lpe.Encoder.precompute` returned for this batch.
            num_nodes: number of nodes; found from ``x``, ``batch``, ``pe`` or ``edge_index`` if absent.
            num_graphs: number of graphs; found from ``batch`` if absent.
            generator: for an encoder with random parts, to draw them anew; without it they are the same always.
            return_penalty: whether to return what training adds to its loss as well, a scalar; see
                :attr:`~tg_lpe.models.Model.has_penalty`.

        Returns:
            Predictions ``[num_rows, out_channels]``, a row for each graph, node or directed edge, as the model's
            ``level`` says; with ``return_penalty``, a pair of these and the penalty.

        Raises:
            ValueError: if an argument is missing, of another shape or dtype, out of range, or not used by this model.
        """
        if return_penalty and not self.has_penalty:
            raise ValueError("the attention layers have no penalty, so return_penalty must be False")
        check_generator(generator)
        self._refuse_unread(edge_weight, pe, edge_pe, graph_attr, precomputed)
        rows = {"x": x, "batch": batch, "pe": pe, "edge_attr": edge_attr, "edge_pe": edge_pe}
        n = _given_count(num_nodes, rows)
        is_traced = torch.compiler.is_compiling()
        checks = None if is_traced else partial(self._check_features, x, edge_attr, pe, edge_pe, graph_attr)
        if self.encoder is None and not self.needs_undirected:
            graph = Graph(edge_index, n, batch=batch, num_graphs=num_graphs, checks=checks, undirected=False)
        else:
            # Called here, not in another method: there, torch.compile would break the graph a second time.
            graph = make_graph(
                edge_index, n, edge_weight=edge_weight, batch=batch, num_graphs=num_graphs, checks=checks
            )
        if is_traced:
            self._check_features(x, edge_attr, pe, edge_pe, graph_attr, graph, ValueChecks())
        if self.graph_embedding is not None:
            self.graph_embedding.check(graph_attr, graph.num_graphs)
        return self._predict(graph, x, edge_attr, pe, edge_pe, graph_attr, precomputed, generator, return_penalty)

    def without_encoder(self: M) -> M:
        """Copy the network behind the encoder: the same weights, and encodings are given, as ``pe`` and ``edge_pe``.

        It runs where the encoder does not, such as in a program that ``torch.export`` makes.

        Raises:
            ValueError: if there is no encoder, or layers read its encodings of pairs of nodes.
        """
        encoder = self.encoder
        if encoder is None or getattr(self, "reads_pairs", False):
            what = (
                "has none: export it as it is"
                if encoder is None
                else "has layers that read pairs of nodes, which are no argument"
            )
            raise ValueError(f"without_encoder is for a model with an encoder, and this {type(self).__name__} {what}")
        config = {**self.config_dict(), "encoder": None, "pe_channels": encoder.out_channels or None}
        options = type(self).options["pe_options"].mapping_of("pe_options", config.get("pe_options"))
        config["pe_options"] = {**options, "edge_channels": encoder.edge_out_channels or None}
        del config["class"]
        with torch.random.fork_rng(devices=[]):  # the weights that are drawn here are overwritten
            model = type(self)(**config)
        copy_tensors(model, self)
        return model

    @abstractmethod
    def _predict(
        self,
        graph: Graph,
        x: Tensor | None,
        edge_attr: Tensor | None,
        pe: Tensor | None,
        edge_pe: Tensor | None,
        graph_attr: Tensor | None,
        precomputed: Mapping[str, Tensor] | None,
        generator: torch.Generator | None,
        return_penalty: bool,
    ) -> Any:
        """Predict; the arguments are those of :meth:`forward`, checked."""

    def _with_graph_attr(self, rows: Tensor, graph: Graph, graph_attr: Tensor | None) -> Tensor:
        """Add the features of its graph to each row that is read out."""
        if self.graph_embedding is None:
            return rows
        owner = None if self.level == "graph" else graph.batch
        if self.level == "edge":
            owner = graph.batch[graph.edge_index[0].long()]
        return self.graph_embedding(rows, graph_attr, owner)  # type: ignore[no-any-return]

    def _check_features(
        self,
        x: Tensor | None,
        edge_attr: Tensor | None,
        pe: Tensor | None,
        edge_pe: Tensor | None,
        graph_attr: Tensor | None,
        graph: Graph,
        checks: ValueChecks,
    ) -> None:
        """Refuse features that do not fit; their values are left to ``checks``."""
        for name, encoding in (("pe", pe), ("edge_pe", edge_pe), ("graph_attr", graph_attr)):
            if encoding is not None and encoding.is_floating_point():
                checks.finite(name, encoding)
        for embedding, name, feature, num_rows in (
            (self.node_embedding, "x", x, graph.num_nodes),
            (self.edge_embedding, "edge_attr", edge_attr, graph.num_directed_edges),
        ):
            if embedding.expects_feature or not self._encoder_reads(name):
                embedding.check(feature, num_rows, checks)

    def _refuse_unread(
        self,
        edge_weight: Tensor | None,
        pe: Tensor | None,
        edge_pe: Tensor | None,
        graph_attr: Tensor | None,
        precomputed: Mapping[str, Tensor] | None,
    ) -> None:
        """Refuse arguments that nobody would read."""
        if self.graph_embedding is None:
            _refuse("the model was built without graph_dim", graph_attr=graph_attr)
        if self.encoder is None:
            _refuse("the model was built without encoder", precomputed=precomputed)
        else:
            _refuse("the model has an encoder of its own", pe=pe, edge_pe=edge_pe)
        if not self.reads_edge_weight:
            _refuse("the model has no encoder that reads edge weights", edge_weight=edge_weight)
        if self.pe_embedding is None:
            _refuse("the model was built without pe_channels or encoder", pe=pe)
        if self.edge_pe_embedding is None:
            _refuse("the model was built without edge_channels in pe_options", edge_pe=edge_pe)

    def _encoder_reads(self, name: str) -> bool:
        """Whether the encoder looks at ``"x"``, ``"edge_attr"`` or ``"edge_weight"``."""
        return self.encoder is not None and name in self.encoder.reads


def encoding_widths(
    encoder: Encoder | None, pe_channels: int | None, edge_channels: int | None
) -> tuple[int | None, int | None]:
    """Widths of the encodings of nodes and edges: those of the encoder, if there is one.

    Raises:
        ValueError: if a width that is given is not the encoder's.
    """
    if encoder is None:
        return pe_channels, edge_channels
    own = encoder.out_channels or None, encoder.edge_out_channels or None
    names = ("pe_channels", "pe_options edge_channels")
    for name, given, has in zip(names, (pe_channels, edge_channels), own, strict=True):
        if given not in (None, has):
            raise ValueError(f"{name}={given} contradicts the encoder's {has}")
    return own


def _given_count(num_nodes: int | None, given: Mapping[str, Tensor | None]) -> int | None:
    """The number of nodes that is given, or that of the rows of ``x``, ``batch`` or ``pe``; ``None`` if none is known.

    Raises:
        TypeError: if an argument is no tensor of rows.
    """
    for name, value in given.items():
        if value is not None and (not isinstance(value, Tensor) or value.dim() == 0):
            raise TypeError(f"{name} must be a tensor with a row for each node or edge, got {value!r:.80}")
    rows = (given[name] for name in ("x", "batch", "pe"))
    return next((value.size(0) for value in rows if value is not None), None) if num_nodes is None else num_nodes


def _refuse(reason: str, **arguments: Any) -> None:
    """Refuse arguments that are not ``None``."""
    if any(value is not None for value in arguments.values()):
        names = " and ".join(f"{name}=" for name in arguments)
        raise ValueError(f"{reason}, so {names} must not be given")


class OutputLinear(nn.Linear):
    """A linear map in the precision of its weights, under autocast as well.

    bfloat16 has eight significant bits: predictions near 100 would be 0.5 apart.
    """

    def forward(self, input: Tensor) -> Tensor:
        if not torch.is_autocast_enabled(input.device.type):
            return super().forward(input)
        with torch.autocast(input.device.type, enabled=False):
            return super().forward(input.to(self.weight.dtype))
