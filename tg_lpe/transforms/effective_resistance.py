"""Effective resistances as a PyTorch Geometric transform."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch_geometric.data.datapipes import functional_transform

from tg_lpe.arguments import check_choice, check_type
from tg_lpe.graph.graph import Graph
from tg_lpe.graph.resistance import effective_resistances, resistance_pairs
from tg_lpe.transforms.attributes import check_names
from tg_lpe.transforms.base import Attribute, GraphTransform

PAIRS = ("all", "edges")


@functional_transform("add_effective_resistance")
class AddEffectiveResistance(GraphTransform):
    """Add effective resistances of edges or of all pairs of nodes (functional name: ``add_effective_resistance``).

    Results have PyTorch's default dtype at construction. :class:`~tg_lpe.encoders.EffectiveResistance` encodes edges
    and nodes.

    Directions of edges are dropped, see :class:`~tg_lpe.transforms.base.GraphTransform`.

    Args:
        pairs: the pairs of nodes whose resistances to write. Those between components are infinite.

            - ``"edges"``: ``data[attr_name]``, ``[num_edges]``, one value for each column of ``edge_index``
            - ``"all"``: ``data[attr_name]``, ``[num_nodes^2]``, and the pairs, ``data[attr_name + "_index"]``, int64
              ``[2, num_nodes^2]``, which PyG increments in batches
        attr_name: attribute to write. If a graph has as many nodes as edges, PyG treats it as an edge attribute, for
            example in ``subgraph``, only if its name contains ``edge``, as in ``"edge_resistance"``.
        edge_weight, reduce, hetero: see :class:`~tg_lpe.transforms.base.GraphTransform`.

    Raises:
        ValueError: if ``pairs`` is unknown, or ``attr_name`` has another meaning in PyG.
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
        pairs: str = "edges",
        attr_name: str = "effective_resistance",
        edge_weight: str | None = "edge_weight",
        *,
        reduce: str = "error",
        hetero: str = "error",
    ) -> None:
        check_choice("pairs", pairs, PAIRS)
        if pairs == "all" and hetero != "error":
            raise ValueError(f"pairs='all' numbers the nodes of one type, so hetero must be 'error', got {hetero!r}")
        check_type("attr_name", attr_name, str)
        check_names(attr_name=attr_name)
        super().__init__(edge_weight, reduce, hetero)
        self.pairs, self.attr_name = pairs, attr_name
        self.one_by_one = pairs == "all"
        self.dtype = torch.get_default_dtype()

    def compute(self, graph: Graph, features: Mapping[str, Tensor]) -> list[Attribute]:
        """Compute the resistances of edges, or of all pairs together with the pairs."""
        if self.pairs == "edges":
            _, values = effective_resistances(graph)
            return [Attribute(self.attr_name, "edge", graph.spread_to_directed(values).to(self.dtype))]
        index, values = resistance_pairs(graph)
        name = self.attr_name
        return [Attribute(f"{name}_index", "pair", index), Attribute(name, "pair", values.to(self.dtype))]

    def __repr__(self) -> str:
        names = ("pairs", "attr_name", "edge_weight", "reduce", "hetero", "dtype")
        return f"{type(self).__name__}({', '.join(f'{name}={vars(self)[name]!r}' for name in names)})"
