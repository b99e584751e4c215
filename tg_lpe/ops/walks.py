"""Compute powers of a sparse symmetric matrix at nodes and edges, through one node after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from tg_lpe.ops.cpu import Function, Int, Pointer, required_ends

BLOCK = 8
"""Number of nodes of a block, whose columns are computed together."""

_kernel = Function(
    "walks",
    (Int, "num_nodes num_edges num_steps num_blocks"),
    (Pointer, "adjacency tail head blocks nodes edges seconds"),
    (Int, "num_threads"),
    dtypes={torch.float64: "float64"},
)


def add_walks_(
    nodes: Tensor, edges: Tensor | None, adjacency: Tensor, tail: Tensor, head: Tensor, blocks: Tensor
) -> Tensor:
    """Add the walks of 1 to ``num_steps`` steps whose lowest node is in some blocks, in the compiled part.

    The walks of all blocks sum to the entries of ``P^1`` to ``P^num_steps``, see ``csrc/walks.cpp``. It is fast if
    nodes with many neighbours have low numbers, and neighbours near ones.

    Args:
        nodes: contiguous diagonals to add to, float64 ``[num_nodes, num_steps]``, with a multiple of 8 nodes.
        edges: contiguous entries at the edges to add to, float64 ``[num_edges, num_steps]``; ``None`` for none.
        adjacency: entries of ``P`` at the edges, float64 ``[num_edges]``.
        tail, head: ends of each edge, ``tail < head``, sorted by both, int64 ``[num_edges]``.
        blocks: numbers of blocks, int64 ``[num_blocks]``; block ``b`` has the nodes from ``8 b`` to ``8 b + 7``.

    Returns:
        The seconds that each block took on its thread, float64 ``[num_blocks]``.
    """
    (num_nodes, num_steps), num_edges, num_blocks = nodes.shape, tail.numel(), blocks.numel()
    read = required_ends(tail, head, num_nodes)
    read |= {"adjacency": (adjacency, torch.float64, (num_edges,)), "blocks": (blocks, torch.int64, (num_blocks,))}
    for name, sums, count in ("nodes", nodes, num_nodes), ("edges", edges, num_edges):
        if sums is not None:
            read[name] = sums, torch.float64, (count, num_steps)
    seconds = torch.zeros(num_blocks, dtype=torch.float64)
    sizes = {"num_nodes": num_nodes, "num_edges": num_edges, "num_steps": num_steps, "num_blocks": num_blocks}
    malformed = f"edges must be sorted and join two nodes of {num_nodes}, and blocks lie below {num_nodes // BLOCK}"
    _kernel(torch.float64, malformed, read, {"seconds": seconds}, **sizes)
    return seconds
