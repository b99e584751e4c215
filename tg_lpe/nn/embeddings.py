"""First maps of node and edge features, and of positional encodings, into the hidden width."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tg_lpe.nn.feature import Feature
from tg_lpe.nn.norms import RowBatchNorm, UnitColumns
from tg_lpe.ops.checks import ValueChecks
from tg_lpe.ops.segment import RowGroups

ENCODING_NORMS = (False, True, "unit")


class FeatureEmbedding(nn.Module):
    """Categories through a table, real features through a linear map, and without features one learned row for all.

    Args:
        what: ``"node"`` or ``"edge"``, for error messages.
        num_types: number of categories, of each column if there are several, whose rows are added up; exclusive with
            ``in_channels``.
        in_channels: width of real features.
        channels: width of the result.
        by_product: as :meth:`~tg_lpe.nn.categories.Categories.look_up`.

    Raises:
        ValueError: if both kinds of features are asked for.
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
        """Whether it was built for features."""
        return self.feature.is_expected

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        (self.linear if self.linear is not None else self.rows).reset_parameters()  # type: ignore[union-attr]

    def check(self, feature: Tensor | None, num_rows: int, checks: ValueChecks) -> None:
        """Refuse features that :meth:`forward` cannot map; their values are left to ``checks``.

        Raises:
            TypeError: if they are no tensor.
            ValueError: if features are missing, not expected, or of another shape or dtype.
        """
        what = self.feature.what
        name, width = ("x", "in_channels") if what == "node" else ("edge_attr", "edge_dim")
        if feature is not None and not isinstance(feature, Tensor):
            raise TypeError(f"{what} features must be a tensor, got {type(feature).__name__}")
        if feature is None and self.expects_feature:
            raise ValueError(f"the model was built for {what} features, but none were given: {name} is missing")
        if feature is not None and not self.expects_feature:
            is_real = feature.is_floating_point()
            option = f"{width}={feature.size(-1)}" if is_real else f"num_{what}_types=, the number of categories"
            raise ValueError(
                f"the model was built without {what} features, but some were given: make it with {option}, or call it "
                f"with {name}=None"
            )
        self.feature.check(feature, num_rows, checks)

    def forward(self, feature: Tensor | None, num_rows: int) -> Tensor:
        """Embed features that :meth:`check` has accepted.

        Args:
            feature: categories int64 ``[num_rows]`` or ``[num_rows, num_columns]``, or features
                ``[num_rows, in_channels]``, or ``None``.
            num_rows: number of nodes or edges.

        Returns:
            ``[num_rows, channels]``.
        """
        if self.linear is not None:
            return self.linear(feature.to(self.linear.weight.dtype))  # type: ignore[union-attr]
        table = self.rows.weight  # type: ignore[union-attr]
        return table.expand(num_rows, -1) if feature is None else self.feature.product(feature, table, self.by_product)


class EncodingEmbedding(nn.Linear):
    """Linear map of a positional encoding into the hidden width, after normalisation if asked for.

    Args:
        what: ``"pe"`` or ``"edge_pe"``, for error messages.
        in_channels: width of the encoding.
        channels: width of the result.
        norm: one of :data:`ENCODING_NORMS`: whether each channel is first brought to mean zero and variance one, or to
            length one within each graph.
    """

    def __init__(self, what: str, in_channels: int, channels: int, norm: bool | str) -> None:
        super().__init__(in_channels, channels)
        self.what = what
        self.norm = _encoding_norm(norm, in_channels)

    def reset_parameters(self) -> None:
        """Draw the weights anew and forget the running statistics."""
        super().reset_parameters()
        norm = getattr(self, "norm", None)  # torch's constructor of Linear calls this method before there is one
        if norm is not None:
            norm.reset_parameters()

    def checked(self, pe: Tensor | None, num_rows: int) -> Tensor:
        """``pe``, if it is what :meth:`forward` can map.

        Raises:
            ValueError: if it is missing or of another shape.
        """
        return _checked_encoding(self.what, pe, num_rows, self.in_features)

    def forward(self, pe: Tensor, dtype: torch.dtype, graphs: RowGroups) -> Tensor:  # type: ignore[override]
        """Embedded encoding ``[num_rows, channels]``, computed in ``dtype``; ``graphs`` has the graph of each row."""
        pe = pe.to(dtype)
        return super().forward(pe if self.norm is None else self.norm(pe, graphs))


class EncodingChannels(nn.Module):
    """A positional encoding as it is, or normalised, to stand beside embedded features.

    Args:
        what: ``"pe"`` or ``"edge_pe"``, for error messages.
        channels: width of the encoding.
        norm: as for :class:`EncodingEmbedding`.
    """

    def __init__(self, what: str, channels: int, norm: bool | str) -> None:
        super().__init__()
        self.what, self.channels = what, channels
        self.norm = _encoding_norm(norm, channels)

    def checked(self, pe: Tensor | None, num_rows: int) -> Tensor:
        """``pe``, if it has the right shape.

        Raises:
            ValueError: if it is missing or of another shape.
        """
        return _checked_encoding(self.what, pe, num_rows, self.channels)

    def forward(self, pe: Tensor, dtype: torch.dtype, graphs: RowGroups) -> Tensor:
        """The encoding ``[num_rows, channels]`` in ``dtype``; ``graphs`` has the graph of each row."""
        pe = pe.to(dtype)
        return pe if self.norm is None else self.norm(pe, graphs)


def _encoding_norm(norm: bool | str, channels: int) -> RowBatchNorm | UnitColumns | None:
    if not norm:
        return None
    return UnitColumns() if norm == "unit" else RowBatchNorm(channels, affine=False)


def _checked_encoding(what: str, pe: Tensor | None, num_rows: int, width: int) -> Tensor:
    if pe is None or pe.shape != (num_rows, width):
        raise ValueError(f"{what} must have shape {(num_rows, width)}, got {None if pe is None else tuple(pe.shape)}")
    return pe
