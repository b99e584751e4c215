"""Multiply by the incidence matrix and the Laplacian of a graph."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tg_lpe.graph.batching import Batching
from tg_lpe.ops import cpu, edges
from tg_lpe.ops.layers import ScaledLaplacian
from tg_lpe.ops.lazy import lazy
from tg_lpe.ops.segment import RowGroups, along_rows, scatter_sum

LARGE = 2**16
"""Above this number of edges, products with the Laplacian read its rows in CSR form."""


class Incidence(Batching):
    """Hold the undirected edges of a :class:`~tg_lpe.Graph` with their conductances, and products with them."""

    _conductance: Tensor | None
    _laplacians: dict[tuple[torch.dtype, bool], ScaledLaplacian]
    tail: Tensor
    head: Tensor
    _num_loops: int

    @property
    def conductance(self) -> Tensor | None:
        """``w``, ``[num_edges]``, or ``None`` for all ones. Gradients flow to ``edge_weight``."""
        return self._conductance

    @lazy
    def undirected_index(self) -> Tensor:
        """Undirected edge of each directed edge, int64 ``[num_directed_edges]``; -1 for self-loops."""
        return edges.undirected_index(self._edge_index, self.tail, self.head, self.num_nodes)

    @lazy
    def _merged_index(self) -> Tensor:
        """:attr:`undirected_index` with the number ``num_edges`` for self-loops."""
        index = self.undirected_index
        return index.masked_fill(index < 0, self.num_edges) if self._num_loops else index

    @lazy
    def _directed_counts(self) -> Tensor:
        """Number of directed edges of each undirected edge, int64 ``[num_edges]``."""
        return self._sum_directed(torch.ones_like(self._merged_index))

    def _sum_directed(self, values: Tensor) -> Tensor:
        """Sum values of directed edges to the undirected edges; those of self-loops are left out."""
        return scatter_sum(values, self._merged_index, self.num_edges + min(self._num_loops, 1))[: self.num_edges]

    def merge_directed(self, values: Tensor) -> Tensor:
        """Average the values of the directed edges of each undirected edge, in either direction.

        Args:
            values: values of the directed edges, ``[num_directed_edges, ...]``.

        Returns:
            ``[num_edges, ...]``.
        """
        # In half precision a sum may overflow although the mean does not.
        wide = values.to(torch.promote_types(values.dtype, torch.float32)) if values.is_floating_point() else values
        total = self._sum_directed(wide)
        mean = total / along_rows(self._directed_counts.to(total.dtype), total)
        return mean.to(values.dtype) if values.is_floating_point() else mean

    def spread_to_directed(self, values: Tensor) -> Tensor:
        """Copy values of undirected edges ``[num_edges, ...]`` to each directed edge; self-loops get zero.

        Returns:
            ``[num_directed_edges, ...]``.
        """
        if not self._num_loops:
            return values.index_select(0, self.undirected_index)
        zero = values.new_zeros(1, *values.shape[1:])
        return torch.cat([values, zero]).index_select(0, self._merged_index)

    @property
    def num_edges(self) -> int:
        """Number of undirected edges, the columns of ``B``."""
        return self.tail.numel()

    @lazy
    def edge_counts(self) -> Tensor:
        """Number of edges of each graph, int64 ``[num_graphs]``."""
        if self._batch is None:
            return torch.tensor([self.num_edges], device=self.device)
        return self.edge_ptr.diff()

    @lazy
    def edge_ptr(self) -> Tensor:
        """First edge of each graph, int64 ``[num_graphs + 1]``."""
        if self._batch is None:
            return torch.tensor([0, self.num_edges], device=self.device)
        return torch.searchsorted(self.tail, self.ptr)  # edges are sorted by tail

    @lazy
    def _neighbour_counts(self) -> Tensor:
        ends = torch.cat([self.tail, self.head])
        return scatter_sum(torch.ones_like(ends), ends, self.num_nodes)

    @lazy
    def _tails(self) -> RowGroups:
        return RowGroups(self.tail, self.num_nodes, is_sorted=True)

    @lazy
    def _heads(self) -> RowGroups:
        return RowGroups(self.head, self.num_nodes, is_sorted=False)

    def root_conductance(self, like: Tensor) -> Tensor:
        """Return ``sqrt(w)``, the absolute values in ``B``, ``[num_edges]``, in the dtype of ``like``.

        The derivative at ``w = 0`` does not exist and is taken as zero: an edge of weight zero is absent.
        """
        if self.conductance is None:
            return like.new_ones(self.num_edges)
        w = self.conductance.to(like.dtype)
        absent = w == 0
        return torch.where(absent, 0.0, torch.where(absent, 1.0, w).sqrt())

    def differences(self, x: Tensor) -> Tensor:
        """Compute ``B^T x``: the weighted difference of node values along each edge.

        Args:
            x: node values ``[num_nodes, ...]``.

        Returns:
            ``[num_edges, ...]``.
        """
        y = self._heads.gather(x) - self._tails.gather(x)
        return y if self.conductance is None else y * along_rows(self.root_conductance(x), y)

    def sums(self, y: Tensor) -> Tensor:
        """Compute ``B y``: the weighted sum of edge values into each node, minus at the tail and plus at the head.

        Args:
            y: edge values ``[num_edges, ...]``.

        Returns:
            ``[num_nodes, ...]``.
        """
        if self.conductance is not None:
            y = y * along_rows(self.root_conductance(y), y)
        return self._heads.sum(y) - self._tails.sum(y)

    def laplacian(self, x: Tensor) -> Tensor:
        """Compute ``L x``, ``[num_nodes, ...]``, in ``O(num_edges * k)``."""
        if cpu.supports(x) and x.dim() == 2 and self.num_edges > LARGE and not self.needs_gradient():
            scaled = self.scaled_laplacian(x)
            if scaled.rows is not None:
                return edges.laplacian(scaled.rows, scaled.diagonal, x)
        return self.sums(self.differences(x))

    def needs_gradient(self, *inputs: Tensor) -> bool:
        """Return whether autograd records a product of the inputs with the conductances."""
        if not torch.is_grad_enabled():
            return False
        return any(x is not None and x.requires_grad for x in (*inputs, self.conductance))

    def scaled_laplacian(self, like: Tensor, degree_scaling: bool = False) -> ScaledLaplacian:
        """Return ``L``, or ``D^-1/2 L D^-1/2``, for the operations on layers; without gradient, it is cached.

        Args:
            like: a tensor with the wanted dtype and device.
            degree_scaling: whether to scale by ``D^-1/2``, see :meth:`degree`.
        """
        if torch.compiler.is_compiling() or self.needs_gradient():
            return self._scaled_laplacian(like, degree_scaling)
        key = (like.dtype, degree_scaling)
        if key not in self._laplacians:
            with torch.inference_mode(False), torch.no_grad():  # a later call may need gradients of other tensors
                self._laplacians[key] = self._scaled_laplacian(like, degree_scaling)
        return self._laplacians[key]

    def _scaled_laplacian(self, like: Tensor, degree_scaling: bool) -> ScaledLaplacian:
        scale = inverse_sqrt(self.degree(like)) if degree_scaling else like.new_ones(self.num_nodes)
        # A copy, so that changing conductances in place cannot corrupt a later backward pass.
        w = None if self.conductance is None else self.conductance.to(like.dtype, copy=True)
        diagonal = self.laplacian_diagonal(like) * scale.square()
        is_compiled = cpu.supports(like) and not self.needs_gradient()
        rows = edges.adjacency_rows(self.tail, self.head, scale, w) if is_compiled else None
        return ScaledLaplacian(self.tail, self.head, self.ptr, scale, w, diagonal, self.max_nodes, *(rows or ()))

    def degree(self, like: Tensor) -> Tensor:
        """Return ``D``, the row sums of ``|B|``, ``[num_nodes]``, in the dtype of ``like``: eq. (16) of the paper.

        For unit conductances this is the usual degree, the diagonal of ``L``. In general it is the sum of the square
        roots of a node's conductances.
        """
        if self.conductance is None:
            return self._neighbour_counts.to(like.dtype)
        root = self.root_conductance(like)
        return scatter_sum(torch.cat([root, root]), torch.cat([self.tail, self.head]), self.num_nodes)

    def laplacian_diagonal(self, like: Tensor) -> Tensor:
        """Return the diagonal of ``L``: sums of each node's conductances, ``[num_nodes]``, in the dtype of ``like``."""
        if self.conductance is None:
            return self._neighbour_counts.to(like.dtype)
        w = self.conductance.to(like.dtype)
        return scatter_sum(torch.cat([w, w]), torch.cat([self.tail, self.head]), self.num_nodes)

    def frobenius_norm(self, like: Tensor) -> Tensor:
        """Return the Frobenius norm of each graph's ``B``, ``[num_graphs]``, in the dtype of ``like``.

        It is one where ``B`` is zero, so that dividing by it is safe.
        """
        if self.conductance is None:
            if self._batch is None:
                return like.new_full((1,), math.sqrt(max(2 * self.num_edges, 1)))
            return (2 * self.edge_counts).clamp_min(1).double().sqrt().to(like.dtype)
        wide = torch.promote_types(like.dtype, torch.float32)  # squares may overflow in float16
        squared = scatter_sum(2 * self.conductance.to(wide), self.batch[self.tail], self.num_graphs)
        return squared.masked_fill(squared == 0, 1.0).sqrt().to(like.dtype)

    def dense(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return ``B`` as a dense matrix, ``[num_nodes, num_edges]``, for tests and small graphs."""
        root = self.root_conductance(torch.empty(0, dtype=dtype, device=self.device))
        matrix = root.new_zeros(self.num_nodes, self.num_edges)
        column = torch.arange(self.num_edges, device=self.device)
        return matrix.index_put((self.tail, column), -root).index_put((self.head, column), root)


def inverse_sqrt(x: Tensor) -> Tensor:
    """Return ``1/sqrt(x)``; where ``x`` is zero (a node without edges), one, with a zero derivative."""
    return x.masked_fill(x == 0, 1.0).rsqrt()
