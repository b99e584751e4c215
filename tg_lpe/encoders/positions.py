"""Positions: leading eigenvectors of each component, by the looped filter of the linear transformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from tg_lpe.arguments import check_count, check_counts, check_seed, check_shares
from tg_lpe.encoders.base import Encoder, Encoding
from tg_lpe.encoders.combined import Combined
from tg_lpe.encoders.computed import ComputedEncoder
from tg_lpe.encoders.registry import register
from tg_lpe.graph.components import component_labels
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.subspace import Cut, Subspace, leading_subspace, looped_subspace
from tg_lpe.nn.probes import with_random_signs


class LearnedCut(nn.Module, Cut):
    """Learned cut of each loop of the filter, from the Ritz values of the previous loop.

    ``cut = last + tanh(f) (kth - last)``, where ``last`` is the smallest Ritz value, ``kth`` is the ``k``-th largest,
    and ``f`` is a net with one hidden layer. The net reads the distance of the smallest Ritz value from one, the
    distances of the ``k``-th and of the largest Ritz value from the smallest, and the estimated missing share. At
    construction ``f = 0``: the cut is the smallest Ritz value.

    Args:
        hidden_channels: width of the hidden layer.
    """

    def __init__(self, hidden_channels: int = 16) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(()))
        self.hidden, self.out = nn.Linear(4, hidden_channels), nn.Linear(hidden_channels, 1)
        for parameter in (self.start, self.out.weight, self.out.bias):
            nn.init.zeros_(parameter)

    def first(self) -> Tensor:
        """Return the cut of the first loop, a parameter."""
        return self.start

    def forward(self, values: Tensor, missing: Tensor, k: int) -> Tensor:
        """Return the cut of the next loop, ``[num_components]``, see :class:`tg_lpe.graph.subspace.Cut`."""
        last, kth, first = values[:, -1], values[:, k - 1], values[:, 0]
        below = (1 - last).clamp(min=1e-8)
        terms = [below.log10() / 3, (kth - last) / below, (first - last) / below, missing.clamp(min=1e-8).log10() / 4]
        inputs = torch.stack(terms, dim=1).to(self.start.dtype)
        return last + self.out(self.hidden(inputs).tanh()).squeeze(1).tanh().to(last) * (kth - last)


@register
class Positions(ComputedEncoder):
    """Encode nodes by the leading eigenvectors of their connected component, on graphs of any size.

    Nodes of the same community, or of the same end of a grid, have similar rows. Structural encodings give equal
    rows to nodes with equal surroundings, wherever the nodes are.
    :func:`tg_lpe.graph.subspace.leading_subspace` computes the eigenvectors by loops of layers, which are passes over
    the edges, and orthogonalisation, as in `Graph Transformers Dream of Electric Flow
    <https://arxiv.org/abs/2410.16699>`_, Lemmas 6 to 8. Each component fills up to ``k`` columns with its non-trivial
    eigenvectors, scaled so that their entries have mean square one; the remaining columns are zero.

    Columns are defined up to sign, and up to a rotation if an eigenvalue repeats. With a ``generator``, each column of
    each graph gets a random sign. The edge encoding is the inner product and the squared distance of the ends' rows,
    divided by ``k``; it is independent of signs and rotations.

    With ``loops="auto"``, loops run until the columns have converged to the eigenvectors, which depend on no weight and
    have no gradient. :meth:`precompute` returns them as ``node_positions``, ``[num_nodes, k]``. With a number of loops,
    the filter stops after that many, also on small graphs. Gradients then reach edge weights and the learned rule for
    the cut.

    Args:
        k: number of columns, ``out_channels``.
        edge_out_channels: 2 for the edge encoding, 0 for none.
        loops: ``"auto"``, or the number of loops; at most 10: the first has 8 layers, the second 16, and so on.
        tolerance: share of the ``k`` eigenvectors that may be missing. Only ``loops="auto"`` reads ``tolerance`` and
            ``max_layers``.
        max_layers: most layers of the filter.
        seed: seed of the random start columns.
        pair_out_channels: 0 for no encoding of pairs, or ``None`` for the 2 channels of edges. Positions of nodes that
            no path joins count as orthogonal.
        min_nodes: graphs of fewer nodes are encoded by zeros. In a table of many small graphs the arbitrary signs of
            columns are noise to a model; in one large graph they are not.

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
        min_nodes: int = 1,
    ) -> None:
        check_counts(k=k, max_layers=max_layers, min_nodes=min_nodes)
        check_seed(seed)
        if loops != "auto":
            check_count("loops", loops)
        check_shares(tolerance=tolerance, or_zero=False)
        super().__init__(k, 2, edge_out_channels, 2, pair_out_channels)
        self.k, self.loops, self.tolerance, self.max_layers, self.seed = k, loops, tolerance, max_layers, seed
        self.min_nodes = min_nodes
        self.cut = LearnedCut().requires_grad_(loops != "auto")

    def precompute(self, graph: Graph) -> dict[str, Tensor]:
        """Return ``node_positions``; nothing with a number of loops, whose columns depend on the weights."""
        if self.loops != "auto":
            return {}
        if graph.max_nodes < self.min_nodes:
            return {"node_positions": self.unit.new_zeros(graph.num_nodes, self.k)}
        subspace = leading_subspace(
            graph,
            self.k,
            tolerance=self.tolerance,
            max_layers=self.max_layers,
            seed=self.seed,
            dtype=torch.float64 if self.unit.dtype == torch.float64 else torch.float32,
            cut=self.cut,
        )
        return {"node_positions": self.cast(_of_mean_square_one(subspace))}

    def widths(self) -> dict[str, int]:
        """Return the widths of the tensors of :meth:`precompute` by name."""
        return {"node_positions": self.k} if self.loops == "auto" else {}

    def assemble(self, graph: Graph, precomputed: Mapping[str, Tensor], generator: torch.Generator | None) -> Encoding:
        """Return the columns with their signs, and the edge encoding."""
        positions = self._positions(graph, precomputed)
        edge = None
        if self.edge_out_channels:
            tail, head = graph.edge_index
            edge = self._forms(positions, tail, head).masked_fill((tail == head).unsqueeze(1), 0.0)
        return Encoding(with_random_signs(positions, graph, generator), edge)

    def values_of_pairs(self, graph: Graph, pairs: Tensor, precomputed: Mapping[str, Tensor]) -> Tensor:
        """Compute inner products and squared distances, divided by ``k``."""
        positions, label = self._positions(graph, precomputed), component_labels(graph)
        first, second = pairs
        forms = self._forms(positions, first, second)
        length = positions.square().sum(1) / self.k
        orthogonal = torch.stack([torch.zeros_like(forms[:, 0]), length[first] + length[second]], 1)
        return torch.where((label[first] == label[second]).unsqueeze(1), forms, orthogonal)

    def _positions(self, graph: Graph, precomputed: Mapping[str, Tensor]) -> Tensor:
        """Return the precomputed columns, or the columns after :attr:`loops` loops."""
        if self.loops == "auto":
            positions = self.cast(precomputed["node_positions"])
        else:
            subspace = looped_subspace(graph, self.k, self.loops, seed=self.seed, like=self.unit, cut=self.cut)
            positions = _of_mean_square_one(subspace)
        if self.min_nodes == 1:
            return positions
        return positions.masked_fill((graph.ptr.diff() < self.min_nodes)[graph.batch].unsqueeze(1), 0.0)

    def _forms(self, positions: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Return inner products and squared distances of rows, divided by ``k``, ``[num_pairs, 2]``."""
        u, v = positions[first], positions[second]
        return torch.stack([(u * v).sum(1), (u - v).square().sum(1)], 1) / self.k


def first_columns(encoder: Encoder, k: int) -> Encoder:
    """Return an encoder of at least the first ``k`` columns that computes few others; it may be the same one, changed.

    :class:`Positions` computes ``k`` columns, unless edges or pairs read all of them, and :class:`Combined` leaves out
    its last encoders.
    """
    if isinstance(encoder, Positions) and not encoder.edge_out_channels and not encoder.pair_out_channels:
        encoder.k = encoder.out_channels = min(k, encoder.k)
    if not isinstance(encoder, Combined) or encoder.edge_out_channels or encoder.pair_out_channels:
        return encoder
    parts: list[Encoder] = []
    for part in encoder._parts:
        if (left := k - sum(each.out_channels for each in parts)) > 0:
            parts.append(first_columns(part, left))
    encoder.encoders, encoder.out_channels = nn.ModuleList(parts), sum(part.out_channels for part in parts)
    return parts[0] if len(parts) == 1 else encoder


def _of_mean_square_one(subspace: Subspace) -> Tensor:
    """Scale columns so that their entries have mean square one in each component."""
    sizes = torch.bincount(subspace.component, minlength=1).to(subspace.vectors)
    return subspace.vectors * sizes.sqrt()[subspace.component].unsqueeze(1)
