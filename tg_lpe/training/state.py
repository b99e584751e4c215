"""State of a run between epochs: weights and optimizer moments as named tensors, metrics as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tg_lpe.checkpoints.files import parse_json, replacing


def pack_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return an optimizer's moments as named tensors; learning rates are left out: the schedule sets them."""
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
    """Copy a module's parameters and persistent buffers."""
    return {name: value.clone() for name, value in model.state_dict().items()}


@contextmanager
def kept_state(model: nn.Module) -> Iterator[None]:
    """Undo, at the end of this context, whatever happened to a module's parameters and buffers."""
    before = copy_state(model)
    try:
        yield
    finally:
        model.load_state_dict(before)


def with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names start so, under the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


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
    """Read all whole lines of a metrics file; a last line cut off by a crash is passed over."""
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
