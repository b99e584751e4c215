"""Transformers whose tokens are tuples of nodes, aligned with the Weisfeiler-Leman hierarchy."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tg_lpe.arguments import check_choice, check_count, check_counts, check_heads
from tg_lpe.checkpoints.checkpoint import described_arguments
from tg_lpe.encoders.base import Encoder, copy_tensors
from tg_lpe.encoders.registry import as_encoder
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.tuples import find_tuples, neighbouring_tuples
from tg_lpe.models.base import Model
from tg_lpe.models.features import FeatureModel, Features, OutputLinear, encoding_widths
from tg_lpe.models.options import EncodingOptions, Options, TokenAttentionOptions, TokenReadoutOptions
from tg_lpe.models.registry import register
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
"""Rows of the degree table; larger degrees share the last row, as in the published code."""

DEGREE_CHANNELS = 16

STD = 0.02
"""Initial standard deviation of linear maps and tables; biases are zero."""

OF_LAYERS = ("hidden_channels", "heads", "num_layers")
"""Arguments that the layers depend on."""

OF_NO_WEIGHT = {"out_channels", "readout", "attention_options", "graph_dim"}
"""Arguments that change only the weights of the read-out and the number of random features."""

OF_FEATURES = {
    "num_node_types": "node_embedding",
    "in_channels": "node_embedding",
    "num_edge_types": "edge_embedding",
    "edge_dim": "edge_embedding",
}
"""Arguments that change the weights of one submodule."""

OF_ANY_ORDER = ("token_norm", "layers", "kernel")
"""Submodules that do not depend on the order of the tuples."""

ALL_TO_ALL = ("full", "performer")
"""Attentions of all tokens to all tokens, which have the same weights."""


@register
class TupleTransformer(FeatureModel):
    r"""Predict graphs, nodes or edges by a transformer over tuples of ``k`` nodes: the k-GT and the (k,s)-GT.

    See `Aligning Transformers with Weisfeiler-Leman <https://arxiv.org/abs/2406.03148>`_. The tokens of a graph are its
    tuples of ``k`` nodes that induce at most ``s`` connected components, and one learned token for the graph. A tuple's
    token is the layer norm of a sum of linear maps:

    - of the features, encodings and degrees of its nodes, a map for each position;
    - of its atomic type: which of its nodes are equal, and which are joined by which edges;
    - of the encodings of pairs of its nodes, if the encoder has pair channels.

    The layers are those of a standard transformer. ``attention`` chooses which tokens attend to which:

    - ``"full"``: all tokens of a graph attend to each other, as in the published model.
    - ``"local"``: each head has a position, and a tuple attends to the tuples in which a neighbour of the node at that
      position replaces it. Only these scores are computed. The (k,s)-LWL, which exchanges messages in the same way,
      bounds what this model can distinguish. As a softmax averages over neighbours, their number is added to the token.
    - ``"delta"``: as ``"local"``, but in every second head, any node of the graph may be the replacement.
    - ``"performer"``: an estimate of ``"full"`` whose cost is linear in the number of tokens, for graphs of thousands
      of nodes.

    With ``"local"`` and ``"delta"``, the graph's token attends to all tokens, and no token attends to it.

    Args:
        num_node_types, in_channels, num_edge_types, edge_dim: categories or widths of the features, as in
            :class:`~tg_lpe.GraphTransformer`. Edges are undirected: features of both directions are averaged, and
            features of self-loops are not read. With ``k=1``, no edge features are read. An edge of weight zero joins
            nodes of tuples; only encodings treat it as absent.
        pe_channels: width of the encoding passed to :meth:`forward`, as in :class:`~tg_lpe.GraphTransformer`.
        encoder: an :class:`~tg_lpe.Encoder`, or its class and arguments. Its pair channels are used if ``k > 1``.
        k: number of nodes of a tuple.
        s: maximum number of components; ``None`` for all ``k``-tuples. ``k=2, s=1`` has ``n + 2 m`` tokens.
        hidden_channels: width of the tokens.
        heads: number of attention heads. ``"local"`` needs at least ``k`` heads and ``"delta"`` at least ``2 k``.
        num_layers: number of layers.
        out_channels: number of predictions per graph, node or edge.
        readout: a dictionary of options.

            - ``pooling`` of graphs: the graph's ``"token"``, or the ``"mean"``, ``"sum"`` or ``"max"`` of the tuples.
            - ``level``: ``"graph"`` for a prediction per graph; ``"node"`` for a prediction per node ``v``, from the
              token ``(v, .., v)`` and the mean of the tokens that begin with ``v``; ``"edge"`` for a prediction per
              directed edge, from the token ``(u, v, .., v)``.
        attention: the tokens that attend to each other.

            - ``"full"``: all tokens of a graph
            - ``"local"``: only tuples that differ by a step to a neighbour
            - ``"delta"``: as ``"local"``, but in every second head by a step to any node
            - ``"performer"``: an estimate of ``"full"`` for large graphs
        attention_options: a dictionary of options.

            - ``dropout``: dropout of the attention's output
            - ``attention_dropout``: dropout of attention weights; ``"performer"`` has none
            - ``drop_path``: stochastic depth of the last layer; it grows linearly from the first
            - ``random_features``: number of random features of ``"performer"``, drawn once for all layers
        pe_options: a dictionary of options for encodings: ``edge_channels`` and ``norm`` of
            :class:`~tg_lpe.GraphTransformer`.
        node_tokens: features of a node before the map of its position.

            - ``"linear"``: its embedded features, encoding and degree concatenated, as in the published code
            - ``"feed_forward"``: ``F + FFN(deg + PE)``, eqs. (1) and (2)
        graph_dim: number of real features of whole graphs, as in :class:`~tg_lpe.GraphTransformer`.

    Raises:
        ValueError: if arguments exclude each other or are out of range.
        TypeError: if ``encoder`` is neither an encoder nor its class and arguments.

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
        check_counts(k=k, hidden_channels=hidden_channels, num_layers=num_layers, out_channels=out_channels)
        for name, count in (("s", s), ("pe_channels", pe_channels), ("graph_dim", graph_dim)):
            if count is not None:
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
        pe_channels, edge_channels, pair_channels = encoding_widths(self.encoder, pe_channels, pe.edge_channels)
        if k == 1 and (num_edge_types, edge_dim, edge_channels) != (None, None, None):
            warnings.warn("tuples of k=1 node read no features or encodings of edges", stacklevel=2)
        self.k, self.s, self.attention, self.pooling, self.level = k, s, attention, reading.pooling, reading.level
        channels = hidden_channels
        self.node_embedding = FeatureEmbedding("node", num_node_types, in_channels, channels)
        self.edge_embedding = FeatureEmbedding("edge", num_edge_types, edge_dim, channels, by_product=True)
        for name, width in (("pe", pe_channels), ("edge_pe", edge_channels)):
            embedding = None if width is None else EncodingEmbedding(width, channels, pe.norm)
            self.register_module(f"{name}_embedding", embedding)
        is_linear = node_tokens == "linear"
        self.degree_embedding = nn.Embedding(NUM_DEGREES, DEGREE_CHANNELS if is_linear else channels)
        self.structure, node_channels = None, channels
        if is_linear:
            node_channels += DEGREE_CHANNELS + (0 if pe_channels is None else channels)
        else:
            self.structure = nn.Sequential(nn.Linear(channels, channels), nn.GELU(), nn.Linear(channels, channels))
        self.tokens = TupleEmbedding(k, node_channels, channels, pair_channels, num_counts=num_kinds)
        self.token_norm = nn.LayerNorm(channels)
        self.graph_token = nn.Embedding(1, channels)
        dropouts, drop_path = (layer_options.dropout, layer_options.attention_dropout), layer_options.drop_path
        self.layers = nn.ModuleList(
            TokenLayer(channels, heads, *dropouts, drop_path * (i + 1) / num_layers) for i in range(num_layers)
        )
        self.kernel = RandomFeatures(layer_options.random_features, channels // heads) if is_estimated else None
        self.readout = nn.Sequential(
            nn.Linear(channels, channels), nn.GELU(), nn.LayerNorm(channels), OutputLinear(channels, out_channels)
        )
        self.graph_embedding = None if graph_dim is None else GraphFeatures(graph_dim, channels)
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        """Draw linear maps and tables, except the encoder's, from ``N(0, STD ** 2)``; biases and graph token are 0."""
        for name, part in self.named_children():
            for module in part.modules() if name != "encoder" else ():
                if isinstance(module, nn.Linear | nn.Embedding):
                    nn.init.normal_(module.weight, std=STD)
                if isinstance(module, nn.Linear) and module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.zeros_(self.graph_token.weight)

    needs_undirected = True

    def _predict(self, graph: Graph, features: Features, options: dict[str, Any], return_penalty: bool) -> Tensor:
        """List tokens, encode, embed, run the layers and read out."""
        tokens = tuple_tokens(graph, self.k, self.s)
        needed, which = (None, None) if self.tokens.pairs is None else node_pairs(tokens, graph.num_nodes)
        pe, edge_pe, values = self._encode(graph, features, options, needed)
        pairs = None
        if values is not None and which is not None:
            pairs = values.to(self.token_norm.weight.dtype), which
        attention, counts = self._attention(graph, tokens)
        nodes = self._embed_nodes(graph, features.x, pe)
        edges = self._embed_edges(graph, features.edge_attr, edge_pe)
        h = self.token_norm(self.tokens(tokens, nodes, edges, pairs, counts))
        h = torch.cat([h, self.graph_token.weight.to(h.dtype).expand(graph.num_graphs, -1)])
        number = torch.arange(graph.num_graphs, device=graph.device)
        graphs = RowGroups(torch.cat([tokens.batch, number]), graph.num_graphs, is_sorted=False)
        if attention is None:
            attention = FullAttention(graphs) if self.kernel is None else RandomFeatureAttention(graphs, self.kernel)
        for layer in self.layers:
            h = layer(h, attention, graphs)
        out: Tensor = self.readout(self._with_graph_attr(self._read(graph, tokens, h), graph, features.graph_attr))
        return out

    def _attention(self, graph: Graph, tokens: TupleTokens) -> tuple[Attention | None, Tensor | None]:
        """Return the masked attention and each tuple's number of neighbours of each kind; ``None`` for full attention.

        The graphs' tokens come after the tuples' tokens.
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
        """Embed features, encodings and degrees of the nodes, ``[num_nodes, node_channels]``."""
        h: Tensor = self.node_embedding(x if self.node_embedding.expects_feature else None, graph.num_nodes)
        ends = torch.cat([graph.tail, graph.head])
        degree = torch.bincount(ends, minlength=graph.num_nodes).clamp_(max=NUM_DEGREES - 1)
        parts = [self.degree_embedding(degree)]
        if self.pe_embedding is not None:
            parts.append(self.pe_embedding(pe, h.dtype, graph.graphs))
        if self.structure is None:
            return torch.cat([h, *parts], 1)
        update: Tensor = self.structure(sum(parts))
        return h + update

    def _embed_edges(self, graph: Graph, edge_attr: Tensor | None, pe: Tensor | None) -> Tensor:
        """Embed features and encodings of the undirected edges, ``[num_edges, hidden_channels]``."""
        if self.edge_embedding.expects_feature:
            e = graph.merge_directed(self.edge_embedding(edge_attr, graph.num_directed_edges))
        else:
            e = self.edge_embedding(None, graph.num_edges)
        if self.edge_pe_embedding is None or pe is None:
            return e
        groups = RowGroups(graph.batch[graph.tail], graph.num_graphs, is_sorted=True)
        update: Tensor = self.edge_pe_embedding(graph.merge_directed(pe), e.dtype, groups)
        return e + update

    def _read(self, graph: Graph, tokens: TupleTokens, h: Tensor) -> Tensor:
        """Return one row per prediction, ``[num_rows, hidden_channels]``, from all tokens."""
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
        diagonal = find_tuples(graph, nodes, torch.arange(graph.num_nodes, device=h.device).expand(self.k, -1))
        return h.index_select(0, diagonal) + RowGroups(nodes[0], graph.num_nodes, is_sorted=True).mean(h)

    def with_order(self, k: int, s: int | None = 1, *, seed: int = 0, **changes: Any) -> TupleTransformer:
        """Return a model with the layers of this one for tuples of another order (order transfer, section 4.2).

        Train with few tokens, continue with many. The layers and the norm before them are copied bit by bit, and so are
        random features if their number does not change. The encoder, the tokens and the read-out are drawn again.

        With the same order, all weights are copied except those of the read-out and of embeddings whose feature sizes
        change. This requires that ``changes`` only concern the task, dropout, feature sizes, or a switch between
        ``"full"`` and ``"performer"``; other changes are treated as another order.

        Args:
            k, s: the order.
            seed: seed of the drawn weights. The global generator is not changed.
            changes: further constructor arguments that change, such as ``out_channels``.

        Returns:
            A new model with the mode, dtype and device of this one; copied parameters keep ``requires_grad``.

        Raises:
            ValueError: if ``changes`` has an argument that the layers depend on.
            TypeError: if a constructor's argument is not JSON-able.
        """
        config = self.config_dict()
        changes = {name: value for name, value in changes.items() if name not in config or config[name] != value}
        if wrong := sorted(set(changes) & set(OF_LAYERS)):
            raise ValueError(f"{', '.join(OF_LAYERS)} belong to the layers, which are kept; got other {wrong}")
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            model = self.made_anew(**changes, k=k, s=s)
        weight = self.token_norm.weight
        model = model.to(weight.device, weight.dtype).train(self.training)
        allowed = OF_NO_WEIGHT | set(OF_FEATURES)
        if self.attention in ALL_TO_ALL and model.attention in ALL_TO_ALL:
            allowed.add("attention")
        same_order = (k, s or k) == (self.k, self.s or self.k) and set(changes) <= allowed
        redrawn = {*self.head, *(OF_FEATURES[name] for name in changes if name in OF_FEATURES)}
        if not model._has_kernel_of(self):
            redrawn.add("kernel")
        for name in [name for name, _ in self.named_children()] if same_order else OF_ANY_ORDER:
            if name not in redrawn:
                copy_tensors(model.get_submodule(name), self.get_submodule(name))
        return model

    def start_from(self, other: Model, *, fresh: Sequence[str] = ()) -> None:
        """Copy the weights of a trained model: all except the read-out, or only the layers if its order differs.

        From a model of another order, the layers and the norm before them are copied bit by bit, as in
        :meth:`with_order`. All other weights, including the encoder's, are not copied and may differ in shape.

        Args:
            other: a model of this class; it is not changed.
            fresh: see :meth:`Model.start_from <tg_lpe.models.Model.start_from>`.

        Raises:
            ValueError: if ``other`` has another class, or a copied weight has another name or shape; this model is then
                unchanged.
        """
        if type(other) is not type(self) or (other.k, other.s or other.k) == (self.k, self.s or self.k):
            super().start_from(other, fresh=fresh)
            return
        self._check_fresh(fresh)
        arguments, other_arguments = described_arguments(self), described_arguments(other)
        for name in OF_LAYERS:
            if arguments[name] != other_arguments[name]:
                raise ValueError(
                    f"the layers do not fit: {name} is {arguments[name]} here and {other_arguments[name]} there"
                )
        left_out = {*fresh, *(() if self._has_kernel_of(other) else ("kernel",))}
        for name in OF_ANY_ORDER:
            if name not in left_out:
                self.get_submodule(name).load_state_dict(other.get_submodule(name).state_dict())

    def copy_weights(self, other: nn.Module, left_out: tuple[str, ...] = ()) -> None:
        """Copy the weights of another model, see :meth:`Model.copy_weights <tg_lpe.models.Model.copy_weights>`.

        Random features are not copied if the two models have different numbers of them.
        """
        has_same = not isinstance(other, TupleTransformer) or self._has_kernel_of(other)
        super().copy_weights(other, left_out if has_same else (*left_out, "kernel"))

    def _has_kernel_of(self, other: TupleTransformer) -> bool:
        """Return whether both models have the same number of random features, and not zero."""
        if self.kernel is None or other.kernel is None:
            return False
        return self.kernel.projection.shape == other.kernel.projection.shape

    @classmethod
    def training_defaults(cls, level: str) -> dict[str, Any]:
        """Return options for encodings of variance one."""
        return {"pe_options": {"norm": True}}
