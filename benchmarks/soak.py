"""Interruptions: training, pretraining, encoding and prediction are killed, resumed, and compared bit for bit.

    python benchmarks/soak.py [--quick] [--kills N] [--seed N] [--only TEXT] [--json FILE]

Each job runs once undisturbed. Then it runs again and again in folders of its own, and is interrupted on the way:

- SIGKILL at a random moment;
- a disk that becomes full, and one that becomes read-only, in the middle of which the job is started (a tmpfs of this
  program's; without the right to mount one, RLIMIT_FSIZE stands for the full disk and the read-only one is left out);
- after a kill, the last checkpoint cut off or with one bit flipped, and file times years in the past or the future.

After each interruption every file under a final name is read: none may be half-written. At the end a job's figures,
weights and files must be those of the undisturbed run, bit for bit. Everything random is drawn from --seed. The time to
a kill is the job's own on a processor, so other programs hardly change how far it has come.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib.pyplot
import torch
from _arguments import Parser
from rdkit import RDConfig
from torch_geometric.data import Data

from tg_lpe import LinearTransformerPE
from tg_lpe.cli import main as tg_lpe
from tg_lpe.data.storage import GraphDataset
from tg_lpe.datasets.molecules import read_molecules
from tg_lpe.hub.files import load_tensors, read_json, write_json
from tg_lpe.training.run_folder import RunFolder, environment
from tg_lpe.training.state import read_metrics

TIMES = ("seconds", "graphs_per_second")
YEARS = 5 * 365 * 86400.0
PATIENCE = 8
"""Interruptions of one run, at most; then it may end."""

Run = Callable[[Path], int]
"""Does a job in a folder and returns an exit status."""


def training(molecules: Path, command: str, *options: str) -> Run:
    """A training that goes on with what is in its folder."""

    def run(folder: Path) -> int:
        small = ["--computed", "solubility", "--model.hidden_channels", "16", "--model.num_layers", "2"]
        common = ["--threads", "1", "--quiet", "--batch-size", "32", "--resume"]
        places = ["--cache", str(folder / "cache"), "--out", str(folder / "run")]
        return tg_lpe([command, str(molecules), *(small if command == "train" else []), *common, *places, *options])

    return run


def encoding(file: Path, name: str) -> Run:
    """`tg-lpe encode`."""
    return lambda folder: tg_lpe(["encode", str(file), str(folder / name), "--threads", "1", "--quiet"])


def storing(file: Path) -> Run:
    """A dataset encoded and saved, as a script does it."""

    def run(folder: Path) -> int:
        torch.set_num_threads(1)
        dataset = read_molecules(file, progress=False)[0]
        try:
            GraphDataset.save(LinearTransformerPE().encode_dataset(dataset, progress=False), folder / "encoded.pt")
        except OSError as error:
            print(error, file=sys.stderr)
            return 1
        return 0

    return run


def prediction(file: Path) -> Run:
    """`tg-lpe predict`."""

    def run(folder: Path) -> int:
        options = ["--refused", str(folder / "refused.csv"), "--workers", "0", "--threads", "1", "--quiet"]
        return tg_lpe(["predict", "transformer-zinc", str(file), str(folder / "predicted.csv"), *options])

    return run


def jobs(folder: Path, quick: bool) -> dict[str, Run]:
    """All jobs, on molecules that ship with RDKit."""
    lines = Path(RDConfig.RDDataDir, "NCI", "first_5K.smi").read_text(encoding="utf-8").splitlines()
    file, molecules = folder / "molecules.smi", folder / "molecules"
    molecules.mkdir()
    file.write_text("\n".join(lines[: 200 if quick else 1500]) + "\n", encoding="utf-8")
    for name, (start, stop) in {"train": (0, 300), "val": (300, 350), "test": (350, 400)}.items():
        (molecules / f"{name}.smi").write_text("\n".join(lines[start:stop]) + "\n", encoding="utf-8")
    epochs = ["--epochs", "3" if quick else "8"]
    learned = ["--encoder", "GramTransformer", "--encoder.num_layers", "4", "--ema", "0.9"]
    signs = ["--encoder", "LaplacianEigenvectors", "--encoder.k", "3", "--schedule", "plateau", "--recalibrate", "40"]
    return {
        "train, learned encoding": training(molecules, "train", *learned, *epochs),
        "encode to .safetensors": encoding(file, "encoded.safetensors"),
        "train, random signs": training(molecules, "train", *signs, *epochs),
        "predict": prediction(file),
        "pretrain on eigenvectors": training(molecules, "pretrain", "--eigenvectors", "3", *epochs),
        "encode to .pt": encoding(file, "encoded.pt"),
        "pretrain on kernels": training(molecules, "pretrain", "--kernels", "heat", *epochs),
        "encode_dataset and save": storing(file),
    }


# ------------------------------------------------------------------------------------------------------ one process


@dataclass
class Ended:
    """How a process ended: its exit status, negative for a signal; what it said; its seconds on a processor."""

    status: int
    said: str
    seconds: float


def in_process(run: Run, folder: Path, kill_after: float | None = None, largest_file: int | None = None) -> Ended:
    """Run a job in a copy of this process, and kill it after some seconds on a processor."""
    with tempfile.TemporaryFile("w+") as said:
        child = os.fork()
        if child == 0:
            status = 70
            try:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                if largest_file is not None:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
                status = run(folder)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        used = 0.0  # by this process alone: workers that it starts do not bring it further
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
            used = _processor_seconds(child)
            if kill_after is not None and used >= kill_after:
                os.kill(child, signal.SIGKILL)
                kill_after = None
            time.sleep(0.002)
        said.seek(0)
        return Ended(os.waitstatus_to_exitcode(ended[1]), said.read(), used)


def _processor_seconds(process: int) -> float:
    """What a process has used so far; Linux."""
    entries = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(entries[11]) + int(entries[12])) / os.sysconf("SC_CLK_TCK")


# ------------------------------------------------------------------------------------------------------------- files


def visible(folder: Path) -> Iterator[Path]:
    """Files under final names."""
    return (file for file in sorted(folder.rglob("*")) if file.is_file() and not file.name.startswith("."))


def contents(folder: Path, damaged: bytes | None = None) -> dict[str, str]:
    """A digest of what each file of a folder says, times apart.

    Args:
        folder: where they are.
        damaged: what a file is known to hold that this program has damaged.

    Raises:
        Exception: of whatever kind, if a file is not whole.
    """
    found = {}
    for file in visible(folder):
        name = str(file.relative_to(folder))
        if file.suffix == ".json":
            value: Any = read_json(file) if file.name != "environment.json" else read_json(file).keys()
        elif file.suffix == ".jsonl":
            value = [{key: entry for key, entry in row.items() if key not in TIMES} for row in read_metrics(file)]
        elif file.suffix == ".safetensors":
            if file.read_bytes() == damaged:
                continue
            tensors, value = load_tensors(file)
            value = [value if "state" not in file.name else None, _tensors(tensors)]
        elif file.suffix == ".pt":
            loaded = torch.load(file, weights_only=False)
            value = _tensors({key: entry for key, entry in _flat(loaded).items() if isinstance(entry, torch.Tensor)})
        elif file.suffix == ".png":
            value = str(matplotlib.pyplot.imread(file).shape)
        else:
            value = file.read_text(encoding="utf-8")
            if file.suffix == ".csv" and not value.endswith("\n"):
                raise ValueError(f"{file} ends in the middle of a line")
        found[name] = hashlib.sha256(repr(value).encode()).hexdigest()[:16]
    return found


def _tensors(tensors: dict[str, torch.Tensor]) -> list[Any]:
    return [
        (key, str(value.dtype), list(value.shape), hashlib.sha256(value.contiguous().numpy().data).hexdigest())
        for key, value in sorted(tensors.items())
    ]


def _flat(loaded: Any) -> dict[str, Any]:
    """The entries of what `torch.load` returns: a dictionary, or a dataset's storage."""
    if isinstance(loaded, dict):
        return loaded
    data, slices = loaded[:2]
    entries = data.to_dict() if isinstance(data, Data) else data
    return {**entries, **{f"{key} slices": value for key, value in slices.items()}}


# ----------------------------------------------------------------------------------------------------- interruptions


@dataclass
class Disk:
    """Where jobs write: a small tmpfs if this process may mount one."""

    folder: Path
    mounted: bool = field(init=False, default=False)
    reason: str = field(init=False, default="")

    def __enter__(self) -> Disk:
        made = self._mount("-t", "tmpfs", "-o", "size=64m", "tg_lpe_soak", str(self.folder))
        self.mounted, self.reason = made.returncode == 0, made.stderr.strip()
        return self

    def __exit__(self, *_: object) -> None:
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    @staticmethod
    def _mount(*arguments: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(["mount", *arguments], capture_output=True, text=True)
        except OSError as error:
            return subprocess.CompletedProcess([], 1, "", str(error))

    @contextlib.contextmanager
    def full(self, left: int) -> Iterator[None]:
        """All but some bytes are taken."""
        ballast = self.folder / ".ballast"
        free = shutil.disk_usage(self.folder).free
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(free - left, 1))
        try:
            yield
        finally:
            ballast.unlink()

    @contextlib.contextmanager
    def read_only(self) -> Iterator[None]:
        """Nothing can be written."""
        self._mount("-o", "remount,ro", str(self.folder)).check_returncode()
        try:
            yield
        finally:
            self._mount("-o", "remount,rw", str(self.folder)).check_returncode()


def damage(folder: Path, draw: random.Random) -> tuple[str, bytes | None]:
    """Something that can happen to the files of a killed job; its name, and what the checkpoint then holds."""
    state, kind = RunFolder(folder / "run").state, draw.choice(["", "cut off", "bit flipped", "clock"])
    if kind == "clock":
        moment = time.time() + draw.choice([-YEARS, YEARS])
        for file in visible(folder):
            os.utime(file, (moment, moment))
        return "clock changed", None
    if not kind or not state.exists():
        return "", None
    content = bytearray(state.read_bytes())
    place = draw.randrange(len(content))
    if kind == "cut off":
        content = content[:place]
    else:
        content[place] ^= 1 << draw.randrange(8)
    state.write_bytes(content)
    return f"checkpoint {kind}", bytes(content)


def disturbed(name: str, run: Run, folder: Path, disk: Disk, usual: float, draw: random.Random) -> dict[str, Any]:
    """Run a job to its end with interruptions; what happened."""
    folder.mkdir()
    happened: list[dict[str, Any]] = []
    problems: list[str] = []
    damaged: bytes | None = None
    while True:
        how = draw.choices(["kill", "disk full", "read-only"], [6, 1, 1])[0] if len(happened) < PATIENCE else ""
        event: dict[str, Any] = {"how": how}
        if how == "disk full":
            left = draw.randrange(1, 200_000)
            event["bytes left"] = left
            with disk.full(left) if disk.mounted else contextlib.nullcontext():
                ended = in_process(run, folder, largest_file=None if disk.mounted else left)
        elif how == "read-only":
            if not disk.mounted:
                continue
            with disk.read_only():
                ended = in_process(run, folder)
        else:
            event["seconds"] = round(draw.uniform(0, 0.8 * usual), 3)
            ended = in_process(run, folder, kill_after=event["seconds"] if how else None)
        event["status"] = ended.status
        if "Traceback" in ended.said or ended.status not in (0, 1, -signal.SIGKILL):
            problems.append(f"{how or 'the end'}: {ended.said[-2000:]}")
        try:
            contents(folder, damaged)
        except Exception as error:
            problems.append(f"half-written after {how}: {type(error).__name__}: {error}")
        if ended.status == 0:
            break
        if how == "kill" and ended.status < 0:
            event["damage"], now = damage(folder, draw)
            damaged = damaged if now is None else now
        happened.append(event)
        if ended.status == 1 and "is damaged, and there is no earlier one" in ended.said:
            event["refused"] = True
            shutil.rmtree(folder / "run")  # as the message says
        elif not how:
            problems.append(f"did not end: {ended.said[-2000:]}")
            break
    left = [str(file.relative_to(folder)) for file in (folder / "run").rglob(".*") if file.name != ".lock"]
    if left:
        problems.append(f"left in the run folder: {', '.join(left)}")
    return {"job": name, "interruptions": happened, "problems": problems, "damaged": damaged}


def compared(found: dict[str, str], expected: dict[str, str]) -> list[str]:
    """Names of files that differ or that only one run has, the checkpoints for resuming apart."""
    names = {name for name in {*found, *expected} if not Path(name).name.startswith("state")}
    return sorted(name for name in names if found.get(name) != expected.get(name))


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each job."""
    rows = []
    for name in dict.fromkeys(run["job"] for run in runs):
        mine = [run for run in runs if run["job"] == name]
        events = [event for run in mine for event in run["interruptions"]]
        ended = Counter(event["how"] for event in events)
        damages = Counter(event["damage"] for event in events if event.get("damage"))
        rows.append(
            {
                "job": name,
                "runs": len(mine),
                "kills": ended["kill"],
                "disk full": ended["disk full"],
                "read-only": ended["read-only"],
                "checkpoints damaged": damages["checkpoint cut off"] + damages["checkpoint bit flipped"],
                "refused": sum(bool(event.get("refused")) for event in events),
                "clock changed": damages["clock changed"],
                "equal": sum(run["equal"] for run in mine),
                "problems": sum(len(run["problems"]) for run in mine),
                "seconds": round(sum(run["seconds"] for run in mine), 1),
            }
        )
    return rows


def main() -> None:
    """Interrupt everything, print and write what came of it."""
    parser = Parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="few kills of short jobs")
    parser.add_argument("--kills", type=int, help="how many, at least (default: 50)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", metavar="TEXT", help="jobs with this in their name")
    parser.add_argument(
        "--json", metavar="FILE", help="also write the results here; those of jobs not run now are kept"
    )
    args = parser.parse_args()
    kills = args.kills or (3 if args.quick else 50)
    start, runs = time.monotonic(), []
    with tempfile.TemporaryDirectory() as temporary:
        every, place = jobs(Path(temporary), args.quick), Path(temporary) / "disk"
        every = {name: run for name, run in every.items() if args.only in name}
        place.mkdir()
        with Disk(place) as disk:
            expected, usual = {}, {}
            for name, run in every.items():
                folder = place / f"undisturbed-{len(expected)}"
                folder.mkdir()
                ended = in_process(run, folder)
                if ended.status != 0:
                    raise RuntimeError(f"{name} failed undisturbed: {ended.said}")
                expected[name], usual[name] = contents(folder), ended.seconds
                shutil.rmtree(folder)
            number = 0
            while sum(event["how"] == "kill" for run in runs for event in run["interruptions"]) < kills:
                name, seed = list(every)[number % len(every)], 1000 * args.seed + number
                folder, began = place / f"run-{number}", time.monotonic()
                row = disturbed(name, every[name], folder, disk, usual[name], random.Random(seed))
                row["differs"] = compared(contents(folder, row.pop("damaged")), expected[name])
                row |= {"seed": seed, "equal": not row["differs"], "seconds": time.monotonic() - began}
                runs.append(row)
                shutil.rmtree(folder)
                number += 1
                print(json.dumps(row), flush=True)
            full = "tmpfs" if disk.mounted else f"RLIMIT_FSIZE, as mount said: {disk.reason}"
    seconds = time.monotonic() - start
    if args.json and args.only and Path(args.json).exists():
        before = read_json(Path(args.json))
        runs = [run for run in before["log"] if args.only not in run["job"]] + runs
        seconds += before["seconds"]
    rows = summary(runs)
    machine = environment()
    result = {
        "results": rows,
        "kills": sum(row["kills"] for row in rows),
        "runs": len(runs),
        "equal": sum(row["equal"] for row in rows),
        "problems": sum(row["problems"] for row in rows),
        "seed": args.seed,
        "seconds": round(seconds, 1),
        "full_disk": full,
        "machine": machine,
        "log": runs,
    }
    for row in rows:
        print(" ".join(f"{value:>28}" if index == 0 else f"{value:>4}" for index, value in enumerate(row.values())))
    if args.json:
        write_json(Path(args.json), result)
    if result["equal"] < len(runs) or result["problems"]:
        sys.exit("some runs differ from the undisturbed one, or had problems: see above")


if __name__ == "__main__":
    main()
