"""Finds and reads the files of a source; nothing in it is ever written."""

from __future__ import annotations

import csv
import hashlib
import io
import lzma
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_SUFFIXES = (".smi", ".csv", ".smi.xz", ".csv.xz")
# The first word of the header that RDKit's own writer puts into .smi files, and its common variants.
_SMILES_HEADERS = frozenset({"smiles", "smile", "canonical_smiles", "smi"})


class Row(NamedTuple):
    """One molecule of a file: where it stands, and its label's text where the file has labels."""

    file: str
    line: int
    smiles: str
    label: str | None


@dataclass(frozen=True)
class SourceFile:
    """A file's name and unpacked content, read once for both its digest and its rows."""

    name: str
    content: bytes

    @classmethod
    def read(cls, path: Path) -> SourceFile:
        """Reads a file, unpacking .xz.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If its name ends in none of the known suffixes or it is not the xz file it claims to be.
        """
        if not path.name.endswith(_SUFFIXES):
            raise ValueError(f"cannot read {path}: the name must end in {', '.join(_SUFFIXES)}")
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {path}")
        content = path.read_bytes()
        if path.suffix == ".xz":
            try:
                content = lzma.decompress(content)
            except (lzma.LZMAError, EOFError) as error:
                raise ValueError(f"{path} is not a complete xz file: {error}") from error
        return cls(path.name, content)

    @property
    def is_csv(self) -> bool:
        """Whether the file has columns with a header."""
        return self.name.removesuffix(".xz").endswith(".csv")

    @property
    def digest(self) -> str:
        """SHA-256 of the content."""
        return hashlib.sha256(self.content).hexdigest()

    def rows(self, label_column: str | None) -> list[Row]:
        """The molecules of the file.

        Blank lines, lines that start with `#` and headers (also repeated ones, as in concatenated files) are skipped.

        Args:
            label_column: The column that holds the label; `None` takes `y` where a csv file has it.

        Raises:
            ValueError: If a csv file lacks the SMILES column or the label column asked for.
        """
        # A byte that is no UTF-8 becomes a mark that RDKit refuses, so the line ends up in the report.
        text = self.content.decode("utf-8-sig", errors="replace")
        if self.is_csv:
            return list(self._csv_rows(text, label_column))
        if label_column is not None:
            raise ValueError(f"{self.name} has no columns, so there is no label column {label_column!r}")
        return list(self._smi_rows(text))

    def _smi_rows(self, text: str) -> Iterator[Row]:
        # Split at newlines alone: splitlines() also breaks at characters that no editor counts as a line's end.
        for number, line in enumerate(text.split("\n"), start=1):
            words = line.split(maxsplit=1)
            if words and not words[0].startswith("#") and words[0].lower() not in _SMILES_HEADERS:
                yield Row(self.name, number, words[0], None)

    def _csv_rows(self, text: str, label_column: str | None) -> Iterator[Row]:
        reader = csv.reader(io.StringIO(text, newline=""))
        header: list[str] | None = None
        smiles_at, label_at = 0, None
        try:
            for cells in reader:
                cells = [cell.strip() for cell in cells]
                if not any(cells) or cells[0].startswith("#") or cells == header:
                    continue
                if header is None:
                    header = cells
                    smiles_at, label_at = self._columns(header, label_column)
                    continue
                smiles = cells[smiles_at] if smiles_at < len(cells) else ""
                label = None if label_at is None else cells[label_at] if label_at < len(cells) else ""
                yield Row(self.name, reader.line_num, smiles, label)
        except csv.Error as error:
            raise ValueError(f"{self.name}:{reader.line_num}: not readable as csv: {error}") from error

    def _columns(self, header: Sequence[str], label_column: str | None) -> tuple[int, int | None]:
        names = [name.lower() for name in header]
        known = [position for position, name in enumerate(names) if name in _SMILES_HEADERS]
        if not known:
            raise ValueError(f"{self.name} needs a column named 'smiles'; its first line is {','.join(header)!r}")
        wanted = "y" if label_column is None else label_column
        if wanted in header:
            return known[0], header.index(wanted)
        if label_column is not None:
            raise ValueError(f"{self.name} has no column {label_column!r}; there are {', '.join(map(repr, header))}")
        return known[0], None


def find_split(folder: Path, stem: str) -> Path:
    """The one file of a folder that holds a split.

    Raises:
        FileNotFoundError: If there is none; the message lists the names looked for.
        ValueError: If there are several.
    """
    found = [folder / f"{stem}{suffix}" for suffix in _SUFFIXES if (folder / f"{stem}{suffix}").is_file()]
    if not found:
        looked_for = ", ".join(f"{stem}{suffix}" for suffix in _SUFFIXES)
        there = ", ".join(sorted(path.name for path in folder.iterdir())[:20]) or "nothing"
        raise FileNotFoundError(f"{folder} has no {stem} split: looked for {looked_for}; the folder holds {there}")
    if len(found) > 1:
        raise ValueError(f"{folder} has more than one {stem} split: {', '.join(path.name for path in found)}")
    return found[0]
