"""PPGN: learned encodings from products of matrices of pairs, as strong as the 2-dimensional folklore WL test."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from tg_lpe.arguments import check_count, check_positive
from tg_lpe.encoders.base import Encoder, Encoding, check_pairs
from tg_lpe.encoders.registry import register
from tg_lpe.graph.buckets import matrices
from tg_lpe.graph.graph import Graph
from tg_lpe.nn._util import without_autocast
from tg_lpe.ops.segment import scatter_sum

MAX_NODES = 1024
"""Largest graph that is accepted: a channel of all its pairs has 4 MiB in float32."""

MAX_PAIRS = 2**21
"""Pairs of nodes of a bucket of graphs, at most, unless those of one graph are more."""

MAX_PADDING = 1.1
"""In a bucket, no graph is smaller than the largest by more than this factor: the work grows with its cube."""


class _Pairs:
    """All ordered pairs of nodes of each graph of a batch, bucket by bucket, padding included.

    Raises:
        ValueError: if a graph has too many nodes.
    """

    def __init__(self, graph: Graph) -> None:
        largest = graph.max_nodes
        if largest > MAX_NODES:
            raise ValueError(
                f"PPGN holds all pairs of nodes and takes graphs of up to {MAX_NODES} nodes, got {largest}"
            )
        max_rows = max(largest, MAX_PAIRS // max(largest, 1))
        self.rows = graph.padded(max_rows=max_rows, dense_nodes=0, max_padding=MAX_PADDING)
        self._first, self._local = self.rows.matrix_rows(), graph.local_index

    def number(self, u: Tensor, v: Tensor) -> Tensor:
        """The numbers of pairs of nodes of a graph, int64 ``[num_pairs]``."""
        return self._first[u] + self._local[v]


@register
class PPGN(Encoder):
    r"""Provably powerful graph network: features of all pairs of nodes, mixed by products of matrices.

    `Provably Powerful Graph Networks <https://arxiv.org/abs/1905.11136>`_, section 6. A graph begins as the matrices of
    ones on the diagonal, of its edges, and of :math:`P = D^{-1/2} A D^{-1/2}`, with its weights. Each of the
    ``num_layers`` layers maps the features :math:`X_{uv}` of every pair, after a layer norm, to :math:`a_{uv}` and
    :math:`b_{uv}`, and adds what a perceptron :math:`\psi` makes of the feature and of the product,

    .. math:: X_{uv} \leftarrow X_{uv} + \psi \Big( \hat X_{uv}, \frac{1}{n} \sum_{w} a_{uw} b_{wv} \Big) ,

    channel by channel: attention over triangles without softmax. The sum over all :math:`w` of pairs of colours is what
    2-FWL, which tells apart what 3-WL does, refines by; the published network has no norm, no residual sum and no
    :math:`1 / n`. Nodes read :math:`X_{uu}` and the means of their row and column, edges :math:`X_{uv} + X_{vu}`, and
    pairs :math:`X_{uv}`, each through a linear map.

    Equivariant, and independent of signs and bases. A graph of ``n`` nodes takes ``O(n^3 hidden_channels)`` a layer and
    ``O(n^2 hidden_channels)`` memory. Under autocast all is in the precision of the weights.

    Args:
        out_channels: width of the node encoding.
        edge_out_channels: width of the edge encoding; 0 for none.
        pair_out_channels: width of the encoding of pairs of nodes, see :meth:`encode_with_pairs`; 0 for none.
        hidden_channels: width of the features of pairs.
        num_layers: number of layers.
        frequency: of sines in place of all GELUs, as in `SIREN <https://arxiv.org/abs/2006.09661>`_. What a layer adds
            to the difference of two graphs is of second order in what it finds, so that with GELUs differences that
            2-FWL sees after four rounds are lost in rounding; sines of high frequency, such as 10, enlarge them.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> import torch
        >>> from tg_lpe import GraphTransformer
        >>> from tg_lpe.encoders import PPGN
        >>> x = torch.tensor([0, 1, 1, 0, 2, 2])  # six nodes of three types
        >>> edge_index = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
        >>> model = GraphTransformer(num_node_types=3, encoder=PPGN(out_channels=8), hidden_channels=16)
        >>> model(x, edge_index).shape
        torch.Size([1, 1])
    """

    def __init__(
        self,
        out_channels: int = 8,
        edge_out_channels: int = 8,
        pair_out_channels: int = 0,
        hidden_channels: int = 16,
        num_layers: int = 3,
        frequency: float | None = None,
    ) -> None:
        super().__init__()
        check_count("out_channels", out_channels)
        check_count("hidden_channels", hidden_channels)
        check_count("num_layers", num_layers)
        check_count("edge_out_channels", edge_out_channels, least=0)
        check_count("pair_out_channels", pair_out_channels, least=0)
        self.out_channels, self.edge_out_channels = out_channels, edge_out_channels
        self.pair_out_channels = pair_out_channels
        if frequency is not None:
            check_positive("frequency", frequency)
        self.hidden_channels, self.num_layers, self.frequency = hidden_channels, num_layers, frequency
        self.embedding = nn.Linear(3, hidden_channels)
        self.layers = nn.ModuleList(_Layer(hidden_channels, frequency) for _ in range(num_layers))
        self.norm = nn.LayerNorm(hidden_channels)
        self.node = nn.Linear(3 * hidden_channels, out_channels)
        self.edge = nn.Linear(hidden_channels, edge_out_channels) if edge_out_channels else None
        self.pair = nn.Linear(hidden_channels, pair_out_channels) if pair_out_channels else None

    @without_autocast
    def encode(
        self,
        graph: Graph,
        x: Tensor | None = None,
        edge_attr: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
        precomputed: Mapping[str, Tensor] | None = None,
    ) -> Encoding:
        """Encode nodes and edges, see :meth:`Encoder.encode`; only the graph is read.

        Raises:
            ValueError: if a graph has more than 1,024 nodes.
        """
        return self._encoding(graph, *self._features(graph))

    @without_autocast
    def encode_with_pairs(
        self,
        graph: Graph,
        pairs: Tensor,
        x: Tensor | None = None,
        edge_attr: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
        precomputed: Mapping[str, Tensor] | None = None,
    ) -> tuple[Encoding, Tensor]:
        """Encode nodes, edges and pairs, see :meth:`Encoder.encode_with_pairs`.

        Raises:
            ValueError: if ``pair_out_channels`` is 0, a pair is in two graphs, or a graph has more than 1,024 nodes.
        """
        if self.pair is None:
            return super().encode_with_pairs(graph, pairs)
        check_pairs(graph, pairs)
        all_pairs, features, means = self._features(graph)
        encoding = self._encoding(graph, all_pairs, features, means)
        return encoding, self.pair(features[all_pairs.number(*pairs)])

    def _encoding(self, graph: Graph, pairs: _Pairs, features: Tensor, means: Tensor) -> Encoding:
        """The read-outs at nodes and edges of what :meth:`_features` returns."""
        node = torch.arange(graph.num_nodes, device=graph.device)
        own = features[pairs.number(node, node)]
        out = self.node(torch.cat([own, means[pairs.rows.row]], dim=1))
        if self.edge is None:
            return Encoding(out)
        u, v = graph.tail, graph.head
        both = features[pairs.number(u, v)] + features[pairs.number(v, u)]
        return Encoding(out, graph.spread_to_directed(self.edge(both)))

    def _features(self, graph: Graph) -> tuple[_Pairs, Tensor, Tensor]:
        """Features of all pairs ``[num_pairs, hidden_channels]``, and their means over the row and the column of each
        node, padding included, ``[num_padded_nodes, 2 hidden_channels]``."""
        pairs, width = _Pairs(graph), self.hidden_channels
        given = self._given(graph, pairs)
        found, means = [given.new_zeros(0, width)], [given.new_zeros(0, 2 * width)]
        for part, are_nodes in zip(matrices(pairs.rows.buckets, given), pairs.rows.are_nodes(), strict=True):
            there, size = are_nodes.to(part.dtype), are_nodes.sum(1).view(-1, 1, 1)
            h = self.embedding(part)
            for layer in self.layers:
                h = layer(h, there[:, None, :, None], size.unsqueeze(3))
            h = self.norm(h)
            over = torch.einsum("guvc,gv->guc", h, there), torch.einsum("guvc,gu->gvc", h, there)
            found.append(h.flatten(0, 2))
            means.append((torch.cat(over, dim=2) / size).flatten(0, 1))
        return pairs, torch.cat(found), torch.cat(means)

    def _given(self, graph: Graph, pairs: _Pairs) -> Tensor:
        """Of every pair whether it is a node, whether it is an edge, and its entry of ``P``, ``[num_pairs, 3]``."""
        like, u, v = self.embedding.weight, graph.tail, graph.head
        p, is_edge = (part.to(like.dtype) for part in _normalized(graph))
        node = torch.arange(graph.num_nodes, device=graph.device)
        index = [pairs.number(*ends) for ends in ((node, node), (u, v), (v, u))]
        at_nodes = like.new_tensor([1.0, 0.0, 0.0]).expand(graph.num_nodes, 3)
        at_edges = torch.stack([torch.zeros_like(p), is_edge, p], dim=1)
        num_pairs = sum(bucket.num_pairs for bucket in pairs.rows.buckets)
        return like.new_zeros(num_pairs, 3).index_copy(0, torch.cat(index), torch.cat([at_nodes, at_edges, at_edges]))


class _Layer(nn.Module):
    """A layer of :class:`PPGN`."""

    def __init__(self, channels: int, frequency: float | None) -> None:
        super().__init__()
        self.frequency = frequency
        self.norm = nn.LayerNorm(channels)
        self.factors = nn.Linear(channels, 2 * channels)
        self.first = nn.Linear(2 * channels, 2 * channels)
        self.second = nn.Linear(2 * channels, channels)

    def forward(self, h: Tensor, there: Tensor, size: Tensor) -> Tensor:
        """The next features ``[num_graphs, n, n, channels]``.

        Args:
            h: the features.
            there: which nodes are not padding, one or zero, ``[num_graphs, 1, n, 1]``.
            size: number of nodes, ``[num_graphs, 1, 1, 1]``.
        """
        normal = self.norm(h)
        a, b = self._bent(self.factors(normal)).chunk(2, dim=3)
        product = ((a * there).permute(0, 3, 1, 2) @ b.permute(0, 3, 1, 2)).permute(0, 2, 3, 1) / size
        out: Tensor = h + self.second(self._bent(self.first(torch.cat([normal, product], dim=3))))
        return out

    def _bent(self, z: Tensor) -> Tensor:
        return functional.gelu(z) if self.frequency is None else torch.sin(self.frequency * z)


def _normalized(graph: Graph) -> tuple[Tensor, Tensor]:
    """Entries of ``D^-1/2 A D^-1/2`` at the edges, and whether they conduct, ``[num_edges]`` each.

    In float64, with the largest weight of each graph at one: the entries do not depend on the scale of the weights.
    """
    one = torch.ones((), dtype=torch.float64, device=graph.device)
    if graph.conductance is None and graph.ground is None:
        scale = graph.laplacian_diagonal(one).rsqrt()
        return scale[graph.tail] * scale[graph.head], one.expand(graph.num_edges)
    u, v = graph.tail, graph.head
    w = one.expand(graph.num_edges) if graph.conductance is None else graph.conductance.double()
    largest = one.new_zeros(graph.num_graphs).scatter_reduce(0, graph.batch[u], w.detach(), "amax")
    ground = None if graph.ground is None else graph.ground.double()
    if ground is not None:
        largest = largest.scatter_reduce(0, graph.batch, ground.detach(), "amax")
    largest = torch.where(largest > 0, largest, 1.0)
    is_edge = w.detach() > 0
    w = w / largest[graph.batch[u]]
    degree = scatter_sum(torch.cat([w, w]), torch.cat([u, v]), graph.num_nodes)
    if ground is not None:
        degree = degree + ground / largest[graph.batch]
    scale = torch.where(degree > 0, degree, 1.0).rsqrt()
    return w * scale[u] * scale[v], is_edge
