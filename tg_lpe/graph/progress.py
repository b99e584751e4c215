"""Show progress of long computations on large graphs, and warn with a faster choice."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from tqdm import tqdm

T = TypeVar("T")

SHOWN_AFTER = 10.0
"""Progress is shown for computations that are estimated to take more seconds than this."""

WARNED_AFTER = 60.0
"""A warning names a faster choice if a computation is estimated to take more seconds than this."""

MANY_PAIRS = 2**28
"""A warning names a faster choice if a layer computes more pairs on a processor. Attention with 128 channels then takes
three seconds a layer on one core, and 14 in training.
"""


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
        about = f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.0f} hours"
        warnings.warn(f"this graph is large, and takes about {about}; faster: {faster}", stacklevel=2)


def warn_of_pairs(number: int, unit: str, device: torch.device, faster: str) -> None:
    """Warn before a layer that computes all pairs of many nodes on a processor, and name a faster choice.

    The largest graph of the batch has ``number`` nodes, or other units that form the pairs.
    """
    if torch.compiler.is_compiling() or device.type != "cpu" or number**2 <= MANY_PAIRS:
        return
    pairs = f"a graph has {number:,} {unit}, and each layer computes all {number**2:,} pairs of them"
    warnings.warn(f"{pairs}, which takes long; faster: {faster}", stacklevel=2)


def watched(parts: Sequence[T], faster: str) -> Iterator[T]:
    """Iterate over parts of equal length; after the first, estimate the whole time and warn as :func:`warn_if_long`."""
    begin = time.monotonic()
    yield from parts[:1]
    seconds = (time.monotonic() - begin) * len(parts)
    warn_if_long(seconds, faster)
    with shown(len(parts), seconds, " parts") as bar:
        bar.update(min(1, len(parts)))
        for part in parts[1:]:
            yield part
            bar.update()
