"""Differentiable operations on a batch that is divided among processes.

Inside :func:`divided`, each process of torch's default group has some graphs of a batch, and all processes call these
functions in the same order. Gradients are those of the mean of the processes' losses, so a loss that all processes
compute from gathered rows has the gradients of a single process with the whole batch. Outside of :func:`divided`, each
function returns its argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_is_divided = False


def num_processes() -> int:
    """Return the number of processes of torch's default group; 1 without a group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def process_number() -> int:
    """Return this process's rank in torch's default group; 0 without a group."""
    return dist.get_rank() if num_processes() > 1 else 0


def communication_device() -> torch.device:
    """Return the device of tensors that processes exchange."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")


@contextmanager
def divided(yes: bool = True) -> Iterator[None]:
    """Treat a model's input as one process's part of a batch inside a ``with`` block, if ``yes``."""
    global _is_divided
    previous, _is_divided = _is_divided, yes and num_processes() > 1
    try:
        yield
    finally:
        _is_divided = previous


def is_divided() -> bool:
    """Return whether other processes have rows of the same batch."""
    return _is_divided


def gather(x: Tensor) -> Tensor:
    """Concatenate the rows of all processes, ``[num_rows, ...]``.

    Args:
        x: the rows of this process, ``[local_rows, ...]``; processes may have different numbers of rows.
    """
    if not _is_divided:
        return x
    return _gathered(x, _sizes(x.size(0)))


def mean(value: Tensor, weight: int) -> Tensor:
    """Compute the weighted mean of a scalar over the processes, for example of their means over rows."""
    if not _is_divided:
        return value
    rows = _gathered(torch.stack([weight * value, torch.full_like(value, weight)]).unsqueeze(0))
    total, weights = rows.sum(0)
    return total / weights.clamp(min=1)


def moments(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the number, the mean and the sum of squared deviations of the rows of all processes.

    Args:
        x: the rows of this process, floating point ``[local_rows, channels]``.

    Returns:
        A scalar, ``[channels]`` and ``[channels]``, without synchronising with the device.
    """
    local_mean = x.sum(0) / max(x.size(0), 1)
    local = [x.new_full((1,), x.size(0)), local_mean, (x - local_mean).square().sum(0)]
    # A single exchange that is as exact as two passes, because deviations are from local means.
    counts, means, squares = _gathered(torch.cat(local).unsqueeze(0)).split([1, x.size(1), x.size(1)], dim=1)
    count = counts.sum()
    overall = (counts * means).sum(0) / count.clamp(min=1)
    return count, overall, (squares + counts * (means - overall).square()).sum(0)


def rows_before(num_rows: int) -> tuple[int, int]:
    """Return the number of rows of all previous processes, and the number of rows of all processes."""
    if not _is_divided:
        return 0, num_rows
    sizes = _sizes(num_rows)
    return sum(sizes[: process_number()]), sum(sizes)


def _sizes(num_rows: int) -> list[int]:
    """Return ``num_rows`` of each process."""
    local = torch.tensor([num_rows], device=communication_device())
    sizes = [torch.empty_like(local) for _ in range(num_processes())]
    dist.all_gather(sizes, local)
    numbers: list[int] = torch.cat(sizes).tolist()
    return numbers


def _gathered(x: Tensor, sizes: list[int] | None = None) -> Tensor:
    """Concatenate the rows of all processes; by default, each has one row."""
    if torch.is_grad_enabled() and x.is_floating_point() and not x.requires_grad:
        x = x.detach().requires_grad_()  # all processes must take part in the exchange of gradients
    out: Tensor = _Gather.apply(x, sizes or [1] * num_processes())  # type: ignore[no-untyped-call]
    return out


class _Gather(torch.autograd.Function):
    """Concatenate the rows of all processes; gradients are summed over processes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: list[int]) -> Tensor:
        ctx.sizes = sizes
        padded = x.new_zeros(max(sizes), *x.shape[1:])  # some backends need equal shapes
        padded[: x.size(0)] = x
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        grad = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(grad)
        return grad.split(ctx.sizes)[process_number()], None
