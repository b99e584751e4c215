"""Heat kernels as a PyTorch Geometric transform."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch_geometric.data.datapipes import functional_transform

from tg_lpe.constructions.functions import heat_kernel_entries as entries_by_layers
from tg_lpe.encoders.heat_kernel import TIMES, check_times
from tg_lpe.graph.heat import heat_kernel_entries
from tg_lpe.graph.incidence import Incidence
from tg_lpe.transforms.attributes import check_names
from tg_lpe.transforms.base import Attribute
from tg_lpe.transforms.computed import ComputedTransform


@functional_transform("add_heat_kernel_pe")
class AddHeatKernelPE(ComputedTransform):
    """Adds the diagonal of heat kernels ``exp(-s L)`` (functional name: ``add_heat_kernel_pe``), ``L = D - A``.

    How much heat is left at a node some time after it was put there: it tells neighbourhoods of all sizes apart, has
    neither signs nor bases to choose, and follows its nodes under any relabelling.

    Directions of edges are dropped, see :class:`~tg_lpe.transforms.base.GraphTransform`.

    Args:
        times: diffusion times ``s``, the temperatures of the paper.
        attr_name: attribute to write, ``[num_nodes, num_times]``; ``None`` to append to ``data.x``.
        edge_attr_name: attribute for the kernel's entries at the edges, ``[num_edges, num_times]``, zero at self-loops;
            none if absent.
        edge_weight: name of the attribute that holds conductances, where there is one; ``None`` to ignore weights.
        tolerance: of ``method="layers"``: error, at least ``1e-7``.
        method: ``"auto"``, ``"dense"`` or ``"iterative"`` for the fastest exact way; ``"layers"`` for Lemma 5.
        reduce, hetero: weights of edges that are listed several times, and ``HeteroData``; as
            :class:`~tg_lpe.transforms.base.GraphTransform`.

    Raises:
        ValueError: without times, with a negative one, on an unknown method, or if ``tolerance`` is not positive.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> from tg_lpe.transforms import AddHeatKernelPE
        >>> ring = Data(edge_index=torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]]), num_nodes=6)
        >>> AddHeatKernelPE(times=(1.0, 4.0))(ring).heat_kernel_pe.shape
        torch.Size([6, 2])
    """

    def __init__(
        self,
        times: Sequence[float] = TIMES,
        attr_name: str | None = "heat_kernel_pe",
        edge_attr_name: str | None = None,
        edge_weight: str | None = "edge_weight",
        tolerance: float = 1e-6,
        *,
        method: str = "auto",
        reduce: str = "error",
        hetero: str = "error",
    ) -> None:
        check_names({"attr_name": attr_name, "edge_attr_name": edge_attr_name})
        super().__init__(
            method,
            edge_weight,
            reduce,
            hetero,
            times=check_times(times),
            attr_name=attr_name,
            edge_attr_name=edge_attr_name,
            tolerance=tolerance,
        )

    def quantities(self, graph: Incidence) -> list[Attribute]:
        """The kernels at the nodes, and at the edges where they are asked for."""
        with_edges = self.edge_attr_name is not None
        entries = heat_kernel_entries(graph, self.times, method=self.method, with_edges=with_edges)
        return self._attributes(graph, *entries)

    def layers(self, graph: Incidence) -> list[Attribute]:
        """What :meth:`quantities` returns, by Lemma 5."""
        return self._attributes(graph, *entries_by_layers(graph, self.times, self.tolerance))

    def _attributes(self, graph: Incidence, nodes: Tensor, edges: Tensor) -> list[Attribute]:
        found = [Attribute(self.attr_name, "node", nodes)]
        if self.edge_attr_name is not None:
            found.append(Attribute(self.edge_attr_name, "edge", graph.spread_to_directed(edges)))
        return found
