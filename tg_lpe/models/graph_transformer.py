"""The graph transformer of Dwivedi & Bresson with edge features and a positional encoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tg_lpe.arguments import check_count, check_counts, check_options
from tg_lpe.encoders.base import Encoder
from tg_lpe.encoders.registry import as_encoder
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.pairs import check_pair_nodes
from tg_lpe.models.features import FeatureModel, Features, OutputLinear, encoding_widths
from tg_lpe.models.options import MergedEncodingOptions, Options, ReadoutOptions
from tg_lpe.models.registry import register
from tg_lpe.nn._util import reset_all
from tg_lpe.nn.attention import make_attention
from tg_lpe.nn.features import EncodingChannels, EncodingEmbedding, FeatureEmbedding, GraphFeatures
from tg_lpe.nn.norms import NORMS
from tg_lpe.ops.segment import RowGroups


@register
class GraphTransformer(FeatureModel):
    r"""Predict graphs or nodes by embeddings of features and encodings, layers of attention, and pooling.

    The default is the model of `A Generalization of Transformer Networks to Graphs <https://arxiv.org/abs/2012.09699>`_
    in the configuration of `Graph Transformers Dream of Electric Flow <https://arxiv.org/abs/2410.16699>`_, section
    14.3: 128 channels, 8 heads, 4 layers, batch norm, mean over nodes. The last layer has no edge update, because no
    layer reads it. Attention layers without a local part read no edges; do not pass edge features to them.

    For ZINC (20 atom types, 4 bond types, ``pe_channels=6``) and ``readout="paper"``, the model has 618,627 parameters.
    The paper counts 800,771: 132,096 of these are never read (two unused maps per layer), and 50,048 are in the last
    layer's edge update. ``readout="mlp"`` has 16,510 more.

    Args:
        num_node_types: number of categories of integer node features; a list if there are several columns, as in ogb's
            molecules. Exclusive with ``in_channels``.
        in_channels: width of real node features. Without both, all nodes start from the same learned row.
        num_edge_types: number of categories of integer edge features; a list if there are several columns. Exclusive
            with ``edge_dim``.
        edge_dim: width of real edge features. Without both, all edges start from the same learned row.
        pe_channels: width of the positional encoding passed to :meth:`forward`; ``None`` for none. With an ``encoder``,
            its ``out_channels``.
        encoder: an :class:`~tg_lpe.Encoder` that computes the positional encoding and is trained with the model; or its
            class and arguments.
        hidden_channels: hidden width.
        heads: number of attention heads.
        num_layers: number of attention layers.
        out_channels: number of predictions per graph or node.
        readout: how to predict from the features of the last layer; a dictionary of options, or only ``hidden``.

            - ``hidden``: hidden layers of the map to predictions: ``"mlp"``, one layer of ``hidden_channels``, trains
              reliably; ``"paper"``, one layer of width 1; ``"pyramid"``, layers of a half and a quarter of
              ``hidden_channels``, as in the benchmarks of Dwivedi et al.; or a list of widths, empty for a linear map.
            - ``pooling``: ``"mean"`` over the nodes, as in the paper; ``"sum"``, for targets that grow with the graph;
              ``"max"``; or ``"both"``, mean and sum concatenated.
            - ``norm``: norm of the pooled features, one of those in ``attention_options`` except ``"graph"``. The
              default is ``"batch"`` with ``pooling="both"``, because sums are much larger than means, and ``"none"``
              otherwise.
            - ``level``: ``"graph"`` for a prediction per graph; ``"node"`` for a prediction per node, without pooling.
              A task determines it.
        attention: attention layer.

            - ``"edge"``: that of Dwivedi & Bresson
            - ``"gps"``: PyTorch Geometric's ``GPSConv``
            - ``"spectral"``: that of SAN; with the option ``full`` also over pairs without an edge
            - ``"hybrid"``: message passing plus a global attention that an option chooses, as in Primphormer
            - ``"bias"``, ``"pairs"``: over all pairs of nodes, with the encoder's encoding of pairs, as in Graphormer
              and GRIT
            - the name of your own, see :func:`~tg_lpe.nn.attention.register_attention`
        attention_options: a dictionary of further arguments of the attention layers, such as ``dropout``.

            - ``norm``: ``"bounded"``, ``"batch"``, ``"running"``, ``"layer"``, ``"graph"`` or ``"none"``, see
              :mod:`tg_lpe.nn.norms`
            - ``local``, with ``"edge"``: message passing next to the attention, ``"gine"`` or any convolution of
              PyTorch Geometric, such as ``"GATv2Conv"``
            - others: see the layers in :mod:`tg_lpe.nn.attention`
        pe_options: a dictionary of options for encodings.

            - ``norm``: ``True`` normalises each channel to mean zero and variance one by batch norm; ``"unit"`` scales
              each channel to length one within each graph. Batch norm leaves channels small whose standard deviation is
              far below 0.003, such as resistances of edges of weight 1,000: take ``"unit"``, or
              :class:`~tg_lpe.encoders.Whitened`, which has no such limit.
            - ``merge``: ``"add"`` adds a linear map of the encoding to the embedded features. ``"concat"`` concatenates
              the encoding and features embedded into fewer channels, as in spectral attention. ``"apart"`` leaves the
              node features unchanged, and only layers that read encodings use a linear map of it, such as ``"hybrid"``
              with ``pe_gate``.
            - ``edge_channels``: width of the encoding of edges passed to :meth:`forward`; with an encoder of edges, its
              ``edge_out_channels``.
        graph_dim: number of real features of whole graphs, such as a temperature, passed to :meth:`forward` as
            ``graph_attr``. They are standardised by the training set, and a linear map of them is added to the features
            before the read-out.

    Raises:
        ValueError: if arguments exclude each other, a choice or an option is unknown, or a value is out of range.
        TypeError: if ``encoder`` is neither an encoder nor its class and arguments.

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
        check_counts(hidden_channels=hidden_channels, heads=heads, num_layers=num_layers, out_channels=out_channels)
        for name, width in (("pe_channels", pe_channels), ("graph_dim", graph_dim)):
            if width is not None:
                check_count(name, width)
        encoder = as_encoder(encoder)
        pe_channels, edge_channels, pair_channels = encoding_widths(encoder, pe_channels, pe.edge_channels)
        self.hidden_channels = hidden_channels
        self.pooling, self.level, self.pe_merge = reading.pooling, reading.level, pe.merge
        self.encoder = encoder
        concatenated = (pe_channels or 0, edge_channels or 0) if pe.merge == "concat" else (0, 0)
        if max(concatenated) >= hidden_channels:
            raise ValueError(
                f"pe_options merge='concat' leaves no channels for features: hidden_channels={hidden_channels}, and "
                f"the encodings of nodes and edges have {concatenated[0]} and {concatenated[1]}"
            )
        widths = [hidden_channels - width for width in concatenated]
        self.node_embedding = FeatureEmbedding("node", num_node_types, in_channels, widths[0])
        self.edge_embedding = FeatureEmbedding("edge", num_edge_types, edge_dim, widths[1], by_product=True)
        for name in ("pe_embedding", "edge_pe_embedding"):
            self.register_module(name, None)  # fixes the order of parameters
        arguments = attention, hidden_channels, heads, attention_options or {}
        updates = [True] * (num_layers - 1) + [False]
        layers = [make_attention(*arguments, update_edges=each, pair_channels=pair_channels) for each in updates]
        self.layers = nn.ModuleList(layers)
        self.reads_pe, self.reads_pairs = layers[0].reads_pe, layers[0].reads_pairs
        if pe.merge == "apart" and not self.reads_pe:
            raise ValueError(
                "pe_options merge='apart' needs attention layers that read encodings, such as 'hybrid' with pe_gate"
            )
        self.shared = layers[0].shared()
        pooled = 2 * hidden_channels if reading.pooling == "both" else hidden_channels
        widths = [pooled, *reading.widths(hidden_channels)]
        maps: list[nn.Module] = []
        for in_width, out_width in pairwise(widths):
            # A single hidden unit with a ReLU, as in the published runs, starts dead with probability one half.
            maps += [nn.Linear(in_width, out_width), nn.Identity() if reading.hidden == "paper" else nn.ReLU()]
        self.readout = nn.Sequential(*maps, OutputLinear(widths[-1], out_channels))
        pool_norm = reading.norm or ("batch" if reading.pooling == "both" else None)
        self.pool_norm = None if pool_norm is None else NORMS[pool_norm](pooled)
        # Drawn last, so that all other weights of a seed are the same with and without an encoding.
        for name, channels in (("pe", pe_channels), ("edge_pe", edge_channels)):
            if channels is not None and pe.merge == "concat":
                setattr(self, f"{name}_embedding", EncodingChannels(channels, pe.norm))
            elif channels is not None:
                setattr(self, f"{name}_embedding", EncodingEmbedding(channels, hidden_channels, pe.norm))
        width = hidden_channels if reading.level == "node" else pooled
        self.graph_embedding = None if graph_dim is None else GraphFeatures(graph_dim, width)

    def reset_parameters(self) -> None:
        """Draw all weights again, those of the encoder first, and reset running statistics."""
        first = [self.encoder, self.node_embedding, self.edge_embedding, *self.layers, self.shared]
        last = (self.pool_norm, self.pe_embedding, self.edge_pe_embedding, self.graph_embedding)
        for module in (*first, *self.readout, *last):  # the order of the constructor
            if module is not None:
                reset_all(module)

    def _predict(
        self, graph: Graph, features: Features, options: dict[str, Any], return_penalty: bool
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Encode, embed, run the layers, pool and read out."""
        if self.shared is not None and (max_nodes := self.shared.max_nodes) is not None:  # before memory is allocated
            check_pair_nodes(graph, "attention", max_nodes, "max_nodes in attention_options, or attention='edge'")
        encodes_pairs = self.reads_pairs and self.encoder is not None and self.encoder.pair_out_channels > 0
        pe, edge_pe, pairs = self._encode(graph, features, options, graph.pairs if encodes_pairs else None)
        h, pe = self._embed_nodes(features.x, pe, graph)
        e = self._embed_edges(features.edge_attr, edge_pe, graph)
        distances = {}
        if self.reads_pe:
            if pe is None:
                raise ValueError("a layer reads distances of encodings, but the model has no encoding of nodes")
            along = graph.source.gather(pe) - graph.target.gather(pe)
            distances["pe_distances"] = along.square().sum(1, keepdim=True)
        state: tuple[Any, ...] = ()
        if self.shared is not None:
            state = (self.shared(graph, pairs, e) if self.reads_pairs else self.shared(graph),)
            if self.shared.has_penalty:
                state = (state[0]._replace(needs_penalty=return_penalty),)
        for layer in self.layers:
            h, e, *state = layer(h, e, graph, *state, **distances)
        out: Tensor = self.readout(self._with_graph_attr(self._pool(h, graph), graph, features.graph_attr))
        return (out, state[0].penalty) if return_penalty else out

    @property
    def has_penalty(self) -> bool:  # type: ignore[override]
        """Whether the attention layers add a term to the loss, such as the objective of primal attention."""
        return self.shared is not None and self.shared.has_penalty

    def _embed_nodes(self, x: Tensor | None, pe: Tensor | None, graph: Graph) -> tuple[Tensor, Tensor | None]:
        """Return the layers' input features and the embedded encoding, ``[num_nodes, hidden_channels]`` each."""
        h: Tensor = self.node_embedding(x if self.node_embedding.expects_feature else None, graph.num_nodes)
        if self.pe_embedding is None:
            return h, None
        pe = self.pe_embedding(pe, h.dtype, graph.graphs)
        return h if self.pe_merge == "apart" else self._merge(h, pe), pe

    def _embed_edges(self, edge_attr: Tensor | None, pe: Tensor | None, graph: Graph) -> Tensor:
        """Return the layers' edge features ``[num_edges, hidden_channels]``, in the layers' order of edges."""
        is_read = edge_attr is not None and self.edge_embedding.expects_feature
        rows = graph.sort_edges(edge_attr) if is_read else None  # type: ignore[arg-type]
        e: Tensor = self.edge_embedding(rows, graph.num_directed_edges)
        if self.edge_pe_embedding is None or pe is None:
            return e
        return self._merge(e, self.edge_pe_embedding(graph.sort_edges(pe), e.dtype, graph.edge_graphs))

    def _merge(self, features: Tensor, pe: Tensor) -> Tensor:
        """Add or concatenate embedded features and encoding, ``[num_rows, hidden_channels]``."""
        return torch.cat([features, pe], dim=1) if self.pe_merge == "concat" else features + pe

    def _pool(self, h: Tensor, graph: Graph) -> Tensor:
        """Return one row per prediction."""
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
        """Return options for encodings of variance one and, for graphs, pooling by mean and sum."""
        return {"pe_options": {"norm": True}, **({"readout": {"pooling": "both"}} if level == "graph" else {})}
