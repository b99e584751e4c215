"""Resistive embeddings as a PyTorch Geometric transform."""

from __future__ import annotations

from torch_geometric.data.datapipes import functional_transform

from tg_lpe.arguments import check_count
from tg_lpe.constructions.functions import resistive_embedding as embedding_by_layers
from tg_lpe.encoders.resistive_embedding import ResistiveEmbedding
from tg_lpe.graph.incidence import Incidence
from tg_lpe.transforms.attributes import check_names
from tg_lpe.transforms.base import Attribute
from tg_lpe.transforms.computed import LAYERS, MAX_LAYERS, ComputedTransform


@functional_transform("add_resistive_embedding_pe")
class AddResistiveEmbeddingPE(ComputedTransform):
    """Adds a resistive embedding in ``k`` dimensions (functional name: ``add_resistive_embedding_pe``).

    Squared distances between nodes of a component are about their effective resistances; see
    :class:`tg_lpe.encoders.ResistiveEmbedding`.

    Directions of edges are dropped, see :class:`~tg_lpe.transforms.base.GraphTransform`.

    Args:
        k: number of columns.
        attr_name: attribute to write, ``[num_nodes, k]``; ``None`` to append to ``data.x``.
        seed: of the random directions.
        edge_weight: name of the attribute that holds conductances, where there is one; ``None`` to ignore weights.
        tolerance: of ``method="layers"``: relative error before the projection.
        max_layers: of ``method="layers"``: refuse graphs that need more.
        method: ``"auto"``, ``"dense"`` or ``"iterative"`` for the fastest exact way; ``"layers"`` for Lemma 2, see
            :func:`tg_lpe.constructions.resistive_embedding`.
        reduce, hetero: weights of edges that are listed several times, and ``HeteroData``; as
            :class:`~tg_lpe.transforms.base.GraphTransform`.

    Raises:
        ValueError: if ``k`` is below one, on an unknown method, or if another argument is out of range.

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
        k: int,
        attr_name: str | None = "resistive_embedding_pe",
        seed: int = 0,
        edge_weight: str | None = "edge_weight",
        tolerance: float = 1e-4,
        max_layers: int = MAX_LAYERS,
        *,
        method: str = "auto",
        reduce: str = "error",
        hetero: str = "error",
    ) -> None:
        check_count("k", k)
        check_names({"attr_name": attr_name})
        super().__init__(
            method,
            edge_weight,
            reduce,
            hetero,
            k=k,
            attr_name=attr_name,
            seed=seed,
            tolerance=tolerance,
            max_layers=max_layers,
        )
        if method != LAYERS:
            self._encoder = ResistiveEmbedding(k, seed, method).double()

    def quantities(self, graph: Incidence) -> list[Attribute]:
        """The embedding."""
        return [Attribute(self.attr_name, "node", self._encoder.encode(graph).node)]

    def layers(self, graph: Incidence) -> list[Attribute]:
        """What :meth:`quantities` returns, by Lemma 2."""
        options = {"tolerance": self.tolerance, "seed": self.seed, "max_layers": self.max_layers}
        return [Attribute(self.attr_name, "node", embedding_by_layers(graph, self.k, **options))]
