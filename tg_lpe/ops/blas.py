"""Threads of the linear algebra that numpy and scipy bring, apart from torch's.

numpy and scipy have threads of their own. Between operations of torch they compete with torch's, which still spin: what
matrices of 70 rows need then takes ten times as long as on one thread, at 500 rows twice.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import scipy.linalg  # noqa: F401  loads the library whose threads are counted below
from threadpoolctl import ThreadpoolController

ONE_THREAD_NODES = range(65, 1025)
"""Sizes of graphs: below, the libraries start no threads, and above, threads may pay."""

P = ParamSpec("P")
R = TypeVar("R")


class Sized(Protocol):
    """What has graphs of some size."""

    @property
    def max_nodes(self) -> int:
        """Nodes of the largest graph."""


G = TypeVar("G", bound=Sized)


_LOCK = threading.Lock()


@contextmanager
def one_thread() -> Iterator[None]:
    """A context in which numpy and scipy use one thread.

    The setting is the process's. So it is made by one caller at a time, who also sets it back; for another within that
    time it may end early, which costs time and changes no result.
    """
    if not _LOCK.acquire(blocking=False):
        yield
        return
    try:
        with _libraries().limit(limits=1):
            yield
    finally:
        _LOCK.release()


@functools.cache
def _libraries() -> ThreadpoolController:
    """The libraries, found once: that takes milliseconds."""
    return ThreadpoolController().select(user_api="blas")


def on_one_thread(function: Callable[Concatenate[G, P], R]) -> Callable[Concatenate[G, P], R]:
    """Decorator of a function of a batch whose matrices are as large as its graphs, mostly."""

    @functools.wraps(function)
    def run(graph: G, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if graph.max_nodes not in ONE_THREAD_NODES:
            return function(graph, *args, **kwargs)
        with one_thread():
            return function(graph, *args, **kwargs)

    return run
