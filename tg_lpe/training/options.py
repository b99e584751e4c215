"""Command-line options from constructors: classes by name, their arguments from the signatures."""

from __future__ import annotations

import difflib
import importlib
import inspect
import itertools
import json
import os
import re
import sys
from argparse import HelpFormatter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NoReturn, TypeVar

import yaml  # type: ignore[import-untyped]
from jsonargparse import ArgumentParser, Namespace

from tg_lpe.data import DataSpec
from tg_lpe.data.splits import LEVELS
from tg_lpe.encoders.base import Encoder
from tg_lpe.encoders.registry import ENCODERS, register
from tg_lpe.hub import zoo
from tg_lpe.hub.checkpoints import read_config
from tg_lpe.hub.registry import Registry
from tg_lpe.models import MODELS, Model
from tg_lpe.models import register as register_model
from tg_lpe.models.base import FIXED
from tg_lpe.models.registry import DEFAULT_MODEL
from tg_lpe.training.build import NoEncoder
from tg_lpe.training.config import READ_BY, LoopConfig
from tg_lpe.training.presets import PRESETS
from tg_lpe.training.run_folder import checkpoint_label
from tg_lpe.training.tasks import TASKS, Regression

DEFAULT_ENCODER = "GramTransformer"

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

MODEL_CLASS = "model.class"
"""The option behind ``--model``, so that a configuration says the class beside the arguments."""

SIZES = {field.name for field in fields(DataSpec)}
WIDTHS = ("out_channels", "edge_out_channels")
TASK_SIZES = {"level", "num_targets", "num_classes"}
SKIPPED: dict[tuple[str, str], set[str]] = {
    **{(command, "--encoder"): SIZES for command in ("train", "encode", "show")},
    ("pretrain", "--encoder"): SIZES | set(WIDTHS),
    **{(command, "--task"): TASK_SIZES for command in ("train", "pretrain", "encode", "show")},
}
"""Arguments of the classes that are no options, by command: they follow from the data and what is learned."""

C = TypeVar("C", bound=LoopConfig)

_MODEL = "say --model.{}".format
_CLASS = "say --encoder CLASS --encoder.{}, if the class has this argument".format
_ENCODERS = "say --encoder none, LaplacianEigenvectors, RandomWalk, GramTransformer, ..."
RENAMED = {
    "pe": _ENCODERS,
    "pe_dim": "say --encoder CLASS with its own argument, such as RandomWalk --encoder.steps 16",
    "edge_pe": "say --edge_encoding true",
    "no_edge_pe": "say --edge_encoding false",
    "pe_norm": _MODEL("pe_norm true"),
    "no_pe_norm": _MODEL("pe_norm false"),
    "probes": _CLASS("probes KIND"),
    "num_filters": _CLASS("num_filters N"),
    "encoder_layers": _CLASS("num_layers N"),
    "num_squarings": _CLASS("num_squarings N"),
    "basis": _CLASS("basis NAME"),
    "conductances": _CLASS("learned_conductances true|false"),
    "ground": _CLASS("ground true"),
    "no_ground": _CLASS("ground false"),
    "end_features": _CLASS("end_features true"),
    "no_end_features": _CLASS("end_features false"),
    "k": _CLASS("k N"),
    "update_incidence": _CLASS("update_incidence true"),
    "attention": _MODEL("attention NAME"),
    "channels": _MODEL("hidden_channels N"),
    "heads": _MODEL("heads N"),
    "num_layers": "say --model.num_layers N for the graph transformer, --encoder.num_layers N for the encoder",
    "readout": _MODEL("readout NAME"),
    "pooling": _MODEL("pooling NAME"),
}
"""Options of release 0.1 in ``train`` and ``pretrain``, and what to write instead."""


class Parser(ArgumentParser):
    """Says what is wrong in a few lines; the list of all options is left to ``--help``. Options have one spelling."""

    command = "tg-lpe"
    model: type[Model] = MODELS[DEFAULT_MODEL]
    """The class that the options ``--model.*`` belong to."""
    flags: Sequence[str] = ()
    """All options of the command, and the words that were given: what error messages name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def format_help(self, formatter: HelpFormatter | None = None) -> str:
        """Without the default null: the text of such an option says what its absence means."""
        return re.sub(r",\s+default:\s+null|\s+\(default:\s+null\)", "", super().format_help(formatter))

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        message = message.replace(f"required: {self.command.rpartition(' ')[2]}.", "required: ")
        print(
            f"{self.command}: {_in_words(message, Parser.flags)}\nAll options: {self.command} --help", file=sys.stderr
        )
        sys.exit(2)


_TYPES = {"int": "an integer", "float": "a number", "bool": "true or false", "str": "a text", "NoneType": "null"}


def _in_words(message: str, flags: Sequence[str]) -> str:
    """A message of the parser, with the option that it is about and the values allowed in plain words."""
    if found := re.match(r"unrecognized arguments: (--[\w.]+)", message):
        near = difflib.get_close_matches(found[1], [flag for flag in flags if flag not in message.split()], n=1)
        return f"{message}; did you mean {near[0]}?" if near else message
    if message.startswith("Option "):
        return f"{message}; --encoder.help CLASS and --task.help TASK list the options of a class"
    found = re.match(r'Parser key "([\w.]+)":\s+Expected an? (.*?)\. Got value: (.*)$', message, re.DOTALL)
    if found is None:
        return message
    key, expected, value = found.groups()
    # A class's own parser knows its arguments by their bare names.
    flag = next((f for f in flags if f in (f"--{key}", f"--encoder.{key}", f"--task.{key}")), f"--{key}")
    if literal := re.search(r"Literal\[(.*?)\]", expected):
        allowed = f"one of {literal[1].replace(chr(39), '')}"
    elif known := re.fullmatch(r"<class '(\w+)'>", expected):
        allowed = _TYPES.get(known[1], known[1])
    else:
        allowed = expected
    return f"{flag} must be {allowed}, got {value}"


def normalized(command: str, argv: Sequence[str]) -> list[str]:
    """Arguments as the parser knows them: underscores in options, import paths for the names of classes.

    Raises:
        ValueError: if an option is of release 0.1, or a class is unknown.
        ImportError: if a module that ``--import`` names cannot be imported.
    """
    words: list[str] = []
    for word in argv:
        if command == "train" and word.partition("=")[0] == "--model":
            word = f"--{MODEL_CLASS}{word.removeprefix('--model')}"
        option, equals, value = word.partition("=")
        if option.startswith("--"):
            option = "--" + option[2:].replace("-", "_")
            if command in ("train", "pretrain") and option[2:] in RENAMED:
                raise ValueError(
                    f"{word.partition('=')[0]} was an option of release 0.1; instead, {RENAMED[option[2:]]}"
                )
            words += [option, value] if equals else [option]
        else:
            words.append(word)
    places = [place for place, word in enumerate(words[:-1]) if word == "--config"]
    configs = {place + 1: content for place in places if (content := _read_config(words[place + 1])) is not None}
    _import_modules([words[place + 1] for place, word in enumerate(words[:-1]) if word == "--import"])
    if command not in ("train", "pretrain", "encode", "show"):
        return words
    if command == "show":  # which trains nothing, so that a name can only mean the encoder as it is
        places = [
            place for place, word in enumerate(words[:-1]) if word == "--encoder" and _is_checkpoint(words[place + 1])
        ]
        words = ["--pretrained" if place in places else word for place, word in enumerate(words)]
    for content in configs.values():
        _import_modules(_flat(content.get("import")))
    if command == "train":
        added = _default_task(words, configs.values())
        words = [*added, *words]
        configs = {place + len(added): content for place, content in configs.items()}
    options = [word for word in words if word.startswith("--encoder.") and word != "--encoder.help"]
    if options and "--encoder" not in words and not any("encoder" in content for content in configs.values()):
        words = ["--encoder", _default_class(command, words), *words]
        configs = {place + 2: content for place, content in configs.items()}
    words = _with_import_paths(words)
    for place, content in configs.items():
        for option, registry in REGISTRIES.items():
            _name_class(content, option, registry)
        words[place] = json.dumps(content)
    for option in REGISTRIES:
        _check_options(command, option, words, list(configs.values()))
    return words


def _default_class(command: str, words: Sequence[str]) -> str:
    """The name of the class that the options ``--encoder.*`` belong to, where none is given.

    Raises:
        ValueError: if nothing says it.
    """
    preset = PRESETS.get(words[words.index("--preset") + 1]) if "--preset" in words[:-1] else None
    if preset is not None:
        return preset.encoder
    start = last_given(words, "start") if command == "train" else None
    if start is not None:
        encoder = read_config(str(start)).get("encoder")
        if not encoder:
            raise ValueError(f"--start {start} has no encoder that the options --encoder.* could belong to")
        return str(encoder["class"])
    if command != "train":
        raise ValueError("--encoder CLASS is missing, the class that the options --encoder.* belong to")
    return DEFAULT_ENCODER


def _default_task(words: Sequence[str], configs: Iterable[Mapping[str, Any]]) -> list[str]:
    """The options that name a task, where options ``--task.*`` were given and no task was."""
    options = [word for word in words if word.startswith("--task.") and word != "--task.help"]
    if not options or "--task" in words or any("task" in content for content in configs):
        return []
    task = next((NAMED_TASKS[word] for word in words if word in NAMED_TASKS), {"name": Regression.name})
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
    paths = [words[place + 1] for place, word in enumerate(words[:-1]) if word == option]
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
    return name in zoo.names() or os.path.isdir(name)


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


def model_named(name: str) -> type[Model]:
    """The class of models of a registered name or an import path.

    Raises:
        ValueError: if there is none.
    """
    if name in MODELS:
        return MODELS[name]  # type: ignore[no-any-return]
    module, _, attribute = name.rpartition(".")
    if not module:
        raise ValueError(
            f"--model must be one of {', '.join(MODELS)}, or the import path of a class such as my_module.MyModel "
            f"(or a name that a module given by --import registers), got {name!r}"
        )
    try:
        return register_model(getattr(importlib.import_module(module), attribute))  # type: ignore[no-any-return]
    except (ImportError, AttributeError, TypeError) as error:
        raise ValueError(f"--model {name} is no class of models: {error}") from error


def add_model(parser: Parser) -> None:
    """``--model CLASS --model.ARGUMENT VALUE``; sizes of data and task are filled in."""
    cls = parser.model
    parser.add_argument(
        f"--{MODEL_CLASS}",
        default=cls.__name__,
        metavar="CLASS",
        help=f"model, also as --model CLASS: {', '.join(MODELS)}, or the import path of your own class; --model CLASS "
        "--help lists its options",
    )
    parser.add_class_arguments(cls, "model", skip=FIXED & arguments_of(cls), instantiate=False)
    of_level = [cls.training_defaults(level) for level in LEVELS]
    for name in {name: None for defaults in of_level for name in defaults}:
        first, *others = (defaults.get(name) for defaults in of_level)
        parser.set_defaults({f"model.{name}": first if all(other == first for other in others) else None})


def chosen_model(args: Namespace, level: str) -> dict[str, Any]:
    """What ``--model`` and its options chose, as :func:`tg_lpe.training.build_model` takes it.

    Args:
        args: the options.
        level: what the task predicts.
    """
    given = args.model.as_dict()
    cls = model_named(given.pop("class"))
    unset = {name for other in LEVELS for name in cls.training_defaults(other) if given.get(name) is None}
    return {
        "model": cls,
        **cls.training_defaults(level),
        **{name: value for name, value in given.items() if name not in unset},
    }


def add_import(parser: Any) -> None:
    """``--import MODULE``, which :func:`normalized` obeys."""
    parser.add_argument(
        "--import",
        nargs=1,
        action="append",
        metavar="MODULE",
        help="import a module that registers encoders, models or tasks",
    )


def add_encoder(parser: ArgumentParser, command: str, default: str) -> None:
    """``--encoder CLASS --encoder.ARGUMENT VALUE``; sizes of the data are filled in from the data."""
    group = parser.add_argument_group("positional encoding")
    add_import(group)
    group.add_subclass_arguments(
        (Encoder, NoEncoder),
        "encoder",
        as_group=False,
        skip=SKIPPED[command, "--encoder"],
        instantiate=False,
        metavar="CLASS",
        help=f"positional encoding: none, {', '.join(ENCODERS)}, or the import path of your own class ({default}); "
        "--encoder.help CLASS lists its options, which are given as --encoder.OPTION VALUE",
    )
    group.add_argument(
        "--pretrained", metavar="NAME|DIR", help="begin from a pretrained encoder instead: see tg-lpe zoo, or a folder"
    )


def chosen_encoder(args: Namespace) -> dict[str, Any] | str | None:
    """What ``--encoder`` or ``--pretrained`` chose, as :func:`tg_lpe.training.build_model` takes it.

    Raises:
        ValueError: if both were given.
    """
    if args.pretrained is not None:
        if args.encoder is not None:
            raise ValueError("--encoder and --pretrained exclude each other: a pretrained encoder brings its own class")
        return str(args.pretrained)
    if args.encoder is None:
        return None
    cls, arguments = class_and_arguments(args.encoder)
    return None if cls is NoEncoder else {"class": register(cls).__name__, **arguments}


def preset_defaults(command: str, args: Namespace) -> dict[str, Any]:
    """The defaults of the options by the preset that ``--preset`` names; they depend on the data and the encoder.

    Raises:
        ValueError: if another option contradicts the preset as a whole.
    """
    preset = PRESETS[args.preset]
    if command == "pretrain" and args.kernels is not None:
        raise ValueError(f"--preset {args.preset} pretrains on eigenvectors, so --kernels must not be given")
    chosen: Any = {"class": preset.encoder} if args.encoder is None else None
    chosen = chosen_encoder(args) or chosen
    defaults = preset.options(command, args.source, chosen)
    arguments = defaults.pop("encoder")
    if command == "train":
        cls = model_named(args.model["class"])
        lacking = {key.removeprefix("model.") for key in defaults if key.startswith("model.")} - arguments_of(cls)
        if lacking:
            raise ValueError(
                f"--preset {args.preset} sets {', '.join(sorted(lacking))}, which {cls.__name__} does not have"
            )
    if isinstance(chosen, dict):
        cls = ENCODERS[chosen["class"]]
        defaults["encoder"] = {"class_path": f"{cls.__module__}.{cls.__qualname__}", "init_args": arguments}
    return defaults


def start_defaults(model: Model, args: Namespace) -> dict[str, Any]:
    """The defaults of the options by the trained model that ``--start`` names.

    Args:
        model: the model.
        args: the options.

    Raises:
        ValueError: if another option contradicts the start as a whole.
    """
    for option in ("preset", "pretrained"):
        if args[option] is not None:
            raise ValueError(f"--start and --{option} exclude each other: a trained model brings its own options")
    arguments = model.config_dict()
    encoder = arguments.pop("encoder", None)
    if arguments.pop("class") != args.model["class"].rpartition(".")[2]:
        return {}  # which a training refuses
    defaults = {f"model.{name}": value for name, value in arguments.items() if name not in FIXED}
    cls: Any = NoEncoder if encoder is None else ENCODERS[encoder.pop("class")]
    own = {name: value for name, value in (encoder or {}).items() if name not in SKIPPED["train", "--encoder"]}
    return {**defaults, "encoder": {"class_path": f"{cls.__module__}.{cls.__qualname__}", "init_args": own}}


def class_and_arguments(chosen: Namespace) -> tuple[Any, dict[str, Any]]:
    """What jsonargparse holds of a chosen class: the class itself and the arguments of its constructor."""
    module, _, name = chosen.class_path.rpartition(".")
    arguments = chosen.get("init_args")
    return getattr(importlib.import_module(module), name), {} if arguments is None else dict(arguments.as_dict())


def encoder_label(chosen: Mapping[str, Any] | str | None) -> str:
    """What stands for the encoder in messages and in the name of a folder."""
    if chosen is None:
        return "none"
    return checkpoint_label(chosen) if isinstance(chosen, str) else str(chosen["class"])


def settings_of(cls: type[C], args: Namespace, **more: Any) -> C:
    """A configuration from the options of its fields' names; options that were not given leave the defaults.

    Args:
        cls: the class of the configuration.
        args: the options.
        more: fields with other values.
    """
    given = {field.name: args[field.name] for field in fields(cls) if field.name in args}
    return cls(**{**{name: value for name, value in given.items() if value is not None}, **more})


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


def arguments_of(cls: type) -> set[str]:
    """Names of the arguments of a class's constructor."""
    return set(inspect.signature(cls).parameters)
