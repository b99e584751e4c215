"""State of a run: weights and optimizer moments as named tensors, metrics as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from tg_lpe.checkpoints.files import naming, parse_json, replacing

V = TypeVar("V")


def pack_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return an optimizer's moments as named tensors, without learning rates, which the schedule sets."""
    return {
        f"optimizer.{index}.{name}": torch.as_tensor(value)
        for index, moments in optimizer.state_dict()["state"].items()
        for name, value in moments.items()
    }


def unpack_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Load the tensors of :func:`pack_optimizer` into an optimizer of the same parameters."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in with_prefix(tensors, "optimizer.").items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def copy_state(model: nn.Module) -> dict[str, Tensor]:
    """Copy a module's parameters and persistent buffers."""
    return {name: value.clone() for name, value in model.state_dict().items()}


def with_prefix(values: Mapping[str, V], prefix: str) -> dict[str, V]:
    """Return the values whose names start with ``prefix``, without the prefix."""
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


class MetricsLog:
    """Append metrics to a file, one JSON object per line and epoch.

    Args:
        path: the file.
        keep: number of lines of an interrupted run to keep; the lines after its checkpoint are removed.
    """

    def __init__(self, path: Path, keep: int = 0) -> None:
        self.path = path
        self.rows = read_metrics(path)[:keep] if keep else []
        with replacing(path) as temporary:
            temporary.write_text("".join(json.dumps(row) + "\n" for row in self.rows), encoding="utf-8")

    def append(self, row: dict[str, Any]) -> None:
        """Append a line to the file."""
        self.rows.append(row)
        with naming(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a metrics file up to a damaged one, such as a last line cut off by a crash."""
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            rows.append(parse_json(line))
        except ValueError:
            break
    return rows
