"""SPE: stable and expressive positional encodings, independent of the signs and bases of eigenvectors."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from tg_lpe.arguments import check_counts
from tg_lpe.encoders.registry import register
from tg_lpe.encoders.spectral import EigenpairEncoder
from tg_lpe.graph.eigenspaces import whole_eigenspaces
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.padding import PaddedBatch
from tg_lpe.nn._util import in_chunks, without_autocast
from tg_lpe.nn.gin import neighbour_sums

MAX_PADDING = 1.2
"""Largest ratio of the sizes of graphs that are padded to one size: the work grows with its square."""


@register
class SPE(EigenpairEncoder):
    r"""Encode nodes by learned functions of the Laplacian at all pairs of nodes, read by a GIN: basis-invariant.

    See `On the Stability of Expressive Positional Encodings for Graphs <https://arxiv.org/abs/2310.02579>`_, in the
    form of `Aligning Transformers with Weisfeiler-Leman <https://arxiv.org/abs/2406.03148>`_, eq. (6). With the
    eigenvectors :math:`V` of the ``num_eigenpairs`` smallest eigenvalues, zeros included, and a perceptron
    :math:`\varphi` that maps an eigenvalue to ``num_filters`` outputs,

    .. math:: Q_{uv} = \sum_j V_{uj}\, \varphi(\lambda_j)\, V_{vj}, \qquad
        \mathrm{SPE}_u = W_2 \sum_v \mathrm{ReLU} \big( W_1 \big( (1 + \epsilon) Q_{uv}
        + \sum_{w \sim u} Q_{wv} \big) + b_1 \big) + b_2,

    a layer of the Graph Isomorphism Network for every anchor node :math:`v`, summed over the anchors. The sum over
    neighbours :math:`w` is weighted by edge weights.

    Unlike in the published code, all nodes are anchors, :math:`\varphi` has layer norm, and the spectrum is cut off
    between two eigenspaces: the encoding does not depend on the order of the nodes, on signs and bases, or on the other
    graphs of the batch. The work grows with the square of the number of nodes, but not the memory. Under autocast,
    everything is computed in the precision of the weights. Edge weights get no gradient, because eigenpairs have none.

    Args:
        out_channels: width of the encoding and of the GIN; the published models have 768.
        num_eigenpairs: most eigenpairs; the published models have 96.
        num_filters: number of learned functions of the Laplacian, the width of :math:`Q_{uv}`.
        filter_channels: hidden width of the perceptron of eigenvalues.
        normalization: ``"sym"`` or ``None``, normalization of the Laplacian as in PyG.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> import torch
        >>> from tg_lpe.encoders import SPE
        >>> SPE(out_channels=8)(None, torch.tensor([[0, 1, 2], [1, 2, 0]])).node.shape
        torch.Size([3, 8])
    """

    def __init__(
        self,
        out_channels: int = 64,
        num_eigenpairs: int = 32,
        num_filters: int = 96,
        filter_channels: int = 16,
        normalization: str | None = "sym",
    ) -> None:
        check_counts(out_channels=out_channels, num_filters=num_filters, filter_channels=filter_channels)
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

    def precompute(self, graph: Graph) -> dict[str, Tensor]:
        """Return eigenvalues and eigenvectors of whole eigenspaces, see :meth:`EigenpairEncoder.precompute`.

        Warns:
            UserWarning: if the eigenspace that is cut off leaves fewer than half of the eigenpairs of a graph, or none,
                as in a graph of more than ``num_eigenpairs`` components.
        """
        vectors, values = whole_eigenspaces(graph, self.num_eigenpairs, normalization=self.normalization)
        used, possible = values.isfinite().sum(1), graph.ptr.diff().clamp(max=self.num_eigenpairs)
        if bool((is_few := 2 * used < possible).any()):
            warnings.warn(
                f"SPE reads whole eigenspaces, which leave fewer than half of num_eigenpairs={self.num_eigenpairs} in "
                f"{int(is_few.sum())} of {graph.num_graphs} graphs; if none is left, all nodes of a graph get equal "
                "encodings; a larger num_eigenpairs distinguishes more nodes",
                stacklevel=2,
            )
        dtype = self.epsilon.dtype
        return self._named(values.to(dtype), vectors.to(dtype))

    @without_autocast
    def encode_nodes(self, graph: Graph, node: Tensor, values: Tensor, absent: Tensor) -> Tensor:
        """Return the rows of the nodes, see :meth:`EigenpairEncoder.encode_nodes`."""
        # The GIN's sums over neighbours and its first map are linear, so apply them to V and phi, not to all pairs.
        rows = (1 + self.epsilon) * node + neighbour_sums(graph, node)
        filters = self.phi(values.unsqueeze(2))
        bias = self.first(filters.new_zeros(filters.size(2)))
        filters = (self.first(filters) - bias).masked_fill(absent.unsqueeze(2), 0.0)
        padded = PaddedBatch(graph, max_padding=MAX_PADDING)
        parts, sums = map(padded.transposed, (rows, node, torch.ones_like(node[:, :1]))), []
        for bucket, u, v, mask in zip(padded.buckets, *parts, strict=True):
            m = min(self.num_eigenpairs, bucket.max_nodes)  # a graph has no more eigenpairs than nodes
            sums.append(self._sums(u[:, :m], v[:, :m], filters[bucket.graphs, :m], mask, bias))
        if not sums:
            return node.new_zeros(0, self.out_channels)
        out: Tensor = self.second(padded.unpad(sums))
        return out

    def _sums(self, rows: Tensor, anchors: Tensor, filters: Tensor, mask: Tensor, bias: Tensor) -> Tensor:
        """Compute ``sum_v ReLU(sum_j rows_uj filters_jc anchors_vj + bias_c)`` of graphs padded to one size.

        Args:
            rows, anchors: ``[num_graphs, m, max_nodes]``.
            filters: ``[num_graphs, m, out_channels]``.
            mask: one for nodes and zero for padding, ``[num_graphs, 1, max_nodes]``.
            bias: ``[out_channels]``.

        Returns:
            ``[num_graphs, max_nodes, out_channels]``.
        """
        width = rows.size(2) * self.out_channels  # of an anchor

        def of_graphs(rows: Tensor, anchors: Tensor, filters: Tensor, mask: Tensor) -> Tensor:
            def of_anchors(anchors: Tensor, mask: Tensor) -> Tensor:
                columns = (anchors.unsqueeze(3) * filters.unsqueeze(2)).flatten(2)  # [.., m, anchors * channels]
                pairs = (rows.mT @ columns).unflatten(2, (anchors.size(2), -1))
                return torch.einsum("guvc,gv->guc", torch.relu(pairs + bias), mask.squeeze(1))

            return in_chunks(of_anchors, len(rows) * width, anchors, mask, dim=2)

        return in_chunks(of_graphs, rows.size(2) * width, rows, anchors, filters, mask)
