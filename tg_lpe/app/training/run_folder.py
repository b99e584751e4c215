"""The folder of a run: settings, machine, metrics, checkpoint and result. A report reads nothing else."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor, nn

from tg_lpe.arguments import ArgumentError, check_folder
from tg_lpe.checkpoints.checkpoint import CheckpointMixin, Kind, kind_of
from tg_lpe.checkpoints.files import load_tensors, read_object, save_tensors, write_json
from tg_lpe.models.base import Model
from tg_lpe.nn.parallel import num_processes

LAYOUT = 2
"""Format version of ``config.json``."""

PACKAGES = ("tg-lpe", "torch", "torch-geometric", "torch-scatter", "rdkit", "numpy", "scipy")


class FolderInUseError(ValueError):
    """Raised if another process uses a run folder."""


class RunFolder:
    """Read and write the files of one run:

    - ``config.json``: the command, classes and arguments of encoder, model and task, the loop's settings, and a
      description of the data
    - ``environment.json``: the machine and versions of packages
    - ``metrics.jsonl``: one line per epoch
    - ``state.safetensors``: the checkpoint for ``--resume``
    - ``model.safetensors``: the best weights; ``predictions_val.csv`` and ``predictions_test.csv``: their predictions
    - ``result.json``: the figures of a complete run

    Args:
        path: the folder, created by :meth:`start` if absent.
    """

    def __init__(self, path: str | Path) -> None:
        check_folder("folder", path)
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.environment = self.path / "environment.json"
        self.metrics = self.path / "metrics.jsonl"
        self.state = self.path / "state.safetensors"
        self.model = self.path / "model.safetensors"
        self.val_predictions = self.path / "predictions_val.csv"
        self.test_predictions = self.path / "predictions_test.csv"
        self.result = self.path / "result.json"
        self._lock_file: TextIO | None = None

    def start(self, command: str, settings: Mapping[str, Any], resume: bool) -> bool:
        """Prepare the folder for a run.

        Args:
            command: the kind of run: ``"train"``, ``"pretrain"`` or ``"pretrain-kernels"``.
            settings: everything that decides the result, JSON-able.
            resume: whether to continue the run in the folder.

        Returns:
            Whether there is a checkpoint to continue from.

        Raises:
            ValueError: if the folder holds a run and ``resume`` is not set; if it holds a run with other settings, an
                incomplete copy of a run, or the ``config.json`` of something else; or if another process uses it.
        """
        self._lock()
        config = {"layout": LAYOUT, "command": command, **settings}
        before = read_object(self.config) if self.config.exists() else None
        # A run that failed before its first epoch leaves only its settings, which a new run may overwrite.
        files = (self.metrics, self.state, self.result)
        parts = [file.name for file in files if file.exists() and file.stat().st_size]
        if before is None:
            if names := ", ".join(parts) or (self.model.name if self.model.exists() else ""):
                fault = f"{self.path} holds {names} without the config.json of their run"
                raise ValueError(f"{fault}: choose another folder")
        elif not parts:
            if kind_of(before) is Kind.CHECKPOINT:
                raise ValueError(f"{self.config} belongs to no run and would be overwritten: choose another folder")
        elif not resume:
            message = "{} already holds a run: {resume} continues it, another {folder} starts a new one"
            raise ArgumentError(message, self.path, resume=True, folder=...)
        elif changed := _differences(before, json.loads(json.dumps(config))):
            differences = "; ".join(sorted(changed, key=len))  # long lists and digests last
            message = "{} holds a run with other settings: {}. Another {folder} starts a new run"
            raise ArgumentError(message, self.path, differences, folder=...)
        if not parts:
            write_json(self.config, config)
        if not self.result.exists():
            command_line = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
            write_json(self.environment, {**environment(), "command": command_line})
        return self.state.exists()

    def _lock(self) -> None:
        """Lock the folder until :meth:`release` or the end of this process."""
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            import fcntl
        except ImportError:  # this system has no such locks
            return
        # Neither truncated nor followed, if it is a link.
        descriptor = os.open(self.path / ".lock", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        self._lock_file = os.fdopen(descriptor, "w", encoding="utf-8")
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FolderInUseError(f"{self.path} is in use by another process") from error
        except OSError:  # the file system of the folder has no such locks
            return

    def release(self) -> None:
        """Unlock the folder, if it is locked."""
        if self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None

    def save_state(self, tensors: dict[str, Tensor], metadata: dict[str, Any]) -> None:
        """Write the checkpoint to resume from."""
        save_tensors(self.state, tensors, metadata, sealed=True)

    def load_state(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Read the checkpoint to resume from; ``None`` if there is none, ``ValueError`` if it is damaged."""
        try:
            return load_tensors(self.state, sealed=True) if self.state.exists() else None
        except ValueError as error:
            raise ValueError(f"{error}; remove {self.path} to start the run again") from error

    def save_result(self, result: dict[str, Any], model: nn.Module) -> None:
        """Write the best weights, then the final figures, whose file marks the run as complete."""
        save_tensors(self.model, model.state_dict())
        write_json(self.result, result)


def describe_model(model: Model) -> dict[str, Any]:
    """Return the classes and arguments of a model and its encoder, JSON-able, for ``config.json``.

    Warns if they cannot make a model that loads the weights of the run: the run goes on and can be resumed with this
    model, but ``tg-lpe predict`` and others cannot read it.
    """
    if isinstance(model, CheckpointMixin):
        try:
            model.check_loadable()
        except ValueError as error:
            warnings.warn(f"only this model can resume the run, and nothing else can read it: {error}", stacklevel=2)
    described = model.config_dict()
    return {"encoder": described.pop("encoder", None), "model": described}


def checkpoint_label(name_or_dir: str) -> str:
    """Shorten the path of a checkpoint: the run's name for ``RUN/encoder``, which a pretraining writes."""
    path = Path(name_or_dir)
    return path.parent.name or path.name if path.name == "encoder" else path.name


def environment() -> dict[str, Any]:
    """Describe the machine, the interpreter and package versions, JSON-able."""
    versions: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text(encoding="utf-8").splitlines() if cpus.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return {
        "processor": next(models, platform.processor() or platform.machine()),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": num_processes(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": platform.system(),
        "python": platform.python_version(),
        "packages": versions,
    }


def _differences(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> list[str]:
    """List the settings in which two runs differ."""
    changes = []
    for key in sorted((set(before) | set(now)) - {"ranges"}):  # the data's digest is compared instead
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            changes += _differences(old, new, f"{prefix}{key}.")
        elif old != new:
            changes.append(f"{prefix}{key} was {old!r}, is {new!r}")
    return changes
