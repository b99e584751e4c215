"""Resistive embeddings as an encoder."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tg_lpe.arguments import check_count, check_seed
from tg_lpe.encoders.base import Encoding
from tg_lpe.encoders.computed import NodeEdgeEncoder
from tg_lpe.encoders.registry import register
from tg_lpe.graph.flow import resistive_embedding
from tg_lpe.graph.graph import Graph
from tg_lpe.nn.probes import draw_seed
from tg_lpe.ops.blas import torch_threads_for
from tg_lpe.ops.random import counter_normal


@register
class ResistiveEmbedding(NodeEdgeEncoder):
    """Project ``L^+ B`` onto ``k`` random directions: squared distances approximate effective resistances.

    The relative error of a squared distance is about ``sqrt(2 / k)``. The random numbers of an edge depend on its index
    within its graph, so the embedding depends on the order of the nodes. A ``generator`` draws new ones in each call.

    Args:
        k: number of columns, ``out_channels``.
        seed: seed of the directions.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> import torch
        >>> from tg_lpe.encoders import ResistiveEmbedding
        >>> ResistiveEmbedding(k=4)(None, torch.tensor([[0, 1, 2], [1, 2, 3]])).node.shape
        torch.Size([4, 4])
    """

    def __init__(self, k: int = 8, seed: int = 0) -> None:
        check_count("k", k)
        check_seed(seed)
        super().__init__(k, 0, None)
        self.k, self.seed = k, seed
        self.name = f"resistive_embedding_{seed}"

    def compute(self, graph: Graph) -> tuple[Tensor, Tensor]:
        """Compute the embedding with the directions of :attr:`seed`; edges have no columns."""
        return self._embed(graph, self.seed), self.unit.new_zeros(graph.num_edges, 0)

    def assemble(self, graph: Graph, precomputed: Mapping[str, Tensor], generator: torch.Generator | None) -> Encoding:
        """Return the precomputed embedding, or a new one if there is a generator."""
        if generator is None:
            return Encoding(self.cast(precomputed[f"node_{self.name}"]))
        return Encoding(self._embed(graph, draw_seed(generator)))

    def _embed(self, graph: Graph, seed: int) -> Tensor:
        first = graph.edge_ptr[graph.batch[graph.tail]] if graph.num_graphs > 1 else 0
        number = torch.arange(graph.num_edges, device=graph.device) - first
        most = int(number.max()) + 1 if graph.num_edges else 1
        with torch_threads_for(64 * most * self.k):  # a logarithm and a cosine for each number
            rows = counter_normal(seed, most, self.k, number.double())
        return self.cast(resistive_embedding(graph, rows[number] / self.k**0.5))
