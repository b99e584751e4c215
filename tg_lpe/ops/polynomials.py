"""Compute polynomials of small symmetric matrices on the diagonal and at the edges: the exact Gram read-out.

From the identity, the layers of a linear transformer with a fixed incidence matrix compute polynomials of one symmetric
matrix per graph and filter, ``P = I - S``: the normalised adjacency if nodes are not grounded. The diagonal and the
entries at the edges are read from each layer. The gradient is the same recurrence run backwards. It is implemented
here, since autograd would pass over each dense matrix of each layer several times.

:func:`dense_polynomials` multiplies the dense matrices of graphs of similar size, on any device.
:func:`matrix_polynomials` takes a whole batch and passes over the edges, one graph after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tg_lpe.ops import cpu
from tg_lpe.ops.cpu import Double, Function, Int, Pointer, Required, required_ends
from tg_lpe.ops.lazy import lazy
from tg_lpe.ops.operator import (
    Operator,
    checkpointed,
    keep_inputs,
    kept_inputs,
    reference_gradients,
    signature,
)

BASES = {"power": (1.0, 0.0), "chebyshev": (2.0, 1.0)}
"""``alpha`` and ``gamma`` of ``Phi_t = alpha P Phi_{t-1} - gamma Phi_{t-2}``."""

SMALL_NODES, SPARSE_DENSITY = 256, 0.125
"""Up to this many nodes, passes over edges beat dense matrices even on complete graphs; above, up to this density."""

DENSE_NODES = 1024
"""Up to this many nodes, dense matrices of any density are faster than passes over edges in torch."""

COLUMN_VALUES = 2**22
"""Number of values of a block of columns that the reference computes at once, to bound memory."""

_FIELDS = (
    (Pointer, "adjacency tail head ptr"),
    (Int, "num_nodes num_edges num_graphs num_filters num_layers"),
    (Double, "alpha gamma"),
    (Pointer, "nodes edges grad_nodes grad_edges grad_adjacency"),
    (Int, "num_threads"),
)
_kernel = Function("matrix_polynomials", *_FIELDS)
_gradient_kernel = Function("matrix_polynomials_backward", *_FIELDS)


class Recurrence(NamedTuple):
    """Hold the arguments of :func:`matrix_polynomials` after ``adjacency``."""

    tail: Tensor
    head: Tensor
    ptr: Tensor
    num_nodes: int
    max_nodes: int
    alpha: float
    gamma: float
    num_layers: int


def is_faster(adjacency: Tensor, num_nodes: int, max_nodes: int) -> bool:
    """Return whether :func:`matrix_polynomials` is faster than :func:`dense_polynomials` on a batch.

    Args:
        adjacency: entries at the edges, ``[..., num_edges]``.
        num_nodes: number of nodes of the batch.
        max_nodes: number of nodes of its largest graph.
    """
    if not cpu.supports(adjacency):
        if max_nodes <= DENSE_NODES:
            return False
    elif max_nodes <= SMALL_NODES:
        return True
    # The mean degree approximates the densest graph's; a wrong guess on a mixed batch only costs time.
    return 2 * adjacency.size(-1) <= SPARSE_DENSITY * num_nodes * max_nodes


def matrix_polynomials(
    adjacency: Tensor,
    tail: Tensor,
    head: Tensor,
    ptr: Tensor,
    num_nodes: int,
    max_nodes: int,
    basis: str,
    num_layers: int,
) -> tuple[Tensor, Tensor]:
    """Compute layers ``Phi_1 .. Phi_T`` from ``Phi_0 = I`` of each graph, on the diagonal and at the edges.

    In C++, time grows with ``num_layers * num_filters * num_nodes * (num_nodes + 2 * num_edges)`` of each graph, and
    memory in addition to the result with ``num_layers * (num_nodes + num_edges)`` of the largest.

    Args:
        adjacency: entries of the symmetric ``P`` at the edges, ``[num_filters, num_edges]``; its diagonal is zero.
        tail, head: ends of each edge, int64 ``[num_edges]``, graph by graph.
        ptr: first node of each graph, int64 ``[num_graphs + 1]``.
        num_nodes: number of nodes of the batch.
        max_nodes: number of nodes of its largest graph.
        basis: ``"power"``, ``Phi_t = P Phi_{t-1}``, or ``"chebyshev"``, ``Phi_t = 2 P Phi_{t-1} - Phi_{t-2}``.
        num_layers: ``T``.

    Returns:
        Diagonals ``[num_nodes, num_filters * T]`` and edge entries ``[num_edges, num_filters * T]``, filter by filter.

    Raises:
        ValueError: on wrong shapes, dtypes or devices, edges between two graphs, or edges that are not graph by graph.
    """
    return _matrix_polynomials(adjacency, tail, head, ptr, num_nodes, max_nodes, *BASES[basis], num_layers)


def _run_matrix_polynomials(adjacency: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    recurrence = Recurrence(*arguments)
    if cpu.supports(adjacency):
        return compiled_matrix_polynomials(adjacency, recurrence)
    with torch.no_grad():
        return _reference(adjacency, recurrence)


def compiled_matrix_polynomials(adjacency: Tensor, recurrence: Recurrence) -> tuple[Tensor, Tensor]:
    """Pass over the edges of one graph after the other; ``max_nodes`` is ignored."""
    read = _required(adjacency, recurrence)
    num_edges, width = adjacency.size(1), adjacency.size(0) * recurrence.num_layers
    nodes, edges = adjacency.new_empty(recurrence.num_nodes, width), adjacency.new_empty(num_edges, width)
    _call(_kernel, adjacency, recurrence, read, {"nodes": nodes, "edges": edges})
    return nodes, edges


def compiled_gradient(adjacency: Tensor, recurrence: Recurrence, grad_nodes: Tensor, grad_edges: Tensor) -> Tensor:
    """Recompute the layers, which is faster than storing them, and their gradient."""
    read, width = _required(adjacency, recurrence), adjacency.size(0) * recurrence.num_layers
    read["grad_nodes"] = grad_nodes, adjacency.dtype, (recurrence.num_nodes, width)
    read["grad_edges"] = grad_edges, adjacency.dtype, (adjacency.size(1), width)
    grad = adjacency.new_zeros(adjacency.shape)
    _call(_gradient_kernel, adjacency, recurrence, read, {"grad_adjacency": grad})
    return grad


def _required(adjacency: Tensor, recurrence: Recurrence) -> dict[str, Required]:
    tail, head, ptr, num_nodes, *_, num_layers = recurrence
    edges = required_edges(adjacency, tail, head, num_nodes, num_layers)
    return {**edges, "ptr": (ptr, torch.int64, (ptr.numel(),))}


def required_edges(
    adjacency: Tensor, tail: Tensor, head: Tensor, num_nodes: int, num_layers: int
) -> dict[str, Required]:
    """Return edges and entries at them as tensors to read; refuse a number of layers below one."""
    if adjacency.dtype not in cpu.DTYPES or adjacency.dim() != 2 or not 1 <= num_layers < 2**31:
        raise ValueError(
            "adjacency must be float32 or float64 [num_filters, num_edges] and num_layers at least 1, "
            f"got {adjacency.dtype} {list(adjacency.shape)} and {num_layers}"
        )
    entries = (adjacency, adjacency.dtype, (adjacency.size(0), tail.numel()))
    return {**required_ends(tail, head, num_nodes), "adjacency": entries}


def _call(
    kernel: Function, adjacency: Tensor, recurrence: Recurrence, read: dict[str, Required], results: dict[str, Tensor]
) -> None:
    kernel(
        adjacency.dtype,
        "ptr must ascend from 0 to the number of nodes, and each edge join two nodes of one graph, graph by graph",
        read,
        results,
        num_nodes=recurrence.num_nodes,
        num_edges=adjacency.size(1),
        num_graphs=recurrence.ptr.numel() - 1,
        num_filters=adjacency.size(0),
        num_layers=recurrence.num_layers,
        alpha=recurrence.alpha,
        gamma=recurrence.gamma,
    )


def _reference(adjacency: Tensor, recurrence: Recurrence) -> tuple[Tensor, Tensor]:
    """Compute :func:`matrix_polynomials` in torch, some columns at a time."""
    ptr, num_nodes, max_nodes = recurrence.ptr, recurrence.num_nodes, recurrence.max_nodes
    node = torch.arange(num_nodes, device=ptr.device)
    local = node - ptr[torch.searchsorted(ptr, node, right=True) - 1]
    at_once = max(1, COLUMN_VALUES // max(adjacency.size(0) * num_nodes, 1))
    if max_nodes <= at_once:
        parts = [_columns(adjacency, local, 0, max(max_nodes, 1), recurrence)]
    else:  # Without the checkpoint, the backward pass would keep all layers of each column.
        ranges = [(first, min(at_once, max_nodes - first)) for first in range(0, max_nodes, at_once)]
        parts = [checkpointed(_columns, adjacency, local, *each, recurrence) for each in ranges]
    rows = (torch.stack(part).sum(0).flatten(0, 1).mT.contiguous() for part in zip(*parts, strict=True))
    return tuple(rows)  # type: ignore[return-value]


def _columns(adjacency: Tensor, local: Tensor, first: int, count: int, recurrence: Recurrence) -> tuple[Tensor, Tensor]:
    """Compute the entries in some columns, ``[num_filters, num_layers, num_nodes or num_edges]``; zero in the others.

    ``local`` is the index of each node within its graph, and its column.
    """
    tail, head, _, num_nodes, _, alpha, gamma, num_layers = recurrence
    column = torch.arange(first, first + count, device=local.device)
    phi = (local.unsqueeze(1) == column).to(adjacency.dtype).expand(adjacency.size(0), -1, -1)
    entry, before = adjacency.unsqueeze(2), torch.zeros_like(phi)
    inside = [(at >= first) & (at < first + count) for at in (local, local[head])]
    places = [(at - first).clamp(0, count - 1) for at in (local, local[head])]
    node = torch.arange(num_nodes, device=local.device)
    nodes, edges = [], []
    for layer in range(num_layers):
        after = torch.zeros_like(phi).index_add(1, tail, entry * phi[:, head])
        after = after.index_add(1, head, entry * phi[:, tail])
        before, phi = phi, after if layer == 0 else alpha * after - gamma * before
        nodes.append(phi[:, node, places[0]] * inside[0])
        edges.append(phi[:, tail, places[1]] * inside[1])
    return torch.stack(nodes, dim=1), torch.stack(edges, dim=1)


def _fake_matrix_polynomials(adjacency: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    num_nodes, num_layers = arguments[3], arguments[-1]
    width = adjacency.shape[0] * num_layers
    return adjacency.new_empty(num_nodes, width), adjacency.new_empty(adjacency.shape[1], width)


def _matrix_polynomials_backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    inputs = kept_inputs(ctx)
    if torch.is_grad_enabled() or not cpu.supports(inputs[0]):
        return tuple(reference_gradients(lambda p, *flat: _reference(p, Recurrence(*flat)), inputs, grads))
    return _matrix_polynomials_gradient(*inputs, *grads), *[None] * (len(inputs) - 1)


def _run_gradient(adjacency: Tensor, *arguments: Any) -> Tensor:
    return compiled_gradient(adjacency, Recurrence(*arguments[:-2]), *arguments[-2:])


_ARGUMENTS = f"Tensor adjacency, {signature(Recurrence)}"
_matrix_polynomials_gradient = Operator(
    f"matrix_polynomials_backward({_ARGUMENTS}, Tensor grad_nodes, Tensor grad_edges) -> Tensor",
    _run_gradient,
    lambda adjacency, *_: torch.empty_like(adjacency, memory_format=torch.contiguous_format),
)
_matrix_polynomials = Operator(
    f"matrix_polynomials({_ARGUMENTS}) -> (Tensor nodes, Tensor edges)",
    _run_matrix_polynomials,
    _fake_matrix_polynomials,
    keep_inputs,
    _matrix_polynomials_backward,
)


@dataclass(eq=False)
class EdgePositions:
    """Map edges to entries of dense matrices that are padded to the same size, ``[num_graphs, max_nodes, max_nodes]``.

    Attributes:
        num_graphs, max_nodes: number of graphs, and number of rows of each.
        edges: indices of the edges in the batch, int64 ``[num_edges]``.
        tail, head: rows of their ends, graph by graph, int64 ``[num_edges]``.
    """

    num_graphs: int
    max_nodes: int
    edges: Tensor
    tail: Tensor
    head: Tensor

    @lazy
    def upper(self) -> Tensor:
        """Positions of the entries ``(tail, head)`` in the flattened matrices, int64 ``[num_edges]``."""
        return self.tail * self.max_nodes + self.head % self.max_nodes

    @lazy
    def lower(self) -> Tensor:
        """Positions of the entries ``(head, tail)`` in the flattened matrices, int64 ``[num_edges]``."""
        return self.head * self.max_nodes + self.tail % self.max_nodes

    @lazy
    def diagonal_positions(self) -> Tensor:
        """Positions of the diagonals, int64 ``[num_graphs * max_nodes]``."""
        row = torch.arange(self.num_graphs * self.max_nodes, device=self.tail.device)
        return row * self.max_nodes + row % self.max_nodes

    def dense(self, adjacency: Tensor) -> Tensor:
        """Return symmetric matrices with zero diagonal, ``[num_filters * num_graphs, max_nodes, max_nodes]``.

        Args:
            adjacency: entries at the edges, ``[num_filters, num_edges]``.
        """
        matrix = adjacency.new_zeros(adjacency.size(0), self.num_graphs * self.max_nodes**2)
        matrix[:, self.upper] = adjacency
        matrix[:, self.lower] = adjacency
        return matrix.view(-1, self.max_nodes, self.max_nodes)

    def at_edges(self, matrix: Tensor) -> Tensor:
        """Return the entries of symmetric matrices at the edges, ``[num_filters, num_edges]``."""
        return matrix.view(-1, self.num_graphs * self.max_nodes**2).index_select(1, self.upper)

    def diagonal(self, matrix: Tensor) -> Tensor:
        """Return the diagonals of matrices, ``[num_filters, num_graphs * max_nodes]``."""
        return matrix.diagonal(dim1=1, dim2=2).reshape(-1, self.num_graphs * self.max_nodes)


class _DensePolynomials(torch.autograd.Function):
    """Compute :func:`dense_polynomials` with a gradient that keeps all layers."""

    @staticmethod
    def forward(
        ctx: Any, adjacency: Tensor, where: EdgePositions, alpha: float, gamma: float, num_layers: int
    ) -> tuple[Tensor, Tensor]:
        """Run the layers, and keep them if a gradient is needed."""
        p = where.dense(adjacency)
        read = torch.cat([where.upper, where.diagonal_positions])
        chain, values = [p], [_entries(p, read, adjacency.size(0))]
        keep = ctx.needs_input_grad[0]
        for _ in range(1, num_layers):
            phi = _next_layer(p, chain, alpha, gamma)
            chain = [*chain, phi] if keep else [chain[-1], phi]
            values.append(_entries(phi, read, adjacency.size(0)))
        if keep:
            ctx.save_for_backward(adjacency, *chain)
            ctx.arguments = where, alpha, gamma, num_layers
        entries, diagonals = torch.stack(values, dim=1).split(
            [where.upper.numel(), where.diagonal_positions.numel()], 2
        )
        return diagonals, entries

    @staticmethod
    def backward(ctx: Any, grad_diagonal: Tensor, grad_edges: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Run the recurrence backwards: ``H_{t-1} = G_{t-1} + P H_t``, and ``dP`` sums ``H_t Phi_{t-1}``."""
        adjacency, *chain = ctx.saved_tensors
        where, alpha, gamma, _ = ctx.arguments
        if torch.is_grad_enabled():
            inputs = adjacency, *ctx.arguments
            return tuple(reference_gradients(_dense_reference, inputs, [grad_diagonal, grad_edges]))
        num_filters, last, p = grad_edges.size(0), len(chain) - 1, chain[0]
        # The two entries of an edge share its gradient.
        half = 0.5 * grad_edges
        grads = torch.cat([half, half, grad_diagonal], dim=2).transpose(0, 1).contiguous()
        places = torch.cat([where.upper, where.lower, where.diagonal_positions]).expand(num_filters, -1)

        def read(h: Tensor, layer: int) -> Tensor:
            h.view(num_filters, -1).scatter_add_(1, places, grads[layer])
            return h

        total = torch.zeros_like(p)
        h, after = read(torch.zeros_like(p), last), None
        for layer in range(last, 0, -1):
            # Phi_t = alpha P Phi_{t-1} - gamma Phi_{t-2}, all of them symmetric polynomials of P
            total.baddbmm_(h, chain[layer - 1], alpha=alpha)
            if gamma == 0.0:
                before = torch.bmm(p, h)
            elif after is None:
                before = torch.bmm(p, h).mul_(alpha)
            else:
                before = torch.baddbmm(after, p, h, beta=-gamma, alpha=alpha)
            after = h if gamma else None
            h = read(before, layer - 1)
        flat = total.add_(h).view(num_filters, -1)
        grad = flat.index_select(1, where.upper) + flat.index_select(1, where.lower)
        return grad, None, None, None, None


def _next_layer(p: Tensor, chain: list[Tensor], alpha: float, gamma: float) -> Tensor:
    """Compute ``Phi_t`` from the layers so far; ``Phi_0`` is the identity."""
    if gamma == 0.0:
        return torch.bmm(p, chain[-1])
    before = chain[-2] if len(chain) > 1 else torch.eye(p.size(-1), dtype=p.dtype, device=p.device).expand_as(p)
    return torch.baddbmm(before, p, chain[-1], beta=-gamma, alpha=alpha)


def _entries(matrix: Tensor, places: Tensor, num_filters: int) -> Tensor:
    return matrix.view(num_filters, -1).index_select(1, places)


def _dense_reference(
    adjacency: Tensor, where: EdgePositions, alpha: float, gamma: float, num_layers: int
) -> tuple[Tensor, Tensor]:
    """Compute :func:`dense_polynomials` with operations that autograd can follow."""
    p = where.dense(adjacency)
    chain = [p]
    for _ in range(1, num_layers):
        chain.append(_next_layer(p, chain, alpha, gamma))
    places = where.diagonal_positions, where.upper
    diagonals, entries = (torch.stack([_entries(m, at, adjacency.size(0)) for m in chain], dim=1) for at in places)
    return diagonals, entries


def dense_polynomials(adjacency: Tensor, where: EdgePositions, basis: str, num_layers: int) -> tuple[Tensor, Tensor]:
    """Compute layers ``Phi_1 .. Phi_T`` from ``Phi_0 = I`` on the diagonal and at the edges, by dense matrices.

    Args:
        adjacency: entries of the symmetric ``P`` at the edges, ``[num_filters, num_edges]``; its diagonal is zero.
        where: positions of the edges in the matrices.
        basis: ``"power"``, ``Phi_t = P Phi_{t-1}``, or ``"chebyshev"``, ``Phi_t = 2 P Phi_{t-1} - Phi_{t-2}``.
        num_layers: ``T``.

    Returns:
        Diagonals ``[num_filters, T, num_graphs * max_nodes]`` and edge entries ``[num_filters, T, num_edges]``.
    """
    alpha, gamma = BASES[basis]
    if torch.compiler.is_compiling():  # it differentiates the operations itself
        return _dense_reference(adjacency, where, alpha, gamma, num_layers)
    return _DensePolynomials.apply(adjacency, where, alpha, gamma, num_layers)  # type: ignore[no-untyped-call, no-any-return]
