"""Positions: where a node lies in its graph, by the looped filter of the linear transformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from tg_lpe.arguments import check_count, check_seed
from tg_lpe.encoders.base import Encoding
from tg_lpe.encoders.computed import ComputedEncoder
from tg_lpe.encoders.registry import register
from tg_lpe.graph.components import component_labels
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.subspace import Cut, Subspace, leading_subspace, looped_subspace
from tg_lpe.nn.probes import with_random_signs


class LearnedCut(nn.Module, Cut):
    """A rule for the cut of each loop of the filter, learned from the Ritz values of the loop before.

    ``cut = last + tanh(f) (kth - last)``, where ``last`` is the smallest Ritz value, ``kth`` the smallest that is asked
    for, and ``f`` a net of one hidden layer that reads how far both lie from one, how far the first does, and the
    estimated share that is missing. With ``f = 0``, as constructed, it is the smallest Ritz value.

    Args:
        hidden_channels: width of the hidden layer.
    """

    def __init__(self, hidden_channels: int = 16) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(()))
        self.hidden, self.out = nn.Linear(4, hidden_channels), nn.Linear(hidden_channels, 1)
        self._start_by_hand()

    def reset_parameters(self) -> None:
        """Draw the hidden layer anew, and let the cut be the smallest Ritz value."""
        self.hidden.reset_parameters()
        self.out.reset_parameters()
        self._start_by_hand()

    def _start_by_hand(self) -> None:
        """Let the net be zero."""
        for parameter in (self.start, self.out.weight, self.out.bias):
            nn.init.zeros_(parameter)

    def first(self) -> Tensor:
        """Return the cut of the first loop, a parameter."""
        return self.start

    def forward(self, values: Tensor, missing: Tensor, k: int) -> Tensor:
        """Choose the cut of the next loop, ``[num_components]``; :class:`tg_lpe.graph.subspace.Cut` says from what."""
        last, kth, first = values[:, -1], values[:, k - 1], values[:, 0]
        below = (1 - last).clamp(min=1e-8)
        terms = [below.log10() / 3, (kth - last) / below, (first - last) / below, missing.clamp(min=1e-8).log10() / 4]
        read = torch.stack(terms, dim=1).to(self.start.dtype)
        return last + self.out(self.hidden(read).tanh()).squeeze(1).tanh().to(last) * (kth - last)


MOST_LOOPS = 10
"""Loops that a number may ask for: each is twice as long as the one before."""


@register
class Positions(ComputedEncoder):
    """Positions of the nodes in their component: its leading eigenvectors, by a filter of passes over the edges.

    Two nodes of one community, or of one end of a grid, get similar rows; structural encodings, which follow every
    relabelling, cannot do that. :func:`tg_lpe.graph.subspace.leading_subspace` computes them by loops of layers and
    orthogonalisation, `Graph Transformers Dream of Electric Flow <https://arxiv.org/abs/2410.16699>`_,
    Lemmas 6 to 8. Each connected component has ``k`` columns of its own, as many as it has non-trivial eigenvectors,
    scaled so that their entries have mean square one; further columns are zero.

    Columns are defined up to sign, and up to a rotation where an eigenvalue repeats. With a ``generator`` each column
    of each graph gets a random sign. At an edge, the inner product and the squared distance of its two ends, over
    ``k``, do not depend on either.

    With ``loops="auto"`` loops are run until the columns have settled: the eigenvectors, whatever the weights are, and
    no gradient. :meth:`precompute` gives them, ``node_positions``, ``[num_nodes, k]``. With a number of loops the
    columns are those of the filter after so many, on small graphs too, and gradients reach edge weights and the rule
    for the cut, so that it is trained with a task.

    Args:
        k: number of columns, ``out_channels``.
        edge_out_channels: 2 for the edge encoding, 0 for none.
        loops: ``"auto"`` or a number: of 8 layers, then 16, and so on.
        tolerance: share of the ``k`` eigenvectors that may be missing; read by ``loops="auto"``, as ``max_layers``.
        max_layers: layers of the filter, at most.
        seed: of the random columns that the filter starts from.
        pair_out_channels: 0, or ``None`` for 2: the same at pairs of nodes. Positions of nodes that no path joins count
            as orthogonal.

    Attributes:
        cut: rule for the cut of each loop, :class:`LearnedCut`.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> from tg_lpe import AddPositionalEncoding
        >>> from tg_lpe.encoders import Positions
        >>> path = Data(edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]]), num_nodes=5)
        >>> first = AddPositionalEncoding(Positions(k=2))(path).pe[:, 0]
        >>> bool(first[0] * first[4] < 0)  # the two ends of the path
        True
    """

    def __init__(
        self,
        k: int = 8,
        edge_out_channels: int | None = None,
        loops: int | Literal["auto"] = "auto",
        tolerance: float = 2e-3,
        max_layers: int = 4096,
        seed: int = 0,
        pair_out_channels: int | None = 0,
    ) -> None:
        check_count("k", k)
        check_count("max_layers", max_layers)
        check_seed(seed)
        if loops != "auto":
            check_count("loops", loops)
            if loops > MOST_LOOPS:
                raise ValueError(
                    f"loops must be at most {MOST_LOOPS}, the last of 4,096 layers, or 'auto', got {loops}"
                )
        if not 0 < tolerance < 1:
            raise ValueError(f"tolerance must be between 0 and 1, got {tolerance!r}; 2e-3 is the default")
        super().__init__(k, 2, edge_out_channels, 2, pair_out_channels)
        self.k, self.loops, self.tolerance, self.max_layers, self.seed = k, loops, tolerance, max_layers, seed
        self.cut = LearnedCut().requires_grad_(loops != "auto")

    def keep_channels(self, k: int) -> None:
        """Compute ``k`` eigenvectors, where no encoding of edges or pairs reads more of them."""
        if not self.edge_out_channels and not self.pair_out_channels:
            self.k = self.out_channels = k

    def precompute(self, graph: Graph) -> dict[str, Tensor]:
        """Compute the positions, ``node_positions``; nothing with a number of loops, which depend on the weights."""
        if self.loops != "auto":
            return {}
        found = leading_subspace(
            graph,
            self.k,
            tolerance=self.tolerance,
            max_layers=self.max_layers,
            seed=self.seed,
            dtype=torch.float64 if self.unit.dtype == torch.float64 else torch.float32,
            cut=self.cut,
        )
        return {"node_positions": self.cast(_of_mean_square_one(found))}

    def widths(self) -> dict[str, int]:
        """Name what :meth:`precompute` returns, with its number of columns."""
        return {"node_positions": self.k} if self.loops == "auto" else {}

    def assemble(self, graph: Graph, precomputed: Mapping[str, Tensor], generator: torch.Generator | None) -> Encoding:
        """Give the columns their signs, and compute the edge encoding."""
        positions = self._positions(graph, precomputed)
        edge = None
        if self.edge_out_channels:
            tail, head = graph.edge_index
            edge = self._forms(positions, tail, head).masked_fill((tail == head).unsqueeze(1), 0.0)
        return Encoding(with_random_signs(positions, graph, generator), edge)

    def values_of_pairs(self, graph: Graph, pairs: Tensor, precomputed: Mapping[str, Tensor]) -> Tensor:
        """Inner products and squared distances, over ``k``."""
        positions, label = self._positions(graph, precomputed), component_labels(graph)
        first, second = pairs
        found = self._forms(positions, first, second)
        length = positions.square().sum(1) / self.k
        apart = torch.stack([torch.zeros_like(found[:, 0]), length[first] + length[second]], 1)
        return torch.where((label[first] == label[second]).unsqueeze(1), found, apart)

    def _positions(self, graph: Graph, precomputed: Mapping[str, Tensor]) -> Tensor:
        """Return what was precomputed, or the columns after the given number of loops."""
        if self.loops == "auto":
            return self.cast(precomputed["node_positions"])
        found = looped_subspace(graph, self.k, self.loops, seed=self.seed, like=self.unit, cut=self.cut)
        return _of_mean_square_one(found)

    def _forms(self, positions: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Compute what no sign and no rotation of the columns changes, ``[num_pairs, 2]``."""
        one, other = positions[first], positions[second]
        return torch.stack([(one * other).sum(1), (one - other).square().sum(1)], 1) / self.k


def _of_mean_square_one(found: Subspace) -> Tensor:
    """Columns whose entries have mean square one in each component."""
    sizes = torch.bincount(found.component, minlength=1).to(found.vectors)
    return found.vectors * sizes.sqrt()[found.component].unsqueeze(1)
