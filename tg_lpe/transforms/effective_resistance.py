"""Effective resistances as a PyTorch Geometric transform."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch_geometric.data.datapipes import functional_transform

from tg_lpe.arguments import check_type
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.resistance import effective_resistances
from tg_lpe.transforms.attributes import check_names
from tg_lpe.transforms.base import Attribute, GraphTransform


@functional_transform("add_effective_resistance")
class AddEffectiveResistance(GraphTransform):
    """Add the effective resistances of edges (functional name: ``add_effective_resistance``).

    An edge of weight zero between components has an infinite one. Results have PyTorch's default dtype at construction.
    :class:`~tg_lpe.encoders.EffectiveResistance` encodes nodes and pairs of nodes, too.

    Directions of edges are dropped, see :class:`~tg_lpe.transforms.base.GraphTransform`.

    Args:
        attr_name: attribute to write, ``[num_edges]``, one value for each column of ``edge_index``. If a graph has as
            many nodes as edges, PyG treats it as an edge attribute, for example in ``subgraph``, only if its name
            contains ``edge``, as in ``"edge_resistance"``.
        edge_weight, reduce, hetero: see :class:`~tg_lpe.transforms.base.GraphTransform`.

    Raises:
        ValueError: if ``attr_name`` has another meaning in PyG.
        TypeError: if ``attr_name`` is not a string.

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
        attr_name: str = "effective_resistance",
        edge_weight: str | None = "edge_weight",
        *,
        reduce: str = "error",
        hetero: str = "error",
    ) -> None:
        check_type("attr_name", attr_name, str)
        check_names(attr_name=attr_name)
        super().__init__(edge_weight, reduce, hetero)
        self.attr_name = attr_name
        self.dtype = torch.get_default_dtype()

    def compute(self, graph: Graph, features: Mapping[str, Tensor]) -> list[Attribute]:
        """Compute the resistances of edges."""
        _, values = effective_resistances(graph)
        return [Attribute(self.attr_name, "edge", graph.spread_to_directed(values).to(self.dtype))]

    def __repr__(self) -> str:
        names = ("attr_name", "edge_weight", "reduce", "hetero", "dtype")
        return f"{type(self).__name__}({', '.join(f'{name}={vars(self)[name]!r}' for name in names)})"
