"""Kernels of the Laplacian as pretraining targets; they do not depend on signs and bases of eigenvectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tg_lpe.graph.graph import Graph, inverse_sqrt
from tg_lpe.graph.padding import padded_batch

HEAT_TIMES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
WALK_STEPS = tuple(range(2, 21))
"""Starts at 2: no walk returns after one step. Odd steps detect odd cycles, which heat kernels hardly see."""
NULL = 1e-8

KERNELS: dict[str, Callable[[Tensor], Tensor]] = {
    "heat": lambda values: torch.exp(-values.unsqueeze(-2) * values.new_tensor(HEAT_TIMES).unsqueeze(-1)),
    "resistance": lambda values: torch.where(values > NULL, 1 / values.clamp(min=NULL), 0.0).unsqueeze(-2),
    "walks": lambda values: (1 - values).unsqueeze(-2) ** values.new_tensor(WALK_STEPS).unsqueeze(-1),
}
"""Kernels by name. Each maps eigenvalues ``[..., n]`` of the normalised Laplacian ``S`` to ``[..., channels, n]``.

- ``heat``: ``exp(-t S)`` at :data:`HEAT_TIMES`
- ``resistance``: the pseudo-inverse of ``S``; effective resistances are differences of its entries
- ``walks``: random walks ``(I - S)^t`` of :data:`WALK_STEPS`, with return probabilities on the diagonal
"""


def kernel_channels(kernels: Sequence[str]) -> int:
    """Count the channels of some :data:`KERNELS` together."""
    return sum(KERNELS[name](torch.zeros(1)).size(-2) for name in kernels)


def kernel_entries(graph: Graph, kernels: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Compute kernels of the normalised Laplacian at nodes and edges from an eigendecomposition.

    Args:
        graph: the batch.
        kernels: names from :data:`KERNELS`.

    Returns:
        The diagonals ``[num_nodes, channels]`` and the entries at the edges ``[num_edges, channels]``, float64.

    Raises:
        ValueError: if a name is unknown.
    """
    if unknown := sorted(set(kernels) - set(KERNELS)):
        raise ValueError(f"kernels must be some of {tuple(KERNELS)}, got {unknown}")
    like = torch.empty(0, dtype=torch.float64, device=graph.device)
    scale = inverse_sqrt(graph.laplacian_diagonal(like))
    padded = padded_batch(graph)
    empty = like.new_zeros(0, kernel_channels(kernels))
    nodes, edges, order = [empty], [empty], [graph.tail.new_zeros(0)]
    for matrix, positions in zip(padded.dense_laplacians(scale), padded.edge_positions(), strict=True):
        values, vectors = torch.linalg.eigh(matrix)
        # Padding adds eigenvalues of zero, whose eigenvectors are zero at every node.
        weights = torch.cat([KERNELS[name](values) for name in kernels], dim=1)
        kernel = torch.einsum("gia,gca,gja->cgij", vectors, weights, vectors).flatten(1, 2).contiguous()
        kernel = kernel.view(-1, positions.max_nodes, positions.max_nodes)
        nodes.append(positions.diagonal(kernel).view(weights.size(1), -1).mT)
        edges.append(positions.at_edges(kernel).view(weights.size(1), -1).mT)
        order.append(positions.edges)
    rows = padded.unpad_rows(nodes[1:]) if padded.buckets else empty
    return rows, torch.cat(edges)[torch.argsort(torch.cat(order))]
