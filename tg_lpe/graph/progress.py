"""Show progress of long computations on large graphs, and warn with a faster choice."""

from __future__ import annotations

import math
import time
import warnings
from threading import Event, Thread
from typing import Any

import torch
from tqdm import tqdm

SHOWN_AFTER = 10
"""Seconds after which progress is shown."""

WARNED_AFTER = 60
"""A warning names a faster choice if all takes more seconds than this."""

LINEAR = "LinearTransformerPE(16), whose time is proportional to the edges"
FASTER_WALKS = f"fewer steps, or {LINEAR}"
"""The faster choices that warnings name."""

MANY_PAIRS = 2**28
"""A warning names a faster choice if a layer computes more pairs on a processor, in some three seconds on one core."""


class Progress(Thread):
    """Show the progress of the work of a ``with`` block after ten seconds, on stderr if that is a terminal.

    If the work takes more than a minute, a warning names a faster choice: before it, by ``seconds``; else after ten
    seconds, by the units that are done of ``total``; without a total, after a minute.

    Args:
        total: number of units of work, if :meth:`update` shall look at the clock; otherwise a thread does.
        unit: their name.
        faster: the faster choice.
        seconds: the time of all work, if it is known beforehand.
    """

    def __init__(
        self, total: float | None = None, unit: str = " parts", faster: str = LINEAR, seconds: float = 0.0
    ) -> None:
        super().__init__(daemon=True)
        self._total, self._unit, self._faster, self._is_warned = total, unit, faster, warn_if_long(seconds, faster)
        self._done, self._start, self._is_over = 0.0, time.monotonic(), Event()
        self._bar: tqdm | None = None

    def __enter__(self) -> Progress:
        if self._total is None:
            self.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._is_over.set()
        if self._total is None:
            self.join()
        if self._bar is not None:
            self._bar.close()

    def run(self) -> None:
        """Look at the clock until the work is over."""
        while not self._is_over.wait(SHOWN_AFTER if self._bar is None else 1):
            self._show()

    def update(self, units: float = 1) -> None:
        """Count units that are done."""
        self._done += units
        if self._total is not None and time.monotonic() - self._start >= SHOWN_AFTER:
            self._show()

    def _show(self) -> None:
        if self._bar is None:
            form = {"unit": self._unit, "unit_scale": True, "leave": False, "disable": None}
            self._bar = tqdm(desc="encoding", total=self._total, initial=self._done, **form)
        self._bar.update(self._done - self._bar.n)
        seconds, share = time.monotonic() - self._start, self._done / self._total if self._total else None
        if not self._is_warned and share != 0:
            self._is_warned = warn_if_long(seconds / (share or 1), self._faster, is_all=share is not None)


def warn_if_long(seconds: float, faster: str, is_all: bool = True) -> bool:
    """Warn of more than a minute, and name a faster choice; say whether. ``is_all``: the work takes no longer."""
    if seconds > WARNED_AFTER:
        about = f"{math.ceil(seconds / 60)} minutes" if seconds < 7200 else f"{seconds / 3600:.0f} hours"
        taken = f"about {about}" if is_all else "more than a minute"
        warnings.warn(f"this graph is large, and takes {taken}; faster: {faster}", stacklevel=2)
    return seconds > WARNED_AFTER


def warn_of_pairs(number: int, unit: str, device: torch.device, faster: str) -> None:
    """Warn before a layer that computes all pairs of many nodes on a processor, and name a faster choice.

    The largest graph of the batch has ``number`` nodes, or other units that form the pairs.
    """
    if torch.compiler.is_compiling() or device.type != "cpu" or number**2 <= MANY_PAIRS:
        return
    pairs = f"a graph has {number:,} {unit}, and each layer computes all {number**2:,} pairs of them"
    warnings.warn(f"{pairs}, which takes long; faster: {faster}", stacklevel=2)
