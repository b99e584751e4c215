"""Read run folders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tg_lpe.app.report.format import DASH
from tg_lpe.app.training.metrics import IN_UNITS, METRICS
from tg_lpe.app.training.run_folder import RunFolder
from tg_lpe.app.training.state import read_metrics
from tg_lpe.app.training.units import common_unit
from tg_lpe.checkpoints.checkpoint import Kind, folders_inside, kind_of
from tg_lpe.checkpoints.files import read_object
from tg_lpe.models.base import FIXED
from tg_lpe.models.registry import DEFAULT_MODEL

NOT_SETTINGS = {"class", *FIXED, "readout.level", "pe_options.edge_channels"}
"""Model arguments that follow from encoder, task and data."""

UNNAMED = "unnamed data"
"""Source of the data of runs from Python, which have no file."""


@dataclass(frozen=True)
class Run:
    """The contents of a run folder.

    Attributes:
        kind: ``train`` or ``pretrain``.
        model: class of the model.
        settings: arguments of the model and settings of the loop.
        encoder: class and arguments of the encoder, or ``None``.
        pretrained: name or folder of the encoder's checkpoint, or ``None``.
        data: source, sizes and the list of skipped molecules.
        metrics: one row for each completed epoch.
        result: final figures; empty while the run is unfinished.
        title: label of the run's row in a table; made from the settings if ``None``.
        cells: additional cells of the run's row, by column.
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
    result: Mapping[str, Any]
    title: str | None = None
    cells: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.path.name or self.path.resolve().name

    @property
    def source(self) -> str:
        """Name of the data."""
        return str(self.data.get("source", UNNAMED))

    @property
    def finished(self) -> bool:
        """Whether there is a result."""
        return bool(self.result)

    @property
    def draw(self) -> str:
        """The seed, and the fold of a cross-validation, if any."""
        seed, fold = self.settings.get("seed", DASH), (self.data.get("split") or {}).get("fold")
        return str(seed) if fold is None else f"{seed} fold {fold}"

    @property
    def epochs(self) -> int:
        """Number of completed epochs."""
        return len(self.metrics) or int(self.result.get("epochs", 0))

    @property
    def figure(self) -> str:
        """Name of the metric that chose the best epoch; ``"loss"`` for a pretraining."""
        return str(self.task["metric"]) if self.kind == "train" else "loss"

    @property
    def metric(self) -> str:
        """Title of :attr:`figure` in tables."""
        return title_of(self.figure)

    @property
    def larger_is_better(self) -> bool:
        """Whether larger values of :attr:`figure` are better."""
        return self.figure in METRICS and METRICS[self.figure].direction == "max"

    @property
    def test(self) -> float | None:
        """The value of :attr:`figure` on the test set."""
        return self.result.get(f"test_{self.figure}")

    @property
    def validation(self) -> float | None:
        """The value of :attr:`figure` on the validation set at the best epoch so far."""
        value: float | None = self.result.get(f"val_{self.figure}")
        values = [value for _, value in self.curve(f"val_{self.figure}")]
        return value if value is not None else (max if self.larger_is_better else min)(values, default=None)

    def constant(self, part: str = "test") -> float | None:
        """Return :attr:`figure` of predicting the median training label on ``"val"`` or ``"test"``, if recorded."""
        return self.result.get(f"{part}_{self.figure}_constant")

    @property
    def units(self) -> dict[str, str]:
        """Unit of :attr:`column_figure` for each label column; empty if it has no unit or none is known."""
        target = self.data.get("target") or {}
        units = target.get("units") if self.column_figure in IN_UNITS else None
        return dict(zip(target.get("columns") or (), units or (), strict=False))

    @property
    def unit(self) -> str:
        """Unit of :attr:`figure` if all label columns have the same unit; else empty."""
        return common_unit(self.units.values()) if self.figure in IN_UNITS else ""

    def columns(self, constant: str = "") -> dict[str, float]:
        """Return the test figure of each of several label columns by name; ``"_constant"`` for that of the constant."""
        columns = self.result.get(f"test_{self.column_figure}{constant}_columns", {})
        return {name: value for name, value in columns.items() if value is not None}

    @property
    def column_figure(self) -> str:
        """Name of the metric that is reported for each of several label columns."""
        return "mae" if self.figure == "scaled_mae" else self.figure

    @property
    def seconds(self) -> float | None:
        """Time of all training epochs, without evaluation."""
        values = [value for _, value in self.curve("seconds")]
        return sum(values) if values else None

    @property
    def precision(self) -> str | None:
        """The precision of the run; ``auto`` only if the run is unfinished."""
        return self.result.get("precision") or self.settings.get("precision")

    def curve(self, key: str) -> list[tuple[float, float]]:
        """Return pairs ``(epoch, value)`` of a metric; rows without it are left out."""
        return [(row["epoch"], row[key]) for row in self.metrics if row.get(key) is not None]


def read_run(path: str | Path) -> Run:
    """Read a run folder, finished or not. Only ``config.json`` must exist.

    Raises:
        ValueError: if the folder is no run folder, or one of its files is damaged.
    """
    folder = RunFolder(path)
    if not folder.path.is_dir():
        reason = "it is a file" if folder.path.exists() else "it does not exist"
        raise ValueError(f"{folder.path} is no run folder: {reason}")
    if not folder.config.is_file():
        inside = folders_inside(folder.path)
        raise ValueError(f"{folder.path} is no run folder: it has no {folder.config.name}{inside}")
    config = read_object(folder.config)
    if lacking := [name for name in ("loop", "data") if not isinstance(config.get(name), dict)]:
        raise ValueError(f"{folder.config} is not of a run: it lacks {' and '.join(map(repr, lacking))}")
    result = read_object(folder.result) if folder.result.is_file() else {}
    metrics = read_metrics(folder.metrics) if folder.metrics.is_file() else []
    model, start = config.get("model", {}), config.get("start")
    arguments = {name: value for name, value in model.items() if name not in NOT_SETTINGS}
    return Run(
        path=folder.path,
        kind="pretrain" if kind_of(config) is Kind.PRETRAINING else "train",
        model=model.get("class", DEFAULT_MODEL),
        settings={**arguments, **config["loop"], **({} if start is None else {"start": start})},
        encoder=config["encoder"],
        pretrained=config.get("pretrained"),
        task=config.get("task", {}),
        data=config["data"],
        environment=read_object(folder.environment) if folder.environment.is_file() else {},
        metrics=tuple(metrics),
        result=result,
    )


def title_of(figure: str) -> str:
    """Return the title of a metric in tables."""
    return METRICS[figure].title if figure in METRICS else figure
