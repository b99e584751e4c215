"""Predict for a file of molecules, which may be larger than memory."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, NamedTuple

from tqdm import tqdm

from tg_lpe.app.prediction.intervals import Intervals
from tg_lpe.app.prediction.predictions import Predictions
from tg_lpe.app.prediction.predictor import BATCH_SIZE, Predictor
from tg_lpe.app.training.outputs import digits, new_names
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
    batch_size: int = BATCH_SIZE,
    num_workers: int = 0,
    progress: bool = True,
    coverage: float | None = None,
) -> FilePredictions:
    """Predict for the molecules of a file in bounded memory.

    The csv file ``out`` has one row for each molecule, in the order of ``source``, with the columns

    - ``line``, the line in ``source`` from 1, and ``smiles``
    - the other columns of ``source``; ``name`` if it is a plain list
    - those of :meth:`Predictions.to_frame`, empty if the molecule is refused

    A new column whose name is taken gets the prefix ``predicted_``. If an error occurs, no file is written.

    Args:
        predictor: one model or several.
        source: a file that :class:`tg_lpe.app.molecules.MoleculeFile` reads.
        out: csv file to write, or ``"-"`` for standard output.
        smiles_column: column of the SMILES; ``smiles`` or a common variant if absent.
        refused: csv file to write with ``line``, ``smiles`` and ``reason`` of the refused molecules.
        batch_size, coverage: as in :meth:`Predictor.predict`.
        num_workers: processes that read SMILES besides this one.
        progress: whether to show a progress bar, or a line for each 10,000 molecules if stderr is no terminal.

    Returns:
        The number of molecules, of refused ones, and of others that lie outside of the training set, with a warning.

    Raises:
        FileNotFoundError, ModuleNotFoundError: if ``source`` does not exist, or RDKit is not installed.
        ValueError: if a file is named twice, ``source`` is malformed, holds no molecule or lacks a column that the
            model reads.
        OSError: if ``out`` or ``refused`` cannot be written, or is a folder; this is checked first.
    """
    from tg_lpe.app.molecules.files import MoleculeFile

    paths = [Path(path) for path in (source, out, refused) if path is not None and str(path) != "-"]
    if len({path.resolve() for path in paths}) < len(paths):
        raise ValueError(f"source, out and refused must be different files, got {', '.join(map(str, paths))}")
    for path in paths[1:]:
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
    done = num_refused = num_outside = 0
    bar = tqdm(total=total, desc="predicting", unit="mol", disable=None if progress else True)
    with ExitStack() as stack, warnings.catch_warnings(), bar:
        warnings.filterwarnings("ignore", ".*differ from those that the model was trained on")  # one for the whole file
        table, listed = _opened(stack, out), None if refused is None else _opened(stack, refused)
        for rows in file.tables(None):
            part, frame, reasons = _predicted(predictor, rows, others, batch_size, num_workers, intervals)
            for written, to in ((frame, table), (reasons, listed)):
                if to is not None:
                    written.to_csv(to, header=not done, index=False, lineterminator="\n", float_format=digits)
            num_refused, num_outside = num_refused + len(part.refused), num_outside + len(part.outside)
            done += len(rows)
            bar.update(len(rows))
            if progress and not sys.stderr.isatty():
                _LOGGER.info("predicted %s of %s molecules", f"{done:,}", f"{total:,}")
    if num_outside:
        _LOGGER.warning(
            f"{file.name}: {num_outside:,} of {total:,} molecules differ from those that the model was trained on, so "
            f"their predictions may be far off; the column {frame.columns[-1]!r} of {out} says how they differ"
        )
    return FilePredictions(total, num_refused, num_outside)


def _predicted(
    predictor: Predictor,
    rows: Any,
    others: Sequence[str],
    batch_size: int,
    num_workers: int,
    intervals: Intervals | None,
) -> tuple[Predictions, Any, Any]:
    """Return predictions for a table of SMILES and ``others``, its rows of the output, and those of refused ones."""
    extra = {name: rows.iloc[:, 1 + others.index(name)].tolist() for name in predictor.extra_columns} or None
    options: dict[str, Any] = {"extra": extra, "batch_size": batch_size, "num_workers": num_workers}
    predictions = predictor.predict(rows.iloc[:, 0].tolist(), on_error="nan", **options).within(intervals)
    frame = predictions.to_frame()
    reasons = frame.pop(frame.columns[-1])
    given = rows.iloc[:, : 1 + len(others)].reset_index()
    line, smiles, *added = new_names(["line", "smiles", *frame], others)
    refused = given.iloc[:, :2].set_axis(["line", "smiles"], axis=1).assign(reason=reasons)[reasons != ""]
    return predictions, given.join(frame).set_axis([line, smiles, *others, *added], axis=1), refused


def _opened(stack: ExitStack, path: str | Path) -> IO[str]:
    """Open a file to write, complete when the stack closes, or standard output if the path is ``-``."""
    if str(path) == "-":
        return sys.stdout
    temporary = stack.enter_context(replacing(Path(path).resolve()))
    return stack.enter_context(temporary.open("w", newline="", encoding="utf-8"))
