"""Heat kernels as a PyTorch Geometric transform."""

from __future__ import annotations

from collections.abc import Sequence

from torch_geometric.data.datapipes import functional_transform

from tg_lpe.encoders.heat_kernel import TIMES, HeatKernel
from tg_lpe.transforms.positional_encoding import AddPositionalEncoding


@functional_transform("add_heat_kernel_pe")
class AddHeatKernelPE(AddPositionalEncoding):
    """Add :class:`~tg_lpe.encoders.HeatKernel` to a graph (functional name: ``add_heat_kernel_pe``).

    Directions of edges are dropped, see :class:`~tg_lpe.transforms.base.GraphTransform`.

    Args:
        times, method: see :class:`~tg_lpe.encoders.HeatKernel`.
        attr_name: attribute to write, ``[num_nodes, num_times]``; ``None`` appends the columns to ``x``.
        edge_attr_name: attribute to write for edges, ``[num_edges, num_times]``; ``None`` for no edge encoding.
        edge_weight, reduce, hetero: see :class:`AddPositionalEncoding`.

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
        *,
        method: str = "auto",
        reduce: str = "error",
        hetero: str = "error",
    ) -> None:
        encoder = HeatKernel(times, method=method)
        super().__init__(encoder, attr_name, edge_attr_name, edge_weight, reduce=reduce, hetero=hetero)
