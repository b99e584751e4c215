"""Laplacian eigenvectors as an encoder."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tg_lpe.arguments import check_seed
from tg_lpe.encoders.base import Encoding
from tg_lpe.encoders.computed import ComputedEncoder
from tg_lpe.encoders.registry import register
from tg_lpe.graph.eigenvectors import check_eigenvectors, laplacian_eigenvectors
from tg_lpe.graph.graph import Graph
from tg_lpe.nn.probes import with_random_signs


@register
class LaplacianEigenvectors(ComputedEncoder):
    """Encode nodes by the first ``k`` non-trivial Laplacian eigenvectors, and edges by sign-invariant forms of them.

    The eigenvectors are those of `Benchmarking Graph Neural Networks <https://arxiv.org/abs/2003.00982>`_. For an edge
    ``(u, v)`` and each eigenvector ``phi``, the edge encoding has ``|phi_u - phi_v|`` and ``phi_u phi_v``, as in
    `Rethinking Graph Transformers with Spectral Attention <https://arxiv.org/abs/2106.03893>`_, eqs. (7)-(8).

    The sign of an eigenvector is arbitrary. With a ``generator``, each column of each graph gets a random sign. Without
    one, it gets the canonical sign of :func:`tg_lpe.graph.eigenvectors.laplacian_eigenvectors`, which does not always
    exist independently of the order of the nodes. If an eigenvalue repeats, the basis of its eigenspace is arbitrary.

    :meth:`precompute` returns ``node_eigenvectors_KIND``, ``[num_nodes, k]``, and ``graph_eigenvalues_KIND``,
    ``[num_graphs, k]``, for a :attr:`kind` such as ``bottom_sym``. If a graph has fewer than ``k``, the remaining
    columns are zero and the remaining eigenvalues NaN.

    Args:
        k: number of eigenvectors, ``out_channels``.
        edge_out_channels: ``2 k`` for the edge encoding, 0 for none.
        normalization: ``None`` for the Laplacian ``D - A``, ``"sym"`` as in PyG's ``AddLaplacianEigenvectorPE``, or
            ``"rw"``.
        which: ``"bottom"``, smallest eigenvalue first, or ``"top"``, largest first.
        seed: seed of the start vectors of the iterative method.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> import torch
        >>> from tg_lpe.encoders import LaplacianEigenvectors
        >>> LaplacianEigenvectors(k=2)(None, torch.tensor([[0, 1, 2], [1, 2, 3]])).node.shape
        torch.Size([4, 2])
    """

    def __init__(
        self,
        k: int = 8,
        edge_out_channels: int | None = None,
        normalization: str | None = "sym",
        which: str = "bottom",
        seed: int = 0,
    ) -> None:
        check_eigenvectors(k, normalization, which)
        check_seed(seed)
        super().__init__(k, 2 * k, edge_out_channels)
        self.k, self.normalization, self.which, self.seed = k, normalization, which, seed
        self.kind = f"{which}_{normalization}"

    def precompute(self, graph: Graph) -> dict[str, Tensor]:
        """Return the eigenvectors and the eigenvalues."""
        vectors, values = laplacian_eigenvectors(
            graph, self.k, normalization=self.normalization, which=self.which, seed=self.seed
        )
        return {
            f"node_eigenvectors_{self.kind}": self.cast(vectors),
            f"graph_eigenvalues_{self.kind}": self.cast(values),
        }

    def widths(self) -> dict[str, int]:
        """Return the widths of the tensors of :meth:`precompute` by name."""
        return {f"node_eigenvectors_{self.kind}": self.k, f"graph_eigenvalues_{self.kind}": self.k}

    def assemble(self, graph: Graph, precomputed: Mapping[str, Tensor], generator: torch.Generator | None) -> Encoding:
        """Return the eigenvectors with their signs, and the sign-invariant forms at the edges."""
        vectors = precomputed[f"node_eigenvectors_{self.kind}"]
        edge = None
        if self.edge_out_channels:
            tail, head = graph.edge_index
            forms = torch.cat([(vectors[tail] - vectors[head]).abs(), vectors[tail] * vectors[head]], dim=1)
            edge = forms.masked_fill((tail == head).unsqueeze(1), 0.0)
        return Encoding(with_random_signs(vectors, graph, generator), edge)
