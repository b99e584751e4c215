"""Eigenvectors and heat kernels of the magnetic Laplacian as an encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real

import torch
from torch import Tensor

from tg_lpe.arguments import check_count, checked_non_negative
from tg_lpe.encoders.computed import NodeEdgeEncoder
from tg_lpe.encoders.registry import register
from tg_lpe.graph.directed import MagneticSpectrum
from tg_lpe.graph.graph import Graph


@register
class MagneticLaplacian(NodeEdgeEncoder):
    r"""Encode nodes by eigenvectors of the magnetic Laplacian, and edges and pairs by its heat kernels.

    .. math:: L_q = I - D_s^{-1/2} \left( A_s \odot e^{i 2 \pi q \, \Delta} \right) D_s^{-1/2} , \qquad
        A_s = (A + A^T) / 2 , \qquad \Delta_{uv} = [u \to v] - [v \to u] ,

    from `MagNet <https://arxiv.org/abs/2102.11391>`_, section 2.2. The phases of an eigenvector show which way the
    edges point: a step along an edge turns the phase by ``2 pi q``, a step against it turns the phase back. Small
    potentials ``q`` count many steps, large ones distinguish a single step better; use several for both.

    The node encoding has, for each potential, the real parts of the eigenvectors of the ``k`` smallest eigenvalues and
    then their imaginary parts, as in `Transformers Meet Directed Graphs <https://arxiv.org/abs/2302.00049>`_, section
    3. The phase of an eigenvector is arbitrary. It is chosen so that the mean of the entries, weighted by their squared
    absolute values, is real and positive. If that mean is zero, as on a cycle, the first of the largest entries is made
    real and positive, which depends on the order of the nodes. Each eigenvector belongs to one component; if an
    eigenvalue of a component repeats, the basis is arbitrary. If a graph has fewer than ``k`` eigenvectors, the
    remaining columns are zero.

    The encoding of a directed edge or pair ``(u, v)`` has, for each potential, the real parts of ``exp(-t L_q)_uv`` for
    all ``times`` and then the imaginary parts. It is equivariant and independent of phases and bases.

    Reversing all edges changes the sign of imaginary parts. For each potential, graphs of up to 512 nodes take
    ``O(n^3)``. On larger graphs, eigenvectors take some passes over the edges. Graphs may have up to 2,048 nodes if
    edges or pairs are encoded.

    Args:
        k: number of eigenvectors; ``out_channels`` is ``2 k`` for each potential.
        q: one potential or several, at least 0; at most 0.25 in the papers.
        times: diffusion times ``t``.
        edge_out_channels: twice the number of ``times`` for each potential, or 0 for no edge encoding.

    Raises:
        TypeError: if ``times`` is not a sequence of numbers, or ``q`` neither one nor a number.
        ValueError: if an argument is out of range, or a graph is too large to encode edges or pairs.

    Example:
        >>> import torch
        >>> from tg_lpe.encoders import MagneticLaplacian
        >>> path = torch.tensor([[0, 1], [1, 2]])  # from 0 to 1 to 2
        >>> MagneticLaplacian(k=1, q=0.125)(None, path).node[[0, 2]].round(decimals=4)  # both ends
        tensor([[ 0.3536,  0.3536],
                [ 0.3536, -0.3536]])
    """

    directed = True

    def __init__(
        self,
        k: int = 8,
        q: float | Sequence[float] = (0.05, 0.25),
        times: Sequence[float] = (1.0, 4.0),
        edge_out_channels: int | None = None,
    ) -> None:
        check_count("k", k)
        times = checked_non_negative("times", times)
        q = checked_non_negative("q", [q] if isinstance(q, Real) else q)
        width = 2 * len(times) * len(q)
        super().__init__(2 * k * len(q), width, edge_out_channels, width)
        self.k, self.q, self.times = k, q, times
        self.name = "_".join(["magnetic", *map(str, q), "heat", *map(str, times)])

    def compute(self, graph: Graph) -> tuple[Tensor, Tensor]:
        """Compute real and imaginary parts at nodes and directed edges, float64."""
        source, target = graph.edge_index.long()
        spectra = [MagneticSpectrum(graph, q) for q in self.q]
        edge = torch.zeros(len(source), 0, dtype=torch.float64, device=graph.device)
        if self.edge_out_channels:  # first, because it refuses large graphs
            edge = self._heat(spectra, source, target).masked_fill((source == target).unsqueeze(1), 0.0)
        return torch.cat([_parts(spectrum.first(self.k)) for spectrum in spectra], 1), edge

    def values_of_pairs(self, graph: Graph, pairs: Tensor, precomputed: Mapping[str, Tensor]) -> Tensor:
        """Compute real and imaginary parts at pairs of nodes, float64."""
        with torch.no_grad():
            return self._heat([MagneticSpectrum(graph, q) for q in self.q], *pairs.long())

    def _heat(self, spectra: list[MagneticSpectrum], first: Tensor, second: Tensor) -> Tensor:
        """Entries of all heat kernels at pairs of nodes."""
        return torch.cat([_parts(spectrum.heat(self.times, first, second)) for spectrum in spectra], 1)


def _parts(values: Tensor) -> Tensor:
    """Concatenate the real and the imaginary parts of the columns."""
    return torch.cat([values.real, values.imag], 1)
