"""Conductances that are learned from what edges and nodes are."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tg_lpe.graph.incidence import Incidence
from tg_lpe.nn.checks import ValueChecks


class LearnedConductances(nn.Module):
    r"""Positive conductances of edges and ground conductances of nodes, one set per filter.

    An edge of type ``b`` conducts ``softplus(g[b])``; a node of type ``a`` is grounded through ``softplus(q[a])``. Real
    features go through a linear map instead of a table. In eq. (1) of `Graph Transformers Dream of Electric Flow
    <https://arxiv.org/abs/2410.16699>`_ these are the ``1/r`` whose roots are the entries of ``B``. Without features,
    all edges conduct one, and all nodes share a ground conductance.

    Scaling all conductances of a filter changes nothing in ``D^-1/2 L D^-1/2``; they start near one. The first filter
    starts at exactly one with little ground, where the layers compute random walks; the others are spread around it.

    Args:
        num_filters: number of sets.
        num_edge_types: categories of integer edge features; exclusive with ``edge_dim``.
        edge_dim: width of real edge features.
        num_node_types: categories of integer node features; exclusive with ``in_channels``.
        in_channels: width of real node features.
        learned: whether edges conduct differently; all one (or ``edge_weight``) otherwise.
        ends: whether the conductance of an edge depends on the node features of its two ends as well.
        ground: whether nodes are grounded.

    Raises:
        ValueError: if arguments exclude each other.
    """

    def __init__(
        self,
        num_filters: int,
        num_edge_types: int | None = None,
        edge_dim: int | None = None,
        num_node_types: int | None = None,
        in_channels: int | None = None,
        learned: bool = True,
        ground: bool = True,
        ends: bool = False,
    ) -> None:
        super().__init__()
        if num_edge_types is not None and edge_dim is not None:
            raise ValueError(f"edges have either types or channels, got {num_edge_types} types and {edge_dim}")
        if num_node_types is not None and in_channels is not None:
            raise ValueError(f"nodes have either types or channels, got {num_node_types} types and {in_channels}")
        self.num_filters = num_filters
        self.num_edge_types, self.edge_dim = num_edge_types, edge_dim
        self.num_node_types, self.in_channels = num_node_types, in_channels
        has_edges = learned and (num_edge_types is not None or edge_dim is not None)
        self.edge = _PositiveMap(num_filters, num_edge_types, edge_dim, EDGE_START) if has_edges else None
        self.ground = _PositiveMap(num_filters, num_node_types, in_channels, GROUND_START) if ground else None
        if ends and (self.edge is None or (num_node_types is None and in_channels is None)):
            raise ValueError(
                "conductances that depend on the ends of an edge (end_features, ends) must be learned and need edge "
                f"and node features, got learned={learned}, num_edge_types={num_edge_types}, "
                f"edge_dim={edge_dim}, num_node_types={num_node_types}, in_channels={in_channels}"
            )
        # Starts at zero: the ends of an edge matter as far as training finds.
        rows = num_node_types if num_node_types is not None else in_channels or 0
        self.ends = nn.Parameter(torch.zeros(rows, num_filters)) if ends else None

    def forward(
        self, graph: Incidence, x: Tensor | None, edge_attr: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Conductances of a batch.

        Args:
            graph: the batch; its own conductances are factors on the learned ones.
            x: node types int64 ``[num_nodes]`` or ``[num_nodes, 1]``, or features ``[num_nodes, in_channels]``.
            edge_attr: types ``[num_directed_edges]`` or features ``[num_directed_edges, edge_dim]``. Where the directed
                edges of an undirected one differ, it conducts their mean.

        Returns:
            ``w`` of the columns of ``B``, ``[num_filters, num_edges]`` or ``None`` for all one, and ground conductances
            ``[num_filters, num_nodes]`` or ``None``.

        Raises:
            ValueError: if a feature is missing, of another width or out of range.
        """
        self._check(graph, x, edge_attr)
        w = None
        if self.edge is not None:
            if self.ends is None:
                listed = self.edge(edge_attr, graph.num_directed_edges)
            else:
                raw = self.edge.raw(edge_attr, graph.num_directed_edges)
                ends = graph.end_sums(_product(x, self.ends, self.num_node_types))
                listed = nn.functional.softplus(raw + ends)
            w = graph.merge_directed(listed).mT
        if graph.conductance is not None:
            given = graph.conductance.expand(self.num_filters, -1)
            w = given if w is None else w * given
        if self.ground is None:
            return w, None
        return w, self.ground(x, graph.num_nodes).mT

    def _check(self, graph: Incidence, x: Tensor | None, edge_attr: Tensor | None) -> None:
        """Refuse features that do not fit; their values are read from the device once."""
        checks = ValueChecks()
        if self.edge is not None:
            _check("edge_attr", edge_attr, graph.num_directed_edges, self.num_edge_types, self.edge_dim, checks)
        if self.ground is not None or self.ends is not None:
            _check("x", x, graph.num_nodes, self.num_node_types, self.in_channels, checks)
        checks.run()

    def reset_parameters(self) -> None:
        """Draw the conductances anew; the ends of an edge start without influence."""
        for part in (self.edge, self.ground):
            if part is not None:
                part.reset_parameters()
        if self.ends is not None:
            nn.init.zeros_(self.ends)


EDGE_START = (1.0, 0.5)
GROUND_START = (0.1, 1.0)
"""Median conductance that filters after the first start from, and the spread of its logarithm."""


class _PositiveMap(nn.Module):
    """softplus of a table or of a linear map."""

    def __init__(
        self, num_filters: int, num_types: int | None, in_channels: int | None, start: tuple[float, float]
    ) -> None:
        super().__init__()
        self.num_types, self.in_channels, self.start = num_types, in_channels, start
        self.table = nn.Parameter(torch.empty(num_types if num_types is not None else 1, num_filters))
        """Before softplus, ``[num_types, num_filters]``; the bias ``[1, num_filters]`` of a linear map."""
        self.weight = None if in_channels is None else nn.Parameter(torch.empty(in_channels, num_filters))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the values anew: the first filter starts as a random walk, the others are spread around the median."""
        median, spread = self.start
        value = median * (spread * torch.randn_like(self.table)).exp()
        value[:, 0] = 1.0 if self.start is EDGE_START else 0.01
        self.table.copy_(value.expm1().log())  # the inverse of softplus
        if self.weight is not None:
            self.weight.normal_().mul_(0.1 / self.weight.size(0) ** 0.5)
            self.weight[:, 0] = 0.0  # whatever the features

    def forward(self, feature: Tensor | None, num_rows: int) -> Tensor:
        """Positive values ``[num_rows, num_filters]`` of features that were checked."""
        if self.num_types is not None:
            return _product(feature, nn.functional.softplus(self.table), self.num_types)
        return nn.functional.softplus(self.raw(feature, num_rows))

    def raw(self, feature: Tensor | None, num_rows: int) -> Tensor:
        """Values before softplus, ``[num_rows, num_filters]``."""
        if self.num_types is not None:
            return _product(feature, self.table, self.num_types)
        if self.weight is None:
            return self.table.expand(num_rows, -1)
        return self.table + _product(feature, self.weight, None)


def _check(
    name: str, feature: Tensor | None, num_rows: int, num_types: int | None, channels: int | None, checks: ValueChecks
) -> None:
    """Refuse types or features of the wrong form; the range of types is left to ``checks``."""
    got = None if feature is None else f"{feature.dtype} {list(feature.shape)}"
    if num_types is not None:
        if feature is None or feature.shape not in ((num_rows,), (num_rows, 1)) or feature.dtype != torch.int64:
            raise ValueError(f"{name} must be int64 types [{num_rows}] or [{num_rows}, 1], got {got}")
        checks.in_range(f"{name} types", feature, num_types)
    elif channels is not None and (
        feature is None or feature.shape != (num_rows, channels) or not feature.is_floating_point()
    ):
        raise ValueError(f"{name} must be floating point [{num_rows}, {channels}], got {got}")


def _product(feature: Tensor | None, weight: Tensor, num_types: int | None) -> Tensor:
    """Rows of a table by types, or real features times a matrix, ``[num_rows, num_filters]``."""
    assert feature is not None  # as _check has seen
    if num_types is None:
        return feature.to(weight.dtype) @ weight
    types = feature.reshape(-1)
    if not (torch.is_grad_enabled() and weight.requires_grad):
        return weight.index_select(0, types)
    # A narrow one-hot matrix: the backward pass of a product is a product too, not a scattered sum.
    one_hot = weight.new_zeros(types.numel(), num_types).scatter_(1, types.unsqueeze(1), 1.0)
    return one_hot @ weight
