"""Functions of the node encodings of pairs of nodes that do not depend on signs."""

from __future__ import annotations

import torch
from torch import Tensor


def pair_forms(pe: Tensor, edge_index: Tensor) -> Tensor:
    """``|phi_i - phi_j|`` and ``phi_i * phi_j`` of the two ends of each edge, independent of the sign of each column.

    `Rethinking Graph Transformers with Spectral Attention <https://arxiv.org/abs/2106.03893>`_, eqs. (7)-(8).

    Args:
        pe: encoding of the nodes, ``[num_nodes, k]``.
        edge_index: int64 ``[2, num_edges]``.

    Returns:
        ``[num_edges, 2 k]``.
    """
    i, j = pe[edge_index[0]], pe[edge_index[1]]
    return torch.cat([(i - j).abs(), i * j], dim=1)
