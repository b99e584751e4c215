"""A run as its folder tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tg_lpe.report.values import first_of, number_in, read_object, text_in
from tg_lpe.training.run_folder import RunFolder
from tg_lpe.training.state import read_metrics

# Keys of the settings of a pretraining in config.json, and its kind in result.json.
PRETRAININGS = ("pretrain", "pretrain-kernels")


@dataclass(frozen=True)
class Run:
    """What a run folder says.

    Attributes:
        path: the folder, as it was named.
        kind: ``train`` or ``pretrain``.
        settings: what decided the result.
        data: source, sizes and the list of skipped molecules.
        environment: machine, command and versions; empty if the folder has none.
        metrics: one row per epoch done.
        result: final figures; ``None`` while the run is unfinished.
    """

    path: Path
    kind: str
    settings: Mapping[str, Any]
    data: Mapping[str, Any]
    environment: Mapping[str, Any]
    metrics: tuple[Mapping[str, Any], ...]
    result: Mapping[str, Any] | None

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.path.name or self.path.resolve().name

    @property
    def source(self) -> str:
        """What the data was called."""
        return str(self.data.get("source", "unnamed data"))

    @property
    def finished(self) -> bool:
        """Whether there is a result."""
        return self.result is not None

    @property
    def epochs(self) -> int:
        """Epochs done."""
        return len(self.metrics) or int(number_in(self.result, "epochs") or 0)

    @property
    def validation_key(self) -> str:
        """The column of the metrics that chose the best epoch."""
        return "val_mae" if self.kind == "train" else "val_loss"

    @property
    def test_error(self) -> float | None:
        """Test MAE of a training, test loss of a pretraining."""
        if self.kind == "train":
            return number_in(self.result, "test_mae")
        return first_of(number_in(self.result, "test_loss"), number_in(self.result, "loss"))

    @property
    def validation_error(self) -> float | None:
        """The best epoch's; of an unfinished run, the lowest so far."""
        column = [value for _, value in self.curve(self.validation_key)]
        return first_of(number_in(self.result, self.validation_key), min(column, default=None))

    @property
    def seconds(self) -> float | None:
        """Time spent in training epochs, evaluation not counted."""
        column = [value for _, value in self.curve("seconds")]
        return sum(column) if column else None

    @property
    def precision(self) -> str | None:
        """What was computed with: the result knows what ``auto`` became."""
        return first_of(text_in(self.result, "precision"), text_in(self.settings, "precision"))

    def curve(self, key: str) -> list[tuple[float, float]]:
        """``(epoch, value)`` of a column of the metrics, rows without it left out."""
        pairs = ((number_in(row, "epoch"), number_in(row, key)) for row in self.metrics)
        return [(epoch, value) for epoch, value in pairs if epoch is not None and value is not None]


def read_run(path: str | Path) -> Run:
    """Read a run folder. Only ``config.json`` must be there; keys it does not know are passed over.

    Args:
        path: the folder.

    Returns:
        The run, finished or not.

    Raises:
        ValueError: if the folder holds no run, with what is missing, or one of its files is damaged.
    """
    folder = RunFolder(path)
    if not folder.path.is_dir():
        raise ValueError(f"{folder.path} is no run folder: there is no folder of that name")
    if not folder.config.is_file():
        inside = sorted(child.parent.name for child in folder.path.glob(f"*/{folder.config.name}"))
        hint = f"; the folders in it do hold runs, name them: {', '.join(inside[:5])}" if inside else ""
        raise ValueError(f"{folder.path} is no run folder: it has no {folder.config.name}{hint}")
    config = read_object(folder.config)
    result = read_object(folder.result) if folder.result.is_file() else None
    rows = [row for row in read_metrics(folder.metrics) if isinstance(row, dict)] if folder.metrics.is_file() else []
    kind = "pretrain" if _is_pretraining(config, result, rows) else "train"
    key = next((name for name in PRETRAININGS if name in config), "train")
    settings, data = (config.get(name) for name in (key, "data"))
    if not isinstance(settings, dict) or not isinstance(data, dict):
        lacking = [name for name, part in ((kind, settings), ("data", data)) if not isinstance(part, dict)]
        raise ValueError(f"{folder.config} is not a run's: it lacks {' and '.join(map(repr, lacking))}")
    environment = read_object(folder.environment) if folder.environment.is_file() else {}
    return Run(folder.path, kind, settings, data, environment, tuple(rows), result)


def _is_pretraining(config: dict[str, Any], result: dict[str, Any] | None, rows: Sequence[dict[str, Any]]) -> bool:
    kind = first_of(text_in(result, "kind"), text_in(config, "kind"))
    if kind is not None:
        return kind in PRETRAININGS
    named = any(name in config for name in PRETRAININGS)
    return "train" not in config if named else bool(rows) and "val_loss" in rows[0]
