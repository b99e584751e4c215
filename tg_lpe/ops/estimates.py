"""Estimate matrix polynomials from random signs: the Gram read-out of graphs of any size."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tg_lpe.ops import cpu
from tg_lpe.ops.cpu import Double, Function, Int, Pointer
from tg_lpe.ops.operator import Operator, checkpointed, keep_inputs, kept_inputs, reference_gradients
from tg_lpe.ops.polynomials import BASES, required_edges
from tg_lpe.ops.random import counter_signs, signed_64
from tg_lpe.ops.segment import RowGroups

ROWS_AT_ONCE = 2**23
"""Rows times columns of random signs that the reference propagates at once, to bound memory."""

_kernel = Function(
    "estimated_polynomials",
    (Int, "num_rows max_nodes num_edges num_filters num_layers num_probes"),
    (Pointer, "tail head adjacency"),
    (Int, "seed"),
    (Double, "alpha gamma"),
    (Pointer, "nodes edges"),
    (Int, "num_threads"),
)


class EstimatedRecurrence(NamedTuple):
    """Hold the arguments of :func:`estimated_polynomials` after ``adjacency``; ``seed`` is an int64."""

    tail: Tensor
    head: Tensor
    num_rows: int
    max_nodes: int
    alpha: float
    gamma: float
    num_layers: int
    num_probes: int
    seed: int
    read_edges: bool


def estimated_polynomials(
    adjacency: Tensor,
    tail: Tensor,
    head: Tensor,
    num_rows: int,
    max_nodes: int,
    basis: str,
    num_layers: int,
    num_probes: int,
    seed: int,
    read_edges: bool = True,
) -> tuple[Tensor, Tensor]:
    """Estimate :func:`~tg_lpe.ops.polynomials.matrix_polynomials` without bias, by a mean over probes.

    For random signs ``V``, ``E[V V^T] = I``, so the Gram matrix of ``P^a V`` and ``P^b V`` has the mean ``P^(a + b)``.
    Half the layers suffice, and the relative error does not grow with the number of layers as that of ``V * P^t V``
    does.

    Args:
        adjacency: entries of ``P`` at the edges, ``[num_filters, num_edges]``.
        tail, head: rows of the ends of each edge, int64 ``[num_edges]``, two different rows.
        num_rows: number of rows of all graphs, padded to the same size.
        max_nodes: number of rows of each graph; row ``i`` has the signs of row ``i % max_nodes``.
        basis, num_layers: as for :func:`~tg_lpe.ops.polynomials.matrix_polynomials`.
        num_probes, seed: number of columns of signs, and their seed, see :func:`~tg_lpe.ops.random.counter_signs`.
        read_edges: whether to compute edge entries; zero otherwise.

    Returns:
        Diagonals ``[num_rows, num_filters * T]`` and edge entries ``[num_edges, num_filters * T]``, filter by filter.
    """
    options = *BASES[basis], num_layers, num_probes, signed_64(seed), read_edges
    return _estimated_polynomials(adjacency, tail, head, num_rows, max_nodes, *options)


def _run(adjacency: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    num_rows, max_nodes = arguments[2:4]
    if num_rows % max(max_nodes, 1):
        raise ValueError(f"num_rows must be a multiple of max_nodes={max_nodes}, got {num_rows}")
    run = compiled_estimated_polynomials if cpu.supports(adjacency) else _reference
    return run(adjacency, EstimatedRecurrence(*arguments))


def compiled_estimated_polynomials(adjacency: Tensor, recurrence: EstimatedRecurrence) -> tuple[Tensor, Tensor]:
    """Propagate 16 probes at a time in float32, 8 in float64, through all layers. Sorted edges are faster.

    Memory, in addition to the result: the edges as CSR, the result of one filter at the rows, and 64 bytes a row for
    the signs, for each of two products, and for each of ``(T + 1) // 2`` more if edges are read.
    """
    tail, head, num_rows, max_nodes, alpha, gamma, num_layers, num_probes, seed, read_edges = recurrence
    read = required_edges(adjacency, tail, head, num_rows, num_layers)
    if max_nodes < min(num_rows, 1) or not 1 <= num_probes <= 2**20:
        raise ValueError(f"sizes must be positive, and probes at most 2**20, got {max_nodes=}, {num_probes=}")
    num_filters, num_edges = adjacency.shape
    dtype, width = adjacency.dtype, num_filters * num_layers
    nodes = adjacency.new_empty(num_rows, width)
    edges = adjacency.new_empty(num_edges, width) if read_edges else None
    sizes = {"num_rows": num_rows, "max_nodes": max_nodes, "num_edges": num_edges, "num_filters": num_filters}
    sizes |= {"num_layers": num_layers, "num_probes": num_probes}
    _kernel(
        dtype,
        f"each edge must join two different rows of {num_rows}",
        read,
        {"nodes": nodes, "edges": edges},
        **sizes,
        seed=signed_64(seed),
        alpha=alpha,
        gamma=gamma,
    )
    return nodes, adjacency.new_zeros(1, 1).expand(num_edges, width) if edges is None else edges


def _reference(adjacency: Tensor, recurrence: EstimatedRecurrence) -> tuple[Tensor, Tensor]:
    """Compute :func:`estimated_polynomials` in torch, some probes at a time."""
    tail, head, num_rows, max_nodes, _, _, _, num_probes, seed, _ = recurrence
    ends = RowGroups(tail, num_rows), RowGroups(head, num_rows)
    at_once = max(1, ROWS_AT_ONCE // max(num_rows, 1))
    nodes, edges = [], []
    for row in adjacency:
        diagonal, entries = row.new_zeros(()), row.new_zeros(())
        for probes in torch.arange(num_probes, device=row.device).split(at_once):
            # Signs depend on the row within its graph, so a graph has the same signs in any batch.
            signs = counter_signs(seed, max_nodes, probes, row).repeat(num_rows // max(max_nodes, 1), 1)
            # Without the checkpoint, the backward pass would keep all vectors of each layer and filter.
            part = checkpointed(_sums_over_probes, row, signs, *ends, recurrence)
            diagonal, entries = diagonal + part[0], entries + part[1]
        nodes.append(diagonal / num_probes)
        edges.append(entries / num_probes)
    if not nodes:
        return adjacency.new_zeros(num_rows, 0), adjacency.new_zeros(tail.shape[0], 0)
    return torch.cat(nodes).mT.contiguous(), torch.cat(edges).mT.contiguous()


def _sums_over_probes(
    entry: Tensor, signs: Tensor, tails: RowGroups, heads: RowGroups, recurrence: EstimatedRecurrence
) -> tuple[Tensor, Tensor]:
    """Sum diagonals ``[num_layers, num_rows]`` and edge entries ``[num_layers, num_edges]`` of a filter over probes."""
    _, _, _, _, alpha, gamma, num_layers, _, _, read_edges = recurrence
    weight, half = entry.unsqueeze(1), [signs]
    while 2 * len(half) - 1 <= num_layers:
        z = half[-1]
        product = tails.sum(weight * heads.gather(z)) + heads.sum(weight * tails.gather(z))
        half.append(alpha * product - gamma * half[-2] if gamma and len(half) > 1 else product)
    # The first layer is P itself and needs no estimate.
    none, first = signs.new_zeros(signs.size(0)), entry * signs.size(1)
    diagonals, entries = [none], [first if read_edges else torch.zeros_like(first)]
    for layer in range(2, num_layers + 1):
        a, b = half[layer // 2], half[layer - layer // 2]
        diagonal = (a * b).sum(1)
        at_edges = torch.zeros_like(first)
        if read_edges:
            at_edges = (tails.gather(a) * heads.gather(b)).sum(1)
            if a is not b:
                at_edges = 0.5 * (at_edges + (tails.gather(b) * heads.gather(a)).sum(1))
        if gamma:  # T_2s = 2 T_s T_s - I, T_2s+1 = 2 T_s T_s+1 - P
            diagonal = 2 * diagonal - (signs.size(1) if layer % 2 == 0 else 0)
            at_edges = 2 * at_edges - (0 if layer % 2 == 0 or not read_edges else first)
        diagonals.append(diagonal)
        entries.append(at_edges)
    return torch.stack(diagonals), torch.stack(entries)


def _fake(adjacency: Tensor, tail: Tensor, head: Tensor, num_rows: int, *options: Any) -> tuple[Tensor, Tensor]:
    _, _, _, num_layers, _, _, read_edges = options
    num_filters, num_edges = adjacency.shape
    width = num_filters * num_layers
    edges = adjacency.new_empty(num_edges, width) if read_edges else adjacency.new_zeros(1, 1).expand(num_edges, width)
    return adjacency.new_empty(num_rows, width), edges


def _backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    """Compute the gradient through the reference in torch: no backend implements it."""
    inputs = kept_inputs(ctx)
    return tuple(reference_gradients(lambda p, *flat: _reference(p, EstimatedRecurrence(*flat)), inputs, grads))


_ARGUMENTS = (
    "Tensor adjacency, Tensor tail, Tensor head, SymInt num_rows, SymInt max_nodes, float alpha, float gamma, "
    "int num_layers, int num_probes, int seed, bool read_edges"
)
_estimated_polynomials = Operator(
    f"estimated_polynomials({_ARGUMENTS}) -> (Tensor nodes, Tensor edges)", _run, _fake, keep_inputs, _backward
)
