"""Options that choose classes, and those of the classes that are chosen, from the signatures of their constructors.

Words are parsed in two steps. The first takes the options that decide which others there are: modules to import,
configuration files, the classes of encoder, model and task, a preset, a model to start from. The second takes the rest.
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
from typing import TYPE_CHECKING, Any, TypeVar

import yaml  # type: ignore[import-untyped]
from jsonargparse import Namespace

from tg_lpe.arguments import ArgumentError, check_choice
from tg_lpe.checkpoints import zoo
from tg_lpe.checkpoints.checkpoint import Checkpoint
from tg_lpe.cli.parser import Parser, as_option
from tg_lpe.data import DataSpec
from tg_lpe.data.splits import LEVELS
from tg_lpe.encoders.registry import ENCODERS, register
from tg_lpe.models import MODELS, Model
from tg_lpe.models import register as register_model
from tg_lpe.models.base import FIXED
from tg_lpe.models.registry import DEFAULT_MODEL
from tg_lpe.training.config import READ_BY, LoopConfig, TrainConfig
from tg_lpe.training.presets import PRESETS
from tg_lpe.training.run_folder import checkpoint_label
from tg_lpe.training.tasks import TASKS, Regression, register_task

if TYPE_CHECKING:
    from tg_lpe.prediction import Predictor

DEFAULT_CLASS = "GramTransformer"
REGISTRIES = {"encoder": (ENCODERS, register), "model": (MODELS, register_model), "task": (TASKS, register_task)}
"""Options that choose a class: the classes with names, and what gives one a name."""

SIZES = {field.name for field in fields(DataSpec)}
WIDTHS = {"out_channels", "edge_out_channels"}
OF_DATA = {"level", "edge_channels"}
"""Options inside an argument of a model that follow from the task and the encoder."""
TASK_SIZES = {"level", "num_targets", "num_classes", "values"}

C = TypeVar("C", bound=LoopConfig)


class Chosen:
    """The results of the first step.

    Args:
        parser: the parser of the command, which refuses what is wrong.
        words: the arguments of the command.
        options: which of ``"encoder"``, ``"pretrained"``, ``"model"``, ``"task"``, ``"preset"``, ``"start"`` and
            ``"config"`` the command has; all have ``"import"``.
        encoder: name of the encoder where none is chosen.
        by_name: whether ``--encoder`` may name a checkpoint too.

    Attributes:
        rest: the words for the second step.
        content: what configuration files say, and what was typed of the options above.
        classes: the classes of encoder, model and task; ``None`` where none is chosen.
        start: the model to start from.
    """

    def __init__(
        self, parser: Parser, words: Sequence[str], *options: str, encoder: str | None = None, by_name: bool = False
    ) -> None:
        self.default_encoder = encoder
        first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        first.error = parser.error  # type: ignore[method-assign, assignment]
        for option in ("import", *options):
            flags = [f"--{option}"] + ([f"--{option}.class"] if option in REGISTRIES else [])
            if option in ("import", "config"):
                first.add_argument(*flags, action="append")
            else:
                first.add_argument(*flags, choices=tuple(PRESETS) if option == "preset" else None)
        known, self.rest = first.parse_known_args(words)
        typed = {name: value for name, value in vars(known).items() if value is not None}
        try:
            self.content = _read_configs(typed.pop("config", []))
            if by_name and is_checkpoint(typed.get("encoder", "")):
                typed["pretrained"] = typed.pop("encoder")
            if modules := self.content.get("import", []) + typed.pop("import", []):
                for module in modules:
                    _import_module(module)
                self.content["import"] = modules
            self.start = _trained_model(typed.get("start", self.content.get("start")))
            self._merge(typed)
            if "preset" in self.content:
                check_choice("--preset", self.content["preset"], tuple(PRESETS))
            self.classes = {option: self._class(option) for option in REGISTRIES if option in options}
        except (ValueError, ImportError) as error:
            parser.error(str(error))

    def _merge(self, typed: Mapping[str, str]) -> None:
        """Override the content of files by typed options; another class drops the options of the former."""
        if {"encoder", "pretrained"} <= typed.keys():
            raise ValueError("--encoder and --pretrained exclude each other: a pretrained encoder brings its own class")
        for option, other in (("encoder", "pretrained"), ("pretrained", "encoder")):
            if option in typed:
                self.content.pop(other, None)
        for option, value in typed.items():
            if option not in REGISTRIES:
                self.content[option] = value
            elif self._name(option) != value:
                self.content[option] = {"class": value}

    def _name(self, option: str) -> str | None:
        """Return the name of the class that files or typed words give for an option."""
        name: str | None = self.content.get(option, {}).get("class")
        return name

    def _class(self, option: str) -> Any:
        """Return the class that an option chooses, or its default, which is noted as if it were typed."""
        name = self._name(option) or self._default(option)
        if name is None:
            return None
        cls = None if (option, name) == ("encoder", "none") else class_named(option, name)
        if cls is not None:
            name = cls.name if option == "task" else cls.__name__
        self.content[option] = {**self.content.get(option, {}), "class": name}
        return cls

    def _default(self, option: str) -> str | None:
        """Return the name of the class that an option chooses where none is named."""
        if self.start is not None and option in ("encoder", "model"):
            model = self.start.model if option == "model" else getattr(self.start.model, "encoder", None)
            return "none" if model is None else type(model).__name__
        if option == "model":
            return DEFAULT_MODEL
        if option == "task" or "pretrained" in self.content:
            return None
        if "preset" in self.content:
            return PRESETS[self.content["preset"]].encoder
        if self.default_encoder is None:
            return None
        takes = arguments_of(class_named("model", self._name("model") or DEFAULT_MODEL))
        return self.default_encoder if "encoder" in takes else "none"


def class_named(option: str, name: str) -> Any:
    """Return the class of a registered name or of an import path, which is then registered."""
    registry, register_class = REGISTRIES[option]
    if name in registry:
        return registry[name]
    if option == "encoder" and is_checkpoint(name):
        raise ValueError(f"--encoder takes a class, and {name} is a checkpoint: say --pretrained {name}")
    module, _, attribute = name.rpartition(".")
    if not module:
        near = difflib.get_close_matches(name, registry, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        names = ", ".join([*registry, "none"] if option == "encoder" else registry)
        raise ValueError(
            f"--{option} must be one of {names}, or the import path of a class such as my_module.MyClass (or a name "
            f"that a module given by --import registers), got {name!r}{hint}"
        )
    try:
        return register_class(getattr(_import_module(module), attribute))
    except (ImportError, AttributeError, TypeError) as error:
        raise ValueError(f"--{option} {name} cannot be imported: {error}") from error


def is_checkpoint(name: str) -> bool:
    """Tell whether a name is of a checkpoint, not of a class."""
    return name not in ENCODERS and (name in zoo.names() or os.path.isdir(name))


def _read_configs(paths: Sequence[str]) -> dict[str, Any]:
    """Read YAML files; a class may be a name without options, and the last file that sets an option counts."""
    content: dict[str, Any] = {}
    for path in paths:
        try:
            read = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ValueError(f"--config {path} is not readable as YAML: {' '.join(str(error).split())}") from error
        if not isinstance(read, dict):
            raise ValueError(f"--config {path} must name options with their values, got {read!r:.80}")
        content |= {name: value for name, value in read.items() if value is not None}
    for option in REGISTRIES.keys() & content.keys():
        if not isinstance(content[option], dict):
            content[option] = {"class": content[option]}
    if isinstance(content.get("import"), str):
        content["import"] = [content["import"]]
    return content


def _import_module(name: str) -> ModuleType:
    """Import a user's module, also from the working directory; it registers its classes."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    return importlib.import_module(name)


def _trained_model(name: str | None) -> Predictor | None:
    """Load the trained model that ``--start`` names, with the data that it was trained on."""
    if name is None:
        return None
    from tg_lpe.prediction import load

    start = load(name)
    if type(start.model).__name__ not in MODELS:
        raise ValueError(f"--start {name} holds a {type(start.model).__name__}; models are {', '.join(MODELS)}")
    return start


def add_import(parser: Any) -> None:
    """Declare ``--import``, which the first step obeys."""
    parser.add_argument(
        "--import",
        type=list[str] | None,
        metavar="MODULE",
        help="module to import first, which registers encoders, models or tasks",
    )


def add_reading(group: Any, canonical: bool = True) -> None:
    """Declare how molecules are read from a file."""
    group.add_argument(
        "--smiles_column", metavar="COLUMN", help="column of the table with the SMILES (default: smiles)"
    )
    group.add_argument(
        "--strict", action="store_true", help="stop at the first molecule that cannot be read, instead of listing it"
    )
    if canonical:
        text = "read all spellings of a SMILES as the same graph (default: true, except for published data sets and "
        text += "for models trained with false)"
        group.add_argument("--canonical", type=bool | None, nargs="?", const=True, help=text)


def add_encoder(parser: Parser, chosen: Chosen, default: str, skip: set[str] = SIZES) -> None:
    """Declare ``--encoder CLASS --encoder.ARGUMENT VALUE``; sizes of the data are filled in from the data."""
    text = f"none, {', '.join(ENCODERS)}, or the import path of your own class ({default}). --encoder.OPTION VALUE "
    text += "sets an option of the class, and --encoder CLASS --help lists them"
    group = _add_class(parser, chosen, "encoder", "positional encoding", text, skip)
    group.add_argument(
        "--pretrained", metavar="NAME|DIR", help="use a pretrained encoder: a name listed by tg-lpe zoo, or a folder"
    )
    add_import(group)


def add_task(parser: Parser, chosen: Chosen) -> None:
    """Declare ``--task NAME --task.ARGUMENT VALUE``; without a name, the arguments of a regression."""
    text = f"{', '.join(TASKS)}, or the import path of your own class; --task TASK --help lists its options"
    group = _add_class(parser, chosen, "task", "task", text, TASK_SIZES)
    if chosen.classes["task"] is None:
        group.add_class_arguments(Regression, "task", as_group=False, skip=TASK_SIZES, instantiate=False)


def add_model(parser: Parser, chosen: Chosen) -> None:
    """Declare ``--model CLASS --model.ARGUMENT VALUE``; sizes of data and task are filled in."""
    cls = chosen.classes["model"]
    text = f"{', '.join(MODELS)}, or the import path of your own class; --model CLASS --help lists its options"
    _add_class(parser, chosen, "model", "model", text, set(FIXED & arguments_of(cls)))
    of_level = [cls.training_defaults(level) for level in LEVELS]
    for name in {name: None for defaults in of_level for name in defaults}:
        first, *others = (defaults.get(name) for defaults in of_level)
        parser.set_defaults({f"model.{name}": first if all(other == first for other in others) else None})


def _add_class(parser: Parser, chosen: Chosen, option: str, title: str, text: str, skip: set[str]) -> Any:
    """Declare an option that chooses a class, and the options of the class that is chosen; return their group."""
    group = parser.add_argument_group(title)
    group.add_argument(f"--{option}.class", metavar="TASK" if option == "task" else "CLASS", help=text)
    if chosen.classes[option] is not None:
        group.add_class_arguments(chosen.classes[option], option, as_group=False, skip=skip, instantiate=False)
    return group


def add_config(parser: Parser, has_preset: bool = True) -> None:
    """Declare ``--config``, ``--print_config`` and, unless it has no meaning, ``--preset``."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="YAML file with any of these options; the command line overrides it, and --print_config prints one",
    )
    parser.add_argument(
        "--print_config",
        nargs="?",
        const="all",
        choices=("all", "skip_default"),
        help="print the settings as a file for --config and exit; --print_config=skip_default leaves out defaults",
    )
    if has_preset:
        parser.add_argument(
            "--preset",
            choices=tuple(PRESETS),
            help="change the defaults to a published experiment: paper is Table 2 of Graph Transformers Dream of "
            "Electric Flow, san is Rethinking Graph Transformers with Spectral Attention",
        )


def parse_rest(parser: Parser, chosen: Chosen) -> Namespace:
    """Parse what the first step left; defaults are those of the preset or of the model to start from, if there is one.

    The ``task`` that is returned holds what was said alone.
    """
    parser.asks_for_all = False  # the words may say what a file does not
    base = parser.parse_object(chosen.content, defaults=False)
    parser.asks_for_all = True
    _refuse_short(parser, chosen)
    given = parser.parse_args(chosen.rest, namespace=base, defaults=False)
    printed = given.pop("print_config", None)
    defaults: dict[str, Any] = {}
    try:
        if chosen.start is not None:
            defaults = _start_defaults(given, chosen)
        elif "preset" in given:
            defaults = _preset_defaults(parser.prog.split()[-1], given, chosen)
        parser.set_defaults(defaults)
        args: Namespace = parser.parse_object(given.clone(), defaults=True)
        if "model" in chosen.classes:
            of_model = {name.removeprefix("model."): one for name, one in defaults.items() if name.startswith("model.")}
            merged = chosen.classes["model"].merge_arguments(of_model, given.model.as_dict())
            for name in of_model:
                args.model[name] = merged[name]
    except ValueError as error:
        parser.error(error.told(as_option) if isinstance(error, ArgumentError) else str(error))
    for name, schedule in READ_BY.items() if "schedule" in args else ():
        if name in given and name not in chosen.content and args.schedule != schedule:
            parser.error(
                f"--{name} would have no effect with --schedule {args.schedule}: --schedule {schedule} reads it"
            )
    if "task" in args:
        args.task = given.get("task", {})
    if printed is not None:
        for name in ("config", "print_config"):
            args.pop(name, None)
        print(parser.dump(given if printed == "skip_default" else args, skip_validation=True))
        sys.exit(0)
    return args


def _refuse_short(parser: Parser, chosen: Chosen) -> None:
    """Refuse the short form of a mapping next to one of its options: the parser would keep only the last."""
    for name, options in getattr(chosen.classes.get("model"), "options", {}).items():
        flag = f"--model.{name}"
        inside = [word for word in chosen.rest if word.startswith(f"{flag}.")]
        if options.short and inside and flag in chosen.rest:
            parser.error(f"write {flag}.{options.short} in place of {flag} beside {inside[0]}")


def _preset_defaults(command: str, given: Namespace, chosen: Chosen) -> dict[str, Any]:
    """Return the defaults by ``--preset``, which depend on the data and the encoder; refuse what contradicts them."""
    preset = PRESETS[given.preset]
    if command == "pretrain" and "kernels" in given:
        raise ValueError(f"--preset {given.preset} pretrains on eigenvectors, so --kernels must not be given")
    defaults = preset.options(command, given.source, chosen_encoder(given))
    arguments = defaults.pop("encoder")
    if "model" in chosen.classes:
        cls = chosen.classes["model"]
        lacking = {key.removeprefix("model.") for key in defaults if key.startswith("model.")} - arguments_of(cls)
        if lacking:
            raise ValueError(
                f"--preset {given.preset} sets {', '.join(sorted(lacking))}, which {cls.__name__} does not have"
            )
    return {**defaults, **{f"encoder.{name}": value for name, value in arguments.items()}}


def _start_defaults(given: Namespace, chosen: Chosen) -> dict[str, Any]:
    """Return the defaults by the trained model that ``--start`` names; refuse what contradicts them."""
    for option in ("preset", "pretrained"):
        if option in given:
            raise ValueError(f"--start and --{option} exclude each other: a trained model brings its own options")
    arguments = model_of(chosen.start).config_dict()
    encoder = arguments.pop("encoder", None) or {"class": "none"}
    if arguments.pop("class") != chosen.classes["model"].__name__:
        return {}  # which a training refuses
    for name, options in chosen.classes["model"].options.items():
        every = options.of(name, arguments.get(name)).to_dict()  # of those left out, a training has other defaults
        arguments[name] = {option: value for option, value in every.items() if option not in OF_DATA}
    defaults = {f"model.{name}": value for name, value in arguments.items() if name not in FIXED}
    defaults["head_lr"] = max(given.get("lr", TrainConfig.lr), TrainConfig.lr)  # the read-out begins anew
    if encoder.pop("class") == given.encoder["class"]:  # another has defaults of its own, also by the same names
        defaults |= {f"encoder.{name}": value for name, value in encoder.items() if name not in SIZES}
    return defaults


def model_of(start: Predictor | None) -> Model:
    """Return the model to start from, whose class :class:`Chosen` has checked."""
    return start.model  # type: ignore[union-attr, return-value]


def chosen_encoder(args: Namespace) -> dict[str, Any] | str | None:
    """Return what ``--encoder`` or ``--pretrained`` chose, as :func:`tg_lpe.training.build_model` takes it."""
    if args.get("pretrained") is not None:
        return str(args.pretrained)
    encoder = args.encoder.as_dict() if "encoder" in args else {}
    return None if encoder.get("class") in (None, "none") else _with_classes(encoder)


def _with_classes(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Replace arguments that are encoders themselves by their class and arguments."""
    result = dict(arguments)
    for name, value in arguments.items():
        if isinstance(value, dict) and "class_path" in value:
            cls = class_named("encoder", value["class_path"])
            result[name] = {"class": cls.__name__, **_with_classes(value.get("init_args") or {})}
    return result


def chosen_model(args: Namespace, level: str) -> dict[str, Any]:
    """Return what ``--model`` and its options chose, as :func:`tg_lpe.training.build_model` takes it."""
    given = args.model.as_dict()
    cls = class_named("model", given.pop("class"))
    unset = {name for other in LEVELS for name in cls.training_defaults(other) if given.get(name) is None}
    given = {name: value for name, value in given.items() if name not in unset}
    return {"model": cls, **cls.merge_arguments(cls.training_defaults(level), given)}


def encoder_label(chosen: Mapping[str, Any] | Checkpoint | None) -> str:
    """Return the name of the encoder for messages and folders."""
    if chosen is None:
        return "none"
    return checkpoint_label(chosen.name) if isinstance(chosen, Checkpoint) else str(chosen["class"])


def settings_of(cls: type[C], args: Namespace, **more: Any) -> C:
    """Make a configuration from the options of its fields' names, and ``more``; absent options leave the defaults."""
    given = {field.name: args[field.name] for field in fields(cls) if args.get(field.name) is not None}
    return cls(**{**given, **more})


def arguments_of(cls: type) -> set[str]:
    """Return the names of the arguments of a class's constructor."""
    return set(inspect.signature(cls).parameters)
