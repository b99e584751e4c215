"""Report the numbers of molecules of a source, and the unusable molecules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


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


@dataclass(frozen=True)
class LoadReport:
    """Report which molecules of a source are in the dataset, and why others are not; `str()` names the first five.

    Args:
        num_read: Number of molecules listed, without blank lines, comments of .smi files and headers.
        num_kept: Number of molecules in the dataset.
        skipped: Every molecule that was left out, in the order of the files.
        missing_labels: Number of missing labels in the dataset, for each column that lacks any.
        num_repeated: Number of molecules of the validation and test set that the training set contains too, in any
            spelling.
        repeated: The lines of the first of them in both sets; empty if there is none.
    """

    num_read: int
    num_kept: int
    skipped: tuple[SkippedMolecule, ...] = ()
    missing_labels: Mapping[str, int] = field(default_factory=dict)
    num_repeated: int = 0
    repeated: str = ""

    def summary(self) -> str:
        """Return one line with the number of used molecules, and the most common reasons for leaving others out."""
        line = f"{self.num_kept:,} of {self.num_read:,} molecules used"
        if self.skipped:
            reasons = Counter(skipped.reason for skipped in self.skipped).most_common()
            named = [f"{reason} ({count:,})" for reason, count in reasons[:3]]
            named += [f"other reasons ({sum(count for _, count in reasons[3:]):,})"] if len(reasons) > 3 else []
            line += f"; left out: {'; '.join(named)}"
        if self.missing_labels:
            counts = [f"{column} {number:,}" for column, number in [*self.missing_labels.items()][:3]]
            counts += [f"{len(self.missing_labels) - 3} more columns"] if len(self.missing_labels) > 3 else []
            line += f"; missing labels: {', '.join(counts)}"
        return line

    def __str__(self) -> str:
        more = [f"and {len(self.skipped) - 5:,} more"] if len(self.skipped) > 5 else []
        return "\n  ".join([self.summary(), *map(str, self.skipped[:5]), *more])
