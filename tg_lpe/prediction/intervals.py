"""Intervals around predictions, calibrated on the validation set: split conformal prediction.

As sections 1.2 and 2.3.2 of `A Gentle Introduction to Conformal Prediction <https://arxiv.org/abs/2107.07511>`_: if the
molecules to predict are like those of validation, the interval holds at least the asked share of labels on average over
validation sets, however wrong the model is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tg_lpe.training.outputs import Outputs

SMALLEST_SCALE = 1e-12
"""Scale where all models agree, such as two copies of one: the interval is then that of a single model."""


class Intervals(NamedTuple):
    """Intervals of one model or of several together; those of several are wider where the models differ more."""

    coverage: float
    """The share of labels to hold."""
    width: Tensor
    """``[num_columns]``: half the width of an interval, of several models over the scale; infinite where the
    validation labels are too few for this coverage."""
    floor: Tensor | None
    """``[num_columns]``, of several models: what is added to their spread for the scale, since few models may agree by
    chance. It is the median spread on the validation set."""
    num_labels: tuple[int, ...]
    """Validation labels of each column."""
    reached: tuple[float, ...]
    """The share of the test labels of each column that the intervals hold; NaN without any."""

    @classmethod
    def of(cls, validation: Sequence[Outputs], test: Sequence[Outputs], coverage: float) -> Intervals:
        """Calibrate on the validation set and try on the test set, each with the predictions of every model.

        With ``n`` labels half the width is the ``ceil((n + 1) * coverage)``-th smallest absolute error.
        """
        values, spread = together(validation)
        floor = None if spread is None else spread.median(0).values
        intervals = cls(coverage, torch.ones(values.size(1)), floor, (), ())
        errors = ((values - validation[0].labels).abs() / intervals._scale(spread)).double()
        known = [column[~column.isnan()].sort().values for column in errors.unbind(1)]
        ranks = [math.ceil((len(column) + 1) * coverage - 1e-9) for column in known]  # 0.9 is not exact in binary
        width = [float(column[k - 1]) if k <= len(column) else math.inf for column, k in zip(known, ranks, strict=True)]
        intervals = intervals._replace(width=torch.tensor(width), num_labels=tuple(map(len, known)))
        low, high = intervals.around(*together(test))
        labels = test[0].labels
        inside = torch.where(labels.isnan(), torch.nan, ((low <= labels) & (labels <= high)).float())
        return intervals._replace(reached=tuple(inside.nanmean(0).tolist()))

    def around(self, values: Tensor, spread: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return lower and upper ends, ``[num_rows, num_columns]``, for predictions and spreads of that shape."""
        half = self.width * self._scale(spread)
        return values - half, values + half

    def _scale(self, spread: Tensor | None) -> Tensor:
        if spread is None or self.floor is None:
            return torch.ones(())
        return (spread + self.floor).clamp(min=SMALLEST_SCALE)


def together(models: Sequence[Outputs]) -> tuple[Tensor, Tensor | None]:
    """Return the mean of the predictions of several models for the same rows, and their standard deviation if any."""
    values = torch.stack([outputs.values for outputs in models])
    return values.mean(0), values.std(0) if len(models) > 1 else None
