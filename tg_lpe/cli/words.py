"""Arguments as they were typed, and as the parser knows them: old names, short names, configurations."""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import os
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import yaml  # type: ignore[import-untyped]

from tg_lpe.cli.classes import DEFAULT_CLASS, MODEL_CLASS, SKIPPED, model_named
from tg_lpe.encoders.registry import ENCODERS
from tg_lpe.hub import zoo
from tg_lpe.hub.checkpoints import read_config
from tg_lpe.hub.registry import Registry
from tg_lpe.models import Model
from tg_lpe.training.build import NoEncoder
from tg_lpe.training.config import READ_BY
from tg_lpe.training.presets import PRESETS
from tg_lpe.training.tasks import TASKS, Regression

OPTION_OF = {"targets": "target", "metric": "task.metric", "folder": "out"}
"""Options that have other names than the arguments that they stand for."""

REGISTRIES: dict[str, Registry] = {"--encoder": ENCODERS, "--task": TASKS}
"""Options that choose a class, and the classes with names."""

NAMED_TASKS: dict[str, dict[str, Any]] = {
    "molhiv": {"name": "binary"},
    **{
        source: {"name": "multiclass", "balanced": True, "metric": "balanced_accuracy"}
        for source in ("pattern", "cluster")
    },
}
"""Arguments of :func:`tg_lpe.training.task_for` by source, where the labels alone do not tell them."""

PUBLISHED_REGRESSIONS = ("zinc", "zinc12k", "qm9", "nci")
"""Sources whose own labels have a deviation near one, and are not scaled: figures in papers are of such trainings."""

SWITCHES = ("--quiet", "--resume", "--strict", "--canonical", "--print_config", "--print-config")
"""Options without a value."""


def as_option(name: str, value: object) -> str:
    """An argument as the command line has it, for :meth:`tg_lpe.arguments.ArgumentError.told`."""
    flag = f"--{OPTION_OF.get(name, name)}"
    if value is ... or value is True:
        return flag
    values = value if isinstance(value, list | tuple) else ["none" if value is None else value]
    return shlex.join([flag, *map(str, values)])


def normalized(command: str, argv: Sequence[str]) -> list[str]:
    """Arguments as the parser knows them: underscores in options, import paths for the names of classes.

    Raises:
        ValueError: if a class is unknown.
        ImportError: if a module that ``--import`` names cannot be imported.
    """
    words = _respelled(command, argv)
    _import_modules(_values(words, "--import"))
    if command not in ("train", "pretrain", "encode", "show"):
        return words
    configs, words = _without_configs(words)
    contents = [content for content in configs if isinstance(content, dict)]
    for content in contents:
        _import_modules(_flat(content.get("import")))
    if command == "show":  # which trains nothing, so that a name can only mean the encoder as it is
        words = [
            "--pretrained" if word == "--encoder" and _is_checkpoint(after) else word
            for word, after in zip(words, [*words[1:], ""], strict=False)
        ]
    if command == "train":
        words = [*_default_task(words, contents), *words]
    _drop_what_typed_excludes(words, contents)
    has_options = any(word.startswith("--encoder.") and word != "--encoder.help" for word in words)
    has_class = "--encoder" in words or any(content.get("encoder") is not None for content in contents)
    if has_options and not has_class:
        words = ["--encoder", _default_class(command, _with_configs(configs, words)), *words]
    words = _with_import_paths(words)
    for option, registry in REGISTRIES.items():
        for content in contents:
            _name_class(content, option, registry)
        _check_options(command, option, words, contents)
    return _with_configs(configs, words)


def _respelled(command: str, argv: Sequence[str]) -> list[str]:
    """Arguments with underscores in their options, and ``--model`` under the name that the parser has for it."""
    words: list[str] = []
    for word in argv:
        if command == "train" and word.partition("=")[0] == "--model":
            word = f"--{MODEL_CLASS}{word.removeprefix('--model')}"
        option, equals, value = word.partition("=")
        if option in ("--print_config", "--print-config"):  # whose value is given by = alone
            words.append(f"--print_config{equals}{value}")
        elif option.startswith("--"):
            option = "--" + option[2:].replace("-", "_")
            words += [option, value] if equals else [option]
        else:
            words.append(word)
    return words


def _without_configs(words: Sequence[str]) -> tuple[list[dict[str, Any] | str], list[str]]:
    """The configurations that words name, and the other words; a configuration that is no mapping stays text."""
    configs: list[dict[str, Any] | str] = []
    others: list[str] = []
    place = 0
    while place < len(words):
        if words[place] == "--config" and place + 1 < len(words):
            content = _read_config(words[place + 1])
            configs.append(words[place + 1] if content is None else content)
            place += 2
        else:
            others.append(words[place])
            place += 1
    return configs, others


def _with_configs(configs: Sequence[Mapping[str, Any] | str], words: Sequence[str]) -> list[str]:
    """Configurations, then the words: an order in which the parser lets those that were typed override the others."""
    texts = [content if isinstance(content, str) else json.dumps(content) for content in configs]
    return [word for text in texts for word in ("--config", text)] + list(words)


def _values(words: Sequence[str], option: str) -> list[str]:
    """The words after each occurrence of an option."""
    return [after for word, after in itertools.pairwise(words) if word == option]


def _drop_what_typed_excludes(words: Sequence[str], contents: Sequence[dict[str, Any]]) -> None:
    """Drop from configurations what cannot stand beside a typed ``--encoder`` or ``--pretrained``."""
    for typed, excluded in (("--pretrained", "encoder"), ("--encoder", "pretrained")):
        for content in contents if typed in words else ():
            content.pop(excluded, None)
    typed_classes = _values(words, "--encoder")
    for content in contents if typed_classes else ():
        _drop_other_class(content, typed_classes[-1])


def _drop_other_class(content: dict[str, Any], typed: str) -> None:
    """Drop a configuration's encoder where another class was typed: its arguments are not those of that class."""
    held = content.get("encoder")
    if not isinstance(held, Mapping) or not isinstance(held.get("class_path"), str):
        return
    if held["class_path"].rpartition(".")[2] != typed.rpartition(".")[2]:
        del content["encoder"]


def _default_class(command: str, words: Sequence[str]) -> str:
    """The name of the class that the options ``--encoder.*`` belong to, where none is given.

    Raises:
        ValueError: if nothing says it.
    """
    if (preset := PRESETS.get(last_given(words, "preset"))) is not None:
        return preset.encoder
    start = last_given(words, "start") if command == "train" else None
    if start is not None:
        encoder = read_config(str(start)).get("encoder")
        if not encoder:
            raise ValueError(f"--start {start} has no encoder that the options --encoder.* could belong to")
        return str(encoder["class"])
    if command != "train":
        raise ValueError("--encoder CLASS is missing, the class that the options --encoder.* belong to")
    return DEFAULT_CLASS


def _default_task(words: Sequence[str], configs: Collection[Mapping[str, Any]]) -> list[str]:
    """The options that name a task, where options ``--task.*`` were given and no task was."""
    options = [word for word in words if word.startswith("--task.") and word != "--task.help"]
    if not options or "--task" in words or any(content.get("task") is not None for content in configs):
        return []
    values = {
        place + 1
        for place, word in enumerate(words)
        if word.startswith("--") and word.partition("=")[0] not in SWITCHES
    }
    sources = [word for place, word in enumerate(words) if place not in values]
    sources += [str(content.get("source")) for content in configs]
    task = next((NAMED_TASKS[word] for word in sources if word in NAMED_TASKS), {"name": Regression.name})
    settings = [("--task", task["name"]), *((f"--task.{key}", value) for key, value in task.items() if key != "name")]
    return [str(part).lower() if isinstance(part, bool) else part for setting in settings for part in setting]


def _read_config(text: str) -> dict[str, Any] | None:
    """The content of a configuration; ``None`` where it is none, which the parser then says.

    Raises:
        ValueError: if the file is not readable as YAML.
    """
    try:
        if os.path.isfile(text):
            with open(text, encoding="utf-8") as file:
                text = file.read()
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"--config is not readable as YAML: {' '.join(str(error).split())}") from error
    return content if isinstance(content, dict) else None


def _flat(names: Any) -> list[str]:
    """Names of modules, however deep their lists are nested."""
    if isinstance(names, list):
        return [name for part in names for name in _flat(part)]
    return [] if names is None else [str(names)]


def _name_class(content: dict[str, Any], option: str, registry: Registry) -> None:
    """Replace a registered name in a configuration by the import path of its class."""
    key = option.removeprefix("--")
    chosen = content.get(key)
    if isinstance(chosen, str):
        content[key] = {"class_path": _import_path(option, chosen, registry)}
    elif isinstance(chosen, dict) and isinstance(chosen.get("class_path"), str):
        content[key] = {**chosen, "class_path": _import_path(option, chosen["class_path"], registry)}


def _check_options(command: str, option: str, words: Sequence[str], configs: Sequence[Mapping[str, Any]]) -> None:
    """Refuse options that the constructor of the chosen class does not have.

    Raises:
        ValueError: with the options that there are.
    """
    chosen: dict[str, Any] = {}
    for content in configs:
        given = content.get(option.removeprefix("--"))
        chosen = given if isinstance(given, dict) else chosen
    paths = _values(words, option)
    path = paths[-1] if paths else chosen.get("class_path")
    module, _, name = (path or "").rpartition(".")
    cls = getattr(sys.modules.get(module), name, None)
    if cls is None:
        return
    parameters = inspect.signature(cls).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    allowed = [name for name in parameters if name not in SKIPPED[command, option]]
    names = [
        word.removeprefix(f"{option}.").removeprefix("init_args.") for word in words if word.startswith(f"{option}.")
    ]
    names += list(chosen.get("init_args") or ()) if chosen.get("class_path") == path else []
    for given in names:
        if given.partition(".")[0] not in (*allowed, "help", "class_path", "dict_kwargs"):
            label = "none" if cls is NoEncoder else cls.__name__
            raise ValueError(f"{option}.{given}: {label} takes {', '.join(allowed) or 'no options'}")


def _import_modules(names: Sequence[str]) -> None:
    """Import a user's modules, which register their classes; from the working directory too, as ``python -m`` does."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    for name in names:
        importlib.import_module(name)


def _with_import_paths(words: Sequence[str]) -> list[str]:
    """The words, where each registered name of an encoder or task is replaced by the import path of its class."""
    registries = {**REGISTRIES, **{f"{option}.help": registry for option, registry in REGISTRIES.items()}}
    result = list(words)
    for place, option in enumerate(words[:-1]):
        if option in registries:
            result[place + 1] = _import_path(option, words[place + 1], registries[option])
    return result


def _import_path(option: str, name: str, registry: Registry) -> str:
    if name == "none" and option == "--encoder":
        return f"{NoEncoder.__module__}.{NoEncoder.__qualname__}"
    if name in registry:
        return f"{registry[name].__module__}.{registry[name].__qualname__}"
    if option == "--encoder" and not name.endswith((".yaml", ".yml", ".json")) and _is_checkpoint(name):
        raise ValueError(f"--encoder takes a class, and {name} is a checkpoint: say --pretrained {name}")
    if name.endswith((".yaml", ".yml", ".json")) or "{" in name or name.startswith("--"):
        return name  # a configuration
    module, _, attribute = name.rpartition(".")
    if module:
        try:
            getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"{option} {name} cannot be imported: {error}") from error
        return name
    none = " or none" if option == "--encoder" else ""
    raise ValueError(
        f"{option} must be one of {', '.join(registry)}{none}, or the import path of a class such as my_module.MyClass "
        f"(or a name that a module given by --import registers), got {name!r}"
    )


def _is_checkpoint(name: str) -> bool:
    return name not in ENCODERS and (name in zoo.names() or os.path.isdir(name))


def last_given(argv: Sequence[str], key: str) -> Any:
    """The value of an option in the arguments that :func:`normalized` returns or their configurations; or ``None``."""
    found: Any = None
    for option, value in itertools.pairwise(argv):
        if option == f"--{key}":
            found = value
        elif option == "--config":
            content: Any = _read_config(value)
            for part in key.split("."):
                content = content.get(part) if isinstance(content, dict) else None
            found = found if content is None else content
    return found


def model_class(argv: Sequence[str], default: type[Model]) -> type[Model]:
    """The class of models that the arguments, as :func:`normalized` returns them, choose.

    Raises:
        ValueError: if there is none of that name.
    """
    name = last_given(argv, MODEL_CLASS)
    return default if name is None else model_named(str(name))


def check_schedule(argv: Sequence[str], schedule: str) -> None:
    """Refuse options that only another schedule reads, where they are given one by one; presets and files may say more.

    Args:
        argv: the arguments that :func:`normalized` returns.
        schedule: the one that they choose.

    Raises:
        ValueError: with the schedule that reads the option.
    """
    for name, reader in READ_BY.items():
        if schedule != reader and any(word.partition("=")[0] == f"--{name}" for word in argv):
            raise ValueError(f"--{name} would have no effect with --schedule {schedule}: --schedule {reader} reads it")
