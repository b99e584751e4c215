"""Whitening of another encoding: uncorrelated channels of variance one."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data, InMemoryDataset

from tg_lpe.arguments import check_generator
from tg_lpe.data.storage import iterate_chunks
from tg_lpe.encoders.base import Encoder, Encoding, Inputs, warn_if_untrained
from tg_lpe.encoders.precompute import CHUNK, CHUNK_PAIRS
from tg_lpe.encoders.random_walk import RandomWalk
from tg_lpe.encoders.registry import as_encoder, load_encoder, register
from tg_lpe.graph.graph import Graph
from tg_lpe.nn._util import without_autocast
from tg_lpe.ops.blas import torch_threads_for

SMALLEST = 1e-5
"""Components whose standard deviation is below this share of the first one's are dropped: rounding dominates them."""


@register
class Whitened(Encoder):
    r"""Whiten another encoder: rotate its channels to principal components and scale them to variance one.

    With the mean :math:`\mu` and the covariance :math:`U \operatorname{diag}(\lambda) U^T` of the encoding :math:`p` of
    all nodes of a training set, the encoding of a node is

    .. math:: \operatorname{diag}(\lambda)^{-1/2}\, U^T (p - \mu) .

    Edge encodings are whitened in the same way, with the statistics of edges. The channels are uncorrelated on the
    training set and sorted by their variance before scaling. Use this encoder as a control: it shows whether another
    encoding wins by information or by conditioning.

    :meth:`fit` computes the statistics from training graphs. ``tg-lpe train`` and :func:`tg_lpe.app.training.train` do
    so with the training part of the data. Checkpoints include the statistics. The inner encoder is a frozen copy.
    Components whose standard deviation is less than 1e-5 of the first one's are dropped: their channels, the last ones,
    are zero. Pairs of nodes are not whitened.

    Training draws random signs of eigenvectors for the statistics too: means and correlations then vanish, and only the
    scale of each column is normalised. If an eigenvector changes its sign, all channels that contain it change.

    Args:
        encoder: the inner encoder; or its class and arguments, such as ``{"class": "RandomWalk", "steps": 16}``; or the
            name or folder of a pretrained one, such as ``"gram-k16"``; by default,
            :class:`~tg_lpe.encoders.RandomWalk`.

    Raises:
        TypeError: if ``encoder`` has another type.
        ValueError: if its class or checkpoint is unknown, or its arguments are out of range.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> from tg_lpe.encoders import RandomWalk, Whitened
        >>> path = Data(edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]]), num_nodes=5)
        >>> encoder = Whitened(RandomWalk(steps=4)).fit([path])
        >>> encoder(None, path.edge_index, num_nodes=5).node.std(0, unbiased=False).round(decimals=3)
        tensor([1., 1., 0., 0.])
    """

    _modules_in_config = ("encoder",)

    def __init__(self, encoder: Encoder | Mapping[str, Any] | str | None = None) -> None:
        super().__init__()
        if isinstance(encoder, Encoder):
            warn_if_untrained(encoder)
        inner = as_encoder(load_encoder(encoder) if isinstance(encoder, str | Path) else encoder) or RandomWalk()
        self.encoder = copy.deepcopy(inner).requires_grad_(False).eval()
        self.out_channels, self.edge_out_channels = inner.out_channels, inner.edge_out_channels
        self.pair_out_channels = inner.pair_out_channels
        self.reads, self.directed = inner.reads, inner.directed
        self.register_buffer("num_fitted", torch.zeros((), dtype=torch.int64))
        for level, width in (("node", self.out_channels), ("edge", self.edge_out_channels)):
            self.register_buffer(f"{level}_mean", torch.zeros(width))
            self.register_buffer(f"{level}_map", torch.zeros(width, width))

    num_fitted: Tensor
    node_mean: Tensor
    node_map: Tensor
    edge_mean: Tensor
    edge_map: Tensor

    @property
    def is_fitted(self) -> bool:
        """Whether the encoder has statistics, from :meth:`fit` or a checkpoint."""
        return bool(self.num_fitted)

    def fit(self, dataset: InMemoryDataset | Sequence[Data], *, generator: torch.Generator | None = None) -> Whitened:
        """Compute mean and covariance of the encodings of a training set, in float64.

        Args:
            dataset: a PyG dataset or a sequence of ``Data``. Every node counts once, and every directed edge except
                self-loops.
            generator: the generator of random signs and probes, as in training; without it, the encoding is
                deterministic, as in a transform.

        Returns:
            This encoder.

        Raises:
            TypeError: if an element is not a ``Data``, or ``generator`` is not a generator.
            ValueError: if no graph has a node, a required feature is missing, or an encoding is not finite.
        """
        check_generator(generator)
        exact = copy.deepcopy(self.encoder).double()
        num_graphs, moments = moments_of(exact, dataset, self.node_mean.device, generator)
        if not (moments["node"].rows or moments["edge"].rows):
            raise ValueError(f"dataset must have a graph with nodes to fit {type(self).__name__} to, got none")
        for level, part in moments.items():
            if not bool(part.scatter.isfinite().all()):
                raise ValueError(f"dataset has {level} encodings that are not finite: {self.encoder}")
        for level, part in moments.items():
            self.get_buffer(f"{level}_mean").copy_(part.mean)
            self.get_buffer(f"{level}_map").copy_(part.whitening())
        self.num_fitted.fill_(num_graphs)
        return self

    @without_autocast
    def encode(self, graph: Graph, inputs: Inputs) -> Encoding:
        """Encode nodes and edges, see :meth:`Encoder.encode`; pairs are not whitened.

        Raises:
            ValueError: if :meth:`fit` was not called, or the inner encoder raises it.
        """
        if not self.is_fitted:
            raise ValueError(
                f"this {type(self).__name__} has no statistics yet: call encoder.fit(training_graphs) first; "
                "tg-lpe train and tg_lpe.app.training.train do so with the training part of the data"
            )
        x, edge_attr, pairs, generator, precomputed = inputs
        node, edge, pair = self.encoder(x, graph, edge_attr, pairs=pairs, generator=generator, precomputed=precomputed)
        node = (node - self.node_mean) @ self.node_map
        if edge is not None:
            edge = (edge - self.edge_mean) @ self.edge_map
            edge = edge.masked_fill((graph.undirected_index < 0).unsqueeze(1), 0.0)
        return Encoding(node, edge, pair)

    def precompute(self, graph: Graph) -> dict[str, Tensor]:
        """Return the precomputed tensors of the inner encoder."""
        return self.encoder.precompute(graph)

    def reset_parameters(self) -> None:
        """Draw the weights of the inner encoder again, if it has any; :meth:`fit` must then be called again."""
        if any(True for _ in self.encoder.parameters()):
            super().reset_parameters()

    def requires_grad_(self, requires_grad: bool = True) -> Whitened:
        """Return this encoder unchanged: the statistics belong to the frozen weights inside, and it has no others."""
        return self

    def extra_repr(self) -> str:
        """Show the number of graphs that the statistics come from."""
        return f"num_fitted={int(self.num_fitted)}"


def moments_of(
    encoder: Encoder,
    dataset: InMemoryDataset | Sequence[Data],
    device: torch.device,
    generator: torch.Generator | None = None,
) -> tuple[int, dict[str, Moments]]:
    """Encode a dataset by a float64 encoder; return the number of graphs and the moments of nodes and of edges."""
    moments, number = {"node": Moments.zero(encoder.out_channels), "edge": Moments.zero(encoder.edge_out_channels)}, 0
    for chunk in iterate_chunks(dataset, CHUNK, tuple(sorted(encoder.reads)), CHUNK_PAIRS):
        attributes = {
            name: value.to(device, torch.float64 if value.is_floating_point() else value.dtype)
            for name, value in chunk.attributes.items()
        }
        graph = Graph(
            chunk.edge_index.to(device),
            chunk.num_nodes,
            edge_weight=attributes.get("edge_weight"),
            batch=chunk.batch.to(device),
            num_graphs=chunk.num_graphs,
        )
        with torch.no_grad():
            encoding = encoder(attributes.get("x"), graph, attributes.get("edge_attr"), generator=generator)
        number += graph.num_graphs
        moments["node"] = moments["node"].updated(encoding.node)
        if encoding.edge is not None:
            moments["edge"] = moments["edge"].updated(encoding.edge[graph.undirected_index >= 0])
    return number, moments


class Moments(NamedTuple):
    """Number, mean and scatter matrix of rows, float64."""

    rows: int
    mean: Tensor
    scatter: Tensor

    @classmethod
    def zero(cls, width: int) -> Moments:
        return cls(0, torch.zeros(width, dtype=torch.float64), torch.zeros(width, width, dtype=torch.float64))

    def updated(self, values: Tensor) -> Moments:
        """Return the moments with further rows, by the update of Chan, Golub and LeVeque (1979)."""
        if not len(values):
            return self
        values = values.double().cpu()
        mean = values.mean(0)
        centred, step, count = values - mean, mean - self.mean, self.rows + len(values)
        between = torch.outer(step, step) * (self.rows * len(values) / count)
        return Moments(count, self.mean + step * (len(values) / count), self.scatter + centred.mT @ centred + between)

    def whitening(self) -> Tensor:
        """Return the map to whitened channels; each column's entry of largest absolute value is positive."""
        if not len(self.mean):
            return self.scatter
        with torch_threads_for(len(self.mean) ** 3):
            variances, axes = torch.linalg.eigh(self.scatter / max(self.rows, 1))
        variances, axes = variances.flip(0), axes.flip(1)
        size = axes.abs()
        is_largest = size > size.amax(0) - 1e-6  # equal up to rounding; argmax takes the first
        signs = axes.gather(0, is_largest.int().argmax(0, keepdim=True)).sign()
        is_large = (variances > 0) & (variances >= SMALLEST**2 * variances[0])
        return torch.where(is_large, axes * signs / variances.clamp(min=1e-300).sqrt(), 0.0)
