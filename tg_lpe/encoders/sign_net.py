"""SignNet: a network of Laplacian eigenvectors that is independent of their signs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tg_lpe.arguments import check_counts
from tg_lpe.encoders.registry import register
from tg_lpe.encoders.spectral import EigenpairEncoder
from tg_lpe.graph.graph import Graph
from tg_lpe.nn._util import in_chunks, without_autocast
from tg_lpe.nn.gin import GINLayer, normed_perceptron


@register
class SignNet(EigenpairEncoder):
    r"""Encode nodes by a network of Laplacian eigenvectors that is independent of their signs.

    `Sign and Basis Invariant Networks for Spectral Graph Representation Learning <https://arxiv.org/abs/2202.13013>`_,
    section 2: with the eigenvectors :math:`v_j` of the ``num_eigenpairs`` smallest eigenvalues, zeros included,

    .. math:: \rho \Big( \sum_j \varphi(v_j, \lambda_j) + \varphi(-v_j, \lambda_j) \Big) ,

    where :math:`\rho` is a perceptron. The authors write :math:`\rho` of the terms of all ``j`` side by side. The sum
    takes any number of eigenvectors, as in the masked network of their code for ZINC.

    As in that code, :math:`\varphi` is a Graph Isomorphism Network of ``num_layers`` layers. Its input at a node is the
    eigenvector's entry and the eigenvalue. In the authors' code :math:`\varphi` reads no eigenvalues; the network for
    Alchemy adds a map of them to its output, which a transformer reads. The published networks have batch norm. Here
    they have layer norm, which makes the encoding independent of the other graphs of the batch.

    The encoding is independent of signs and of the order of the nodes if all eigenvalues are simple. If an eigenvalue
    repeats, or the last eigenpair cuts through an eigenspace, it depends on an arbitrary basis.
    :class:`~tg_lpe.encoders.SPE` does not. A step takes ``O(m k h)`` for ``m`` edges, ``k`` eigenpairs and ``h`` hidden
    channels; the eigenpairs are computed once. Edge weights get no gradient.

    Args:
        out_channels: width of the encoding.
        num_eigenpairs: number of eigenpairs; a graph may have fewer.
        hidden_channels: width of both networks.
        num_layers: number of layers of the GIN.
        normalization: ``"sym"`` or ``None``, normalization of the Laplacian as in PyG.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> import torch
        >>> from tg_lpe.encoders import SignNet
        >>> SignNet(out_channels=8)(None, torch.tensor([[0, 1, 2], [1, 2, 0]])).node.shape
        torch.Size([3, 8])
    """

    def __init__(
        self,
        out_channels: int = 16,
        num_eigenpairs: int = 16,
        hidden_channels: int = 32,
        num_layers: int = 2,
        normalization: str | None = "sym",
    ) -> None:
        check_counts(out_channels=out_channels, hidden_channels=hidden_channels, num_layers=num_layers)
        super().__init__(out_channels, 0, num_eigenpairs, "eigenvectors", normalization, row_norm=False)
        self.hidden_channels, self.num_layers = hidden_channels, num_layers
        widths = [2, *[hidden_channels] * (num_layers - 1)]
        self.layers = nn.ModuleList(GINLayer(width, hidden_channels, hidden_channels) for width in widths)
        self.rho = normed_perceptron(hidden_channels, hidden_channels, out_channels)

    @without_autocast
    def encode_nodes(self, graph: Graph, node: Tensor, values: Tensor, absent: Tensor) -> Tensor:
        """Return the rows of the nodes, see :meth:`EigenpairEncoder.encode_nodes`."""

        def sums(node: Tensor, values: Tensor, absent: Tensor) -> Tensor:
            both = torch.cat([node, -node], 1)
            h = torch.stack([both, values[graph.batch].repeat(1, 2)], dim=2)
            for number, layer in enumerate(self.layers):
                h = layer(graph, h if not number else h.relu())
            plus, minus = h.chunk(2, dim=1)
            return (plus + minus).masked_fill(absent[graph.batch].unsqueeze(2), 0.0).sum(1)

        width = 2 * graph.num_nodes * self.hidden_channels
        out: Tensor = self.rho(in_chunks(sums, width, node, values, absent, dim=1))
        return out
