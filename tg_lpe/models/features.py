"""Base class of models that read features and encodings, with their checks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from tg_lpe.arguments import check_devices, check_generator, check_rows, rows_hint
from tg_lpe.encoders.base import Encoder, copy_tensors
from tg_lpe.graph.graph import Graph, make_graph
from tg_lpe.models.base import Model
from tg_lpe.nn.features import EncodingChannels, EncodingEmbedding, FeatureEmbedding, GraphFeatures
from tg_lpe.ops.checks import ValueChecks

M = TypeVar("M", bound="FeatureModel")


class Features(NamedTuple):
    """Hold the features and encodings passed to a model, see :meth:`FeatureModel.forward`."""

    x: Tensor | None
    edge_attr: Tensor | None
    pe: Tensor | None
    edge_pe: Tensor | None
    graph_attr: Tensor | None


class FeatureModel(Model):
    """Base class of models that embed node and edge features, and encodings computed by an encoder or passed in.

    A subclass assigns these attributes in its constructor:
        encoder: computes the positional encoding; ``None`` if there is no encoding or it is passed to :meth:`forward`.
        node_embedding, edge_embedding: input maps of the features.
        pe_embedding, edge_pe_embedding: input maps of the encodings; ``None`` without encodings.
        graph_embedding: adds features of graphs before the read-out; ``None`` without such features.
    """

    encoder: Encoder | None
    node_embedding: FeatureEmbedding
    edge_embedding: FeatureEmbedding
    pe_embedding: EncodingEmbedding | EncodingChannels | None
    edge_pe_embedding: EncodingEmbedding | EncodingChannels | None
    graph_embedding: GraphFeatures | None
    head = ("graph_embedding", "readout")

    needs_undirected: ClassVar[bool] = False
    """Whether the model needs undirected edges even without an encoder."""
    reads_pairs: bool = False
    """Whether layers read the encoding of pairs of nodes."""

    @property
    def reads_edge_weight(self) -> bool:  # type: ignore[override]
        """Whether the encoder reads edge weights; no other part of the model does."""
        return self._encoder_reads("edge_weight")

    @property
    def reads_graph_attr(self) -> bool:  # type: ignore[override]
        """Whether the model has a ``graph_dim``."""
        return self.graph_embedding is not None

    def forward(
        self,
        x: Tensor | None,
        edge_index: Tensor | None = None,
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

        Checking the arguments synchronises with the device once, and padding the graphs of a batch for an encoder once
        more. Without ``x``, ``batch`` and ``pe``, pass ``num_nodes``: inferring it synchronises, too.

        Args:
            x, edge_attr: features of nodes and edges; ``None`` if neither the model nor its encoder reads them.
            edge_index: int64 or int32 ``[2, num_edges]``; messages run from row 0 to row 1.
            batch, edge_weight, precomputed, num_nodes, num_graphs, generator: see :meth:`Model.forward
                <tg_lpe.models.Model.forward>`.
            pe: positional encoding ``[num_nodes, pe_channels]``, for a model without encoder.
            edge_pe: encoding of the edges ``[num_edges, edge_channels]``, see ``pe_options``, for a model without
                encoder.
            graph_attr: features of the graphs ``[num_graphs, graph_dim]``, for a model with ``graph_dim``.
            return_penalty: whether to return a scalar term of the training loss too, see
                :attr:`~tg_lpe.models.Model.has_penalty`.

        Returns:
            Predictions ``[num_rows, out_channels]``, one row for each graph, node or directed edge, depending on the
            model's ``level``; with ``return_penalty``, a pair of predictions and penalty.

        Raises:
            TypeError: if an argument is not a tensor, such as ``model(data)``.
            ValueError: if an argument is missing, has a wrong shape or dtype, is out of range, or is not read by this
                model.
        """
        check_generator(generator)
        if return_penalty and not self.has_penalty:
            raise ValueError("the attention layers have no penalty, so return_penalty must be False")
        features = Features(x, edge_attr, pe, edge_pe, graph_attr)
        self._refuse_unread(features, edge_weight, precomputed)
        rows = {"x": x, "batch": batch, "pe": pe, "edge_attr": edge_attr, "edge_pe": edge_pe, "graph_attr": graph_attr}
        for name, value in rows.items():
            check_rows(name, value)
        if num_nodes is None and (sizes := [value.size(0) for value in (x, batch, pe) if value is not None]):
            num_nodes = sizes[0]
        check_devices(edge_index=edge_index, **rows, edge_weight=edge_weight)
        is_traced = torch.compiler.is_compiling()
        checks = None if is_traced else partial(self._check_features, features)
        if self.encoder is None and not self.needs_undirected:
            graph = Graph(edge_index, num_nodes, batch=batch, num_graphs=num_graphs, checks=checks, undirected=False)  # type: ignore[arg-type]
        else:
            # Not in a separate method, where torch.compile would break the graph a second time.
            graph = make_graph(
                edge_index, num_nodes, edge_weight=edge_weight, batch=batch, num_graphs=num_graphs, checks=checks
            )
        if is_traced:
            self._check_features(features, graph, ValueChecks())
        if self.graph_embedding is not None:
            self.graph_embedding.check(graph_attr, graph.num_graphs)
        return self._predict(graph, features, {"generator": generator, "precomputed": precomputed}, return_penalty)

    def without_encoder(self: M) -> M:
        """Return a model with the same weights but without the encoder, which reads ``pe`` and ``edge_pe`` instead.

        Use it where the encoder does not run, such as in a program of ``torch.export``.

        Raises:
            ValueError: if there is no encoder, or layers read its encodings of pairs of nodes.
        """
        encoder, name = self.encoder, type(self).__name__
        if encoder is None:
            raise ValueError(f"without_encoder is for a model with an encoder, and this {name} has none")
        if self.reads_pairs:
            raise ValueError(f"without_encoder does not work with layers that read pairs of nodes, as in this {name}")
        config = {**self.config_dict(), "encoder": None, "pe_channels": encoder.out_channels or None}
        options = type(self).options["pe_options"].mapping_of("pe_options", config.get("pe_options"))
        config["pe_options"] = {**options, "edge_channels": encoder.edge_out_channels or None}
        del config["class"]
        with torch.random.fork_rng(devices=[]):  # the weights that are drawn here are overwritten
            model = type(self)(**config)
        copy_tensors(model, self)
        return model

    @abstractmethod
    def _predict(self, graph: Graph, features: Features, options: dict[str, Any], return_penalty: bool) -> Any:
        """Predict from the checked arguments of :meth:`forward`; ``options`` are those of the encoder."""

    def _encode(
        self, graph: Graph, features: Features, options: dict[str, Any], pairs: Tensor | None = None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return encodings of nodes, of edges and of ``pairs``, by the encoder if there is one."""
        x, edge_attr, pe, edge_pe, _ = features
        if self.encoder is None:
            return pe, edge_pe, None
        return self.encoder(x, graph, edge_attr, pairs=pairs, **options)  # type: ignore[no-any-return]

    def _with_graph_attr(self, rows: Tensor, graph: Graph, graph_attr: Tensor | None) -> Tensor:
        """Add the features of its graph to each row before the read-out."""
        if self.graph_embedding is None:
            return rows
        owner = None if self.level == "graph" else graph.batch
        if self.level == "edge":
            owner = graph.batch[graph.edge_index[0].long()]
        return self.graph_embedding(rows, graph_attr, owner)  # type: ignore[no-any-return]

    def _check_features(self, features: Features, graph: Graph, checks: ValueChecks) -> None:
        """Check the features' shapes and types, and add checks of their values to ``checks``."""
        x, edge_attr, pe, edge_pe, graph_attr = features
        for name, encoding in (("pe", pe), ("edge_pe", edge_pe), ("graph_attr", graph_attr)):
            if encoding is not None and encoding.is_complex() and name != "graph_attr":
                raise ValueError(f"{name} must be real, got {encoding.dtype}; torch.view_as_real gives both parts")
            if encoding is not None and encoding.is_floating_point():
                checks.finite(name, encoding)
        for name, what, part, encoding, num_rows in (
            ("pe", "node", self.pe_embedding, pe, graph.num_nodes),
            ("edge_pe", "edge", self.edge_pe_embedding, edge_pe, graph.num_directed_edges),
        ):
            if self.encoder is None and part is not None:
                shape, got = (num_rows, part.in_features), None if encoding is None else tuple(encoding.shape)
                if got != shape:
                    hint = f"; the model was made for an encoding: pass {name}=" if encoding is None else ""
                    if encoding is not None:
                        option = "pe_channels" if name == "pe" else "edge_channels in pe_options"
                        hint = rows_hint(name, encoding.size(0), num_rows, what) or f"; {option} is their number"
                    raise ValueError(f"{name} must have shape {shape}, got {got}{hint}")
        for embedding, name, feature, num_rows in (
            (self.node_embedding, "x", x, graph.num_nodes),
            (self.edge_embedding, "edge_attr", edge_attr, graph.num_directed_edges),
        ):
            if embedding.expects_feature or not self._encoder_reads(name):
                embedding.check(feature, num_rows, checks)

    def _refuse_unread(
        self, features: Features, edge_weight: Tensor | None, precomputed: Mapping[str, Tensor] | None
    ) -> None:
        """Raise if an argument would be ignored."""
        _, _, pe, edge_pe, graph_attr = features
        for is_read, reason, arguments in (
            (self.graph_embedding, "was built without graph_dim", {"graph_attr": graph_attr}),
            (self.encoder, "was built without encoder", {"precomputed": precomputed}),
            (self.encoder is None, "has an encoder of its own", {"pe": pe, "edge_pe": edge_pe}),
            (self.reads_edge_weight, "has no encoder that reads edge weights", {"edge_weight": edge_weight}),
            (self.pe_embedding, "was built without pe_channels or encoder", {"pe": pe}),
            (self.edge_pe_embedding, "was built without edge_channels in pe_options", {"edge_pe": edge_pe}),
        ):
            if is_read in (None, False) and any(value is not None for value in arguments.values()):
                names = " and ".join(f"{name}=" for name in arguments)
                raise ValueError(f"the model {reason}, so {names} must not be given")

    def _encoder_reads(self, name: str) -> bool:
        """Return whether there is an encoder that reads ``"x"``, ``"edge_attr"`` or ``"edge_weight"``."""
        return self.encoder is not None and name in self.encoder.reads


def encoding_widths(
    encoder: Encoder | None, pe_channels: int | None, edge_channels: int | None
) -> tuple[int | None, int | None, int]:
    """Return the widths of the encodings of nodes, edges and pairs, which must be those of an encoder if there is one.

    Raises:
        ValueError: if those passed differ from the encoder's.
    """
    if encoder is None:
        return pe_channels, edge_channels, 0
    widths = encoder.out_channels or None, encoder.edge_out_channels or None
    names = ("pe_channels", "pe_options edge_channels")
    for name, given, width in zip(names, (pe_channels, edge_channels), widths, strict=True):
        if given not in (None, width):
            raise ValueError(f"{name}={given} contradicts the encoder's {width}")
    return *widths, encoder.pair_out_channels


class OutputLinear(nn.Linear):
    """Linear map in the precision of its weights, also under autocast.

    bfloat16 has eight significant bits, so predictions near 100 would be rounded to multiples of 0.5.
    """

    def forward(self, input: Tensor) -> Tensor:
        if not torch.is_autocast_enabled(input.device.type):
            return super().forward(input)
        with torch.autocast(input.device.type, enabled=False):
            return super().forward(input.to(self.weight.dtype))
