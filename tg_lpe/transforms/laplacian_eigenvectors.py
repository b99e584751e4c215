"""Laplacian eigenvectors as a PyTorch Geometric transform."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data.datapipes import functional_transform

from tg_lpe.constructions.functions import laplacian_eigenvectors as eigenvectors_by_layers
from tg_lpe.graph.incidence import Incidence
from tg_lpe.graph.spectral import check_eigenvectors, laplacian_eigenvectors, null_dimension
from tg_lpe.transforms.attributes import check_names
from tg_lpe.transforms.base import Attribute
from tg_lpe.transforms.computed import LAYERS, MAX_LAYERS, ComputedTransform


@functional_transform("add_laplacian_eigenvectors")
class AddLaplacianEigenvectors(ComputedTransform):
    """Adds the first non-trivial Laplacian eigenvectors (functional name: ``add_laplacian_eigenvectors``).

    Defined on every graph: the null vector of each component is left out, columns that a graph does not have are zero.
    See :func:`tg_lpe.graph.spectral.laplacian_eigenvectors`, which says what is done about signs.

    Directions of edges are dropped, see :class:`~tg_lpe.transforms.base.GraphTransform`.

    Args:
        k: number of eigenvectors.
        which: ``"bottom"``, smallest eigenvalue first, or ``"top"``, largest first.
        attr_name: attribute to write, ``[num_nodes, k]``; ``None`` to append to ``data.x``.
        seed: of the first vectors of iterations.
        edge_weight: name of the attribute that holds conductances, where there is one; ``None`` to ignore weights.
        tolerance: of ``method="layers"``: sine of the angle between the spans computed and wanted.
        max_layers: of ``method="layers"``: refuse graphs that need more.
        method: ``"auto"``, ``"dense"`` or ``"iterative"`` for the fastest exact way; ``"layers"`` for Lemma 6 and
            Corollary 7, see :func:`tg_lpe.constructions.laplacian_eigenvectors`.
        normalization: of the Laplacian: ``None`` for ``D - A``, ``"sym"``, ``"rw"``. PyG's
            ``AddLaplacianEigenvectorPE`` and the encoder :class:`~tg_lpe.encoders.LaplacianEigenvectors` take
            ``"sym"``.
        eigenvalue_attr_name: attribute for the eigenvalues, ``[num_graphs, k]``, NaN where a graph has fewer; none if
            absent.
        reduce, hetero: weights of edges that are listed several times, and ``HeteroData``; as
            :class:`~tg_lpe.transforms.base.GraphTransform`.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> from tg_lpe.transforms import AddLaplacianEigenvectors
        >>> ring = Data(edge_index=torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]]), num_nodes=6)
        >>> AddLaplacianEigenvectors(k=3)(ring).laplacian_eigenvectors.shape
        torch.Size([6, 3])
    """

    def __init__(
        self,
        k: int,
        which: str = "bottom",
        attr_name: str | None = "laplacian_eigenvectors",
        seed: int = 0,
        edge_weight: str | None = "edge_weight",
        tolerance: float = 1e-6,
        max_layers: int = MAX_LAYERS,
        *,
        method: str = "auto",
        normalization: str | None = None,
        eigenvalue_attr_name: str | None = None,
        reduce: str = "error",
        hetero: str = "error",
    ) -> None:
        check_eigenvectors(k, normalization, which)
        if method == LAYERS and normalization is not None:
            raise ValueError(f"method='layers' takes normalization=None, got {normalization!r}")
        check_names({"attr_name": attr_name, "eigenvalue_attr_name": eigenvalue_attr_name})
        super().__init__(
            method,
            edge_weight,
            reduce,
            hetero,
            k=k,
            which=which,
            attr_name=attr_name,
            seed=seed,
            tolerance=tolerance,
            max_layers=max_layers,
            normalization=normalization,
            eigenvalue_attr_name=eigenvalue_attr_name,
        )

    def quantities(self, graph: Incidence) -> list[Attribute]:
        """The eigenvectors, and the eigenvalues where they are asked for."""
        options = {"normalization": self.normalization, "which": self.which, "method": self.method, "seed": self.seed}
        return self._attributes(*laplacian_eigenvectors(graph, self.k, **options))

    def layers(self, graph: Incidence) -> list[Attribute]:
        """What :meth:`quantities` returns, by Lemma 6 and Corollary 7, without the null vectors, first or last."""
        null = null_dimension(graph)
        most = int(null.max()) if null.numel() else 0
        options = {"tolerance": self.tolerance, "seed": self.seed, "max_layers": self.max_layers}
        bottom = self.which == "bottom"
        vectors, values = eigenvectors_by_layers(graph, self.k + most * bottom, self.which, **options)
        column = torch.arange(self.k, device=graph.device) + null.unsqueeze(-1) * bottom
        size = graph.ptr.diff()
        exists = torch.arange(self.k, device=graph.device) < (size - null).unsqueeze(-1)
        values = values.gather(1, column).masked_fill(~exists, torch.nan)
        vectors = vectors.gather(1, column[graph.batch]) * exists[graph.batch]
        return self._attributes(vectors, values)

    def _attributes(self, vectors: Tensor, values: Tensor) -> list[Attribute]:
        found = [Attribute(self.attr_name, "node", vectors)]
        if self.eigenvalue_attr_name is not None:
            found.append(Attribute(self.eigenvalue_attr_name, "graph", values))
        return found
