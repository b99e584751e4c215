"""Compute random numbers as functions of a counter: the same in every batch, on every device."""

from __future__ import annotations

import torch
from torch import Tensor


def counter_normal(seed: int, num_rows: int, num_columns: int, like: Tensor) -> Tensor:
    """Draw standard normal numbers, ``[num_rows, num_columns]``, each a function of ``(seed, row, column)`` alone.

    Unlike a stateful generator, this counter-based one (the finaliser of SplitMix64 on a Weyl sequence, then
    Box-Muller) gives a row the same values for any number of rows, and on every device up to rounding.

    Args:
        seed: any 64-bit integer.
        num_rows, num_columns: shape of the result.
        like: tensor whose device and dtype the result takes.
    """
    row, column = (_next(torch.arange(size, device=like.device)) for size in (num_rows, 2 * num_columns))
    # Two rounds keep rows and columns of neighbouring counters unrelated; int64 products wrap around as intended.
    bits = _mix(_mix(row.unsqueeze(-1) * _WEYL + signed_64(seed)) + column * _WEYL)
    uniform = ((bits >> 11) & (2**53 - 1)).to(torch.float64).add_(0.5).mul_(2.0**-53)
    radius = uniform[:, 0::2].log().mul_(-2.0).sqrt_()
    return radius.mul_(uniform[:, 1::2].mul(2 * torch.pi).cos_()).to(like.dtype)


def counter_signs(seed: int, num_rows: int, columns: Tensor, like: Tensor, first_row: int = 0) -> Tensor:
    """Draw signs, ``[num_rows, num_columns]``, functions of ``(seed, row, column)`` alone; see :func:`counter_normal`.

    Args:
        seed: any 64-bit integer.
        num_rows: number of rows.
        columns: indices of the columns, int64 ``[num_columns]``.
        like: tensor whose device and dtype the result takes.
        first_row: index of the first row.
    """
    row = _next(torch.arange(first_row, first_row + num_rows, device=like.device)).unsqueeze(-1)
    bits = _mix(_mix(row * _WEYL + signed_64(seed)) + _next(columns.to(like.device)) * _WEYL)
    return (((bits >> 40) & 1) * 2 - 1).to(like.dtype)


def signed_64(value: int) -> int:
    """Convert a 64-bit pattern to the signed integer with the same bits."""
    return value if -(2**63) <= value < 2**63 else (value + 2**63) % 2**64 - 2**63  # compiled seeds hold no 2**63


_WEYL = signed_64(0x9E3779B97F4A7C15)
_MIX1 = signed_64(0xBF58476D1CE4E5B9)
_MIX2 = signed_64(0x94D049BB133111EB)


def _next(index: Tensor) -> Tensor:
    """Add one by a sum: the default backend of torch.compile does not wrap products of an arange around."""
    return index.diff(prepend=index.new_full((1,), -1)).cumsum(0)


def _mix(z: Tensor) -> Tensor:
    z = (z ^ ((z >> 30) & (2**34 - 1))) * _MIX1
    z = (z ^ ((z >> 27) & (2**37 - 1))) * _MIX2
    return z ^ ((z >> 31) & (2**33 - 1))
