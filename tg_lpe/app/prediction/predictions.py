"""Results of predictions: values, refused inputs, and inputs that lie outside of the training set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Refusal:
    """A graph without a prediction.

    Attributes:
        index: index in the input, from 0.
        what: the SMILES, or ``"graph"``.
        reason: why there is no prediction.
    """

    index: int
    what: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what} at place {self.index}: {self.reason}"


@dataclass(frozen=True)
class Outside(Refusal):
    """A graph with a prediction that differs from the graphs of the training set; ``reason`` says how."""


def most_probable(values: Tensor, classes: Sequence[str]) -> list[str | None]:
    """Name the class of the largest probability of each row, ``None`` for a row with NaN; empty without classes."""
    if not classes:
        return []
    is_refused = values.isnan().any(1).tolist()
    return [None if r else classes[k] for r, k in zip(is_refused, values.argmax(1).tolist(), strict=True)]


@dataclass(frozen=True)
class Predictions:
    """Predictions of a model; length, iteration and indexing are those of the rows of ``values``.

    Attributes:
        values: float32 ``[num_graphs, num_columns]`` on the CPU, in the order of the input. If the model predicts nodes
            or edges, ``[num_nodes, num_columns]`` or ``[num_directed_edges, num_columns]``. They are values in the
            units of the labels for regression, and probabilities for classification. Rows of refused graphs are NaN.
        columns: names of the columns.
        refused: the graphs without a prediction, with reasons.
        classes: names of the classes in the order of the columns; empty unless there are several classes.
        outside: the graphs that differ from those of the training set, with reasons; empty if the model holds no
            ranges of its training set.
        index: the index of the ``pandas.Series`` that was predicted; ``None`` for other inputs.
        units: the unit of each column, such as ``"Hartree"``; empty if unknown.
        spread: standard deviation over the models of an :class:`Ensemble`, shaped as ``values``, which are then means;
            ``None`` for a single model.
        spread_columns: names of the columns of ``spread``.
        low, high: ends of the intervals, shaped as ``values``; ``None`` without a ``coverage``.
        interval_columns: names of both ends for each of ``columns``.
        graph: index in the input of the graph of each row, if the model predicts nodes or edges; else ``None``.
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
    graph: Tensor | None = None

    @property
    def names(self) -> list[str | None]:
        """Name the most probable class of each row, ``None`` for a refused graph; empty without classes."""
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
        """Make a ``pandas.DataFrame`` with :attr:`columns`, and the index of the series that was predicted.

        It also has ``spread_columns`` for an ensemble, ``interval_columns`` with a coverage, and ``class``, the most
        probable class, if there are several. ``outside`` and ``refused`` hold the reasons, or empty strings.

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
        graphs = range(len(frame)) if self.graph is None else self.graph.tolist()
        for name, remarks in (("outside", self.outside), ("refused", self.refused)):
            reasons = {remark.index: remark.reason for remark in remarks}
            frame[name] = [reasons.get(graph, "") for graph in graphs]
        return frame
