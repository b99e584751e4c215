"""Options from constructors: classes by name, their arguments from the signatures."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from jsonargparse import ArgumentParser, Namespace

from tg_lpe.cli.parser import Parser
from tg_lpe.data import DataSpec
from tg_lpe.data.splits import LEVELS
from tg_lpe.encoders.base import Encoder
from tg_lpe.encoders.registry import ENCODERS, register
from tg_lpe.models import MODELS, Model
from tg_lpe.models import register as register_model
from tg_lpe.models.base import FIXED
from tg_lpe.training.build import NoEncoder
from tg_lpe.training.config import LoopConfig, TrainConfig
from tg_lpe.training.presets import PRESETS
from tg_lpe.training.run_folder import checkpoint_label

DEFAULT_CLASS = "GramTransformer"

MODEL_CLASS = "model.class"
"""The option behind ``--model``, so that a configuration says the class beside the arguments."""

SIZES = {field.name for field in fields(DataSpec)}
WIDTHS = ("out_channels", "edge_out_channels")
TASK_SIZES = {"level", "num_targets", "num_classes", "values"}
SKIPPED: dict[tuple[str, str], set[str]] = {
    **{(command, "--encoder"): SIZES for command in ("train", "encode", "show")},
    ("pretrain", "--encoder"): SIZES | set(WIDTHS),
    **{(command, "--task"): TASK_SIZES for command in ("train", "pretrain", "encode", "show")},
}
"""Arguments of the classes that are no options, by command: they follow from the data and what is learned."""

C = TypeVar("C", bound=LoopConfig)


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
    defaults["head_lr"] = max(args.lr, TrainConfig.lr)  # the read-out begins anew
    cls: Any = NoEncoder if encoder is None else ENCODERS[encoder.pop("class")]
    if args.encoder is not None and class_and_arguments(args.encoder)[0] is not cls:
        return defaults  # another class has defaults of its own, also for arguments of the same name
    own = {name: value for name, value in (encoder or {}).items() if name not in SKIPPED["train", "--encoder"]}
    return {**defaults, "encoder": {"class_path": f"{cls.__module__}.{cls.__qualname__}", "init_args": own}}


def class_and_arguments(chosen: Namespace) -> tuple[Any, dict[str, Any]]:
    """What jsonargparse holds of a chosen class: the class itself and the arguments of its constructor."""
    return _class_and_arguments(chosen.as_dict())


def _class_and_arguments(chosen: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """As :func:`class_and_arguments`; an argument that is an encoder itself becomes its class and arguments."""
    module, _, name = chosen["class_path"].rpartition(".")
    arguments = dict(chosen.get("init_args") or {})
    for key, value in arguments.items():
        if isinstance(value, dict) and "class_path" in value:
            cls, inner = _class_and_arguments(value)
            arguments[key] = {"class": register(cls).__name__, **inner}
    return getattr(importlib.import_module(module), name), arguments


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


def arguments_of(cls: type) -> set[str]:
    """Names of the arguments of a class's constructor."""
    return set(inspect.signature(cls).parameters)
