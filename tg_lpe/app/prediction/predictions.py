"""Results of predictions: values, refused inputs, and inputs that lie outside of the training set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tg_lpe.app.prediction.intervals import Intervals
from tg_lpe.app.training.outputs import new_names


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
        spread: standard deviation over several models, shaped as ``values``, which are then means; ``None`` for a
            single model.
        low, high: ends of the intervals, shaped as ``values``; ``None`` without a ``coverage``.
        graph: index in the input of the graph of each row, if the model predicts nodes or edges; else ``None``.
        num_graphs: number of graphs.
    """

    values: Tensor
    columns: tuple[str, ...]
    refused: tuple[Refusal, ...] = ()
    classes: tuple[str, ...] = ()
    outside: tuple[Outside, ...] = ()
    index: Any = None
    units: tuple[str, ...] = ()
    spread: Tensor | None = None
    low: Tensor | None = None
    high: Tensor | None = None
    graph: Tensor | None = None
    num_graphs: int = 0

    @property
    def spread_columns(self) -> tuple[str, ...]:
        """Names of the columns of ``spread``: ``COLUMN_spread``."""
        return () if self.spread is None else with_ends(self.columns, "_spread")

    @property
    def interval_columns(self) -> tuple[str, ...]:
        """Names of both ends for each of ``columns``: ``COLUMN_low``, ``COLUMN_high``, ..."""
        return () if self.low is None else with_ends(self.columns, "_low", "_high")

    @property
    def names(self) -> list[str | None]:
        """Name the most probable class of each row, ``None`` for a refused graph; empty without classes."""
        if not self.classes:
            return []
        is_refused = self.values.isnan().any(1).tolist()
        return [None if r else self.classes[k] for r, k in zip(is_refused, self.values.argmax(1).tolist(), strict=True)]

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

        It also has ``spread_columns`` for several models, ``interval_columns`` with a coverage, and ``class``, the most
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
        names = new_names(("outside", "refused"), frame.columns)
        for name, remarks in zip(names, (self.outside, self.refused), strict=True):
            reasons = {remark.index: remark.reason for remark in remarks}
            frame[name] = [reasons.get(graph, "") for graph in graphs]
        return frame

    def within(self, intervals: Intervals | None) -> Predictions:
        """Return the predictions with the ends of their intervals."""
        if intervals is None:
            return self
        low, high = intervals.around(self.values, self.spread)
        return replace(self, low=low, high=high)


def with_ends(columns: Sequence[str], *ends: str) -> tuple[str, ...]:
    """Append each end to each name, repeated if that is the name of another column."""
    while any(name + end in columns for name in columns for end in ends):
        ends = tuple(2 * end for end in ends)
    return tuple(name + end for name in columns for end in ends)


def joined(parts: Sequence[Predictions]) -> Predictions:
    """Concatenate the predictions for consecutive graphs; one part or more."""
    spread = [part.spread for part in parts if part.spread is not None]
    graph = [part.graph for part in parts if part.graph is not None]
    return replace(
        parts[0],
        values=torch.cat([part.values for part in parts]),
        refused=tuple(refusal for part in parts for refusal in part.refused),
        outside=tuple(other for part in parts for other in part.outside),
        spread=torch.cat(spread) if spread else None,
        graph=torch.cat(graph) if graph else None,
        num_graphs=sum(part.num_graphs for part in parts),
    )


def averaged(models: Sequence[Predictions]) -> Predictions:
    """Combine the predictions of several models for the same graphs to their mean and their spread."""
    if len(models) == 1:
        return models[0]
    values = torch.stack([one.values for one in models]).double()
    refused = {refusal.index: refusal for one in reversed(models) for refusal in one.refused}
    reasons: dict[int, dict[str, None]] = {}
    for other in (other for one in models for other in one.outside):
        reasons.setdefault(other.index, {}).update(dict.fromkeys(other.reason.split("; ")))
    names = {other.index: other.what for one in models for other in one.outside}
    return replace(
        models[0],
        values=values.mean(0).float(),
        spread=values.std(0).float(),
        refused=tuple(refused[i] for i in sorted(refused)),
        outside=tuple(Outside(i, names[i], "; ".join(reasons[i])) for i in sorted(reasons) if i not in refused),
    )
