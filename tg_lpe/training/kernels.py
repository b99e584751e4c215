"""Kernels of the Laplacian, which depend on no sign and no basis, as targets of pretraining."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch_geometric.data import InMemoryDataset

from tg_lpe.data.storage import with_attribute
from tg_lpe.encoders.precompute import incidences
from tg_lpe.graph.eigenvectors import DEGENERATE
from tg_lpe.graph.graph import Graph, inverse_sqrt
from tg_lpe.graph.padding import padded_batch

NODE_TARGET, EDGE_TARGET = "kernel", "edge_kernel"
CHUNK = 1000


def _heat(values: Tensor) -> Tensor:
    return torch.exp(-values.unsqueeze(-2) * values.new_tensor(HEAT_TIMES).unsqueeze(-1))


def _resistance(values: Tensor) -> Tensor:
    return torch.where(values > NULL, 1 / values.clamp(min=NULL), 0.0).unsqueeze(-2)


def _eigenspaces(values: Tensor) -> Tensor:
    new = values.diff(dim=-1, prepend=values[..., :1]) > DEGENERATE
    # The null space is number 0, whether a graph has one (it has none where all is grounded) or not.
    space = (new.cumsum(-1) + (values[..., :1] > NULL)).unsqueeze(-2)
    wanted = torch.arange(1, NUM_EIGENSPACES + 1, device=values.device).unsqueeze(-1)
    return (space == wanted).to(values.dtype)


def _walks(values: Tensor) -> Tensor:
    return (1 - values).unsqueeze(-2) ** values.new_tensor(WALK_STEPS).unsqueeze(-1)


HEAT_TIMES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
WALK_STEPS = tuple(range(2, 21))
"""No node returns after one step, and odd steps tell odd cycles, on which heat kernels hardly depend."""
NUM_EIGENSPACES = 3
NULL = 1e-8

KERNELS = {"heat": _heat, "resistance": _resistance, "eigenspaces": _eigenspaces, "walks": _walks}
"""Functions of the eigenvalues ``[..., n]`` of the normalised Laplacian, ``[..., channels, n]``: heat kernels
``exp(-t S)`` at :data:`HEAT_TIMES`, the pseudo-inverse of ``S`` (effective resistances are differences of its entries),
projectors on the first three eigenspaces above the null space, and random walks ``(I - S)^t`` of :data:`WALK_STEPS`,
whose diagonal holds return probabilities."""


def kernel_channels(kernels: Sequence[str]) -> int:
    """Count the channels of some of :data:`KERNELS`."""
    return sum(KERNELS[name](torch.zeros(1)).size(-2) for name in kernels)


def kernel_entries(graph: Graph, kernels: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Compute kernels of the normalised Laplacian at nodes and edges, by eigenvectors, whatever their signs and bases.

    Args:
        graph: the batch.
        kernels: some of :data:`KERNELS`.

    Returns:
        Diagonals ``[num_nodes, channels]`` and entries at the edges ``[num_edges, channels]``, float64.
    """
    if unknown := sorted(set(kernels) - set(KERNELS)):
        raise ValueError(f"kernels must be some of {tuple(KERNELS)}, got {unknown}")
    like = torch.empty(0, dtype=torch.float64, device=graph.device)
    scale = inverse_sqrt(graph.laplacian_diagonal(like))
    padded = padded_batch(graph)
    nodes, edges, order = [like.new_zeros(0, kernel_channels(kernels))], [], [graph.tail.new_zeros(0)]
    edges.append(nodes[0])
    for matrix, where in zip(padded.dense_laplacians(scale), padded.edge_positions(), strict=True):
        values, vectors = torch.linalg.eigh(matrix)
        # The padding of a bucket adds eigenvalues of zero, with eigenvectors that are zero at every node.
        weights = torch.cat([KERNELS[name](values) for name in kernels], dim=1)
        kernel = torch.einsum("gia,gca,gja->cgij", vectors, weights, vectors).flatten(1, 2).contiguous()
        kernel = kernel.view(-1, where.max_nodes, where.max_nodes)
        nodes.append(where.diagonal(kernel).view(weights.size(1), -1).mT)
        edges.append(where.at_edges(kernel).view(weights.size(1), -1).mT)
        order.append(where.edges)
    rows = padded.unpad_rows(nodes[1:]) if padded.buckets else nodes[0]
    return rows, torch.cat(edges)[torch.argsort(torch.cat(order))]


def attach_kernels(dataset: InMemoryDataset, kernels: tuple[str, ...]) -> InMemoryDataset:
    """Copy the dataset with ``data.kernel`` ``[num_nodes, c]`` and ``data.edge_kernel`` ``[num_edges, c]``.

    Edge weights of the graphs count as conductances.
    """
    nodes, edges = [], []
    for graph in incidences(dataset, CHUNK):
        node, edge = kernel_entries(graph, kernels)
        nodes.append(node.float())
        edges.append(graph.spread_to_directed(edge).float())
    dataset = with_attribute(dataset, NODE_TARGET, "node", torch.cat(nodes))
    return with_attribute(dataset, EDGE_TARGET, "edge", torch.cat(edges))
