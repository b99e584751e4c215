"""Pretraining of an encoder on kernels of the Laplacian, which depend on no sign and no basis."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, InMemoryDataset

from tg_lpe.data.storage import with_edge_attribute, with_node_attribute
from tg_lpe.encoders.base import Encoder
from tg_lpe.encoders.precompute import incidences
from tg_lpe.graph.spectral import kernel_channels, kernel_entries
from tg_lpe.nn.parallel import gather
from tg_lpe.training.config import KernelPretrainConfig
from tg_lpe.training.pretrain import Pretraining
from tg_lpe.training.processes import Parts

NODE_TARGET, EDGE_TARGET = "kernel", "edge_kernel"
CHUNK = 1000


class KernelPretraining(Pretraining[KernelPretrainConfig]):
    """Fits node encodings to the kernels' diagonals and edge encodings to their entries at the edges.

    The loss is the mean over channels of the squared error over the target's variance: 1 is what a constant achieves.

    An encoder without edge channels is fitted to the diagonals alone.

    The arguments are those of :class:`Pretraining`; encodings are as wide as the kernels have channels
    (:func:`~tg_lpe.graph.spectral.kernel_channels`), those of edges too if there are some.
    """

    kind = "pretrain-kernels"

    @property
    def width(self) -> int:
        """Channels of the kernels."""
        return kernel_channels(self.config.kernels)

    def check(self, encoder: Encoder) -> None:
        """Refuse other widths of the edge encoding as well."""
        super().check(encoder)
        if encoder.edge_out_channels not in (0, self.width):
            raise ValueError(
                f"{type(encoder).__name__} gives {encoder.edge_out_channels} channels of edges, the kernels have "
                f"{self.width}"
            )

    def attach_targets(self, dataset: InMemoryDataset) -> InMemoryDataset:
        """As :func:`attach_kernels`."""
        return attach_kernels(dataset, self.config.kernels)

    @cached_property
    def _variances(self) -> tuple[Tensor, ...]:
        """Of the training targets at nodes and at edges, ``[channels]`` each."""
        data = self.train_set._data
        return tuple(
            data[name].double().var(dim=0, correction=0).clamp(min=1e-12).float().to(self.device)
            for name in (NODE_TARGET, EDGE_TARGET)
        )

    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Mean over channels, nodes and edges with equal weight."""
        parts = self._errors(batch, generator)
        return sum((part.sum() / max(part.numel(), 1) for part in parts), start=parts[0].new_zeros(())) / len(parts)

    def evaluate(self, dataset: InMemoryDataset) -> float:
        """The same over a whole dataset."""
        parts = self.channel_errors(dataset)
        return sum(float(errors.mean()) for errors in parts) / len(parts)

    def channel_errors(self, dataset: InMemoryDataset) -> tuple[Tensor, ...]:
        """Relative squared error of each channel at nodes, and at edges if they are encoded, ``[channels]`` each."""
        self.model.eval()
        counts: list[int] = []
        sums: list[Tensor] = []
        with torch.no_grad():
            for batch, divided in Parts(dataset, 1024):
                with divided:
                    parts = self._errors(batch.to(self.device))
                here = [part.double().sum(0).cpu() for part in parts]
                sums = here if not sums else [a + b for a, b in zip(sums, here, strict=True)]
                counts = [part.size(0) + (counts[i] if counts else 0) for i, part in enumerate(parts)]
        return tuple(total / max(count, 1) for total, count in zip(sums, counts, strict=True))

    def test_figures(self) -> dict[str, Any]:
        """The test loss, and that of each channel."""
        errors = self.channel_errors(self.test_set)
        return {
            "test_loss": sum(float(part.mean()) for part in errors) / len(errors),
            "test_loss_by_channel": [round(float(value), 5) for value in torch.cat(errors)],
        }

    def _errors(self, batch: Batch, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        node, edge = self.encode(batch, generator)
        node_variance, edge_variance = self._variances
        of_nodes = gather((node - batch[NODE_TARGET]).square() / node_variance)
        return (of_nodes,) if edge is None else (of_nodes, gather((edge - batch[EDGE_TARGET]).square() / edge_variance))


def attach_kernels(dataset: InMemoryDataset, kernels: tuple[str, ...]) -> InMemoryDataset:
    """A copy of the dataset with ``data.kernel`` ``[num_nodes, c]`` and ``data.edge_kernel`` ``[num_edges, c]``.

    Edge weights of the graphs count as conductances.
    """
    nodes, edges = [], []
    for graph in incidences(dataset, CHUNK):
        node, edge = kernel_entries(graph, kernels)
        nodes.append(node.float())
        edges.append(graph.spread_to_directed(edge).float())
    dataset = with_node_attribute(dataset, NODE_TARGET, torch.cat(nodes))
    return with_edge_attribute(dataset, EDGE_TARGET, torch.cat(edges))
