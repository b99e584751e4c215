"""LPE: a learned map of each Laplacian eigenpair, summed."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from tg_lpe.arguments import check_count, check_positive
from tg_lpe.encoders.registry import register
from tg_lpe.encoders.spectral import EigenpairEncoder
from tg_lpe.graph.eigenspaces import outer_eigenvectors
from tg_lpe.graph.graph import Graph
from tg_lpe.nn._util import in_chunks, without_autocast


@register
class LPE(EigenpairEncoder):
    r"""Encode nodes by a perceptron of each Laplacian eigenpair, summed.

    `Aligning Transformers with Weisfeiler-Leman <https://arxiv.org/abs/2406.03148>`_, eq. (5): with the eigenvectors
    :math:`V` of the ``num_eigenpairs`` smallest eigenvalues, zeros included, or of both ends of the spectrum,

    .. math:: \rho \Big( \sum_j \varphi(V_{vj}, \lambda_j + \epsilon_j) \Big),

    where :math:`\varphi` has the widths 2, 2 d, d and :math:`\rho` has d, 2 d, d, for ``d = out_channels``, with a ReLU
    after each layer. The learned :math:`\epsilon_j` start at ``j * epsilon``. They distinguish the columns of a
    repeated eigenvalue. Eigenpairs that a graph lacks are left out.

    The result depends on the signs of the eigenvectors, so training draws random signs, for each graph and column, from
    its ``generator``. Without a ``generator``, eigenvectors have the canonical signs of
    :func:`tg_lpe.graph.eigenvectors.laplacian_eigenvectors`. Even then the result depends on the order of the nodes in
    two cases: a symmetry maps an eigenvector to its negative, or an eigenvalue repeats, so that its basis is arbitrary.
    :class:`~tg_lpe.encoders.SPE` is independent of signs and bases.

    Args:
        out_channels: width ``d`` of the encoding.
        num_eigenpairs: number of eigenpairs; the published models have 96.
        normalization: ``"sym"`` or ``None``, normalization of the Laplacian as in PyG.
        epsilon: initial distance between neighbouring :math:`\epsilon_j`.
        num_largest: how many of the eigenpairs belong to the largest eigenvalues; half of them in the published models
            of node tasks. They come last, the largest first. No eigenpair of a graph occurs twice.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> import torch
        >>> from tg_lpe.encoders import LPE
        >>> LPE(out_channels=8)(None, torch.tensor([[0, 1, 2], [1, 2, 0]])).node.shape
        torch.Size([3, 8])
    """

    has_signs = True

    def __init__(
        self,
        out_channels: int = 64,
        num_eigenpairs: int = 32,
        normalization: str | None = "sym",
        epsilon: float = 1e-4,
        num_largest: int = 0,
    ) -> None:
        check_count("out_channels", out_channels)
        super().__init__(out_channels, 0, num_eigenpairs, "eigenvectors", normalization, row_norm=False)
        check_positive("epsilon", epsilon, or_zero=True)
        check_count("num_largest", num_largest, least=0)
        if num_largest >= num_eigenpairs:
            raise ValueError(f"num_largest must be less than num_eigenpairs={num_eigenpairs}, got {num_largest}")
        self.num_largest = num_largest
        if num_largest:
            self.kind += f"_{num_largest}_largest"
        self.epsilon = nn.Parameter(epsilon * torch.arange(num_eigenpairs))
        self.phi = perceptron(2, 2 * out_channels, out_channels)
        self.rho = perceptron(out_channels, 2 * out_channels, out_channels)

    def precompute(self, graph: Graph) -> dict[str, Tensor]:
        """Return eigenvalues and eigenvectors, see :meth:`EigenpairEncoder.precompute`."""
        dtype = self.epsilon.dtype
        node, values = outer_eigenvectors(
            graph, self.num_eigenpairs, self.num_largest, normalization=self.normalization
        )
        return self._named(values.to(dtype), node.to(dtype))

    @without_autocast
    def encode_nodes(self, graph: Graph, node: Tensor, values: Tensor, absent: Tensor) -> Tensor:
        """Return the rows of the nodes, see :meth:`EigenpairEncoder.encode_nodes`."""
        shifted = values + self.epsilon[: values.size(1)]

        def rows(node: Tensor, graphs: Tensor) -> Tensor:
            mapped = self.phi(torch.stack([node, shifted[graphs]], dim=2))
            out: Tensor = self.rho(mapped.masked_fill(absent[graphs].unsqueeze(2), 0.0).sum(1))
            return out

        return in_chunks(rows, 2 * self.out_channels * values.size(1), node, graph.batch)


def perceptron(*widths: int) -> nn.Sequential:
    """Return linear maps of these widths, with a ReLU after each."""
    pairs = pairwise(widths)
    return nn.Sequential(*(layer for sizes in pairs for layer in (nn.Linear(*sizes), nn.ReLU())))
