"""Centralities as an encoder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tg_lpe.arguments import check_form
from tg_lpe.encoders.computed import NodeEdgeEncoder
from tg_lpe.encoders.registry import register
from tg_lpe.graph.components import Array, ComponentGroup, Components
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.pairs import COLUMN_ENTRIES, check_pair_nodes
from tg_lpe.graph.resistance import grounded_inverses
from tg_lpe.graph.solvers import stacked_eigh
from tg_lpe.graph.sparse_inverse import check_accuracy

WALKS, FLOWS = ("communicability", "katz"), ("green", "commute_time", "closeness", "betweenness")
"""Measures by functions of the adjacency matrix, and by electric flows."""


@register
class Centralities(NodeEdgeEncoder):
    """Encode nodes, edges and pairs by centralities and kernels of network science, one column each.

    ===================== =================================== ==================================
    measure               at nodes                            at edges and pairs
    ===================== =================================== ==================================
    ``"communicability"`` subgraph centrality: the diagonal   ``exp(D^-1/2 A D^-1/2)``
    ``"katz"``            Katz centrality: the sums of rows   ``(I - alpha A)^-1``
    ``"green"``           the diagonal                        Green's kernel ``L^+``
    ``"commute_time"``    the mean over the component         steps of a walk there and back
    ``"closeness"``       current-flow closeness              one over the effective resistance
    ``"betweenness"``     current-flow betweenness            that of edges; zero at other pairs
    ===================== =================================== ==================================

    Communicability is that of `weighted networks <https://doi.org/10.1098/rsif.2008.0484>`_, at most ``e``; ``exp(A)``
    overflows. Katz's ``alpha`` is 0.85 over the largest eigenvalue of the component. Centralities by current flow are
    those of networkx, of each component by itself. All are zero between components.

    Args:
        measures: names of the table.
        edge_out_channels: as many as ``measures`` for the edge encoding, 0 for none.
        pair_out_channels: 0 for no encoding of pairs, or ``None`` for as many as ``measures``.

    Raises:
        ValueError: if an argument is out of range; in a call, if a graph has more than 2,048 nodes.

    Example:
        >>> import torch
        >>> from tg_lpe.encoders import Centralities
        >>> Centralities(["betweenness"])(None, torch.tensor([[0, 1, 2], [1, 2, 3]])).node[:, 0]
        tensor([0.0000, 0.6667, 0.6667, 0.0000])
    """

    def __init__(
        self,
        measures: Sequence[str] = WALKS + FLOWS,
        edge_out_channels: int | None = None,
        pair_out_channels: int | None = 0,
    ) -> None:
        check_form("measures", measures, [str])
        if not measures or not set(measures) <= {*WALKS, *FLOWS}:
            raise ValueError(f"measures must be one or more of {WALKS + FLOWS}, got {measures!r}")
        super().__init__(len(measures), len(measures), edge_out_channels, len(measures), pair_out_channels)
        self.measures = tuple(measures)
        self.name = "_".join(["centralities", *measures])

    def compute(self, graph: Graph) -> tuple[Tensor, Tensor]:
        """Compute the measures at nodes and edges, float64."""
        node, pair = self._of_nodes_and_pairs(graph)
        return node, pair.index_select(0, graph.pair_number(graph.tail, graph.head))

    def compute_pairs(self, graph: Graph) -> Tensor:
        """Compute the measures at all pairs of nodes, float64."""
        return self._of_nodes_and_pairs(graph)[1]

    def _of_nodes_and_pairs(self, graph: Graph) -> tuple[Tensor, Tensor]:
        check_pair_nodes(graph, type(self).__name__)
        parts = Components(graph)
        nodes, pairs = (np.zeros((rows, len(self.measures))) for rows in (graph.num_nodes, graph.num_pairs))
        for group in parts.groups:
            inverse = np.zeros(0)
            if set(self.measures) & set(FLOWS):
                inverse = grounded_inverses(parts, group)
                check_accuracy(group, parts.diagonal, inverse.diagonal(0, 1, 2))
            numbers = parts.pair_numbers(group)
            for column, measure in enumerate(self.measures):
                nodes[group.nodes, column], pairs[numbers, column] = _measure(measure, group, parts.diagonal, inverse)
        return torch.from_numpy(nodes).to(graph.device), torch.from_numpy(pairs).to(graph.device)


def _measure(measure: str, group: ComponentGroup, diagonal: Array, inverse: Array) -> tuple[Array, Array]:
    """Compute a measure of nodes, ``[num_components, n]``, and of pairs, ``[num_components, n, n]``."""
    if measure in WALKS:
        is_katz = measure == "katz"
        scale = np.ones_like(diagonal) if is_katz else 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
        values, vectors = stacked_eigh(-group.matrices(0 * diagonal, scale), group.size)
        values = 1 / (1 - 0.85 * values / np.maximum(values[:, -1:], 1e-300)) if is_katz else np.exp(values)
        kernel = (vectors * values[:, None]) @ vectors.transpose(0, 2, 1)
        return kernel.sum(2) if is_katz else kernel.diagonal(0, 1, 2), kernel
    if measure == "green":
        means = inverse.mean(2, keepdims=True)
        kernel = inverse - means - means.transpose(0, 2, 1) + means.mean(1, keepdims=True)
        return kernel.diagonal(0, 1, 2), kernel
    if measure == "betweenness":  # sums of the differences of all potentials, sorted, for some edges at once
        n, flow = group.size, np.zeros_like(inverse)
        pairs = max((n - 1) * (n - 2), 1)
        for edges in np.array_split(np.arange(len(group.tail)), len(group.tail) * n // COLUMN_ENTRIES + 1):
            position, tail, head = group.position[edges], group.tail[edges], group.head[edges]
            potentials = np.sort(inverse[position, tail] - inverse[position, head])
            flow[position, tail, head] = group.weights[edges] * (potentials @ np.arange(1.0 - n, n, 2.0)) / pairs
        flow += flow.transpose(0, 2, 1)
        return np.maximum(flow.sum(2) - (n - 1) / pairs, 0.0), flow  # without those that begin or end at the node
    at = inverse.diagonal(0, 1, 2)
    resistance = at[:, :, None] + at[:, None] - 2 * inverse
    if measure == "commute_time":
        times = diagonal[group.nodes].sum(1)[:, None, None] * resistance
        return times.mean(2), times
    node, pair = (np.divide(1, r, out=np.zeros_like(r), where=r > 0) for r in (resistance.sum(2), resistance))
    return node, pair
