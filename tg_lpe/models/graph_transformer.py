"""The graph transformer of Dwivedi & Bresson with edge features, fed by a positional encoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tg_lpe.arguments import check_choice, check_count, check_flags, check_options, check_share
from tg_lpe.encoders.base import Encoder, checked_encoding
from tg_lpe.encoders.registry import as_encoder
from tg_lpe.graph.graph import Graph
from tg_lpe.models.features import FeatureModel, OutputLinear, encoding_widths
from tg_lpe.models.registry import register
from tg_lpe.nn._util import reset_all
from tg_lpe.nn.attention import make_attention, shared_of
from tg_lpe.nn.features import ENCODING_NORMS, EncodingChannels, EncodingEmbedding, FeatureEmbedding
from tg_lpe.nn.norms import make_norm
from tg_lpe.ops.segment import RowGroups

READOUTS = ("mlp", "paper", "pyramid")
PE_MERGES = ("add", "concat", "apart")
POOLINGS = ("mean", "sum", "max", "both")
LEVELS = ("graph", "node")


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
        edge_pe_channels: width of the encoding of edges that :meth:`forward` is given; ``None`` for none.
            With an encoder that encodes edges too, its ``edge_out_channels``.
        pe_norm: whether encodings are brought to mean zero and variance one, channel by channel, by batch norm;
            ``"unit"`` scales each channel to length one within each graph instead.
        pe_merge: ``"add"`` adds a linear map of the encoding to the embedded features; ``"concat"`` puts the encoding
            itself beside them, and they are embedded into as many channels less, as spectral attention does;
            ``"apart"`` leaves the features of nodes as they are: layers alone read the linear map of the encoding,
            such as ``"hybrid"`` with ``pe_gate``.
        encoder: an :class:`~tg_lpe.Encoder` that computes the positional encoding, trained jointly; or the class and
            arguments of one, as checkpoints hold them.
        hidden_channels: hidden width.
        heads: attention heads.
        num_layers: attention layers.
        out_channels: number of predictions per graph or node.
        pooling: ``"mean"`` over the nodes, the paper's, their ``"sum"``, for targets that grow with the graph, their
            largest values, ``"max"``, or ``"both"``: mean and sum beside each other, each channel brought to variance
            one by ``pool_norm``, since sums are as many times larger than means as there are nodes.
        attention: name of an attention layer: ``"edge"``, Dwivedi & Bresson's; ``"gps"``, PyTorch Geometric's
            ``GPSConv``; ``"spectral"``; ``"hybrid"``, message passing beside an attention over
            all nodes that an option chooses, as Primphormer's; or one of your own, see
            :func:`~tg_lpe.nn.attention.register_attention`.
        attention_options: further arguments of the attention layers; ``"edge"`` has ``local="gine"``,
            ``attention_dropout`` and ``drop_path``, see :class:`~tg_lpe.nn.attention.EdgeAttentionLayer`. With
            ``local="GATv2Conv"``, or another convolution of PyTorch Geometric, this is the local part of a layer.
        readout: ``"mlp"`` (hidden -> hidden -> out, trains reliably), ``"paper"`` (hidden -> 1 -> out) or ``"pyramid"``
            (hidden -> hidden / 2 -> hidden / 4 -> out, as in the benchmarks of Dwivedi et al.); or the hidden widths of
            your own, ``()`` for a linear map.
        level: ``"graph"`` for a prediction per graph, ``"node"`` for one per node, without pooling.
        dropout: share of values that each attention layer drops in training, where its documentation says.
        norm: normalisation in the attention layers: ``"batch"``, ``"bounded"``, ``"running"``, ``"layer"``, ``"graph"``
            or ``"none"``, see :mod:`tg_lpe.nn.norms`.
        pool_norm: normalisation of the pooled features by the same names but ``"graph"``; if absent, ``"batch"`` with
            ``pooling="both"`` and else ``"none"``.
        residual: whether the attention layers add their input to their output.

    Raises:
        ValueError: if arguments exclude each other, a choice is unknown, or the attention layer has no such option.
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

    def __init__(
        self,
        num_node_types: int | Sequence[int] | None = None,
        in_channels: int | None = None,
        num_edge_types: int | Sequence[int] | None = None,
        edge_dim: int | None = None,
        pe_channels: int | None = None,
        edge_pe_channels: int | None = None,
        encoder: Encoder | Mapping[str, Any] | None = None,
        hidden_channels: int = 128,
        heads: int = 8,
        num_layers: int = 4,
        out_channels: int = 1,
        readout: Sequence[int] | str = "mlp",
        pooling: str = "mean",
        pe_norm: bool | Literal["unit"] = False,
        pe_merge: str = "add",
        attention: str = "edge",
        attention_options: Mapping[str, Any] | None = None,
        level: str = "graph",
        dropout: float = 0.0,
        norm: str = "batch",
        residual: bool = True,
        pool_norm: str | None = None,
    ) -> None:
        super().__init__()
        check_choice("pooling", pooling, POOLINGS)
        check_choice("pe_merge", pe_merge, PE_MERGES)
        check_choice("level", level, LEVELS)
        check_choice("pe_norm", pe_norm, ENCODING_NORMS)
        check_share("dropout", dropout)
        check_flags(residual=residual)
        if not isinstance(readout, (str, Sequence)):
            raise TypeError(f"readout must be one of {READOUTS} or hidden widths, got {readout!r}")
        if isinstance(readout, str) and readout not in READOUTS:
            raise ValueError(f"readout must be one of {READOUTS} or hidden widths, got {readout!r}")
        counts = {
            "hidden_channels": hidden_channels,
            "heads": heads,
            "num_layers": num_layers,
            "out_channels": out_channels,
        }
        given_widths = {"pe_channels": pe_channels, "edge_pe_channels": edge_pe_channels}
        counts |= {name: width for name, width in given_widths.items() if width is not None}
        counts |= {f"readout[{i}]": width for i, width in enumerate(() if isinstance(readout, str) else readout)}
        for name, count in counts.items():
            check_count(name, count)
        if level == "node" and pooling != "mean":
            raise ValueError(f"level='node' does not pool, got pooling={pooling!r}")
        if pool_norm is not None and level == "node":
            raise ValueError(f"level='node' does not pool, got pool_norm={pool_norm!r}")
        if pool_norm == "graph":
            raise ValueError("pool_norm='graph' would leave nothing: pooled features have one row for each graph")
        encoder = as_encoder(encoder)
        pe_channels, edge_pe_channels = encoding_widths(encoder, pe_channels, edge_pe_channels)
        self.hidden_channels = hidden_channels
        self.pooling = pooling
        self.level = level
        self.encoder = encoder
        beside = (pe_channels or 0, edge_pe_channels or 0) if pe_merge == "concat" else (0, 0)
        if max(beside) >= hidden_channels:
            raise ValueError(
                f"pe_merge='concat' leaves no channels for features: hidden_channels={hidden_channels}, and the "
                f"encodings of nodes and edges have {beside[0]} and {beside[1]}"
            )
        widths = [hidden_channels - width for width in beside]
        self.node_embedding = FeatureEmbedding("node", num_node_types, in_channels, widths[0])
        self.edge_embedding = FeatureEmbedding("edge", num_edge_types, edge_dim, widths[1], by_product=True)
        for name in ("pe_embedding", "edge_pe_embedding"):
            self.register_module(name, None)  # their place in the order of parameters
        options = _layer_options({"dropout": dropout, "norm": norm, "residual": residual}, attention_options)
        self.layers = nn.ModuleList(
            make_attention(attention, hidden_channels, heads, options, update_edges=i + 1 < num_layers)
            for i in range(num_layers)
        )
        self.reads_pe = any(getattr(layer, "reads_pe", False) for layer in self.layers)
        if pe_merge == "apart" and not self.reads_pe:
            raise ValueError(
                "pe_merge='apart' needs attention layers that read encodings, such as 'hybrid' with pe_gate"
            )
        self.shared = shared_of(self.layers[0])
        pooled = 2 * hidden_channels if pooling == "both" else hidden_channels
        self.readout = _readout(readout, pooled, hidden_channels, out_channels)
        pool_norm = pool_norm or ("batch" if pooling == "both" else None)
        self.pool_norm = None if pool_norm is None else make_norm(pool_norm, pooled)
        # Drawn last: under one seed all else starts the same with and without.
        self.pe_merge = pe_merge
        for name, channels in (("pe", pe_channels), ("edge_pe", edge_pe_channels)):
            if channels is not None and pe_merge == "concat":
                setattr(self, f"{name}_embedding", EncodingChannels(name, channels, pe_norm))
            elif channels is not None:
                setattr(self, f"{name}_embedding", EncodingEmbedding(name, channels, hidden_channels, pe_norm))

    def reset_parameters(self) -> None:
        """Draw all weights anew, those of the encoder first, and forget running statistics."""
        first = [self.encoder, self.node_embedding, self.edge_embedding, *self.layers, self.shared]  # as constructed
        for module in (*first, *self.readout, self.pool_norm, self.pe_embedding, self.edge_pe_embedding):
            if module is not None:
                reset_all(module)

    def _predict(
        self,
        graph: Graph,
        x: Tensor | None,
        edge_attr: Tensor | None,
        pe: Tensor | None,
        edge_pe: Tensor | None,
        precomputed: Mapping[str, Tensor] | None,
        generator: torch.Generator | None,
        return_penalty: bool,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Encode, embed, run the layers, pool and read out."""
        if self.encoder is not None:
            encoding = self.encoder.encode(graph, x, edge_attr, generator=generator, precomputed=precomputed)
            pe, edge_pe = checked_encoding(self.encoder, graph.num_nodes, graph.num_directed_edges, encoding)
        h, pe = self._embed_nodes(x, pe, graph)
        e = self._embed_edges(edge_attr, edge_pe, graph)
        given = {"pe_distances": self._pe_distances(pe, graph)} if self.reads_pe else {}
        if self.shared is None:
            for layer in self.layers:
                h, e = layer(h, e, graph, **given)
            return self.readout(self._pool(h, graph))  # type: ignore[no-any-return]
        state = self.shared(graph)
        if "needs_penalty" in getattr(state, "_fields", ()):
            state = state._replace(needs_penalty=return_penalty)
        for layer in self.layers:
            h, e, state = layer(h, e, graph, state, **given)
        out: Tensor = self.readout(self._pool(h, graph))
        return (out, state.penalty) if return_penalty else out

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
        return {"pe_norm": True, **({"pooling": "both"} if level == "graph" else {})}


def _readout(kind: Sequence[int] | str, in_channels: int, hidden_channels: int, out_channels: int) -> nn.Sequential:
    """The map from pooled features, or from those of a node, to predictions."""
    named = {
        "mlp": [hidden_channels],
        "paper": [1],
        "pyramid": [max(hidden_channels // 2, 1), max(hidden_channels // 4, 1)],
    }
    widths = named[kind] if isinstance(kind, str) else kind
    modules: list[nn.Module] = []
    for width in widths:
        # One hidden unit behind a ReLU starts dead with probability one half; the paper's net has none.
        modules += [nn.Linear(in_channels, width), nn.Identity() if kind == "paper" else nn.ReLU()]
        in_channels = width
    return nn.Sequential(*modules, OutputLinear(in_channels, out_channels))


COMMON_OPTIONS = {"dropout": 0.0, "norm": "batch", "residual": True}
"""Options of the model that its attention layers share, with their defaults."""


def _layer_options(common: Mapping[str, Any], own: Mapping[str, Any] | None) -> dict[str, Any]:
    """Arguments of the attention layers; a layer that has no such argument refuses what is not the default."""
    check_options("attention_options", own)
    own = dict(own or {})
    for name in common:
        if name in own:
            raise ValueError(f"{name} is an argument of the model, got it in attention_options as well")
    return {**{name: value for name, value in common.items() if value != COMMON_OPTIONS[name]}, **own}
