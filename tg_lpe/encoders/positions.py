"""Positions: where a node lies in its graph, by the looped filter of the linear transformer."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tg_lpe.arguments import check_count, check_seed
from tg_lpe.encoders.base import Encoding
from tg_lpe.encoders.computed import ComputedEncoder
from tg_lpe.encoders.registry import register
from tg_lpe.graph.components import component_labels
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.subspace import leading_subspace
from tg_lpe.nn.probes import with_random_signs


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

    :meth:`precompute` gives ``node_positions``, ``[num_nodes, k]``.

    Args:
        k: number of columns, ``out_channels``.
        edge_out_channels: 2 for the edge encoding, 0 for none.
        tolerance: share of the ``k`` eigenvectors that may be missing.
        max_layers: layers of the filter, at most.
        seed: of the random columns that the filter starts from.
        pair_out_channels: 0, or ``None`` for 2: the same at pairs of nodes. Positions of nodes that no path joins count
            as orthogonal.

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
        tolerance: float = 2e-3,
        max_layers: int = 4096,
        seed: int = 0,
        pair_out_channels: int | None = 0,
    ) -> None:
        check_count("k", k)
        check_count("max_layers", max_layers)
        check_seed(seed)
        if not 0 < tolerance < 1:
            raise ValueError(f"tolerance must be between 0 and 1, got {tolerance!r}; 2e-3 is the default")
        super().__init__(k, 2, edge_out_channels, 2, pair_out_channels)
        self.k, self.tolerance, self.max_layers, self.seed = k, tolerance, max_layers, seed

    def precompute(self, graph: Graph) -> dict[str, Tensor]:
        """Compute the positions, ``node_positions``."""
        found = leading_subspace(
            graph,
            self.k,
            tolerance=self.tolerance,
            max_layers=self.max_layers,
            seed=self.seed,
            dtype=torch.float64 if self.unit.dtype == torch.float64 else torch.float32,
        )
        sizes = torch.bincount(found.component, minlength=1).to(found.vectors)
        return {"node_positions": self.cast(found.vectors * sizes.sqrt()[found.component].unsqueeze(1))}

    def widths(self) -> dict[str, int]:
        """Name what :meth:`precompute` returns, with its number of columns."""
        return {"node_positions": self.k}

    def assemble(self, graph: Graph, precomputed: Mapping[str, Tensor], generator: torch.Generator | None) -> Encoding:
        """Give the columns their signs, and compute the edge encoding."""
        positions = self.cast(precomputed["node_positions"])
        edge = None
        if self.edge_out_channels:
            tail, head = graph.edge_index
            edge = self._forms(positions, tail, head).masked_fill((tail == head).unsqueeze(1), 0.0)
        return Encoding(with_random_signs(positions, graph, generator), edge)

    def values_of_pairs(self, graph: Graph, pairs: Tensor, precomputed: Mapping[str, Tensor]) -> Tensor:
        """Inner products and squared distances, over ``k``."""
        positions, label = self.cast(precomputed["node_positions"]), component_labels(graph)
        first, second = pairs
        found = self._forms(positions, first, second)
        length = positions.square().sum(1) / self.k
        apart = torch.stack([torch.zeros_like(found[:, 0]), length[first] + length[second]], 1)
        return torch.where((label[first] == label[second]).unsqueeze(1), found, apart)

    def _forms(self, positions: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """What no sign and no rotation of the columns changes, ``[num_pairs, 2]``."""
        one, other = positions[first], positions[second]
        return torch.stack([(one * other).sum(1), (one - other).square().sum(1)], 1) / self.k
