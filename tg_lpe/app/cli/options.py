"""Options that choose classes, and the options of these classes from the signatures of their constructors.

Words are parsed in two steps. The first parses the options on which other options depend: modules to import,
configuration files, the classes of encoder, model and task, a preset, and a model to start from. The second parses the
rest.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from jsonargparse import Namespace

from tg_lpe.app.cli.parser import Parser, as_option
from tg_lpe.app.prediction import load
from tg_lpe.app.training.config import READ_BY, LoopConfig, TrainConfig
from tg_lpe.app.training.presets import PRESETS
from tg_lpe.app.training.run_folder import checkpoint_label
from tg_lpe.app.training.state import with_prefix
from tg_lpe.app.training.tasks import TASKS, Regression, register_task
from tg_lpe.arguments import ArgumentError, check_choice
from tg_lpe.checkpoints import zoo
from tg_lpe.checkpoints.checkpoint import Checkpoint
from tg_lpe.checkpoints.files import read_yaml
from tg_lpe.data import DataSpec
from tg_lpe.data.spec import LEVELS
from tg_lpe.encoders.registry import ENCODERS, register
from tg_lpe.models import MODELS, Model
from tg_lpe.models import register as register_model
from tg_lpe.models.base import FIXED
from tg_lpe.models.registry import DEFAULT_MODEL

DEFAULT_CLASS = "GramTransformer"
REGISTRIES = {"model": (MODELS, register_model), "encoder": (ENCODERS, register), "task": (TASKS, register_task)}
"""Options that choose a class, with the registry of the class and the function that registers one."""

SIZES = {field.name for field in fields(DataSpec)}
WIDTHS = {"out_channels", "edge_out_channels"}
OF_DATA = {"level", "edge_channels"}
"""Options inside a model argument that follow from the task and the encoder."""
TASK_SIZES = {"level", "num_targets", "num_classes"}

C = TypeVar("C", bound=LoopConfig)


class Chosen:
    """Parse the options of the first step, and hold the results.

    Args:
        parser: the parser of the command, which reports errors.
        words: the arguments of the command.
        options: the options of the first step that the command has, out of ``"encoder"``, ``"pretrained"``,
            ``"model"``, ``"task"``, ``"preset"``, ``"start"`` and ``"config"``; every command has ``"import"``.
        encoder: name of the default encoder.

    Attributes:
        rest: the words for the second step.
        content: the options in configuration files, overridden by those typed.
        classes: the classes of encoder, model and task; ``None`` if none is chosen.
        start: the model to start from, or ``None``.
    """

    def __init__(self, parser: Parser, words: Sequence[str], *options: str, encoder: str | None = None) -> None:
        self.default_encoder = encoder
        first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        first.error = parser.error  # type: ignore[method-assign, assignment]
        for option in ("import", *options):
            flags = [f"--{option}"] + ([f"--{option}.class"] if option in REGISTRIES else [])
            first.add_argument(*flags, action="append" if option in ("import", "config") else "store")
        known, self.rest = first.parse_known_args(words)
        typed = {name: value for name, value in vars(known).items() if value is not None}
        try:
            self.content = _merged(typed.pop("config", []), typed)
            name = self.content.get("start")
            self.start = None if name is None else load(name)
            if self.start is not None and (kind := type(self.start.model).__name__) not in MODELS:
                raise ValueError(f"--start {name} holds a {kind}; models are {', '.join(MODELS)}")
            if "preset" in self.content:
                check_choice("--preset", self.content["preset"], tuple(PRESETS))
            self.classes = {option: self._class(option) for option in REGISTRIES if option in options}
        except (ValueError, ImportError) as error:
            parser.error(str(error))

    def _class(self, option: str) -> Any:
        """Return the class that an option chooses, or its default, and store its name in ``content``."""
        name: str | None = self.content.get(option, {}).get("class")
        if name is None and self.start is not None and option != "task":
            model = self.start.model if option == "model" else self.start.model.encoder
            name = "none" if model is None else type(model).__name__
        elif name is None and option == "model":
            name = DEFAULT_MODEL
        elif name is None and option == "encoder" and "pretrained" not in self.content:
            if "preset" in self.content:
                name = PRESETS[self.content["preset"]].encoder
            elif self.default_encoder is not None:
                takes = arguments_of(class_named("model", self.content["model"]["class"]))
                name = self.default_encoder if "encoder" in takes else "none"
        if name is None:
            return None
        cls = None if (option, name) == ("encoder", "none") else class_named(option, name)
        if cls is not None:
            name = cls.name if option == "task" else cls.__name__
        self.content[option] = {**self.content.get(option, {}), "class": name}
        return cls


def _merged(files: Sequence[str], typed: Mapping[str, Any]) -> dict[str, Any]:
    """Read YAML files, override them by typed options, and import their modules; another class drops old options."""
    content: dict[str, Any] = {}
    for path in files:
        if not isinstance(read := read_yaml(Path(path)), dict):
            raise ValueError(f"--config {path} must name options with their values, got {read!r:.80}")
        content |= {name: value for name, value in read.items() if value is not None}
    for option in REGISTRIES.keys() & content.keys():
        if isinstance(content[option], str):  # a class may be a name without options
            content[option] = {"class": content[option]}
    if {"encoder", "pretrained"} <= typed.keys():
        raise ValueError("--encoder and --pretrained exclude each other: a pretrained encoder brings its own class")
    modules = content.get("import", [])
    typed = {"import": [], **typed}
    for option, other in (("encoder", "pretrained"), ("pretrained", "encoder")):
        if option in typed:
            content.pop(other, None)
    for option, value in typed.items():
        if option == "import":
            modules = [*([modules] if isinstance(modules, str) else modules), *value]
            content |= {"import": modules} if modules else {}
        elif option not in REGISTRIES:
            content[option] = value
        elif content.get(option, {}).get("class") != value:
            content[option] = {"class": value}
    for module in modules:
        _import_module(module)
    return content


def class_named(option: str, name: str) -> Any:
    """Return the class of a registered name, or import and register the class of an import path."""
    registry, register_class = REGISTRIES[option]
    if name in registry:
        return registry[name]
    if option == "encoder" and (name in zoo.names() or os.path.isdir(name)):
        raise ValueError(f"--encoder takes a class, but {name} is a checkpoint: use --pretrained {name}")
    module, _, attribute = name.rpartition(".")
    if not module:
        near = difflib.get_close_matches(name, registry, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        names = ", ".join([*registry, "none"] if option == "encoder" else registry)
        others = "the import path of a class such as my_module.MyClass (or a name that a module of --import registers)"
        raise ValueError(f"--{option} must be one of {names}, or {others}, got {name!r}{hint}")
    try:
        return register_class(getattr(_import_module(module), attribute))
    except (ImportError, AttributeError, TypeError) as error:
        raise ValueError(f"--{option} {name} cannot be imported: {error}") from error


def _import_module(name: str) -> ModuleType:
    """Import a module, also from the working directory; the module registers its classes."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    return importlib.import_module(name)


def add_import(parser: Any) -> None:
    """Declare ``--import``, which the first step handles."""
    text = "module to import first, which registers encoders, models or tasks"
    parser.add_argument("--import", type=list[str] | None, metavar="MODULE", help=text)


def add_reading(group: Any) -> None:
    """Declare the option for reading molecules from a file."""
    group.add_argument("--smiles_column", metavar="COLUMN", help="column with the SMILES (default: smiles)")


def add_encoder(parser: Parser, chosen: Chosen, default: str, skip: set[str] = SIZES) -> None:
    """Declare ``--encoder CLASS --encoder.ARGUMENT VALUE``, without arguments that follow from the data."""
    text = f"none, {', '.join(ENCODERS)}, or the import path of your own class ({default}). --encoder.OPTION VALUE "
    text += "sets an option of the class, and --encoder CLASS --help lists them"
    group = _add_class(parser, chosen.classes["encoder"], "encoder", "positional encoding", text, skip)
    group.add_argument("--pretrained", metavar="NAME|DIR", help="pretrained encoder: a name of tg-lpe zoo, or a folder")
    add_import(group)


def add_task(parser: Parser, chosen: Chosen) -> None:
    """Declare ``--task NAME --task.ARGUMENT VALUE``, with the arguments of a regression if no task is named."""
    cls = chosen.classes["task"] or Regression
    text = f"{', '.join(TASKS)}, or the import path of your own class; --task TASK --help lists its options"
    group = _add_class(parser, cls, "task", "task", text, {*TASK_SIZES, "metric"})
    text = f"metric that chooses the best epoch: {', '.join(cls.metrics)} (default: the first"
    text += ", or scaled_mae for several columns)" if issubclass(cls, Regression) else ")"
    group.add_argument("--task.metric", metavar="METRIC", help=text)


def add_model(parser: Parser, chosen: Chosen) -> None:
    """Declare ``--model CLASS --model.ARGUMENT VALUE``, without arguments that follow from data and task."""
    cls = chosen.classes["model"]
    text = f"{', '.join(MODELS)}, or the import path of your own class; --model CLASS --help lists its options. "
    text += "Options in dictionaries have longer names, such as --model.pe_options.norm unit"
    _add_class(parser, cls, "model", "model", text, set(FIXED & arguments_of(cls)))
    for name, options in cls.options.items():
        flag = f"--model.{name}"
        inside = [word for word in chosen.rest if word.startswith(f"{flag}.")]
        if options.short and inside and flag in chosen.rest:  # the parser would keep only the last
            parser.error(f"with {inside[0]} write {flag}.{options.short} instead of {flag}")
    of_graphs, of_nodes = map(cls.training_defaults, LEVELS)
    for name in {**of_graphs, **of_nodes}:  # a default that depends on the level is left open
        default = of_graphs.get(name)
        parser.set_defaults({f"model.{name}": default if default == of_nodes.get(name) else None})


def _add_class(parser: Parser, cls: type | None, option: str, title: str, text: str, skip: set[str]) -> Any:
    """Declare an option that chooses a class, and the options of the class, if any; return their group."""
    group = parser.add_argument_group(title)
    group.add_argument(f"--{option}.class", metavar="TASK" if option == "task" else "CLASS", help=text)
    if cls is not None:
        group.add_class_arguments(cls, option, as_group=False, skip=skip, instantiate=False)
    return group


def add_config(parser: Parser, has_preset: bool) -> None:
    """Declare ``--config``, ``--print_config`` and, if the command has presets, ``--preset``."""
    text = "YAML file with any of these options; the command line overrides it, and --print_config prints one"
    parser.add_argument("--config", metavar="FILE", help=text)
    text = "print the settings as a file for --config"
    parser.add_argument("--print_config", action="store_true", help=text)
    if has_preset:
        parser.add_argument(
            "--preset",
            choices=tuple(PRESETS),
            help="change the defaults to a published experiment: paper is Table 2 of Graph Transformers Dream of "
            "Electric Flow, san is Rethinking Graph Transformers with Spectral Attention",
        )


def parse_rest(parser: Parser, chosen: Chosen) -> Namespace:
    """Parse the remaining words, with defaults from the preset or from the model to start from.

    The returned ``task`` holds only options that were set.
    """
    parser.asks_for_all = False  # the words may set what a file does not
    base = parser.parse_object(chosen.content, defaults=False)
    parser.asks_for_all = True
    explicit = parser.parse_args(chosen.rest, namespace=base, defaults=False)
    printed = explicit.pop("print_config", None)
    defaults: dict[str, Any] = {}
    try:
        if chosen.start is not None:
            defaults = _start_defaults(explicit, chosen, chosen.start.model)
        elif "preset" in explicit:
            defaults = _preset_defaults(parser.prog.split()[-1], explicit, chosen)
        parser.set_defaults(defaults)
        args: Namespace = parser.parse_object(explicit.clone(), defaults=True)
        if "model" in chosen.classes:
            model_defaults = with_prefix(defaults, "model.")
            merged = chosen.classes["model"].merge_arguments(model_defaults, explicit.model.as_dict())
            for name in model_defaults:
                args.model[name] = merged[name]
    except ValueError as error:
        parser.error(error.told(as_option) if isinstance(error, ArgumentError) else str(error))
    for name, schedule in READ_BY.items() if "schedule" in args else ():
        if name in explicit and name not in chosen.content and args.schedule != schedule:
            unread = f"--{name} would have no effect with --schedule {args.schedule}"
            parser.error(f"{unread}: --schedule {schedule} reads it")
    if "task" in args:
        args.task = explicit.get("task", {})
    if printed is not None:
        for name in ("config", "print_config"):
            args.pop(name, None)
        print(parser.dump(args, skip_validation=True))
        sys.exit(0)
    return args


def _preset_defaults(command: str, explicit: Namespace, chosen: Chosen) -> dict[str, Any]:
    """Return the defaults of ``--preset`` for the data and the encoder; raise ``ValueError`` for contradictions."""
    preset = PRESETS[explicit.preset]
    if command == "pretrain" and "kernels" in explicit:
        raise ValueError(f"--preset {explicit.preset} pretrains on eigenvectors, so --kernels must not be given")
    defaults = preset.options(command, explicit.source, chosen_encoder(explicit))
    arguments = defaults.pop("encoder")
    if "model" in chosen.classes:
        cls = chosen.classes["model"]
        if lacking := with_prefix(defaults, "model.").keys() - arguments_of(cls):
            names = ", ".join(sorted(lacking))
            raise ValueError(f"--preset {explicit.preset} sets {names}, which {cls.__name__} does not have")
    return {**defaults, **{f"encoder.{name}": value for name, value in arguments.items()}}


def _start_defaults(explicit: Namespace, chosen: Chosen, start: Model) -> dict[str, Any]:
    """Return the defaults from the model that ``--start`` names; raise ``ValueError`` for contradictions."""
    for option in ("preset", "pretrained"):
        if option in explicit:
            raise ValueError(f"--start and --{option} exclude each other: a trained model brings its own options")
    arguments = start.config_dict()
    encoder = arguments.pop("encoder", None) or {"class": "none"}
    if arguments.pop("class") != chosen.classes["model"].__name__:
        return {}  # refused when the training starts
    for name, options in chosen.classes["model"].options.items():
        complete = options.of(name, arguments.get(name)).to_dict()  # the defaults of a training may differ
        arguments[name] = {option: value for option, value in complete.items() if option not in OF_DATA}
    defaults = {f"model.{name}": value for name, value in arguments.items() if name not in FIXED}
    defaults["head_lr"] = max(explicit.get("lr", TrainConfig.lr), TrainConfig.lr)  # the read-out is new
    if encoder.pop("class") == explicit.encoder["class"]:  # another class has its own defaults
        defaults |= {f"encoder.{name}": value for name, value in encoder.items() if name not in SIZES}
    return defaults


def chosen_encoder(args: Namespace) -> dict[str, Any] | str | None:
    """Return the encoder of ``--encoder`` or ``--pretrained`` as :func:`tg_lpe.app.training.build_model` takes it."""
    if args.get("pretrained") is not None:
        return str(args.pretrained)
    encoder = args.encoder.as_dict() if "encoder" in args else {}
    return None if encoder.get("class") in (None, "none") else _with_classes(encoder)


def _with_classes(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Replace arguments that are encoders by their class and arguments."""
    result = dict(arguments)
    for name, value in arguments.items():
        if isinstance(value, dict) and "class_path" in value:
            cls = class_named("encoder", value["class_path"])
            result[name] = {"class": cls.__name__, **_with_classes(value.get("init_args") or {})}
    return result


def chosen_model(args: Namespace, level: str) -> dict[str, Any]:
    """Return the model of ``--model`` and its options as arguments of :func:`tg_lpe.app.training.build_model`."""
    arguments = args.model.as_dict()
    cls = class_named("model", arguments.pop("class"))
    unset = {name for other in LEVELS for name in cls.training_defaults(other) if arguments.get(name) is None}
    arguments = {name: value for name, value in arguments.items() if name not in unset}
    return {"model": cls, **cls.merge_arguments(cls.training_defaults(level), arguments)}


def encoder_label(chosen: Mapping[str, Any] | Checkpoint | None) -> str:
    """Return the name of the encoder for messages and folders."""
    if chosen is None:
        return "none"
    return checkpoint_label(chosen.name) if isinstance(chosen, Checkpoint) else str(chosen["class"])


def settings_of(cls: type[C], args: Namespace, **changes: Any) -> C:
    """Make a configuration from the options named like its fields, with ``changes``; absent options have defaults."""
    options = {field.name: args[field.name] for field in fields(cls) if args.get(field.name) is not None}
    return cls(**{**options, **changes})


def arguments_of(cls: type) -> set[str]:
    """Return the names of the arguments of a class's constructor."""
    return set(inspect.signature(cls).parameters)
