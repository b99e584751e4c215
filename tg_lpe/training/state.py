"""State of a run between epochs: optimizer moments as named tensors, metrics as lines of JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tg_lpe.hub.files import replacing


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
    """All whole lines of a metrics file; a last line cut off by a crash is passed over."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows
