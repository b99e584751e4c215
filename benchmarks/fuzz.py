"""Throw random and malformed graphs and files at everything that takes them.

    python benchmarks/fuzz.py [--start SEED] [--count CASES] [--files FILES] [--json FILE]     a piece, added to FILE
    python benchmarks/fuzz.py --count 0 --files 0 --add PIECE [PIECE ...] --json FILE          pieces run side by side
    python benchmarks/fuzz.py --start SEED --count 1 --files 0 [--only TARGET]                 one case again
    python benchmarks/fuzz.py --start SEED --count 0 --files 1 [--only READER]                 one file again

A case is a batch of graphs, or one graph with a defect, in float32 or float64; its seed decides everything about it.
The answer must be finite and of the right shape and dtype, or a ValueError or TypeError that names the argument or the
file, within five seconds of processor time; the arguments must be unchanged. Anything else is a finding. Cases run in a
process of their own with bounded memory, so that a crash is a finding as well. Exits with 1 if there are findings.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import mmap
import queue
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from _arguments import Parser
from _fuzz_readers import Reader, all_readers
from _fuzz_targets import Output, Target, all_targets, in_turn
from torch import Tensor

import tg_lpe
from tg_lpe.hub.files import read_json, write_json
from tg_lpe.testing.files import random_file
from tg_lpe.testing.graphs import GraphInput, malformed_graph, random_graph
from tg_lpe.training.run_folder import environment

HANG = 5.0
"""Seconds of processor time that a call may take."""

SILENCE = 120.0
"""Seconds without an answer after which a worker counts as hanging outside of Python."""

MEMORY = 4 * 2**30
"""Bytes that a worker may allocate beyond what it has when it starts."""

MAX_GRAPHS = 256
"""Graphs of a batch: most calls take about as long for one graph as for many small ones."""

FINDINGS_KEPT = 200
SAVED_EVERY = 60.0
"""Seconds between two writings of the results."""


class Finding(NamedTuple):
    """Something that must not happen."""

    what: str
    seed: int
    target: str
    kind: str
    """``crash``, ``hang``, ``error``, ``unnamed``, ``not finite``, ``form`` or ``changed``."""
    case: str
    """The defect of the graph, or the kind of the file."""
    message: str


class Hang(BaseException):
    """A call took longer than :data:`HANG`."""


def graph_of(seed: int) -> tuple[GraphInput, torch.dtype]:
    """The case of a seed."""
    rng = Random(seed)
    dtype = rng.choice((torch.float32, torch.float64))
    if rng.random() < 0.7:
        return malformed_graph(rng, 40, dtype), dtype
    return random_graph(rng, max_graphs=MAX_GRAPHS, dtype=dtype), dtype


# What counts as an answer.


@contextmanager
def limited_time() -> Iterator[None]:
    """Raise :class:`Hang` after :data:`HANG` seconds of processor time."""

    def stop(*_: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, HANG)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def judge(call: Callable[[], list[Output]], blamed: Sequence[str], may_refuse: bool) -> tuple[str, str]:
    """Call something; what became of it (``answered``, ``refused`` or a kind of finding) and a message.

    Args:
        call: returns its results and the forms that they must have.
        blamed: words one of which a refusal must have in its message.
        may_refuse: whether there is anything to refuse.
    """
    try:
        with limited_time():
            outputs = call()
        for output in outputs:
            if problem := _problem(output):
                return problem
    except Hang:
        return "hang", f"took more than {HANG:.0f} s"
    except (ValueError, TypeError) as error:
        message = str(error)
        if not may_refuse:
            return "error", f"well-formed, but {type(error).__name__}: {message}"
        if not any(re.search(rf"(?<!\w){re.escape(word)}(?![a-z])", message) for word in blamed):
            return "unnamed", f"{type(error).__name__} names none of {', '.join(blamed)}: {message}"
        return "refused", message
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return "error", f"{type(error).__name__}: {error}"
    return "answered", ""


def _problem(output: Output) -> tuple[str, str] | None:
    values, shape, dtype, may_be_infinite = output
    if not isinstance(values, Tensor):
        return "form", f"expected a tensor, got {type(values).__name__}"
    fits = len(shape) == values.dim() and all(n in (None, m) for n, m in zip(shape, values.shape, strict=True))
    if not fits or values.dtype != dtype:
        return "form", f"expected {dtype} {list(shape)}, got {values.dtype} {list(values.shape)}"
    if bool(values.isnan().any()) if may_be_infinite else not bool(torch.isfinite(values).all()):
        return "not finite", f"{int((~torch.isfinite(values)).sum())} of {values.numel()} values are not finite"
    return None


def same(before: Tensor, now: Tensor) -> bool:
    """Whether two tensors have the same bits of information; NaN is equal to itself."""
    if before.shape != now.shape or before.dtype != now.dtype:
        return False
    if before.is_sparse:
        return same(before.to_dense(), now.to_dense())
    return torch.equal(before, now) or bool(((before == now) | ((before != before) & (now != now))).all())


class Tally:
    """Numbers of calls and refusals by kind of target, and the findings, of some cases."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, float]] = {}
        self.findings: list[Finding] = []

    def add(self, what: str, verdict: str, seconds: float) -> None:
        row = self.rows.setdefault(what, {"calls": 0, "refused": 0, "findings": 0, "seconds": 0.0})
        row["calls"] += 1
        row["seconds"] += seconds
        row["refused"] += verdict == "refused"
        row["findings"] += verdict not in ("answered", "refused")


def try_graph(seed: int, targets: Sequence[Target], tell: Callable[[str], None], graph: GraphInput) -> Tally:
    """Throw the graph of a seed at targets; ``tell`` is told which is next."""
    tally = Tally()
    tensors = graph.tensors()
    copies = [tensor.clone() for tensor in tensors]
    for target in in_turn(targets, seed):
        if not target.takes(graph):
            continue
        tell(target.name)
        start = time.process_time()
        verdict, message = judge(
            lambda target=target: target.run(graph, seed),
            (*graph.blamed, *target.limits),
            graph.defect is not None or bool(target.limits),
        )
        if not all(map(same, copies, tensors)):
            verdict, message = "changed", f"an argument was changed (otherwise {verdict})"
            for tensor, copy in zip(tensors, copies, strict=True):
                tensor.copy_(copy)
        tally.add(target.kind, verdict, time.process_time() - start)
        if verdict not in ("answered", "refused"):
            case = graph.defect or f"{graph.num_graphs} graphs, {graph.num_nodes} nodes"
            tally.findings.append(Finding("graphs", seed, target.name, verdict, case, message[:300]))
    return tally


def try_file(seed: int, readers: Sequence[Reader], tell: Callable[[str], None], valid: Sequence[bytes]) -> Tally:
    """Throw the file of a seed at readers."""
    tally = Tally()
    file = random_file(Random(seed), valid)
    for reader in readers:
        tell(reader.name)
        with tempfile.TemporaryDirectory(prefix="tg_lpe-fuzz-") as name:
            folder = Path(name)
            path = reader.prepare(folder, file.content, seed)
            before = {part: part.read_bytes() for part in folder.rglob("*") if part.is_file()}
            start = time.process_time()
            verdict, message = judge(lambda reader=reader, path=path: reader.read(path), (path.name, name), True)
            if any(not part.is_file() or part.read_bytes() != content for part, content in before.items()):
                verdict, message = "changed", f"a file was changed (otherwise {verdict})"
        tally.add("readers", verdict, time.process_time() - start)
        if verdict not in ("answered", "refused"):
            tally.findings.append(Finding("files", seed, reader.name, verdict, file.kind, message[:300]))
    return tally


# A worker: cases one after the other, told about on stdout.


def work(what: str, seeds: range, only: str, progress: Path) -> None:
    """Run cases and print one line of JSON for each; ``progress`` says at any time what runs."""
    torch.set_num_threads(1)
    with progress.open("r+b") as file, mmap.mmap(file.fileno(), 256) as memory:

        def tell(seed: int) -> Callable[[str], None]:
            def write(name: str) -> None:
                memory[:] = f"{seed} {name}".encode().ljust(256)[:256]

            return write

        tell(seeds.start)("start")
        if what == "graphs":
            targets = {
                dtype: [target for target in all_targets(dtype) if only in target.name]
                for dtype in (torch.float32, torch.float64)
            }
        else:
            readers, valid = all_readers()
            readers = [reader for reader in readers if only in reader.name]
        soft = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (soft, resource.getrlimit(resource.RLIMIT_AS)[1]))
        for seed in seeds:
            tell(seed)("start")
            if what == "graphs":
                graph, dtype = graph_of(seed)
                tally = try_graph(seed, targets[dtype], tell(seed), graph)
                facts = {"graphs": 1 if graph.defect else graph.num_graphs, "malformed": int(graph.defect is not None)}
            else:
                tally = try_file(seed, readers, tell(seed), valid)
                facts = {"files": 1}
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(
                json.dumps({"seed": seed, **facts, "rows": tally.rows, "findings": tally.findings, "peak": peak}),
                flush=True,
            )


def run(what: str, seeds: range, only: str) -> Iterator[dict[str, Any]]:
    """The answers of workers for all seeds; one that dies is followed by another."""
    with tempfile.TemporaryDirectory() as folder:
        progress = Path(folder, "progress")
        start = seeds.start
        while start < seeds.stop:
            progress.write_bytes(b"".ljust(256))
            command = [sys.executable, __file__, "--worker", what, "--only", only, "--json", str(progress)]
            command += ["--start", str(start), "--count", str(seeds.stop - start)]
            with tempfile.TemporaryFile() as errors:
                worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
                silent = False
                try:
                    for line in _lines(worker):
                        if line is None:
                            silent = True
                            worker.kill()
                            break
                        answer = json.loads(line)
                        start = answer["seed"] + 1
                        yield answer
                finally:
                    worker.kill()
                    code = worker.wait()
                errors.seek(0)
                last = errors.read().decode("utf-8", "replace").strip().splitlines()[-1:]
            if start >= seeds.stop:
                return
            seed, _, target = progress.read_bytes().decode().strip().partition(" ")
            if target == "start" or not target:
                raise RuntimeError(f"the worker failed before its first call of seed {seed or start}: {last}")
            kind = "hang" if silent else "crash"
            message = f"no answer for {SILENCE:.0f} s" if silent else f"exit status {code}: {' '.join(last)[:200]}"
            finding = Finding(what, int(seed), target, kind, "", message)
            yield {"seed": int(seed), "rows": {}, "findings": [finding], "peak": 0.0}
            start = int(seed) + 1


def _lines(worker: subprocess.Popen[str]) -> Iterator[str | None]:
    """Lines of a worker; ``None`` after :data:`SILENCE`."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        assert worker.stdout is not None
        for line in worker.stdout:
            lines.put(line)
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=SILENCE)
        except queue.Empty:
            yield None
            return
        if not line:
            return
        yield line


# Pieces of a run, added up in one file.


def code_digest() -> str:
    """A digest of the package's code: pieces of one result are of one code."""
    sha = hashlib.sha256()
    folder = Path(tg_lpe.__file__).parent
    for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.cpp"), *folder.rglob("*.h")]):
        sha.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return sha.hexdigest()[:12]


def empty_result() -> dict[str, Any]:
    machine = environment()
    totals = dict.fromkeys(("cases", "graphs", "malformed", "files"), 0)
    return {
        "machine": machine,
        "code": code_digest(),
        "seeds": {},
        **totals,
        "peak_mib": 0.0,
        "results": [],
        "findings": [],
    }


def add(result: dict[str, Any], what: str, answer: dict[str, Any]) -> None:
    """Take in a worker's answer."""
    result["cases"] += what == "graphs"
    for name in ("graphs", "malformed", "files"):
        result[name] += answer.get(name, 0)
    result["peak_mib"] = max(result["peak_mib"], round(answer["peak"], 1))
    rows = {row["what"]: row for row in result["results"]}
    for name, counts in answer["rows"].items():
        row = rows.get(name)
        if row is None:
            row = {"what": name, **dict.fromkeys(counts, 0)}
            result["results"].append(row)
        for key, value in counts.items():
            row[key] += value
    for finding in answer["findings"]:
        found = Finding(*finding)
        print(f"{found.kind}: seed {found.seed}, {found.target} ({found.case}): {found.message}", flush=True)
        if len(result["findings"]) < FINDINGS_KEPT:
            result["findings"].append(found._asdict())
    ranges = result["seeds"].setdefault(what, [])
    if ranges and ranges[-1][1] == answer["seed"]:
        ranges[-1][1] += 1
    else:
        ranges.append([answer["seed"], answer["seed"] + 1])


def merge(result: dict[str, Any], other: dict[str, Any]) -> None:
    """Add a piece that another process has run."""
    if other["code"] != result["code"]:
        raise SystemExit(f"pieces of other code: {result['code']} and {other['code']}")
    for what, ranges in other["seeds"].items():
        there = result["seeds"].setdefault(what, [])
        if any(part[0] < own[1] and own[0] < part[1] for part in ranges for own in there):
            raise SystemExit(f"pieces have seeds of {what} in common: {there} and {ranges}")
        there.extend(ranges)
    for name in ("cases", "graphs", "malformed", "files"):
        result[name] += other[name]
    result["peak_mib"] = max(result["peak_mib"], other["peak_mib"])
    rows = {row["what"]: row for row in result["results"]}
    for given in other["results"]:
        row = rows.get(given["what"])
        if row is None:
            result["results"].append(dict(given))
            continue
        for key in row.keys() - {"what"}:
            row[key] += given[key]
    result["findings"] += other["findings"]


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--start", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, default=3300, help="cases of graphs, about 31 graphs each")
    parser.add_argument("--files", type=int, default=1000, help="files")
    parser.add_argument("--only", default="", help="part of the names of the targets that are called")
    parser.add_argument("--quick", action="store_true", help="a few cases")
    parser.add_argument("--worker", choices=("graphs", "files"), help=argparse.SUPPRESS)
    parser.add_argument("--add", type=Path, nargs="+", default=[], help="files of pieces to add first")
    parser.add_argument("--json", type=Path, help="file that the results are added to")
    args = parser.parse_args()
    if args.worker:
        work(args.worker, range(args.start, args.start + args.count), args.only, args.json)
        return
    if args.quick:
        args.count, args.files = 8, 8
    result = empty_result()
    if args.json is not None and args.json.exists():
        result = read_json(args.json)
        if result["code"] != code_digest():
            raise SystemExit(f"{args.json} has results of other code; name another file, or remove it")
    for path in args.add:
        merge(result, read_json(path))
    saved = time.monotonic()
    for what, count in (("graphs", args.count), ("files", args.files)):
        seeds = range(args.start, args.start + count)
        done = [part for part in result["seeds"].get(what, []) if part[0] < seeds.stop and seeds.start < part[1]]
        if count and done:
            raise SystemExit(f"{args.json} has seeds {done} of {what} already; choose another --start")
        for answer in run(what, seeds, args.only):
            add(result, what, answer)
            if args.json is not None and time.monotonic() - saved > SAVED_EVERY:
                write_json(args.json, result)
                saved = time.monotonic()
    for row in result["results"]:
        row["seconds"] = round(row["seconds"], 3)
        row["findings"], row["calls"], row["refused"] = (int(row[name]) for name in ("findings", "calls", "refused"))
        print(f"{row['what']}: {row['calls']:,.0f} calls, {row['refused']:,.0f} refusals, {row['findings']} findings")
    print(f"{result['graphs']:,} graphs, {result['files']:,} files, {len(result['findings'])} findings")
    if args.json is not None:
        write_json(args.json, result)
    sys.exit(bool(result["findings"]))


if __name__ == "__main__":
    main()
