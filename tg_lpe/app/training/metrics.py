"""Metrics for data with missing labels: errors, R², Spearman, ROC-AUC, average precision, accuracies.

They equal scikit-learn's and SciPy's metrics on one column and ogb's ``Evaluator`` on several. A missing label is NaN
and is left out of its column, as in ogb.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import NamedTuple

import torch
from scipy.stats import rankdata
from torch import Tensor

from tg_lpe.arguments import check_count
from tg_lpe.checkpoints.registry import Registry

Column = Callable[[Tensor, Tensor], float | None]


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
    column: Column
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


def of_differing_labels(column: Column) -> Column:
    """Let a metric return ``None`` if all labels are equal, and NaN if a prediction is NaN."""

    @wraps(column)
    def defined(predictions: Tensor, targets: Tensor) -> float | None:
        if bool((targets == targets[:1]).all()):
            return None
        return math.nan if bool(predictions.isnan().any()) else column(predictions.cpu(), targets.cpu())

    return defined


def mae(predictions: Tensor, targets: Tensor) -> float | None:
    """Compute the mean absolute error of ``[num_labels]`` predictions."""
    return float((predictions - targets).abs().mean())


def rmse(predictions: Tensor, targets: Tensor) -> float | None:
    """Compute the root mean squared error of ``[num_labels]`` predictions."""
    return float((predictions - targets).square().mean().sqrt())


@of_differing_labels
def r2(predictions: Tensor, targets: Tensor) -> float | None:
    """Compute the coefficient of determination of ``[num_labels]`` predictions."""
    return float(1 - (predictions - targets).square().sum() / (targets - targets.mean()).square().sum())


@of_differing_labels
def spearman(predictions: Tensor, targets: Tensor) -> float | None:
    """Compute Spearman's rank correlation of ``[num_labels]`` predictions, 0 if all predictions are equal."""
    x, y = (torch.from_numpy(ranks - ranks.mean()) for ranks in (rankdata(predictions), rankdata(targets)))
    return float((x @ y) / ((x @ x) * (y @ y)).sqrt().clamp(min=1e-300))


@of_differing_labels
def roc_auc(scores: Tensor, labels: Tensor) -> float | None:
    """Compute the area under the ROC curve of ``[num_labels]`` scores for labels 0 and 1.

    It is the share of pairs of a positive and a negative that the scores order correctly; ties count one half.
    """
    positive = (labels == 1).numpy()
    count, ranks = int(positive.sum()), rankdata(scores)
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(ranks) - count)))


@of_differing_labels
def average_precision(scores: Tensor, labels: Tensor) -> float | None:
    """Compute the average precision of ``[num_labels]`` scores for labels 0 and 1."""
    scores, order = scores.sort(descending=True)
    last = torch.cat([scores[1:] != scores[:-1], scores.new_ones(1, dtype=torch.bool)])  # of each group of equal scores
    positives = (labels[order] == 1).cumsum(0).double()[last]
    precision = positives / (last.nonzero().flatten() + 1)
    return float((precision * positives.diff(prepend=positives.new_zeros(1))).sum() / positives[-1])


def hits_at(scores: Tensor, labels: Tensor, k: int) -> float | None:
    """Compute the share of positives that score above the k-th best negative: ogb's ``hits@k`` for link prediction.

    Args:
        scores: ``[num_labels]``, higher for positives.
        labels: 0 or 1, ``[num_labels]``.
        k: rank of the negative to beat; all positives are hits if there are fewer than ``k`` negatives.

    Returns:
        The share; ``None`` if the labels are of one class; NaN if a score is NaN.
    """
    check_count("k", k)

    def share(scores: Tensor, labels: Tensor) -> float:
        positives, negatives = scores[labels == 1], scores[labels != 1]
        return 1.0 if k > len(negatives) else float((positives > negatives.topk(k).values[-1]).double().mean())

    return of_differing_labels(share)(scores, labels)


def accuracy(classes: Tensor, labels: Tensor) -> float | None:
    """Compute the share of ``[num_labels]`` predicted classes that equal the labels."""
    return float((classes == labels).double().mean())


def balanced_accuracy(classes: Tensor, labels: Tensor) -> float | None:
    """Compute the mean recall over the classes of ``[num_labels]`` predicted classes."""
    _, number, count = labels.unique(return_inverse=True, return_counts=True)
    return float((torch.bincount(number, (classes == labels).double()) / count).mean())


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
