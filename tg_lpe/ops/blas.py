"""Limit linear algebra to one thread for small matrices.

The threads of numpy and scipy compete with torch's, which still spin after an operation of torch: matrices of some
hundred rows take several times as long as on one thread. Torch starts a second thread even for a matrix of ten rows,
and waits until a busy processor runs it.
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
"""Sizes of matrices that use one thread: numpy and scipy start no threads below, and benefit from them above."""

WORTH_A_THREAD = 2**24
"""Above this number of multiplications (ten milliseconds), torch benefits from threads."""

_LOCK = threading.Lock()


def threads_for(num_rows: int) -> AbstractContextManager[None]:
    """Return a context in which numpy and scipy use one thread if more are slower for matrices of ``num_rows`` rows."""
    return one_thread() if num_rows in ONE_THREAD_ROWS else nullcontext()


def torch_threads_for(multiplications: float) -> AbstractContextManager[None]:
    """Return a context in which torch uses one thread if more are slower for this number of multiplications."""
    return nullcontext() if multiplications >= WORTH_A_THREAD or torch.get_num_threads() == 1 else alone()


@contextmanager
def one_thread() -> Iterator[None]:
    """Run numpy and scipy on one thread within a context.

    The number of threads belongs to the process, and one caller at a time sets and restores it. For another thread
    that calls meanwhile, the limit may end early, which costs time and changes results by rounding at most. Other code
    that sets the number at the same time may restore the limit of one; ``OPENBLAS_NUM_THREADS=1`` avoids this.
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
    """Run torch and the compiled part on the calling thread within a context.

    Only the calling thread is affected; ``torch.set_num_threads`` would change the number for the process.
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
    """Find the BLAS libraries, once: it takes milliseconds."""
    return ThreadpoolController().select(user_api="blas")


@functools.cache
def _torch_libraries() -> tuple[list[Any], Callable[[int], int] | None]:
    """Return the OpenMP libraries, which have a limit for each thread, and the function that sets it in torch's MKL."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    local = getattr(ctypes.CDLL(str(path)), "MKL_Set_Num_Threads_Local", None) if path.exists() else None
    return ThreadpoolController().select(user_api="openmp").lib_controllers, local
