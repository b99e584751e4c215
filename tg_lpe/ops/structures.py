"""Named tuples of tensors that several operations share."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class UndirectedEdges(NamedTuple):
    """Hold the distinct undirected edges of a list, sorted by ``(tail, head)``, ``tail < head``; no self-loops."""

    tail: Tensor
    head: Tensor
    """int64 ``[num_edges]``."""
    undirected_index: Tensor | None
    """Undirected edge of each directed edge, int64 ``[num_directed_edges]``, -1 for self-loops; or ``None``."""
    neighbour_counts: Tensor | None
    """Number of neighbours of each node, int64 ``[num_nodes]``; ``None`` if not computed."""
    ptr: Tensor | None
    """First node of each graph of a batch, int64 ``[num_graphs + 1]``; ``None`` if not computed."""
    num_graphs: int
    """Number of graphs."""
    num_loops: int
    """Number of self-loops in the list."""
    max_nodes: int
    """Number of nodes of the largest graph."""


class Recurrence(NamedTuple):
    """Define ``Phi_t = alpha P Phi_{t-1} - gamma Phi_{t-2}``, ``Phi_0 = I``, with a symmetric ``P`` of each graph."""

    tail: Tensor
    head: Tensor
    """Ends of the edges, the nonzero entries of ``P``; int64 ``[num_edges]``, graph by graph."""
    ptr: Tensor
    """First node of each graph, int64 ``[num_graphs + 1]``."""
    num_nodes: int
    """Number of nodes of the batch."""
    max_nodes: int
    """Number of nodes of the largest graph."""
    alpha: float
    gamma: float
    num_layers: int
    """Number of ``Phi_t``."""


class EstimatedRecurrence(NamedTuple):
    """Define the recurrence of :class:`Recurrence`, estimated from its products with random signs."""

    tail: Tensor
    head: Tensor
    """Ends of the edges, the nonzero entries of ``P``; int64 ``[num_edges]``."""
    num_rows: int
    """Number of rows of all graphs, padded to the same size."""
    max_nodes: int
    """Number of rows of each graph; row ``i`` has the signs of row ``i % max_nodes``."""
    alpha: float
    gamma: float
    num_layers: int
    """Number of ``Phi_t``."""
    num_probes: int
    """Number of columns of random signs."""
    seed: int
    """Seed of the signs, as an int64."""
    read_edges: bool
    """Whether to compute edge entries."""


class BallRecurrence(NamedTuple):
    """Define the recurrence of :class:`Recurrence` in a ball around each node of a large graph."""

    tail: Tensor
    head: Tensor
    """Ends of the edges, the nonzero entries of ``P``; int64 ``[num_edges]``."""
    orders: Tensor
    """Number of ``Phi_t`` whose diagonal entry is computed at each node, int64 ``[num_nodes]``."""
    alpha: float
    gamma: float
    num_layers: int
    """Number of ``Phi_t`` in the result."""
    read_edges: bool
    """Whether to compute edge entries."""


class AdjacencyRows(NamedTuple):
    """Hold a sparse matrix without diagonal as CSR: row ``i`` has entries ``crow[i]`` to ``crow[i + 1] - 1``."""

    crow: Tensor
    """int64 ``[num_nodes + 1]``."""
    col: Tensor
    """int32 ``[2 num_edges]``."""
    value: Tensor
    """``[2 num_edges]``."""


class ScaledLaplacian(NamedTuple):
    """Hold ``S = diag(s) L diag(s)`` of a batch of graphs, as a list of edges and, for the CPU, as CSR."""

    tail: Tensor
    """int64 ``[num_edges]``, sorted graph by graph."""
    head: Tensor
    """int64 ``[num_edges]``, ``tail < head``."""
    ptr: Tensor
    """First node of each graph, int64 ``[num_graphs + 1]``."""
    node_scale: Tensor
    """``s``, ``[num_nodes]``."""
    conductance: Tensor | None
    """Conductances of the edges, ``[num_edges]``; all one if ``None``."""
    diagonal: Tensor
    """Diagonal of ``S``, ``[num_nodes]``."""
    max_nodes: int
    """Number of nodes of the largest graph."""
    crow: Tensor | None = None
    col: Tensor | None = None
    value: Tensor | None = None
    """``diag(s) A diag(s)`` as :class:`AdjacencyRows`, with ``L = diag(d) - A``; computed on demand if ``None``."""

    @property
    def rows(self) -> AdjacencyRows | None:
        """``diag(s) A diag(s)``, if it was computed."""
        if self.crow is None or self.col is None or self.value is None:
            return None
        return AdjacencyRows(self.crow, self.col, self.value)


class LayerStack(NamedTuple):
    """Hold the weights of consecutive layers of eq. (16), each ``[num_layers, k, k]``.

    ``Phi^T <- M Phi^T + W (S Phi)^T`` with ``W = similarity`` and ``M = residual + left Gram right``. For diagonal
    weights, ``M = residual + left * Gram``, entry by entry, and only the diagonal of ``W`` is read.
    """

    residual: Tensor
    similarity: Tensor
    left: Tensor
    right: Tensor
    diagonal: bool


class LayerArguments(NamedTuple):
    """Hold the arguments of :func:`tg_lpe.ops.layers.layers` one by one, as a registered operation takes them."""

    phi: Tensor
    """``Phi_0``; then follow the fields of :class:`ScaledLaplacian`."""
    tail: Tensor
    head: Tensor
    ptr: Tensor
    node_scale: Tensor
    conductance: Tensor | None
    diagonal: Tensor
    max_nodes: int
    crow: Tensor | None
    col: Tensor | None
    value: Tensor | None
    residual: Tensor
    """The first field of :class:`LayerStack`."""
    similarity: Tensor
    left: Tensor
    right: Tensor
    diagonal_weights: bool
    readout: Tensor | None
    later: Tensor
    norm_floor: float | None

    @property
    def laplacian(self) -> ScaledLaplacian:
        """``S`` of each graph."""
        return ScaledLaplacian(*self[1:OF_GRAPH])  # type: ignore[arg-type]


OF_GRAPH = LayerArguments._fields.index("residual")
"""Number of the first arguments, which describe ``Phi_0`` and the graph."""
