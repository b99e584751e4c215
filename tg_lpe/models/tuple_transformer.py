"""Transformers whose tokens are tuples of nodes, aligned with the Weisfeiler-Leman hierarchy."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tg_lpe.arguments import check_choice, check_count, check_heads
from tg_lpe.checkpoints.checkpoint import described_arguments
from tg_lpe.encoders.base import Encoder, checked_encoding, checked_pairs, copy_tensors
from tg_lpe.encoders.registry import as_encoder
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.tuples import find_tuples, neighbouring_tuples
from tg_lpe.models.base import Model
from tg_lpe.models.features import FeatureModel, OutputLinear, encoding_widths
from tg_lpe.models.options import EncodingOptions, Options, TokenAttentionOptions, TokenReadoutOptions
from tg_lpe.models.registry import register
from tg_lpe.nn._util import reset_all
from tg_lpe.nn.features import EncodingEmbedding, FeatureEmbedding, GraphFeatures
from tg_lpe.nn.random_features import RandomFeatureAttention, RandomFeatures
from tg_lpe.nn.tuples import (
    Attention,
    FullAttention,
    MaskedAttention,
    TokenLayer,
    TupleEmbedding,
    TupleTokens,
    node_pairs,
    tuple_tokens,
)
from tg_lpe.ops.segment import RowGroups

TOKEN_ATTENTIONS = ("full", "local", "delta", "performer")
NODE_TOKENS = ("linear", "feed_forward")

NUM_DEGREES = 100
"""Degrees that have a row of their own; larger ones share the last, as in the published code."""

DEGREE_CHANNELS = 16

STD = 0.02
"""Of the weights of linear maps and tables at first; biases are zero."""

KEPT = ("hidden_channels", "heads", "num_layers")
"""Arguments that the layers depend on."""

OF_NO_WEIGHT = {"out_channels", "readout", "attention_options", "graph_dim"}
"""Arguments that change no weight but the read-out's and the number of random features."""

OF_FEATURES = {
    "num_node_types": "node_embedding",
    "in_channels": "node_embedding",
    "num_edge_types": "edge_embedding",
    "edge_dim": "edge_embedding",
}
"""Arguments that change the weights of one part."""

OF_ANY_ORDER = ("token_norm", "layers", "kernel")
"""Parts that know nothing of the order."""

ALL_TO_ALL = ("full", "performer")
"""Attentions with the same weights."""


@register
class TupleTransformer(FeatureModel):
    r"""The k-GT and the (k,s)-GT: a transformer over the tuples of ``k`` nodes with at most ``s`` components.

    `Aligning Transformers with Weisfeiler-Leman <https://arxiv.org/abs/2406.03148>`_. A token is a sum of linear maps
    of the features, encodings and degrees of its nodes, by position, of its atomic type (which of its nodes are joined,
    by which edges, or the same), and of encodings of the pairs of its nodes if the encoder has some, then a layer norm.
    A learned token stands for the graph. The layers are those of a plain transformer.

    With ``attention="full"`` all tokens of a graph see each other: the published model. It is a function of the set of
    its tokens. ``"local"`` gives each head the neighbours of one position alone, the tuples with a neighbour of the
    node there in its place, and costs as much as there are such pairs: no score is computed for others. This is the
    exchange of the (k,s)-LWL, which bounds what the model tells apart. ``"delta"`` gives every second head the tuples
    with any node in that place. A softmax takes a mean of neighbours; their numbers are features of the tokens. The
    graph's token sees all tokens and no token sees it. ``"performer"`` estimates what ``"full"`` computes, at a cost
    that is linear in the number of tokens, for graphs of thousands of nodes.

    Args:
        num_node_types, in_channels, num_edge_types, edge_dim: categories or widths of the features, as for
            :class:`~tg_lpe.GraphTransformer`. Edges are undirected: features of both directions are averaged, those of
            self-loops not read, nor any with ``k=1``. An edge of weight zero links tokens; encodings alone take it for
            absent.
        pe_channels: width of the encoding that :meth:`forward` is given, likewise.
        encoder: an :class:`~tg_lpe.Encoder`, likewise; its encoding of pairs is used if it has one and ``k > 1``.
        k: nodes of a tuple.
        s: components at most; ``None`` for all ``k``-tuples. ``k=2, s=1`` has ``n + 2 m`` tokens.
        hidden_channels: width of the tokens.
        heads: attention heads.
        num_layers: layers.
        out_channels: number of predictions per graph, node or edge.
        readout: what is read, a dictionary with any of these. ``pooling``: of a graph, its ``"token"``, or the
            ``"mean"``, ``"sum"`` or ``"max"`` of the tuples. ``level``: ``"graph"`` for a prediction per graph;
            ``"node"``: from the token ``(v, .., v)`` and the mean of those that begin with ``v``; ``"edge"``: for each
            directed edge, from the token ``(u, v, .., v)``.
        attention: ``"full"``, ``"local"``, ``"delta"`` or ``"performer"``, as above. There must be a head for each kind
            of neighbours, ``k`` or ``2 k``.
        attention_options: a dictionary with any of these. ``dropout``: share of the attention's output that is dropped
            in training. ``attention_dropout``: share of the attention weights that is dropped in training, of which
            ``"performer"`` has none. ``drop_path``: stochastic depth of the last layer; it grows linearly from the
            first. ``random_features``: their number for ``"performer"``, drawn once for all layers.
        pe_options: ``edge_channels`` and ``norm``, as for :class:`~tg_lpe.GraphTransformer`.
        node_tokens: features of a node before the map of its position: ``"linear"``, its embedded features, encoding
            and degree beside each other, as in the published code; ``"feed_forward"``, ``F + FFN(deg + PE)``, eqs. (1)
            and (2).
        graph_dim: columns of real features of whole graphs, as for :class:`~tg_lpe.GraphTransformer`.

    Raises:
        ValueError: if arguments exclude each other or are out of range.
        TypeError: if ``encoder`` is neither an encoder nor the arguments of one.

    Example:
        >>> import torch
        >>> from tg_lpe.models import TupleTransformer
        >>> x = torch.tensor([0, 1, 1, 0, 2, 2])  # two triangles, nodes of three types
        >>> edge_index = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3]])
        >>> batch = torch.tensor([0, 0, 0, 1, 1, 1])
        >>> model = TupleTransformer(num_node_types=3, k=2, s=1, hidden_channels=16, num_layers=2)
        >>> model(x, edge_index, batch=batch).shape
        torch.Size([2, 1])
    """

    options: ClassVar[Mapping[str, type[Options]]] = {
        "readout": TokenReadoutOptions,
        "attention_options": TokenAttentionOptions,
        "pe_options": EncodingOptions,
    }

    def __init__(
        self,
        num_node_types: int | Sequence[int] | None = None,
        in_channels: int | None = None,
        num_edge_types: int | Sequence[int] | None = None,
        edge_dim: int | None = None,
        pe_channels: int | None = None,
        encoder: Encoder | Mapping[str, Any] | None = None,
        k: int = 2,
        s: int | None = 1,
        hidden_channels: int = 128,
        heads: int = 8,
        num_layers: int = 4,
        out_channels: int = 1,
        readout: Mapping[str, Any] | None = None,
        attention: str = "full",
        attention_options: Mapping[str, Any] | None = None,
        pe_options: Mapping[str, Any] | None = None,
        node_tokens: str = "linear",
        graph_dim: int | None = None,
    ) -> None:
        super().__init__()
        check_choice("attention", attention, TOKEN_ATTENTIONS)
        check_choice("node_tokens", node_tokens, NODE_TOKENS)
        reading = TokenReadoutOptions.of("readout", readout)
        pe = EncodingOptions.of("pe_options", pe_options)
        layer_options = TokenAttentionOptions.of("attention_options", attention_options)
        counts = {"k": k, "hidden_channels": hidden_channels, "num_layers": num_layers, "out_channels": out_channels}
        given = {"s": s, "pe_channels": pe_channels, "graph_dim": graph_dim}
        counts |= {name: count for name, count in given.items() if count is not None}
        for name, count in counts.items():
            check_count(name, count)
        if s is not None and s > k:
            raise ValueError(f"tuples need 1 <= s <= k, got k={k}, s={s}")
        if reading.level == "edge" and k == 1:
            raise ValueError(
                "readout level='edge' reads the token of both ends of an edge and needs k of at least 2, got k=1"
            )
        check_heads(hidden_channels, heads)
        num_kinds = {"local": k, "delta": 2 * k}.get(attention, 0)
        if heads < num_kinds:
            raise ValueError(f"attention={attention!r} with k={k} needs at least {num_kinds} heads, got {heads}")
        is_estimated = attention == "performer"
        if is_estimated and layer_options.attention_dropout:
            raise ValueError(
                "attention='performer' has no weights that could be dropped, "
                f"got attention_dropout={layer_options.attention_dropout}"
            )
        self.encoder = as_encoder(encoder)
        pe_channels, edge_channels = encoding_widths(self.encoder, pe_channels, pe.edge_channels)
        if k == 1 and (num_edge_types, edge_dim, edge_channels) != (None, None, None):
            warnings.warn("tuples of k=1 node read no features or encodings of edges", stacklevel=2)
        self.k, self.s, self.attention, self.pooling, self.level = k, s, attention, reading.pooling, reading.level
        channels = hidden_channels
        self.node_embedding = FeatureEmbedding("node", num_node_types, in_channels, channels)
        self.edge_embedding = FeatureEmbedding("edge", num_edge_types, edge_dim, channels, by_product=True)
        for name, width in (("pe", pe_channels), ("edge_pe", edge_channels)):
            embedding = None if width is None else EncodingEmbedding(name, width, channels, pe.norm)
            self.register_module(f"{name}_embedding", embedding)
        is_linear = node_tokens == "linear"
        self.degree_embedding = nn.Embedding(NUM_DEGREES, DEGREE_CHANNELS if is_linear else channels)
        self.structure = (
            None
            if is_linear
            else nn.Sequential(nn.Linear(channels, channels), nn.GELU(), nn.Linear(channels, channels))
        )
        beside = DEGREE_CHANNELS + (0 if pe_channels is None else channels)
        pair_channels = 0 if self.encoder is None else self.encoder.pair_out_channels
        self.tokens = TupleEmbedding(
            k, channels + beside if is_linear else channels, channels, pair_channels, num_counts=num_kinds
        )
        self.token_norm = nn.LayerNorm(channels)
        self.graph_token = nn.Embedding(1, channels)
        self.layers = nn.ModuleList(
            TokenLayer(
                channels,
                heads,
                layer_options.dropout,
                layer_options.attention_dropout,
                layer_options.drop_path * (i + 1) / num_layers,
            )
            for i in range(num_layers)
        )
        self.kernel = RandomFeatures(layer_options.random_features, channels // heads) if is_estimated else None
        self.readout = nn.Sequential(
            nn.Linear(channels, channels), nn.GELU(), nn.LayerNorm(channels), OutputLinear(channels, out_channels)
        )
        self.graph_embedding = None if graph_dim is None else GraphFeatures(graph_dim, channels)
        self._start_small()

    def reset_parameters(self) -> None:
        """Draw all weights anew, those of the encoder first."""
        for module in self.children():
            reset_all(module)
        self._start_small()

    def _start_small(self) -> None:
        """Linear maps and tables but the encoder's from ``N(0, STD ** 2)``; biases and the graph's token are zero."""
        for name, part in self.named_children():
            for module in part.modules() if name != "encoder" else ():
                if isinstance(module, nn.Linear | nn.Embedding):
                    nn.init.normal_(module.weight, std=STD)
                if isinstance(module, nn.Linear) and module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.zeros_(self.graph_token.weight)

    needs_undirected = True

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
    ) -> Tensor:
        """List tokens, encode, embed, run the layers and read out."""
        tokens = tuple_tokens(graph, self.k, self.s)
        pairs: tuple[Tensor, Tensor] | None = None
        if self.encoder is not None:
            if self.tokens.pairs is None:
                encoding = self.encoder.encode(graph, x, edge_attr, generator=generator, precomputed=precomputed)
            else:
                asked, which = node_pairs(tokens, graph.num_nodes)
                encoding, found = self.encoder.encode_with_pairs(
                    graph, asked, x, edge_attr, generator=generator, precomputed=precomputed
                )
                pairs = checked_pairs(self.encoder, asked.size(1), found).to(self.token_norm.weight.dtype), which
            pe, edge_pe = checked_encoding(self.encoder, graph.num_nodes, graph.num_directed_edges, encoding)
        attention, counts = self._attention(graph, tokens)
        nodes, edges = self._embed_nodes(graph, x, pe), self._embed_edges(graph, edge_attr, edge_pe)
        h = self.token_norm(self.tokens(tokens, nodes, edges, pairs, counts))
        h = torch.cat([h, self.graph_token.weight.to(h.dtype).expand(graph.num_graphs, -1)])
        own = torch.arange(graph.num_graphs, device=graph.device)
        graphs = RowGroups(torch.cat([tokens.batch, own]), graph.num_graphs, is_sorted=False)
        if attention is None:
            attention = FullAttention(graphs) if self.kernel is None else RandomFeatureAttention(graphs, self.kernel)
        for layer in self.layers:
            h = layer(h, attention, graphs)
        out: Tensor = self.readout(self._with_graph_attr(self._read(graph, tokens, h), graph, graph_attr))
        return out

    def _attention(self, graph: Graph, tokens: TupleTokens) -> tuple[Attention | None, Tensor | None]:
        """Which tokens attend to which, and how many neighbours of each kind a tuple has; ``None`` where all do to all.

        The tokens of the graphs follow those of the tuples.
        """
        if self.attention in ALL_TO_ALL:
            return None, None
        kinds = [
            neighbouring_tuples(graph, tokens.nodes.T, place, everywhere=everywhere)
            for place in range(self.k)
            for everywhere in ((False, True) if self.attention == "delta" else (False,))
        ]
        num_tuples = len(tokens.batch)
        counts = torch.stack([torch.bincount(target, minlength=num_tuples) for target, _ in kinds], 1)
        whole = torch.stack([num_tuples + tokens.batch, torch.arange(num_tuples, device=graph.device)])
        return MaskedAttention([torch.cat([kind, whole], 1) for kind in kinds], num_tuples + graph.num_graphs), counts

    def _embed_nodes(self, graph: Graph, x: Tensor | None, pe: Tensor | None) -> Tensor:
        """Embed what a token knows of each of its nodes, ``[num_nodes, node_channels]``."""
        h: Tensor = self.node_embedding(x if self.node_embedding.expects_feature else None, graph.num_nodes)
        ends = torch.cat([graph.tail, graph.head])
        degree = torch.bincount(ends, minlength=graph.num_nodes).clamp_(max=NUM_DEGREES - 1)
        parts = [self.degree_embedding(degree)]
        if self.pe_embedding is not None:
            pe = self.pe_embedding.checked(pe, graph.num_nodes)
            parts.append(self.pe_embedding(pe, h.dtype, graph.graphs))
        if self.structure is None:
            return torch.cat([h, *parts], 1)
        update: Tensor = self.structure(sum(parts))
        return h + update

    def _embed_edges(self, graph: Graph, edge_attr: Tensor | None, pe: Tensor | None) -> Tensor:
        """Features of the undirected edges, ``[num_edges, hidden_channels]``."""
        if self.edge_embedding.expects_feature:
            e = graph.merge_directed(self.edge_embedding(edge_attr, graph.num_directed_edges))
        else:
            e = self.edge_embedding(None, graph.num_edges)
        if self.edge_pe_embedding is None:
            return e
        pe = graph.merge_directed(self.edge_pe_embedding.checked(pe, graph.num_directed_edges))
        groups = RowGroups(graph.batch[graph.tail], graph.num_graphs, is_sorted=True)
        update: Tensor = self.edge_pe_embedding(pe, e.dtype, groups)
        return e + update

    def _read(self, graph: Graph, tokens: TupleTokens, h: Tensor) -> Tensor:
        """One row per prediction, ``[num_rows, hidden_channels]``, from all tokens."""
        num_tuples = len(tokens.batch)
        if self.level == "graph" and self.pooling == "token":
            return h[num_tuples:]
        h, nodes = h[:num_tuples], tokens.nodes.T.contiguous()
        if self.level == "graph":
            groups = RowGroups(tokens.batch, graph.num_graphs, is_sorted=True)
            return {"mean": groups.mean, "sum": groups.sum, "max": groups.max}[self.pooling](h)
        if self.level == "edge":
            source, target = graph.edge_index.long()
            return h.index_select(0, find_tuples(graph, nodes, torch.stack([source, *[target] * (self.k - 1)])))
        own = find_tuples(graph, nodes, torch.arange(graph.num_nodes, device=h.device).expand(self.k, -1))
        return h.index_select(0, own) + RowGroups(nodes[0], graph.num_nodes, is_sorted=True).mean(h)

    def with_order(self, k: int, s: int | None = 1, *, seed: int = 0, **changes: Any) -> TupleTransformer:
        """This model for tuples of another order: its layers, and all else drawn anew.

        Order transfer, section 4.2: train with few tokens, go on with many. The layers and the norm before them keep
        their weights bit by bit, and random features stay the same if their number does; the encoder, the tokens and
        the read-out start anew. With the same order, only the read-out does, for another task, if ``changes`` are of
        the task, of dropout, between ``"full"`` and ``"performer"`` and of the sizes of features alone; and the
        embeddings of those features.

        Args:
            k, s: the order.
            seed: of the weights that are drawn. The global generator is not touched.
            changes: further arguments of the constructor that are to be different, such as ``out_channels``.

        Returns:
            A new model in the mode, dtype and place of this one; parts that are kept are as trainable as here.

        Raises:
            ValueError: if a change would change the layers.
            TypeError: if an argument of a constructor is not JSON-able.
        """
        own = self.config_dict()
        changes = {name: value for name, value in changes.items() if name not in own or own[name] != value}
        if wrong := sorted(set(changes) & set(KEPT)):
            raise ValueError(f"{', '.join(KEPT)} belong to the layers, which are kept; got other {wrong}")
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            model = self.made_anew(**changes, k=k, s=s)
        weight = self.token_norm.weight
        model = model.to(weight.device, weight.dtype).train(self.training)
        allowed = OF_NO_WEIGHT | set(OF_FEATURES)
        if self.attention in ALL_TO_ALL and model.attention in ALL_TO_ALL:
            allowed.add("attention")
        same_order = (k, s or k) == (self.k, self.s or self.k) and set(changes) <= allowed
        anew = {*self.head, *(OF_FEATURES[name] for name in changes if name in OF_FEATURES)}
        if not model._has_kernel_of(self):
            anew.add("kernel")
        for name in [name for name, _ in self.named_children()] if same_order else OF_ANY_ORDER:
            if name not in anew:
                copy_tensors(model.get_submodule(name), self.get_submodule(name))
        return model

    def start_from(self, other: Model, *, fresh: Sequence[str] = ()) -> None:
        """Take over the weights of a trained model: all but the read-out, or the layers of one of another order.

        Order transfer, as :meth:`with_order`: of a model of tuples of another order, the layers and the norm before
        them are copied bit by bit. All else stays as it was drawn, the encoder too, and may differ.

        Args:
            other: a model of this class; it is not changed.
            fresh: as for :meth:`Model.start_from <tg_lpe.models.Model.start_from>`.

        Raises:
            ValueError: if it is of another class, or weights that are taken over do not fit; this model is then as it
                was.
        """
        if type(other) is not type(self) or (other.k, other.s or other.k) == (self.k, self.s or self.k):
            super().start_from(other, fresh=fresh)
            return
        self._check_fresh(fresh)
        here, there = described_arguments(self), described_arguments(other)
        for name in KEPT:
            if here[name] != there[name]:
                raise ValueError(f"the layers do not fit: {name} is {here[name]} here and {there[name]} there")
        left_out = {*fresh, *(() if self._has_kernel_of(other) else ("kernel",))}
        for name in OF_ANY_ORDER:
            if name not in left_out:
                self.get_submodule(name).load_state_dict(other.get_submodule(name).state_dict())

    def copy_weights(self, other: nn.Module, left_out: tuple[str, ...] = ()) -> None:
        """Copy the weights of another model; random features that one of the models does not have, or more of, stay.

        See :meth:`Model.copy_weights <tg_lpe.models.Model.copy_weights>`.
        """
        has_same = not isinstance(other, TupleTransformer) or self._has_kernel_of(other)
        super().copy_weights(other, left_out if has_same else (*left_out, "kernel"))

    def _has_kernel_of(self, other: TupleTransformer) -> bool:
        """Whether both models have random features, and the same number of them."""
        if self.kernel is None or other.kernel is None:
            return False
        return self.kernel.projection.shape == other.kernel.projection.shape

    @classmethod
    def training_defaults(cls, level: str) -> dict[str, Any]:
        """Encodings of variance one."""
        return {"pe_options": {"norm": True}}
