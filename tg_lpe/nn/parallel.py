"""A batch that several processes divide among them: what is read off all of its rows, with gradients.

Inside of :func:`divided` each process of torch's default group has some graphs of a batch and calls these functions in
the same order as all others. What is differentiated is the mean over the processes of the value that each of them
computes, so a loss that all compute from gathered rows has the gradients of one process with the whole batch. Elsewhere
a process is by itself, and each function returns what it is given.
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
    """Processes of torch's default group; 1 where there is none."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def process_number() -> int:
    """This process's number in that group, from 0."""
    return dist.get_rank() if num_processes() > 1 else 0


def communication_device() -> torch.device:
    """Where tensors lie that the processes exchange besides those of a model."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")


@contextmanager
def divided(yes: bool = True) -> Iterator[None]:
    """In this context the rows of a model's input are one process's part of a batch, unless ``yes`` is false."""
    global _is_divided
    before, _is_divided = _is_divided, yes and num_processes() > 1
    try:
        yield
    finally:
        _is_divided = before


def is_divided() -> bool:
    """Whether other processes have rows of the same batch."""
    return _is_divided


def gather(x: Tensor) -> Tensor:
    """The rows of all processes, one process after the other: ``[num_rows, ...]`` of the whole batch.

    Args:
        x: the rows of this process, ``[own_rows, ...]``; their number may differ, all other sizes are the same.
    """
    if not _is_divided:
        return x
    return _gathered(x, _sizes(x.size(0)))


def mean(value: Tensor, weight: int) -> Tensor:
    """The weighted mean of a scalar over the processes, such as of a mean over the rows of each of them."""
    if not _is_divided:
        return value
    rows = _gathered(torch.stack([weight * value, torch.full_like(value, weight)]).unsqueeze(0))
    total, weights = rows.sum(0)
    return total / weights.clamp(min=1)


def moments(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of the rows of all processes: their number, their mean and the sum of their squared distances from it.

    Args:
        x: the rows of this process, floating point ``[own_rows, channels]``.

    Returns:
        A scalar, ``[channels]`` and ``[channels]``; nothing waits for the device.
    """
    own_mean = x.sum(0) / max(x.size(0), 1)
    local = [x.new_full((1,), x.size(0)), own_mean, (x - own_mean).square().sum(0)]
    # One exchange, and as exact as two passes: squares are taken about means.
    counts, means, squares = _gathered(torch.cat(local).unsqueeze(0)).split([1, x.size(1), x.size(1)], dim=1)
    count = counts.sum()
    of_all = (counts * means).sum(0) / count.clamp(min=1)
    return count, of_all, (squares + counts * (means - of_all).square()).sum(0)


def rows_before(num_rows: int) -> tuple[int, int]:
    """Of rows that all processes have together: how many come before this process's, and how many there are."""
    if not _is_divided:
        return 0, num_rows
    sizes = _sizes(num_rows)
    return sum(sizes[: process_number()]), sum(sizes)


def _sizes(num_rows: int) -> list[int]:
    """``num_rows`` of each process."""
    local = torch.tensor([num_rows], device=communication_device())
    sizes = [torch.empty_like(local) for _ in range(num_processes())]
    dist.all_gather(sizes, local)
    numbers: list[int] = torch.cat(sizes).tolist()
    return numbers


def _gathered(x: Tensor, sizes: list[int] | None = None) -> Tensor:
    """Rows of all processes; ``sizes`` of each, one row each if absent."""
    if torch.is_grad_enabled() and x.is_floating_point() and not x.requires_grad:
        x = x.detach().requires_grad_()  # all processes have to come to the exchange of gradients
    out: Tensor = _Gather.apply(x, sizes or [1] * num_processes())  # type: ignore[no-untyped-call]
    return out


class _Gather(torch.autograd.Function):
    """Rows of all processes; gradients of a process's rows are summed over what all processes did with them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: list[int]) -> Tensor:
        ctx.sizes = sizes
        padded = x.new_zeros(max(sizes), *x.shape[1:])  # equal shapes, which every backend can exchange
        padded[: x.size(0)] = x
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        grad = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(grad)
        return grad.split(ctx.sizes)[process_number()], None
