"""Encode a million molecules on two cores, killed once and resumed: time, memory and throughput.

    python benchmarks/million.py [--quick] [--data FILE ...] [--molecules N] [--processes N] [--json FILE]

The molecules are those of the files (.smi or .smi.xz, such as ZINC's), or the 5,000 that ship with RDKit, each repeated
with its atoms renumbered at random from a seed. `tg-lpe encode IN.parquet OUT --part i/N` runs in N processes of one
thread. All of them are killed (SIGKILL) when 40 % of the shards are complete, and started again. For comparison, other
rows encode the same molecules in memory with one thread, in one process and in N processes at once.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from _arguments import Parser
from _results import show, write_results
from rdkit import Chem, RDConfig, RDLogger

from tg_lpe import LinearTransformerPE
from tg_lpe.app.jobs import ROWS
from tg_lpe.app.molecules import read_molecules

KILLED_AT = 0.4
"""Share of complete shards at which the processes are killed."""

SAMPLE = 20_000
"""Number of molecules of the rows in memory."""


def renumbered(files: list[Path], count: int, seed: int) -> Iterator[list[str]]:
    """Yield ``count`` SMILES in batches, repeating the molecules of the files with shuffled atoms."""
    RDLogger.DisableLog("rdApp.*")
    base: list[str] = []
    for file in files:
        with (lzma.open if file.suffix == ".xz" else open)(file, "rt", encoding="utf-8") as lines:  # type: ignore[operator]
            base += [words[0] for words in map(str.split, lines) if words]
    made, each = 0, -(-count // len(base))
    for number, smiles in enumerate(base):
        molecule = Chem.MolFromSmiles(smiles)
        if molecule is None or molecule.GetNumAtoms() == 0:
            strings = [smiles] * each  # includes refused rows
        else:
            strings = list(Chem.MolToRandomSmilesVect(molecule, each, randomSeed=seed + number + 1))
        yield strings[: count - made]
        made += len(strings)
        if made >= count:
            return


def write_input(path: Path, files: list[Path], count: int) -> None:
    """Write the molecules as a Parquet file with a column ``smiles``."""
    schema, waiting = pa.schema([("smiles", pa.string())]), []
    with pq.ParquetWriter(path, schema) as writer:
        for strings in renumbered(files, count, seed=0):
            waiting += strings
            if len(waiting) >= 50_000:
                writer.write_table(pa.table({"smiles": waiting}, schema))
                waiting = []
        writer.write_table(pa.table({"smiles": waiting}, schema))


def in_memory(source: Path, count: int) -> dict[str, float]:
    """Measure the seconds from SMILES to encodings in memory with one thread."""
    torch.set_num_threads(1)
    transform = LinearTransformerPE.from_pretrained("gram-k16")
    smiles = next(pq.ParquetFile(source).iter_batches(count)).column(0).to_pylist()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sample.smi"
        file.write_text("\n".join(smiles) + "\n", encoding="utf-8")
        transform.encode_dataset(read_molecules(file, num_workers=0, progress=False)[0][:100], progress=False)
        start, processor = time.perf_counter(), time.process_time()
        dataset = read_molecules(file, num_workers=0, progress=False)[0]
        transform.encode_dataset(dataset, progress=False)
        return {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - processor}


def in_processes(source: Path, count: int, processes: int) -> dict[str, float]:
    """Measure the mean of :func:`in_memory` in several processes at once."""
    command = [sys.executable, __file__, "--in-memory", str(source), "--molecules", str(count)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, env=one_thread()) for _ in range(processes)]
    found = [json.loads(process.communicate()[0]) for process in running]
    means = {name: sum(one[name] for one in found) / processes for name in ("seconds", "cpu_seconds")}
    return {"molecules": count, **means}


def one_thread() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def run_job(source: Path, out: Path, rows: int, shards: int, processes: int, kill_at: int | None) -> float:
    """Run a job, optionally killed after some shards, and return its seconds."""
    start, running = time.perf_counter(), []
    for part in range(processes):
        options = ["--rows_per_shard", str(rows), "--part", f"{part}/{processes}", "--threads", "1", "--quiet"]
        command = [sys.executable, "-m", "tg_lpe.app.cli", "encode", str(source), str(out), *options]
        running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, env=one_thread()))
    while any(process.poll() is None for process in running):
        if kill_at is not None and len(list(out.glob("part-*.parquet"))) >= kill_at:
            for process in running:
                process.send_signal(signal.SIGKILL)
                process.wait()
            return time.perf_counter() - start
        time.sleep(0.02)
    if any(process.returncode for process in running):
        raise RuntimeError(f"a process ended with {[process.returncode for process in running]}")
    if kill_at is not None:
        raise RuntimeError(f"all {shards} shards were there before {kill_at} of them were seen")
    return time.perf_counter() - start


def check(source: Path, out: Path) -> int:
    """Check that the result is the input, row by row, with an encoding; return the number of refused rows."""
    refused = 0
    given = (row for batch in pq.ParquetFile(source).iter_batches(ROWS) for row in batch.column(0).to_pylist())
    for file in sorted(out.glob("part-*.parquet")):
        table = pq.read_table(file, columns=["smiles", "num_nodes", "reason"])
        for smiles, num_nodes, reason in zip(*(table[name].to_pylist() for name in table.column_names), strict=True):
            if smiles != next(given) or (num_nodes is None) != (reason is not None):
                raise RuntimeError(f"{file} does not hold the rows of its input")
        refused += len(table) - table["reason"].null_count
    if next(given, None) is not None:
        raise RuntimeError("rows are missing")
    return refused


def main() -> None:
    parser = Parser(__doc__, "400 molecules", "million.json")
    parser.add_argument("--data", type=Path, nargs="+", help=".smi or .smi.xz files")
    parser.add_argument("--molecules", type=int, default=1_000_000, help="(default: %(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--in-memory", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.in_memory is not None:
        print(json.dumps(in_memory(args.in_memory, args.molecules)))
        return
    count, rows, sample = (400, 40, 100) if args.quick else (args.molecules, ROWS, min(SAMPLE, args.molecules))
    files = args.data or [Path(RDConfig.RDDataDir, "NCI", "first_5K.smi")]
    with tempfile.TemporaryDirectory(prefix="tg_lpe-million-") as folder:
        source, out = Path(folder, "molecules.parquet"), Path(folder, "encoded")
        write_input(source, files, count)
        shards = -(-count // rows)
        job = source, out, rows, shards, args.processes
        before = run_job(*job, kill_at=max(1, int(KILLED_AT * shards)))
        kept = len(list(out.glob("part-*.parquet")))
        print(f"killed after {before:.0f} s with {kept} of {shards} shards")
        after = run_job(*job, kill_at=None)
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        peak = children.ru_maxrss / 1024  # of the largest process
        refused, size = check(source, out), sum(file.stat().st_size for file in out.iterdir())
        alone, together = in_processes(source, sample, 1), in_processes(source, sample, args.processes)
    entries: list[dict[str, Any]] = [
        {"what": "in memory, one process", "processes": 1, **alone},
        {"what": f"in memory, {args.processes} processes at once", "processes": args.processes, **together},
        {
            "what": f"shards, {args.processes} processes, killed once",
            "processes": args.processes,
            "molecules": count / args.processes,
            "seconds": before + after,
            "cpu_seconds": (children.ru_utime + children.ru_stime) / args.processes,
            "peak_mib": peak,
        },
    ]
    for entry in entries:
        for name, of in (("per_second", "seconds"), ("per_cpu_second", "cpu_seconds")):
            entry[name] = entry["molecules"] / entry[of]
            entry[f"ratio_{name}"] = entry[name] / entries[0][name]
        show(entry)
    print(f"{count:,} molecules, {refused:,} refused, {before + after:,.0f} s")
    print(f"shards of {size / 2**20:,.0f} MiB, peak memory of a process {peak:,.0f} MiB")
    kill = {"seconds": before, "shards": kept, "of": shards, "seconds_after": after}
    write_results(args.json, entries, molecules=count, refused=refused, bytes=size, killed=kill)


if __name__ == "__main__":
    main()
