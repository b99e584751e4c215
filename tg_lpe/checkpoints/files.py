"""Read and write files atomically, without pickle."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml  # type: ignore[import-untyped]
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save_file
from torch import Tensor

MAX_JSON = 2**26
"""Largest size of a JSON file in bytes; its content may take fifty times as much memory."""

DIGEST = "sha256"
"""Name of a digest in JSON."""

_FULL = (None, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_writable(path: Path) -> None:
    """Raise ``ValueError`` or ``OSError`` if :func:`replacing` cannot write a file."""
    _check_regular(path)
    folder = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise type(error)(f"cannot write {path}: {error.strerror} ({folder})") from error


def _check_regular(path: Path) -> None:
    """Raise ``ValueError`` if there is a folder, a device or a pipe."""
    if path.is_dir():
        raise ValueError(f"cannot write {path}: it is a folder")
    if path.exists() and not path.is_file():
        raise ValueError(f"cannot write {path}: it is a device or a pipe; only regular files are written")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in errors of a full disk, which do not."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if isinstance(error, OSError) and (error.filename is not None or error.errno not in _FULL):
            raise
        raise OSError(f"{path} could not be written: {error}") from error


def subfolder(folder: Path, name: str) -> Path:
    """Return the path of a folder in a folder of ours; raise ``ValueError`` if it is a link to another one."""
    if (path := folder / name).is_symlink():
        raise ValueError(f"{path} is a link, and its files would be written elsewhere; remove it")
    return path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces ``path`` when the block ends without an error.

    A link is replaced too, and not what it leads to: files in our folders are never written through links. Resolve a
    path that a user chose before, because it may be a link to a file of theirs.
    """
    _check_regular(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        with naming(path):
            yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp makes private files
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def digest_of_file(path: Path) -> str:
    """Compute the SHA-256 of a file in pieces, as hexadecimal text."""
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(2**20):
            sha.update(piece)
    return sha.hexdigest()


def digest_of_json(values: Any) -> str:
    """Compute the SHA-256 of JSON-able values, for any order of keys, as hexadecimal text."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def digest_of_tensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> str:
    """Compute the SHA-256 of names, dtypes, shapes and bits of tensors, and of JSON-able metadata."""
    sha = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        sha.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()


def write_json(path: Path, values: Any) -> None:
    """Write JSON atomically."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read JSON of at most :data:`MAX_JSON` bytes; raise ``ValueError`` if it is invalid or larger."""
    try:
        size = path.stat().st_size
        if size > MAX_JSON:
            raise ValueError(f"it has {size:,} bytes, more than the limit of {MAX_JSON:,}")
        return parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; raise ``ValueError`` if the file holds something else."""
    values = read_json(path)
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(values).__name__}")
    return values


def read_yaml(path: Path) -> Any:
    """Read YAML; raise ``ValueError`` if the file cannot be read or is invalid."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}") from error


def parse_json(text: str) -> Any:
    """Parse JSON text; raise ``ValueError`` if it is invalid or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its lists and objects are nested too deeply") from None


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, Any] | None = None, *, sealed: bool = False
) -> None:
    """Write tensors and JSON-able metadata, with their digest if ``sealed``, into one safetensors file, atomically."""
    with replacing(path) as temporary:
        flat = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        metadata = {**(metadata or {})}
        if sealed:
            metadata[DIGEST] = digest_of_tensors(flat, metadata)
        save_file(flat, temporary, {"json": json.dumps(metadata, sort_keys=True)})


def load_tensors(path: Path, *, sealed: bool = False) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read tensors and metadata of :func:`save_tensors`; raise ``ValueError`` if the file is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = parse_json((file.metadata() or {}).get("json", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        if sealed and metadata.pop(DIGEST, None) != digest_of_tensors(tensors, metadata):
            raise ValueError("its content does not match its digest")
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path} is damaged or not a safetensors file: {error}") from error
    return tensors, metadata


def parse_tensors(content: bytes, path: Path) -> dict[str, Tensor]:
    """Parse the content of a file of :func:`save_tensors`; raise ``ValueError`` with its path if it is damaged."""
    try:
        tensors: dict[str, Tensor] = load(content)
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path} is damaged or not a safetensors file: {error}") from error
    return tensors
