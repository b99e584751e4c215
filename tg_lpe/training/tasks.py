"""Tasks: a loss, a metric and a number of outputs, for labels of graphs or of nodes.

Labels are ``[num_rows, num_targets]``, one row per graph or node; NaN is a missing label. The loss and every metric
leave missing labels out, and :meth:`Task.evaluate` counts them.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tg_lpe.arguments import ArgumentError, check_count, check_type
from tg_lpe.checkpoints.checkpoint import CheckpointMixin, described_arguments
from tg_lpe.checkpoints.registry import Registry
from tg_lpe.data.splits import LEVELS, PARTS, GraphSplits, Level
from tg_lpe.training.metrics import METRICS, ColumnScores

TASKS = Registry("task")
"""Task classes by name."""

FEW, DECISIVE = 0.05, 3.0
"""The share of labels that must not decide how a column is scaled, and by what factor they would move its deviation."""

_LOGGER = logging.getLogger("tg_lpe.training")

T = TypeVar("T", bound="type[Task]")


def register_task(cls: T) -> T:
    """Make a subclass of :class:`Task` known by its ``name``, which no other class may have; a decorator."""
    return TASKS.register(cls, name=cls.name)  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """One kind of prediction. A subclass sets the class attributes and defines the three abstract methods.

    Args:
        level: ``"graph"`` or ``"node"``: what a row of predictions stands for.
        num_targets: columns of labels.
        metric: the figure that chooses the best epoch, one of ``metrics``; the first of them if absent.

    Attributes:
        name: as in run folders and on the command line.
        metrics: names of the figures that :meth:`evaluate` returns.

    Raises:
        ValueError: if an argument is not one of those allowed.
    """

    level: Level = "graph"
    num_targets: int = 1
    metric: str = ""

    name: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        if not self.metric:
            object.__setattr__(self, "metric", self.metrics[0])
        for option, allowed in (("level", LEVELS), ("metric", self.metrics)):
            if getattr(self, option) not in allowed:
                raise ValueError(f"{option} of {self.name} must be one of {allowed}, got {getattr(self, option)!r}")
        check_count("num_targets", self.num_targets)

    @property
    def direction(self) -> str:
        """Return ``"min"`` or ``"max"``: which values of the metric are better."""
        return str(METRICS[self.metric].direction)

    @property
    def out_channels(self) -> int:
        """Return how many outputs a model needs per row."""
        return self.num_targets

    @abstractmethod
    def loss(self, prediction: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the mean loss over the labels that are there, 0 where there is none, without waiting for the device.

        Args:
            prediction: outputs of the model, ``[num_rows, out_channels]``, or ``[num_rows]`` for one output.
            target: labels ``[num_rows, num_targets]``, or of as many entries; NaN where missing.
            weight: factor on the loss of each row, ``[num_rows]``, in training alone. A loss of your own may do without
                this argument; data with weights are then refused.

        Raises:
            ValueError: if the shapes do not fit each other.
        """

    @abstractmethod
    def predict(self, prediction: Tensor) -> Tensor:
        """Return what a user reads: values, or probabilities, in the shape of the model's outputs."""

    @abstractmethod
    def check(self, target: Tensor) -> None:
        """Raise ``ValueError`` if a label does not belong to this task; once per dataset, not per batch."""

    @classmethod
    def arguments_for(cls, labels: Tensor) -> dict[str, Any]:
        """Return arguments of this class that can be read off all labels, ``[num_rows, num_targets]``."""
        return {"num_targets": labels.size(1)}

    @classmethod
    def arguments_for_training(cls, labels: Tensor) -> dict[str, Any]:
        """Return arguments that can be read off the labels of the training set: here none."""
        return {}

    @property
    def figures(self) -> tuple[str, ...]:
        """Return the ``metrics`` that :meth:`evaluate` averages over the columns: here all."""
        return (self.metric, *(other for other in self.metrics if other != self.metric))

    @property
    def column_figures(self) -> tuple[str, ...]:
        """Return the ``metrics`` that are told for each column, where there are several: here :attr:`figures`."""
        return self.figures

    def scores(self, prediction: Tensor, metric: str) -> Tensor:
        """Return what a metric reads of the outputs, ``[num_rows, num_targets]``: here the outputs themselves."""
        return prediction

    def references(self, target: Tensor, metric: str) -> Tensor:
        """Return what a metric compares :meth:`scores` with, ``[num_rows, num_targets]``: here the labels."""
        return target

    def constant(self, labels: Tensor) -> Tensor | None:
        """Return the best outputs that are the same for every row, ``[1, out_channels]``; here ``None``, for none.

        Args:
            labels: those of the training set, ``[num_rows, num_targets]``; NaN where missing.
        """
        return None

    def evaluate(self, predictions: Tensor, targets: Tensor) -> dict[str, Any]:
        """Return all figures of the task, JSON-able.

        Each of :attr:`figures` is averaged over the columns for which it is defined, ``None`` where there is none; of
        several columns ``columns`` has a list for each of :attr:`column_figures`; beside them are ``num_labels``,
        ``num_missing`` and, where there are any, ``undefined_columns``, which the average of :attr:`metric` leaves out.

        Args:
            predictions: outputs of the model for a whole dataset, ``[num_rows, out_channels]``.
            targets: labels ``[num_rows, num_targets]``; NaN where missing.

        Raises:
            ValueError: if the shapes do not fit, or :attr:`metric` is defined for no column.
        """
        predictions, targets = self.rows(predictions.detach(), targets.detach())
        names = dict.fromkeys([self.metric, *self.figures, *self.column_figures])
        scores = {name: self._column_scores(name, predictions, targets) for name in names}
        chosen, missing = scores[self.metric], int(targets.isnan().sum())
        if chosen.mean is None:
            needed = f"{METRICS[self.metric].title} needs a column with {METRICS[self.metric].needs}"
            rows, columns = targets.shape
            raise ValueError(f"{needed}; none of the {columns} columns has them in these {rows} rows")
        figures: dict[str, Any] = {name: scores[name].mean for name in self.figures}
        figures |= {"num_labels": targets.numel() - missing, "num_missing": missing}
        if chosen.undefined:
            figures["undefined_columns"] = chosen.undefined
        if self.num_targets > 1:
            figures["columns"] = {name: list(scores[name].columns) for name in self.column_figures}
        return figures

    def _column_scores(self, metric: str, predictions: Tensor, targets: Tensor) -> ColumnScores:
        return METRICS[metric](self.scores(predictions, metric), self.references(targets, metric))

    def undefined_columns(self, targets: Tensor, metric: str | None = None) -> list[int]:
        """Return the columns of ``targets`` for which a metric is not defined, whatever the predictions are."""
        ranks = torch.arange(targets.size(0), dtype=torch.float64).unsqueeze(1).expand(-1, self.out_channels)
        return self._column_scores(metric or self.metric, ranks, targets).undefined

    def check_model(self, model: nn.Module) -> None:
        """Raise ``ValueError`` if the model says that it has another ``level`` or other ``out_channels``."""
        arguments = described_arguments(model) if isinstance(model, CheckpointMixin) else {}
        said = {"level": getattr(model, "level", self.level), **arguments}
        for name in ("level", "out_channels"):
            wanted, found = getattr(self, name), said.get(name, getattr(self, name))
            if found != wanted:
                raise ValueError(f"the task needs a model with {name}={wanted!r}, got one with {name}={found!r}")

    def check_labels(self, splits: GraphSplits) -> None:
        """Refuse a dataset that this task cannot be trained and tested on.

        Raises:
            ValueError: if its labels are of another level or number, :meth:`check` refuses them, a column has none in
                the training set, or :attr:`metric` is defined for no column of the validation or the test set.
        """
        columns, level = splits.target.columns, splits.target.level
        if not columns:
            raise ValueError("the data has no target; choose one before training")
        if level != self.level:
            raise ValueError(f"the task predicts labels of a {self.level}, those of the data belong to a {level}")
        names = ", ".join(columns)
        if len(columns) != self.num_targets:
            count = f"{len(columns)} columns of labels: {names}"
            raise ValueError(f"the task has num_targets={self.num_targets}, the data has {count}")
        labels = {part: splits.labels(part) for part in PARTS}
        self.check(torch.cat(list(labels.values())))
        unlabelled = labels["train"].isnan().all(0)
        if missing := [name for name, column in zip(columns, unlabelled, strict=True) if column]:
            raise ValueError(f"nothing can be learned of {', '.join(missing)}: no label of it is in the training set")
        for part in ("val", "test"):
            defined = [m for m in self.metrics if len(self.undefined_columns(labels[part], m)) < self.num_targets]
            if self.metric in defined:
                continue
            advice = "choose {metric}, or another split or seed" if defined else "take another split or seed"
            title, needs = METRICS[self.metric].title, METRICS[self.metric].needs
            message = "{} needs a column with {}; in the {} set, {} has none: " + advice
            raise ArgumentError(message, title, needs, part, names, metric=defined[0] if defined else ...)

    def to_dict(self) -> dict[str, Any]:
        """Return name and arguments, JSON-able and without those that are absent; :func:`make_task` reads them."""
        values = asdict(self)
        absent = {field.name for field in fields(self) if values[field.name] is None and field.default is None}
        return {"name": self.name, **{name: value for name, value in values.items() if name not in absent}}

    def rows(self, prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return predictions ``[num_rows, out_channels]`` and labels ``[num_rows, num_targets]``, or refuse them."""
        if prediction.dim() == 1 and self.out_channels == 1:
            prediction = prediction.unsqueeze(1)
        if prediction.dim() != 2 or prediction.size(1) != self.out_channels:
            allowed, shape = f"[num_rows, {self.out_channels}]", tuple(prediction.shape)
            raise ValueError(f"predictions of {self.name} must have shape {allowed}, got {shape}")
        rows, shape = prediction.size(0), tuple(target.shape)
        if target.numel() != rows * self.num_targets or (target.dim() > 1 and target.size(0) != rows):
            allowed = f"{(rows, self.num_targets)}, one row per {self.level}"
            raise ValueError(f"labels must have shape {allowed}, got {shape}")
        return prediction, target.reshape(rows, self.num_targets)


@register_task
@dataclass(frozen=True, kw_only=True)
class Regression(Task):
    """Real labels.

    Args:
        loss_function: ``"l1"``, the absolute error, or ``"mse"``, the squared one.
        mean, std: one for each column of labels. The model then learns ``(label - mean) / std``, and the loss is that
            of these; predictions and metrics are in the units of the labels. Labels are learned as they are if absent.

    ``scaled_mae``, the metric of several columns, is the mean over the columns of the absolute error over ``std``, in
    which their units play no part. ``mae`` and ``rmse`` of several columns are told column by column; averaged over
    the columns they are figures only if chosen as ``metric``. ``r2`` and ``spearman`` have no unit.

    Raises:
        ValueError: if only one of the two is given, their number is not that of the columns, one is not finite, or a
            ``std`` is not positive.
    """

    loss_function: Literal["l1", "mse"] = "l1"
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None

    name: ClassVar[str] = "regression"
    metrics: ClassVar[tuple[str, ...]] = ("mae", "rmse", "scaled_mae", "r2", "spearman")

    def __post_init__(self) -> None:
        if not self.metric and self.num_targets != 1:
            object.__setattr__(self, "metric", "scaled_mae")
        super().__post_init__()
        if self.loss_function not in ("l1", "mse"):
            raise ValueError(f"loss_function must be 'l1' or 'mse', got {self.loss_function!r}")
        if (self.mean is None) != (self.std is None):
            raise ValueError(f"mean and std go together, got mean={self.mean} and std={self.std}")
        for name, least, kind in (("mean", -math.inf, "finite"), ("std", 0.0, "positive and finite")):
            if (values := getattr(self, name)) is None:
                continue
            if len(values) != self.num_targets or not all(least < value < math.inf for value in values):
                raise ValueError(f"{name} must be {self.num_targets} numbers, {kind}, got {values}")
            object.__setattr__(self, name, tuple(map(float, values)))

    @classmethod
    def arguments_for_training(cls, labels: Tensor) -> dict[str, Any]:
        """Return mean and standard deviation of each column, see :func:`label_scale`."""
        if cls.loss is not Regression.loss:  # which may not scale the labels
            return {}
        scales = [label_scale(column) for column in labels.unbind(1)]
        return {"mean": [scale.mean for scale in scales], "std": [scale.std for scale in scales]}

    @property
    def figures(self) -> tuple[str, ...]:
        errors = ("scaled_mae",) if self.num_targets > 1 else ("mae", "rmse")
        return tuple(dict.fromkeys([self.metric, *errors, "r2", "spearman"]))

    @property
    def column_figures(self) -> tuple[str, ...]:
        first = "mae" if self.metric == "scaled_mae" else self.metric
        return tuple(dict.fromkeys([first, "mae", "rmse", "r2", "spearman"]))

    def loss(self, prediction: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        prediction, target = self.rows(prediction, target)
        target = self._scaled(target)
        labelled = ~target.isnan()
        error = prediction - torch.where(labelled, target.to(prediction.dtype), prediction.detach())
        return masked_mean(error.abs() if self.loss_function == "l1" else error.square(), labelled, weight)

    def predict(self, prediction: Tensor) -> Tensor:
        if self.mean is None or self.std is None:
            return prediction
        return prediction * _row(self.std, prediction) + _row(self.mean, prediction)

    def _scaled(self, target: Tensor) -> Tensor:
        """Return labels as the model learns them."""
        if self.mean is None or self.std is None:
            return target
        return (target - _row(self.mean, target)) / _row(self.std, target)

    def scores(self, prediction: Tensor, metric: str) -> Tensor:
        return prediction if metric == "scaled_mae" else self.predict(prediction)

    def references(self, target: Tensor, metric: str) -> Tensor:
        return self._scaled(target) if metric == "scaled_mae" else target

    def constant(self, labels: Tensor) -> Tensor | None:
        """Return the median of the training labels, which has the smallest absolute error of all constants."""
        if type(self).predict is not Regression.predict:  # its outputs may be anything
            return None
        return self._scaled(labels.nanmedian(0, keepdim=True).values)

    def check(self, target: Tensor) -> None:
        if bool(target.isinf().any()):
            raise ValueError("labels of regression must be finite, or NaN where missing; some are infinite")


@dataclass(frozen=True, kw_only=True)
class _BinaryLabels(Task):
    """Labels 0 and 1, one logit per column."""

    def loss(self, prediction: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        prediction, target = self.rows(prediction, target)
        labelled = ~target.isnan()
        known = torch.where(labelled, target, 0.0).to(prediction.dtype)
        each = F.binary_cross_entropy_with_logits(prediction, known, reduction="none")
        return masked_mean(torch.where(labelled, each, 0.0), labelled, weight)

    def predict(self, prediction: Tensor) -> Tensor:
        return prediction.sigmoid()

    def scores(self, prediction: Tensor, metric: str) -> Tensor:
        if metric != "accuracy":
            return prediction
        # Where a prediction is NaN, no class is right.
        return torch.where(prediction.isnan(), torch.nan, (prediction > 0).to(prediction.dtype))

    def check(self, target: Tensor) -> None:
        values = target[~target.isnan()].unique()
        if not bool(((values == 0) | (values == 1)).all()):
            raise ValueError(f"labels of {self.name} must be 0 or 1, or NaN where missing; there are {_few(values)}")


@register_task
@dataclass(frozen=True, kw_only=True)
class Binary(_BinaryLabels):
    """One column of labels 0 and 1; binary cross entropy."""

    name: ClassVar[str] = "binary"
    metrics: ClassVar[tuple[str, ...]] = ("roc_auc", "average_precision", "accuracy")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_targets != 1:
            raise ValueError(f"binary labels are one column, got num_targets={self.num_targets}; use multilabel")


@register_task
@dataclass(frozen=True, kw_only=True)
class Multilabel(_BinaryLabels):
    """Several columns of labels 0 and 1; the mean of their binary cross entropies over all labels."""

    name: ClassVar[str] = "multilabel"
    metrics: ClassVar[tuple[str, ...]] = ("average_precision", "roc_auc", "accuracy")


@register_task
@dataclass(frozen=True, kw_only=True)
class Multiclass(Task):
    """One column of labels ``0..num_classes - 1``; cross entropy.

    Args:
        num_classes: how many classes there are, at least 2.
        values: the label of each class, ascending, where these are not ``0..num_classes - 1``, such as 1, 2, 3.
        balanced: whether labels are weighted by one less the share of their class in the batch, as in `Benchmarking
            Graph Neural Networks <https://arxiv.org/abs/2003.00982>`_; ``metric="balanced_accuracy"``, the mean
            recall of the classes, goes with it.
    """

    num_classes: int
    values: Sequence[float] | None = None
    balanced: bool = False

    name: ClassVar[str] = "multiclass"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "balanced_accuracy")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_targets != 1:
            raise ValueError(f"multiclass labels are one column, got num_targets={self.num_targets}")
        check_count("num_classes", self.num_classes, least=2)
        if self.values is not None:
            values = tuple(map(float, self.values))
            if len(values) != self.num_classes or list(values) != sorted(set(values)):
                raise ValueError(f"values must be {self.num_classes} different numbers, ascending, got {self.values}")
            object.__setattr__(self, "values", values)

    @classmethod
    def arguments_for(cls, labels: Tensor) -> dict[str, Any]:
        known = labels[~labels.isnan()].unique()
        largest = int(known.max()) if known.numel() else 0
        arguments = {**super().arguments_for(labels), "num_classes": max(2, largest + 1)}
        if len(known) > 1 and bool((known == known.floor()).all()) and known.tolist() != list(range(len(known))):
            arguments |= {"num_classes": len(known), "values": known.tolist()}
        return arguments

    @property
    def out_channels(self) -> int:
        return self.num_classes

    def loss(self, prediction: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        prediction, target = self.rows(prediction, target)
        labelled = ~target.isnan()
        known = torch.where(labelled, self.references(target, self.metric), 0).long().squeeze(1)
        each = F.cross_entropy(prediction, known, reduction="none").unsqueeze(1)
        if not self.balanced:
            return masked_mean(torch.where(labelled, each, 0.0), labelled, weight)
        if weight is not None:
            each = each * weight.unsqueeze(1)
        mask = labelled.to(each.dtype)
        share = each.new_zeros(self.num_classes).index_add_(0, known, mask.squeeze(1)) / mask.sum().clamp(min=1)
        of_class = mask * (1 - share)[known].unsqueeze(1)
        # The weights of two classes or more add up to at least 1; that of a single class is 0.
        return torch.where(labelled, of_class * each, 0.0).sum() / of_class.sum().clamp(min=1)

    def predict(self, prediction: Tensor) -> Tensor:
        return prediction.softmax(1)

    def scores(self, prediction: Tensor, metric: str) -> Tensor:
        best, column = prediction.max(1, keepdim=True)
        return torch.where(best.isnan(), torch.nan, column.double())  # where a prediction is NaN, no class is right

    def references(self, target: Tensor, metric: str) -> Tensor:
        """Return numbers of classes."""
        if self.values is None:
            return target
        values = torch.tensor(self.values, dtype=target.dtype).to(target.device, non_blocking=True)
        number = torch.searchsorted(values, target.nan_to_num(self.values[0]).contiguous()).to(target.dtype)
        return torch.where(target.isnan(), target, number)

    def check(self, target: Tensor) -> None:
        values = target[~target.isnan()].unique()
        known = range(self.num_classes) if self.values is None else self.values
        if not set(values.tolist()) <= set(known):
            allowed = f"integers in 0..{self.num_classes - 1}" if self.values is None else _few(torch.tensor(known))
            raise ValueError(f"labels of multiclass must be {allowed}, or NaN where missing; there are {_few(values)}")


def make_task(config: Mapping[str, Any]) -> Task:
    """Make the task that :meth:`Task.to_dict` described; an unknown name or argument is a ``ValueError``."""
    arguments = dict(config)
    cls: type[Task] = TASKS[arguments.pop("name", None)]
    try:
        return cls(**arguments)
    except TypeError as error:
        raise ValueError(f"task {cls.name!r} does not take these arguments: {error}") from error


def task_for(splits: GraphSplits, name: str | None = None, metric: str | None = None, **options: Any) -> Task:
    """Choose the task of a dataset, and check its labels.

    Args:
        splits: the data.
        name: of the task. Absent, it is regression, unless the labels could be classes as well.
        metric: the figure that chooses the best epoch; the task's own if absent.
        options: further arguments of the task. ``num_targets`` and ``num_classes`` are read off the labels if absent,
            and ``mean`` and ``std`` of a regression off those of the training set, see :func:`label_scale`;
            ``mean=None, std=None`` leaves the labels as they are.

    Raises:
        TypeError: if ``splits`` is no :class:`~tg_lpe.data.GraphSplits`.
        ValueError: if there are no labels, the task is unknown, its labels are not of its kind, or no task is named
            and all labels are integers, which may be values or classes.
    """
    check_type("splits", splits, GraphSplits, ", which GraphSplits.of makes")
    labels = torch.cat([splits.labels(part) for part in PARTS])
    if labels.size(1) == 0:
        raise ValueError("the data has no target; choose one before training")
    known = labels[~labels.isnan()]
    if not known.numel():
        raise ValueError(f"all labels of {', '.join(splits.target.columns)} are missing")
    columns, named = ", ".join(splits.target.columns), [names for names in splits.target.classes if names]
    if named and name is None:
        name = "multiclass" if labels.size(1) == 1 else "multilabel"
        numbers = [place for place, names in enumerate(splits.target.classes) if not names]
        if not bool(torch.isin(labels[:, numbers].nan_to_num(0.0), torch.tensor([0.0, 1.0])).all()):
            values = ", ".join(splits.target.columns[place] for place in numbers)
            raise ValueError(
                f"of {columns}, some hold names and others ({values}) values: no task predicts both at once"
            )
    if name is None and bool((known == known.floor()).all()):
        kind = "multiclass" if float(known.max()) > 1 else "binary" if labels.size(1) == 1 else "multilabel"
        message = "all labels of {} are integers ({}), which may be classes or values: choose {task}, or regression"
        raise ArgumentError(message, columns, _few(known.unique()), task=kind)
    name = name or Regression.name
    cls = TASKS[name]
    if named and issubclass(cls, Regression):
        message = "the labels of {} are names, {}: {task}, or multilabel for several columns of two names"
        raise ArgumentError(message, columns, ", ".join(map(repr, named[0][:6])), task="multiclass")
    of_training = cls.arguments_for_training(splits.labels("train"))
    if of_training.keys() & options.keys():
        of_training = {}
    found = {**cls.arguments_for(labels), **of_training}
    if "num_classes" in options or (named and "num_classes" in found):
        found.pop("values", None)
        found |= {"num_classes": len(named[0])} if named else {}
    task = make_task({"name": name, "level": splits.target.level, "metric": metric or "", **found, **options})
    task.check(labels)
    if "mean" in of_training:
        _name_odd(splits)
    return task


class LabelScale(NamedTuple):
    """How a column of labels is scaled for learning."""

    mean: float
    std: float
    outlying: Tensor
    """The labels that were left out of both."""


def label_scale(labels: Tensor) -> LabelScale:
    """Return mean and standard deviation of a column of labels, of which a few do not decide.

    Where the twentieth of the labels that is farthest from their median, at least one, makes the deviation more than
    three times what it is without, mean and deviation are those without. One label of 10,000 among a thousand near 1
    would otherwise shrink all others to nothing; heavy tails and classes of values that are not rare stay in.

    Args:
        labels: ``[num_labels]``, NaN where missing.

    Returns:
        Both, and the labels left out; mean 0 without labels, and deviation 1 where all are equal.
    """
    known = labels[~labels.isnan()].double()
    if not len(known):
        return LabelScale(0.0, 1.0, known)
    order = (known - known.median()).abs().argsort(stable=True)
    others, few = known[order].tensor_split([len(known) - max(1, int(FEW * len(known)))])
    if 0 < DECISIVE * _deviation(others) < _deviation(known):
        return LabelScale(float(others.mean()), _deviation(others), few)
    return LabelScale(float(known.mean()), _deviation(known) or 1.0, known[:0])


def _deviation(labels: Tensor) -> float:
    """Return the standard deviation; that of equal labels is 0, without rounding noise."""
    return float(labels.std(correction=0)) if len(labels) > 1 and bool(labels.min() < labels.max()) else 0.0


def _name_odd(splits: GraphSplits) -> None:
    """Warn of labels that are all equal, and of those far from all others: they may be marks of missing ones."""
    for column, labels in zip(splits.target.columns, splits.labels("train").unbind(1), strict=True):
        known = labels[~labels.isnan()]
        if len(known) and bool(known.min() == known.max()):
            _LOGGER.warning("%s: all %d training labels are %g: nothing can be learned", column, len(known), known[0])
        mean, std, outlying = label_scale(labels)
        if len(outlying):
            _LOGGER.warning(
                "%s: %d training labels such as %s are far from the others (mean %.4g, deviation %.4g), and do not "
                "decide how labels are scaled",
                *(column, len(outlying), _few(outlying.flip(0)), mean, std),
            )


def masked_mean(each: Tensor, labelled: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the mean over the labels that are there, 0 where there is none, without waiting for the device.

    Args:
        each: loss of each label, ``[num_rows, num_targets]``, 0 where the label is missing.
        labelled: whether the label is there, bool of the same shape.
        weight: factor on the loss of each row, ``[num_rows]``. The mean is over the number of labels, not over the
            weights: those of all rows together have a mean of one.
    """
    if weight is not None:
        each = each * weight.unsqueeze(1)
    return each.sum() / labelled.sum().clamp(min=1)


def _row(values: Sequence[float], like: Tensor) -> Tensor | float:
    """Return one value per column, on the device; a single one needs no tensor there."""
    if len(values) == 1:
        return values[0]
    return torch.tensor(values, dtype=like.dtype).to(like.device, non_blocking=True)


def _few(values: Tensor) -> str:
    shown = ", ".join(f"{value:g}" for value in values[:6].tolist())
    return shown + (", ..." if values.numel() > 6 else "")
