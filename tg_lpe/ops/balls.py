"""Compute matrix polynomials around each node of a large graph, exactly in the orders that need few edges.

``(P^t)_jj`` sums over the walks of ``t`` steps from ``j`` back to ``j``, which visit nodes up to ``t / 2`` edges away.
If this ball is small, as in a grid, a road network or a long molecule, its edges give the entry exactly, in a graph of
any size. If balls grow fast, they give the first orders. The entries of the first orders are the largest: computing
them exactly removes most of the error of an estimate from random signs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tg_lpe.ops import cpu
from tg_lpe.ops.cpu import Double, Function, Int, Pointer, Required, required_ends
from tg_lpe.ops.operator import checkpointed, differentiable, keep_inputs, kept_inputs, reference_gradients
from tg_lpe.ops.polynomials import BASES, required_edges
from tg_lpe.ops.segment import group_pointers, repeat_ranges

NODES_AT_ONCE = 2**10
"""Number of balls that the reference computes at once, to bound memory."""

_orders_kernel = Function(
    "ball_orders",
    (Int, "num_nodes num_edges max_order max_visits"),
    (Pointer, "tail head orders"),
    (Int, "num_threads"),
    dtypes={torch.int64: "int64"},
)
_polynomials_kernel = Function(
    "ball_polynomials",
    (Pointer, "adjacency tail head orders"),
    (Int, "num_nodes num_edges num_filters num_layers"),
    (Double, "alpha gamma"),
    (Pointer, "nodes edges grad_nodes grad_edges grad_adjacency"),
    (Int, "num_threads"),
)


class BallRecurrence(NamedTuple):
    """Hold the arguments of :func:`ball_polynomials` after ``adjacency``."""

    tail: Tensor
    head: Tensor
    orders: Tensor
    alpha: float
    gamma: float
    num_layers: int
    read_edges: bool


def ball_orders(tail: Tensor, head: Tensor, num_nodes: int, max_order: int, max_visits: int) -> Tensor:
    """Return the order up to which a ball of bounded size gives the matrix polynomials at each node.

    The ball of radius ``r`` around a node gives ``2 r + 2`` orders of its diagonal entry, and one less of the entries
    at its edges. ``r`` is the largest radius for which the degrees of the ball's nodes sum to at most ``max_visits``;
    radius zero is always allowed. A ball that is the whole component gives all orders.

    Args:
        tail, head: ends of each edge, int64 ``[num_edges]``, two different nodes.
        num_nodes: number of nodes of the graph or batch.
        max_order: largest wanted order.
        max_visits: largest sum of the degrees in a ball.

    Returns:
        int64 ``[num_nodes]``, in ``1..max_order``.
    """
    if cpu.library is not None and tail.device.type == "cpu":
        ends, orders = required_ends(tail, head, num_nodes), tail.new_empty(num_nodes)
        sizes = {"num_nodes": num_nodes, "num_edges": tail.numel(), "max_order": max_order, "max_visits": max_visits}
        malformed = f"each edge must join two different nodes of {num_nodes}"
        _orders_kernel(torch.int64, malformed, ends, {"orders": orders}, **sizes)
        return orders
    neighbours = _Neighbours.of(tail, head, num_nodes)
    degree, orders = neighbours.crow.diff(), tail.new_full((num_nodes,), min(2, max_order))
    for centers in torch.arange(num_nodes, device=tail.device).split(NODES_AT_ONCE):
        ball = torch.arange(centers.numel(), device=tail.device)
        level = ball * num_nodes + centers
        before, visits, order = level[:0], degree[centers], orders[centers]
        while level.numel() and bool((order < max_order).any()):
            before, level = level, _new(neighbours.around(level)[1], level, before)
            of = level // num_nodes
            is_complete = torch.isin(before // num_nodes, of, invert=True)
            order[before[is_complete] // num_nodes] = max_order
            visits = visits.index_add(0, of, degree[level % num_nodes])
            level = level[visits[of] <= max_visits]
            grown = torch.isin(ball, level // num_nodes)
            order = torch.where(grown, (order + 2).clamp(max=max_order), order)
        orders[centers] = order
    return orders


def ball_polynomials(
    adjacency: Tensor, tail: Tensor, head: Tensor, orders: Tensor, basis: str, num_layers: int, read_edges: bool = True
) -> tuple[Tensor, Tensor]:
    """Compute :func:`~tg_lpe.ops.polynomials.matrix_polynomials` up to a given order at each node.

    Time grows with the number of filters times the edges of the balls of radius ``orders / 2``.

    Args:
        adjacency: entries of ``P`` at the edges, ``[num_filters, num_edges]``.
        tail, head: ends of each edge, int64 ``[num_edges]``, two different nodes.
        orders: order of the diagonal at each node, int64 ``[num_nodes]``, in ``1..num_layers + 1``. The order of an
            edge is one less than the larger order of its ends.
        basis, num_layers: as for :func:`~tg_lpe.ops.polynomials.matrix_polynomials`.
        read_edges: whether to compute edge entries; zero otherwise.

    Returns:
        Diagonals ``[num_nodes, num_filters * T]`` and edge entries ``[num_edges, num_filters * T]``, filter by filter;
        zero in higher orders.
    """
    return _ball_polynomials(adjacency, tail, head, orders, *BASES[basis], num_layers, read_edges)


class _Neighbours(NamedTuple):
    """Hold the adjacency as CSR, with the edge of each entry."""

    crow: Tensor
    col: Tensor
    edge: Tensor

    @classmethod
    def of(cls, tail: Tensor, head: Tensor, num_nodes: int) -> _Neighbours:
        row, order = torch.sort(torch.cat([tail, head]), stable=True)
        edge = torch.arange(tail.numel(), device=tail.device).repeat(2)
        return cls(group_pointers(row, num_nodes), torch.cat([head, tail])[order], edge[order])

    @property
    def num_nodes(self) -> int:
        return self.crow.numel() - 1

    def around(self, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """List the neighbours of nodes of some balls; node ``i`` of ball ``b`` is the key ``b * num_nodes + i``.

        Returns:
            The key of the node, the key of the neighbour, and the edge, for each neighbour.
        """
        node = keys % self.num_nodes
        of, entry = repeat_ranges(self.crow[node], self.crow[node + 1] - self.crow[node])
        return keys[of], keys[of] - node[of] + self.col[entry], self.edge[entry]


def _new(to: Tensor, level: Tensor, before: Tensor) -> Tensor:
    """Return the sorted keys among ``to``, neighbours of ``level``, that are not in ``level`` or ``before``."""
    neighbours = torch.unique(to)
    return neighbours[~torch.isin(neighbours, torch.cat([before, level]))]


def _run(adjacency: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    run = _compiled if cpu.supports(adjacency) else _reference
    return run(adjacency, BallRecurrence(*arguments))


def _compiled(adjacency: Tensor, recurrence: BallRecurrence) -> tuple[Tensor, Tensor]:
    """Compute four filters at a time, one node after the other."""
    read, num_edges = _required(adjacency, recurrence), recurrence.tail.numel()
    width = adjacency.size(0) * recurrence.num_layers
    nodes = adjacency.new_empty(recurrence.orders.numel(), width)
    edges = adjacency.new_empty(num_edges, width) if recurrence.read_edges else None
    _call(adjacency, recurrence, read, {"nodes": nodes, "edges": edges})
    return nodes, adjacency.new_zeros(1, 1).expand(num_edges, width) if edges is None else edges


def _required(adjacency: Tensor, recurrence: BallRecurrence) -> dict[str, Required]:
    tail, head, orders, *_, num_layers, _ = recurrence
    edges = required_edges(adjacency, tail, head, orders.numel(), num_layers)
    return {**edges, "orders": (orders, torch.int64, (orders.numel(),))}


def _call(
    adjacency: Tensor, recurrence: BallRecurrence, read: dict[str, Required], results: dict[str, Tensor | None]
) -> None:
    num_nodes, num_layers = recurrence.orders.numel(), recurrence.num_layers
    _polynomials_kernel(
        adjacency.dtype,
        f"each edge must join two different nodes of {num_nodes}, and orders lie in 1..{num_layers + 1}",
        read,
        results,
        num_nodes=num_nodes,
        num_edges=adjacency.size(1),
        num_filters=adjacency.size(0),
        num_layers=num_layers,
        alpha=recurrence.alpha,
        gamma=recurrence.gamma,
    )


def _reference(adjacency: Tensor, recurrence: BallRecurrence) -> tuple[Tensor, Tensor]:
    """Compute :func:`ball_polynomials` in torch, some balls at a time."""
    tail, head, orders, _, _, num_layers, read_edges = recurrence
    neighbours = _Neighbours.of(tail, head, orders.numel())
    width = adjacency.size(0) * num_layers
    if not orders.numel():
        return adjacency.new_zeros(0, width), adjacency.new_zeros(0, width)
    if orders.min() < 1 or orders.max() > num_layers + 1:
        raise ValueError(f"orders must lie in 1..{num_layers + 1}")
    nodes, edges, read = [adjacency.new_zeros(0, width)], [adjacency.new_zeros(0, width)], [tail[:0]]
    for centers in torch.arange(orders.numel(), device=tail.device).split(NODES_AT_ONCE):
        # Without the checkpoint, the backward pass would keep all layers of each ball.
        part = checkpointed(_columns, adjacency, centers, neighbours, recurrence)
        for parts, rows in zip((nodes, edges, read), part, strict=True):
            parts.append(rows)
    entries = adjacency.new_zeros(tail.numel(), width)
    return torch.cat(nodes), entries.index_copy(0, torch.cat(read), torch.cat(edges)) if read_edges else entries


def _columns(
    adjacency: Tensor, centers: Tensor, neighbours: _Neighbours, recurrence: BallRecurrence
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute diagonals at some nodes, entries of the edges read in their columns, and the indices of these edges."""
    orders, num_nodes, num_layers = recurrence.orders, neighbours.num_nodes, recurrence.num_layers
    order = orders[centers]
    center = torch.arange(centers.numel(), device=centers.device) * num_nodes + centers
    before, level, keys, entries = center[:0], center, [center], []
    for radius in range((int(order.max()) - 1) // 2 + 1):
        level = level[(order[level // num_nodes] - 1) // 2 >= radius]
        entries.append(neighbours.around(level))
        before, level = level, _new(entries[-1][1], level, before)
        keys.append(level)
    key = torch.cat(keys).sort().values
    source, to, edge = (torch.cat(parts) for parts in zip(*entries, strict=True))
    row, col = torch.searchsorted(key, source), torch.searchsorted(key, to)
    # Outermost nodes have no rows; their entries are mirrored from the rows of their neighbours.
    outer = torch.isin(to, source, invert=True)
    row, col = torch.cat([row, col[outer]]), torch.cat([col, row[outer]])
    weight = adjacency.mT[torch.cat([edge, edge[outer]])]
    # An edge is read in the column of its end with the higher order.
    source_order, to_order = orders[source % num_nodes], orders[to % num_nodes]
    is_read = (to_order < source_order) | ((to_order == source_order) & (source % num_nodes < to % num_nodes))
    is_read &= torch.isin(source, center)
    at_edges, at_nodes = torch.searchsorted(key, to[is_read]), torch.searchsorted(key, center)
    phi = adjacency.new_zeros(key.numel(), adjacency.size(0)).index_fill(0, at_nodes, 1.0)
    last, nodes, edges = torch.zeros_like(phi), [], []
    for layer in range(1, num_layers + 1):
        product = torch.zeros_like(phi).index_add(0, row, weight * phi[col])
        last, phi = phi, product if layer == 1 else recurrence.alpha * product - recurrence.gamma * last
        nodes.append(phi[at_nodes] * (layer <= order).unsqueeze(1))
        edges.append(phi[at_edges] * (layer < source_order[is_read]).unsqueeze(1))
    return torch.stack(nodes, 2).flatten(1), torch.stack(edges, 2).flatten(1), edge[is_read]


def _backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    inputs = kept_inputs(ctx)
    if torch.is_grad_enabled() or not cpu.supports(inputs[0]):
        return tuple(reference_gradients(lambda p, *flat: _reference(p, BallRecurrence(*flat)), inputs, grads))
    adjacency, recurrence = inputs[0], BallRecurrence(*inputs[1:])
    read, width = _required(adjacency, recurrence), adjacency.size(0) * recurrence.num_layers
    read["grad_nodes"] = grads[0], adjacency.dtype, (recurrence.orders.numel(), width)
    if recurrence.read_edges:
        read["grad_edges"] = grads[1], adjacency.dtype, (adjacency.size(1), width)
    grad = adjacency.new_empty(adjacency.shape)
    if grad.numel():  # an empty gradient has no address, by which the function recognises the backward pass
        _call(adjacency, recurrence, read, {"grad_adjacency": grad})
    return grad, *[None] * (len(inputs) - 1)


_ball_polynomials = differentiable(_run, keep_inputs, _backward)
