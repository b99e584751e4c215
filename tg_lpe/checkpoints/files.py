"""Files written whole or not at all, and never pickled."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save_file
from torch import Tensor

MAX_JSON = 2**26
"""Bytes of a JSON file, at most: what is read from it may take fifty times as many."""


def check_writable(path: Path) -> None:
    """Raise ``ValueError`` or ``OSError`` if :func:`replacing` would not be able to write a file, before any work."""
    folder = next(above for above in _regular(path).absolute().parents if os.path.lexists(above))
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise type(error)(f"cannot write {path}: {error.strerror} ({folder})") from error


def _regular(path: Path) -> Path:
    """Return the file that a path names, at the end of its links; nothing but a file is ever replaced."""
    if path.is_dir():
        raise ValueError(f"cannot write {path}: it is a folder")
    if path.exists() and not path.is_file():
        raise ValueError(f"cannot write {path}: it is a device or a pipe, and only files are written")
    return path.resolve() if path.is_symlink() else path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside ``path`` that takes its place when the block ends without an error.

    A link stays one: the file that it leads to is replaced.
    """
    path = _regular(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp's files are private
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def digest_of_file(path: Path) -> str:
    """Return the SHA-256 of a file's content, hexadecimal, without reading it into memory as a whole."""
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(2**20):
            sha.update(piece)
    return sha.hexdigest()


def digest_of_tensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> str:
    """Return the SHA-256 of tensors, bit by bit with their names, and of JSON-able metadata."""
    sha = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        sha.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()


def write_json(path: Path, values: Any) -> None:
    """Write JSON, keeping key order, by temporary name and rename."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read JSON of at most :data:`MAX_JSON` bytes; a ``ValueError`` that names the file if it is none."""
    try:
        size = path.stat().st_size
        if size > MAX_JSON:
            raise ValueError(f"it has {size:,} bytes, and {MAX_JSON:,} are the most that are read")
        return parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; raise a ``ValueError`` that names the file if it holds something else."""
    values = read_json(path)
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(values).__name__}")
    return values


def parse_json(text: str) -> Any:
    """Parse a JSON text; raise a ``ValueError`` if it is none, or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its lists and objects are nested too deeply") from None


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, Any] | None = None) -> None:
    """Write tensors, and JSON-able metadata inside the same file, as safetensors by temporary name and rename."""
    with replacing(path) as temporary:
        flat = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        try:
            save_file(flat, temporary, {"json": json.dumps(metadata or {}, sort_keys=True)})
        except SafetensorError as error:
            raise OSError(f"{path} could not be written: {error}") from error


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what :func:`save_tensors` wrote; a ``ValueError`` names a file that is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = parse_json((file.metadata() or {}).get("json", "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118 (no mapping)
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path} is damaged or not a safetensors file: {error}") from error


def parse_tensors(content: bytes, path: Path) -> dict[str, Tensor]:
    """Return the tensors in the content of a file that :func:`save_tensors` wrote, or refuse it by its name."""
    try:
        tensors: dict[str, Tensor] = load(content)
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path} is damaged or not a safetensors file: {error}") from error
    return tensors
