"""The graph transformer of Dwivedi & Bresson with edge features, fed by a positional encoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tg_lpe.arguments import check_count, check_options
from tg_lpe.encoders.base import Encoder, checked_encoding, checked_pairs
from tg_lpe.encoders.registry import as_encoder
from tg_lpe.graph.graph import Graph
from tg_lpe.models.features import FeatureModel, OutputLinear, encoding_widths
from tg_lpe.models.options import MergedEncodingOptions, Options, ReadoutOptions
from tg_lpe.models.registry import register
from tg_lpe.nn._util import reset_all
from tg_lpe.nn.attention import make_attention, shared_of
from tg_lpe.nn.features import EncodingChannels, EncodingEmbedding, FeatureEmbedding, GraphFeatures
from tg_lpe.nn.linear import Linear
from tg_lpe.nn.norms import make_norm
from tg_lpe.ops.segment import RowGroups


@register
class GraphTransformer(FeatureModel):
    r"""A graph transformer: embeds features and encodings, applies layers of attention, pools graphs, predicts.

    `A Generalization of Transformer Networks to Graphs <https://arxiv.org/abs/2012.09699>`_, in the configuration of
    section 14.3 of `Graph Transformers Dream of Electric Flow <https://arxiv.org/abs/2410.16699>`_: 128 channels,
    8 heads, 4 layers, batch norm, mean over nodes. Every parameter takes part in the prediction: the last layer has no
    edge update, since nothing reads it. Attention without a local part reads no edges: leave out their features there.

    For ZINC (20 atom types, 4 bond types, ``pe_channels=6``) and ``readout="paper"`` this has 618,627 parameters where
    the paper counts 800,771: its count includes 132,096 that nothing reads (two unused maps per layer) and 50,048 in
    the last layer's edge update. ``readout="mlp"`` has 16,510 more.

    Args:
        num_node_types: number of categories of integer node features, of each column if there are several, as in ogb's
            molecules; exclusive with ``in_channels``.
        in_channels: width of real-valued node features; exclusive with ``num_node_types``. With neither, every
            node starts from the same learned row.
        num_edge_types: number of categories of integer edge features, likewise; exclusive with ``edge_dim``.
        edge_dim: width of real-valued edge features. With neither, every edge starts from the same learned row.
        pe_channels: width of the positional encoding that :meth:`forward` is given; ``None`` for none.
            With an ``encoder``, its ``out_channels``.
        encoder: an :class:`~tg_lpe.Encoder` that computes the positional encoding, trained jointly; or the class and
            arguments of one, as checkpoints hold them.
        hidden_channels: hidden width.
        heads: attention heads.
        num_layers: attention layers.
        out_channels: number of predictions per graph or node.
        readout: the map from the features of a graph, or of a node, to predictions: ``"mlp"`` (hidden -> hidden -> out,
            trains reliably), ``"paper"`` (hidden -> 1 -> out) or ``"pyramid"`` (hidden -> hidden / 2 -> hidden / 4 ->
            out, as in the benchmarks of Dwivedi et al.); or the hidden widths of your own, ``()`` for a linear map. Or
            a dictionary with any of these: ``hidden``, one of the above; ``pooling``: ``"mean"`` over the nodes, the
            paper's, their ``"sum"``, for targets that grow with the graph, their largest values, ``"max"``, or
            ``"both"``, mean and sum beside each other; ``norm`` of the pooled features, a name as the attention
            layers' but ``"graph"``, by default ``"batch"`` with ``pooling="both"``, since sums are as many times larger
            than means as there are nodes, and else ``"none"``; ``level``: ``"graph"`` for a prediction per graph,
            ``"node"`` for one per node, without pooling.
        attention: name of an attention layer: ``"edge"``, Dwivedi & Bresson's; ``"gps"``, PyTorch Geometric's
            ``GPSConv``; ``"spectral"``; ``"hybrid"``, message passing beside an attention over
            all nodes that an option chooses, as Primphormer's; ``"bias"`` and ``"pairs"``, attention over all nodes
            that reads the encoder's pairs, as Graphormer's and GRIT's; or one of your own, see
            :func:`~tg_lpe.nn.attention.register_attention`.
        attention_options: further arguments of the attention layers, such as ``dropout``, the share of values that is
            dropped in training, and ``norm``: ``"bounded"``, ``"batch"``, ``"running"``, ``"layer"``, ``"graph"`` or
            ``"none"``, see :mod:`tg_lpe.nn.norms`. ``"edge"`` has ``residual``, ``local="gine"``,
            ``attention_dropout`` and ``drop_path`` besides, see :class:`~tg_lpe.nn.attention.EdgeAttentionLayer`. With
            ``local="GATv2Conv"``, or another convolution of PyTorch Geometric, this is the local part of a layer.
        pe_options: how encodings come in, a dictionary with any of these. ``edge_channels``: width of the encoding of
            edges that :meth:`forward` is given; with an encoder that encodes edges too, its ``edge_out_channels``.
            ``norm``: whether encodings are brought to mean zero and variance one, channel by channel, by batch norm;
            ``"unit"`` scales each channel to length one within each graph instead. ``merge``: ``"add"`` adds a linear
            map of the encoding to the embedded features; ``"concat"`` puts the encoding itself beside them, and they
            are embedded into as many channels less, as spectral attention does; ``"apart"`` leaves the features of
            nodes as they are: layers alone read the linear map of the encoding, such as ``"hybrid"`` with ``pe_gate``.
        graph_dim: columns of real features of whole graphs, such as a temperature, that :meth:`forward` is given as
            ``graph_attr``. Standardised by the training set, a linear map of them is added to what is read out.

    Raises:
        ValueError: if arguments exclude each other, a choice or an option is unknown, or a value is out of range.
        TypeError: if ``encoder`` is neither an encoder nor the arguments of one.

    Example:
        >>> import torch
        >>> from tg_lpe import GramTransformer, GraphTransformer
        >>> x = torch.tensor([0, 1, 1, 0, 2, 2])  # two triangles, nodes of three types
        >>> edge_index = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3]])
        >>> batch = torch.tensor([0, 0, 0, 1, 1, 1])
        >>> model = GraphTransformer(num_node_types=3, encoder=GramTransformer(out_channels=8))
        >>> model(x, edge_index, batch=batch).shape
        torch.Size([2, 1])
    """

    options: ClassVar[Mapping[str, type[Options]]] = {"readout": ReadoutOptions, "pe_options": MergedEncodingOptions}

    def __init__(
        self,
        num_node_types: int | Sequence[int] | None = None,
        in_channels: int | None = None,
        num_edge_types: int | Sequence[int] | None = None,
        edge_dim: int | None = None,
        pe_channels: int | None = None,
        encoder: Encoder | Mapping[str, Any] | None = None,
        hidden_channels: int = 128,
        heads: int = 8,
        num_layers: int = 4,
        out_channels: int = 1,
        readout: Sequence[int] | str | Mapping[str, Any] = "mlp",
        attention: str = "edge",
        attention_options: Mapping[str, Any] | None = None,
        pe_options: Mapping[str, Any] | None = None,
        graph_dim: int | None = None,
    ) -> None:
        super().__init__()
        reading = ReadoutOptions.of("readout", readout)
        pe = MergedEncodingOptions.of("pe_options", pe_options)
        check_options("attention_options", attention_options)
        counts = {
            "hidden_channels": hidden_channels,
            "heads": heads,
            "num_layers": num_layers,
            "out_channels": out_channels,
        }
        widths_given = {"pe_channels": pe_channels, "graph_dim": graph_dim}
        counts |= {name: width for name, width in widths_given.items() if width is not None}
        for name, count in counts.items():
            check_count(name, count)
        encoder = as_encoder(encoder)
        pe_channels, edge_channels = encoding_widths(encoder, pe_channels, pe.edge_channels)
        self.hidden_channels = hidden_channels
        self.pooling, self.level, self.pe_merge = reading.pooling, reading.level, pe.merge
        self.encoder = encoder
        beside = (pe_channels or 0, edge_channels or 0) if pe.merge == "concat" else (0, 0)
        if max(beside) >= hidden_channels:
            raise ValueError(
                f"pe_options merge='concat' leaves no channels for features: hidden_channels={hidden_channels}, and "
                f"the encodings of nodes and edges have {beside[0]} and {beside[1]}"
            )
        widths = [hidden_channels - width for width in beside]
        self.node_embedding = FeatureEmbedding("node", num_node_types, in_channels, widths[0])
        self.edge_embedding = FeatureEmbedding("edge", num_edge_types, edge_dim, widths[1], by_product=True)
        for name in ("pe_embedding", "edge_pe_embedding"):
            self.register_module(name, None)  # their place in the order of parameters
        hints = {"pair_channels": 0 if encoder is None else encoder.pair_out_channels}
        self.layers = nn.ModuleList(
            make_attention(
                attention, hidden_channels, heads, attention_options or {}, update_edges=i + 1 < num_layers, **hints
            )
            for i in range(num_layers)
        )
        self.reads_pe = any(getattr(layer, "reads_pe", False) for layer in self.layers)
        self.reads_pairs = any(getattr(layer, "reads_pairs", False) for layer in self.layers)
        if pe.merge == "apart" and not self.reads_pe:
            raise ValueError(
                "pe_options merge='apart' needs attention layers that read encodings, such as 'hybrid' with pe_gate"
            )
        self.shared = shared_of(self.layers[0])
        pooled = 2 * hidden_channels if reading.pooling == "both" else hidden_channels
        widths = [pooled, *reading.widths(hidden_channels)]
        maps: list[nn.Module] = []
        for before, width in pairwise(widths):
            # One hidden unit behind a ReLU starts dead with probability one half; the paper's net has none.
            maps += [Linear(before, width), nn.Identity() if reading.hidden == "paper" else nn.ReLU()]
        self.readout = nn.Sequential(*maps, OutputLinear(widths[-1], out_channels))
        pool_norm = reading.norm or ("batch" if reading.pooling == "both" else None)
        self.pool_norm = None if pool_norm is None else make_norm(pool_norm, pooled)
        # Drawn last: under one seed all else starts the same with and without.
        for name, channels in (("pe", pe_channels), ("edge_pe", edge_channels)):
            if channels is not None and pe.merge == "concat":
                setattr(self, f"{name}_embedding", EncodingChannels(name, channels, pe.norm))
            elif channels is not None:
                setattr(self, f"{name}_embedding", EncodingEmbedding(name, channels, hidden_channels, pe.norm))
        read = hidden_channels if reading.level == "node" else pooled
        self.graph_embedding = None if graph_dim is None else GraphFeatures(graph_dim, read)

    def reset_parameters(self) -> None:
        """Draw all weights anew, those of the encoder first, and forget running statistics."""
        first = [self.encoder, self.node_embedding, self.edge_embedding, *self.layers, self.shared]  # as constructed
        last = (self.pool_norm, self.pe_embedding, self.edge_pe_embedding, self.graph_embedding)
        for module in (*first, *self.readout, *last):
            if module is not None:
                reset_all(module)

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
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Encode, embed, run the layers, pool and read out."""
        pairs = None
        if self.encoder is not None:
            options: dict[str, Any] = {"generator": generator, "precomputed": precomputed}
            if self.reads_pairs and self.encoder.pair_out_channels:
                encoding, pairs = self.encoder.encode_with_pairs(graph, graph.pairs, x, edge_attr, **options)
                pairs = checked_pairs(self.encoder, graph.num_pairs, pairs)
            else:
                encoding = self.encoder.encode(graph, x, edge_attr, **options)
            pe, edge_pe = checked_encoding(self.encoder, graph.num_nodes, graph.num_directed_edges, encoding)
        h, pe = self._embed_nodes(x, pe, graph)
        e = self._embed_edges(edge_attr, edge_pe, graph)
        given = {"pe_distances": self._pe_distances(pe, graph)} if self.reads_pe else {}
        if self.shared is None:
            for layer in self.layers:
                h, e = layer(h, e, graph, **given)
            return self._read_out(h, graph, graph_attr)
        state = self.shared(graph, pairs, e) if self.reads_pairs else self.shared(graph)
        if "needs_penalty" in getattr(state, "_fields", ()):
            state = state._replace(needs_penalty=return_penalty)
        for layer in self.layers:
            h, e, state = layer(h, e, graph, state, **given)
        out = self._read_out(h, graph, graph_attr)
        return (out, state.penalty) if return_penalty else out

    def _read_out(self, h: Tensor, graph: Graph, graph_attr: Tensor | None) -> Tensor:
        """Pool, and map to predictions."""
        out: Tensor = self.readout(self._with_graph_attr(self._pool(h, graph), graph, graph_attr))
        return out

    @property
    def has_penalty(self) -> bool:  # type: ignore[override]
        """Whether the attention layers have a term of the loss of their own, as the objective of primal attention."""
        return bool(getattr(self.shared, "has_penalty", False))

    def _embed_nodes(self, x: Tensor | None, pe: Tensor | None, graph: Graph) -> tuple[Tensor, Tensor | None]:
        """First node features, and the embedded encoding, ``[num_nodes, hidden_channels]`` each."""
        h: Tensor = self.node_embedding(x if self.node_embedding.expects_feature else None, graph.num_nodes)
        if self.pe_embedding is None:
            return h, None
        pe = self.pe_embedding(self.pe_embedding.checked(pe, graph.num_nodes), h.dtype, graph.graphs)
        return h if self.pe_merge == "apart" else self._merge(h, pe), pe

    @staticmethod
    def _pe_distances(pe: Tensor | None, graph: Graph) -> Tensor:
        """Return what layers with ``reads_pe`` read."""
        if pe is None:
            raise ValueError("a layer reads distances of positional encodings, and the model has no encoding of nodes")
        return graph.squared_distances(pe)

    def _embed_edges(self, edge_attr: Tensor | None, pe: Tensor | None, graph: Graph) -> Tensor:
        """First edge features ``[num_edges, hidden_channels]``, in the order of the layers."""
        num_edges, sort = graph.num_directed_edges, graph.sort_edges
        expected = edge_attr is not None and self.edge_embedding.expects_feature
        e: Tensor = self.edge_embedding(sort(edge_attr) if expected else None, num_edges)  # type: ignore[arg-type]
        if self.edge_pe_embedding is None:
            return e
        pe = sort(self.edge_pe_embedding.checked(pe, num_edges))
        return self._merge(e, self.edge_pe_embedding(pe, e.dtype, graph.edge_graphs))

    def _merge(self, features: Tensor, pe: Tensor) -> Tensor:
        """Embedded features and encoding as one, ``[num_rows, hidden_channels]``."""
        return torch.cat([features, pe], dim=1) if self.pe_merge == "concat" else features + pe

    def _pool(self, h: Tensor, graph: Graph) -> Tensor:
        """One row per prediction."""
        if self.level == "node":
            return h
        graphs = graph.graphs
        if self.pooling == "both":
            pooled = torch.cat([graphs.mean(h), graphs.sum(h)], dim=1)
        else:
            reduce = {"mean": graphs.mean, "sum": graphs.sum, "max": graphs.max}[self.pooling]
            pooled = reduce(h)
        if self.pool_norm is None:
            return pooled
        row = torch.arange(pooled.size(0), device=pooled.device)
        return self.pool_norm(pooled, RowGroups(row, pooled.size(0), is_sorted=True))

    @classmethod
    def training_defaults(cls, level: str) -> dict[str, Any]:
        """Encodings of variance one, and mean and sum over the nodes of a graph."""
        return {"pe_options": {"norm": True}, **({"readout": {"pooling": "both"}} if level == "graph" else {})}
