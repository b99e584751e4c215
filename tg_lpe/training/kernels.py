"""Pretraining of an encoder on kernels of the Laplacian, which depend on no sign and no basis."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, InMemoryDataset
from torch_geometric.loader import DataLoader

from tg_lpe.data import GraphSplits
from tg_lpe.data.storage import iterate_chunks, with_edge_attribute, with_node_attribute
from tg_lpe.encoders.base import Encoder
from tg_lpe.encoders.precompute import store_precomputed
from tg_lpe.graph.incidence import Incidence
from tg_lpe.graph.spectral import kernel_channels, kernel_entries
from tg_lpe.training.config import KernelPretrainConfig
from tg_lpe.training.loop import TrainingLoop
from tg_lpe.training.pretrain import check_trainable, encode_batch
from tg_lpe.training.run_folder import RunFolder

NODE_TARGET, EDGE_TARGET = "kernel", "edge_kernel"
CHUNK = 1000


class KernelPretraining(TrainingLoop):
    """Fits node encodings to the kernels' diagonals and edge encodings to their entries at the edges.

    The loss is the mean over channels of the squared error over the target's variance: 1 is what a constant achieves.

    An encoder without edge channels is fitted to the diagonals alone.

    Args:
        config: the settings.
        encoder: any :class:`~tg_lpe.Encoder` with parameters whose encodings are as wide as the kernels have channels
            (:func:`~tg_lpe.graph.spectral.kernel_channels`).
        splits: the graphs; their labels are not used.
        folder: where to write; the encoder goes to ``encoder/`` in it. ``None`` keeps nothing.
        device: where to train.
        progress: whether to show a progress bar.

    Raises:
        ValueError: if the encoder has another width or no parameters.
    """

    metric = "val_loss"

    def __init__(
        self,
        config: KernelPretrainConfig,
        encoder: Encoder,
        splits: GraphSplits,
        folder: RunFolder | None = None,
        device: str | torch.device = "cpu",
        progress: bool = True,
    ) -> None:
        channels = kernel_channels(config.kernels)
        check_trainable(encoder, channels)
        if encoder.edge_out_channels not in (0, channels):
            raise ValueError(
                f"{type(encoder).__name__} gives {encoder.edge_out_channels} channels of edges, the kernels have "
                f"{channels}"
            )
        self.encoder = encoder.to(device)
        groups = [{"params": list(encoder.parameters()), "peak_lr": config.lr}]
        super().__init__(config, encoder, torch.optim.AdamW(groups, weight_decay=0.0), folder, progress)
        self.config = config
        self.train_set, self.val_set, self.test_set = (
            store_precomputed(encoder, attach_kernels(part, config.kernels))
            for part in (splits.train, splits.val, splits.test)
        )
        data = self.train_set._data
        self._variances = tuple(
            data[name].double().var(dim=0, correction=0).clamp(min=1e-12).float().to(device)
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
            for batch in DataLoader(dataset, batch_size=1024, generator=torch.Generator()):
                parts = self._errors(batch.to(self.device))
                here = [part.double().sum(0).cpu() for part in parts]
                sums = here if not sums else [a + b for a, b in zip(sums, here, strict=True)]
                counts = [part.size(0) + (counts[i] if counts else 0) for i, part in enumerate(parts)]
        return tuple(total / max(count, 1) for total, count in zip(sums, counts, strict=True))

    def result(self) -> dict[str, Any]:
        """Test loss by channel; writes the encoder."""
        errors = self.channel_errors(self.test_set)
        if self.folder is not None:
            self.encoder.save_pretrained(self.folder.path / "encoder")
        return {
            "kind": "pretrain-kernels",
            "test_loss": sum(float(part.mean()) for part in errors) / len(errors),
            "test_loss_by_channel": [round(float(value), 5) for value in torch.cat(errors)],
            "num_train": len(self.train_set),
            "num_val": len(self.val_set),
            "num_test": len(self.test_set),
        }

    def _errors(self, batch: Batch, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        node, edge = encode_batch(self.encoder, batch, generator)
        node_variance, edge_variance = self._variances
        of_nodes = (node - batch[NODE_TARGET]).square() / node_variance
        return (of_nodes,) if edge is None else (of_nodes, (edge - batch[EDGE_TARGET]).square() / edge_variance)


def attach_kernels(dataset: InMemoryDataset, kernels: tuple[str, ...]) -> InMemoryDataset:
    """A copy of the dataset with ``data.kernel`` ``[num_nodes, c]`` and ``data.edge_kernel`` ``[num_edges, c]``."""
    nodes, edges = [], []
    for chunk in iterate_chunks(dataset, CHUNK):
        graph = Incidence(chunk.edge_index, chunk.num_nodes, batch=chunk.batch, num_graphs=chunk.num_graphs)
        node, edge = kernel_entries(graph, kernels)
        nodes.append(node.float())
        edges.append(graph.spread_to_directed(edge).float())
    dataset = with_node_attribute(dataset, NODE_TARGET, torch.cat(nodes))
    return with_edge_attribute(dataset, EDGE_TARGET, torch.cat(edges))
