"""Read the test predictions of finished runs for pictures."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from tg_lpe.app.prediction.intervals import Intervals
from tg_lpe.app.report.runs import title_of
from tg_lpe.app.report.table import BLUE, SPARE_COLORS, UNITLESS, Table
from tg_lpe.app.training.metrics import METRICS
from tg_lpe.app.training.outputs import output_columns, read_outputs
from tg_lpe.app.training.run_folder import RunFolder
from tg_lpe.app.training.tasks import Regression, make_task

MAX_DRAWN = 6
"""Largest number of rows, columns or classes to draw."""

COVERAGE = 0.9
"""Share of labels that the intervals should hold."""


class Scored(NamedTuple):
    """Predictions and labels, both ``[num_labels]`` without missing labels, for one panel of a picture."""

    label: str
    color: str
    remarks: list[str]
    scores: Tensor
    labels: Tensor
    width: float
    """Half the width of an interval, infinite if there is none."""


def scored(table: Table) -> list[Scored]:
    """Return the test predictions of regressions to draw.

    With one label column, these are the first seed of every row; with several, all of them for the best row. Runs
    without predictions in their folders, and tasks of unknown classes, are left out.
    """
    drawn: list[Scored] = []
    for row in table.rows[:MAX_DRAWN] if table.kind == "train" else ():
        run = row.runs[0]
        folder = RunFolder(run.path)
        if not run.finished or not folder.test_predictions.is_file():
            continue
        try:
            task = make_task(run.task)
        except ValueError:  # the class is not imported
            continue
        if not isinstance(task, Regression):
            continue
        target, width = run.data.get("target") or {}, task.out_channels
        test, intervals = read_outputs(folder.test_predictions, task, target), None
        if folder.val_predictions.is_file():
            intervals = Intervals.of([read_outputs(folder.val_predictions, task, target)], [test], COVERAGE)
        for column, title in enumerate(output_columns(task, target, width)[:MAX_DRAWN]):
            label, color = (row.label, row.color) if width == 1 else (title, (BLUE, *SPARE_COLORS)[column % 5])
            labels = test.labels[:, column].double()
            known = ~labels.isnan()
            scores, labels = test.values[known, column].double(), labels[known]
            figures = {title_of(name): METRICS[name].column(scores, labels) for name in UNITLESS}
            remarks = [f"{name} {value:.3f}" for name, value in figures.items() if value is not None]
            if not remarks or not bool(scores.isfinite().all()):
                continue  # all labels are equal, or there are none
            half = math.inf if intervals is None else float(intervals.width[column])
            if intervals is not None and math.isfinite(half):
                remarks.append(f"± {half:.3g} holds {100 * intervals.reached[column]:.1f} %")
            drawn.append(Scored(label, color, remarks, scores, labels, half))
        if width > 1:
            break
    return drawn
