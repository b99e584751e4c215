"""Compare the errors of two models on the same rows, with standard errors of the difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tg_lpe.app.training.metrics import METRICS
from tg_lpe.app.training.tasks import Task, precise

MAX_PARTS = 1000
"""Largest number of parts of a test set for the jackknife."""


class PairedDifference(NamedTuple):
    """The errors of a model minus the errors of a reference on the same rows; negative if the model is better."""

    mean: float
    """Mean over the rows."""
    mean_error: float | None
    """Standard error of the mean over the rows, for the given trained weights; ``None`` for one row."""
    by_seed: tuple[float, ...]
    """The mean over the rows for each seed."""
    seed_error: float | None
    """Standard error of the mean over the seeds, that is, over repeated trainings; ``None`` for one seed."""
    num_rows: int
    """Number of rows."""

    @property
    def error(self) -> float | None:
        """Return the standard error of the mean over rows and seeds together: the root of the sum of both squares."""
        known = [error for error in (self.mean_error, self.seed_error) if error is not None]
        return math.hypot(*known) if known else None


def paired_difference(errors: Tensor | Sequence[Any], reference: Tensor | Sequence[Any]) -> PairedDifference:
    r"""Compare the errors of two models row by row.

    The errors of several trainings on one row are correlated, so the differences of a row are first averaged over the
    seeds. With these averages :math:`d_i`, the standard error of the mean over :math:`n` rows is
    :math:`s(d) / \sqrt{n}`.

    Args:
        errors: errors of the model, such as absolute errors, ``[num_seeds, num_rows]`` or ``[num_rows]``.
        reference: errors of the reference with the same seeds on the same rows, in the same shape.

    Raises:
        ValueError: if the shapes differ or have another number of dimensions, there is no row, or an error is not
            finite.

    Example:
        >>> from tg_lpe.app.training import paired_difference
        >>> round(paired_difference([0.1, 0.2, 0.4], [0.2, 0.4, 0.5]).mean, 6)
        -0.133333
    """
    model, other = (torch.as_tensor(values, dtype=torch.float64, device="cpu") for values in (errors, reference))
    if model.shape != other.shape or not 1 <= model.dim() <= 2 or not model.numel():
        allowed = "the same shape, [num_seeds, num_rows] or [num_rows] with at least one row"
        raise ValueError(f"errors and reference must have {allowed}, got {list(model.shape)} and {list(other.shape)}")
    for name, values in (("errors", model), ("reference", other)):
        if number := int((~values.isfinite()).sum()):
            raise ValueError(f"{name} must be finite, got {number:,} that are not")
    by_seed = (model - other).reshape(-1, model.size(-1))
    rows, means = by_seed.mean(0), by_seed.mean(1)
    return PairedDifference(
        mean=float(rows.mean()),
        mean_error=_standard_error(rows),
        by_seed=tuple(means.tolist()),
        seed_error=_standard_error(means),
        num_rows=rows.numel(),
    )


def _standard_error(values: Tensor) -> float | None:
    return float(values.std()) / math.sqrt(values.numel()) if values.numel() > 1 else None


def figures_by_part(task: Task, outputs: Tensor, targets: Tensor, part: Tensor | None = None) -> Tensor:
    r"""Compute the contribution of each part of a test set to a metric, as input for :func:`paired_difference`.

    The contribution is the jackknife's pseudo-value :math:`n m - (n - 1) m_{-i}`: :math:`m` is the metric of all rows,
    and :math:`m_{-i}` the metric without the :math:`i`-th of :math:`n` parts. If the metric is a mean over the rows,
    such as the absolute error, and all parts have equally many, the contribution is the mean of the part. Otherwise, as
    for ROC-AUC, the standard error of the mean of all contributions estimates that of the metric.

    Args:
        task: the task, which names the metric.
        outputs: outputs of the model, ``[num_rows, out_channels]``.
        targets: labels ``[num_rows, num_targets]``, NaN where missing; rows without labels are left out.
        part: the part of each row, int64 ``[num_rows]``, such as the graph of a node; by default each row is a part.
            More than 1,000 parts are merged into 1,000 groups of consecutive parts.

    Returns:
        Float64 ``[num_parts]``. If the metric is not defined without a part, the part has the metric of all rows.

    Raises:
        ValueError: if the shapes do not fit, or the metric is not defined.
    """
    outputs, targets = task.rows(precise(outputs.detach(), targets).cpu(), targets.detach().cpu())
    if part is not None and part.shape != (len(targets),):
        raise ValueError(f"part must have shape [{len(targets)}], an entry for each row, got {list(part.shape)}")
    labelled = ~targets.isnan().all(1)
    outputs, targets = outputs[labelled], targets[labelled]
    rows = torch.arange(len(targets)) if part is None else part.cpu()[labelled]
    number = rows.unique(return_inverse=True)[1]
    num_parts = int(number.max()) + 1 if number.numel() else 0
    if num_parts > MAX_PARTS:
        number, num_parts = number * MAX_PARTS // num_parts, MAX_PARTS
    metric, name = METRICS[task.metric], task.metric
    scores, references = (values.double() for values in task.compared(outputs, targets, name))
    of_all = metric(scores, references).mean
    if of_all is None:
        raise ValueError(f"{metric.title} needs a column with {metric.needs}; {len(targets):,} rows have none")
    figures = torch.full((num_parts,), of_all, dtype=torch.float64)
    for index in range(num_parts) if num_parts > 1 else ():
        others = number != index
        without = metric(scores[others], references[others]).mean
        figures[index] = of_all if without is None else num_parts * of_all - (num_parts - 1) * without
    return figures
