"""Conductances learned from the features of edges and nodes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tg_lpe.graph.graph import Graph
from tg_lpe.nn.features import Feature


class LearnedConductances(nn.Module):
    r"""Learn positive conductances of edges and ground conductances of nodes, one set per filter.

    An edge of type ``b`` has the conductance ``softplus(g[b])``, a node of type ``a`` the ground conductance
    ``softplus(q[a])``. For real features, a linear map replaces the table. In eq. (1) of `Graph Transformers Dream of
    Electric Flow <https://arxiv.org/abs/2410.16699>`_, conductances are the ``1/r`` whose roots are the entries of
    ``B``. Without features, all edges have conductance one, and all nodes share a ground conductance.

    ``D^-1/2 L D^-1/2`` does not depend on the scale of a filter's conductances; they start near one. The first filter
    starts at exactly one with little ground, so its layers compute random walks. The others start spread around it.

    Args:
        num_filters: number of sets.
        num_edge_types: number of categories of integer edge features, or of each column; values of several columns are
            added before softplus. Exclusive with ``edge_dim``.
        edge_dim: width of real edge features.
        num_node_types: number of categories of integer node features, or of each column. Exclusive with
            ``in_channels``.
        in_channels: width of real node features.
        learned: whether conductances of edges are learned; otherwise they are one, or the edge weights.
        ground: whether nodes have ground conductances.

    Raises:
        ValueError: if arguments exclude each other.
    """

    def __init__(
        self,
        num_filters: int,
        num_edge_types: int | Sequence[int] | None = None,
        edge_dim: int | None = None,
        num_node_types: int | Sequence[int] | None = None,
        in_channels: int | None = None,
        learned: bool = True,
        ground: bool = True,
    ) -> None:
        super().__init__()
        self.num_filters = num_filters
        self._edge_feature = Feature("edge", num_edge_types, edge_dim)
        self._node_feature = Feature("node", num_node_types, in_channels)
        self.num_edge_types, self.edge_dim = num_edge_types, edge_dim
        self.num_node_types, self.in_channels = num_node_types, in_channels
        has_edges = learned and self._edge_feature.width > 0
        self.edge = _PositiveMap(num_filters, self._edge_feature, EDGE_START) if has_edges else None
        self.ground = _PositiveMap(num_filters, self._node_feature, GROUND_START) if ground else None

    def forward(self, graph: Graph, x: Tensor | None, edge_attr: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Compute the conductances of a batch.

        Args:
            graph: the batch; its edge weights multiply the learned conductances.
            x: node types int64 ``[num_nodes]`` or ``[num_nodes, num_columns]``, or features
                ``[num_nodes, in_channels]``.
            edge_attr: types ``[num_directed_edges]`` or features ``[num_directed_edges, edge_dim]``. If both directions
                of an edge differ, its conductance is their mean.

        Returns:
            Conductances of the edges, ``[num_filters, num_edges]`` or ``None`` if all are one, and ground conductances
            ``[num_filters, num_nodes]`` or ``None``.

        Raises:
            ValueError: if a feature is missing, has a wrong width, or is out of range.
        """
        checks = graph.feature_checks()  # values are read from the device once, unless they were checked with the graph
        if self.edge is not None:
            self._edge_feature.check(edge_attr, graph.num_directed_edges, checks)
        if self.ground is not None:
            self._node_feature.check(x, graph.num_nodes, checks)
        checks.run()
        w = None
        if self.edge is not None:
            w = graph.merge_directed(self.edge(edge_attr, graph.num_directed_edges)).mT
        if graph.conductance is not None:
            weight = graph.conductance.expand(self.num_filters, -1)
            w = weight if w is None else w * weight
        return w, None if self.ground is None else self.ground(x, graph.num_nodes).mT

    def of_types(self, feature: str) -> Tensor | None:
        """Return conductances of edge types (``"edge_attr"``) or ground conductances of node types (``"x"``).

        Returns:
            ``[num_types, num_filters]``, with a single row if all nodes share a ground conductance; ``None`` if none
            are learned, or they depend on real features or on several columns of types.
        """
        part = self.edge if feature == "edge_attr" else self.ground
        if part is None or part.weight is not None:
            return None
        if part.feature.counts is not None and len(part.feature.counts) > 1:
            return None
        return nn.functional.softplus(part.table.detach())


EDGE_START = (1.0, 0.5)
GROUND_START = (0.1, 1.0)
"""Initial median of conductances of all filters after the first, and the standard deviation of their logarithms."""


LOWEST = -50.0
"""Lower bound of values of real features before softplus: with smaller conductances, below 1e-21, gradients of
normalised sums overflow in float32."""


class _PositiveMap(nn.Module):
    """Compute softplus of a table or of a linear map."""

    def __init__(self, num_filters: int, feature: Feature, start: tuple[float, float]) -> None:
        super().__init__()
        self.feature, self.start = feature, start
        self.num_filters = num_filters
        self.table = nn.Parameter(torch.empty(1 if feature.counts is None else feature.width, num_filters))
        """Values before softplus, ``[num_types, num_filters]``; or the bias ``[1, num_filters]`` of a linear map."""
        self.weight = None
        if feature.channels is not None:
            self.weight = nn.Parameter(torch.empty(feature.channels, num_filters))
        self._draw()

    @torch.no_grad()
    def _draw(self) -> None:
        """Draw the weights: the first filter starts as a random walk, the others spread around the median."""
        median, spread = self.start
        value = median * (spread * self.table.new_empty(self.table.size(0), self.num_filters).normal_()).exp()
        value[:, 0] = 1.0 if self.start == EDGE_START else 0.01
        self.table.copy_(value.expm1().log())  # the inverse of softplus
        if self.feature.counts is not None:
            self.table[self.feature.counts[0] :] = 0.0  # further columns start without influence
        if self.weight is not None:
            weight = self.weight.new_empty(self.weight.size(0), self.num_filters).normal_()
            weight[:, 0] = 0.0  # the first filter starts independent of the features
            self.weight.copy_(0.1 / max(weight.size(0), 1) ** 0.5 * weight)

    def forward(self, feature: Tensor | None, num_rows: int) -> Tensor:
        """Return positive values ``[num_rows, num_filters]`` of checked features."""
        counts = self.feature.counts
        if counts is not None and len(counts) == 1:  # softplus of the table, which has few rows
            return self.feature.product(feature, nn.functional.softplus(self.table))
        if counts is not None:
            raw = self.feature.product(feature, self.table)
        elif self.weight is None:
            raw = self.table.expand(num_rows, -1)
        else:
            raw = (self.table + self.feature.product(feature, self.weight)).clamp(min=LOWEST)
        return nn.functional.softplus(raw)
