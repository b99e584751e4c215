"""Read files of molecules row by row, in bounded memory."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NamedTuple, TextIO

import pandas
from rdkit import Chem, rdBase

from tg_lpe.app.molecules import _molecule
from tg_lpe.app.tables import iterate_batches, open_parquet
from tg_lpe.arguments import ArgumentError

_STRUCTURES = (".sdf", ".mol")
_TEXT = (".smi", ".csv", ".tsv", ".txt", *_STRUCTURES)
_PACKED: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zip": zipfile.ZipFile}
_UNREADABLE = (ValueError, OSError, EOFError, RuntimeError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)
FORMATS = f"{', '.join(_TEXT)}, each also as {', '.join(_PACKED)}, and .parquet"
"""Supported suffixes of files."""

_SEPARATORS = (",", ";", "\t", "|")
_CHUNK = 10_000
"""Number of rows of a table that are read at once."""
# Matches the name of a data field of a structure: `> <NAME>`, with other text around it.
_DATA_NAME = re.compile(r">.*<(.+?)>")
# The first word of the header that RDKit's writer puts into .smi files, and its common variants.
_SMILES_HEADERS = frozenset({"smiles", "smile", "canonical_smiles", "smi"})
# MoleculeNet's bace.csv has its SMILES in the column `mol`.
_OTHER_HEADERS = frozenset({"mol"})


class Row(NamedTuple):
    """Hold one molecule of a file with its line, and the text of each requested column."""

    file: str
    line: int
    smiles: str
    labels: tuple[str, ...]


class MoleculeFile:
    """Read a file of molecules, whose format follows from its name and its first line.

    - Tables (.csv, .tsv) have a header. The separator is `,`, `;`, a tab or `|`.
    - Lines of .smi files are `SMILES [name]`.
    - A .txt file is a table if its header names the SMILES or has a comma or a semicolon, and otherwise a list.
    - Structures (.sdf, .mol) are converted to SMILES by RDKit, and their data fields are columns.

    Text is UTF-8, or UTF-16 with a byte order mark.

    Args:
        source: The file.
        smiles_column: The column of the SMILES; by default `smiles`, in any case, or a common variant.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the suffix of its name is unknown.
    """

    def __init__(self, source: str | Path, smiles_column: str | None = None) -> None:
        self.smiles_column = smiles_column
        self.path = Path(source)
        self.name = self.path.name
        self._kind, self._packing = _format(self.name) or ("", "")
        if not self._kind:
            raise ValueError(f"cannot read {source}: the suffix is {self.path.suffix!r}, supported are {FORMATS}")
        if not self.path.is_file():
            raise FileNotFoundError(f"there is no file {source}")

    @cached_property
    def separator(self) -> str:
        """The separator of the cells of a table; empty for other files."""
        if self._kind not in (".csv", ".tsv", ".txt"):
            return ""
        with self._text() as text:
            first = next((line for line in text if line.strip()), "")
        headers = {mark: _stripped(next(csv.reader([first], delimiter=mark), [])) for mark in _SEPARATORS}
        known = [separator for separator, header in headers.items() if self._smiles_places(header)]
        if self._kind == ".txt" and not known and "," not in first and ";" not in first:
            return ""
        return max(known or _SEPARATORS, key=lambda separator: len(headers[separator]))

    @property
    def has_columns(self) -> bool:
        """Whether the file has named columns."""
        return bool(self.separator) or self._kind in (*_STRUCTURES, ".parquet")

    @cached_property
    def header(self) -> tuple[str, ...]:
        """The names of the columns; empty for a list or an empty table. For structures, the first is the SMILES.

        Raises:
            ValueError: If the file is not readable.
        """
        if self._kind in _STRUCTURES:
            with self._text() as text:
                return ("smiles", *dict.fromkeys(m[1] for line in text if (m := _DATA_NAME.match(line))))
        if self._kind == ".parquet":
            with open_parquet(self.path) as file:
                return tuple(field.name for field in file.schema_arrow if not field.type.num_fields)
        return next((tuple(cells) for _, cells in self._table()), ()) if self.has_columns else ()

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns other than the SMILES.

        Raises:
            ValueError: If the SMILES column is missing or ambiguous.
        """
        if not self.header:
            return ()
        smiles_at = self._smiles_at()
        return tuple(name for position, name in enumerate(self.header) if position != smiles_at)

    def check_columns(self, labels: Sequence[str]) -> None:
        """Refuse a file that lacks a column of :meth:`rows`, without reading all rows."""
        if not self.has_columns:
            for column in (*labels, self.smiles_column):
                if column is not None:
                    raise ValueError(f"{self.name} has no columns, so there is no column {column!r}")
        elif self.header:
            self._smiles_at()
            for label in labels:
                self._at(label)

    def rows(self, labels: Sequence[str] | None = ()) -> Iterator[Row]:
        """Iterate over the molecules of the file, with their lines.

        The line of a row of a table is its number plus one for the header, as if no cell had a line end; that of a
        structure is its first, and of a row of a Parquet file its number. Blank lines are skipped, and lines of a list
        that start with `#` or are a header. Cells that are missing at the end of a row are empty.

        Args:
            labels: The columns of the labels. `None` reads all columns other than the SMILES, and the names of
                molecules in a list.

        Raises:
            ValueError: If a table lacks the SMILES column or a label column, or has one twice, a line has more cells
                than the header, or the file is damaged.
        """
        self.check_columns(labels or ())
        return self._with_labels(labels) if self.has_columns else self._list(with_names=labels is None)

    def _with_labels(self, labels: Sequence[str] | None) -> Iterator[Row]:
        if not (header := self.header):
            return
        smiles_at = self._smiles_at()
        if labels is None:
            labels_at = [position for position in range(len(header)) if position != smiles_at]
        else:
            labels_at = [self._at(label) for label in labels]
        for number, cells in self._cells():
            yield Row(self.name, number, cells[smiles_at], tuple([cells[at] for at in labels_at]))

    def _cells(self) -> Iterator[tuple[int, list[str]]]:
        """Iterate over line numbers and cells, with an empty cell for each missing one."""
        if self._kind in _STRUCTURES:
            for line, smiles, properties in self._records():
                yield line, [smiles, *(properties.get(name, "") for name in self.header[1:])]
        elif self._kind == ".parquet":
            batches = iterate_batches(self.path, columns=self.header)
            rows = chain.from_iterable(zip(*(column.to_pylist() for column in batch), strict=True) for batch in batches)
            for number, values in enumerate(rows, start=1):
                # Strings without the mark of UTF-8 are bytes.
                texts = [value.decode(errors="replace") if isinstance(value, bytes) else value for value in values]
                yield number, ["" if text is None else str(text).strip() for text in texts]
        else:
            yield from islice(self._table(), 1, None)

    def _table(self) -> Iterator[tuple[int, list[str]]]:
        """Iterate over lines and cells of a table, including the header, without blank lines."""
        with self._text() as text:
            # Without the names of its columns, pandas refuses a row with more cells than the first.
            options: dict[str, Any] = {"dtype": str, "na_filter": False, "skip_blank_lines": False}
            for chunk in pandas.read_csv(text, sep=self.separator, header=None, chunksize=_CHUNK, **options):
                cells = chunk.apply(lambda column: column.str.strip())
                for place, *row in cells[(cells != "").any(axis=1)].itertuples(name=None):
                    yield place + 1, row

    def _list(self, with_names: bool) -> Iterator[Row]:
        with self._text() as text:
            for number, line in enumerate(text, start=1):
                words = line.split(maxsplit=1)
                if words and not words[0].startswith("#") and words[0].lower() not in _SMILES_HEADERS:
                    name = (words[1].strip() if len(words) > 1 else "",) if with_names else ()
                    yield Row(self.name, number, words[0], name)

    def _records(self) -> Iterator[tuple[int, str, dict[str, str]]]:
        """Iterate over the first line of each structure, RDKit's SMILES (`?` if RDKit cannot read it), and its data."""
        with self._text() as text:
            lines: list[str] = []
            for number, line in enumerate(chain(text, ["\n", "$$$$\n"]), start=1):
                lines.append(line)
                if line.startswith("$$$$"):
                    start = number - len(lines) + 1
                    if sum(part.startswith("M  END") for part in lines) > 1:  # RDKit reads only the first
                        hint = "write a line $$$$ after each M  END and its data"
                        raise ValueError(f"{self.name}:{start}: several structures are not separated; {hint}")
                    if any(part.strip() for part in lines[:-1]):
                        yield start, *_structure("".join(lines))
                    lines = []

    @contextmanager
    def _text(self) -> Iterator[TextIO]:
        try:
            with self._unpacked() as binary:
                has_mark = binary.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
            with io.TextIOWrapper(self._unpacked(), "utf-16" if has_mark else "utf-8-sig") as text:  # type: ignore[type-var]
                yield text
        except _UNREADABLE as error:
            if getattr(error, "errno", None) is not None or str(error).startswith(self.name):
                raise  # not the content, but the file; or it is named already
            kind = self._kind + self._packing
            raise ValueError(f"{self.name} is not readable as {kind} in UTF-8: {str(error).strip()}") from error

    def _unpacked(self) -> IO[bytes]:
        if self._packing != ".zip":
            return _PACKED.get(self._packing, open)(self.path, "rb")  # type: ignore[no-any-return]
        archive = zipfile.ZipFile(self.path)
        names = [name for name in archive.namelist() if not name.startswith("__MACOSX/")]
        if len(names) != 1:
            raise ValueError(f"it must hold one file, got {', '.join(map(repr, names[:5])) or 'none'}")
        return archive.open(names[0])

    def _at(self, column: str) -> int:
        if self.header.count(column) != 1:
            number = "no column" if column not in self.header else "more than one column"
            raise ValueError(f"{self.name} has {number} {column!r}; there are {', '.join(map(repr, self.header))}")
        return self.header.index(column)

    def _smiles_places(self, header: Sequence[str]) -> list[int]:
        """Return the columns that may hold the SMILES."""
        if self.smiles_column is not None:
            return [place for place, name in enumerate(header) if name == self.smiles_column]
        usual = [place for place, name in enumerate(header) if name.lower() in _SMILES_HEADERS]
        return usual or [place for place, name in enumerate(header) if name.lower() in _OTHER_HEADERS]

    def _smiles_at(self) -> int:
        if self.smiles_column is not None:
            return self._at(self.smiles_column)
        if self._kind in _STRUCTURES:
            return 0
        places = self._smiles_places(self.header)
        if len(places) > 1:
            message = "{} has several columns that may hold the SMILES, {}: choose one with {smiles_column}"
            names = ", ".join(repr(self.header[place]) for place in places)
            raise ArgumentError(message, self.name, names, smiles_column=...)
        if not places:
            message = "{} needs a column named 'smiles'; the columns in its first line, separated by {!r}, are {}. "
            message += "Choose another column with {smiles_column}"
            columns = ", ".join(map(repr, self.header))
            raise ArgumentError(message, self.name, self.separator, columns, smiles_column=...)
        return places[0]


def find_split(folder: Path, stem: str) -> Path:
    """Find the file of a split in a folder.

    Raises:
        FileNotFoundError: If there is none; the message lists the supported names.
        ValueError: If there are several.
    """
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    ends = {path: "".join(_format(path.name) or (".",)) for path in paths}
    splits = [path for path, end in ends.items() if path.name in (stem + end, stem + end.upper())]
    if not splits:
        held = ", ".join(path.name for path in paths[:20]) or "nothing"
        raise FileNotFoundError(
            f"{folder} has no {stem} split: looked for {stem} with the suffixes {FORMATS}; the folder holds {held}"
        )
    if len(splits) > 1:
        raise ValueError(f"{folder} has more than one {stem} split: {', '.join(path.name for path in splits)}")
    return splits[0]


def _format(name: str) -> tuple[str, str] | None:
    """Return the suffixes of a file's format and of its compression, in lower case; `None` if not supported."""
    name = name.lower()
    packing = next((suffix for suffix in _PACKED if name.endswith(suffix)), "")
    kind = Path(name.removesuffix(packing)).suffix
    return (kind, packing) if kind in _TEXT or (kind, packing) == (".parquet", "") else None


def _stripped(cells: list[str]) -> list[str]:
    return [cell.strip() for cell in cells]


def _structure(record: str) -> tuple[str, dict[str, str]]:
    with rdBase.BlockLogs():
        supplier = Chem.SDMolSupplier()
        for sanitize in (True, False):  # unsanitised, RDKit reports the fault when it reads the SMILES
            supplier.SetData(record, sanitize=sanitize)
            molecule = supplier[0] if len(supplier) else None
            if molecule is not None:
                molecule.UpdatePropertyCache(strict=False)
                names = molecule.GetPropNames()
                return _molecule.smiles_of(molecule), {name: molecule.GetProp(name).strip() for name in names}
    return "?", {}
