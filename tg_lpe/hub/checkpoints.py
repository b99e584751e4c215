"""Saving and loading of modules: safetensors and JSON, verified, through huggingface_hub's mixin."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any, TypeVar

import torch
from huggingface_hub import PyTorchModelHubMixin, hf_hub_download
from torch import nn

from tg_lpe.hub import zoo
from tg_lpe.hub.files import load_tensors, read_json, save_tensors, write_json

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
DIGEST = "sha256"

T = TypeVar("T", bound="CheckpointMixin")


class CheckpointMixin(PyTorchModelHubMixin):
    """``save_pretrained`` and ``from_pretrained`` for a module whose constructor takes JSON-able arguments.

    A checkpoint is a folder with ``config.json`` (the arguments and a digest) and ``model.safetensors``. Nothing is
    ever unpickled, parameters must match to the last name, and a file that was truncated or altered is refused.
    """

    def save_pretrained(self, save_directory: str | Path, **kwargs: Any) -> str | None:
        """Write a checkpoint folder; each file is replaced as a whole, the configuration last.

        Args:
            save_directory: the folder, made if absent.
            kwargs: as :meth:`huggingface_hub.ModelHubMixin.save_pretrained`, such as ``push_to_hub``.
        """
        target = Path(save_directory)
        target.mkdir(parents=True, exist_ok=True)
        if kwargs.get("push_to_hub"):
            kwargs["repo_id"] = kwargs.get("repo_id") or target.name  # not the temporary folder's name
        with tempfile.TemporaryDirectory(prefix=".saving-", dir=target) as temporary:
            result = super().save_pretrained(temporary, **kwargs)
            for name in sorted(os.listdir(temporary), key=lambda name: name == CONFIG):
                if name != "README.md" or not (target / name).exists():  # a card that somebody wrote is kept
                    (Path(temporary) / name).replace(target / name)
        return result

    def _save_pretrained(self, save_directory: Path) -> None:
        save_tensors(save_directory / WEIGHTS, self.state_dict())  # type: ignore[attr-defined]
        config = self._hub_mixin_config or {}
        if not isinstance(config, dict):
            raise TypeError(f"{type(self).__name__} takes a dataclass, but a checkpoint holds plain arguments only")
        write_json(save_directory / CONFIG, {**config, DIGEST: _digest(config, save_directory / WEIGHTS)})

    @classmethod
    def from_pretrained(cls: type[T], pretrained_model_name_or_path: str | Path, **kwargs: Any) -> T:
        """Load a checkpoint, in eval mode.

        Args:
            pretrained_model_name_or_path: name of a checkpoint that ships with the package, a folder that
                :meth:`save_pretrained` wrote, or ``OWNER/NAME`` on the Hugging Face Hub.
            kwargs: as :meth:`huggingface_hub.ModelHubMixin.from_pretrained`, such as ``revision``.

        Raises:
            ValueError: if there is no such checkpoint, or it is incomplete, damaged or of another class.
        """
        return super().from_pretrained(_resolve(pretrained_model_name_or_path), **kwargs)

    @classmethod
    def _from_pretrained(cls: type[T], *, model_id: str, map_location: str = "cpu", **kwargs: Any) -> T:
        download = {
            key: kwargs.pop(key)
            for key in ("revision", "cache_dir", "force_download", "local_files_only", "token")
            if key in kwargs
        }
        for obsolete in ("proxies", "resume_download", "strict"):  # older releases of huggingface_hub pass these
            kwargs.pop(obsolete, None)
        if os.path.isdir(model_id):
            config_file, weights_file = Path(model_id) / CONFIG, Path(model_id) / WEIGHTS
        else:
            config_file, weights_file = (
                Path(hf_hub_download(repo_id=model_id, filename=name, **download)) for name in (CONFIG, WEIGHTS)
            )
        config = read_json(config_file)
        expected = config.pop(DIGEST, None)
        if expected != _digest(config, weights_file):
            raise ValueError(
                f"checkpoint {model_id} was truncated or altered: "
                f"its files do not match the digest in {CONFIG} ({expected})"
            )
        tensors, _ = load_tensors(weights_file)
        try:
            model = cls(**kwargs)
            dtypes = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
            if len(dtypes) == 1:
                model.to(dtypes.pop())  # type: ignore[attr-defined]
            model.load_state_dict(tensors)  # type: ignore[attr-defined]
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"checkpoint {model_id} does not fit {cls.__name__}: {error}") from error
        return model.to(map_location).eval()  # type: ignore[attr-defined]


def read_config(name_or_dir: str | Path) -> dict[str, Any]:
    """The configuration of a checkpoint: its constructor's arguments and the digest.

    Args:
        name_or_dir: as :meth:`CheckpointMixin.from_pretrained`.

    Raises:
        ValueError: if there is no such checkpoint, or its configuration is damaged.
    """
    folder = _resolve(name_or_dir)
    file = Path(folder) / CONFIG if os.path.isdir(folder) else Path(hf_hub_download(str(folder), CONFIG))
    config: dict[str, Any] = read_json(file)
    return config


def _resolve(name_or_dir: str | Path) -> str | Path:
    """The folder of a checkpoint, seen to be complete, or its name on the Hub."""
    name = str(name_or_dir)
    if name in zoo.names():
        folder: str | Path = zoo.path(name)
    elif os.path.isdir(name) or (
        name.count("/") == 1 and not os.path.exists(name) and not name.startswith((".", "~", "/"))
    ):
        folder = name
    else:
        raise ValueError(
            f"{name!r} is no checkpoint: neither one of the shipped {zoo.names()}, nor a folder, "
            "nor OWNER/NAME on the Hub"
        )
    if os.path.isdir(folder):
        for file in (CONFIG, WEIGHTS):
            if not (Path(folder) / file).is_file():
                raise ValueError(f"checkpoint {folder} is incomplete: {file} is missing")
        # A damaged file is named before the mixin stumbles over it.
        if not isinstance(read_json(Path(folder) / CONFIG), dict):
            raise ValueError(f"{Path(folder) / CONFIG} is no configuration of a checkpoint: it holds no JSON object")
    return folder


def module_digest(module: nn.Module) -> str:
    """A short digest of everything that decides a module's output: its structure and its weights, bit by bit."""
    sha = hashlib.sha256(repr(module).encode())
    for name, tensor in sorted(module.state_dict().items()):
        sha.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        sha.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()[:12]


def _digest(config: dict[str, Any], weights: Path) -> str:
    sha = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    sha.update(weights.read_bytes())
    return sha.hexdigest()
