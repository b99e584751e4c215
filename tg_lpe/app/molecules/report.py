"""Report the numbers of molecules of a source, and the unusable molecules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

_SHOWN = 20


class SkippedMolecule(NamedTuple):
    """Describe a molecule that is not in the dataset.

    Args:
        file: Name of its file.
        line: Its line, counted from 1.
        smiles: The string as read.
        reason: Why it is unusable.
    """

    file: str
    line: int
    smiles: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.smiles!r}: {self.reason}"


class FileCount(NamedTuple):
    """Count the molecules that a file lists, and those of them in the dataset."""

    file: str
    read: int
    kept: int


class MissingLabels(NamedTuple):
    """Count the molecules in the dataset without a label in a column."""

    column: str
    number: int


@dataclass(frozen=True)
class LoadReport:
    """Report which molecules of a source are in the dataset, and why others are not; `str()` is readable text.

    Args:
        files: Counts per file, without blank lines, comments of .smi files and headers.
        skipped: Every molecule that was left out, in the order of the files.
        missing_labels: Number of missing labels in the dataset, for each column that lacks any.
        num_repeated: Number of molecules of the validation and test set that the training set contains too, in any
            spelling.
        repeated: The lines of the first of them in both sets; empty if there is none.
    """

    files: tuple[FileCount, ...]
    skipped: tuple[SkippedMolecule, ...] = ()
    missing_labels: tuple[MissingLabels, ...] = ()
    num_repeated: int = 0
    repeated: str = ""

    @property
    def num_read(self) -> int:
        """Number of molecules listed in all files."""
        return sum(count.read for count in self.files)

    @property
    def num_kept(self) -> int:
        """Number of molecules in the dataset."""
        return sum(count.kept for count in self.files)

    def summary(self) -> str:
        """Return one line with the number of used molecules, and the most common reasons for leaving others out."""
        line = f"{self.num_kept:,} of {self.num_read:,} molecules used"
        if self.skipped:
            reasons = Counter(skipped.reason for skipped in self.skipped).most_common()
            named = [f"{reason} ({count:,})" for reason, count in reasons[:3]]
            named += [f"other reasons ({sum(count for _, count in reasons[3:]):,})"] if len(reasons) > 3 else []
            line += f"; left out: {'; '.join(named)}"
        if self.missing_labels:
            counts = [f"{missing.column} {missing.number:,}" for missing in self.missing_labels[:3]]
            counts += [f"{len(self.missing_labels) - 3} more columns"] if len(self.missing_labels) > 3 else []
            line += f"; missing labels: {', '.join(counts)}"
        return line

    def __str__(self) -> str:
        lines = [self.summary()]
        lines += [f"  {count.file}: {count.kept:,} of {count.read:,}" for count in self.files]
        return "\n".join(lines + [f"  {line}" for line in _first_few(self.skipped, _SHOWN)])


def with_examples(report: LoadReport) -> str:
    """Return the summary, and lines that name the first five skipped molecules."""
    return "\n  ".join([report.summary(), *_first_few(report.skipped, 5)])


def _first_few(skipped: Sequence[SkippedMolecule], limit: int) -> list[str]:
    """Return lines that name the first `limit` skipped molecules and count the rest."""
    lines = [str(molecule) for molecule in skipped[:limit]]
    return lines + ([f"and {len(skipped) - limit:,} more"] if len(skipped) > limit else [])
