"""Metrics for data with missing labels: errors, R², Spearman, ROC-AUC, average precision, accuracies.

They equal scikit-learn's and SciPy's metrics on one column and ogb's ``Evaluator`` on several, without these packages.
A missing label is NaN and is left out of its column, as in ogb.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tg_lpe.arguments import check_count
from tg_lpe.checkpoints.registry import Registry


@dataclass(frozen=True)
class Metric:
    """A metric of one column of labels.

    Attributes:
        name: name in run folders and on the command line, such as ``"roc_auc"``.
        title: name in tables, such as ``"ROC-AUC"``.
        direction: which values are better, ``"min"`` or ``"max"``.
        column: function of the predictions and labels of one column, both float64 ``[num_labels]`` without missing
            labels. It returns ``None`` where the metric is not defined.
        needs: what a column must have for the metric to be defined.
    """

    name: str
    title: str
    direction: str
    column: Callable[[Tensor, Tensor], float | None]
    needs: str = "a label"

    def __call__(self, predictions: Tensor, targets: Tensor) -> ColumnScores:
        """Compute the metric of each column.

        Args:
            predictions: ``[num_rows, num_columns]`` or ``[num_rows]``.
            targets: labels of the same shape; NaN where missing.

        Raises:
            ValueError: if the shapes differ or have another number of dimensions.
        """
        if predictions.shape != targets.shape or not 1 <= predictions.dim() <= 2:
            got = f"{tuple(predictions.shape)} and {tuple(targets.shape)}"
            raise ValueError(f"predictions and targets must have one shape [num_rows, num_columns], got {got}")
        predictions, targets = predictions.detach().double().cpu(), targets.detach().double().cpu()
        if predictions.dim() == 1:
            predictions, targets = predictions.unsqueeze(1), targets.unsqueeze(1)
        columns = []
        for prediction, target in zip(predictions.unbind(1), targets.unbind(1), strict=True):
            labelled = ~target.isnan()
            value = self.column(prediction[labelled], target[labelled]) if bool(labelled.any()) else None
            columns.append(None if value is None else float(value))  # JSON takes no tensor or number of NumPy
        return ColumnScores(tuple(columns))


class ColumnScores(NamedTuple):
    """The metric of each column; ``None`` where it is not defined."""

    columns: tuple[float | None, ...]

    @property
    def mean(self) -> float | None:
        """Return the mean over the columns where the metric is defined; ``None`` if there are none."""
        defined = [value for value in self.columns if value is not None]
        return sum(defined) / len(defined) if defined else None

    @property
    def undefined(self) -> list[int]:
        """List the numbers of the columns where the metric is not defined."""
        return [number for number, value in enumerate(self.columns) if value is None]


def mae(predictions: Tensor, targets: Tensor) -> float | None:
    """Compute the mean absolute error of ``[num_labels]`` predictions."""
    return float((predictions - targets).abs().mean())


def rmse(predictions: Tensor, targets: Tensor) -> float | None:
    """Compute the root mean squared error of ``[num_labels]`` predictions."""
    return float((predictions - targets).square().mean().sqrt())


def r2(predictions: Tensor, targets: Tensor) -> float | None:
    """Compute the coefficient of determination of ``[num_labels]`` predictions; ``None`` if all labels are equal."""
    if bool((targets == targets[0]).all()):
        return None
    return float(1 - (predictions - targets).square().sum() / (targets - targets.mean()).square().sum())


def spearman(predictions: Tensor, targets: Tensor) -> float | None:
    """Compute Spearman's rank correlation of ``[num_labels]`` predictions; ties share their mean rank.

    The result is ``None`` if all labels are equal, 0 if all predictions are equal, and NaN if a prediction is NaN.
    """
    if bool((targets == targets[0]).all()):
        return None
    if bool(predictions.isnan().any()):
        return math.nan
    x, y = (ranks - ranks.mean() for ranks in (_ranks(predictions), _ranks(targets)))
    return float((x @ y) / ((x @ x) * (y @ y)).sqrt().clamp(min=1e-300))


def roc_auc(scores: Tensor, labels: Tensor) -> float | None:
    """Compute the area under the ROC curve of ``[num_labels]`` scores for labels 0 and 1.

    It is the share of pairs of a positive and a negative that the scores order correctly; ties count one half. The
    result is ``None`` if the labels are of one class, and NaN if a score is NaN.
    """
    positives, negatives = _counts_by_score(scores, labels)
    num_positives, num_negatives = int(positives.sum()), int(negatives.sum())
    if not num_positives or not num_negatives:
        return None
    if bool(scores.isnan().any()):
        return math.nan
    lower = num_negatives - negatives.cumsum(0)  # negatives with a lower score than each group of equal scores
    doubled = int((positives * (2 * lower + negatives)).sum())  # integers keep the result exact
    return doubled / (2 * num_positives * num_negatives)


def average_precision(scores: Tensor, labels: Tensor) -> float | None:
    """Compute the average precision of ``[num_labels]`` scores for labels 0 and 1.

    It is the mean of the precisions at all distinct scores, weighted by the recall gained there. The result is ``None``
    if the labels are of one class, as in ogb, and NaN if a score is NaN.
    """
    positives, negatives = _counts_by_score(scores, labels)
    num_positives = int(positives.sum())
    if not num_positives or not int(negatives.sum()):
        return None
    if bool(scores.isnan().any()):
        return math.nan
    true_positives = positives.cumsum(0).double()
    precision = true_positives / (true_positives + negatives.cumsum(0))
    return float((precision * positives).sum() / num_positives)


def hits_at(scores: Tensor, labels: Tensor, k: int) -> float | None:
    """Compute the share of positives that score above the k-th best negative: ogb's ``hits@k`` for link prediction.

    Args:
        scores: ``[num_labels]``, higher for positives.
        labels: 0 or 1, ``[num_labels]``.
        k: rank of the negative to beat; all positives are hits if there are fewer than ``k`` negatives.

    Returns:
        The share; ``None`` if the labels are of one class; NaN if a score is NaN.

    Raises:
        ValueError: if ``k`` is less than 1.
    """
    check_count("k", k)
    positives, negatives = scores[labels == 1], scores[labels != 1]
    if not positives.numel() or not negatives.numel():
        return None
    if bool(scores.isnan().any()):
        return math.nan
    if k > negatives.numel():
        return 1.0
    return float((positives > negatives.topk(k).values[-1]).double().mean())


def accuracy(classes: Tensor, labels: Tensor) -> float | None:
    """Compute the share of ``[num_labels]`` predicted classes that equal the labels."""
    return float((classes == labels).double().mean())


def balanced_accuracy(classes: Tensor, labels: Tensor) -> float | None:
    """Compute the mean recall over the classes of ``[num_labels]`` predicted classes."""
    _, number, count = labels.unique(return_inverse=True, return_counts=True)
    right = torch.bincount(number, (classes == labels).double(), minlength=count.numel())
    return float((right / count).mean())


def _counts_by_score(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Count positives and negatives at each distinct score, highest first, int64."""
    order = scores.argsort(descending=True)
    _, group, count = torch.unique_consecutive(scores[order], return_inverse=True, return_counts=True)
    positives = torch.zeros_like(count).index_add_(0, group, (labels[order] == 1).long())
    return positives, count - positives


def _ranks(values: Tensor) -> Tensor:
    """Return the rank of each value, from 1; equal values share the mean of their ranks."""
    _, number, count = values.unique(return_inverse=True, return_counts=True)
    last = count.cumsum(0)
    return (last - (count - 1) / 2).double()[number]


IN_UNITS = ("mae", "rmse")
"""Metrics in the unit of the labels."""

METRICS = Registry("metric")
"""Metrics by name."""

for _metric in (
    Metric("mae", "MAE", "min", mae),
    Metric("rmse", "RMSE", "min", rmse),
    Metric("scaled_mae", "MAE in standard deviations", "min", mae),  # of scaled labels
    Metric("r2", "R²", "max", r2, "labels that differ"),
    Metric("spearman", "Spearman", "max", spearman, "labels that differ"),
    Metric("roc_auc", "ROC-AUC", "max", roc_auc, "labels of both classes"),
    Metric("average_precision", "average precision", "max", average_precision, "labels of both classes"),
    Metric("accuracy", "accuracy", "max", accuracy),
    Metric("balanced_accuracy", "balanced accuracy", "max", balanced_accuracy),
):
    METRICS.register(_metric, name=_metric.name)
