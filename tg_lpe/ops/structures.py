"""Structures of plain tensors that several operations share."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class UndirectedEdges(NamedTuple):
    """The distinct undirected edges of a list, sorted by ``(tail, head)``, ``tail < head``; no self-loops."""

    tail: Tensor
    head: Tensor
    """int64 ``[num_edges]``."""
    undirected_index: Tensor | None
    """Undirected edge of each directed one, int64 ``[num_directed_edges]``, -1 for self-loops; if asked for."""
    neighbour_counts: Tensor | None
    """int64 ``[num_nodes]``; ``None`` where they were not counted on the way."""
    ptr: Tensor | None
    """First node of each graph of a batch, int64 ``[num_graphs + 1]``; ``None`` if not computed."""
    num_graphs: int
    """Of the batch."""
    num_loops: int
    """Self-loops in the list."""
    max_nodes: int
    """Nodes of the largest graph."""


class Recurrence(NamedTuple):
    """``Phi_t = alpha P Phi_{t-1} - gamma Phi_{t-2}`` from ``Phi_0 = I``, with a symmetric ``P`` of each graph."""

    tail: Tensor
    head: Tensor
    """Ends of the edges, where ``P`` has entries; int64 ``[num_edges]``, graph by graph."""
    ptr: Tensor
    """First node of each graph, int64 ``[num_graphs + 1]``."""
    num_nodes: int
    """Of the batch."""
    max_nodes: int
    """Nodes of the largest graph."""
    alpha: float
    gamma: float
    num_layers: int
    """Number of ``Phi_t``."""


class EstimatedRecurrence(NamedTuple):
    """The same recurrence, estimated from its products with random signs."""

    tail: Tensor
    head: Tensor
    """Ends of the edges, where ``P`` has entries; int64 ``[num_edges]``."""
    num_rows: int
    """Of graphs that are padded to the same size."""
    max_nodes: int
    """Rows of each graph; row ``i`` has the signs of row ``i % max_nodes``."""
    alpha: float
    gamma: float
    num_layers: int
    """Number of ``Phi_t``."""
    num_probes: int
    """Columns of random signs."""
    seed: int
    """Of the signs, as an int64."""
    read_edges: bool
    """Whether edge entries are wanted."""


class BallRecurrence(NamedTuple):
    """The same recurrence around each node of a large graph, as far as the ball around it is known."""

    tail: Tensor
    head: Tensor
    """Ends of the edges, where ``P`` has entries; int64 ``[num_edges]``."""
    orders: Tensor
    """Number of ``Phi_t`` whose diagonal entry is wanted at each node, int64 ``[num_nodes]``."""
    alpha: float
    gamma: float
    num_layers: int
    """Number of ``Phi_t`` there is place for."""
    read_edges: bool
    """Whether edge entries are wanted."""


class AdjacencyRows(NamedTuple):
    """A sparse matrix without diagonal by rows: row ``i`` has entries ``crow[i]`` to ``crow[i + 1] - 1``."""

    crow: Tensor
    """int64 ``[num_nodes + 1]``."""
    col: Tensor
    """int32 ``[2 num_edges]``."""
    value: Tensor
    """``[2 num_edges]``."""


class ScaledLaplacian(NamedTuple):
    """``S = diag(s) L diag(s)`` of a batch of graphs, as a list of edges and, for the CPU, by rows as well."""

    tail: Tensor
    """int64 ``[num_edges]``, sorted graph by graph."""
    head: Tensor
    """int64 ``[num_edges]``, ``tail < head``."""
    ptr: Tensor
    """First node of each graph, int64 ``[num_graphs + 1]``."""
    node_scale: Tensor
    """``s``, ``[num_nodes]``."""
    conductance: Tensor | None
    """Of the edges, ``[num_edges]``; all one if ``None``."""
    diagonal: Tensor
    """Of ``S``, ``[num_nodes]``."""
    max_nodes: int
    """Nodes of the largest graph."""
    rows: AdjacencyRows | None = None
    """``diag(s) A diag(s)``, with ``L = diag(d) - A``; computed where it is needed if ``None``."""


class LayerStack(NamedTuple):
    """Weights of consecutive layers of eq. (16), each ``[num_layers, k, k]``.

    ``Phi^T <- M Phi^T + W (S Phi)^T`` with ``W = similarity`` and ``M = residual + left Gram right``. Where the weights
    are diagonal, ``M = residual + left * Gram``, entry by entry, and only the diagonal of ``W`` is read.
    """

    residual: Tensor
    similarity: Tensor
    left: Tensor
    right: Tensor
    diagonal: bool


class FixedLayers(NamedTuple):
    """Layers with a fixed incidence matrix: all that maps ``Phi_0`` to ``Phi_L``."""

    laplacian: ScaledLaplacian
    """``S`` of each graph."""
    weights: LayerStack
    """Of the layers."""
    later: Tensor
    """Factor of each graph on ``S`` from the second layer on, float64 ``[num_graphs]``."""
    norm_floor: float | None
    """Columns longer than this are brought to length one after each layer; ``None``: none is."""
