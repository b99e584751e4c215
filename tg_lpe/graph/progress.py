"""Progress of computations on large graphs, and what would be faster."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")

SHOWN_AFTER = 10.0
"""Seconds that a computation is estimated to take from which on its progress is shown."""

WARNED_AFTER = 60.0
"""Seconds from which on a warning says what would be faster."""


@contextmanager
def shown(total: float, seconds: float, unit: str = " products") -> Iterator[tqdm]:
    """Show the progress of a computation that is estimated to take long, on stderr where that is a terminal.

    Args:
        total: its multiplications, or what else it counts.
        seconds: how long it takes, estimated before it starts.
        unit: what is counted.

    Yields:
        A bar, to be updated with how many are done.
    """
    hidden = None if seconds > SHOWN_AFTER else True
    with tqdm(total=total, desc="encoding", unit=unit, unit_scale=True, disable=hidden) as bar:
        yield bar


def warn_if_long(seconds: float, faster: str) -> None:
    """Warn before a computation that is estimated to take more than a minute.

    Args:
        seconds: how long it takes.
        faster: what would take less time.

    Warns:
        UserWarning: with both.
    """
    if seconds > WARNED_AFTER:
        about = f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.0f} hours"
        warnings.warn(f"this graph is large, and takes about {about}; faster: {faster}", stacklevel=2)


def watched(parts: Sequence[T], faster: str) -> Iterator[T]:
    """Go through parts of a computation that are about as long; the first one's time tells how long all take.

    Args:
        parts: of the computation.
        faster: what would take less time.

    Warns:
        UserWarning: after the first part, if all take more than a minute.
    """
    begin = time.monotonic()
    yield from parts[:1]
    seconds = (time.monotonic() - begin) * len(parts)
    warn_if_long(seconds, faster)
    with shown(len(parts), seconds, " parts") as bar:
        bar.update(min(1, len(parts)))
        for part in parts[1:]:
            yield part
            bar.update()
