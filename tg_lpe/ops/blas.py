"""Threads of the linear algebra that numpy and scipy bring, apart from torch's.

numpy and scipy have threads of their own. Between operations of torch they compete with torch's, which still spin, and
matrices of some hundred rows take several times as long as on one thread.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import scipy.linalg  # noqa: F401  loads the library whose threads are counted below
from threadpoolctl import ThreadpoolController

ONE_THREAD_ROWS = range(65, 1025)
"""Sizes of matrices: below, what is called here starts no threads, and above, threads may pay."""

_LOCK = threading.Lock()


def threads_for(num_rows: int) -> AbstractContextManager[None]:
    """A context for algebra on matrices of so many rows: one thread where more take longer."""
    return one_thread() if num_rows in ONE_THREAD_ROWS else nullcontext()


@contextmanager
def one_thread() -> Iterator[None]:
    """A context in which numpy and scipy use one thread.

    The number of threads is the process's. One caller at a time sets it, and sets it back; for another thread that
    calls meanwhile it may end early, which costs time and changes results by rounding at most. Other code that sets the
    number in another thread at the same time may restore the number found here; ``OPENBLAS_NUM_THREADS=1`` avoids it.
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
