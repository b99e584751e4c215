"""Make tasks, and models and encoders with initial weights, which depend only on the settings and the seed."""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from tg_lpe.app.training.readouts import principal_readouts
from tg_lpe.app.training.tasks import NO_TARGET, TASKS, Regression, Task, few, make_task
from tg_lpe.arguments import ArgumentError, check_flags, check_seed, check_type
from tg_lpe.checkpoints.checkpoint import Checkpoint
from tg_lpe.data import DataSpec, GraphSplits, TargetSpec
from tg_lpe.data.seeding import seeded
from tg_lpe.data.splits import PARTS
from tg_lpe.encoders.base import Encoder
from tg_lpe.encoders.registry import ENCODERS, load_encoder, make_encoder, without_edges
from tg_lpe.models import Model
from tg_lpe.models.registry import DEFAULT_MODEL, model_class

ENCODER_DRAW = 1
"""Mixed into the seed of the encoder's weights, so that they do not repeat the draws of the model's weights."""

SIZES = ("num_node_types", "in_channels", "num_edge_types", "edge_dim")
"""Feature sizes on which an encoder and the data must agree."""

_LOGGER = logging.getLogger("tg_lpe.app.training")


def task_for(splits: GraphSplits, name: str | None = None, metric: str | None = None, **options: Any) -> Task:
    """Make the task for a dataset, and check the labels.

    Args:
        splits: the data.
        name: name of the task, such as ``"regression"``. If absent, it is multiclass or multilabel for labels that are
            names, and regression for numbers that are not all integers.
        metric: the metric that chooses the best epoch; the default of the task if absent.
        options: further arguments of the task. If absent, ``num_targets`` and ``num_classes`` follow from the labels,
            and ``mean`` and ``std`` of a regression from the training labels. With ``mean=None, std=None`` labels are
            learned unscaled.

    Raises:
        TypeError: if ``splits`` is no :class:`~tg_lpe.data.GraphSplits`.
        ValueError: if there are no labels, the task is unknown or cannot have these labels, or no task is named and all
            labels are integers, which may be values or classes.
    """
    check_type("splits", splits, GraphSplits, ", which GraphSplits.of makes")
    if not splits.target.columns:
        raise ValueError(NO_TARGET)
    labels, columns = torch.cat([splits.labels(part) for part in PARTS]), ", ".join(splits.target.columns)
    known = labels[~labels.isnan()]
    if not known.numel():
        raise ValueError(f"all labels of {columns} are missing")
    if bool(known.isinf().any()):
        raise ValueError(f"labels of {columns} must be finite, or NaN where missing, got inf")
    name = name or _default_name(splits.target, labels)
    cls, named = TASKS[name], [classes for classes in splits.target.classes if classes]
    if named and issubclass(cls, Regression):
        message = "the labels of {} are names, {}: choose {task}, or multilabel for several columns of two names"
        raise ArgumentError(message, columns, ", ".join(map(repr, named[0][:6])), task="multiclass")
    arguments = cls.arguments_for(labels, splits.labels("train"))
    if options.keys() & {"mean", "std"}:
        arguments = {name: value for name, value in arguments.items() if name not in ("mean", "std")}
    if named and "num_classes" in arguments:
        arguments["num_classes"] = len(named[0])
    elif "num_classes" in arguments.keys() - options.keys():
        gaps = sorted(set(range(arguments["num_classes"])) - set(known.tolist()))
        if gaps and bool(known.min() < known.max()):
            raise ValueError(
                f"classes are numbered from 0, and no label of {columns} is {gaps[0]}: number them without gaps, write "
                f"names into the table, or pass num_classes={arguments['num_classes']}"
            )
    task = make_task({"name": name, "level": splits.target.level, "metric": metric or "", **arguments, **options})
    task.check(labels)
    if "mean" in arguments:
        _warn_of_equal_labels(splits)
    return task


def _default_name(target: TargetSpec, labels: Tensor) -> str:
    """Return the name of the task for labels, or raise ``ValueError`` if several tasks or none are possible."""
    columns, single = ", ".join(target.columns), labels.size(1) == 1
    if any(target.classes):
        numbers = [place for place, classes in enumerate(target.classes) if not classes]
        if not bool(torch.isin(labels[:, numbers].nan_to_num(0.0), torch.tensor([0.0, 1.0])).all()):
            numeric = ", ".join(target.columns[place] for place in numbers)
            raise ValueError(f"some of the columns {columns} hold names, and {numeric} numbers: no task predicts both")
        return "multiclass" if single else "multilabel"
    values = labels[~labels.isnan()].unique()
    if bool((values == values.floor()).all()):
        is_binary = bool(((values == 0) | (values == 1)).all())
        kind = "multiclass" if not is_binary else "binary" if single else "multilabel"
        message = "all labels of {} are integers ({}), which may be classes or values: choose {task} or regression"
        if bool((values < 0).any()):
            message, kind = "all labels of {} are integers ({}): choose {task}, or number classes from 0", "regression"
        raise ArgumentError(message, columns, few(values), task=kind)
    return Regression.name


def _warn_of_equal_labels(splits: GraphSplits) -> None:
    for column, labels in zip(splits.target.columns, splits.labels("train").unbind(1), strict=True):
        known = labels[~labels.isnan()]
        if len(known) and bool(known.min() == known.max()):
            _LOGGER.warning("%s: all %d training labels are %g: nothing can be learned", column, len(known), known[0])


def build_model(
    spec: DataSpec,
    task: Task,
    encoder: Encoder | Mapping[str, Any] | str | Path | Checkpoint | None = None,
    *,
    model: str | type[Model] = DEFAULT_MODEL,
    seed: int = 0,
    edge_encoding: bool = True,
    dataset: Sequence[Data] | None = None,
    **arguments: Any,
) -> Model:
    """Make a model with fresh weights for a dataset and a task.

    Args:
        spec: sizes of the data, such as ``splits.spec``.
        task: what to predict.
        encoder: the encoder of the positional encoding: an object; a dictionary with its ``"class"`` and arguments;
            the name, folder or open checkpoint of a pretrained encoder; or ``None``. The weights of a new encoder are
            drawn with a seed of their own, so the model starts from the same weights whichever encoder it has.
        model: the model's class, or the name of the class.
        seed: seed of the weights. The global generator is left as it is.
        edge_encoding: whether the model uses the encoder's edge encoding, if there is one.
        dataset: training graphs over which :func:`~tg_lpe.app.training.principal_readouts` sets the read-outs of a new
            :class:`~tg_lpe.LinearTransformer` with ``probes="identity"`` or :class:`~tg_lpe.GramTransformer`; if
            absent, they are random.
        arguments: further arguments of the model's constructor, such as ``hidden_channels`` of
            :class:`~tg_lpe.GraphTransformer`.

    Returns:
        The model, in training mode.

    Raises:
        TypeError: if ``spec`` is no ``DataSpec``, ``task`` no ``Task`` or ``model`` no model.
        ValueError: if an argument is unknown or out of range, a pretrained encoder does not fit the data, or the model
            cannot take the encoder or predict at the task's level.
    """
    check_type("spec", spec, DataSpec, ", as splits.spec is")
    check_type("task", task, Task, ", which task_for makes")
    check_seed(seed)
    check_flags(edge_encoding=edge_encoding)
    cls = model_class(model)
    known = inspect.signature(cls).parameters
    if unknown := sorted(set(arguments) - set(known)):
        raise ValueError(f"unknown arguments {unknown} of {cls.__name__}; known are {sorted(known)}")
    if encoder is not None and "encoder" not in known:
        raise ArgumentError("{} takes no encoder: choose {encoder}, got {!r}", cls.__name__, encoder, encoder=None)
    if spec.graph_dim is not None and "graph_dim" not in known:
        columns = f"{spec.graph_dim} columns of graph_attr"
        raise ValueError(f"{cls.__name__} has no argument graph_dim for the {columns}: leave them out")
    arguments = cls.arguments_for(task.level, arguments)
    with seeded(seed):
        with seeded(hash_seed(seed, ENCODER_DRAW)):
            is_new = isinstance(encoder, Mapping)
            encoder = None if encoder is None else start_encoder(encoder, spec)
        if encoder is not None and not edge_encoding:
            encoder = without_edges(encoder)
            if encoder.edge_out_channels:
                raise ValueError(f"{type(encoder).__name__} cannot leave the edges out")
        if is_new and dataset is not None and encoder is not None and encoder.mixes_polynomials:
            principal_readouts(encoder, dataset)
        defaults = {**spec.to_dict(), "encoder": encoder, "out_channels": task.out_channels}
        defaults = {name: value for name, value in defaults.items() if name in known}
        return cls(**{**defaults, **arguments}).train()


def start_encoder(encoder: Encoder | Mapping[str, Any] | str | Path | Checkpoint, spec: DataSpec) -> Encoder:
    """Make or load the encoder that training starts from, and check that it fits the data.

    Args:
        encoder: as in :func:`build_model`. Fresh weights are drawn from the global generator.
        spec: sizes of the data.
    """
    if isinstance(encoder, Encoder):
        return encoder
    if isinstance(encoder, Mapping):
        return make_encoder(encoder, spec)
    name = encoder.__name__ if isinstance(encoder, type) else encoder
    if isinstance(name, str) and name in ENCODERS:
        hint = f"pass {{'class': {name!r}, ...}} with its arguments, or an object of the class"
        raise ValueError(f"{name!r} is a class and no pretrained encoder: {hint}")
    checkpoint = Checkpoint.open(encoder)
    pretrained = load_encoder(checkpoint)
    arguments, data = pretrained.config_dict(), spec.to_dict()
    for name in SIZES:
        if arguments.get(name) not in (None, data[name]):
            level = "node" if name in ("num_node_types", "in_channels") else "edge"
            difference = f"encoder {checkpoint.name!r} has {name}={arguments[name]}, the data has {data[name]}"
            raise ValueError(f"{difference}: pretrain one on this data, or choose one that reads no {level} features")
    return copy.deepcopy(pretrained).requires_grad_(True).train()  # one checkpoint may start several trainings


def hash_seed(*numbers: int) -> int:
    """Mix numbers into one 63-bit seed; their order matters, so (0, 1) and (1, 0) give unrelated seeds."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = (state ^ (number + 0x9E3779B97F4A7C15)) * 0xBF58476D1CE4E5B9 % 2**64
        state ^= state >> 31
    return state % 2**63
