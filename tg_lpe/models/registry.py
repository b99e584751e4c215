"""Models by name: those of this package, and those that users register."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

from tg_lpe.checkpoints.checkpoint import CLASSES
from tg_lpe.checkpoints.registry import Registry
from tg_lpe.models.base import Model

M = TypeVar("M", bound=type[Model])

MODELS = Registry("model")
"""Every model by the name of its class, which is what ``config.json`` and the command line say."""

DEFAULT_MODEL = "GraphTransformer"
"""Model of a configuration that names no class."""


def register(cls: M) -> M:
    """Make a class of models known by its name, as a decorator::

        @tg_lpe.models.register
        class DeepSet(tg_lpe.models.Model): ...

    Raises:
        TypeError: if it is no subclass of :class:`~tg_lpe.models.Model`.
        ValueError: if another class has that name.
    """
    if not (isinstance(cls, type) and issubclass(cls, Model)):
        raise TypeError(f"a model must be a subclass of tg_lpe.models.Model, got {cls!r}")
    if "out_channels" not in inspect.signature(cls).parameters:
        raise TypeError(f"the constructor of the model {cls.__name__} must have an argument out_channels")
    CLASSES.register(cls)  # the larger registry first: a name that it refuses must be in neither
    MODELS.register(cls)
    return cls


def make_model(config: Mapping[str, Any]) -> Model:
    """A model with fresh weights.

    Args:
        config: ``"class"`` and the arguments of its constructor; without a class, of :data:`DEFAULT_MODEL`.

    Raises:
        ValueError: if the class is unknown, or an argument is out of range or unknown.
    """
    arguments = dict(config)
    cls = MODELS[arguments.pop("class", DEFAULT_MODEL)]
    if arguments.get("encoder") is None and "encoder" not in inspect.signature(cls).parameters:
        arguments.pop("encoder", None)
    try:
        model: Model = cls(**arguments)
    except TypeError as error:
        raise ValueError(f"these are no arguments of {cls.__name__}: {error}") from error
    return model
