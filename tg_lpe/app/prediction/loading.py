"""Load trained models from checkpoints and run folders."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tg_lpe.app.prediction.predictor import Predictor
from tg_lpe.app.training.run_folder import RunFolder
from tg_lpe.app.training.tasks import make_task
from tg_lpe.arguments import ArgumentError, checked_device
from tg_lpe.checkpoints.checkpoint import DESCRIPTION, Checkpoint, Kind, module_with
from tg_lpe.checkpoints.files import load_tensors
from tg_lpe.encoders.registry import ENCODERS
from tg_lpe.models import Model, make_model


def load(name_or_dir: str | Path | Checkpoint, device: str | torch.device = "cpu") -> Predictor:
    """Load a trained model, ready to predict::

        tg_lpe.zoo.load("transformer-zinc").predict(["CC(=O)Nc1ccc(O)cc1"]).values  # [1, 1]

    Args:
        name_or_dir: name of a shipped model, the folder of a finished training run, a folder written by
            :meth:`Predictor.save` or ``save_pretrained``, or ``OWNER/NAME`` on the Hugging Face Hub. Without a
            ``card.json``, as after ``save_pretrained``, the model predicts only from graphs, and returns raw outputs.
        device: where to compute.

    Warns:
        UserWarning: if a run folder has weights but no ``result.json``.

    Raises:
        ValueError: if there is no such checkpoint, it is damaged, unfinished or no model, or ``device`` is not usable.
    """
    device = checked_device("device", device)
    checkpoint = Checkpoint.open(name_or_dir)
    config, folder = checkpoint.config, checkpoint.folder
    if checkpoint.kind is Kind.TRAINING:
        return _of_run(RunFolder(folder), config, device)
    if checkpoint.kind is Kind.PRETRAINING:
        raise ValueError(f"{folder} holds a pretraining; its encoder is the checkpoint {folder / 'encoder'}")
    if config.get("class") in ENCODERS:
        hint = "load it with tg_lpe.AddPositionalEncoding.from_pretrained"
        raise ValueError(f"{checkpoint.name} holds an encoder, {config['class']}, which predicts nothing: {hint}")
    return _predictor(checkpoint.load(device), checkpoint.card, folder / DESCRIPTION)


def load_many(names_or_dirs: Sequence[str | Path], device: str | torch.device = "cpu") -> Predictor:
    """Load several trained models, such as the seeds of one run, which predict together.

    Args:
        names_or_dirs: different models, each as in :func:`load`, with the same targets, task, units and kind of input.
        device: where to compute.

    Raises:
        TypeError: if ``names_or_dirs`` is a single name.
        ValueError: if a model is named twice, the models predict or read different things, or as in :func:`load`.

    Example:
        >>> from tg_lpe import zoo
        >>> together = zoo.load_many(["transformer-zinc12k", "san-zinc12k"])
        >>> predictions = together.predict(["CC(=O)Nc1ccc(O)cc1"])
        >>> predictions.columns + predictions.spread_columns
        ('y', 'y_spread')
    """
    if isinstance(names_or_dirs, str | Path):
        raise TypeError(f"names_or_dirs must be a list of models, got {names_or_dirs!r}; load() loads one model")
    names = [str(name) for name in names_or_dirs]
    if not names or len({Path(name).resolve() for name in names}) < len(names):
        got = ", ".join(names) or "none"
        raise ValueError(f"models must be different, at least one, got {got}: a repeated model would shrink the spread")
    predictor, *others = (load(name, device) for name in names)
    expected = _described(predictor)
    for name, other in zip(names[1:], others, strict=True):
        for key, value in _described(other).items():
            if value != expected[key]:
                difference = f"{key} of {name} is {value!r}, {key} of {names[0]} is {expected[key]!r}"
                raise ValueError(f"these models cannot predict together: {difference}")
    predictor.others = tuple(others)
    return predictor


def _described(predictor: Predictor) -> dict[str, Any]:
    """Return the properties that models must share to predict together."""
    data, task = predictor.data, predictor.task
    target, kind = data.get("target") or {}, "graphs (Data)"
    if data.get("bond_types") is not None:
        kind = "molecules with atom types" if data.get("atom_types") else "molecules with ogb's features"
    return {
        "task": None if task is None else task.name,
        "level": predictor._level,
        "target": predictor.columns,
        "classes": predictor.classes,
        "units": predictor.units or target.get("unit"),
        "computed": target.get("computed"),
        "input": kind,
        "repair_radicals": bool(data.get("repair_radicals")),
        "canonical": data.get("canonical") is not False,
        "extra_columns": predictor.extra_columns,
    }


def _predictor(model: Model, described: Mapping[str, Any], file: Path) -> Predictor:
    """Make the predictor of a model from the ``"task"`` and the ``"data"`` in a file."""
    task = described.get("task")
    try:
        return Predictor(model, None if task is None else make_task(task), described.get("data"))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file} does not describe its model: {error}") from error


def _of_run(run: RunFolder, config: Mapping[str, Any], device: str | torch.device) -> Predictor:
    if not run.model.is_file():
        if run.result.exists():
            message = "{} holds a complete run without its weights: {} is missing; remove {}, and a training with "
            message += "{resume} writes both from {}"
            raise ArgumentError(message, run.path, run.model.name, run.result.name, run.state.name, resume=True)
        message = "{} holds an unfinished run: {} is missing; a training with {resume} continues it"
        raise ArgumentError(message, run.path, run.model.name, resume=True)
    if not run.result.exists():
        fault = f"{run.result.name} is missing, so {run.model.name} may be of an earlier run"
        warnings.warn(f"{run.path} holds an unfinished run: {fault}", stacklevel=3)
    if lacking := [name for name in ("model", "task", "data") if not isinstance(config.get(name), dict)]:
        raise ValueError(f"{run.config} is not of a training: it lacks {' and '.join(map(repr, lacking))}")
    described, tensors = {**config["model"], "encoder": config.get("encoder")}, load_tensors(run.model)[0]
    try:
        model = module_with(tensors, lambda: make_model(described))
    except RuntimeError as error:
        raise ValueError(f"{run.model} does not fit {run.config}: {error}") from error
    predictor = _predictor(model.to(device).eval(), config, run.config)
    predictor.run = run
    return predictor
