"""Encodings computed, not learned: Laplacian eigenvectors and random-walk return probabilities of a whole batch.

They serve as baselines and as targets of pretraining, defined on every graph: few nodes, several components, no edges.
"""

from __future__ import annotations

import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from tg_lpe.blocks import GraphBlocks
from tg_lpe.incidence import Incidence, inverse_sqrt


def laplacian_eigenvectors(graph: Incidence, k: int) -> tuple[Tensor, Tensor]:
    """The first ``k`` non-trivial eigenvectors of the normalised Laplacian of each graph, batched dense algebra.

    Trivial are the vectors of eigenvalue zero, one per connected component; all of them are left out, so no basis of
    the null space leaks in. Columns a graph does not have (it has fewer nodes than that) are zero. The sign, and the
    basis where an eigenvalue repeats, are LAPACK's choice.

    Args:
        graph: the batch; ``D^-1/2 L D^-1/2`` with ``D`` the diagonal of ``L``.
        k: number of eigenvectors.

    Returns:
        Eigenvectors ``[num_nodes, k]``, orthonormal within a graph, and eigenvalues ``[num_graphs, k]`` (NaN where
        there is none), ascending, float64.

    Raises:
        ValueError: if a graph is too large for dense algebra.
    """
    like = torch.empty(0, dtype=torch.float64, device=graph.device)
    scale = inverse_sqrt(graph.laplacian_diagonal(like))
    blocks = _dense_blocks(graph)
    null = _num_components(graph)
    parts, values = [], scale.new_full((graph.num_graphs, k), torch.nan)
    sizes = graph.ptr[1:] - graph.ptr[:-1]
    for block, matrix in zip(blocks.blocks, blocks.dense_laplacians(scale), strict=True):
        height = block.height
        fill = torch.arange(height, device=graph.device) >= sizes[block.graphs].unsqueeze(-1)
        # Eigenvalues lie in [0, 2]; those of the fill are put above, where they sort last.
        matrix = matrix + torch.diag_embed(4.0 * fill)
        eigenvalues, eigenvectors = torch.linalg.eigh(matrix)
        column = null[block.graphs].unsqueeze(-1) + torch.arange(k, device=graph.device)
        exists = column < sizes[block.graphs].unsqueeze(-1)
        column = column.clamp(max=height - 1)
        picked = eigenvectors.gather(2, column.unsqueeze(1).expand(-1, height, -1)) * exists.unsqueeze(1)
        parts.append(picked.mT)
        values[block.graphs] = torch.where(exists, eigenvalues.gather(1, column), torch.nan)
    return blocks.collect(parts, k).double(), values


def random_walk_probabilities(graph: Incidence, steps: int) -> Tensor:
    """Probability that a random walk is back at its start after 1, 2, ... ``steps`` steps.

    The walk leaves along each edge in proportion to its conductance and stays nowhere; it never returns to a node
    without edges. `Graph Neural Networks with Learnable Structural and Positional Representations
    <https://arxiv.org/abs/2110.07875>`_, eq. (7).

    Args:
        graph: the batch.
        steps: number of steps.

    Returns:
        ``[num_nodes, steps]``, float64.

    Raises:
        ValueError: if a graph is too large for dense algebra.
    """
    like = torch.empty(0, dtype=torch.float64, device=graph.device)
    scale = inverse_sqrt(graph.laplacian_diagonal(like))
    blocks = _dense_blocks(graph)
    parts = []
    for matrix in blocks.dense_laplacians(scale):
        # I - S has the entries of D^-1/2 A D^-1/2, similar to the walk's D^-1 A: their powers share the diagonal.
        walk = torch.diag_embed(matrix.diagonal(dim1=1, dim2=2)) - matrix
        power, diagonals = walk, []
        for step in range(steps):
            power = power @ walk if step else walk
            diagonals.append(power.diagonal(dim1=1, dim2=2))
        parts.append(torch.stack(diagonals, dim=1))
    return blocks.collect(parts, steps).double()


DENSE_LIMIT = 4096
"""Nodes of a graph up to which its dense eigendecomposition is attempted (half a minute and 0.5 GB at this size)."""


def _dense_blocks(graph: Incidence) -> GraphBlocks:
    largest = int((graph.ptr[1:] - graph.ptr[:-1]).max()) if graph.num_graphs else 0
    if largest > DENSE_LIMIT:
        raise ValueError(
            f"dense algebra on a graph of {largest} nodes needs {largest**2 * 8 / 2**30:.1f} GiB a matrix and "
            f"O(n^3) time; it is offered up to {DENSE_LIMIT} nodes. LinearTransformerPE has no such limit."
        )
    return GraphBlocks(graph, dense_height=DENSE_LIMIT)


def _num_components(graph: Incidence) -> Tensor:
    """Number of connected components of each graph, int64 ``[num_graphs]``: the dimension of its null space."""
    tail, head = graph.tail, graph.head
    if graph.conductance is not None:
        there = graph.conductance.detach() > 0
        tail, head = tail[there], head[there]
    ones = torch.ones(tail.numel(), dtype=torch.int8)
    adjacency = coo_matrix((ones.numpy(), (tail.cpu().numpy(), head.cpu().numpy())), (graph.num_nodes,) * 2)
    _, label = connected_components(adjacency, directed=False)
    first = torch.from_numpy(label).to(torch.int64).to(graph.device)
    pairs = torch.unique(torch.stack([graph.batch, first]), dim=1)
    return torch.bincount(pairs[0], minlength=graph.num_graphs)
