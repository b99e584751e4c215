"""Read files of molecules as tables of text, in bounded memory."""

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, TextIO

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
CHUNK = 10_000
"""Number of rows of a file that are read at once."""
# Matches the name of a data field of a structure: `> <NAME>`, with other text around it.
_DATA_NAME = re.compile(r">.*<(.+?)>")
# The first word of the header that RDKit's writer puts into .smi files, and its common variants.
_SMILES_HEADERS = frozenset({"smiles", "smile", "canonical_smiles", "smi"})
# MoleculeNet's bace.csv has its SMILES in the column `mol`.
_OTHER_HEADERS = frozenset({"mol"})


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
        cells = {mark: next(csv.reader([first], delimiter=mark), []) for mark in _SEPARATORS}
        headers = {mark: [cell.strip() for cell in row] for mark, row in cells.items()}
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
        """The names of the columns; empty for a list. For structures, the first is the SMILES.

        Raises:
            ValueError: If the file is not readable.
        """
        if self._kind in _STRUCTURES:
            with self._text() as text:
                return ("smiles", *dict.fromkeys(m[1] for line in text if (m := _DATA_NAME.match(line))))
        if self._kind == ".parquet":
            with open_parquet(self.path) as file:
                return tuple(field.name for field in file.schema_arrow if not field.type.num_fields)
        rows = (tuple(row.iloc[0]) for row in self._table(1) if len(row)) if self.separator else iter(())
        return next(rows, ())

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns other than the SMILES.

        Raises:
            ValueError: If the SMILES column is missing or ambiguous.
        """
        return tuple(self.header[place] for place in self._label_places()) if self.has_columns else ()

    def check_columns(self, columns: Sequence[str]) -> None:
        """Refuse a file that lacks a column of :meth:`tables`, without reading all rows."""
        if self.has_columns or self.smiles_column is not None:
            self._smiles_at()
        for column in columns:
            self._at(column)

    def tables(self, columns: Sequence[str] | None = ()) -> Iterator[Any]:
        """Iterate over the molecules of the file, as pandas tables of up to 10,000 rows of text.

        Their index is the line: that of a row of a table is its number plus one for the header, as if no cell had a
        line end; that of a structure is its first, and of a row of a Parquet file its number. Blank lines are skipped,
        and lines of a list that start with `#` or are a header. Cells that are missing at the end of a row are empty.

        Args:
            columns: The columns that follow the SMILES, the first column. `None` reads all columns, and the names of
                molecules in a list.

        Raises:
            ValueError: If a table lacks the SMILES column or one of `columns`, or has one twice, a line has more cells
                than the header, or the file is damaged.
        """
        self.check_columns(columns or ())
        if self.has_columns:
            wanted = self._label_places() if columns is None else [self._at(column) for column in columns]
            places = [self._smiles_at(), *wanted]
        else:
            places = [0, 1] if columns is None else [0]
        if self.separator:
            tables: Iterator[Any] = (table.iloc[int(at == 0) :] for at, table in enumerate(self._table(CHUNK)))
        elif self._kind in _STRUCTURES:
            tables = _tables(self._records())
        else:
            tables = _tables(self._parquet() if self.has_columns else self._list())
        for table in tables:
            yield table.iloc[:, places]

    def _table(self, size: int) -> Iterator[Any]:
        """Iterate over the cells of a table with their lines, including the header, without blank lines."""
        with self._text() as text:
            # Without the names of its columns, pandas refuses a row with more cells than the first.
            options: dict[str, Any] = {"dtype": str, "na_filter": False, "skip_blank_lines": False}
            for chunk in pandas.read_csv(text, sep=self.separator, header=None, chunksize=size, **options):
                cells = chunk.apply(lambda column: column.str.strip())
                cells.index += 1
                yield cells[(cells != "").any(axis=1)]

    def _parquet(self) -> Iterator[tuple[int, list[str]]]:
        batches = iterate_batches(self.path, columns=self.header)
        rows = chain.from_iterable(zip(*(column.to_pylist() for column in batch), strict=True) for batch in batches)
        for number, values in enumerate(rows, start=1):
            # Strings without the mark of UTF-8 are bytes.
            texts = [value.decode(errors="replace") if isinstance(value, bytes) else value for value in values]
            yield number, ["" if text is None else str(text).strip() for text in texts]

    def _list(self) -> Iterator[tuple[int, list[str]]]:
        with self._text() as text:
            for number, line in enumerate(text, start=1):
                smiles, name = [*line.split(maxsplit=1), "", ""][:2]
                if smiles and not smiles.startswith("#") and smiles.lower() not in _SMILES_HEADERS:
                    yield number, [smiles, name.strip()]

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """Iterate over the first line of each structure and its cells: RDKit's SMILES (`?` if unreadable) and data."""
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
                        smiles, data = _structure("".join(lines))
                        yield start, [smiles, *(data.get(name, "") for name in self.header[1:])]
                    lines = []

    @contextmanager
    def _text(self) -> Iterator[TextIO]:
        try:
            with self._unpacked() as binary:
                has_mark = binary.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
            with io.TextIOWrapper(self._unpacked(), "utf-16" if has_mark else "utf-8-sig") as text:  # type: ignore[type-var]
                yield text
        except _UNREADABLE as error:
            if (isinstance(error, OSError) and error.errno is not None) or str(error).startswith(self.name):
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
        if not self.has_columns:
            raise ValueError(f"{self.name} has no columns, so there is no column {column!r}")
        if self.header.count(column) != 1:
            number = "no column" if column not in self.header else "more than one column"
            raise ValueError(f"{self.name} has {number} {column!r}; there are {', '.join(map(repr, self.header))}")
        return self.header.index(column)

    def _label_places(self) -> list[int]:
        smiles_at = self._smiles_at()
        return [place for place in range(len(self.header)) if place != smiles_at]

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


def read_table(files: Mapping[str, MoleculeFile], columns: Sequence[str] = ()) -> tuple[Any, Any]:
    """Read the files of parts as two pandas tables with one row for each molecule.

    Returns:
        A table with the columns `part`, `file`, `line` and `smiles`, and one with the cells of `columns`.
    """
    tables = [(part, file.name, table) for part, file in files.items() for table in file.tables(columns)]
    if not tables:
        return pandas.DataFrame(columns=["part", "file", "line", "smiles"]), pandas.DataFrame(columns=list(columns))
    places = [
        pandas.DataFrame({"part": part, "file": name, "line": table.index, "smiles": table.iloc[:, 0].to_numpy()})
        for part, name, table in tables
    ]
    cells = [table.iloc[:, 1:].set_axis(list(columns), axis=1) for _, _, table in tables]
    return pandas.concat(places, ignore_index=True), pandas.concat(cells, ignore_index=True)


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


def _tables(rows: Iterable[tuple[int, list[str]]]) -> Iterator[Any]:
    """Make tables of lines and cells."""
    remaining = iter(rows)
    while chunk := list(islice(remaining, CHUNK)):
        lines, cells = zip(*chunk, strict=True)
        yield pandas.DataFrame(list(cells), index=list(lines), dtype=str)


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
