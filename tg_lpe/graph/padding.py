"""Graphs of a batch laid out in blocks of equal height, so that what concerns one graph is one matrix product.

Gram matrices, column norms and small dense operators belong to single graphs. In PyG's layout, where the nodes of a
batch are stacked, each of them would need a pass of scattered sums. Here graphs of similar size are stacked as
``[num_graphs, k, height]``, the paper's own orientation ``Phi^T``, in which products of such small matrices run two to
three times faster than in the other; shorter graphs are filled up with entries that are zero and stay zero (they are
nodes without edges that start at zero), so nothing leaks between graphs or out of the fill.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from tg_lpe.graph.incidence import Incidence
from tg_lpe.ops.walks import EdgePositions

MAX_ROWS = 16384
"""Rows of a block of small graphs: its ``[rows, 8]`` float32 features and their operator stay in a core's cache."""

DENSE_HEIGHT = 64
"""Up to this many nodes a graph's operator is a small dense matrix; above, sums over edges. See benchmarks."""

MAX_FILL = 2
"""In a block of graphs larger than ``DENSE_HEIGHT``, none is smaller than the largest by more than this factor."""


class Operator(ABC):
    """A linear map of a block's ``Phi^T``, ``[num_graphs, k, height]``, to itself."""

    @abstractmethod
    def __call__(self, z: Tensor) -> Tensor:
        """Apply the map."""

    @abstractmethod
    def scaled(self, factor: Tensor) -> Operator:
        """The map times a factor per graph, ``[num_graphs, 1, 1]``."""


class MatrixOperator(Operator):
    """Products with small symmetric matrices ``[num_graphs, height, height]``."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    def __call__(self, z: Tensor) -> Tensor:
        return torch.bmm(z, self.matrix)

    def scaled(self, factor: Tensor) -> Operator:
        return MatrixOperator(self.matrix * factor)


class EdgeOperator(Operator):
    """``diag(s) L diag(s)`` by sums over the edges: ``O(num_edges k)``, for graphs of any size.

    Args:
        graph: the graphs of a block as one, ``num_graphs * height`` nodes.
        node_scale: ``s``, one for each of them.
        factor: a factor per graph, ``[num_graphs, 1, 1]``.
    """

    def __init__(self, graph: Incidence, node_scale: Tensor, factor: Tensor | None = None) -> None:
        self.graph, self.node_scale, self.factor = graph, node_scale.unsqueeze(-1), factor

    def __call__(self, z: Tensor) -> Tensor:
        num_graphs, k, height = z.shape
        rows = self.node_scale * self.graph.laplacian(self.node_scale * z.mT.reshape(num_graphs * height, k))
        out = rows.view(num_graphs, height, k).mT
        return out if self.factor is None else out * self.factor

    def scaled(self, factor: Tensor) -> Operator:
        factor = factor if self.factor is None else self.factor * factor
        return EdgeOperator(self.graph, self.node_scale.squeeze(-1), factor)


@dataclass(frozen=True)
class Block:
    """Graphs of similar size: consecutive rows ``first_row`` on of the laid out nodes."""

    graphs: Tensor
    """int64 ``[num_graphs]``, which graphs of the batch these are."""
    first_row: int
    height: int
    dense: bool
    """Whether operators on this block are dense matrices."""

    @property
    def num_graphs(self) -> int:
        """Number of graphs in this block."""
        return self.graphs.numel()

    @property
    def num_rows(self) -> int:
        """Number of rows, fill included."""
        return self.num_graphs * self.height


class GraphBlocks:
    """The layout of one batch. See the module's docstring.

    Args:
        graph: the batch.
        max_rows: rows of a block at most (a larger single graph is a block of its own).
        dense_height: number of nodes up to which a graph's operators are dense matrices.
        max_fill: in a block, no graph is smaller than the largest by more than this factor. If absent, a batch of small
            graphs may be one block: the fewest calls. Where the work grows with the cube of the height, less fill pays.

    Attributes:
        blocks: the blocks, each graph with at least one node in exactly one of them.
        num_rows: rows of all blocks together.
    """

    def __init__(
        self,
        graph: Incidence,
        max_rows: int = MAX_ROWS,
        dense_height: int = DENSE_HEIGHT,
        max_fill: float | None = None,
    ) -> None:
        self.graph = graph
        if graph.num_graphs == 1 and graph.num_nodes:
            # The layout is the identity: a single graph, however large, is not copied.
            self.blocks = [Block(graph.tail.new_zeros(1), 0, graph.num_nodes, graph.num_nodes <= dense_height)]
            self.num_rows = graph.num_nodes
            self._row: Tensor | None = None
            return
        self.blocks = _cut(graph.ptr[1:] - graph.ptr[:-1], max_rows, dense_height, max_fill)
        self.num_rows = sum(block.num_rows for block in self.blocks)
        first_row = self._per_graph([torch.arange(b.num_graphs) * b.height + b.first_row for b in self.blocks])
        height = self._per_graph([torch.full((b.num_graphs,), b.height) for b in self.blocks])
        self._row = first_row[graph.batch] + graph.local_index
        self._height = height[graph.batch]

    def _per_graph(self, parts: list[Tensor]) -> Tensor:
        """Values listed block by block, put into the order of the batch's graphs, int64 ``[num_graphs]``."""
        values = self.graph.ptr.new_zeros(self.graph.num_graphs)
        if not parts:
            return values
        graphs = torch.cat([block.graphs for block in self.blocks])
        return values.index_copy(0, graphs, torch.cat(parts).to(graphs.device))

    def lay_out(self, x: Tensor) -> list[Tensor]:
        """Node values ``[num_nodes, k]`` as ``[num_graphs, k, height]`` for each block, the fill zero."""
        if self._row is not None:
            x = x.new_zeros(self.num_rows, x.size(1)).index_copy(0, self._row, x)
        parts = torch.split(x, [block.num_rows for block in self.blocks]) if len(self.blocks) != 1 else [x]
        return [p.view(b.num_graphs, b.height, -1).mT.contiguous() for p, b in zip(parts, self.blocks, strict=True)]

    def collect(self, parts: list[Tensor], width: int) -> Tensor:
        """The reverse of :meth:`lay_out`: ``[num_nodes, width]`` in the order of the batch."""
        if not parts:
            return torch.zeros(self.graph.num_nodes, width, device=self.graph.device)
        return self.collect_rows([part.mT.reshape(-1, width) for part in parts])

    def collect_rows(self, parts: list[Tensor]) -> Tensor:
        """The rows of each block, ``[num_rows, width]``, as nodes in the order of the batch, ``[num_nodes, width]``."""
        rows = torch.cat(parts) if len(parts) > 1 else parts[0]
        return rows.contiguous() if self._row is None else rows.index_select(0, self._row)

    def laplacian_operators(self, node_scale: Tensor) -> list[Operator]:
        """``diag(s) L diag(s)`` per block, each a linear map of ``[num_graphs, k, height]`` to itself.

        Args:
            node_scale: ``s``, ``[num_nodes]``: ``D^-1/2`` for the normalised Laplacian, ones for ``L`` itself. Its
                dtype is the operators' own.
        """
        dense = iter(self.dense_laplacians(node_scale))
        return [MatrixOperator(next(dense)) if b.dense else self._edge_operator(b, node_scale) for b in self.blocks]

    def dense_laplacians(self, node_scale: Tensor) -> list[Tensor]:
        """``diag(s) L diag(s)`` written out, ``[num_graphs, height, height]``, for each dense block."""
        blocks = [block for block in self.blocks if block.dense]
        if not blocks:
            return []
        graph, tail, head = self.graph, self.graph.tail, self.graph.head
        diagonal = graph.laplacian_diagonal(node_scale) * node_scale.square()
        coupling = node_scale.index_select(0, tail) * node_scale.index_select(0, head)
        if graph.conductance is not None:
            coupling = coupling * graph.conductance.to(coupling.dtype)
        if self._row is None:  # one small graph
            upper = diagonal.new_zeros(graph.num_nodes, graph.num_nodes).index_put((tail, head), -coupling)
            matrix = upper + upper.mT
            matrix.diagonal().copy_(diagonal)
            return [matrix.unsqueeze(0)]
        matrix_row, local = self._matrix_rows(blocks), graph.local_index
        entry = torch.cat([matrix_row[tail] + local[head], matrix_row[head] + local[tail], matrix_row + local])
        values = torch.cat([-coupling, -coupling, diagonal])
        if len(blocks) < len(self.blocks):
            in_dense = torch.cat([matrix_row[tail], matrix_row[head], matrix_row]) >= 0
            entry, values = entry[in_dense], values[in_dense]
        sizes = [block.num_graphs * block.height**2 for block in blocks]
        flat = values.new_zeros(sum(sizes)).index_put((entry,), values)
        parts = torch.split(flat, sizes) if len(blocks) > 1 else [flat]
        return [p.view(b.num_graphs, b.height, b.height) for p, b in zip(parts, blocks, strict=True)]

    def edge_positions(self) -> list[EdgePositions]:
        """The edges of each block, in the block's own rows."""
        graph = self.graph
        tail, head = graph.tail, graph.head
        every = torch.arange(graph.num_edges, device=graph.device)
        if self._row is not None:
            tail, head = self._row[tail], self._row[head]
        if len(self.blocks) == 1:
            return [EdgePositions(self.blocks[0].num_graphs, self.blocks[0].height, every, tail, head)]
        positions = []
        for block in self.blocks:
            columns = ((tail >= block.first_row) & (tail < block.first_row + block.num_rows)).nonzero().squeeze(1)
            ends = tail[columns] - block.first_row, head[columns] - block.first_row
            positions.append(EdgePositions(block.num_graphs, block.height, columns, *ends))
        return positions

    def _matrix_rows(self, dense: list[Block]) -> Tensor:
        """Where each node's row of its graph's dense matrix starts, int64 ``[num_nodes]``; negative if it has none."""
        if len(self.blocks) == 1 and self._row is not None:
            return self._row * self._height
        first, offset = [], 0
        for block in self.blocks:
            if block.dense:
                first.append(torch.arange(block.num_graphs) * block.height**2 + offset)
                offset += block.num_graphs * block.height**2
            else:
                first.append(torch.full((block.num_graphs,), -(2**62)))
        return self._per_graph(first)[self.graph.batch] + self.graph.local_index * self._height

    def _edge_operator(self, block: Block, node_scale: Tensor) -> Operator:
        if self._row is None:
            return EdgeOperator(self.graph, node_scale)
        graph, w = self.graph, self.graph.conductance
        row = self._row - block.first_row
        inside = (row >= 0) & (row < block.num_rows)
        kept = inside[graph.tail]
        part = Incidence.from_columns(
            row[graph.tail[kept]], row[graph.head[kept]], None if w is None else w[kept], block.num_rows
        )

        def laid_out(values: Tensor) -> Tensor:
            return values.new_zeros(block.num_rows).index_copy(0, row[inside], values[inside])

        if graph.ground is not None:
            part = part.with_conductances(part.conductance, laid_out(graph.ground))
        return EdgeOperator(part, laid_out(node_scale))


def _cut(sizes: Tensor, max_rows: int, dense_height: int, max_fill: float | None) -> list[Block]:
    """Cut the graphs of a batch into blocks: one if all is small, else graphs sorted by size, largest first."""
    if sizes.numel() == 0:
        return []
    largest = int(sizes.max())
    if max_fill is None and 0 < largest <= DENSE_HEIGHT and largest * sizes.numel() <= max_rows:
        return [Block(torch.arange(sizes.numel(), device=sizes.device), 0, largest, largest <= dense_height)]
    sorted_sizes, order = torch.sort(sizes, descending=True, stable=True)
    ascending = (-sorted_sizes).cpu()
    num_filled = int(torch.searchsorted(ascending, 0))  # graphs without nodes have no rows
    blocks, start, row = [], 0, 0
    while start < num_filled:
        height = -int(ascending[start])
        if max_fill is not None:
            # A small graph beside a large one stays dense: what is computed with it may not depend on its batch-mates.
            smallest = max(math.ceil(height / max_fill), dense_height + 1 if height > dense_height else 1)
        else:
            smallest = -(-height // MAX_FILL) if height > DENSE_HEIGHT else 1
        alike = int(torch.searchsorted(ascending, -smallest, right=True))
        stop = min(num_filled, alike, start + max(1, max_rows // height))
        blocks.append(Block(order[start:stop], row, height, height <= dense_height))
        row += blocks[-1].num_rows
        start = stop
    return blocks
