"""Electric flows as an encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tg_lpe.arguments import check_form, check_positive
from tg_lpe.data.spec import DataSpec
from tg_lpe.encoders.base import Encoder, Encoding, Inputs
from tg_lpe.encoders.registry import register
from tg_lpe.graph.flow import electric_potentials, with_ground
from tg_lpe.graph.graph import Graph
from tg_lpe.nn._util import without_autocast
from tg_lpe.nn.conductances import LearnedConductances


@register
class ElectricFlow(Encoder):
    r"""Encode nodes by potentials and edges by currents of electric flows whose demands are node features.

    A demand ``b`` is a column of ``x``: the current that enters the network at each node. Its potentials are
    ``v = L^+ b``, with ``L`` of the conductances ``w`` (``edge_weight``: one over a resistance or a reactance), and the
    current along a directed edge is ``w_uv (v_u - v_v)``: `Graph Transformers Dream of Electric Flow
    <https://arxiv.org/abs/2410.16699>`_, section 3.1. What enters a component must leave it, so the mean of a demand
    over each component is subtracted. The potential at an isolated node is zero.

    The encoding is exact, equivariant, linear in the demands, and has gradients to demands and conductances. Its two
    directions of an edge have opposite currents; which of them are listed does not matter. Divide demands by their
    scale in the data, as other features. Layers of :class:`~tg_lpe.LinearTransformer` that start from the features
    approximate potentials (Lemma 1).

    Args:
        columns: the column of ``x`` that is a demand, or several, ``out_channels`` in number.
        edge_out_channels: ``out_channels`` for currents (the default), 0 for none.
        ground: conductance between each node and the ground, which takes what a demand has too much: potentials are
            then ``(L + ground I)^-1 b``.
        num_edge_types, edge_dim: the edge features that conductances are learned from, as in
            :class:`~tg_lpe.GramTransformer`; they multiply the edge weights. By default, none are learned.

    Raises:
        ValueError: if an argument is out of range; in a call, if ``x`` is missing, has too few columns or is not
            finite, or conductances of one component differ too much for currents that add up to the demands.

    Example:
        >>> import torch
        >>> from tg_lpe.encoders import ElectricFlow
        >>> injected = torch.tensor([[1.0], [0.0], [-1.0]])  # one unit from node 0 to node 2 of a triangle
        >>> ElectricFlow()(injected, torch.tensor([[0, 0, 1], [2, 1, 2]])).edge[:, 0]
        tensor([0.6667, 0.3333, 0.3333])
    """

    directed = True
    unit: Tensor

    def __init__(
        self,
        columns: int | Sequence[int] = 0,
        edge_out_channels: int | None = None,
        ground: float = 0.0,
        num_edge_types: int | Sequence[int] | None = None,
        edge_dim: int | None = None,
    ) -> None:
        super().__init__()
        check_positive("ground", ground, or_zero=True)
        check_form("columns", [columns] if isinstance(columns, int) else columns, [int])
        self.columns = [columns] if isinstance(columns, int) else list(columns)
        if not self.columns or min(self.columns) < 0:
            raise ValueError(f"columns must be numbers of columns of x, such as (0, 2), got {columns!r}")
        self.ground, width = float(ground), len(self.columns)
        if edge_out_channels not in (None, 0, width):
            raise ValueError(f"edge_out_channels must be {width}, or 0 for no currents, got {edge_out_channels!r}")
        self.out_channels = width
        self.edge_out_channels = width if edge_out_channels is None else edge_out_channels
        learned = num_edge_types is not None or edge_dim is not None
        self.conductances = LearnedConductances(1, num_edge_types, edge_dim, ground=False) if learned else None
        self.reads = frozenset({"x", "edge_weight", *(["edge_attr"] if learned else [])})
        self.register_buffer("unit", torch.ones(()), persistent=False)  # in the module's dtype

    @classmethod
    def data_arguments(cls, spec: DataSpec, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return nothing: conductances are learned only if the arguments say so."""
        return {}

    @without_autocast
    def encode(self, graph: Graph, inputs: Inputs) -> Encoding:
        """Compute potentials and currents, see :meth:`Encoder.encode`; ``precomputed`` is not read."""
        demands = self._demands(graph, inputs.x)
        if self.conductances is not None:
            learned = self.conductances(graph, None, inputs.edge_attr)[0]
            graph = graph if learned is None else graph.with_conductances(learned[0])
        if self.ground:
            surplus = demands.new_zeros(graph.num_graphs, len(self.columns)).index_add(0, graph.batch, demands)
            v = electric_potentials(with_ground(graph, self.ground), torch.cat([demands, -surplus]))
            v = v[: graph.num_nodes] - v[graph.num_nodes :][graph.batch]
        else:
            v = electric_potentials(graph, demands)
        if not self.edge_out_channels:
            return Encoding(v.to(self.unit.dtype))
        source, target = graph.edge_index.long()
        drops = v[source] - v[target]
        if graph.conductance is not None:
            drops = drops * graph.spread_to_directed(graph.conductance.double()).unsqueeze(1)
        return Encoding(v.to(self.unit.dtype), drops.to(self.unit.dtype))

    def _demands(self, graph: Graph, x: Tensor | None) -> Tensor:
        """Return the demands of checked features, float64 ``[num_nodes, num_columns]``."""
        wanted = f"x must have a column for each of columns={self.columns}, [{graph.num_nodes}, num_columns]"
        x = x.unsqueeze(1) if isinstance(x, Tensor) and x.dim() == 1 else x
        is_table = isinstance(x, Tensor) and x.dim() == 2 and x.size(0) == graph.num_nodes and not x.is_complex()
        if not isinstance(x, Tensor) or not is_table or x.size(1) <= max(self.columns):
            raise ValueError(f"{wanted}, got {list(x.shape) if isinstance(x, Tensor) else x}")
        demands = torch.stack([x[:, column] for column in self.columns], 1).double()
        checks = graph.feature_checks()
        checks.finite("demands", demands)
        checks.run()
        return demands
