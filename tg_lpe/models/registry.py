"""Registry of models by class name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

from tg_lpe.checkpoints.registry import CLASSES, Registry
from tg_lpe.models.base import Model

M = TypeVar("M", bound=type[Model])

MODELS = Registry("model")
"""All registered models by class name, as in ``config.json`` and on the command line."""

DEFAULT_MODEL = "GraphTransformer"
"""Model of a configuration without a class."""


def register(cls: M) -> M:
    """Register a model class by its name. Use it as a decorator::

        @tg_lpe.models.register
        class DeepSet(tg_lpe.models.Model): ...

    Raises:
        TypeError: if the class is not a subclass of :class:`~tg_lpe.models.Model`, or has no argument ``out_channels``.
        ValueError: if another class has the same name.
    """
    model_class(cls)
    if "out_channels" not in inspect.signature(cls).parameters:
        raise TypeError(f"the constructor of the model {cls.__name__} must have an argument out_channels")
    CLASSES.register(cls)  # first, because it refuses more names: a refused name must be in neither registry
    MODELS.register(cls)
    return cls


def model_class(model: str | type[Model]) -> type[Model]:
    """Return a model class, from the class itself or its name.

    Raises:
        TypeError: if ``model`` is neither a name nor a subclass of :class:`~tg_lpe.models.Model`.
        ValueError: if no class has the name.
    """
    cls: type[Model] = MODELS[model] if isinstance(model, str) else model
    if not (isinstance(cls, type) and issubclass(cls, Model)):
        raise TypeError(f"a model must be a subclass of tg_lpe.models.Model, or the name of one, got {cls!r}")
    return cls


def make_model(config: Mapping[str, Any]) -> Model:
    """Create a model with new weights.

    Args:
        config: ``"class"`` (by default :data:`DEFAULT_MODEL`) and the constructor's arguments.

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
        raise ValueError(f"invalid arguments of {cls.__name__}: {error}") from error
    return model
