"""Progress of computations on large graphs, and what would be faster."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm

SHOWN_AFTER = 10.0
"""Seconds that a computation is estimated to take from which on its progress is shown."""

WARNED_AFTER = 60.0
"""Seconds from which on a warning says what would be faster."""


@contextmanager
def shown(total: float, seconds: float) -> Iterator[tqdm]:
    """Show the progress of a computation that is estimated to take long, on stderr where that is a terminal.

    Args:
        total: its multiplications.
        seconds: how long it takes, estimated before it starts.

    Yields:
        A bar, to be updated with the multiplications that are done.
    """
    hidden = None if seconds > SHOWN_AFTER else True
    with tqdm(total=total, desc="encoding", unit=" products", unit_scale=True, disable=hidden) as bar:
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
