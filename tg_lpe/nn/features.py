"""Input maps of node and edge features and of positional encodings to the hidden width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tg_lpe.arguments import BOUNDS, check_count, number_hint, rows_hint
from tg_lpe.nn._util import Resettable
from tg_lpe.nn.norms import RowBatchNorm, UnitColumns
from tg_lpe.ops.checks import ValueChecks
from tg_lpe.ops.segment import RowGroups

MAX_PRODUCT_ROWS = 256
"""Largest table that is looked up by a product with a zero-one matrix."""


class Feature:
    """Kind of a feature: integer types in one or several columns, real values, or no feature.

    The types of all columns share one table. The embedding of several columns is the sum of their rows of the table, as
    in ogb's encoders of atoms and bonds.

    Args:
        what: ``"node"`` or ``"edge"``, for error messages.
        num_types: number of categories of an integer feature, or of each column.
        channels: width of a real feature; exclusive with ``num_types``.

    Attributes:
        counts: number of categories of each column of an integer feature; ``None`` otherwise.
        width: rows of the table or transposed weight that maps the feature; 0 without a feature.

    Raises:
        ValueError: if both ``num_types`` and ``channels`` are given, or a number is out of range.
    """

    def __init__(self, what: str, num_types: int | Sequence[int] | None, channels: int | None) -> None:
        if num_types is not None and channels is not None:
            raise ValueError(f"{what}s have either types or channels, got {num_types} types and {channels} channels")
        if channels is not None:
            check_count("in_channels" if what == "node" else "edge_dim", channels, least=0)
        self.what, self.channels, self.width = what, channels, channels or 0
        self.counts: tuple[int, ...] | None = None
        if num_types is not None:
            self.counts = tuple(num_types) if isinstance(num_types, Sequence) else (num_types,)
            most = BOUNDS["in_channels"]
            if not self.counts or not all(isinstance(n, int) and 1 <= n <= most and n is not True for n in self.counts):
                got = f"{num_types!r}{number_hint(num_types)}"
                raise ValueError(f"numbers of {what} types must be integers from 1 to {most:,}, got {got}")
            self.width = sum(self.counts)

    def check(self, feature: Tensor | None, num_rows: int, checks: ValueChecks) -> None:
        """Check a feature's shape and dtype, and add a check of its values to ``checks``.

        Raises:
            ValueError: if an expected feature is missing, or has a wrong shape or dtype.
        """
        if self.counts is not None:
            columns = len(self.counts)
            shapes = [[num_rows], [num_rows, 1]] if columns == 1 else [[num_rows, columns]]
            if not isinstance(feature, Tensor) or [*feature.shape] not in shapes or feature.dtype != torch.int64:
                got = f"{' or '.join(map(str, shapes))}, got {_form(feature)}{self._hint(feature, num_rows)}"
                raise ValueError(f"{self.what} types must be int64 {got}")
            if columns == 1:
                checks.in_range(f"{self.what} types", feature, self.width)
            else:
                for number, count in enumerate(self.counts):
                    checks.in_range(f"{self.what}[:, {number}] types", feature[:, number], count)
        elif self.channels is not None:
            shape = [num_rows, self.channels]
            if not isinstance(feature, Tensor) or list(feature.shape) != shape or not feature.is_floating_point():
                got = f"{shape}, got {_form(feature)}{self._hint(feature, num_rows)}"
                raise ValueError(f"{self.what} features must be floating point {got}")
            checks.finite(f"{self.what} features", feature)

    def _hint(self, feature: Any, num_rows: int) -> str:
        """Return the end of an error message: the rows that are needed, or the width that the feature has."""
        if not isinstance(feature, Tensor) or not feature.dim():
            return ""
        name, width = ("x", "in_channels") if self.what == "node" else ("edge_attr", "edge_dim")
        is_real = feature.is_floating_point() and feature.dim() == 2 and feature.size(1) != self.channels
        fit = f"; the model needs {width}={feature.size(1)} for them" if is_real else ""
        return rows_hint(name, feature.size(0), num_rows, self.what) or fit

    def product(self, feature: Tensor | None, weight: Tensor, by_product: bool | None = None) -> Tensor:
        """Look up types in a table, summed over the columns, or multiply real values by it, ``[num_rows, channels]``.

        Args:
            feature: a feature that :meth:`check` has accepted.
            weight: ``[width, channels]``.
            by_product: whether to multiply types by a zero-one matrix; by default, if a gradient is needed. The
                backward pass is then a product too, which is faster than a scattered sum for many rows and few
                categories. Under autocast, a product is computed in the lower precision.
        """
        assert feature is not None  # checked before
        if self.counts is None:
            return feature.to(weight.dtype) @ weight
        if by_product is None:
            by_product = torch.is_grad_enabled() and weight.requires_grad
        if len(self.counts) == 1:
            rows = feature.reshape(-1, 1)
        else:
            first = [sum(self.counts[:number]) for number in range(len(self.counts))]
            rows = feature + torch.tensor(first).to(feature.device, non_blocking=True)
        if not by_product or self.width > MAX_PRODUCT_ROWS:
            embedded = nn.functional.embedding(rows, weight)
            return embedded.squeeze(1) if len(self.counts) == 1 else embedded.sum(1)
        categories = torch.arange(self.width, device=rows.device)  # one_hot() would synchronise with the device
        return (rows.unsqueeze(2) == categories).any(1).to(weight.dtype) @ weight


def _form(feature: Tensor | None) -> str:
    """Return the dtype and shape of a feature, for error messages."""
    return f"{feature.dtype} {list(feature.shape)}" if isinstance(feature, Tensor) else repr(feature)[:80]


ENCODING_NORMS = (False, True, "unit")


class FeatureEmbedding(Resettable):
    """Embed types by a table or real features by a linear map; without features, all rows share a learned one.

    Args:
        what: ``"node"`` or ``"edge"``, for error messages.
        num_types: number of categories, or of each column, whose embeddings are added; exclusive with ``in_channels``.
        in_channels: width of real features.
        channels: width of the result.
        by_product: see :meth:`Feature.product`.

    Raises:
        ValueError: if both ``num_types`` and ``in_channels`` are given.
    """

    def __init__(
        self,
        what: str,
        num_types: int | Sequence[int] | None,
        in_channels: int | None,
        channels: int,
        by_product: bool = False,
    ) -> None:
        super().__init__()
        self.feature, self.by_product = Feature(what, num_types, in_channels), by_product
        self.linear = nn.Linear(in_channels, channels) if in_channels is not None else None
        self.rows = nn.Embedding(max(self.feature.width, 1), channels) if in_channels is None else None

    @property
    def expects_feature(self) -> bool:
        """Whether :meth:`forward` needs a feature."""
        return self.feature.counts is not None or self.feature.channels is not None

    def check(self, feature: Tensor | None, num_rows: int, checks: ValueChecks) -> None:
        """Check features' shapes and dtypes, and add checks of their values to ``checks``.

        Raises:
            ValueError: if features are missing or not expected, or have a wrong shape or dtype.
        """
        what = self.feature.what
        name, width = ("x", "in_channels") if what == "node" else ("edge_attr", "edge_dim")
        if feature is None and self.expects_feature:
            raise ValueError(f"the model was built for {what} features, but none were given: {name} is missing")
        if feature is not None and not self.expects_feature:
            width = f"{width}={feature.shape[1:].numel()}" if feature.is_floating_point() else f"num_{what}_types="
            raise ValueError(
                f"the model was built without {what} features, but some were given: make it with {width}, or call it "
                f"with {name}=None"
            )
        self.feature.check(feature, num_rows, checks)

    def forward(self, feature: Tensor | None, num_rows: int) -> Tensor:
        """Embed features that :meth:`check` has accepted.

        Args:
            feature: types int64 ``[num_rows]`` or ``[num_rows, num_columns]``, or features
                ``[num_rows, in_channels]``, or ``None``.
            num_rows: number of nodes or edges.

        Returns:
            ``[num_rows, channels]``.
        """
        if self.linear is not None:
            return self.linear(feature.to(self.linear.weight.dtype))  # type: ignore[union-attr]
        table = self.rows.weight  # type: ignore[union-attr]
        return table.expand(num_rows, -1) if feature is None else self.feature.product(feature, table, self.by_product)


class GraphFeatures(nn.Module):
    """Add a linear map of real graph features, standardised by the training set, to rows.

    Args:
        channels: number of features.
        width: width of the rows.

    Attributes:
        mean, std: mean and standard deviation of each feature, buffers ``[channels]`` that :meth:`fit` sets.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, width, bias=False)
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("std", torch.ones(channels))

    def reset_parameters(self) -> None:
        """Draw the weights again and reset the statistics."""
        self.linear.reset_parameters()
        self.mean.zero_()
        self.std.fill_(1)

    def fit(self, values: Tensor) -> None:
        """Compute the statistics of values ``[num_graphs, channels]``; a constant column has ``std`` 1."""
        values = values.double()
        varies = values.amax(0) > values.amin(0)  # the deviation of a constant column is rounding noise
        self.mean.copy_(values.mean(0))
        self.std.copy_(torch.where(varies, values.std(0, correction=0), 1.0))

    def check(self, values: Tensor | None, num_graphs: int) -> None:
        """Raise ``ValueError`` if features are missing, or have a wrong shape or dtype."""
        shape = [num_graphs, len(self.mean)]
        if not isinstance(values, Tensor) or list(values.shape) != shape or not values.is_floating_point():
            raise ValueError(f"graph_attr must be floating point {shape}, got {_form(values)}")

    def forward(self, rows: Tensor, values: Tensor, graph: Tensor | None) -> Tensor:
        """Return the rows plus the features of their graphs, ``[num_rows, width]``.

        Args:
            rows: ``[num_rows, width]``.
            values: ``[num_graphs, channels]``.
            graph: graph of each row, int64 ``[num_rows]``; ``None`` if each graph has one row.
        """
        mapped: Tensor = self.linear(((values - self.mean) / self.std).to(self.linear.weight.dtype))
        return rows + (mapped if graph is None else mapped.index_select(0, graph))


class EncodingEmbedding(nn.Linear):
    """Normalise a positional encoding and map it linearly to the hidden width.

    Args:
        in_channels: width of the encoding.
        channels: width of the result.
        norm: ``False`` for no normalisation, ``True`` for mean zero and variance one of each channel, ``"unit"`` for
            length one of each channel within each graph.
    """

    def __init__(self, in_channels: int, channels: int, norm: bool | str) -> None:
        super().__init__(in_channels, channels)
        self.norm = _encoding_norm(norm, in_channels)

    def reset_parameters(self) -> None:
        """Draw the weights again and reset the running statistics."""
        super().reset_parameters()
        norm = getattr(self, "norm", None)  # torch's constructor of Linear calls this method before norm is set
        if norm is not None:
            norm.reset_parameters()

    def forward(self, pe: Tensor, dtype: torch.dtype, graphs: RowGroups) -> Tensor:  # type: ignore[override]
        """Embed the encoding in ``dtype``, ``[num_rows, channels]``; ``graphs`` has the graph of each row."""
        pe = pe.to(dtype)
        return super().forward(pe if self.norm is None else self.norm(pe, graphs))


class EncodingChannels(nn.Module):
    """Normalise a positional encoding without a linear map, to concatenate it with embedded features.

    Args:
        in_channels: width of the encoding.
        norm: see :class:`EncodingEmbedding`.
    """

    def __init__(self, in_channels: int, norm: bool | str) -> None:
        super().__init__()
        self.in_features = in_channels
        self.norm = _encoding_norm(norm, in_channels)

    def forward(self, pe: Tensor, dtype: torch.dtype, graphs: RowGroups) -> Tensor:
        """Return the encoding in ``dtype``, ``[num_rows, channels]``; ``graphs`` has the graph of each row."""
        pe = pe.to(dtype)
        return pe if self.norm is None else self.norm(pe, graphs)


def _encoding_norm(norm: bool | str, channels: int) -> RowBatchNorm | UnitColumns | None:
    if not norm:
        return None
    return UnitColumns() if norm == "unit" else RowBatchNorm(channels, affine=False)
