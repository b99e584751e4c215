"""Eigenvectors and heat of the magnetic Laplacian as an encoder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Real

import torch
from torch import Tensor

from tg_lpe.arguments import check_count
from tg_lpe.encoders.computed import NodeEdgeEncoder
from tg_lpe.encoders.heat_kernel import check_times
from tg_lpe.encoders.registry import register
from tg_lpe.graph.directed import MagneticSpectrum
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.pairs import check_pair_nodes


@register
class MagneticLaplacian(NodeEdgeEncoder):
    r"""Eigenvectors of the magnetic Laplacian, whose phases tell which way the edges point; heat at edges and pairs.

    .. math:: L_q = I - D_s^{-1/2} \left( A_s \odot e^{i 2 \pi q \, \Delta} \right) D_s^{-1/2} , \qquad
        A_s = (A + A^T) / 2 , \qquad \Delta_{uv} = [u \to v] - [v \to u] ,

    `MagNet <https://arxiv.org/abs/2102.11391>`_, section 2.2. A step along an edge turns the phase by ``2 pi q``, a
    step against it back. Small potentials count many steps, large ones tell one step better; several do both.

    At a node, for each potential, the real parts of the eigenvectors of the ``k`` smallest eigenvalues and then their
    imaginary parts, as in `Transformers Meet Directed Graphs <https://arxiv.org/abs/2302.00049>`_, section 3. An
    eigenvector has an arbitrary phase; here the mean of its entries, weighted by their squared absolute values, is real
    and positive. Where that is zero, as on a cycle, the first of the largest entries is, which depends on the order of
    the nodes. Where an eigenvalue repeats, the basis is arbitrary. Columns are zero where a graph has fewer.

    At the listed edge and at the pair ``(u, v)``, for each potential, the real parts of ``exp(-t L_q)_uv`` for all
    ``times`` and then the imaginary parts: equivariant, no phases or bases to choose.

    Turning all edges round changes the sign of imaginary parts. It takes ``O(n^3)`` for each potential, and graphs of
    up to 4,096 nodes; at pairs 2,048.

    Args:
        k: number of eigenvectors; ``out_channels`` are ``2 k`` for each potential.
        q: one potential or several, at least 0; at most 0.25 in the papers.
        times: diffusion times of the heat.
        edge_out_channels: twice as many as ``times`` for each potential, or 0 for no edge encoding.

    Raises:
        TypeError: if ``q`` or ``times`` is neither a number nor a sequence of numbers.
        ValueError: if an argument is out of range.

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
        q, times = _potentials(q), check_times(times)
        width = 2 * len(times) * len(q)
        super().__init__(2 * k * len(q), width, edge_out_channels, width)
        self.k, self.q, self.times = k, q, times
        self.name = "_".join(["magnetic", *map(str, q), "heat", *map(str, times)])

    def compute(self, graph: Graph) -> tuple[Tensor, Tensor]:
        """The parts at nodes and directed edges, float64."""
        source, target = graph.edge_index.long()
        spectra = [MagneticSpectrum(graph, q) for q in self.q]
        node = torch.cat([_parts(spectrum.first(self.k)) for spectrum in spectra], 1)
        if not self.edge_out_channels:
            return node, node.new_zeros(len(source), 0)
        return node, self._heat(spectra, source, target).masked_fill((source == target).unsqueeze(1), 0.0)

    def values_of_pairs(self, graph: Graph, pairs: Tensor, precomputed: Mapping[str, Tensor]) -> Tensor:
        """The parts at pairs of nodes, float64."""
        check_pair_nodes(graph, type(self).__name__)
        with torch.no_grad():
            return self._heat([MagneticSpectrum(graph, q) for q in self.q], *pairs.long())

    def _heat(self, spectra: list[MagneticSpectrum], first: Tensor, second: Tensor) -> Tensor:
        entries = [torch.stack([one.heat(time, first, second) for time in self.times], 1) for one in spectra]
        return torch.cat([_parts(values) for values in entries], 1)


def _parts(values: Tensor) -> Tensor:
    """Real and then imaginary parts of the columns."""
    return torch.cat([values.real, values.imag], 1)


def _potentials(q: float | Sequence[float]) -> tuple[float, ...]:
    """The potentials as a tuple."""
    given = list(q) if isinstance(q, Iterable) and not isinstance(q, str) else [q]
    if not all(isinstance(value, Real) and not isinstance(value, bool) for value in given):
        raise TypeError(f"q must be a number or a sequence of numbers, got {q!r}")
    found = tuple(float(value) for value in given)
    if not found or not all(0 <= value < float("inf") for value in found):
        raise ValueError(f"q must be finite and not negative, at least one, got {found}")
    return found
