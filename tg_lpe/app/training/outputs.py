"""Write and read a run's predictions for the validation and test set as csv files."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tg_lpe.app.training.tasks import Task, precise
from tg_lpe.checkpoints.files import replacing


class Outputs(NamedTuple):
    """Labels and predictions of a part of the data, in the labels' unit, without rows that have no label."""

    rows: tuple[int, ...]
    """Index of each row: of its graph in the part, or of its node among the nodes of all graphs."""
    smiles: tuple[str, ...]
    """SMILES of each row; empty strings if unknown."""
    labels: Tensor
    """``[num_rows, num_targets]``, NaN where missing; class numbers if the classes have names."""
    values: Tensor
    """``[num_rows, out_channels]``: values, or probabilities."""


def class_names(task: Task | None, target: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the classes if each class has an output column; else an empty tuple.

    Args:
        task: what is predicted.
        target: a :meth:`TargetSpec.to_dict <tg_lpe.data.TargetSpec.to_dict>`, or empty.
    """
    if task is None or not task.class_names:
        return ()
    named = (target.get("classes") or [()])[0]
    return tuple(named) or task.class_names


def output_columns(task: Task | None, target: Mapping[str, Any], width: int) -> tuple[str, ...]:
    """Name each output column: ``LABEL``, or ``LABEL_CLASS`` if the output is the probability of a named class."""
    labels = tuple(str(name) for name in target.get("columns") or ("output",))
    if width != len(labels):
        return tuple(f"{labels[0]}_{name}" for name in class_names(task, target) or range(width))
    classes = target.get("classes") or [()] * width
    return tuple(f"{label}_{two[1]}" if len(two) == 2 else label for label, two in zip(labels, classes, strict=True))


def new_names(names: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return names for new columns; a name that is taken gets the prefix ``predicted_``."""
    result = list[str]()
    for name in names:
        while name in others or name in result:
            name = f"predicted_{name}"
        result.append(name)
    return result


def digits(number: object) -> str:
    """Format a number with the fewest digits that identify it in its dtype."""
    return str(number).removesuffix(".0")


def write_outputs(
    path: Path, task: Task, target: Mapping[str, Any], outputs: Tensor, labels: Tensor, smiles: Sequence[str] = ()
) -> None:
    """Write a csv file with columns ``row``, ``smiles`` if known, the labels and the predictions.

    Args:
        path: the file.
        task: what is predicted.
        target: a :meth:`TargetSpec.to_dict <tg_lpe.data.TargetSpec.to_dict>`.
        outputs: the model's outputs, ``[num_rows, out_channels]``.
        labels: ``[num_rows, num_targets]``. A missing label, NaN, is an empty cell; rows without labels are left out.
        smiles: SMILES of each row, or empty.
    """
    outputs, labels = task.rows(precise(outputs, labels), labels)
    parts = (part.detach().cpu().numpy() for part in (task.predict(outputs), labels))
    values, targets = ([[digits(number) for number in row] for row in part] for part in parts)
    columns, classes = target["columns"], target.get("classes") or [()] * len(target["columns"])
    names = [*columns, *new_names(output_columns(task, target, task.out_channels), columns)]
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow([*new_names(["row", *["smiles"] * bool(smiles)], names), *names])
        for row, (label, value) in enumerate(zip(targets, values, strict=True)):
            if set(label) == {"nan"}:
                continue
            named = zip(label, classes, strict=True)
            cells = ["" if cell == "nan" else names[int(cell)] if names else cell for cell, names in named]
            table.writerow([row, *([smiles[row]] if smiles else []), *cells, *value])


def read_outputs(path: Path, task: Task, target: Mapping[str, Any]) -> Outputs:
    """Read a file of :func:`write_outputs`.

    Args:
        path: the file.
        task, target: as for :func:`write_outputs`.

    Raises:
        ValueError: if the file has another format.
    """
    classes = target.get("classes") or [()] * task.num_targets
    class_numbers = [{name: str(number) for number, name in enumerate(names)} for names in classes]
    first, width = -task.out_channels - task.num_targets, task.out_channels
    try:
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
        if not 1 <= len(header) + first <= 2 or any(len(row) != len(header) for row in rows):
            widths = ", ".join(map(str, sorted({len(header), *map(len, rows)})))
            raise ValueError(f"its rows have {widths} cells, its header is {', '.join(header)}")
        has_smiles = len(header) + first == 2
        labels = [
            [
                float(numbers.get(cell, cell) or "nan")
                for cell, numbers in zip(row[first:-width], class_numbers, strict=True)
            ]
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
