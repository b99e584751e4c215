"""Pretraining of an encoder on Laplacian eigenvectors, whatever their signs, and on kernels of the Laplacian."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch_geometric.data import Batch, InMemoryDataset

from tg_lpe.data import GraphSplits
from tg_lpe.data.storage import with_node_attribute
from tg_lpe.encoders.base import Encoder, Encoding
from tg_lpe.encoders.precompute import call_on, incidences, store_precomputed
from tg_lpe.graph.eigenvectors import laplacian_eigenvectors
from tg_lpe.nn.parallel import gather
from tg_lpe.ops.segment import RowGroups
from tg_lpe.training.config import KernelPretrainConfig, LoopConfig, PretrainConfig
from tg_lpe.training.kernels import EDGE_TARGET, NODE_TARGET, attach_kernels, kernel_channels
from tg_lpe.training.loop import TrainingLoop
from tg_lpe.training.processes import Parts
from tg_lpe.training.run_folder import RunFolder

TARGET = "eigenvectors"
CHUNK = 2000

C = TypeVar("C", bound=LoopConfig)


class Pretraining(TrainingLoop, Generic[C]):
    """Fits an encoder to targets that are computed from each graph. A subclass computes them and defines the loss.

    Args:
        config: the settings.
        encoder: any :class:`~tg_lpe.Encoder` with parameters, as wide as the targets.
        splits: the graphs; their labels are not used.
        folder: where to write; the encoder goes to ``encoder/`` in it. ``None`` keeps nothing.
        device: where to train.
        progress: whether to show a progress bar.

    Raises:
        ValueError: if the encoder has another width than the targets, or no parameters.
    """

    kind: str
    """Of the run, in its result."""
    metric = "val_loss"

    def __init__(
        self,
        config: C,
        encoder: Encoder,
        splits: GraphSplits,
        folder: RunFolder | None = None,
        device: str | torch.device = "cpu",
        progress: bool = True,
    ) -> None:
        self.config = config
        self.check(encoder)
        self.encoder = encoder.to(device)
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
    def attach_targets(self, dataset: InMemoryDataset) -> InMemoryDataset:
        """A copy of the dataset with the targets."""

    @abstractmethod
    def test_figures(self) -> dict[str, Any]:
        """Losses on the test set, by name."""

    def check(self, encoder: Encoder) -> None:
        """Refuse an encoder that cannot be fitted to the targets.

        Raises:
            ValueError: if it has another width or no parameters.
        """
        name = type(encoder).__name__
        if not any(parameter.requires_grad for parameter in encoder.parameters()):
            raise ValueError(f"{name} has no parameters to learn, so it cannot be pretrained")
        if encoder.out_channels != self.width:
            raise ValueError(f"{name} gives {encoder.out_channels} channels, the targets have {self.width}")

    def encode(self, batch: Batch, generator: torch.Generator | None = None) -> Encoding:
        """The encoding of a batch from a loader."""
        encoding: Encoding = call_on(self.encoder, batch, generator=generator)
        return encoding

    def result(self) -> dict[str, Any]:
        """Test losses and sizes of the data; writes the encoder."""
        figures = self.test_figures()
        if self.folder is not None:
            self.encoder.save_pretrained(self.folder.path / "encoder")
        sizes = {"num_train": len(self.train_set), "num_val": len(self.val_set), "num_test": len(self.test_set)}
        return {"kind": self.kind, **figures, **sizes}


class EigenvectorPretraining(Pretraining[PretrainConfig]):
    """Fits the encoding's columns to the first non-trivial eigenvectors of the normalised Laplacian.

    The arguments are those of :class:`Pretraining`.
    """

    kind = "pretrain"

    @property
    def width(self) -> int:
        """One column for each eigenvector."""
        return self.config.num_eigenvectors

    def attach_targets(self, dataset: InMemoryDataset) -> InMemoryDataset:
        """Attach eigenvectors, see :func:`attach_eigenvectors`."""
        return attach_eigenvectors(dataset, self.config.num_eigenvectors)

    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Sum over eigenvectors of the sign-invariant loss, with random probes drawn anew."""
        return self._column_losses(batch, generator)[0].sum()

    def evaluate(self, dataset: InMemoryDataset) -> float:
        """Sum over eigenvectors of the sign-invariant loss."""
        return float(self.column_losses(dataset).sum())

    def column_losses(self, dataset: InMemoryDataset) -> Tensor:
        """Mean sign-invariant loss of each eigenvector over a data set, ``[num_eigenvectors]``, each at most 2.

        Random probes are drawn from the encoder's own seed, as when the encoder is used.
        """
        self.model.eval()
        total = torch.zeros(self.config.num_eigenvectors, dtype=torch.float64)
        count = torch.zeros_like(total)
        with torch.no_grad():
            for batch, divided in Parts(dataset, 1024):
                with divided:
                    losses, graphs = self._column_losses(batch.to(self.device))
                num_graphs = graphs.double().cpu()
                total += losses.double().cpu() * num_graphs
                count += num_graphs
        return total / count.clamp(min=1)

    def test_figures(self) -> dict[str, Any]:
        """The test loss, the largest it can be, and the loss of each eigenvector."""
        columns = self.column_losses(self.test_set)
        return {
            "test_loss": float(columns.sum()),
            "max_loss": 2.0 * self.config.num_eigenvectors,
            "test_loss_by_eigenvector": [round(float(value), 4) for value in columns],
        }

    def _column_losses(self, batch: Batch, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Mean loss of each eigenvector, and the number of graphs that have it, ``[num_eigenvectors]`` each."""
        out = self.encode(batch, generator).node
        graphs = RowGroups(batch.batch, batch.num_graphs)
        loss = gather(sign_invariant_loss(out, batch[TARGET].to(out.dtype), graphs))
        exists = gather(_exists(batch))
        count = exists.sum(0)
        return (loss * exists).sum(0) / count.clamp(min=1), count


class KernelPretraining(Pretraining[KernelPretrainConfig]):
    """Fits node encodings to the kernels' diagonals and edge encodings to their entries at the edges.

    The loss is the mean over channels of the squared error over the target's variance: 1 is what a constant achieves.

    An encoder without edge channels is fitted to the diagonals alone.

    The arguments are those of :class:`Pretraining`; encodings are as wide as the kernels have channels
    (:func:`~tg_lpe.training.kernels.kernel_channels`), those of edges too if there are some.
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
        """Attach kernels, see :func:`attach_kernels`."""
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


def sign_invariant_loss(out: Tensor, target: Tensor, graphs: RowGroups) -> Tensor:
    """Squared distance of a unit vector along ``out`` to the nearer of plus and minus ``target``, per graph and column.

    ``min(|phi - v|^2, |phi + v|^2) = 2 - 2 |phi . v|`` for unit vectors: 0 if parallel, 2 if orthogonal. The loss of
    section 4.1 of the paper, per eigenvector.

    Args:
        out: ``[num_nodes, k]``, any length.
        target: ``[num_nodes, k]``, unit length within each graph.
        graphs: graph of each node.

    Returns:
        ``[num_graphs, k]``.
    """
    length = graphs.sum(out.square()).clamp(min=1e-24).sqrt()
    return 2 - 2 * (graphs.sum(out * target) / length).abs()


def attach_eigenvectors(dataset: InMemoryDataset, k: int) -> InMemoryDataset:
    """A copy of the dataset with ``data.eigenvectors``, float32 ``[num_nodes, k]``, zero where there is none.

    Edge weights of the graphs count as conductances.
    """
    parts = []
    for graph in incidences(dataset, CHUNK):
        parts.append(laplacian_eigenvectors(graph, k)[0])
    return with_node_attribute(dataset, TARGET, torch.cat(parts).float())


def _exists(batch: Batch) -> Tensor:
    """Which eigenvectors each graph has, bool ``[num_graphs, k]``."""
    return RowGroups(batch.batch, batch.num_graphs).sum(batch[TARGET].square()) > 0.5
