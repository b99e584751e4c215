"""Polynomials of small symmetric matrices, read on the diagonal and at the edges: the exact Gram read-out.

With identity probes the layers of a linear transformer whose incidence is held fixed compute polynomials of one
symmetric matrix per graph and filter, ``P = I - S``. All that leaves them are a polynomial's diagonal and its entries
at the edges. Their gradient is the same recurrence run backwards, so it is written out here: autograd would pass over
each dense matrix of each layer several times.

There are two ways to them. :func:`walks` multiplies the dense matrices of a block of graphs of similar size, on any
device. :func:`graph_walks` takes one graph after the other, compiled: on CPU it passes over their edges, on a GPU a
program of Triton's keeps each small graph's matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tg_lpe.graph.incidence import Incidence
from tg_lpe.ops import fused, native
from tg_lpe.ops.segment import RowGroups

BASES = {"power": (1.0, 0.0), "chebyshev": (2.0, 1.0)}
"""``alpha`` and ``gamma`` of ``Phi_t = alpha P Phi_{t-1} - gamma Phi_{t-2}``."""


@dataclass(frozen=True)
class EdgePositions:
    """The edges of one block: where they lie in its rows, and in dense matrices ``[num_graphs, height, height]``.

    Attributes:
        num_graphs, height: of the block.
        columns: which edges of the batch these are, int64 ``[num_block_edges]``.
        tail, head: rows of their ends, graph by graph, int64 ``[num_block_edges]``.
    """

    num_graphs: int
    height: int
    columns: Tensor
    tail: Tensor
    head: Tensor

    @cached_property
    def upper(self) -> Tensor:
        """Positions of the entries ``(tail, head)`` in the matrices written as one row, int64 ``[num_block_edges]``."""
        return self.tail * self.height + self.head % self.height

    @cached_property
    def lower(self) -> Tensor:
        """Positions of the entries ``(head, tail)``, likewise."""
        return self.head * self.height + self.tail % self.height

    @cached_property
    def diagonal_positions(self) -> Tensor:
        """Positions of the diagonals, int64 ``[num_graphs * height]``."""
        row = torch.arange(self.num_graphs * self.height, device=self.tail.device)
        return row * self.height + row % self.height

    def fill(self, coupling: Tensor) -> Tensor:
        """Symmetric matrices without a diagonal, ``[num_filters * num_graphs, height, height]``.

        Args:
            coupling: entries at the edges, ``[num_filters, num_block_edges]``.
        """
        matrix = coupling.new_zeros(coupling.size(0), self.num_graphs * self.height**2)
        matrix[:, self.upper] = coupling
        matrix[:, self.lower] = coupling
        return matrix.view(-1, self.height, self.height)

    def at_edges(self, matrix: Tensor) -> Tensor:
        """The entries at the edges, ``[num_filters, num_block_edges]``; of a symmetric matrix."""
        return matrix.view(-1, self.num_graphs * self.height**2).index_select(1, self.upper)

    def diagonal(self, matrix: Tensor) -> Tensor:
        """The diagonals, ``[num_filters, num_graphs * height]``."""
        return matrix.diagonal(dim1=1, dim2=2).reshape(-1, self.num_graphs * self.height)


class _Walks(torch.autograd.Function):
    """Diagonals and edge entries of ``Phi_1 .. Phi_T``, see :func:`walks`."""

    @staticmethod
    def forward(
        ctx: Any, coupling: Tensor, where: EdgePositions, alpha: float, gamma: float, num_layers: int, squarings: int
    ) -> tuple[Tensor, Tensor]:
        """Run the layers; they are kept only where a gradient will be asked for."""
        p = where.fill(coupling)
        num_filters, num_edges = coupling.shape
        read = torch.cat([where.upper, where.diagonal_positions])
        chain, values = [p], [p.view(num_filters, -1).index_select(1, read)]
        keep = ctx.needs_input_grad[0]
        for layer in range(1, num_layers + squarings):
            if layer >= num_layers:
                phi = torch.bmm(chain[-1], chain[-1])
            elif gamma == 0.0:
                phi = torch.bmm(p, chain[-1])
            else:
                phi = torch.baddbmm(_before(chain), p, chain[-1], beta=-gamma, alpha=alpha)
            chain = [*chain, phi] if keep else [chain[-1], phi]
            values.append(phi.view(num_filters, -1).index_select(1, read))
        if keep:
            ctx.save_for_backward(*chain)
            ctx.where, ctx.alpha, ctx.gamma, ctx.num_layers = where, alpha, gamma, num_layers
        entries, diagonals = torch.stack(values, dim=1).split([num_edges, read.numel() - num_edges], dim=2)
        return diagonals, entries

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_diagonal: Tensor, grad_edges: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """The recurrence run backwards: ``H_{t-1} = G_{t-1} + P H_t``, and ``dP`` gathers ``H_t Phi_{t-1}``."""
        chain, where, last = ctx.saved_tensors, ctx.where, len(ctx.saved_tensors) - 1
        alpha, gamma, num_filters = ctx.alpha, ctx.gamma, grad_edges.size(0)
        p = chain[0]
        # An edge's entry stands in two places, which share its gradient: squaring needs it symmetric.
        half = 0.5 * grad_edges
        grads = torch.cat([half, half, grad_diagonal], dim=2).transpose(0, 1).contiguous()
        places = torch.cat([where.upper, where.lower, where.diagonal_positions]).expand(num_filters, -1)

        def read(h: Tensor, layer: int) -> Tensor:
            h.view(num_filters, -1).scatter_add_(1, places, grads[layer])
            return h

        total = torch.zeros_like(p)
        h, later = read(torch.zeros_like(p), last), None
        for layer in range(last, 0, -1):
            if layer >= ctx.num_layers:  # Phi_t = Phi_{t-1} Phi_{t-1}
                product = torch.bmm(chain[layer - 1], h)
                h = read(product + product.mT, layer - 1)
                continue
            # Phi_t = alpha P Phi_{t-1} - gamma Phi_{t-2}, all of them symmetric polynomials of P
            total.baddbmm_(h, chain[layer - 1], alpha=alpha)
            if gamma == 0.0:
                before = torch.bmm(p, h)
            else:
                before = torch.bmm(p, h) if later is None else torch.baddbmm(later, p, h, beta=-gamma, alpha=alpha)
                if later is None:
                    before *= alpha
                later = h
            h = read(before, layer - 1)
        flat = total.add_(h).view(num_filters, -1)
        grad = flat.index_select(1, where.upper) + flat.index_select(1, where.lower)
        return grad, None, None, None, None, None


def walks(
    coupling: Tensor, where: EdgePositions, basis: str, num_layers: int, num_squarings: int = 0
) -> tuple[Tensor, Tensor]:
    """Layers ``Phi_1 .. Phi_T`` from ``Phi_0 = I``, each read on the diagonal and at the edges.

    Args:
        coupling: entries of the symmetric ``P`` at the edges, ``[num_filters, num_block_edges]``; its diagonal is zero.
        where: the block.
        basis: ``"power"``, ``Phi_t = P Phi_{t-1}``, or ``"chebyshev"``, ``Phi_t = 2 P Phi_{t-1} - Phi_{t-2}``.
        num_layers: such layers.
        num_squarings: multiplicative layers ``Phi <- Phi Phi`` after them.

    Returns:
        Diagonals ``[num_filters, T, num_graphs * height]`` and edge entries ``[num_filters, T, num_block_edges]``,
        ``T = num_layers + num_squarings``. They can be differentiated once.
    """
    alpha, gamma = BASES[basis]
    return _Walks.apply(coupling, where, alpha, gamma, num_layers, num_squarings)  # type: ignore[no-untyped-call, no-any-return]


COMPILED_NODES, COMPILED_DENSITY = 256, 0.125
"""Up to this many nodes, edges beat dense matrices even on complete graphs; above, up to this share of all entries."""


def compiled_walks_pay(coupling: Tensor, graph: Incidence) -> bool:
    """Whether :func:`graph_walks` can take these graphs, and beats :func:`walks` there."""
    if fused.takes(coupling):
        return graph.max_nodes <= fused.WALK_NODES
    if not native.takes(coupling):
        return False
    # The mean degree stands for the densest graph's: who is wrong about a mixed batch loses time, not results.
    sparse = 2 * graph.num_edges <= COMPILED_DENSITY * graph.num_nodes * graph.max_nodes
    return graph.max_nodes <= COMPILED_NODES or sparse


class _GraphWalks(torch.autograd.Function):
    """What :func:`graph_walks` returns, and its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        coupling: Tensor,
        ptr: Tensor,
        structure: tuple[Tensor, Tensor] | fused.Columns,
        basis: str,
        num_layers: int,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(coupling)  # layers are computed anew: that is faster than to store them
        ctx.arguments = structure, ptr, *BASES[basis], num_layers
        run: Any = fused.fused_walks if isinstance(structure, fused.Columns) else native.native_walks
        return run(coupling, *ctx.arguments)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_nodes: Tensor, grad_edges: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (coupling,) = ctx.saved_tensors
        on_gpu = isinstance(ctx.arguments[0], fused.Columns)
        run: Any = fused.fused_walks_backward if on_gpu else native.native_walks_backward
        return run(coupling, *ctx.arguments, grad_nodes, grad_edges), None, None, None, None


def graph_walks(coupling: Tensor, graph: Incidence, basis: str, num_layers: int) -> tuple[Tensor, Tensor]:
    """As :func:`walks`, of whole graphs, without squarings; where :func:`compiled_walks_pay`.

    Time goes with ``num_layers * num_filters * num_nodes * (num_nodes + 2 * num_edges)`` of each graph, memory beside
    the result with ``num_layers * (num_nodes + num_edges)`` of the largest.

    Args:
        coupling: entries of the symmetric ``P`` at the edges, ``[num_filters, num_edges]``; its diagonal is zero.
        graph: the batch; only its structure counts.
        basis, num_layers: as for :func:`walks`.

    Returns:
        Diagonals ``[num_nodes, num_filters * num_layers]`` and edge entries ``[num_edges, num_filters * num_layers]``,
        filter by filter. They can be differentiated once.
    """
    structure = fused.columns(graph) if fused.takes(coupling) else (graph.tail, graph.head)
    return _GraphWalks.apply(coupling, graph.ptr, structure, basis, num_layers)  # type: ignore[no-untyped-call, no-any-return]


class SparseSymmetric:
    """Products with the same matrices by sums over the edges, for blocks of any height.

    Args:
        where: the block.
    """

    def __init__(self, where: EdgePositions) -> None:
        num_rows = where.num_graphs * where.height
        self.tails, self.heads = RowGroups(where.tail, num_rows), RowGroups(where.head, num_rows)

    def product(self, coupling: Tensor, z: Tensor) -> Tensor:
        """``P z``, ``[num_rows, num_columns]``, with ``P`` given by its entries at the edges ``[num_block_edges]``."""
        entry = coupling.unsqueeze(-1)
        return self.tails.sum(entry * self.heads.gather(z)) + self.heads.sum(entry * self.tails.gather(z))


def estimated_walks(
    coupling: Tensor, signs: Tensor, edges: SparseSymmetric, basis: str, num_layers: int, read_edges: bool = True
) -> tuple[Tensor, Tensor]:
    """Sums over random probes of unbiased estimates of what :func:`walks` computes, for one filter.

    With random signs ``V``, ``E[V V^T] = I``, so the Gram matrix of ``P^a V`` and ``P^b V`` has the mean ``P^(a + b)``:
    half the layers suffice, and the estimate's relative error does not grow with them as that of ``V * P^t V`` does.

    Args:
        coupling: entries of ``P`` at the edges, ``[num_block_edges]``.
        signs: independent random signs ``V``, ``[num_rows, num_probes]``.
        edges: the block.
        basis, num_layers: as for :func:`walks`.
        read_edges: whether edge entries are wanted; zero otherwise.

    Returns:
        Diagonals ``[num_layers, num_rows]`` and edge entries ``[num_layers, num_block_edges]``, summed over probes.
    """
    alpha, gamma = BASES[basis]
    half = [signs]
    while 2 * len(half) - 1 <= num_layers:
        product = edges.product(coupling, half[-1])
        half.append(alpha * product - gamma * half[-2] if gamma and len(half) > 1 else product)
    # The first layer is P itself: nothing to estimate.
    none, first = signs.new_zeros(signs.size(0)), coupling * signs.size(1)
    diagonals, entries = [none], [first if read_edges else torch.zeros_like(first)]
    for layer in range(2, num_layers + 1):
        a, b = half[layer // 2], half[layer - layer // 2]
        diagonal = (a * b).sum(1)
        entry = torch.zeros_like(first)
        if read_edges:
            tail, head = edges.tails.gather, edges.heads.gather
            entry = (tail(a) * head(b)).sum(1)
            if a is not b:
                entry = 0.5 * (entry + (tail(b) * head(a)).sum(1))
        if gamma:  # T_2s = 2 T_s T_s - I, T_2s+1 = 2 T_s T_s+1 - P
            diagonal = 2 * diagonal - (signs.size(1) if layer % 2 == 0 else 0)
            entry = 2 * entry - (0 if layer % 2 == 0 or not read_edges else first)
        diagonals.append(diagonal)
        entries.append(entry)
    return torch.stack(diagonals), torch.stack(entries)


def _before(chain: list[Tensor]) -> Tensor:
    """``Phi_{t-2}``; before the first layer there is the identity."""
    if len(chain) > 1:
        return chain[-2]
    p = chain[0]
    return torch.eye(p.size(-1), dtype=p.dtype, device=p.device).expand_as(p)
