"""Predictions for the validation and the test set, which a run keeps as csv files."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tg_lpe.checkpoints.files import replacing
from tg_lpe.training.tasks import Task


class Outputs(NamedTuple):
    """Labels and predictions of a part of the data, in the label's units; rows without any label are left out."""

    rows: tuple[int, ...]
    """Number of each row in its part: of its graph, or of its node among those of all graphs."""
    smiles: tuple[str, ...]
    """SMILES of each row; empty where not known."""
    labels: Tensor
    """``[num_rows, num_targets]``, NaN where missing; numbers of classes where these have names."""
    values: Tensor
    """``[num_rows, out_channels]``: values, or probabilities."""


def class_names(task: Task | None, target: Mapping[str, Any]) -> tuple[str, ...]:
    """Return names of the classes, where each has a column of outputs; empty otherwise.

    Args:
        task: what is predicted.
        target: a :meth:`TargetSpec.to_dict <tg_lpe.data.TargetSpec.to_dict>`, or empty.
    """
    if task is None or not hasattr(task, "num_classes"):
        return ()
    named = (target.get("classes") or [()])[0]
    return tuple(named) or tuple(f"{value:g}" for value in getattr(task, "values", None) or range(task.num_classes))


def output_columns(task: Task | None, target: Mapping[str, Any], width: int) -> tuple[str, ...]:
    """Return a name for each column of outputs.

    It is that of the label, ``LABEL_CLASS`` for each of several classes, and for the one of two classes whose
    probability it is.
    """
    labels = tuple(str(name) for name in target.get("columns") or ("output",))
    if width != len(labels):
        return tuple(f"{labels[0]}_{name}" for name in class_names(task, target) or range(width))
    classes = target.get("classes") or [()] * width
    return tuple(f"{label}_{two[1]}" if len(two) == 2 else label for label, two in zip(labels, classes, strict=True))


def new_names(names: Sequence[str], others: Sequence[str]) -> list[str]:
    """Name new columns beside others; one that is there already begins with ``predicted_``."""
    result = []
    for name in names:
        while name in others:
            name = f"predicted_{name}"
        result.append(name)
    return result


def write_outputs(
    path: Path, task: Task, target: Mapping[str, Any], outputs: Tensor, labels: Tensor, smiles: Sequence[str] = ()
) -> None:
    """Write a csv file: ``row``, ``smiles`` where known, the labels and the predictions, which may be ``predicted_``.

    Args:
        path: the file.
        task: what is predicted.
        target: a :meth:`TargetSpec.to_dict <tg_lpe.data.TargetSpec.to_dict>`.
        outputs: of the model, ``[num_rows, out_channels]``.
        labels: ``[num_rows, num_targets]``; a missing one, NaN, is an empty cell, a row of these is left out.
        smiles: of each row, or none.
    """
    outputs, labels = task.rows(outputs, labels)
    values, targets = task.predict(outputs).tolist(), labels.tolist()
    columns, classes = target["columns"], target.get("classes") or [()] * len(target["columns"])
    own = [*columns, *new_names(output_columns(task, target, task.out_channels), columns)]
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow([*new_names(["row", *["smiles"] * bool(smiles)], own), *own])
        for row, (label, value) in enumerate(zip(targets, values, strict=True)):
            if all(number != number for number in label):
                continue
            cells = [_cell(number, names) for number, names in zip(label, classes, strict=True)]
            table.writerow([row, *([smiles[row]] if smiles else []), *cells, *(f"{number:.7g}" for number in value)])


def read_outputs(path: Path, task: Task, target: Mapping[str, Any]) -> Outputs:
    """Read what :func:`write_outputs` wrote; a ``ValueError`` names a file of another form.

    Args:
        path: the file.
        task, target: as it was written.
    """
    classes = target.get("classes") or [()] * task.num_targets
    numbers = [{name: str(number) for number, name in enumerate(names)} for names in classes]
    first, width = -task.out_channels - task.num_targets, task.out_channels
    try:
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
        if not 1 <= len(header) + first <= 2 or any(len(row) != len(header) for row in rows):
            widths = ", ".join(map(str, sorted({len(header), *map(len, rows)})))
            raise ValueError(f"its rows have {widths} cells, its header is {', '.join(header)}")
        has_smiles = len(header) + first == 2
        labels = [
            [float(known.get(cell, cell) or "nan") for cell, known in zip(row[first:-width], numbers, strict=True)]
            for row in rows
        ]
        return Outputs(
            tuple(int(row[0]) for row in rows),
            tuple(row[1] for row in rows) if has_smiles else ("",) * len(rows),
            torch.tensor(labels).reshape(-1, task.num_targets),
            torch.tensor([[float(cell) for cell in row[-width:]] for row in rows]).reshape(-1, width),
        )
    except (ValueError, IndexError) as error:
        raise ValueError(f"{path} does not hold predictions of this run's task: {error}") from error


def _cell(label: float, classes: Sequence[str]) -> str:
    """Write a label: the name of its class if it has one, nothing if it is missing."""
    if label != label:
        return ""
    return classes[int(label)] if classes else f"{label:.7g}"
