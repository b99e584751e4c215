"""Read SMILES strings on several cores."""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from typing import Any

from tg_lpe.app.molecules import _molecule
from tg_lpe.app.molecules._molecule import Molecule
from tg_lpe.arguments import check_count

CHUNK = 250
# Largest number of unread chunks per worker.
_AHEAD = 4
# For fewer molecules, one process ends before others have started.
_WORTH_A_PROCESS = 1500


def resolve_num_workers(num_workers: int | None, num_molecules: int) -> int:
    """Return the number of worker processes; 0 means that the calling process does the work.

    Raises:
        ValueError: If `num_workers` is no integer, or negative.
    """
    if num_workers is not None:
        check_count("num_workers", num_workers, least=0)
        return num_workers
    # Elsewhere than on Linux, a worker runs the user's script again, which must be written for it.
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    return cores if cores > 1 and num_molecules >= _WORTH_A_PROCESS else 0


def read_smiles(
    smiles: Sequence[str | None], *, num_workers: int | None = None, chunk_size: int = CHUNK, **options: Any
) -> Iterator[tuple[list[str | None], list[Molecule | str]]]:
    """Yield chunks of `smiles`, in order, with the results of :func:`_molecule.process` and its options.

    Molecules take more memory than strings, so they are read only a few chunks ahead of the results.

    Raises:
        ValueError: If `num_workers` is negative.
        RuntimeError: If a worker process dies.
    """
    chunks = [list(smiles[start : start + chunk_size]) for start in range(0, len(smiles), chunk_size)]
    workers = min(resolve_num_workers(num_workers, len(smiles)), len(chunks))
    if workers == 0:
        yield from ((chunk, _molecule.process(chunk, **options)) for chunk in chunks)
        return
    # A copy of this process runs RDKit alone, and no code of torch's threads. The parent reports an interrupt.
    context = get_context("fork" if sys.platform == "linux" else "spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=partial(signal.signal, signal.SIGINT, signal.SIG_IGN))
    waiting: deque[tuple[list[str | None], Future[list[Molecule | str]]]] = deque()
    try:
        for chunk in chunks:
            waiting.append((chunk, pool.submit(_molecule.process, chunk, **options)))
            if len(waiting) > _AHEAD * workers:
                yield waiting[0][0], waiting.popleft()[1].result()
        while waiting:
            yield waiting[0][0], waiting.popleft()[1].result()
    except BrokenProcessPool as error:
        raise RuntimeError("a process that read molecules died; num_workers=0 reads them in this process") from error
    finally:
        pool.shutdown(cancel_futures=True)
