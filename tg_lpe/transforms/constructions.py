"""What the constructions compute as PyTorch Geometric transforms: nothing here is learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch_geometric.data import Data
from torch_geometric.data.datapipes import functional_transform
from torch_geometric.transforms import BaseTransform

from tg_lpe.constructions.functions import (
    MAX_LAYERS,
    PAIRS,
    effective_resistance,
    heat_kernel_entries,
    incidence_of,
    laplacian_eigenvectors,
    resistance_pairs,
    resistive_embedding,
)
from tg_lpe.transforms.attributes import write_node_encoding


class _Construction(BaseTransform):
    """A transform that is told by its arguments: PyG compares ``repr`` to detect a stale cache."""

    def __init__(self, **arguments: Any) -> None:
        self.__dict__.update(arguments)
        self._arguments = arguments

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._arguments.items())})"


@functional_transform("add_effective_resistance")
class AddEffectiveResistance(_Construction):
    """Adds effective resistances (functional name: ``add_effective_resistance``), by Lemma 4.

    See :func:`tg_lpe.constructions.effective_resistance`. ``Data`` and ``Batch`` alike, in PyTorch's default dtype.

    Args:
        pairs: ``"edges"``: ``data[attr_name]``, ``[num_edges]``, one value for each column of ``edge_index``; or
            ``"all"`` pairs of nodes of a graph, ``[num_nodes^2]``, with the pairs in ``data[attr_name + "_index"]``,
            int64 ``[2, num_nodes^2]``, which PyG counts on when it batches. Infinite between components.
        attr_name: attribute to write.
        edge_weight: name of the attribute that holds conductances, where there is one; ``None`` to ignore weights.
        tolerance: relative error.

    Raises:
        ValueError: on other ``pairs``.
    """

    def __init__(
        self,
        pairs: str = "edges",
        attr_name: str = "effective_resistance",
        edge_weight: str | None = "edge_weight",
        tolerance: float = 1e-10,
    ) -> None:
        if pairs not in PAIRS:
            raise ValueError(f"pairs must be one of {PAIRS}, got {pairs!r}")
        super().__init__(pairs=pairs, attr_name=attr_name, edge_weight=edge_weight, tolerance=tolerance)

    def forward(self, data: Data) -> Data:
        """Write the resistances into ``data``; calling the transform does so on a copy."""
        graph = incidence_of(data, self.edge_weight)
        if self.pairs == "edges":
            values = effective_resistance(graph, "edges", tolerance=self.tolerance)
        else:
            data[f"{self.attr_name}_index"], values = resistance_pairs(graph, self.tolerance)
        data[self.attr_name] = values.to(torch.get_default_dtype())
        return data


@functional_transform("add_heat_kernel_pe")
class AddHeatKernelPE(_Construction):
    """Adds the diagonal of heat kernels ``exp(-s L)`` (functional name: ``add_heat_kernel_pe``), by Lemma 5.

    How much heat is left at a node some time after it was put there: it tells neighbourhoods of all sizes apart, has
    neither signs nor bases to choose, and follows its nodes under any relabelling. ``Data`` and ``Batch`` alike, in
    PyTorch's default dtype.

    Args:
        times: temperatures ``s``.
        attr_name: attribute to write, ``[num_nodes, num_times]``; ``None`` to append to ``data.x``.
        edge_attr_name: attribute for the kernel's entries at the edges, ``[num_edges, num_times]``, zero at self-loops;
            none if absent.
        edge_weight: name of the attribute that holds conductances, where there is one; ``None`` to ignore weights.
        tolerance: error, at least ``1e-7``.

    Raises:
        ValueError: without times, or with a negative one.
    """

    def __init__(
        self,
        times: Sequence[float] = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0),
        attr_name: str | None = "heat_kernel_pe",
        edge_attr_name: str | None = None,
        edge_weight: str | None = "edge_weight",
        tolerance: float = 1e-6,
    ) -> None:
        times = tuple(float(s) for s in times)
        if not times or not all(0 <= s < float("inf") for s in times):
            raise ValueError(f"times must be finite and not negative, at least one, got {times}")
        super().__init__(
            times=times,
            attr_name=attr_name,
            edge_attr_name=edge_attr_name,
            edge_weight=edge_weight,
            tolerance=tolerance,
        )

    def forward(self, data: Data) -> Data:
        """Write the kernels into ``data``; calling the transform does so on a copy."""
        graph = incidence_of(data, self.edge_weight)
        nodes, edges = heat_kernel_entries(graph, self.times, self.tolerance)
        dtype = torch.get_default_dtype()
        if self.edge_attr_name is not None:
            data[self.edge_attr_name] = graph.spread_to_listings(edges).to(dtype)
        write_node_encoding(data, self.attr_name, nodes.to(dtype))
        return data


@functional_transform("add_resistive_embedding_pe")
class AddResistiveEmbeddingPE(_Construction):
    """Adds a resistive embedding in ``k`` dimensions (functional name: ``add_resistive_embedding_pe``), by Lemma 2.

    Squared distances between nodes are about their effective resistances; see
    :func:`tg_lpe.constructions.resistive_embedding`. ``Data`` and ``Batch`` alike, in PyTorch's default dtype.

    Args:
        k: number of columns.
        attr_name: attribute to write, ``[num_nodes, k]``; ``None`` to append to ``data.x``.
        seed: of the random directions.
        edge_weight: name of the attribute that holds conductances, where there is one; ``None`` to ignore weights.
        tolerance: relative error before the projection.
        max_layers: refuse graphs that need more.
    """

    def __init__(
        self,
        k: int,
        attr_name: str | None = "resistive_embedding_pe",
        seed: int = 0,
        edge_weight: str | None = "edge_weight",
        tolerance: float = 1e-4,
        max_layers: int = MAX_LAYERS,
    ) -> None:
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        super().__init__(
            k=k, attr_name=attr_name, seed=seed, edge_weight=edge_weight, tolerance=tolerance, max_layers=max_layers
        )

    def forward(self, data: Data) -> Data:
        """Write the embedding into ``data``; calling the transform does so on a copy."""
        graph = incidence_of(data, self.edge_weight)
        given = {"tolerance": self.tolerance, "seed": self.seed, "max_layers": self.max_layers}
        embedding = resistive_embedding(graph, self.k, **given)
        write_node_encoding(data, self.attr_name, embedding.to(torch.get_default_dtype()))
        return data


@functional_transform("add_laplacian_eigenvectors")
class AddLaplacianEigenvectors(_Construction):
    """Adds eigenvectors of ``L`` (functional name: ``add_laplacian_eigenvectors``), by Lemma 6 and Corollary 7.

    See :func:`tg_lpe.constructions.laplacian_eigenvectors`. On small graphs it shows what the transformer can do, and
    is no fast way to eigenvectors. ``Data`` and ``Batch`` alike, in PyTorch's default dtype.

    Args:
        k: number of eigenvectors.
        which: ``"bottom"`` or ``"top"``.
        attr_name: attribute to write, ``[num_nodes, k]``; ``None`` to append to ``data.x``.
        seed: of the starting vectors.
        edge_weight: name of the attribute that holds conductances, where there is one; ``None`` to ignore weights.
        tolerance: sine of the angle between the spans computed and wanted.
        max_layers: refuse graphs that need more.
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
    ) -> None:
        if k < 1 or which not in ("bottom", "top"):
            raise ValueError(f"k must be at least 1 and which 'bottom' or 'top', got k={k} and which={which!r}")
        super().__init__(
            k=k,
            which=which,
            attr_name=attr_name,
            seed=seed,
            edge_weight=edge_weight,
            tolerance=tolerance,
            max_layers=max_layers,
        )

    def forward(self, data: Data) -> Data:
        """Write the eigenvectors into ``data``; calling the transform does so on a copy."""
        graph = incidence_of(data, self.edge_weight)
        given = {"tolerance": self.tolerance, "seed": self.seed, "max_layers": self.max_layers}
        vectors, _ = laplacian_eigenvectors(graph, self.k, self.which, **given)
        write_node_encoding(data, self.attr_name, vectors.to(torch.get_default_dtype()))
        return data
