"""Compare two models on the same rows: the difference of their errors, and how far chance alone would move it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


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
