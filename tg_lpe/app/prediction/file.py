"""Predict for a file of molecules, which may be larger than memory."""

from __future__ import annotations

import logging
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from itertools import islice, tee
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from tqdm import tqdm

from tg_lpe.app.prediction.intervals import Intervals
from tg_lpe.app.prediction.predictions import Predictions
from tg_lpe.app.prediction.predictor import BATCH_SIZE, Predictor
from tg_lpe.app.training.outputs import digits, new_names
from tg_lpe.checkpoints.files import check_writable, replacing

if TYPE_CHECKING:
    from pandas import DataFrame

    from tg_lpe.app.molecules.files import MoleculeFile

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
    canonical: bool | None = None,
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
        batch_size, canonical, coverage: as in :meth:`Predictor.predict`.
        num_workers: processes that read SMILES besides this one.
        progress: whether to show a progress bar, or a line for each tenth of the file if stderr is no terminal.

    Returns:
        The number of molecules, of refused ones, and of others that lie outside of the training set, with a warning.

    Raises:
        FileNotFoundError, ModuleNotFoundError: if ``source`` does not exist, or RDKit is not installed.
        ValueError: if a file is named twice, ``source`` is malformed, holds no molecule or lacks a column that the
            model reads.
        OSError: if ``out`` or ``refused`` cannot be written, or is a folder; this is checked first.
    """
    from tg_lpe.app.molecules.files import MoleculeFile

    _check_paths(source, out, refused)
    intervals = None if coverage is None else predictor.intervals(coverage)
    file = MoleculeFile(source, smiles_column)
    file.check_columns(predictor.extra_columns)
    total, named = 0, False
    for rows in file.tables(None):
        total, named = total + len(rows), named or bool((rows.iloc[:, 1:] != "").to_numpy().any())
    if total == 0:
        raise ValueError(f"{source} holds no molecule")
    others = file.label_columns if file.has_columns else ("name",) * named
    reading = {"batch_size": batch_size, "num_workers": num_workers, "canonical": canonical}
    frames = _frames(predictor, file, others, intervals, **reading)
    num_refused = num_outside = 0
    bar = tqdm(total=total, desc="predicting", unit="mol", disable=None if progress else True)
    with ExitStack() as stack, closing(frames), bar:
        table, listed = _opened(stack, out), None if refused is None else _opened(stack, refused)
        for part, frame, reasons in frames:
            for written, to in ((frame, table), (reasons, listed)):
                if to is not None:
                    written.to_csv(to, header=not part.start, index=False, lineterminator="\n", float_format=digits)
            num_refused, num_outside = num_refused + len(part.refused), num_outside + len(part.outside)
            bar.update(part.num_graphs)
            done = part.start + part.num_graphs
            if progress and not sys.stderr.isatty() and 10 * part.start // total < 10 * done // total:
                _LOGGER.info("predicted %s of %s molecules", f"{done:,}", f"{total:,}")
    if num_outside:
        _LOGGER.warning(
            f"{file.name}: {num_outside:,} of {total:,} molecules differ from those that the model was trained on, so "
            f"their predictions may be far off; the column {frame.columns[-1]!r} of {out} says how they differ"
        )
    return FilePredictions(total, num_refused, num_outside)


def _check_paths(source: str | Path, out: str | Path, refused: str | Path | None) -> None:
    paths = [Path(path) for path in (source, out, refused) if path is not None and str(path) != "-"]
    if len({path.resolve() for path in paths}) < len(paths):
        raise ValueError(f"source, out and refused must be different files, got {', '.join(map(str, paths))}")
    for path in paths[1:]:
        check_writable(path.resolve())


def _frames(
    predictor: Predictor, file: MoleculeFile, others: Sequence[str], intervals: Intervals | None, **options: Any
) -> Generator[tuple[Predictions, DataFrame, DataFrame], None, None]:
    """Yield predictions for consecutive molecules, their rows of the output, and the rows of the refused ones."""
    from pandas import DataFrame

    places = [others.index(name) for name in predictor.extra_columns]
    lines = (row for table in file.tables(None) for row in table.itertuples(name=None))
    rows, read, *again = tee(lines, 3 if places else 2)
    extra = ([row[2 + place] for place in places] for row in again[0]) if places else None
    with closing(predictor.stream((row[1] for row in read), extra=extra, **options)) as parts:
        for part in parts:
            given, frame = list(islice(rows, part.num_graphs)), part.within(intervals).to_frame()
            reasons = frame.pop(frame.columns[-1])
            listed = DataFrame([row[:2] for row in given], columns=["line", "smiles"])
            line, smiles, *added = new_names(["line", "smiles", *frame], others)
            frame = DataFrame([row[: 2 + len(others)] for row in given]).join(frame)
            frame.columns = [line, smiles, *others, *added]
            yield part, frame, listed.assign(reason=reasons)[reasons != ""]


def _opened(stack: ExitStack, path: str | Path) -> IO[str]:
    """Open a file to write, complete when the stack closes, or standard output if the path is ``-``."""
    if str(path) == "-":
        return sys.stdout
    temporary = stack.enter_context(replacing(Path(path).resolve()))
    return stack.enter_context(temporary.open("w", newline="", encoding="utf-8"))
