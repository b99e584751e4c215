"""Encode graphs in Parquet files that are larger than memory, shard by shard."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from tqdm import tqdm

from tg_lpe.app.tables import (
    REASON,
    columns_of_graphs,
    graphs_of_table,
    import_pyarrow,
    iterate_batches,
    open_parquet,
    parquet_files,
)
from tg_lpe.arguments import check_count, check_folder
from tg_lpe.checkpoints.files import check_writable, digest_of_file, read_object, replacing, write_json
from tg_lpe.data.storage import GraphDataset, in_halves
from tg_lpe.transforms.base import EDGE_WEIGHT, GraphTransform

if TYPE_CHECKING:
    from tg_lpe.app.molecules import MoleculeReader

MANIFEST = "_manifest.json"
"""File that lists what the shards depend on; readers of Parquet folders ignore names that begin with ``_``."""

ROWS = 10_000
"""Default number of rows of a shard: for molecules, some seconds of work and tens of MB."""

_FORMAT = 1
_STRINGS = re.compile("(dictionary<values=)?(large_)?(string|binary|null)")
"""Types of a column of SMILES by their names. Strings without the mark of UTF-8 are binary."""


class Shard(NamedTuple):
    """Name consecutive rows of an input file, and their output file."""

    name: str
    source: Path
    start: int
    stop: int


class JobReport(NamedTuple):
    """Count what a call of :meth:`EncodingJob.run` encoded."""

    num_shards: int
    """Number of shards that this call encoded."""
    num_rows: int
    """Number of rows of these shards."""
    num_refused: int
    """Number of rows without an encoding; the column ``reason`` says why."""


class EncodingJob:
    """Encode all rows of a Parquet file, or of a folder of Parquet files, into a folder of Parquet files.

    The input is cut into shards of consecutive rows, and one shard is in memory at a time. A shard's file appears only
    when it is complete, so a job may be stopped at any time, and the next :meth:`run` encodes the missing shards. A
    manifest in the output folder lists what the shards depend on: the transform with its weights, the reader of
    molecules, and digests of the input. A job with another manifest is refused.

    Rows are molecules as SMILES, or graphs in the format of :mod:`tg_lpe.app.tables`. A shard holds the columns of its
    input, the attributes written by the transform, and ``reason``, which is null if the row could be encoded. For
    molecules it also holds their graph: ``num_nodes``, ``edge_index`` and ``edge_attr``, with atoms in the order of the
    string, and ``x`` if there is a reader. :func:`tg_lpe.app.tables.read_graphs` reads the graphs back.

    Args:
        source: a Parquet file, or a folder with ``NAME.parquet`` files, which are read in the order of their names.
        out: folder for the shards, ``part-000000.parquet`` and so on in the order of the input.
        transform: the transform to apply, such as ``LinearTransformerPE(k=8)``.
        reader: converts SMILES to graphs with atom types ``x``. Needed if the encoder reads features; not allowed for
            graphs.
        smiles_column: column of the SMILES; ``"smiles"`` if absent and the input has no column ``edge_index``.
        rows_per_shard: rows of a shard; the last shard of each input file may have fewer.

    Raises:
        ModuleNotFoundError: if pyarrow, or for molecules RDKit, is not installed.
        TypeError: if ``transform`` is no transform of this library.
        ValueError: if there is no input; the input lacks a column that the transform reads, or has one that would be
            written; the SMILES are no strings; or ``rows_per_shard`` is out of range.
    """

    def __init__(
        self,
        source: str | Path,
        out: str | Path,
        transform: GraphTransform,
        *,
        reader: MoleculeReader | None = None,
        smiles_column: str | None = None,
        rows_per_shard: int = ROWS,
    ) -> None:
        if not isinstance(transform, GraphTransform):
            raise TypeError(f"transform must be one of tg_lpe, such as LinearTransformerPE(), got {transform!r}")
        check_count("rows_per_shard", rows_per_shard)
        check_folder("out", out)
        self.out, self.transform, self.reader = Path(out).absolute(), transform, reader
        self.rows_per_shard = rows_per_shard
        self._graph_columns = ["num_nodes", "edge_index", "edge_attr", *([] if reader is None else ["x"])]
        files = parquet_files(Path(source).absolute())  # a process of Ray may run in another folder
        if self.out.resolve() in {file.parent.resolve() for file in files}:
            raise ValueError(f"out must be a separate folder for the shards, got {out}, which holds the input")
        schemas: dict[Path, Any] = {}
        self._num_rows: dict[Path, int] = {}
        for file in files:
            with open_parquet(file) as opened:
                schemas[file], self._num_rows[file] = opened.schema_arrow, opened.metadata.num_rows
        self.smiles_column = smiles_column
        if smiles_column is None and "edge_index" not in schemas[files[0]].names:
            self.smiles_column = "smiles"
        self._check(schemas)
        self._held = {file: schema.names for file, schema in schemas.items()}
        pieces = [
            (file, start, min(start + rows_per_shard, num_rows))
            for file, num_rows in self._num_rows.items()
            for start in range(0, num_rows, rows_per_shard)
        ]
        self.shards = tuple(Shard(f"part-{number:06}.parquet", *piece) for number, piece in enumerate(pieces))

    def run(self, part: tuple[int, int] = (0, 1), progress: bool = True) -> JobReport:
        """Encode the missing shards.

        Args:
            part: ``(i, n)`` to encode only shards ``i``, ``i + n``, ``i + 2n`` and so on. So ``n`` processes, on one
                machine or on several with a shared file system, can divide a job.
            progress: whether to show a progress bar.

        Raises:
            ValueError: if ``out`` belongs to another job, ``part`` is out of range, or an input file is damaged or was
                changed.
        """
        index, count = part
        if not 0 <= index < count:
            raise ValueError(f"part must be (i, n) with 0 <= i < n, got {part}")
        self.start()
        pending = self.pending(self.shards[index::count])
        reports = []
        total = sum(shard.stop - shard.start for shard in pending)
        with tqdm(total=total, desc="encoding", unit="row", disable=None if progress else True) as bar:
            for shard in pending:
                reports.append(self.encode(shard))
                bar.update(reports[-1].num_rows)
        return _total(reports)

    def run_on_ray(self) -> JobReport:
        """Encode the missing shards as tasks of Ray Data, on the cluster that Ray is connected to.

        Call ``ray.init(address=...)`` first to use a cluster; otherwise Ray starts on this machine. All machines must
        see input and output under the same paths, and have the same release of this library.

        Raises:
            ModuleNotFoundError: if Ray is not installed.
            ValueError: as in :meth:`run`; Ray wraps errors of its tasks.
        """
        try:
            import ray.data
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("run_on_ray needs Ray: pip install 'tg-lpe[ray]'") from error
        self.start()
        missing = set(self.pending(self.shards))
        numbers = [{"shard": number} for number, shard in enumerate(self.shards) if shard in missing]
        if not numbers:
            return _total([])
        tasks = ray.data.from_items(numbers, override_num_blocks=len(numbers))
        done = tasks.map(lambda row: self.encode(self.shards[row["shard"]])._asdict())
        return _total([JobReport(**row) for row in done.take_all()])

    def start(self) -> None:
        """Write the manifest; raise ``ValueError`` if the folder holds shards with another manifest or with none."""
        path = self.out / MANIFEST
        check_writable(path)  # before the digests of the input, which take long
        manifest = self.manifest()
        if not any(self.out.glob("part-*.parquet")):
            write_json(path, manifest)
            return
        if not path.exists():
            raise ValueError(f"{self.out} holds shards without their {MANIFEST}; choose another folder")
        recorded = read_object(path)
        for name in {**manifest, **recorded}:
            if manifest.get(name) != recorded.get(name):
                difference = f"{name} is {recorded.get(name)!r} in {MANIFEST}, here {manifest.get(name)!r}"
                raise ValueError(f"{self.out} holds shards of another job: {difference}; choose another folder")

    def manifest(self) -> dict[str, Any]:
        """Return everything that the shards depend on, JSON-able; this reads the input once for its digests."""
        # Read without an import, which would make this module depend on all modules of the package.
        release: dict[str, Any] = {"tg_lpe": vars(sys.modules["tg_lpe"])["__version__"]}
        if self.smiles_column is not None:
            from rdkit import rdBase

            release["rdkit"] = rdBase.rdkitVersion
        reader = None
        if self.reader is not None:
            types = self.reader.vocabulary
            reader = {**asdict(self.reader), "vocabulary": None if types is None else list(types)}
        inputs = [
            {"name": file.name, "rows": num_rows, "sha256": digest_of_file(file)}
            for file, num_rows in self._num_rows.items()
        ]
        return {
            "format": _FORMAT,
            "release": release,
            "transform": repr(self.transform),
            "smiles_column": self.smiles_column,
            "reader": reader,
            "rows_per_shard": self.rows_per_shard,
            "inputs": inputs,
        }

    def pending(self, shards: tuple[Shard, ...]) -> list[Shard]:
        """List the shards that are missing."""
        return [shard for shard in shards if not (self.out / shard.name).exists()]

    def encode(self, shard: Shard) -> JobReport:
        """Encode one shard, even if its file exists already."""
        arrow = import_pyarrow()
        table = _read_rows(shard)
        graphs_of, reasons = self._molecules(table) if self.smiles_column else self._graphs(table)
        rows = [row for row, reason in enumerate(reasons) if reason is None]

        def encoded(start: int, stop: int) -> _Piece:
            graphs = graphs_of(start, stop)
            return _Piece(rows[start], graphs, self.transform.encode_dataset(graphs, progress=False))

        pieces = []
        for start, piece in in_halves(encoded, 0, len(rows), (ValueError, TypeError)):
            if isinstance(piece, str):
                reasons[rows[start]] = piece
            else:
                pieces.append(piece)
        if reasons and not pieces:
            try:
                # One graph without nodes has an encoding with the widths of all columns.
                empty = graphs_of(0, 0)
                data = copy.copy(empty._data)
                data._store.__dict__["_num_nodes"] = [0]
                graphs = GraphDataset(data, {name: torch.zeros(2, dtype=torch.int64) for name in empty.slices or {}})
                pieces = [_Piece(0, graphs, self.transform.encode_dataset(graphs, progress=False))]
            except (ValueError, TypeError) as error:  # the fault of the rows does not depend on their nodes
                first = f"{shard.source}: row {shard.start}: {reasons[0]}"
                raise ValueError(f"{first}; no other row could be encoded either") from error
        columns = self._columns(pieces, [reason is None for reason in reasons])
        columns[REASON] = arrow.array(reasons, arrow.string())
        for name, values in columns.items():
            for file, held in self._held.items():  # of all shards, so that the first one raises
                if name in held:
                    raise ValueError(f"{file} has a column {name!r}, which would be written; choose another name")
            table = table.append_column(name, values)
        with replacing(self.out / shard.name) as temporary:
            arrow.parquet.write_table(table, temporary, compression="zstd")
        return JobReport(1, len(reasons), sum(reason is not None for reason in reasons))

    def _check(self, schemas: dict[Path, Any]) -> None:
        """Raise ``ValueError`` if the input lacks columns to read or has columns that would be written."""
        features, weight = [*self.transform.features], self.transform.edge_weight
        # The default edge_weight column is optional; any other name, or a column that some files have, is required.
        if weight is not None and (weight != EDGE_WEIGHT or any(weight in schema.names for schema in schemas.values())):
            features.append(weight)
        if self.smiles_column is None:
            if self.reader is not None:
                raise ValueError("reader is for SMILES, but the input holds graphs: it has a column edge_index")
            needed, added = ["edge_index", *features], [REASON]
        else:
            from tg_lpe.app import molecules as _  # noqa: F401 (raises if RDKit is missing)

            if "x" in features and self.reader is None:
                raise ValueError("the encoder reads atom types: pass reader=MoleculeReader(...), which numbers them")
            if weight in features and weight != EDGE_WEIGHT:
                raise ValueError(f"molecules have no edge weights, but the transform reads edge_weight={weight!r}")
            needed, added = [self.smiles_column], [*self._graph_columns, REASON]
        for file, schema in schemas.items():
            for name in needed:
                if name not in schema.names:
                    raise ValueError(f"{file} has no column {name!r}; there are {schema.names}")
            for name in added:
                if name in schema.names:
                    raise ValueError(f"{file} already has a column {name!r}, which would be overwritten")
            kind = None if self.smiles_column is None else str(schema.field(self.smiles_column).type)
            if kind is not None and not _STRINGS.match(kind):
                raise ValueError(f"the SMILES must be strings, got a column {self.smiles_column!r} of {kind} in {file}")

    def _molecules(self, table: Any) -> tuple[_GraphsOf, list[str | None]]:
        """Return the valid SMILES of a table as graphs, and for each row ``None`` or the reason why it is invalid."""
        from tg_lpe.app.molecules import MoleculeDataset, _molecule, reader

        smiles = table[self.smiles_column].cast("string").to_pylist()
        if self.reader is not None:
            [batch] = self.reader.read(smiles, batch_size=len(smiles), num_workers=0)
            return partial(_part, batch.graphs), batch.reasons
        molecules = _molecule.process(smiles, canonical=True)  # without atom types, which have no common numbers
        graphs = (m if isinstance(m, str) else m._replace(atoms=[0] * len(m.atoms)) for m in molecules)
        return partial(_part, MoleculeDataset.from_molecules(graphs)), reader.reasons_of(molecules)

    def _graphs(self, table: Any) -> tuple[_GraphsOf, list[str | None]]:
        """Return the graphs of a table, and ``None`` for each row, since faults only show up later."""
        weight = self.transform.edge_weight
        columns = [*self.transform.features, *([] if weight is None or weight not in table.column_names else [weight])]
        return lambda start, stop: graphs_of_table(table.slice(start, stop - start), columns), [None] * len(table)

    def _columns(self, pieces: list[_Piece], usable: list[bool]) -> dict[str, Any]:
        """Return the columns to write by name, with nulls in rows that are not usable."""
        read = pieces[0].graphs._data.keys()
        written = [name for name in pieces[0].encoded._data.keys() if name not in read]  # noqa: SIM118 (not a mapping)
        if not written:
            raise ValueError(f"the transform must write a new attribute: set its attr_name, got {self.transform}")
        names = [*(self._graph_columns if self.smiles_column else []), *written]
        # Unusable rows between two pieces are nulls at the end of the first piece.
        starts = [0, *(piece.start for piece in pieces[1:]), len(usable)]
        columns = [
            columns_of_graphs(piece.encoded, names, usable[low:high])
            for piece, low, high in zip(pieces, starts[:-1], starts[1:], strict=True)
        ]
        return {name: import_pyarrow().chunked_array([part[name] for part in columns]) for name in names}


_GraphsOf = Callable[[int, int], GraphDataset]
"""Returns the usable graphs ``start..stop - 1``."""


class _Piece(NamedTuple):
    """Hold the encoded graphs of consecutive usable rows."""

    start: int
    """The first row."""
    graphs: GraphDataset
    """The graphs of the usable rows; one graph without nodes if no row of the table is usable."""
    encoded: Any
    """These graphs with the attributes of the transform, collated."""


def _part(graphs: GraphDataset, start: int, stop: int) -> GraphDataset:
    """Return the graphs ``start..stop - 1`` of a dataset without copying their values; all attributes need slices."""
    data, slices = copy.copy(graphs._data), {}
    for name, ptr in (graphs.slices or {}).items():
        value, low = data[name], int(ptr[start])
        data[name] = value.narrow(data.__cat_dim__(name, value), low, int(ptr[stop]) - low)
        slices[name] = ptr[start : stop + 1] - low
    return GraphDataset(data, slices)


def _total(reports: list[JobReport]) -> JobReport:
    return JobReport(*(sum(counts) for counts in zip(JobReport(0, 0, 0), *reports, strict=True)))


def _read_rows(shard: Shard) -> Any:
    """Read the rows of a shard as a table."""
    with open_parquet(shard.source) as file:
        schema = file.schema_arrow
    batches = iterate_batches(shard.source, shard.start, shard.stop)
    table = import_pyarrow().Table.from_batches(batches, schema=schema)
    if len(table) != shard.stop - shard.start:
        raise ValueError(f"{shard.source} was changed: it ends before row {shard.stop}")
    return table
