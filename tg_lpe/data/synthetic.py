"""Make the graphs of the paper's synthetic experiments (complete or circular skip links), grids and expanders.

`Graph Transformers Dream of Electric Flow <https://arxiv.org/abs/2410.16699>`_, appendix 13.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tg_lpe.arguments import check_counts, check_generator

CSL_SKIPS = (2, 4, 6, 8)
RESISTANCE_RANGE = (-2.0, 2.0)
"""Resistances are ``exp(u)`` with ``u`` uniform in this range."""


def complete_edges(num_nodes: int) -> Tensor:
    """List every pair of nodes once, int64 ``[2, num_nodes (num_nodes - 1) / 2]``."""
    return torch.triu_indices(num_nodes, num_nodes, offset=1)


def csl_edges(num_nodes: int, skip: int) -> Tensor:
    """List a circle through all nodes, and a link from each node to the node ``skip`` further, ``[2, 2 num_nodes]``.

    Raises:
        ValueError: if a link is an edge of the circle, or links coincide.
    """
    if num_nodes < 1 or skip % num_nodes in (0, 1, num_nodes - 1) or 2 * skip % num_nodes == 0:
        raise ValueError(
            f"links of skip={skip} on a circle of {num_nodes} nodes are not {2 * num_nodes} different edges"
        )
    node = torch.arange(num_nodes)
    return torch.cat([torch.stack([node, (node + step) % num_nodes]) for step in (1, skip)], dim=1)


def random_regular_edges(num_nodes: int, degree: int, generator: torch.Generator) -> Tensor:
    """Draw an expander as a union of random circles through all nodes, int64 ``[2, num_nodes degree / 2]``.

    Every node has ``degree`` edges, a few of which may coincide.

    Raises:
        ValueError: on an odd degree, or fewer than three nodes.
    """
    if degree % 2 or degree < 2 or num_nodes < 3:
        raise ValueError(f"degree must be even and positive, num_nodes at least 3, got {degree} and {num_nodes}")
    orders = [torch.randperm(num_nodes, generator=generator) for _ in range(degree // 2)]
    return torch.cat([torch.stack([order, order.roll(1)]) for order in orders], dim=1)


def random_conductances(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Draw conductances ``exp(-u)`` with ``u`` uniform in :data:`RESISTANCE_RANGE`, float64."""
    low, high = RESISTANCE_RANGE
    return torch.exp(-low - (high - low) * torch.rand(*shape, generator=generator, dtype=torch.float64))


def random_incidences(
    kind: str, num_graphs: int, generator: torch.Generator, num_nodes: int = 10, skips: Sequence[int] = CSL_SKIPS
) -> Tensor:
    """Draw dense incidence matrices of many complete or CSL graphs with random resistances, eq. (1).

    Args:
        kind: ``"complete"`` or ``"csl"``.
        num_graphs: number of graphs.
        generator: draws skips and resistances.
        num_nodes: number of nodes.
        skips: skips of a CSL graph, of which one is drawn.

    Returns:
        ``[num_graphs, num_nodes, num_edges]``, float64.

    Raises:
        TypeError: if ``generator`` is no generator.
        ValueError: on an unknown kind, a negative number, or a skip that does not give a CSL graph.
    """
    check_generator(generator)
    check_counts(least=0, num_graphs=num_graphs, num_nodes=num_nodes)
    if kind == "complete":
        edges = complete_edges(num_nodes).expand(num_graphs, 2, -1)
    elif kind == "csl":
        if not skips:
            raise ValueError("skips must hold at least one skip, got none")
        choice = torch.randint(len(skips), (num_graphs,), generator=generator)
        edges = torch.stack([csl_edges(num_nodes, skip) for skip in skips])[choice]
    else:
        raise ValueError(f"kind must be 'complete' or 'csl', got {kind!r}")
    conductances = random_conductances((num_graphs, edges.size(-1)), generator)
    root = conductances.sqrt().unsqueeze(1)
    b = root.new_zeros(num_graphs, num_nodes, edges.size(-1))
    return b.scatter_(1, edges[:, :1], -root).scatter_(1, edges[:, 1:], root)
