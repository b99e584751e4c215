"""Checks of values on a device that wait for it once."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from tg_lpe.ops.operator import is_transforming

Key = tuple[int, torch.dtype, tuple[int, ...], tuple[int, ...], int | None]
"""Where values lie, their form, and the range that they must lie in; ``None`` for finite ones."""


class ValueChecks:
    """Conditions on the values of several tensors; their numbers are read from the device in one transfer.

    Reading a number from a GPU waits until it has done all work that was asked of it. A forward pass that collects its
    checks here waits once, however many tensors it checks. Inside ``torch.compile`` nothing is checked: a graph that is
    compiled as a whole cannot wait.

    Args:
        known: keys of ranges that held before and are not asked again, as another object's :attr:`passed`.

    Attributes:
        passed: keys of the tensors that were checked here, and their ranges.
    """

    def __init__(self, known: Collection[Key] = ()) -> None:
        self._known = known
        self.passed: set[Key] = set()
        self._asked: set[Key] = set()
        self._numbers: list[Tensor] = []
        self._judges: list[Callable[[list[int]], None]] = []

    def in_range(self, what: str, index: Tensor, size: int) -> None:
        """Ask that all entries of an integer tensor lie in ``0..size - 1``; ``what`` names them in the message."""
        _check_dense(what, index)
        if index.numel() == 0 or torch.compiler.is_compiling():
            return
        if self._is_known(index, size):
            return
        position = self.also_read(*torch.aminmax(index))

        def judge(read: list[int]) -> None:
            low, high = read[position : position + 2]
            if low < 0 or high >= size:
                raise ValueError(f"{what} must lie in 0..{size - 1}, got {low}..{high}")

        self._judges.append(judge)

    def finite(self, what: str, values: Tensor) -> None:
        """Ask that no entry of a floating point tensor is NaN or infinite."""
        _check_dense(what, values)
        if values.numel() == 0 or torch.compiler.is_compiling():
            return
        if self._is_known(values, None):
            return
        # The extremes are NaN if any entry is; one pass over the values, and no tensor of their size.
        low, high = torch.aminmax(values.detach())
        position = self.also_read(torch.isfinite(low) & torch.isfinite(high))

        def judge(read: list[int]) -> None:
            if not read[position]:
                raise ValueError(f"{what} must be finite, got {int((~values.isfinite()).sum())} values that are not")

        self._judges.append(judge)

    def also_read(self, *numbers: Tensor) -> int:
        """Have integers read as well, each a tensor of shape ``[]``; returns where :meth:`run` puts the first."""
        position = len(self._numbers)
        self._numbers.extend(number.long() for number in numbers)
        return position

    def run(self) -> list[int]:
        """Read the numbers and judge them.

        Returns:
            All numbers that were read.

        Raises:
            ValueError: on the first condition that does not hold.
        """
        numbers = self.read()
        if self._judges:
            self.judge(numbers)
        return numbers

    def read(self) -> list[int]:
        """Read the numbers."""
        return torch.stack(self._numbers).tolist() if self._numbers else []

    def judge(self, numbers: list[int]) -> None:
        """Judge the numbers that :meth:`read` returned."""
        for judge in self._judges:
            judge(numbers)
        self.passed |= self._asked

    def _is_known(self, values: Tensor, size: int | None) -> bool:
        """Whether these values were checked before; they count as checked once the numbers are judged."""
        if is_transforming():  # such tensors have no memory of their own
            return False
        key = (values.data_ptr(), values.dtype, tuple(values.shape), values.stride(), size)
        self._asked.add(key)
        return key in self._known or key in self.passed


def _check_dense(what: str, values: Tensor) -> None:
    """Refuse sparse tensors."""
    if values.layout != torch.strided:
        raise ValueError(f"{what} must be dense, got the layout {values.layout}; its method to_dense() makes it so")
