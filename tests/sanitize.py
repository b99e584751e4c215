"""Run the tests of the compiled operations, and a quick fuzz, with the C++ part under a compiler's sanitizers.

    python tests/sanitize.py [address] [thread] [--quick] [--tests PATH ...]

`address` is AddressSanitizer with UndefinedBehaviorSanitizer, `thread` ThreadSanitizer. The library is compiled anew,
into a copy of the package under build/sanitize. Python and torch are as they are, so the sanitizer's runtime is loaded
before them, and leaks, of which an interpreter has many, are not looked for. `--quick` takes about a minute: it
compiles without optimisation, for AddressSanitizer alone, and runs calls with hostile arguments.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build" / "sanitize"
CXX = os.environ.get("CXX", "g++")
FLAGS = ["-std=c++17", "-g", "-ffp-contract=fast", "-fno-omit-frame-pointer", "-fvisibility=hidden", "-fPIC"]

SANITIZERS = {
    "address": (
        "address,undefined",
        "libasan.so",
        {"ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=4096"},
    ),
    # torch's and NumPy's libraries are not instrumented: only races between two threads of this library are reported.
    "thread": ("thread", "libtsan.so", {"TSAN_OPTIONS": "halt_on_error=1:ignore_noninstrumented_modules=1"}),
}
"""Flags of the compiler, the runtime that is loaded first, and its options."""


def build(name: str, kind: str, optimisation: str) -> Path:
    """A copy of the package and its tests, with an instrumented library."""
    target = BUILD / name
    shutil.rmtree(target, ignore_errors=True)
    for folder in ("tg_lpe", "tests", "benchmarks"):
        shutil.copytree(ROOT / folder, target / folder, ignore=shutil.ignore_patterns("__pycache__", "_library.so"))
    for file in ("pyproject.toml", "setup.cfg"):
        shutil.copy(ROOT / file, target)
    library = target / "tg_lpe" / "ops" / "cpu" / "_library.so"
    flags = [*FLAGS, optimisation, f"-fsanitize={kind}", "-fno-sanitize-recover=undefined"]

    def compile_one(source: Path) -> str:
        compiled = str(target / f"{source.stem}.o")
        subprocess.run([CXX, *flags, "-c", str(source), "-o", compiled], check=True)
        return compiled

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, (ROOT / "tg_lpe" / "ops" / "csrc").glob("*.cpp")))
    subprocess.run([CXX, *flags, "-shared", *objects, "-o", str(library)], check=True)
    return target


def run(name: str, tests: list[str], quick: bool) -> bool:
    """Whether the tests pass and the sanitizer has nothing to say; also if the compiler has no sanitizer."""
    kind, runtime, options = SANITIZERS[name]
    asked = subprocess.run([CXX, f"-print-file-name={runtime}"], capture_output=True, text=True, check=True)
    if not Path(asked.stdout.strip()).is_file():
        print(f"{name}: skipped, the compiler has no {runtime}")
        return True
    folder = build(name, kind, "-O0" if quick else "-O1")
    libraries = ["libstdc++.so.6"] if name == "address" else []  # exceptions are caught by the runtime from the start
    preload = " ".join([asked.stdout.strip(), *libraries])
    environment = {**os.environ, **options, "OMP_NUM_THREADS": "1", "LD_PRELOAD": preload}
    environment["PYTHONPATH"] = f"{folder}:{folder / 'tests'}"
    # Addresses are not randomised: ThreadSanitizer's shadow memory has fixed places.
    prefix = ["setarch", os.uname().machine, "-R", sys.executable]
    pytest = ["-m", "pytest", "-q", "-x", "-s", "-p", "no:cacheprovider"]
    commands = [[*pytest, *tests]]
    if quick:
        commands = [["tests/hostile.py"]]
    elif name == "address" and tests == ["tests/ops"]:
        commands += [[*pytest, "tests/fuzz", "-k", "test_graphs"], ["tests/hostile_arguments.py", "--every", "4"]]
    check = "import sys, tg_lpe.ops.cpu as c; print(c.__file__); sys.exit(not c.is_available())"
    for command in [["-c", check], *commands]:
        print(f"{name}: python {' '.join(command)}", flush=True)
        if subprocess.run([*prefix, *command], cwd=folder, env=environment).returncode:
            return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*SANITIZERS, []])  # a default is checked as one choice
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--tests", nargs="+", default=["tests/ops"])
    args = parser.parse_args()
    names = args.names or list(SANITIZERS)[: 1 if args.quick else None]
    failed = [name for name in names if not run(name, args.tests, args.quick)]
    print(f"sanitizers: {', '.join(names)}; failed: {', '.join(failed) or 'none'}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
