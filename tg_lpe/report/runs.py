"""Read run folders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tg_lpe.checkpoints.checkpoint import folders_inside
from tg_lpe.checkpoints.files import read_object
from tg_lpe.data.units import common_unit
from tg_lpe.models.base import FIXED
from tg_lpe.models.registry import DEFAULT_MODEL
from tg_lpe.report.format import DASH
from tg_lpe.training.metrics import IN_UNITS, METRICS
from tg_lpe.training.run_folder import RunFolder
from tg_lpe.training.state import read_metrics

PRETRAININGS = ("pretrain", "pretrain-kernels")
"""Commands in ``config.json`` that are pretrainings, and their kinds in ``result.json``."""

NOT_SETTINGS = {"class", *FIXED, "readout.level", "pe_options.edge_channels"}
"""Arguments of the model that follow from encoder, task and data."""

UNNAMED = "unnamed data"
"""The source of a run from Python, which has none."""


@dataclass(frozen=True)
class Run:
    """The contents of a run folder.

    Attributes:
        kind: ``train`` or ``pretrain``.
        model: class of the model.
        settings: arguments of the model and settings of the loop.
        encoder: class and arguments of the encoder, ``None`` for none.
        pretrained: name or folder of the checkpoint that the encoder came from, if it came from one.
        data: source, sizes and the list of skipped molecules.
        metrics: one row per epoch done.
        result: final figures; ``None`` while the run is unfinished.
        title: what a table calls its row, in place of a label made from the settings.
        cells: further cells of its row, by column.
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
    title: str | None = None
    cells: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.path.name or self.path.resolve().name

    @property
    def source(self) -> str:
        """Name of the data."""
        return str(self.data.get("source", UNNAMED))

    @property
    def finished(self) -> bool:
        """Whether there is a result."""
        return self.result is not None

    @property
    def draw(self) -> str:
        """The seed, and the fold of a cross-validation: a run of the same settings and draw adds no spread."""
        seed, fold = self.settings.get("seed", DASH), (value_in(self.data, "split", dict) or {}).get("fold")
        return str(seed) if fold is None else f"{seed} fold {fold}"

    @property
    def epochs(self) -> int:
        """Epochs done."""
        return len(self.metrics) or int(number_in(self.result, "epochs") or 0)

    @property
    def figure(self) -> str:
        """Name of the figure that chose the best epoch: the task's metric, or ``"loss"`` of a pretraining."""
        return value_in(self.task, "metric", str) or "mae" if self.kind == "train" else "loss"

    @property
    def metric(self) -> str:
        """Title of the figure."""
        return title_of(self.figure)

    @property
    def larger_is_better(self) -> bool:
        """Whether larger values of the figure are better."""
        return self.figure in METRICS and METRICS[self.figure].direction == "max"

    @property
    def test(self) -> float | None:
        """The figure on the test set."""
        return number_in(self.result, f"test_{self.figure}")

    @property
    def validation(self) -> float | None:
        """The best epoch's figure on the validation set; of an unfinished run, the best so far."""
        value = number_in(self.result, f"val_{self.figure}")
        values = [value for _, value in self.curve(f"val_{self.figure}")]
        return value if value is not None else (max if self.larger_is_better else min)(values, default=None)

    def constant(self, part: str = "test") -> float | None:
        """Return the figure of the median of the training labels on ``"val"`` or ``"test"``, if the run tells it."""
        return number_in(self.result, f"{part}_{self.figure}_constant")

    @property
    def units(self) -> dict[str, str]:
        """The unit of the figure of each column of labels; empty where the data does not say or the figure has none."""
        target = value_in(self.data, "target", dict) or {}
        units = target.get("units") if self.column_figure in IN_UNITS else None
        return dict(zip(target.get("columns") or (), units or (), strict=False))

    @property
    def unit(self) -> str:
        """The unit of the figure, if all columns of labels have the same; empty otherwise."""
        return common_unit(self.units.values()) if self.figure in IN_UNITS else ""

    def columns(self, constant: str = "") -> dict[str, float]:
        """Return the test figure of each of several columns, or with ``"_constant"`` of its median, by column."""
        columns = value_in(self.result, f"test_{self.column_figure}{constant}_columns", dict) or {}
        values = {name: number_in(columns, name) for name in columns}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def column_figure(self) -> str:
        """Name of the figure that is told for each of several columns."""
        return "mae" if self.figure == "scaled_mae" else self.figure

    @property
    def seconds(self) -> float | None:
        """Time spent in training epochs, evaluation not counted."""
        values = [value for _, value in self.curve("seconds")]
        return sum(values) if values else None

    @property
    def precision(self) -> str | None:
        """The precision of the run; the result holds the choice made for ``auto``."""
        return value_in(self.result, "precision", str) or value_in(self.settings, "precision", str)

    def curve(self, key: str) -> list[tuple[float, float]]:
        """Return ``(epoch, value)`` of a column of the metrics; rows without it are left out."""
        pairs = ((number_in(row, "epoch"), number_in(row, key)) for row in self.metrics)
        return [(epoch, value) for epoch, value in pairs if epoch is not None and value is not None]


def read_run(path: str | Path) -> Run:
    """Read the folder of a run, finished or not. Only ``config.json`` must be there; unknown keys are ignored.

    Raises:
        ValueError: if the folder holds no run, with what is missing, or one of its files is damaged.
    """
    folder = RunFolder(path)
    if not folder.path.is_dir():
        what = "it is a file" if folder.path.exists() else "there is no folder of that name"
        raise ValueError(f"{folder.path} is no run folder: {what}")
    if not folder.config.is_file():
        inside = folders_inside(folder.path)
        raise ValueError(f"{folder.path} is no run folder: it has no {folder.config.name}{inside}")
    config = read_object(folder.config)
    if lacking := [name for name in ("loop", "data") if not isinstance(config.get(name), dict)]:
        raise ValueError(f"{folder.config} is not a run's: it lacks {' and '.join(map(repr, lacking))}")
    result = read_object(folder.result) if folder.result.is_file() else None
    metrics = read_metrics(folder.metrics) if folder.metrics.is_file() else []
    model, start = value_in(config, "model", dict) or {}, value_in(config, "start", str)
    arguments = {name: value for name, value in model.items() if name not in NOT_SETTINGS}
    return Run(
        path=folder.path,
        kind="pretrain" if value_in(config, "command", str) in PRETRAININGS else "train",
        model=value_in(model, "class", str) or DEFAULT_MODEL,
        settings={**arguments, **config["loop"], **({} if start is None else {"start": start})},
        encoder=value_in(config, "encoder", dict) or None,
        pretrained=value_in(config, "pretrained", str),
        task=value_in(config, "task", dict) or {},
        data=config["data"],
        environment=read_object(folder.environment) if folder.environment.is_file() else {},
        metrics=tuple(row for row in metrics if isinstance(row, dict)),
        result=result,
    )


def value_in(values: Mapping[str, Any] | None, name: str, kind: type) -> Any:
    """Return the value of that name; ``None`` if there is none of that type."""
    value = None if values is None else values.get(name)
    return value if isinstance(value, kind) else None


def number_in(values: Mapping[str, Any] | None, name: str) -> float | None:
    """Return the number of that name; ``None`` if there is none."""
    value = None if values is None else values.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def title_of(figure: str) -> str:
    """Return a figure's name as tables print it."""
    return METRICS[figure].title if figure in METRICS else figure
