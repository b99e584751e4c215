"""Predict for a file of molecules, which may be larger than memory."""

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

from tg_lpe.app.prediction.predictions import most_probable
from tg_lpe.app.prediction.predictor import BATCH_SIZE, Predictor
from tg_lpe.app.training.outputs import digits, new_names
from tg_lpe.checkpoints.files import check_writable, replacing

if TYPE_CHECKING:
    from tg_lpe.app.molecules.files import Row

_LOGGER = logging.getLogger("tg_lpe.app.prediction")


class FilePredictions(NamedTuple):
    """Counts of the molecules of a file: all, those refused, and those outside of the training set."""

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
    """Predict for the molecules of a file in bounded memory.

    The csv file ``out`` has one row for each molecule, in the order of ``source``, with the columns

    - ``line``, the line in ``source`` from 1, and ``smiles``
    - the other columns of ``source``; ``name`` if it is a plain list
    - the predictor's columns, empty if the molecule is refused; for an ensemble also the spread of each, and with
      ``coverage`` the ends of an interval around each
    - ``class``, the most probable class, if there are several
    - ``outside``: how the molecule differs from those that the model was trained on

    A new column whose name is taken in ``source`` gets the prefix ``predicted_``. If an error occurs, no file is
    written.

    Args:
        predictor: the model, or an :class:`Ensemble`.
        source: a file that :class:`tg_lpe.app.molecules.MoleculeFile` reads.
        out: csv file to write, or ``"-"`` for standard output.
        smiles_column: column of the SMILES; ``smiles`` or a common variant if absent.
        refused: csv file to write with ``line``, ``smiles`` and ``reason`` of the refused molecules.
        strict: whether to stop at the first refused molecule.
        batch_size: largest number of molecules in a batch.
        num_workers: processes that read SMILES besides this one.
        canonical: as in :meth:`Predictor.predict`.
        progress: whether to show a progress bar, or a line for each tenth of the file if stderr is no terminal.
        coverage: as in :meth:`Predictor.predict`.

    Returns:
        The number of molecules, of refused ones, and of others that lie outside of the training set. If there are some
        outside, a warning is logged.

    Raises:
        FileNotFoundError: if ``source`` does not exist.
        ValueError: if two of ``source``, ``out`` and ``refused`` are one file; ``out`` or ``refused`` is a folder;
            ``source`` is malformed, holds no molecule or lacks a column that the model reads; or ``strict`` is set and
            a molecule is refused.
        OSError: if ``out`` or ``refused`` cannot be written; this is checked first.
        ModuleNotFoundError: if RDKit is not installed.
    """
    from tg_lpe.app.molecules.files import MoleculeFile

    paths = [Path(path) for path in (source, out, refused) if path is not None and str(path) != "-"]
    if len({path.resolve() for path in paths}) < len(paths):
        raise ValueError(f"source, out and refused must be different files, got {', '.join(map(str, paths))}")
    for path in paths:
        if path != Path(source):
            check_writable(path.resolve())
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
    extra_places = [others.index(name) for name in predictor.extra_columns]
    extra: deque[list[str]] = deque()

    def strings() -> Iterator[str]:
        for row in file.rows(None):
            rows.append(row)
            if extra_places:
                extra.append([row.labels[place] for place in extra_places])
            yield row.smiles

    num_refused = num_outside = 0
    with ExitStack() as stack:
        table = _table(stack, out)
        ends = () if intervals is None else predictor.interval_columns
        predicted = [*predictor.columns, *predictor.spread_columns, *ends, *["class"] * bool(predictor.classes)]
        line, smiles_name, *added = new_names(["line", "smiles", *predicted, "outside"], others)
        table.writerow([line, smiles_name, *others, *added])
        listed = None if refused is None else _table(stack, refused)
        if listed is not None:
            listed.writerow(["line", "smiles", "reason"])
        hidden = None if progress else True
        bar = stack.enter_context(tqdm(total=total, desc="predicting", unit="mol", disable=hidden))
        stream = predictor.stream(
            strings(),
            extra=iter(extra.popleft, None) if extra_places else None,
            batch_size=batch_size,
            num_workers=num_workers,
            canonical=canonical,
        )
        for batch in stack.enter_context(closing(stream)):
            reasons = {refusal.index: refusal.reason for refusal in batch.refused}
            outside = {graph.index: graph.reason for graph in batch.outside}
            classes = most_probable(batch.values, predictor.classes)
            numbers = batch.values if batch.spread is None else torch.cat([batch.values, batch.spread], 1)
            if intervals is not None:
                pair = torch.stack(intervals.around(batch.values, batch.spread), 2)
                numbers = torch.cat([numbers, pair.flatten(1)], 1)
            for place, values in enumerate(digits(numbers), batch.start):
                row, reason = rows.popleft(), reasons.get(place)
                if reason is not None and strict:
                    raise ValueError(f"{file.name}:{row.line}: {row.smiles!r}: {reason}")
                if reason is not None and listed is not None:
                    listed.writerow([row.line, row.smiles, reason])
                cells = values if reason is None else [""] * len(values)
                cells += [classes[place - batch.start] or ""] if classes else []
                table.writerow([row.line, row.smiles, *row.labels[: len(others)], *cells, outside.get(place, "")])
            num_refused, num_outside = num_refused + len(reasons), num_outside + len(outside)
            bar.update(batch.num_graphs)
            done = batch.start + batch.num_graphs
            if progress and not sys.stderr.isatty() and 10 * batch.start // total < 10 * done // total:
                _LOGGER.info("predicted %s of %s molecules", f"{done:,}", f"{total:,}")
    if num_outside:
        _LOGGER.warning(
            f"{file.name}: {num_outside:,} of {total:,} molecules differ from those that the model was trained on, so "
            f"their predictions may be far off; the column {added[-1]!r} of {out} says how they differ"
        )
    return FilePredictions(total, num_refused, num_outside)


def _table(stack: ExitStack, path: str | Path) -> Any:
    """Return a csv writer for a file, complete when the stack closes, or for standard output if the path is ``-``."""
    if str(path) == "-":
        return csv.writer(sys.stdout, lineterminator="\n")
    temporary = stack.enter_context(replacing(Path(path).resolve()))
    file = stack.enter_context(temporary.open("w", newline="", encoding="utf-8"))
    return csv.writer(file, lineterminator="\n")
