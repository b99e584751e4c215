"""The graph transformer of Dwivedi & Bresson with edge features, fed by a positional encoding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tg_lpe.encoders.base import Encoder
from tg_lpe.encoders.registry import make_encoder
from tg_lpe.hub.checkpoints import CLASSES, CheckpointMixin
from tg_lpe.nn.attention.edge import EdgeAttentionLayer, RowBatchNorm
from tg_lpe.nn.attention.gps import GPSLayer
from tg_lpe.ops.segment import RowGroups

READOUTS = ("mlp", "paper")
POOLINGS = ("mean", "sum", "both")
ATTENTIONS = ("edge", "gps")


@CLASSES.register
class GraphTransformer(CheckpointMixin, nn.Module):
    r"""Embed, attend over edges, average over nodes, predict.

    `A Generalization of Transformer Networks to Graphs <https://arxiv.org/abs/2012.09699>`_, in the configuration of
    section 14.3 of `Graph Transformers Dream of Electric Flow <https://arxiv.org/abs/2410.16699>`_: 128 channels,
    8 heads, 4 layers, batch norm, mean over nodes. Every parameter takes part in the prediction: the last layer has no
    edge update, since nothing reads it.

    For ZINC (20 atom types, 4 bond types, ``pe_channels=6``) and ``readout="paper"`` this has 618,627 parameters where
    the paper counts 800,771: its count includes 132,096 that nothing reads (two unused maps per layer) and 50,048 in
    the last layer's edge update. ``readout="mlp"`` has 16,510 more.

    Args:
        num_node_types: number of categories of integer node features; exclusive with ``in_channels``.
        in_channels: width of real-valued node features; exclusive with ``num_node_types``. With neither, every
            node starts from the same learned row.
        num_edge_types: number of categories of integer edge features; exclusive with ``edge_dim``.
        edge_dim: width of real-valued edge features. With neither, every edge starts from the same learned row.
        pe_channels: width of the positional encoding that :meth:`forward` is given; ``None`` for none.
            With an ``encoder``, its ``out_channels``.
        edge_pe_channels: width of the encoding of edges that :meth:`forward` is given; ``None`` for none.
            With an encoder that encodes edges too, its ``edge_out_channels``.
        pe_norm: whether encodings are brought to mean zero and variance one, channel by channel, by batch norm.
        encoder: a :class:`~tg_lpe.LinearTransformer` or :class:`~tg_lpe.GramTransformer` that computes the positional
            encoding, trained jointly; or the arguments of one, as checkpoints hold them.
        hidden_channels: hidden width.
        heads: attention heads.
        num_layers: attention layers.
        out_channels: number of predictions per graph.
        pooling: ``"mean"`` over the nodes, the paper's, their ``"sum"``, for targets that grow with the
            graph, or ``"both"``, one beside the other and each channel brought to variance one by batch norm, since
            sums are as many times larger than means as there are nodes.
        attention: ``"edge"``, Dwivedi & Bresson's, or ``"gps"``, PyTorch Geometric's ``GPSConv`` around a ``GINEConv``.
        readout: ``"mlp"`` (hidden -> hidden -> out, trains reliably) or ``"paper"`` (hidden -> 1 -> out).

    Raises:
        ValueError: if arguments exclude each other or ``readout``, ``pooling`` or ``attention`` is unknown.
    """

    def __init__(
        self,
        num_node_types: int | None = None,
        in_channels: int | None = None,
        num_edge_types: int | None = None,
        edge_dim: int | None = None,
        pe_channels: int | None = None,
        edge_pe_channels: int | None = None,
        encoder: Encoder | Mapping[str, Any] | None = None,
        hidden_channels: int = 128,
        heads: int = 8,
        num_layers: int = 4,
        out_channels: int = 1,
        readout: str = "mlp",
        pooling: str = "mean",
        pe_norm: bool = False,
        attention: str = "edge",
    ) -> None:
        super().__init__()
        if readout not in READOUTS:
            raise ValueError(f"readout must be one of {READOUTS}, got {readout!r}")
        if num_layers < 1:
            raise ValueError(f"num_layers must be at least 1, got {num_layers}")
        for name, value, allowed in (("pooling", pooling, POOLINGS), ("attention", attention, ATTENTIONS)):
            if value not in allowed:
                raise ValueError(f"{name} must be one of {allowed}, got {value!r}")
        if encoder is not None and not isinstance(encoder, Encoder):
            encoder = make_encoder(encoder)
        if encoder is not None:
            own = encoder.out_channels, encoder.edge_out_channels or None
            for name, given, has in zip(
                ("pe_channels", "edge_pe_channels"), (pe_channels, edge_pe_channels), own, strict=True
            ):
                if given not in (None, has):
                    raise ValueError(f"{name}={given} contradicts the encoder's {has}")
            pe_channels, edge_pe_channels = own  # type: ignore[assignment]
        self.hidden_channels = hidden_channels
        self.pooling = pooling
        self.encoder = encoder
        self.node_embedding = _Embedding("node", num_node_types, in_channels, hidden_channels)
        self.edge_embedding = _Embedding("edge", num_edge_types, edge_dim, hidden_channels)
        self.pe_embedding: _EncodingMap | None
        self.edge_pe_embedding: _EncodingMap | None
        for name in ("pe_embedding", "edge_pe_embedding"):
            self.register_module(name, None)  # their place in the order of parameters
        self.layers = nn.ModuleList(
            EdgeAttentionLayer(hidden_channels, heads, update_edges=i + 1 < num_layers)
            if attention == "edge"
            else GPSLayer(hidden_channels, heads)
            for i in range(num_layers)
        )
        width = hidden_channels if readout == "mlp" else 1
        pooled = 2 * hidden_channels if pooling == "both" else hidden_channels
        self.readout = nn.Sequential(nn.Linear(pooled, width), nn.ReLU(), nn.Linear(width, out_channels))
        if readout == "paper":
            # One hidden unit behind a ReLU starts dead with probability one half; the paper's net has none.
            self.readout[1] = nn.Identity()
        self.pool_norm = RowBatchNorm(pooled) if pooling == "both" else None
        if pe_channels is not None:  # drawn last: under one seed all else starts the same with and without
            self.pe_embedding = _EncodingMap("pe", pe_channels, hidden_channels, pe_norm)
        if edge_pe_channels is not None:
            self.edge_pe_embedding = _EncodingMap("edge_pe", edge_pe_channels, hidden_channels, pe_norm)

    def forward(
        self,
        x: Tensor | None,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        pe: Tensor | None = None,
        edge_pe: Tensor | None = None,
        *,
        num_nodes: int | None = None,
        num_graphs: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Predict one row per graph.

        Args:
            x: node types int64 ``[num_nodes]`` or ``[num_nodes, 1]``, or node features ``[num_nodes, in_channels]``,
                or ``None`` if the model was built for neither.
            edge_index: int64 ``[2, num_edges]``; messages run from row 0 to row 1.
            edge_attr: edge types ``[num_edges]``, or features ``[num_edges, edge_dim]``, or ``None`` likewise.
            batch: graph of each node, int64 ``[num_nodes]``, sorted; ``None`` for a single graph.
            pe: positional encoding ``[num_nodes, pe_channels]``; not given when the model has an encoder.
            edge_pe: encoding of the edges, ``[num_edges, edge_pe_channels]``, likewise.
            num_nodes: needed only where ``x`` is ``None``.
            num_graphs: number of graphs; found from ``batch`` if absent.
            generator: for an encoder with random probes, to draw them anew; without it they are the same always.

        Returns:
            Predictions ``[num_graphs, out_channels]``.

        Raises:
            ValueError: if a feature the model was built for is missing, of another width, or given but not expected.
        """
        if num_nodes is None:
            known = x if x is not None else batch
            num_nodes = known.size(0) if known is not None else int(edge_index.max()) + 1 if edge_index.numel() else 0
        if batch is None:
            batch = torch.zeros(num_nodes, dtype=torch.int64, device=edge_index.device)
        elif batch.shape != (num_nodes,):
            raise ValueError(f"batch must have shape {(num_nodes,)}, got {tuple(batch.shape)}")
        elif bool((batch[1:] < batch[:-1]).any()):
            raise ValueError("batch must be sorted ascending, as PyG's Batch makes it")
        if num_graphs is None:
            num_graphs = int(batch[-1]) + 1 if batch.numel() else 1

        order = torch.argsort(edge_index[1], stable=True)  # neighbourhoods become consecutive rows
        source = RowGroups(edge_index[0][order], num_nodes)
        target = RowGroups(edge_index[1][order], num_nodes)

        if self.encoder is not None:
            if pe is not None or edge_pe is not None:
                raise ValueError("the model has an encoder of its own, so pe= and edge_pe= must not be given")
            sizes = {"num_nodes": num_nodes, "num_graphs": num_graphs}
            pe, edge_pe = self.encoder(x, edge_index, edge_attr, batch, generator=generator, **sizes)
        h = self._embed_nodes(x, pe, num_nodes)
        if self.encoder is not None and not self.edge_embedding.expects_feature:
            edge_attr = None  # likewise
        e, edge_types = self.edge_embedding.table(edge_attr, edge_index.size(1))
        if self.edge_pe_embedding is not None:
            if edge_types is not None:  # a product with a narrow one-hot matrix: its backward pass is no scattered sum
                e, edge_types = nn.functional.one_hot(edge_types, e.size(0)).to(e.dtype) @ e, None
            e = e + self.edge_pe_embedding(edge_pe, edge_index.size(1), e.dtype)
        elif edge_pe is not None:
            raise ValueError("the model was built without edge_pe_channels, so edge_pe= must not be given")
        if edge_types is not None:
            edge_types = edge_types[order]
        else:
            e = e.index_select(0, order)  # whose backward pass, unlike that of brackets, is no serial sum
        graphs = RowGroups(batch, num_graphs)
        for i, layer in enumerate(self.layers):
            h, e = layer(h, e, source, target, graphs, edge_types if i == 0 else None)
        return self.readout(self._pool(h, graphs))

    def _pool(self, h: Tensor, graphs: RowGroups) -> Tensor:
        """One row per graph."""
        if self.pool_norm is not None:
            return self.pool_norm(torch.cat([graphs.mean(h), graphs.sum(h)], dim=1))
        return graphs.mean(h) if self.pooling == "mean" else graphs.sum(h)

    def config_dict(self) -> dict[str, Any]:
        """The class and the constructor's arguments, those of the encoder included."""
        encoder = None if self.encoder is None else self.encoder.config_dict()
        return {**super().config_dict(), "encoder": encoder}

    def _embed_nodes(self, x: Tensor | None, pe: Tensor | None, num_nodes: int) -> Tensor:
        if self.encoder is not None and not self.node_embedding.expects_feature:
            x = None  # features that the encoder alone reads
        table, types = self.node_embedding.table(x, num_nodes)
        h = table if types is None else nn.functional.embedding(types, table)
        if self.pe_embedding is None:
            if pe is not None:
                raise ValueError("the model was built without pe_channels or encoder, so pe= must not be given")
            return h
        return h + self.pe_embedding(pe, num_nodes, h.dtype)


class _EncodingMap(nn.Linear):
    """Linear map of an encoding into the hidden width, after batch norm if asked for."""

    def __init__(self, name: str, in_channels: int, channels: int, norm: bool) -> None:
        super().__init__(in_channels, channels)
        self.name = name
        self.norm = RowBatchNorm(in_channels, affine=False) if norm else None

    def forward(self, pe: Tensor | None, num_rows: int, dtype: torch.dtype) -> Tensor:  # type: ignore[override]
        """Embedded encoding ``[num_rows, channels]``."""
        if pe is None or pe.shape != (num_rows, self.in_features):
            got = None if pe is None else tuple(pe.shape)
            raise ValueError(f"{self.name} must have shape {(num_rows, self.in_features)}, got {got}")
        pe = pe.to(dtype)
        return super().forward(pe if self.norm is None else self.norm(pe))


class _Embedding(nn.Module):
    """First map of node or edge features: categories by a table, reals by a linear map, nothing by one learned row."""

    def __init__(self, what: str, num_types: int | None, in_channels: int | None, channels: int) -> None:
        super().__init__()
        if num_types is not None and in_channels is not None:
            raise ValueError(
                f"{what}s have either types or real features, got {num_types} types and {in_channels} channels"
            )
        self.what = what
        self.num_types = num_types
        self.expects_feature = num_types is not None or in_channels is not None
        self.linear = nn.Linear(in_channels, channels) if in_channels is not None else None
        self.rows = nn.Embedding(num_types if num_types is not None else 1, channels) if in_channels is None else None

    def table(self, feature: Tensor | None, num_rows: int) -> tuple[Tensor, Tensor | None]:
        """Either ``(features [num_rows, channels], None)``, or ``(table, row of the table for each of num_rows)``."""
        if self.expects_feature != (feature is not None):
            built, given = ("for", "none were") if self.expects_feature else ("without", "some were")
            raise ValueError(f"the model was built {built} {self.what} features, but {given} given")
        if self.linear is not None and feature is not None:
            if (
                feature.dim() != 2
                or feature.shape != (num_rows, self.linear.in_features)
                or not feature.is_floating_point()
            ):
                raise ValueError(
                    f"{self.what} features must be floating point of shape {(num_rows, self.linear.in_features)}, "
                    f"got {feature.dtype} {tuple(feature.shape)}"
                )
            return self.linear(feature), None
        table = self.rows.weight  # type: ignore[union-attr]
        if self.num_types is None or feature is None:
            return table, torch.zeros(num_rows, dtype=torch.int64, device=table.device)
        types = feature.squeeze(-1) if feature.dim() == 2 else feature
        if types.shape != (num_rows,) or types.dtype != torch.int64:
            raise ValueError(
                f"{self.what} types must be int64 of shape {(num_rows,)} or {(num_rows, 1)}, "
                f"got {feature.dtype} {tuple(feature.shape)}"
            )
        if num_rows and not 0 <= int(types.min()) <= int(types.max()) < self.num_types:
            raise ValueError(
                f"{self.what} types must lie in 0..{self.num_types - 1}, got {int(types.min())}..{int(types.max())}"
            )
        return table, types
