"""Conductances that are learned from what edges and nodes are."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tg_lpe.graph.incidence import Incidence


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
            edge_attr: types ``[num_listed_edges]`` or features ``[num_listed_edges, channels]`` of the listed edges.
                Where the listings of an edge differ, it conducts their mean.

        Returns:
            ``w`` of the columns of ``B``, ``[num_filters, num_edges]`` or ``None`` for all one, and ground conductances
            ``[num_filters, num_nodes]`` or ``None``.

        Raises:
            ValueError: if a feature is missing, of another width or out of range.
        """
        w = None
        if self.edge is not None:
            if self.ends is None:
                listed = self.edge("edge_attr", edge_attr, graph.num_listed_edges)
            else:
                raw = self.edge.raw("edge_attr", edge_attr, graph.num_listed_edges)
                ends = graph.end_sums(self._end_values(self.ends, x, graph.num_nodes))
                listed = nn.functional.softplus(raw + ends)
            w = graph.merge_listings(listed).mT
        if graph.conductance is not None:
            given = graph.conductance.expand(self.num_filters, -1)
            w = given if w is None else w * given
        if self.ground is None:
            return w, None
        return w, self.ground("x", x, graph.num_nodes).mT

    def _end_values(self, ends: Tensor, x: Tensor | None, num_nodes: int) -> Tensor:
        """What each node adds to the conductances of its edges, before softplus, ``[num_nodes, num_filters]``."""
        if self.num_node_types is not None:
            return _look_up("x", x, num_nodes, ends)
        return _real("x", x, num_nodes, ends) @ ends


EDGE_START = (1.0, 0.5)
GROUND_START = (0.1, 1.0)
"""Median conductance that filters after the first start from, and the spread of its logarithm."""


class _PositiveMap(nn.Module):
    """softplus of a table or of a linear map."""

    def __init__(
        self, num_filters: int, num_types: int | None, in_channels: int | None, start: tuple[float, float]
    ) -> None:
        super().__init__()
        median, spread = start
        rows = num_types if num_types is not None else 1
        value = median * (spread * torch.randn(rows, num_filters)).exp()
        value[:, 0] = 1.0 if start is EDGE_START else 0.01
        raw = value.expm1().log()  # the inverse of softplus
        self.num_types, self.in_channels = num_types, in_channels
        self.table = nn.Parameter(raw)
        """Before softplus, ``[num_types, num_filters]``; the bias ``[1, num_filters]`` of a linear map."""
        self.weight: nn.Parameter | None = None
        if in_channels is not None:
            weight = torch.randn(in_channels, num_filters) * (0.1 / in_channels**0.5)
            weight[:, 0] = 0.0  # the first filter starts as a random walk, whatever the features
            self.weight = nn.Parameter(weight)

    def forward(self, name: str, feature: Tensor | None, num_rows: int) -> Tensor:
        """Positive values ``[num_rows, num_filters]``."""
        if self.num_types is not None:
            return _look_up(name, feature, num_rows, nn.functional.softplus(self.table))
        return nn.functional.softplus(self.raw(name, feature, num_rows))

    def raw(self, name: str, feature: Tensor | None, num_rows: int) -> Tensor:
        """Values before softplus, ``[num_rows, num_filters]``."""
        if self.num_types is not None:
            return _look_up(name, feature, num_rows, self.table)
        if self.weight is None:
            return self.table.expand(num_rows, -1)
        return self.table + _real(name, feature, num_rows, self.weight) @ self.weight


def _real(name: str, feature: Tensor | None, num_rows: int, weight: Tensor) -> Tensor:
    """Checked real features ``[num_rows, channels]``."""
    if feature is None or feature.shape != (num_rows, weight.size(0)) or not feature.is_floating_point():
        got = None if feature is None else f"{feature.dtype} {list(feature.shape)}"
        raise ValueError(f"{name} must be floating point [{num_rows}, {weight.size(0)}], got {got}")
    return feature.to(weight.dtype)


def _look_up(name: str, feature: Tensor | None, num_rows: int, table: Tensor) -> Tensor:
    """Rows of a table by types that are checked, ``[num_rows, num_filters]``."""
    types = feature.squeeze(-1) if feature is not None and feature.dim() == 2 else feature
    if types is None or types.shape != (num_rows,) or types.dtype != torch.int64:
        got = None if feature is None else f"{feature.dtype} {list(feature.shape)}"
        raise ValueError(f"{name} must be int64 types [{num_rows}] or [{num_rows}, 1], got {got}")
    low, high = (int(i) for i in torch.aminmax(types)) if num_rows else (0, 0)
    if num_rows and not 0 <= low <= high < table.size(0):
        raise ValueError(f"{name} types must lie in 0..{table.size(0) - 1}, got {low}..{high}")
    if not (torch.is_grad_enabled() and table.requires_grad):
        return table.index_select(0, types)
    # A narrow one-hot matrix: the backward pass of a product is a product too, not a scattered sum.
    one_hot = table.new_zeros(num_rows, table.size(0)).scatter_(1, types.unsqueeze(1), 1.0)
    return one_hot @ table
