"""R-PEARL: random inputs through a message-passing network, averaged over samples."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tg_lpe.arguments import check_counts, check_seed
from tg_lpe.encoders.base import Encoder, Encoding, Inputs
from tg_lpe.encoders.registry import register
from tg_lpe.graph.graph import Graph, inverse_sqrt
from tg_lpe.nn._util import in_chunks, without_autocast
from tg_lpe.nn.gin import GINLayer, neighbour_sums
from tg_lpe.nn.probes import RandomProbes


@register
class RPEARL(Encoder):
    r"""Encode nodes by a message-passing network of random node features, averaged over samples.

    R-PEARL of `Learning Efficient Positional Encodings with Graph Neural Networks <https://arxiv.org/abs/2502.01122>`_.
    Each of the ``samples`` vectors :math:`q_m` has an independent standard normal number at each node. It passes
    through a bank of graph filters, a learned map, and a Graph Isomorphism Network :math:`\Phi` of ``num_layers``
    layers:

    .. math:: \frac{1}{M} \sum_{m=1}^{M} \Phi\big(\sigma( [q_m, S q_m, \dots, S^{K-1} q_m] W )\big), \qquad
        S = D^{-1/2} A D^{-1/2}, \quad K = \mathtt{powers} .

    The authors' code uses the Laplacian as ``S``, which spans the same filters, and batch norm. Here layer norm makes
    the encoding independent of the other graphs of the batch.

    The encoding is random. Each random number depends only on the seed, the sample and the node's index within its
    graph, so a graph always gets the same encoding, alone or in a batch, until its nodes are renumbered. Two draws
    agree in expectation and differ by about :math:`1 / \sqrt{M}`. With a ``generator``, as in training, each call
    draws new numbers. The encoding is structural: nodes that a symmetry exchanges have equal rows in expectation. A
    step takes ``O(m M (K + h))`` for ``m`` edges and ``h`` hidden channels, without eigenvectors.

    Args:
        out_channels: width of the encoding.
        samples: number of samples ``M``.
        powers: number of powers ``K`` of ``S``, including the zeroth.
        hidden_channels: width of the network.
        num_layers: number of layers of the GIN.
        seed: seed of the random numbers.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> import torch
        >>> from tg_lpe.encoders import RPEARL
        >>> RPEARL(out_channels=8)(None, torch.tensor([[0, 1, 2], [1, 2, 0]])).node.shape
        torch.Size([3, 8])
    """

    def __init__(
        self,
        out_channels: int = 16,
        samples: int = 32,
        powers: int = 8,
        hidden_channels: int = 32,
        num_layers: int = 2,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_counts(out_channels=out_channels, samples=samples, powers=powers)
        check_counts(hidden_channels=hidden_channels, num_layers=num_layers)
        check_seed(seed)
        self.out_channels, self.hidden_channels = out_channels, hidden_channels
        self.samples, self.powers = samples, powers
        self.probes = RandomProbes(samples, seed)
        self.filters = nn.Sequential(nn.Linear(powers, hidden_channels), nn.LayerNorm(hidden_channels), nn.ReLU())
        widths = [hidden_channels] * num_layers + [out_channels]
        self.layers = nn.ModuleList([GINLayer(hidden_channels, hidden_channels, width) for width in widths[1:]])

    @without_autocast
    def encode(self, graph: Graph, inputs: Inputs) -> Encoding:
        """Encode nodes, see :meth:`Encoder.encode`; the ``generator`` draws the random numbers."""
        q = self.probes(graph, None, inputs.generator)
        scale = inverse_sqrt(graph.laplacian_diagonal(q)).unsqueeze(1)

        def sums(q: Tensor) -> Tensor:
            bank = [q]
            for _ in range(self.powers - 1):
                bank.append(scale * neighbour_sums(graph, scale * bank[-1]))
            h = self.filters(torch.stack(bank, dim=2))
            for number, layer in enumerate(self.layers):
                h = layer(graph, h if not number else h.relu())
            return h.mean(1) * (h.size(1) / self.samples)

        return Encoding(in_chunks(sums, graph.num_nodes * self.hidden_channels, q, dim=1))
