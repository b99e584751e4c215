"""Registry of encoders by class name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from torch_geometric.transforms import BaseTransform

from tg_lpe.checkpoints.checkpoint import Checkpoint, Kind
from tg_lpe.checkpoints.registry import CLASSES, Registry
from tg_lpe.data.spec import DataSpec
from tg_lpe.encoders.base import Encoder, check_encoder, copy_tensors

E = TypeVar("E", bound=type[Encoder])

ENCODERS = Registry("encoder")
"""All registered encoders by class name, as in ``config.json`` and on the command line."""


def register(cls: E) -> E:
    """Register an encoder class by its name. Use it as a decorator::

        @tg_lpe.encoders.register
        class Degree(tg_lpe.Encoder): ...

    Raises:
        TypeError: if the class is not a subclass of :class:`~tg_lpe.Encoder`.
        ValueError: if another class has the same name.
    """
    if not (isinstance(cls, type) and issubclass(cls, Encoder)):
        raise TypeError(f"an encoder must be a subclass of tg_lpe.Encoder, got {cls!r}")
    CLASSES.register(cls)  # first, because it refuses more names: a refused name must be in neither registry
    ENCODERS.register(cls)
    return cls


def load_encoder(name_or_dir: str | Path | Checkpoint) -> Encoder:
    """Load a pretrained encoder of any class.

    Args:
        name_or_dir: name of an encoder that ships with the package, folder of a saved one, or ``OWNER/NAME`` on the
            Hugging Face Hub; or the run folder of a pretraining.

    Raises:
        ValueError: if the checkpoint is unknown or holds no encoder.

    Example:
        >>> import torch
        >>> from tg_lpe.encoders import load_encoder
        >>> load_encoder("gram-k16")(None, torch.tensor([[0, 1], [1, 2]])).node.shape
        torch.Size([3, 16])
    """
    checkpoint = Checkpoint.open(name_or_dir).encoder
    config, name = checkpoint.config, checkpoint.name
    if config.get("class") not in ENCODERS:
        if checkpoint.kind is Kind.TRAINING or "task" in checkpoint.card:
            inner = f"tg_lpe.zoo.load({name!r}).model.encoder"
            raise ValueError(f"{name} holds no encoder, but a model; its encoder is {inner}")
        raise ValueError(
            f"checkpoint {name} holds {config.get('class', sorted(config))}, which is no registered encoder: import "
            f"the module that defines it, with @tg_lpe.encoders.register before the class, or use {list(ENCODERS)}"
        )
    encoder: Encoder = checkpoint.module
    return encoder


def make_encoder(config: Mapping[str, Any], spec: DataSpec | None = None) -> Encoder:
    """Create an encoder with new weights.

    Args:
        config: ``"class"`` and the constructor's arguments.
        spec: sizes of the data, for arguments that are absent or ``None``.

    Raises:
        TypeError: if ``config`` is not a dictionary.
        ValueError: if the class is missing or unknown, or an argument is out of range or unknown.
    """
    if not isinstance(config, Mapping):
        raise TypeError(f"an encoder must be a tg_lpe.Encoder or its configuration, got {type(config).__name__}")
    if "class" not in config:
        raise ValueError(f"an encoder's configuration must have a 'class', one of {list(ENCODERS)}, got {config!r}")
    arguments = dict(config if spec is None else _completed(config, spec))
    cls = ENCODERS[arguments.pop("class")]
    try:
        encoder: Encoder = cls(**arguments)
    except TypeError as error:
        raise ValueError(f"invalid arguments of {cls.__name__}: {error}") from error
    return encoder


def _completed(config: Any, spec: DataSpec) -> Any:
    """Add the arguments that follow from the data to configurations of encoders, also of those inside them."""
    if isinstance(config, list | tuple):
        return [_completed(each, spec) for each in config]
    if not isinstance(config, Mapping) or config.get("class") not in ENCODERS:
        return config
    arguments = {name: _completed(value, spec) for name, value in config.items()}
    return {**arguments, **ENCODERS[config["class"]].data_arguments(spec, arguments)}


def without_edges(encoder: Encoder) -> Encoder:
    """Return an encoder with the same weights that encodes no edges, or the encoder itself if none can be made."""
    if not encoder.edge_out_channels:
        return encoder
    try:
        config = encoder.config_dict()
        if (of_nodes := _of_nodes(config)) == config:
            return encoder
        slim = encoder.made_anew(**of_nodes)
    except (TypeError, ValueError):
        return encoder
    copy_tensors(slim, encoder)
    return slim


def _of_nodes(config: Any) -> Any:
    """Set ``edge_out_channels`` to 0 in a configuration and in those inside it, except of encoders of edges alone."""
    if isinstance(config, list):
        return [_of_nodes(each) for each in config]
    if not isinstance(config, dict):
        return config
    config = {name: _of_nodes(value) for name, value in config.items()}
    has_both = "edge_out_channels" in config and config.get("out_channels") != 0
    return {**config, "edge_out_channels": 0} if has_both else config


def encoder_hint(value: object) -> str:
    """Return the end of an error message for a class, its name or a transform in place of an encoder; else nothing."""
    if isinstance(value, BaseTransform):
        return "; a transform writes into the data: use it as pre_transform, and make the model with pe_channels="
    if isinstance(value, type) and issubclass(value, Encoder):
        return f"; write {value.__name__}(...), with its arguments"
    return f"; write {value}(...), with its arguments" if isinstance(value, str) and value in ENCODERS else ""


def as_encoder(encoder: Encoder | Mapping[str, Any] | None) -> Encoder | None:
    """Return an encoder from an encoder or from its configuration (class and arguments).

    Raises:
        TypeError: if ``encoder`` has another type.
        ValueError: if the configuration is invalid (see :func:`make_encoder`), or the encoder does not declare its
            widths and ``reads``.
    """
    if encoder is None:
        return None
    made = make_encoder(encoder) if isinstance(encoder, Mapping) else encoder
    if not isinstance(made, Encoder):
        hint = encoder_hint(encoder)
        if isinstance(encoder, str) and not hint:
            hint = "; load_encoder takes the name of a pretrained one"
        raise TypeError(f"encoder must be a tg_lpe.Encoder or the arguments of one, got {encoder!r}{hint}")
    check_encoder(made)
    return made
