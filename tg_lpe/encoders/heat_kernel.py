"""Heat kernels as an encoder."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tg_lpe.arguments import checked_non_negative
from tg_lpe.encoders.computed import NodeEdgeEncoder
from tg_lpe.encoders.registry import register
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.heat import heat_kernel_entries, heat_kernel_pairs

TIMES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


@register
class HeatKernel(NodeEdgeEncoder):
    """Encode nodes by the diagonals of heat kernels ``exp(-s L)``, and edges by their entries; ``L = D - A``.

    A diagonal entry tells how much heat is left at a node at time ``s`` if all of it starts there. The encoding is
    equivariant and independent of signs and bases.

    Args:
        times: diffusion times ``s`` (temperatures in the paper), one channel each.
        edge_out_channels: as many as ``times`` for the edge encoding, 0 for none.
        pair_out_channels: 0 for no encoding of pairs, or ``None`` for as many as ``times``: the kernels' entries at
            pairs of nodes, computed from all eigenvectors.

    Raises:
        TypeError: if ``times`` is not a sequence of numbers.
        ValueError: if ``times`` is empty or has a negative or infinite value, or another argument is out of range.

    Example:
        >>> import torch
        >>> from tg_lpe.encoders import HeatKernel
        >>> HeatKernel(times=(1.0, 4.0))(None, torch.tensor([[0, 1, 2], [1, 2, 3]])).node[0]
        tensor([0.5238, 0.2911])
    """

    def __init__(
        self,
        times: Sequence[float] = TIMES,
        edge_out_channels: int | None = None,
        pair_out_channels: int | None = 0,
    ) -> None:
        times = checked_non_negative("times", times)
        super().__init__(len(times), len(times), edge_out_channels, len(times), pair_out_channels)
        self.times = times
        self.name = "_".join(["heat_kernel", *map(str, times)])

    def compute(self, graph: Graph) -> tuple[Tensor, Tensor]:
        """Compute the entries, float64."""
        return heat_kernel_entries(graph, self.times, with_edges=self.edge_out_channels > 0)

    def compute_pairs(self, graph: Graph) -> Tensor:
        """Compute the entries at all pairs of nodes, float64."""
        return heat_kernel_pairs(graph, self.times)
