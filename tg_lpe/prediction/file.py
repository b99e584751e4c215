"""Predictions for a file of molecules, line by line: the file may be larger than memory."""

from __future__ import annotations

import csv
import logging
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from tqdm import tqdm

from tg_lpe.checkpoints.files import check_writable, replacing
from tg_lpe.prediction.predictions import most_probable
from tg_lpe.prediction.predictor import BATCH_SIZE, Predictor
from tg_lpe.training.outputs import new_names

if TYPE_CHECKING:
    from tg_lpe.datasets.molecules.files import Row

_LOGGER = logging.getLogger("tg_lpe.prediction")


class FilePredictions(NamedTuple):
    """Counts of what :func:`predict_file` has written."""

    num_molecules: int
    num_refused: int
    num_outside: int


def predict_file(
    predictor: Predictor,
    source: str | Path,
    out: str | Path,
    *,
    smiles_column: str | None = None,
    refused: str | Path | None = None,
    strict: bool = False,
    batch_size: int = BATCH_SIZE,
    num_workers: int = 0,
    canonical: bool | None = None,
    progress: bool = True,
    coverage: float | None = None,
) -> FilePredictions:
    """Predict for the molecules of a file, in bounded memory. Files are written under a temporary name and renamed.

    Args:
        predictor: the model, or an :class:`Ensemble`.
        source: a file that :class:`tg_lpe.datasets.molecules.MoleculeFile` reads, or ``"-"`` for standard input.
        out: csv file to write, or ``"-"`` for standard output, with one row for each molecule in the order of
            ``source``: ``line`` (of ``source``, from 1), ``smiles``, the other columns of ``source`` (of a list,
            ``name``), the predictor's columns, which are empty where a molecule is refused, of an ensemble the
            spread of each, with a ``coverage`` the ends of an interval around each, for several classes ``class``,
            the most probable, and ``outside``: how a molecule is unlike those that the model was trained on. A new
            column whose name ``source`` has already begins with ``predicted_``.
        smiles_column: column of the SMILES; ``smiles`` or a common variant if absent.
        refused: csv file to write with ``line``, ``smiles`` and ``reason`` of the refused molecules.
        strict: whether to stop at the first refused molecule.
        batch_size: molecules of a batch, at most.
        num_workers: processes that read SMILES besides this one.
        canonical: as :meth:`Predictor.predict`.
        coverage: as :meth:`Predictor.predict`.
        progress: whether to show a progress bar; where stderr is no terminal, a line for each tenth of the file.

    Returns:
        How many molecules there are, how many of them were refused, and how many others lie outside of the training
        set; a warning in the log counts these.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if two of ``source``, ``out`` and ``refused`` are one file, the source is malformed, which is found
            before the first prediction, lacks a column that the model reads, has no molecule, or ``strict`` is set and
            a molecule is refused, or ``out`` or ``refused`` is a folder; then no file is written.
        OSError: if ``out`` or ``refused`` cannot be written, which is found first.
        ModuleNotFoundError: if RDKit is not installed.
    """
    from tg_lpe.datasets.molecules.files import STDIN, MoleculeFile

    paths = [Path(path) for path in (source, out, refused) if path is not None and str(path) != STDIN]
    if len({path.resolve() for path in paths}) < len(paths):
        raise ValueError(f"source, out and refused must be different files, got {', '.join(map(str, paths))}")
    for path in paths:
        if path != Path(source):
            check_writable(path)
    intervals = None if coverage is None else predictor.intervals(coverage)
    file = MoleculeFile(source, smiles_column)
    file.check_columns(predictor.extra_columns)
    total, named = 0, False
    for row in file.rows(None):
        total, named = total + 1, named or any(row.labels)
    if total == 0:
        raise ValueError(f"{source} holds no molecule")
    others = file.label_columns if file.has_columns else ("name",) * named
    rows: deque[Row] = deque()
    places = [others.index(name) for name in predictor.extra_columns]
    comma = "," if file.separator not in ("", ",") else "."
    extra: deque[list[str]] = deque()

    def strings() -> Iterator[str]:
        for row in file.rows(None):
            rows.append(row)
            if places:
                extra.append([row.labels[place].replace(comma, ".") for place in places])
            yield row.smiles

    num_refused = num_outside = 0
    with ExitStack() as stack:
        table = _table(stack, out)
        ends = () if intervals is None else predictor.interval_columns
        predicted = [*predictor.columns, *predictor.spread_columns, *ends, *["class"] * bool(predictor.classes)]
        names = ["line", "smiles", *predicted, "outside"]
        line, smiles_name, *added = new_names(names, others)
        table.writerow([line, smiles_name, *others, *added])
        listed = None if refused is None else _table(stack, refused)
        if listed is not None:
            listed.writerow(["line", "smiles", "reason"])
        hidden = None if progress else True
        bar = stack.enter_context(tqdm(total=total, desc="predicting", unit="mol", disable=hidden))
        options: dict[str, Any] = {"batch_size": batch_size, "num_workers": num_workers, "canonical": canonical}
        beside = iter(extra.popleft, None) if places else None
        stream = predictor.stream(strings(), extra=beside, **options)
        for batch in stack.enter_context(closing(stream)):
            reasons = {refusal.index: refusal.reason for refusal in batch.refused}
            unlike = {other.index: other.reason for other in batch.outside}
            classes = most_probable(batch.values, predictor.classes)
            numbers = batch.values if batch.spread is None else torch.cat([batch.values, batch.spread], 1)
            if intervals is not None:
                pair = torch.stack(intervals.around(batch.values, batch.spread), 2)
                numbers = torch.cat([numbers, pair.flatten(1)], 1)
            for place, values in enumerate(numbers.tolist(), batch.start):
                row, reason = rows.popleft(), reasons.get(place)
                if reason is not None and strict:
                    raise ValueError(f"{file.name}:{row.line}: {row.smiles!r}: {reason}")
                if reason is not None and listed is not None:
                    listed.writerow([row.line, row.smiles, reason])
                cells = [format(value, ".7g") if reason is None else "" for value in values]
                cells += [classes[place - batch.start] or ""] if classes else []
                table.writerow([row.line, row.smiles, *row.labels[: len(others)], *cells, unlike.get(place, "")])
            num_refused, num_outside = num_refused + len(reasons), num_outside + len(unlike)
            bar.update(batch.num_graphs)
            if progress:
                _log_tenths(batch.start, batch.start + batch.num_graphs, total)
    if num_outside:
        _LOGGER.warning(
            f"{file.name}: {num_outside:,} of {total:,} molecules are unlike those that the model was trained on, so "
            f"that their predictions may be far off; the column {added[-1]!r} of {out} says in what"
        )
    return FilePredictions(total, num_refused, num_outside)


def _table(stack: ExitStack, path: str | Path) -> Any:
    """Return a writer of a csv file, which is closed, then renamed, when the stack is; of standard output for `-`."""
    if str(path) == "-":
        return csv.writer(sys.stdout, lineterminator="\n")
    temporary = stack.enter_context(replacing(Path(path)))
    file = stack.enter_context(temporary.open("w", newline="", encoding="utf-8"))
    return csv.writer(file, lineterminator="\n")


def _log_tenths(before: int, done: int, total: int) -> None:
    """Log how much is done each time another tenth is, where stderr is no terminal and shows no bar."""
    if not sys.stderr.isatty() and 10 * before // total < 10 * done // total:
        _LOGGER.info("predicted %s of %s molecules", f"{done:,}", f"{total:,}")
