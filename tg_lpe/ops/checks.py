"""Check values on a device, waiting for it once."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

Key = tuple[int, torch.dtype, tuple[int, ...], tuple[int, ...], int | None]
"""Address, dtype, shape and strides of a tensor, and the size of its range; ``None`` for finite values."""


class ValueChecks:
    """Collect conditions on the values of several tensors, and read their numbers from the device in one transfer.

    Reading a number from a GPU waits for all its work. A forward pass that collects its checks here waits once for all
    tensors. Inside ``torch.compile`` nothing is checked, since a compiled graph cannot wait.

    Args:
        known: keys of conditions that held before and are skipped, such as another object's :attr:`passed`.

    Attributes:
        passed: keys of the conditions that were checked here.
    """

    def __init__(self, known: Collection[Key] = ()) -> None:
        self._known = known
        self.passed: set[Key] = set()
        self._asked: set[Key] = set()
        self._numbers: list[Tensor] = []
        self._judges: list[Callable[[list[int]], None]] = []

    def in_range(self, name: str, index: Tensor, size: int) -> None:
        """Require all entries of an integer tensor to lie in ``0..size - 1``; ``name`` is its name in the message."""
        _check_dense(name, index)
        if index.numel() == 0 or torch.compiler.is_compiling() or self._is_known(index, size):
            return
        position = self.also_read(*torch.aminmax(index))

        def judge(read: list[int]) -> None:
            low, high = read[position : position + 2]
            if low < 0 or high >= size:
                raise ValueError(f"{name} must lie in 0..{size - 1}, got {low}..{high}")

        self._judges.append(judge)

    def finite(self, name: str, values: Tensor) -> None:
        """Require all entries of a floating point tensor to be finite."""
        _check_dense(name, values)
        if values.numel() == 0 or torch.compiler.is_compiling() or self._is_known(values, None):
            return
        # The extremes are NaN if any entry is; one pass over the values, and no tensor of their size.
        low, high = torch.aminmax(values.detach())
        position = self.also_read(torch.isfinite(low) & torch.isfinite(high))

        def judge(read: list[int]) -> None:
            if not read[position]:
                raise ValueError(f"{name} must be finite, got {int((~values.isfinite()).sum())} values that are not")

        self._judges.append(judge)

    def also_read(self, *numbers: Tensor) -> int:
        """Read further integers, each a tensor of shape ``[]``; return the position of the first in :meth:`run`."""
        position = len(self._numbers)
        self._numbers.extend(number.long() for number in numbers)
        return position

    def run(self) -> list[int]:
        """Read the numbers and check all conditions.

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
        """Check the conditions on the numbers that :meth:`read` returned."""
        for judge in self._judges:
            judge(numbers)
        self.passed |= self._asked

    def _is_known(self, values: Tensor, size: int | None) -> bool:
        """Return whether this condition was checked before; it counts as checked after :meth:`judge`."""
        key = (values.data_ptr(), values.dtype, tuple(values.shape), values.stride(), size)
        self._asked.add(key)
        return key in self._known or key in self.passed


def _check_dense(name: str, values: Tensor) -> None:
    """Refuse sparse tensors."""
    if values.layout != torch.strided:
        raise ValueError(f"{name} must be dense, got the layout {values.layout}; call to_dense() on it")
