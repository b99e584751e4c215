"""Integer features: one column of categories, or several."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tg_lpe.ops.checks import ValueChecks

MAX_PRODUCT_ROWS = 256
"""Rows of a table up to which it is looked up by products: a zero-one matrix of all rows is written out for them."""


class Categories:
    """The columns of an integer feature, and where the categories of each lie in one table.

    A row of several columns stands for the sum of their rows of the table, as in ogb's encoders of atoms and bonds.

    Args:
        what: name of the feature, for error messages.
        counts: number of categories of the one column, or of each of several.

    Attributes:
        counts: number of categories of each column.
        num_rows: rows of the table, one per category of each column.

    Raises:
        ValueError: if a number of categories is not an integer of at least 1.
    """

    def __init__(self, what: str, counts: int | Sequence[int]) -> None:
        self.what = what
        self.counts = (counts,) if isinstance(counts, int) else tuple(counts)
        if not self.counts or not all(isinstance(count, int) and count >= 1 for count in self.counts):
            raise ValueError(f"numbers of {what} types must be integers of at least 1, got {counts!r}")
        self.num_rows = sum(self.counts)

    def check(self, feature: Tensor | None, num_rows: int, checks: ValueChecks) -> None:
        """Refuse a feature of the wrong form; the range of its categories is left to ``checks``.

        Raises:
            ValueError: if it is missing, or of another shape or dtype.
        """
        columns = len(self.counts)
        shapes = ((num_rows,), (num_rows, 1)) if columns == 1 else ((num_rows, columns),)
        if not isinstance(feature, Tensor) or feature.shape not in shapes or feature.dtype != torch.int64:
            allowed = " or ".join(str(list(shape)) for shape in shapes)
            got = f"{feature.dtype} {list(feature.shape)}" if isinstance(feature, Tensor) else repr(feature)[:80]
            raise ValueError(f"{self.what} types must be int64 {allowed}, got {got}")
        if columns == 1:
            checks.in_range(f"{self.what} types", feature, self.num_rows)
        else:
            for number, count in enumerate(self.counts):
                checks.in_range(f"{self.what}[:, {number}] types", feature[:, number], count)

    def look_up(self, table: Tensor, feature: Tensor, by_product: bool) -> Tensor:
        """Rows of a table, summed over the columns.

        Args:
            table: ``[num_rows of the table, width]``.
            feature: what :meth:`check` has accepted.
            by_product: multiply by a zero-one matrix. Its backward pass is a product too, which is faster than a
                scattered sum where there are many rows and few categories.

        Returns:
            ``[num_rows, width]``.
        """
        if len(self.counts) == 1:
            rows = feature.reshape(-1, 1)
        else:
            first = [sum(self.counts[:number]) for number in range(len(self.counts))]
            rows = feature + torch.tensor(first).to(feature.device, non_blocking=True)
        if not by_product or self.num_rows > MAX_PRODUCT_ROWS:
            found = torch.nn.functional.embedding(rows, table)
            return found.squeeze(1) if len(self.counts) == 1 else found.sum(1)
        categories = torch.arange(self.num_rows, device=rows.device)  # one_hot() would wait for the device
        return (rows.unsqueeze(2) == categories).any(1).to(table.dtype) @ table
