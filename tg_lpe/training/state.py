"""State of a run between epochs: weights and optimizer moments as named tensors, metrics as lines of JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tg_lpe.checkpoints.files import parse_json, replacing


def pack_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """An optimizer's moments as named tensors; learning rates are not saved: the schedule sets them."""
    return {
        f"optimizer.{index}.{name}": torch.as_tensor(value)
        for index, moments in optimizer.state_dict()["state"].items()
        for name, value in moments.items()
    }


def unpack_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put what :func:`pack_optimizer` made back into an optimizer over the same parameters."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimizer."):
            _, index, name = key.split(".", 2)
            state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def copy_state(model: nn.Module) -> dict[str, Tensor]:
    """A copy of a module's parameters and persistent buffers."""
    return {name: value.clone() for name, value in model.state_dict().items()}


@contextmanager
def kept_state(model: nn.Module) -> Iterator[None]:
    """Whatever happens to a module's parameters and buffers in this context is undone after it."""
    before = copy_state(model)
    try:
        yield
    finally:
        model.load_state_dict(before)


def with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start so, under the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


class AveragedWeights:
    """Exponential moving average of a module's parameters and buffers.

    Step ``t`` leaves the share ``min(decay, (1 + t) / (10 + t))`` of the average: the first weights, far from all later
    ones, are soon forgotten. Buffers of integers are those of the last step.

    Args:
        model: whose weights to begin with.
        decay: of the average, below 1.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.steps, self.state = decay, 0, copy_state(model)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the average towards the module's weights."""
        self.steps += 1
        share = min(self.decay, (1 + self.steps) / (10 + self.steps))
        averages, values = [], []
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                averages.append(self.state[name])
                values.append(value)
            else:
                self.state[name].copy_(value)
        torch._foreach_lerp_(averages, values, 1 - share)

    def pack(self) -> dict[str, Tensor]:
        """Return the state as named tensors."""
        return {f"average.{name}": value for name, value in self.state.items()} | {"averaged": torch.tensor(self.steps)}

    def unpack(self, tensors: dict[str, Tensor]) -> None:
        """Take over what :meth:`pack` made."""
        for name, value in with_prefix(tensors, "average.").items():
            self.state[name].copy_(value)
        self.steps = int(tensors["averaged"])


@dataclass
class Plateau:
    """Halves a factor whenever a loss has not fallen for a while, as torch's ``ReduceLROnPlateau`` with factor 0.5.

    Attributes:
        patience: epochs without progress that are waited for; one more halves the factor.
        factor: on the learning rate.
        best: the lowest loss; only one lower by more than a part in 10,000 counts as progress.
        epochs: since then, or since the last halving.
    """

    patience: int
    factor: float = 1.0
    best: float = math.inf
    epochs: int = 0

    def update(self, loss: float) -> None:
        """Take in the loss of an epoch."""
        self.epochs += 1
        if loss < self.best * (1 - 1e-4):
            self.best, self.epochs = loss, 0
        elif self.epochs > self.patience:
            self.factor, self.epochs = 0.5 * self.factor, 0


class MetricsLog:
    """One JSON object per line and epoch.

    Args:
        path: file to append to.
        keep: number of lines of an earlier, interrupted run to go on from; later ones were never checkpointed.
    """

    def __init__(self, path: Path, keep: int = 0) -> None:
        self.path = path
        self.rows = read_metrics(path)[:keep] if keep else []
        with replacing(path) as temporary:
            temporary.write_text("".join(json.dumps(row) + "\n" for row in self.rows), encoding="utf-8")

    def append(self, row: dict[str, Any]) -> None:
        """Add a line, on disk when this returns."""
        self.rows.append(row)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a metrics file; a last line cut off by a crash is passed over.

    Raises:
        ValueError: if the file is not text.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no metrics file: {error}") from error
    rows = []
    for line in lines:
        try:
            rows.append(parse_json(line))
        except ValueError:
            break
    return rows
