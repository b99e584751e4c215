"""Laplacian eigenvectors and eigenvalues as a PyTorch Geometric transform."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch_geometric.data.datapipes import functional_transform

from tg_lpe.encoders.laplacian import LaplacianEigenvectors
from tg_lpe.graph.graph import Graph
from tg_lpe.transforms.attributes import check_names
from tg_lpe.transforms.base import Attribute
from tg_lpe.transforms.positional_encoding import AddPositionalEncoding


@functional_transform("add_laplacian_eigenvectors")
class AddLaplacianEigenvectors(AddPositionalEncoding):
    """Add :class:`~tg_lpe.encoders.LaplacianEigenvectors` to a graph (functional: ``add_laplacian_eigenvectors``).

    Directions of edges are dropped, see :class:`~tg_lpe.transforms.base.GraphTransform`.

    Args:
        k, which, seed, normalization: see :class:`~tg_lpe.encoders.LaplacianEigenvectors`.
        attr_name: attribute to write, ``[num_nodes, k]``; ``None`` appends the columns to ``x``.
        eigenvalue_attr_name: attribute to write for the eigenvalues, ``[num_graphs, k]``, NaN if a graph has fewer;
            ``None`` for no eigenvalues.
        edge_weight, reduce, hetero: see :class:`AddPositionalEncoding`.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> from tg_lpe.transforms import AddLaplacianEigenvectors
        >>> ring = Data(edge_index=torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]]), num_nodes=6)
        >>> AddLaplacianEigenvectors(k=3)(ring).laplacian_eigenvectors.shape
        torch.Size([6, 3])
    """

    _described = ("eigenvalue_attr_name", *AddPositionalEncoding._described)

    def __init__(
        self,
        k: int = 8,
        which: str = "bottom",
        attr_name: str | None = "laplacian_eigenvectors",
        seed: int = 0,
        edge_weight: str | None = "edge_weight",
        *,
        normalization: str | None = "sym",
        eigenvalue_attr_name: str | None = None,
        reduce: str = "error",
        hetero: str = "error",
    ) -> None:
        encoder = LaplacianEigenvectors(k, normalization=normalization, which=which, seed=seed)
        check_names(attr_name=attr_name, eigenvalue_attr_name=eigenvalue_attr_name)
        super().__init__(encoder, attr_name, None, edge_weight, reduce=reduce, hetero=hetero)
        self.eigenvalue_attr_name = eigenvalue_attr_name
        self._eigenvalues = f"graph_eigenvalues_{encoder.kind}"

    def compute(self, graph: Graph, features: Mapping[str, Tensor]) -> list[Attribute]:
        """Compute the eigenvectors, and the eigenvalues if ``eigenvalue_attr_name`` is set."""
        encoder = self.encoder_on(graph.device)
        precomputed = encoder.precompute(graph)
        attributes = [Attribute(self.attr_name, "node", encoder(None, graph, precomputed=precomputed).node)]
        if self.eigenvalue_attr_name is not None:
            attributes.append(Attribute(self.eigenvalue_attr_name, "graph", precomputed[self._eigenvalues]))
        return attributes
