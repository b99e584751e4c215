"""What a GPU is asked for, piece by piece; `make gpu` runs this script.

    python benchmarks/_gpu.py [--data DIR] [--device cuda] [--minutes M] [--pieces PIECE ...]
    python benchmarks/_gpu.py --device cpu --quick

DIR holds the folders zinc and zinc12k, each with train, val and test. The pieces, of which those marked * run once more
with TG_LPE_TRITON=1:

    tests*       the tests of devices, on this one
    kernels      the Triton kernels against torch and float64, see benchmarks/_kernels.py
    throughput*  graphs per second against PyG and batched eigendecompositions, see benchmarks/throughput.py
    training*    time of a step, plain, compiled and through CUDA graphs, see benchmarks/training.py
    models       the ZINC cells of Table 2 (benchmarks/table2.py) and the zinc12k row (benchmarks/molecules.py), for
                 2,000 epochs, side by side

A piece writes gpu_PIECE.json, the last gpu_table2.json and gpu_zinc12k.json; where they are there, it is done.
With --minutes the script stops in time, and the same command goes on: models with their last whole epoch, another piece
from its start. --quick goes through every piece in a few minutes, with tiny models, and leaves its files in a temporary
folder; with --device cpu it needs no GPU.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from tg_lpe.hub.files import write_json
from tg_lpe.ops import triton
from tg_lpe.training.run_folder import environment

ROOT = Path(__file__).parent.parent
TESTS = ("tests/test_devices.py", "tests/ops/test_triton.py", "tests/training/test_build.py")
ELSEWHERE = ("tests/ops/test_triton.py::test_under_the_interpreter",)
"""Tests of these files that do not use the device."""

CELLS = ("zinc-none", "zinc-laplacian", "zinc-linear-transformer")
ROW = "GramTransformer"
EPOCHS = "2000"


@dataclass(frozen=True)
class Piece:
    """Commands, and the files that they leave."""

    name: str
    files: list[Path]
    side_by_side: list[list[str]]
    then: list[list[str]] = field(default_factory=list)
    """Run one after the other when those before are done."""
    use_triton: bool = False
    missing: str | None = None
    """Why it cannot run here."""

    def is_done(self) -> bool:
        """Whether all files are there."""
        return all(file.exists() for file in self.files)


def pieces(args: argparse.Namespace) -> Iterator[Piece]:
    """All of them, in their order."""

    def file(name: str) -> Path:
        return Path(args.results, f"gpu_{name}.json")

    def script(name: str, *options: str, json: Path, quick: bool = args.quick) -> list[str]:
        path = str(ROOT / "benchmarks" / f"{name}.py")
        return [sys.executable, path, "--device", args.device, "--json", str(json), *["--quick"] * quick, *options]

    no_triton = None if args.device != "cpu" else "Triton's kernels run on GPUs; on a CPU, kernels interprets them"
    zinc = [] if args.data is None or args.quick else ["--data", str(Path(args.data, "zinc"))]
    for name, command, options in (
        ("tests", "_gpu", ["--run_tests"]),
        ("kernels", "_kernels", []),
        ("throughput", "throughput", zinc),
        ("training", "training", zinc),
    ):
        yield Piece(name, [file(name)], [script(command, *options, json=file(name))])
        if name != "kernels":
            twin = f"{name}_triton"
            yield Piece(twin, [file(twin)], [script(command, *options, json=file(twin))], [], True, no_triton)

    files = [file("table2"), file("zinc12k")]
    if args.quick:
        commands = [script(name, json=json) for name, json in zip(("table2", "molecules"), files, strict=True)]
        yield Piece("models", files, commands)
        return
    if args.data is None:
        yield Piece("models", files, [], missing="no --data DIR, with the folders zinc and zinc12k")
        return
    table2 = ["--data", args.data, "--out", str(Path(args.runs, "table2")), "--epochs", EPOCHS]
    zinc12k = ["--data", str(Path(args.data, "zinc12k")), "--out", str(Path(args.runs, "molecules"))]
    zinc12k += ["--epochs", EPOCHS, "--rows", ROW]
    parts = [script("table2", *table2, "--cells", cell, json=Path(args.runs, f"{cell}.json")) for cell in CELLS]
    parts.append(script("molecules", "zinc12k", *zinc12k, json=Path(args.runs, "zinc12k.json")))
    collect = [
        script("table2", *table2, "--collect", json=files[0]),
        script("molecules", "zinc12k", *zinc12k, "--collect", json=files[1]),
    ]
    yield Piece("models", files, parts, collect)


def run(piece: Piece, deadline: float) -> str:
    """Run a piece: ``"done"``, ``"failed"``, or ``"stopped"`` at the deadline."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    variables["TG_LPE_TRITON"] = str(int(piece.use_triton))
    for commands in (piece.side_by_side, *([command] for command in piece.then)):
        processes = [subprocess.Popen(command, env=variables, cwd=ROOT) for command in commands]
        try:
            codes = [process.wait(max(deadline - time.monotonic(), 0.1)) for process in processes]
        except subprocess.TimeoutExpired:
            return "stopped"
        finally:
            for process in processes:
                process.terminate()  # a run folder is whole at any moment
                process.wait()
        if any(codes):
            return "failed"
    return "done" if piece.is_done() else "failed"


def run_tests(device: str, json: Path, quick: bool) -> int:
    """Run the tests of devices on one, and write how many of each file passed; pytest's exit status."""
    os.environ["TG_LPE_TEST_DEVICE"] = device
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        chosen = (
            [TESTS[0], "-k", "test_transform"] if quick else [*TESTS, *(f"--deselect={test}" for test in ELSEWHERE)]
        )
        code = pytest.main(["-q", "-p", "no:cacheprovider", f"--junitxml={report}", *chosen])
        cases = list(ElementTree.parse(report).iter("testcase"))
    results = []
    for name in sorted({case.attrib["classname"] for case in cases}):
        own = [case for case in cases if case.attrib["classname"] == name]
        skipped = sum(case.find("skipped") is not None for case in own)
        seconds = sum(float(case.attrib["time"]) for case in own)
        results.append({"file": name, "passed": len(own) - skipped, "skipped": skipped, "seconds": seconds})
    if code == 0:  # otherwise the piece is not done
        machine = environment()
        write_json(json, {"device": device, "triton": triton.enabled, "results": results, "machine": machine})
    return code


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="(default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="tiny models, a few minutes in all")
    parser.add_argument("--data", metavar="DIR", help="folder with zinc and zinc12k")
    parser.add_argument("--minutes", type=float, metavar="M", help="stop after so many (default: when all is done)")
    parser.add_argument("--pieces", nargs="+", metavar="PIECE", help="only these (default: all)")
    parser.add_argument("--results", metavar="DIR", help="(default: benchmarks/results; a temporary folder if --quick)")
    parser.add_argument("--runs", metavar="DIR", default="runs/gpu", help="of the models (default: %(default)s)")
    parser.add_argument("--run_tests", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run_tests:
        sys.exit(run_tests(args.device, args.json, args.quick))
    if args.device == "cpu" and not args.quick:
        parser.error("--device cpu needs --quick")
    if args.device != "cpu" and not torch.cuda.is_available():
        parser.error(f"--device {args.device} cannot be used here; --device cpu --quick needs no GPU")
    with tempfile.TemporaryDirectory() as folder:
        args.results = args.results or (folder if args.quick else str(ROOT / "benchmarks" / "results"))
        sys.exit(run_all(args))


def run_all(args: argparse.Namespace) -> int:
    """Run what is not done; the exit status: 1 if a piece failed."""
    deadline = time.monotonic() + 60 * args.minutes if args.minutes else float("inf")
    known = list(pieces(args))
    if unknown := set(args.pieces or ()) - {piece.name for piece in known}:
        sys.exit(f"no pieces {sorted(unknown)}; there are {[piece.name for piece in known]}")
    outcomes = {}
    for piece in known:
        if args.pieces and piece.name not in args.pieces:
            continue
        start = time.monotonic()
        if piece.is_done():
            outcomes[piece.name] = "done before"
        elif piece.missing:
            outcomes[piece.name] = f"left out: {piece.missing}"
        elif start >= deadline:
            outcomes[piece.name] = "not begun"
        else:
            print(f"== {piece.name}", flush=True)
            outcomes[piece.name] = f"{run(piece, deadline)} after {(time.monotonic() - start) / 60:.1f} minutes"
    print(f"\n{args.device}, results in {args.results}")
    for name, outcome in outcomes.items():
        print(f"{name:18} {outcome}")
    if any(outcome.startswith(("stopped", "not begun")) for outcome in outcomes.values()):
        print("not finished: the same command goes on")
    return int(any(outcome.startswith("failed") for outcome in outcomes.values()))


if __name__ == "__main__":
    main()
