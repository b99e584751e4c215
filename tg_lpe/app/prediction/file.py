"""Predict for a file of molecules, which may be larger than memory."""

from __future__ import annotations

import logging
import sys
from contextlib import ExitStack, closing
from itertools import islice, tee
from pathlib import Path
from typing import IO, Any, NamedTuple

from tqdm import tqdm

from tg_lpe.app.prediction.predictor import BATCH_SIZE, Predictor
from tg_lpe.app.training.outputs import new_names
from tg_lpe.checkpoints.files import check_writable, replacing

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
    - the predictor's columns, empty if the molecule is refused; for several models also the spread of each, and with
      ``coverage`` the ends of an interval around each
    - ``class``, the most probable class, if there are several
    - ``outside``: how the molecule differs from those that the model was trained on

    A new column whose name is taken in ``source`` gets the prefix ``predicted_``. If an error occurs, no file is
    written.

    Args:
        predictor: one model or several.
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
    from pandas import DataFrame

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
    for rows in file.tables(None):
        total, named = total + len(rows), named or bool((rows.iloc[:, 1:] != "").to_numpy().any())
    if total == 0:
        raise ValueError(f"{source} holds no molecule")
    others = file.label_columns if file.has_columns else ("name",) * named
    places = [others.index(name) for name in predictor.extra_columns]
    lines = (row for table in file.tables(None) for row in table.itertuples(name=None))
    rows, read, *again = tee(lines, 3 if places else 2)
    parts = predictor.stream(
        (row[1] for row in read),
        extra=([row[2 + place] for place in places] for row in again[0]) if places else None,
        batch_size=batch_size,
        num_workers=num_workers,
        canonical=canonical,
    )
    num_refused = num_outside = 0
    with ExitStack() as stack:
        table, listed = _opened(stack, out), None if refused is None else _opened(stack, refused)
        stack.enter_context(closing(parts))
        hidden = None if progress else True
        bar = stack.enter_context(tqdm(total=total, desc="predicting", unit="mol", disable=hidden))
        for part in parts:
            given, frame = list(islice(rows, part.num_graphs)), part.within(intervals).to_frame()
            reasons, is_first = frame.pop("refused"), part.start == 0
            if strict and part.refused:
                line, smiles, *_ = given[part.refused[0].index - part.start]
                raise ValueError(f"{file.name}:{line}: {smiles!r}: {part.refused[0].reason}")
            if listed is not None:
                why = DataFrame([row[:2] for row in given], columns=["line", "smiles"])
                _append(why.assign(reason=reasons)[reasons != ""], listed, is_first)
            cells = DataFrame([row[: 2 + len(others)] for row in given])
            line, smiles, *added = new_names(["line", "smiles", *frame], others)
            frame = cells.join(frame)
            frame.columns = [line, smiles, *others, *added]
            _append(frame, table, is_first)
            num_refused, num_outside = num_refused + len(part.refused), num_outside + len(part.outside)
            bar.update(part.num_graphs)
            done = part.start + part.num_graphs
            if progress and not sys.stderr.isatty() and 10 * part.start // total < 10 * done // total:
                _LOGGER.info("predicted %s of %s molecules", f"{done:,}", f"{total:,}")
    if num_outside:
        _LOGGER.warning(
            f"{file.name}: {num_outside:,} of {total:,} molecules differ from those that the model was trained on, so "
            f"their predictions may be far off; the column {added[-1]!r} of {out} says how they differ"
        )
    return FilePredictions(total, num_refused, num_outside)


def _opened(stack: ExitStack, path: str | Path) -> IO[str]:
    """Open a file to write, complete when the stack closes, or standard output if the path is ``-``."""
    if str(path) == "-":
        return sys.stdout
    temporary = stack.enter_context(replacing(Path(path).resolve()))
    return stack.enter_context(temporary.open("w", newline="", encoding="utf-8"))


def _append(frame: Any, file: IO[str], header: bool) -> None:
    frame.to_csv(file, header=header, index=False, lineterminator="\n", float_format=_digits)


def _digits(number: object) -> str:
    return str(number).removesuffix(".0")  # with the fewest digits that identify it in its dtype
