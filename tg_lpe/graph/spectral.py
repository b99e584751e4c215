"""Encodings computed, not learned: Laplacian eigenvectors and random-walk return probabilities of a whole batch.

They serve as baselines and as targets of pretraining, defined on every graph: few nodes, several components, no edges.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from tg_lpe.graph.incidence import Incidence, inverse_sqrt
from tg_lpe.graph.padding import GraphBlocks
from tg_lpe.ops.walks import compiled_walks_pay, graph_walks, walks


def laplacian_eigenvectors(graph: Incidence, k: int) -> tuple[Tensor, Tensor]:
    """The first ``k`` non-trivial eigenvectors of the normalised Laplacian of each graph, batched dense algebra.

    Trivial are the vectors of eigenvalue zero, one per connected component without ground; all of them are left out, so
    no basis of the null space leaks in. Columns a graph does not have (it has fewer nodes than that) are zero. The
    sign, and the basis where an eigenvalue repeats, are LAPACK's choice.

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
    blocks = dense_blocks(graph)
    null = null_dimension(graph)
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


def random_walk_probabilities(graph: Incidence, steps: int) -> tuple[Tensor, Tensor]:
    """Where a random walk is after 1, 2, ... ``steps`` steps: back at its start, or across an edge.

    The walk leaves along each edge in proportion to its conductance and stays nowhere; it never returns to a node
    without edges. `Graph Neural Networks with Learnable Structural and Positional Representations
    <https://arxiv.org/abs/2110.07875>`_, eq. (7).

    Args:
        graph: the batch.
        steps: number of steps.

    Returns:
        Return probabilities ``[num_nodes, steps]``, and for each column of ``B`` the geometric mean of the
        probabilities of being at one end after starting from the other, ``[num_edges, steps]``, which is the entry of
        ``(D^-1/2 A D^-1/2)^t``. Both float64.

    Raises:
        ValueError: if a graph is too large for dense algebra.
    """
    like = torch.empty(0, dtype=torch.float64, device=graph.device)
    scale = inverse_sqrt(graph.laplacian_diagonal(like))
    _refuse_large(graph)
    coupling = graph.root_conductance(like).square() * scale[graph.tail] * scale[graph.head]
    # D^-1/2 A D^-1/2 is similar to the walk's D^-1 A: their powers share the diagonal.
    if compiled_walks_pay(coupling, graph):
        return graph_walks(coupling.unsqueeze(0), graph, "power", steps)
    blocks = dense_blocks(graph)
    nodes, edges, columns = [], [], []
    for where in blocks.edge_positions():
        diagonal, entries = walks(coupling[where.columns].unsqueeze(0), where, "power", steps)
        nodes.append(diagonal[0].mT)
        edges.append(entries[0].mT)
        columns.append(where.columns)
    if not nodes:
        return like.new_zeros(graph.num_nodes, steps), like.new_zeros(0, steps)
    return blocks.collect_rows(nodes), torch.cat(edges)[torch.argsort(torch.cat(columns))]


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


HEAT_TIMES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
NUM_EIGENSPACES = 3
NULL = 1e-8
DEGENERATE = 1e-6
"""Eigenvalues nearer than this are one, whose eigenspace has no preferred basis."""

KERNELS = {"heat": _heat, "resistance": _resistance, "eigenspaces": _eigenspaces}
"""Functions of the eigenvalues ``[..., n]`` of the normalised Laplacian, ``[..., channels, n]``: heat kernels
``exp(-t S)`` at :data:`HEAT_TIMES`, the pseudo-inverse of ``S`` (effective resistances are differences of its entries),
projectors on the first three eigenspaces above the null space."""


def kernel_channels(kernels: Sequence[str]) -> int:
    """Number of channels of some of :data:`KERNELS`."""
    return sum(KERNELS[name](torch.zeros(1)).size(-2) for name in kernels)


def kernel_entries(graph: Incidence, kernels: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Kernels of the normalised Laplacian at nodes and edges, by dense eigendecomposition: blind to sign and basis.

    Args:
        graph: the batch.
        kernels: some of :data:`KERNELS`.

    Returns:
        Diagonals ``[num_nodes, channels]`` and entries at the edges ``[num_edges, channels]``, float64.

    Raises:
        ValueError: if a kernel is unknown, or a graph too large for dense algebra.
    """
    if unknown := sorted(set(kernels) - set(KERNELS)):
        raise ValueError(f"kernels must be some of {tuple(KERNELS)}, got {unknown}")
    like = torch.empty(0, dtype=torch.float64, device=graph.device)
    scale = inverse_sqrt(graph.laplacian_diagonal(like))
    blocks = dense_blocks(graph)
    nodes, edges, columns = [like.new_zeros(0, kernel_channels(kernels))], [], [graph.tail.new_zeros(0)]
    edges.append(nodes[0])
    for matrix, where in zip(blocks.dense_laplacians(scale), blocks.edge_positions(), strict=True):
        values, vectors = torch.linalg.eigh(matrix)
        # The fill of a block adds eigenvalues of zero, with eigenvectors that are zero at every node.
        weights = torch.cat([KERNELS[name](values) for name in kernels], dim=1)
        kernel = torch.einsum("gia,gca,gja->cgij", vectors, weights, vectors).flatten(1, 2).contiguous()
        kernel = kernel.view(-1, where.height, where.height)
        nodes.append(where.diagonal(kernel).view(weights.size(1), -1).mT)
        edges.append(where.at_edges(kernel).view(weights.size(1), -1).mT)
        columns.append(where.columns)
    rows = blocks.collect_rows(nodes[1:]) if blocks.blocks else nodes[0]
    return rows, torch.cat(edges)[torch.argsort(torch.cat(columns))]


DENSE_LIMIT = 4096
"""Nodes of a graph up to which its dense eigendecomposition is attempted (half a minute and 0.5 GB at this size)."""


def dense_blocks(graph: Incidence) -> GraphBlocks:
    """The layout of a batch in which each graph's matrices are written out.

    Raises:
        ValueError: if a graph is too large for that.
    """
    _refuse_large(graph)
    return GraphBlocks(graph, dense_height=DENSE_LIMIT)


def _refuse_large(graph: Incidence) -> None:
    largest = graph.max_nodes
    if largest > DENSE_LIMIT:
        raise ValueError(
            f"dense algebra on a graph of {largest} nodes needs {largest**2 * 8 / 2**30:.1f} GiB a matrix and "
            f"O(n^3) time; it is offered up to {DENSE_LIMIT} nodes. LinearTransformerPE has no such limit."
        )


def component_labels(graph: Incidence) -> Tensor:
    """Connected component of each node, numbered from 0, int64 ``[num_nodes]``; edges of weight zero are absent."""
    tail, head = graph.tail, graph.head
    if graph.conductance is not None:
        there = graph.conductance.detach() > 0
        tail, head = tail[there], head[there]
    ones = torch.ones(tail.numel(), dtype=torch.int8)
    adjacency = coo_matrix((ones.numpy(), (tail.cpu().numpy(), head.cpu().numpy())), (graph.num_nodes,) * 2)
    _, label = connected_components(adjacency, directed=False)
    return torch.from_numpy(label).to(torch.int64).to(graph.device)


def null_dimension(graph: Incidence) -> Tensor:
    """Connected components of each graph that are not grounded, int64 ``[num_graphs]``: its null space's dimension."""
    label = component_labels(graph)
    pairs = torch.unique(torch.stack([graph.batch, label]), dim=1)
    if graph.ground is not None:
        pairs = pairs[:, ~torch.isin(pairs[1], label[graph.ground.detach() > 0])]
    return torch.bincount(pairs[0], minlength=graph.num_graphs)
