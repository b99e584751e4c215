"""Time and memory for the benchmarks."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, TypeVar

Name = TypeVar("Name", bound=Hashable)


def timed(run: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> tuple[Any, float]:
    """Return the result of a call and its seconds."""
    start = clock()
    return run(), clock() - start


def take_turns(
    runs: Mapping[Name, Callable[[], Any]], rounds: int, clock: Callable[[], float] = time.process_time
) -> dict[Name, list[float]]:
    """Return the seconds of calls that take turns, so that other load affects all of them; a first round warms up."""
    seconds: dict[Name, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            seconds[name].append(timed(run, clock)[1])
    return {name: times[1:] for name, times in seconds.items()}


def peak_gib() -> float:
    """Return the peak of this process's resident memory in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def in_own_process(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a call in a fork of this process, which has its own peak memory; nothing is imported again.

    Raises:
        BrokenProcessPool: if the fork is killed.
    """
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        return pool.submit(call, *arguments).result()
