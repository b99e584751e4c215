"""Compare two models on the same rows: the difference of their errors, and how far chance alone would move it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tg_lpe.training.metrics import METRICS
from tg_lpe.training.tasks import Task

MAX_PARTS = 1000
"""Parts of a test set that are left out one after the other, at most."""


class PairedDifference(NamedTuple):
    """The errors of a model minus those of a reference, both on the same rows: negative where the model is better."""

    mean: float
    """Mean over the rows."""
    mean_error: float | None
    """Its standard error over the rows, with the weights as they are; ``None`` for one row."""
    median: float
    """Median over the rows: outliers do not move it."""
    median_error: float | None
    """Its standard error over the rows; ``None`` for one row."""
    by_seed: tuple[float, ...]
    """The mean of each seed."""
    seed_error: float | None
    """Standard error of the mean over the seeds: how far another draw of as many trainings would move it. ``None``
    for one seed."""
    num_rows: int
    """Number of the rows."""

    @property
    def error(self) -> float | None:
        """Standard error of the mean for other rows and other seeds: the root of the sum of both squares."""
        known = [error for error in (self.mean_error, self.seed_error) if error is not None]
        return math.hypot(*known) if known else None


def paired_difference(errors: Tensor | Sequence[Any], reference: Tensor | Sequence[Any]) -> PairedDifference:
    r"""Compare the errors of two models row by row.

    The differences of a row are first averaged over the seeds, because the errors of several trainings on one row are
    alike: with :math:`d_i` for the row's average, the standard error of the mean over :math:`n` rows is
    :math:`s(d) / \sqrt{n}`. That of the median is half the distance of the two order statistics whose ranks are
    :math:`\sqrt{n} / 2` below and above the middle, one deviation of the number of rows below the true median.

    Args:
        errors: the model's errors, such as absolute ones, ``[num_seeds, num_rows]`` or ``[num_rows]``.
        reference: those of the reference, of the same shape: same seeds, same rows.

    Raises:
        ValueError: if the shapes differ or are no such shapes, there is no row, or an error is not finite.

    Example:
        >>> from tg_lpe.training import paired_difference
        >>> paired_difference([0.1, 0.2, 0.4], [0.2, 0.4, 0.5]).median
        -0.1
    """
    model, other = (torch.as_tensor(values, dtype=torch.float64, device="cpu") for values in (errors, reference))
    if model.shape != other.shape or not 1 <= model.dim() <= 2 or not model.numel():
        raise ValueError(
            "errors and reference must have the same shape, [num_seeds, num_rows] or [num_rows] with at least one row, "
            f"got {list(model.shape)} and {list(other.shape)}"
        )
    for name, values in (("errors", model), ("reference", other)):
        if not bool(values.isfinite().all()):
            raise ValueError(f"{name} must be finite, got {int((~values.isfinite()).sum()):,} that are not")
    by_seed = (model - other).reshape(-1, model.size(-1))
    rows = by_seed.mean(0).sort().values
    means, num_rows = by_seed.mean(1), rows.numel()
    return PairedDifference(
        mean=float(rows.mean()),
        mean_error=_standard_error(rows),
        median=float(rows[[(num_rows - 1) // 2, num_rows // 2]].mean()),
        median_error=_median_error(rows),
        by_seed=tuple(means.tolist()),
        seed_error=_standard_error(means),
        num_rows=num_rows,
    )


def _standard_error(values: Tensor) -> float | None:
    return float(values.std()) / math.sqrt(values.numel()) if values.numel() > 1 else None


def _median_error(values: Tensor) -> float | None:
    """Return the standard error of the median of sorted values."""
    size = values.numel()
    if size == 1:
        return None
    ranks = [min(max(int(size / 2 + side * math.sqrt(size) / 2), 0), size - 1) for side in (-1, 1)]
    return float(values[ranks[1]] - values[ranks[0]]) / 2


def figures_by_part(task: Task, outputs: Tensor, targets: Tensor, part: Tensor | None = None) -> Tensor:
    r"""Divide the metric of a task among the parts of a test set, for :func:`paired_difference`.

    With the metric :math:`m` of all rows and :math:`m_{-i}` without the :math:`i`-th of :math:`n` parts, the figure of
    a part is the jackknife's pseudo-value :math:`n m - (n - 1) m_{-i}`. For a metric that is a mean over the rows, such
    as the absolute error, it is the part's own mean; it stands for the part in other metrics, such as ROC-AUC, whose
    standard error is that of the mean of these figures.

    Args:
        task: has the metric.
        outputs: those of the model, ``[num_rows, out_channels]``.
        targets: labels ``[num_rows, num_targets]``, NaN where missing; rows without any are left out.
        part: the part of each row, int64 ``[num_rows]``, such as the graph of a node; each row is one if absent. More
            than 1,000 parts are joined to 1,000 of consecutive ones.

    Returns:
        Float64 ``[num_parts]``; a part without which the metric is not defined has the figure of all.

    Raises:
        ValueError: if the shapes do not fit, or the metric is not defined.
    """
    outputs, targets = task.rows(outputs.detach().cpu(), targets.detach().cpu())
    labelled = ~targets.isnan().all(1)
    outputs, targets = outputs[labelled], targets[labelled]
    rows = torch.arange(len(targets)) if part is None else part.cpu()[labelled]
    number = rows.unique(return_inverse=True)[1]
    num_parts = int(number.max()) + 1 if number.numel() else 0
    if num_parts > MAX_PARTS:
        number, num_parts = number * MAX_PARTS // num_parts, MAX_PARTS
    metric, name = METRICS[task.metric], task.metric
    scores, references = task.scores(outputs, name).double(), task.references(targets, name).double()
    of_all = metric(scores, references).mean
    if of_all is None:
        raise ValueError(f"{metric.title} needs a column with {metric.needs}, got none in {len(targets):,} rows")
    figures = torch.full((num_parts,), of_all, dtype=torch.float64)
    for each in range(num_parts) if num_parts > 1 else ():
        others = number != each
        without = metric(scores[others], references[others]).mean
        figures[each] = of_all if without is None else num_parts * of_all - (num_parts - 1) * without
    return figures
