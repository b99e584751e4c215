"""A feature of nodes or edges: integer types, real values, or none."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tg_lpe.nn.categories import Categories
from tg_lpe.ops.checks import ValueChecks


class Feature:
    """Kind of the features of a map: types of one or several columns, real values, or nothing.

    Args:
        what: ``"node"`` or ``"edge"``, for error messages.
        num_types: number of categories of an integer feature, of each column if there are several.
        channels: width of a real feature; exclusive with ``num_types``.

    Attributes:
        categories: the columns of an integer feature; ``None`` of a real one and without any.
        width: rows of the table, or of the transposed weight of the linear map, that takes it; 0 without a feature.

    Raises:
        ValueError: if both kinds are asked for.
    """

    def __init__(self, what: str, num_types: int | Sequence[int] | None, channels: int | None) -> None:
        if num_types is not None and channels is not None:
            raise ValueError(
                f"{what}s have either types or real features, got {num_types} types and {channels} channels"
            )
        self.what, self.channels = what, channels
        self.categories = None if num_types is None else Categories(what, num_types)
        self.width = (channels or 0) if self.categories is None else self.categories.num_rows

    @property
    def is_expected(self) -> bool:
        """Whether there is such a feature."""
        return self.categories is not None or self.channels is not None

    def check(self, feature: Tensor | None, num_rows: int, checks: ValueChecks) -> None:
        """Refuse types or real values of the wrong form; their range is left to ``checks``.

        Raises:
            ValueError: if the feature is expected and missing, or of another shape or dtype.
        """
        if self.categories is not None:
            self.categories.check(feature, num_rows, checks)
        elif self.channels is not None:
            shape = [num_rows, self.channels]
            if not isinstance(feature, Tensor) or list(feature.shape) != shape or not feature.is_floating_point():
                got = f"{feature.dtype} {list(feature.shape)}" if isinstance(feature, Tensor) else repr(feature)[:80]
                raise ValueError(f"{self.what} features must be floating point {shape}, got {got}")
            checks.finite(f"{self.what} features", feature)

    def product(self, feature: Tensor | None, weight: Tensor, by_product: bool | None = None) -> Tensor:
        """Rows of a table by types, or real values times it, ``[num_rows, channels]``.

        Args:
            feature: what :meth:`check` has accepted.
            weight: ``[width, channels]``.
            by_product: as :meth:`~tg_lpe.nn.categories.Categories.look_up`; if absent, where a gradient is needed.
                Under autocast a product is in the lower precision, so that values depend on it.
        """
        assert feature is not None  # as check() has seen
        if self.categories is None:
            return feature.to(weight.dtype) @ weight
        if by_product is None:
            by_product = torch.is_grad_enabled() and weight.requires_grad
        return self.categories.look_up(weight, feature, by_product)
