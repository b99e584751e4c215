"""SPE: stable and expressive positional encodings, independent of signs and bases of eigenvectors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial, reduce

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tg_lpe.arguments import check_count
from tg_lpe.encoders.registry import register
from tg_lpe.encoders.spectral import EigenpairEncoder
from tg_lpe.graph.eigenspaces import whole_eigenspaces
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.padding import PaddedBatch
from tg_lpe.nn._util import reset_all, without_autocast
from tg_lpe.nn.gin import neighbour_sums

CHUNK = 2**24
"""Numbers of all pairs of nodes that are held at once, at most, unless those of one anchor are more."""

MAX_PADDING = 1.2
"""Graphs that are padded to one size differ by this factor at most: the work grows with its square."""


@register
class SPE(EigenpairEncoder):
    r"""Learned functions of the Laplacian as features of all pairs of nodes, which a GIN reads: basis-invariant.

    `On the Stability of Expressive Positional Encodings for Graphs <https://arxiv.org/abs/2310.02579>`_, as
    `Aligning Transformers with Weisfeiler-Leman <https://arxiv.org/abs/2406.03148>`_ uses it, eq. (6). With the
    eigenvectors :math:`V` of the ``num_eigenpairs`` smallest eigenvalues, null ones included, and a perceptron
    :math:`\varphi` of an eigenvalue with ``num_filters`` outputs,

    .. math:: Q_{uv} = \sum_j V_{uj}\, \varphi(\lambda_j)\, V_{vj}, \qquad
        \mathrm{SPE}_u = W_2 \sum_v \mathrm{ReLU} \big( W_1 \big( (1 + \epsilon) Q_{uv}
        + \sum_{w \sim u} Q_{wv} \big) + b_1 \big) + b_2,

    for every anchor :math:`v` of the graph a layer of the Graph Isomorphism Network, with the sum of the anchors read
    at each node. Neighbours count by their edge weight.

    The published code takes the first nodes of a graph as anchors, so its result depends on their order; its
    :math:`\varphi` has batch norm, and it cuts through eigenspaces. Here all nodes are anchors, :math:`\varphi` has
    layer norm, and the spectrum is cut off between two eigenspaces, so the result depends on no order, sign, basis or
    batch-mate. The work grows with the square of the number of nodes of a graph. The memory does not: pairs are taken
    in chunks, which are computed again for the gradient. Under autocast all is in the precision of the weights. Edge
    weights get no gradient: eigenpairs have none, and that of the neighbours alone would be wrong.

    :meth:`precompute` gives ``graph_eigenvalues_KIND``, ``[num_graphs, num_eigenpairs]``, and ``node_spectrum_KIND``,
    ``[num_nodes, num_eigenpairs]``, for a :attr:`kind` such as ``whole_eigenspaces_sym``; where a graph has fewer in
    whole eigenspaces, NaN and zero.

    Args:
        out_channels: width of the encoding, and of the GIN; the published models have 768.
        num_eigenpairs: number of eigenpairs; the published models have 96.
        num_filters: width of :math:`Q_{uv}`.
        filter_channels: hidden width of :math:`\varphi`.
        normalization: of the Laplacian, as in PyG: ``"sym"`` or ``None``.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> import torch
        >>> from tg_lpe import GraphTransformer
        >>> from tg_lpe.encoders import SPE
        >>> x = torch.tensor([0, 1, 1, 0, 2, 2])  # six nodes of three types
        >>> edge_index = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
        >>> model = GraphTransformer(num_node_types=3, encoder=SPE(out_channels=8), hidden_channels=16)
        >>> model(x, edge_index).shape
        torch.Size([1, 1])
    """

    def __init__(
        self,
        out_channels: int = 64,
        num_eigenpairs: int = 32,
        num_filters: int = 96,
        filter_channels: int = 16,
        normalization: str | None = "sym",
    ) -> None:
        check_count("out_channels", out_channels)
        check_count("num_filters", num_filters)
        check_count("filter_channels", filter_channels)
        super().__init__(out_channels, 0, num_eigenpairs, "eigenspaces", normalization, row_norm=False)
        self.kind = f"whole_{self.kind}"
        self.num_filters, self.filter_channels = num_filters, filter_channels
        self.phi = nn.Sequential(
            *(nn.Linear(1, filter_channels), nn.LayerNorm(filter_channels), nn.ReLU()),
            *(nn.Linear(filter_channels, filter_channels), nn.LayerNorm(filter_channels), nn.ReLU()),
            nn.Linear(filter_channels, num_filters),
        )
        self.epsilon = nn.Parameter(torch.zeros(()))
        self.first = nn.Linear(num_filters, out_channels)
        self.second = nn.Linear(out_channels, out_channels)

    def reset_parameters(self) -> None:
        """Draw all weights anew."""
        nn.init.zeros_(self.epsilon)
        for part in self.children():
            reset_all(part)

    def precompute(self, graph: Graph) -> dict[str, Tensor]:
        """Eigenvalues and eigenvectors, in the dtype of the weights.

        Warns:
            UserWarning: if the first eigenspace of a graph has more than ``num_eigenpairs`` dimensions, as with more
                components: it cannot be cut, nothing is left, and all nodes of the graph get one encoding; or another
                one is so large that fewer than half of the eigenpairs are left.
        """
        vectors, values = whole_eigenspaces(graph, self.num_eigenpairs, normalization=self.normalization)
        if empty := int((values[:, 0].isnan() & (graph.ptr.diff() > 0)).sum()):
            warnings.warn(
                f"SPE reads whole eigenspaces, and in {empty} of {graph.num_graphs} graphs the first has more than "
                f"num_eigenpairs={self.num_eigenpairs} dimensions: all nodes of such a graph get one encoding",
                stacklevel=2,
            )
        kept, possible = values.isfinite().sum(1), graph.ptr.diff().clamp(max=self.num_eigenpairs)
        if few := int(((kept > 0) & (2 * kept < possible)).sum()):
            warnings.warn(
                f"SPE reads whole eigenspaces, and in {few} of {graph.num_graphs} graphs the one that is cut off "
                f"leaves fewer than half of num_eigenpairs={self.num_eigenpairs}: more would tell more nodes apart",
                stacklevel=2,
            )
        dtype = self.epsilon.dtype
        return self._named(values.to(dtype), vectors.to(dtype))

    @without_autocast
    def encode_nodes(self, graph: Graph, node: Tensor, values: Tensor, absent: Tensor) -> Tensor:
        """Return the rows of the nodes, see :meth:`EigenpairEncoder.encode_nodes`."""
        if graph.conductance is not None and graph.conductance.requires_grad:
            graph = graph.with_conductances(graph.conductance.detach(), graph.ground)
        # The GIN's sums over neighbours and its first map are linear: they are applied to V and phi, not to all pairs.
        rows = (1 + self.epsilon) * node + neighbour_sums(graph, node)
        filters = nn.functional.linear(self.phi(values.unsqueeze(2)), self.first.weight)
        filters = filters.masked_fill(absent.unsqueeze(2), 0.0)
        padded = PaddedBatch(graph, max_padding=MAX_PADDING)
        there = padded.pad(torch.ones_like(node[:, :1]))
        sums = []
        for bucket, u, v, mask in zip(padded.buckets, padded.pad(rows), padded.pad(node), there, strict=True):
            m = min(self.num_eigenpairs, bucket.max_nodes)  # no graph has more
            sums.append(self._sums(u[:, :m], v[:, :m], filters[bucket.graphs, :m], mask))
        if not sums:
            return node.new_zeros(0, self.out_channels)
        out: Tensor = self.second(padded.unpad_rows([part.flatten(0, 1) for part in sums]))
        return out

    def _sums(self, rows: Tensor, anchors: Tensor, filters: Tensor, there: Tensor) -> Tensor:
        """Sums over the anchors of graphs of one size, chunk by chunk.

        Args:
            rows, anchors: ``[num_graphs, m, max_nodes]``.
            filters: ``[num_graphs, m, out_channels]``.
            there: which anchors are nodes, one or zero, ``[num_graphs, 1, max_nodes]``.

        Returns:
            ``[num_graphs, max_nodes, out_channels]``.
        """
        num_graphs, _, n = rows.shape
        of_anchor = n * self.out_channels
        graphs_at_once, anchors_at_once = max(1, CHUNK // (n * of_anchor)), max(1, CHUNK // of_anchor)
        is_whole = num_graphs <= graphs_at_once and n <= anchors_at_once
        run: Callable[..., Tensor] = _anchor_sums
        if torch.is_grad_enabled() and not is_whole:
            run = partial(checkpoint, _anchor_sums, use_reentrant=False, preserve_rng_state=False)

        def chunks(some: slice) -> Iterator[Tensor]:
            for start in range(0, n, anchors_at_once):
                columns = slice(start, start + anchors_at_once)
                given = rows[some], anchors[some, :, columns], filters[some], there[some, :, columns]
                yield run(*given, self.first.bias)

        every = (slice(first, first + graphs_at_once) for first in range(0, num_graphs, graphs_at_once))
        return torch.cat([reduce(torch.add, chunks(some)) for some in every])


def _anchor_sums(rows: Tensor, anchors: Tensor, filters: Tensor, there: Tensor, bias: Tensor) -> Tensor:
    """``sum_v ReLU(sum_j rows_uj filters_jc anchors_vj + bias_c)``, ``[num_graphs, max_nodes, out_channels]``."""
    columns = (anchors.unsqueeze(3) * filters.unsqueeze(2)).flatten(2)  # [num_graphs, m, num_anchors * out_channels]
    pairs = (rows.mT @ columns).unflatten(2, (anchors.size(2), -1))
    return torch.einsum("guvc,gv->guc", torch.relu(pairs + bias), there.squeeze(1))
