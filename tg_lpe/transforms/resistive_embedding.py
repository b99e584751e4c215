"""Resistive embeddings as a PyTorch Geometric transform."""

from __future__ import annotations

from torch_geometric.data.datapipes import functional_transform

from tg_lpe.encoders.resistive_embedding import ResistiveEmbedding
from tg_lpe.transforms.positional_encoding import AddPositionalEncoding


@functional_transform("add_resistive_embedding_pe")
class AddResistiveEmbeddingPE(AddPositionalEncoding):
    """Add :class:`~tg_lpe.encoders.ResistiveEmbedding` to a graph (functional name: ``add_resistive_embedding_pe``).

    Directions of edges are dropped, see :class:`~tg_lpe.transforms.base.GraphTransform`.

    Args:
        k, seed, method: see :class:`~tg_lpe.encoders.ResistiveEmbedding`.
        attr_name: attribute to write, ``[num_nodes, k]``; ``None`` appends the columns to ``x``.
        edge_weight, reduce, hetero: see :class:`AddPositionalEncoding`.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> from tg_lpe.transforms import AddResistiveEmbeddingPE
        >>> ring = Data(edge_index=torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]]), num_nodes=6)
        >>> AddResistiveEmbeddingPE(k=4)(ring).resistive_embedding_pe.shape
        torch.Size([6, 4])
    """

    def __init__(
        self,
        k: int = 8,
        attr_name: str | None = "resistive_embedding_pe",
        seed: int = 0,
        edge_weight: str | None = "edge_weight",
        *,
        method: str = "auto",
        reduce: str = "error",
        hetero: str = "error",
    ) -> None:
        encoder = ResistiveEmbedding(k, seed, method)
        super().__init__(encoder, attr_name, None, edge_weight, reduce=reduce, hetero=hetero)
