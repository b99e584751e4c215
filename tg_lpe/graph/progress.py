"""Show progress of long computations on large graphs, and warn with a faster choice."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Event, Thread

import numpy as np
import torch
from scipy.sparse import csr_matrix
from tqdm import tqdm

from tg_lpe.graph.components import Array

SHOWN_AFTER = 10.0
"""Progress is shown for computations that are estimated to take more seconds than this."""

WARNED_AFTER = 60.0
"""A warning names a faster choice if a computation is estimated to take more seconds than this."""

LINEAR = "LinearTransformerPE(16), whose time is proportional to the edges"
FASTER_WALKS = f"fewer steps, or {LINEAR}"
"""The faster choices that warnings name."""

SAMPLED = 32
"""Number of nodes from which the time of sparse walks is estimated."""

MANY_PAIRS = 2**28
"""A warning names a faster choice if a layer computes more pairs on a processor, in some three seconds on one core."""


@contextmanager
def shown(total: float, seconds: float, unit: str = " products") -> Iterator[tqdm]:
    """Show the progress of ``total`` units of work on stderr, if that is a terminal and ``seconds`` are many.

    Yields a bar, to be updated with the number of units that are done.
    """
    hidden = None if seconds > SHOWN_AFTER else True
    with tqdm(total=total, desc="encoding", unit=unit, unit_scale=True, disable=hidden) as bar:
        yield bar


def warn_if_long(seconds: float, faster: str) -> None:
    """Warn before a computation that is estimated to take more than a minute, and name a faster choice."""
    if seconds > WARNED_AFTER:
        about = f"{math.ceil(seconds / 60)} minutes" if seconds < 7200 else f"{seconds / 3600:.0f} hours"
        warnings.warn(f"this graph is large, and takes about {about}; faster: {faster}", stacklevel=2)


def warn_of_pairs(number: int, unit: str, device: torch.device, faster: str) -> None:
    """Warn before a layer that computes all pairs of many nodes on a processor, and name a faster choice.

    The largest graph of the batch has ``number`` nodes, or other units that form the pairs.
    """
    if torch.compiler.is_compiling() or device.type != "cpu" or number**2 <= MANY_PAIRS:
        return
    pairs = f"a graph has {number:,} {unit}, and each layer computes all {number**2:,} pairs of them"
    warnings.warn(f"{pairs}, which takes long; faster: {faster}", stacklevel=2)


def watched(parts: range, seconds: float, faster: str) -> Iterator[int]:
    """Iterate over parts of equal length, which take about ``seconds`` in all; warn before, and show progress."""
    warn_if_long(seconds, faster)
    with shown(len(parts), seconds, " parts") as bar:
        for part in parts:
            yield part
            bar.update()


@contextmanager
def unforeseen(name: str, unit: str, total: int | None = None, by_clock: bool = False) -> Iterator[tqdm]:
    """Show the progress of work after ten seconds, and warn after a minute, unless its units are seconds."""
    done = Event()
    with tqdm(desc=name, unit=unit, total=total, delay=SHOWN_AFTER, leave=False, disable=None) as bar:

        def watch() -> None:
            for second in itertools.takewhile(lambda _: not done.wait(1.0), itertools.count(1)):
                bar.n += by_clock
                if second >= SHOWN_AFTER:
                    bar.delay = 0  # close() clears what was shown
                    bar.refresh()
                if second == math.ceil(WARNED_AFTER) and not by_clock:
                    more = f"computing {name} takes more than a minute, and how much more is not known"
                    warnings.warn(f"this graph is large: {more}; faster: {LINEAR}", stacklevel=2)

        Thread(target=watch, daemon=True).start()
        try:
            yield bar
        finally:
            done.set()


def ticking(seconds: float) -> AbstractContextManager[tqdm]:
    """Show the progress of one call that takes about ``seconds`` by the clock."""
    return unforeseen("encoding", " s", math.ceil(seconds), by_clock=True)


def entries_in_reach(matrix: csr_matrix, steps: int) -> Array:
    """Count the entries in the rows that lie within 0, 1, .. ``steps - 1`` steps of some nodes, ``[steps, nodes]``."""
    start = np.arange(0, matrix.shape[0], max(1, matrix.shape[0] // SAMPLED))
    reached = np.zeros((matrix.shape[0], len(start)), np.float32)
    reached[start, np.arange(len(start))] = 1
    pattern, counts = (matrix != 0).T.astype(np.float32), np.diff(matrix.indptr).astype(float)
    entries = np.zeros((steps, len(start)))
    for step in range(steps):
        entries[step] = counts @ reached
        reached = np.minimum(reached + pattern @ reached, 1)
    return entries
