"""Tasks: the loss, the metrics and the number of outputs for labels of graphs or nodes.

Labels are ``[num_rows, num_targets]``, one row per graph or node; a missing label is NaN. The loss and every metric
leave missing labels out.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from tg_lpe.app.training.metrics import METRICS
from tg_lpe.arguments import ArgumentError, check_count, check_flags, checked_numbers
from tg_lpe.checkpoints.checkpoint import CheckpointMixin, described_arguments
from tg_lpe.checkpoints.registry import Registry
from tg_lpe.data.spec import LEVELS, Level
from tg_lpe.data.splits import PARTS, GraphSplits
from tg_lpe.models.base import Model

TASKS = Registry("task")
"""Task classes by name."""

NO_TARGET = "the data has no target; choose one before training"

T = TypeVar("T", bound="type[Task]")


def register_task(cls: T) -> T:
    """Register a subclass of :class:`Task` under its ``name``, which must be new; use it as a decorator."""
    return TASKS.register(cls, name=cls.name)  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """Define what a model predicts. A subclass sets the class attributes and the three abstract methods.

    Args:
        level: whether a row of predictions belongs to a ``"graph"`` or a ``"node"``.
        num_targets: number of label columns.
        metric: the metric that chooses the best epoch, one of ``metrics``; the first of them if absent.

    Attributes:
        name: name in run folders and on the command line.
        metrics: names of all metrics of the task.

    Raises:
        ValueError: if an argument is not allowed.
    """

    level: Level = "graph"
    num_targets: int = 1
    metric: str = ""

    name: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        if not self.metric:
            object.__setattr__(self, "metric", self.metrics[0])
        for option, value, allowed in (("level", self.level, LEVELS), ("metric", self.metric, self.metrics)):
            if value not in allowed:
                raise ValueError(f"{option} of {self.name} must be one of {allowed}, got {value!r}")
        check_count("num_targets", self.num_targets)

    @property
    def out_channels(self) -> int:
        """Return the number of outputs of a model per row."""
        return self.num_targets

    @property
    def class_names(self) -> tuple[str, ...]:
        """Return the name of the class of each output, if an output is the score of a class: here none."""
        return ()

    @abstractmethod
    def loss(self, prediction: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the mean loss over the known labels, 0 if there are none, without synchronising the device.

        Args:
            prediction: outputs of the model, ``[num_rows, out_channels]``, or ``[num_rows]`` for one output.
            target: labels ``[num_rows, num_targets]``, or another shape with as many entries; NaN where missing.
            weight: factor on the loss of each row, ``[num_rows]``, used only in training. Your own loss may omit this
                argument; data with weights are then refused.

        Raises:
            ValueError: if the shapes do not fit each other.
        """

    @abstractmethod
    def predict(self, prediction: Tensor) -> Tensor:
        """Convert the model's outputs to values or probabilities of the same shape."""

    @abstractmethod
    def check(self, target: Tensor) -> None:
        """Raise ``ValueError`` if a label does not belong to this task; called once per dataset."""

    @classmethod
    def arguments_for(cls, labels: Tensor, training: Tensor) -> dict[str, Any]:
        """Return constructor arguments that follow from all labels and from those for training.

        Args:
            labels: all labels, ``[num_rows, num_targets]``.
            training: labels of the training set.
        """
        return {"num_targets": labels.size(1)}

    @property
    def figures(self) -> tuple[str, ...]:
        """Return the ``metrics`` that :meth:`evaluate` averages over the columns: here all."""
        return (self.metric, *(other for other in self.metrics if other != self.metric))

    @property
    def column_figures(self) -> tuple[str, ...]:
        """Return the ``metrics`` that are reported for each of several columns: here :attr:`figures`."""
        return self.figures

    def compared(self, prediction: Tensor, target: Tensor, metric: str) -> tuple[Tensor, Tensor]:
        """Return the values ``[num_rows, num_targets]`` that a metric compares: here the outputs and the labels."""
        return prediction, target

    def evaluate(self, predictions: Tensor, targets: Tensor) -> dict[str, Any]:
        """Compute all metrics of the task.

        Args:
            predictions: outputs of the model for a whole dataset, ``[num_rows, out_channels]``.
            targets: labels ``[num_rows, num_targets]``; NaN where missing.

        Returns:
            A JSON-able dictionary. Its entries are

            - each of :attr:`figures`, averaged over the columns where it is defined; ``None`` if there are none
            - ``columns`` if there are several columns: a list of values for each of :attr:`column_figures`
            - ``num_labels`` and ``num_missing``
            - ``undefined_columns`` if there are any: columns that the average of :attr:`metric` leaves out

        Raises:
            ValueError: if the shapes do not fit, or :attr:`metric` is defined for no column.
        """
        predictions, targets = self.rows(precise(predictions.detach(), targets), targets.detach())
        names = dict.fromkeys([self.metric, *self.figures, *self.column_figures])
        scores = {name: METRICS[name](*self.compared(predictions, targets, name)) for name in names}
        chosen, missing = scores[self.metric], int(targets.isnan().sum())
        if chosen.mean is None:
            needed = f"{METRICS[self.metric].title} needs a column with {METRICS[self.metric].needs}"
            rows, columns = targets.shape
            raise ValueError(f"{needed}; none of the {columns} columns has them in {rows} rows")
        figures: dict[str, Any] = {name: scores[name].mean for name in self.figures}
        figures |= {"num_labels": targets.numel() - missing, "num_missing": missing}
        if chosen.undefined:
            figures["undefined_columns"] = chosen.undefined
        if self.num_targets > 1:
            figures["columns"] = {name: list(scores[name].columns) for name in self.column_figures}
        return figures

    def undefined_columns(self, targets: Tensor, metric: str) -> list[int]:
        """Return the numbers of the columns of ``targets`` for which a metric is not defined."""
        ranks = torch.arange(targets.size(0), dtype=torch.float64).unsqueeze(1).expand(-1, self.out_channels)
        return METRICS[metric](*self.compared(ranks, targets, metric)).undefined

    def check_model(self, model: Model) -> None:
        """Raise ``ValueError`` if the model has another ``level`` or number of ``out_channels``."""
        arguments = described_arguments(model) if isinstance(model, CheckpointMixin) else {}
        width = arguments.get("out_channels", self.out_channels)
        level = model.level if hasattr(model, "level") else self.level  # any module may predict
        for name, needed, value in (("level", self.level, level), ("out_channels", self.out_channels, width)):
            if value != needed:
                raise ValueError(f"the task needs a model with {name}={needed!r}, got one with {name}={value!r}")

    def check_labels(self, splits: GraphSplits) -> None:
        """Raise an error if a model cannot be trained and tested on the dataset.

        Raises:
            ValueError: if the labels have another level or number of columns, :meth:`check` refuses them, a column has
                no label in the training set, or :attr:`metric` is defined for no column of the validation or test set.
        """
        columns, level = splits.target.columns, splits.target.level
        if not columns:
            raise ValueError(NO_TARGET)
        names = ", ".join(columns)
        if (level, len(columns)) != (self.level, self.num_targets):
            needs = f"level={self.level!r} and num_targets={self.num_targets}"
            raise ValueError(f"the task has {needs}, the data has level={level!r} and the columns {names}")
        labels = {part: splits.labels(part) for part in PARTS}
        self.check(torch.cat(list(labels.values())))
        unlabelled = labels["train"].isnan().all(0)
        if missing := [name for name, column in zip(columns, unlabelled, strict=True) if column]:
            raise ValueError(f"nothing can be learned of {', '.join(missing)}: the training set has no label of it")
        for part in ("val", "test"):
            if len(self.undefined_columns(labels[part], self.metric)) == self.num_targets:
                message = "{} needs a column with {}; in the {} set, {} has none: choose another {metric} or split"
                metric = METRICS[self.metric]
                raise ArgumentError(message, metric.title, metric.needs, part, names, metric=...)

    def to_dict(self) -> dict[str, Any]:
        """Return the name and the arguments that are set, JSON-able; :func:`make_task` reads them."""
        optional = [field.name for field in fields(self) if field.default is None]
        values = {name: value for name, value in asdict(self).items() if value is not None or name not in optional}
        return {"name": self.name, **values}

    def rows(self, prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Reshape to ``[num_rows, out_channels]`` and ``[num_rows, num_targets]``, or raise ``ValueError``."""
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
    """Predict real labels.

    The default metric of one column is ``mae``. For several columns, which may have different units, it is
    ``scaled_mae``: the absolute error divided by ``std``, averaged over the columns. ``mae`` and ``rmse`` are then
    reported column by column, and averaged only if chosen as ``metric``.

    Args:
        loss_function: ``"l1"``, the absolute error, or ``"mse"``, the squared error.
        mean: one number for each column. The model learns ``(label - mean) / std``; predictions and metrics are in the
            units of the labels. Without ``mean`` and ``std``, labels are learned unscaled; :func:`task_for` and the
            command line compute both from the training labels.
        std: one positive number for each column, see ``mean``.

    Raises:
        ValueError: if only one of ``mean`` and ``std`` is given, or they do not hold one finite number for each column,
            positive for ``std``.
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
        for name, values, least in (("mean", self.mean, -math.inf), ("std", self.std, 0.0)):
            if values is None:
                continue
            numbers = checked_numbers(name, values)
            if len(numbers) != self.num_targets or not all(least < number < math.inf for number in numbers):
                kind = "finite" if name == "mean" else "positive and finite"
                raise ValueError(f"{name} must be {self.num_targets} numbers, {kind}, got {values}")
            object.__setattr__(self, name, numbers)

    @classmethod
    def arguments_for(cls, labels: Tensor, training: Tensor) -> dict[str, Any]:
        """Return the number of columns, and the mean and standard deviation of each."""
        arguments = super().arguments_for(labels, training)
        if cls.loss is not Regression.loss:  # an overridden loss may not scale the labels
            return arguments
        means, stds = list[float](), list[float]()
        for column in training.unbind(1):
            known = column[~column.isnan()].double()
            differ = len(known) > 0 and bool(known.min() < known.max())  # otherwise the deviation may be rounding noise
            means.append(float(known.mean()) if len(known) else 0.0)
            stds.append(float(known.std(correction=0)) if differ else 1.0)
        return {**arguments, "mean": means, "std": stds}

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
        target = self.scaled(target)
        labelled = ~target.isnan()
        error = prediction - torch.where(labelled, target.to(prediction.dtype), prediction.detach())
        return masked_mean(error.abs() if self.loss_function == "l1" else error.square(), labelled, weight)

    def predict(self, prediction: Tensor) -> Tensor:
        if self.mean is None or self.std is None:
            return prediction
        return prediction * _row(self.std, prediction) + _row(self.mean, prediction)

    def scaled(self, target: Tensor) -> Tensor:
        """Return labels on the scale of the model's outputs."""
        if self.mean is None or self.std is None:
            return target
        return (target - _row(self.mean, target)) / _row(self.std, target)

    def compared(self, prediction: Tensor, target: Tensor, metric: str) -> tuple[Tensor, Tensor]:
        if metric == "scaled_mae":
            return prediction, self.scaled(target)
        return self.predict(prediction), target

    def constant(self, labels: Tensor) -> Tensor | None:
        """Return the median of the training labels, the constant with the smallest absolute error."""
        if type(self).predict is not Regression.predict:  # an overridden predict may give outputs another meaning
            return None
        return self.scaled(labels.nanmedian(0, keepdim=True).values)

    def check(self, target: Tensor) -> None:
        if bool(target.isinf().any()):
            raise ValueError("labels of regression must be finite, or NaN where missing; some are infinite")


@register_task
@dataclass(frozen=True, kw_only=True)
class Multilabel(Task):
    """Predict columns of labels 0 and 1 with one logit each and binary cross entropy, averaged over all labels."""

    name: ClassVar[str] = "multilabel"
    metrics: ClassVar[tuple[str, ...]] = ("average_precision", "roc_auc", "accuracy")

    def loss(self, prediction: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        prediction, target = self.rows(prediction, target)
        labelled = ~target.isnan()
        known = torch.where(labelled, target, 0.0).to(prediction.dtype)
        each = F.binary_cross_entropy_with_logits(prediction, known, reduction="none")
        return masked_mean(torch.where(labelled, each, 0.0), labelled, weight)

    def predict(self, prediction: Tensor) -> Tensor:
        return prediction.sigmoid()

    def compared(self, prediction: Tensor, target: Tensor, metric: str) -> tuple[Tensor, Tensor]:
        if metric == "accuracy":  # a prediction of NaN is no class, so it is never correct
            prediction = torch.where(prediction.isnan(), torch.nan, (prediction > 0).to(prediction.dtype))
        return prediction, target

    def check(self, target: Tensor) -> None:
        values = target[~target.isnan()].unique()
        if not bool(((values == 0) | (values == 1)).all()):
            raise ValueError(f"labels of {self.name} must be 0 or 1, or NaN where missing; there are {few(values)}")


@register_task
@dataclass(frozen=True, kw_only=True)
class Binary(Multilabel):
    """Predict one column of labels 0 and 1 with binary cross entropy."""

    name: ClassVar[str] = "binary"
    metrics: ClassVar[tuple[str, ...]] = ("roc_auc", "average_precision", "accuracy")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_targets != 1:
            raise ValueError(f"binary labels are one column, got num_targets={self.num_targets}; use multilabel")


@register_task
@dataclass(frozen=True, kw_only=True)
class Multiclass(Task):
    """Predict one column of labels ``0..num_classes - 1`` with cross entropy.

    Args:
        num_classes: number of classes, at least 2.
        balanced: whether the loss of each label is multiplied by 1 minus the share of its class in the batch, as in
            `Benchmarking Graph Neural Networks <https://arxiv.org/abs/2003.00982>`_. Use it with
            ``metric="balanced_accuracy"``, the mean recall of the classes.
    """

    num_classes: int
    balanced: bool = False

    name: ClassVar[str] = "multiclass"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "balanced_accuracy")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_targets != 1:
            raise ValueError(f"num_targets must be 1, got {self.num_targets}; write y.argmax(1) or take multilabel")
        check_count("num_classes", self.num_classes, least=2)
        check_flags(balanced=self.balanced)

    @classmethod
    def arguments_for(cls, labels: Tensor, training: Tensor) -> dict[str, Any]:
        largest = int(labels.nan_to_num(0.0).max()) if labels.numel() else 0
        return {**super().arguments_for(labels, training), "num_classes": max(2, largest + 1)}

    @property
    def out_channels(self) -> int:
        return self.num_classes

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.num_classes)))

    def loss(self, prediction: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        prediction, target = self.rows(prediction, target)
        labelled = ~target.isnan()
        known = torch.where(labelled, target, 0).long().squeeze(1)
        each = F.cross_entropy(prediction, known, reduction="none").unsqueeze(1)
        if not self.balanced:
            return masked_mean(torch.where(labelled, each, 0.0), labelled, weight)
        if weight is not None:
            each = each * weight.unsqueeze(1)
        mask = labelled.to(each.dtype)
        share = each.new_zeros(self.num_classes).index_add_(0, known, mask.squeeze(1)) / mask.sum().clamp(min=1)
        of_class = mask * (1 - share)[known].unsqueeze(1)
        # The weights of two or more classes sum to at least 1; the weight of a single class is 0.
        return torch.where(labelled, of_class * each, 0.0).sum() / of_class.sum().clamp(min=1)

    def predict(self, prediction: Tensor) -> Tensor:
        return prediction.softmax(1)

    def compared(self, prediction: Tensor, target: Tensor, metric: str) -> tuple[Tensor, Tensor]:
        best, column = prediction.max(1, keepdim=True)  # NaN is no class, so it is never correct
        return torch.where(best.isnan(), torch.nan, column.double()), target

    def check(self, target: Tensor) -> None:
        values = target[~target.isnan()].unique()
        if not bool(((values == values.floor()) & (values >= 0) & (values < self.num_classes)).all()):
            allowed = f"integers in 0..{self.num_classes - 1}, or NaN (an empty cell) where missing"
            raise ValueError(f"labels of multiclass must be {allowed}; there are {few(values)}")


def make_task(config: Mapping[str, Any]) -> Task:
    """Make a task from the dictionary of :meth:`Task.to_dict`.

    Raises:
        TypeError: if ``config`` is no dictionary.
        ValueError: if its name or an argument is unknown or not allowed.
    """
    if not isinstance(config, Mapping):
        raise TypeError(f"a task must be a dictionary with its name and arguments, got {config!r:.80}")
    arguments = dict(config)
    cls: type[Task] = TASKS[arguments.pop("name", None)]
    try:
        return cls(**arguments)
    except TypeError as error:
        raise ValueError(f"task {cls.name!r} does not take these arguments: {error}") from error


def precise(outputs: Tensor, labels: Tensor) -> Tensor:
    """Convert outputs to the labels' dtype if it is more precise: float32 rounds energies of -1e5 to hundredths."""
    return outputs.to(torch.promote_types(outputs.dtype, labels.dtype))


def masked_mean(each: Tensor, labelled: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the mean loss over the known labels, 0 if there are none, without synchronising the device.

    Args:
        each: loss of each label, ``[num_rows, num_targets]``, 0 where the label is missing.
        labelled: whether the label is known, bool of the same shape.
        weight: factor on the loss of each row, ``[num_rows]``. The sum is divided by the number of labels, not by the
            sum of weights, because the weights of the training set have mean one.
    """
    if weight is not None:
        each = each * weight.unsqueeze(1)
    return each.sum() / labelled.sum().clamp(min=1)


def _row(values: Sequence[float], like: Tensor) -> Tensor | float:
    """Return one value per column on the device, as a float if there is one column."""
    if len(values) == 1:
        return values[0]
    return torch.tensor(values, dtype=like.dtype).to(like.device, non_blocking=True)


def few(values: Tensor) -> str:
    """Format the first six values."""
    shown = ", ".join(f"{value:g}" for value in values[:6].tolist())
    return shown + (", ..." if values.numel() > 6 else "")
