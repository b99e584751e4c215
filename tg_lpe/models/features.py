"""What models of features and encodings share: the checks of what they are given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tg_lpe.encoders.base import Encoder
from tg_lpe.graph.incidence import check_edge_index, checked_count
from tg_lpe.models.base import Model
from tg_lpe.nn.attention import Neighbourhoods
from tg_lpe.nn.checks import ValueChecks
from tg_lpe.nn.embeddings import EncodingChannels, EncodingEmbedding, FeatureEmbedding
from tg_lpe.ops.segment import group_pointers


class FeatureModel(Model):
    """A model that embeds features of nodes and edges, and encodings that it computes or is given.

    Attributes, which a subclass assigns in its constructor:
        encoder: computes the positional encoding; ``None`` if there is none, or it is given.
        node_embedding, edge_embedding: first maps of the features.
        pe_embedding, edge_pe_embedding: those of the encodings; ``None`` without them.
    """

    encoder: Encoder | None
    node_embedding: FeatureEmbedding
    edge_embedding: FeatureEmbedding
    pe_embedding: EncodingEmbedding | EncodingChannels | None
    edge_pe_embedding: EncodingEmbedding | EncodingChannels | None

    @property
    def reads_edge_weight(self) -> bool:
        """Whether the encoder reads edge weights; nothing else of the model does."""
        return self._encoder_reads("edge_weight")

    def _refuse_unread(
        self,
        edge_weight: Tensor | None,
        pe: Tensor | None,
        edge_pe: Tensor | None,
        precomputed: Mapping[str, Tensor] | None,
    ) -> None:
        """Refuse arguments that nobody would read."""
        if self.encoder is None:
            _refuse("the model was built without encoder", precomputed=precomputed)
        else:
            _refuse("the model has an encoder of its own", pe=pe, edge_pe=edge_pe)
        if not self.reads_edge_weight:
            _refuse("the model has no encoder that reads edge weights", edge_weight=edge_weight)
        if self.pe_embedding is None:
            _refuse("the model was built without pe_channels or encoder", pe=pe)
        if self.edge_pe_embedding is None:
            _refuse("the model was built without edge_pe_channels", edge_pe=edge_pe)

    def _validate(
        self,
        x: Tensor | None,
        edge_index: Tensor,
        edge_attr: Tensor | None,
        batch: Tensor | None,
        pe: Tensor | None,
        edge_pe: Tensor | None,
        num_nodes: int | None,
        num_graphs: int | None,
    ) -> Neighbourhoods:
        """Refuse what does not fit; return what the layers need of the graph."""
        check_edge_index(edge_index)
        edge_index = edge_index.long()
        given = {"x": x, "edge_attr": edge_attr, "batch": batch, "pe": pe, "edge_pe": edge_pe}
        for name, value in given.items():
            if value is not None and (not isinstance(value, Tensor) or value.dim() == 0):
                raise TypeError(f"{name} must be a tensor with a row for each node or edge, got {value!r:.80}")
        for name, count in (("num_nodes", num_nodes), ("num_graphs", num_graphs)):
            if count is not None and not torch.compiler.is_compiling():
                checked_count(name, count)
        if num_nodes is None:
            known = next((rows for rows in (x, batch, pe) if rows is not None), None)
            num_nodes = known.size(0) if known is not None else int(edge_index.max()) + 1 if edge_index.numel() else 0
        checks = ValueChecks()
        if batch is None:
            if num_graphs not in (None, 1):
                raise ValueError(f"num_graphs={num_graphs} needs batch, which assigns the nodes to graphs")
            batch, num_graphs = edge_index.new_zeros(num_nodes), 1
        elif batch.shape != (num_nodes,) or batch.dtype != torch.int64:
            raise ValueError(f"batch must be int64 of shape {(num_nodes,)}, got {batch.dtype} {tuple(batch.shape)}")
        elif num_graphs is None:
            num_graphs = int(batch[-1]) + 1 if num_nodes else 1
        checks.ascending("batch", batch)
        checks.in_range("batch", batch, num_graphs)
        checks.in_range("edge_index", edge_index, num_nodes)
        if num_graphs > 1:
            checks.within_graphs(edge_index, batch)
        for name, encoding in (("pe", pe), ("edge_pe", edge_pe)):
            if encoding is not None and encoding.is_floating_point():
                checks.finite(name, encoding)
        for embedding, name, feature, num_rows in (
            (self.node_embedding, "x", x, num_nodes),
            (self.edge_embedding, "edge_attr", edge_attr, edge_index.size(1)),
        ):
            if embedding.expects_feature or not self._encoder_reads(name):
                embedding.check(feature, num_rows, checks)
        if torch.compiler.is_compiling():
            return Neighbourhoods(edge_index, batch, num_graphs)
        sizes = group_pointers(batch, max(num_graphs, 0)).diff()
        largest = checks.also_read(sizes.max()) if sizes.numel() else None
        numbers = checks.run()
        return Neighbourhoods(edge_index, batch, num_graphs, 0 if largest is None else numbers[largest])

    def _encoder_reads(self, name: str) -> bool:
        """Whether the encoder looks at ``"x"``, ``"edge_attr"`` or ``"edge_weight"``."""
        return self.encoder is not None and name in self.encoder.reads


def encoding_widths(
    encoder: Encoder | None, pe_channels: int | None, edge_pe_channels: int | None
) -> tuple[int | None, int | None]:
    """Widths of the encodings of nodes and edges: those of the encoder, if there is one.

    Raises:
        ValueError: if a width that is given is not the encoder's.
    """
    if encoder is None:
        return pe_channels, edge_pe_channels
    own = encoder.out_channels or None, encoder.edge_out_channels or None
    for name, given, has in zip(("pe_channels", "edge_pe_channels"), (pe_channels, edge_pe_channels), own, strict=True):
        if given not in (None, has):
            raise ValueError(f"{name}={given} contradicts the encoder's {has}")
    return own


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
