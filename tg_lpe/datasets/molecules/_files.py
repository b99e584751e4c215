"""Finds and reads the files of a source; the source is never written to."""

from __future__ import annotations

import csv
import hashlib
import io
import logging
import lzma
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TextIO

from tg_lpe.arguments import ArgumentError

_LOGGER = logging.getLogger("tg_lpe.datasets")

_SUFFIXES = (".smi", ".csv", ".smi.xz", ".csv.xz")
# The first word of the header that RDKit's own writer puts into .smi files, and its common variants.
_SMILES_HEADERS = frozenset({"smiles", "smile", "canonical_smiles", "smi"})
# MoleculeNet's bace.csv has its SMILES in the column `mol`.
_OTHER_HEADERS = frozenset({"mol"})


class Row(NamedTuple):
    """One molecule of a file: where it stands, and the text of each label asked for."""

    file: str
    line: int
    smiles: str
    labels: tuple[str, ...]


class MoleculeFile(ABC):
    """A file of molecules: its rows, wherever its text comes from."""

    name: str

    @abstractmethod
    def _open(self, newline: str | None) -> TextIO:
        """The text from its beginning; bytes that are not UTF-8 become a replacement character, which RDKit refuses.

        Args:
            newline: as :func:`open` takes it.
        """

    @property
    def is_csv(self) -> bool:
        """Whether the file has columns with a header."""
        return self.name.removesuffix(".xz").endswith(".csv")

    def header(self) -> tuple[str, ...]:
        """The names of a csv file's columns; none for a .smi file or an empty one.

        Raises:
            ValueError: If the file is not readable as csv.
        """
        return next((tuple(cells) for _, cells in self._csv_lines()), ()) if self.is_csv else ()

    def label_columns(self, smiles_column: str | None) -> tuple[str, ...]:
        """The columns of a csv file besides the SMILES; none for a .smi file.

        Raises:
            ValueError: If the SMILES column is not there or not clear.
        """
        header = self.header()
        if not header:
            return ()
        smiles_at = self._smiles_at(header, smiles_column)
        return tuple(name for position, name in enumerate(header) if position != smiles_at)

    def check_columns(self, labels: Sequence[str], smiles_column: str | None) -> None:
        """Raises where a column that :meth:`rows` needs is missing, without reading all rows."""
        if self.is_csv and self.header():
            self._smiles_at(self.header(), smiles_column)
            for label in labels:
                self._at(self.header(), label)
        elif not self.is_csv:
            self._no_column(labels, smiles_column)

    def rows(self, labels: Sequence[str] | None = (), smiles_column: str | None = None) -> Iterator[Row]:
        """The molecules of the file.

        Blank lines and headers (also repeated ones, as in concatenated files) are skipped, and lines of a .smi file
        that start with `#`; csv has no comments.

        Args:
            labels: The columns that hold the labels; `None` for all columns besides the SMILES, and the names of
                molecules in a .smi file.
            smiles_column: The column that holds the SMILES; `None` takes `smiles`, in any case, or a common variant.

        Raises:
            ValueError: If a csv file lacks the SMILES column or a label column, or has one twice, or a line has more
                cells than the header.
        """
        if self.is_csv:
            yield from self._csv_rows(labels, smiles_column)
        else:
            self._no_column(labels or (), smiles_column)
            yield from self._smi_rows(with_names=labels is None)

    def _no_column(self, labels: Sequence[str], smiles_column: str | None) -> None:
        if labels:
            raise ValueError(f"{self.name} has no columns, so there is no label column {labels[0]!r}")
        if smiles_column is not None:
            raise ValueError(f"{self.name} has no columns, so there is no SMILES column {smiles_column!r}")

    def _smi_rows(self, with_names: bool) -> Iterator[Row]:
        with self._open(newline=None) as text:
            for number, line in enumerate(text, start=1):
                words = line.split(maxsplit=1)
                if words and not words[0].startswith("#") and words[0].lower() not in _SMILES_HEADERS:
                    name = (words[1].strip() if len(words) > 1 else "",) if with_names else ()
                    yield Row(self.name, number, words[0], name)

    def _csv_lines(self) -> Iterator[tuple[int, list[str]]]:
        """Line numbers and cells, the header first; blank lines and repeated headers are left out."""
        with self._open(newline="") as text:
            reader = csv.reader(text)
            header: list[str] | None = None
            try:
                for cells in reader:
                    cells = [cell.strip() for cell in cells]
                    if not any(cells) or cells == header:
                        continue
                    header = header or cells
                    yield reader.line_num, cells
            except csv.Error as error:
                raise ValueError(f"{self.name}:{reader.line_num}: not readable as csv: {error}") from error

    def _csv_rows(self, labels: Sequence[str] | None, smiles_column: str | None) -> Iterator[Row]:
        lines = self._csv_lines()
        _, header = next(lines, (0, None))
        if header is None:
            return
        smiles_at = self._smiles_at(header, smiles_column)
        if labels is None:
            labels_at = [position for position in range(len(header)) if position != smiles_at]
        else:
            labels_at = [self._at(header, label) for label in labels]
        short = 0
        for number, cells in lines:
            if any(cells[len(header) :]):
                raise ValueError(
                    f"{self.name}:{number}: {len(cells)} cells, the header has {len(header)}; quote a cell that holds "
                    "a comma"
                )
            short += len(cells) < len(header)
            cells += [""] * (len(header) - len(cells))
            yield Row(self.name, number, cells[smiles_at], tuple(cells[at] for at in labels_at))
        if short:
            lines_have = "1 line has" if short == 1 else f"{short:,} lines have"
            _LOGGER.warning(
                "%s: %s fewer cells than the header; the absent cells count as empty", self.name, lines_have
            )

    def _at(self, header: Sequence[str], column: str) -> int:
        if header.count(column) != 1:
            number = "no column" if column not in header else "more than one column"
            raise ValueError(f"{self.name} has {number} {column!r}; there are {', '.join(map(repr, header))}")
        return header.index(column)

    def _smiles_at(self, header: Sequence[str], smiles_column: str | None) -> int:
        if smiles_column is not None:
            return self._at(header, smiles_column)
        for names in (_SMILES_HEADERS, _OTHER_HEADERS):
            positions = [position for position, name in enumerate(header) if name.lower() in names]
            if len(positions) > 1:
                raise ArgumentError(
                    "{} has several columns that may hold the SMILES, {}: choose one with {smiles_column}",
                    self.name,
                    ", ".join(repr(header[position]) for position in positions),
                    smiles_column=...,
                )
            if positions:
                return positions[0]
        raise ArgumentError(
            "{} needs a column named 'smiles'; its first line is {!r}. Another column is chosen with {smiles_column}",
            self.name,
            ",".join(header),
            smiles_column=...,
        )


@dataclass(frozen=True)
class SourceFile(MoleculeFile):
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
        _check_path(path)
        content = path.read_bytes()
        if path.suffix == ".xz":
            try:
                content = lzma.decompress(content)
            except (lzma.LZMAError, EOFError) as error:
                raise ValueError(f"{path} is not a complete xz file: {error}") from error
        return cls(path.name, content)

    @property
    def digest(self) -> str:
        """SHA-256 of the content."""
        return hashlib.sha256(self.content).hexdigest()

    def _open(self, newline: str | None) -> TextIO:
        return io.TextIOWrapper(io.BytesIO(self.content), "utf-8-sig", errors="replace", newline=newline)


class StreamedFile(MoleculeFile):
    """A file that is read line by line, for files larger than memory.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If its name ends in none of the known suffixes.
    """

    def __init__(self, path: Path) -> None:
        _check_path(path)
        self.name, self._path = path.name, path

    def rows(self, labels: Sequence[str] | None = (), smiles_column: str | None = None) -> Iterator[Row]:
        """Yield :meth:`MoleculeFile.rows`; a damaged xz file raises when its end is reached."""
        try:
            yield from super().rows(labels, smiles_column)
        except (lzma.LZMAError, EOFError) as error:
            raise ValueError(f"{self._path} is not a complete xz file: {error}") from error

    def _open(self, newline: str | None) -> TextIO:
        unpack = lzma.open if self._path.suffix == ".xz" else open
        return unpack(self._path, "rt", encoding="utf-8-sig", errors="replace", newline=newline)  # type: ignore[operator,no-any-return]


def _check_path(path: Path) -> None:
    if not path.name.endswith(_SUFFIXES):
        raise ValueError(f"cannot read {path}: the name must end in {', '.join(_SUFFIXES)}")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")


def find_split(folder: Path, stem: str) -> Path:
    """The one file of a folder that holds a split.

    Raises:
        FileNotFoundError: If there is none; the message lists the names looked for.
        ValueError: If there are several.
    """
    candidates = [folder / f"{stem}{suffix}" for suffix in _SUFFIXES if (folder / f"{stem}{suffix}").is_file()]
    if not candidates:
        looked_for = ", ".join(f"{stem}{suffix}" for suffix in _SUFFIXES)
        listing = ", ".join(sorted(path.name for path in folder.iterdir())[:20]) or "nothing"
        raise FileNotFoundError(f"{folder} has no {stem} split: looked for {looked_for}; the folder holds {listing}")
    if len(candidates) > 1:
        raise ValueError(f"{folder} has more than one {stem} split: {', '.join(path.name for path in candidates)}")
    return candidates[0]
