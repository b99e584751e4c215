"""Save and load modules as safetensors and JSON with a digest, through huggingface_hub's mixin."""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
import itertools
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from enum import Enum
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from huggingface_hub import PyTorchModelHubMixin, hf_hub_download
from huggingface_hub.utils import EntryNotFoundError  # type: ignore[attr-defined]
from torch import Tensor, nn

from tg_lpe.arguments import check_folder, check_form, checked_device
from tg_lpe.checkpoints import zoo
from tg_lpe.checkpoints.files import (
    DIGEST,
    digest_of_tensors,
    parse_tensors,
    read_json,
    read_object,
    save_tensors,
    write_json,
)
from tg_lpe.checkpoints.registry import CLASSES

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
DESCRIPTION = "card.json"
"""File that describes the task and the training data of a checkpoint."""
PAIR: Any = (Real, Real)
PAIRS = {...: PAIR}
DATA = {
    "source": str,
    "num_train": int,
    "target": {"columns": [str], "classes": [[str]], "unit": str, "units": [str], "computed": str},
    "atom_types": [str],
    "bond_types": [str],
    "repair_radicals": bool,
    "canonical": bool,
    "extra_columns": [str],
    "descriptors": [str],
    "ranges": {"atoms": PAIR, "bonds": PAIR, "rings": PAIR, "atom_types": PAIRS, "labels": PAIRS, "extra": PAIRS},
}
"""Entries that describe a model's training data, in a card and in a run folder, with their forms."""
READING = ("atom_types", "bond_types", "repair_radicals", "canonical")
"""Entries that say how molecules are read."""
DTYPE = "dtype"
"""Entry of ``config.json`` with the dtype of a module without tensors, if it is not float32."""

NOT_OPTIONS = ("repo_id", "filename")

CARD = """---
{{ card_data }}
---

# A checkpoint of tg_lpe

tg_lpe has learned positional encodings for PyTorch Geometric. `config.json` holds the class and its arguments.

```python
from tg_lpe.checkpoints.checkpoint import load

module = load("OWNER/NAME")  # the name of this repository, or a folder
```
"""
"""Template of the model card, written if a checkpoint has none."""

T = TypeVar("T", bound="CheckpointMixin")


class Kind(Enum):
    """Kinds of folders with a ``config.json``."""

    CHECKPOINT = "a checkpoint"
    TRAINING = "the run folder of a training"
    PRETRAINING = "the run folder of a pretraining, with its encoder in the folder encoder"


def kind_of(config: Mapping[str, Any]) -> Kind:
    """Return the kind of a folder from the content of its ``config.json``."""
    if "class" in config or "command" not in config:
        return Kind.CHECKPOINT
    return Kind.TRAINING if config["command"] == "train" else Kind.PRETRAINING


class CheckpointMixin(
    PyTorchModelHubMixin,
    model_card_template=CARD,
    library_name="tg_lpe",
    pipeline_tag="graph-ml",
    tags=["pytorch-geometric"],
):
    """Add ``save_pretrained``, ``push_to_hub`` and ``from_pretrained`` to modules with JSON-able constructor arguments.

    A checkpoint is a folder with ``config.json`` (class, arguments and a digest) and ``model.safetensors``. Loading
    never unpickles, requires all parameter names to match, and refuses files that were truncated or altered.
    """

    _hub_mixin_config: ClassVar[dict[str, Any]] = {}  # type: ignore[misc]  # huggingface_hub records no arguments
    _arguments: Mapping[str, Any]
    """The JSON-able constructor arguments, including defaults."""
    _not_jsonable: Mapping[str, str]
    """The other constructor arguments, quoted."""
    _modules_in_config: tuple[str, ...] = ()
    """Arguments that are modules or lists of them; :meth:`config_dict` adds their configurations."""
    _is_model: ClassVar[bool] = False
    """Whether the class is a model that is trained for a task."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Set the signature to that of the constructor; otherwise tools would read ``__new__``."""
        super().__init_subclass__(**kwargs)
        _, *parameters = inspect.signature(cls.__init__).parameters.values()
        if cls.__init__ in (nn.Module.__init__, object.__init__):
            parameters = []
        cls.__signature__ = inspect.Signature(parameters)

    __signature__: ClassVar[inspect.Signature]

    def __new__(cls: type[T], *args: Any, **kwargs: Any) -> T:
        """Record the constructor's arguments."""
        instance: T = super().__new__(cls, *args, **kwargs)
        parameters = cls.__signature__.parameters
        passed = {**dict(zip(parameters, args, strict=False)), **kwargs}
        others = {name: value for name, value in passed.items() if is_dataclass(value) or not cls._is_jsonable(value)}
        jsonable = {name: value for name, value in passed.items() if name not in others}
        defaults = {name: each.default for name, each in parameters.items() if cls._is_jsonable(each.default)}
        instance._arguments = copy.deepcopy({**defaults, **jsonable})  # the caller may change its dictionaries
        instance._not_jsonable = {n: _quoted(value) for n, value in others.items() if n not in cls._modules_in_config}
        return instance

    def config_dict(self) -> dict[str, Any]:
        """Return the class and the constructor's arguments as JSON-able values, as in ``config.json``.

        Raises:
            TypeError: if an argument of the constructor is not JSON-able.
        """
        if self._not_jsonable:
            quoted = ", ".join(f"{name}={value}" for name, value in self._not_jsonable.items())
            allowed = "numbers, strings, lists and dictionaries of these"
            raise TypeError(f"a configuration holds {allowed}; this {type(self).__name__} was made with {quoted}")
        config = {"class": type(self).__name__, **copy.deepcopy(self._arguments)}
        for name in self._modules_in_config:
            if name in self.__signature__.parameters:
                part: Any = getattr(self, name)
                is_list = isinstance(part, nn.ModuleList)
                config[name] = [each.config_dict() for each in part] if is_list else part and part.config_dict()
        return config

    def made_anew(self: T, **changes: Any) -> T:
        """Make a module of the same class and arguments, except for ``changes``, with fresh weights.

        They are drawn from torch's global generator, whose state is then restored.
        """
        arguments = {**self.config_dict(), **changes}
        arguments.pop("class")
        with torch.random.fork_rng(devices=[]):
            return type(self)(**arguments)

    def extra_repr(self) -> str:
        """Show the constructor's arguments that differ from the defaults, except modules."""
        arguments = {**self._arguments, **self._not_jsonable}
        shown = []
        for name, parameter in inspect.signature(type(self)).parameters.items():
            is_module = name not in arguments or name in self._modules_in_config
            if not is_module and arguments[name] != parameter.default:
                shown.append(f"{name}={self._not_jsonable.get(name) or repr(arguments[name])}")
        return ", ".join(shown)

    def check_loadable(self) -> None:
        """Check that a module made from the recorded arguments can load the weights of this one.

        Raises:
            TypeError: if an argument of the constructor is not JSON-able.
            ValueError: if names or shapes of weights differ, because submodules were replaced, pruned or parametrised.
        """
        arguments = self.config_dict()
        del arguments["class"]
        try:
            _check_weights(self.state_dict(), lambda: type(self)(**arguments))  # type: ignore[attr-defined]
        except RuntimeError as error:
            raise ValueError(
                f"this {type(self).__name__} could not be loaded again, because its weights differ from those that its "
                "arguments make: undo torch.nn.utils.prune or parametrize by their remove functions; for submodules of "
                f"your own, write a subclass whose constructor makes them. {error}"
            ) from error
        except (TypeError, ValueError):
            return  # the constructor refuses its arguments, such as those of an encoder that is not registered

    def save_pretrained(self, save_directory: str | Path, **kwargs: Any) -> str | None:
        """Write a checkpoint folder. Files are replaced as a whole, ``config.json`` last.

        Args:
            save_directory: the folder, created if absent. A ``card.json`` in it is removed, because it may describe
                another model.
            kwargs: as for :meth:`huggingface_hub.ModelHubMixin.save_pretrained`, such as ``push_to_hub``.

        Raises:
            TypeError, ValueError: see :meth:`check_loadable`.
        """
        check_folder("save_directory", save_directory)
        self.check_loadable()  # before any file is written
        target = Path(save_directory)
        target.mkdir(parents=True, exist_ok=True)
        if kwargs.get("push_to_hub"):
            kwargs["repo_id"] = kwargs.get("repo_id") or target.name  # instead of the temporary folder's name
        with tempfile.TemporaryDirectory(prefix=".saving-", dir=target) as temporary:
            result = super().save_pretrained(temporary, **kwargs)
            (target / DESCRIPTION).unlink(missing_ok=True)
            for name in sorted(os.listdir(temporary), key=lambda name: name == CONFIG):
                if name != "README.md" or not (target / name).exists():  # keep an existing card
                    (Path(temporary) / name).replace(target / name)
        return result

    def push_to_hub(self, repo_id: str, **kwargs: Any) -> str:
        """Write a checkpoint with its model card to a repository on the Hugging Face Hub, created if absent.

        Args:
            repo_id: ``OWNER/NAME``, or ``NAME`` in your own namespace.
            kwargs: as for :meth:`huggingface_hub.ModelHubMixin.push_to_hub`: ``private``, ``token``, ``branch``,
                ``commit_message``, ``create_pr`` and others.

        Returns:
            URL of the commit.

        Raises:
            TypeError, ValueError: see :meth:`check_loadable`.
        """
        self.check_loadable()  # before a repository is created
        return super().push_to_hub(repo_id, **kwargs)

    def _save_pretrained(self, save_directory: Path) -> None:
        config, tensors = self.config_dict(), self.state_dict()  # type: ignore[attr-defined]
        dtype = module_dtype(self)  # type: ignore[arg-type]
        if dtype not in (None, torch.float32) and not any(t.is_floating_point() for t in tensors.values()):
            config.setdefault(DTYPE, str(dtype).removeprefix("torch."))
        save_tensors(save_directory / WEIGHTS, tensors)
        digest = _digest(config, (save_directory / WEIGHTS).read_bytes())
        write_json(save_directory / CONFIG, {**config, DIGEST: digest})

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls: type[T],
        pretrained_model_name_or_path: str | Path,
        *,
        map_location: str | torch.device = "cpu",
        **download: Any,
    ) -> T:
        """Load a checkpoint of this class or of a registered subclass, in eval mode.

        Args:
            pretrained_model_name_or_path: name of a checkpoint that ships with the package, a folder written by
                :meth:`save_pretrained`, or ``OWNER/NAME`` on the Hugging Face Hub.
            map_location: the device of the parameters.
            download: options for the Hub, as for :func:`huggingface_hub.hf_hub_download`: ``revision``, ``cache_dir``,
                ``token``, ``force_download``, ``local_files_only``.

        Raises:
            ValueError: if there is no such checkpoint or device, or it is incomplete, damaged or of another class.
            TypeError: if a download option is unknown.
        """
        checkpoint = Checkpoint.open(pretrained_model_name_or_path, **download)
        return checkpoint.load(map_location, cls)  # type: ignore[no-any-return]


class Checkpoint:
    """An open checkpoint or run folder, which can be passed on instead of its name. :meth:`open` makes one.

    Attributes:
        name: the name or path that it was opened by.
        folder: the folder of its files.
        kind: the kind of the folder.
        config: the class and its constructor's arguments; the settings of the run if it is a run folder.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder.absolute()  # the weights are read later, maybe from another folder
        self._stored = read_object(folder / CONFIG)
        self._digest = self._stored.pop(DIGEST, None)
        self.config = dict(self._stored)
        cls = CLASSES.get(self.config.get("class", ""))
        if cls is not None and DTYPE not in inspect.signature(cls).parameters:
            self.config.pop(DTYPE, None)
        self.kind = kind_of(self.config)

    @classmethod
    def open(cls, name_or_dir: str | Path | Checkpoint, **download: Any) -> Checkpoint:
        """Open a checkpoint by name, folder or ``OWNER/NAME`` on the Hub; return an open one unchanged.

        Args:
            name_or_dir, download: as for :meth:`CheckpointMixin.from_pretrained`.

        Raises:
            ValueError: if there is no such checkpoint, it is incomplete, or its configuration is damaged.
            TypeError: if a download option is unknown.
        """
        if isinstance(name_or_dir, Checkpoint):
            return name_or_dir
        allowed = [option for option in inspect.signature(hf_hub_download).parameters if option not in NOT_OPTIONS]
        for option, value in download.items():
            if option not in allowed:
                raise TypeError(f"{option}={value!r} is no option; options are {['map_location', *allowed]}")
        name = str(name_or_dir)
        if name in zoo.names():
            folder = zoo.path(name)
        elif os.path.isdir(name):
            folder = Path(name)
        elif name.count("/") == 1 and not name.startswith((".", "~", "/")) and not Path(name).parent.exists():
            try:
                folder = Path(hf_hub_download(repo_id=name, filename=CONFIG, **download)).parent
                hf_hub_download(repo_id=name, filename=WEIGHTS, **download)
                with suppress(EntryNotFoundError):
                    hf_hub_download(repo_id=name, filename=DESCRIPTION, **download)
            except (OSError, ValueError, EntryNotFoundError) as error:
                message = " ".join(str(error).split())
                raise ValueError(f"{name!r} is no checkpoint: no such folder, and the Hub says: {message}") from error
        else:
            expected = f"one of the shipped {zoo.names()}, a folder or OWNER/NAME on the Hub"
            raise ValueError(f"{name!r} is no checkpoint: it must be {expected}")
        if not (folder / CONFIG).is_file():
            raise ValueError(f"checkpoint {folder} is incomplete: {CONFIG} is missing{folders_inside(folder)}")
        checkpoint = cls(name, folder)
        if checkpoint.kind is Kind.CHECKPOINT and not (folder / WEIGHTS).is_file():
            raise ValueError(f"checkpoint {folder} is incomplete: {WEIGHTS} is missing")
        return checkpoint

    @property
    def encoder(self) -> Checkpoint:
        """The checkpoint of the encoder: this one, or the one inside the run folder of a pretraining."""
        return Checkpoint.open(Path(self.name, "encoder")) if self.kind is Kind.PRETRAINING else self

    @property
    def is_model(self) -> bool:
        """Whether it holds a trained model rather than an encoder."""
        cls = CLASSES.get(self.config.get("class"))
        return self.kind is Kind.TRAINING or (self.kind is Kind.CHECKPOINT and cls is not None and cls._is_model)

    @cached_property
    def card(self) -> dict[str, Any]:
        """The content of ``card.json``, which describes the task and the training data; empty if there is none."""
        file = self.folder / DESCRIPTION
        return read_object(file) if file.is_file() else {}

    @cached_property
    def descriptions(self) -> list[tuple[Path, Mapping[str, Any]]]:
        """Descriptions of the training data in the card, the run folder and the folder around it, with their files."""
        run_config = self.folder.resolve().parent / CONFIG
        run = read_json(run_config) if run_config.is_file() else {}
        if not isinstance(run, dict) or not isinstance(run.get("data"), dict):  # the file of another program
            run = {}
        config = {} if self.kind is Kind.CHECKPOINT else self.config
        files = {self.folder / DESCRIPTION: self.card, self.folder / CONFIG: config, run_config: run}
        for file, content in files.items():
            check_form(str(file), content, {"data": {name: DATA[name] for name in READING}})
        return [(file, content.get("data") or {}) for file, content in files.items()]

    @property
    def is_canonical(self) -> bool:
        """Whether molecules are read from canonical SMILES, which is so unless the training data says otherwise."""
        return all(data.get("canonical") is not False for _, data in self.descriptions)

    @cached_property
    def module(self) -> Any:
        """The module, loaded once on the CPU in eval mode."""
        return self.load()

    def load(self, map_location: str | torch.device = "cpu", cls: type[CheckpointMixin] | None = None) -> Any:
        """Make the module and load its weights, in eval mode.

        Args:
            map_location: the device of the parameters.
            cls: the class that the module must have, or a base class of it; any registered class if absent.

        Raises:
            ValueError: if it is a run folder, its class is unknown or does not fit ``cls``, or it is damaged or does
                not fit its class.
        """
        device = checked_device("map_location", map_location)
        if self.kind is not Kind.CHECKPOINT:
            of_training = f"; its model is tg_lpe.zoo.load({self.name!r}).model" if self.kind is Kind.TRAINING else ""
            raise ValueError(f"{self.name} is {self.kind.value}{of_training}")
        content = (self.folder / WEIGHTS).read_bytes()
        if self._digest != _digest(self._stored, content):
            fault = f"its files do not match the digest in {CONFIG} ({self._digest})"
            raise ValueError(f"checkpoint {self.folder} was truncated or altered: {fault}")
        tensors = parse_tensors(content, self.folder / WEIGHTS)
        config = dict(self._stored)
        cls = self._class(config.pop("class", None), cls)
        stored = None if DTYPE in inspect.signature(cls).parameters else config.pop(DTYPE, "float32")
        try:
            model = module_with(tensors, lambda: cls(**config))
            if stored is not None and not any(tensor.is_floating_point() for tensor in tensors.values()):
                model.to(getattr(torch, stored))
        except (AttributeError, TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"checkpoint {self.folder} does not fit {cls.__name__}: {error}") from error
        return model.to(device).eval()

    def _class(self, name: str | None, expected: type[CheckpointMixin] | None) -> type[CheckpointMixin]:
        """Return the registered class of a name, or ``expected`` without a name; check that it fits ``expected``."""
        if expected is None:
            if name is None:
                raise ValueError(f"checkpoint {self.name} does not name its class; it holds {sorted(self.config)}")
            try:
                return CLASSES[name]  # type: ignore[no-any-return]
            except (TypeError, ValueError) as error:
                raise ValueError(f"checkpoint {self.name}: {error}") from error
        if name in (None, expected.__name__):
            return expected
        cls: type[CheckpointMixin] | None = CLASSES.get(name)
        if cls is None or not issubclass(cls, expected):
            raise ValueError(f"checkpoint {self.folder} does not fit {expected.__name__}: it holds a {name}")
        return cls


def load(name_or_dir: str | Path, **options: Any) -> Any:
    """Load a checkpoint of any registered class, with the arguments of :meth:`CheckpointMixin.from_pretrained`."""
    location = options.pop("map_location", "cpu")
    return Checkpoint.open(name_or_dir, **options).load(location)


def folders_inside(folder: Path) -> str:
    """Name subfolders that have a configuration, such as the seeds of a training, for messages."""
    inside = sorted(child.parent.name for child in folder.glob(f"*/{CONFIG}"))
    return f"; name one of the folders in it that have one: {', '.join(inside[:5])}" if inside else ""


def module_with(tensors: Mapping[str, Tensor], make: Callable[[], Any]) -> Any:
    """Make a module and load its weights, in their dtype, or in the widest of several.

    Whether they fit is checked before it is made, because its sizes come from a file and may be huge.

    Args:
        tensors: the weights.
        make: makes the module.

    Raises:
        RuntimeError: if names or shapes differ.
    """
    _check_weights(tensors, make)
    with torch.random.fork_rng(devices=[]):  # the initial weights are overwritten
        module = make()
    if dtypes := {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}:
        module.to(functools.reduce(torch.promote_types, dtypes))
    module.load_state_dict(tensors)
    return module


def _check_weights(tensors: Mapping[str, Tensor], make: Callable[[], Any]) -> None:
    """Raise ``RuntimeError`` if the module that ``make`` returns has other names or shapes of weights."""
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):  # only shapes: nothing is allocated
            make().load_state_dict(tensors, assign=True)
    except (RuntimeError, TypeError, ValueError) as error:
        # Ignore errors of constructors that read the values of their tensors, which meta tensors lack.
        if not isinstance(error, NotImplementedError) and not re.search("meta (tensor|device)", str(error)):
            raise


def described_arguments(module: CheckpointMixin) -> dict[str, Any]:
    """Return the constructor's arguments for descriptions; values that are not JSON-able are quoted."""
    if not module._not_jsonable:
        return module.config_dict()
    return {"class": type(module).__name__, **copy.deepcopy(module._arguments), **module._not_jsonable}


def module_dtype(module: nn.Module) -> torch.dtype | None:
    """Return the dtype of a module's first floating-point parameter or buffer; ``None`` if it has none."""
    tensors = itertools.chain(module.parameters(), module.buffers())
    return next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), None)


def module_digest(module: nn.Module) -> str:
    """Compute a short digest of a module's structure, its constructor's arguments and the bits of its weights."""
    arguments = described_arguments(module) if isinstance(module, CheckpointMixin) else {}
    return digest_of_tensors(module.state_dict(), {**arguments, "repr": repr(module)})[:12]


def _digest(config: dict[str, Any], weights: bytes) -> str:
    sha = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    sha.update(weights)
    return sha.hexdigest()


def _quoted(value: Any) -> str:
    text = f"a {type(value).__name__}" if isinstance(value, nn.Module) else repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
