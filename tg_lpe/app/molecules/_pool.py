"""Read SMILES strings on several cores, without multiprocessing.

A process pool runs the user's script again in every worker (spawn), or copies a process with torch's threads (fork).
Here a worker is a separate interpreter that loads `_molecule.py` and answers JSON lines. It needs no
`if __name__ == "__main__"` guard, does not import torch, and works from scripts, notebooks and test runners. joblib's
workers took 2.1 to 2.8 times as long for 10,000 to 20,000 molecules, and its generator does not bound the number of
unread results.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from operator import length_hint
from typing import IO, Any, cast

from tg_lpe.app.molecules import _molecule
from tg_lpe.arguments import check_count

CHUNK = 250
# Largest number of unread chunks per worker.
_AHEAD = 4
# For fewer molecules, one process ends before a second one has started.
_WORTH_A_PROCESS = 1500

_BOOTSTRAP = """
import importlib.util, json, sys
setup = json.loads(sys.stdin.buffer.readline())
sys.path[:] = setup["path"]
spec = importlib.util.spec_from_file_location("tg_lpe_molecule_worker", setup["file"])
module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.serve(sys.stdin.buffer, sys.stdout.buffer)
"""


def resolve_num_workers(num_workers: int | None, num_molecules: int) -> int:
    """Return the number of worker processes; 0 means that the calling process does the work.

    Raises:
        ValueError: If `num_workers` is no integer, or negative.
    """
    if num_workers is not None:
        check_count("num_workers", num_workers, least=0)
        return num_workers
    if num_molecules < _WORTH_A_PROCESS:
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores if cores > 1 else 0


def read_smiles(
    smiles: Iterable[str | None],
    *,
    num_workers: int | None = None,
    chunk_size: int = CHUNK,
    **options: Any,
) -> Iterator[dict[str, Any]]:
    """Yield the answers of :func:`_molecule.process` for chunks of `smiles`, in order, each with its `smiles`.

    The options are those of :func:`_molecule.process`. `smiles` may be longer than memory: it is read only a few chunks
    ahead of the answers. If its length is unknown, `num_workers=None` starts no worker.

    Raises:
        ValueError: If `num_workers` is negative.
        RuntimeError: If a worker process dies or fails.
    """
    length = length_hint(smiles)
    workers = resolve_num_workers(num_workers, length)
    workers = min(workers, -(-length // chunk_size)) if length else workers
    strings = iter(smiles)
    chunks = iter(lambda: list(islice(strings, chunk_size)), [])
    if workers > 0:
        yield from _in_workers(({"smiles": chunk, **options} for chunk in chunks), workers)
    else:
        yield from ({"smiles": chunk, **_molecule.process(chunk, **options)} for chunk in chunks)


def _in_workers(requests: Iterable[dict[str, Any]], num_workers: int) -> Iterator[dict[str, Any]]:
    workers: list[_Worker] = []
    idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        worker = idle.get()
        try:
            return {"smiles": request["smiles"], **worker.ask(request)}
        finally:
            idle.put(worker)

    threads = ThreadPoolExecutor(num_workers, thread_name_prefix="tg_lpe-molecules")
    try:
        for _ in range(num_workers):
            workers.append(_Worker())
            idle.put(workers[-1])
        answers: deque[Future[dict[str, Any]]] = deque()
        for request in requests:
            answers.append(threads.submit(answer, request))
            if len(answers) > _AHEAD * num_workers:
                yield answers.popleft().result()
        while answers:
            yield answers.popleft().result()
    finally:
        # Stop the workers first, since a thread may still wait for an answer.
        for worker in workers:
            worker.stop()
        threads.shutdown(cancel_futures=True)


class _Worker:
    def __init__(self) -> None:
        # Isolated (-I), so that a json.py in the current folder is not imported before sys.path is set.
        command = [sys.executable, "-I", "-c", _BOOTSTRAP]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._input, self._output = cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)
        self._send({"path": [str(entry) for entry in sys.path], "file": _molecule.__file__})

    def _send(self, message: dict[str, Any]) -> None:
        self._input.write(json.dumps(message).encode("ascii") + b"\n")
        self._input.flush()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send one request and wait for its answer; raise a `RuntimeError` if the worker dies or fails."""
        line = b""
        with contextlib.suppress(BrokenPipeError):  # a dead worker leaves an empty line, handled below
            self._send(request)
            line = self._output.readline()
        if not line.endswith(b"\n"):
            molecules = f"the {len(request['smiles'])} molecules from {request['smiles'][0]!r} on"
            fault = f"a molecule worker died with exit code {self._process.wait()} while it read {molecules}"
            raise RuntimeError(f"{fault}; num_workers=0 reads them without workers")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"a molecule worker failed: {answer['error']}")
        return answer

    def stop(self) -> None:
        # A worker has no state to save, and nobody needs its current chunk.
        self._process.kill()
        self._process.wait()
        for pipe in (self._input, self._output):
            with contextlib.suppress(OSError):
                pipe.close()
