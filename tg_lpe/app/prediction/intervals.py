"""Intervals around predictions by split conformal prediction, calibrated on the validation set.

See sections 1.2 and 2.3.2 of `A Gentle Introduction to Conformal Prediction <https://arxiv.org/abs/2107.07511>`_.
If new molecules are distributed as those of validation, the intervals hold at least the requested share of labels, on
average over validation sets, however wrong the model is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tg_lpe.app.training.outputs import Outputs

SMALLEST_SCALE = 1e-12
"""Smallest scale, used if all models agree; the intervals are then those of a single model."""


class Intervals(NamedTuple):
    """Intervals for one model or several; for several they are wider where the models differ more."""

    coverage: float
    """The share of labels that the intervals should hold."""
    width: Tensor
    """Half the width ``[num_columns]``, for several models divided by the scale; infinite if there are too few
    validation labels for this coverage."""
    floor: Tensor | None
    """Median spread on the validation set ``[num_columns]``; ``None`` for one model. The scale is spread plus floor,
    because a few models may agree by chance."""
    num_labels: tuple[int, ...]
    """Number of validation labels of each column."""
    reached: tuple[float, ...]
    """Share of the test labels of each column that the intervals hold; NaN without labels."""

    @classmethod
    def of(cls, validation: Sequence[Outputs], test: Sequence[Outputs], coverage: float) -> Intervals:
        """Calibrate intervals on the validation set and measure their coverage on the test set.

        With ``n`` labels, half the width is the ``ceil((n + 1) * coverage)``-th smallest absolute error.

        Args:
            validation: labels and predictions of the validation set, by each model.
            test: labels and predictions of the test set, by each model.
            coverage: share of labels that the intervals should hold.
        """
        values, spread = together(validation)
        floor = None if spread is None else spread.median(0).values
        errors = ((values - validation[0].labels).abs() / _scale(spread, floor)).double()
        known = [column[~column.isnan()].sort().values for column in errors.unbind(1)]
        width = []
        for column in known:
            rank = max(1, math.ceil((len(column) + 1) * coverage - 1e-9))  # coverage is inexact in binary
            width.append(float(column[rank - 1]) if rank <= len(column) else math.inf)
        intervals = cls(coverage, torch.tensor(width), floor, num_labels=tuple(map(len, known)), reached=())
        low, high = intervals.around(*together(test))
        labels = test[0].labels
        inside = torch.where(labels.isnan(), torch.nan, ((low <= labels) & (labels <= high)).float())
        return intervals._replace(reached=tuple(inside.nanmean(0).tolist()))

    def around(self, values: Tensor, spread: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return lower and upper ends for predictions and spreads, all ``[num_rows, num_columns]``."""
        half = self.width * _scale(spread, self.floor)
        return values - half, values + half


def _scale(spread: Tensor | None, floor: Tensor | None) -> Tensor:
    """Return the factor on the width of each interval: 1 for a single model."""
    if spread is None or floor is None:
        return torch.ones(())
    return (spread + floor).clamp(min=SMALLEST_SCALE)


def together(models: Sequence[Outputs]) -> tuple[Tensor, Tensor | None]:
    """Return mean and standard deviation of the models' predictions; ``None`` for the latter with one model."""
    values = torch.stack([outputs.values for outputs in models])
    return values.mean(0), values.std(0) if len(models) > 1 else None
