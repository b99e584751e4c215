"""Show the progress of a comparison, read from the run folders of all processes."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tqdm import tqdm

from tg_lpe.app.report.format import duration_text, figure_text
from tg_lpe.app.training.metrics import METRICS
from tg_lpe.checkpoints.files import read_object

if TYPE_CHECKING:
    from tg_lpe.app.comparison.grid import Cell, Grid

INTERVAL = 1.0
"""Seconds between two readings of the folders."""

_LOGGER = logging.getLogger("tg_lpe.app.comparison")


@contextmanager
def shown_progress(grid: Grid, shown: bool) -> Iterator[None]:
    """Show a bar of all epochs if stderr is a terminal, and a line for each complete training."""
    if not shown:
        yield
        return
    progress, stop = _Progress(grid), threading.Event()

    def watch() -> None:
        while not stop.wait(INTERVAL):
            progress.look()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        progress.look()
        progress.bar.close()


class _Progress:
    def __init__(self, grid: Grid) -> None:
        self.grid, self.open = grid, {cell for cell in grid.cells if not grid.is_complete(cell)}
        self.start, self.done_before = time.perf_counter(), self.epochs()
        total, initial = len(grid.cells) * grid.config.epochs, self.done_before
        self.bar = tqdm(total=total, initial=initial, unit="epoch", desc="comparing", disable=None, file=sys.stderr)
        if complete := len(grid.cells) - len(self.open):
            self.tell(f"{complete} of {len(grid.cells)} trainings are already complete")

    def epochs(self) -> int:
        """Count the completed epochs; a complete training counts in full even if it ended early."""
        return sum(self._epochs(cell) if cell in self.open else self.grid.config.epochs for cell in self.grid.cells)

    def _epochs(self, cell: Cell) -> int:
        metrics = self.grid.folder(cell).metrics
        lines = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        return min(lines, self.grid.config.epochs)

    def look(self) -> None:
        """Read the folders and show the new state."""
        ended = [cell for cell in self.grid.cells if cell in self.open and self.grid.is_complete(cell)]
        for cell in ended:
            self.open.discard(cell)
        done = self.epochs()
        metric, first = self.grid.task.metric, len(self.grid.cells) - len(self.open) - len(ended)
        for number, cell in enumerate(ended, first + 1):
            value = read_object(self.grid.folder(cell).result)[f"test_{metric}"]
            text = f"[{number}/{len(self.grid.cells)}] {cell}: test {METRICS[metric].title} {figure_text(value)}"
            if done > self.done_before and self.open:
                rate = (time.perf_counter() - self.start) / (done - self.done_before)
                text += f"; about {duration_text(rate * (self.bar.total - done))} left"
            self.tell(text)
        self.bar.n = done
        self.bar.refresh()

    def tell(self, text: str) -> None:
        """Print a line above the bar, or log it if there is no bar."""
        if self.bar.disable:
            _LOGGER.info(text)
        else:
            self.bar.write(text, file=sys.stderr)
