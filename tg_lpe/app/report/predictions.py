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
    """Predictions and labels, both ``[num_labels]`` without missing labels, for one line or panel of a picture."""

    label: str
    color: str
    remarks: list[str]
    scores: Tensor
    """Values, or probabilities of a class."""
    labels: Tensor
    """Values, or 1 for rows of the class and 0 for others."""
    width: float
    """Half the width of an interval, infinite if there is none."""


def scored(table: Table) -> tuple[bool, list[Scored]]:
    """Return whether a table's runs predict values, and the test predictions to draw.

    With one label column, these are the first seed of every row; with several columns or classes, all of them for the
    best row. Runs without predictions in their folders, and tasks of unknown classes, are left out.
    """
    is_regression, drawn = False, list[Scored]()
    for row in table.rows[:MAX_DRAWN] if table.kind == "train" else ():
        run = row.runs[0]
        folder = RunFolder(run.path)
        if not run.finished or not folder.test_predictions.is_file():
            continue
        try:
            task = make_task(run.task)
        except ValueError:  # the class is not imported
            continue
        is_regression, target = isinstance(task, Regression), run.data.get("target") or {}
        if not is_regression and "roc_auc" not in task.metrics and not task.class_names:
            continue
        test, width = read_outputs(folder.test_predictions, task, target), task.out_channels
        intervals = None
        if is_regression and folder.val_predictions.is_file():
            intervals = Intervals.of([read_outputs(folder.val_predictions, task, target)], [test], COVERAGE)
        names = UNITLESS if is_regression else ("roc_auc",)
        for column, title in enumerate(output_columns(task, target, width)[:MAX_DRAWN]):
            label, color = (row.label, row.color) if width == 1 else (title, (BLUE, *SPARE_COLORS)[column % 5])
            labels = test.labels[:, min(column, task.num_targets - 1)].double()
            known = ~labels.isnan()
            if task.class_names:
                labels = (task.compared(test.values, test.labels, task.metric)[1][:, 0] == column).double()
            scores, labels = test.values[known, column].double(), labels[known]
            figures = {title_of(name): METRICS[name].column(scores, labels) for name in names} if len(labels) else {}
            remarks = [f"{name} {value:.3f}" for name, value in figures.items() if value is not None]
            if not remarks or not bool(scores.isfinite().all()):
                continue  # all labels are equal, or there are none
            half = math.inf if intervals is None else float(intervals.width[column])
            if intervals is not None and math.isfinite(half):
                remarks.append(f"± {half:.3g} holds {100 * intervals.reached[column]:.1f} %")
            drawn.append(Scored(label, color, remarks, scores, labels, half))
        if width > 1:
            break
    return is_regression, drawn
