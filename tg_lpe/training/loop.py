"""The training loop, in one place: epochs, schedule, checkpoints, resumption, metrics."""

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

from tg_lpe.checkpoints.files import load_tensors, read_object
from tg_lpe.nn.parallel import process_number
from tg_lpe.training import processes
from tg_lpe.training.build import hash_seed, seeded
from tg_lpe.training.config import LoopConfig
from tg_lpe.training.loggers import Write
from tg_lpe.training.run_folder import RunFolder
from tg_lpe.training.state import MetricsLog, copy_state, pack_optimizer, unpack_optimizer, with_prefix

DROPOUT = 3
"""Separates the seed of what modules draw from the global generator, such as dropout, from all others."""

HALVINGS = 2.5
"""Of the learning rate under "decay": the paper has one each 800 of 2,000 epochs, or 400 of 1,000."""

_LOGGER = logging.getLogger("tg_lpe.training")


class TrainingLoop(ABC):
    """Trains one model on one dataset and writes settings, metrics, checkpoints and the result into a run folder.

    Each epoch draws from a generator seeded by ``(seed, epoch)`` and ends in a checkpoint, so a run that was stopped at
    any moment can be resumed and gives the result of an undisturbed one.

    In several processes (:mod:`tg_lpe.training.processes`) each has a part of every batch, and the first alone writes.

    A subclass sets ``train_set`` and ``val_set`` and defines the loss.

    Args:
        config: the settings.
        model: what to train.
        optimizer: over its parameters; each group has a ``peak_lr``, and its gradients are clipped together.
        folder: where to write; ``None`` keeps nothing (and cannot resume).
        progress: whether to show a progress bar; where stderr is no terminal, log a line per epoch instead.
    """

    metric: str
    """Name of the validation figure in the metrics."""
    larger_is_better: bool = False
    """Whether larger values of it are better."""
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
        self.loop_config, self.model, self.optimizer = config, model, optimizer
        is_first = process_number() == 0
        self.folder, self.progress = folder if is_first else None, progress and is_first
        self.device = next(model.parameters()).device
        self.epoch, self.best_epoch = 0, 0
        self.best_value = -math.inf if self.larger_is_better else math.inf
        processes.copy_from_first(model)
        self.best_state = copy_state(model)
        self.write: Write = lambda row: None
        self.plateau: ReduceLROnPlateau | None = None
        if config.schedule == "plateau":
            for group in optimizer.param_groups:
                group["lr"] = group["peak_lr"]
            self.plateau = ReduceLROnPlateau(optimizer, factor=0.5, patience=config.patience, eps=0.0)

    @abstractmethod
    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Return the loss of a training batch; ``generator`` is the source of all randomness in it.

        Among several processes it is that of the whole batch if it is computed from rows that
        :func:`~tg_lpe.nn.parallel.gather` has collected; of another loss, the mean over the processes is minimised.
        """

    @abstractmethod
    def evaluate(self, dataset: InMemoryDataset) -> float:
        """Return the validation figure of the current weights on a data set."""

    def validate(self) -> dict[str, Any]:
        """Return the validation figure under its name, for "plateau" with ``val_loss`` beside it."""
        return {self.metric: self.evaluate(self.val_set)}

    @abstractmethod
    def result(self) -> dict[str, Any]:
        """Return the final figures; called once, with the best weights in place."""

    def fit(self, resume: bool = False) -> dict[str, Any]:
        """Train to the last epoch, from the folder's checkpoint if ``resume``, and return what ``result.json`` says."""
        processes.check(self.model, self.loop_config.batch_size, len(self.train_set))
        if resume:
            self._restore()
        if self.folder is not None and self.epoch == 0:
            self.folder.save_initial(getattr(self, "encoder", None))
        log = MetricsLog(self.folder.metrics, keep=self.epoch) if self.folder is not None else None
        for row in [] if log is None else log.rows:
            self.write(row)
        while self.epoch < self.loop_config.epochs and not self._at_smallest_rate():
            number = [process_number()] if process_number() else []  # each process drops other values
            with seeded(hash_seed(self.loop_config.seed, self.epoch, DROPOUT, *number), self.device):
                row = self.train_epoch()
            with self.evaluated_weights():
                row |= self.validate()
                row = processes.from_first(row.copy)  # all decide by the same bits
                value = row[self.metric]
                if value > self.best_value if self.larger_is_better else value < self.best_value:
                    self.best_value, self.best_epoch = value, self.epoch
                    self.best_state = copy_state(self.model)
            if self.progress and not sys.stderr.isatty():
                figures = f"train_loss {row['train_loss']:.4f}, {self.metric} {row[self.metric]:.4f}"
                _LOGGER.info("epoch %d/%d: %s", self.epoch, self.loop_config.epochs, figures)
            if not math.isfinite(row[self.metric]) or not math.isfinite(row["train_loss"]):
                raise ValueError(
                    f"training diverged in epoch {self.epoch}: loss {row['train_loss']}, {self.metric} "
                    f"{row[self.metric]}, at learning rate {row['lr']:.3g}; a lower one, or a smaller clip, may help"
                )
            if self.plateau is not None:
                self.plateau.step(row["val_loss"])
            if log is not None:
                log.append(row)
                self._checkpoint()
            self.write(row)
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
        # Without the best value of the metric, which the rows have at its own epoch.
        self.write({**result, self.metric: None, "epoch": self.epoch})
        return result

    @contextmanager
    def evaluated_weights(self) -> Iterator[None]:
        """Give the model the weights to evaluate and keep, here those it has, and afterwards those to train on."""
        yield

    def train_epoch(self) -> dict[str, Any]:
        """Pass over the training set once and return a row of metrics without the validation figure."""
        config = self.loop_config
        self.model.train()
        generator = torch.Generator().manual_seed(hash_seed(config.seed, self.epoch))
        parts = processes.Parts(self.train_set, config.batch_size, generator)
        name, hidden = f"epoch {self.epoch + 1}/{config.epochs}", None if self.progress else True
        bar = tqdm(parts, desc=name, disable=hidden, leave=False)
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
            # Group by group: large gradients of an encoder's few scalars would shrink the steps of all others.
            for parameters in [[p for group in groups for p in group]] if config.clip_jointly else groups:
                nn.utils.clip_grad_norm_(parameters, config.clip)
            self.optimizer.step()
            total += loss.detach() * parts.sizes[step]
            seen += parts.sizes[step]
            if not bar.disable and step % 10 == 0:
                speed = seen / (time.perf_counter() - start)
                left = ((config.epochs - self.epoch) * len(self.train_set) - seen) / speed / 60
                bar.set_postfix_str(f"loss {loss.item():.3f}, {speed:.0f} graphs/s, all done in {left:.1f} min")
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
        """Return the factor on the peak learning rate at a step of ``total``."""
        config = self.loop_config
        if config.schedule == "constant":
            return 1.0
        if config.schedule == "decay":
            return float(0.5 ** (HALVINGS * step / total))
        rise = max(config.warmup * total, 1.0)
        if step < rise:
            return 0.04 + 0.96 * (1 - math.cos(math.pi * step / rise)) / 2
        return max((1 + math.cos(math.pi * (step - rise) / max(total - rise, 1.0))) / 2, 1e-5)

    def _at_smallest_rate(self) -> bool:
        """Tell whether "plateau" ends the training."""
        config, group = self.loop_config, self.optimizer.param_groups[0]
        return self.plateau is not None and config.lr * (group["lr"] / group["peak_lr"]) < config.min_lr

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
        tensors: dict[str, Tensor] = {}

        def read() -> dict[str, Any] | None:
            state = self.folder.load_state() if self.folder is not None else None
            if state is None:
                return None
            tensors.update(state[0])
            return state[1]

        metadata = processes.from_first(read)
        if metadata is None:
            return
        tensors = processes.tensors_from_first(tensors)
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
    """Run a training into its folder, or go on with it, and return its result; that of a complete run is read.

    Args:
        make: makes the loop, once the folder is known to be free.
        folder: where to write.
        command, settings, resume: as :meth:`RunFolder.start`.
        model: gets the weights of a run that is complete already, in evaluation mode, as after a training.
    """

    def start() -> tuple[bool, dict[str, Any] | None]:
        going_on = folder.start(command, settings, resume)
        return going_on, read_object(folder.result) if folder.result.exists() else None

    try:
        going_on, result = processes.from_first(start)
        if result is None:
            return make().fit(resume=going_on)
        if model is not None:
            weights = load_tensors(folder.model)[0] if process_number() == 0 else {}
            model.load_state_dict(processes.tensors_from_first(weights))
            model.eval()
        return result
    finally:
        folder.release()


def count_parameters(module: nn.Module) -> int:
    """Count the scalars of all parameters, frozen ones too."""
    return sum(p.numel() for p in module.parameters())
