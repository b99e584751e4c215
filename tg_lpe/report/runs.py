"""A run as its folder tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tg_lpe.data import DataSpec
from tg_lpe.hub.files import read_object
from tg_lpe.models.base import FIXED
from tg_lpe.models.registry import DEFAULT_MODEL
from tg_lpe.report.values import first_of, mapping_in, number_in, text_in
from tg_lpe.training.metrics import METRICS
from tg_lpe.training.run_folder import RunFolder
from tg_lpe.training.state import read_metrics

DATA_SIZES = frozenset(DataSpec().to_dict())
"""Arguments of models and encoders that follow from the data."""

PRETRAININGS = ("pretrain", "pretrain-kernels")
"""Commands in ``config.json`` that are pretrainings, and their kinds in ``result.json``."""


@dataclass(frozen=True)
class Run:
    """The contents of a run folder.

    Attributes:
        path: the folder, as it was named.
        kind: ``train`` or ``pretrain``.
        model: class of the model.
        settings: arguments of the model and settings of the loop.
        encoder: class and arguments of the encoder, ``None`` for none.
        pretrained: name or folder of the checkpoint that the encoder came from, if it came from one.
        task: name and arguments of the task; empty for a pretraining.
        data: source, sizes and the list of skipped molecules.
        environment: machine, command and versions; empty if the folder has none.
        metrics: one row per epoch done.
        result: final figures; ``None`` while the run is unfinished.
    """

    path: Path
    kind: str
    model: str
    settings: Mapping[str, Any]
    encoder: Mapping[str, Any] | None
    pretrained: str | None
    task: Mapping[str, Any]
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
        """Return the name of the data."""
        return str(self.data.get("source", UNNAMED))

    @property
    def finished(self) -> bool:
        """Whether there is a result."""
        return self.result is not None

    @property
    def epochs(self) -> int:
        """Epochs done."""
        return len(self.metrics) or int(number_in(self.result, "epochs") or 0)

    @property
    def figure(self) -> str:
        """Name of the figure that chose the best epoch: the task's metric, or ``"loss"`` of a pretraining."""
        return first_of(text_in(self.task, "metric"), "mae") if self.kind == "train" else "loss"

    @property
    def figure_title(self) -> str:
        """The same as tables print it."""
        return METRICS[self.figure].title if self.figure in METRICS else self.figure

    @property
    def larger_is_better(self) -> bool:
        """Whether larger values of it are better."""
        return self.figure in METRICS and METRICS[self.figure].direction == "max"

    @property
    def validation_key(self) -> str:
        """The column of the metrics that chose the best epoch."""
        return f"val_{self.figure}"

    @property
    def test_error(self) -> float | None:
        """The figure on the test set."""
        return first_of(number_in(self.result, f"test_{self.figure}"), number_in(self.result, "loss"))

    @property
    def validation_error(self) -> float | None:
        """The best epoch's figure on the validation set; of an unfinished run, the best so far."""
        column = [value for _, value in self.curve(self.validation_key)]
        best = max(column, default=None) if self.larger_is_better else min(column, default=None)
        return first_of(number_in(self.result, self.validation_key), best)

    def constant_error(self, part: str) -> float | None:
        """The figure of the median of the training labels on ``"val"`` or ``"test"``; ``None`` of an earlier run."""
        return number_in(self.result, f"{part}_{self.figure}_constant")

    @property
    def column_figure(self) -> str:
        """Name of the figure that is told for each of several columns of labels."""
        return "mae" if self.figure == "scaled_mae" else self.figure

    def column_errors(self, constant: bool = False) -> dict[str, float]:
        """The figure of each of several columns of labels on the test set, or that of its constant."""
        of = "_constant" if constant else ""
        columns = mapping_in(self.result or {}, f"test_{self.column_figure}{of}_columns")
        return {name: value for name in columns if (value := number_in(columns, name)) is not None}

    @property
    def seconds(self) -> float | None:
        """Time spent in training epochs, evaluation not counted."""
        column = [value for _, value in self.curve("seconds")]
        return sum(column) if column else None

    @property
    def precision(self) -> str | None:
        """The precision of the run; the result holds the choice made for ``auto``."""
        return first_of(text_in(self.result, "precision"), text_in(self.settings, "precision"))

    def curve(self, key: str) -> list[tuple[float, float]]:
        """``(epoch, value)`` of a column of the metrics, rows without it left out."""
        pairs = ((number_in(row, "epoch"), number_in(row, key)) for row in self.metrics)
        return [(epoch, value) for epoch, value in pairs if epoch is not None and value is not None]


def read_run(path: str | Path) -> Run:
    """Read a run folder. Only ``config.json`` must be there; unknown keys are ignored.

    Args:
        path: the folder.

    Returns:
        The run, finished or not.

    Raises:
        ValueError: if the folder holds no run, with what is missing, or one of its files is damaged.
    """
    folder = RunFolder(path)
    if not folder.path.is_dir():
        what = "it is a file" if folder.path.exists() else "there is no folder of that name"
        raise ValueError(f"{folder.path} is no run folder: {what}")
    if not folder.config.is_file():
        inside = sorted(child.parent.name for child in folder.path.glob(f"*/{folder.config.name}"))
        hint = f"; the folders in it do hold runs, name them: {', '.join(inside[:5])}" if inside else ""
        raise ValueError(f"{folder.path} is no run folder: it has no {folder.config.name}{hint}")
    config = read_object(folder.config)
    result = read_object(folder.result) if folder.result.is_file() else None
    rows = [row for row in read_metrics(folder.metrics) if isinstance(row, dict)] if folder.metrics.is_file() else []
    kind = "pretrain" if _is_pretraining(config, result, rows) else "train"
    loop, data = config.get("loop"), config.get("data")
    if not isinstance(loop, dict) or not isinstance(data, dict):
        lacking = [name for name, part in (("loop", loop), ("data", data)) if not isinstance(part, dict)]
        raise ValueError(f"{folder.config} is not a run's: it lacks {' and '.join(map(repr, lacking))}")
    described = mapping_in(config, "model")
    model = {name: value for name, value in described.items() if name not in NOT_SETTINGS}
    return Run(
        folder.path,
        kind,
        first_of(text_in(described, "class"), DEFAULT_MODEL),
        {**model, **loop, **({} if (start := text_in(config, "start")) is None else {"start": start})},
        mapping_in(config, "encoder") or None,
        text_in(config, "pretrained"),
        mapping_in(config, "task"),
        data,
        read_object(folder.environment) if folder.environment.is_file() else {},
        tuple(rows),
        result,
    )


def _is_pretraining(config: dict[str, Any], result: dict[str, Any] | None, rows: Sequence[dict[str, Any]]) -> bool:
    command = first_of(text_in(result, "kind"), text_in(config, "command"))
    if command is not None:
        return command in PRETRAININGS
    return bool(rows) and "val_loss" in rows[0]


UNNAMED = "unnamed data"
"""The source of a run from Python, which has none."""

NOT_SETTINGS = {"class", *FIXED}
"""Arguments of the model that follow from encoder, task and data."""
