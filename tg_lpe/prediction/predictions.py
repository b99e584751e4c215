"""Results of a prediction: values, what was refused, and what lies outside of the training set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Refusal:
    """A graph without a prediction.

    Attributes:
        index: its place in the input.
        what: the SMILES, or ``"graph"``.
        reason: why.
    """

    index: int
    what: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what} at place {self.index}: {self.reason}"


@dataclass(frozen=True)
class Outside(Refusal):
    """A graph with a prediction that lies outside of what the model was trained on, and in what, as its ``reason``."""


def most_probable(values: Tensor, classes: Sequence[str]) -> list[str | None]:
    """Name the class of the largest probability of each row, ``None`` of a row of NaN; empty without classes."""
    if not classes:
        return []
    refused = values.isnan().any(1).tolist()
    return [None if no else classes[k] for no, k in zip(refused, values.argmax(1).tolist(), strict=True)]


@dataclass(frozen=True)
class Predictions:
    """Predictions of a model; length, iteration and indexing are those of the rows of ``values``.

    Attributes:
        values: float32 ``[num_graphs, num_columns]`` on the CPU, in the order of the input; where nodes or edges are
            predicted, ``[num_nodes, num_columns]`` or ``[num_directed_edges, num_columns]``, those of one graph after
            the other. Values of regression are in the units of
            the labels; of classification they are probabilities. Rows of refused graphs are NaN.
        columns: names of the columns.
        refused: the graphs without a prediction, and why.
        classes: names of the classes, in the order of the columns; none where there are not several classes.
        outside: the graphs unlike those of the training set, and in what; none where the model knows no ranges.
        index: index of the ``pandas.Series`` that was given, if one was.
        units: the unit of each column, such as ``"Hartree"``; none where the model does not know them.
        spread: of an :class:`Ensemble`, the standard deviation over its models, shaped as ``values``, which are then
            means; ``None`` of a single model.
        spread_columns: names of the columns of ``spread``.
        low, high: ends of the intervals, shaped as ``values``, where a coverage was asked for, else ``None``.
        interval_columns: names of both for each of ``columns``.
    """

    values: Tensor
    columns: tuple[str, ...]
    refused: tuple[Refusal, ...] = ()
    classes: tuple[str, ...] = ()
    outside: tuple[Outside, ...] = ()
    index: Any = None
    units: tuple[str, ...] = ()
    spread: Tensor | None = None
    spread_columns: tuple[str, ...] = ()
    low: Tensor | None = None
    high: Tensor | None = None
    interval_columns: tuple[str, ...] = ()

    @property
    def names(self) -> list[str | None]:
        """Name the most probable class of each row, ``None`` where there is no prediction; empty without classes."""
        return most_probable(self.values, self.classes)

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.values)

    def __getitem__(self, index: Any) -> Tensor:
        return self.values[index]

    def numpy(self) -> NDArray[np.float32]:
        """Return ``values`` as an array."""
        return self.values.numpy()

    def to_frame(self) -> Any:
        """Make a ``pandas.DataFrame`` with a column for each of ``columns`` and the index of the series that was given.

        Of an ensemble ``spread_columns`` follow, with a coverage ``interval_columns``, and of several classes a column
        ``class``, the most probable. Columns ``outside`` and ``refused`` hold the reasons, and are empty without one.

        Raises:
            ModuleNotFoundError: if pandas is not installed.
        """
        try:
            from pandas import DataFrame
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("to_frame() needs pandas: pip install pandas", name="pandas") from error
        frame = DataFrame(self.numpy(), columns=list(self.columns), index=self.index)
        if self.spread is not None:
            frame[list(self.spread_columns)] = self.spread.numpy()
        if self.low is not None and self.high is not None:
            frame[list(self.interval_columns)] = torch.stack([self.low, self.high], 2).flatten(1).numpy()
        if self.classes:
            frame["class"] = self.names
        for name, remarks in (("outside", self.outside), ("refused", self.refused)):
            reasons = {remark.index: remark.reason for remark in remarks}
            frame[name] = [reasons.get(place, "") for place in range(len(frame))]
        return frame
