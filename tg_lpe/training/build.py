"""Models and encoders with their initial weights, which depend on the settings and the seed alone."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from tg_lpe.arguments import ArgumentError, check_type
from tg_lpe.checkpoints.checkpoint import Checkpoint
from tg_lpe.data import DataSpec
from tg_lpe.encoders.base import Encoder
from tg_lpe.encoders.registry import ENCODERS, load_encoder, make_encoder
from tg_lpe.models import MODELS, Model
from tg_lpe.models.registry import DEFAULT_MODEL
from tg_lpe.training.tasks import Task

ENCODER_DRAW = 1
"""Separates the seed of the encoder's weights from that of the graph transformer's."""

SIZES = ("num_node_types", "in_channels", "num_edge_types", "edge_dim")
"""Sizes of features, which an encoder and the data must agree on."""


def build_model(
    spec: DataSpec,
    task: Task,
    encoder: Encoder | Mapping[str, Any] | str | Path | Checkpoint | None = None,
    *,
    model: str | type[Model] = DEFAULT_MODEL,
    seed: int = 0,
    edge_encoding: bool = True,
    **arguments: Any,
) -> Model:
    """Make a model for some data and a task, with fresh weights.

    Args:
        spec: sizes of the data, such as ``splits.spec``.
        task: what to predict.
        encoder: the positional encoding: an encoder; or ``"class"`` and arguments of one, which is drawn from a seed of
            its own, so that the model starts from the same weights with every encoder; or the name, folder or open
            checkpoint of a pretrained one; or ``None`` for none.
        model: the class of the model, or its name.
        seed: of the weights. The global generator is not touched.
        edge_encoding: whether the encoding of edges is used, if the encoder has one.
        arguments: further arguments of its constructor, such as those of :class:`~tg_lpe.GraphTransformer`.

    Returns:
        The model, in training mode.

    Raises:
        TypeError: if ``spec`` or ``task`` is of another class.
        ValueError: if an argument is out of range or unknown, a pretrained encoder does not fit the data, or the model
            takes no encoder or predicts no nodes and should.
    """
    check_type("spec", spec, DataSpec, ", as splits.spec is")
    check_type("task", task, Task, ", which task_for makes")
    cls: type[Model] = MODELS[model] if isinstance(model, str) else model
    known = inspect.signature(cls).parameters
    if unknown := sorted(set(arguments) - set(known)):
        raise ValueError(f"unknown arguments {unknown} of {cls.__name__}; known are {sorted(known)}")
    if encoder is not None and "encoder" not in known:
        raise ArgumentError("{} takes no encoder: choose {encoder}, got {!r}", cls.__name__, encoder, encoder=None)
    if spec.graph_dim is not None and "graph_dim" not in known:
        raise ValueError(
            f"{cls.__name__} has no argument graph_dim and cannot read the {spec.graph_dim} columns of graph_attr: "
            "leave them out, or choose another model"
        )
    arguments = cls.arguments_for(task.level, arguments)
    with seeded(seed):
        with seeded(hash_seed(seed, ENCODER_DRAW)):
            encoder = start_encoder(encoder, spec)
        if encoder is not None and not edge_encoding:
            encoder = encoder.without_edges()
            if encoder.edge_out_channels:
                raise ValueError(f"{type(encoder).__name__} cannot leave the edges out; override its without_edges()")
        fixed = {**spec.to_dict(), "encoder": encoder, "out_channels": task.out_channels}
        given = {name: value for name, value in fixed.items() if name in known}
        return cls(**{**given, **arguments}).train()


def start_encoder(
    encoder: Encoder | Mapping[str, Any] | str | Path | Checkpoint | None, spec: DataSpec
) -> Encoder | None:
    """Make or load the encoder that a training begins with, which must fit the sizes of the data.

    Fresh weights come from the global generator; ``encoder`` is as :func:`build_model` takes it.
    """
    if encoder is None or isinstance(encoder, Encoder):
        return encoder
    if isinstance(encoder, Mapping):
        return make_encoder(encoder, spec)
    if isinstance(encoder, str) and encoder in ENCODERS:
        raise ValueError(
            f"{encoder!r} is a class and no pretrained encoder: give {{'class': {encoder!r}}} and its arguments, or an "
            "object of the class"
        )
    checkpoint = Checkpoint.open(encoder)
    pretrained = load_encoder(checkpoint)
    arguments, data = pretrained.config_dict(), spec.to_dict()
    for name in SIZES:
        if arguments.get(name) not in (None, data[name]):
            what = "node" if name in ("num_node_types", "in_channels") else "edge"
            raise ValueError(
                f"encoder {checkpoint.name!r} has {name}={arguments[name]}, the data has {data[name]}: pretrain one on "
                f"this data, or take one that does not read {what} features"
            )
    return pretrained.requires_grad_(True).train()


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Let draws from the global generators of the CPU and of ``device`` depend on the seed; restore them afterwards."""
    cuda = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        # torch.manual_seed would seed every CUDA device, also those whose state is not brought back.
        torch.default_generator.manual_seed(seed)
        for one in cuda:
            with torch.cuda.device(one):
                torch.cuda.manual_seed(seed)
        yield


def hash_seed(*numbers: int) -> int:
    """Mix several numbers into one 63-bit seed, so that (0, 1) and (1, 0) are unrelated."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = (state ^ (number + 0x9E3779B97F4A7C15)) * 0xBF58476D1CE4E5B9 % 2**64
        state ^= state >> 31
    return state % 2**63
