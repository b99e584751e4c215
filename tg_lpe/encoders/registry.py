"""Encoders by name: those of this package, and those that users register."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from tg_lpe.checkpoints.checkpoint import CLASSES, Checkpoint, Kind
from tg_lpe.checkpoints.registry import Registry
from tg_lpe.data.spec import DataSpec
from tg_lpe.encoders.base import Encoder, check_encoder

E = TypeVar("E", bound=type[Encoder])

ENCODERS = Registry("encoder")
"""Every encoder by the name of its class, which is what ``config.json`` and the command line say."""


def register(cls: E) -> E:
    """Make a class of encoders known by its name, as a decorator::

        @tg_lpe.encoders.register
        class Degree(tg_lpe.Encoder): ...

    Raises:
        TypeError: if it is no subclass of :class:`~tg_lpe.Encoder`.
        ValueError: if another class has that name.
    """
    if not (isinstance(cls, type) and issubclass(cls, Encoder)):
        raise TypeError(f"an encoder must be a subclass of tg_lpe.Encoder, got {cls!r}")
    CLASSES.register(cls)  # the larger registry first: a name that it refuses must be in neither
    ENCODERS.register(cls)
    return cls


def load_encoder(name_or_dir: str | Path | Checkpoint) -> Encoder:
    """A pretrained encoder of whichever class it is.

    Args:
        name_or_dir: as :meth:`Encoder.from_pretrained <tg_lpe.Encoder.from_pretrained>`.

    Raises:
        ValueError: as there, or if the checkpoint holds no encoder.
    """
    checkpoint = Checkpoint.open(name_or_dir)
    config, name_or_dir = checkpoint.config, checkpoint.name
    if config.get("class") not in ENCODERS:
        places = {
            Kind.TRAINING: f"tg_lpe.zoo.load({str(name_or_dir)!r}).model.encoder",
            Kind.PRETRAINING: f"the checkpoint {Path(name_or_dir, 'encoder')}",
        }
        if checkpoint.kind in places:
            raise ValueError(f"{name_or_dir} is the folder of a training; its encoder is {places[checkpoint.kind]}")
        held = config.get("class", sorted(config))
        if isinstance(held, str) and held not in CLASSES:
            raise ValueError(
                f"checkpoint {name_or_dir} holds an encoder {held}, which is not registered: import the module that "
                f"defines it, with @tg_lpe.encoders.register before the class; encoders are {list(ENCODERS)}"
            )
        raise ValueError(f"checkpoint {name_or_dir} holds no encoder, but {held}; encoders are {list(ENCODERS)}")
    encoder: Encoder = checkpoint.module
    return encoder


def make_encoder(config: Mapping[str, Any], spec: DataSpec | None = None) -> Encoder:
    """An encoder with fresh weights.

    Args:
        config: ``"class"`` and the arguments of its constructor.
        spec: sizes of the data, for arguments that are absent or ``None``.

    Raises:
        TypeError: if ``config`` is no dictionary.
        ValueError: if the class is missing or unknown, or an argument is out of range or unknown.
    """
    if not isinstance(config, Mapping):
        raise TypeError(f"an encoder must be a tg_lpe.Encoder or its configuration, got {type(config).__name__}")
    arguments = dict(config)
    if "class" not in arguments:
        raise ValueError(f"an encoder's configuration must have a 'class', one of {list(ENCODERS)}, got {config!r}")
    cls = ENCODERS[arguments.pop("class")]
    if spec is not None:
        arguments.update(cls.data_arguments(spec, arguments))
    try:
        encoder: Encoder = cls(**arguments)
    except TypeError as error:
        raise ValueError(f"these are no arguments of {cls.__name__}: {error}") from error
    return encoder


def as_encoder(encoder: Encoder | Mapping[str, Any] | None) -> Encoder | None:
    """The encoder that a model is given: one, or the class and arguments of one, as checkpoints hold them.

    Raises:
        TypeError: if it is neither, or the encoder does not say what it computes and reads.
        ValueError: as :func:`make_encoder`, or if the encoder's widths are out of range.
    """
    if encoder is None:
        return None
    made = make_encoder(encoder) if isinstance(encoder, Mapping) else encoder
    if not isinstance(made, Encoder):
        raise TypeError(f"encoder must be a tg_lpe.Encoder or the arguments of one, got {encoder!r}")
    check_encoder(made)
    return made
