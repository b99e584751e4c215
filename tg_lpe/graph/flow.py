"""Compute potentials of electric flows, with gradients, and embeddings whose squared distances are resistances."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from scipy.sparse import diags
from torch import Tensor

from tg_lpe.graph.components import Array, Components, without_means
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.resistance import grounded_inverses
from tg_lpe.graph.solvers import factorized, symmetric_matrix
from tg_lpe.graph.sparse_inverse import GroundedLaplacian, check_accuracy, refusal
from tg_lpe.ops.operator import host_array

KIRCHHOFF = 1e-6
"""Largest difference between a demand and the sum of the currents that leave its node, relative to the largest demand
of the component."""

MISSED = f"its currents would miss demands by more than {KIRCHHOFF:.0e} of the largest"

FEW = 256
"""Up to this number of nodes, a batch is inverted densely, which takes less time than to begin a sparse factor."""

LARGE = 4096
"""Above this number of nodes, a component has a factor of its own, which shows progress and refuses to fill memory."""


class Potentials:
    """Factor the Laplacian of a batch once, and solve ``L v = b`` for any demands ``b``.

    In each component, the node with the largest sum of weights has potential zero until the mean is subtracted.

    Args:
        graph: the batch, with its conductances.

    Raises:
        ValueError: if the factor is singular to rounding, or a component is too large for one.
    """

    def __init__(self, graph: Graph) -> None:
        self.parts, self.device = Components(graph), graph.device
        self._solvers: list[tuple[Array, Callable[[Array], Array]]] = []
        small = []
        for group in self.parts.groups:
            if group.size > LARGE:
                self._solvers += [(p.nodes[0], GroundedLaplacian(p, self.parts.diagonal).solve) for p in group.each()]
            elif graph.num_nodes <= FEW:
                self._solvers.append((group.nodes, grounded_inverses(self.parts, group).__matmul__))
            elif group.size > 1:
                ground = self.parts.diagonal[group.nodes].argmax(1)
                small.append(group.nodes[np.arange(group.size) != ground[:, None]])
        if small:
            nodes, parts = np.concatenate(small), self.parts
            laplacian = diags(parts.diagonal) - symmetric_matrix(parts.tail, parts.head, parts.weights, graph.num_nodes)
            try:
                self._solvers.append((nodes, factorized(laplacian.tocsr()[nodes][:, nodes])))
            except RuntimeError as error:  # a pivot rounds to zero
                worst = max(parts.groups, key=lambda group: group.ratios.max())
                raise refusal(worst, int(worst.ratios.argmax()), MISSED) from error

    def solve(self, demands: Tensor) -> Tensor:
        """Compute ``L^+ b``.

        Args:
            demands: ``b``, currents injected at the nodes, ``[num_nodes, k]``. Their mean over each component is
                subtracted, because what enters a component must leave it.

        Returns:
            ``[num_nodes, k]``, float64, of mean zero on each component.

        Raises:
            ValueError: if the currents of the result miss a demand by more than 1e-6 of the largest demand of the
                component, because its weights differ too much.
        """
        parts, b = self.parts, host_array(demands.detach().double())
        v, balanced = np.zeros_like(b), without_means(parts, torch.from_numpy(b)).numpy()
        for nodes, solve in self._solvers:
            v[nodes] = solve(balanced[nodes])
        v = without_means(parts, torch.from_numpy(v)).numpy()
        current = parts.weights[:, None] * (v[parts.tail] - v[parts.head])
        missed = balanced.copy()
        np.subtract.at(missed, parts.tail, current)
        np.add.at(missed, parts.head, current)
        for group in parts.groups:
            error, size = (np.abs(values[group.nodes]).max((1, 2), initial=0.0) for values in (missed, b))
            wrong = ~(error <= KIRCHHOFF * size) & np.isfinite(size)  # gradients may be infinite or NaN
            if wrong.any():
                raise refusal(group, int(wrong.argmax()), MISSED)
        return torch.from_numpy(v).to(self.device)


class _Solve(torch.autograd.Function):
    """Compute ``v = L^+ b``: ``dv = L^+ (db - dL v)``, and ``L^+`` is symmetric."""

    @staticmethod
    def forward(ctx: Any, demands: Tensor, conductance: Tensor, graph: Graph, potentials: Potentials) -> Tensor:
        v = potentials.solve(demands)
        ctx.graph, ctx.potentials = graph, potentials
        ctx.save_for_backward(v, conductance)
        return v

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (v, conductance), graph = ctx.saved_tensors, ctx.graph
        of_demands: Tensor = _Solve.apply(grad, conductance, graph, ctx.potentials)  # type: ignore[no-untyped-call]
        drops = (x[graph.tail] - x[graph.head] for x in (of_demands, v))
        label = torch.from_numpy(ctx.potentials.parts.label).to(graph.device)
        joined = label[graph.tail] == label[graph.head]  # an edge of weight zero may join two components
        return of_demands, -(next(drops) * next(drops)).sum(1) * joined, None, None


@torch.compiler.disable  # solved on the host
def electric_potentials(graph: Graph, demands: Tensor) -> Tensor:
    """Compute potentials ``L^+ b`` of the nodes, with gradients, also of higher order, to demands and conductances.

    `Graph Transformers Dream of Electric Flow <https://arxiv.org/abs/2410.16699>`_, section 3.1. An edge of weight zero
    between two components has no gradient.

    Args:
        graph: the batch, with its conductances.
        demands: as for :meth:`Potentials.solve`.

    Returns:
        ``[num_nodes, k]``, float64.

    Raises:
        ValueError: as :meth:`Potentials.solve`.
    """
    w = graph.weights()
    return cast(Tensor, _Solve.apply(demands.double(), w, graph, Potentials(graph)))  # type: ignore[no-untyped-call]


def with_ground(graph: Graph, conductance: float) -> Graph:
    """Join each node to one more node, the ground of its graph, by an edge of this conductance.

    Returns:
        One graph of ``num_nodes + num_graphs`` nodes. ``L^+`` of it, with the ground's potential subtracted, is the
        inverse of ``L + conductance I``.
    """
    nodes = torch.arange(graph.num_nodes, device=graph.device)
    edge_index = torch.cat([torch.stack([graph.tail, graph.head]), torch.stack([nodes, len(nodes) + graph.batch])], 1)
    w = graph.weights()
    weight = torch.cat([w, w.new_full((len(nodes),), conductance)])
    return Graph(edge_index, graph.num_nodes + graph.num_graphs, edge_weight=weight)


def resistive_embedding(graph: Graph, directions: Tensor) -> Tensor:
    """Compute ``L^+ B psi``; squared distances between the rows of ``L^+ B`` are effective resistances.

    `Graph Sparsification by Effective Resistances <https://arxiv.org/abs/0803.0929>`_, section 4.

    Args:
        graph: the batch.
        directions: ``psi``, ``[num_edges, k]``.

    Returns:
        ``[num_nodes, k]``, float64, of mean zero on each component.

    Raises:
        ValueError: as :meth:`Potentials.solve`, or if squared distances would be inaccurate.
    """
    potentials = Potentials(graph)
    out = potentials.solve(graph.sums(directions.double()))
    scale = float(directions.double().square().sum()) / max(1, len(directions)) or 1.0
    squares = host_array(out.square().sum(1)) / scale
    for group in potentials.parts.groups:
        check_accuracy(group, potentials.parts.diagonal, squares[group.nodes])  # estimates the diagonal
    return out
