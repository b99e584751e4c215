"""The training loop: epochs, schedule, checkpoints, resuming, metrics."""

from __future__ import annotations

import logging
import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch_geometric.data import Batch, InMemoryDataset
from tqdm import tqdm

from tg_lpe.app.training import processes
from tg_lpe.app.training.build import hash_seed
from tg_lpe.app.training.config import LoopConfig
from tg_lpe.app.training.run_folder import RunFolder
from tg_lpe.app.training.state import MetricsLog, copy_state, pack_optimizer, unpack_optimizer, with_prefix
from tg_lpe.checkpoints.files import load_tensors, read_object
from tg_lpe.data.seeding import seeded
from tg_lpe.encoders.base import Encoder
from tg_lpe.nn.parallel import process_number

DROPOUT = 3
"""Mixed into the seed of the global generator, from which modules such as dropout draw."""

HALVINGS = 2.5
"""Times that "decay" halves the learning rate over a training: the paper halves it every 800 of 2,000 epochs."""

_LOGGER = logging.getLogger("tg_lpe.app.training")


class TrainingLoop(ABC):
    """Train a model and write metrics, checkpoints and the result into a run folder.

    Each epoch draws from a generator seeded by ``(seed, epoch)`` and ends with a checkpoint, so an interrupted run can
    be resumed and gives the same result as one without interruption.

    Several processes (:mod:`tg_lpe.app.training.processes`) share every batch, and only the first one writes.

    A subclass sets ``encoder``, ``train_set`` and ``val_set`` and defines the loss.

    Args:
        config: the settings.
        model: the module to train.
        optimizer: optimizer of its parameters. Each group has a ``peak_lr``, and its gradients are clipped together.
        folder: where to write; ``None`` writes nothing, and cannot resume.
        progress: whether to show a progress bar, or to log a line per epoch if stderr is no terminal.
    """

    metric: str
    """Name of the validation figure in the metrics."""
    larger_is_better: bool = False
    """Whether larger values of the figure are better."""
    encoder: Encoder | None
    config: LoopConfig
    train_set: InMemoryDataset
    val_set: InMemoryDataset

    def __init__(
        self,
        config: LoopConfig,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        folder: RunFolder | None,
        progress: bool,
    ) -> None:
        self.config, self.model, self.optimizer = config, model, optimizer
        is_first = process_number() == 0
        self.folder, self.progress = folder if is_first else None, progress and is_first
        self.device = next(model.parameters()).device
        self.epoch, self.best_epoch = 0, 0
        self.best_value = -math.inf if self.larger_is_better else math.inf
        processes.copy_from_first(model)
        self.best_state = copy_state(model)
        self.plateau: ReduceLROnPlateau | None = None
        if config.schedule == "plateau":
            for group in optimizer.param_groups:
                group["lr"] = group["peak_lr"]
            self.plateau = ReduceLROnPlateau(optimizer, factor=0.5, patience=config.patience, eps=0.0)

    @abstractmethod
    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Return the loss of a training batch; all random numbers come from ``generator``.

        Several processes minimise the mean of their losses. Collect rows with :func:`~tg_lpe.nn.parallel.gather` to
        compute the loss of the whole batch instead.
        """

    @abstractmethod
    def validate(self) -> dict[str, Any]:
        """Return the figures of the validation set, :attr:`metric` too; the "plateau" schedule needs ``val_loss``."""

    @abstractmethod
    def result(self) -> dict[str, Any]:
        """Return the final figures; called once, with the best weights loaded."""

    def fit(self, resume: bool = False) -> dict[str, Any]:
        """Train to the last epoch, from the folder's checkpoint if ``resume`` is set, and return the result."""
        processes.check(self.model, self.config.batch_size, len(self.train_set))
        if resume:
            self._restore()
        log = None if self.folder is None else MetricsLog(self.folder.metrics, keep=self.epoch)
        config, group = self.config, self.optimizer.param_groups[0]
        while self.epoch < config.epochs:
            if self.plateau is not None and config.lr * (group["lr"] / group["peak_lr"]) < config.min_lr:
                break
            rank = [process_number()] if process_number() else []  # each process has its own dropout masks
            with seeded(hash_seed(self.config.seed, self.epoch, DROPOUT, *rank), self.device):
                row = self.train_epoch()
            with self.evaluated_weights():
                row |= self.validate()
                row = processes.from_first(row.copy)  # so that all processes take the same decisions
                value = row[self.metric]
                if value > self.best_value if self.larger_is_better else value < self.best_value:
                    self.best_value, self.best_epoch = value, self.epoch
                    self.best_state = copy_state(self.model)
            if self.progress and not sys.stderr.isatty():
                figures = f"train_loss {row['train_loss']:.4f}, {self.metric} {row[self.metric]:.4g}"
                _LOGGER.info("epoch %d/%d: %s", self.epoch, self.config.epochs, figures)
            if not math.isfinite(row[self.metric]) or not math.isfinite(row["train_loss"]):
                figures = f"loss {row['train_loss']}, {self.metric} {row[self.metric]}, lr {row['lr']:.3g}"
                raise ValueError(f"training diverged in epoch {self.epoch}: {figures}; try a smaller lr or clip")
            if self.plateau is not None:
                self.plateau.step(row["val_loss"])
            if log is not None:
                log.append(row)
                self._checkpoint()
        self.model.load_state_dict(self.best_state)
        result = {
            **self.result(),
            self.metric: self.best_value,
            "best_epoch": self.best_epoch,
            "epochs": self.epoch,
            "num_parameters": count_parameters(self.model),
        }
        if self.folder is not None:
            self.folder.save_result(result, self.model)
        return result

    @contextmanager
    def evaluated_weights(self) -> Iterator[None]:
        """Give the model the weights to evaluate and save, here its current ones; undo that afterwards."""
        yield

    def train_epoch(self) -> dict[str, Any]:
        """Pass over the training set once and return a row of metrics without the validation figure."""
        config = self.config
        self.model.train()
        generator = torch.Generator().manual_seed(hash_seed(config.seed, self.epoch))
        parts = processes.Parts(self.train_set, config.batch_size, generator)
        description = f"epoch {self.epoch + 1}/{config.epochs}"
        bar = tqdm(parts, desc=description, disable=None if self.progress else True, leave=False)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        groups: list[list[nn.Parameter]] = [group["params"] for group in self.optimizer.param_groups]
        start, seen = time.perf_counter(), 0
        for step, (batch, divided) in enumerate(bar):
            if self.plateau is None:
                factor = self._schedule(self.epoch * len(parts) + step, config.epochs * len(parts))
                for group in self.optimizer.param_groups:
                    group["lr"] = group["peak_lr"] * factor
            with divided:
                loss = self.loss(batch.to(self.device), generator)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            processes.average_gradients(self.model.parameters())
            # Clip each group by itself: large gradients of an encoder's few scalars would shrink all other steps.
            for parameters in [[p for group in groups for p in group]] if config.clip_jointly else groups:
                nn.utils.clip_grad_norm_(parameters, config.clip)
            self.optimizer.step()
            total += loss.detach() * parts.sizes[step]
            seen += parts.sizes[step]
            if not bar.disable and step % 10 == 0:
                speed = seen / (time.perf_counter() - start)
                left = ((config.epochs - self.epoch) * len(self.train_set) - seen) / speed / 60
                bar.set_postfix_str(f"loss {loss.item():.3f}, {speed:.0f} graphs/s, {left:.1f} min left")
        seconds = time.perf_counter() - start
        self.epoch += 1
        return {
            "epoch": self.epoch,
            "train_loss": float(processes.average(total)) / max(seen, 1),
            "lr": self.optimizer.param_groups[0]["lr"],
            "seconds": round(seconds, 3),
            "graphs_per_second": round(seen / seconds, 1),
        }

    def _schedule(self, step: int, total: int) -> float:
        """Return the factor on the peak learning rate at a step out of ``total``."""
        config = self.config
        if config.schedule == "constant":
            return 1.0
        if config.schedule == "decay":
            return float(0.5 ** (HALVINGS * step / total))
        rise = max(config.warmup * total, 1.0)
        if step < rise:
            return 0.04 + 0.96 * (1 - math.cos(math.pi * step / rise)) / 2
        return max((1 + math.cos(math.pi * (step - rise) / max(total - rise, 1.0))) / 2, 1e-5)

    def _checkpoint(self) -> None:
        if self.folder is None:
            return
        tensors = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        tensors |= {f"best.{k}": v for k, v in self.best_state.items()}
        tensors |= pack_optimizer(self.optimizer)
        metadata: dict[str, Any] = {"epoch": self.epoch, "best_epoch": self.best_epoch, "best_value": self.best_value}
        if self.plateau is not None:
            metadata["plateau"] = self.plateau.state_dict()
        self.folder.save_state(tensors, metadata)

    def _restore(self) -> None:
        state = processes.from_first(lambda: self.folder.load_state() if self.folder is not None else None)
        if state is None:
            return
        tensors, metadata = state
        self.model.load_state_dict(with_prefix(tensors, "model."))
        self.best_state = {k: v.to(self.device) for k, v in with_prefix(tensors, "best.").items()}
        unpack_optimizer(self.optimizer, tensors)
        self.epoch, self.best_epoch = metadata["epoch"], metadata["best_epoch"]
        self.best_value = metadata["best_value"]
        if self.plateau is not None:
            self.plateau.load_state_dict(metadata["plateau"])
            for group, lr in zip(self.optimizer.param_groups, self.plateau.get_last_lr(), strict=True):
                group["lr"] = lr


def run_in_folder(
    make: Callable[[], TrainingLoop],
    folder: RunFolder,
    command: str,
    settings: Mapping[str, Any],
    resume: bool,
    model: nn.Module | None = None,
) -> dict[str, Any]:
    """Start or resume a training in a folder and return its result; read the result if the run is complete.

    Args:
        make: makes the loop; called after the folder has been checked.
        folder: where to write.
        command, settings, resume: as for :meth:`RunFolder.start`.
        model: receives the weights of a complete run, in evaluation mode.
    """

    def start() -> tuple[bool, dict[str, Any] | None, dict[str, Tensor]]:
        has_checkpoint = folder.start(command, settings, resume)
        if not folder.result.exists():
            return has_checkpoint, None, {}
        weights = {} if model is None else load_tensors(folder.model)[0]
        return has_checkpoint, read_object(folder.result), weights

    try:
        has_checkpoint, result, weights = processes.from_first(start)
        if result is None:
            return make().fit(resume=has_checkpoint)
        if model is not None:
            model.load_state_dict(weights)
            model.eval()
        return result
    finally:
        folder.release()


def count_parameters(module: nn.Module) -> int:
    """Count the scalars of all parameters, including frozen ones."""
    return sum(p.numel() for p in module.parameters())
