"""Pretraining of Gram read-outs on kernels of the Laplacian: targets that know neither signs nor bases."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, InMemoryDataset
from torch_geometric.loader import DataLoader

from tg_lpe.data.storage import iterate_chunks, with_edge_attribute, with_node_attribute
from tg_lpe.datasets.molecules import MoleculeSplits
from tg_lpe.encoders.gram_transformer import GramTransformer
from tg_lpe.graph.incidence import Incidence
from tg_lpe.graph.spectral import kernel_channels, kernel_entries
from tg_lpe.training.config import KernelPretrainConfig
from tg_lpe.training.loop import TrainingLoop, seeded
from tg_lpe.training.run_folder import RunFolder

NODE_TARGET, EDGE_TARGET = "kernel", "edge_kernel"
CHUNK = 1000


class KernelPretraining(TrainingLoop):
    """Fits node encodings to the kernels' diagonals and edge encodings to their entries at the edges.

    The loss is the mean over channels of the squared error over the target's variance: 1 is what a constant achieves.

    Args:
        config: the settings.
        splits: the graphs; their labels are not used.
        folder: where to write; the encoder goes to ``encoder/`` in it. ``None`` keeps nothing.
        device: where to train.
        progress: whether to show a progress bar.
    """

    metric = "val_loss"

    def __init__(
        self,
        config: KernelPretrainConfig,
        splits: MoleculeSplits,
        folder: RunFolder | None = None,
        device: str | torch.device = "cpu",
        progress: bool = True,
    ) -> None:
        channels = kernel_channels(config.kernels)
        with seeded(config.seed):
            self.encoder = GramTransformer(
                out_channels=channels,
                edge_out_channels=channels,
                num_filters=config.num_filters,
                num_layers=config.num_layers,
                num_squarings=config.num_squarings,
                basis=config.basis,
                probes="identity" if config.num_squarings else "auto",
                num_edge_types=len(splits.bond_types) if config.features else None,
                num_node_types=len(splits.vocabulary) if config.features else None,
            ).to(device)
        groups = [{"params": list(self.encoder.parameters()), "peak_lr": config.lr}]
        super().__init__(config, self.encoder, torch.optim.AdamW(groups, weight_decay=0.0), folder, progress)
        self.config = config
        self.train_set, self.val_set, self.test_set = (
            attach_kernels(split.whole(), config.kernels) for split in (splits.train, splits.val, splits.test)
        )
        data = self.train_set._data
        self._variances = tuple(
            data[name].double().var(dim=0, correction=0).clamp(min=1e-12).float().to(device)
            for name in (NODE_TARGET, EDGE_TARGET)
        )

    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Mean over channels, of nodes and edges alike."""
        node, edge = self._errors(batch)
        return 0.5 * (node.sum() / max(node.numel(), 1) + edge.sum() / max(edge.numel(), 1))

    def evaluate(self, dataset: InMemoryDataset) -> float:
        """The same over a whole data set."""
        return 0.5 * sum(float(errors.mean()) for errors in self.channel_errors(dataset))

    def channel_errors(self, dataset: InMemoryDataset) -> tuple[Tensor, Tensor]:
        """Relative squared error of each channel at nodes and at edges, ``[channels]`` each."""
        self.model.eval()
        counts = [0, 0]
        sums: list[Tensor] = []
        with torch.no_grad():
            for batch in DataLoader(dataset, batch_size=1024, generator=torch.Generator()):
                parts = self._errors(batch.to(self.device))
                here = [part.double().sum(0).cpu() for part in parts]
                sums = here if not sums else [a + b for a, b in zip(sums, here, strict=True)]
                counts = [count + part.size(0) for count, part in zip(counts, parts, strict=True)]
        node, edge = (total / max(count, 1) for total, count in zip(sums, counts, strict=True))
        return node, edge

    def result(self) -> dict[str, Any]:
        """Test loss by channel; writes the encoder."""
        node, edge = self.channel_errors(self.test_set)
        if self.folder is not None:
            self.encoder.save_pretrained(self.folder.path / "encoder")
        return {
            "kind": "pretrain-kernels",
            "test_loss": 0.5 * float(node.mean() + edge.mean()),
            "test_loss_by_channel": [round(float(value), 5) for value in torch.cat([node, edge])],
            "num_train": len(self.train_set),
            "num_val": len(self.val_set),
            "num_test": len(self.test_set),
        }

    def _errors(self, batch: Batch) -> tuple[Tensor, Tensor]:
        node, edge = self.encoder(
            batch.x,
            batch.edge_index,
            batch.edge_attr,
            batch.batch,
            num_nodes=batch.num_nodes,
            num_graphs=batch.num_graphs,
        )
        node_variance, edge_variance = self._variances
        return (
            (node - batch[NODE_TARGET]).square() / node_variance,
            (edge - batch[EDGE_TARGET]).square() / edge_variance,
        )


def attach_kernels(dataset: InMemoryDataset, kernels: tuple[str, ...]) -> InMemoryDataset:
    """A copy of the dataset with ``data.kernel`` ``[num_nodes, c]`` and ``data.edge_kernel`` ``[num_edges, c]``."""
    nodes, edges = [], []
    for chunk in iterate_chunks(dataset, CHUNK):
        graph = Incidence(chunk.edge_index, chunk.num_nodes, batch=chunk.batch, num_graphs=chunk.num_graphs)
        node, edge = kernel_entries(graph, kernels)
        nodes.append(node.float())
        edges.append(graph.spread_to_listings(edge).float())
    dataset = with_node_attribute(dataset, NODE_TARGET, torch.cat(nodes))
    return with_edge_attribute(dataset, EDGE_TARGET, torch.cat(edges))
