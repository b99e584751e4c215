"""Threads of linear algebra: one where work is small.

numpy and scipy have threads of their own. Between operations of torch they compete with torch's, which still spin, and
matrices of some hundred rows take several times as long as on one thread. torch asks for a second thread for a matrix
of ten rows, and waits until a busy processor runs it.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import scipy.linalg  # noqa: F401  loads the library whose threads are counted below
import torch
from threadpoolctl import ThreadpoolController

ONE_THREAD_ROWS = range(65, 1025)
"""Sizes of matrices: below, numpy and scipy start no threads, and above, threads may pay."""

WORTH_A_THREAD = 2**24
"""Multiplications from which on torch's threads pay: ten milliseconds of them."""

_LOCK = threading.Lock()


def threads_for(num_rows: int) -> AbstractContextManager[None]:
    """A context for numpy and scipy on matrices of so many rows: one thread where more take longer."""
    return one_thread() if num_rows in ONE_THREAD_ROWS else nullcontext()


def torch_threads_for(multiplications: float) -> AbstractContextManager[None]:
    """A context for torch on the CPU with so much work: one thread where others would only be waited for."""
    return nullcontext() if multiplications >= WORTH_A_THREAD or torch.get_num_threads() == 1 else alone()


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


@contextmanager
def alone() -> Iterator[None]:
    """A context in which torch computes in the calling thread, and so does the compiled part.

    The number is the calling thread's: other threads keep theirs. ``torch.set_num_threads`` would change the process's.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    openmp, local = _torch_libraries()
    for library in openmp:
        library.set_num_threads(1)
    before = local(1) if local else 0
    try:
        yield
    finally:
        for library in openmp:
            library.set_num_threads(threads)
        if local:
            local(before)


@functools.cache
def _libraries() -> ThreadpoolController:
    """The libraries, found once: that takes milliseconds."""
    return ThreadpoolController().select(user_api="blas")


@functools.cache
def _torch_libraries() -> tuple[list[Any], Callable[[int], int] | None]:
    """OpenMP's libraries, which give each thread a number of its own, and the function by which torch's MKL does."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    local = getattr(ctypes.CDLL(str(path)), "MKL_Set_Num_Threads_Local", None) if path.exists() else None
    return ThreadpoolController().select(user_api="openmp").lib_controllers, local
