"""Effective resistances as a PyTorch Geometric transform."""

from __future__ import annotations

from collections.abc import Sequence

from torch_geometric.data import Data, InMemoryDataset
from torch_geometric.data.datapipes import functional_transform
from tqdm import tqdm

from tg_lpe.arguments import check_choice
from tg_lpe.constructions.functions import PAIRS
from tg_lpe.constructions.functions import effective_resistance as edges_by_layers
from tg_lpe.constructions.functions import resistance_pairs as pairs_by_layers
from tg_lpe.graph.incidence import Incidence
from tg_lpe.graph.resistance import effective_resistances, resistance_pairs
from tg_lpe.transforms.attributes import check_names
from tg_lpe.transforms.base import Attribute, bar_options, check_dataset
from tg_lpe.transforms.computed import ComputedTransform


@functional_transform("add_effective_resistance")
class AddEffectiveResistance(ComputedTransform):
    """Adds effective resistances (functional name: ``add_effective_resistance``).

    Directions of edges are dropped, see :class:`~tg_lpe.transforms.base.GraphTransform`.

    Args:
        pairs: ``"edges"``: ``data[attr_name]``, ``[num_edges]``, one value for each column of ``edge_index``; or
            ``"all"`` pairs of nodes of a graph, ``[num_nodes^2]``, with the pairs in ``data[attr_name + "_index"]``,
            int64 ``[2, num_nodes^2]``, which PyG counts on when it batches. Infinite between components.
        attr_name: attribute to write. Where a graph has as many nodes as edges, PyG's ``subgraph`` and others take an
            attribute for one of edges if ``edge`` is in its name: ``"edge_resistance"`` is safe there.
        edge_weight: name of the attribute that holds conductances, where there is one; ``None`` to ignore weights.
        tolerance: of ``method="layers"``: relative error.
        method: ``"auto"``, ``"dense"`` or ``"iterative"`` for the fastest exact way; ``"layers"`` for Lemma 4, see
            :func:`tg_lpe.constructions.effective_resistance`.
        reduce, hetero: weights of edges that are listed several times, and ``HeteroData``; as
            :class:`~tg_lpe.transforms.base.GraphTransform`.

    Raises:
        ValueError: on other ``pairs``, an unknown method, a name that means something else to PyG, or a ``tolerance``
            that is not positive.
        TypeError: if ``attr_name`` is no string.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> from tg_lpe.transforms import AddEffectiveResistance
        >>> ring = Data(edge_index=torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]]), num_nodes=6)
        >>> AddEffectiveResistance()(ring).effective_resistance.shape
        torch.Size([6])
    """

    def __init__(
        self,
        pairs: str = "edges",
        attr_name: str = "effective_resistance",
        edge_weight: str | None = "edge_weight",
        tolerance: float = 1e-10,
        *,
        method: str = "auto",
        reduce: str = "error",
        hetero: str = "error",
    ) -> None:
        check_choice("pairs", pairs, PAIRS)
        if pairs == "all" and hetero != "error":
            raise ValueError(f"pairs='all' numbers the nodes of one type, so hetero must be 'error', got {hetero!r}")
        check_names({"attr_name": attr_name}, required=("attr_name",), of_edges=pairs == "edges")
        super().__init__(method, edge_weight, reduce, hetero, pairs=pairs, attr_name=attr_name, tolerance=tolerance)

    def quantities(self, graph: Incidence) -> list[Attribute]:
        """The resistances, and the pairs that they belong to unless these are the edges."""
        if self.pairs == "edges":
            _, values = effective_resistances(graph, method=self.method)
            return [Attribute(self.attr_name, "edge", graph.spread_to_directed(values))]
        index, values = resistance_pairs(graph, method=self.method)
        return [Attribute(f"{self.attr_name}_index", "pair", index), Attribute(self.attr_name, "pair", values)]

    def layers(self, graph: Incidence) -> list[Attribute]:
        """What :meth:`quantities` returns, by Lemma 4."""
        if self.pairs == "edges":
            return [Attribute(self.attr_name, "edge", edges_by_layers(graph, "edges", tolerance=self.tolerance))]
        index, values = pairs_by_layers(graph, self.tolerance)
        return [Attribute(f"{self.attr_name}_index", "pair", index), Attribute(self.attr_name, "pair", values)]

    def encode_dataset(
        self, dataset: InMemoryDataset | Sequence[Data], progress: bool = True
    ) -> InMemoryDataset | list[Data]:
        """As :meth:`~tg_lpe.transforms.base.GraphTransform.encode_dataset`; for all pairs graph by graph, a list."""
        if self.pairs == "edges":
            return super().encode_dataset(dataset, progress)
        check_dataset(dataset)
        return [self(dataset[number]) for number in tqdm(range(len(dataset)), **bar_options(progress))]
