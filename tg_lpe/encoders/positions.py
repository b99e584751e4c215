"""Positions: leading eigenvectors of each component, by the looped filter of the linear transformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from tg_lpe.arguments import check_count, check_counts, check_seed, check_shares
from tg_lpe.encoders.base import Encoder, Encoding
from tg_lpe.encoders.combined import Combined
from tg_lpe.encoders.computed import ComputedEncoder
from tg_lpe.encoders.registry import register
from tg_lpe.graph.components import component_labels
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.subspace import LearnedCut, Subspace, leading_subspace, looped_subspace
from tg_lpe.nn.probes import with_random_signs
from tg_lpe.ops.segment import scatter_sum


@register
class Positions(ComputedEncoder):
    """Encode nodes by the leading eigenvectors of their connected component, on graphs of any size.

    Nodes of the same community, or of the same end of a grid, have similar rows. Structural encodings give equal
    rows to nodes with equal surroundings, wherever the nodes are.
    :func:`tg_lpe.graph.subspace.leading_subspace` computes the eigenvectors by loops of layers, which are passes over
    the edges, and orthogonalisation, as in `Graph Transformers Dream of Electric Flow
    <https://arxiv.org/abs/2410.16699>`_, Lemmas 6 to 8. Each component fills up to ``k`` columns with its non-trivial
    eigenvectors, scaled so that their entries have mean square one; the remaining columns are zero.

    Columns are defined up to sign, and up to a rotation if an eigenvalue repeats. With a ``generator``, each column of
    each graph gets a random sign. The edge encoding is the inner product and the squared distance of the ends' rows,
    divided by ``k``; it is independent of signs, and of rotations unless column ``k`` cuts an eigenspace.

    With ``loops="auto"``, loops run until the columns have converged to the eigenvectors, which depend on no weight and
    have no gradient. :meth:`precompute` returns them as ``node_positions``, ``[num_nodes, k]``. With a number of loops,
    the filter stops after that many, also on small graphs. Gradients then reach edge weights and the learned rule for
    the cut, :class:`~tg_lpe.graph.subspace.LearnedCut`.

    Args:
        k: number of columns, ``out_channels``.
        edge_out_channels: 2 for the edge encoding, 0 for none.
        loops: ``"auto"``, or the number of loops; at most 10: the first has 8 layers, the second 16, and so on.
        tolerance: share of the ``k`` eigenvectors that may be missing. Only ``loops="auto"`` reads ``tolerance`` and
            ``max_layers``.
        max_layers: most layers of the filter.
        seed: seed of the random start columns.
        pair_out_channels: 0 for no encoding of pairs, or ``None`` for the 2 channels of edges. Positions of nodes that
            no path joins count as orthogonal.
        min_nodes: graphs of fewer nodes are encoded by zeros. In a table of many small graphs the arbitrary signs of
            columns are noise to a model; in one large graph they are not.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> from tg_lpe import AddPositionalEncoding
        >>> from tg_lpe.encoders import Positions
        >>> path = Data(edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]]), num_nodes=5)
        >>> first = AddPositionalEncoding(Positions(k=2))(path).pe[:, 0]
        >>> bool(first[0] * first[4] < 0)  # the two ends of the path
        True
    """

    def __init__(
        self,
        k: int = 8,
        edge_out_channels: int | None = None,
        loops: int | Literal["auto"] = "auto",
        tolerance: float = 2e-3,
        max_layers: int = 4096,
        seed: int = 0,
        pair_out_channels: int | None = 0,
        min_nodes: int = 1,
    ) -> None:
        check_counts(k=k, max_layers=max_layers, min_nodes=min_nodes)
        check_seed(seed)
        if loops != "auto":
            check_count("loops", loops)
        check_shares(tolerance=tolerance, or_zero=False)
        super().__init__(k, 2, edge_out_channels, 2, pair_out_channels)
        self.k, self.loops, self.tolerance, self.max_layers, self.seed = k, loops, tolerance, max_layers, seed
        self.min_nodes = min_nodes
        self.cut = LearnedCut().requires_grad_(loops != "auto")

    def precompute(self, graph: Graph) -> dict[str, Tensor]:
        """Return ``node_positions``; nothing with a number of loops, whose columns depend on the weights."""
        if self.loops != "auto":
            return {}
        if graph.max_nodes < self.min_nodes:
            return {"node_positions": self.unit.new_zeros(graph.num_nodes, self.k)}
        return {"node_positions": self.cast(_of_mean_square_one(self._subspace(graph)))}

    def _subspace(self, graph: Graph, start: Tensor | None = None) -> Subspace:
        """Run the loops until they converge."""
        return leading_subspace(
            graph,
            self.k,
            tolerance=self.tolerance,
            max_layers=self.max_layers,
            seed=self.seed,
            dtype=torch.float64 if self.unit.dtype == torch.float64 else torch.float32,
            cut=self.cut,
            start=start,
        )

    @torch.no_grad()
    def update(self, graph: Graph | Data, old: Tensor) -> Tensor:
        """Compute the columns of a graph that has changed a little, ``[num_nodes, k]``, close to those before.

        The loops start from the old columns, and at new nodes from the mean over the neighbours. In each component, the
        new columns are rotated to fit the old ones best at the old nodes (orthogonal Procrustes), so that a model
        trained on the old columns can read them. A column may then mix several eigenvectors.

        Args:
            graph: the graph after the change; its new nodes come last.
            old: the columns before, ``[num_old_nodes, k]``.
        """
        graph = Graph.from_data(graph) if isinstance(graph, Data) else graph
        if self.loops != "auto" or old.dim() != 2 or old.size(1) != self.k or len(old) > graph.num_nodes:
            raise ValueError(
                f"update needs loops='auto' and old columns [num_old_nodes, {self.k}] of at most {graph.num_nodes} "
                f"nodes, got loops={self.loops!r} and {list(old.shape)}"
            )
        start = nn.functional.pad(old.double(), (0, 0, 0, graph.num_nodes - len(old)))
        degree = graph.laplacian_diagonal(start).unsqueeze(1)
        start[len(old) :] = (start - graph.laplacian(start) / degree.clamp(min=1e-300))[len(old) :]
        subspace = self._subspace(graph, start)
        new, label = _of_mean_square_one(subspace), subspace.component
        rows, columns = new[: len(old)], old.to(new).unsqueeze(2).unbind(1)
        products = [scatter_sum(rows * column, label[: len(old)], len(subspace.share)) for column in columns]
        u, _, v = torch.linalg.svd(torch.stack(products, dim=2))
        turned = sum(column * row[label] for column, row in zip(new.split(1, 1), (u @ v).unbind(1), strict=True))
        return self._positions(graph, {"node_positions": turned})

    def widths(self) -> dict[str, int]:
        """Return the widths of the tensors of :meth:`precompute` by name."""
        return {"node_positions": self.k} if self.loops == "auto" else {}

    def assemble(self, graph: Graph, precomputed: Mapping[str, Tensor], generator: torch.Generator | None) -> Encoding:
        """Return the columns with their signs, and the edge encoding."""
        positions = self._positions(graph, precomputed)
        edge = None
        if self.edge_out_channels:
            tail, head = graph.edge_index
            edge = self._forms(positions, tail, head).masked_fill((tail == head).unsqueeze(1), 0.0)
        return Encoding(with_random_signs(positions, graph, generator), edge)

    def values_of_pairs(self, graph: Graph, pairs: Tensor, precomputed: Mapping[str, Tensor]) -> Tensor:
        """Compute inner products and squared distances, divided by ``k``."""
        positions, label = self._positions(graph, precomputed), component_labels(graph)
        first, second = pairs
        forms = self._forms(positions, first, second)
        length = positions.square().sum(1) / self.k
        orthogonal = torch.stack([torch.zeros_like(forms[:, 0]), length[first] + length[second]], 1)
        return torch.where((label[first] == label[second]).unsqueeze(1), forms, orthogonal)

    def _positions(self, graph: Graph, precomputed: Mapping[str, Tensor]) -> Tensor:
        """Return the precomputed columns, or the columns after :attr:`loops` loops."""
        if self.loops == "auto":
            positions = self.cast(precomputed["node_positions"])
        else:
            subspace = looped_subspace(graph, self.k, self.loops, seed=self.seed, like=self.unit, cut=self.cut)
            positions = _of_mean_square_one(subspace)
        if self.min_nodes == 1:
            return positions
        return positions.masked_fill((graph.ptr.diff() < self.min_nodes)[graph.batch].unsqueeze(1), 0.0)

    def _forms(self, positions: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Return inner products and squared distances of rows, divided by ``k``, ``[num_pairs, 2]``."""
        u, v = positions[first], positions[second]
        return torch.stack([(u * v).sum(1), (u - v).square().sum(1)], 1) / self.k


def first_columns(encoder: Encoder, k: int) -> Encoder:
    """Return an encoder of at least the first ``k`` columns that computes few others; it may be the same one, changed.

    :class:`Positions` computes ``k`` columns, unless edges or pairs read all of them, and :class:`Combined` leaves out
    its last encoders.
    """
    if isinstance(encoder, Positions) and not encoder.edge_out_channels and not encoder.pair_out_channels:
        encoder.k = encoder.out_channels = min(k, encoder.k)
    if not isinstance(encoder, Combined) or encoder.edge_out_channels or encoder.pair_out_channels:
        return encoder
    parts: list[Encoder] = []
    for part in encoder._parts:
        if (left := k - sum(each.out_channels for each in parts)) > 0:
            parts.append(first_columns(part, left))
    encoder.encoders, encoder.out_channels = nn.ModuleList(parts), sum(part.out_channels for part in parts)
    return parts[0] if len(parts) == 1 else encoder


def _of_mean_square_one(subspace: Subspace) -> Tensor:
    """Scale columns so that their entries have mean square one in each component."""
    sizes = torch.bincount(subspace.component, minlength=1).to(subspace.vectors)
    return subspace.vectors * sizes.sqrt()[subspace.component].unsqueeze(1)
