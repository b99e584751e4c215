"""Numbers of cycles as an encoder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from tg_lpe.arguments import check_count, number_hint
from tg_lpe.encoders.computed import NodeEdgeEncoder
from tg_lpe.encoders.registry import register
from tg_lpe.graph.cycles import cycle_counts
from tg_lpe.graph.graph import Graph

LONGEST = 8


@register
class CycleCounts(NodeEdgeEncoder):
    r"""Count the simple cycles of each length through each node and each edge.

    There is one channel for each length, as in `Improving Graph Neural Network Expressivity via Subgraph Isomorphism
    Counting <https://arxiv.org/abs/2006.09252>`_, section 3. Message passing cannot count cycles: it gives all nodes
    of two triangles and of a hexagon equal rows.

    The counts are exact and found by enumeration, so the work grows with the number of paths: it is small on molecules
    and other sparse graphs, and dense graphs raise an error. Edge weights are not read. The encoding is equivariant and
    independent of signs and bases.

    Args:
        lengths: numbers of edges of the cycles, each from 3 to 8, in any order.
        edge_out_channels: as many as ``lengths`` for the edge encoding, 0 for none.
        max_paths: most paths that are extended in a graph; more raise an error.

    Raises:
        TypeError: if ``lengths`` is not a sequence.
        ValueError: if an argument is out of range.

    Example:
        >>> import torch
        >>> from tg_lpe.encoders import CycleCounts
        >>> edge_index = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])  # a square and a diagonal of it
        >>> CycleCounts(lengths=(3, 4))(None, edge_index).node
        tensor([[2., 1.],
                [1., 1.],
                [2., 1.],
                [1., 1.]])
    """

    reads = frozenset()

    def __init__(
        self,
        lengths: Sequence[int] = (3, 4, 5, 6, 7, 8),
        edge_out_channels: int | None = None,
        max_paths: int = 10_000_000,
    ) -> None:
        if isinstance(lengths, str) or not isinstance(lengths, Iterable):
            raise TypeError(f"lengths must be a sequence of integers, got {lengths!r}")
        lengths = tuple(lengths)
        are_known = all(isinstance(length, int) and 3 <= length <= LONGEST for length in lengths)
        if not lengths or not are_known or len(set(lengths)) < len(lengths):
            hint = number_hint(next(iter(lengths), None))
            raise ValueError(f"lengths must be one or more different integers from 3 to {LONGEST}, got {lengths}{hint}")
        check_count("max_paths", max_paths)
        super().__init__(len(lengths), len(lengths), edge_out_channels)
        self.lengths, self.max_paths = lengths, max_paths
        self.name = "_".join(["cycle_counts", *map(str, lengths)])

    def compute(self, graph: Graph) -> tuple[Tensor, Tensor]:
        """Count cycles at nodes and edges, float64."""
        return cycle_counts(graph, self.lengths, self.max_paths)
