"""Pretrain an encoder on Laplacian eigenvectors, with a sign-invariant loss, or on kernels of the Laplacian."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, InMemoryDataset

from tg_lpe.app.training.config import KernelPretrainConfig, LoopConfig, PretrainConfig
from tg_lpe.app.training.kernels import kernel_channels, kernel_entries
from tg_lpe.app.training.loop import TrainingLoop
from tg_lpe.app.training.processes import Parts
from tg_lpe.app.training.run_folder import RunFolder
from tg_lpe.arguments import checked_device
from tg_lpe.checkpoints.files import subfolder
from tg_lpe.data import GraphSplits
from tg_lpe.data.storage import with_attribute
from tg_lpe.encoders.base import Encoder
from tg_lpe.encoders.precompute import call_on, incidences, store_precomputed
from tg_lpe.graph.eigenvectors import laplacian_eigenvectors
from tg_lpe.graph.graph import Graph
from tg_lpe.nn.parallel import gather
from tg_lpe.ops.segment import RowGroups

TARGET, NODE_TARGET, EDGE_TARGET = "eigenvectors", "kernel", "edge_kernel"


class Pretraining(TrainingLoop):
    """Fit an encoder to targets computed from each graph. A subclass computes the targets and defines the loss.

    Args:
        config: the settings.
        encoder: an :class:`~tg_lpe.Encoder` with parameters and as many channels as the targets.
        splits: the graphs; their labels are not used.
        folder: where to write; the encoder is saved in ``encoder/`` inside. ``None`` writes nothing.
        device: where to train.
        progress: whether to show a progress bar.

    Raises:
        ValueError: if the encoder has no parameters, or another number of channels than the targets.
    """

    encoder: Encoder
    kind: str
    """Kind of the run, in its result."""
    has_edge_targets = False
    """Whether there are targets for the edge encoding."""
    chunk = 1000
    """Graphs whose targets are computed together."""
    metric = "val_loss"

    def __init__(
        self,
        config: LoopConfig,
        encoder: Encoder,
        splits: GraphSplits,
        folder: RunFolder | None = None,
        device: str | torch.device = "cpu",
        progress: bool = True,
    ) -> None:
        self.config = config
        name = type(encoder).__name__
        if not any(parameter.requires_grad for parameter in encoder.parameters()):
            raise ValueError(f"{name} has no parameters to learn, so it cannot be pretrained")
        if encoder.out_channels != self.width:
            raise ValueError(f"{name} gives {encoder.out_channels} channels, the targets have {self.width}")
        if self.has_edge_targets and encoder.edge_out_channels not in (0, self.width):
            width = encoder.edge_out_channels
            raise ValueError(f"{name} gives {width} channels of edges, the targets have {self.width}")
        self.encoder = encoder.to(checked_device("device", device))
        groups = [{"params": list(encoder.parameters()), "peak_lr": config.lr}]
        super().__init__(config, encoder, torch.optim.AdamW(groups, weight_decay=0.0), folder, progress)
        self.train_set, self.val_set, self.test_set = (
            store_precomputed(encoder, self.attach_targets(part)) for part in (splits.train, splits.val, splits.test)
        )

    @property
    @abstractmethod
    def width(self) -> int:
        """Channels of the targets."""

    @abstractmethod
    def targets(self, graph: Graph) -> dict[str, Tensor]:
        """Compute the targets of a batch, a row for each node or, if the name begins with ``edge``, directed edge."""

    def attach_targets(self, dataset: InMemoryDataset) -> InMemoryDataset:
        """Copy the dataset with the targets in float32 as attributes; edge weights are conductances."""
        parts = [self.targets(graph) for graph in incidences(dataset, self.chunk)]
        for name in parts[0]:
            values = torch.cat([part[name].float() for part in parts])
            dataset = with_attribute(dataset, name, "edge" if name.startswith("edge") else "node", values)
        return dataset

    @abstractmethod
    def total(self, losses: list[Tensor]) -> float:
        """Return the loss of a dataset from its :meth:`mean_losses`."""

    @abstractmethod
    def channel_figures(self, losses: list[Tensor]) -> dict[str, Any]:
        """Return the entries of the result that show the :meth:`mean_losses` of the test set by channel."""

    def validate(self) -> dict[str, Any]:
        """Return the :meth:`total` loss of the validation set."""
        return {self.metric: self.total(self.mean_losses(self.val_set))}

    @abstractmethod
    def losses(self, batch: Batch) -> list[tuple[Tensor, Tensor]]:
        """Return the loss of each channel summed over a batch, and the count to divide by, for each kind of target."""

    def mean_losses(self, dataset: InMemoryDataset) -> list[Tensor]:
        """Return the mean loss of each channel over a dataset, float64 ``[channels]``, for each kind of target.

        Random probes come from the encoder's own seed, as at inference.
        """
        self.model.eval()
        totals: list[tuple[Tensor, Tensor]] = []
        with torch.no_grad():
            for batch, divided in Parts(dataset, 1024):
                with divided:
                    sums = [(loss.cpu(), count.cpu()) for loss, count in self.losses(batch.to(self.device))]
                pairs = zip(totals, sums, strict=True)
                totals = [(a + b, m + n) for (a, m), (b, n) in pairs] if totals else sums
        return [total / count.clamp(min=1) for total, count in totals]

    def result(self) -> dict[str, Any]:
        """Save the encoder; return test losses and sizes of the data."""
        losses = self.mean_losses(self.test_set)
        if self.folder is not None:
            self.encoder.save_pretrained(subfolder(self.folder.path, "encoder"))
        sizes = {"num_train": len(self.train_set), "num_val": len(self.val_set), "num_test": len(self.test_set)}
        return {"kind": self.kind, "test_loss": self.total(losses), **self.channel_figures(losses), **sizes}


class EigenvectorPretraining(Pretraining):
    """Fit the columns of the encoding to the first non-trivial eigenvectors of the normalised Laplacian.

    The arguments are those of :class:`~tg_lpe.app.training.pretrain.Pretraining`.
    """

    config: PretrainConfig
    kind = "pretrain"
    chunk = 2000

    @property
    def width(self) -> int:
        """One column for each eigenvector."""
        return self.config.num_eigenvectors

    def targets(self, graph: Graph) -> dict[str, Tensor]:
        """Return the eigenvectors, zero where a graph has fewer."""
        return {TARGET: laplacian_eigenvectors(graph, self.width)[0]}

    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Return the sign-invariant loss summed over eigenvectors, with new random probes."""
        return self._column_losses(batch, generator)[0].sum()

    def losses(self, batch: Batch) -> list[tuple[Tensor, Tensor]]:
        """Return the loss of each eigenvector over the graphs that have it."""
        losses, graphs = (part.double() for part in self._column_losses(batch))
        return [(losses * graphs, graphs)]

    def total(self, losses: list[Tensor]) -> float:
        """Return the loss summed over eigenvectors; each contributes at most 2."""
        return float(losses[0].sum())

    def channel_figures(self, losses: list[Tensor]) -> dict[str, Any]:
        """Return the largest possible loss and the loss of each eigenvector."""
        by_eigenvector = [round(float(value), 4) for value in losses[0]]
        return {"max_loss": 2.0 * self.width, "test_loss_by_eigenvector": by_eigenvector}

    def _column_losses(self, batch: Batch, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return the mean loss of each eigenvector, and the number of graphs with it; both ``[num_eigenvectors]``."""
        out, target = call_on(self.encoder, batch, generator=generator).node, batch[TARGET]
        graphs = RowGroups(batch.batch, batch.num_graphs, is_sorted=True)
        loss = gather(sign_invariant_loss(out, target.to(out.dtype), graphs))
        exists = gather(graphs.sum(target.square()) > 0.5)
        count = exists.sum(0)
        return (loss * exists).sum(0) / count.clamp(min=1), count


class KernelPretraining(Pretraining):
    """Fit node encodings to the diagonals of kernels, and edge encodings to the kernels' entries at the edges.

    The loss is the squared error divided by the variance of the target, averaged over channels; predicting the mean has
    loss 1. An encoder without edge channels is fitted to the diagonals only.

    The arguments are those of :class:`~tg_lpe.app.training.pretrain.Pretraining`. Node and edge encodings need as many
    channels as the kernels (:func:`~tg_lpe.app.training.kernels.kernel_channels`).
    """

    config: KernelPretrainConfig
    kind = "pretrain-kernels"
    has_edge_targets = True

    @property
    def width(self) -> int:
        """Number of channels of the kernels."""
        return kernel_channels(self.config.kernels)

    def targets(self, graph: Graph) -> dict[str, Tensor]:
        """Return the diagonals of the kernels and their entries at the edges."""
        nodes, edges = kernel_entries(graph, self.config.kernels)
        return {NODE_TARGET: nodes, EDGE_TARGET: graph.spread_to_directed(edges)}

    @cached_property
    def _variances(self) -> tuple[Tensor, ...]:
        """Variances of the training targets at nodes and at edges, ``[channels]`` each."""
        data = self.train_set._data
        return tuple(
            data[name].double().var(dim=0, correction=0).clamp(min=1e-12).float().to(self.device)
            for name in (NODE_TARGET, EDGE_TARGET)
        )

    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Return the relative squared error, averaged over channels; nodes and edges have equal weight."""
        parts = self._errors(batch, generator)
        return sum((part.sum() / max(part.numel(), 1) for part in parts), start=parts[0].new_zeros(())) / len(parts)

    def losses(self, batch: Batch) -> list[tuple[Tensor, Tensor]]:
        """Return the summed errors of each channel and their count, for nodes and, if encoded, for edges."""
        parts = self._errors(batch)
        return [(part.double().sum(0), torch.tensor(part.size(0))) for part in parts]

    def total(self, losses: list[Tensor]) -> float:
        """Return the loss averaged over channels; nodes and edges have equal weight."""
        return sum(float(part.mean()) for part in losses) / len(losses)

    def channel_figures(self, losses: list[Tensor]) -> dict[str, Any]:
        """Return the loss of each channel."""
        return {"test_loss_by_channel": [round(float(value), 5) for value in torch.cat(losses)]}

    def _errors(self, batch: Batch, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        """Return the relative squared errors ``[num_rows, channels]`` of nodes and, if encoded, of edges."""
        node, edge, _ = call_on(self.encoder, batch, generator=generator)
        node_variance, edge_variance = self._variances
        of_nodes = gather((node - batch[NODE_TARGET]).square() / node_variance)
        return (of_nodes,) if edge is None else (of_nodes, gather((edge - batch[EDGE_TARGET]).square() / edge_variance))


def sign_invariant_loss(out: Tensor, target: Tensor, graphs: RowGroups) -> Tensor:
    """Compute the squared distance of normalised ``out`` to ``target`` or ``-target``, whichever is nearer.

    For unit vectors it is ``min(|phi - v|^2, |phi + v|^2) = 2 - 2 |phi . v|``: 0 if parallel, 2 if orthogonal. This is
    the loss of one eigenvector in section 4.1 of `Graph Transformers Dream of Electric Flow
    <https://arxiv.org/abs/2410.16699>`_.

    Args:
        out: ``[num_nodes, k]``, of any length.
        target: ``[num_nodes, k]``, of unit length within each graph.
        graphs: the graph of each node.

    Returns:
        ``[num_graphs, k]``.
    """
    length = graphs.sum(out.square()).clamp(min=1e-24).sqrt()
    return 2 - 2 * (graphs.sum(out * target) / length).abs()
