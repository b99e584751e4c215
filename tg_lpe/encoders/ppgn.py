"""PPGN: learned encodings from matrix products over pairs of nodes, as strong as the 2-FWL test."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tg_lpe.arguments import check_counts, check_positive
from tg_lpe.encoders.base import Encoder, Encoding, Inputs
from tg_lpe.encoders.registry import register
from tg_lpe.graph.buckets import PaddedRows, matrices
from tg_lpe.graph.graph import Graph, inverse_sqrt
from tg_lpe.graph.pairs import check_pair_nodes
from tg_lpe.nn._util import without_autocast

MAX_NODES = 1024
"""Largest number of nodes of a graph: one channel of all its pairs takes 4 MiB in float32."""

MAX_PAIRS = 2**21
"""Most pairs of nodes in a bucket of graphs, unless a single graph has more."""

MAX_PADDING = 1.1
"""Largest ratio of graph sizes in a bucket: the work of padding grows with its cube."""


@register
class PPGN(Encoder):
    r"""Encode nodes, edges and pairs by learned features of all pairs of nodes, mixed by matrix products.

    See `Provably Powerful Graph Networks <https://arxiv.org/abs/1905.11136>`_, section 6. The input features of a pair
    of nodes are the entries of three matrices: the identity, the adjacency matrix without weights, and
    :math:`P = D^{-1/2} A D^{-1/2}` with weights. Each of the ``num_layers`` layers applies a layer norm to the
    features :math:`X_{uv}`, maps the result :math:`\hat X_{uv}` to :math:`a_{uv}` and :math:`b_{uv}`, and updates

    .. math:: X_{uv} \leftarrow X_{uv} + \psi \Big( \hat X_{uv}, \frac{1}{n} \sum_{w} a_{uw} b_{wv} \Big) ,

    with a perceptron :math:`\psi` and a matrix product in each channel: attention over triangles without softmax. The
    2-FWL test, which is as strong as 3-WL, refines colours by the same sum over :math:`w`. The published network has no
    norm, no residual sum and no factor :math:`1 / n`. Nodes read :math:`X_{uu}` and the means of their row and column,
    edges read :math:`X_{uv} + X_{vu}`, and pairs read :math:`X_{uv}`, each through a linear map.

    The encoding is equivariant and independent of signs and bases. A graph of ``n`` nodes takes
    ``O(n^3 hidden_channels)`` time a layer and ``O(n^2 hidden_channels)`` memory. Under autocast, everything is
    computed in the precision of the weights.

    Args:
        out_channels: width of the node encoding.
        edge_out_channels: width of the edge encoding; 0 for none.
        pair_out_channels: width of the encoding of pairs of nodes, 0 for none.
        hidden_channels: width of the features of pairs.
        num_layers: number of layers.
        frequency: if set, sines of this frequency replace all GELUs, as in
            `SIREN <https://arxiv.org/abs/2006.09661>`_. The difference between two graphs that a layer adds is of
            second order in the difference that it receives. With GELUs, rounding therefore hides differences that
            2-FWL finds after four rounds; sines of a high frequency, such as 10, enlarge them.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> import torch
        >>> from tg_lpe.encoders import PPGN
        >>> PPGN(out_channels=8)(None, torch.tensor([[0, 1, 2], [1, 2, 0]])).node.shape
        torch.Size([3, 8])
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
        check_counts(out_channels=out_channels, hidden_channels=hidden_channels, num_layers=num_layers)
        check_counts(least=0, edge_out_channels=edge_out_channels, pair_out_channels=pair_out_channels)
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
    def encode(self, graph: Graph, inputs: Inputs) -> Encoding:
        """Encode nodes, edges and pairs, see :meth:`Encoder.encode`; features are not read.

        Raises:
            ValueError: if a graph has more than 1,024 nodes.
        """
        rows, features, means = self._features(graph)
        node = torch.arange(graph.num_nodes, device=graph.device)
        diagonal = features[rows.entry(node, node)]
        edge = pair = None
        if self.edge is not None:
            u, v = graph.tail, graph.head
            edge = graph.spread_to_directed(self.edge(features[rows.entry(u, v)] + features[rows.entry(v, u)]))
        if self.pair is not None and inputs.pairs is not None:
            pair = self.pair(features[rows.entry(*inputs.pairs)])
        return Encoding(self.node(torch.cat([diagonal, means[rows.row]], dim=1)), edge, pair)

    def _features(self, graph: Graph) -> tuple[PaddedRows, Tensor, Tensor]:
        """Compute the features of all pairs, and their means over each node's row and column.

        Returns:
            The buckets of padded graphs; the features ``[num_pairs, hidden_channels]``; the means, padding included,
            ``[num_padded_nodes, 2 hidden_channels]``.
        """
        largest, width = graph.max_nodes, self.hidden_channels
        check_pair_nodes(graph, "PPGN", MAX_NODES)
        max_rows = max(largest, MAX_PAIRS // max(largest, 1))
        rows = graph.padded(max_rows=max_rows, max_padding=MAX_PADDING)
        like, u, v = self.embedding.weight, graph.tail, graph.head
        p, is_edge = (part.to(like.dtype) for part in _normalized(graph))
        node = torch.arange(graph.num_nodes, device=graph.device)
        index = torch.cat([rows.entry(*ends) for ends in ((node, node), (u, v), (v, u))])
        at_nodes = like.new_tensor([1.0, 0.0, 0.0]).expand(graph.num_nodes, 3)
        at_edges = torch.stack([torch.zeros_like(p), is_edge, p], dim=1)
        # Entries of the identity, of the adjacency matrix and of P at each pair.
        inputs = like.new_zeros(rows.num_pairs, 3).index_copy(0, index, torch.cat([at_nodes, at_edges, at_edges]))
        features, means = [inputs.new_zeros(0, width)], [inputs.new_zeros(0, 2 * width)]
        for part, are_nodes in zip(matrices(rows.buckets, inputs), rows.are_nodes(), strict=True):
            mask, size = are_nodes.to(part.dtype), are_nodes.sum(1).view(-1, 1, 1)
            h = self.embedding(part)
            for layer in self.layers:
                h = layer(h, mask[:, None, :, None], size.unsqueeze(3))
            h = self.norm(h)
            sums = torch.einsum("guvc,gv->guc", h, mask), torch.einsum("guvc,gu->gvc", h, mask)
            features.append(h.flatten(0, 2))
            means.append((torch.cat(sums, dim=2) / size).flatten(0, 1))
        return rows, torch.cat(features), torch.cat(means)


class _Layer(nn.Module):
    """A layer of :class:`PPGN`."""

    def __init__(self, channels: int, frequency: float | None) -> None:
        super().__init__()
        self.frequency = frequency
        self.norm = nn.LayerNorm(channels)
        self.factors = nn.Linear(channels, 2 * channels)
        self.first = nn.Linear(2 * channels, 2 * channels)
        self.second = nn.Linear(2 * channels, channels)

    def forward(self, h: Tensor, mask: Tensor, size: Tensor) -> Tensor:
        """Return the updated features ``[num_graphs, n, n, channels]``.

        Args:
            h: the features.
            mask: one for nodes and zero for padding, ``[num_graphs, 1, n, 1]``.
            size: number of nodes, ``[num_graphs, 1, 1, 1]``.
        """
        normed = self.norm(h)
        a, b = self._activation(self.factors(normed)).chunk(2, dim=3)
        product = ((a * mask).permute(0, 3, 1, 2) @ b.permute(0, 3, 1, 2)).permute(0, 2, 3, 1) / size
        out: Tensor = h + self.second(self._activation(self.first(torch.cat([normed, product], dim=3))))
        return out

    def _activation(self, z: Tensor) -> Tensor:
        return functional.gelu(z) if self.frequency is None else torch.sin(self.frequency * z)


def _normalized(graph: Graph) -> tuple[Tensor, Tensor]:
    """Entries of ``D^-1/2 A D^-1/2`` at the edges, float64, and whether their weight is positive, ``[num_edges]``."""
    one = torch.ones((), dtype=torch.float64, device=graph.device)
    w = graph.weights()
    scale = inverse_sqrt(graph.laplacian_diagonal(one))
    return w * scale[graph.tail] * scale[graph.head], w.detach() > 0
