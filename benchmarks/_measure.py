"""Timing for the benchmarks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch


def measure(run: Callable[[], Any], repeats: int, limit: float = 60.0) -> tuple[float, float]:
    """Return median and interquartile range of the seconds of a call; after two calls, none starts after ``limit``."""
    run()
    times: list[float] = []
    while len(times) < min(repeats, 2) or (len(times) < repeats and sum(times) < limit):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    low, middle, high = statistics.quantiles(times, n=4)
    return middle, high - low


def synchronize(device: torch.device) -> None:
    """Wait until a device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def on_device(run: Callable[[], Any], device: torch.device) -> Callable[[], Any]:
    """Return the call followed by a synchronisation of the device."""

    def wait() -> None:
        run()
        synchronize(device)

    return wait
