"""Figures of merit, exact and with missing labels: errors, R², Spearman, ROC-AUC, average precision, accuracies.

They agree with scikit-learn's and SciPy's on one column and with ogb's ``Evaluator`` on several, and need none of
these packages. A missing label is NaN; it is left out of its column, as ogb does.
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
    """A figure of merit of one column of labels.

    Attributes:
        name: as in run folders and on the command line, such as ``"roc_auc"``.
        title: as in tables, such as ``"ROC-AUC"``.
        direction: ``"min"`` or ``"max"``, which values are better.
        column: from the predictions and labels of one column, both float64 ``[num_labels]`` and without missing
            labels, to the figure; ``None`` where it is not defined.
        needs: what a column must have for the figure to be defined, for messages.
    """

    name: str
    title: str
    direction: str
    column: Callable[[Tensor, Tensor], float | None]
    needs: str = "a label"

    def __call__(self, predictions: Tensor, targets: Tensor) -> ColumnScores:
        """Return the figure of each column of ``[num_rows, num_columns]`` or ``[num_rows]``; a missing label is NaN."""
        if predictions.shape != targets.shape or not 1 <= predictions.dim() <= 2:
            raise ValueError(
                f"predictions and targets must have the same shape [num_rows, num_columns], "
                f"got {tuple(predictions.shape)} and {tuple(targets.shape)}"
            )
        predictions, targets = predictions.detach().double().cpu(), targets.detach().double().cpu()
        if predictions.dim() == 1:
            predictions, targets = predictions.unsqueeze(1), targets.unsqueeze(1)
        columns = []
        for prediction, target in zip(predictions.unbind(1), targets.unbind(1), strict=True):
            labelled = ~target.isnan()
            columns.append(self.column(prediction[labelled], target[labelled]) if bool(labelled.any()) else None)
        return ColumnScores(tuple(columns))


class ColumnScores(NamedTuple):
    """A metric column by column; ``None`` where it is not defined."""

    columns: tuple[float | None, ...]

    @property
    def mean(self) -> float | None:
        """Average over the columns where the metric is defined; ``None`` if there is none."""
        defined = [value for value in self.columns if value is not None]
        return sum(defined) / len(defined) if defined else None

    @property
    def undefined(self) -> list[int]:
        """Numbers of the columns where the metric is not defined."""
        return [number for number, value in enumerate(self.columns) if value is None]


def mae(predictions: Tensor, targets: Tensor) -> float | None:
    """Return the mean absolute error of one column, ``[num_labels]`` each."""
    return float((predictions - targets).abs().mean())


def rmse(predictions: Tensor, targets: Tensor) -> float | None:
    """Return the root of the mean squared error of one column, ``[num_labels]`` each."""
    return float((predictions - targets).square().mean().sqrt())


def r2(predictions: Tensor, targets: Tensor) -> float | None:
    """Return the coefficient of determination of one column, ``[num_labels]`` each.

    It is 1 less the mean squared error over the variance of the labels; ``None`` if all labels are equal.
    """
    if bool((targets == targets[0]).all()):
        return None
    return float(1 - (predictions - targets).square().sum() / (targets - targets.mean()).square().sum())


def spearman(predictions: Tensor, targets: Tensor) -> float | None:
    """Return the correlation of the ranks of one column, ``[num_labels]`` each; ties share their mean rank.

    ``None`` if all labels are equal; 0 if all predictions are, which order nothing; NaN if one is NaN.
    """
    if bool((targets == targets[0]).all()):
        return None
    if bool(predictions.isnan().any()):
        return math.nan
    x, y = (ranks - ranks.mean() for ranks in (_ranks(predictions), _ranks(targets)))
    return float((x @ y) / ((x @ x) * (y @ y)).sqrt().clamp(min=1e-300))


def roc_auc(scores: Tensor, labels: Tensor) -> float | None:
    """Return the share of pairs of a positive and a negative that the scores order rightly, ``[num_labels]`` each.

    Ties count one half; the pairs are counted in integers, so the result is exact. ``None`` if the labels, 0 or 1, are
    of one class; NaN if a score is NaN.
    """
    positives, negatives = _counts_by_score(scores, labels)
    num_positives, num_negatives = int(positives.sum()), int(negatives.sum())
    if not num_positives or not num_negatives:
        return None
    if bool(scores.isnan().any()):
        return math.nan
    above = num_negatives - negatives.cumsum(0)  # negatives with a lower score: the groups are in falling order
    doubled = int((positives * (2 * above + negatives)).sum())
    return doubled / (2 * num_positives * num_negatives)


def average_precision(scores: Tensor, labels: Tensor) -> float | None:
    """Return the precision at each distinct score, averaged by the recall gained there, ``[num_labels]`` each.

    ``None`` if the labels, 0 or 1, are of one class, as ogb has it; NaN if a score is NaN.
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
    """Share of the positives that score above the k-th best negative, as ogb's ``hits@k`` of link prediction.

    Args:
        scores: ``[num_labels]``, higher for positives.
        labels: 0 or 1, ``[num_labels]``.
        k: rank of the negative to beat; all positives are hits if there are fewer.

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
        return float("nan")
    if k > negatives.numel():
        return 1.0
    return float((positives > negatives.topk(k).values[-1]).double().mean())


def accuracy(classes: Tensor, labels: Tensor) -> float | None:
    """Return the share of labels that the predicted classes equal, ``[num_labels]`` each."""
    return float((classes == labels).double().mean())


def balanced_accuracy(classes: Tensor, labels: Tensor) -> float | None:
    """Return the mean over the classes of the share of their labels that is predicted, ``[num_labels]`` each."""
    _, number, count = labels.unique(return_inverse=True, return_counts=True)
    right = torch.bincount(number, (classes == labels).double(), minlength=count.numel())
    return float((right / count).mean())


def _counts_by_score(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Count positives and negatives at each distinct score, highest first, int64."""
    order = scores.argsort(descending=True)
    _, group = torch.unique_consecutive(scores[order], return_inverse=True)
    positive = (labels[order] == 1).long()
    size = int(group[-1]) + 1 if group.numel() else 0
    positives = torch.zeros(size, dtype=torch.int64).index_add_(0, group, positive)
    return positives, torch.bincount(group, minlength=size) - positives


def _ranks(values: Tensor) -> Tensor:
    """Return the rank of each value, from 1; equal values share the mean of their ranks."""
    _, number, count = values.unique(return_inverse=True, return_counts=True)
    last = count.cumsum(0)
    return (last - (count - 1) / 2).double()[number]


IN_UNITS = ("mae", "rmse")
"""Figures in the unit of the labels."""

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
